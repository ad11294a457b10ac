"""Times of a step from operators by shape.

Layers are counted operator by operator at some sixty numbers of tokens, between which times are linear. Attention
is blocks of queries by keys for prompts, and bytes of KV for decodes. A step that is not captured in a graph takes
at least what the host needs to launch its kernels. Pipeline stages send the hidden state and the residual, each
tensor-parallel rank a slice, which the receivers gather.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_US
from fabrictwin.serving.step.all_reduce import TensorGroup
from fabrictwin.serving.step.cuda_graphs import padded_to
from fabrictwin.serving.step.expert_parallel import ExpertLayout
from fabrictwin.serving.step.interpolation import table
from fabrictwin.serving.step.kernels import Kernels
from fabrictwin.serving.step.parts import Parts
from fabrictwin.serving.step.shape import StepShape
from fabrictwin.workload.model.model_blocks import Experts, Linear, Weights
from fabrictwin.workload.model.model_sizes import Model

_Step = tuple[int, int, int, bool, bool]
"""Tokens, tokens that go to experts, tokens that come out, if it was captured, if it computes prompts too."""

HIDDEN_BYTES = 2
COMPILED_LAUNCH_US = 5.0
EAGER_LAUNCH_US = 20.0
"""What the host needs to launch one kernel, of compiled PyTorch and of eager: estimates. An eager all-reduce was
measured to take 17 to 20 us more than one in a graph on x86 hosts (aiconfigurator's database)."""


@record
class ServedModel:
    """A model on its GPUs: what a replica is made of.

    Attributes:
        model: The model.
        gpu: GPU in the catalog.
        weights: How they are stored.
        kv_bytes: Of an element in the KV cache.
        group: Tensor-parallel group.
        pipeline: Stages.
        experts: How ranks share a mixture's experts.
        sends: Times of sends to the next stage, by boundary and bytes of each rank; empty without a pipeline.
    """

    model: Model
    gpu: str
    weights: Weights
    kv_bytes: float
    group: TensorGroup
    pipeline: int
    experts: ExpertLayout = field(default_factory=ExpertLayout)
    sends: tuple[Callable[[int], float], ...] = ()

    def stage_layers(self) -> list[int]:
        """Layers of each stage: equal parts, the rest one each from the last stage but one backwards."""
        layers, stages = self.model.layers, self.pipeline
        parts = [layers // stages] * stages
        for rest in range(layers % stages):
            parts[-2 - rest] += 1
        return parts

    def kv_bytes_per_token(self) -> float:
        """KV of one token and one layer on one rank; latent attention is held whole by every rank."""
        latent = self.model.latent
        if latent:
            return (latent.kv_rank + latent.rope_size) * self.kv_bytes
        heads = max(1, self.model.kv_heads // self.group.size)
        return 2 * heads * self.model.head_size * self.kv_bytes


def _points(last: int) -> list[int]:
    """Numbers of tokens to count layers at: all small ones, then steps of an eighth."""
    points = [*range(17), *range(20, 65, 4)]
    while points[-1] < last:
        points.append(max(points[-1] + 8, points[-1] * 9 // 8 // 8 * 8))
    return [point for point in points if point < last] + [last]


class AnalyticCost:
    """Times of steps of a served model, by stage."""

    def __init__(
        self, served: ServedModel, *, max_tokens: int, max_sequences: int, graph_sizes: tuple[int, ...]
    ) -> None:
        self._served = served
        self._model = model = served.model
        self._tp = served.group.size
        self._kernels = Kernels(
            served.gpu, served.weights, served.kv_bytes, clamped=model.clamped, moe_backend=served.experts.backend
        )
        points = _points(max_tokens)
        sparse = model.sparse_layers
        kinds = {kind: layers for kind, layers in ((False, model.layers - sparse), (True, sparse)) if layers}
        of_all = [
            layers * np.array(table(points, [self._layer_us(count, sparse=kind) for count in points], max_tokens))
            for kind, layers in kinds.items()
        ]
        self._layer: list[float] = (np.sum(of_all, axis=0) / model.layers).tolist()
        launch = COMPILED_LAUNCH_US if graph_sizes else EAGER_LAUNCH_US
        self._launch_us = launch * (len(model.attention_linears()) + (11 if sparse else 8))
        self._spread = served.experts
        self._reduces = table(points, [self._reduces_us(count) for count in points], max_tokens)
        self._exchanges = table(points, [self._exchanges_us(count) for count in points], max_tokens)
        self._routed = self._routed_table(max_tokens)
        self._embed = table(points, [self._embed_us(count) for count in points], max_tokens)
        rows = _points(max_sequences)
        self._head = table(rows, [self._head_us(count) for count in rows], max_sequences)
        self._send = [
            table(points, [self._send_us(count, send) for count in points], max_tokens) for send in served.sends
        ]
        self._graph = max(graph_sizes, default=0)
        self._pad = padded_to(graph_sizes, max_tokens)
        self._stages = served.stage_layers()
        self._kv = served.kv_bytes_per_token()
        self._heads = max(1, model.heads // self._tp)
        self._kv_heads = 1 if model.latent else max(1, model.kv_heads // self._tp)
        self._width = model.key_size + model.value_size
        self._windows = model.windows
        self._unwindowed = self._windows == (0,)
        self._decoded: dict[_Step, int] = {}
        self._decoded_attention = [0.0, 0.0]
        self._decoded_launches = [0.0, 0.0]

    def _linear(self, tokens: int, linear: Linear) -> float:
        inner, out = linear.inner, linear.out
        if linear.split == "column":
            out = -(-out // self._tp)
        elif linear.split == "row":
            inner = -(-inner // self._tp)
        return self._kernels.linear(tokens, out, inner)

    def _layer_us(self, tokens: int, *, sparse: bool) -> float:
        """One layer but for its attention and what it communicates."""
        if not tokens:
            return 0.0
        model, kernels = self._model, self._kernels
        time = 2 * kernels.small(4 * HIDDEN_BYTES * tokens * model.hidden)
        time += sum(self._linear(tokens, linear) for linear in model.attention_linears())
        time += 2 * kernels.small(2 * HIDDEN_BYTES * tokens * model.qkv_width / self._tp)  # rotation; KV write
        experts = model.experts
        if not sparse or experts is None:
            return time + self._mlp(tokens, model.ffn)
        time += kernels.gemm(tokens, experts.count, model.hidden)
        if experts.shared_ffn:
            time += self._mlp(tokens, experts.shared_ffn)
        return time

    def _mlp(self, tokens: int, width: int) -> float:
        up, down = self._model.mlp_linears(width)
        active = self._kernels.small(3 * HIDDEN_BYTES * tokens * width / self._tp)
        return self._linear(tokens, up) + active + self._linear(tokens, down)

    def _experts(self, tokens: int, experts: Experts) -> float:
        """Routed experts of one rank and layer, of `tokens` on all data parallel ranks together."""
        model, spread = self._model, self._spread
        inner = spread.inner(experts.ffn)
        ranks = spread.ranks if spread.whole else 1
        timed = self._kernels.padded_experts if spread.padded else self._kernels.experts
        return timed(tokens, experts, model.expert_hidden, inner, model.ups, ranks=ranks)

    def _routed_table(self, max_tokens: int) -> list[float]:
        """Routed experts by tokens of all data parallel ranks, the mean over layers with and without them."""
        model, last = self._model, max_tokens * self._spread.data
        if model.experts is None or not model.sparse_layers:
            return [0.0] * (last + 1)
        points = _points(last)
        share = model.sparse_layers / model.layers
        times = [share * self._experts(count, model.experts) if count else 0.0 for count in points]
        return table(points, times, last)

    def _reduces_us(self, tokens: int) -> float:
        """All-reduces of tensor parallelism in one layer: after attention, and after the MLP."""
        spread = self._spread
        if spread.traffic is None or spread.reduces:
            ends = 1.0
        else:
            ends = 1 - self._model.sparse_layers / self._model.layers
        return (1 + ends) * self._all_reduce_us(tokens)

    def _exchanges_us(self, tokens: int) -> float:
        """Ways of tokens to experts and back in one layer, the mean over layers with and without them."""
        traffic = self._spread.traffic
        if not tokens or traffic is None:
            return 0.0
        return self._model.sparse_layers / self._model.layers * traffic.time_us(tokens)

    def _all_reduce_us(self, tokens: int) -> float:
        return self._served.group.time_us(tokens * self._model.hidden * HIDDEN_BYTES) if tokens else 0.0

    def _embed_us(self, tokens: int) -> float:
        if not tokens:
            return 0.0
        return self._kernels.small(2 * HIDDEN_BYTES * tokens * self._model.hidden) + self._all_reduce_us(tokens)

    def _head_us(self, rows: int) -> float:
        """Logits of the sampled rows, gathered over the group, and a sampler that reads them a few times."""
        if not rows:
            return 0.0
        vocab = -(-self._model.vocab // self._tp)
        product = self._kernels.gemm(rows, vocab, self._model.hidden)
        sample = 4 * self._kernels.small(4.0 * rows * self._model.vocab)
        gather = self._served.group.time_us(rows * vocab * HIDDEN_BYTES) if self._tp > 1 else 0.0
        return product + sample + gather

    def _send_us(self, tokens: int, send: Callable[[int], float]) -> float:
        """Hidden state and residual to the next stage: a slice from each rank, gathered by the receivers."""
        if not tokens:
            return 0.0
        moved = tokens * self._model.hidden * HIDDEN_BYTES
        return 2 * (send(-(-moved // self._tp)) + self._served.group.gather_us(moved))

    def _attention_us(self, shape: StepShape) -> float:
        """One layer's attention on one rank, the mean over layers with and without a window."""
        if self._unwindowed and shape.decodes and not shape.chunks:
            kv_bytes = shape.decode_context * self._kv
            return self._kernels.decode_attention(kv_bytes, shape.decodes, self._heads, self._kv_heads)
        time = 0.0
        for window in self._windows:
            if shape.chunks:
                chunks = [(tokens, min(before, window) if window else before) for tokens, before in shape.chunks]
                time += self._kernels.prompt_attention(self._heads, chunks, self._width, self._kv)
            if shape.decodes:
                context = min(shape.decode_context, window * shape.decodes) if window else shape.decode_context
                time += self._kernels.decode_attention(
                    context * self._kv, shape.decodes, self._heads, self._kv_heads
                )
        return time / len(self._windows)

    def at(self, now_ps: int) -> AnalyticCost:
        """Return itself: links run at the same rates all the time."""
        return self

    def stages_ps(self, shape: StepShape) -> tuple[int, ...]:
        """Return how long each stage takes, picoseconds."""
        tokens = self._pad[shape.tokens]
        step = (tokens, tokens, shape.samples, shape.tokens <= self._graph, bool(shape.chunks))
        return self._times(step, self._attention_us(shape), shape.decodes)

    def together_ps(self, shapes: Sequence[StepShape | None]) -> tuple[int, ...]:
        """Return how long each stage takes where data parallel ranks step together; None: a rank without work.

        In every layer all wait for the rank with most to do, before tokens go to experts. Captured steps are
        padded to that rank's tokens.
        """
        busy = [shape for shape in shapes if shape is not None]
        most = max(shape.tokens for shape in busy)
        tokens = self._pad[most]
        captured = most <= self._graph
        total = sum(1 if shape is None else shape.tokens for shape in shapes)
        total = tokens * len(shapes) if captured else total
        attention = max(self._attention_us(shape) for shape in busy)
        samples = max(shape.samples for shape in busy)
        mixed = any(shape.chunks for shape in busy)
        step = (tokens, total, samples, captured, mixed)
        return self._times(step, attention, sum(shape.decodes for shape in busy))

    def _times(self, step: _Step, attention: float, decodes: int) -> tuple[int, ...]:
        tokens, routed, samples, captured, mixed = step
        layer = self._layer[tokens] + self._routed[routed] + attention
        if not captured and layer < self._launch_us:
            self._decoded_launches[mixed] += decodes * (self._launch_us - layer)
            layer = self._launch_us
        if decodes:
            self._decoded[step] = self._decoded.get(step, 0) + decodes
            self._decoded_attention[mixed] += decodes * attention
        layer += self._reduces[tokens] + self._exchanges[tokens]
        times = []
        for stage, layers in enumerate(self._stages):
            time = layers * layer
            if stage == 0:
                time += self._embed[tokens]
            if stage == len(self._stages) - 1:
                time += self._head[samples]
            else:
                time += self._send[stage][tokens]
            times.append(round(time * PS_PER_US))
        return tuple(times)

    def decode_parts(self, *, mixed: bool) -> Parts:
        """Return what decoded tokens spent in steps so far, summed over tokens: in steps that computed prompts too
        (`mixed`), or in others.
        """
        layers = self._model.layers
        found = Parts(
            attention=layers * self._decoded_attention[mixed], launches=layers * self._decoded_launches[mixed]
        )
        for (tokens, routed, samples, _, beside), count in self._decoded.items():
            if beside == mixed:
                found.linear += count * layers * self._layer[tokens]
                found.experts += count * layers * self._routed[routed]
                found.tensor_parallel += count * layers * self._reduces[tokens]
                found.expert_parallel += count * layers * self._exchanges[tokens]
                found.pipeline += count * sum(send[tokens] for send in self._send)
                found.ends += count * (self._embed[tokens] + self._head[samples])
        return found
