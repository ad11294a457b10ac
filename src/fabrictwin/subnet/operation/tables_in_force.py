"""Tables read back from what switches and ports hold now, whoever programmed them: as Routes for the engines.

Forwarding tables, SL to VL maps, VL arbitration, congestion control. Which service level a path has only a manager
knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from fabrictwin.base.arrays import U8
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.filling import NO_LANES
from fabrictwin.routing.graph.switches import Switches, switch_graph
from fabrictwin.routing.lane_tables import Entries, LaneTables, PortArbitration
from fabrictwin.routing.tables import Routes
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.port_states import LMC, NO_PORT
from fabrictwin.subnet.manager.database import SubnetDatabase
from fabrictwin.subnet.manager.manager import SubnetManager
from fabrictwin.subnet.operation.congestion_in_force import congestion_tables
from fabrictwin.subnet.wire.fields import Field
from fabrictwin.subnet.wire.smp import PortInfo, SlToVl, VlArbitration

ENGINE = "as programmed"
_LOW_CAP = Field(PortInfo, "vl_arb_low_cap")
_HIGH_CAP = Field(PortInfo, "vl_arb_high_cap")
_HIGH_LIMIT = Field(PortInfo, "vl_high_limit")
_AS_THE_LEVEL = (*(sl % 8 for sl in range(15)), 15)  # what a port holds that nobody has set


def routes_of(state: SubnetState, managers: Sequence[SubnetManager] = ()) -> Routes:
    """Tables and LIDs of all switches. Entries above a switch's LinearFDBTop lead nowhere, as in the switch.

    No switch knows service levels: they are those that `managers` answer in path records, else 0.
    """
    fabric = state.fabric
    switches = switch_graph(fabric)
    lid = np.zeros(fabric.nodes, np.int32)
    lmc = 0
    for m, node in enumerate(state.fabric_node):
        slot = state.end_slot(m)
        lid[node] = state.lid(slot)
        if not state.is_switch[m]:
            lmc = max(lmc, LMC.get(state.info, 64 * slot))
    highest = int(lid.max(initial=0)) + (1 << lmc) - 1
    lft = np.full((len(switches.row_node), highest + 1), NO_PORT, np.uint8)
    for row, node in enumerate(switches.row_node):
        m = int(state.managed[node])
        if m == NONE:
            continue
        info = state.switch_info[m]
        width = min(lft.shape[1], state.lft.shape[1], (info[6] << 8 | info[7]) + 1)
        lft[row, :width] = state.lft[state.row[m], :width]
    seeds = np.zeros(len(switches.row_node), np.uint32)
    known = [one.database for one in managers]
    engines = {one.tables.engine: None for one in known if one.tables is not None}
    remarks = {one.tables.remark: None for one in known if one.tables is not None and one.tables.remark}
    return Routes(
        fabric,
        ", ".join(engines) or ENGINE,
        switches,
        lid,
        lft,
        "",
        seeds,
        lmc=lmc,
        lane=_lanes(switches, known, highest),
        lanes=max((one.tables.lanes for one in known if one.tables is not None), default=1),
        lane_tables=lane_tables(state),
        congestion=congestion_tables(state),
        remark="; ".join(remarks),
    )


def lane_tables(state: SubnetState) -> LaneTables | None:
    """SL to VL maps and arbitration of every port; None where nobody has set any."""
    if not state.sl_to_vl and not state.vl_arbitration:
        return None
    maps: dict[int, list[tuple[int, ...]]] = {}
    read = cache(lambda table: SlToVl.decode(table).vls)
    single = {m for m, *_ in state.sl_to_vl} - {m for m, into, _ in state.sl_to_vl if into != NONE}
    for m in {m for m, *_ in state.sl_to_vl}:
        for out in range(1, state.ports[m] + 1):
            port = int(state.fabric_port[state.base[m] + out])
            if port == NONE or state.cable[state.base[m] + out] == NONE:
                continue
            if not state.is_switch[m]:
                tables = [state.lane_map(m, 0, 0)]
            else:
                inputs = range(1, 2 if m in single else state.ports[m] + 1)
                tables = [state.lane_map(m, into, out) for into in inputs]
            if None not in tables:
                maps[port] = [read(table) for table in tables]
            elif any(tables):
                maps[port] = [_AS_THE_LEVEL if table is None else read(table) for table in tables]
    turns: dict[int, PortArbitration] = {}
    for slot in {slot for slot, _ in state.vl_arbitration}:
        port = int(state.fabric_port[slot])
        if port == NONE:
            continue
        low, high = (_entries(state, slot, part, cap) for part, cap in ((1, _LOW_CAP), (3, _HIGH_CAP)))
        if any(weight for _, weight in low + high):
            turns[port] = PortArbitration(high, low, _HIGH_LIMIT.get(state.info, 64 * slot))
    return LaneTables.of(state.fabric.ports, maps, turns)


def _entries(state: SubnetState, slot: int, part: int, cap: Field) -> Entries:
    """A port's low or high table as far as the port has entries."""
    held = state.vl_arbitration.get((slot, part))
    if held is None:
        return ()
    table = VlArbitration.decode(held)
    count = min(cap.get(state.info, 64 * slot), len(table.vls))
    return tuple(zip(table.vls[:count], table.weights[:count], strict=True))


def _lanes(switches: Switches, databases: Sequence[SubnetDatabase], highest: int) -> U8:
    """[LID, column] service levels; each subnet's switches are others."""
    if not any(one.tables is not None and one.tables.lane.size for one in databases):
        return NO_LANES
    lane = np.zeros((highest + 1, len(switches.edge_row)), np.uint8)
    row = {int(guid): r for r, guid in enumerate(switches.row_guid)}
    for one in databases:
        if one.tables is None or one.graph is None or not one.tables.lane.size:
            continue
        theirs = one.graph.switches
        column = [switches.edge_column[row[int(guid)]] for guid in theirs.row_guid[theirs.edge_row]]
        lids = min(len(one.tables.lane), len(lane))
        lane[:lids, column] = one.tables.lane[:lids]
    return lane
