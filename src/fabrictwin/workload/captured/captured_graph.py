"""Calls of a captured job matched among its ranks: which collective is whose, which send meets which receive.

The k-th call on a group is one collective; every rank must call it with the same kind, size and root, and a rank
that never does is named. Ranks of a class that differ (slow GPUs) are parts of their own, as is every rank where
nothing is folded. Where sends are eager a message leaves without waiting for its receive, as in MPI and GOAL.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I64
from fabrictwin.base.errors import ConfigError
from fabrictwin.workload.captured.captured_file import ranks_text
from fabrictwin.workload.captured.captured_job import (
    CapturedJob,
    Collective,
    Compute,
    Message,
    Operation,
    RankClass,
)

MOST_NODES = 20_000_000


class Part(NamedTuple):
    """Ranks of a class that act alike."""

    name: str
    ranks: tuple[int, ...]
    places: tuple[int, ...]  # of the ranks in their class
    operations: tuple[Operation, ...]


@dataclass
class Node:
    """An operation of the matched graph: compute of a part, or a collective or message among parts."""

    operation: Operation
    parts: tuple[int, ...]
    groups: I64 | None = None  # [groups, n] ranks that communicate; pairs of a message
    after: set[int] = field(default_factory=set)
    met: set[int] = field(default_factory=set)  # parts that have come to it
    called: Operation | None = None  # the receive of a message


class _Slice(NamedTuple):
    """Groups of a family that touch the same parts."""

    groups: I64
    parts: tuple[int, ...]


def parts_of(job: CapturedJob, differs: npt.NDArray[np.bool_], *, fold: bool) -> list[Part]:
    """Classes divided where ranks differ."""
    found: list[Part] = []
    for one in job.classes:
        places = range(len(one.ranks))
        apart = [i for i in places if not fold or differs[one.ranks[i]]]
        alike = [i for i in places if fold and not differs[one.ranks[i]]]
        if alike:
            found.append(_part(one, alike, one.name))
        for i in apart:
            found.append(_part(one, [i], f"rank {one.ranks[i]}" + (f" ({one.name})" if fold else "")))
    return found


def _part(one: RankClass, places: Sequence[int], name: str) -> Part:
    return Part(name, tuple(one.ranks[i] for i in places), tuple(places), one.operations)


def _called(one: Operation) -> str:
    if isinstance(one, Collective):
        root = f", root {one.root}" if one.kind in ("broadcast", "reduce", "gather", "scatter") else ""
        return f"{one.kind} of {one.size_bytes:,} bytes{root}"
    if isinstance(one, Message):
        return f"{'send' if one.sends else 'receive'} of {one.size_bytes:,} bytes"
    return one.name


class MatchedGraph:
    """The nodes of a job. Raises ConfigError where ranks disagree."""

    def __init__(self, job: CapturedJob, parts: list[Part]) -> None:
        self.job, self.parts = job, parts
        self.nodes: list[Node] = []
        self.part_of = np.full(job.world, -1, np.int64)
        for number, part in enumerate(parts):
            self.part_of[list(part.ranks)] = number
        self._families = {group.name: self._slices(group.members) for group in job.groups}
        self._of_part = {name: self._by_part(name, slices) for name, slices in self._families.items()}
        self._collectives: dict[tuple[str, int, int], int] = {}
        self._messages: dict[tuple[int, int, int], list[list[int]]] = {}
        for number in range(len(parts)):
            self._walk(number)
        self._check_met()

    # ------------------------------------------------------------------ groups

    def _slices(self, members: Sequence[tuple[int, ...]]) -> list[_Slice]:
        alike: dict[tuple[int, tuple[int, ...]], list[tuple[int, ...]]] = defaultdict(list)
        for each in members:
            touched = tuple(sorted(set(self.part_of[list(each)].tolist())))
            alike[len(each), touched].append(each)
        return [_Slice(np.array(groups, np.int64), touched) for (_, touched), groups in alike.items()]

    def _by_part(self, name: str, slices: list[_Slice]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        count = np.zeros(len(self.parts), np.int64)
        for number, one in enumerate(slices):
            np.add.at(count, self.part_of[one.groups.reshape(-1)], 1)
            for part in one.parts:
                found[part].append(number)
        for part in found:
            if count[part] != len(self.parts[part].ranks):
                inside = set(np.concatenate([one.groups.reshape(-1) for one in slices]).tolist())
                rank = next(rank for rank in self.parts[part].ranks if rank not in inside)
                ranks = ranks_text(self.parts[part].ranks)
                raise ConfigError(
                    f"group {name!r} has some of ranks {ranks[:80]}, which are one class, without {rank}"
                )
        return found

    # ------------------------------------------------------------------ a part's operations

    def _new(self, node: Node) -> int:
        if len(self.nodes) >= MOST_NODES:
            raise ConfigError(f"got a job of more than {MOST_NODES:,} operations, which would not fit into memory")
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _walk(self, number: int) -> None:
        part = self.parts[number]
        ends: list[tuple[int, ...]] = []
        calls: dict[str, int] = defaultdict(int)
        sent: dict[tuple[int, int, int], int] = defaultdict(int)
        for one in part.operations:
            before = {end for i in one.after for end in ends[i]}
            if isinstance(one, Compute):
                ends.append((self._new(Node(one, (number,), after=before)),))
            elif isinstance(one, Collective):
                calls[one.group] += 1
                ends.append(self._collective(number, one, calls[one.group] - 1, before))
            else:
                ends.append(self._message(number, one, sent, before))

    def _collective(self, number: int, one: Collective, k: int, before: set[int]) -> tuple[int, ...]:
        mine = self._of_part[one.group].get(number)
        ranks = ranks_text(self.parts[number].ranks)[:80]
        if mine is None:
            raise ConfigError(f"ranks {ranks} call {_called(one)} on group {one.group!r}, which they are not in")
        found: list[int] = []
        for s in mine:
            family = self._families[one.group][s]
            if family.groups.shape[1] == 1:
                found += before  # nobody else to wait for
                continue
            if one.root >= family.groups.shape[1]:
                size = family.groups.shape[1]
                raise ConfigError(f"ranks {ranks} call {_called(one)} on group {one.group!r} of {size} ranks")
            key = one.group, s, k
            if key not in self._collectives:
                self._collectives[key] = self._new(Node(one, family.parts, family.groups))
            node = self.nodes[self._collectives[key]]
            first = node.operation
            assert isinstance(first, Collective)
            if (first.kind, first.size_bytes, first.root) != (one.kind, one.size_bytes, one.root):
                other = ranks_text(self.parts[min(node.met)].ranks)[:80]
                raise ConfigError(
                    f"call {k} on group {one.group!r}: ranks {ranks} call {_called(one)}, "
                    f"ranks {other} call {_called(first)}"
                )
            node.met.add(number)
            node.after |= before
            found.append(self._collectives[key])
        return tuple(dict.fromkeys(found))

    def _message(
        self, number: int, one: Message, sent: dict[tuple[int, int, int], int], before: set[int]
    ) -> tuple[int, ...]:
        part = self.parts[number]
        pairs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for place, rank in zip(part.places, part.ranks, strict=True):
            peer = one.peer(place, rank)
            if not 0 <= peer < self.job.world:
                what = _called(one)
                raise ConfigError(f"rank {rank}: {what} with rank {peer}, expected 0 to {self.job.world - 1}")
            if peer != rank:
                pairs[int(self.part_of[peer])].append((rank, peer) if one.sends else (peer, rank))
        found: list[int] = []
        for other, mine in pairs.items():
            ends = (number, other) if one.sends else (other, number)
            # sends and receives of a pair of parts are counted apart
            counter = (*ends, one.tag * 2 + one.sends)
            k, sent[counter] = sent[counter], sent[counter] + 1
            waiting = self._messages.setdefault((*ends, one.tag), [[], []])
            theirs = waiting[not one.sends]
            if k < len(theirs):
                at = theirs[k]
                self._meet(self.nodes[at], one, mine, number)
            else:
                at = self._new(Node(one, tuple(sorted({number, other})), np.array(sorted(mine), np.int64)))
                self.nodes[at].met.add(number)
            waiting[one.sends].append(at)
            eager = self.job.sends == "eager"
            if one.sends or not eager:
                self.nodes[at].after |= before
            found.append(at)
            if eager and not one.sends:
                found += before
        return tuple(dict.fromkeys(found)) if found else tuple(before)

    def _meet(self, node: Node, one: Message, pairs: list[tuple[int, int]], number: int) -> None:
        first = node.operation
        assert node.groups is not None
        assert isinstance(first, Message)
        send, receive = (one, first) if one.sends else (first, one)
        if sorted(pairs) != [tuple(pair) for pair in node.groups.tolist()]:
            source, target = sorted(pairs)[0]
            what = "send" if one.sends else "receive"
            raise ConfigError(
                f"rank {source} to rank {target}: a {what} of the class has no partner of the same pairs"
            )
        if receive.size_bytes < send.size_bytes:
            source, target = pairs[0]
            sent, room = send.size_bytes, receive.size_bytes
            raise ConfigError(f"rank {source} sends {sent:,} bytes to rank {target}, which expects {room:,}")
        node.met.add(number)
        node.operation, node.called = send, receive

    # ------------------------------------------------------------------ what never meets

    def _check_met(self) -> None:
        for node in self.nodes:
            one = node.operation
            if isinstance(one, Compute):
                continue
            if isinstance(one, Collective):
                missing = [part for part in node.parts if part not in node.met]
                if missing:
                    here, there = (ranks_text(self.parts[part].ranks)[:80] for part in (min(node.met), missing[0]))
                    raise ConfigError(
                        f"ranks {here} wait in {_called(one)} on group {one.group!r} for ranks {there}, "
                        "which never call it"
                    )
            elif node.called is None:
                assert node.groups is not None
                source, target = node.groups[0].tolist()
                if one.sends:
                    raise ConfigError(
                        f"rank {source} waits in a {_called(one)} for rank {target}, which never receives"
                    )
                raise ConfigError(f"rank {target} waits in a {_called(one)} for rank {source}, which never sends")

    def circle(self) -> list[int]:
        """Nodes that wait for each other in a circle; none where all can run."""
        count = np.array([len(node.after) for node in self.nodes], np.int64)
        behind: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for before in node.after:
                behind[before].append(i)
        ready = np.flatnonzero(count == 0).tolist()
        while ready:
            for i in behind[ready.pop()]:
                count[i] -= 1
                if count[i] == 0:
                    ready.append(i)
        stuck = set(np.flatnonzero(count > 0).tolist())
        if not stuck:
            return []
        path, at = [], min(stuck)
        while at not in path:
            path.append(at)
            at = min(before for before in self.nodes[at].after if before in stuck)
        return path[path.index(at) :]

    def refuse_circle(self) -> None:
        """Raise ConfigError where operations wait for each other, naming who waits for whom."""
        circle = self.circle()
        if circle:
            said = []
            for at in circle[:4]:
                node = self.nodes[at]
                ranks = " and ".join(ranks_text(self.parts[part].ranks)[:40] for part in node.parts[:2])
                said.append(f"{_called(node.operation)} of ranks {ranks}")
            more = f" for {len(circle) - 4} more" if len(circle) > 4 else ""
            raise ConfigError("a hang: " + ", which waits for ".join(said) + f", which waits{more} for the first")
