"""The time of an operation on a GPU: by the measured matrix throughput, or the memory, whichever is slower.

A matrix product takes its FLOPs over the throughput that was measured for products of its shape, and not less
than its bytes over the measured memory rate. Between measured shapes the throughput is the mean of all of them,
weighted by the inverse fourth power of the distance in (log m, log n, log k): the nearest shape decides, a
product that is measured is met exactly, and nothing is extrapolated beyond the range of what was measured.
Everything else (norms, activations, dropout, softmax, residual sums, the optimizer) moves bytes. A kernel takes at
least its launch on the device, because a stream cannot run kernels faster than they are launched; that the host
issues kernels one by one is counted over stretches of many (`Cost.kernels`), because it runs ahead.

Where rows of 16-bit matrices are no multiple of 16 bytes, libraries take slower kernels; what those keep is the
catalog's (`misaligned`), and nothing is lost on GPUs where it was not measured.

In fp8 and fp4 only the linear layers' products are; their results are of two bytes. Casting is counted where it is
a kernel of its own (`cast`, see `formats`); everything else stays in bf16. Products of experts are one after the
other, each a kernel of its own.
"""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.workload.layers import flash_attention as flash
from fabrictwin.workload.layers.number_formats import Attention, Precision, Scaling, format_of

FLOAT_BYTES = 4
ALIGNED_ELEMENTS = 8  # of 2 bytes: what a copy of 16 bytes takes


class Cost(NamedTuple):
    """Time on the device, and its kernels, which the host launches one by one. Costs add up."""

    ps: float = 0.0
    kernels: int = 0

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]  # where tuples are joined
        return Cost(self.ps + other.ps, self.kernels + other.kernels)

    def __mul__(self, times: int) -> Cost:  # type: ignore[override]
        return Cost(self.ps * times, self.kernels * times)

    def scaled(self, share: float) -> Cost:
        """The same kernels at a share of the work each."""
        return Cost(self.ps * share, self.kernels)

    def took_ps(self, launch_ps: int) -> float:
        """Time in ps that the device needs, or the host to issue it, which runs ahead no further than this."""
        return max(self.ps, self.kernels * launch_ps)


NOTHING = Cost()


@record
class Heads:
    """Attention heads of one sequence on one GPU; values are as wide as keys unless told otherwise."""

    count: int
    key_size: int
    value_size: int | None = None

    @property
    def width(self) -> int:
        """Elements of a key and a value together."""
        return self.key_size + (self.key_size if self.value_size is None else self.value_size)


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


class AttentionKernel(NamedTuple):
    """Whose attention runs, and FLOP/s forward and backward where they are not the catalog's."""

    name: Attention = "flash"
    flops_per_s: float | None = None
    backward_flops_per_s: float | None = None


class Roofline:
    """Times of operations on one GPU at one precision of its linear layers."""

    def __init__(
        self,
        gpu: str,
        precision: Precision,
        *,
        scaling: Scaling = "delayed",
        attention: AttentionKernel | None = None,
        share: float = 1.0,
        eager_share: float = 1.0,
        gradient_bytes: int = FLOAT_BYTES,
    ) -> None:
        self.gpu = catalog.gpu(gpu)
        self.precision = precision
        self.vector_precision = "bf16" if precision in ("fp8", "fp4") else precision
        self.format = format_of(precision, scaling)
        self.element_bytes = 2
        self.operand_bytes = self.format.operand_bytes
        self.gradient_bytes = gradient_bytes  # of sums that weights' gradients are added into
        sums = self.gpu.fp8_full_sums if precision == "fp8" else None
        engine = self.gpu.fp4_in_engine if precision == "fp4" else None
        if precision == "fp8":
            engine = {"block": self.gpu.fp8_blocks, "rowwise": self.gpu.fp8_rows}.get(scaling)
        self._backward = float(sums.value) if sums else 1.0
        self._called = float(engine.value) if engine else 1.0
        self._share = share  # of what kernels were measured to reach by themselves
        self._products = share
        self._bytes_per_ps = self.gpu.memory_bandwidth_measured.value / 8 / PS_PER_S * share
        self._eager = eager_share  # of that, what kernels that read no vectors get
        self._launch_ps = self.gpu.kernel_launch.value
        self._misaligned = self.gpu.misaligned
        attention = attention or AttentionKernel()
        known = self.gpu.attention
        measured = known.get(attention.name)
        if measured is None and attention.name == "materialised":
            measured = next(iter(known.values()))  # its time is that of its products and bytes
        if measured is None:
            raise ConfigError(
                f"got {attention.name} on {gpu}, expected one that is known there: {', '.join(known)}",
                key="workload.training.attention",
            )
        self._flash = attention.flops_per_s or measured.throughput.value
        self._flash_width = measured.head_size.value
        found = self.gpu.exponentials
        products = self.gpu.wide_peak / (4 * self._flash_width)
        self._exponential = products / found.value if found else 0.0
        self._flash_backward = attention.backward_flops_per_s

    def with_products(self, factor: float) -> Roofline:
        """Return it with products that reach so many times what the catalog says."""
        found = copy(self)
        found._products = self._share * factor
        return found

    def _product(
        self, m: int, n: int, k: int, batch: int, precision: str, operand: float, accumulate: bool
    ) -> Cost:
        out = 2 * self.gradient_bytes if accumulate else self.element_bytes
        flops = 2.0 * m * n * k * batch
        moved = batch * (operand * (m * k + k * n) + out * m * n)
        # matrices lie by rows of features: n and k of an activation's product, m and n of a weight gradient's
        products, memory = self._kept((m | n) if accumulate else (n | k)) if operand == 2 else (1.0, 1.0)
        seconds = flops / (gemm_flops_per_s(self.gpu.name, precision, m, n, k) * self._products * products)
        return Cost(max(seconds * PS_PER_S, moved / (self._bytes_per_ps * memory), self._launch_ps), 1)

    def _kept(self, sides: int) -> tuple[float, float]:
        """Shares of (the throughput, the memory's rate) that are kept; `sides`: bits of the lengths of rows."""
        found = self._misaligned
        if found is None or sides % ALIGNED_ELEMENTS == 0:
            return 1.0, 1.0
        if sides % 2:
            return float(found.odd_products.value), float(found.odd_memory.value)
        return float(found.even_products.value), float(found.even_memory.value)

    def linear(
        self, m: int, n: int, k: int, *, copies: int = 1, accumulate: bool = False, backward: bool = False
    ) -> Cost:
        """Product of a linear layer, in the job's precision, of `copies` experts one by one.

        `accumulate` adds into sums of `gradient_bytes`. Backward ones in fp8 keep sums in full precision, forward
        ones may not (the default of Transformer Engine and torchao); the tables are of the fast kind.
        """
        cost = self._product(m, n, k, 1, self.precision, self.operand_bytes, accumulate).scaled(self._called)
        return (cost.scaled(self._backward) if backward else cost) * copies

    def gemm(self, m: int, n: int, k: int, *, batch: int = 1, accumulate: bool = False) -> Cost:
        """`batch` products of m × k by k × n in 16 bits, whatever the linear layers are in."""
        return self._product(m, n, k, batch, self.vector_precision, self.element_bytes, accumulate)

    def stream(self, moved_bytes: float) -> Cost:
        """One kernel that moves bytes through memory."""
        return Cost(max(moved_bytes / self._bytes_per_ps, self._launch_ps), 1)

    def eager(self, moved_bytes: float) -> Cost:
        """One kernel of PyTorch's own over values of mixed types or strides, which it does not read in vectors."""
        return self.stream(moved_bytes / self._eager)

    def cast(self, elements: float) -> Cost:
        """To the format of operands, in both orders; nothing in 16 bits."""
        return self.stream(self.format.cast_bytes * elements) if self.format.cast_bytes else NOTHING

    def cast_alone(self, elements: float) -> Cost:
        """A cast that a norm before it would do, if it knew the scale."""
        return self.cast(elements) if self.format.alone else NOTHING

    def transpose(self, elements: float) -> Cost:
        """Cost of transposing small values; none in 16 bits, which products read in either order."""
        return self.stream(2 * self.operand_bytes * elements) if self.format.cast_bytes else NOTHING

    def flash_attention(
        self,
        batch: int,
        heads: Heads,
        sequence: int,
        part: Literal["f", "b"],
        *,
        window: int = 0,
        block: int | None = None,
    ) -> Cost:
        """FlashAttention, causal (half of the products), forward or backward.

        `window`: keys that a query sees, 0 for all; `block`: the length that a kernel works on, if not all.
        """
        width = heads.width
        seen = sequence * sequence / 2
        if window and window + flash.WINDOW_TILE < sequence:
            wide = window + flash.WINDOW_TILE
            seen = wide * (sequence - wide / 2)
        flops = 2.0 * batch * heads.count * seen * width
        length = block or sequence
        rate = self._flash * flash.share(length, part)
        if part == "b":
            flops *= flash.BACKWARD_PRODUCTS
            if self._flash_backward:
                rate = self._flash_backward * flash.share(length, "b") / flash.share(8192, "b")
        longer = flash.stretch(width / 2, self._flash_width, part, self._exponential)
        return Cost(max(flops * longer / (rate * self._share) * PS_PER_S, self._launch_ps), 1)
