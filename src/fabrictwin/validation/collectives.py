"""Published times of collectives, and what the twin says at each size.

A series is one machine, one collective, many sizes. The twin runs NCCL's own choice of that release, with the
settings of the row, on a cluster of the series' hosts. Errors are of time, twin over published less one, by
regime: below 64 KiB, up to 64 MiB, and above. A series counts once: by the median of its absolute errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from fabrictwin import catalog
from fabrictwin.cluster.build import build
from fabrictwin.cluster.spec import read_spec
from fabrictwin.errors import ConfigError, did_you_mean
from fabrictwin.nccl.communicator import Communicator, initialise
from fabrictwin.nccl.costs import Calibration, calibration
from fabrictwin.nccl.measure import Asked, measure
from fabrictwin.nccl.settings import read_settings
from fabrictwin.nccl.tasks import COLLECTIVE, Kind, Task
from fabrictwin.nccl.tuner import Call, tuner
from fabrictwin.twin import Twin
from fabrictwin.twin.twin import Fidelity
from fabrictwin.units import PS_PER_US
from fabrictwin.validation.data import Section, read_table
from fabrictwin.yamlfile import config_error, line_of, read_yaml_file

TABLE, TEXTS = "collectives.csv", "collectives.yaml"
KIB, MIB = 1024, 1024 * 1024
REGIMES = (
    ("below 64 KiB", 1, 64 * KIB),
    ("64 KiB to 64 MiB", 64 * KIB, 64 * MIB),
    ("from 64 MiB", 64 * MIB, 1 << 62),
)
# which fitted sections of nccl/data/costs.yaml stand on rows of which hardware
FITTED = {
    "A100": ("ampere", "srd-ampere"),
    "H100": ("hopper", "infiniband-hopper", "srd-hopper"),
    "B200": ("blackwell", "srd-blackwell"),
    "GB200": ("rack", "infiniband-rack"),
    "GH200": (),
}


class Point(Section):
    """One published time."""

    series: str
    gpus: Annotated[int, Field(ge=2)]
    size_bytes: Annotated[int, Field(ge=1)]
    time_us: Annotated[float, Field(gt=0)]
    settings: str  # NCCL_* variables, with spaces between


class Series(Section):
    """Where a series comes from, and the machine that stands for it."""

    source: str
    hardware: str
    host: str
    nccl: str
    kind: Kind = "all_reduce"
    technology: Literal["infiniband", "ethernet"] = "infiniband"
    switch: str = ""
    per_host: Annotated[int, Field(ge=1)] | None = None  # ranks of a host; None: all its GPUs
    assumptions: tuple[str, ...] = ()


class Texts(Section):
    series: dict[str, Series]


@dataclass(frozen=True)
class Published:
    """All series and their rows, in order."""

    folder: Path
    points: tuple[Point, ...]
    series: dict[str, Series]


@dataclass(frozen=True)
class Answer:
    """A row with what the twin says."""

    point: Point
    time_us: float
    choice: str  # algorithm, protocol and channels

    @property
    def error(self) -> float:
        return self.time_us / self.point.time_us - 1


@dataclass(frozen=True)
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
    path = folder / TEXTS
    data, lines = read_yaml_file(path)
    try:
        texts = Texts.model_validate(data)
    except ValidationError as error:
        found = config_error(error, Texts, data=data)
        line = line_of(lines, tuple((found.key or "").split(".")))
        raise ConfigError(found.message, file=path, line=line, key=found.key) from None
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


def judge(
    published: Published,
    *,
    names: Iterable[str] | None = None,
    fidelity: Fidelity = "analytic",
    leave_out: str = "",
    stage: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """Every series with the twin's times. Raises ConfigError for hardware that no series is of."""
    fitted = fitted_without(leave_out)
    outcomes = []
    for name, series in published.series.items():
        if names is not None and name not in names:
            continue
        stage(name)
        points = [p for p in published.points if p.series == name]
        answers: dict[int, Answer] = {}
        for settings, gpus in dict.fromkeys((p.settings, p.gpus) for p in points):
            mine = [i for i, p in enumerate(points) if (p.settings, p.gpus) == (settings, gpus)]
            communicator = _communicator(series, gpus, settings)
            found = _answers(communicator, series, [points[i] for i in mine], fitted, fidelity)
            answers.update(zip(mine, found, strict=True))
        outcomes.append(Outcome(name, series, tuple(answers[i] for i in range(len(points)))))
    return outcomes


def fitted_without(hardware: str) -> Calibration:
    """The calibration; without a hardware, the median of what was fitted to the others stands for its own."""
    whole = calibration()
    if not hardware:
        return whole
    if hardware not in FITTED:
        raise ConfigError(
            f"got {hardware!r}, expected one of {', '.join(FITTED)}{did_you_mean(hardware, FITTED)}",
            key="--leave-out",
        )
    return whole.without(FITTED[hardware])


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


def _answers(
    communicator: Communicator, series: Series, points: list[Point], fitted: Calibration, fidelity: Fidelity
) -> list[Answer]:
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
    times = measure(communicator, asked, fidelity=fidelity, costs=fitted.of(communicator))
    return [
        Answer(point, float(time) / PS_PER_US, name)
        for point, time, name in zip(points, times.tolist(), names, strict=True)
    ]


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
