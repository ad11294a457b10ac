"""Shares of their own throughput that kernels reach in training steps, by GPU and software: `step_shares.yaml`.

A step's kernels run one behind the other for hours, at the clocks that a power limit leaves, beside communication
that takes their memory, under a framework that costs something between them; the catalog's throughputs are those
of kernels by themselves. A share is the product of what is typical, what a GPU does beside that, and what a
framework does. `fabrictwin validate training --fit` fits all of them to published steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from fabrictwin.base.records import record
from fabrictwin.base.yamlfile import read_bundled

FILE = "step_shares.yaml"


@record
class StepShares:
    """A share, and factors on it: 1 for a GPU or software of which no step was published."""

    typical: float
    gpus: Mapping[str, float]
    software: Mapping[str, float]

    def of(self, gpu: str, software: str | None = None) -> float:
        """Return the share of a GPU under a framework, at most 1."""
        return min(1.0, self.typical * self.gpus.get(gpu, 1.0) * self.software.get(software or "", 1.0))


@cache
def step_shares() -> StepShares:
    """Return the catalog's shares."""
    data = read_bundled("fabrictwin.catalog", FILE)
    assert isinstance(data, dict)
    factors = ({name: float(value) for name, value in data[key].items()} for key in ("gpus", "software"))
    return StepShares(float(data["typical"]), *factors)
