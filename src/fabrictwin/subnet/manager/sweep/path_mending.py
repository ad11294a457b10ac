"""Rerouting of trees after a fault: unbroken paths stay, and entries change in an order in which nothing circles.

The orientation of the links, up or down, is that which the engine found on the fabric as it routed it last as a
whole, so that old and new paths together turn from down to up no more than either does. Where something comes
back, what the engine's tables of then lead to again takes its old way, and the rest stays.

Left to an engine's new tables: fabrics with switches or links that were not there then, adapters that lose a way
up and then down which new tables would have, engines that are not trees. (Lanes are given anew for the tables as
they are; only paths of switches and aggregation nodes that are astray have any but the first.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import U8
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import I32, NONE
from fabrictwin.routing.engines.filling import Tables, own_lanes, tree_of
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.engines.updown import oriented
from fabrictwin.subnet.manager.sweep.table_computation import NO_PORT, Graph, carry_over, destinations

if TYPE_CHECKING:
    from fabrictwin.kernel.routing.table_filling import Graph as Links

TREES = ("dmodk", "fattree", "updown")
Cable = tuple[int, int, int, int]  # GUID and port of both ends


@record
class Routed:
    """A fabric as an engine routed it as a whole."""

    rank: dict[int, int]  # by switch GUID
    lft: dict[int, U8]  # likewise
    lanes: int  # that were allowed
    cables: frozenset[Cable]
    astray: int  # pairs of a switch with adapters and an adapter's LID without a way up and then down


@record
class Mended:
    """Tables, and those to be programmed one after the other before them."""

    tables: Tables
    stages: tuple[U8, ...]


def remember(graph: Graph, tables: Tables, options: Options) -> Routed | None:
    """Facts for mending the tables that an engine has just made; None of an engine that makes no trees."""
    if tables.engine not in TREES:
        return None
    rank = oriented(graph.switches, options).rank
    return Routed(
        rank={node.guid: int(rank[row]) for row, node in enumerate(graph.nodes)},
        lft={node.guid: tables.lft[row].copy() for row, node in enumerate(graph.nodes)},
        lanes=options.lanes,
        cables=_cables(graph),
        astray=_astray(graph, tables),
    )


def _cables(graph: Graph) -> frozenset[Cable]:
    switches = graph.switches
    guid = switches.row_guid
    ends = zip(
        guid[switches.adjacent_from].tolist(),
        switches.adjacent_number.tolist(),
        guid[switches.adjacent_row].tolist(),
        switches.adjacent_number[switches.adjacent_back].tolist(),
        strict=True,
    )
    return frozenset(ends)


def _astray(graph: Graph, tables: Tables) -> int:
    """Pairs of a switch with adapters and an adapter's LID whose paths have lanes of their own."""
    if not tables.lane.size:
        return 0
    switches, lids = graph.switches, graph.lids
    adapters = lids.endpoint[switches.endpoint_adapter]
    columns = switches.edge_column[np.flatnonzero(switches.row_adapters)]
    return int((tables.lane[adapters][:, columns] > 0).sum())


def _oriented_links(graph: Graph, routed: Routed) -> Links:
    from fabrictwin.kernel.routing.table_filling import Graph as Links

    switches = graph.switches
    rank = np.array([routed.rank[node.guid] for node in graph.nodes], np.int32)
    a, b = switches.adjacent_from, switches.adjacent_row
    up = (rank[b] < rank[a]) | ((rank[b] == rank[a]) & (b < a))
    return Links(
        switches.adjacent_start,
        switches.adjacent_row,
        switches.adjacent_back,
        switches.adjacent_number,
        np.ones(len(a), np.int32),
        up.astype(np.uint8),
        np.lexsort((np.arange(len(rank)), rank)).astype(np.int32),
    )


@record
class _Owned:
    """LIDs that somebody has. All [K]."""

    lid: I32
    home: I32  # the switch that it is or hangs on
    adapter: U8


def _owned(graph: Graph) -> _Owned:
    to = destinations(graph)
    lid = np.flatnonzero(to.row != NONE).astype(np.int32)
    adapter = np.zeros(len(to.row), np.uint8)
    for path in range(1 << graph.lids.lmc):
        adapter[graph.lids.endpoint[graph.switches.endpoint_adapter] + path] = 1
    return _Owned(lid, to.row[lid], adapter[lid])


def mend(
    graph: Graph, held: U8, routed: Routed, engine: str, *, returned: bool, anew: Callable[[], Tables]
) -> Mended | None:
    """Tables that keep of `held` [S, LIDs] every path that is whole; None where an engine has to route anew.

    `returned`: something came back, and takes its place in the tables that the engine made when it was there.
    Where more pairs than before are left without a way up and then down, the engine's tables, `anew`, have to be
    better at that to be worth all the paths that they move.
    """
    from fabrictwin.kernel.routing import path_mending as kernel

    if not all(node.guid in routed.rank for node in graph.nodes) or not _cables(graph) <= routed.cables:
        return None
    switches, owned, links = graph.switches, _owned(graph), _oriented_links(graph, routed)
    port_edge, to = switches.port_edge, destinations(graph)
    now = np.ascontiguousarray(held.T)
    now[to.row == NONE] = NO_PORT
    now[owned.lid, owned.home] = to.number[owned.lid]
    final = now.copy()
    if returned:
        then = np.ascontiguousarray(carry_over(graph, routed.lft).T)
        then[owned.lid, owned.home] = to.number[owned.lid]
        whole = np.zeros_like(then)
        kernel.whole_paths(links, port_edge, owned.lid, owned.home, then, whole)
        final = np.where(whole != 0, then, now)
    blank = np.zeros_like(final)
    kernel.mend_paths(links, port_edge, owned.lid, owned.home, owned.adapter, switches.row_adapters, final, blank)
    lft = np.ascontiguousarray(final.T)
    lid, _ = tree_of(switches, graph.lids)
    lane, lanes = own_lanes(switches, lft, lid, stands=None, up=links.up, most=routed.lanes)
    if lanes == NONE:
        return None
    tables = Tables(engine, lft, lane, lanes, "after a change, as few paths as possible")
    astray = _astray(graph, tables)
    if astray > routed.astray and _astray(graph, anew()) < astray:
        return None  # connections between adapters keep the lanes that they have
    return Mended(tables, _stages(links, port_edge, owned, np.ascontiguousarray(held.T), final, blank))


def staged(graph: Graph, held: U8, lft: U8) -> tuple[U8, ...]:
    """Tables between `held` and `lft` [S, LIDs], whoever made them, so that nothing circles on the way.

    Whether their paths together could deadlock is not looked at.
    """
    from fabrictwin.kernel.routing.table_filling import Graph as Links

    switches, owned = graph.switches, _owned(graph)
    some = np.zeros(len(switches.adjacent_row), np.int32)
    links = Links(
        switches.adjacent_start,
        switches.adjacent_row,
        switches.adjacent_back,
        switches.adjacent_number,
        some,
        some.astype(np.uint8),
        np.arange(switches.rows, dtype=np.int32),
    )
    before, final = np.ascontiguousarray(held.T), np.ascontiguousarray(lft.T)
    return _stages(links, switches.port_edge, owned, before, final, np.zeros_like(final))


def _stages(
    links: Links, port_edge: I32, owned: _Owned, held: U8, final: U8, blank: npt.NDArray[np.uint8]
) -> tuple[U8, ...]:
    """Tables [S, LIDs] between `held` and `final` [LIDs, S], in the order in which they are to be set."""
    from fabrictwin.kernel.routing import path_mending as kernel

    level = np.zeros_like(final)
    top = kernel.order_entries(links, port_edge, owned.lid, owned.home, held, final, level)
    start = np.where((blank != 0) & (final != held), NO_PORT, held).astype(np.uint8)
    stages = [start] if blank.any() else []
    stages += [np.where(level <= step, final, start) for step in range(top)]
    return tuple(np.ascontiguousarray(stage.T) for stage in stages)
