"""From a spec to replicas: defaults of the release, checks that vLLM makes, KV blocks from memory, step times."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_US
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.serving.cache.manager import CacheLayout, KvCache
from fabrictwin.serving.config.layout import machine, served_model
from fabrictwin.serving.config.section import WEIGHT_BYTES, Serving, ServingWorkload, Speculative
from fabrictwin.serving.engine.lockstep import Engine, Lockstep
from fabrictwin.serving.engine.replica import Accepted, HostTimes, Replica
from fabrictwin.serving.network.link_load import ALONE, Neighbourhood
from fabrictwin.serving.scheduler.config import HIDDEN_STATE_DRAFTERS, SchedulerConfig
from fabrictwin.serving.scheduler.release import Release, release
from fabrictwin.serving.scheduler.request import Request
from fabrictwin.serving.scheduler.scheduler import Scheduler
from fabrictwin.serving.step.analytic import AnalyticCost, ServedModel
from fabrictwin.serving.step.contended_steps import CostBeside
from fabrictwin.serving.step.cuda_graphs import capture_sizes
from fabrictwin.serving.step.kernels import padded_widths
from fabrictwin.serving.step.measured import MeasuredCost, MeasuredExperts, OperatorFiles
from fabrictwin.workload.model.model_sizes import Model

Alone = AnalyticCost | MeasuredCost
GIB = 2**30
LARGE_GPU = 70 * GIB
HUGE_GPU = 160 * GIB
OTHER_MEMORY = 1.5 * GIB
"""CUDA context, NCCL's buffers and captured graphs on a GPU: an estimate."""
LONGEST_DEFAULT = 131072


@record
class Server:
    """A server that is ready to run.

    Attributes:
        served: The model on its GPUs.
        scheduler: Settings of each replica's scheduler.
        layout: KV blocks of each.
        release: Release of vLLM.
        gpus: GPUs of all replicas.
        data: Data parallel ranks of each.
        make: Returns a fresh replica: an engine for each data parallel rank, or one of all that step together.
    """

    served: ServedModel
    scheduler: SchedulerConfig
    layout: CacheLayout
    release: Release
    gpus: int
    data: int
    make: Callable[[], list[Engine]]


def serving_section(spec: Spec) -> Serving:
    """Return the `workload.serving` section of a spec. Raises ConfigError."""
    return spec.validate_section("workload", ServingWorkload).serving


def server(spec: Spec, serving: Serving, neighbours: Neighbourhood = ALONE) -> Server:
    """Return the server that a spec describes, on the links that neighbours leave.

    Raises:
        ConfigError: vLLM would refuse it, or the cluster has too few GPUs.
    """
    try:
        model = serving.read_model(spec.folder)
    except ConfigError as error:
        raise error.within(file=spec.path) from None
    served = served_model(spec, serving, model)
    config = _scheduler(serving, served)
    chosen = release(serving.release)
    layout = _layout(spec, serving, served, config, chosen)
    cost: Alone | CostBeside[Alone] = _cost(spec, serving, served, config)
    if neighbours:
        twin = machine(spec).twin

        def beside(rates: dict[int, int]) -> Alone:
            return _cost(spec, serving, served_model(spec, serving, model, rates), config)

        cost = CostBeside(neighbours, lambda phase: neighbours.rates(twin, phase), beside)
    host = HostTimes(
        *(
            round(us * PS_PER_US)
            for us in (serving.host.schedule_us, serving.host.request_us, serving.host.output_us)
        )
    )
    accepted = (
        _acceptance(serving.speculative_config, serving.benchmark.seed) if serving.speculative_config else None
    )

    def rank() -> Replica:
        return Replica(Scheduler(config, KvCache(layout, chosen), chosen), cost, host, accepted)

    def make() -> list[Engine]:
        data = serving.data_parallel_size
        if data > 1 and model.experts:
            return [Lockstep([rank() for _ in range(data)], cost, host)]
        return [rank() for _ in range(data)]

    return Server(
        served, config, layout, chosen, serving.world * serving.replicas, serving.data_parallel_size, make
    )


def _scheduler(serving: Serving, served: ServedModel) -> SchedulerConfig:
    """Return the scheduler's settings, the release's defaults of `vllm serve` where none are given."""
    gpu = catalog.gpu(served.gpu)
    memory = int(gpu.memory.value)
    large = memory >= LARGE_GPU and "a100" not in served.gpu
    chosen = serving.release
    tokens = 8192 if large else 2048
    if chosen == "0.33" and memory >= HUGE_GPU:
        tokens = 16384
    longest = serving.max_model_len or served.model.longest or served.model.positions or LONGEST_DEFAULT
    batched = serving.max_num_batched_tokens or tokens
    if not serving.enable_chunked_prefill:
        batched = max(batched, longest)
    drafts = serving.speculative_config
    ahead = serving.async_scheduling
    if ahead is None:
        fits = drafts is None or drafts.method in HIDDEN_STATE_DRAFTERS
        ahead = chosen != "0.12" and fits and (serving.pipeline_parallel_size == 1 or chosen == "0.33")
    sequences = serving.max_num_seqs or (1024 if large else 256)
    # 0.19 keeps a row free for each draft of a draft model; 0.33 counts them request by request
    kept = sequences if drafts and drafts.method == "draft_model" and chosen == "0.19" else 0
    return SchedulerConfig(
        max_num_batched_tokens=batched,
        max_num_seqs=sequences,
        max_num_scheduled_tokens=max(batched - kept, 1) if kept else None,
        max_model_len=longest,
        enable_chunked_prefill=serving.enable_chunked_prefill,
        policy=serving.scheduling_policy,
        long_prefill_token_threshold=serving.long_prefill_token_threshold,
        async_scheduling=ahead,
        pipeline_parallel_size=serving.pipeline_parallel_size,
        num_speculative_tokens=drafts.num_speculative_tokens if drafts else 0,
        drafter=drafts.method if drafts else "ngram",
        v2_runner=chosen == "0.33",
        prefill_schedule_interval=serving.prefill_schedule_interval,
    )


def weight_bytes(served: ServedModel) -> float:
    """Return the bytes of the weights on the fullest rank: layers as they are stored, padded where vLLM pads, the
    rest in 16 bits.
    """
    model, size = served.model, served.group.size
    layers = served.stage_layers()
    first = 0
    fullest = 0.0
    for stage, count in enumerate(layers):
        linear = sum(model.layer_on_rank(layer, size) for layer in range(first, first + count))
        size_bytes = linear * WEIGHT_BYTES[served.weights.linear]
        if model.experts:
            sparse = sum(model.is_sparse(layer) for layer in range(first, first + count))
            stored = served.experts.parameters(model) * WEIGHT_BYTES[served.weights.experts]
            widths = model.expert_hidden, served.experts.inner(model.experts.ffn)
            padded = padded_widths(served.gpu, served.weights, *widths, served.experts.backend)
            size_bytes += sparse * stored * prod(padded) / prod(widths)
        embedding = model.vocab * model.hidden // size
        ends = (stage == 0) + (stage == len(layers) - 1 and not (model.tied and len(layers) == 1))
        fullest = max(fullest, size_bytes + ends * embedding * 2.0)
        first += count
    return fullest


def activation_bytes(served: ServedModel, config: SchedulerConfig) -> float:
    """Return the peak of a step of as many tokens as there may be: the MLP's operands, or logits of all
    requests.
    """
    model = served.model
    width = (
        model.ffn if model.experts is None else model.experts.ffn * model.experts.top_k + model.experts.shared_ffn
    )
    mlp = config.max_num_batched_tokens * (4 * model.hidden + (model.ups + 1) * width / served.group.size) * 2.0
    return max(mlp, config.max_num_seqs * model.vocab * (2.0 + 4.0))


def _windows(model: Model) -> tuple[int, ...]:
    """Sliding windows of the groups that share blocks: layers that take turns make a group each."""
    return tuple(sorted(model.windows))


def _layout(
    spec: Spec, serving: Serving, served: ServedModel, config: SchedulerConfig, chosen: Release
) -> CacheLayout:
    windows = _windows(served.model)
    per_group = -(-max(served.stage_layers()) // len(windows))
    page = serving.block_size * served.kv_bytes_per_token() * per_group
    memory = float(catalog.gpu(served.gpu).memory.value)
    share = serving.gpu_memory_utilization or (0.92 if chosen.name == "0.33" else 0.9)
    weights = weight_bytes(served)
    left = memory * share - weights - activation_bytes(served, config) - OTHER_MEMORY
    blocks = serving.num_gpu_blocks_override or int(left // page)
    if blocks < 2:
        message = (
            f"got a model of {weights / GIB:.1f} GiB a GPU: no memory is left for KV blocks of "
            f"{memory / GIB:.0f} GiB × {share:g}"
        )
        raise spec.error("workload.serving.gpu_memory_utilization", message)
    needed = sum(-(-config.max_model_len // serving.block_size) for window in windows if not window)
    if needed > blocks - 1:
        most = (blocks - 1) * serving.block_size // max(1, windows.count(0))
        message = (
            f"got {config.max_model_len}: one request needs {needed} KV blocks of {serving.block_size} tokens, "
            f"and there are {blocks - 1}, for {most} tokens"
        )
        raise spec.error("workload.serving.max_model_len", message)
    hidden = config.num_speculative_tokens > 0 and config.drafter in HIDDEN_STATE_DRAFTERS
    return CacheLayout(
        blocks=blocks,
        max_model_len=config.max_model_len,
        block_size=serving.block_size,
        windows=windows,
        caching=serving.enable_prefix_caching,
        in_flight_tokens=config.steps_in_flight * config.max_num_batched_tokens,
        drops_last=hidden and not chosen.hashes_lookahead,
        hash_lookahead=int(hidden and chosen.hashes_lookahead and serving.enable_prefix_caching),
        watermark=serving.watermark,
    )


def _cost(spec: Spec, serving: Serving, served: ServedModel, config: SchedulerConfig) -> Alone:
    capability = int(catalog.gpu(served.gpu).compute_capability.value)
    sizes = serving.cudagraph_capture_sizes
    if sizes is None:
        sizes = capture_sizes(
            config.max_num_seqs,
            config.max_num_batched_tokens,
            capability=capability,
            release=serving.release,
            most=serving.max_cudagraph_capture_size,
        )
    sizes = () if serving.enforce_eager else tuple(sorted(sizes))
    tokens, sequences = config.max_num_batched_tokens, min(config.max_num_seqs, config.max_num_batched_tokens)
    files = serving.operators
    if files is None:
        return AnalyticCost(served, max_tokens=tokens, max_sequences=sequences, graph_sizes=sizes)
    if served.pipeline > 1:
        raise spec.error("workload.serving.operators", "got measured operators and a pipeline, expected one stage")
    folder: Path = spec.folder
    experts, hidden = _measured_experts(spec, served, tokens), served.model.hidden * 2
    ends = 1 if served.experts.reduces else 0
    return MeasuredCost(
        OperatorFiles(
            folder / files.dense,
            folder / files.per_sequence,
            folder / files.attention,
            folder / files.skew if files.skew else None,
            folder / files.moe if files.moe else None,
        ),
        served.model.layers,
        max_tokens=tokens,
        max_sequences=sequences,
        graph_sizes=sizes,
        between_us=[(1 + ends) * served.group.time_us(count * hidden) for count in range(tokens + 1)],
        experts=experts,
    )


def _measured_experts(spec: Spec, served: ServedModel, tokens: int) -> MeasuredExperts | None:
    """Return how a mixture's experts are shared, None without any; `tokens` of a rank's step at most."""
    model, spread = served.model, served.experts
    if model.experts is None:
        return None
    message = ""
    if spread.ranks > 1 and not spread.whole:
        message = "got measured operators and experts in parts, expected enable_expert_parallel: true"
    elif model.sparse_layers < model.layers:
        message = f"got measured operators and {model.layers - model.sparse_layers} layers without experts"
    if message:
        raise spec.error("workload.serving.operators", message)
    traffic = spread.traffic
    ways = [traffic.time_us(count) if count and traffic else 0.0 for count in range(tokens + 1)]
    return MeasuredExperts(model.experts.count, model.experts.top_k, spread.ranks, spread.data, ways)


def _acceptance(speculative: Speculative, seed: int) -> Accepted:
    """Return a draw of accepted drafts: the same for the same seed, request and place in its output."""
    bounds = [round(chance * 2**32) for chance in speculative.acceptance]

    def accepted(request: Request, drafts: int) -> int:
        state = (seed * 0x9E3779B97F4A7C15 + request.number * 0xBF58476D1CE4E5B9 + request.tokens) & (2**64 - 1)
        for place in range(drafts):
            state = (state + 0x9E3779B97F4A7C15) & (2**64 - 1)
            mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
            mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
            if (mixed ^ (mixed >> 31)) >> 32 >= bounds[place]:
                return place
        return drafts

    return accepted
