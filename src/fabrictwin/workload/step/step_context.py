"""The record that the passes and the end of a training step are lowered from, whatever they are lowered onto."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fabrictwin.base.arrays import I64
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.job_communications import Groups
from fabrictwin.workload.job.training_checks import IN_PASS, SHARDED
from fabrictwin.workload.layers.stage_segments import Segment, Segments, buckets
from fabrictwin.workload.step.pipeline_schedule import Pass, Task


@dataclass
class Stage:
    """One stage of one class of units. An id is an operation's, as the target of the step numbers them."""

    number: int
    units: I64
    cell: int  # which class of units
    actors: list[int]
    factors: list[float]  # [actors] how many times as long compute takes
    ends: dict[tuple[Pass, int], I64] = field(
        default_factory=dict
    )  # by pass and chunk: [micro-batches, actors] ids
    # by chunk, of the last micro-batch: [segments][actors] ids after which a segment's gradients are there
    ready: dict[int, list[list[list[int]]]] = field(default_factory=dict)

    def ends_of(self, task: Task) -> I64:
        """[actors] the last operation of a pass."""
        ends: I64 = self.ends[task.kind, task.chunk][task.micro_batch]
        return ends


@dataclass
class StepContext:
    """A job with its groups and segments, and what the passes and the end of its step tell each other."""

    job: Job
    groups: Groups[Any]
    segments: Segments
    stages: list[list[Stage]] = field(default_factory=list)  # [class of units][stage]
    orders: list[list[Task]] = field(default_factory=list)  # [stage] its passes, in order
    # by stage and chunk: per segment, [classes of positions] ids after which its parameters are there
    gates: dict[tuple[int, int], list[I64]] = field(default_factory=dict)

    @cached_property
    def split(self) -> bool:
        """True where gradients of weights are a pass of their own."""
        return self.job.training.parallel.schedule == "zero-bubble"

    @cached_property
    def final(self) -> Pass:
        """The pass after which a micro-batch's gradients are there."""
        return Pass.WEIGHT if self.split else Pass.BACKWARD

    def _divided(self, strategies: frozenset[str] | tuple[str, ...] | set[str]) -> bool:
        layout = self.job.layout
        return self.job.training.sharding.strategy in strategies and layout.width * layout.cp > 1

    @cached_property
    def sharded(self) -> bool:
        """True where passes gather parameters."""
        return self._divided(SHARDED)

    @cached_property
    def reduced(self) -> bool:
        """True where passes reduce gradients."""
        return self._divided(IN_PASS)

    @cached_property
    def sends_slices(self) -> bool:
        """True where each tensor-parallel rank sends a slice of the activations, which the receivers gather."""
        return (
            self.job.training.scatter_gather
            and self.job.layout.tp > 1
            and not self.job.shape.sharing.sequence_parallel
        )

    @cached_property
    def message_bytes(self) -> int:
        """Bytes that a rank sends to the next stage after a pass."""
        job = self.job
        sliced = job.training.scatter_gather or job.shape.sharing.sequence_parallel
        return job.shape.tokens * job.model.hidden * 2 // (job.layout.tp if sliced else 1)

    @cached_property
    def blocking(self) -> bool:
        """True where a stage waits for its own sends."""
        return self.job.layout.pp > 1 and not self.job.training.overlap.pipeline

    def gradient_buckets(self, segments: list[Segment]) -> dict[int, list[int]]:
        """By the segment whose backward completes it, the segments whose gradients are reduced together."""
        if self.sharded:
            return {i: [i] for i in range(len(segments))}
        n = len(segments)
        found = buckets(segments[::-1], self.job.gradient_bytes, self.job.training.overlap.bucket)
        return {n - 1 - bucket[-1]: [n - 1 - i for i in bucket] for bucket in found}


def distinct_gates(gates: list[I64]) -> list[I64]:
    """Each bucket's gate once, of gates by segment."""
    return [gate for i, gate in enumerate(gates) if i == 0 or gate is not gates[i - 1]]
