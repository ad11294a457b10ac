"""The `workload` section of a spec."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.units import Duration, Flops, Rate, Size
from fabrictwin.catalog.step_shares import step_shares
from fabrictwin.workload.layers.kernel_traffic import Weights
from fabrictwin.workload.layers.number_formats import Attention, Loss, Scaling
from fabrictwin.workload.model.huggingface_cache import config_of
from fabrictwin.workload.model.huggingface_families import load_model, read_model
from fabrictwin.workload.model.model_sizes import Model

LAUNCH_PS = 5_000_000  # of a kernel by a framework whose layers are fused kernels

Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]


def _tokens(value: object) -> object:
    """Read `8k` as 8192, as lengths of sequences are spoken of; anything else is left to `Count`."""
    found = re.fullmatch(r"(\d{1,6})[kK]", value) if isinstance(value, str) else None
    return value if found is None else int(found[1]) * 1024


Tokens = Annotated[Count, BeforeValidator(_tokens, json_schema_input_type=int | str)]
Sms = Annotated[int, Field(strict=True, ge=0, le=1024)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Parallel(Section):
    """Sizes that divide the model and the batch over ranks. `dp` is what the GPUs leave where it is not given."""

    tp: Count = 1
    pp: Count = 1
    cp: Count = 1  # context: sequences are divided over ranks
    ep: Count = 1  # experts, laid over data, context (and, with expert_tp 1, tensor) parallel ranks
    expert_tp: Count | None = None  # ranks that share an expert; tp where it is not given
    vp: Count = 1  # chunks of layers (virtual stages) of each pipeline stage
    context: Literal["ring", "all-gather", "pytorch"] = "ring"
    schedule: Literal["1f1b", "gpipe", "zero-bubble"] = "1f1b"
    order: Literal["tp-cp-dp-pp", "tp-cp-pp-dp"] = "tp-cp-dp-pp"  # of ranks, fastest first
    ends_as_layers: bool = False  # embedding and output projection count as a layer each when layers are divided
    layers: tuple[Annotated[int, Field(strict=True, ge=0)], ...] | None = None  # of each (virtual) stage, in order
    dp: Count | None = None  # data; what the GPUs leave


class Collective(Section):
    """The algorithm of a gradient all-reduce; NCCL's own choice where nothing is said, of simple ones a ring."""

    algorithm: Literal["ring", "tree", "hierarchical"] | None = None
    channels: Annotated[int, Field(strict=True, ge=1, le=64)] | None = None


class Sharding(Section):
    """The division of parameters, gradients and optimizer state among data-parallel ranks.

    `none` is DistributedDataParallel; zero-1 shards optimizer state, zero-2 gradients too, zero-3 and fsdp (the
    same traffic; fsdp-1 is PyTorch's first, of flat parameters) parameters too. `ranks` shards within so many
    data-parallel ranks and copies beyond (hybrid).
    """

    strategy: Literal["none", "zero-1", "zero-2", "zero-3", "fsdp", "fsdp-1"] = "none"
    ranks: Count | None = None
    prefetch: Annotated[int, Field(strict=True, ge=0, le=8)] = 1  # layers whose parameters are gathered ahead
    reshard_after_forward: bool = True


class Overlap(Section):
    """The communication that runs beside compute."""

    gradients: bool = False  # gradient reduction with backward of the last micro-batch, bucket by bucket
    parameters: bool = False  # gathering of updated parameters with forward of the first micro-batch
    bucket: Size = 100_000_000
    tensor: Literal["none", "gradients", "full"] = "none"
    pipeline: bool = True
    optimizer: bool = False  # each bucket's optimizer step as soon as its gradient is reduced
    experts: bool = False  # exchanges of experts beside another micro-batch's compute
    collective_sms: Sms = 16  # NCCL: a channel takes one multiprocessor
    send_sms: Sms = 2
    tensor_sms: Sms = 0  # of tensor-parallel communication in pieces: copy engines


class Routing(Section):
    """The way of tokens to experts. `imbalance` is the standard deviation of an expert's load over its mean."""

    imbalance: Annotated[float, Field(ge=0, le=10)] = 0.0
    seed: Seed = 0
    capacity_factor: Annotated[float, Field(gt=0, le=100)] | None = None
    dispatcher: Literal["all-to-all", "flex"] = "all-to-all"  # flex: DeepEP, HybridEP


class HostSide(Section):
    """The host's share of a step: launching kernels one by one, and work between steps."""

    launch: Duration | None = None  # of a kernel; see Training.launch_ps
    graphs: bool = False  # passes are captured in CUDA graphs
    captured: tuple[
        Literal["attention", "router", "mamba"], ...
    ] = ()  # parts of a layer that are, where passes are not
    step: Duration = 0
    # the device waits for it in a layer with experts, forward: beside that, for each expert that a rank holds
    # (calibrated on Megatron-Bridge, docs/validation.md)
    routing: Duration = 235_000_000
    expert: Duration = 124_000_000
    # with overlap.experts, what it does for each expert of a layer: a third forward, the rest backward
    interleaved: Duration = 949_000_000


class WideLayers(Section):
    """Layers that stay in 16 bits, at the start and the end of the model."""

    first: Annotated[int, Field(strict=True, ge=0)] = 0
    last: Annotated[int, Field(strict=True, ge=0)] = 0


class Offload(Section):
    """Optimizer state and its step on the host."""

    optimizer: bool = False
    memory_rate: Rate | None = None  # what a host's processors stream, shared by its GPUs


class Lora(Section):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): of layers' products alone; all else is frozen."""

    rank: Annotated[int, Field(strict=True, ge=1, le=1 << 16)] = 16
    targets: tuple[Literal["qkv", "projection", "up", "down"], ...] = ("qkv", "projection", "up", "down")


Module = Literal["norms", "experts", "expert-activations", "latent-up"]


class Training(Section):
    """One training step of a transformer."""

    model: str | dict[str, Any]
    parallel: Parallel = Parallel.model_construct()
    micro_batch_size: Count = 1
    micro_batches: Count | None = None
    global_batch: Count | None = None
    sequence: Tokens
    precision: Literal["bf16", "fp16", "fp8", "fp4"] = "bf16"
    scaling: Scaling = "delayed"  # of fp8
    gradient_precision: Literal["fp32", "same"] = "fp32"
    # master: 2 bytes beside a copy of 4; autocast: 4, cast at every product; same: 2, as the optimizer has
    weights: Weights = "master"
    recompute: Literal["none", "selective", "operations", "full"] = "none"
    # full recomputation ends where backward has all that it needs: PyTorch's checkpoint that is not reentrant
    recompute_ends_early: bool = False
    # beside that: norms, MLPs of experts or their activations, the up-projections of latent attention
    recompute_modules: tuple[Module, ...] = ()
    attention: Attention = "flash"
    # of flash attention at 8,192 tokens, causal half counted, where the catalog's is not it: forward, backward
    attention_throughput: Flops | None = None
    attention_backward_throughput: Flops | None = None
    software: str | None = None  # the framework; without one, what is typical
    # of the throughput that kernels reach by themselves, what they reach in steps; the catalog's where not given
    compute_share: Annotated[float, Field(gt=0, le=1)] | None = None
    # of the catalog's throughput of matrix products, what they reach on this machine (see fabrictwin calibrate)
    product_share: Annotated[float, Field(ge=0.1, le=10)] = 1.0
    wide_layers: WideLayers = WideLayers.model_construct()
    # of what their products and bytes would take, what state-space kernels reach (calibrated, docs/validation.md)
    scan_share: Annotated[float, Field(gt=0, le=1)] = 0.362
    # of the memory's rate, what PyTorch's own kernels over mixed types or strides reach (calibrated)
    eager_share: Annotated[float, Field(gt=0, le=1)] = 0.401
    kernels: Literal["fused", "eager"] = (
        "fused"  # norms, activations and rotary positions: one kernel, or PyTorch's
    )
    fused_norms: bool = False  # with eager kernels, norms are one all the same: torch.nn.RMSNorm from PyTorch 2.9
    # modules that predict a token further each, behind the last layer (DeepSeek-V3)
    prediction_layers: Annotated[int, Field(strict=True, ge=0, le=16)] = 0
    # compiled: over logits of 4 bytes; fused: one that reads and overwrites those of 2; eager: PyTorch's own
    loss: Loss = "compiled"
    # cross-entropies that are computed from the logits for metrics, beside the loss
    metrics: Annotated[int, Field(strict=True, ge=0, le=16)] = 0
    pad_vocabulary: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] = 128
    scatter_gather: bool = True
    sequence_parallel: bool = False  # what is between tensor-parallel blocks is divided over tp ranks
    gradients: Collective = Collective.model_construct()
    sharding: Sharding = Sharding.model_construct()
    overlap: Overlap = Overlap.model_construct()
    routing: Routing = Routing.model_construct()
    host: HostSide = HostSide.model_construct()
    offload: Offload = Offload.model_construct()
    lora: Lora | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, data: Any) -> Any:
        """`sharding: fsdp` for its strategy alone, `overlap: true` for all that the layout can overlap."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if isinstance(data.get("sharding"), str):
            data["sharding"] = {"strategy": data["sharding"]}
        if isinstance(data.get("overlap"), bool):
            data["overlap"] = all_overlap(data) if data["overlap"] else {"pipeline": False}
        return data

    @field_validator("model")
    @classmethod
    def _something(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        if not value:
            raise ValueError("got nothing, expected the path of a config.json or its keys")
        return value

    @field_validator("software")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        known = step_shares().software
        if value is not None and value not in known:
            names = ", ".join(known)
            raise ValueError(f"got {value!r}, expected one of {names}{did_you_mean(value, known)}, or nothing")
        return value

    @model_validator(mode="after")
    def _one_batch(self) -> Training:
        if (self.micro_batches is None) == (self.global_batch is None):
            got = "neither" if self.micro_batches is None else "both"
            raise ValueError(f"got {got} of micro_batches and global_batch, expected one")
        return self

    @property
    def launch_ps(self) -> int:
        """Time in ps in which the host issues a kernel; with kernels: eager that of PyTorch's operators."""
        if self.host.graphs:
            return 0
        if self.host.launch is not None:
            return self.host.launch
        return int(catalog.framework("pytorch").operator.value) if self.kernels == "eager" else LAUNCH_PS

    def read_model(self, folder: Path) -> Model:
        """The model that `model` names (relative to `folder`) or spells out. Raises ConfigError."""
        return replace(self._read(folder), predictors=self.prediction_layers)

    def _read(self, folder: Path) -> Model:
        if isinstance(self.model, str):
            path = config_of(self.model, folder)
            model = load_model(path)
            return model if path == folder / self.model else replace(model, name=self.model.rpartition("/")[2])
        try:
            return read_model(self.model, name=str(self.model.get("_name", "model")))
        except ConfigError as error:
            key = "workload.training.model" + (f".{error.key}" if error.key else "")
            raise ConfigError(error.message, key=key) from None


def all_overlap(data: dict[str, Any]) -> dict[str, Any]:
    """All overlap that training frameworks offer, as far as the layout has it."""
    parallel, sharding = data.get("parallel"), data.get("sharding")
    tp = parallel.get("tp", 1) if isinstance(parallel, dict) else 1
    strategy = sharding.get("strategy", "none") if isinstance(sharding, dict) else "none"
    found: dict[str, Any] = {}
    if strategy in ("none", "zero-1"):
        found["gradients"] = True
    if strategy in ("zero-1", "zero-2"):
        found["parameters"] = True
    if tp != 1:
        found["tensor"] = "full" if data.get("sequence_parallel") else "gradients"
    return found


class Workload(Section):
    """The workload that runs on the cluster."""

    training: Training


def workload_schema() -> dict[str, Any]:
    """The JSON schema of the `workload` section."""
    return Workload.model_json_schema()
