"""Published times of collectives, and what the twin says at each size.

A series is one machine, one collective, many sizes. The twin runs NCCL's own choice of that release, with the
settings of the row, on a cluster of the series' hosts. Errors are of time, twin over published less one, by
regime: below 64 KiB, up to 64 MiB, and above. A series counts once: by the median of its absolute errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

from pydantic import Field

from fabrictwin import catalog
from fabrictwin.base.capabilities import Fidelity
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_US
from fabrictwin.catalog.error_ranges import REGIMES
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.nccl.communicator.communicator import Communicator, initialise
from fabrictwin.nccl.lowering.task_times import Asked, measure
from fabrictwin.nccl.lowering.tasks import COLLECTIVE, Kind, Task
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.tuning.step_costs import Calibration, calibration
from fabrictwin.nccl.tuning.tuner import Call, tuner
from fabrictwin.runs.workers import in_order
from fabrictwin.twin import Twin
from fabrictwin.validation.published_data import Section, read_table, read_texts

TABLE, TEXTS = "collectives.csv", "collectives.yaml"


class Point(Section):
    """One published time."""

    series: str
    gpus: Annotated[int, Field(ge=2)]
    size_bytes: Annotated[int, Field(ge=1)]
    time_us: Annotated[float, Field(gt=0)]
    settings: str  # NCCL_* variables, with spaces between


class Series(Section):
    """The origin of a series, and the machine that stands for it."""

    source: str
    hardware: str
    host: str
    nccl: str
    kind: Kind = "all_reduce"
    technology: Literal["infiniband", "ethernet"] = "infiniband"
    switch: str = ""
    caller: Literal["nccl-tests", "loop"] = "nccl-tests"  # who measured: a key of `callers` in step_costs.yaml
    per_host: Annotated[int, Field(ge=1)] | None = None  # ranks of a host; None: all its GPUs
    assumptions: tuple[str, ...] = ()


class Texts(Section):
    series: dict[str, Series]


@record
class Published:
    """All series and their rows, in order."""

    folder: Path
    points: tuple[Point, ...]
    series: dict[str, Series]


@record
class Answer:
    """A row with what the twin says."""

    point: Point
    time_us: float
    choice: str  # algorithm, protocol and channels

    @property
    def error(self) -> float:
        return self.time_us / self.point.time_us - 1


@record
class Outcome:
    """One series."""

    name: str
    series: Series
    answers: tuple[Answer, ...]

    def errors(self, regime: str) -> list[float]:
        _, low, high = next(r for r in REGIMES if r[0] == regime)
        return [a.error for a in self.answers if low <= a.point.size_bytes < high]

    def median_absolute(self, regime: str) -> float | None:
        """None where it has no row there."""
        found = self.errors(regime)
        return median(map(abs, found)) if found else None


def read_published(folder: Path) -> Published:
    """The rows and their texts. Raises ConfigError with file and line."""
    texts = read_texts(folder / TEXTS, Texts)
    points = []
    for line, point in read_table(folder / TABLE, Point):
        if point.series not in texts.series:
            hint = did_you_mean(point.series, texts.series)
            raise ConfigError(
                f"got {point.series!r}, expected a key of {TEXTS}{hint}",
                file=folder / TABLE,
                line=line,
                key="series",
            )
        points.append(point)
    return Published(folder, tuple(points), texts.series)


def hardware_of(published: Published) -> tuple[str, ...]:
    """Return the hardware that series are of, in order."""
    return tuple(dict.fromkeys(one.hardware for one in published.series.values()))


def together(published: Published) -> list[tuple[str, ...]]:
    """Return the series that were published together of one machine: they are no witnesses for each other."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, one in published.series.items():
        groups.setdefault((one.source, one.hardware), []).append(name)
    return [tuple(names) for names in groups.values()]


def judge(
    published: Published,
    *,
    names: Iterable[str] | None = None,
    fidelity: Fidelity = "analytic",
    fitted: Calibration | None = None,
    stage: Stage = silent,
    workers: int | str | None = 1,
) -> list[Outcome]:
    """Every series with the twin's times, by the declared calibration or another."""
    fitted = fitted or calibration()
    wanted = published.series if names is None else set(names)
    chosen = [name for name in published.series if name in wanted]
    return in_order(partial(_judged, published, fidelity, fitted), chosen, workers, stage, chosen)


def _judged(published: Published, fidelity: Fidelity, fitted: Calibration, name: str) -> Outcome:
    """A series with the twin's times."""
    answers: dict[Point, Answer] = {}
    for each in asks_of(published, name):
        costs = fitted.of(each.communicator, each.caller)
        times = measure(each.communicator, each.asked, fidelity=fidelity, costs=costs)
        rows = zip(each.points, times.tolist(), each.choices, strict=True)
        answers |= {point: Answer(point, float(time) / PS_PER_US, choice) for point, time, choice in rows}
    mine = (answers[point] for point in published.points if point.series == name)
    return Outcome(name, published.series[name], tuple(mine))


@cache
def _twin(host: str, hosts: int, technology: str, switch: str) -> Twin:
    switch = switch or ("spectrum-4" if technology == "ethernet" else "qm9700")
    if host.startswith("dgx-a100") and technology == "infiniband":
        switch = "qm8700"
    spec = read_spec(
        {
            "schema": 1,
            "name": "measured",
            "cluster": {
                "hosts": {"type": host, "count": hosts},
                "network": {"technology": technology, "switch": switch, "topology": {"kind": "fat-tree"}},
            },
        }
    )
    return Twin(build(spec.cluster, spec=spec))


@cache
def _communicator(series: Series, gpus: int, settings: str) -> Communicator:
    per_host = series.per_host or min(gpus, catalog.host(series.host).nodes.gpu)
    hosts = -(-gpus // per_host)
    twin = _twin(series.host, hosts, series.technology, series.switch)
    fabric = twin.fabric
    ranks = [int(n) for n in fabric.gpu_node if fabric.gpu_local[fabric.node_gpu[n]] < per_host][:gpus]
    environment = dict(item.split("=", 1) for item in settings.split())
    return initialise(twin, ranks, settings=read_settings(environment, release=series.nccl), version=series.nccl)


@record
class Asks:
    """Rows of a series on one communicator, as tasks with NCCL's choice."""

    communicator: Communicator
    caller: str
    points: tuple[Point, ...]
    asked: tuple[Asked, ...]
    choices: tuple[str, ...]


def asks_of(published: Published, name: str) -> list[Asks]:
    """A series, by communicator. Raises ConfigError."""
    series = published.series[name]
    points = [p for p in published.points if p.series == name]
    result = []
    for settings, gpus in dict.fromkeys((p.settings, p.gpus) for p in points):
        mine = tuple(p for p in points if (p.settings, p.gpus) == (settings, gpus))
        result.append(_asks(_communicator(series, gpus, settings), series, mine))
    return result


def _asks(communicator: Communicator, series: Series, points: tuple[Point, ...]) -> Asks:
    asked: list[Asked] = []
    names = []
    chooses = tuner(communicator)
    for point in points:
        unit = communicator.ranks * 4
        size = point.size_bytes
        if series.kind not in COLLECTIVE:
            asked.append((Task(series.kind, max(size // unit, 1) * unit), None))
            names.append("sends")
            continue
        choice = chooses.choose(Call(COLLECTIVE[series.kind], size))
        asked.append((Task(series.kind, max(size // 4, 1) * 4), choice))
        names.append(f"{choice.algorithm.name} {choice.protocol.name} {choice.channels}")
    return Asks(communicator, series.caller, points, tuple(asked), tuple(names))


def summary(outcomes: Iterable[Outcome]) -> dict[str, tuple[int, float]]:
    """By regime: how many series, and the median over them of each one's median absolute error."""
    outcomes = list(outcomes)
    result = {}
    for regime, _, _ in REGIMES:
        found = [m for o in outcomes if (m := o.median_absolute(regime)) is not None]
        if found:
            result[regime] = (len(found), median(found))
    return result


def worst(outcomes: Iterable[Outcome], regime: str) -> list[Outcome]:
    """Series by their error in a regime, the worst first."""
    rated = [(m, o.name, o) for o in outcomes if (m := o.median_absolute(regime)) is not None]
    return [o for _, _, o in sorted(rated, key=lambda row: (-row[0], row[1]))]
