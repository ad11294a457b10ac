"""The memory that a training step takes on a GPU, item by item, at its fullest.

- **Weights, gradients, optimizer**: 2 bytes a weight, gradients as the job keeps them, 12 bytes for a master copy
  and Adam's two moments; divided over replicas by ZeRO stage (Rajbhandari et al. 2020, "ZeRO", section 3: 1 the
  optimizer, 2 gradients too, 3 weights too). Fully sharded in PyTorch (FSDP) keeps 16 bytes a weight, all divided:
  weights and gradients in 4 bytes, two moments; and gathers two layers and both ends in 2 bytes to compute with.
  Under autocast weights, gradients and moments have 4 bytes each (16), with all in 16 bits 2 (8).
- **Activations** kept from forward to backward, per token and layer (Korthikanti et al. 2022, "Reducing Activation
  Recomputation", equations 1 to 6, here from the model's own widths): what norms, products and dropout need.
  Tensor parallelism divides what lies between its two communications, sequence parallelism the rest, context
  parallelism all. Recomputation keeps less: `selective` drops attention scores, `full` keeps a layer's input,
  `operations` keeps every second product and the attention output (PyTorch's selective checkpointing).
- **Experts**: a rank's own, their states divided over the ranks that hold the same; of each token that comes, what
  goes into its expert, what its products and activation need, and what comes out, times the busiest rank's load.
- **In flight**: a stage of 1F1B holds as many micro-batches as there are stages after it, and one; interleaved it
  holds (p - s - 1) 2 + (v - 1) p + 1 chunks of its v (Korthikanti et al., section 4.2.3); GPipe holds all.
- **At work**: logits and loss, or one layer being recomputed, whichever is larger. A vocabulary-parallel loss
  works in place on 4-byte logits beside the 2-byte ones; PyTorch's keeps logits in 2 and 4 bytes, and in 4 their
  logarithm of softmax and its gradient.
- **Collectives and context**: estimates. NCCL issue 964 measured 544 MiB for a communicator of two ranks and
  688 MiB for one of more on A100; PyTorch issue 107667 gives about 300 MiB for a CUDA context, over 1000 before
  CUDA 11.7.

Left out: the allocator's fragmentation, workspaces of matrix products, data that is loaded ahead.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import NamedTuple

from fabrictwin import catalog
from fabrictwin.base.records import record
from fabrictwin.base.units import format_size
from fabrictwin.workload.memory.memory_inputs import MemoryInputs, Recompute

WEIGHT_BYTES = 2
OPTIMIZER_BYTES = 12  # master copy and two moments, 4 bytes each
FSDP_WEIGHT_BYTES, FSDP_OPTIMIZER_BYTES = 4, 8
WIDTH = {"autocast": 4, "same": 2}  # of weights, gradients and each of two moments, where there is no master copy
ACTIVATION_BYTES = 2
LOGIT_BYTES_IN_PLACE = 2 + 4
LOGIT_BYTES_PYTORCH = 2 + 4 + 4 + 4
LOGIT_BYTES_FUSED = 2 + 2  # logits and their gradient, nothing between (CrossEntropyLoss of flash-attn)

_MIB = 1 << 20
COMMUNICATOR_OF_TWO_BYTES, COMMUNICATOR_BYTES = 544 * _MIB, 688 * _MIB
CONTEXT_BYTES = 512 * _MIB


@record
class Item:
    key: str
    name: str
    bytes: int
    estimate: bool = False


@record
class Memory:
    """The fullest rank's memory at its fullest."""

    stage: int
    items: tuple[Item, ...]
    capacity_bytes: int

    @cached_property
    def total_bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes

    @property
    def over_bytes(self) -> int:
        """Bytes beyond the GPU's memory; 0 where it fits."""
        return max(0, self.total_bytes - self.capacity_bytes)

    @property
    def line(self) -> str:
        """`61.2 GiB of 80 GiB` or by how much it does not fit."""
        share = f"{format_size(self.total_bytes)} of {format_size(self.capacity_bytes)}"
        text = f"{share} on a rank of stage {self.stage}"
        return text if self.fits else f"{text}: does not fit, {format_size(self.over_bytes)} too much"


# --- parameters --------------------------------------------------------------------------------------------


def layer_parameters(inputs: MemoryInputs, *, sparse: bool = False) -> int:
    """Parameters of one layer on one tensor-parallel rank, without routed experts."""
    return inputs.model.parameters_on_rank(sparse=sparse, tp=inputs.ranks.tp)


def expert_parameters(inputs: MemoryInputs) -> int:
    """Parameters of the routed experts of one layer on one rank."""
    found = inputs.model.experts
    return (
        found.count // inputs.ranks.ep * inputs.model.expert_parameters() // inputs.ranks.expert_tp if found else 0
    )


def end_parameters(inputs: MemoryInputs, stage: int) -> int:
    """Parameters of embedding, positions, final norm and head on one rank of a stage."""
    model, last = inputs.model, inputs.pp - 1
    embedding = inputs.vocab * model.hidden // inputs.ranks.tp
    count = 0
    if stage == 0:
        count += embedding + model.positions * model.hidden
    if stage == last:
        count += model.norm_parameters
        if inputs.pp > 1 or not model.tied:
            count += embedding
        count += model.predictors * model.predictor_on_rank(inputs.ranks.tp)
    return count


# --- activations -------------------------------------------------------------------------------------------


def layer_bytes(inputs: MemoryInputs, recompute: Recompute, *, sparse: bool = False) -> float:
    """Bytes that one layer keeps of one micro-batch on one rank."""
    model, tp = inputs.model, inputs.ranks.tp
    e, h = ACTIVATION_BYTES, model.hidden
    inner = model.heads * model.value_size
    whole_by = tp if inputs.activations.sequence_parallel else 1  # divides what tensor parallelism leaves whole
    if recompute == "full":
        return inputs.tokens * e * h / whole_by
    if model.pattern:
        return inputs.tokens * _hybrid_bytes(inputs, sparse=sparse)
    if recompute == "operations" and not sparse:
        # products in order: Q, K, V, output, gate, up, down; the first, third, fifth and seventh are kept
        kv = (model.qkv_width - inner) // 2
        kept = inner + kv + model.ffn + (0 if model.gated else h) + inner
        # a rank's share of the last product's sums is as wide as the model; what reduce-scatters gave is kept too
        whole = h / whole_by * (3 if whole_by > 1 else 1) + (h if model.gated else 0)
        return inputs.tokens * (e * whole + (e * kept + 4 * model.heads) / tp)
    # norms' inputs and outputs, and two masks of a byte
    again = inputs.activations.recompute_modules
    inputs_kept = 1 if model.parallel_norms else 2  # attention and MLP beside each other read the same
    normed = 0 if "norms" in again else model.parallel_norms or 2
    whole = float(inputs_kept + normed) * e * h + (2 * h if model.dropout else 0)
    divided = float(e * (inner + (0 if "latent-up" in again else model.qkv_width)))
    if model.latent:  # low-rank queries and key-values before and behind their norms
        whole += e * (2 * model.latent.query_rank + 2 * model.latent.kv_rank + model.latent.rope_size)
    width = model.ffn
    if sparse and model.experts:
        found = model.experts
        products = (3 if model.gated else 2) * found.ffn - (found.ffn if "expert-activations" in again else 0)
        inside = h * inputs.ranks.expert_tp + products + h
        whole += 0 if "experts" in again else found.top_k * inputs.ranks.load * e * inside
        width = 0 if "experts" in again else found.shared_ffn
    divided += e * (3 if model.gated else 2) * width
    if inputs.activations.attention != "materialised":
        divided += 4 * model.heads  # the softmax's logarithm of sums
    elif recompute == "none":
        scores = model.heads * inputs.batches.sequence
        divided += e * scores + ((e + 1) * scores if model.dropout else 0)
    return inputs.tokens * (whole / whole_by + divided / tp)


def _hybrid_bytes(inputs: MemoryInputs, *, sparse: bool) -> float:
    """Bytes that a hybrid's layer keeps of a token; of layers without experts, the mean."""
    model, again = inputs.model, inputs.activations.recompute_modules
    e, h, tp = ACTIVATION_BYTES, model.hidden, inputs.ranks.tp
    whole = (1 if "norms" in again else 2) * e * h / (tp if inputs.activations.sequence_parallel else 1)
    if sparse and model.experts:
        found = model.experts
        if "experts" in again:
            return whole
        copies = 1 if "expert-activations" in again else 2
        inside = model.expert_hidden * (1 + inputs.ranks.expert_tp) + copies * found.ffn
        shared = e * 2 * found.shared_ffn / tp
        return whole + found.top_k * inputs.ranks.load * e * inside + shared
    divided = {
        "*": e * (model.qkv_width + model.heads * model.value_size) + 4 * model.heads,
        "-": e * 2 * model.ffn,
    }
    if model.mamba:
        # what the input projection gave, and what the output projection reads
        divided["M"] = e * (model.mamba_linears()[0].out + model.mamba.inner)
    kept = sum(count * divided[kind] for kind, count in model.kinds.items())
    return whole + kept / max(1, sum(model.kinds.values())) / tp


def in_flight(inputs: MemoryInputs, stage: int) -> float:
    """Micro-batches whose activations a stage holds at once, at most; parts of one where it has chunks."""
    m, p = inputs.batches.micro_batches, inputs.pp
    if inputs.batches.schedule == "gpipe":
        return m
    if inputs.batches.schedule == "interleaved" and inputs.ranks.vp > 1 and p > 1:
        chunks = 2 * (p - stage - 1) + (inputs.ranks.vp - 1) * p + 1
        return min(chunks, m * inputs.ranks.vp) / inputs.ranks.vp
    return min(p - stage, m)


def logit_bytes(inputs: MemoryInputs) -> int:
    each = LOGIT_BYTES_PYTORCH if inputs.sharding.fsdp else LOGIT_BYTES_IN_PLACE
    if inputs.activations.loss == "fused":
        each = LOGIT_BYTES_FUSED
    return each * inputs.tokens * inputs.vocab // inputs.ranks.tp


# --- all of it ---------------------------------------------------------------------------------------------


def states(
    parameters: int, inputs: MemoryInputs, *, over: int | None = None, frozen: int = 0
) -> tuple[int, int, int]:
    """(weights, gradients, optimizer) bytes on one rank; `over`: ranks that hold the same.

    `frozen` weights stand beside the parameters, in 2 bytes, and are sharded like them.
    """
    n = over or inputs.sharded_over
    zero = 3 if inputs.sharding.fsdp else inputs.sharding.zero
    if inputs.sharding.weights != "master":
        each = WIDTH[inputs.sharding.weights] * parameters
        return (
            each // (n if zero >= 3 else 1),
            each // (n if zero >= 2 else 1),
            2 * each // (n if zero >= 1 else 1),
        )
    if inputs.sharding.fsdp:
        weight = (FSDP_WEIGHT_BYTES * parameters + WEIGHT_BYTES * frozen) // n
        return weight, FSDP_WEIGHT_BYTES * parameters // n, FSDP_OPTIMIZER_BYTES * parameters // n
    weights = WEIGHT_BYTES * (parameters + frozen) // (n if zero >= 3 else 1)
    gradients = inputs.sharding.gradient_bytes * parameters // (n if zero >= 2 else 1)
    return weights, gradients, OPTIMIZER_BYTES * parameters // (n if zero >= 1 else 1)


def gathered_bytes(inputs: MemoryInputs, stage: int) -> int:
    """Whole weights, and gradients not yet divided, of what is being computed, where weights are sharded."""
    if not (inputs.sharding.fsdp or inputs.sharding.zero >= 3):
        return 0
    sparse = inputs.layers_of(stage)[1] > 0
    layer = layer_parameters(inputs, sparse=sparse) + (expert_parameters(inputs) if sparse else 0)
    ends = end_parameters(inputs, stage)
    if inputs.sharding.adapters is not None:
        return WEIGHT_BYTES * (2 * layer + ends) + 4 * inputs.sharding.adapters
    if inputs.sharding.weights != "master":
        return WIDTH[inputs.sharding.weights] * (3 * layer + 2 * ends)
    return WEIGHT_BYTES * (2 * layer + ends) + 4 * layer + WEIGHT_BYTES * ends


def communicators(inputs: MemoryInputs, stage: int) -> list[int]:
    """Sizes of the groups that a rank communicates in."""
    sizes = [
        inputs.ranks.tp,
        inputs.ranks.cp,
        inputs.ranks.dp * (inputs.ranks.cp if inputs.sharded_over > inputs.ranks.dp else 1),
    ]
    sizes += [2] * (2 if 0 < stage < inputs.pp - 1 else 1) if inputs.pp > 1 else []
    if inputs.model.tied and inputs.pp > 1 and stage in (0, inputs.pp - 1):
        sizes.append(2)
    return [size for size in sizes if size > 1]


class _Layer(NamedTuple):
    """One layer on one rank: parameters, and bytes kept of a micro-batch, dense and with experts."""

    dense: int
    sparse: int
    experts: int
    dense_kept: float
    sparse_kept: float
    dense_again: float  # what recomputing one brings back
    sparse_again: float

    @classmethod
    def of(cls, inputs: MemoryInputs, recompute: Recompute) -> _Layer:
        has_experts = inputs.sparse_layers is not None
        kept = [layer_bytes(inputs, recompute), 0.0]
        if has_experts:
            kept[1] = layer_bytes(inputs, recompute, sparse=True)
        again = [0.0, 0.0]
        if recompute != "none":
            again[0] = layer_bytes(inputs, "none") - kept[0]
            again[1] = layer_bytes(inputs, "none", sparse=True) - kept[1] if has_experts else 0.0
        return cls(
            layer_parameters(inputs),
            layer_parameters(inputs, sparse=True) if has_experts else 0,
            expert_parameters(inputs),
            *kept,
            *again,
        )

    @classmethod
    def key(cls, inputs: MemoryInputs, recompute: Recompute) -> tuple[object, ...]:
        """Return all that it depends on and that layouts of one job do not share."""
        ranks = inputs.ranks
        shared = inputs.activations.sequence_parallel, recompute
        return (ranks.tp, ranks.ep, ranks.expert_tp, ranks.load, inputs.tokens, *shared)


class States(NamedTuple):
    """Bytes of one stage's rank that no micro-batch changes, nor what is recomputed."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    communicators: int


def _states(inputs: MemoryInputs, stage: int, layer: _Layer) -> States:
    dense, sparse = inputs.layers_of(stage)
    parameters = dense * layer.dense + sparse * layer.sparse + end_parameters(inputs, stage)
    adapters = inputs.sharding.adapters
    trained, frozen = (parameters, 0) if adapters is None else (dense * adapters, parameters)
    found = states(trained, inputs, frozen=frozen)
    with_experts = sparse + (inputs.model.predictors if stage == inputs.pp - 1 else 0)
    if with_experts:
        of_experts = states(with_experts * layer.experts, inputs, over=inputs.experts_over)
        found = (found[0] + of_experts[0], found[1] + of_experts[1], found[2] + of_experts[2])
    groups = communicators(inputs, stage)
    held = sum(COMMUNICATOR_OF_TWO_BYTES if size == 2 else COMMUNICATOR_BYTES for size in groups)
    return States(*found, gathered_bytes(inputs, stage), held)


def _passing(inputs: MemoryInputs, stage: int, layer: _Layer) -> tuple[int, int, int]:
    """(bytes of a stage's rank kept for backwards, logits, one layer recomputed where that is more)."""
    dense, sparse = inputs.layers_of(stage)
    last = stage == inputs.pp - 1
    predictors = inputs.model.predictors if last else 0
    micro_batches = in_flight(inputs, stage)
    of_predictors = predictors * (layer.dense_kept if inputs.model.experts is None else layer.sparse_kept)
    kept = micro_batches * (dense * layer.dense_kept + sparse * layer.sparse_kept + of_predictors)
    whole_by = inputs.ranks.tp if inputs.activations.sequence_parallel else 1
    ends = 0.0
    if stage == 0 and inputs.model.dropout:
        ends += micro_batches * inputs.tokens * inputs.model.hidden / whole_by  # the embedding's mask
    if last:
        # the final norm's input and output
        ends += 2 * ACTIVATION_BYTES * inputs.tokens * inputs.model.hidden / whole_by
    again = layer.sparse_again if sparse else layer.dense_again if dense else 0.0
    logits = logit_bytes(inputs) if last else 0
    return round(kept + ends), logits, round(again) if again > logits else 0


def stage_memory(inputs: MemoryInputs, stage: int, capacity_bytes: int) -> Memory:
    """A rank of one stage."""
    layer = _Layer.of(inputs, inputs.activations.recompute)
    own, (kept, logits, again) = _states(inputs, stage, layer), _passing(inputs, stage, layer)
    work = Item("logits", "logits and loss", logits)
    if again:
        work = Item("recomputed", "one layer recomputed", again)
    held = in_flight(inputs, stage)
    groups = len(communicators(inputs, stage))
    items = (
        Item("weights", "weights", own.weights),
        Item("gradients", "gradients", own.gradients),
        Item("optimizer", "optimizer", own.optimizer),
        Item("gathered", "gathered weights and gradients", own.gathered),
        Item("activations", f"activations, {held:g} micro-batches", kept),
        work,
        Item("nccl", f"NCCL, {groups} communicators", own.communicators, estimate=True),
        Item("context", "CUDA context", CONTEXT_BYTES, estimate=True),
    )
    return Memory(stage, tuple(item for item in items if item.bytes), capacity_bytes)


@record
class Known:
    """Memory found once: `states` for layouts that divide model and replicas alike, `layers` for all of a job."""

    states: dict[int, States] = field(default_factory=dict)  # by stage
    layers: dict[tuple[object, ...], _Layer] = field(default_factory=dict)

    def layer(self, inputs: MemoryInputs, recompute: Recompute) -> _Layer:
        """Return what a layer takes."""
        key = _Layer.key(inputs, recompute)
        if key not in self.layers:
            self.layers[key] = _Layer.of(inputs, recompute)
        return self.layers[key]


def fullest(inputs: MemoryInputs, recompute: Recompute, known: Known | None = None) -> tuple[int, int]:
    """(the stage whose ranks hold most, what they hold in bytes) with so much recomputation."""
    known = Known() if known is None else known
    # a later stage with no more layers than the second holds fewer micro-batches of as much
    last = inputs.pp - 1
    dense, sparse = inputs.layers_of(min(1, last))
    stages = {0, min(1, last), last}
    if inputs.sparse_layers or max(inputs.stage_layers) > dense:
        for s in range(2, last):
            own = inputs.layers_of(s)
            if own[0] > dense or own[1] > sparse:
                stages.add(s)
    layer, found = known.layer(inputs, recompute), []
    for stage in stages:
        if stage not in known.states:
            known.states[stage] = _states(inputs, stage, layer)
        kept, logits, again = _passing(inputs, stage, layer)
        found.append((sum(known.states[stage]) + kept + (again or logits) + CONTEXT_BYTES, -stage))
    total, stage = max(found)
    return -stage, total


def memory(inputs: MemoryInputs, gpu: str) -> Memory:
    """The fullest stage on a GPU of the catalog."""
    return stage_memory(inputs, fullest(inputs, inputs.activations.recompute)[0], catalog.gpu(gpu).memory.value)
