"""Jitter beside what was published: step times of MLPerf Training runs.

Step by step the logs of those runs show three things (docs/jitter.md has the figures). All GPUs drift together,
slowly, by a share of the step that is the same at every scale. Beside the drift a step strays by about the same
*time*, whatever its length and however many GPUs take part: the spread of the slowest of many delays that are
exponential and independent does so, only its mean grows. And some runs have bursts of slow steps, which others of
the same job on the same GPUs have not: faults, which no scale predicts.

So two figures are calibrated for each hardware, on its smallest job: the share of `drift` on how far the steps'
running median strays, and the mean by which a GPU begins a step `late` on how far steps stray beside it. Every
other row is then predicted.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage, part, silent
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_table
from fabrictwin.cluster.spec.spec import Origin, Spec, read_spec
from fabrictwin.runs.workers import in_order
from fabrictwin.study.jitter.jitter_sources import Drift, Jitter, Late
from fabrictwin.study.jitter.jitter_study import Sampler, Steps
from fabrictwin.validation.published_data import Measurements
from fabrictwin.validation.training_cases import cases

TABLE = "jitter.csv"
GUESS_PS = 30 * 10**9  # a mean delay, from which the calibrated one follows in proportion
RUNS_DIFFER = 3.0  # times between the spreads of a job's runs: more is no matter of scale
STEPS = 2000


@record
class Published:
    """Measured step times of one job, in seconds; `runs` are p95 over p50 of each of its runs."""

    set: str
    row: str
    gpus: int
    hardware: str
    global_batch: int
    p50_s: float
    p95_s: float
    p99_s: float
    runs: tuple[float, ...]
    trend: float  # p5 to p95 of the steps' running median, over the median
    beside_s: float  # p95 of what steps take longer than that
    slow: float  # share of steps 2 % above their neighbours

    @property
    def spread(self) -> float:
        return self.p95_s / self.p50_s


@record
class Beside:
    """A measured spread and the twin's."""

    measured: Published
    calibrated: bool  # this row set the noise
    drift: float
    late_ps: int
    p95_over_p50: float
    p99_over_p50: float

    @property
    def remark(self) -> str:
        """Say what the row's own steps tell about a difference."""
        m = self.measured
        if self.calibrated:
            return f"sets the noise: drift ±{self.drift:.2%}, late by {self.late_ps / 1e9:.3g} ms on average"
        if max(m.runs) - 1 > RUNS_DIFFER * (min(m.runs) - 1):
            return f"its runs differ: bursts, {m.slow:.1%} of steps are 2 % above their neighbours"
        return ""


def _rows(path: Path) -> list[dict[str, str]]:
    return read_table(path)


def number(row: dict[str, str], key: str, path: Path) -> float:
    """A column's number. Raises ConfigError."""
    try:
        value = float(row[key])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"got {row.get(key)!r}, expected a number", file=path, key=key) from None
    if not 0 <= value < 1e12:
        raise ConfigError(f"got {value:g}, expected a number that is not negative", file=path, key=key)
    return value


def read_published(folder: Path) -> list[Published]:
    """The table of step times. Raises ConfigError."""
    path = folder / TABLE
    found = []
    for row in _rows(path):
        p5, p50, p95, p99 = (number(row, key, path) for key in ("p5_s", "p50_s", "p95_s", "p99_s"))
        if not 0 < p5 <= p50 <= p95 <= p99:
            raise ConfigError(
                f"got {p5:g} to {p99:g}, expected ascending times", file=path, key=row.get("row", "")
            )
        runs = tuple(number({"runs": part}, "runs", path) for part in (row.get("runs") or "").split())
        found.append(
            Published(
                set=row.get("set", ""),
                row=row.get("row", ""),
                gpus=int(number(row, "gpus", path)),
                hardware=row.get("hardware", ""),
                global_batch=int(number(row, "global_batch", path)),
                p50_s=p50,
                p95_s=p95,
                p99_s=p99,
                runs=runs or (p95 / p50,),
                trend=number(row, "trend", path),
                beside_s=number(row, "beside_s", path),
                slow=number(row, "slow", path),
            )
        )
    return found


class _Job:
    """One job whose steps are drawn for any drift and lateness."""

    def __init__(self, spec: Spec, stage: Stage, samples: int) -> None:
        self.sampler = Sampler(spec, stage)
        self.samples = samples

    def steps(self, drift: float, late_ps: int) -> I64:
        late = Late.model_construct(chance=1.0, mean=late_ps, distribution="exponential")
        strays = Drift.model_construct(share=drift) if drift else None
        sources = Jitter.model_construct(drift=strays, late=late)
        unit = self.sampler.unit
        drawn = unit.sample(sources, self.samples, 1)
        return self.sampler.steps(sources, drawn, unit.units, STEPS, 1, {})

    def calibrate(self, measured: Published) -> tuple[float, int]:
        """(drift, mean lateness) that give a row's trend and the spread of its steps beside the trend."""
        # what lateness adds grows as its mean does
        late = np.percentile(self.steps(0.0, GUESS_PS), [50, 95])
        return measured.trend / (0.95 - 0.05) / 2, round(GUESS_PS * measured.beside_s * 1e12 / (late[1] - late[0]))


def _spec_of(measured: Published, like: Published, spec: Spec) -> Spec:
    """Another size of a job: its cluster and its batch grow, its layout stays."""
    data = spec.to_dict()
    (group,) = data["cluster"]["hosts"]
    group["count"] = -(-group["count"] * measured.gpus // like.gpus)
    training = data["workload"]["training"]
    training["global_batch"] = measured.global_batch
    if "dp" in training["parallel"]:
        training["parallel"]["dp"] = training["parallel"]["dp"] * measured.gpus // like.gpus
    data["name"] = f"{measured.set}: {measured.row}"
    return read_spec(data, Origin(spec.folder, spec.path))


def beside(
    data: Measurements, stage: Stage, *, samples: int = 1500, match: str = "", workers: int | str | None = 1
) -> list[Beside]:
    """Every published row with the twin's spread, grouped by hardware, smallest first. Raises ConfigError."""
    specs = {case.row.row: case.spec for case in cases(data)}
    rows = [row for row in read_published(data.folder) if match.lower() in f"{row.hardware} {row.row}".lower()]
    groups: list[_Group] = []
    for hardware in dict.fromkeys(row.hardware for row in rows):
        group = sorted((row for row in rows if row.hardware == hardware), key=lambda row: row.gpus)
        like = next((row for row in group if specs.get(row.row) is not None), None)
        if like is None:
            raise ConfigError(f"got no row of {hardware} that training.csv has too, expected one", key="row")
        whole = specs[like.row]
        assert whole is not None
        groups.append(_Group(tuple(group), tuple(_spec_of(row, like, whole) for row in group)))
    if workers == 1:
        count = len(groups)
        each = (_beside(samples, one, part(stage, i / count, (i + 1) / count)) for i, one in enumerate(groups))
        return [one for found in each for one in found]
    names = [f"{group.rows[0].hardware}, {len(group.rows)} sizes" for group in groups]
    return [one for found in in_order(partial(_beside, samples), groups, workers, stage, names) for one in found]


@record
class _Group:
    """Rows of one hardware, smallest first, with the spec of each."""

    rows: tuple[Published, ...]
    specs: tuple[Spec, ...]


def _beside(samples: int, group: _Group, stage: Stage = silent) -> list[Beside]:
    """Rows of one hardware with the twin's spread, the noise set at the first."""
    found: list[Beside] = []
    drift, late_ps = 0.0, 0
    for place, (row, spec) in enumerate(zip(group.rows, group.specs, strict=True)):
        name = f"{row.hardware}, {row.gpus:,} GPUs"
        stage(f"{name}: simulating a step", place / len(group.rows))
        job = _Job(spec, silent, samples)
        stage(f"{name}: walking steps", (place + 0.5) / len(group.rows))
        if not found:
            drift, late_ps = job.calibrate(row)
        steps = Steps.of(job.steps(drift, late_ps))
        found.append(Beside(row, not found, drift, late_ps, steps.p95 / steps.p50, steps.p99 / steps.p50))
    return found


def as_data(found: list[Beside]) -> list[dict[str, Any]]:
    """Plain data."""
    return [
        {
            "row": b.measured.row,
            "hardware": b.measured.hardware,
            "gpus": b.measured.gpus,
            "calibrated": b.calibrated,
            "drift_share": b.drift,
            "late_s": b.late_ps / 1e12,
            "measured_p95_over_p50": b.measured.spread,
            "measured_p95_over_p50_by_run": list(b.measured.runs),
            "predicted_p95_over_p50": b.p95_over_p50,
            "measured_p99_over_p50": b.measured.p99_s / b.measured.p50_s,
            "predicted_p99_over_p50": b.p99_over_p50,
            "remark": b.remark,
        }
        for b in found
    ]


def as_text(found: list[Beside]) -> str:
    """For a terminal."""
    lines = [
        "Spread of step times, p95 over p50: MLPerf Training v5.0, Llama 3.1 405B",
        f"  {'hardware':12}  {'GPUs':>6}  {'measured':>8}  {'its runs':>16}  {'predicted':>9}",
    ]
    for b in found:
        m = b.measured
        runs = f"{min(m.runs):.4f} - {max(m.runs):.4f}"
        line = f"  {m.hardware:12}  {m.gpus:>6,}  {m.spread:>8.4f}  {runs:>16}  {b.p95_over_p50:>9.4f}  {b.remark}"
        lines.append(line.rstrip())
    return "\n".join(lines) + "\n"
