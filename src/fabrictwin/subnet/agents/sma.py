"""The subnet management agent in every node (IBTA volume 1, 14.2 to 14.4).

Datagrams come in as they are on the wire and go out the same way; how they travel is the network's business.
An agent holds nothing itself: it reads and writes `SubnetState`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.keys import KEY, PROTECT, Keys
from fabrictwin.subnet.agents.node_as_built import LINEAR_CAP, PKEYS, SWITCH_PORT_PKEYS
from fabrictwin.subnet.agents.port_settings import set_identity, set_link, set_state
from fabrictwin.subnet.agents.port_states import CAPABILITIES, FULL_PKEY
from fabrictwin.subnet.wire import link_encodings as speeds
from fabrictwin.subnet.wire.fields import MadError
from fabrictwin.subnet.wire.header import DIRECTION, SMP_DATA, START, MadClass, Method, Status
from fabrictwin.subnet.wire.notice import Notice, Trap
from fabrictwin.subnet.wire.smp import (
    AttributeId,
    Capability,
    ExtendedPortInfo,
    GuidInfo,
    NodeType,
    PKeyTable,
    PortInfo,
    SlToVl,
    SwitchInfo,
)

ALL_IN, ALL_OUT = 0x10000, 0x20000  # SLtoVL modifier: all input ports, all output ports
_EMPTY = bytes(64)
_IDENTITY = SlToVl(vls=(*(sl % 8 for sl in range(15)), 15)).encode().ljust(64, b"\0")
_DEFAULT_PKEYS = PKeyTable(pkeys=(FULL_PKEY, *[0] * 31)).encode()

Answer = tuple[int, bytes]  # status, the attribute's 64 bytes
_OK, _BAD = int(Status.OK), int(Status.BAD_FIELD)
_UNSUPPORTED: Answer = (int(Status.BAD_ATTRIBUTE), _EMPTY)

Blocks = dict[tuple[int, int], bytes]  # by slot and block


def _block(blocks: Blocks, key: tuple[int, int], unset: bytes) -> Answer:
    """Return a block of a port's table; slot NONE has none."""
    return (_BAD, _EMPTY) if key[0] == NONE else (_OK, blocks.get(key, unset))


def _set_block(blocks: Blocks, key: tuple[int, int], data: bytes) -> Answer:
    if key[0] == NONE:
        return _BAD, data
    blocks[key] = data
    return _OK, data


class SubnetAgent:
    """All subnet management agents of a fabric."""

    def __init__(self, state: SubnetState) -> None:
        self.state = state
        self._keys = Keys(state)
        self._get: dict[int, Callable[[int, int, int], Answer]] = {
            AttributeId.NODE_DESCRIPTION: self._get_description,
            AttributeId.NODE_INFO: self._get_node_info,
            AttributeId.SWITCH_INFO: self._get_switch_info,
            AttributeId.GUID_INFO: self._get_guids,
            AttributeId.PORT_INFO: self._get_port_info,
            AttributeId.PKEY_TABLE: self._get_pkeys,
            AttributeId.SL_TO_VL: self._get_sl_to_vl,
            AttributeId.VL_ARBITRATION: self._get_arbitration,
            AttributeId.LINEAR_FORWARDING: self._get_linear,
            AttributeId.MULTICAST_FORWARDING: self._get_multicast,
            AttributeId.EXTENDED_PORT_INFO: self._get_extended,
        }
        self._set: dict[int, Callable[[int, int, int, bytes, int], Answer]] = {
            AttributeId.SWITCH_INFO: self._set_switch_info,
            AttributeId.GUID_INFO: self._set_guids,
            AttributeId.PORT_INFO: self._set_port_info,
            AttributeId.PKEY_TABLE: self._set_pkeys,
            AttributeId.SL_TO_VL: self._set_sl_to_vl,
            AttributeId.VL_ARBITRATION: self._set_arbitration,
            AttributeId.LINEAR_FORWARDING: self._set_linear,
            AttributeId.MULTICAST_FORWARDING: self._set_multicast,
            AttributeId.EXTENDED_PORT_INFO: self._set_extended,
        }

    def answer(self, m: int, entry: int, mad: bytes, now_ps: int) -> bytes | None:
        """Return the answer of node `m` to a request that came in at slot `entry`; None where it keeps silent."""
        _, kind, _, method, _, _, _, attribute, modifier, key = START.unpack_from(mad)
        if method == Method.TRAP_REPRESS:
            self.state.notices.repress(m, Notice.decode(mad, SMP_DATA.start))
            return None
        if method == Method.GET:
            if not self._keys.may_read(m, entry, key, now_ps):
                return None
            get = self._get.get(attribute)
            status, data = _UNSUPPORTED if get is None else get(m, entry, modifier)
        elif method == Method.SET:
            if not self._keys.may_write(m, entry, key, now_ps):
                return None
            change = self._set.get(attribute)
            try:
                status, data = (
                    _UNSUPPORTED if change is None else change(m, entry, modifier, mad[SMP_DATA], now_ps)
                )
            except MadError:
                status, data = _BAD, mad[SMP_DATA]
        else:
            status, data = int(Status.BAD_METHOD), mad[SMP_DATA]
        back = DIRECTION if kind == MadClass.SUBN_DIRECTED else 0
        return b"".join((mad[:3], b"\x81", (status | back).to_bytes(2, "big"), mad[6:64], data, mad[128:]))

    # -- who it is -----------------------------------------------------------------------------------------

    def _get_description(self, m: int, entry: int, modifier: int) -> Answer:
        return _OK, self.state.description[m].ljust(64, b"\0")

    def _get_node_info(self, m: int, entry: int, modifier: int) -> Answer:
        info = self.state.node_info[m]
        info.local_port_num = self.state.number[entry]
        return _OK, info.encode() + bytes(24)

    # -- switches ------------------------------------------------------------------------------------------

    def _get_switch_info(self, m: int, entry: int, modifier: int) -> Answer:
        info = self.state.switch_info.get(m)
        return _UNSUPPORTED if info is None else (_OK, bytes(info).ljust(64, b"\0"))

    def _set_switch_info(self, m: int, entry: int, modifier: int, data: bytes, now_ps: int) -> Answer:
        held = self.state.switch_info.get(m)
        if held is None:
            return _UNSUPPORTED
        asked, info = SwitchInfo.decode(data), SwitchInfo.decode(held)
        if asked.linear_fdb_top >= LINEAR_CAP:
            return _BAD, bytes(held).ljust(64, b"\0")
        info.take(asked, "linear_fdb_top", "multicast_fdb_top", "life_time_value", "default_port")
        info.take(asked, "default_multicast_primary_port", "default_multicast_not_primary_port")
        if asked.port_state_change:
            info.port_state_change = 0  # write 1 to clear
        held[:] = info.encode()
        return _OK, bytes(held).ljust(64, b"\0")

    def _get_linear(self, m: int, entry: int, modifier: int) -> Answer:
        row, first = self.state.row.get(m), 64 * modifier
        if row is None or first >= LINEAR_CAP:
            return _UNSUPPORTED if row is None else (_BAD, _EMPTY)
        return _OK, self.state.lft[row, first : first + 64].tobytes().ljust(64, b"\xff")

    def _set_linear(self, m: int, entry: int, modifier: int, data: bytes, now_ps: int) -> Answer:
        first = 64 * modifier
        if m not in self.state.row or first >= LINEAR_CAP:
            return _UNSUPPORTED if m not in self.state.row else (_BAD, data)
        self.state.write_table(m, first, np.frombuffer(data, np.uint8), now_ps)
        return _OK, data

    def _get_multicast(self, m: int, entry: int, modifier: int) -> Answer:
        key = self._multicast_key(m, modifier)
        return _UNSUPPORTED if key is None else (_OK, self.state.mft.get(key, _EMPTY))

    def _set_multicast(self, m: int, entry: int, modifier: int, data: bytes, now_ps: int) -> Answer:
        key = self._multicast_key(m, modifier)
        if key is None:
            return _UNSUPPORTED if m not in self.state.row else (_BAD, data)
        self.state.mft[key] = data
        return _OK, data

    def _multicast_key(self, m: int, modifier: int) -> tuple[int, int, int] | None:
        block, position = modifier & 0x1FF, modifier >> 28
        if m not in self.state.row or 16 * position > self.state.ports[m]:
            return None
        return m, block, position

    # -- ports ---------------------------------------------------------------------------------------------

    def _port(self, m: int, entry: int, number: int) -> int:
        """The slot that a modifier means, NONE for none. 0 is a channel adapter's entry port."""
        state = self.state
        if not state.is_switch[m]:
            return entry if number == 0 else (state.base[m] + number if number <= state.ports[m] else NONE)
        return state.base[m] + number if number <= state.ports[m] else NONE

    def _get_port_info(self, m: int, entry: int, modifier: int) -> Answer:
        slot = self._port(m, entry, modifier & 0x7FFFFFFF)
        if slot == NONE:
            return _BAD, _EMPTY
        data = bytearray(self.state.get(slot))
        data[28] = self.state.number[entry]  # LocalPortNum is where the request came in
        if PROTECT.get(data) == 1:
            KEY.put(data, 0)
        return _OK, bytes(data)

    def _set_port_info(self, m: int, entry: int, modifier: int, data: bytes, now_ps: int) -> Answer:
        slot = self._port(m, entry, modifier & 0x7FFFFFFF)
        if slot == NONE:
            return _BAD, data
        state = self.state
        asked, info = PortInfo.decode(data), PortInfo.decode(state.info, 64 * slot)
        external = state.is_switch[m] and state.number[slot] > 0
        status = _OK
        if not external:
            status |= set_identity(asked, info)
        status |= set_link(asked, info)
        state.put(slot, info)
        if state.number[slot] > 0:
            status |= set_state(state, slot, asked, now_ps)
        _, answer = self._get_port_info(m, entry, modifier)
        return status, answer

    def _get_extended(self, m: int, entry: int, modifier: int) -> Answer:
        slot = self._port(m, entry, modifier & 0x7FFFFFFF)
        if slot == NONE:
            return _BAD, _EMPTY
        built = self.state.built[slot]
        fdr10 = 1 if built is not None and built[1] == speeds.Speed.FDR10 else 0
        info = ExtendedPortInfo(link_speed_supported=fdr10, link_speed_enabled=fdr10, link_speed_active=fdr10)
        return _OK, info.encode()

    def _set_extended(self, m: int, entry: int, modifier: int, data: bytes, now_ps: int) -> Answer:
        # FDR10 is what the cable was built for, or it is not; asking changes nothing
        return self._get_extended(m, entry, modifier)

    # -- tables --------------------------------------------------------------------------------------------

    def _pkey_slot(self, m: int, entry: int, modifier: int) -> tuple[int, int]:
        """(slot, block); slot NONE where there is no such block."""
        block, number = modifier & 0xFFFF, modifier >> 16
        if not self.state.is_switch[m]:
            slot, room = entry, PKEYS[NodeType.CA]
        else:
            slot = self._port(m, entry, number)
            room = SWITCH_PORT_PKEYS if number else PKEYS[NodeType.SWITCH]
        return (NONE, 0) if slot == NONE or 32 * block >= room else (slot, block)

    def _get_pkeys(self, m: int, entry: int, modifier: int) -> Answer:
        key = self._pkey_slot(m, entry, modifier)
        return _block(self.state.pkeys, key, _DEFAULT_PKEYS if key[1] == 0 else _EMPTY)

    def _set_pkeys(self, m: int, entry: int, modifier: int, data: bytes, now_ps: int) -> Answer:
        answer = _set_block(self.state.pkeys, self._pkey_slot(m, entry, modifier), data)
        self.state.notify_keys(now_ps)
        return answer

    def _get_sl_to_vl(self, m: int, entry: int, modifier: int) -> Answer:
        into, out = modifier >> 8 & 0xFF, modifier & 0xFF
        if not self.state.is_switch[m]:
            into, out = 0, 0
        elif max(into, out) > self.state.ports[m]:
            return _BAD, _EMPTY
        return _OK, self.state.lane_map(m, into, out) or _IDENTITY

    def _set_sl_to_vl(self, m: int, entry: int, modifier: int, data: bytes, now_ps: int) -> Answer:
        data = data[:8].ljust(64, b"\0")
        tables = self.state.sl_to_vl
        if not self.state.is_switch[m]:
            tables[m, 0, 0] = data
            self.state.notify_lanes(now_ps)
            return _OK, data
        into = NONE if modifier & ALL_IN else modifier >> 8 & 0xFF
        out = NONE if modifier & ALL_OUT else modifier & 0xFF
        if max(into, out) > self.state.ports[m]:
            return _BAD, data
        if into == NONE or out == NONE:
            # a table for all ports replaces those of single ones
            for key in [k for k in tables if k[0] == m and into in (NONE, k[1]) and out in (NONE, k[2])]:
                del tables[key]
        tables[m, into, out] = data
        self.state.notify_lanes(now_ps)
        return _OK, data

    def _arbitration_slot(self, m: int, entry: int, modifier: int) -> tuple[int, int]:
        part = modifier >> 16
        slot = self._port(m, entry, modifier & 0xFFFF)
        # a table of at most 32 entries has one low and one high part
        return (NONE, 0) if slot == NONE or part not in (1, 3) else (slot, part)

    def _get_arbitration(self, m: int, entry: int, modifier: int) -> Answer:
        return _block(self.state.vl_arbitration, self._arbitration_slot(m, entry, modifier), _EMPTY)

    def _set_arbitration(self, m: int, entry: int, modifier: int, data: bytes, now_ps: int) -> Answer:
        answer = _set_block(self.state.vl_arbitration, self._arbitration_slot(m, entry, modifier), data)
        self.state.notify_lanes(now_ps)
        return answer

    def _get_guids(self, m: int, entry: int, modifier: int) -> Answer:
        if modifier:
            return _BAD, _EMPTY
        slot = self.state.end_slot(m)
        held = self.state.guids.get((slot, 0), _EMPTY)
        return _OK, self.state.port_guid[m].to_bytes(8, "big") + held[8:]

    def _set_guids(self, m: int, entry: int, modifier: int, data: bytes, now_ps: int) -> Answer:
        if modifier:
            return _BAD, data
        GuidInfo.decode(data)
        self.state.guids[self.state.end_slot(m), 0] = data
        return self._get_guids(m, entry, modifier)

    def describe(self, m: int, text: bytes, now_ps: int) -> None:
        """A host's software renames its adapter, and the agent tells the manager."""
        self.state.description[m] = text[:64]
        self.state.notices.raise_trap(m, Trap.LOCAL_CHANGES, now_ps, changes=1)

    def set_is_sm(self, m: int, is_sm: bool, now_ps: int) -> None:
        """A subnet manager opens or closes the port: its capability shows, and the agent tells the manager."""
        at = 64 * self.state.end_slot(m)
        before = CAPABILITIES.get(self.state.info, at)
        after = before | Capability.IS_SM if is_sm else before & ~Capability.IS_SM
        if after != before:
            CAPABILITIES.put(self.state.info, after, at)
            self.state.notices.raise_trap(m, Trap.LOCAL_CHANGES, now_ps)
