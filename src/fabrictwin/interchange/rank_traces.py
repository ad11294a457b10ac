"""Traces of single ranks put together to a captured job.

Groups of the same dimension have other numbers on other ranks; they are one family by their description, or by
size and stride. Ranks that did the same are one class. A rank without a trace is taken to have done what the
nearest traced rank below it did (what a job of one program and many ranks does), its groups those of a regular
layout; the job's notes say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from fabrictwin.base.errors import ConfigError
from fabrictwin.workload.captured.captured_file import MOST_RANKS, ranks_text
from fabrictwin.workload.captured.captured_job import (
    CapturedJob,
    Collective,
    Group,
    Operation,
    RankClass,
    Sends,
    Unplaced,
    category_of,
)

VAGUE = ("", "undefined", "default_pg", "none")


@dataclass
class RankTrace:
    """What one rank did. Groups go by a key of this rank's own, with the ranks and the description of each."""

    rank: int
    world: int
    file: str
    operations: list[Operation] = field(default_factory=list)
    groups: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    unplaced: Counter[tuple[str, str]] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def miss(self, what: str, why: str) -> None:
        """Count something that could not be placed."""
        self.unplaced[what[:120], why] += 1


def stride_of(ranks: Sequence[int]) -> int:
    """The distance of neighbours in a regular group; 0 where it is irregular, 1 of a single rank."""
    if len(ranks) < 2:
        return 1
    stride = ranks[1] - ranks[0]
    regular = stride > 0 and all(b - a == stride for a, b in pairwise(ranks))
    return stride if regular else 0


def tiled(ranks: tuple[int, ...], world: int) -> list[tuple[int, ...]]:
    """All groups of a regular layout that has this one; none where there is no such layout."""
    n, stride = len(ranks), stride_of(ranks)
    block = n * stride
    if not stride or world % block or ranks[0] % block >= stride:
        return []
    return [
        tuple(base + offset + stride * i for i in range(n))
        for base in range(0, world, block)
        for offset in range(stride)
    ]


def _family(ranks: tuple[int, ...], description: str, world: int) -> str:
    if description.lower() not in VAGUE:
        return description[:80]
    if len(ranks) == world:
        return "world"
    return (
        f"{len(ranks)} ranks, {stride_of(ranks)} apart" if stride_of(ranks) else f"ranks {ranks_text(ranks)}"[:80]
    )


def _named(trace: RankTrace, world: int) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    """(family of each key, ranks of each family) of one rank; a family met twice with other ranks is numbered."""
    names: dict[str, str] = {}
    members: dict[str, tuple[int, ...]] = {}
    for key, (ranks, description) in trace.groups.items():
        base = name = _family(ranks, description, world)
        number = 1
        while name in members:
            number += 1
            name = f"{base} #{number}"
        names[key], members[name] = name, ranks
    return names, members


def together(
    traces: Sequence[RankTrace],
    *,
    name: str,
    source: str,
    world: int | None = None,
    sends: Sends = "rendezvous",
    spans: Mapping[int, Sequence[int]] | None = None,
) -> CapturedJob:
    """The job of traces of its ranks. `spans` are the ranks that do as each traced one. Raises ConfigError."""
    first = traces[0]
    largest = max(max((rank for ranks, _ in one.groups.values() for rank in ranks), default=0) for one in traces)
    said = max(*(one.world for one in traces), *(one.rank + 1 for one in traces), largest + 1, 1)
    total = world or said
    if not said <= total <= MOST_RANKS:
        raise ConfigError(f"got {total} ranks, expected {said} to {MOST_RANKS}", file=first.file, key="--world")
    by_rank: dict[int, RankTrace] = {}
    for one in traces:
        if one.rank in by_rank:
            message = f"is of rank {one.rank}, as is {by_rank[one.rank].file}: expected one trace a rank"
            raise ConfigError(message, file=one.file)
        by_rank[one.rank] = one
    families: dict[str, dict[tuple[int, ...], None]] = {}
    alike: dict[tuple[Operation, ...], list[int]] = {}
    for rank in sorted(by_rank):
        trace = by_rank[rank]
        names, members = _named(trace, total)
        for family, ranks in members.items():
            families.setdefault(family, {})[ranks] = None
        renamed = tuple(
            replace(one, group=names[one.group]) if isinstance(one, Collective) else one
            for one in trace.operations
        )
        alike.setdefault(renamed, []).append(rank)
    classes, assumed = _classes(alike, spans or _spans(sorted(by_rank), total), total)
    groups = _groups(families, classes, total, first.file) if assumed else _plain_groups(families)
    notes = [note for one in traces for note in one.notes]
    if assumed:
        have = ranks_text(sorted(by_rank))
        notes.append(
            f"{assumed:,} of {total:,} ranks have no trace; they are taken to do as those traced: {have}"[:400]
        )
    missed: Counter[tuple[str, str]] = Counter()
    for one in traces:
        missed += one.unplaced
    return CapturedJob(
        name=name,
        world=total,
        classes=classes,
        groups=groups,
        source=source,
        sends=sends,
        unplaced=tuple(Unplaced(what, count, why) for (what, why), count in sorted(missed.items())),
        notes=tuple(dict.fromkeys(notes)),
    )


def _spans(traced: Sequence[int], world: int) -> dict[int, Sequence[int]]:
    """Ranks up to the next traced one do as the one before them."""
    ends = [*traced[1:], world]
    return {rank: range(rank if rank != traced[0] else 0, end) for rank, end in zip(traced, ends, strict=True)}


def _classes(
    alike: dict[tuple[Operation, ...], list[int]], span: Mapping[int, Sequence[int]], world: int
) -> tuple[tuple[RankClass, ...], int]:
    """(classes of all ranks, how many ranks have no trace)."""
    if not any(alike):
        raise ConfigError("has nothing that could be played: no compute, no collective", file=None)
    classes = []
    for operations, ranks in alike.items():
        whole = tuple(sorted(one for rank in ranks for one in span[rank]))
        label = "all ranks" if len(whole) == world else f"rank{'s' if len(whole) > 1 else ''} {ranks_text(whole)}"
        classes.append(RankClass(label[:80], whole, operations))
    return tuple(classes), world - len(span)


def _plain_groups(families: dict[str, dict[tuple[int, ...], None]]) -> tuple[Group, ...]:
    return tuple(
        Group(name, _disjoint(name, list(members)), category_of(name)) for name, members in families.items()
    )


def _disjoint(name: str, members: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    seen: dict[int, tuple[int, ...]] = {}
    for each in members:
        for rank in each:
            if seen.setdefault(rank, each) is not each:
                raise ConfigError(f"group {name!r} has rank {rank} in two groups: the traces are not of one job")
    return tuple(members)


def _groups(
    families: dict[str, dict[tuple[int, ...], None]], classes: tuple[RankClass, ...], world: int, file: str
) -> tuple[Group, ...]:
    """Groups of all ranks, those without a trace included."""
    found = []
    for name, members in families.items():
        known = _disjoint(name, list(members))
        covered = {rank for each in known for rank in each}
        users = {
            rank
            for one in classes
            if any(isinstance(each, Collective) and each.group == name for each in one.operations)
            for rank in one.ranks
        }
        if not users:
            continue  # messages name their ranks themselves
        if not users <= covered:
            every = tiled(known[0], world)
            if not every or not set(known) <= set(every):
                message = (
                    f"group {name!r} of ranks {ranks_text(known[0])[:80]} divides {world} ranks in no regular way"
                )
                raise ConfigError(f"{message}: expected a trace of every rank", file=file)
            known = tuple(every)
        found.append(Group(name, known, category_of(name)))
    return tuple(found)
