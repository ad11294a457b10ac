"""Constants of a form from measured times: least absolute logarithmic error, within bounds.

Damped Gauss-Newton steps (Levenberg and Marquardt) on reweighted squares, in logistic coordinates of each
constant's range (of its logarithm where it is above 0), from a first guess and from draws around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from fabrictwin.base.arrays import F64

STARTS, STEPS = 3, 40
NEAR = 0.01
TRIED = 1e-3
SPREAD = 0.7
FARTHEST = 9.0

Bounds = Mapping[str, tuple[float, float, float]]
Form = Callable[[Mapping[str, float]], F64]


def fit_constants(form: Form, measured: F64, bounds: Bounds, *, seed: int = 0) -> dict[str, float]:
    """Return the constants by which `form` is nearest to `measured` times (of any one unit)."""
    names = tuple(bounds)
    low, first, high = (np.log([bounds[name][place] for name in names]) for place in range(3))
    target = np.log(measured)

    def constants(at: F64) -> dict[str, float]:
        return dict(zip(names, np.exp(low + (high - low) / (1 + np.exp(-at))).tolist(), strict=True))

    def errors(at: F64) -> F64:
        off: F64 = np.log(form(constants(at))) - target
        return off

    share = (first - low) / (high - low)
    zero = np.log(share / (1 - share))
    draws = np.random.default_rng(seed)
    best, least = zero, np.inf
    for start in range(STARTS):
        at, off = _descend(errors, zero + draws.normal(0, SPREAD, len(zero)) * (start > 0))
        if off < least:
            best, least = at, off
    return {name: float(f"{value:.4g}") for name, value in constants(best).items()}


def _size(off: F64) -> float:
    return float(np.sqrt(off * off + NEAR * NEAR).mean())


def _descend(errors: Callable[[F64], F64], at: F64) -> tuple[F64, float]:
    off, damping = errors(at), 1e-2
    for _ in range(STEPS):
        slope = np.stack([(errors(at + row) - off) / TRIED for row in np.eye(len(at)) * TRIED], axis=1)
        weight = 1 / np.sqrt(off * off + NEAR * NEAR)
        normal = (slope * weight[:, None]).T @ slope
        right = -(slope * weight[:, None]).T @ off
        before = _size(off)
        for _ in range(8):
            bent = normal + damping * np.diag(np.maximum(np.diag(normal), 1e-6 * np.trace(normal)))
            step = np.clip(np.linalg.solve(bent, right), -1.0, 1.0)
            there = np.clip(at + step, -FARTHEST, FARTHEST)
            found = errors(there)
            if _size(found) < before:
                damping = max(damping / 3, 1e-5)
                break
            damping *= 4
        else:
            break
        at, off = there, found
        if before - _size(off) < 1e-5 * before:
            break
    return at, _size(off)


def spread_out(points: F64, count: int, *, seed: int = 0) -> NDArray[np.int64]:
    """Return places of `count` points that are far from each other: always the farthest from those before."""
    draws = np.random.default_rng(seed)
    if count >= len(points):
        return np.arange(len(points))
    moved = points + draws.normal(0, 0.3, points.shape)
    chosen = [int(draws.integers(len(points)))]
    gap = ((moved - moved[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < count:
        chosen.append(int(gap.argmax()))
        gap = np.minimum(gap, ((moved - moved[chosen[-1]]) ** 2).sum(axis=1))
    return np.array(sorted(chosen))
