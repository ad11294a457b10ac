"""The fewest GPUs that serve so many requests a second within bounds: layouts, replicas, prefill apart.

One replica of each layout is run at its share of the rate; replicas are doubled until the bounds are met, and
halved back. Of the layouts that meet them with fewest GPUs, pools with prefill apart are run on as many GPUs and
fewer. The best are run whole, behind the router. Every run is a point of tokens a second and GPU over tokens
a second and user.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.cluster.spec.spec import Origin, Spec, read_spec, without_figures
from fabrictwin.runs.workers import in_order
from fabrictwin.serving.config.layout import machine
from fabrictwin.serving.config.server import serving_section
from fabrictwin.serving.predict import DEFAULT_PROMPTS, predict
from fabrictwin.serving.report.bench import latencies
from fabrictwin.study.servers.layouts import Layout, layouts
from fabrictwin.study.servers.objective import Objective

LEAST_PROMPTS = 100
CHECKED = 3
"""Layouts that are run whole, of those with fewest GPUs."""


@record
class Point:
    """A layout that was run.

    Attributes:
        layout: The layout.
        replicas: Replicas of it, of which one was run unless `whole`.
        met: Share of requests within the bounds.
        ttft_s: Time to first token that the share asked for stays below.
        tpot_s: Time per output token alike.
        tokens_per_s: Output tokens a second of all replicas.
        user_tokens_per_s: Tokens a second that a user sees, in the mean.
        whole: All replicas were run.
    """

    layout: Layout
    replicas: int
    met: float
    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    user_tokens_per_s: float
    whole: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.layout.gpus

    @property
    def name(self) -> str:
        """Return replicas and layout in words."""
        return (
            self.layout.name if "disaggregated" in self.layout.keys else f"{self.replicas} × ({self.layout.name})"
        )


@record
class ServerPlan:
    """What was found: all points, and the best of each layout that meets the objective, fewest GPUs first."""

    name: str
    objective: Objective
    gpus: int
    points: tuple[Point, ...]
    ranked: tuple[Point, ...]

    @property
    def frontier(self) -> list[Point]:
        """Points that no other beats both for GPUs and for users, the fastest for users last."""
        best, found = -1.0, []
        for point in sorted(self.points, key=lambda one: -one.user_tokens_per_s):
            if point.tokens_per_s / point.gpus > best:
                best = point.tokens_per_s / point.gpus
                found.append(point)
        return found[::-1]


def with_layout(spec: Spec, layout: Layout, replicas: int, *, rate: float, prompts: int | None) -> Spec:
    """Return the spec with a layout under a rate; `prompts` None keeps the benchmark's number."""
    section: dict[str, Any] = dict(spec.workload["serving"])
    section.pop("disaggregated", None)
    benchmark = {**section.get("benchmark", {}), "request_rate": rate}
    benchmark.pop("max_concurrency", None)
    if prompts is not None:
        benchmark["num_prompts"] = prompts
    whole = replicas if "disaggregated" not in layout.keys else 1
    section |= {**layout.keys, "replicas": whole, "benchmark": benchmark}
    data = spec.to_dict()
    data["workload"] = {"serving": section}
    without_figures(data)
    return read_spec(data, Origin(spec.folder, spec.path))


class _Runs:
    """Runs of layouts of one spec under one objective."""

    def __init__(self, spec: Spec, objective: Objective) -> None:
        serving = serving_section(spec)
        self.spec, self.objective = spec, objective
        self.prompts = serving.benchmark.num_prompts or DEFAULT_PROMPTS
        self.most = machine(spec).per_host * machine(spec).hosts

    def run(self, layout: Layout, replicas: int, *, whole: bool = False) -> Point | None:
        """Return one replica at its share of the rate, or all; None where a request can never run."""
        share = 1 if whole else replicas
        prompts = min(self.prompts, max(LEAST_PROMPTS, math.ceil(self.prompts / share)))
        asked = with_layout(
            self.spec, layout, replicas if whole else 1, rate=self.objective.rate / share, prompts=prompts
        )
        try:
            found = predict(asked)
        except (SimulatedError, ConfigError):
            return None
        times, aim = latencies(found.served), self.objective
        tpot = times.tpot[times.outputs > 1]
        return Point(
            layout,
            replicas,
            aim.met(found),
            aim.at_share(times.ttft),
            aim.at_share(tpot),
            float(found.fields["output_throughput"]) * share,
            1 / float(tpot.mean()) if len(tpot) else 0.0,
            whole,
        )

    def fewest(self, layout: Layout) -> list[Point]:
        """Return the runs of a layout with ever more replicas, until the bounds are met, and then back."""
        points: list[Point] = []
        low, high, most = 0, 1, self.most // layout.gpus
        while True:
            point = self.run(layout, high)
            if point is None:
                return points
            points.append(point)
            if point.met >= self.objective.share:
                break
            if high == most:
                return points
            low, high = high, min(2 * high, most)
        while high - low > 1:
            middle = (low + high) // 2
            point = self.run(layout, middle)
            if point is None:
                break
            points.append(point)
            low, high = (low, middle) if point.met >= self.objective.share else (middle, high)
        return points


class _Fewest:
    """Takes a layout to its runs; kept apart so that other processes can do it."""

    def __init__(self, runs: _Runs) -> None:
        self.runs = runs

    def __call__(self, layout: Layout) -> list[Point]:
        return self.runs.fewest(layout)


def plan_server(
    spec: Spec, objective: Objective, *, workers: int | str | None = 1, stage: Stage = silent
) -> ServerPlan:
    """Return layouts that meet an objective, fewest GPUs first. Raises ConfigError."""
    if objective.ttft_s == objective.tpot_s == math.inf:
        raise ConfigError("expected --ttft, --tpot or both for a server", key="--ttft")
    runs = _Runs(spec, objective)
    serving = serving_section(spec)
    if serving.operators is not None:
        raise spec.error("workload.serving.operators", "got operators of one layout, expected none for a search")
    candidates = layouts(spec, serving)
    if not candidates:
        raise spec.error("workload.serving.model", f"got a model that fits in no layout of {runs.most} GPUs")
    names = [f"{i + 1} of {len(candidates)} layouts: {one.name}" for i, one in enumerate(candidates)]
    points = [point for found in in_order(_Fewest(runs), candidates, workers, stage, names) for point in found]
    points += _apart(runs, points, stage)
    meeting = _best_of_each(objective, points)
    for place, point in enumerate(meeting[:CHECKED]):
        stage(f"all of {point.name}")
        if point.replicas > 1 and not point.whole:
            whole = runs.run(point.layout, point.replicas, whole=True)
            if whole is not None:
                meeting[place] = whole
    ranked = sorted((one for one in meeting if one.met >= objective.share), key=_order)
    return ServerPlan(spec.name, objective, runs.most, tuple(points), tuple(ranked))


def _order(point: Point) -> tuple[float, ...]:
    return (point.gpus, -point.met, point.tpot_s)


def _best_of_each(objective: Objective, points: Iterable[Point]) -> list[Point]:
    """Return the point with fewest GPUs of each layout that meets the objective, fewest first."""
    best: dict[str, Point] = {}
    for point in sorted(points, key=_order):
        if point.met >= objective.share:
            best.setdefault(point.layout.name, point)
    return sorted(best.values(), key=_order)


def _apart(runs: _Runs, points: list[Point], stage: Stage) -> list[Point]:
    """Return runs with prefill and decode apart, of the layout that meets the objective with fewest GPUs."""
    meeting = [one for one in _best_of_each(runs.objective, points) if one.layout.pairs_up]
    if not meeting:
        return []
    layout = meeting[0].layout
    found: list[Point] = []
    most = max(2, meeting[0].replicas)
    for engines in range(min(most, runs.most // layout.gpus), 1, -1):
        met = False
        for prefill in sorted({max(1, engines // 4), engines // 2, max(1, 3 * engines // 4)}):
            if prefill >= engines:
                continue
            pools = layout.apart(prefill, engines - prefill)
            stage(pools.name)
            point = runs.run(pools, 1, whole=True)
            if point is not None:
                found.append(point)
                met = met or point.met >= runs.objective.share
        if not met:
            break
    return found


def best_spec(spec: Spec, found: ServerPlan) -> Spec:
    """Return the spec with the layout of fewest GPUs, under the objective's rate. Raises ConfigError."""
    if not found.ranked:
        raise ConfigError(f"no layout of {found.gpus} GPUs meets the objective", key="--write")
    best = found.ranked[0]
    return with_layout(spec, best.layout, best.replicas, rate=found.objective.rate, prompts=None)
