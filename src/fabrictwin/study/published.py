"""Jitter beside what was published: step times of MLPerf Training runs, straggler statistics of a large operator.

One figure is calibrated for each hardware: how long an interruption takes, so that at the smallest scale the 95th
percentile over the median is the measured one. Interruptions hit each GPU once an hour, which is assumed: the
published files do not say what held steps up. Every other scale is then predicted.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabrictwin.cluster.fault_models import Noise
from fabrictwin.cluster.spec import Spec
from fabrictwin.errors import ConfigError
from fabrictwin.study.jitter import Sampler, Steps
from fabrictwin.study.sources import Jitter
from fabrictwin.validation.cases import cases
from fabrictwin.validation.data import Measurements

TABLE, STRAGGLERS = "jitter.csv", "stragglers.csv"
PERIOD_PS = 3600 * 10**12  # between interruptions of a GPU
TRIES = 6  # of the calibration


@dataclass(frozen=True)
class Published:
    """Measured step times of one job, in seconds."""

    row: str
    gpus: int
    hardware: str
    steps: int
    p50_s: float
    p95_s: float
    p99_s: float

    @property
    def spread(self) -> float:
        return self.p95_s / self.p50_s


@dataclass(frozen=True)
class Beside:
    """A measured spread and the twin's."""

    measured: Published
    calibrated: bool  # this row set the noise
    mean_ps: int  # of an interruption
    p95_over_p50: float
    p99_over_p50: float


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", file=path) from None
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def _number(row: dict[str, str], key: str, path: Path) -> float:
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
    return [
        Published(
            row.get("row", ""),
            int(_number(row, "gpus", path)),
            row.get("hardware", ""),
            int(_number(row, "steps", path)),
            *(_number(row, key, path) for key in ("p50_s", "p95_s", "p99_s")),
        )
        for row in _rows(path)
    ]


def read_stragglers(folder: Path) -> list[tuple[str, float, str]]:
    """(key, value, what it says) of the operator's table. Raises ConfigError."""
    path = folder / STRAGGLERS
    return [(row.get("key", ""), _number(row, "value", path), row.get("what", "")) for row in _rows(path)]


class _Job:
    """One job whose steps are drawn for an interruption of any length."""

    def __init__(self, spec: Spec, stage: Callable[[str], None], samples: int) -> None:
        run = spec.run.model_copy(update={"fidelity": "analytic"})
        self.sampler = Sampler(spec.model_copy(update={"run": run}), stage)
        self.samples = samples

    def steps(self, mean_ps: int) -> Steps:
        noise = Noise.model_construct(mean=mean_ps, period=PERIOD_PS, distribution="exponential", seed=None)
        unit = self.sampler.unit
        drawn = unit.sample(Jitter.model_construct(compute=noise), self.samples, 1)
        return Steps.of(self.sampler.steps(Jitter(), drawn, unit.units, 4 * self.samples, 1, 0))


def _calibrate(job: _Job, spread: float) -> int:
    """The mean of an interruption at which p95 over p50 is `spread`: the secant method, nearly straight."""
    low, at_low = 0, 1.0
    mean = round(job.sampler.clean.trace.end_ps * (spread - 1))
    for _ in range(TRIES):
        found = job.steps(mean)
        got = found.p95 / found.p50
        if abs(got - spread) < 1e-4 or got == at_low:
            break
        slope = (got - at_low) / (mean - low)
        low, at_low = mean, got
        mean = max(1, round(mean + (spread - got) / slope))
    return mean


def beside(
    data: Measurements, stage: Callable[[str], None], *, samples: int = 200, match: str = ""
) -> list[Beside]:
    """Every published row with the twin's spread, grouped by hardware. Raises ConfigError."""
    specs = {case.row.row: case.spec for case in cases(data)}
    rows = [row for row in read_published(data.folder) if match.lower() in f"{row.hardware} {row.row}".lower()]
    found: list[Beside] = []
    for hardware in dict.fromkeys(row.hardware for row in rows):
        group = sorted((row for row in rows if row.hardware == hardware), key=lambda row: row.gpus)
        mean = 0
        for i, row in enumerate(group):
            spec = specs.get(row.row)
            if spec is None:
                raise ConfigError(f"got {row.row!r}, expected a row that training.csv has too", key="row")
            stage(f"{row.hardware}, {row.gpus:,} GPUs")
            job = _Job(spec, stage, samples)
            if i == 0:
                mean = _calibrate(job, row.spread)
            steps = job.steps(mean)
            found.append(Beside(row, i == 0, mean, steps.p95 / steps.p50, steps.p99 / steps.p50))
    return found


def as_data(found: list[Beside], stragglers: list[tuple[str, float, str]]) -> dict[str, Any]:
    """Plain data."""
    return {
        "schema": 1,
        "steps": [
            {
                "row": b.measured.row,
                "hardware": b.measured.hardware,
                "gpus": b.measured.gpus,
                "calibrated": b.calibrated,
                "interruption_s": b.mean_ps / 1e12,
                "measured_p95_over_p50": b.measured.spread,
                "predicted_p95_over_p50": b.p95_over_p50,
                "measured_p99_over_p50": b.measured.p99_s / b.measured.p50_s,
                "predicted_p99_over_p50": b.p99_over_p50,
            }
            for b in found
        ],
        "stragglers": [{"key": key, "published": value, "what": what} for key, value, what in stragglers],
    }


def as_text(found: list[Beside], stragglers: list[tuple[str, float, str]]) -> str:
    """For a terminal."""
    lines = [
        "Spread of step times: MLPerf Training v5.0, Llama 3.1 405B",
        f"  {'hardware':12}  {'GPUs':>6}  {'p95/p50 measured':>16}  {'predicted':>9}  "
        f"{'p99/p50 measured':>16}  {'predicted':>9}",
    ]
    for b in found:
        m = b.measured
        lines.append(
            f"  {m.hardware:12}  {m.gpus:>6,}  {m.spread:>16.4f}  {b.p95_over_p50:>9.4f}  "
            f"{m.p99_s / m.p50_s:>16.4f}  {b.p99_over_p50:>9.4f}"
            + (f"  set the noise: {b.mean_ps / 1e9:.4g} ms an interruption" if b.calibrated else "")
        )
    lines += [
        "",
        "Stragglers, as ByteDance measured 3,079 jobs; beside them what `fabrictwin jitter` says of yours",
    ]
    lines += [f"  {value:>7.1%}  {what}" for _, value, what in stragglers]
    return "\n".join(lines) + "\n"
