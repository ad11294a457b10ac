"""Shares that kernels reach in steps, fitted to published rows: one typical, factors by GPU and by framework.

ln(predicted / published throughput) of a row is close to a line in the logarithm of the share: it is predicted at
two shares, and the rest is linear. Factors are drawn towards 1 and the typical share towards 1 by priors whose
widths stand below (groups of published rows differ by 0.06, rows of a group by as much: docs/validation.md), so
that one row of a GPU or framework moves its factor part of the way. Rows of one model, GPU and framework weigh
together as the root of their count, and a row that is far off weighs less (Huber), because single rows are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import F64
from fabrictwin.base.records import record
from fabrictwin.catalog.step_shares import StepShares, step_shares
from fabrictwin.validation.published_data import Measurements
from fabrictwin.validation.training_cases import Case
from fabrictwin.validation.training_judge import Answers
from fabrictwin.workload.job.workload_section import Training

TYPICAL_WIDTH, FACTOR_WIDTH = 0.15, 0.07  # standard deviations of logarithms, before any row
ROW_WIDTH = 0.06  # of a row's own error
FAR = 1.5  # times that: rows beyond weigh less
ROUNDS = 15
LOWER = 0.85  # times a share, to see how a row changes


@record
class Tilted:
    """A row: ln(predicted / published throughput) at a share of 1, and how it grows with the share's logarithm."""

    case: Case
    gpu: str
    software: str
    log_error: float
    tilt: float

    @property
    def alike(self) -> tuple[str, str, str]:
        """The GPU, framework and model."""
        return self.gpu, self.software, self.case.row.model


def with_share(case: Case, share: float) -> Case:
    """Return the row with a share of its own."""
    assert case.spec is not None
    training = {**(case.spec.workload or {})["training"], "compute_share": share}
    return replace(case, spec=case.spec.model_copy(update={"workload": {"training": training}}))


def features(measurements: Measurements, case: Case) -> tuple[str, str]:
    """Return the GPU and the framework of a row."""
    assert case.spec is not None
    training = Training.model_construct(**(case.spec.workload or {})["training"])
    return catalog.host(measurements.texts.hardware[case.row.hardware].host).gpu, training.software or ""


def tilted(measurements: Measurements, cases: Iterable[Case], answers: Answers) -> list[Tilted]:
    """Return all rows that are predicted, around the catalog's shares."""
    found = []
    cases = [case for case in cases if case.spec is not None]
    known = [(case, *features(measurements, case)) for case in cases]
    shares = [step_shares().of(gpu, software) for _, gpu, software in known]
    at = answers.of(with_share(case, share) for case, share in zip(cases, shares, strict=True))
    below = answers.of(with_share(case, share * LOWER) for case, share in zip(cases, shares, strict=True))
    for (case, gpu, software), share, one, other in zip(known, shares, at, below, strict=True):
        if one.error is None or other.error is None:
            continue
        error = math.log1p(one.error)
        tilt = (error - math.log1p(other.error)) / -math.log(LOWER)
        found.append(Tilted(case, gpu, software, error - tilt * math.log(share), tilt))
    return found


def fit_shares(rows: Iterable[Tilted]) -> StepShares:
    """Return the shares that leave least of rows' errors and of the factors' logarithms."""
    rows = list(rows)
    gpus, software = (sorted({key for row in rows if (key := getattr(row, name))}) for name in ("gpu", "software"))
    columns: Mapping[tuple[str, str], int] = {
        key: i + 1 for i, key in enumerate([*(("gpu", x) for x in gpus), *(("software", x) for x in software)])
    }
    tilts = np.zeros((len(rows), 1 + len(columns)))
    for line, row in zip(tilts, rows, strict=True):
        own = [columns[key] for key in (("gpu", row.gpu), ("software", row.software)) if key in columns]
        line[[0, *own]] = row.tilt
    wanted = np.array([-row.log_error for row in rows])
    count = Counter(row.alike for row in rows)
    weights = np.array([count[row.alike] ** -0.5 for row in rows]) / ROW_WIDTH**2
    prior = np.diag([TYPICAL_WIDTH**-2, *([FACTOR_WIDTH**-2] * len(columns))])
    at = _least(tilts, wanted, weights, prior)
    factors = np.exp(at).round(3).tolist()
    found = ({key: factors[i] for (of, key), i in columns.items() if of == name} for name in ("gpu", "software"))
    return StepShares(factors[0], *found)


def _least(tilts: F64, wanted: F64, weights: F64, prior: F64) -> F64:
    """Return the point of least squares with a prior around 0, rows that are far off weighing less each round."""
    now = weights
    at: F64 = np.zeros(tilts.shape[1])
    for _ in range(ROUNDS):
        at[:] = np.linalg.solve(tilts.T @ (tilts * now[:, None]) + prior, tilts.T @ (wanted * now))
        now = weights / np.maximum(1.0, np.abs(wanted - tilts @ at) / (FAR * ROW_WIDTH))
    return at


def shared(measurements: Measurements, case: Case, shares: StepShares) -> Case:
    """Return the row with the share that its GPU and framework have by these."""
    return case if case.spec is None else with_share(case, shares.of(*features(measurements, case)))
