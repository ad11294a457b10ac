"""The figures that decide how much memory a rank of a training step needs, from a checked job."""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal

from fabrictwin.base.records import record
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.training_checks import IN_PASS
from fabrictwin.workload.layers.kernel_traffic import Weights
from fabrictwin.workload.layers.number_formats import Attention, Loss
from fabrictwin.workload.model.model_sizes import Model

Recompute = Literal["none", "selective", "full", "operations"]
Schedule = Literal["gpipe", "1f1b", "interleaved"]


@record
class Ranks:
    """Ranks that share the work."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    vp: int = 1  # chunks of a stage
    ep: int = 1
    expert_tp: int = 1
    load: float = 1.0  # tokens of the busiest expert-parallel rank over the mean


@record
class Batches:
    """Micro-batches of a step, and in which order a stage takes them."""

    micro_batches: int = 1
    micro_batch_size: int = 1
    sequence: int = 2048
    schedule: Schedule = "1f1b"


@record
class Activations:
    """What is kept of a forward pass until its backward pass."""

    sequence_parallel: bool = False
    recompute: Recompute = "none"
    recompute_modules: tuple[str, ...] = ()
    attention: Attention = "flash"
    loss: Loss = "compiled"


@record
class Sharding:
    """Parameters, gradients and optimizer states, and who holds which."""

    zero: Literal[0, 1, 2, 3] = 0
    fsdp: bool = False
    shards: int | None = None  # ranks that states are divided over; all replicas where it is not given
    gradient_bytes: int = 4
    weights: Weights = "master"
    adapters: int | None = None  # parameters of a layer that are trained, where its own weights are not


@record
class MemoryInputs:
    """The figures that decide how much memory a rank needs."""

    model: Model
    vocab: int  # padded
    stage_layers: tuple[int, ...]  # layers of each pipeline stage, all of its chunks together
    sparse_layers: tuple[int, ...] | None = None  # of each stage, those with experts
    ranks: Ranks = Ranks()
    batches: Batches = Batches()
    activations: Activations = Activations()
    sharding: Sharding = Sharding()

    def with_batches(self, micro_batches: int, size: int, *, sequence_parallel: bool) -> MemoryInputs:
        """The figures of another layout that divides model and replicas alike: micro-batches of this size."""
        batches, kept = self.batches, self.activations
        return MemoryInputs(
            *(self.model, self.vocab, self.stage_layers, self.sparse_layers, self.ranks),
            Batches(micro_batches, size, batches.sequence, batches.schedule),
            Activations(sequence_parallel, kept.recompute, kept.recompute_modules, kept.attention),
            self.sharding,
        )

    def layers_of(self, stage: int) -> tuple[int, int]:
        """(dense, with experts)."""
        sparse = self.sparse_layers[stage] if self.sparse_layers else 0
        return self.stage_layers[stage] - sparse, sparse

    @property
    def experts_over(self) -> int:
        """Ranks that hold the same experts."""
        return max(1, self.ranks.dp * self.ranks.cp * self.ranks.tp // (self.ranks.ep * self.ranks.expert_tp))

    @cached_property
    def pp(self) -> int:
        return len(self.stage_layers)

    @cached_property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one rank."""
        return self.batches.micro_batch_size * self.batches.sequence // self.ranks.cp

    @property
    def sharded_over(self) -> int:
        return self.sharding.shards or self.ranks.dp * self.ranks.cp


_ZERO: dict[str, Literal[0, 1, 2, 3]] = {"none": 0, "zero-1": 1, "zero-2": 2, "zero-3": 3, "fsdp": 0, "fsdp-1": 0}


def memory_inputs_of(job: Job) -> MemoryInputs:
    """The figures of a checked job."""
    training, layout = job.training, job.layout
    batches = Batches(job.micro_batches, training.micro_batch_size, training.sequence, _schedule(job))
    activations = Activations(
        training.sequence_parallel, training.recompute, training.recompute_modules, training.attention
    )
    strategy = training.sharding.strategy
    return MemoryInputs(
        model=job.model,
        vocab=job.vocab,
        stage_layers=job.stage_layers,
        sparse_layers=_sparse_layers(job),
        ranks=Ranks(layout.tp, layout.cp, layout.dp, job.chunks, layout.ep, layout.expert_tp, _load(job)),
        batches=batches,
        activations=activations,
        sharding=Sharding(
            zero=_ZERO[strategy],
            fsdp=strategy in ("fsdp", "fsdp-1"),
            shards=layout.width * layout.cp if strategy in IN_PASS else None,
            gradient_bytes=job.gradient_bytes,
            weights=training.weights,
            adapters=job.adapter_parameters if training.lora else None,
        ),
    )


def _sparse_layers(job: Job) -> tuple[int, ...] | None:
    """Number of layers with experts of each stage; None of a model without."""
    if job.model.experts is None:
        return None
    before, ends = job.model.sparse_before, list(accumulate(job.layer_counts, initial=0))
    each = [before[b] - before[a] for a, b in pairwise(ends)]
    return tuple(sum(each[s :: job.layout.pp]) for s in range(job.layout.pp))


def _load(job: Job) -> float:
    if job.model.experts is None or not job.training.routing.imbalance:
        return 1.0
    return max(job.loads, default=0.0) or 1.0


def _schedule(job: Job) -> Schedule:
    """Zero-bubble (ZB-H1) holds what 1F1B does."""
    if job.training.parallel.schedule == "gpipe":
        return "gpipe"
    return "interleaved" if job.chunks > 1 else "1f1b"
