"""Tables read back from what the switches hold now, whoever programmed them: as Routes for the engines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.filling import NO_LANES
from fabrictwin.routing.switches import U8, Switches, switch_graph
from fabrictwin.routing.tables import Routes
from fabrictwin.subnet.agents.state import LMC, NO_PORT, SubnetState
from fabrictwin.subnet.manager.manager import SubnetManager

ENGINE = "as programmed"


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
    engines = {one.tables.engine: None for one in managers if one.tables is not None}
    remarks = {one.tables.remark: None for one in managers if one.tables is not None and one.tables.remark}
    return Routes(
        fabric,
        ", ".join(engines) or ENGINE,
        switches,
        lid,
        lft,
        "",
        seeds,
        lmc=lmc,
        lane=_lanes(switches, managers, highest),
        lanes=max((one.tables.lanes for one in managers if one.tables is not None), default=1),
        remark="; ".join(remarks),
    )


def _lanes(switches: Switches, managers: Sequence[SubnetManager], highest: int) -> U8:
    """[LID, column] service levels; each manager's switches are others."""
    if not any(one.tables is not None and one.tables.lane.size for one in managers):
        return NO_LANES
    lane = np.zeros((highest + 1, len(switches.edge_row)), np.uint8)
    row = {int(guid): r for r, guid in enumerate(switches.row_guid)}
    for one in managers:
        if one.tables is None or one.graph is None or not one.tables.lane.size:
            continue
        theirs = one.graph.switches
        column = [switches.edge_column[row[int(guid)]] for guid in theirs.row_guid[theirs.edge_row]]
        lids = min(len(one.tables.lane), len(lane))
        lane[:lids, column] = one.tables.lane[:lids]
    return lane
