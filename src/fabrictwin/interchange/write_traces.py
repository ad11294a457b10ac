"""Captured jobs written for other simulators: Chakra's execution traces and GOAL.

Chakra has collectives: a node each, with the bytes that a rank puts in, and its group by name in `groups.json`
(which ASTRA-sim takes as its communicator groups). GOAL has sends alone: a collective becomes the sends of a ring,
of a chain (broadcast, reduce) or of all pairs, as `program.sends` lists them. Work without a time takes the named
GPU's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.textfile import make_folder, write_text, writing
from fabrictwin.interchange import chakra
from fabrictwin.program import collectives
from fabrictwin.program.sends import sends_of
from fabrictwin.workload.captured.captured_job import (
    CapturedJob,
    Collective,
    Compute,
    Group,
    Message,
    Operation,
    RankClass,
)
from fabrictwin.workload.captured.kernel_times import KernelTimes

TARGETS = ("chakra", "goal")
MOST_LINES = 20_000_000
_TYPES = {kind: number for number, kind in reversed(list(enumerate(chakra.COLLECTIVES)))}
Hop = tuple[int, int, int, tuple[int, ...]]  # place of sender and receiver, bytes, hops that must have arrived


def _times(gpu: str | None) -> KernelTimes | None:
    return None if gpu is None else KernelTimes(gpu, 0)


def _took_ps(one: Compute, times: KernelTimes | None) -> int:
    if one.work is None:
        return one.time_ps or 0
    if times is None:
        raise ConfigError("got compute as work, expected a GPU whose times it takes", key="--gpu")
    return times.time_ps(one.work)


def _group_numbers(job: CapturedJob) -> dict[tuple[str, tuple[int, ...]], int]:
    every = [(group.name, members) for group in job.groups for members in group.members]
    return {key: number for number, key in enumerate(every, start=1)}


def _own_group(groups: dict[str, Group], name: str, rank: int) -> tuple[int, ...]:
    for members in groups[name].members:
        if rank in members:
            return members
    raise ConfigError(f"rank {rank} calls on group {name!r}, which it is not in")


def write_chakra(job: CapturedJob, folder: Path, *, gpu: str | None = None) -> list[Path]:
    """Write a trace for every rank, and the groups. Raises ConfigError."""
    make_folder(folder)
    numbers, groups, times = _group_numbers(job), {group.name: group for group in job.groups}, _times(gpu)
    written = [folder / "groups.json"]
    write_text(written[0], json.dumps({str(n): list(members) for (_, members), n in numbers.items()}) + "\n")
    for one in job.classes:
        for place, rank in enumerate(one.ranks):
            nodes = [
                _chakra_node(each, number, place, rank, groups, numbers, times)
                for number, each in enumerate(one.operations)
            ]
            path = folder / f"{job.name.replace('/', '-')[:80]}.{rank}.et"
            with writing(path):
                path.write_bytes(chakra.written(nodes))
            written.append(path)
    return written


def _chakra_node(
    one: Operation,
    number: int,
    place: int,
    rank: int,
    groups: dict[str, Group],
    numbers: dict[tuple[str, tuple[int, ...]], int],
    times: KernelTimes | None,
) -> chakra.Node:
    node = chakra.Node(number, one.name or "call", after=list(one.after))
    if isinstance(one, Compute):
        node.kind = chakra.COMPUTE
        node.duration_us = round(_took_ps(one, times) / chakra.PS_PER_US)
        node.attributes = {"is_cpu_op": one.category == "other"}
    elif isinstance(one, Message):
        node.kind = chakra.SEND if one.sends else chakra.RECEIVE
        side = "comm_dst" if one.sends else "comm_src"
        node.attributes = {"comm_size": one.size_bytes, side: one.peer(place, rank), "comm_tag": one.tag}
    else:
        members = _own_group(groups, one.group, rank)
        share = len(members) if one.kind in ("all_gather", "gather") else 1
        node.kind = chakra.COLLECTIVE
        node.attributes = {
            "is_cpu_op": False,
            "comm_type": _TYPES[one.kind],
            "comm_size": one.size_bytes // share,
            "pg_name": str(numbers[one.group, members]),
        }
        node.attributes |= {"root": one.root} if one.root else {}
    return node


# ------------------------------------------------------------------ GOAL


def _hops(one: Collective, ranks: int) -> list[Hop]:
    """Sends of a collective among places of its group."""
    places, size = np.arange(ranks)[None, :], max(one.size_bytes, 1)
    if one.kind in ("all_to_all", "gather", "scatter"):
        block = max(size // ranks, 1)
        pairs = [
            (a, b)
            for a in range(ranks)
            for b in range(ranks)
            if a != b and (one.kind == "all_to_all" or (a if one.kind == "scatter" else b) == one.root)
        ]
        return [(a, b, block, ()) for a, b in pairs]
    if one.kind == "reduce":
        chain = [(one.root + i) % ranks for i in range(ranks)][::-1]
        return [(chain[i], chain[i + 1], size, (i - 1,) if i else ()) for i in range(ranks - 1)]
    if one.kind == "broadcast":
        made = collectives.broadcast(places, size, root=one.root, step=collectives.Step(chunk_bytes=size))
    else:
        makers = {
            "all_reduce": collectives.all_reduce,
            "all_gather": collectives.all_gather,
            "reduce_scatter": collectives.reduce_scatter,
        }
        made = makers[one.kind](places, size)
    sends = sends_of(made.channels, 0)
    return [
        (
            int(sends.source[i]),
            int(sends.target[i]),
            int(sends.length_bytes[i]),
            tuple(sends.after[sends.after_start[i] : sends.after_start[i + 1]].tolist()),
        )
        for i in range(len(sends))
    ]


class _GoalRank:
    """Lines of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.lines: list[str] = []
        self.count = 0

    def add(self, text: str, after: list[int]) -> int:
        self.count += 1
        self.lines.append(f"l{self.count}: {text}")
        self.lines += [f"l{self.count} requires l{before}" for before in sorted(set(after))]
        return self.count


class _Goal:
    """Job written as GOAL."""

    def __init__(self, job: CapturedJob, gpu: str | None) -> None:
        self.job, self.times = job, _times(gpu)
        self.groups = {group.name: group for group in job.groups}
        self.hops: dict[tuple[str, int, int, int], list[Hop]] = {}
        self.tags: dict[tuple[str, tuple[int, ...], int], int] = {}
        self.next_tag = 1 + max(
            (one.tag for each in job.classes for one in each.operations if isinstance(one, Message)), default=0
        )

    def rank(self, one: RankClass, place: int) -> str:
        """The rank's block."""
        out = _GoalRank(one.ranks[place])
        ends: list[list[int]] = []
        calls: dict[str, int] = defaultdict(int)
        for each in one.operations:
            after = [end for i in each.after for end in ends[i]]
            if isinstance(each, Compute):
                ends.append([out.add(f"calc {round(_took_ps(each, self.times) / 1000)}", after)])
            elif isinstance(each, Message):
                side = "send" if each.sends else "recv"
                way = "to" if each.sends else "from"
                peer = each.peer(place, out.rank)
                if peer == out.rank:
                    ends.append(after)
                    continue
                ends.append([out.add(f"{side} {max(each.size_bytes, 1)}b {way} {peer} tag {each.tag}", after)])
            else:
                calls[each.group] += 1
                ends.append(self._collective(out, each, calls[each.group], after))
        return f"rank {out.rank} {{\n" + "".join(f"{line}\n" for line in out.lines) + "}\n"

    def _collective(self, out: _GoalRank, one: Collective, call: int, after: list[int]) -> list[int]:
        members = _own_group(self.groups, one.group, out.rank)
        if len(members) == 1:
            return after
        key = one.kind, len(members), one.size_bytes, one.root
        if key not in self.hops:
            self.hops[key] = _hops(one, len(members))
        hops, own = self.hops[key], members.index(out.rank)
        first = self.tags.setdefault((one.group, members, call), self.next_tag)
        if first == self.next_tag:
            self.next_tag += len(hops)
        arrived: dict[int, int] = {}
        ends = []
        for i, (source, target, size, needs) in enumerate(hops):
            tag = first + i
            if source == own and size:
                waits = [arrived[n] for n in needs if n in arrived]
                ends.append(out.add(f"send {size}b to {members[target]} tag {tag}", after + waits))
            elif target == own and size:
                arrived[i] = out.add(f"recv {size}b from {members[source]} tag {tag}", after)
        return [out.add("calc 0", [*ends, *arrived.values()])] if ends or arrived else after


def write_goal(job: CapturedJob, path: Path, *, gpu: str | None = None) -> list[Path]:
    """Write a schedule. Raises ConfigError."""
    goal = _Goal(job, gpu)
    places = {rank: (one, place) for one in job.classes for place, rank in enumerate(one.ranks)}
    total, blocks = 0, []
    for rank in range(job.world):
        blocks.append(goal.rank(*places[rank]))
        total += blocks[-1].count("\n")
        if total > MOST_LINES:
            raise ConfigError(f"got a schedule of more than {MOST_LINES:,} lines, expected fewer ranks or calls")
    write_text(path, f"num_ranks {job.world}\n" + "".join(blocks))
    return [path]
