"""Straggler statistics of a large operator, beside what the same causes cost a job on the twin.

The operator counted jobs; the twin has one, and asks what each cause of the study costs it:

    stages     embedding and output projection live on the first and last of four pipeline stages, and layers are
               divided evenly all the same; against the division of layers with the shortest step
    lengths    micro-batches pack as many tokens, but attention grows with the square of each document's length.
               Two steps are simulated, of the longest documents and of the shortest; a micro-batch of documents
               drawn from a long-tailed distribution lies between them by its sum of squares, and the slowest
               replica makes the step
    collector  Python's garbage collector stops every rank for a time of its own, at a time of its own
    server     one GPU is slow, by as much as the study's jobs of that kind were slowed

Waste is 1 - 1/slowdown, as there. How often each cause meets a job is the operator's to know: what the twin says
of one job is no share of jobs. Lengths and pauses are assumed, and marked so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_table
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.program.program import OpKind
from fabrictwin.report.result import RunResult
from fabrictwin.runs.execute import predict
from fabrictwin.study.claims.claim_settings import SEVEN_B, spec
from fabrictwin.study.jitter.distributions import normal_above
from fabrictwin.study.jitter.jitter_sources import ASSUMED, Jitter
from fabrictwin.study.jitter.jitter_study import Sampler, Steps
from fabrictwin.workload.step.disturbed_program import uniform

TABLE = "stragglers.csv"
STEPS = 400

EIGHT_B = {**SEVEN_B, "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
HOSTS, STAGES, MICRO_BATCHES = 16, 4, 8
TOKENS = 32_768  # of a micro-batch
SHORT = 2_048
MEDIAN, SIGMA = 2_048.0, 1.3  # of documents, log-normal: assumed
PAUSE = {"mean": "0.3 s", "period": "120 s", "distribution": "fixed"}  # assumed


@record
class Statistic:
    """A published figure."""

    key: str
    value: float
    times: bool  # a ratio; otherwise a share
    what: str


@record
class Cause:
    """What one cause costs the twin's job."""

    what: str
    slowdown: float
    assumed: str = ""  # what of it rests on nothing measured
    beside: tuple[tuple[str, float], ...] = ()  # published key and the twin's figure for it

    @property
    def waste(self) -> float:
        return 1.0 - 1.0 / self.slowdown


def read_statistics(folder: Path) -> list[Statistic]:
    """The operator's table. Raises ConfigError."""
    path = folder / TABLE
    found = []
    for row in read_table(path):
        try:
            value = float(row["value"])
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"got {row.get('value')!r}, expected a number", file=path, key="value") from None
        if not 0 <= value < 1e6 or row.get("unit") not in ("share", "times"):
            raise ConfigError(
                f"got {value:g} {row.get('unit')!r}, expected a share or times", file=path, key=row.get("key", "")
            )
        found.append(Statistic(row.get("key", ""), value, row["unit"] == "times", row.get("what", "")))
    return found


def _job(*, layers: tuple[int, ...] | None = None, sequence: int = 8192, **more: Any) -> Spec:
    parallel: dict[str, Any] = {"tp": 2, "pp": STAGES}
    if layers is not None:
        parallel["layers"] = list(layers)
    training = {
        "model": EIGHT_B,
        "parallel": parallel,
        "micro_batches": MICRO_BATCHES,
        "micro_batch_size": TOKENS // sequence,
        "sequence": sequence,
        "precision": "bf16",
    }
    return spec(HOSTS, topology={"kind": "rail-optimised"}, training=training, **more)


def _by_stage(result: RunResult, name: str) -> np.ndarray:
    """[stages] compute of one name."""
    program = result.job.program
    named = np.array([label.name == name for label in program.labels])[program.operations.label]
    mine = (program.operations.kind == OpKind.COMPUTE) & named
    took = (result.trace.end_op_ps - result.trace.start_ps)[mine]
    total = np.bincount(program.operations.actor[mine], weights=took, minlength=len(program.actors))
    return total.reshape(-1)[total > 0]


def stages() -> tuple[Cause, RunResult]:
    """Layers evenly divided against the best division, and the step of that."""
    even = predict(_job())
    per = SEVEN_B["num_hidden_layers"] // STAGES  # type: ignore[operator]
    divisions = [(per, per, per, per), (per + 1, per, per, per - 1), (per + 1, per + 1, per, per - 2),
                 (per + 1, per + 1, per + 1, per - 3)]  # fmt: skip
    best = min((predict(_job(layers=one)) for one in divisions), key=lambda r: r.trace.end_ps)
    forward, backward = (_by_stage(even, name) for name in ("forward", "backward"))
    cause = Cause(
        f"even division of {4 * per} layers over {STAGES} stages, output projection on the last",
        even.trace.end_ps / best.trace.end_ps,
        beside=(
            ("last_stage_forward", float(forward[-1] / forward.mean())),
            ("last_stage_backward", float(backward[-1] / backward.mean())),
        ),
    )
    return cause, best


def documents(count: int, seed: int) -> np.ndarray:
    """[count] sums of squared document lengths of a micro-batch, over the square of its tokens."""
    share = np.zeros(count)
    for i in range(count):
        left, at, squares = TOKENS, 0, 0.0
        while left > 0:
            tail = uniform(seed, np.array([4096 * i + at]))
            length = min(left, max(16, round(MEDIAN * float(np.exp(SIGMA * normal_above(tail)[0])))))
            squares += length * length
            left, at = left - length, at + 1
        share[i] = squares / TOKENS**2
    return share


def lengths() -> Cause:
    """Micro-batches of documents that were drawn, against as many that all are the average one."""
    long_ps, short_ps = (predict(_job(sequence=s)).trace.end_ps for s in (TOKENS, SHORT))
    replicas = HOSTS * 8 // (2 * STAGES)
    steps = 25
    shares = documents(steps * replicas * MICRO_BATCHES, 1).reshape(steps, replicas, MICRO_BATCHES)
    # a replica's step follows the mean of its micro-batches; the bubble of the slowest is beside it
    low, high = SHORT / TOKENS, 1.0
    took = short_ps + (long_ps - short_ps) * (shares.mean(axis=2) - low) / (high - low)
    slowdown = float((took.max(axis=1) / took.mean(axis=1)).mean())
    assumed = f"documents log-normal, median {MEDIAN:,.0f} tokens, sigma {SIGMA:g}"
    return Cause(f"documents packed to {TOKENS:,} tokens a micro-batch", slowdown, assumed)


def collector() -> tuple[Cause, Cause]:
    """(pauses of the collector, steps under the assumed everyday jitter)."""
    sampler = Sampler(_job(), silent)
    unit, clean = sampler.unit, sampler.clean.trace.end_ps

    def drawn(jitter: Jitter) -> Steps:
        samples = unit.sample(jitter, STEPS * unit.units, 1)
        return Steps.of(sampler.steps(jitter, samples, unit.units, STEPS, 1, {}))

    paused = drawn(Jitter.model_validate({"compute": PAUSE}))
    assumed = f"{PAUSE['mean']} every {PAUSE['period']} on every rank, unplanned"
    everyday = sampler.steps(ASSUMED, unit.sample(ASSUMED, STEPS * unit.units, 1), unit.units, STEPS, 1, {})
    p50, p90 = np.percentile(everyday, [50, 90]) / everyday.mean()
    usual = Cause(
        "everyday jitter",
        float(everyday.mean()) / clean,
        "the figures of docs/jitter.md",
        (("step_slowdown_p50", float(p50)), ("step_slowdown_p90", float(p90))),
    )
    return Cause("garbage collector", paused.mean / clean, assumed), usual


def server(statistics: list[Statistic]) -> Cause:
    """One GPU as slow as the study's worst workers made their jobs."""
    times = next(s.value for s in statistics if s.key == "slowdown_single_worker")
    clean = predict(_job()).trace.end_ps
    slow = predict(_job(faults=[{"gpu": "host-1/gpu3", "slowdown": times}])).trace.end_ps
    return Cause(
        f"one GPU of {HOSTS * 8} takes {times:g} times as long",
        slow / clean,
        beside=(("slowdown_single_worker", slow / clean),),
    )


def causes(statistics: list[Statistic], stage: Stage) -> list[Cause]:
    """Every cause, the dearest first. Raises ConfigError."""
    stage("a job whose stages are uneven", 0.0)
    uneven, _ = stages()
    stage("documents of unequal length", 0.25)
    packed = lengths()
    stage("pauses and everyday jitter", 0.5)
    paused, usual = collector()
    stage("a slow GPU", 0.75)
    return sorted([uneven, packed, paused, usual, server(statistics)], key=lambda cause: -cause.slowdown)


def as_data(statistics: list[Statistic], found: list[Cause]) -> dict[str, Any]:
    """Plain data."""
    mine = {key: value for cause in found for key, value in cause.beside}
    return {
        "published": [
            {"key": s.key, "published": s.value, "twin": mine.get(s.key), "what": s.what} for s in statistics
        ],
        "causes": [
            {"what": c.what, "slowdown": c.slowdown, "waste": c.waste, "assumed": c.assumed} for c in found
        ],
    }


def as_text(statistics: list[Statistic], found: list[Cause]) -> str:
    """For a terminal."""
    mine = {key: value for cause in found for key, value in cause.beside}
    lines = [
        f"Stragglers: 3,079 jobs of ByteDance beside one of the twin, Llama 3 8B on {HOSTS * 8} H100, TP 2 × PP 4",
        f"  {'published':>9}  {'twin':>7}",
    ]
    for s in statistics:
        shown = f"{s.value:.2f}x" if s.times else f"{s.value:.1%}"
        twin = f"{mine[s.key]:.2f}x" if s.key in mine else "-"
        lines.append(f"  {shown:>9}  {twin:>7}  {s.what}")
    lines += ["", "What each cause costs that job", f"  {'slowdown':>9}  {'waste':>7}"]
    for cause in found:
        assumed = f" (assumed: {cause.assumed})" if cause.assumed else ""
        lines.append(f"  {cause.slowdown:>8.3f}x  {cause.waste:>7.1%}  {cause.what}{assumed}")
    return "\n".join(lines) + "\n"
