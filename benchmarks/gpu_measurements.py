"""Measure kernels and whole training steps on one GPU, with PyTorch, for the tables of validation/.

    python gpu_measurements.py FOLDER

Needs torch and nothing of fabrictwin. Writes kernels.csv (products, batched products of attention, attention
itself) and steps.csv (Llama-shaped models, eager and compiled). Kernels run in CUDA graphs, weights of products
in turn over more memory than the cache holds; times are medians of replays. Six minutes on an H100.
"""

from __future__ import annotations

import csv
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn
from torch.utils.checkpoint import checkpoint

CACHE_BYTES = 220e6  # weights in turn take this much, so that none is found in the cache
DTYPE = torch.bfloat16

KERNEL_FIELDS = ("what", "batch", "m", "n", "k", "latency_ms")
STEP_FIELDS = (
    "model", "hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "precision", "recomputation", "compiled",
    "sequence", "micro_batch", "micro_batches", "step_ms", "forward_ms", "backward_ms", "optimizer_ms", "peak_gib",
)  # fmt: skip


def events(count: int) -> list[Any]:
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]


def timed_ms(calls: Sequence[Callable[[], object]], *, graph: bool = True) -> float:
    """Milliseconds of one of the calls, which run in turn: the median over replays."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in [*calls, *calls]:
            call()
    torch.cuda.synchronize()

    def plainly() -> None:
        for call in calls:
            call()

    run = plainly
    if graph:
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            plainly()
        run = made.replay
    times = []
    for _ in range(12):
        begin, end = events(2)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[2:])[5] / len(calls)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=DTYPE) * 0.1


def product_shapes() -> Iterator[tuple[int, int, int]]:
    """(rows, outputs, inputs): multiples of 64, and sides that lie a little beyond them."""
    for (n, k), m in itertools.product(
        ((4096, 4096), (14336, 4096), (4096, 14336), (2048, 8192)), (16, 512, 2048, 8192)
    ):
        yield m, n, k
        for beyond in (1, 2, 4, 8, 16, 32, 64):
            yield m, n, k + beyond
            yield m, n + beyond, k


def kernels() -> Iterator[tuple[object, ...]]:
    for m, n, k in product_shapes():
        x = random(m, k)
        weights = [random(n, k) for _ in range(max(1, min(24, math.ceil(CACHE_BYTES / (2 * n * k)))))]
        calls = [lambda x=x, w=w: F.linear(x, w) for w in weights]
        yield "product", 1, m, n, k, timed_ms(calls)
    batch, length = 32, 2048
    for width in (64, 80, 96, 100, 104, 108, 112, 120, 125, 128, 136, 144, 150, 152, 160, 192, 256):
        query, key, value = (random(batch, length, width) for _ in range(3))
        scores = random(batch, length, length)
        yield "product", batch, length, length, width, timed_ms([lambda q=query, k=key: torch.bmm(q, k.mT)])
        yield "product", batch, length, width, length, timed_ms([lambda s=scores, v=value: torch.bmm(s, v)])
    for width, (batch, length) in itertools.product(
        (64, 80, 96, 112, 128, 256), ((4, 2048), (2, 4096), (1, 16384))
    ):
        yield from attention(batch, 2048 // width, length, width)


def attention(batch: int, heads: int, length: int, width: int) -> Iterator[tuple[object, ...]]:
    """Causal attention forward and backward: m is the length, n the heads, k a head's width."""
    inputs = [random(batch, heads, length, width).requires_grad_() for _ in range(3)]

    def forward() -> torch.Tensor:
        return F.scaled_dot_product_attention(*inputs, is_causal=True)

    with torch.no_grad():
        yield "attention", batch, length, heads, width, timed_ms([forward])
    output = forward()
    gradient = torch.randn_like(output)
    backward = timed_ms([lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)], graph=False)
    yield "attention backward", batch, length, heads, width, backward


class Shape(NamedTuple):
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int


class Layer(nn.Module):
    """A layer of Llama, written plainly."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.width = shape, shape.hidden // shape.heads
        wide, narrow = shape.hidden, shape.kv_heads * self.width
        self.before_attention, self.before_mlp = nn.RMSNorm(wide), nn.RMSNorm(wide)
        sizes = {"q": (wide, wide), "k": (wide, narrow), "v": (wide, narrow), "out": (wide, wide)}
        sizes |= {"gate": (wide, shape.ffn), "up": (wide, shape.ffn), "down": (shape.ffn, wide)}
        self.linear = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, wide = x.shape
        y, linear = self.before_attention(x), self.linear

        def rotated(name: str, heads: int) -> torch.Tensor:
            a, b = linear[name](y).view(batch, length, heads, self.width).float().chunk(2, -1)
            return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype).transpose(1, 2)

        value = linear["v"](y).view(batch, length, self.shape.kv_heads, self.width).transpose(1, 2)
        found = F.scaled_dot_product_attention(
            rotated("q", self.shape.heads), rotated("k", self.shape.kv_heads), value.to(x.dtype), is_causal=True,
            enable_gqa=self.shape.heads != self.shape.kv_heads,
        )  # fmt: skip
        x = x + linear["out"](found.transpose(1, 2).reshape(batch, length, wide))
        y = self.before_mlp(x)
        return x + linear["down"](F.silu(linear["gate"](y)) * linear["up"](y))


class Llama(nn.Module):
    def __init__(self, shape: Shape, *, again: bool) -> None:
        super().__init__()
        self.again, self.width = again, shape.hidden // shape.heads
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm, self.output = nn.RMSNorm(shape.hidden), nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        at = torch.arange(tokens.shape[1], device=tokens.device).float()[:, None]
        turns = at / 500_000.0 ** (torch.arange(0, self.width, 2, device=tokens.device).float() / self.width)
        cos, sin = turns.cos()[None, :, None], turns.sin()[None, :, None]
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if self.again else layer(x, cos, sin)
        return self.output(self.norm(x))


SMALL, MIDDLE, LARGE = (
    Shape(1024, 24, 16, 16, 4096, 32000), Shape(2048, 16, 32, 8, 8192, 32000), Shape(3072, 28, 24, 8, 8192, 32000)
)  # fmt: skip
# shape, weights in 32 bits under autocast, recomputed, compiled by layer, sequence, micro-batch, micro-batches
STEPS = (
    *((SMALL, True, False, False, 2048, size, 1) for size in (1, 2, 4, 8, 16)),
    *((MIDDLE, True, False, False, 4096, size, 1) for size in (1, 2, 4)),
    (MIDDLE, True, True, False, 4096, 4, 1), (MIDDLE, True, False, False, 4096, 2, 4),
    (MIDDLE, False, False, False, 4096, 2, 1), (MIDDLE, True, False, False, 16384, 1, 1),
    (LARGE, True, True, False, 4096, 1, 1), (LARGE, True, True, False, 4096, 2, 1),
    (LARGE, False, True, False, 4096, 4, 1), (LARGE, False, False, False, 4096, 1, 1),
    (MIDDLE, True, False, True, 4096, 2, 1), (MIDDLE, False, False, True, 4096, 2, 1),
    (SMALL, True, False, True, 2048, 1, 1), (SMALL, True, False, True, 2048, 8, 1),
    (LARGE, False, True, True, 4096, 2, 1), (MIDDLE, True, False, True, 4096, 4, 1),
)  # fmt: skip


def step_ms(model: Llama, tokens: torch.Tensor, micro_batches: int, *, wide: bool) -> tuple[float, ...]:
    """Milliseconds of a step, its forwards, its backwards and its end: the mean of eight after three."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    marks: list[list[Any]] = []

    def step() -> None:
        for _ in range(micro_batches):
            begin, middle, end = events(3)
            begin.record()
            with torch.autocast("cuda", dtype=DTYPE, enabled=wide):
                scores = model(tokens[:, :-1]).flatten(0, 1).float()
                loss = F.cross_entropy(scores, tokens[:, 1:].flatten())
            middle.record()
            (loss / micro_batches).backward()
            end.record()
            marks.append([begin, middle, end])
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        (done,) = events(1)
        done.record()
        marks[-1].append(done)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    marks.clear()
    count, began = 8, time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    whole = (time.perf_counter() - began) / count * 1e3
    parts = (sum(one[i].elapsed_time(one[i + 1]) for one in marks if len(one) > i + 1) / count for i in range(3))
    return whole, *parts


def steps() -> Iterator[tuple[object, ...]]:
    for shape, wide, again, compiled, sequence, size, micro_batches in STEPS:
        torch.manual_seed(0)
        torch.cuda.reset_peak_memory_stats()
        model = Llama(shape, again=again).to("cuda", dtype=torch.float32 if wide else DTYPE)
        if compiled:
            torch._dynamo.reset()
            for layer in model.layers:
                layer.compile(dynamic=False)
        tokens = torch.randint(0, shape.vocab, (size, sequence + 1), device="cuda")
        name = f"llama-{sum(each.numel() for each in model.parameters()) / 1e9:.1f}b"
        took = step_ms(model, tokens, micro_batches, wide=wide)
        precision = "autocast" if wide else "bf16"
        peak = torch.cuda.max_memory_allocated() / 2**30
        yield (
            name, *shape, precision, int(again), int(compiled), sequence, size, micro_batches, *took, peak,
        )  # fmt: skip
        del model
        torch.cuda.empty_cache()


def write(file: Path, fields: Sequence[str], rows: Iterator[tuple[object, ...]]) -> None:
    with file.open("w", newline="") as to:
        writer = csv.writer(to)
        writer.writerow(fields)
        for row in rows:
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row])
            to.flush()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(0))
    write(folder / "kernels.csv", KERNEL_FIELDS, kernels())
    write(folder / "steps.csv", STEP_FIELDS, steps())
