"""Settings of a manager: its rank, keys, partitions, quality of service, routing."""

from __future__ import annotations

from dataclasses import field

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.cluster.spec.congestion_section import CongestionControl
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.partition_keys import FULL as FULL
from fabrictwin.subnet.agents.port_as_built import GID_PREFIX
from fabrictwin.subnet.wire.smp import SlToVl, VlArbitration

DEFAULT_PKEY = 0x7FFF  # the lower 15 bits: which partition
IPOIB_QKEY = 0x0B1B
DROP_VL = 15  # in an SL to VL map: packets are discarded


@record
class Broadcast:
    """A partition's IPoIB broadcast group, codes as the IBTA's."""

    rate: int = 3  # 10 Gb/s
    mtu: int = 4  # 2048 bytes
    sl: int = 0
    scope: int = 2  # link local
    qkey: int = IPOIB_QKEY
    traffic_class: int = 0
    flow_label: int = 0


@record
class Partition:
    """A partition: its key (15 bits), who is a full and who a limited member by port GUID. None is everybody.

    Who is named as both by GUID has both keys; with everybody on one side, that is for those who are not named on
    the other, unless `both`.
    """

    pkey: int
    full: frozenset[int] | None = frozenset()
    limited: frozenset[int] | None = frozenset()
    ipoib: bool = False  # whether it has an IPoIB broadcast group
    broadcast: Broadcast = Broadcast()
    both: bool = False  # everybody has both keys

    def __post_init__(self) -> None:
        if not 0 < self.pkey <= DEFAULT_PKEY:
            raise ConfigError(f"got {self.pkey:#x}, expected 0x1 to 0x7fff", key="partition.pkey")

    def keys_of(self, guid: int) -> tuple[int, ...]:
        """The P_Keys of a port, full membership first; none where it is no member."""
        full, limited = self.pkey | FULL, self.pkey
        if self.both:
            return full, limited
        named = [guid in (members or ()) for members in (self.full, self.limited)]
        if not any(named):
            named = [self.full is None, self.limited is None and self.full is not None]
        return tuple(key for key, member in zip((full, limited), named, strict=True) if member)


def _spread_low() -> tuple[tuple[int, int], ...]:
    return ((0, 0), *((vl, 4) for vl in range(1, 8)))


@record
class Settings:
    """Settings of a manager."""

    priority: int = 0
    sm_key: int = 1
    m_key: int = 0
    m_key_protect: int = 0
    m_key_lease: int = 0  # seconds after which a lost manager's protection is lifted; 0: never
    gid_prefix: int = GID_PREFIX
    engine: str = "auto"
    routing: Options = field(default_factory=Options)
    max_vls: int = 4  # code of OperationalVLs: 4 is VL 0 to 7
    mtu_code: int = 5
    subnet_timeout: int = 18
    partitions: tuple[Partition, ...] = (Partition(DEFAULT_PKEY, full=None, ipoib=True),)
    enforce_partitions: bool = True  # also at the switch ports that face adapters
    qos: bool = True  # program SL to VL and VL arbitration; otherwise leave them
    sl_to_vl: tuple[int, ...] = field(default=(*(sl % 8 for sl in range(15)), 7))
    vl_low: tuple[tuple[int, int], ...] = field(default_factory=_spread_low)  # (VL, weight)
    vl_high: tuple[tuple[int, int], ...] = ((0, 4), *((vl, 0) for vl in range(1, 8)))
    vl_high_limit: int = 0
    packet_life_time: int = 18  # 4.096 us x 2^18 in a switch, as OpenSM sets this and what follows
    head_of_queue: int = 18  # likewise at the head of a lane's queue, toward switches
    leaf_head_of_queue: int = 16  # and toward adapters
    stall_count: int = 7  # packets discarded there in a row, after which a lane stalls
    babbling_traps: int = 0  # traps 129 to 131 of a port after which it is disabled; 0: never
    congestion: CongestionControl | None = None  # of all switches and adapters; None: left as it is
    take_over_after: int = 3  # polls that a master may leave unanswered

    def __post_init__(self) -> None:
        for key, got, most in (
            ("priority", self.priority, 15),
            ("max_vls", self.max_vls, 5),
            ("vl_high_limit", self.vl_high_limit, 255),
            ("mtu_code", self.mtu_code, 5),
            ("babbling_traps", self.babbling_traps, 1_000_000),
            ("packet_life_time", self.packet_life_time, 20),
            ("head_of_queue", self.head_of_queue, 20),
            ("leaf_head_of_queue", self.leaf_head_of_queue, 20),
            ("stall_count", self.stall_count, 7),
            ("m_key_protect", self.m_key_protect, 3),
            ("m_key_lease", self.m_key_lease, 0xFFFF),
        ):
            if not 0 <= got <= most:
                raise ConfigError(f"got {got}, expected 0 to {most}", key=key)

    @property
    def lmc(self) -> int:
        return self.routing.lmc

    def sl_to_vl_bytes(self, operational_vls: int) -> bytes:
        """The table for a port with so many VLs (its code): VLs beyond fold back."""
        vls = VL_COUNTS[operational_vls]
        return SlToVl(vls=tuple(vl if vl == DROP_VL else vl % vls for vl in self.sl_to_vl)).encode()

    def arbitration_bytes(self, *, high: bool, entries: int, operational_vls: int) -> bytes:
        """The low or high table with as many entries as the port takes; entries of absent VLs get no weight."""
        vls = VL_COUNTS[operational_vls]
        table = (self.vl_high if high else self.vl_low)[: min(entries, 32)]
        padding = (0,) * (32 - len(table))
        return VlArbitration(
            vls=(*(vl % vls for vl, _ in table), *padding),
            weights=(*(weight if vl < vls else 0 for vl, weight in table), *padding),
        ).encode()

    def pkeys_of(self, guid: int) -> tuple[int, ...]:
        """The P_Keys of a port, in the order of the partitions."""
        return tuple(key for partition in self.partitions for key in partition.keys_of(guid))


VL_COUNTS = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 15}
