"""Managers at work on a run's subnets, as its spec asks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fabrictwin.base.capabilities import capabilities_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.disturbances import FOREVER, Disturbances
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.cluster.spec.subnet_manager_section import QualityOfService
from fabrictwin.fabric.fabric import I32
from fabrictwin.fabric.memory_paths import PathFinder
from fabrictwin.program import patterns
from fabrictwin.program.program import Program, Seat
from fabrictwin.report.management_record import Management
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.manager.mad_transport import MadTiming
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.settings.qos import OPTIONS, qos_settings
from fabrictwin.subnet.manager.sweep.discovery import Kind
from fabrictwin.subnet.operation.cluster_endpoint import partitioned
from fabrictwin.subnet.operation.manager_commands import member_of
from fabrictwin.subnet.serve.endpoint import Endpoint
from fabrictwin.twin.managed_run import ManagedRun
from fabrictwin.twin.routed_twin import engine_of, routing_key
from fabrictwin.twin.twin import Twin
from fabrictwin.workload.step.step_work import Lowered


def adapter_pairs(program: Program, rank_node: I32, twin: Twin) -> frozenset[tuple[str, str]]:
    """The adapters by which a job's ranks on different hosts talk, by name, but for detours over others."""
    fabric = twin.fabric
    found: set[tuple[int, int]] = set()
    for communication in program.communications:
        edges = patterns.edges(communication.channels)
        placed = (edges.source_seat != Seat.SWITCH) & (edges.target_seat != Seat.SWITCH)
        ranks = np.unique(np.stack([edges.source[placed], edges.target[placed]]), axis=1)
        found.update(zip(*rank_node[ranks].tolist(), strict=True))
    if not found:
        return frozenset()
    source, target = np.array(sorted(found), np.int32).T
    apart = fabric.node_host[source] != fabric.node_host[target]
    ends = PathFinder(fabric, twin.routes).adapters_between(source[apart], target[apart])
    names = [[fabric.node_name(int(fabric.nic_node[nic])) for nic in end] for end in ends]
    return frozenset(zip(*names, strict=True))


def manage(spec: Spec, twin: Twin, disturbed: Disturbances) -> ManagedRun | None:
    """Managers at work on the twin's subnets as `run.subnet_manager` says, and what will happen; None without.

    Raises ConfigError.
    """
    asked = spec.run.subnet_manager
    if asked is None:
        return None
    fabric = twin.fabric
    if fabric.technology != "infiniband":
        message = "got a subnet manager on ethernet, expected InfiniBand: no other technology has one"
        raise spec.error("run.subnet_manager", message)
    if not capabilities_of(spec.run.fidelity).routes:
        raise spec.error("run.subnet_manager", "got it at fidelity analytic, expected flow or packet")
    settings = _with(
        spec,
        Settings(engine=engine_of(spec), routing=twin.options, congestion=twin.congestion),
        asked,
        "run.subnet_manager",
    )
    if asked.partitions is not None:
        bare = Endpoint(Network(SubnetState(fabric)))
        settings = partitioned(settings, spec.folder / asked.partitions, bare, asked.host)
    timing = MadTiming(agent_ps=asked.mad_time, hop_ps=asked.hop_time, window=asked.window)
    try:
        twin.manage(host=asked.host, settings=settings, timing=timing, sweep_ps=asked.sweep_interval)
    except ConfigError as error:
        key = "run.subnet_manager.host" if asked.host else routing_key(spec, error.key or "engine")
        raise spec.error(key, error.message) from None
    run, managed = _planned(twin, disturbed), twin.management
    assert managed is not None
    for i, change in sorted(enumerate(asked.changes), key=lambda each: each[1].time):
        settings = _with(spec, settings, change, f"run.subnet_manager.changes[{i}]")
        if change.congestion_control is not None:
            settings = replace(settings, congestion=change.congestion_control)
        if change.partitions is not None:
            settings = partitioned(settings, spec.folder / change.partitions, managed.endpoint, asked.host)
        for verb in ("join", "leave"):
            member = getattr(change, verb)
            if member is not None:
                run.plan(change.time, f"{verb} {member}", _member(spec, managed.endpoint, f"{verb} {member}", i))
        if change.sets:
            run.plan_settings(change.time, settings)
    return run


def record_of(run: ManagedRun, twin: Twin, job: Lowered) -> Management:
    """Return what the managers did in a run that ended."""
    assert twin.management is not None
    pairs = adapter_pairs(job.program, job.rank_node, twin) if run.outages else frozenset()
    sweeps = tuple(one.reports[0] for one in twin.management.managers)
    heard = (found for one in twin.management.managers for report in one.reports for found in report.findings)
    bad_keys = tuple(dict.fromkeys(str(found) for found in heard if found.kind is Kind.BAD_KEY))
    return Management(sweeps, run.outages, run.origin_ps + run.end_ps, pairs, bad_keys)


def _member(spec: Spec, endpoint: Endpoint, line: str, i: int) -> int:
    """Node that joins or leaves a group. Raises ConfigError."""
    try:
        return member_of(line, endpoint.state)[0]
    except ConfigError as error:
        raise spec.error(f"run.subnet_manager.changes[{i}].{line.split()[0]}", error.message) from None


def _with(spec: Spec, settings: Settings, asked: QualityOfService, key: str) -> Settings:
    """Settings with the quality of service that a section asks for. Raises ConfigError."""
    given = {name: value for name in OPTIONS if (value := getattr(asked, name)) is not None}
    try:
        return replace(settings, **qos_settings({name: str(value) for name, value in given.items()}))
    except ConfigError as error:
        raise spec.error(f"{key}.{error.key}", error.message) from None


def _planned(twin: Twin, disturbed: Disturbances) -> ManagedRun:
    """Cables that go down and switches that go off happen to the managed fabric, other changes to the engine."""
    assert twin.management is not None
    cut: set[int] = set()
    happens: list[tuple[int, str, int]] = []  # when, verb, cable
    others = []
    for change in disturbed.changes:
        if change.error_rate is None and change.rate_bps == 0:
            cut.add(change.cable)
            happens.append((change.time_ps, "cut", change.cable))
        elif change.error_rate is None and change.rate_bps is None and change.cable in cut:
            cut.discard(change.cable)
            happens.append((change.time_ps, "mend", change.cable))
        else:
            others.append(change)
    run = ManagedRun(twin.management, twin.fabric, changes=twin.timed_changes(others), rates=twin.link_rate_bps)
    fabric, state = twin.fabric, twin.management.state
    for time_ps, verb, cable in happens:
        port, _ = twin.ports_of(twin.cable_now(cable))
        node = int(fabric.port_node[port])
        m = int(state.managed[node])
        number = int(fabric.port_number[port]) if state.is_switch[m] else 1
        run.plan(time_ps, f"{verb} {fabric.node_name(node)}/{number}", m)
    for reboot in disturbed.reboots:
        node = int(fabric.switch_nodes[reboot.switch])
        m = int(state.managed[node])
        run.plan(reboot.time_ps, f"off {fabric.node_name(node)}", m)
        if reboot.until_ps < FOREVER:
            run.plan(reboot.until_ps, f"on {fabric.node_name(node)}", m)
    return run
