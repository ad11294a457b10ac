"""Constants of kernels and their residuals, by family, GPU, type and library: `kernels.yaml`, `kernels.npz`.

`benchmarks/kernel_tables.py` makes both from measurements; `workload/operators` says what each constant is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from fabrictwin.base.yamlfile import read_bundled

CONSTANTS, RESIDUALS = "kernels.yaml", "kernels.npz"
Key = tuple[str, ...]


@cache
def kernel_constants() -> Mapping[Key, Mapping[str, float]]:
    """Return constants by (family, GPU, type, library)."""
    data = read_bundled("fabrictwin.catalog", CONSTANTS)
    assert isinstance(data, dict)
    return {
        tuple(key.split(" ")): {name: float(value) for name, value in row.items()}
        for key, row in data["tables"].items()
    }


@cache
def kernel_residuals() -> Mapping[str, NDArray[np.int8]]:
    """Return residuals in steps, by `family/GPU/type/library`."""
    with resources.files("fabrictwin.catalog").joinpath("data", RESIDUALS).open("rb") as file:
        found = np.load(file, allow_pickle=False)
        return {name: found[name] for name in found.files}
