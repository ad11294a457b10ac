"""Paths of all edges of several communications, found once for those whose edges are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import pairwise

import numpy as np

from fabrictwin.base.arrays import I32, digest_of, starts_of
from fabrictwin.base.records import record
from fabrictwin.engines.base.queue_pairs import QueuePairNumbers
from fabrictwin.engines.channels.column_cache import LastColumns
from fabrictwin.engines.channels.connection_paths import Travellers, Uses, plain, travel, travellers
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.fabric.memory_paths import EndToEnd, PathFinder
from fabrictwin.program import patterns
from fabrictwin.program.program import Communication, Connections

_USED = ("edge", "port", "share", "before")  # of EndToEnd, by use
_BY_EDGE = ("latency_ps", "source_nic", "destination_nic")
# what of connections their paths depend on, and what is used beside ports
_LEADS = (
    *("out", "nic_out", "nic_in", "into", "paths"),
    *("send_ps_per_byte", "receive_ps_per_byte", "read_ps_per_byte", "threads"),
)

_EDGES_AT_ONCE = 1 << 17


@record
class Found:
    """Paths of edges, and what they use beside ports."""

    on: EndToEnd
    beside: Uses


@record
class Paths:
    """Paths of all edges of some communications that follow each other, one's edges after the other's."""

    communications: slice
    found: EndToEnd
    beside: Uses
    how: Connections
    last: LastColumns  # what was last made of edges like these


class OpenConnections:
    """Connections of communications over one fabric: the paths of their edges, and their queue pair numbers.

    Sizes of one collective, and the layers of a model, have the same edges: these are connected once, and their
    paths found once. With `keep` that holds from one call to the next, as NCCL keeps its connections; what else
    was made of edges is kept for as many sets of them as `sets` says.
    """

    def __init__(
        self,
        fabric: Fabric,
        finder: PathFinder,
        numbers: QueuePairNumbers | None = None,
        *,
        keep: bool = False,
        sets: int = 1,
    ) -> None:
        self.fabric = fabric
        self.finder = finder
        self.keep, self.sets = keep, sets
        self.edges = 0  # whose paths are kept
        self._numbers = numbers or QueuePairNumbers(len(fabric.nic_node))
        self._known: dict[bytes, Found] = {}
        self._named = LastColumns(keep=keep)
        self._last: dict[tuple[bytes, ...], LastColumns] = {}

    def over(self, finder: PathFinder) -> OpenConnections:
        """Return connections that take other paths, numbered after these."""
        return OpenConnections(self.fabric, finder, self._numbers, keep=self.keep, sets=self.sets)

    def paths(
        self, communications: Sequence[Communication], edges: Sequence[patterns.Edges], rank_node: I32
    ) -> Iterator[Paths]:
        """Yield the paths of all communications, of so many at a time that their uses take little memory.

        Raises ConfigError where there is no path.
        """
        ends = [
            travellers(e, c.transport.connections, rank_node) for e, c in zip(edges, communications, strict=True)
        ]
        names = [self._name(each) for each in ends]
        new = {name: each for name, each in zip(names, ends, strict=True) if name not in self._known}
        at_once = batches([len(each.source) for each in ends])
        if len(new) == len(names) and len(at_once) == 1 and not (self.keep and names):
            found = self._find(ends)
            yield Paths(at_once[0], found.on, found.beside, _in_one(ends).how, LastColumns(keep=False))
            return
        known = self._known | dict(zip(new, self._find_apart(list(new.values())), strict=True))
        if self.keep:
            self._known = known
            self.edges += sum(len(each.source) for each in new.values())
        for batch in at_once:
            found = _joined([known[name] for name in names[batch]])
            yield Paths(
                batch, found.on, found.beside, _in_one(ends[batch]).how, self._last_of(tuple(names[batch]))
            )

    def _last_of(self, names: tuple[bytes, ...]) -> LastColumns:
        if names not in self._last:
            while len(self._last) >= self.sets:
                del self._last[next(iter(self._last))]
            self._last[names] = LastColumns(keep=self.keep)
        return self._last[names]

    def _name(self, ends: Travellers) -> bytes:
        """Name edges by what their paths depend on."""
        columns = (
            *(ends.source, ends.target, ends.source_seat, ends.target_seat),
            *(getattr(ends.how, name) for name in _LEADS),
        )
        return self._named.of("name", columns, lambda: digest_of(columns))

    def _find(self, ends: Sequence[Travellers]) -> Found:
        entropy = self._numbers.ports_by_side if self.fabric.technology == "ethernet" else None
        return Found(*travel(_in_one(ends), self.fabric, self.finder, entropy))

    def _find_apart(self, ends: Sequence[Travellers]) -> list[Found]:
        """Paths of each, found for many at a time; all that leave hosts together, whose numbers are one row."""
        sizes = [len(each.source) for each in ends]
        batches = [[i for i, each in enumerate(ends) if self._leaves(each)]]
        inside: list[list[int]] = []
        for i in sorted({*range(len(ends))} - {*batches[0]}):
            if not inside or sum(sizes[k] for k in inside[-1]) >= _EDGES_AT_ONCE:
                inside.append([])
            inside[-1].append(i)
        found: dict[int, Found] = {}
        for batch in (*batches, *inside):
            if batch:
                parts = paths_apart(self._find([ends[i] for i in batch]), [sizes[i] for i in batch])
                found |= zip(batch, parts, strict=True)
        return [found[i] for i in range(len(ends))]

    def _leaves(self, ends: Travellers) -> bool:
        """Return true if some edge goes over the network."""
        if (ends.how.nic_out != NONE).any() or (ends.how.nic_in != NONE).any():
            return True
        known = (ends.source != NONE) & (ends.target != NONE)
        host = self.fabric.node_host
        return bool((host[ends.source[known]] != host[ends.target[known]]).any())


def batches(edges: Sequence[int]) -> list[slice]:
    """Return communications or channels, of so many edges each, in parts of _EDGES_AT_ONCE or a little more."""
    ends, since = [0], 0
    for i, count in enumerate(edges):
        if since >= _EDGES_AT_ONCE:
            ends.append(i)
            since = 0
        since += count
    return [slice(*cut) for cut in pairwise([*ends, len(edges)])]


def _in_one(parts: Sequence[Travellers]) -> Travellers:
    """Return the edges of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        none = np.zeros(0, np.int32)
        return Travellers(none, none, none, none, plain(0))

    def column(of: Sequence[object], name: str) -> np.ndarray:
        return np.concatenate([getattr(each, name) for each in of])

    how = Connections(**{f.name: column([p.how for p in parts], f.name) for f in fields(Connections)})
    ends = {name: column(parts, name) for name in ("source", "target", "source_seat", "target_seat")}
    return Travellers(**ends, how=how)


def paths_apart(found: Found, edges: Sequence[int]) -> Iterator[Found]:
    """Yield what was found for so many edges, and for those that follow, the edges of each numbered from 0."""
    first = starts_of(np.array(edges, np.int64))
    uses = np.searchsorted(found.on.edge, first)
    owner = np.searchsorted(first, found.beside.edge, side="right") - 1
    by_owner = np.argsort(owner, kind="stable")
    others = np.searchsorted(owner[by_owner], np.arange(len(edges) + 1))
    for i, begin in enumerate(first[:-1].tolist()):
        mine, own = slice(uses[i], uses[i + 1]), by_owner[others[i] : others[i + 1]]
        columns = {name: getattr(found.on, name)[mine] for name in _USED}
        columns |= {name: getattr(found.on, name)[begin : first[i + 1]] for name in _BY_EDGE}
        columns["edge"] = columns["edge"] - begin
        beside = Uses(found.beside.edge[own] - begin, found.beside.resource[own], found.beside.amount[own])
        yield Found(EndToEnd(**columns), beside)


def _joined(parts: Sequence[Found]) -> Found:
    """Return what was found for each communication as one, its edges numbered on."""
    if len(parts) == 1:
        return parts[0]
    first = starts_of(np.array([len(each.on.latency_ps) for each in parts], np.int64)).tolist()
    columns = {name: np.concatenate([getattr(p.on, name) for p in parts]) for name in (*_USED[1:], *_BY_EDGE)}
    edge = np.concatenate([each.on.edge + begin for each, begin in zip(parts, first, strict=False)])
    beside = Uses(
        np.concatenate([each.beside.edge + begin for each, begin in zip(parts, first, strict=False)]),
        np.concatenate([each.beside.resource for each in parts]),
        np.concatenate([each.beside.amount for each in parts]),
    )
    return Found(EndToEnd(edge=edge, **columns), beside)


def join(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    """Columns one after the other; an empty one where there are none."""
    return np.concatenate(parts).astype(kind, copy=False) if len(parts) else np.zeros(0, kind)
