"""Equal-cost groups: the ports on shortest paths toward each edge switch.

Ethernet switches forward by them; adaptive routing and spraying choose among them on any fabric.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I32, U8
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.graph.switches import Switches


@record
class Groups:
    """Sets of ports on shortest paths, shared by all destinations that have the same set."""

    distance: U8  # [D, S] hops from each switch to each edge switch, 255 where there is no path
    group_of: I32  # [S, D] NONE at the edge switch itself and where there is no path
    group_start: I32  # [groups + 1]
    group_ports: I32

    def ports(self, row: int, column: int) -> I32:
        """The equal-cost ports of a switch toward an edge switch."""
        g = int(self.group_of[row, column])
        return (
            self.group_ports[0:0] if g == NONE else self.group_ports[self.group_start[g] : self.group_start[g + 1]]
        )


def equal_cost(switches: Switches) -> Groups:
    """Shortest-path groups of every switch toward every edge switch."""
    from fabrictwin.kernel.routing import switch_graph as graph

    rows, columns = len(switches.row_node), len(switches.edge_row)
    distance = np.empty((columns, rows), np.uint8)
    graph.distances(switches.adjacent_start, switches.adjacent_row, switches.edge_row, distance)
    group_of = np.empty((rows, columns), np.int32)
    room = 4 * (rows + len(switches.adjacent_port)) + 16
    while True:
        start, ports = np.zeros(room + 1, np.int32), np.empty(2 * room, np.int32)
        groups, filled = graph.equal_cost_groups(
            switches.adjacent_start,
            switches.adjacent_row,
            switches.adjacent_port,
            distance,
            group_of,
            start,
            ports,
        )
        if groups >= 0:
            return Groups(distance, group_of, start[: groups + 1].copy(), ports[:filled].copy())
        room *= 2
