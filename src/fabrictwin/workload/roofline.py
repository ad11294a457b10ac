"""How long an operation takes on a GPU: the measured matrix throughput, or the memory, whichever is slower.

A matrix product takes its FLOPs over the throughput that was measured for products of its shape, and not less
than its bytes over the measured memory rate. Between measured shapes the throughput is the mean of all of them,
weighted by the inverse fourth power of the distance in (log m, log n, log k): the nearest shape decides, a
product that is measured is met exactly, and nothing is extrapolated beyond the range of what was measured.
Everything else (norms, activations, dropout, softmax, residual sums, the optimizer) moves bytes. A kernel takes at
least its launch on the device, because a stream cannot run kernels faster than they are launched; that the host
issues kernels one by one is counted over stretches of many (`Cost.kernels`), because it runs ahead.

In fp8 only the linear layers' products are: operands of one byte, results of two. Casting is counted where it is
a kernel of its own (`cast`); everything else stays in bf16.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from fabrictwin import catalog
from fabrictwin.units import PS_PER_S

BACKWARD_FLASH = 2.5  # FlashAttention-2, section 4: five products backward for two forward
FLOAT_BYTES = 4
# Backward products in fp8 keep sums in full precision, forward ones may not (the default of Transformer Engine and
# torchao); torchao issue 2377 measured 1.1 to 1.2 between the two on Hopper. The tables are of the fast one.
SLOW_SUMS = 1.15


@dataclass(frozen=True)
class Cost:
    """Time on the device and how many kernels it takes. Costs add up."""

    ps: float = 0.0
    kernels: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.ps + other.ps, self.kernels + other.kernels)

    def __mul__(self, times: int) -> Cost:
        return Cost(self.ps * times, self.kernels * times)

    def scaled(self, share: float) -> Cost:
        """The same kernels at a share of the work each."""
        return Cost(self.ps * share, self.kernels)


NOTHING = Cost()


@cache
def _measured(gpu: str, precision: str) -> tuple[np.ndarray, np.ndarray]:
    rows = catalog.gemm_efficiency(gpu, precision)
    shapes = np.log2(np.array([row[:3] for row in rows], float))
    return shapes, np.array([row[3] for row in rows], float)


@cache
def gemm_flops_per_s(gpu: str, precision: str, m: int, n: int, k: int) -> float:
    """Throughput of an m × n × k product, from the nearest measured shapes (m and n may change places)."""
    shapes, throughput = _measured(gpu, precision)
    best = np.full(len(shapes), np.inf)
    for shape in ((m, n, k), (n, m, k)):
        distance = ((shapes - np.log2(np.array(shape, float))) ** 2).sum(axis=1)
        best = np.minimum(best, distance)
    if best.min() == 0:
        return float(throughput[best == 0].mean())
    weight = best**-2.0
    return float((weight * throughput).sum() / weight.sum())


class Roofline:
    """Times of operations on one GPU at one precision of its linear layers."""

    def __init__(self, gpu: str, precision: str, *, flash_flops_per_s: float | None = None) -> None:
        self.gpu = catalog.gpu(gpu)
        self.precision = precision
        self.vector_precision = "bf16" if precision == "fp8" else precision
        self.element_bytes = 2
        self.operand_bytes = 1 if precision == "fp8" else 2
        self._bytes_per_ps = self.gpu.memory_bandwidth_measured.value / 8 / PS_PER_S
        self._launch_ps = self.gpu.kernel_launch.value
        self._flash = flash_flops_per_s or self.gpu.attention["flash"].throughput.value

    def _product(self, m: int, n: int, k: int, batch: int, precision: str, operand: int, out: int) -> Cost:
        flops = 2.0 * m * n * k * batch
        moved = batch * (operand * (m * k + k * n) + out * m * n)
        seconds = flops / gemm_flops_per_s(self.gpu.name, precision, m, n, k)
        return Cost(max(seconds * PS_PER_S, moved / self._bytes_per_ps, self._launch_ps), 1)

    def linear(
        self, m: int, n: int, k: int, *, batch: int = 1, accumulate: bool = False, backward: bool = False
    ) -> Cost:
        """Product of a linear layer, in the job's precision. `accumulate` adds into 4-byte sums."""
        out = 2 * FLOAT_BYTES if accumulate else self.element_bytes
        cost = self._product(m, n, k, batch, self.precision, self.operand_bytes, out)
        return cost.scaled(SLOW_SUMS) if backward and self.precision == "fp8" else cost

    def gemm(self, m: int, n: int, k: int, *, batch: int = 1, accumulate: bool = False) -> Cost:
        """`batch` products of m × k by k × n in 16 bits, whatever the linear layers are in."""
        out = 2 * FLOAT_BYTES if accumulate else self.element_bytes
        return self._product(m, n, k, batch, self.vector_precision, self.element_bytes, out)

    def stream(self, moved_bytes: float) -> Cost:
        """One kernel that moves bytes through memory."""
        return Cost(max(moved_bytes / self._bytes_per_ps, self._launch_ps), 1)

    def cast(self, elements: float) -> Cost:
        """To fp8, and transposed for the product that wants the other order; nothing in other precisions."""
        return self.stream((2 + 1 + 1) * elements) if self.precision == "fp8" else NOTHING

    def transpose(self, elements: float) -> Cost:
        """Of fp8 values that arrived in one order alone; nothing in other precisions, which read either."""
        return self.stream(2 * elements) if self.precision == "fp8" else NOTHING

    def flash_attention(
        self,
        batch: int,
        heads: int,
        sequence: int,
        key_size: int,
        part: Literal["f", "b"],
        *,
        value_size: int | None = None,
    ) -> Cost:
        """FlashAttention, causal (half of the products), forward or backward."""
        width = key_size + (key_size if value_size is None else value_size)
        flops = 2.0 * batch * heads * sequence * sequence * width / 2
        scale = 1.0 if part == "f" else BACKWARD_FLASH
        return Cost(max(scale * flops / self._flash * PS_PER_S, self._launch_ps), 1)
