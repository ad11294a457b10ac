"""Options of the packet engine: frozen records by what they decide, every field with its default and source."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fabrictwin.base.congestion_controls import (
    CongestionControl,
    Dcqcn,
    DcqcnByRate,
    altered,
    congestion_control,
)
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.grouped import grouped
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_US
from fabrictwin.cluster.spec.packet_section import forward_share
from fabrictwin.cluster.spec.qos_section import Qos

if TYPE_CHECKING:
    from fabrictwin.cluster.spec.packet_section import Packet

BALANCES = ("routed", "adaptive", "spray")
RETRANSMISSIONS = ("go-back-n", "selective")
LOCAL_ACK_TIMEOUT_PS = 4_096_000  # InfiniBand Architecture 9.7.6.1.3: 4.096 us * 2**timeout


def _refuse_negative(record: Any) -> None:
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, int) and value < 0:
            raise ConfigError(f"got {value}, expected a number that is not negative", key=field.name)


def _refuse_other(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(
            f"got {value!r}, expected one of {', '.join(known)}{did_you_mean(value, known)}", key=key
        )


@record
class Congestion:
    """The congestion control, and its parameters where there is a choice. Raises ConfigError."""

    control: str = "none"
    dcqcn: str | Dcqcn | DcqcnByRate = "by-rate"  # a set of parameters, or its name
    controls: tuple[tuple[int, str], ...] = ()  # of connections at a service level; the others have `control`

    def __post_init__(self) -> None:
        for name in self.used:
            if name != "dcqcn":
                congestion_control(name)
        if isinstance(self.dcqcn, str):
            congestion_control("dcqcn", self.dcqcn)

    @property
    def algorithm(self) -> CongestionControl:
        """The congestion control of connections whose service level has none of its own, with its parameters."""
        return self.named(self.control)

    @property
    def used(self) -> tuple[str, ...]:
        """Names of all controls, that of most connections first."""
        return tuple(dict.fromkeys((self.control, *(name for _, name in self.controls))))

    def at(self, level: int) -> str:
        """Return the name of the control of connections at a service level."""
        return dict(self.controls).get(level, self.control)

    def named(self, name: str) -> CongestionControl:
        """Return a control that is used, with its parameters."""
        if name == "dcqcn":
            return congestion_control("dcqcn", self.dcqcn) if isinstance(self.dcqcn, str) else self.dcqcn
        return congestion_control(name)


@record
class Transport:
    """The reliable transport. Raises ConfigError."""

    retransmission: str = "go-back-n"  # adaptive and spray need and get "selective"
    timeout: int = 14  # 67 ms; NCCL sets 20
    retry_count: int = 7
    rnr_retry: int = 7
    rnr_timer_ps: int = 640_000_000  # code 12 of the standard, which NCCL asks for
    ack_every: int = 4  # packets an acknowledgement; NSCC: every one
    window_bytes: int = 0  # 0: as much as buffers and control let through; reordering: the bitmap's reach
    window_packets: int = 1024  # reach of selective repeat

    def __post_init__(self) -> None:
        _refuse_other("retransmission", self.retransmission, RETRANSMISSIONS)
        if self.window_packets & (self.window_packets - 1) or not 2 <= self.window_packets <= 1 << 16:
            raise ConfigError(f"got {self.window_packets}, expected a power of two", key="window_packets")
        _refuse_negative(self)

    @property
    def timeout_ps(self) -> int:
        """0 turns the timer off, as in the standard."""
        return LOCAL_ACK_TIMEOUT_PS << self.timeout if self.timeout else 0


@record
class Arbitration:
    """Lanes' turns at a port. Raises ConfigError."""

    vl_high: tuple[tuple[int, int], ...] = ()  # InfiniBand's arbitration tables: (lane, weight in 64 bytes)
    vl_low: tuple[tuple[int, int], ...] = ()  # both empty: lanes are served equally
    vl_high_limit: int = 0  # 4,096 bytes; 0: one packet, 255: no limit
    strict_priorities: tuple[int, ...] = ()  # Ethernet: before all others, the highest first
    ets_weights: tuple[int, ...] = ()  # Ethernet: shares of the others, one a priority; empty: equal

    def __post_init__(self) -> None:
        _refuse_negative(self)
        if self.vl_high_limit > 255:
            raise ConfigError(f"got {self.vl_high_limit}, expected 0 to 255", key="vl_high_limit")


@record
class Lanes:
    """Virtual lanes or priorities, and what travels on each. Raises ConfigError."""

    lanes: int = 1
    service_level: int | None = None  # of all connections; None: the route's
    service_levels: tuple[tuple[str, int], ...] = ()  # of communications of a name
    sl_to_vl: tuple[int, ...] = ()  # the lane of each of 16 service levels; empty: the same number, modulo lanes
    arbitration: Arbitration = Arbitration()
    qos: Qos | None = None  # Ethernet: what single ports do with each priority

    def __post_init__(self) -> None:
        if self.lanes not in (1, 2, 4, 8):
            raise ConfigError(f"got {self.lanes}, expected 1, 2, 4 or 8", key="lanes")
        if self.sl_to_vl and (len(self.sl_to_vl) != 16 or not all(0 <= vl < self.lanes for vl in self.sl_to_vl)):
            raise ConfigError(f"got {list(self.sl_to_vl)}, expected 16 lanes below {self.lanes}", key="sl_to_vl")
        for level in [self.service_level or 0, *(level for _, level in self.service_levels)]:
            if not 0 <= level <= 15:
                raise ConfigError(f"got service level {level}, expected 0 to 15", key="service_level")
        strict, weights = self.arbitration.strict_priorities, self.arbitration.ets_weights
        if any(not 0 <= vl < self.lanes for vl in strict):
            message = f"got {list(strict)}, expected priorities below {self.lanes}"
            raise ConfigError(message, key="strict_priorities")
        if weights and (len(weights) != self.lanes or min(weights) < 1):
            message = f"got {list(weights)}, expected {self.lanes} weights of at least 1"
            raise ConfigError(message, key="ets_weights")


@record
class Switching:
    """Buffers of switches, and what happens when they fill. Raises ConfigError."""

    lossless: bool = True  # Ethernet: priority flow control
    lossy_priorities: tuple[int, ...] = ()  # Ethernet: that have none
    store_and_forward: bool = False  # network switches; otherwise they cut through
    buffer_alpha_256: int = 32  # dynamic threshold: 1/8 as in the HPCC authors' model of a switch
    buffer_bytes: int = 0  # of every Ethernet switch; 0: the catalog's
    credit_bytes: int = 0  # a lane's buffer at InfiniBand inputs; 0: the switch's share, a round trip at least
    credit_batch_bytes: int = 16 << 10
    hoq_ps: int = 0  # head-of-queue lifetime; OpenSM sets 1.07 s, far beyond what is simulated

    def __post_init__(self) -> None:
        _refuse_negative(self)


@record
class Hosts:
    """Bytes inside hosts. Raises ConfigError."""

    gpudirect: bool = True
    staging_chunk_bytes: int = 512 << 10  # without GPUDirect: NCCL's buffer of 4 MiB in 8 steps
    staging_ps: int = 2 * PS_PER_US  # the proxy's time a chunk and copy; an estimate
    repeats: bool = True  # what happens again just as before is played once
    skip_error: float = 0.0  # share of the time that skipping steady steps may move it by
    host_work: bool = False  # memory, cores and threads of hosts take their time too: what staged bytes need

    def __post_init__(self) -> None:
        _refuse_negative(self)


@record
class Limits:
    """What a run may take: sizes that it is refused above, parts, cores. Raises ConfigError."""

    memory_limit_bytes: int = 4 << 30
    packet_limit: int = 5_000_000_000  # packet-hops of one post: ten minutes where nothing repeats
    message_limit: int = 5_000_000  # of one post: each takes some microseconds to set up, and 300 bytes
    parts: int = 0  # of the fabric, that are played side by side; 0: by its size
    threads: int = 0  # that play parts; 0: as many as there are cores. Changes no result

    def __post_init__(self) -> None:
        _refuse_negative(self)


@record
class PacketOptions:
    """Options of a run, by what they decide. Raises ConfigError where a value is not one of those listed."""

    balance: str = "routed"  # LFT or ECMP as routed; adaptive: least queue a packet; spray: a random path a packet
    congestion: Congestion = Congestion()
    transport: Transport = Transport()
    lanes: Lanes = Lanes()
    switching: Switching = Switching()
    hosts: Hosts = Hosts()
    limits: Limits = Limits()
    seed: int = 1

    def __post_init__(self) -> None:
        _refuse_other("balance", self.balance, BALANCES)
        _refuse_negative(self)

    @property
    def selective(self) -> bool:
        """True where some connection takes packets in any order."""
        return any(self.reorders(name) for name in self.congestion.used)

    def reorders(self, control: str) -> bool:
        """Return true if connections under a control take packets in any order."""
        by_all = self.transport.retransmission == "selective" or self.balance != "routed"
        return by_all or self.congestion.named(control).reorders

    @property
    def packets_an_ack(self) -> int:
        return 1 if "ack_every" in self.congestion.algorithm.decides else self.transport.ack_every


def options_with(**values: Any) -> PacketOptions:
    """Return options by the names of single ones, whatever group holds them. Raises ConfigError, TypeError."""
    return grouped(PacketOptions(), values)


# keys of `run.packet` whose field has another name here
_FIELD = {
    "rnr_timer": "rnr_timer_ps",
    "window": "window_bytes",
    "virtual_lanes": "lanes",
    "buffer": "buffer_bytes",
    "credit_buffer": "credit_bytes",
    "credit_batch": "credit_batch_bytes",
    "head_of_queue_lifetime": "hoq_ps",
    "staging_chunk": "staging_chunk_bytes",
    "staging_time": "staging_ps",
    "memory_limit": "memory_limit_bytes",
}
_ETHERNET = (
    "preset",
    "control",
    "controls",
    "dcqcn",
    "lossless",
    "lossy_priorities",
    "buffer",
    "buffer_alpha",
    "strict_priorities",
    "ets_weights",
)
_BY_PORT = (
    "lossless",
    "lossy_priorities",
    "virtual_lanes",
    "strict_priorities",
    "ets_weights",
)  # what rows of qos say too
QOS_LANES = 8
_INFINIBAND = ("credit_buffer", "head_of_queue_lifetime", "sl_to_vl", "vl_high", "vl_low", "vl_high_limit")


def options_of(section: Packet | None, technology: str, seed: int, qos: Qos | None = None) -> PacketOptions:
    """The engine's options as `run.packet` and `network.qos` have them.

    Raises ConfigError for a key that the technology has not, or that one of the two says of the other's.
    """
    more: dict[str, Any] = {}
    for key in () if section is None else type(section).model_fields:
        value = getattr(section, key)
        if value is None:
            continue
        foreign = _ETHERNET if technology == "infiniband" else _INFINIBAND
        if key in foreign and value != "none":
            other = "Ethernet" if technology == "infiniband" else "InfiniBand"
            here = "InfiniBand" if technology == "infiniband" else "Ethernet"
            raise ConfigError(f"got {key} on {here}, expected it only on {other}", key=f"run.packet.{key}")
        if key == "preset":
            continue  # its keys are written out
        if key == "buffer_alpha":
            more["buffer_alpha_256"] = round(256 * value)
        elif key in ("vl_high", "vl_low"):
            pairs = (entry.split(":") for entry in value.split(","))
            more[key] = tuple((int(vl), int(weight)) for vl, weight in pairs)
        elif key == "dcqcn" and not isinstance(value, str):
            more[key] = altered(value.like, dict(value))
        elif key == "fast_forward":
            more |= {"repeats": value != "off", "skip_error": forward_share(value) or 0.0}
        elif key in ("service_levels", "controls"):
            more[key] = tuple(sorted(value.items()))
        else:
            more[_FIELD.get(key, key)] = tuple(value) if isinstance(value, list) else value
    if qos is not None and qos.ports:
        for key in _BY_PORT:
            if more.get(_FIELD.get(key, key)):
                message = f"got {key} beside network.qos with ports, which says that of each port"
                raise ConfigError(message, key=f"run.packet.{key}")
        more |= {"qos": qos, "lanes": QOS_LANES}
    return options_with(seed=seed, **more)
