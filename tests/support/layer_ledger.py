"""A ledger that stands for the GPU, and passes of a layer written down by its costs.

Each kind of kernel has a cost from which its shape can be told. So a list of costs says which kernels ran, on
what, in which order, and what they were beside.
"""

from __future__ import annotations

from dataclasses import replace

from fabrictwin.workload.layers.pass_script import Collective, Compute, Script, Start, Wait
from fabrictwin.workload.layers.roofline import Cost
from fabrictwin.workload.layers.transformer import Shape
from fabrictwin.workload.model.model_sizes import Model


class Ledger:
    """Kernels as numbers; bytes of elements as in fp8 with scales that must be known before."""

    element_bytes = 2
    operand_bytes = 1

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
    return replace(Shape(model, 1, BATCH, SEQUENCE, V, "flash"), **more)


def written(script: Script) -> list[tuple]:
    """A script as tuples: kernels with their part, communication begun, communication waited for."""
    found = []
    for item in script.items:
        if isinstance(item, Compute):
            found.append((item.part, item.cost.ps, item.cost.kernels))
        elif isinstance(item, Start):
            c = item.collective
            found.append(("begin", item.key, c.group, c.kind, c.size_bytes, c.sms))
        else:
            assert isinstance(item, Wait)
            found.append(("wait", item.key))
    return found


def run(*steps) -> list[tuple]:
    """The list by hand: (part, costs...), or a communication (group, kind, bytes, SMs) for itself, numbered."""
    found, key = [], 0
    for step in steps:
        if isinstance(step, Collective):
            found += [("begin", key, step.group, step.kind, step.size_bytes, step.sms), ("wait", key)]
            key += 1
        elif step[0] == "begin":
            c = step[1]
            found.append(("begin", key, c.group, c.kind, c.size_bytes, c.sms))
            key += 1
        elif step[0] == "wait":
            found.append(step)
        else:
            total = sum(step[2:], step[1])
            found.append((step[0], total.ps, total.kernels))
    return found


def fw(*costs):
    return ("forward", *costs)


def bw(*costs):
    return ("backward", *costs)


def wt(*costs):
    return ("weight", *costs)


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


def tensor(kind, size, sms=0):
    return Collective("tp", kind, size, sms)
