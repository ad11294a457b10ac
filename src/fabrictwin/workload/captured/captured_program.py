"""A captured job lowered to a program: its compute on the cluster's GPUs, its calls as NCCL runs them there.

A spec without `nccl:` gets NCCL's own defaults: programs that are captured call NCCL. Barriers are all-reduces of
one element, as ProcessGroupNCCL has them; an uneven all-to-all is one of the largest rank's bytes, evenly.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fabrictwin.base.arrays import starts_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.program.program import NONE, Actor, Communication, Label, Operations, OpKind, Program
from fabrictwin.workload.captured.captured_graph import MatchedGraph, Node, Part, parts_of
from fabrictwin.workload.captured.captured_job import Collective, Compute
from fabrictwin.workload.captured.captured_section import PlacedCapture, place_captured
from fabrictwin.workload.captured.kernel_times import KernelTimes
from fabrictwin.workload.job.nccl_communications import Library, LibraryOf, library_of
from fabrictwin.workload.step.step_work import Lowered

MOST_LABELS = 30_000  # of int16
NAMES = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
}


def lower_captured(
    spec: Spec, blueprint: Blueprint, fabric: Fabric, make_library: LibraryOf = library_of
) -> Lowered:
    """The spec's captured job as a program on this fabric. Raises ConfigError."""
    placed = place_captured(spec, blueprint, fabric)
    library = make_library(spec, blueprint, fabric, placed.rank_node)
    assert library is not None  # the spec refuses simple collectives of a captured job
    job, file = placed.captured, str(spec.folder / placed.section.captured)
    try:
        parts = parts_of(job, placed.differs, fold=spec.run.fold)
        graph = MatchedGraph(job, parts)
        graph.refuse_circle()
        made = _ProgramOfGraph(placed, graph, library)
        program = made.build(spec.name)
    except ConfigError as error:
        raise error.within(file=file) from None
    notes = [*library.notes, *job.notes, *sorted(made.times.notes)]
    notes += [f"not placed: {one.count:,} × {one.what}: {one.why}" for one in job.unplaced]
    classes = len(job.classes)
    line = f"{job.name}: {job.world:,} ranks in {classes} class{'' if classes == 1 else 'es'}"
    line += f", from {job.source}" if job.source else ""
    return Lowered(program, placed.rank_node, None, line, tuple(notes))


class _ProgramOfGraph:
    """Columns of a program, from matched nodes."""

    def __init__(self, placed: PlacedCapture, graph: MatchedGraph, library: Library) -> None:
        self.placed, self.graph, self.library = placed, graph, library
        self.times = KernelTimes(placed.gpu, placed.section.launch)
        self.categories = {group.name: group.category for group in placed.captured.groups}
        self.labels: dict[Label, int] = {}
        self.communications: list[Communication] = []
        self.participants: list[tuple[int, ...]] = []
        self.known: dict[tuple[object, ...], int] = {}
        self.slow = [float(placed.slowdown[list(part.ranks)].max()) for part in graph.parts]

    def build(self, name: str) -> Program:
        nodes, parts = self.graph.nodes, self.graph.parts
        n = len(nodes)
        kind = np.zeros(n, np.int8)
        actor, communication = np.zeros(n, np.int32), np.full(n, NONE, np.int32)
        duration, label = np.zeros(n, np.int64), np.zeros(n, np.int16)
        for i, node in enumerate(nodes):
            one = node.operation
            actor[i] = node.parts[0]
            if isinstance(one, Compute):
                kind[i] = OpKind.COMPUTE
                took = one.time_ps if one.work is None else self.times.time_ps(one.work)
                duration[i] = round((took or 0) * self.slow[node.parts[0]])
                label[i] = self._label(one.name, one.category)
            else:
                kind[i] = OpKind.COMMUNICATE
                communication[i] = self._communication(node)
                label[i] = self._label(*self._named(node))
        starts = starts_of([len(node.after) for node in nodes]).astype(np.int32)
        after = np.array([before for node in nodes for before in sorted(node.after)], np.int32)
        sizes = [len(each) for each in self.participants]
        return Program(
            name=name,
            ranks=self.placed.captured.world,
            actors=tuple(_actor(part) for part in parts),
            labels=tuple(self.labels),
            communications=tuple(self.communications),
            operations=Operations(
                kind=kind,
                actor=actor,
                duration_ps=duration,
                communication=communication,
                label=label,
                micro_batch=np.full(n, NONE, np.int32),
                after_start=starts,
                after=after,
            ),
            participants_start=np.cumsum([0, *sizes]).astype(np.int32),
            participants=np.array([part for each in self.participants for part in each], np.int32),
        )

    def _label(self, name: str, category: str) -> int:
        one = Label(name[:120], category)
        if one not in self.labels and len(self.labels) >= MOST_LABELS:
            one = Label("other kernels", "compute")
        return self.labels.setdefault(one, len(self.labels))

    def _named(self, node: Node) -> tuple[str, str]:
        one = node.operation
        if isinstance(one, Collective):
            kind = NAMES.get(one.kind, one.kind)
            return one.name or f"{one.group} {kind}", self.categories[one.group]
        return one.name or "send", "pp"

    def _communication(self, node: Node) -> int:
        one, groups = node.operation, node.groups
        assert groups is not None
        assert not isinstance(one, Compute)
        kind = one.kind if isinstance(one, Collective) else "send"
        size = max(one.size_bytes, 1)
        root = one.root if isinstance(one, Collective) else 0
        element = one.element_bytes if isinstance(one, Collective) and one.size_bytes else 1
        key = kind, groups.tobytes(), groups.shape[1], size, root, element
        if key not in self.known:
            name = self._named(node)[0]
            if isinstance(one, Collective):
                n = groups.shape[1]
                if kind in ("all_to_all", "gather", "scatter"):
                    element, size = 1, -(-size // n) * n
                made = self.library.collective(one.kind, groups, size, element_bytes=element, name=name, root=root)
            else:
                made = self.library.send(groups, size, name=name)
            self.known[key] = len(self.communications)
            self.communications.append(replace(made, name=name))
            self.participants.append(node.parts)
        return self.known[key]


def _actor(part: Part) -> Actor:
    return Actor(part.name, np.array(part.ranks, np.int32))
