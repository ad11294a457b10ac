"""Parameters of congestion control and of ECN marking, by name, as they are in public use.

Sources: [Z] Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015; [H] the ns-3 code
that the HPCC authors published (alibaba-edu/High-Precision-Congestion-Control, `simulation/run.py` and
`mix/config.txt`); [U] Ultra Ethernet's reference simulator, whose NSCC figures are scaled from a network of
100 Gb/s and 12 us. Rates that [H] gives in proportion to the link are kept in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.units import PS_PER_US

CONTROLS = ("none", "dcqcn", "nscc")


@dataclass(frozen=True)
class EcnMarking:
    """RED at egress: no mark below `kmin_bytes`, all above `kmax_bytes`, up to `pmax` between; at `rate_bps`."""

    kmin_bytes: int
    kmax_bytes: int
    pmax: float
    rate_bps: int  # thresholds grow in proportion to a port's rate


@dataclass(frozen=True)
class Dcqcn:
    """DCQCN. Additive and hyper increase in Mb/s at a link of `per_gbps` Gb/s; 0: the same on every link."""

    source: str
    alpha_ps: int
    decrease_ps: int
    increase_ps: int
    cnp_ps: int
    byte_counter: int
    g_shift: int
    fast: int
    additive_mbps: int
    hyper_mbps: int
    minimum_mbps: int
    per_gbps: int
    ecn: EcnMarking

    def scaled_kbps(self, mbps: int, link_bps: int) -> int:
        """An increase on a link of that rate, in kb/s."""
        if not self.per_gbps:
            return mbps * 1000
        return mbps * link_bps // (self.per_gbps * 10**6)


@dataclass(frozen=True)
class Nscc:
    """NSCC, as factors of its reference network; `docs/packet.md` has the formulas."""

    source: str
    reference_bps: int = 100 * 10**9
    reference_ps: int = 12 * PS_PER_US
    target_of_rtt: tuple[int, int] = (3, 4)
    window_of_bdp: tuple[int, int] = (3, 2)
    gamma: float = 0.8
    queue_of_bdp: tuple[int, int] = (1, 1)
    kmin_bytes: int = 126_976  # at 400 Gb/s
    kmax_bytes: int = 503_808


NEVER_BYTES = 1 << 60  # [H] counts no bytes

_HPCC_ECN = EcnMarking(100_000, 400_000, 0.2, 25 * 10**9)
_US = PS_PER_US

DCQCN: dict[str, Dcqcn] = {
    # [Z] sections 3.2, 5: Kmin 5 KB, Kmax 200 KB, Pmax 1% on 40 Gb/s; recalled values, minimum rate as [H]
    "sigcomm15": Dcqcn(
        source="Zhu et al. 2015",
        alpha_ps=55 * _US,
        decrease_ps=50 * _US,
        increase_ps=55 * _US,
        cnp_ps=50 * _US,
        byte_counter=10_000_000,
        g_shift=8,
        fast=5,
        additive_mbps=40,
        hyper_mbps=400,
        minimum_mbps=1000,
        per_gbps=0,
        ecn=EcnMarking(5_000, 200_000, 0.01, 40 * 10**9),
    ),
    # [H] run.py `dcqcn`
    "hpcc": Dcqcn(
        source="HPCC ns-3 run.py, dcqcn",
        alpha_ps=_US,
        decrease_ps=4 * _US,
        increase_ps=300 * _US,
        cnp_ps=4 * _US,
        byte_counter=NEVER_BYTES,
        g_shift=8,
        fast=1,
        additive_mbps=5,
        hyper_mbps=50,
        minimum_mbps=1000,
        per_gbps=25,
        ecn=_HPCC_ECN,
    ),
    # [H] run.py `dcqcn_paper`
    "hpcc-paper": Dcqcn(
        source="HPCC ns-3 run.py, dcqcn_paper",
        alpha_ps=50 * _US,
        decrease_ps=50 * _US,
        increase_ps=55 * _US,
        cnp_ps=50 * _US,
        byte_counter=NEVER_BYTES,
        g_shift=8,
        fast=5,
        additive_mbps=5,
        hyper_mbps=50,
        minimum_mbps=1000,
        per_gbps=25,
        ecn=_HPCC_ECN,
    ),
    # [H] mix/config.txt
    "hpcc-config": Dcqcn(
        source="HPCC ns-3 mix/config.txt",
        alpha_ps=_US,
        decrease_ps=4 * _US,
        increase_ps=900 * _US,
        cnp_ps=4 * _US,
        byte_counter=NEVER_BYTES,
        g_shift=8,
        fast=1,
        additive_mbps=50,
        hyper_mbps=100,
        minimum_mbps=100,
        per_gbps=0,
        ecn=_HPCC_ECN,
    ),
}

NSCC = Nscc(source="Ultra Ethernet reference simulator")


def dcqcn_parameters(name: str) -> Dcqcn:
    """A named set. Raises ConfigError."""
    if name not in DCQCN:
        raise ConfigError(
            f"got {name!r}, expected one of {', '.join(DCQCN)}{did_you_mean(name, DCQCN)}", key="dcqcn"
        )
    return DCQCN[name]
