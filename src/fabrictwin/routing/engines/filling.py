"""What all routing engines share: blank tables, destinations in order, lanes for paths that need their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np

from fabrictwin.base.arrays import I32, U8
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import Lids, Switches

NO_PORT = 255  # LFT entry of a destination that cannot be reached
NO_LANES = np.zeros((0, 0), np.uint8)  # all paths share lane 0


@record
class Tables:
    """What an engine yields.

    A path's service level is `lane[LID, column of the source's switch]`, and each service level has the virtual
    lane of the same number (SL to VL maps are the identity). Of no size where all paths use lane 0.
    """

    engine: str
    lft: U8  # [S, highest LID + 1] port number, 255 none, 0 the switch itself
    lane: U8 = field(default_factory=lambda: NO_LANES)  # [highest LID + 1, D]
    lanes: int = 1  # virtual lanes in use
    remark: str = ""  # why this engine, what it could not do; for people


Engine = Callable[[Switches, Lids, Options], Tables]


def blank_tables(switches: Switches, lids: Lids) -> U8:
    """[S, highest LID + 1] with what every engine shares: the switches themselves and what hangs on them."""
    lft = np.full((switches.rows, lids.top + 1), NO_PORT, np.uint8)
    own = np.flatnonzero(lids.row > 0)
    lft[own, lids.row[own]] = 0
    hung = np.flatnonzero((switches.endpoint_row != NONE) & (lids.endpoint > 0))
    for path in range(1 << lids.lmc):
        lft[switches.endpoint_row[hung], lids.endpoint[hung] + path] = switches.endpoint_number[hung]
    return lft


def destinations(switches: Switches, lids: Lids, visit: I32 | None = None):  # type: ignore[no-untyped-def]
    """LIDs by the switch that they live at: its own, then aggregation nodes', then adapters', base LID first.

    Adapters count through from 0 over the whole fabric, switch after switch in the order `visit` (that of rows
    where it is left out), and on a switch by port. The others have the number of their switch.
    """
    from fabrictwin.kernel.routing.table_filling import Destinations

    if visit is None:
        visit = np.arange(switches.rows, dtype=np.int32)
    own = np.flatnonzero(lids.row > 0)
    hung = np.flatnonzero((switches.endpoint_row != NONE) & (lids.endpoint > 0))
    hung = hung[np.lexsort((switches.endpoint_number[hung], switches.endpoint_row[hung]))]
    width = 1 << lids.lmc
    row = np.concatenate([own, np.repeat(switches.endpoint_row[hung], width)])
    path = np.concatenate([np.zeros(len(own), np.int64), np.tile(np.arange(width), len(hung))])
    lid = np.concatenate([lids.row[own], np.repeat(lids.endpoint[hung], width)]) + path
    counted = np.concatenate([np.zeros(len(own), bool), np.repeat(switches.endpoint_adapter[hung], width)])
    order = np.lexsort((counted, row))  # both sorts are stable: switches come first, endpoints by port
    row, path, lid, counted = row[order], path[order], lid[order], counted[order]
    place = np.empty(switches.rows, np.int64)
    place[visit] = np.arange(switches.rows)
    visited = np.argsort(place[row], kind="stable")
    index = place[row]
    adapter = visited[counted[visited]]
    index[adapter] = np.cumsum(path[adapter] == 0) - 1
    return Destinations(
        visit,
        np.searchsorted(row, np.arange(switches.rows + 1)).astype(np.int32),
        lid.astype(np.int32),
        index.astype(np.int32),
        path.astype(np.int32),
        counted.astype(np.uint8),
    )


def refuse(options: Options, engine: str, *taken: str) -> None:
    """Raises ConfigError for options that an engine has no use for; `lmc` and `lanes` all take."""
    for key in ("roots", "weights", "order", "scatter", "compute", "storage"):
        if getattr(options, key) and key not in taken:
            raise ConfigError(f"got {key}, which the engine {engine} has no use for", key=key)


def tree_of(switches: Switches, lids: Lids) -> tuple[I32, I32]:
    """All LIDs, and for each one whose tree is the same (itself, but for what is no adapter)."""
    who = destinations(switches, lids)
    if len(np.unique(who.lid)) < len(who.lid):  # several subnets, which number their LIDs alike
        return who.lid, who.lid
    # a switch's own LID and those of aggregation nodes there have the same tree: the first stands for all
    first = np.repeat(who.start[:-1], np.diff(who.start))
    return who.lid, np.where(who.counted != 0, who.lid, who.lid[np.minimum(first, len(who.lid) - 1)])


def own_lanes(
    switches: Switches, lft: U8, lid: I32, *, stands: I32 | None = None, up: U8 | None, most: int
) -> tuple[U8, int]:
    """Virtual lanes for the paths to these LIDs, so that none can deadlock: (lane, lanes).

    `stands` names for each LID one of them that has the same tree, where that is known; only those are looked at.

    With an orientation `up` [E] all paths that never turn from down to up share lane 0, and only the others are
    searched for cycles; without, all paths start in lane 0. NONE lanes: `most` are too few.
    """
    from fabrictwin.kernel.routing import lane_assignment as lanes

    chosen = np.unique(lid if stands is None else stands)
    table = np.ascontiguousarray(lft.T)
    lane = np.zeros((lft.shape[1], len(switches.edge_row)), np.uint8)
    if up is not None:
        lanes.mark_turns(table, chosen, switches.edge_row, switches.port_edge, switches.adjacent_row, up, lane)
        chosen = chosen[lane[chosen].any(axis=1)]
        if not len(chosen):
            return NO_LANES, 1
    used: int = lanes.break_cycles(
        table,
        chosen,
        switches.edge_row,
        switches.port_edge,
        switches.adjacent_start,
        switches.adjacent_row,
        switches.adjacent_number,
        switches.adjacent_from,
        lane,
        0 if up is None else 1,
        most,
    )
    if used <= 1:
        return NO_LANES, used
    if stands is not None:
        lane[lid] = lane[stands]
    return lane, used


def has_cycle(switches: Switches, lft: U8, lids: Any) -> bool:
    """Return True where all paths in one lane could deadlock."""
    from fabrictwin.kernel.routing import lane_assignment as lanes

    words = (int(np.diff(switches.adjacent_start).max(initial=0)) + 63) // 64
    edges = len(switches.adjacent_row)
    bits = np.zeros((1, edges, max(words, 1)), np.uint64)
    lanes.dependencies(
        np.ascontiguousarray(lft.T),
        lids,
        switches.edge_row,
        switches.port_edge,
        switches.adjacent_start,
        switches.adjacent_row,
        NO_LANES,
        1,
        bits,
    )
    cycle = np.empty(edges, np.int32)
    return bool(lanes.find_cycle(bits[0], switches.adjacent_start, switches.adjacent_row, cycle))
