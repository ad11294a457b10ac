"""Checks of a training section: sizes that do not divide, switches that would do nothing."""

from __future__ import annotations

from functools import cache

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.workload.job.rank_layout import split_layers
from fabrictwin.workload.job.workload_section import Collective, Sharding, Training
from fabrictwin.workload.model.model_sizes import Model

KEY = "workload.training"
IN_PASS = ("zero-2", "zero-3", "fsdp", "fsdp-1")
SHARDED = ("zero-3", "fsdp", "fsdp-1")  # strategies that exchange something in every pass


class Wrong:
    """Makes errors with the file and line of a key of the training section."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def __call__(self, where: str, message: str) -> ConfigError:
        return self.spec.error(f"{KEY}.{where}", message)

    def read_model(self, training: Training) -> Model:
        """The section's model. Raises ConfigError."""
        try:
            return training.read_model(self.spec.folder)
        except ConfigError as error:
            if error.file is None:
                raise self.spec.error(error.key or KEY, error.message) from None
            missing = error.message.startswith(("cannot be read", "no such file"))
            if missing and error.line is None and error.key is None:
                # the fault is in the spec, which names a file that is not there
                raise self.spec.error(f"{KEY}.model", f"{error.file}: {error.message}") from None
            raise


def check_layout(training: Training, model: Model, wrong: Wrong) -> None:
    """The model over the layout. Raises ConfigError."""
    par = training.parallel
    for count, what in ((model.heads, "attention heads"), (model.kv_heads, "key-value heads")):
        if count % par.tp:
            raise wrong("parallel.tp", f"got {par.tp}, expected a divisor of the model's {count} {what}")
    widths = [model.ffn] + ([model.experts.shared_ffn] if model.experts else [])
    for width in widths:
        if width % par.tp:
            raise wrong("parallel.tp", f"got {par.tp}, expected a divisor of the MLP's width, {width}")
    _check_stages(training, model, wrong)
    if model.positions and training.sequence > model.positions:
        raise wrong(
            "sequence", f"got {training.sequence}, expected at most the model's {model.positions} positions"
        )
    if par.cp > 1 and training.sequence % (2 * par.cp):
        raise wrong(
            "sequence",
            f"got {training.sequence}, expected a multiple of {2 * par.cp}: two parts for each cp rank",
        )
    if par.cp > 1 and training.attention == "materialised":
        raise wrong("attention", "got materialised, expected flash with context parallelism")
    tokens = training.micro_batch_size * training.sequence // par.cp
    if training.sequence_parallel and tokens % par.tp:
        raise wrong("sequence_parallel", f"got {tokens} tokens a rank, expected a multiple of tp {par.tp}")
    if training.sequence_parallel and par.tp == 1:
        raise wrong("sequence_parallel", "got true with tp 1, expected false: there is nothing to divide")
    if training.recompute == "operations" and (model.experts or model.latent or not model.gated):
        raise wrong("recompute", "got operations, expected it with a dense model with a gated MLP")
    _check_experts(training, model, wrong)
    _check_parts(training, model, wrong)
    if training.lora is not None:
        _check_adapters(training, model, wrong)


def _check_parts(training: Training, model: Model, wrong: Wrong) -> None:
    """Refuse settings of layers' parts that the model does not have."""
    modules, captured = training.recompute_modules, training.host.captured
    for key, given in (("recompute_modules", modules), ("host.captured", captured)):
        if len(set(given)) < len(given):
            raise wrong(key, f"got {', '.join(given)}, expected each once")
    if training.recompute_ends_early and (training.recompute != "full" or model.experts or model.pattern):
        what = f"recompute {training.recompute} of {model.name}"
        raise wrong(
            "recompute_ends_early", f"got true with {what}, expected it with full, of layers that are dense"
        )
    if modules and training.recompute in ("full", "operations"):
        raise wrong("recompute_modules", f"got some with recompute {training.recompute}, expected none")
    for module in ("experts", "expert-activations"):
        if module in modules and model.experts is None:
            raise wrong("recompute_modules", f"got {module}, expected none: {model.name} has no experts")
    if {"experts", "expert-activations"} <= set(modules):
        raise wrong("recompute_modules", "got experts and expert-activations, expected one: experts holds both")
    if "latent-up" in modules and model.latent is None:
        raise wrong("recompute_modules", f"got latent-up, expected none: {model.name} has no latent attention")
    if "mamba" in captured and model.mamba is None:
        raise wrong("host.captured", f"got mamba, expected none: {model.name} has no state-space layers")
    wide = training.wide_layers
    if wide.first + wide.last > model.layers:
        raise wrong("wide_layers", f"got {wide.first} and {wide.last}, expected at most {model.layers} in all")
    if wide.first + wide.last and training.precision in ("bf16", "fp16"):
        raise wrong("wide_layers", f"got some with {training.precision}, in which all layers are")
    if model.mamba and training.parallel.cp > 1:
        raise wrong("parallel.cp", f"got {training.parallel.cp}, expected 1: {model.name} has state-space layers")
    if model.mamba and model.mamba.groups % training.parallel.tp:
        raise wrong(
            "parallel.tp",
            f"got {training.parallel.tp}, expected a divisor of {model.mamba.groups} groups of states",
        )
    if captured and training.host.graphs:
        raise wrong("host.captured", f"got {', '.join(captured)} with graphs: true, which captures all")
    if "router" in captured and model.experts is None:
        raise wrong("host.captured", f"got router, expected none: {model.name} has no experts")
    if training.parallel.ep == 1:
        if training.overlap.experts:
            raise wrong("overlap.experts", "got true with ep 1, expected false: nothing is exchanged")
        if training.routing.dispatcher != "all-to-all":
            raise wrong("routing.dispatcher", "got flex with ep 1, expected all-to-all: nothing is dispatched")


def _check_adapters(training: Training, model: Model, wrong: Wrong) -> None:
    if model.experts or model.latent or model.mamba or model.predictors:
        raise wrong(
            "lora", f"got adapters, expected none: those of {model.name} are not modelled; dense layers' are"
        )
    lora = training.lora
    assert lora is not None
    if not lora.targets or len(set(lora.targets)) < len(lora.targets):
        given = ", ".join(lora.targets) or "none"
        raise wrong("lora.targets", f"got {given}, expected some of qkv, projection, up, down, each once")
    if training.recompute == "operations":
        raise wrong("recompute", "got operations with adapters, expected none, selective or full")


def _check_stages(training: Training, model: Model, wrong: Wrong) -> None:
    par = training.parallel
    if par.vp > 1 and par.pp == 1:
        raise wrong("parallel.vp", f"got {par.vp} with pp 1, expected 1: chunks are of pipeline stages")
    if par.vp > 1 and par.schedule != "1f1b":
        raise wrong("parallel.schedule", f"got {par.schedule}, expected 1f1b with vp {par.vp}")
    stages = par.pp * par.vp
    if split_layers(model.layers, stages, ends_as_layers=par.ends_as_layers, given=par.layers) is None:
        if par.layers is not None:
            raise wrong(
                "parallel.layers",
                f"got {len(par.layers)} numbers that add up to {sum(par.layers)}, expected {stages} "
                f"(pp {par.pp} × vp {par.vp}) that add up to the model's {model.layers} layers",
            )
        ends = " plus embedding and output projection" if par.ends_as_layers else ""
        if par.vp > 1:
            raise wrong(
                "parallel.vp",
                f"got pp {par.pp} × vp {par.vp} = {stages}, expected a divisor of the model's "
                f"{model.layers} layers{ends}",
            )
        raise wrong("parallel.pp", f"got {par.pp}, expected a divisor of the model's {model.layers} layers{ends}")


def _check_experts(training: Training, model: Model, wrong: Wrong) -> None:
    par, found = training.parallel, model.experts
    expert_tp = par.expert_tp or par.tp
    if found is None:
        if par.ep > 1:
            raise wrong("parallel.ep", f"got {par.ep}, expected 1: {model.name} has no experts")
        if par.expert_tp is not None:
            raise wrong("parallel.expert_tp", f"got {par.expert_tp}, expected none: {model.name} has no experts")
        if training.routing.imbalance or training.routing.capacity_factor is not None:
            raise wrong("routing", f"expected nothing: {model.name} has no experts")
        return
    if found.count % par.ep:
        raise wrong("parallel.ep", f"got {par.ep}, expected a divisor of the model's {found.count} experts")
    if par.tp % expert_tp:
        raise wrong("parallel.expert_tp", f"got {expert_tp}, expected a divisor of tp {par.tp}")
    if found.ffn % expert_tp:
        raise wrong("parallel.expert_tp", f"got {expert_tp}, expected a divisor of an expert's width, {found.ffn}")
    if par.tp > 1 and not training.sequence_parallel:
        raise wrong(
            "sequence_parallel",
            "got false, expected true: experts with tensor parallelism take sequence-parallel tokens",
        )


@cache
def _defaults() -> tuple[Sharding, Collective]:
    return Sharding(), Collective()


def check_switches(training: Training, model: Model, dp: int, wrong: Wrong) -> int:
    """Sharding, overlap and offload. Returns how many data-parallel ranks make a unit. Raises ConfigError."""
    par, sharding = training.parallel, training.sharding
    strategy = sharding.strategy
    expert_tp = par.expert_tp or par.tp
    bound = max(1, par.ep * expert_tp // (par.cp * par.tp))
    if par.ep > 1:
        if (dp * par.cp * par.tp) % (par.ep * expert_tp):
            raise wrong(
                "parallel.ep",
                f"got ep {par.ep} × expert_tp {expert_tp}, "
                f"expected a divisor of dp {dp} × cp {par.cp} × tp {par.tp}",
            )
        inner, outer = sorted((par.ep * expert_tp, bound * par.cp * par.tp))
        if outer % inner or dp % bound:
            raise wrong("parallel.ep", f"got {par.ep}, expected one that divides, or is divided by, cp × tp ranks")
    width = bound
    if strategy in IN_PASS:
        if par.ep > 1:
            raise wrong("sharding.strategy", f"got {strategy}, expected none or zero-1 with expert parallelism")
        width = sharding.ranks or dp
        if dp % width:
            raise wrong("sharding.ranks", f"got {width}, expected a divisor of dp {dp}")
    elif sharding.ranks is not None:
        raise wrong("sharding.ranks", f"got {sharding.ranks}, expected none with {strategy}: it shards over all")
    _check_overlap(training, wrong)
    default, gradients = _defaults()
    if strategy not in SHARDED:
        for key in ("prefetch", "reshard_after_forward"):
            if getattr(sharding, key) != getattr(default, key):
                raise wrong(f"sharding.{key}", f"expected only with zero-3 or fsdp, got strategy {strategy}")
    hybrid = strategy in IN_PASS and width < dp
    if training.gradients != gradients and strategy != "none" and not hybrid:
        raise wrong("gradients", f"expected nothing with {strategy}: gradients are reduce-scattered, by rings")
    for key in ("attention_throughput", "attention_backward_throughput"):
        if getattr(training, key) is not None and training.attention == "materialised":
            raise wrong(key, "expected only with flash attention: materialised follows the roofline")
    if training.scaling != "delayed" and training.precision != "fp8":
        raise wrong("scaling", f"got {training.scaling} with {training.precision}, expected it with fp8")
    _check_weights(training, wrong)
    if training.offload.optimizer and training.offload.memory_rate is None:
        raise wrong(
            "offload.memory_rate", "got nothing, expected what the host's memory streams, such as '400 GB/s'"
        )
    if training.offload.memory_rate is not None and not training.offload.optimizer:
        raise wrong("offload.memory_rate", "got a rate, expected it only with optimizer: true")
    return width


def _check_weights(training: Training, wrong: Wrong) -> None:
    """Refuse precisions that contradict how weights are kept."""
    if training.fused_norms and training.kernels != "eager":
        raise wrong("fused_norms", f"got true with kernels {training.kernels}, expected it with eager")
    if training.weights == "master":
        return
    if training.weights == "autocast":
        if training.precision not in ("bf16", "fp16"):
            raise wrong("weights", f"got autocast with {training.precision}, expected it with bf16 or fp16")
        contrary, wide = "same", "4 bytes, as weights are"
    else:
        contrary, wide = "fp32", "2 bytes, as weights are"
    if "gradient_precision" in training.model_fields_set and training.gradient_precision == contrary:
        message = f"got {contrary} with weights {training.weights}, whose gradients have {wide}"
        raise wrong("gradient_precision", message)
    if training.lora is not None:
        raise wrong("weights", f"got {training.weights} with adapters, expected master")


def _check_overlap(training: Training, wrong: Wrong) -> None:
    par, overlap, strategy = training.parallel, training.overlap, training.sharding.strategy
    if overlap.tensor != "none" and par.tp == 1:
        raise wrong("overlap.tensor", f"got {overlap.tensor} with tp 1, expected none")
    if overlap.tensor == "full" and not training.sequence_parallel:
        raise wrong("overlap.tensor", "got full, expected it with sequence_parallel: true")
    if overlap.parameters and strategy not in ("zero-1", "zero-2"):
        raise wrong("overlap.parameters", f"got true with strategy {strategy}, expected it with zero-1 or zero-2")
    if overlap.gradients and strategy in IN_PASS and training.sharding.ranks is None:
        raise wrong("overlap.gradients", f"got true with {strategy}, which always reduces beside backward")
    if overlap.optimizer and not overlap.gradients:
        raise wrong("overlap.optimizer", "got true, expected it with overlap.gradients: true")
    if overlap.optimizer and training.offload.optimizer:
        raise wrong("overlap.optimizer", "got true, expected false with an offloaded optimizer")
