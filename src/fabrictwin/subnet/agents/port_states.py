"""States of the nodes of one fabric for management: ports, LIDs, tables, counters.

Every switch, adapter and aggregation node is a *managed node*; an adapter and an aggregation node are channel
adapters of one port. Each port has a *slot*: slot `base[m] + k` is port k of managed node m, port 0 included
(a switch's management port; of a channel adapter it stays unused). PortInfo lives as the 64 bytes that answer a
Get, one row a slot, so that a Get is a copy and a column of a field is a slice.

Links train when both ends are up and enabled: the widest width and the fastest speed that both allow and the
cable was built for. Not modelled: the time that training takes, width or speed degrading by itself.

Who a node says that it is, and the LID that its port has, are as discovered where the fabric was discovered;
otherwise made up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I64, U8, place_of, starts_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.whole_numbers import whole
from fabrictwin.fabric.fabric import NONE, Fabric, NodeKind
from fabrictwin.subnet.agents.congestion_port import CongestionPort
from fabrictwin.subnet.agents.node_as_built import LINEAR_CAP, describe, node_info, switch_as_built
from fabrictwin.subnet.agents.port_as_built import PortRole, port_as_built
from fabrictwin.subnet.wire import link_encodings as speeds
from fabrictwin.subnet.wire.fields import Field
from fabrictwin.subnet.wire.pm import PortCountersExtended
from fabrictwin.subnet.wire.smp import (
    NodeInfo,
    PhysState,
    PortInfo,
    PortState,
    SwitchInfo,
)

NO_PORT = 0xFF
FULL_PKEY = 0xFFFF

STATE = Field(PortInfo, "port_state")
PHYS = Field(PortInfo, "port_physical_state")
LID = Field(PortInfo, "lid")
LMC = Field(PortInfo, "lmc")
SM_LID = Field(PortInfo, "master_sm_lid")
CAPABILITIES = Field(PortInfo, "capability_mask")
_STATE_BYTE, _PHYS_BYTE = STATE.first, PHYS.first
_CHANGE = Field(SwitchInfo, "port_state_change")

# what the performance agents count, one column each over slots; unicast packets are what multicast ones leave
_NO_COLUMN = {"port_select", "counter_select", "counter_select2", "unicast_xmit_packets", "unicast_rcv_packets"}
COUNTERS = tuple(name for name in PortCountersExtended.names() if name not in _NO_COLUMN)
# and by service level or virtual lane: packets with FECN and BECN, ticks of congestion
LANE_COUNTERS, LANES = ("fecns", "becns", "congested_ticks"), 16


class PortStates:
    """The states of all nodes and ports. `fabric` is read; everything else may change."""

    def __init__(self, fabric: Fabric) -> None:
        if fabric.technology != "infiniband":
            raise ConfigError(
                f"got {fabric.technology}, expected infiniband: no other technology has a subnet manager",
                key="cluster.network.technology",
            )
        self.fabric = fabric
        kinds = (NodeKind.SWITCH, NodeKind.NIC, NodeKind.AGGREGATION)
        self.fabric_node = np.flatnonzero(np.isin(fabric.node_kind, kinds)).astype(np.int32)
        self.managed = place_of(self.fabric_node, fabric.nodes)
        is_switch = fabric.node_kind[self.fabric_node] == NodeKind.SWITCH
        known = [fabric.identities.get(int(guid)) for guid in fabric.node_guid[self.fabric_node]]
        # an adapter's PCIe ports are no business of the subnet's; each of a card's ports is a node
        card = np.array([who.ports if who else 1 for who in known], np.int64)
        own = np.array([who.port if who else 1 for who in known], np.int64)
        count = np.where(is_switch, np.diff(fabric.node_port_start)[self.fabric_node], card)
        self._end: list[int] = np.where(is_switch, 0, own).tolist()
        base = starts_of(count + 1)
        self.slots = int(base[-1])
        # plain lists: datagrams look up single entries, where lists are several times faster than arrays
        self.base: list[int] = base[:-1].tolist()
        self.ports: list[int] = count.tolist()
        self.is_switch: list[bool] = is_switch.tolist()
        self.node_of: list[int] = np.repeat(np.arange(len(count)), count + 1).tolist()
        self.number: list[int] = (np.arange(self.slots) - np.repeat(base[:-1], count + 1)).tolist()
        self._find_cables(base, is_switch)

        invented = [int(guid) for guid in fabric.node_guid[self.fabric_node]]
        self.guid: list[int] = [
            who.node_guid if who and who.node_guid else guid for who, guid in zip(known, invented, strict=True)
        ]
        self.identities = known
        # where the fabric was discovered from, else the first channel adapter
        self.origin: int = next((m for m, who in enumerate(known) if who and who.origin), NONE)
        if self.origin == NONE:
            self.origin = next((m for m, switch in enumerate(self.is_switch) if not switch), 0 if known else NONE)
        self.port_guid: list[int] = [int(g) for g in fabric.port_guid[self.fabric_node]]
        self.description: list[bytes] = [describe(fabric, int(n)) for n in self.fabric_node]
        self.node_info: list[NodeInfo] = [
            node_info(fabric, int(node), ports=ports, port_guid=port_guid)
            for node, ports, port_guid in zip(self.fabric_node, self.ports, self.port_guid, strict=True)
        ]
        self.switch_info: dict[int, bytearray] = {
            m: bytearray(switch_as_built(fabric, int(self.fabric_node[m])).encode())
            for m in range(len(self.guid))
            if self.is_switch[m]
        }
        self.row: dict[int, int] = {m: row for row, m in enumerate(self.switch_info)}
        self.lft: U8 = np.full((len(self.row), 1024), NO_PORT, np.uint8)
        self.mft: dict[tuple[int, int, int], bytes] = {}  # (node, block, position)
        self.pkeys: dict[tuple[int, int], bytes] = {}  # (slot, block)
        self.sl_to_vl: dict[tuple[int, int, int], bytes] = {}  # (node, in, out), NONE for all
        self.vl_arbitration: dict[tuple[int, int], bytes] = {}  # (slot, part)
        self.guids: dict[tuple[int, int], bytes] = {}  # (slot, block)
        self.counters: dict[str, I64] = {name: np.zeros(self.slots, np.int64) for name in COUNTERS}
        self.lane_counters: dict[str, I64] = {}  # of LANE_COUNTERS [slot, level or lane], once one counted

        self.alive: list[bool] = [True] * len(self.guid)
        self.silent: set[int] = set()  # nodes whose agents do not answer though their links are up
        self.m_key_lease: dict[int, int] = {}  # when the lease of a slot's key ends, while it runs
        self.malformed = 0  # datagrams that were dropped because they were none
        # called with (slot, time) when a port's logical state changed, and with (node, first LID, entries before,
        # time) when part of a forwarding table did
        self.on_port_change: list[Callable[[int, int], None]] = []  # (switch, time): a link of it came or went
        self.on_state: list[Callable[[int, int], None]] = []
        self.on_lanes: list[Callable[[int], None]] = []  # (time): SL to VL maps or arbitration are others
        self.on_congestion: list[Callable[[int], None]] = []  # (time): settings of congestion control are
        self.on_keys: list[Callable[[int], None]] = []  # (time): a port's partition keys are
        self.congestion_ports: dict[int, CongestionPort] = {}  # by slot, of agents that were asked
        self.on_table: list[Callable[[int, int, U8, int], None]] = []
        self.port_info: U8 = np.zeros((self.slots, PortInfo.SIZE), np.uint8)
        self.info = memoryview(self.port_info.data).cast("B")
        self._power_on()

    def lane_counter(self, name: str) -> I64:
        """A counter by service level or virtual lane, to be changed in place."""
        if name not in self.lane_counters:
            self.lane_counters[name] = np.zeros((self.slots, LANES), np.int64)
        return self.lane_counters[name]

    # -- how it starts -------------------------------------------------------------------------------------

    def _find_cables(self, base: I64, is_switch: npt.NDArray[np.bool_]) -> None:
        """`cable[slot]`: the slot at the other end as built; `link`: the same while both ends are up."""
        fabric = self.fabric
        first = fabric.node_port_start[self.fabric_node].astype(np.int64)
        slot_of = np.full(fabric.ports, NONE, np.int64)
        for m in np.flatnonzero(is_switch):
            ports = np.arange(first[m], fabric.node_port_start[self.fabric_node[m] + 1])
            slot_of[ports] = base[m] + 1 + np.arange(len(ports))
        for m in np.flatnonzero(~is_switch):
            nic = fabric.node_nic[self.fabric_node[m]]
            port = fabric.nic_port[nic] if nic != NONE else first[m]
            if port != NONE:
                slot_of[port] = base[m] + self._end[m]
        self.fabric_port = np.full(self.slots, NONE, np.int64)
        ports = np.flatnonzero(slot_of != NONE)
        self.fabric_port[slot_of[ports]] = ports
        peer = fabric.port_peer[ports]
        joined = (peer != NONE) & (slot_of[peer] != NONE)
        cable = np.full(self.slots, NONE, np.int64)
        cable[slot_of[ports[joined]]] = slot_of[peer[joined]]
        self.cable: list[int] = cable.tolist()
        self.link: list[int] = cable.tolist()

    def _power_on(self) -> None:
        rates = self.fabric.port_rate_bps
        rate = np.where(self.fabric_port == NONE, 0, rates[self.fabric_port]).tolist()
        self.built: list[tuple[int, speeds.Speed] | None] = [
            speeds.link_of(r) if r and c != NONE else None for r, c in zip(rate, self.cable, strict=True)
        ]
        for m, who in enumerate(self.identities):
            for port, width, speed in who.links if who else ():
                if self.cable[self.base[m] + port] != NONE:
                    self.built[self.base[m] + port] = width, speeds.Speed[speed]
        everywhere = max((b[1] for b in self.built if b), default=speeds.Speed.HDR)
        mtu = speeds.mtu_code(self.fabric.mtu_bytes)
        for m, ports in enumerate(self.ports):
            mine = [b for b in self.built[self.base[m] : self.base[m] + ports + 1] if b]
            fastest = max((b[1] for b in mine), default=everywhere)
            widths = frozenset(b[0] for b in mine) | {1, 4}
            others = PortRole.EXTERNAL if self.is_switch[m] else PortRole.ENDPORT
            for port in range(0 if self.is_switch[m] else 1, ports + 1):
                slot = self.base[m] + port
                up = self.cable[slot] != NONE or port == 0
                template = port_as_built(fastest, widths, mtu, up, others if port else PortRole.MANAGEMENT)
                self.port_info[slot] = np.frombuffer(template, np.uint8)
                self.info[64 * slot + 28] = port
                if slot == self.end_slot(m):
                    who = self.identities[m]
                    LID.put(self.info, int(self.fabric.node_lid[self.fabric_node[m]]), 64 * slot)
                    LMC.put(self.info, who.lmc if who else 0, 64 * slot)
                if port == 0:
                    STATE.put(self.info, PortState.ACTIVE, 64 * slot)
        for slot, far in enumerate(self.cable):
            if far > slot:
                self._negotiate(slot)

    # -- single values ---------------------------------------------------------------------------------------

    def get(self, slot: int) -> bytes:
        """PortInfo of a slot."""
        return bytes(self.info[64 * slot : 64 * slot + 64])

    def put(self, slot: int, info: PortInfo) -> None:
        self.info[64 * slot : 64 * slot + 64] = info.encode()

    def lid(self, slot: int) -> int:
        return self.info[64 * slot + 16] << 8 | self.info[64 * slot + 17]

    def sm_lid(self, slot: int) -> int:
        return self.info[64 * slot + 18] << 8 | self.info[64 * slot + 19]

    def logical(self, slot: int) -> int:
        return self.info[64 * slot + _STATE_BYTE] & 0xF

    def physical(self, slot: int) -> int:
        return self.info[64 * slot + _PHYS_BYTE] >> 4

    def end_slot(self, m: int) -> int:
        """The slot that holds a node's LID: a switch's port 0, a channel adapter's port."""
        return self.base[m] + self._end[m]

    def owns(self, m: int, lid: int) -> bool:
        """Return whether a LID is the node's, path bits included."""
        slot = self.end_slot(m)
        own = self.lid(slot)
        return own != 0 and own <= lid < own + (1 << LMC.get(self.info, 64 * slot))

    def lane_map(self, m: int, into: int, out: int) -> bytes | None:
        """The SL to VL table for what goes from one of a node's ports to another; None where none was set."""
        for key in ((m, into, out), (m, NONE, out), (m, into, NONE), (m, NONE, NONE)):
            if key in self.sl_to_vl:
                return self.sl_to_vl[key]
        return None

    def grow_lft(self, highest: int) -> None:
        """Make room for table entries up to a LID."""
        have = self.lft.shape[1]
        if highest >= have:
            wider = np.full((len(self.lft), min(LINEAR_CAP, max(2 * have, highest + 1))), NO_PORT, np.uint8)
            wider[:, :have] = self.lft
            self.lft = wider

    def find(self, name: str) -> int:
        """A managed node by its name, its description or its GUID in hexadecimal. Raises KeyError."""
        if name in self._by_name:
            return self._by_name[name]
        try:
            return self.guid.index(whole(name, most=2**64 - 1, base=16))
        except ValueError:
            raise KeyError(name) from None

    @property
    def _by_name(self) -> dict[str, int]:
        names = {d.decode(errors="replace"): m for m, d in reversed(list(enumerate(self.description)))}
        return names | {self.fabric.node_name(int(n)): m for m, n in enumerate(self.fabric_node)}

    # -- links ---------------------------------------------------------------------------------------------

    def _negotiate(self, slot: int) -> None:
        """Width and speed of a trained link, for both ends."""
        far = self.link[slot]
        built = self.built[slot]
        assert built is not None
        theirs = self.built[far] or built
        a, b = PortInfo.decode(self.info, 64 * slot), PortInfo.decode(self.info, 64 * far)
        widths = a.link_width_enabled & b.link_width_enabled
        lanes = max((w for code, w in speeds.WIDTHS.items() if widths & code and w <= built[0]), default=1)
        speed = speeds.fastest_common(
            a.link_speed_enabled & b.link_speed_enabled,
            a.link_speed_ext_enabled & b.link_speed_ext_enabled,
            a.link_speed_ext2_enabled & b.link_speed_ext2_enabled,
            1 if built[1] == speeds.Speed.FDR10 else 0,
            built[1],
        )
        active = speeds.active_fields(speed if speed is not None else speeds.Speed.SDR)
        for end, info in ((slot, a), (far, b)):
            if theirs != built and end == far:  # the ends were discovered to say different things
                lanes, active = theirs[0], speeds.active_fields(theirs[1])
            info.link_width_active = speeds.WIDTH_CODES[lanes]
            info.link_speed_active = active.first
            info.link_speed_ext_active = active.extended
            info.link_speed_ext2_active = active.extended2
            self.put(end, info)

    def _trainable(self, slot: int) -> bool:
        far = self.cable[slot]
        return (
            far != NONE
            and self.alive[self.node_of[slot]]
            and self.alive[self.node_of[far]]
            and PhysState.DISABLED not in (self.physical(slot), self.physical(far))
            and slot not in self._cut
        )

    _cut: frozenset[int] = frozenset()

    def take_down(self, slot: int, now_ps: int, *, phys: int = PhysState.POLLING) -> None:
        """The link at a slot goes down at both ends; `phys` is what this end does then."""
        far = self.link[slot]
        self.link[slot] = NONE
        self._set_states(slot, PortState.DOWN, phys)
        if far == NONE:
            return
        self.link[far] = NONE
        self._set_states(far, PortState.DOWN, PhysState.POLLING)
        for end in (slot, far):
            self._changed(end, now_ps)
            self.notify_state(end, now_ps)

    def bring_up(self, slot: int, now_ps: int) -> bool:
        """Train the link at a slot where both ends can; says whether it came up."""
        far = self.cable[slot]
        if self.link[slot] != NONE or not self._trainable(slot):
            return False
        self.link[slot], self.link[far] = far, slot
        for end in (slot, far):
            self._set_states(end, PortState.INIT, PhysState.LINK_UP)
        self._negotiate(slot)
        for end in (slot, far):
            self._changed(end, now_ps)
            self.notify_state(end, now_ps)
        return True

    def notify_state(self, slot: int, now_ps: int) -> None:
        """A port's logical state is another now."""
        for listener in self.on_state:
            listener(slot, now_ps)

    def notify_lanes(self, now_ps: int) -> None:
        """Maps or arbitration of a port are others now."""
        for listener in self.on_lanes:
            listener(now_ps)

    def notify_keys(self, now_ps: int) -> None:
        """A port's partition keys are others now."""
        for listener in self.on_keys:
            listener(now_ps)

    def notify_congestion(self, now_ps: int) -> None:
        """Settings of congestion control are others now."""
        for listener in self.on_congestion:
            listener(now_ps)

    def write_table(self, m: int, first: int, entries: U8, now_ps: int) -> None:
        """Entries of a switch's forwarding table from LID `first` on become these."""
        self.grow_lft(first + len(entries) - 1)
        row = self.lft[self.row[m]]
        before = row[first : first + len(entries)].copy()
        row[first : first + len(entries)] = entries
        for listener in self.on_table:
            listener(m, first, before, now_ps)

    def _set_states(self, slot: int, logical: int, physical: int) -> None:
        STATE.put(self.info, logical, 64 * slot)
        PHYS.put(self.info, physical, 64 * slot)

    def _fail(self, slot: int, now_ps: int) -> None:
        """A link goes down that nobody asked to: LinkDowned counts those."""
        for end in (slot, self.link[slot]):
            if end != NONE:
                self.counters["link_downed"][end] += 1
        self.take_down(slot, now_ps)

    def cut_cable(self, slot: int, now_ps: int) -> None:
        """A cable is pulled: down until `mend_cable`."""
        self._cut |= {slot, self.cable[slot]} - {NONE}
        self._fail(slot, now_ps)

    def build_slower(self, slot: int, rate_bps: int) -> None:
        """The link at a slot never trained faster than this since its ends were switched on; 0: it has none."""
        if not rate_bps:
            self._cut |= {slot, self.cable[slot]} - {NONE}
            self.take_down(slot, 0)
            return
        for end in (slot, self.cable[slot]):
            self.built[end] = speeds.link_of(rate_bps)
        self._negotiate(slot)

    def mend_cable(self, slot: int, now_ps: int) -> bool:
        self._cut -= {slot, self.cable[slot]}
        return self.bring_up(slot, now_ps)

    def power_off(self, m: int, now_ps: int) -> None:
        """A node dies: all its links go down and it answers nothing."""
        self.alive[m] = False
        for slot in range(self.base[m] + 1, self.base[m] + self.ports[m] + 1):
            if self.link[slot] != NONE:
                self._fail(slot, now_ps)

    def power_cycle(self, m: int, now_ps: int) -> None:
        """A node comes back as it left the factory: without LID, tables, partitions."""
        self.alive[m] = True
        row = self.row.get(m)
        if row is not None:
            self.write_table(m, 0, np.full(self.lft.shape[1], NO_PORT, np.uint8), now_ps)
            info = SwitchInfo.decode(self.switch_info[m])
            self.switch_info[m][:] = replace(info, linear_fdb_top=0, port_state_change=0).encode()
        for table in (self.mft, self.sl_to_vl):
            for key in [k for k in table if k[0] == m]:
                del table[key]
        for slot in range(self.base[m], self.base[m] + self.ports[m] + 1):
            self.congestion_ports.pop(slot, None)
            for by_slot in (self.pkeys, self.vl_arbitration, self.guids):
                for pair in [p for p in by_slot if p[0] == slot]:
                    del by_slot[pair]
            LID.put(self.info, 0, 64 * slot)
            SM_LID.put(self.info, 0, 64 * slot)
            LMC.put(self.info, 0, 64 * slot)
            self.bring_up(slot, now_ps)

    # -- traps ---------------------------------------------------------------------------------------------

    def _changed(self, slot: int, now_ps: int) -> None:
        """A port's link came or went: a switch notes it and tells the manager."""
        m = self.node_of[slot]
        if self.is_switch[m]:
            _CHANGE.put(self.switch_info[m], 1)
            for listener in self.on_port_change:
                listener(m, now_ps)

    def has_news(self, m: int) -> bool:
        """Return whether a switch notes that a port's state changed, which its manager has not cleared yet."""
        return bool(_CHANGE.get(self.switch_info[m]))

    def plane_of(self, m: int) -> int:
        """Return the subnet that a managed node belongs to."""
        return int(self.fabric.node_plane[self.fabric_node[m]])
