"""From a spec to a result: build the cluster, lower the workload onto it, simulate, hand back what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.capabilities import capabilities_of
from fabrictwin.base.errors import ConfigError, InvariantError
from fabrictwin.base.grouped import grouped
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S, format_rate
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.disturbances import Disturbances, find_disturbances
from fabrictwin.cluster.faults import ACCESS_CONTROL, find_faults
from fabrictwin.cluster.spec.cluster_section import GeneratedCluster
from fabrictwin.cluster.spec.fault_section import HostFault
from fabrictwin.cluster.spec.spec import Compare, Spec
from fabrictwin.engines.base.engine import Engine
from fabrictwin.engines.base.play import play
from fabrictwin.engines.packet.network.host_costs import works_in_hosts
from fabrictwin.engines.packet.packet_options import options_of
from fabrictwin.engines.packet.run_estimate import PacketSize, TooLargeError
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.nccl.lowering.queue_pair_options import packet_options
from fabrictwin.nccl.settings.spec_section import job_settings
from fabrictwin.report.resolved_config import resolved
from fabrictwin.report.result import Asked, Reference, RunResult
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.twin.twin import Twin
from fabrictwin.workload.captured.captured_section import CapturedWorkload, is_captured
from fabrictwin.workload.job.nccl_communications import LibraryOf, library_of
from fabrictwin.workload.job.workload_section import workload_schema
from fabrictwin.workload.step.disturbed_program import add_noise, begin_late
from fabrictwin.workload.step.step_work import Lowered

if TYPE_CHECKING:
    from fabrictwin.capture.recorder import CaptureRequest
    from fabrictwin.workload.search.gains import Gain

SECTIONS = ("cluster", "workload", "placement", "faults", "run", "nccl")


def lower_workload(
    spec: Spec, blueprint: Blueprint, fabric: Fabric, make_library: LibraryOf = library_of
) -> Lowered:
    """The spec's workload on the hosts that its placement gives it. Raises ConfigError."""
    try:
        if is_captured(spec):
            from fabrictwin.workload.captured.captured_program import lower_captured

            return lower_captured(spec, blueprint, fabric, make_library)
        from fabrictwin.workload.step.training_step import lower

        return lower(spec, blueprint, fabric, make_library)
    except OverflowError:
        raise spec.error("workload", "got sizes that take longer than the twin's clock can count") from None


@record
class Prepared:
    """All that a simulation needs."""

    spec: Spec
    twin: Twin
    job: Lowered
    disturbed: Disturbances  # what happens while the job runs


def with_overrides(
    spec: Spec, *, fidelity: str | None = None, seed: int | None = None, fast_forward: str | None = None
) -> Spec:
    """The spec with what the command line says put over its `run` section. Raises ConfigError."""
    if fast_forward is not None:
        spec = spec.with_({"run.packet.fast_forward": fast_forward})
    if seed is not None and not 0 <= seed < 2**63:
        raise ConfigError(f"got {seed}, expected a whole number from 0 to 2^63 - 1", key="--seed")
    update = {key: value for key, value in (("fidelity", fidelity), ("seed", seed)) if value is not None}
    if not update:
        return spec
    return spec.model_copy(update={"run": spec.run.model_copy(update=update)})


@contextmanager
def located(spec: Spec) -> Iterator[None]:
    """Errors of rooms that do not know the spec get its file and line."""
    try:
        yield
    except ConfigError as error:
        # a key that no spec has (an engine's own limit, say) stands on no line
        if error.file is not None or error.key is None or error.key.partition(".")[0] not in SECTIONS:
            raise
        key = error.key
        if not isinstance(spec.cluster, GeneratedCluster):
            # only a generated cluster keeps its routing under `network`
            key = key.replace("cluster.network.routing", "cluster.routing")
        raise spec.error(key, error.message) from None


def _flat(fault: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in fault.items():
        if isinstance(value, dict):
            yield from ((f"{key} {inner}", one) for inner, one in value.items())
        elif value != []:
            yield key, " ".join(value) if isinstance(value, list) else value


def fault_notes(spec: Spec) -> list[str]:
    """Faults of the spec, a line each: two results of the same cluster must not look alike."""
    return [
        "fault: " + ", ".join(f"{key} {value}" for key, value in _flat(fault))
        for fault in spec.to_dict().get("faults", [])
    ]


def prepare(spec: Spec, stage: Stage = silent, make_library: LibraryOf = library_of) -> Prepared:
    """Everything short of simulating. Raises ConfigError."""
    stage("building the cluster")
    blueprint = build(spec.cluster, spec=spec)
    _refuse_unseen(spec)
    stage("compiling the fabric")
    with located(spec):
        twin = make_twin(spec, blueprint)
        disturbed = find_disturbances(blueprint, spec)
    stage("lowering the workload")
    lowered = lower_workload(spec, blueprint, twin.fabric, make_library)
    program = add_noise(lowered.program, twin.fabric, lowered.rank_node, disturbed.noise)
    late = [gpu for gpu in find_faults(blueprint, spec)[1] if gpu.late_ps]
    program = begin_late(program, twin.fabric, lowered.rank_node, late)
    notes = (*fault_notes(spec), *blueprint.notes, *lowered.notes, *_unused(spec))
    return Prepared(spec, twin, job=replace(lowered, program=program, notes=notes), disturbed=disturbed)


def _refuse_unseen(spec: Spec) -> None:
    """Raise ConfigError for what this run would list and not show.

    Only NCCL finds out what a host lacks; access control sends everybody's traffic another way. What NCCL decides
    of each connection is no setting of the engine.
    """
    packet = spec.run.packet
    staged = packet is not None and packet.gpudirect is False and spec.run.fidelity == "packet"
    if staged and spec.run.collectives == "nccl":
        message = "got false beside NCCL's choices, expected nccl: {NCCL_NET_GDR_LEVEL: LOC} or simple collectives"
        raise spec.error("run.packet.gpudirect", message)
    for i, fault in enumerate(spec.faults):
        if spec.run.collectives == "simple" and isinstance(fault, HostFault) and fault.cause != ACCESS_CONTROL:
            message = (
                f"got {fault.cause} with run.collectives: simple, expected nccl: "
                "simple collectives do not look at what a host has"
            )
            raise spec.error(f"faults[{i}].cause", message)


def start_engine(prepared: Prepared) -> Engine:
    """Start the engine that the spec asks for. Raises ConfigError."""
    run, twin = prepared.spec.run, prepared.twin
    if not capabilities_of(run.fidelity).packets:
        return twin.start_engine(run.fidelity)
    technology, settings = twin.fabric.technology, job_settings(prepared.spec)
    options = options_of(run.packet, technology, run.seed, prepared.spec.qos)
    if settings is not None:
        by_port = options
        options = packet_options(run.packet, technology, settings, seed=run.seed, job=True)
        if by_port.lanes.qos is not None:
            options = grouped(options, {"qos": by_port.lanes.qos, "lanes": by_port.lanes.lanes})
    needs = works_in_hosts(prepared.job.program.communications, twin.fabric)
    return twin.start_engine("packet", grouped(options, {"host_work": needs}))


def check_capture(spec: Spec, capture: CaptureRequest | None) -> None:
    """Raise ConfigError where packets are asked for of a fidelity that has none."""
    if capture is not None and not capabilities_of(spec.run.fidelity).packets:
        raise ConfigError(
            f"got fidelity {spec.run.fidelity}, expected packet: nothing else has packets", key="--pcap"
        )


def packets_needed(prepared: Prepared) -> PacketSize | None:
    """Size of a packet run; None for other engines. Raises ConfigError where the run would be refused."""
    if not capabilities_of(prepared.spec.run.fidelity).packets:
        return None
    with located(prepared.spec):
        engine = start_engine(prepared)
        assert engine.packets is not None
        program = prepared.job.program
        try:
            return engine.packets.size_of(program.operations, program.communications, prepared.job.rank_node)
        except TooLargeError as error:
            raise _with_a_cut(prepared, engine, error) from None


def _unused(spec: Spec) -> tuple[str, ...]:
    return (*_unused_qos(spec), *_unused_packet(spec))


def _unused_qos(spec: Spec) -> tuple[str, ...]:
    qos = spec.qos
    if qos is None:
        return ()
    if not capabilities_of(spec.run.fidelity).packets:
        return (f"network.qos was not used: the fidelity is {spec.run.fidelity}",)
    if not qos.ports:
        return ("network.qos says nothing of ports: `fabrictwin lint --onto` puts a configuration there",)
    return ()


def _unused_packet(spec: Spec) -> tuple[str, ...]:
    can = capabilities_of(spec.run.fidelity)
    if spec.run.packet is None or can.packets:
        return ()
    spread = spec.run.packet.balance in ("adaptive", "spray") and can.spreading
    used = "of run.packet only balance was used" if spread else "run.packet was not used"
    return (f"{used}: the fidelity is {spec.run.fidelity}",)


def _with_a_cut(prepared: Prepared, engine: Engine, error: TooLargeError) -> ConfigError:
    """The refusal of a run that is too large, with a cut of the job that fits."""
    from fabrictwin.runs.packet_cut import cut_that_fits

    spec, twin = prepared.spec, prepared.twin
    assert engine.packets is not None
    # faults name cables of the whole blueprint
    blueprint = build(spec.cluster, spec=spec)
    # a captured job is as it was: nothing of it can be left out
    cut = "" if is_captured(spec) else cut_that_fits(spec, blueprint, twin.fabric, engine.packets)
    figures, _, instead = error.message.partition(": ")
    return ConfigError(f"{figures}: {cut}, or use fidelity flow" if cut else f"{figures}: {instead}", key="run")


def predict(
    spec: Spec,
    stage: Stage = silent,
    capture: CaptureRequest | None = None,
    alter: Callable[[Prepared], Prepared] | None = None,
    *,
    what_if: bool = False,
    make_library: LibraryOf = library_of,
) -> RunResult:
    """Simulate a spec, with what `alter` changes of it once it is lowered, and capture its packets.

    `what_if`: and say what changes would gain. `make_library`: of NCCL, which may know communicators already.

    Raises ConfigError, SimulatedError, InvariantError.
    """
    can = capabilities_of(spec.run.fidelity)
    check_capture(spec, capture)
    prepared = prepare(spec, stage, make_library)
    prepared = prepared if alter is None else alter(prepared)
    twin = prepared.twin
    managed = None
    if spec.run.subnet_manager is not None:
        from fabrictwin.runs.management import manage, record_of  # heavy to import, and few runs are managed

        stage("bringing the subnets up")
        managed = manage(spec, twin, prepared.disturbed)
    elif can.routes:
        stage("routing")
        with located(spec):
            _ = twin.routes
    with located(spec):
        engine = start_engine(prepared)
        stage(f"simulating at {spec.run.fidelity} fidelity", share_done(engine))
        recorder = None if capture is None else capture.start(engine)
        try:
            if managed is None:
                changes = twin.timed_changes(prepared.disturbed.all_changes)
                changes += twin.pause_changes(prepared.disturbed.storms)
                trace = play(prepared.job.program, prepared.job.rank_node, engine, changes)
            else:
                trace = play(prepared.job.program, prepared.job.rank_node, engine, drive=managed.drive)
        except TooLargeError as error:
            raise _with_a_cut(prepared, engine, error) from None
        finally:
            if recorder is not None:
                recorder.close()
    if (trace.end_op_ps < trace.start_ps).any() or (trace.start_ps < 0).any():
        first = int(np.flatnonzero((trace.end_op_ps < trace.start_ps) | (trace.start_ps < 0))[0])
        label = prepared.job.program.labels[int(prepared.job.program.operations.label[first])].name
        raise InvariantError(f"operation {first} ({label}) never ended")
    if what_if:
        stage("asking what changes would gain")
    return RunResult(
        Asked(
            spec.name,
            spec.run.seed,
            resolved(spec, prepared.job.program.ranks),
            cluster_line(twin.blueprint, twin.fabric),
        ),
        fabric=twin.as_it_runs,
        job=replace(prepared.job, notes=(*prepared.job.notes, *_repeat_note(engine))),
        trace=trace,
        reference=None if spec.run.compare is None else reference(spec.run.compare),
        management=None if managed is None else record_of(managed, twin, prepared.job),
        gains=_gains(spec, twin) if what_if and not is_captured(spec) else (),
    )


def _repeat_note(engine: Engine) -> list[str]:
    """Say what of a run was not played because it had been before."""
    if engine.packets is None:
        return []
    shares = {
        "repeat communications inside hosts that were played before": engine.packets.repeated(),
        "repeat the packets before them, in long transfers": engine.packets.fast_forwarded(),
    }
    notes = [f"{share:.1%} of packet-hops {which}" for which, share in shares.items() if share]
    if engine.packets.skip_error:
        share, error = engine.packets.forecast()
        skipped = f"{share:.1%} of packet-hops were skipped as steps like those before, expected error {error:.2%}"
        notes.append(skipped if share else "no steps were steady enough to be skipped")
    return notes


def _gains(spec: Spec, twin: Twin) -> tuple[Gain, ...]:
    from fabrictwin.workload.search.gains import gains

    return gains(spec, twin.blueprint, twin.fabric)


def share_done(engine: Engine) -> Callable[[], float]:
    """Return what reads an engine's progress; 0 until something was posted, where it is done with nothing."""
    begun = False

    def read() -> float:
        nonlocal begun
        begun = begun or not engine.idle
        return engine.progress if begun else 0.0

    return read


def reference(compare: Compare) -> Reference:
    """The published figures, by the keys that summary.json has for the predicted ones."""
    keys = ("hardware_tflops_per_gpu", "model_tflops_per_gpu", "tokens_per_s_per_gpu", "mfu")
    figures = {key: float(value) for key in keys if (value := getattr(compare, key)) is not None}
    if compare.step_time is not None:
        figures["step_time_s"] = compare.step_time / PS_PER_S
    return Reference(compare.source, figures)


def cluster_line(blueprint: Blueprint, fabric: Fabric) -> str:
    """`192 × NVIDIA DGX A100 (1,536 GPUs), InfiniBand at 200 Gb/s, 60 switches`."""
    types = Counter(host.type for host in blueprint.hosts)
    # a title's parenthesis says what is inside the host
    parts = [
        f"{count:,} × {catalog.host(kind).title.partition(' (')[0]}" if kind else f"{count:,} hosts without GPUs"
        for kind, count in sorted(types.items(), key=lambda pair: (pair[0] == "", -pair[1], pair[0]))
    ]
    network = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}[fabric.technology]
    cabled = fabric.nic_port[fabric.nic_port != NONE]
    rates = np.unique(fabric.port_rate_bps[cabled])
    if len(rates):
        network += " at " + " and ".join(format_rate(int(rate)) for rate in rates[::-1])
    switches = len(fabric.switch_nodes)
    return (
        f"{', '.join(parts)} ({fabric.gpus:,} GPU{'' if fabric.gpus == 1 else 's'}), {network}, "
        f"{switches:,} switch{'' if switches == 1 else 'es'}"
    )


def spec_schema() -> dict[str, Any]:
    """The JSON schema of a spec file, its workload included: a training job, a captured job or a server."""
    from fabrictwin.cluster.spec.spec import json_schema
    from fabrictwin.serving.config.section import ServingWorkload

    kinds = [workload_schema(), CapturedWorkload.model_json_schema(), ServingWorkload.model_json_schema()]
    named = {name: entry for kind in kinds for name, entry in kind.pop("$defs", {}).items()}
    return json_schema({"workload": {"anyOf": kinds, "$defs": named}})
