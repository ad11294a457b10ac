"""The time of a captured kernel on another GPU than it ran on: the roofline, by its shape."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from fabrictwin import catalog
from fabrictwin.base.units import PS_PER_S
from fabrictwin.catalog.step_shares import step_shares
from fabrictwin.workload.captured.captured_file import DTYPES
from fabrictwin.workload.captured.captured_job import Work
from fabrictwin.workload.layers.number_formats import Attention
from fabrictwin.workload.layers.roofline import AttentionKernel, Heads, Roofline


class KernelTimes:
    """Times of kernels on one GPU of the catalog.

    Kernels reach in a program what they reach in training steps on that GPU (`catalog.step_shares`). Products in a
    format whose throughput nobody measured take bf16's, by the ratio of the data sheet's peaks.
    """

    def __init__(self, gpu: str, launch_ps: int) -> None:
        self.gpu, self.launch_ps = catalog.gpu(gpu), launch_ps
        self._known: dict[Work, int] = {}
        self._share = step_shares().of(gpu)
        self.notes: set[str] = set()

    @cached_property
    def _roofline(self) -> Roofline:
        # what scaled_dot_product_attention calls where it can (PyTorch since 2.5, on Hopper)
        kernels: tuple[Attention, ...] = ("cudnn", "flash", "materialised")
        attention = AttentionKernel(next(kernel for kernel in kernels if kernel in self.gpu.attention))
        return Roofline(self.gpu.name, self.gpu.wide_type, attention=attention, share=self._share)

    def time_ps(self, work: Work) -> int:
        """Time of one kernel, at least what the host needs to issue it. Raises ConfigError."""
        if work not in self._known:
            self._known[work] = round(max(self._device_ps(work), self.launch_ps))
        return self._known[work]

    def _device_ps(self, work: Work) -> float:
        roofline, took = self._roofline, 0.0
        if work.gemm is not None:
            m, n, k, batch = work.gemm
            factor = self._slower(work.dtype)
            took += max(roofline.gemm(m, n, k, batch=batch).ps * factor, self._moved(work))
        if work.attention is not None:
            batch, heads, width, sequence = work.attention
            part: Literal["f", "b"] = "b" if work.backward else "f"
            found = roofline.flash_attention(batch, Heads(heads, width // 2, width - width // 2), sequence, part)
            took += found.ps * self._slower(work.dtype)
        if work.gemm is None and work.attention is None:
            took += roofline.stream(work.moved_bytes).ps
        return took

    def _moved(self, work: Work) -> float:
        """Time in ps to move a product's own matrices in its number format."""
        assert work.gemm is not None
        m, n, k, batch = work.gemm
        moved = DTYPES[work.dtype] * batch * (m * k + k * n + m * n)
        return moved * 8 * PS_PER_S / (self.gpu.memory_bandwidth_measured.value * self._share)

    def _slower(self, dtype: str) -> float:
        """Return how many times as long as in bf16 a product takes in this format, by the data sheet."""
        if dtype in ("bf16", "fp16"):
            return 1.0
        peaks = self.gpu.peak_flops
        known = {"fp64": ("fp64", "fp32"), "fp32": ("fp32",), "tf32": ("tf32", "fp32"), "fp8": ("fp8", "bf16")}
        for name in known[dtype]:
            if name in peaks:
                if name != dtype:
                    self.notes.add(f"products in {dtype} are timed at the peak of {name} on {self.gpu.name}")
                return self.gpu.wide_peak / float(peaks[name].value)
        self.notes.add(f"products in {dtype} are timed as in bf16: the catalog has no peak for {self.gpu.name}")
        return 1.0
