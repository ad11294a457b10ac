"""Congestion controls by name: what each asks of switches, queue pairs and the spec; parameters in public use.

How one acts on packets is compiled (`kernel.packet.congestion`); everything else about it stands here. What reads
a network's size gets it as a `Scale`.

Sources: [Z] Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015; [H] the ns-3 code
that the HPCC authors published (alibaba-edu/High-Precision-Congestion-Control, `simulation/run.py` and
`mix/config.txt`); [U] Ultra Ethernet's reference simulator, whose NSCC figures are scaled from a network of
100 Gb/s and 12 us. Rates that [H] gives in proportion to the link are kept in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.units import PS_PER_S, PS_PER_US

Control = Literal["none", "dcqcn", "nscc"]
DcqcnSet = Literal["sigcomm15", "hpcc", "hpcc-paper", "hpcc-config"]

NEVER_BYTES = 1 << 60  # [H] counts no bytes


@dataclass(frozen=True)
class Scale:
    """Sizes of a network that parameters grow with."""

    mtu_bytes: int
    header_bytes: int  # around a data packet
    nic_bps: int
    bdp_bytes: int  # that fit into the longest round trip at an adapter's rate
    round_trip_ps: int


@dataclass(frozen=True)
class EcnMarking:
    """RED at egress: no mark below `kmin_bytes`, all above `kmax_bytes`, up to `pmax` between; at `rate_bps`."""

    kmin_bytes: int
    kmax_bytes: int
    pmax: float
    rate_bps: int  # thresholds grow in proportion to a port's rate

    def switches(self) -> dict[str, int]:
        """Return these as the packet kernel's configuration has them."""
        return {
            "ecn_kmin_bytes": self.kmin_bytes,
            "ecn_kmax_bytes": self.kmax_bytes,
            "ecn_bps": self.rate_bps,
            "ecn_pmax_q": min(round(self.pmax * 2**32), 2**32 - 1),
        }


@dataclass(frozen=True)
class CongestionControl:
    """No control: what an algorithm may ask for, it does not.

    `decides` has the keys of `run.packet` on which it leaves no say, and what it does instead.
    """

    reorders: ClassVar[bool] = False  # receivers have to take packets in any order
    trims: ClassVar[bool] = False  # full queues cut payload off; what is left, and acknowledgements, goes first
    decides: ClassVar[Mapping[str, str]] = {}

    def switches(self, scale: Scale, lanes: int) -> dict[str, int]:
        """Return what switches do for it, as the packet kernel's configuration has it; `lanes` are in use."""
        return {}

    def settings(self, scale: Scale) -> dict[str, int]:
        """Return the columns of its settings in the kernel."""
        return {}

    def window_bytes(self, scale: Scale, asked: int) -> int:
        """Return the window that a queue pair starts with, where the options ask for `asked`."""
        return asked


@dataclass(frozen=True)
class Timers:
    """Periods of DCQCN in microseconds."""

    alpha: int
    decrease: int
    increase: int
    cnp: int


@dataclass(frozen=True)
class Increase:
    """How DCQCN's rate climbs; in Mb/s at a link of `per_gbps` Gb/s, 0: the same on every link."""

    fast: int  # stages of fast recovery
    additive_mbps: int
    hyper_mbps: int
    per_gbps: int
    byte_counter: int = NEVER_BYTES

    def scaled_kbps(self, mbps: int, link_bps: int) -> int:
        """An increase on a link of that rate, in kb/s."""
        if not self.per_gbps:
            return mbps * 1000
        return mbps * link_bps // (self.per_gbps * 10**6)


@dataclass(frozen=True)
class Dcqcn(CongestionControl):
    """DCQCN."""

    timers: Timers
    increase: Increase
    ecn: EcnMarking
    minimum_mbps: int = 1000
    g_shift: int = 8

    def switches(self, scale: Scale, lanes: int) -> dict[str, int]:
        return {**self.ecn.switches(), "cnp_ps": self.timers.cnp * PS_PER_US}

    def settings(self, scale: Scale) -> dict[str, int]:
        timers, increase = self.timers, self.increase
        return {
            "alpha_ps": timers.alpha * PS_PER_US,
            "decrease_ps": timers.decrease * PS_PER_US,
            "increase_ps": timers.increase * PS_PER_US,
            "byte_counter": increase.byte_counter,
            "g_shift": self.g_shift,
            "fast": increase.fast,
            "additive": increase.scaled_kbps(increase.additive_mbps, scale.nic_bps),
            "hyper": increase.scaled_kbps(increase.hyper_mbps, scale.nic_bps),
            "minimum": self.minimum_mbps * 1000,
        }


@dataclass(frozen=True)
class Nscc(CongestionControl):
    """NSCC [U], as factors of its reference network; `docs/packet.md` has the formulas."""

    reference_bps: int = 100 * 10**9
    reference_ps: int = 12 * PS_PER_US
    target_of_rtt: tuple[int, int] = (3, 4)
    window_of_bdp: tuple[int, int] = (3, 2)
    gamma: float = 0.8
    ecn: EcnMarking = EcnMarking(126_976, 503_808, 1.0, 400 * 10**9)

    reorders = True
    trims = True
    decides: ClassVar[Mapping[str, str]] = {
        "lossless": "trims packets instead of pausing",
        "window": "sets the window",
        "ack_every": "acknowledges every packet",
    }

    def switches(self, scale: Scale, lanes: int) -> dict[str, int]:
        return {
            **self.ecn.switches(),
            "strict": 1 << (lanes - 1),
            "trim_wire_bytes": scale.header_bytes,
            "trim_lane": lanes - 1,
            "queue_limit_bytes": scale.bdp_bytes,
        }

    def settings(self, scale: Scale) -> dict[str, int]:
        mtu, rtt = scale.mtu_bytes, scale.round_trip_ps
        target = rtt * self.target_of_rtt[0] // self.target_of_rtt[1]
        reference = self.reference_bps * self.reference_ps // (8 * PS_PER_S)
        a, b = scale.bdp_bytes / reference, target / self.reference_ps
        return {
            "target_ps": target,
            "adjust_ps": rtt,
            "adjust_bytes": 8 * mtu,
            "gamma_q": round(self.gamma * 65536),
            "fair": round(5 * mtu * a),
            "eta": round(0.15 * mtu * a),
            "alpha_q": round(4 * mtu * a * b / target * 2**24),
            "fast_q": round(0.25 * a * 65536),
            "fast_ps": PS_PER_US,
            "gate_shift": 3,
            "minimum": mtu,
        }

    def window_bytes(self, scale: Scale, asked: int) -> int:
        return scale.bdp_bytes * self.window_of_bdp[0] // self.window_of_bdp[1]


_HPCC_ECN = EcnMarking(100_000, 400_000, 0.2, 25 * 10**9)

DCQCN: dict[DcqcnSet, Dcqcn] = {
    # [Z] sections 3.2, 5: Kmin 5 KB, Kmax 200 KB, Pmax 1% on 40 Gb/s; recalled values, minimum rate as [H]
    "sigcomm15": Dcqcn(
        Timers(alpha=55, decrease=50, increase=55, cnp=50),
        Increase(fast=5, additive_mbps=40, hyper_mbps=400, per_gbps=0, byte_counter=10_000_000),
        EcnMarking(5_000, 200_000, 0.01, 40 * 10**9),
    ),
    # [H] run.py `dcqcn`
    "hpcc": Dcqcn(
        Timers(alpha=1, decrease=4, increase=300, cnp=4),
        Increase(fast=1, additive_mbps=5, hyper_mbps=50, per_gbps=25),
        _HPCC_ECN,
    ),
    # [H] run.py `dcqcn_paper`
    "hpcc-paper": Dcqcn(
        Timers(alpha=50, decrease=50, increase=55, cnp=50),
        Increase(fast=5, additive_mbps=5, hyper_mbps=50, per_gbps=25),
        _HPCC_ECN,
    ),
    # [H] mix/config.txt
    "hpcc-config": Dcqcn(
        Timers(alpha=1, decrease=4, increase=900, cnp=4),
        Increase(fast=1, additive_mbps=50, hyper_mbps=100, per_gbps=0),
        _HPCC_ECN,
        minimum_mbps=100,
    ),
}

CONTROLS: dict[str, Mapping[Any, CongestionControl]] = {  # with their named sets of parameters
    "none": {"": CongestionControl()},
    "dcqcn": DCQCN,
    "nscc": {"": Nscc()},
}


def congestion_control(name: str, parameters: str = "") -> CongestionControl:
    """Return a control, with a named set of parameters where it has several. Raises ConfigError."""
    found: Any = CONTROLS
    for key, value in (("control", name), (name, parameters)):
        if value not in found:
            expected = f"{', '.join(found)}{did_you_mean(value, found)}"
            raise ConfigError(f"got {value!r}, expected one of {expected}", key=key)
        found = found[value]
    control: CongestionControl = found
    return control
