"""Sources of jitter that are measured where a study begins: a second job's congestion, and bit errors.

On a cut of the cluster (`study.compare.phase_cut`) the job's phases are played as they are and disturbed, with
the same queue pairs on the same routes: with another job's traffic on the hosts between its own, or over links
that spoil bits. The ratio of the two times is a factor; seeds place ranks anew. `flow` shares links evenly and
knows no more of a second job; bits are packets' matter alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from fabrictwin.base.capabilities import Fidelity, capabilities_of
from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.base.progress import Stage
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.engine import Engine
from fabrictwin.engines.base.play import play
from fabrictwin.engines.packet.packet_options import options_of
from fabrictwin.fabric.fabric import NETWORK, NONE
from fabrictwin.program.program import Program
from fabrictwin.study.compare.cut_qos import qos_of_cut
from fabrictwin.study.compare.phase_cut import PHASES, Cut, Load, Phase, beside, cut_of, program_of
from fabrictwin.study.jitter.jitter_sources import BitErrors, Jitter, SecondJob
from fabrictwin.workload.captured.captured_section import PlacedCapture
from fabrictwin.workload.job.job import Job

Source = TypeVar("Source", SecondJob, BitErrors)


def measured(spec: Spec, job: Job | PlacedCapture, jitter: Jitter, stage: Stage) -> Jitter:
    """The section with factors where it asks for what has to be measured. Raises ConfigError."""
    second, errors = jitter.second_job, jitter.bit_errors
    if second is not None and not second.factors:
        beside_another = partial(_beside_another, spec, job, second)
        second = _factors(spec, second, beside_another, stage, f"beside a second job, {second.fidelity}")
    if errors is not None and not errors.factors:
        over_bad_links = partial(_over_bad_links, spec, job, errors)
        errors = _factors(spec, errors, over_bad_links, stage, "over links that spoil bits")
    found = {"second_job": second, "bit_errors": errors}
    update = {key: source for key, source in found.items() if source is not getattr(jitter, key)}
    return jitter.model_copy(update=update) if update else jitter


def _factors(
    spec: Spec,
    source: Source,
    factor_of: Callable[[Cut, Phase, int], float],
    stage: Stage,
    disturbed: str,
) -> Source:
    """The source with what each phase takes longer by, of rings and of exchanges, by seed."""
    found: dict[Phase, list[float]] = {phase: [] for phase in PHASES}
    for seed in source.seeds:
        cut = cut_of(spec, seed=seed)
        for phase in PHASES:
            stage(f"playing a {phase} {disturbed}, seed {seed}")
            found[phase].append(factor_of(cut, phase, seed))
    return source.model_copy(update={"factors": tuple(found["ring"]), "exchange": tuple(found["exchange"])})


def _start_engine(cut: Cut, spec: Spec, fidelity: Fidelity, seed: int) -> Engine:
    if not capabilities_of(fidelity).packets:
        return cut.twin.start_engine(fidelity)
    fabric = cut.twin.fabric
    options = options_of(spec.run.packet, fabric.technology, seed, qos_of_cut(spec, fabric))
    return cut.twin.start_engine("packet", cut.options(options))


def _ends_ps(
    cut: Cut, engine: Engine, program: Program, operations: int, changes: Sequence[TimedChange] = ()
) -> int:
    try:
        trace = play(program, cut.nodes, engine, changes)
    except SimulatedError as error:
        raise ConfigError(f"a cut at {engine.fidelity}: {error}", key="jitter") from None
    return int(trace.end_op_ps[:operations].max())


def _beside_another(
    spec: Spec, job: Job | PlacedCapture, second: SecondJob, cut: Cut, phase: Phase, seed: int
) -> float:
    load = Load.of(job, cut.ranks // 2)
    took = []
    for alone in (False, True):
        program, operations = beside(phase, second.traffic, cut.host, load, alone=alone)
        took.append(_ends_ps(cut, _start_engine(cut, spec, second.fidelity, seed), program, operations))
    return max(1.0, took[0] / took[1])


def _over_bad_links(
    spec: Spec, job: Job | PlacedCapture, errors: BitErrors, cut: Cut, phase: Phase, seed: int
) -> float:
    program = program_of(phase, cut.host, Load.of(job, cut.ranks))
    operations = len(program.operations)
    fabric = cut.twin.fabric
    network = np.flatnonzero(np.isin(fabric.port_kind, NETWORK) & (fabric.port_peer != NONE))
    bad = [TimedChange(0, int(port), None, errors.rate) for port in network]
    took = [
        _ends_ps(cut, _start_engine(cut, spec, "packet", seed), program, operations, changes)
        for changes in (bad, [])
    ]
    return max(1.0, took[0] / took[1])
