"""Times of the kernels that a server runs, by shape: the operators of `workload.operators` on one GPU.

Linear layers are products with their cast, logits and routers products in 16 bits. Attention of prompts counts the
blocks of all chunks together, that of decodes the KV that they read. Fused experts take what was measured where
tokens fall on experts by a power law of 1.01, in fp8 with a scale for every block, as published mixtures have.
Small kernels take at least what LLMServingSim's profiles show of norms and rotations. Weights of 4 bits are
widened to 16 while they are read where the GPU multiplies no fp4, and always where they are int4 or MXFP4; Marlin
does it but for MXFP4, which has kernels of its own on Hopper and Blackwell (`runs_marlin`). Heads of any size are
corrected as those of 128 are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import log2

import numpy as np

from fabrictwin import catalog
from fabrictwin.serving.step.expert_parallel import MoeBackend
from fabrictwin.workload.model.model_blocks import WIDE, Experts, Weights
from fabrictwin.workload.operators import attention, grouped, tables
from fabrictwin.workload.operators.measurements import exponent_of
from fabrictwin.workload.operators.tables import Table

WIDE_BYTES = 2
SMALL_US = 2.4
"""Least time of a norm, a rotation or an activation (LLMServingSim's profiles: 1.9 to 2.9)."""
UNEVEN = "power_law_1.01"
BLACKWELL = 10  # its compute capability
EXPERT_TYPES = {"none": "bf16", "fp8": "fp8-block"}
MARLIN = {"int4": "marlin-int4", "fp4": "marlin-fp4", "mxfp4": "marlin"}
"""Types by how weights are stored that Marlin widens."""
PADDED_TO = {9: (1, 64), 10: (256, 256)}
MARLIN_PADS = (256, 128)
"""Multiples that vLLM pads hidden and inner width of MXFP4 experts to, by generation: Triton's kernels on Hopper,
TensorRT-LLM's on Blackwell, Marlin elsewhere (`fused_moe/oracle/mxfp4.py` of 0.19)."""


def runs_marlin(gpu: str, stored: str, asked: MoeBackend = "auto") -> bool:
    """Return True where Marlin runs experts that are stored so (`fused_moe/oracle` of 0.19)."""
    if stored == "mxfp4":
        return asked == "marlin" or tables.generation(gpu) not in PADDED_TO
    return stored in MARLIN and stored not in catalog.gpu(gpu).peak_flops


def padded_widths(
    gpu: str, weights: Weights, hidden: int, inner: int, asked: MoeBackend = "auto"
) -> tuple[int, int]:
    """Return the hidden and inner width that a GPU's experts are stored and computed with."""
    if weights.experts != "mxfp4":
        return hidden, inner
    marlin = runs_marlin(gpu, weights.experts, asked)
    pads = MARLIN_PADS if marlin else PADDED_TO[tables.generation(gpu)]
    return -(-hidden // pads[0]) * pads[0], -(-inner // pads[1]) * pads[1]


def _type_of(gpu: str, stored: str) -> str:
    """Return the type that a GPU's linear layers work with on weights that are stored so."""
    if stored in MARLIN and stored not in catalog.gpu(gpu).peak_flops:
        return MARLIN[stored]
    return "bf16" if stored == "none" else stored


def _type_of_experts(gpu: str, stored: str, asked: MoeBackend) -> str:
    if runs_marlin(gpu, stored, asked):
        return MARLIN[stored]
    return EXPERT_TYPES.get(stored, stored)


def _table(family: str, gpu: str, *types: str) -> Table:
    found = next((one for name in types if (one := tables.table(family, gpu, name)) is not None), None)
    assert found is not None  # 16 bits were measured
    return found


@cache
def _linear_us(gpu: str, precision: str, m: int, n: int, k: int) -> float:
    known = _table("products", gpu, precision, "bf16")
    if "single" in known.constants:  # a server's program casts any number of rows by one kernel
        m = max(m, 2)
    return float(known.time_us(tables.chip_of(gpu, "products", known.type), np.array([[m, n, k]], float))[0])


class Kernels:
    """Times of kernels on one GPU with weights that are stored in some way, microseconds."""

    def __init__(
        self,
        gpu: str,
        weights: Weights = WIDE,
        kv_bytes: float = 2.0,
        *,
        clamped: bool = False,
        moe_backend: MoeBackend = "auto",
    ) -> None:
        entry = catalog.gpu(gpu)
        self.gpu = entry
        self._linear = _type_of(gpu, weights.linear)
        kept = "fp8" if kv_bytes == 1 else "bf16"
        self._kv_bytes = kv_bytes
        self._prompts = _table("prompts", gpu, kept)
        self._decodes = _table("decodes", gpu, kept)
        known = f"{_type_of_experts(gpu, weights.experts, moe_backend)}/{UNEVEN}"
        # Blackwell's fastest kernels do not clamp what SwiGLU reads, but for MXFP4, whose models all do
        others = [f"{known}/clamped"] if clamped and tables.generation(gpu) == BLACKWELL else []
        others = [] if weights.experts == "mxfp4" else others
        self._experts = _table("experts", gpu, *others, known, f"bf16/{UNEVEN}")
        self._unevenness = exponent_of(UNEVEN)
        self._weights, self._moe_backend = weights, moe_backend
        self._attention_chip = tables.chip_of(gpu, "prompts", kept)
        self._decoding: dict[tuple[int, int, int], Callable[[float], float]] = {}
        self._measured_rate = float(entry.memory_bandwidth_measured.value) / 8 / 1e6

    def linear(self, m: int, n: int, k: int) -> float:
        """Return the time of a linear layer, its cast included."""
        return _linear_us(self.gpu.name, self._linear, m, n, k)

    def gemm(self, m: int, n: int, k: int) -> float:
        """Return the time of a product in 16 bits."""
        return _linear_us(self.gpu.name, "bf16", m, n, k)

    def small(self, moved_bytes: float) -> float:
        """Return the time of a kernel that reads and writes."""
        return max(SMALL_US, moved_bytes / self._measured_rate)

    def experts(
        self, tokens: int, experts: Experts, hidden: int, inner: int, ups: int, *, ranks: int = 1
    ) -> float:
        """Return the time of a layer's fused experts: all products, sorting, activation and sum.

        `inner` is an expert's width on this rank, `ups` its matrices up; `ranks` share the experts.
        """
        chip = tables.chip_of(self.gpu.name, "experts", self._experts.type)
        pad = 0.0
        if self._experts.type.startswith(MARLIN["mxfp4"]):  # what was measured of others has its padding in it
            widths = padded_widths(self.gpu.name, self._weights, hidden, inner, self._moe_backend)
            if widths[0] > hidden:
                pad = self.small(tokens * (hidden + widths[0]) * WIDE_BYTES)
            hidden, inner = widths
        shape = np.array(
            [[tokens, hidden, inner, experts.top_k, experts.count, ranks, ups, self._unevenness]], float
        )
        return pad + float(self._experts.time_us(chip, shape)[0])

    def padded_experts(
        self, tokens: int, experts: Experts, hidden: int, inner: int, ups: int, *, ranks: int = 1
    ) -> float:
        """Return the time of a layer's experts in fp8 by DeepGEMM's contiguous layout, as vLLM calls it.

        The host does not know how many tokens each expert gets, so there are rows for every token and choice and
        127 more for every expert (`compute_aligned_M`); blocks without tokens are the first expert's, and are
        worked on as well (`deepgemm_moe_permute`). Experts are taken to be chosen at random.
        """
        own = max(experts.count // ranks, 1)
        rows = -(-(tokens * experts.top_k + own * (grouped.BLOCK - 1)) // grouped.BLOCK) * grouped.BLOCK
        met = own * (1 - (1 - experts.top_k / experts.count) ** tokens)
        chip = tables.chip_of(self.gpu.name, "products", "fp8")
        time = grouped.grouped_us(chip, rows, ups * inner, hidden, met)
        time += grouped.grouped_us(chip, rows, hidden, inner, met)
        copies = tokens * experts.top_k / ranks
        moved = (
            *(0, 0, 0, 0),  # the choice, counts, clearing, where each expert's rows begin
            tokens * hidden * (WIDE_BYTES + 1),
            copies * hidden * 2,
            rows * inner * (ups + 1) * WIDE_BYTES,
            rows * inner * (WIDE_BYTES + 1),
            (copies + tokens) * hidden * WIDE_BYTES,
        )
        return time + sum(self.small(each) for each in moved)

    def prompt_attention(
        self, heads: int, chunks: Sequence[tuple[int, int]], width: int, kv_bytes_per_token: float
    ) -> float:
        """Return the time of one layer's attention of prompts: (tokens, tokens before them) of each.

        `heads` of queries on this rank, `width` of a key and a value together.
        """
        known, per_token = self._prompts, kv_bytes_per_token / self._kv_bytes
        kv_heads = min(float(heads), max(1.0, per_token / width))
        tokens, before = np.array(chunks, float).T
        one, queries, shared = np.array((1.0, heads, kv_heads))
        kernel = attention.prompt_kernel(self._attention_chip)
        found = attention.Blocks.of(kernel, one, tokens, before, queries, shared, width)
        seen = before + tokens
        found = replace(found, read=seen * per_token, written=tokens * per_token).together()
        time = attention.prompt_us(known.constants, self._attention_chip, found, width, self._kv_bytes)
        cached, squares = float(seen.sum()), float(seen @ seen)
        length = squares / cached
        factor = known.factor_of(length, cached / length * heads, heads / kv_heads)
        return float(time) * factor

    def decode_attention(self, kv_bytes: float, sequences: int, heads: int, kv_heads: int) -> float:
        """Return the time of one layer's attention of decodes: bytes of KV read, sequences, heads on this rank."""
        key = (sequences, heads, kv_heads)
        time = self._decoding.get(key)
        if time is None:
            time = self._decoding[key] = self._decodes_of(*key)
        return time(kv_bytes)

    def _decodes_of(self, sequences: int, heads: int, kv_heads: int) -> Callable[[float], float]:
        """Return one layer's attention of so many decodes as a function of the bytes of KV read."""
        known, rows = self._decodes, sequences * kv_heads
        line = attention.decode_line(known.constants, self._attention_chip, rows, sequences * heads)
        if known.residuals is None:
            return line
        factor = known.residuals.along_first(log2(rows), log2(heads / kv_heads))
        per_token = rows * attention.WIDTH * self._kv_bytes
        return lambda size: line(size) * factor(log2(max(1.0, size / per_token)))
