"""Number formats of linear layers' products: what operands weigh, and what it moves to make them.

fp8 and fp4 operands are cast by kernels of their own, which memory limits. A product's backward needs each operand
in the other order too, so that a cast writes two copies: a 16-bit value is read, two small ones are written.

- `delayed`: scales follow from amax values of earlier steps (Micikevicius et al. 2022, arXiv 2209.05433).
- `current`: the scale of a tensor follows from its own amax, which a pass over it finds first.
- `rowwise`: a scale for each row of either operand, as torchao's recipe of that name: one kernel finds a row's
  amax and casts it; the order that the weight's gradient takes has scales of its own, whose amax a pass finds.
- `block`: a scale of one byte for every 32 values in fp8 (MXFP8), found while casting. fp4 (NVFP4) has one for
  every 16 values and one a tensor, whose amax a pass finds first; the order that the weight's gradient takes goes
  through a Hadamard transform, in a kernel of its own (weights do not, which is not told apart here).

Tests hold these bytes against the casts that Transformer Engine's GEMM profile measured (docs/validation.md).
"""

from __future__ import annotations

from typing import Literal

from fabrictwin.base.records import record

Precision = Literal["bf16", "fp16", "fp8", "fp4"]
Scaling = Literal["delayed", "current", "rowwise", "block"]
Attention = Literal["flash", "cudnn", "materialised"]
Loss = Literal["compiled", "fused", "eager"]  # kernels of the cross-entropy

WIDE_BYTES = 2  # what linear layers read and write elsewhere
_MX_BLOCK, _NV_BLOCK = 32, 16


@record
class Format:
    """Bytes of an operand's element, and bytes that memory moves to cast it."""

    operand_bytes: float
    cast_bytes: float = 0.0  # 16 bits in, both orders out; 0: nothing to cast
    alone: bool = False  # whether a norm cannot write it, because its scale must be known before


def format_of(precision: Precision, scaling: Scaling) -> Format:
    """The format in which a job's linear layers hold their operands."""
    if precision == "fp8":
        operand = 1 + (1 / _MX_BLOCK if scaling == "block" else 0)
        reads = {"current": 2, "rowwise": 3}.get(scaling, 1)  # rowwise: once for rows, twice for columns
        return Format(operand, reads * WIDE_BYTES + 2 * operand, reads > 1)
    if precision == "fp4":
        operand = 1 / 2 + 1 / _NV_BLOCK
        # read for the amax of both orders, then once for each: the second order is of Hadamard transforms
        return Format(operand, 3 * WIDE_BYTES + 2 * operand, True)
    return Format(WIDE_BYTES)
