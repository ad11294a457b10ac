"""Paths of all edges of several communications: shortest ones, or as their connections say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from fabrictwin.base.arrays import I32, I64
from fabrictwin.engines.base.queue_pairs import QueuePairNumbers
from fabrictwin.engines.channels.connection_paths import Travellers, Uses, plain, travel, travellers
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.fabric.memory_paths import EndToEnd, PathFinder
from fabrictwin.program import patterns
from fabrictwin.program.program import Communication, Connections


def _is_plain(communication: Communication) -> bool:
    """Tell whether every edge takes the shortest path between two ranks."""
    return communication.connections is None and communication.channels.seat is None


def find_paths(
    communications: Sequence[Communication],
    edges: Sequence[patterns.Edges],
    rank_node: I32,
    fabric: Fabric,
    finder: PathFinder,
    numbers: QueuePairNumbers,
) -> tuple[EndToEnd, Uses, Connections]:
    """Return the paths of all edges of all communications, one after the other, and how they are connected."""
    entropy = numbers.ports_by_side if fabric.technology == "ethernet" else None
    simple = [_is_plain(c) for c in communications]
    sizes = np.array([len(e) for e in edges], np.int64)
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def rows(which: bool) -> I64:
        of = [np.arange(first[i], first[i + 1]) for i in range(len(edges)) if simple[i] == which]
        return np.concatenate(of).astype(np.int64) if of else np.zeros(0, np.int64)

    source = rank_node[join([e.source for e, s in zip(edges, simple, strict=True) if s], np.int64)]
    target = rank_node[join([e.target for e, s in zip(edges, simple, strict=True) if s], np.int64)]
    shortest = finder.find(source, target, entropy)
    if all(simple):
        how = plain(int(first[-1]))
        none = np.zeros(0, np.int64)
        return shortest, Uses(none, none.astype(np.int32), np.zeros(0)), how
    parts = [
        travellers(e, c.connections, rank_node)
        for e, c, s in zip(edges, communications, simple, strict=True)
        if not s
    ]
    names = [f.name for f in fields(Connections)]
    special = Travellers(
        source=np.concatenate([p.source for p in parts]),
        target=np.concatenate([p.target for p in parts]),
        source_seat=np.concatenate([p.source_seat for p in parts]),
        target_seat=np.concatenate([p.target_seat for p in parts]),
        how=Connections(**{name: np.concatenate([getattr(p.how, name) for p in parts]) for name in names}),
    )
    guided, uses = travel(special, fabric, finder, entropy)
    plain_rows, special_rows = rows(True), rows(False)
    total = int(first[-1])
    edge = np.concatenate([plain_rows[shortest.edge], special_rows[guided.edge]])
    order = np.argsort(edge, kind="stable")

    def scatter(name: str) -> np.ndarray:
        result = np.empty(total, getattr(shortest, name).dtype)
        result[plain_rows], result[special_rows] = getattr(shortest, name), getattr(guided, name)
        return result

    def beside(name: str) -> np.ndarray:
        return np.concatenate([getattr(shortest, name), getattr(guided, name)])[order]

    found = EndToEnd(
        edge[order],
        beside("port"),
        beside("share"),
        beside("before"),
        scatter("latency_ps"),
        scatter("source_nic"),
        scatter("destination_nic"),
    )
    default = plain(total)
    for name in names:
        getattr(default, name)[special_rows] = getattr(special.how, name)
    return found, Uses(special_rows[uses.edge], uses.resource, uses.amount), default


def join(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    """Columns one after the other; an empty one where there are none."""
    return np.concatenate(parts).astype(kind) if len(parts) else np.zeros(0, kind)
