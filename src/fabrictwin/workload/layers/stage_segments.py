"""Segments of the stages: embedding, layers, output projection, each with its passes and its parameters.

A segment is what sharded data parallelism gathers as one, and what gradient buckets are made of.
"""

from __future__ import annotations

from functools import cached_property

from fabrictwin.base.records import record
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.layers.attention import AttentionBlock
from fabrictwin.workload.layers.feedforward import MlpBlock
from fabrictwin.workload.layers.number_formats import Precision, Scaling
from fabrictwin.workload.layers.pass_script import Script
from fabrictwin.workload.layers.roofline import FLOAT_BYTES, AttentionKernel, Cost, Roofline
from fabrictwin.workload.layers.state_space import MambaBlock
from fabrictwin.workload.layers.transformer import Ends, Shape


@record
class Segment:
    """Part of a chunk, in order of forward. Parameters are those of one rank, unsharded."""

    dense: int  # trained
    experts: int  # likewise, of routed experts
    frozen: int
    forward: Script
    backward: Script

    @property
    def trained(self) -> int:
        return self.dense + self.experts

    @property
    def parameters(self) -> int:
        return self.trained + self.frozen


RooflineKey = tuple[str, Precision, Scaling, AttentionKernel, float, float, int, float]


def roofline_key(job: Job, precision: Precision) -> RooflineKey:
    """All that a job's roofline depends on."""
    training = job.training
    attention = AttentionKernel(
        training.attention, training.attention_throughput, training.attention_backward_throughput
    )
    gradient_bytes = 2 if training.weights == "same" else FLOAT_BYTES
    shares = job.compute_share, training.eager_share
    settings = precision, training.scaling, attention
    return (job.hardware.gpu, *settings, *shares, gradient_bytes, training.product_share)


def roofline(
    gpu: str,
    precision: Precision,
    scaling: Scaling,
    attention: AttentionKernel,
    share: float,
    eager_share: float,
    gradient_bytes: int,
    product_share: float,
) -> Roofline:
    """The roofline of a key."""
    return Roofline(
        gpu,
        precision,
        scaling=scaling,
        attention=attention,
        share=share,
        eager_share=eager_share,
        gradient_bytes=gradient_bytes,
    ).with_products(product_share)


@record
class Parts:
    """A roofline, and what makes scripts of layers and ends by it."""

    roof: Roofline
    attention: AttentionBlock
    mlp: MlpBlock
    ends: Ends


class Segments:
    """The segments of a job; `parts` are its own where they are known."""

    def __init__(self, job: Job, *, precision: Precision | None = None, parts: Parts | None = None) -> None:
        self.job = job
        self.parts = parts or self._make_parts(precision or job.training.precision)
        self.roof = self.parts.roof
        self._layers: dict[tuple[float, str, bool], tuple[Script, Script]] = {}
        self._wide: Segments | None = None

    def _make_parts(self, precision: Precision) -> Parts:
        roof, shape = self._roofline(precision), self.job.shape
        attention, in_tokens = self._attention_block(roof, shape.without_experts), shape.in_tokens
        return Parts(
            roof,
            attention,
            self._mlp_block(roof, in_tokens),
            self._end_blocks(roof, in_tokens.without_experts),
        )

    def _roofline(self, precision: Precision) -> Roofline:
        return roofline(*roofline_key(self.job, precision))

    def _attention_block(self, roof: Roofline, shape: Shape) -> AttentionBlock:
        return AttentionBlock(roof, shape)

    def _mlp_block(self, roof: Roofline, shape: Shape) -> MlpBlock:
        return MlpBlock(roof, shape)

    def _end_blocks(self, roof: Roofline, shape: Shape) -> Ends:
        return Ends(roof, shape)

    def is_wide(self, number: int) -> bool:
        """Return true if a layer, counted from 0, stays in 16 bits."""
        wide = self.job.training.wide_layers
        return number < wide.first or number >= self.job.model.layers - wide.last

    def _in_16_bits(self) -> Segments:
        if self._wide is None:
            self._wide = Segments(self.job, precision="bf16")
        return self._wide

    def _layer(self, load: float, kind: str = "", wide: bool = False) -> tuple[Script, Script]:
        """Return what `_make_layer` does, made once."""
        key = load, kind, wide
        if key not in self._layers:
            self._layers[key] = self._make_layer(load, kind, wide)
        return self._layers[key]

    def _make_layer(self, load: float, kind: str = "", wide: bool = False) -> tuple[Script, Script]:
        """(forward, backward) of a layer whose busiest expert rank has so much load; 0 is dense.

        `kind`: of a hybrid's layer, whose only block it says; `wide`: in 16 bits whatever the job's precision.
        """
        if wide:
            return self._in_16_bits()._make_layer(load, kind)
        forward, backward = Script(), Script()
        recompute = self.job.training.recompute
        if kind == "M":
            block = MambaBlock(self.roof, self.job.shape)
            if recompute == "full":
                backward.extend(block.forward("recompute"))
            forward.extend(block.forward())
            backward.extend(block.backward())
            return forward, backward
        attends, thinks = kind in ("", "*"), kind in ("", "-", "E")
        if attends:
            forward.extend(self.parts.attention.forward())
        if thinks:
            forward.extend(self.parts.mlp.forward(load))
        if recompute == "full" and attends:
            backward.extend(self.parts.attention.forward("recompute"))
        if thinks and recompute == "full" and self.job.training.recompute_ends_early:
            backward.extend(self.parts.mlp.forward_until_down())
        elif thinks and (recompute == "full" or (load and "experts" in self.job.training.recompute_modules)):
            backward.extend(self.parts.mlp.forward(load, "recompute"))
        if recompute == "operations":
            backward.extend(self._every_second_product())
        if thinks:
            backward.extend(self.parts.mlp.backward(load))
        if attends:
            backward.extend(self.parts.attention.backward(recompute_core=recompute == "selective"))
        if load and self.job.shape.hiding.hide_experts:
            self._pace(forward, 1 / 3)
            self._pace(backward, 2 / 3)
        return forward, backward

    def _pace(self, script: Script, share: float) -> None:
        """A pass takes no less than its share of what the host does for a layer's experts."""
        experts, shape = self.job.model.experts, self.job.shape
        assert experts is not None
        host_ps = share * shape.routing.interleaved_ps * (experts.count // shape.sharing.ep)
        script.compute(Cost(max(0.0, host_ps - script.cost().ps)), script.last_part())

    def _every_second_product(self) -> Script:
        """PyTorch's selective checkpointing: every second product again, and all that is no product.

        With tensor parallelism results of reduce-scatters are kept (torchtitan's list of operators), those of
        all-reduces are summed again. What is gathered to compute again is what backward reads, and counted there.
        """
        block, shape, model, script = self.parts.mlp, self.job.shape, self.job.model, Script()
        cost = block.norm()[0] * 2 + block.residual()[0] + self.parts.attention.rotary()
        cost += block.activation(shape.tokens * model.ffn // shape.sharing.tp)[0]
        key, out, up = (block.forward_of(linear, shape.tokens) for linear in model.second_products())
        script.compute(cost + key + out, "recompute")
        script.communicate(block.tensor("all_reduce", model.hidden))  # attention's: the MLP's has no reader here
        script.compute(up, "recompute")
        return script

    def layer(self, number: int) -> Segment:
        """A layer, counted from 0."""
        letter = self.job.model.kind(number)
        parameters = self.job.layer_parameters(number)
        return Segment(*parameters, *self._layer(self.job.load(number), letter, self.is_wide(number)))

    def _of_predictor(self) -> list[tuple[Script, Script]]:
        """The layers that a predictor adds (of a hybrid, attention and experts), in the last layer's precision."""
        job, wide = self.job, self.is_wide(self.job.model.layers - 1)
        if not job.model.pattern:
            return [self._layer(job.load(job.model.layers - 1), "", wide)]
        load = max(job.loads)
        return [self._layer(0.0, "*", wide), self._layer(load, "E" if load else "-", wide)]

    @cached_property
    def first(self) -> Segment:
        whole = self.job.first_parameters()
        scripts = self.parts.ends.embedding_forward(), self.parts.ends.embedding_backward()
        return Segment(self.job.trained(whole), 0, self.job.frozen(whole), *scripts)

    @cached_property
    def last(self) -> Segment:
        forward, backward = self.parts.ends.output_forward(), self.parts.ends.output_backward()
        for _ in range(self.job.model.predictors):
            joined, apart = self.parts.ends.join_forward(), self.parts.ends.join_backward()
            layers = self._of_predictor()
            for script in (joined, *(pair[0] for pair in layers), self.parts.ends.output_forward()):
                forward.extend(script)
            again = Script()
            behind = [pair[1] for pair in reversed(layers)]
            for script in (self.parts.ends.output_backward(), *behind, apart, backward):
                again.extend(script)
            backward = again
        whole = self.job.last_parameters()
        parameters = self.job.trained(whole), self.job.last_experts(), self.job.frozen(whole)
        return Segment(*parameters, forward, backward)

    def of(self, stage: int, chunk: int) -> list[Segment]:
        """A chunk of a stage, in order of forward."""
        job = self.job
        found = [self.layer(number) for number in job.layers_of(stage, chunk)]
        if stage == 0 and chunk == 0:
            found.insert(0, self.first)
        if stage == job.layout.pp - 1 and chunk == job.chunks - 1:
            found.append(self.last)
        return found


def buckets(segments: list[Segment], bytes_each: int, bucket_bytes: int) -> list[list[int]]:
    """Neighbouring segments put together until they fill a bucket, in the order given; positions of each."""
    found: list[list[int]] = []
    filled = bucket_bytes
    for i, segment in enumerate(segments):
        if filled >= bucket_bytes:
            found.append([])
            filled = 0
        found[-1].append(i)
        filled += segment.trained * bytes_each
    return found
