"""Throughput of flash attention by length, direction and width of heads, relative to what was measured.

By length and direction, relative to forward at 8,192 tokens:

From the figures of Shah et al. 2024, "FlashAttention-3" (arXiv 2407.08608, figures 5 and 6), the columns of
FlashAttention-2 on an H100 with heads of 128: forward with a causal mask 191, 260, 298, 319, 333, 335 TFLOP/s and
backward (no mask) 214, 260, 291, 310, 318, 322 at 512 to 16,384 tokens; forward without a mask 370 at 8,192. cuDNN
and FlashAttention-3 lie within a tenth of the same shares. Short causal sequences waste blocks on the diagonal;
backward recomputes and sums with fewer registers to spare.

By width: for every score there is one exponential, whatever the width of a head, and products that grow with it.
The kernels hide little of the one behind the other: with heads of 128, the products at a B200's 2,250 TFLOP/s and
then the exponentials at its 5 T/s make 1,198 TFLOP/s without a mask, where cuDNN 9.13 was measured at 1605 / 1.3 =
1,235 (FlashAttention-4). So a kernel's time follows the sum of both. Backward has one exponential for five
products.
"""

from __future__ import annotations

import math
from typing import Literal

_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
_FORWARD = (191 / 333, 260 / 333, 298 / 333, 319 / 333, 1.0, 335 / 333)
_BACKWARD = (214 / 370, 260 / 370, 291 / 370, 310 / 370, 318 / 370, 322 / 370)
BACKWARD_PRODUCTS = 2.5  # FlashAttention-2, section 4: five products backward for two forward
WINDOW_TILE = 128  # keys of a tile: of one that a window cuts, all are computed


def stretch(width: float, reference: float, part: Literal["f", "b"], exponential: float) -> float:
    """Time of a kernel over that of one as fast, FLOP for FLOP, as was measured with heads of `reference`.

    `exponential` is the time of a score's exponential over that of its products forward, at the reference.
    """
    total = 1 + exponential
    if part == "b":
        total *= BACKWARD_PRODUCTS / (_BACKWARD[4] / _FORWARD[4])
    return (total - exponential + exponential * reference / width) / total


def share(sequence: float, part: Literal["f", "b"]) -> float:
    """Share of the throughput forward at 8,192 tokens, by the length's logarithm; beyond the ends as at them."""
    column = _FORWARD if part == "f" else _BACKWARD
    at = min(max(math.log2(sequence / _LENGTHS[0]), 0.0), len(_LENGTHS) - 1.0)
    low = min(int(at), len(_LENGTHS) - 2)
    return column[low] + (column[low + 1] - column[low]) * (at - low)
