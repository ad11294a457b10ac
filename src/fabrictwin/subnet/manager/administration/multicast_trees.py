"""Multicast groups and the trees that reach their members (IBTA volume 1, 15.2.5.17 and 18.2.5).

Each group has a tree of its own: from the switch with the fewest hops to its members, over shortest paths. Among
equals the group's number decides, at the root and at every step, so that groups spread over a fabric's spines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import U8
from fabrictwin.routing.graph.switches import Switches
from fabrictwin.subnet.manager.sweep.discovery import Port
from fabrictwin.subnet.manager.sweep.table_computation import Graph
from fabrictwin.subnet.wire.sa import McMemberRecord

FIRST_MLID, LAST_MLID = 0xC000, 0xFFFE
FULL_MEMBER, SEND_ONLY = 1, 4
IPOIB_SIGNATURE = 0x401B
FAR = 255  # no way


def broadcast_gid(pkey: int, scope: int = 2) -> int:
    """The IPv4 broadcast group of a partition (RFC 4391, 4): ff12:401b:PKEY:0:0:0:ffff:ffff."""
    return 0xFF10_0000 << 96 | scope << 112 | IPOIB_SIGNATURE << 96 | (pkey | 0x8000) << 80 | 0xFFFF_FFFF


@dataclass
class Group:
    """A multicast group: its parameters (those of its creator), its members by port GID."""

    record: McMemberRecord
    members: dict[int, int] = field(default_factory=dict)  # port GID to join state
    permanent: bool = False  # made by the manager, so it stays without members

    @property
    def mlid(self) -> int:
        return self.record.mlid


def free_mlid(groups: dict[int, Group]) -> int:
    """The lowest MLID that no group has; 0 where there is none."""
    taken = {group.mlid for group in groups.values()}
    return next((mlid for mlid in range(FIRST_MLID, LAST_MLID) if mlid not in taken), 0)


def port_masks(graph: Graph, members: set[Port], mlid: int) -> dict[int, int]:
    """By switch GUID the ports (as bits) that a group's packets leave by. Empty without members."""
    switches, row_of = graph.switches, graph.row
    masks: dict[int, int] = {}
    hung = np.zeros(switches.rows, np.int64)  # members that hang on each switch
    for port in members:
        at = port.node if port.number == 0 else (port.peer.node if port.peer is not None else None)
        if at is None or at.guid not in row_of:
            continue
        hung[row_of[at.guid]] += 1
        own = 0 if port.number == 0 or port.peer is None else port.peer.number
        masks[at.guid] = masks.get(at.guid, 0) | 1 << own
    left = np.flatnonzero(hung)
    distance = _distances(switches, left) if len(left) else np.zeros((0, switches.rows), np.uint8)
    while len(left):  # once where the fabric is in one piece
        here = distance[0] != FAR
        together = here[left]
        root = _root(distance[together], hung[left[together]], here, mlid)
        _grow(graph, root, left[together], masks, mlid)
        left, distance = left[~together], distance[~together]
    return masks


def _distances(switches: Switches, rows: npt.NDArray[np.int64]) -> U8:
    """[rows, S] hops from each of some switches to every other; FAR where there is no way."""
    from fabrictwin.kernel.routing import switch_graph as kernel

    found = np.empty((len(rows), switches.rows), np.uint8)
    kernel.distances(switches.adjacent_start, switches.adjacent_row, rows.astype(np.int32), found)
    return found


def _root(distance: U8, weight: npt.NDArray[np.int64], here: npt.NDArray[np.bool_], mlid: int) -> int:
    """The switch with the fewest hops to all members together; among equals one by the group's number."""
    total = np.where(here, (distance.astype(np.int64) * weight[:, None]).sum(axis=0), np.iinfo(np.int64).max)
    best = np.flatnonzero(total == total.min())
    return int(best[mlid % len(best)])


def _grow(graph: Graph, root: int, members: npt.NDArray[np.int64], masks: dict[int, int], mlid: int) -> None:
    """From every member's switch a shortest way to the root, joined where two meet."""
    switches = graph.switches
    (hops,) = _distances(switches, np.array([root]))
    joined = {root}
    for row in members.tolist():
        while row not in joined:
            joined.add(row)
            first, last = int(switches.adjacent_start[row]), int(switches.adjacent_start[row + 1])
            nearer = first + np.flatnonzero(hops[switches.adjacent_row[first:last]] + 1 == hops[row])
            edge = int(nearer[(mlid + row) % len(nearer)])
            there = int(switches.adjacent_row[edge])
            back = int(switches.adjacent_number[switches.adjacent_back[edge]])
            for guid, number in (
                (graph.nodes[row].guid, int(switches.adjacent_number[edge])),
                (graph.nodes[there].guid, back),
            ):
                masks[guid] = masks.get(guid, 0) | 1 << number
            row = there
