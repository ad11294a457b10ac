"""Congestion controls by name: what each asks of switches, queue pairs and the spec; parameters in public use.

How one acts on packets is compiled (`kernel.packet.congestion`); everything else about it stands here. What reads
a network's size gets it as a `Scale`.

Sources: [Z] Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015; [H] the ns-3 code
that the HPCC authors published (alibaba-edu/High-Precision-Congestion-Control, `simulation/run.py` and
`mix/config.txt`); [U] Ultra Ethernet's reference simulator, whose NSCC figures are scaled from a network of
100 Gb/s and 12 us; [A] `mlxconfig query` of untouched ConnectX-4, -5 and -6 Dx adapters, nine public ones alike,
and NVIDIA's page (https://networking-docs.nvidia.com/doca/archive/3-4-0/dcqcn-cc-parameters); [S] the buffer
profile that SONiC gives a switch without one of its own (sonic-net/sonic-buildimage, `qos_config.j2`); [T]
thresholds by rate as Alibaba Cloud's simulator has them (aliyun/SimAI, `SimAI.conf`); [K] Kumar et al., "Swift:
Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020, and htsim's `swift.cpp`.
[R] RFC 9438 (CUBIC), RFC 8257 (DCTCP), RFC 6928 (the initial window); [L] Linux, include/net/tcp.h and the
default of tcp_rmem.
Rates that [H] gives in proportion to the link are kept in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S, PS_PER_US

Control = Literal["none", "dcqcn", "nscc", "swift", "cubic", "dctcp"]
DcqcnSet = Literal[
    "by-rate", "100g", "200g", "400g", "800g", "adapter", "sigcomm15", "hpcc", "hpcc-paper", "hpcc-config"
]

NEVER_BYTES = 1 << 60  # [H] counts no bytes


@record
class Scale:
    """Sizes of a network that parameters grow with."""

    mtu_bytes: int
    header_bytes: int  # around a data packet
    nic_bps: int
    bdp_bytes: int  # that fit into the longest round trip at an adapter's rate
    round_trip_ps: int


@record
class EcnMarking:
    """RED at egress: no mark below `kmin_bytes`, all above `kmax_bytes`, up to `pmax` between; at `rate_bps`."""

    kmin_bytes: int
    kmax_bytes: int
    pmax: float
    rate_bps: int  # thresholds grow in proportion to a port's rate; 0: they are the same at every rate

    def switches(self) -> dict[str, int]:
        """Return these as the packet kernel's configuration has them."""
        return {
            "ecn_kmin_bytes": self.kmin_bytes,
            "ecn_kmax_bytes": self.kmax_bytes,
            "ecn_bps": self.rate_bps,
            "ecn_pmax_q": min(round(self.pmax * 2**32), 2**32 - 1),
        }


@record
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

    def timeout_ps(self, asked: int) -> int:
        """Return the retransmission time, where the options ask for `asked`; 0 is never."""
        return asked


@record
class Tcp(CongestionControl):
    """Common to TCP's controls: where the window begins, what a socket's buffer takes, the least time-out."""

    first_packets: int = 10  # [R]
    most_bytes: int = 6_291_456  # [L]
    least_timeout_ps: int = 200_000 * PS_PER_US  # [L]

    reorders = True  # SACK: what came stays

    def settings(self, scale: Scale) -> dict[str, int]:
        return {"minimum": scale.mtu_bytes, "maximum": max(self.most_bytes, scale.mtu_bytes)}

    def window_bytes(self, scale: Scale, asked: int) -> int:
        return min(asked, self.first_packets * scale.mtu_bytes)

    def timeout_ps(self, asked: int) -> int:
        return max(asked, self.least_timeout_ps) if asked else 0


@record
class Cubic(Tcp):
    """CUBIC [R]."""

    beta: float = 0.7
    c: float = 0.4  # packets a second cubed

    def settings(self, scale: Scale) -> dict[str, int]:
        return {
            **super().settings(scale),
            "beta_q": round(self.beta * 2**16),
            "converge_q": round((1 + self.beta) / 2 * 2**16),
            "friendly_q": round(3 * (1 - self.beta) / (1 + self.beta) * 2**16),
            "per_ten": round(10 * self.c),
        }


@record
class Dctcp(Tcp):
    """DCTCP [R]: marks above one threshold, which [H] has at 30 KB for 10 Gb/s."""

    gain_shift: int = 4
    ecn: EcnMarking = EcnMarking(30_000, 30_000, 1.0, 10 * 10**9)

    def switches(self, scale: Scale, lanes: int) -> dict[str, int]:
        return self.ecn.switches()

    def settings(self, scale: Scale) -> dict[str, int]:
        return {**super().settings(scale), "gain_shift": self.gain_shift}


@record
class Timers:
    """Periods of DCQCN in microseconds."""

    alpha: int
    decrease: int
    increase: int
    cnp: int


@record
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


@record
class Dcqcn(CongestionControl):
    """DCQCN."""

    timers: Timers
    increase: Increase
    ecn: EcnMarking
    minimum_mbps: int = 1000
    g_1024: int = 4  # 1/256
    clamps: bool = False  # every cut sets the target to the rate before it; else those after a timer's increase

    def switches(self, scale: Scale, lanes: int) -> dict[str, int]:
        return {**self.ecn.switches(), "cnp_ps": self.timers.cnp * PS_PER_US}

    def settings(self, scale: Scale) -> dict[str, int]:
        timers, increase = self.timers, self.increase
        return {
            "alpha_ps": timers.alpha * PS_PER_US,
            "decrease_ps": timers.decrease * PS_PER_US,
            "increase_ps": timers.increase * PS_PER_US,
            "byte_counter": increase.byte_counter,
            "g": self.g_1024,
            "clamp": int(self.clamps),
            "fast": increase.fast,
            "additive": increase.scaled_kbps(increase.additive_mbps, scale.nic_bps),
            "hyper": increase.scaled_kbps(increase.hyper_mbps, scale.nic_bps),
            "minimum": self.minimum_mbps * 1000,
        }


@record
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


@record
class Swift(CongestionControl):
    """Swift [K], its figures as htsim's authors have them, who mark them as guesses; [K] names few of its own."""

    queueing_ps: int = 20 * PS_PER_US  # beyond the empty network's round trip
    increase_packets: float = 1.0  # a round trip
    beta: float = 0.8
    most_decrease: float = 0.5
    range_of_queueing: int = 5
    least_packets: float = 0.1  # windows between which the target depends on the window
    most_packets: float = 100.0

    def settings(self, scale: Scale) -> dict[str, int]:
        span = self.range_of_queueing * self.queueing_ps
        low, high = self.least_packets**-0.5, self.most_packets**-0.5
        scaling = span / (low - high)
        target = scale.round_trip_ps + self.queueing_ps
        return {
            "target_ps": target,
            "increase": round(self.increase_packets * scale.mtu_bytes),
            "beta_q": round(self.beta * 2**16),
            "most_q": round(self.most_decrease * 2**16),
            "scaling_ps": round(scaling),
            "offset_ps": round(scaling * high),
            "range_ps": span,
            "minimum": scale.mtu_bytes,
            "maximum": max(scale.nic_bps * target // (8 * PS_PER_S), scale.mtu_bytes),
        }

    def window_bytes(self, scale: Scale, asked: int) -> int:
        return min(asked, max(scale.bdp_bytes, scale.mtu_bytes))


@record
class DcqcnByRate(CongestionControl):
    """DCQCN with the parameters of the adapters' rate: those of the lowest rate that is not below it."""

    sets: tuple[tuple[int, Dcqcn], ...]  # (bits a second, parameters), ascending

    def at(self, nic_bps: int) -> Dcqcn:
        """Return the parameters at a rate; above the highest rate those of the highest."""
        return next((found for rate, found in self.sets if rate >= nic_bps), self.sets[-1][1])

    def switches(self, scale: Scale, lanes: int) -> dict[str, int]:
        return self.at(scale.nic_bps).switches(scale, lanes)

    def settings(self, scale: Scale) -> dict[str, int]:
        return self.at(scale.nic_bps).settings(scale)


_HPCC_ECN = EcnMarking(100_000, 400_000, 0.2, 25 * 10**9)
_ADAPTER_TIMERS = Timers(alpha=1, decrease=4, increase=300, cnp=4)  # [A]; [H] run.py `dcqcn` has the same


def _for_rate(gbps: int, ecn: EcnMarking) -> Dcqcn:
    """Timers and gain as adapters have them [A], increases in proportion to the rate [H], marks as given."""
    increase = Increase(fast=1, additive_mbps=gbps // 5, hyper_mbps=2 * gbps, per_gbps=gbps)
    return Dcqcn(_ADAPTER_TIMERS, increase, ecn, g_1024=5)


_RATES: dict[DcqcnSet, tuple[int, Dcqcn]] = {
    "100g": (100 * 10**9, _for_rate(100, EcnMarking(400_000, 1_600_000, 0.2, 100 * 10**9))),  # [T]
    "200g": (200 * 10**9, _for_rate(200, EcnMarking(300_000, 1_200_000, 0.8, 200 * 10**9))),  # [T]
    "400g": (400 * 10**9, _for_rate(400, EcnMarking(800_000, 3_200_000, 0.2, 400 * 10**9))),  # [T]
    # nothing published at 800 Gb/s: the delay that [T] allows at 400 Gb/s
    "800g": (800 * 10**9, _for_rate(800, EcnMarking(1_600_000, 6_400_000, 0.2, 800 * 10**9))),
}

DCQCN: dict[DcqcnSet, Dcqcn | DcqcnByRate] = {
    "by-rate": DcqcnByRate(tuple(_RATES.values())),
    **{name: found for name, (_, found) in _RATES.items()},
    # [A] on a switch as [S] leaves it. The byte counter is at its field's greatest value (32767), whose unit the
    # maker's tools do not agree on; it is left out, as in [H]
    "adapter": Dcqcn(
        _ADAPTER_TIMERS,
        Increase(fast=1, additive_mbps=5, hyper_mbps=50, per_gbps=0),
        EcnMarking(1 << 20, 2 << 20, 0.05, 0),
        minimum_mbps=1,
        g_1024=5,
    ),
    # [Z] sections 3.2, 5: Kmin 5 KB, Kmax 200 KB, Pmax 1% on 40 Gb/s; recalled values, minimum rate as [H]
    "sigcomm15": Dcqcn(
        Timers(alpha=55, decrease=50, increase=55, cnp=50),
        Increase(fast=5, additive_mbps=40, hyper_mbps=400, per_gbps=0, byte_counter=10_000_000),
        EcnMarking(5_000, 200_000, 0.01, 40 * 10**9),
        clamps=True,
    ),
    # [H] run.py `dcqcn`
    "hpcc": Dcqcn(
        _ADAPTER_TIMERS,
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
    "swift": {"": Swift()},
    "cubic": {"": Cubic()},
    "dctcp": {"": Dctcp()},
}


# keys of `run.packet` that a name stands for
PRESETS: dict[str, Mapping[str, Any]] = {
    "pfc-only": {"lossless": True, "control": "none"},
    "pfc-dcqcn": {"lossless": True, "control": "dcqcn", "dcqcn": "by-rate"},
    "pfc-swift": {"lossless": True, "control": "swift"},
    "tcp-cubic": {"lossless": False, "control": "cubic", "retransmission": "selective"},
    "tcp-dctcp": {"lossless": False, "control": "dctcp", "retransmission": "selective"},
}
Preset = Literal["pfc-only", "pfc-dcqcn", "pfc-swift", "tcp-cubic", "tcp-dctcp"]


def altered(name: DcqcnSet, values: Mapping[str, Any]) -> Dcqcn | DcqcnByRate:
    """Return a set with some values changed: `ecn_min`, `ecn_max` in bytes at every rate, `ecn_probability`,
    `additive` and `hyper` in bits a second, `increase_timer`, `cut_timer` and `cnp_timer` in picoseconds.
    """
    found = DCQCN[name]
    if isinstance(found, DcqcnByRate):
        return DcqcnByRate(tuple((rate, _altered(one, values)) for rate, one in found.sets))
    return _altered(found, values)


def _altered(found: Dcqcn, values: Mapping[str, Any]) -> Dcqcn:
    def given(key: str, otherwise: int, unit: int = 1) -> int:
        return otherwise if values.get(key) is None else values[key] // unit

    timers, increase, ecn = found.timers, found.increase, found.ecn
    if values.get("ecn_min") is not None or values.get("ecn_max") is not None:
        ecn = replace(
            ecn,
            kmin_bytes=given("ecn_min", ecn.kmin_bytes),
            kmax_bytes=given("ecn_max", ecn.kmax_bytes),
            rate_bps=0,
        )
    if values.get("ecn_probability") is not None:
        ecn = replace(ecn, pmax=values["ecn_probability"])
    if values.get("additive") is not None or values.get("hyper") is not None:
        increase = replace(
            increase,
            additive_mbps=given("additive", increase.additive_mbps, 10**6),
            hyper_mbps=given("hyper", increase.hyper_mbps, 10**6),
            per_gbps=0,
        )
    timers = replace(
        timers,
        increase=given("increase_timer", timers.increase, PS_PER_US),
        decrease=given("cut_timer", timers.decrease, PS_PER_US),
        cnp=given("cnp_timer", timers.cnp, PS_PER_US),
    )
    return replace(found, timers=timers, increase=increase, ecn=ecn)


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
