"""Constants and residuals of kernels, by family, GPU, type and library: those of the catalog, or fitted anew.

A GPU of which nothing was measured takes the constants of the nearest: of its own generation before others, and of
the one with the most alike rates, with its own data sheet. Residuals carry over inside a generation alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import F64
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S, PS_PER_US
from fabrictwin.catalog.kernels import kernel_constants, kernel_residuals
from fabrictwin.workload.operators.attention import WITHOUT_SPLIT, prompt_kernel
from fabrictwin.workload.operators.experts import WIDENED_BOUNDS
from fabrictwin.workload.operators.families import FAMILIES, FORMATS, STAND_INS, WIDENED
from fabrictwin.workload.operators.fitting import fit_constants, spread_out
from fabrictwin.workload.operators.measurements import Measured
from fabrictwin.workload.operators.products import Chip, Format, constants_of
from fabrictwin.workload.operators.residuals import ResidualGrid, fit_residuals

FITTED_TO = 400
US_PER_S = PS_PER_S // PS_PER_US
BITS = 8


@record
class Table:
    """What a family takes on a GPU in one type; `of` is the GPU that was measured."""

    family: str
    of: str
    type: str
    constants: Mapping[str, float]
    residuals: ResidualGrid | None

    def time_us(self, chip: Chip, shapes: F64) -> F64:
        """Return times of shapes on a chip, in microseconds."""
        family = FAMILIES[self.family]
        times = family.time_us(self.constants, chip, format_of(self.type), shapes)
        return times if self.residuals is None else times * self.factor(shapes)

    def factor(self, shapes: F64) -> F64:
        """Return what measured times are over the form's."""
        if self.residuals is None:
            return np.ones(len(shapes))
        return self.residuals.at(FAMILIES[self.family].points(shapes))

    def factor_of(self, *variables: float) -> float:
        """Return what one measured time is over the form's, by the variables that residuals lie over."""
        return 1.0 if self.residuals is None else self.residuals.at_one(*map(math.log2, variables))


def format_of(name: str) -> Format:
    """Return the format of `fp8` or `fp8/balanced`."""
    return FORMATS[name.partition("/")[0]]


@cache
def chip_of(gpu: str, family: str, name: str) -> Chip:
    """Return the data sheet of a GPU for a family in a type."""
    entry = catalog.gpu(gpu)
    wanted = FAMILIES[family].peak or name.partition("/")[0].partition("-")[0]
    peak = entry.peak_flops.get(wanted) or entry.peak_flops[entry.wide_type]
    return Chip(
        int(entry.sm_count.value),
        float(peak.value) / US_PER_S,
        float(entry.memory_bandwidth.value) / BITS / US_PER_S,
        generation(gpu),
    )


@cache
def table(family: str, gpu: str, name: str, library: str = "") -> Table | None:
    """Return the table of a family in a type, of the GPU or the nearest that was measured; None if none was.

    Without a `library` the first that was measured. Weights that are widened take the table of all of them.
    """
    kind, _, load = name.partition("/")
    if kind.partition("-")[0] == WIDENED and kind != STAND_INS[family]:
        found = table(family, gpu, f"{STAND_INS[family]}/{load}" if load else STAND_INS[family], library)
        return replace(found, type=name) if found else None
    known = kernel_constants()
    measured: dict[str, tuple[str, ...]] = {}
    for key in known:
        if key[0] == family and key[2] == name and library in ("", key[3]):
            measured.setdefault(key[1], key)
    if not measured:
        return None
    of = nearest(gpu, measured)
    key = measured[of]
    steps = kernel_residuals().get("/".join(key))
    grid = None
    if steps is not None and generation(of) == generation(gpu):
        grid = ResidualGrid(FAMILIES[family].axes, steps)
    return Table(family, of, name, known[key], grid)


def generation(gpu: str) -> int:
    """Return the first digits of the compute capability: 9 of Hopper, 10 of Blackwell."""
    return int(catalog.gpu(gpu).compute_capability.value) // 10


def nearest(gpu: str, measured: Iterable[str]) -> str:
    """Return the GPU itself if it was measured, else the most alike."""
    return min(measured, key=lambda other: (other != gpu, _distance(gpu, other), other))


def _distance(gpu: str, other: str) -> tuple[int, float]:
    one, two = catalog.gpu(gpu), catalog.gpu(other)
    unlike = 0.0
    for a, b in (
        (one.memory_bandwidth.value, two.memory_bandwidth.value),
        (one.wide_peak, two.wide_peak),
        (one.sm_count.value, two.sm_count.value),
    ):
        unlike += abs(math.log(float(a) / float(b)))
    return abs(generation(gpu) - generation(other)), unlike


def _bounds(chip: Chip, measured: Measured) -> Mapping[str, tuple[float, float, float]]:
    """Return the constants that kernels have, with their bounds."""
    bounds = FAMILIES[measured.family].bounds
    if measured.family == "products":
        return {name: bounds[name] for name in constants_of(chip, format_of(measured.type))}
    if measured.family == "prompts" and not prompt_kernel(chip).splits:
        return {name: bounds[name] for name in WITHOUT_SPLIT}
    if measured.family == "experts" and measured.type.startswith(WIDENED):
        return WIDENED_BOUNDS
    return bounds


def fit_table(gpu: str, measured: Measured, *, residuals: bool = True, seed: int = 0) -> Table:
    """Return the table that is nearest to measurements on a GPU."""
    family = FAMILIES[measured.family]
    form = format_of(measured.type)
    chip = chip_of(gpu, measured.family, measured.type)
    bounds = _bounds(chip, measured)
    points = family.points(measured.shapes)
    chosen = spread_out(points, FITTED_TO, seed=seed)
    constants = fit_constants(
        lambda found: family.time_us(found, chip, form, measured.shapes[chosen]),
        measured.times_us[chosen],
        bounds,
        seed=seed,
    )
    grid = None
    if residuals:
        off = np.log(measured.times_us / family.time_us(constants, chip, form, measured.shapes))
        grid = fit_residuals(family.axes, points, off)
    return Table(measured.family, gpu, measured.type, constants, grid)
