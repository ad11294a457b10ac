"""Simulated hangs: ranks that call collectives one after the other, with one fault, and the dumps that they leave.

A collective completes when all members of its group have called it with the same arguments. Ranks run until
nothing moves any more; what each has called, and what has completed, becomes its dump.
"""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KINDS = ("missing", "order", "size", "stopped", "dead-link")


@dataclass(frozen=True)
class Op:
    """A call: of which group, what, how large."""

    group: str
    verb: str
    size: int


@dataclass
class HangCase:
    """A simulated hang: its dumps, and who is to blame."""

    kind: str
    culprits: frozenset[int]
    dumps: dict[int, dict[str, Any]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write each dump as PyTorch names them."""
        for rank, dump in self.dumps.items():
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump))


def _programs(groups: dict[str, list[int]], ranks: int, rng: random.Random, steps: int) -> list[list[Op]]:
    calls: list[list[Op]] = [[] for _ in range(ranks)]
    for _ in range(steps):
        # every group once a step, in one order for all
        for name, members in groups.items():
            op = Op(name, rng.choice(["nccl:all_reduce", "nccl:_reduce_scatter_base", "nccl:_all_gather_base"]),
                    rng.choice([1024, 4096, 65536]))  # fmt: skip
            for rank in members:
                calls[rank].append(op)
    return calls


def simulated(seed: int) -> HangCase:
    """The hang of a seed: kinds in turn, everything else drawn."""
    rng, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    ranks = rng.choice([4, 8, 16])
    half = ranks // 2
    groups = {"0": list(range(ranks)), "1": list(range(half)), "2": list(range(half, ranks))}
    calls = _programs(groups, ranks, rng, steps=rng.randrange(3, 9))
    culprit = rng.randrange(ranks)
    at = rng.randrange(1, len(calls[culprit]) - 1)
    mine = calls[culprit]
    stop: dict[int, int] = {}
    frozen: set[tuple[str, int]] = set()
    if kind in ("missing", "stopped"):
        stop[culprit] = at
    elif kind == "order":
        mine[at], mine[at + 1] = mine[at + 1], mine[at]
        if mine[at] == mine[at + 1]:
            mine[at] = Op(mine[at].group, "nccl:broadcast", 7)
    elif kind == "size":
        # arguments that must agree
        mine[at] = Op(mine[at].group, mine[at].verb, mine[at].size + 1)
        for members in (groups[mine[at].group],):
            for rank in members:
                for i, op in enumerate(calls[rank]):
                    if i == at and rank != culprit:
                        calls[rank][i] = Op(op.group, "nccl:all_reduce", op.size)
        mine[at] = Op(mine[at].group, "nccl:all_reduce", mine[at].size)
    else:
        group = mine[at].group
        frozen.add((group, sum(op.group == group for op in mine[:at])))
    case = HangCase(kind, frozenset({culprit}))
    called, done = _run(calls, groups, stop, frozen)
    for rank in range(ranks):
        if kind == "missing" and rank == culprit:
            continue
        case.dumps[rank] = _dump(rank, groups, calls[rank], called[rank], done, rng)
    if kind == "dead-link":
        case.culprits = frozenset(groups[mine[at].group])
    return case


def _run(
    calls: list[list[Op]], groups: dict[str, list[int]], stop: dict[int, int], frozen: set[tuple[str, int]]
) -> tuple[list[int], set[tuple[str, int]]]:
    """Calls made by each rank (the last may wait), and the collectives that completed, by group and number."""
    called = [0] * len(calls)
    done: set[tuple[str, int]] = set()
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(calls):
            n = called[rank]
            if n == len(program) or n == stop.get(rank, -1):
                continue
            if n and _key(program, n - 1) not in done:
                continue
            called[rank] += 1
            moved = True
        for name, members in groups.items():
            for number in range(max(len(program) for program in calls)):
                if (name, number) in done or (name, number) in frozen:
                    continue
                ops = [_made(calls[rank], called[rank], name, number) for rank in members]
                if None in ops or len(set(ops)) != 1:
                    break
                done.add((name, number))
                moved = True
    return called, done


def _key(program: list[Op], at: int) -> tuple[str, int]:
    name = program[at].group
    return name, sum(op.group == name for op in program[:at])


def _made(program: list[Op], called: int, name: str, number: int) -> Op | None:
    mine = [op for op in program[:called] if op.group == name]
    return mine[number] if number < len(mine) else None


def _dump(
    rank: int, groups: dict[str, list[int]], program: list[Op], called: int, done: set[tuple[str, int]],
    rng: random.Random,
) -> dict[str, Any]:  # fmt: skip
    entries = []
    for i in range(called):
        name, number = _key(program, i)
        op = program[i]
        finished = (name, number) in done
        entries.append({
            "record_id": i, "pg_id": int(name), "process_group": (name, "default_pg" if name == "0" else "pg"),
            "collective_seq_id": number + 1, "p2p_seq_id": 0, "op_id": i, "profiling_name": op.verb,
            "time_created_ns": 10**9 * i, "input_sizes": [[op.size]], "output_sizes": [[op.size]],
            "input_dtypes": ["BFloat16"], "output_dtypes": ["BFloat16"],
            "state": "completed" if finished else "started",
            "retired": finished, "timeout_ms": 600000, "is_p2p": False, "frames": [{"name": "step", "line": 7}],
        })  # fmt: skip
    # ring buffers begin at different records
    kept = entries[rng.randrange(0, 2) :] if len(entries) > 4 else entries
    config = {name: {"name": name, "desc": "pg", "ranks": str(members)} for name, members in groups.items()}
    return {"version": "2.5", "rank": str(rank), "entries": kept, "pg_config": config}
