"""What unevenness costs a job: the distribution of its step, against the number of GPUs and by source.

One clean step is simulated; then its unit is sampled (see `study.jitter.sampled_steps`). A step of U units takes
as long as the slowest. Where units times steps are few enough each is sampled; else the slowest of U is drawn
from the distribution of one unit that as many samples gave, which cannot show anything rarer than one of them.

A link that is slow or goes down is simulated once, by the engine, and takes part in steps by its chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.capabilities import capabilities_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S, Raw
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.fault_section import LinkFault
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.report.result import RunResult
from fabrictwin.runs.execute import Prepared, predict
from fabrictwin.runs.workers import in_order
from fabrictwin.study.jitter.interference import measured
from fabrictwin.study.jitter.jitter_sources import ASSUMED, SOURCES, Jitter, Link
from fabrictwin.study.jitter.sampled_steps import Unit
from fabrictwin.study.study_heading import Heading
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.twin.twin import Twin
from fabrictwin.workload.captured.captured_section import PlacedCapture, is_captured, place_captured
from fabrictwin.workload.job.job import Job, check
from fabrictwin.workload.step.disturbed_program import uniform

LEVELS = (0.5, 1.0, 2.0, 4.0)
BUDGET = 1_000_000_000  # operations walked for the whole distribution
SECONDS_A_MONTH = 30.4375 * 86400


@record
class Steps:
    """A distribution of step times, in picoseconds."""

    mean: float
    p5: float
    p50: float
    p95: float
    p99: float
    greatest: float

    @classmethod
    def of(cls, times: I64) -> Steps:
        p5, p50, p95, p99 = (float(v) for v in np.percentile(times, [5, 50, 95, 99]))
        return cls(float(times.mean()), p5, p50, p95, p99, float(times.max()))


@record
class AtSize:
    """A job of so many GPUs, at one level of jitter."""

    gpus: int
    level: float
    steps: Steps

    def useful(self, clean_ps: int) -> float:
        """GPUs that an even cluster would need for the same throughput."""
        return self.gpus * clean_ps / self.steps.mean


@record
class Lost:
    """What one source costs: how much shorter the mean step is without it."""

    source: str
    mean_ps: float
    share: float  # of all that is lost; shares of sources that hide behind each other do not add up to 1


@record
class Sampling:
    """Units of a job that are alike and meet once a step, and the samples of one that stand for all."""

    units: int
    unit_gpus: int
    samples: int
    exact: bool  # every unit of every step was sampled


@record
class Curves:
    """The job at other sizes, at other levels of jitter, and without each source."""

    by_size: tuple[AtSize, ...]
    by_level: tuple[AtSize, ...]
    sources: tuple[Lost, ...]


@record
class Uneven:
    """The answer."""

    heading: Heading
    jitter: Jitter
    assumed: bool  # the spec has no section of its own
    clean_ps: int
    gpus: int
    sampling: Sampling
    times: I64  # [steps] of the spec's own size
    curves: Curves

    @cached_property
    def here(self) -> Steps:
        """The distribution of a step at the spec's own size."""
        return Steps.of(self.times)

    @property
    def lost_gpu_s(self) -> float:
        """GPU-seconds that a step loses on average."""
        return self.gpus * (self.here.mean - self.clean_ps) / PS_PER_S

    @property
    def lost_gpu_hours_a_month(self) -> float:
        """GPU-hours that a job which never stops loses a month."""
        return self.gpus * (1 - self.clean_ps / self.here.mean) * SECONDS_A_MONTH / 3600


def slowest_of(unit: I64, units: int, steps: int, seed: int) -> I64:
    """[steps] the slowest of `units` units, drawn from samples of one."""
    if units * steps <= len(unit):
        slowest: I64 = unit[: units * steps].reshape(steps, units).max(axis=1)
        return slowest
    ranked = np.sort(unit)
    # u^(1/units), by the tail, which keeps its digits
    from fabrictwin.study.jitter.distributions import tail_of_greatest

    tail = tail_of_greatest(uniform(seed ^ 0x5EED, np.arange(steps)), units)
    drawn: I64 = ranked[np.minimum(((1.0 - tail) * len(ranked)).astype(np.int64), len(ranked) - 1)]
    return drawn


class Sampler:
    """Clean step, units, and what links that break would do; draws are the same for every level and subset."""

    def __init__(
        self,
        spec: Spec,
        stage: Stage,
        alter: Callable[[Prepared], Prepared] | None = None,
    ) -> None:
        if capabilities_of(spec.run.fidelity).packets:
            raise spec.error("run.fidelity", "got packet, expected flow or analytic: one clean step is simulated")
        if spec.faults:
            raise spec.error("faults", "got faults in a spec for jitter, expected them as sources under jitter")
        if not spec.workload:
            raise spec.error("workload", "expected a job: jitter is what a step loses")
        self.spec = spec
        self._alter = alter
        self.clean: RunResult = predict(spec, stage, alter=alter)
        blueprint, fabric = build(spec.cluster, spec=spec), self.clean.fabric
        self.job: Job | PlacedCapture = (
            place_captured(spec, blueprint, fabric) if is_captured(spec) else check(spec, blueprint, fabric)[0]
        )
        layout = self.job.layout
        self.unit = Unit(self.clean, layout.units, layout.positions)

    @cached_property
    def twin(self) -> Twin:
        """The cluster, for questions beside the step."""
        return make_twin(self.spec, build(self.spec.cluster, spec=self.spec))

    def link_ps(self, jitter: Jitter, stage: Stage) -> dict[str, int]:
        """Picoseconds by which a step is longer whose link breaks as `link` and `flap` say, by their names."""
        found = {}
        for name in ("link", "flap"):
            broken = getattr(jitter, name)
            if broken is not None:
                stage(f"simulating a step with a broken link ({name})")
                found[name] = self._broken_ps(broken, stage)
        return found

    def _broken_ps(self, broken: Link, stage: Stage) -> int:
        clean = self.clean
        link = clean.fabric.node_name(int(clean.fabric.nic_node[self._adapter()]))
        section: dict[str, object] = {"link": link}
        if broken.down is not None:
            at = clean.trace.end_ps // 2
            section |= {"rate": Raw(0), "at": Raw(at), "until": Raw(at + broken.down)}
        elif broken.rate is not None:
            section["rate"] = Raw(broken.rate)
        fault = LinkFault.model_validate(section)
        there = predict(self.spec.model_copy(update={"faults": (fault,)}), stage, alter=self._alter)
        return max(0, there.trace.end_ps - clean.trace.end_ps)

    def _adapter(self) -> int:
        """An adapter of the job that carried traffic."""
        fabric = self.clean.fabric
        carried = self.clean.trace.counters.tx_bytes[fabric.nic_port]
        carried = np.where(fabric.nic_port >= 0, carried, 0)
        if not carried.any():
            raise ConfigError("got a link source, but the job sends nothing over the network", key="jitter.link")
        return int(np.flatnonzero(carried)[len(np.flatnonzero(carried)) // 2])

    def steps(
        self, jitter: Jitter, unit: I64, units: int, steps: int, seed: int, link_ps: Mapping[str, int]
    ) -> I64:
        """[steps] times of steps of so many units."""
        times = slowest_of(unit, units, steps, seed)
        if jitter.drift is not None:
            strays = 1.0 + jitter.drift.share * (2.0 * uniform(seed ^ 0x17, np.arange(steps)) - 1.0)
            times = np.rint(times * strays).astype(np.int64)
        for name, salt in (("link", 0x11), ("flap", 0x13)):
            broken = getattr(jitter, name)
            if broken is not None and link_ps.get(name):
                hit = uniform(seed ^ salt, np.arange(steps)) < broken.chance
                times = times + np.where(hit, link_ps[name], 0)
        return times


def study(
    spec: Spec,
    *,
    steps: int = 1000,
    sizes: Sequence[int] = (),
    levels: Sequence[float] = LEVELS,
    stage: Stage = silent,
    workers: int | str | None = 1,
) -> Uneven:
    """Sample a spec's step under its `jitter` section, walks by workers. Raises ConfigError.

    `sizes` are numbers of GPUs, each a whole number of units; by default powers of two times a unit.
    """
    jitter = ASSUMED if spec.jitter is None else spec.validate_section("jitter", Jitter)
    if not jitter.names():
        raise spec.error("jitter", f"got no source, expected one of {', '.join(SOURCES)}")
    seed = spec.run.seed if jitter.seed is None else jitter.seed
    sampler = Sampler(spec, stage)
    jitter = measured(sampler.spec, sampler.job, jitter, stage)
    unit, clean = sampler.unit, sampler.clean.trace.end_ps
    operations, size = len(unit.base), unit.ranks_in_all
    wanted = _sizes(spec, sizes, size, unit.units)
    most = max(1, BUDGET // operations)
    samples = min(steps * unit.units, max(min(steps, most), 64 if most < 64 else most))
    samples = max(64, min(samples, most))
    stage(f"walking {samples:,} steps of {operations:,} operations")
    sampled = unit.sample(jitter, samples, seed)
    link_ps = sampler.link_ps(jitter, stage)
    times = sampler.steps(jitter, sampled, unit.units, steps, seed, link_ps)
    by_size = tuple(
        AtSize(gpus, 1.0, Steps.of(sampler.steps(jitter, sampled, gpus // size, steps, seed, link_ps)))
        for gpus in wanted
    )
    fewer = max(64, samples // 8)
    some = sampler.steps(jitter, sampled[:fewer], unit.units, steps, seed, link_ps)
    by_level = []
    scaled_by = {level: jitter.scaled(level) for level in levels}
    without = {name: jitter.without(name) for name in jitter.names()}
    walks = {f"walking steps at {level:g} times the jitter": scaled_by[level] for level in levels if level != 1}
    walks |= {f"walking steps without {name}": rest for name, rest in without.items() if rest.names()}
    drawn_by = in_order(partial(_walked, unit, fewer, seed), [*walks.values()], workers, stage, [*walks])
    walked = dict(zip(walks, drawn_by, strict=True))
    for level, scaled in scaled_by.items():
        of_unit = walked.get(f"walking steps at {level:g} times the jitter", sampled)
        for gpus in wanted:
            drawn = sampler.steps(scaled, of_unit, gpus // size, steps, seed, link_ps if level else {})
            by_level.append(AtSize(gpus, level, Steps.of(drawn)))
    lost = []
    whole = float(some.mean()) - clean
    for name, rest in without.items():
        of_unit = walked.get(f"walking steps without {name}", np.full(fewer, clean, np.int64))
        drawn = sampler.steps(rest, of_unit, unit.units, steps, seed, link_ps)
        saved = float(some.mean()) - float(drawn.mean())
        lost.append(Lost(name, saved, saved / whole if whole > 0 else 0.0))
    lost.sort(key=lambda item: -item.mean_ps)
    return Uneven(
        heading=Heading(
            spec.name, sampler.clean.asked.cluster_line, sampler.clean.job.layout_line, spec.run.fidelity, seed
        ),
        jitter=jitter,
        assumed=spec.jitter is None,
        clean_ps=clean,
        gpus=sampler.clean.job.program.ranks,
        sampling=Sampling(unit.units, size, samples, exact=unit.units * steps <= samples),
        times=times,
        curves=Curves(by_size, tuple(by_level), tuple(lost)),
    )


def _walked(unit: Unit, samples: int, seed: int, jitter: Jitter) -> I64:
    return unit.sample(jitter, samples, seed)


def _sizes(spec: Spec, sizes: Sequence[int], unit_gpus: int, units: int) -> list[int]:
    """Numbers of GPUs to show. Raises ConfigError for one that is not whole units."""
    for gpus in sizes:
        if gpus < unit_gpus or gpus % unit_gpus:
            raise ConfigError(
                f"got {gpus:,} GPUs, expected a multiple of {unit_gpus:,}: what one replica of the job takes",
                key="--gpus",
            )
    if sizes:
        return sorted(set(sizes))
    found = {unit_gpus * units}
    count = 1
    while count <= 16 * units:
        found.add(unit_gpus * count)
        count *= 2
    return sorted(found)
