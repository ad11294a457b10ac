"""The calibration of collectives, made again from the series that it declares.

Every figure of a section of `nccl/data/step_costs.yaml` starts at the `default`, NCCL's own. Coordinate descent
lowers the mean over rows of |ln(twin / published)|: each figure is tried larger and smaller by a factor, the
better is kept, until none helps; then by a smaller factor. None leaves NCCL's own by more than a factor of ten.
Sections between hosts are fitted once those inside stand.
Nothing is random; the same series give the same figures.

Leaving hardware out fits again: one set of figures for all that is left, of what any section has, to the rows of
all other hardware together. What that says of the hardware left out is a prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.units import PS_PER_US
from fabrictwin.nccl.lowering.task_times import measure
from fabrictwin.nccl.lowering.transport import Transports
from fabrictwin.nccl.tuning.step_costs import Calibration, StepCosts, calibration
from fabrictwin.validation.collective_series import FITTED, Asks, Published, asks_of
from fabrictwin.validation.published_data import left_out

Figure = tuple[str, int | None]  # a field, and which protocol's (LL, LL128, Simple)

FACTORS = (2.0, 1.5, 1.2, 1.1, 1.05, 1.02)
MOST_SWEEPS = 12  # by one factor
SHARES = ("ring_share", "tree_share", "nvls_share")
LEAST = 1e-4  # by which an error must fall
APART = 10.0  # at most, of a figure and the one it starts from, where that is not 0


@dataclass(frozen=True)
class Fit:
    """Which figures of a section are fitted to which series."""

    part: str  # inside, between
    section: str
    figures: tuple[Figure, ...]
    series: tuple[str, ...]


FITS = (
    Fit(
        "inside",
        "ampere",
        (
            ("launch", None),
            ("ring_hop", 0),
            ("ring_hop", 1),
            ("ring_hop", 2),
            ("ring_share", 1),
            ("ring_share", 2),
            ("channel_gbps", 0),
        ),
        ("a100-8-stas", "a100-8-azure"),
    ),
    Fit(
        "inside",
        "hopper",
        (
            ("launch", None),
            ("ring_hop", 2),
            ("ring_share", 2),
            ("nvls", None),
            ("nvls_chunk", None),
            ("nvls_share", None),
            ("send", None),
            ("send_hop", None),
        ),
        (
            "h100-8-aws",
            "h100-8-azure",
            "h200-nvls-stas",
            "h100-2-vidur",
            "h100-4-vidur",
            "h100-8-vidur",
            "h100-send-vidur",
        ),
    ),
    Fit(
        "inside",
        "blackwell",
        (("launch", None), ("nvls", None), ("nvls_chunk", None), ("nvls_share", None)),
        ("b200-8-stas",),
    ),
    Fit(
        "between",
        "srd-ampere",
        (("base", None), ("tree_hop", 0), ("tree_hop", 1), ("tree_hop", 2)),
        ("a100-16-aws",),
    ),
    Fit(
        "between",
        "srd-hopper",
        (("base", None), ("tree_hop", 0), ("tree_hop", 1), ("nvls_tree_hop", None)),
        ("h100-16-aws",),
    ),
    Fit(
        "between",
        "srd-blackwell",
        (("base", None), ("tree_hop", 1), ("nvls_tree_hop", None), ("ring_hop", 1), ("ring_hop", 2)),
        ("b200-32-stas",),
    ),
)


@dataclass
class Bench:
    """The twin of one series' machines, to be asked again and again with other costs."""

    asks: list[Asks]
    published_us: list[list[float]]
    _transports: dict[int, Transports] = field(default_factory=dict)

    @classmethod
    def of(cls, published: Published, name: str) -> Bench:
        asks = asks_of(published, name)
        return cls(asks, [[point.time_us for point in each.points] for each in asks])

    def errors(self, costs: Callable[[Asks], StepCosts]) -> list[float]:
        """ln(twin / published) of every row."""
        found: list[float] = []
        for i, each in enumerate(self.asks):
            if i not in self._transports:
                self._transports[i] = Transports(each.communicator)
            times = measure(
                each.communicator,
                each.asked,
                fidelity="analytic",
                costs=costs(each),
                transports=self._transports[i],
            )
            found += np.log(times / PS_PER_US / np.array(self.published_us[i])).tolist()
        return found


def get(entry: Any, figure: Figure) -> float:
    name, index = figure
    value = getattr(entry, name)
    return float(value if index is None else value[index])


def put(entry: Any, figure: Figure, value: float) -> Any:
    name, index = figure
    if index is not None:
        row = list(getattr(entry, name))
        row[index] = value
        return replace(entry, **{name: tuple(row)})
    return replace(entry, **{name: value})


def rounded(value: float) -> float:
    """To three digits, as the file has it."""
    return float(f"{value:.3g}")


def descend(figures: Iterable[Figure], start: Any, error: Callable[[Any], float]) -> tuple[Any, float]:
    """The entry with figures that make the error least, and that error."""
    figures, entry, best = tuple(figures), start, error(start)
    for factor in FACTORS:
        for _ in range(MOST_SWEEPS):
            moved = False
            for figure in figures:
                for by in (factor, 1 / factor):
                    value = rounded((get(entry, figure) or 0.5) * by)
                    first = get(start, figure)
                    if first:
                        value = rounded(min(max(value, first / APART), first * APART))
                    if figure[0] in SHARES:
                        value = min(value, 1.0)
                    other = put(entry, figure, value)
                    found = error(other)
                    if found < best - LEAST:
                        entry, best, moved = other, found, True
                        break
            if not moved:
                break
    return entry, best


def fit(
    published: Published,
    *,
    sections: Iterable[str] | None = None,
    stage: Stage = silent,
) -> Calibration:
    """All sections fitted again (or those named, the others as they are declared)."""
    now = calibration()
    for one in FITS:
        if sections is None or one.section in sections:
            stage(one.section)
            now = _fitted(published, now, one)
    return now


def _fitted(published: Published, now: Calibration, one: Fit) -> Calibration:
    """The calibration with one section fitted."""
    benches = [Bench.of(published, name) for name in one.series]

    def error(entry: Any) -> float:
        changed = _with(now, one.part, one.section, entry)
        return _mean(benches, lambda each: changed.of(each.communicator))

    entry, _ = descend(one.figures, getattr(now, one.part)["default"], error)
    return _with(now, one.part, one.section, entry)


def _with(now: Calibration, part: str, section: str, entry: Any) -> Calibration:
    return replace(now, **{part: {**getattr(now, part), section: entry}})


def _mean(benches: list[Bench], costs: Callable[[Asks], StepCosts]) -> float:
    return fmean(abs(e) for bench in benches for e in bench.errors(costs))


def fit_without(published: Published, hardware: str, *, stage: Stage = silent) -> Calibration:
    """Fit as if a hardware had never been measured: its sections get one set of figures fitted to all others.

    Raises ConfigError for hardware that no series is of.
    """
    hardware = left_out(hardware, FITTED)
    whole = now = calibration()
    out = FITTED[hardware]
    for part in ("inside", "between"):
        missing = [name for name in getattr(whole, part) if name in out]
        left = [one for one in FITS if one.part == part and one.section not in out]
        if missing and left:
            stage(f"{part} hosts, without {hardware}")
            entry = _pooled(published, whole, part, left)
            for name in missing:
                now = _with(now, part, name, entry)
    return now


def fit_without_series(published: Published, name: str, *, stage: Stage = silent) -> Calibration | None:
    """Fit as if a series had never been measured; None where no section stands on it.

    Its section is fitted to its other series. Where it has none, it gets one set of figures fitted to all other
    sections of its part together, as hardware that is left out does.
    """
    whole = now = calibration()
    touched = [one for one in FITS if name in one.series]
    for one in touched:
        stage(f"{one.section}, without {name}")
        left = tuple(each for each in one.series if each != name)
        if left:
            now = _fitted(published, now, replace(one, series=left))
        else:
            others = [each for each in FITS if each.part == one.part and each.section != one.section]
            now = _with(now, one.part, one.section, _pooled(published, whole, one.part, others))
    return now if touched else None


def _pooled(published: Published, whole: Calibration, part: str, left: list[Fit]) -> Any:
    """One entry for all of these sections' series together."""
    benches = [Bench.of(published, name) for one in left for name in one.series]
    figures = tuple(dict.fromkeys(figure for one in left for figure in one.figures))

    def error(entry: Any) -> float:
        def costs(each: Asks) -> StepCosts:
            return replace(whole.of(each.communicator), **{part: entry})

        return _mean(benches, costs)

    return descend(figures, getattr(whole, part)["default"], error)[0]


def as_text(found: Calibration) -> str:
    """The fitted figures beside those declared, in the form of nccl/data/step_costs.yaml."""
    declared, lines = calibration(), []
    for part in ("inside", "between"):
        lines.append(f"{part}:")
        for one in FITS:
            if one.part != part:
                continue
            new, old = (getattr(c, part)[one.section] for c in (found, declared))
            lines.append(f"  {one.section}:  # {', '.join(one.series)}")
            for name in dict.fromkeys(figure[0] for figure in one.figures):
                a, b = getattr(new, name), getattr(old, name)
                values = f"[{', '.join(f'{x:g}' for x in a)}]" if isinstance(a, tuple) else f"{a:g}"
                lines.append(f"    {name}: {values}" + ("" if a == b else f"  # declared: {b}"))
    return "\n".join([*lines, ""])
