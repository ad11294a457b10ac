"""The `workload.serving` section of a spec, in vLLM's names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fabrictwin.base.errors import ConfigError
from fabrictwin.serving.engine.router import Policy as RouterPolicy
from fabrictwin.serving.network.kv_transfer import Connector
from fabrictwin.serving.scheduler.config import Drafter
from fabrictwin.serving.scheduler.release import NAMES, release
from fabrictwin.serving.step.expert_parallel import Backend, MoeBackend
from fabrictwin.serving.traces.formats import READERS
from fabrictwin.workload.job.workload_section import Count, Section, Seed
from fabrictwin.workload.model.huggingface_families import load_model, read_model
from fabrictwin.workload.model.model_blocks import Weights
from fabrictwin.workload.model.model_sizes import Model

Share = Annotated[float, Field(gt=0, le=1)]
Amount = Annotated[float, Field(gt=0)]

WEIGHT_BYTES = {"none": 2.0, "fp8": 1.0, "fp4": 0.5 + 1 / 16, "int4": 0.5 + 2 / 128, "mxfp4": 0.5 + 1 / 32}
"""Of a weight with its scales: fp4 one byte for 16, int4 two for 128, mxfp4 one for 32."""

NOT_MODELLED = {
    "enable_lora": "LoRA",
    "max_loras": "LoRA",
    "lora_modules": "LoRA",
    "limit_mm_per_prompt": "multimodal input",
    "mm_processor_kwargs": "multimodal input",
    "kv_transfer_config": "a connector of one engine alone (give disaggregated)",
    "decode_context_parallel_size": "context parallelism",
}


class Speculative(Section):
    """Drafts that are verified beside the next token; `acceptance` is the chance of each, given those before
    it.
    """

    method: Drafter = "ngram"
    num_speculative_tokens: Annotated[int, Field(strict=True, ge=1, le=32)]
    acceptance: tuple[Annotated[float, Field(ge=0, le=1)], ...]

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if len(self.acceptance) != self.num_speculative_tokens:
            raise ValueError(f"got {len(self.acceptance)} acceptances for {self.num_speculative_tokens} drafts")
        return self


class Operators(Section):
    """Files of operators that were measured on this GPU, model and degree of tensor parallelism."""

    dense: str
    per_sequence: str
    attention: str
    skew: str | None = None
    moe: str | None = None


class Host(Section):
    """Times that the host adds to a step, microseconds; hidden where the next step is scheduled ahead.

    Defaults are what was measured of vLLM's V1 engine. Llama 3.2 1B takes 2.73 ms a token for one request at a
    time (pull request 17866), 1.47 ms of which its kernels need by shape on an H100: the rest is the step's. Steps
    of 32, 64, 128 and 256 requests were 0.34, 0.78, 1.71 and 3.26 ms shorter with scheduling beside the device
    (pull request 23914, tokens a second both ways): 13 us a request, and nothing that all share. Measured
    together, on four devices of another kind and 48 requests (Qwen3 32B, vllm-ascend's pull request 2783): 2.5 ms,
    here 1.9.

    Before a prompt waits for the scheduler, its text is turned into tokens: 3 us each, measured with Hugging
    Face's tokenizers 0.23.3 and Qwen's vocabulary of 151,643 on random tokens, which `vllm bench serve` sends (2
    us of prose; a Xeon's core, 28 November 2026). Prompts are read beside each other.
    """

    schedule_us: Annotated[float, Field(ge=0)] = 1250.0
    request_us: Annotated[float, Field(ge=0)] = 13.0
    token_us: Annotated[float, Field(ge=0)] = 3.0
    output_us: Annotated[float, Field(ge=0)] = 0.0


class Trace(Section):
    """Requests from a file; `rate_scale` 2 sends them twice as fast."""

    file: str
    format: str
    rate_scale: Amount = 1.0

    @field_validator("format")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in READERS:
            raise ValueError(f"got {value!r}, expected one of {', '.join(READERS)}")
        return value


class Benchmark(Section):
    """Requests that the client sends, in the names of `vllm bench serve`; conversations share prefixes."""

    num_prompts: Count | None = None
    request_rate: Amount | Literal["inf"] = "inf"
    burstiness: Amount | Literal["inf"] = 1.0
    max_concurrency: Count | None = None
    random_input_len: Count = 1024
    random_output_len: Count = 128
    random_range_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    turns: Count = 1
    prefixes: Annotated[int, Field(strict=True, ge=0, le=10**6)] = 0
    prefix_tokens: Annotated[int, Field(strict=True, ge=0, le=10**6)] = 0
    trace: Trace | None = None
    metric_percentiles: tuple[Annotated[float, Field(ge=0, le=100)], ...] = (99.0,)
    percentile_metrics: tuple[Literal["ttft", "tpot", "itl", "e2el"], ...] = ("ttft", "tpot", "itl")
    goodput: dict[Literal["ttft", "tpot", "e2el"], Amount] = Field(default_factory=dict)
    seed: Seed = 0

    @model_validator(mode="after")
    def _something(self) -> Self:
        if bool(self.prefixes) != bool(self.prefix_tokens):
            raise ValueError("expected prefixes and prefix_tokens together")
        drawn = self.model_fields_set & {"random_input_len", "random_output_len", "random_range_ratio", "turns"}
        if self.trace and (drawn or self.prefixes):
            raise ValueError(
                f"got a trace and {', '.join(sorted(drawn) or ['prefixes'])}, expected one or the other"
            )
        return self


class Pool(Section):
    """Engines that prefill, or that decode; what is not given is the server's."""

    replicas: Count = 1
    tensor_parallel_size: Count | None = None
    max_num_batched_tokens: Count | None = None
    max_num_seqs: Count | None = None
    gpu_memory_utilization: Share | None = None


class Disaggregation(Section):
    """Prefill and decode apart: `nixl` reads KV where it was computed, `mooncake` writes it to where it is wanted.

    `separate_hosts`: engines that decode begin at a host of their own, not at the next GPU. `transfer_us` and
    `proxy_us`: what hosts take for a transfer, and the proxy between prefill and decode. Blocks that nobody asked
    for are given up after `lease_s`. `relaxed_ordering`: adapters may write to a GPU's memory out of order
    (MC_IB_PCI_RELAXED_ORDERING, UCX_IB_PCI_RELAXED_ORDERING); not given, as the engines of the release's time do.
    """

    connector: Connector = "nixl"
    prefill: Pool = Pool.model_construct()
    decode: Pool = Pool.model_construct()
    separate_hosts: bool = False
    transfer_us: Annotated[float, Field(ge=0)] = 0.0
    proxy_us: Annotated[float, Field(ge=0)] = 0.0
    lease_s: Annotated[float, Field(gt=0, le=1e6)] = 30.0
    relaxed_ordering: bool | None = None


class Serving(Section):
    """A server: a model, vLLM's settings, replicas behind a router, and what a benchmark sends.

    Settings that are not given take the release's defaults for `vllm serve` on the GPU. Weights are stored as the
    model's `quantization_config` says, unless `quantization` does.
    """

    model: str | dict[str, Any]
    release: str = NAMES[-1]
    quantization: Literal["auto", "none", "fp8", "fp4", "int4", "mxfp4"] = "auto"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    tensor_parallel_size: Count = 1
    pipeline_parallel_size: Count = 1
    data_parallel_size: Count = 1
    enable_expert_parallel: bool = False
    all2all_backend: Backend = "allgather_reducescatter"
    replicas: Count = 1
    router: RouterPolicy = "round_robin"
    max_model_len: Count | None = None
    allow_long_max_model_len: bool = False
    max_num_batched_tokens: Count | None = None
    max_num_seqs: Count | None = None
    block_size: Count = 16
    gpu_memory_utilization: Share | None = None
    num_gpu_blocks_override: Count | None = None
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool | None = None
    long_prefill_token_threshold: Annotated[int, Field(strict=True, ge=0)] = 0
    prefill_schedule_interval: Count = 1
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    enforce_eager: bool = False
    disable_custom_all_reduce: bool = False
    moe_backend: MoeBackend = "auto"
    cudagraph_capture_sizes: tuple[Count, ...] | None = None
    max_cudagraph_capture_size: Count | None = None
    speculative_config: Speculative | None = None
    disaggregated: Disaggregation | None = None
    operators: Operators | None = None
    host: Host = Host.model_construct()
    neighbours: tuple[str, ...] = ()
    benchmark: Benchmark = Benchmark.model_construct()

    @model_validator(mode="before")
    @classmethod
    def _modelled(cls, data: Any) -> Any:
        for key, what in NOT_MODELLED.items():
            if isinstance(data, dict) and key in data:
                raise ValueError(f"got {key}: {what} is not modelled")
        return data

    @field_validator("release")
    @classmethod
    def _known(cls, value: str) -> str:
        return release(value).name

    @model_validator(mode="after")
    def _one_largest_graph(self) -> Self:
        sizes, most = self.cudagraph_capture_sizes, self.max_cudagraph_capture_size
        if sizes and most is not None and max(sizes) != most:
            raise ValueError(
                f"got max_cudagraph_capture_size {most} and cudagraph_capture_sizes up to {max(sizes)}, "
                "expected the same"
            )
        return self

    @model_validator(mode="after")
    def _of_release(self) -> Self:
        if (
            self.release == NAMES[0]
            and self.speculative_config
            and self.speculative_config.method == "draft_model"
        ):
            raise ValueError(f"got the drafter draft_model: not in vLLM {self.release}")
        if release(self.release).name != NAMES[-1]:
            late = self.model_fields_set & {"watermark", "prefill_schedule_interval"}
            if late:
                raise ValueError(f"got {', '.join(sorted(late))}: not in vLLM {self.release}")
        return self

    @property
    def world(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    def weights(self, model: Model) -> Weights:
        """Return how a model's weights are stored. Raises ConfigError for a way that is not modelled."""
        if self.quantization == "mxfp4":
            return Weights("none", "mxfp4")
        if self.quantization != "auto":
            return Weights(self.quantization, self.quantization)
        unknown = sorted({model.weights.linear, model.weights.experts} - WEIGHT_BYTES.keys())
        if unknown:
            message = f"got {unknown[0]} of the model's quantization_config, expected one of "
            raise ConfigError(message + ", ".join(WEIGHT_BYTES), key="workload.serving.quantization")
        return model.weights

    def read_model(self, folder: Path) -> Model:
        """Return the model that `model` names (relative to `folder`) or spells out. Raises ConfigError."""
        if isinstance(self.model, str):
            return load_model(folder / self.model)
        try:
            return read_model(self.model, name=str(self.model.get("_name", "model")))
        except ConfigError as error:
            key = "workload.serving.model" + (f".{error.key}" if error.key else "")
            raise ConfigError(error.message, key=key) from None


class ServingWorkload(Section):
    """The `workload` section of a spec that is a server."""

    serving: Serving
