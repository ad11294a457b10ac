"""Times of a step from operators by shape: the catalog's measured products where there are, the roofline
elsewhere.

Layers are counted operator by operator at some sixty numbers of tokens, between which times are linear. Attention
is products over pairs of tokens for prompts, and bytes of KV for decodes. Experts that some token goes to are read
once. A step that is not captured in a graph takes at least what the host needs to launch its kernels. Pipeline
stages send the hidden state and the residual, each tensor-parallel rank a slice, which the receivers gather.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabrictwin import catalog
from fabrictwin.base.units import PS_PER_S, PS_PER_US
from fabrictwin.serving.step.all_reduce import TensorGroup
from fabrictwin.serving.step.graphs import padded_to
from fabrictwin.serving.step.grid import table
from fabrictwin.serving.step.shape import StepShape
from fabrictwin.workload.layers.number_formats import Precision
from fabrictwin.workload.layers.roofline import NOTHING, Cost, Roofline, gemm_flops_per_s
from fabrictwin.workload.model.model_sizes import Linear, Model

HIDDEN_BYTES = 2
HOST_LAUNCH_US = 5.0
"""What the host needs to launch one kernel of compiled PyTorch: an estimate."""


@dataclass(frozen=True)
class ServedModel:
    """A model on its GPUs: what a replica is made of.

    Attributes:
        model: The model.
        gpu: GPU in the catalog.
        precision: Of the linear layers.
        kv_bytes: Of an element in the KV cache.
        group: Tensor-parallel group.
        pipeline: Stages.
        stage_gb_per_s: What a rank gets to the next stage.
    """

    model: Model
    gpu: str
    precision: Precision
    kv_bytes: float
    group: TensorGroup
    pipeline: int
    stage_gb_per_s: float

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
        self._model = served.model
        self._tp = served.group.size
        self._roofline = Roofline(served.gpu, served.precision)
        gpu = catalog.gpu(served.gpu)
        self._bytes_per_us = gpu.memory_bandwidth_measured.value / 8 / 1e6
        self._pairs_per_us = self._pair_rate(float(gpu.attention["flash"].throughput.value))
        self._launch_us = float(gpu.kernel_launch.value) / PS_PER_US
        points = _points(max_tokens)
        sparse = self._model.sparse_layers
        kinds = {False: self._model.layers - sparse, True: sparse}
        self._layer = {
            kind: table(
                points, [self._layer_us(count, sparse=kind).ps / PS_PER_US for count in points], max_tokens
            )
            for kind, layers in kinds.items()
            if layers
        }
        self._mean_layer = self._mean(kinds, max_tokens)
        self._between = table(points, [2 * self._all_reduce_us(count) for count in points], max_tokens)
        self._kernels = self._layer_us(points[1], sparse=bool(sparse)).kernels + 2
        self._embed = table(points, [self._embed_us(count) for count in points], max_tokens)
        rows = _points(max_sequences)
        self._head = table(rows, [self._head_us(count) for count in rows], max_sequences)
        self._send = table(points, [self._send_us(count) for count in points], max_tokens)
        self._graph = max(graph_sizes, default=0)
        self._pad = padded_to(graph_sizes, max_tokens)
        self._stages = served.stage_layers()
        self._kv = served.kv_bytes_per_token()

    def _mean(self, kinds: dict[bool, int], last: int) -> list[float]:
        total = sum(kinds.values())
        return [
            sum(self._layer[kind][count] * layers for kind, layers in kinds.items() if layers) / total
            for count in range(last + 1)
        ]

    def _pair_rate(self, flops_per_s: float) -> float:
        """Pairs of a query and a key that one rank's heads attend to in a microsecond."""
        heads = max(1, self._model.heads // self._tp)
        flops = 2 * heads * (self._model.key_size + self._model.value_size)
        return flops_per_s / 1e6 / flops

    def _linear(self, tokens: int, linear: Linear) -> Cost:
        inner, out = linear.inner, linear.out
        if linear.split == "column":
            out = -(-out // self._tp)
        elif linear.split == "row":
            inner = -(-inner // self._tp)
        return self._roofline.linear(tokens, out, inner)

    def _layer_us(self, tokens: int, *, sparse: bool) -> Cost:
        """One layer but for its attention and what it communicates."""
        if not tokens:
            return NOTHING
        model, roofline = self._model, self._roofline
        cost = roofline.stream(4 * HIDDEN_BYTES * tokens * model.hidden) * 2
        for linear in model.attention_linears():
            cost += self._linear(tokens, linear)
        cost += roofline.stream(2 * HIDDEN_BYTES * tokens * model.qkv_width / self._tp) * 2  # rotation; KV write
        if not sparse:
            return cost + self._mlp(tokens, model.ffn)
        experts = model.experts
        assert experts is not None
        cost += roofline.gemm(tokens, experts.count, model.hidden)
        if experts.shared_ffn:
            cost += self._mlp(tokens, experts.shared_ffn)
        return cost + self._experts(tokens)

    def _mlp(self, tokens: int, width: int) -> Cost:
        up, down = self._model.mlp_linears(width)
        active = self._roofline.stream(3 * HIDDEN_BYTES * tokens * width / self._tp)
        return self._linear(tokens, up) + active + self._linear(tokens, down)

    def _experts(self, tokens: int) -> Cost:
        """Both products of the fused kernel: rows of all tokens, weights of the experts that are met."""
        model, experts = self._model, self._model.experts
        assert experts is not None
        met = experts.count * (1 - (1 - experts.top_k / experts.count) ** tokens)
        rows = tokens * experts.top_k
        cost = self._roofline.stream(2 * HIDDEN_BYTES * rows * model.hidden) * 2  # gather and weighted sum
        width = -(-experts.ffn // self._tp)
        for out, inner in ((model.ups * width, model.expert_hidden), (model.expert_hidden, width)):
            per_expert = max(1, round(rows / met))
            rate = gemm_flops_per_s(self._served.gpu, self._served.precision, per_expert, out, inner)
            compute = 2.0 * rows * out * inner / rate * PS_PER_S
            moved = met * out * inner * self._roofline.operand_bytes + HIDDEN_BYTES * rows * (out + inner)
            memory = self._roofline.stream(moved)
            cost += Cost(max(compute, memory.ps), 1)
        return cost

    def _all_reduce_us(self, tokens: int) -> float:
        return self._served.group.time_us(tokens * self._model.hidden * HIDDEN_BYTES) if tokens else 0.0

    def _embed_us(self, tokens: int) -> float:
        if not tokens:
            return 0.0
        rows = self._roofline.stream(2 * HIDDEN_BYTES * tokens * self._model.hidden).ps / PS_PER_US
        return rows + self._all_reduce_us(tokens)

    def _head_us(self, rows: int) -> float:
        """Logits of the sampled rows, gathered over the group, and a sampler that reads them a few times."""
        if not rows:
            return 0.0
        vocab = -(-self._model.vocab // self._tp)
        product = self._roofline.gemm(rows, vocab, self._model.hidden)
        sample = self._roofline.stream(4 * 4 * rows * self._model.vocab)
        gather = self._served.group.time_us(rows * vocab * HIDDEN_BYTES) if self._tp > 1 else 0.0
        return (product.ps + sample.ps) / PS_PER_US + gather

    def _send_us(self, tokens: int) -> float:
        """Hidden state and residual to the next stage: a slice from each rank, gathered by the receivers."""
        if self._served.pipeline == 1 or not tokens:
            return 0.0
        moved = 2 * tokens * self._model.hidden * HIDDEN_BYTES
        return moved / self._tp / self._served.stage_gb_per_s / 1e3 + self._served.group.time_us(moved) / 2

    def _attention_us(self, shape: StepShape) -> float:
        """One layer's attention on one rank: chunks of prompts, then decodes."""
        time = 0.0
        for tokens, before in shape.chunks:
            pairs = tokens * (before + tokens / 2)
            moved = (before + tokens) * self._kv
            time += max(pairs / self._pairs_per_us, moved / self._bytes_per_us, self._launch_us)
        if shape.decodes:
            time += max(shape.decode_context * self._kv / self._bytes_per_us, self._launch_us)
        return time

    def stages_ps(self, shape: StepShape) -> tuple[int, ...]:
        """Return how long each stage takes, picoseconds."""
        tokens = self._pad[shape.tokens]
        layer = self._mean_layer[tokens] + self._attention_us(shape)
        if not (shape.tokens <= self._graph):
            layer = max(layer, self._kernels * HOST_LAUNCH_US)
        layer += self._between[tokens]
        times = []
        for stage, layers in enumerate(self._stages):
            time = layers * layer
            if stage == 0:
                time += self._embed[tokens]
            if stage == len(self._stages) - 1:
                time += self._head[shape.samples]
            else:
                time += self._send[tokens]
            times.append(round(time * PS_PER_US))
        return tuple(times)
