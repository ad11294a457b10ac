"""The times of tasks on the twin, one after the other, each by itself.

`packet` plays them all through one engine, `flow` each through its own. `analytic` uses closed forms, and looks up
the ways of a lowering once for all sizes of it: between sizes only bytes, chunks and their cost change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.capabilities import Fidelity, capabilities_of
from fabrictwin.base.grouped import grouped
from fabrictwin.base.progress import Stage, silent
from fabrictwin.engines.base.play import play
from fabrictwin.engines.packet.network.host_costs import works_in_hosts
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.lowering.lower import Lowering, program
from fabrictwin.nccl.lowering.tasks import Task
from fabrictwin.nccl.lowering.transport import Transports
from fabrictwin.nccl.tuning.step_costs import StepCosts
from fabrictwin.nccl.tuning.tuner import Choice
from fabrictwin.program.program import Communication
from fabrictwin.trace.trace import Counters

Asked = tuple[Task, Choice | None]


def measure(
    communicator: Communicator,
    asked: Sequence[Asked],
    *,
    fidelity: Fidelity = "flow",
    costs: StepCosts | None = None,
    transports: Transports | None = None,
    packet: PacketOptions | None = None,
    stage: Stage = silent,
) -> I64:
    """[tasks] what each takes, in ps; `stage` is told how far it is. Raises ConfigError."""
    lowering = Lowering(communicator, transports=transports, costs=costs)
    if capabilities_of(fidelity).closed_forms:
        return _closed(communicator, lowering, asked)
    if not capabilities_of(fidelity).packets:
        return _one_by_one(communicator, lowering, asked, stage)
    lowered = [lowering(task, choice) for task, choice in asked]
    times, _ = _played(communicator, lowered, fidelity, packet, stage)
    return times


def traffic(
    communicator: Communicator,
    task: Task,
    choice: Choice | None = None,
    *,
    fidelity: Fidelity = "flow",
    transports: Transports | None = None,
    packet: PacketOptions | None = None,
) -> tuple[int, Counters]:
    """One task: how long it took, in ps, and what ports counted."""
    lowered = Lowering(communicator, transports=transports)(task, choice)
    times, counters = _played(communicator, [lowered], fidelity, packet)
    return int(times[0]), counters


def _played(
    communicator: Communicator,
    lowered: list[Communication],
    fidelity: Fidelity,
    packet: PacketOptions | None,
    stage: Stage = silent,
) -> tuple[I64, Counters]:
    if capabilities_of(fidelity).packets:
        packet = packet or PacketOptions()
        packet = grouped(packet, {"host_work": works_in_hosts(lowered, communicator.twin.fabric)})
    engine = communicator.twin.start_engine(fidelity, packet)
    stage("simulating", lambda: engine.progress)
    trace = play(program(lowered, communicator.ranks), communicator.placement.rank_node, engine)
    return trace.end_op_ps - trace.start_ps, trace.counters


def _one_by_one(communicator: Communicator, lowering: Lowering, asked: Sequence[Asked], stage: Stage) -> I64:
    """Flows of one task at a time, over connections that stay open; tables of all sizes would take gigabytes."""
    result = np.zeros(len(asked), np.int64)
    done = 0
    stage("simulating", lambda: done / len(asked))
    engines = communicator.twin.flow_engines(len(asked))
    for done, (task, choice) in enumerate(asked):
        engine = next(engines)
        played = program([lowering(task, choice)], communicator.ranks)
        engine.post(played.operations, played.communications, communicator.placement.rank_node)
        engine.advance()
        result[done] = int(engine.ended_ps().max())
    return result


def _closed(communicator: Communicator, lowering: Lowering, asked: Sequence[Asked]) -> I64:
    """Sizes of one way together: the largest is bound to the fabric, the others are it with fewer bytes."""
    forms, rank_node = communicator.twin.closed_forms(), communicator.placement.rank_node
    result = np.zeros(len(asked), np.int64)
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, (task, choice) in enumerate(asked):
        way: tuple[object, ...] = ()
        if choice is not None:
            way = choice.algorithm, choice.protocol, choice.channels, lowering.filled(task, choice)
        alike.setdefault((task.kind, task.root, task.element_bytes, way), []).append(i)
    for members in alike.values():
        if asked[members[0]][1] is None:
            # sends pick their protocol and parts by size
            result[members] = forms.durations([lowering(*asked[i]) for i in members], rank_node)
            continue
        largest = max(members, key=lambda i: asked[i][0].size_bytes)
        whole = lowering(*asked[largest])
        terms = forms.terms(whole, rank_node)
        size = asked[largest][0].size_bytes
        for i in members:
            task, choice = asked[i]
            assert choice is not None
            result[i] = terms.duration(task.size_bytes / size, lowering.chunk(task, choice, whole))
    return result
