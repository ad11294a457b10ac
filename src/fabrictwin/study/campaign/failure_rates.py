"""Failures that come to one job: components with their rates on its devices, and when each strikes.

Failures of a component are a Poisson process of the wall clock, independent of the others. The streams of a
campaign are drawn by counters (`uniform`), so that every policy that is tried meets the same failures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import F64
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.catalog.failures import Shows
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.study.campaign.campaign_section import Campaign
from fabrictwin.study.jitter.distributions import log, normal_above
from fabrictwin.workload.step.disturbed_program import uniform

SECONDS_A_DAY = 86400.0
BLOCK = 256  # failures drawn at a time


@record
class Component:
    """What fails, how often a second in this job, how that shows, and whether the host is replaced."""

    name: str
    title: str
    per_s: float
    shows: Shows
    replaces: bool
    source: str


class Failure(NamedTuple):
    """One failure: when, of which component, and the draws that decide what comes of it, each from 0 to 1."""

    time_s: float
    component: int
    host: float  # which of the job's hosts
    manual: float
    restart: float  # of the normal distribution
    repair: float  # of the normal distribution


def components_of(spec: Spec, campaign: Campaign, devices: Mapping[str, float]) -> tuple[Component, ...]:
    """Components of the named log, one's own rates over them; `devices` counts the job's. Raises ConfigError."""
    try:
        log_of = catalog.failures(campaign.failures)
    except ConfigError as error:  # a name that is not there, with its hint
        raise spec.error("campaign.failures", error.message) from None
    found: dict[str, Component] = {}
    for name, entry in log_of.components.items():
        rate = entry.rate.value
        per_s = rate.a_day(devices[rate.device]) / SECONDS_A_DAY
        found[name] = Component(name, entry.title, per_s, entry.shows, entry.replaces, entry.rate.source)
    for name, own in campaign.rates.items():
        before = found.get(name)
        found[name] = Component(
            name,
            own.title or (before.title if before else name),
            own.rate.a_day(devices[own.rate.device]) / SECONDS_A_DAY,
            own.shows or (before.shows if before else "error"),
            (before.replaces if before else False) if own.replaces is None else own.replaces,
            "the spec",
        )
    scaled = (
        Component(c.name, c.title, c.per_s * campaign.scale, c.shows, c.replaces, c.source) for c in found.values()
    )
    kept = tuple(component for component in scaled if component.per_s > 0)
    if not kept:
        raise spec.error("campaign.failures", "got no component that fails on this job's devices, expected one")
    return kept


class FailureStream:
    """The failures of one campaign in order of time, drawn as far as they are asked for, and kept."""

    def __init__(self, components: tuple[Component, ...], seed: int, run: int) -> None:
        self._rates = np.array([component.per_s for component in components])
        self._seed, self._run = seed, run
        self._drawn: list[Failure] = []
        self._clock_s = 0.0

    def __iter__(self) -> Iterator[Failure]:
        at = 0
        while True:
            if at == len(self._drawn):
                self._draw()
            yield self._drawn[at]
            at += 1

    def _draw(self) -> None:
        block = len(self._drawn) // BLOCK
        total = float(self._rates.sum())
        first = (self._run << 40) + block * BLOCK * 8
        draws: F64 = uniform(self._seed, first + np.arange(BLOCK * 8)).reshape(8, BLOCK)
        gaps = -log(np.maximum(draws[0], 1e-300)) / total
        times = self._clock_s + np.cumsum(gaps)
        which = np.minimum(np.searchsorted(np.cumsum(self._rates), draws[1] * total), len(self._rates) - 1)
        normals = [normal_above(np.clip(draws[i], 1e-12, 1 - 1e-12)) for i in (4, 5)]
        columns = [times, which, draws[2], draws[3], *normals]
        self._drawn += [
            Failure(float(t), int(c), float(h), float(m), float(r), float(p))
            for t, c, h, m, r, p in zip(*columns, strict=True)
        ]
        self._clock_s = float(times[-1])
