"""The calibration of collectives, made again from the series that it declares.

Every figure of a section of `nccl/data/step_costs.yaml` starts at the `default`, NCCL's own. Least squares,
reweighted, lower the mean over series of the mean of |ln(twin / published)| over their rows. No figure leaves
NCCL's own by more than a factor of ten.
Sections between hosts are fitted once those inside stand.
Nothing is random; the same series give the same figures.

Leaving series out fits their sections again to what is left of them. A section of which nothing is left gets one
set of figures fitted to all others of its part together. What that says of what was left out is a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fabrictwin.base.arrays import F64
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_US
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.lowering.chunks import send_parts
from fabrictwin.nccl.lowering.task_times import Asked, measure
from fabrictwin.nccl.lowering.transport import Transports
from fabrictwin.nccl.topology.graph_types import Protocol
from fabrictwin.nccl.tuning.step_costs import Calibration, StepCosts, calibration
from fabrictwin.validation.collective_series import Asks, Published, asks_of, hardware_of
from fabrictwin.validation.published_data import left_out

Figure = tuple[str, int | None]  # a field, and which protocol's (LL, LL128, Simple)

SHARES = ("ring_share", "tree_share", "nvls_share", "send_share")
APART = 10.0  # at most, of a figure and the one it starts from
UNSET = {"message": 20.0}  # where a figure of 0 starts, in us: where it shows ...
UNSET_ELSE = 0.5
TRIED = 0.05  # of a logarithm, to see how errors change
LONGEST, SHORTEST = 0.7, 0.002  # steps of a logarithm
MOST_STEPS = 40
NEAR = 0.05  # errors below count by their squares, beyond by themselves (Huber)
DAMPING = 0.003  # keeps a figure that hardly shows in any row near where it is
LEAST = 2e-6  # by which an error must fall


@record
class Fit:
    """Which figures of a section are fitted to which series."""

    part: str  # inside, between
    section: str
    figures: tuple[Figure, ...]
    series: tuple[str, ...]


INSIDE: tuple[Figure, ...] = (
    ("launch", None),
    ("ring", 1),
    ("ring", 2),
    ("ring_hop", 0),
    ("ring_hop", 1),
    ("ring_hop", 2),
    ("ring_share", 1),
    ("ring_share", 2),
    ("channel_gbps", 0),
    ("send", 0),
    ("send", 2),
    ("send_hop", None),
    ("send_share", None),
    ("exchange", 0),
    ("exchange", 2),
    ("exchange_gbps", 0),
    ("exchange_gbps", 2),
    ("exchange_start", None),
    ("own", None),
    ("own_reduced", None),
)
SPRAYED: tuple[Figure, ...] = (("base", None), ("hop", None), ("message", None))
IN_SWITCH: tuple[Figure, ...] = (("nvls", None), ("nvls_chunk", None), ("nvls_share", None))


def _device_series(*machines: str) -> tuple[str, ...]:
    """Name the series of nccl-tests on parts of one NVLink domain, all four collectives."""
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    return tuple(f"{machine}-aic-{kind}" for machine in machines for kind in kinds)


FITS = (
    Fit("inside", "ampere", INSIDE, (*_device_series("a100"), "a100-8-stas")),
    Fit(
        "inside",
        "hopper",
        INSIDE + IN_SWITCH,
        (*_device_series("h100"), "h100-8-aws", "h100-8-azure", "h200-nvls-stas", "h100-send-vidur"),
    ),
    Fit(
        "inside",
        "blackwell",
        INSIDE + IN_SWITCH,
        (*_device_series("b200", "b300", "gb200", "gb300"), "b200-8-stas"),
    ),
    Fit("between", "srd-ampere", SPRAYED, ("a100-16-aws",)),
    Fit(
        "between",
        "srd-hopper",
        (*SPRAYED, ("nvls_tree_hop", None)),
        ("h100-16-aws", "h100-16-eks", "h100-16-eks-october"),
    ),
    Fit("between", "srd-blackwell", SPRAYED, ("b200-16-dstack", "b200-32-stas")),
)


def generations(published: Published) -> dict[str, set[str]]:
    """Return the hardware that each generation's section stands on."""
    inside = {one.section: one.series for one in FITS if one.part == "inside"}
    return {name: {published.series[one].hardware for one in series} for name, series in inside.items()}


def fitted_to(published: Published) -> set[str]:
    """Return the hardware that any section stands on."""
    return {published.series[name].hardware for one in FITS for name in one.series}


@dataclass
class _Way:
    """Rows of one communicator that go one way, and their errors by the costs that act on them."""

    asks: Asks
    rows: list[int]
    published_us: F64
    known: dict[Hashable, F64] = field(default_factory=dict)  # µs of each row beside what an operation takes once

    def errors(self, costs: StepCosts, transports: Transports) -> list[float]:
        """Return ln(twin / published) of each row."""
        asked = [self.asks.asked[row] for row in self.rows]
        communicator = self.asks.communicator
        key = _acting(costs, asked[0], communicator.nodes)
        once = np.array([_once_us(costs, each, communicator) for each in asked])
        if key not in self.known:
            times = measure(communicator, asked, fidelity="analytic", costs=costs, transports=transports)
            self.known[key] = times / PS_PER_US - once
        return np.log((self.known[key] + once) / self.published_us).tolist()  # type: ignore[no-any-return]


def _once_us(costs: StepCosts, asked: Asked, communicator: Communicator) -> float:
    """Return what an operation takes once, which its time in closed form has as a sum."""
    task, choice = asked
    nodes, ranks = communicator.nodes, communicator.ranks
    if choice is not None:
        return costs.base_us(choice.algorithm, choice.protocol, nodes=nodes)
    exchange = task.kind == "all_to_all"
    _, protocol, _ = send_parts(communicator, task.size_bytes // ranks if exchange else task.size_bytes)
    return costs.sends(protocol, exchange=exchange, nodes=nodes, ranks=ranks)[0]


def _acting(costs: StepCosts, asked: Asked, nodes: int) -> Hashable:
    """Return the costs, but for what is taken once, that a way has to do with: equal ones give equal times."""
    task, choice = asked
    if choice is None:
        exchange = task.kind == "all_to_all"
        rates = [
            costs.sends(p, exchange=exchange, nodes=nodes, own_part=part)[1:] for p in Protocol for part in (0, 1)
        ]
        return *rates, *(tuple(costs.send_hops_us(p).values()) for p in Protocol), costs.between.message
    algorithm, protocol = choice.algorithm, choice.protocol
    hops = tuple(costs.hops_us(algorithm, protocol).values())
    reduced = task.kind == "all_reduce"
    shares = tuple(costs.share(algorithm, protocol, part, reduced=reduced) for part in (0, 1))
    inside, between = costs.inside, costs.between
    beside = inside.channel_gbps[protocol], inside.nvls_chunk, between.collnet_hop, between.message
    return shares, hops, *beside


@dataclass
class Bench:
    """The twin of one series' machines, to be asked again and again with other costs."""

    ways: list[_Way]
    _transports: dict[int, Transports] = field(default_factory=dict)

    @classmethod
    def of(cls, published: Published, name: str) -> Bench:
        ways = []
        for asks in asks_of(published, name):
            alike: dict[Hashable, list[int]] = {}
            for row, (_, choice) in enumerate(asks.asked):
                way = None if choice is None else (choice.algorithm, choice.protocol, choice.channels)
                alike.setdefault(way, []).append(row)
            for rows in alike.values():
                ways.append(_Way(asks, rows, np.array([asks.points[row].time_us for row in rows])))
        return cls(ways)

    def errors(self, costs: Callable[[Asks], StepCosts]) -> list[float]:
        """Return ln(twin / published) of every row."""
        found: list[float] = []
        for way in self.ways:
            communicator = way.asks.communicator
            transports = self._transports.setdefault(id(communicator), Transports(communicator))
            found += way.errors(costs(way.asks), transports)
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


def descend(
    figures: Iterable[Figure], start: Any, errors: Callable[[Any], F64], weights: F64
) -> tuple[Any, float]:
    """Return the entry with figures that make errors least, and the weighted mean of what is left.

    `errors` gives [rows] ln(twin / published), `weights` their weights, which sum to 1. Least squares in the
    figures' logarithms, rows that are far off weighed less (Huber); steps are halved until they help, and stop at
    bounds.
    """
    figures = tuple(figures)
    starts = np.array([get(start, figure) for figure in figures])
    unset = [UNSET.get(name, UNSET_ELSE) for name, _ in figures]
    first = np.log(np.where(starts > 0, starts, unset))
    apart = np.where(starts > 0, math.log(APART), np.inf)
    least, most = first - apart, np.minimum(first + apart, [0.0 if f[0] in SHARES else np.inf for f in figures])
    tried = np.where(first + TRIED > most, -TRIED, TRIED)

    def entry_at(at: F64) -> Any:
        found = start
        for figure, value in zip(figures, np.exp(at).tolist(), strict=True):
            found = put(found, figure, rounded(value))
        return found

    def loss(found: F64) -> float:
        off = np.abs(found)
        return float(weights @ np.where(off < NEAR, off**2 / (2 * NEAR), off - NEAR / 2))

    at, now = first, errors(entry_at(first))
    for _ in range(MOST_STEPS):
        tilt = np.stack([errors(entry_at(at + row)) - now for row in np.diag(tried)]) / tried[:, None]
        by_row = weights / np.maximum(np.abs(now), NEAR)
        square = (tilt * by_row) @ tilt.T + DAMPING * by_row.sum() * np.eye(len(at))
        step = np.clip(np.linalg.solve(square, -(tilt * by_row) @ now), -LONGEST, LONGEST)
        before = loss(now)
        while np.abs(step).max() > SHORTEST:
            moved = np.clip(at + step, least, most)
            found = errors(entry_at(moved))
            if loss(found) < before:
                at, now = moved, found
                break
            step = step / 2
        if loss(now) > before - LEAST:
            break
    return entry_at(at), float(weights @ np.abs(now))


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

    def errors(entry: Any) -> F64:
        changed = _with(now, one.part, one.section, entry)
        return _errors(benches, lambda each: changed.of(each.communicator, each.caller))

    entry, _ = descend(one.figures, getattr(now, one.part)["default"], errors, _weights(benches))
    return _with(now, one.part, one.section, entry)


def _with(now: Calibration, part: str, section: str, entry: Any) -> Calibration:
    return replace(now, **{part: {**getattr(now, part), section: entry}})


def _errors(benches: list[Bench], costs: Callable[[Asks], StepCosts]) -> F64:
    return np.array([error for bench in benches for error in bench.errors(costs)])


def _weights(benches: list[Bench]) -> F64:
    """Return the weight of each row: a series counts once."""
    rows = [sum(len(way.rows) for way in bench.ways) for bench in benches]
    return np.repeat(1 / (np.array(rows) * len(rows)), rows)


def fit_without(published: Published, hardware: str, *, stage: Stage = silent) -> Calibration:
    """Fit as if a hardware had never been measured: sections keep their other machines' series.

    A section without any gets one set of figures fitted to all others of its part together. Raises ConfigError for
    hardware that no series is of.
    """
    hardware = left_out(hardware, hardware_of(published))
    names = {name for name, one in published.series.items() if one.hardware == hardware}
    return _without(published, names, hardware, stage)


def fit_without_series(published: Published, names: tuple[str, ...], *, stage: Stage = silent) -> Calibration:
    """Fit as if these series had never been measured."""
    return _without(published, set(names), names[0], stage)


def _without(published: Published, out: set[str], called: str, stage: Stage) -> Calibration:
    whole = now = calibration()
    for one in FITS:
        if out.isdisjoint(one.series):
            continue
        stage(f"{one.section}, without {called}")
        left = replace(one, series=tuple(name for name in one.series if name not in out))
        if left.series:
            now = _fitted(published, now, left)
            continue
        others = [replace(each, series=tuple(set(each.series) - out)) for each in FITS if each.part == one.part]
        now = _with(now, one.part, one.section, _pooled(published, whole, one.part, others))
    return now


def _pooled(published: Published, whole: Calibration, part: str, left: list[Fit]) -> Any:
    """One entry for all of these sections' series together."""
    benches = [Bench.of(published, name) for one in left for name in sorted(one.series)]
    figures = tuple(dict.fromkeys(figure for one in left for figure in one.figures))

    def errors(entry: Any) -> F64:
        def costs(each: Asks) -> StepCosts:
            known = whole.of(each.communicator, each.caller)
            if part == "inside":
                launch = entry.launch + whole.callers[each.caller][each.communicator.nodes > 1]
                return replace(known, inside=replace(entry, launch=launch))
            return replace(known, between=entry)

        return _errors(benches, costs)

    return descend(figures, getattr(whole, part)["default"], errors, _weights(benches))[0]


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
