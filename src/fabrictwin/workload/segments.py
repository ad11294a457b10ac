"""What the stages hold: embedding, layers, output projection, each with its passes and its parameters.

A segment is what sharded data parallelism gathers as one, and what gradient buckets are made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

from fabrictwin.workload.attention import AttentionBlock
from fabrictwin.workload.feedforward import MlpBlock
from fabrictwin.workload.job import Job
from fabrictwin.workload.roofline import Cost, Roofline
from fabrictwin.workload.script import Script
from fabrictwin.workload.transformer import Ends


@dataclass(frozen=True)
class Segment:
    """Part of a chunk, in order of forward. Parameters are those of one rank, unsharded."""

    dense: int
    experts: int
    forward: Script
    backward: Script

    @property
    def parameters(self) -> int:
        return self.dense + self.experts


class Segments:
    """The segments of a job."""

    def __init__(self, job: Job) -> None:
        training = job.training
        self.job = job
        self.roof = Roofline(
            job.gpu,
            training.precision,
            scaling=training.scaling,
            flash_flops_per_s=training.attention_throughput,
            flash_backward_flops_per_s=training.attention_backward_throughput,
            share=training.compute_share,
            eager_share=training.eager_share,
        )
        self._attention = AttentionBlock(self.roof, job.shape)
        self._mlp = MlpBlock(self.roof, job.shape)
        self._ends = Ends(self.roof, job.shape)
        self._layer = cache(self._make_layer)

    def _make_layer(self, load: float) -> tuple[Script, Script]:
        """(forward, backward) of a layer whose busiest expert rank has so much load; 0 is dense."""
        forward, backward = Script(), Script()
        forward.extend(self._attention.forward())
        forward.extend(self._mlp.forward(load))
        recompute = self.job.training.recompute
        if recompute == "full":
            backward.extend(self._attention.forward("recompute"))
            backward.extend(self._mlp.forward(load, "recompute"))
        if recompute == "operations":
            backward.extend(self._every_second_product())
        backward.extend(self._mlp.backward(load))
        backward.extend(self._attention.backward(recompute_core=recompute == "selective"))
        if load and self.job.shape.hide_experts:
            self._pace(forward, 1 / 3)
            self._pace(backward, 2 / 3)
        return forward, backward

    def _pace(self, script: Script, share: float) -> None:
        """A pass takes no less than its share of what the host does for a layer's experts."""
        experts, shape = self.job.model.experts, self.job.shape
        assert experts is not None
        host_ps = share * shape.interleaved_ps * (experts.count // shape.ep)
        script.compute(Cost(max(0.0, host_ps - script.cost().ps)), script.last_part())

    def _every_second_product(self) -> Script:
        """What PyTorch's selective checkpointing runs again: every second product, and all that is no product."""
        block, shape, script = self._mlp, self.job.shape, Script()
        cost = block.norm()[0] * 2 + block.residual()[0] + self._attention.rotary()
        cost += block.activation(shape.tokens * self.job.model.ffn)[0]
        for linear in self.job.model.second_products():
            cost += block.forward_of(linear, shape.tokens)
        script.compute(cost, "recompute")
        return script

    def layer(self, number: int) -> Segment:
        """A layer, counted from 0."""
        dense, experts = self.job.layer_parameters(number)
        return Segment(dense, experts, *self._layer(self.job.load(number)))

    @cached_property
    def first(self) -> Segment:
        return Segment(
            self.job.first_parameters(), 0, self._ends.embedding_forward(), self._ends.embedding_backward()
        )

    @cached_property
    def last(self) -> Segment:
        forward, backward = self._ends.output_forward(), self._ends.output_backward()
        for _ in range(self.job.model.predictors):
            joined, apart = self._ends.join_forward(), self._ends.join_backward()
            layer = self._layer(self.job.load(self.job.model.layers - 1))
            for script in (joined, layer[0], self._ends.output_forward()):
                forward.extend(script)
            again = Script()
            for script in (self._ends.output_backward(), layer[1], apart, backward):
                again.extend(script)
            backward = again
        return Segment(self.job.last_parameters(), self.job.last_experts(), forward, backward)

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
        filled += segment.parameters * bytes_each
    return found
