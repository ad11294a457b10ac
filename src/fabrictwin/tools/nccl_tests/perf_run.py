"""A test from its communicator to its last line: log, table, checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, TextIO

from fabrictwin.base.progress import Stage
from fabrictwin.nccl.log.log import Log, Processes
from fabrictwin.nccl.log.log_connect import Connections, operation
from fabrictwin.nccl.log.log_init import Scene, initialisation, warnings
from fabrictwin.nccl.lowering.transport import Transports
from fabrictwin.nccl.topology.failures import Failure
from fabrictwin.nccl.topology.host_views import dump_topology
from fabrictwin.nccl.tuning.tuner import Call, settings_of
from fabrictwin.tools.nccl_tests import perf_text
from fabrictwin.tools.nccl_tests.perf import Plan, Row, Run
from fabrictwin.tools.nccl_tests.perf_check import MOST_RANKS, Checker


def play(
    run: Run,
    out: TextIO,
    *,
    fidelity: str,
    source: str,
    stage: Stage,
    reduced: bool = False,
) -> list[Row]:
    """Write the test's output to `out`, row by row. Raises SimulatedError where NCCL does not come up."""
    settings = settings_of(run.communicator)
    transports = Transports(run.communicator)
    processes = Processes(run.communicator, run.options.gpus * run.options.threads)
    log = Log(settings, processes, out)
    scene = Scene(run.communicator, settings, transports, processes, run.tuner)
    connections = Connections(scene)
    failed = run.communicator.network.failure
    out.write(perf_text.opening(run, source=source, fidelity=fidelity, reduced=reduced))
    try:
        if log.level:
            stage("initialising")
            log.write(initialisation(scene))
            if connections.at_once and (failed is None or failed.connected):
                log.write(connections.everything())
        if failed is not None:
            _fail(failed, run, out, log, scene, connections)
        dump_topology(run.communicator)
        stage("simulating")
        times = run.time(fidelity, transports=transports, stage=stage)
        out.write(perf_text.head())
        checker = Checker(run)
        rows = []
        for cycle in range(run.options.cycles):
            for i, (plan, time_ps) in enumerate(zip(run.plans, times, strict=True)):
                if log.prints("INFO"):
                    _narrate(log, scene, connections, plan, cycle * len(run.plans) + i)
                if run.options.check:
                    stage("checking", i / len(run.plans))
                row = run.row(plan, time_ps, checker.wrong(plan) if run.options.check else None)
                out.write(perf_text.line(row))
                rows.append(row)
    finally:
        log.close()
    out.write(perf_text.closing(run, rows, notes=_notes(run, checker)))
    return rows


def _fail(failed: Failure, run: Run, out: TextIO, log: Log, scene: Scene, connections: Connections) -> NoReturn:
    """Fail as nccl-tests does: where queue pairs came up, once the first operation sends."""
    if failed.connected:
        out.write(perf_text.head())
        if log.prints("INFO"):
            _narrate(log, scene, connections, run.plans[0])
        log.write(warnings(scene))
    name = run.communicator.twin.fabric.host_names[failed.host]
    out.write(perf_text.failure(name, failed.result, failed.warning))
    raise failed.error(name)


def _narrate(log: Log, scene: Scene, connections: Connections, plan: Plan, number: int = 0) -> None:
    if plan.task is None:
        return
    if plan.choice is not None and plan.call is not None:
        log.write(operation(scene, plan.call, plan.choice, count=plan.count, number=number))
        log.write(connections.for_algorithm(plan.choice.algorithm))
        return
    call = Call("SendRecv", plan.task.size_bytes, plan.datatype)
    log.write(operation(scene, call, None, count=plan.count, number=number))
    n = scene.communicator.ranks
    shifts = [1] if plan.task.kind == "send_recv" else range(1, n)
    log.write(connections.for_sends([(rank, (rank + shift) % n) for shift in shifts for rank in range(n)]))


def _notes(run: Run, checker: Checker) -> Sequence[str]:
    if not run.options.check or checker.sample is None:
        return ()
    on = f"{checker.sample.ranks} of {run.ranks} ranks" if run.ranks > MOST_RANKS else f"{run.ranks} ranks"
    return (f"Checked with real data: small buffers, {on}, each algorithm and protocol once",)
