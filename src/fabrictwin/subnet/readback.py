"""Tables read back from what the switches hold now, whoever programmed them: as Routes for the engines."""

from __future__ import annotations

import numpy as np

from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.switches import switch_graph
from fabrictwin.routing.tables import Routes
from fabrictwin.subnet.agents.state import LMC, NO_PORT, SubnetState

ENGINE = "as programmed"


def routes_of(state: SubnetState) -> Routes:
    """Tables and LIDs of all switches. Entries above a switch's LinearFDBTop lead nowhere, as in the switch."""
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
    return Routes(fabric, ENGINE, switches, lid, lft, "", seeds, lmc=lmc)
