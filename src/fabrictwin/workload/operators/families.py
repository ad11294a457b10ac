"""The families of kernels whose constants are fitted to measurements: their form, bounds, and grid of residuals.

A family's shapes are rows of numbers. `time_us` is its form; `points` are the logarithms that residuals lie over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fabrictwin.base.arrays import F64
from fabrictwin.base.records import record
from fabrictwin.workload.operators import attention, experts, products
from fabrictwin.workload.operators.products import Chip, Format

FORMATS = {
    "bf16": Format(2.0, cast=False),
    "fp8": Format(1.0, cast=True),
    "fp8-block": Format(1.0 + 4 / 128, cast=True),
    "fp4": Format(0.5 + 1 / 16, cast=True),
    "mxfp4": Format(2.0, cast=False, stored_bytes=0.5 + 1 / 32),
    "marlin": Format(2.0, cast=False, stored_bytes=0.5 + 1 / 32, marlin=True),
    "marlin-fp4": Format(2.0, cast=False, stored_bytes=0.5 + 1 / 16, marlin=True),
    "marlin-int4": Format(2.0, cast=False, stored_bytes=0.5 + 2 / 128, marlin=True),
}
"""Types of operands, with the bytes of their scales: one of 4 bytes for 128 values, or of one byte for 16 or 32.

Weights of 4 bits that a kernel widens to 16 as it reads them: `mxfp4` by Triton's or TensorRT-LLM's, `marlin` by
Marlin, with the scales of MXFP4, of NVFP4 or of int4.
"""
WIDENED = "marlin"
STAND_INS = {"products": "bf16", "experts": WIDENED}
"""By family the type whose constants weights take that Marlin widens: of its products nothing was measured."""


@record
class Family:
    """A kind of kernels.

    Attributes:
        bounds: Constants, each with the least, a first guess, and the most.
        axes: Of the grid of residuals.
        time_us: Form: constants, chip, format of operands (of KV in attention), shapes.
        points: Rows of shapes to rows of the axes' variables.
        peak: Type whose peak rate the form takes where it is not that of the operands.
    """

    bounds: Mapping[str, tuple[float, float, float]]
    axes: tuple[F64, ...]
    time_us: Callable[[Mapping[str, float], Chip, Format, F64], F64]
    points: Callable[[F64], F64]
    peak: str = ""


def _log2(values: F64) -> F64:
    found: F64 = np.log2(values)
    return found


def _attention_points(shapes: F64) -> F64:
    sequences, tokens, heads, kv_heads = shapes.T
    return _log2(np.stack([tokens, sequences * heads, heads / kv_heads], axis=1))


def _decode_points(shapes: F64) -> F64:
    sequences, tokens, heads, kv_heads = shapes.T
    return _log2(np.stack([tokens, sequences * kv_heads, heads / kv_heads], axis=1))


def _prompt(constants: Mapping[str, float], chip: Chip, form: Format, shapes: F64) -> F64:
    sequences, tokens, heads, kv_heads = shapes.T
    kernel, before = attention.prompt_kernel(chip), np.zeros(len(tokens))
    found = attention.Blocks.of(kernel, sequences, tokens, before, heads, kv_heads, attention.WIDTH)
    return attention.prompt_us(constants, chip, found, attention.WIDTH, form.operand_bytes)


def _decode(constants: Mapping[str, float], chip: Chip, form: Format, shapes: F64) -> F64:
    sequences, tokens, heads, kv_heads = shapes.T
    read = sequences * tokens * kv_heads * attention.WIDTH * form.operand_bytes
    return attention.decode_us(constants, chip, read, sequences * kv_heads, sequences * heads)


def _experts(constants: Mapping[str, float], chip: Chip, form: Format, shapes: F64) -> F64:
    return experts.experts_us(constants, chip, form, shapes)


def _expert_points(shapes: F64) -> F64:
    tokens, _, inner, top_k, count, ranks, *_ = shapes.T
    return _log2(np.stack([tokens, ranks, inner, count / top_k], axis=1))


FAMILIES = {
    "products": Family(
        products.BOUNDS,
        (np.linspace(0, 14, 14), np.linspace(8, 16, 10), np.linspace(8, 16, 10)),
        products.linear_us,
        _log2,
    ),
    "prompts": Family(
        attention.PROMPT_BOUNDS,
        (
            np.array([0, 4, 5, 6, 7, 8, 9, 10, 10.6, 11, 11.6, 12, 12.6, 13, 13.3, 13.6, 14]),
            np.linspace(0, 14, 15),
            np.array([0, 1, 2, 3, 4.5, 6]),
        ),
        _prompt,
        _attention_points,
        "bf16",
    ),
    "decodes": Family(
        attention.DECODE_BOUNDS,
        (np.linspace(1, 17, 12), np.linspace(0, 14, 12), np.linspace(0, 6, 4)),
        _decode,
        _decode_points,
        "bf16",
    ),
    "experts": Family(
        experts.BOUNDS,
        (
            np.array([0, 2, 4, 5, 6, 7, 8, 9, 10, 12, 14.0]),
            np.array([0, 1, 2, 3, 4.5, 6, 8]),
            np.array([4.0, 6, 8, 10, 12, 14]),
            np.array([1.0, 2, 3, 4, 5, 6, 7]),
        ),
        _experts,
        _expert_points,
    ),
}
