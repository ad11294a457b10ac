"""A ledger that stands for the GPU, and the sizes of the layers that tests run on it.

Each kind of kernel has a cost from which its shape can be told. So a list of costs says which kernels ran, on
what, in which order, and what they were beside.
"""

from __future__ import annotations

from dataclasses import replace

from fabrictwin.base.grouped import grouped
from fabrictwin.workload.layers.roofline import Cost
from fabrictwin.workload.layers.transformer import Shape
from fabrictwin.workload.model.model_sizes import Model


class Ledger:
    """Kernels as numbers; bytes of elements as in fp8 with scales that must be known before."""

    element_bytes = 2
    operand_bytes = 1
    gradient_bytes = 4

    def stream(self, moved: float) -> Cost:
        return Cost(moved, 1)

    def eager(self, moved: float) -> Cost:
        return Cost(moved * 1_000.5, 1)

    def linear(self, m, n, k, *, copies=1, accumulate=False, backward=False) -> Cost:
        return Cost(m * n * k * 64 + 3 * accumulate + 5 * backward + 7 * m + 11 * n + 13 * k, 1) * copies

    def gemm(self, m, n, k, *, batch=1, accumulate=False) -> Cost:
        return Cost((m * n * k * 96 + 7 * m + 11 * n + 13 * k + 3 * accumulate) * batch, 1)

    def cast(self, elements: float) -> Cost:
        return Cost(4.25 * elements, 1)

    def cast_alone(self, elements: float) -> Cost:
        return Cost(8.25 * elements, 1)

    def transpose(self, elements: float) -> Cost:
        return Cost(16.25 * elements, 1)

    def flash_attention(self, batch, heads, sequence, part, *, window=0, block=None) -> Cost:
        each = batch * heads.count * sequence * heads.width * (5 if part == "b" else 2)
        return Cost(each + window * 1000 + (block or sequence) * 100_000, 1)


L = Ledger()
S, E, C, A, T, lin, gemm = L.stream, L.eager, L.cast, L.cast_alone, L.transpose, L.linear, L.gemm

H, HEADS, KV, D, F, V = 48, 4, 2, 12, 80, 160
BATCH, SEQUENCE = 3, 16
t = BATCH * SEQUENCE  # tokens of a micro-batch
QKV = (HEADS + 2 * KV) * D
PLAIN = Model("plain", "llama", H, 4, HEADS, KV, D, F, V, 0, False)
GPT = replace(PLAIN, positions=SEQUENCE, dropout=True, gated=False, norm="layer", biases=True, kv_heads=HEADS)


def shape(model: Model = PLAIN, **more) -> Shape:
    return grouped(Shape(model, BATCH, SEQUENCE, V), more)


def grads(m, inner, out):
    """(of a linear layer's input, of its weight) over m tokens."""
    return lin(m, inner, out, backward=True), lin(out, inner, m, accumulate=True, backward=True)


NORM, NORM_BACK, SKIP = S(4 * t * H), S(6 * t * H), S(6 * t * H)
ROTARY = S(4 * t * (HEADS + KV) * D)
FLASH = L.flash_attention


class Width:
    def __init__(self, count, width):
        self.count, self.width = count, width


TP = 2
