"""How fast flash attention is by the length of a sequence and the direction, relative to forward at 8,192 tokens.

From the figures of Shah et al. 2024, "FlashAttention-3" (arXiv 2407.08608, figures 5 and 6), the columns of
FlashAttention-2 on an H100 with heads of 128: forward with a causal mask 191, 260, 298, 319, 333, 335 TFLOP/s and
backward (no mask) 214, 260, 291, 310, 318, 322 at 512 to 16,384 tokens; forward without a mask 370 at 8,192. cuDNN
and FlashAttention-3 lie within a tenth of the same shares. Short causal sequences waste blocks on the diagonal;
backward recomputes and sums with fewer registers to spare.
"""

from __future__ import annotations

import math
from typing import Literal

_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
_FORWARD = (191 / 333, 260 / 333, 298 / 333, 319 / 333, 1.0, 335 / 333)
_BACKWARD = (214 / 370, 260 / 370, 291 / 370, 310 / 370, 318 / 370, 322 / 370)
BACKWARD_PRODUCTS = 2.5  # FlashAttention-2, section 4: five products backward for two forward


def share(sequence: float, part: Literal["f", "b"]) -> float:
    """Of the throughput forward at 8,192 tokens; between lengths by logarithms, beyond them as at the ends."""
    column = _FORWARD if part == "f" else _BACKWARD
    at = min(max(math.log2(sequence / _LENGTHS[0]), 0.0), len(_LENGTHS) - 1.0)
    low = min(int(at), len(_LENGTHS) - 2)
    return column[low] + (column[low + 1] - column[low]) * (at - low)
