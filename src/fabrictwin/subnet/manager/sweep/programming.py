"""Setting a subnet up, in the order in which nothing is in use before it is complete.

P_Keys; forwarding tables of switches that are new; SL to VL, arbitration, multicast; then each port's LID, MTU and
lanes together with the step to Armed; then Active; then tables of switches that are in use. What is known to be
there already is not sent again. SL to VL tables go to a switch in one datagram where it has one table for all
ports (SwitchInfo.OptimizedSLtoVLMappingProgramming); otherwise one for each pair of ports.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import U8
from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.manager.mad_transport import Answer, Request, Transport, get, put
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.sweep.discovery import Kind, Node, Port, Subnet
from fabrictwin.subnet.manager.sweep.table_computation import (
    BLOCK,
    NO_PORT,
    Graph,
    changed_blocks,
    padded,
    port_guid,
)
from fabrictwin.subnet.wire.smp import AttributeId, MulticastForwarding, PhysState, PKeyTable, PortInfo, PortState

NO_MULTICAST = 0xBFFF  # MulticastFDBTop of a switch without multicast entries
ALL_PORTS = 0x30000  # SLtoVL modifier: every input and every output port
_STATE, _PHYS = 32, 33  # bytes of PortInfo that hold the states
_PKEYS_A_BLOCK = 32


class Programmer:
    """Sends settings, and remembers what each switch and port was given."""

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        lft: dict[int, U8],
        mft: dict[tuple[int, int, int], bytes],
    ) -> None:
        self.transport = transport
        self.settings = settings
        self.lft = lft  # as switches hold it, by switch GUID; kept up to date
        self._set_up: dict[tuple[int, int], tuple[int, ...]] = {}  # lanes and tables by (GUID, port)
        self._keys: dict[tuple[int, int], bytes] = {}  # P_Keys of switch ports that face adapters, likewise
        self.mft = mft  # likewise, by (GUID, block, position)
        self.findings: list[tuple[Kind, str, str]] = []

    def forget(self, node: Node) -> None:
        """A node that came back from the dead holds nothing."""
        self.lft.pop(node.guid, None)
        for number in (NONE, *node.ports):
            self._set_up.pop((node.guid, number), None)
            self._keys.pop((node.guid, number), None)
        for key in [key for key in self.mft if key[0] == node.guid]:
            del self.mft[key]

    def _send(self, requests: Sequence[Request], what: Sequence[object], attribute: str) -> list[Answer | None]:
        answers = self.transport.exchange(requests)
        for who, answer in zip(what, answers, strict=True):
            if answer is None:
                self.findings.append((Kind.SILENT, str(who), f"no answer when {attribute} was set"))
            elif answer[0]:
                self.findings.append((Kind.REFUSED, str(who), f"{attribute}: status 0x{answer[0]:04x}"))
        return answers

    # -- partitions ----------------------------------------------------------------------------------------

    def partitions(self, subnet: Subnet) -> None:
        """P_Key tables of every port with a LID, and of the switch ports that face adapters where asked."""
        asked: list[tuple[Port, bytes]] = []
        for node in subnet.nodes.values():
            for port in node.ends():
                keys = self.settings.pkeys_of(port_guid(port))[:_PKEYS_A_BLOCK]
                asked.append((port, PKeyTable(pkeys=(*keys, *[0] * (_PKEYS_A_BLOCK - len(keys)))).encode()))
        held = self.transport.exchange([get(port.path, AttributeId.PKEY_TABLE) for port, _ in asked])
        todo = [
            (port, table)
            for (port, table), answer in zip(asked, held, strict=True)
            if answer is None or answer[1] != table
        ]
        requests = [put(port.path, AttributeId.PKEY_TABLE, table) for port, table in todo]
        self._send(requests, [port for port, _ in todo], "P_KeyTable")
        if self.settings.enforce_partitions:
            facing = [
                (port.peer, table)
                for port, table in asked
                if port.number and port.peer is not None and port.peer.node.is_switch
            ]
            facing = [(port, table) for port, table in facing if self._keys.get(_place(port)) != table]
            requests = [
                put(port.node.path, AttributeId.PKEY_TABLE, table, port.number << 16) for port, table in facing
            ]
            answers = self._send(requests, [port for port, _ in facing], "P_KeyTable")
            for (port, table), answer in zip(facing, answers, strict=True):
                if answer is not None and not answer[0]:
                    self._keys[_place(port)] = table

    # -- unicast tables ------------------------------------------------------------------------------------

    def forwarding(
        self,
        graph: Graph,
        lft: U8,
        *,
        only: frozenset[int] | None = None,
        needed: npt.NDArray[np.bool_] | None = None,
    ) -> int:
        """Send the blocks that differ, of all switches or of those with these GUIDs.

        Returns when the last changed entry of those `needed` [S, LIDs] was answered, NONE where none was.
        """
        top = lft.shape[1] - 1
        tops: list[Node] = []
        requests: list[Request] = []
        what: list[Node] = []
        span: list[int] = []
        chosen = [(row, node) for row, node in enumerate(graph.nodes) if only is None or node.guid in only]
        for row, node in chosen:
            assert node.switch is not None
            life_time = self.settings.packet_life_time
            held = node.switch.linear_fdb_top, node.switch.life_time_value
            if held != (top, life_time) or node.switch.port_state_change:
                node.switch.linear_fdb_top, node.switch.life_time_value = top, life_time
                node.switch.port_state_change = 1
                tops.append(node)
            old = self.lft.get(node.guid)
            blocks = changed_blocks(old, lft[row], top=top)
            if not blocks:
                continue
            data = padded(lft[row], BLOCK * (max(blocks) + 1)).tobytes()
            path = node.path
            requests += [
                (path, 2, int(AttributeId.LINEAR_FORWARDING), block, data[BLOCK * block : BLOCK * block + BLOCK])
                for block in blocks
            ]
            what += [node] * len(blocks)
            span += blocks
        switch_info = [
            put(node.path, AttributeId.SWITCH_INFO, node.switch.encode()) for node in tops if node.switch
        ]
        for node, answer in zip(tops, self._send(switch_info, tops, "SwitchInfo"), strict=True):
            if answer is not None and node.switch is not None:
                node.switch.port_state_change = 0
        answers = self._send(requests, [node.name for node in what], "LinearForwardingTable")
        last = NONE
        when = self.transport.answered_ps()
        row_of = graph.row
        failed: set[int] = set()
        for node, block, answer, at in zip(what, span, answers, when, strict=False):
            if answer is None or answer[0]:
                failed.add(node.guid)
                continue
            lids = slice(BLOCK * block, min(BLOCK * block + BLOCK, lft.shape[1]))
            row = row_of[node.guid]
            if needed is None or at <= last or not needed[row, lids].any():
                continue
            old = self.lft.get(node.guid)
            before = NO_PORT if old is None else padded(old, max(len(old), lids.stop))[lids]
            if ((lft[row, lids] != before) & needed[row, lids]).any():
                last = at
        for row, node in chosen:
            if node.guid in failed:
                self.lft.pop(node.guid, None)
            else:
                self.lft[node.guid] = lft[row].copy()
        return last

    def forget_lanes(self) -> None:
        """Set maps and arbitration of all ports anew with the next sweep."""
        self._set_up.clear()

    # -- lanes ---------------------------------------------------------------------------------------------

    def lanes(self, subnet: Subnet) -> None:
        """SL to VL maps and arbitration tables of every port with a link, and of the ports that are ends."""
        settings = self.settings
        maps: list[Request] = []
        of_maps: list[object] = []
        arbitration: list[Request] = []
        of_arbitration: list[Port] = []
        for node in subnet.nodes.values():
            ports = [port for port in node.ports.values() if port.peer is not None or is_managed_end(port)]
            vls = {port.number: self.operational_vls(port) for port in ports}
            self._maps(node, vls, maps, of_maps)
            for port in ports:
                key = (node.guid, port.number)
                state = (vls[port.number], port.info.vl_arb_low_cap, port.info.vl_arb_high_cap)
                if self._set_up.get(key) == state:
                    continue
                self._set_up[key] = state
                for part, high, entries in ((1, False, state[1]), (3, True, state[2])):
                    if entries:
                        table = settings.arbitration_bytes(high=high, entries=entries, operational_vls=state[0])
                        modifier = port.number | part << 16
                        arbitration.append(put(port.path, AttributeId.VL_ARBITRATION, table, modifier))
                        of_arbitration.append(port)
        self._send(maps, of_maps, "SLtoVLMappingTable")
        self._send(arbitration, of_arbitration, "VLArbitrationTable")

    def _maps(self, node: Node, vls: dict[int, int], maps: list[Request], of_maps: list[object]) -> None:
        if not vls:
            return
        key = (node.guid, NONE)
        state = (*sorted(vls.items()),)
        flat = tuple(value for pair in state for value in pair)
        if self._set_up.get(key) == flat:
            return
        self._set_up[key] = flat
        attribute = AttributeId.SL_TO_VL
        if not node.is_switch:
            for number, operational in vls.items():
                maps.append(put(node.ports[number].path, attribute, self.settings.sl_to_vl_bytes(operational)))
                of_maps.append(node.name)
            return
        common = max(set(vls.values()), key=list(vls.values()).count)
        single = list(vls)
        if node.switch is not None and node.switch.optimized_sl_to_vl:
            maps.append(put(node.path, attribute, self.settings.sl_to_vl_bytes(common), ALL_PORTS))
            of_maps.append(node.name)
            single = [number for number in vls if vls[number] != common]
        for out in single:
            table = self.settings.sl_to_vl_bytes(vls[out])
            for into in (0, *(number for number in vls if number != out)):
                maps.append(put(node.path, attribute, table, into << 8 | out))
                of_maps.append(node.ports[out])

    def operational_vls(self, port: Port) -> int:
        """The code of the lanes that both ends have."""
        peer = port.info.vl_cap if port.peer is None else port.peer.info.vl_cap
        return max(1, min(port.info.vl_cap, peer, self.settings.max_vls))

    # -- multicast -----------------------------------------------------------------------------------------

    def multicast(self, subnet: Subnet, masks: dict[int, dict[int, int]]) -> None:
        """Send the blocks that differ. `masks` is {MLID: {switch GUID: ports as bits}}."""
        wanted: dict[tuple[int, int, int], list[int]] = {}
        for mlid, by_switch in masks.items():
            block, place = divmod(mlid - 0xC000, 32)
            for guid, bits in by_switch.items():
                position = 0
                while bits >> 16 * position:
                    part = bits >> 16 * position & 0xFFFF
                    if part:
                        wanted.setdefault((guid, block, position), [0] * 32)[place] = part
                    position += 1
        todo: list[tuple[tuple[int, int, int], bytes]] = []
        for key in sorted(wanted.keys() | self.mft.keys()):
            table = MulticastForwarding(masks=tuple(wanted.get(key, [0] * 32))).encode()
            if key[0] in subnet.nodes and self.mft.get(key, bytes(64)) != table:
                todo.append((key, table))
        requests = [
            put(subnet.nodes[guid].path, AttributeId.MULTICAST_FORWARDING, table, block | position << 28)
            for (guid, block, position), table in todo
        ]
        names = [subnet.nodes[guid].name for (guid, _, _), _ in todo]
        answers = self._send(requests, names, "MulticastForwardingTable")
        for (key, table), answer in zip(todo, answers, strict=True):
            if answer is not None and not answer[0]:
                self.mft[key] = table
        self._multicast_top(subnet, max((mlid for mlid, ports in masks.items() if ports), default=NO_MULTICAST))

    def _multicast_top(self, subnet: Subnet, top: int) -> None:
        """Tell every switch the highest multicast LID that has a tree."""
        todo = [(node, node.switch) for node in subnet.switches if node.switch is not None]
        todo = [(node, held) for node, held in todo if held.multicast_fdb_top != top]
        for _, held in todo:
            held.multicast_fdb_top = top
        requests = [put(node.path, AttributeId.SWITCH_INFO, held.encode()) for node, held in todo]
        self._send(requests, [node for node, _ in todo], "SwitchInfo")

    # -- ports ---------------------------------------------------------------------------------------------

    def ports(self, subnet: Subnet, lid: dict[int, int], *, sm_lid: int) -> None:
        """LIDs, MTU, lanes; links to Armed, then Active."""
        todo: list[tuple[Port, bytes]] = []
        for node in subnet.nodes.values():
            for port in node.ports.values():
                if port.number == 0 or not node.is_switch or port.peer is not None:
                    data = self._wanted(port, lid, sm_lid)
                    if data is not None:
                        todo.append((port, data))
        self._set_ports(todo)
        armed = [
            port
            for node in subnet.nodes.values()
            for port in node.ports.values()
            if port.number and port.peer is not None and port.info.port_state == PortState.ARMED
        ]
        self._set_ports([(port, _step(port.info, PortState.ACTIVE)) for port in armed])

    def _set_ports(self, todo: list[tuple[Port, bytes]]) -> None:
        requests: list[Request] = []
        for port, data in todo:
            number = port.number if port.node.is_switch else 0
            requests.append((port.path, 2, int(AttributeId.PORT_INFO), number, data))
        for (port, _), answer in zip(todo, self._send(requests, [p for p, _ in todo], "PortInfo"), strict=True):
            if answer is not None and not answer[0]:
                port.info = PortInfo.decode(answer[1])

    def _wanted(self, port: Port, lid: dict[int, int], sm_lid: int) -> bytes | None:
        """PortInfo as it should be, None where it is."""
        settings, info, node = self.settings, port.info, port.node
        before = info.encode()
        is_end = port.number == 0 or not node.is_switch
        if is_end:
            info.lid = lid[port_guid(port)]
            info.lmc = 0 if port.number == 0 else settings.lmc
            info.master_sm_lid = sm_lid
            info.master_sm_sl = 0
            info.gid_prefix = settings.gid_prefix
            info.m_key, info.m_key_protect_bits = settings.m_key, settings.m_key_protect
            info.m_key_lease_period = settings.m_key_lease
            info.subnet_timeout = settings.subnet_timeout
        state = info.port_state
        if port.number and port.peer is not None:
            peer = port.peer.info
            info.neighbor_mtu = max(1, min(info.mtu_cap, peer.mtu_cap, settings.mtu_code))
            info.operational_vls = self.operational_vls(port)
            info.vl_high_limit = settings.vl_high_limit
            if node.is_switch:
                toward_switch = port.peer.node.is_switch
                info.hoq_life = settings.head_of_queue if toward_switch else settings.leaf_head_of_queue
                info.vl_stall_count = settings.stall_count
            if settings.enforce_partitions and node.is_switch and not port.peer.node.is_switch:
                info.partition_enforcement_inbound = info.partition_enforcement_outbound = 1
            if state == PortState.INIT:
                state = PortState.ARMED
        if info.encode() == before and state == info.port_state:
            return None
        return _step(info, state if state != info.port_state else PortState.NO_CHANGE)


def _place(port: Port) -> tuple[int, int]:
    return port.node.guid, port.number


def is_managed_end(port: Port) -> bool:
    """Return whether this is the port 0 of a switch that has lanes there: an enhanced one."""
    return port.number == 0 and port.node.switch is not None and bool(port.node.switch.enhanced_port0)


def disable(data: bytearray) -> None:
    """Make PortInfo one that asks for the physical state Disabled, and for no change of the logical one."""
    data[_STATE] &= 0xF0
    data[_PHYS] = PhysState.DISABLED << 4 | data[_PHYS] & 0x0F


def _step(info: PortInfo, state: int) -> bytes:
    """PortInfo that asks for a state, and for no change of the physical one."""
    data = bytearray(info.encode())
    data[_STATE] = data[_STATE] & 0xF0 | state
    data[_PHYS] &= 0x0F
    return bytes(data)
