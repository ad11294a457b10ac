"""Congestion control as switches and adapters hold it now, whoever set it; what happened is told to agents."""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I64, place_of
from fabrictwin.cluster.spec.congestion_section import LEVELS
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.congestion_tables import (
    AdapterControl,
    CongestionLog,
    CongestionTables,
    LevelControl,
    PortMarking,
)
from fabrictwin.subnet.agents.congestion_port import CongestionEvent, CongestionPort
from fabrictwin.subnet.agents.port_states import PortStates
from fabrictwin.subnet.wire import congestion as cc
from fabrictwin.subnet.wire.congestion import CongestionId

_MULTIPLIER_BITS = 14


def congestion_tables(state: PortStates) -> CongestionTables | None:
    """Return what ports and adapters do about congestion; None where nobody has set anything."""
    markings: dict[int, PortMarking] = {}
    controls: dict[int, AdapterControl] = {}
    adapter = place_of(state.fabric.nic_node, state.fabric.nodes)
    for slot, held in sorted(state.congestion_ports.items()):
        if not held.settings:
            continue
        m = state.node_of[slot]
        if state.is_switch[m]:
            for number in range(1, state.ports[m] + 1):
                port = int(state.fabric_port[state.base[m] + number])
                if port != NONE and state.fabric.port_peer[port] != NONE:
                    markings[port] = _marking(held, number)
        elif (at := int(adapter[state.fabric_node[m]])) != NONE:
            controls[at] = _control(held)
    if not markings and not controls:
        return None
    return CongestionTables.of(state.fabric, markings, controls)


def _delay(word: int) -> tuple[int, int]:
    return word >> _MULTIPLIER_BITS, word & ((1 << _MULTIPLIER_BITS) - 1)


def _marking(held: CongestionPort, number: int) -> PortMarking:
    """Return what port `number` of a switch does: as the switch, or by its own settings where they are valid."""
    general = held.in_force
    threshold, packet_size, rate = general.threshold, general.packet_size, general.marking_rate
    starvation, delay = general.cs_threshold, general.cs_return_delay
    block, at = divmod(number, cc.PORTS_A_BLOCK)
    own = held.settings.get((CongestionId.SWITCH_PORT_CONGESTION_SETTING, block))
    if isinstance(own, cc.SwitchPortCongestionSetting) and own.valid[at]:
        if own.control_type[at]:
            starvation, delay = own.threshold[at], own.cong_parm_marking_rate[at]
        else:
            threshold, packet_size = own.threshold[at], own.packet_size[at]
            rate = own.cong_parm_marking_rate[at]
    starves = int.from_bytes(general.credit_mask, "big") >> number & 1
    return PortMarking(
        threshold=threshold,
        packet_size=packet_size,
        marking_rate=rate,
        victim=bool(int.from_bytes(general.victim_mask, "big") >> number & 1),
        starvation=starvation if starves else 0,
        return_delay=_delay(delay) if starves else (0, 0),
    )


def _control(held: CongestionPort) -> AdapterControl:
    """Return what an adapter does: settings by service level, and the table as far as its limit."""
    setting = held.settings.get((CongestionId.CA_CONGESTION_SETTING, 0))
    if not isinstance(setting, cc.CaCongestionSetting):
        setting = cc.CaCongestionSetting()
    first = held.settings.get((CongestionId.CONGESTION_CONTROL_TABLE, 0))
    limit = first.ccti_limit if isinstance(first, cc.CongestionControlTable) else 0
    table: list[tuple[int, int]] = []
    for block in range(limit // cc.ENTRIES_A_BLOCK + 1):
        part = held.settings.get((CongestionId.CONGESTION_CONTROL_TABLE, block))
        if not isinstance(part, cc.CongestionControlTable):
            part = cc.CongestionControlTable()
        table += zip(part.shift, part.multiplier, strict=True)

    def level(sl: int) -> LevelControl | None:
        if not setting.control_map >> sl & 1:
            return None
        return LevelControl(
            setting.ccti_timer[sl],
            setting.ccti_increase[sl],
            setting.trigger_threshold[sl],
            min(setting.ccti_min[sl], limit),
        )

    return AdapterControl(
        levels=tuple(level(sl) for sl in range(LEVELS)),
        table=tuple(table[: limit + 1]),
        limit=limit,
        by_level=bool(setting.port_control & 1),
    )


def tell_agents(state: PortStates, log: CongestionLog, began_ps: int = 0) -> None:
    """Let agents log what an engine saw; `began_ps` is the agents' time when the engine's began."""
    fabric = state.fabric

    def lid(adapter: int) -> int:
        m = int(state.managed[fabric.nic_node[adapter]]) if adapter != NONE else NONE
        return 0 if m == NONE else state.lid(state.end_slot(m))

    columns = (log.time_ps, log.node, log.port, log.queue_pair, log.source, log.destination, log.level)
    for time_ps, node, port, q, a, b, level in zip(*(_list(column) for column in columns), strict=True):
        m = int(state.managed[node])
        if m == NONE:
            continue
        event = CongestionEvent(
            began_ps + time_ps,
            lid(a),
            lid(b),
            level,
            port=int(fabric.port_number[port]) if port != NONE else 0,
            queue_pair=max(q, 0),
        )
        state.congestion_ports.setdefault(state.end_slot(m), CongestionPort()).log(event)


def _list(column: I64) -> list[int]:
    found: list[int] = np.asarray(column).tolist()
    return found
