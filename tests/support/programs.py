"""Programs that tests share: a job's, a few operations by hand; how long they take at the least."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np

from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.program.program import NONE, Communication, Operations, OpKind, Program
from fabrictwin.program.sends import sends_of
from fabrictwin.twin import Twin
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.step.training_step import build_program, check

EdgeTimes = Mapping[tuple[int, int], int]


def lowered(of: Spec) -> tuple[Job, Program]:
    """(the job of a spec, its program)."""
    blueprint = build(of.cluster, spec=of)
    job, _ = check(of, blueprint, Twin(blueprint).fabric)
    return job, build_program(job, name="test", fold=of.run.fold)


def longest_path(program: Program, communication_ps: int = 0) -> int:
    """The program's length in ps where every communication takes the same time, by networkx."""
    graph = nx.DiGraph()
    ops = program.operations
    for i in range(len(ops)):
        graph.add_node(i)
        for p in ops.after[ops.after_start[i] : ops.after_start[i + 1]]:
            graph.add_edge(int(p), i)
    end: dict[int, int] = {}
    for i in nx.topological_sort(graph):
        took = int(ops.duration_ps[i]) if ops.communication[i] == NONE else communication_ps
        end[i] = max((end[p] for p in graph.predecessors(i)), default=0) + took
    return max(end.values())


def operations(communication: list[int], after: list[list[int]], duration: list[int] | None = None) -> Operations:
    """One operation an entry: a communication, or compute where it is NONE."""
    n = len(communication)
    return Operations(
        kind=np.array([OpKind.COMPUTE if c == NONE else OpKind.COMMUNICATE for c in communication], np.int8),
        actor=np.zeros(n, np.int32),
        duration_ps=np.array(duration or [0] * n, np.int64),
        communication=np.array(communication, np.int32),
        label=np.zeros(n, np.int16),
        micro_batch=np.full(n, NONE, np.int32),
        after_start=np.concatenate([[0], np.cumsum([len(a) for a in after])]).astype(np.int32),
        after=np.array([p for a in after for p in a], np.int32),
    )


def times(engine: Any, communications: list[Any], rank_node: np.ndarray) -> list[int]:
    """Durations in ps of communications that all start at once."""
    first = engine.post(
        operations(list(range(len(communications))), [[] for _ in communications]), communications, rank_node
    )
    engine.advance()
    return [int(t) for t in engine.ended_ps()[first:]]


def played(communication: Communication, c: int, latency: EdgeTimes, byte_ps: EdgeTimes) -> int:
    """Time to play one channel by hand, each edge with a latency and a rate of its own, its sends in order."""
    sends = sends_of(communication.channels, c)
    arrived = np.zeros(len(sends), np.int64)
    free: defaultdict[tuple[int, int], int] = defaultdict(int)
    for i in range(len(sends)):
        edge = int(sends.source[i]), int(sends.target[i])
        before = sends.after[sends.after_start[i] : sends.after_start[i + 1]]
        start = max(free[edge], int(arrived[before].max(initial=0)))
        free[edge] = start + int(sends.length_bytes[i]) * byte_ps[edge]
        arrived[i] = free[edge] + latency[edge]
    return int(arrived.max(initial=0))
