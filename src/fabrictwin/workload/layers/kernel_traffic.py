"""Bytes that a layer's memory-bound kernels move, and how many kernels a framework makes of them.

Fused kernels read and write once. PyTorch without a compiler goes kernel by kernel: an RMS norm is cast to 4
bytes, squared, averaged, scaled, cast back and multiplied by its weight; rotary positions are turned by halves, as
in Hugging Face's models; Q, K and V, gate and up are products of their own, whose inputs' gradients are added up.
From PyTorch 2.9 on torch.nn.RMSNorm is one kernel on CUDA (`fused_norms`). Kernels are those that PyTorch's
dispatcher counts (tests/torch/test_eager_kernels.py).

Weights in 4 bytes under autocast: what lies between blocks has 4 bytes, every product casts its weight, in each
forward and each recomputation, and its weight's gradient back; what reads a norm casts its input, and the input's
gradient back. A compiler writes the norm in 2 bytes, in one kernel with the residual sum before it, and backward
the sum of both gradients in 4 and in 2 bytes likewise: of a norm 2 bytes are left beside what the sum moves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

from fabrictwin.base.records import record

Weights = Literal["master", "autocast", "same"]
CAST_BYTES = 6  # from 4 to 2 or back


class Moved(NamedTuple):
    """Bytes an element that kernels move one after the other, and how many kernels these are."""

    bytes: int
    kernels: int = 1


class Partial(NamedTuple):
    """What PyTorch's context parallelism does in 4 bytes with what a block of keys and values yields."""

    merged: Moved  # of an element of its result, put to that of blocks before
    queries: Moved  # of an element of its gradient, added up
    keys: Moved  # the same of keys and values, and laid into the message to the next rank


@record
class Traffic:
    """Memory-bound kernels, (forward, backward), and what products bring with them."""

    rms_norm: tuple[Moved, Moved]
    gate: tuple[Moved, Moved]  # SiLU of one, times the other: of each element of the product
    rotary: tuple[Moved, Moved]  # of queries and keys together
    partial: Partial
    stream_bytes: int = 2  # of an element between blocks
    apart: bool = False  # Q, K, V and gate, up are products of their own
    casts_weights: bool = False
    casts_inputs: bool = False

    @property
    def compiled(self) -> bool:
        """Return true if a compiler made these kernels: one that knows products apart joins them."""
        return not self.apart


FUSED = Traffic(
    rms_norm=(Moved(4), Moved(6)),
    gate=(Moved(6), Moved(10)),
    rotary=(Moved(4), Moved(4)),
    partial=Partial(Moved(10, 2), Moved(10), Moved(10, 2)),
)
EAGER = Traffic(
    rms_norm=(Moved(36, 8), Moved(76, 16)),
    gate=(Moved(10, 2), Moved(18, 3)),
    rotary=(Moved(20, 10), Moved(20, 14)),
    partial=Partial(Moved(38, 9), Moved(10), Moved(21, 5)),
    apart=True,
)
AUTOCAST_FUSED = replace(FUSED, rms_norm=(Moved(2), Moved(2)), stream_bytes=4, casts_weights=True)
AUTOCAST_EAGER = replace(
    EAGER,
    rms_norm=(Moved(28, 6), Moved(76, 14)),
    rotary=(Moved(36, 12), Moved(46, 20)),  # attention casts what was turned in 4 bytes
    stream_bytes=4,
    casts_weights=True,
    casts_inputs=True,
)


def traffic_of(weights: Weights, *, eager: bool, fused_norms: bool = False) -> Traffic:
    """Return the kernels of a framework that keeps weights so."""
    if weights == "autocast":
        found = AUTOCAST_EAGER if eager else AUTOCAST_FUSED
    else:
        found = EAGER if eager else FUSED
    if eager and fused_norms:  # reads and writes once; backward twice reads both, for the input and for the weight
        found = replace(found, rms_norm=(Moved(2 * found.stream_bytes), Moved(5 * found.stream_bytes)))
    return found
