"""How long an operation takes on a GPU: the measured matrix throughput, or the memory, whichever is slower.

A matrix product takes its FLOPs over the throughput that was measured for products of its shape, and not less
than its bytes over the measured memory rate. Between measured shapes the throughput is the mean of all of them,
weighted by the inverse fourth power of the distance in (log m, log n, log k): the nearest shape decides, a
product that is measured is met exactly, and nothing is extrapolated beyond the range of what was measured.
Everything else (norms, activations, dropout, softmax, residual sums, the optimizer) moves bytes. A kernel takes at
least its launch, because a stream cannot run kernels faster than they are launched.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

from fabrictwin import catalog
from fabrictwin.units import PS_PER_S

BACKWARD_FLASH = 2.5  # FlashAttention-2, section 4: five products backward for two forward


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
    """Times of operations on one GPU at one precision, in picoseconds."""

    def __init__(self, gpu: str, precision: str) -> None:
        self.gpu = catalog.gpu(gpu)
        self.precision = precision
        self.element_bytes = {"fp8": 1, "fp32": 4, "tf32": 4}.get(precision, 2)
        self._bytes_per_ps = self.gpu.memory_bandwidth_measured.value / 8 / PS_PER_S
        self._launch_ps = self.gpu.kernel_launch.value

    def gemm(self, m: int, n: int, k: int, *, batch: int = 1, accumulate: bool = False) -> float:
        """`batch` products of m × k by k × n. `accumulate` adds into 4-byte sums, as weight gradients do."""
        flops = 2.0 * m * n * k * batch
        out = 8 if accumulate else self.element_bytes
        moved = batch * (self.element_bytes * (m * k + k * n) + out * m * n)
        seconds = flops / gemm_flops_per_s(self.gpu.name, self.precision, m, n, k)
        return max(seconds * PS_PER_S, moved / self._bytes_per_ps, self._launch_ps)

    def stream(self, moved_bytes: float) -> float:
        """One kernel that moves bytes through memory."""
        return max(moved_bytes / self._bytes_per_ps, self._launch_ps)

    def flash_attention(
        self, batch: int, heads: int, sequence: int, head_size: int, part: Literal["f", "b"]
    ) -> float:
        """FlashAttention, causal (half of the products), forward or backward."""
        flops = 4.0 * batch * heads * sequence * sequence * head_size / 2
        throughput = self.gpu.attention["flash"].throughput.value
        scale = 1.0 if part == "f" else BACKWARD_FLASH
        return max(scale * flops / throughput * PS_PER_S, self._launch_ps)
