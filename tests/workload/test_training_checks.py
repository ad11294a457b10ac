"""Rules on a training section from both of their sides: what is refused, by which key, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.workload.job.training_checks import check_layout, check_switches
from fabrictwin.workload.job.workload_section import Training
from fabrictwin.workload.model.model_blocks import Experts, Latent, Mamba
from fabrictwin.workload.model.model_sizes import Model

DENSE = Model("m", "llama", 48, 8, 12, 6, 4, 60, 160, 0, False)
SPARSE = replace(DENSE, experts=Experts(8, 2, 20, shared_ffn=24))
LATENT = replace(DENSE, latent=Latent(20, 10, 4, 6, 8))
HYBRID = replace(DENSE, pattern="M-M*M-M*", mamba=Mamba(6, 8, 10, 3, 4, 16))
PLAIN = replace(DENSE, gated=False, positions=48)


def refused(model: Model, section: dict, dp: int = 4) -> str | int:
    """The key that is found wrong; where none is, the data-parallel ranks that make a unit."""
    training = Training.model_validate({"model": {"a": 1}, "sequence": 48, "micro_batches": 4, **section})

    def wrong(where: str, message: str) -> ConfigError:
        return ConfigError(message, key=where)

    try:
        check_layout(training, model, wrong)
        return check_switches(training, model, dp, wrong)
    except ConfigError as error:
        return str(error.key)


def par(**sizes):
    return {"parallel": sizes}


LAYOUTS = [
    # recomputation that ends early
    (DENSE, {"recompute": "full", "recompute_ends_early": True}, 1),
    (DENSE, {"recompute_ends_early": True}, "recompute_ends_early"),
    (SPARSE, {"recompute": "full", "recompute_ends_early": True}, "recompute_ends_early"),
    (HYBRID, {"recompute": "full", "recompute_ends_early": True}, "recompute_ends_early"),
    # heads, key-value heads, the MLP's width, that of shared experts
    (DENSE, par(tp=2), 1), (DENSE, par(tp=3), 1), (DENSE, par(tp=6), 1), (DENSE, par(tp=4), "parallel.tp"),
    (DENSE, par(tp=5), "parallel.tp"), (replace(DENSE, ffn=64), par(tp=3), "parallel.tp"),
    (replace(DENSE, kv_heads=12), par(tp=12), 1), (replace(DENSE, kv_heads=12, ffn=64), par(tp=12), "parallel.tp"),
    (replace(SPARSE, experts=Experts(8, 2, 24, shared_ffn=20)), {**par(tp=3), "sequence_parallel": True},
     "parallel.tp"),
    # stages, virtual stages, layers by hand
    (DENSE, par(pp=2), 1), (DENSE, par(pp=8), 1), (DENSE, par(pp=3), "parallel.pp"),
    (DENSE, par(pp=16), "parallel.pp"),
    (DENSE, par(pp=2, vp=4), 1), (DENSE, par(pp=2, vp=3), "parallel.vp"), (DENSE, par(vp=2), "parallel.vp"),
    (DENSE, par(pp=2, vp=2, schedule="gpipe"), "parallel.schedule"), (DENSE, par(pp=2, schedule="gpipe"), 1),
    (DENSE, par(pp=2, vp=2, schedule="zero-bubble"), "parallel.schedule"),
    (DENSE, par(pp=5, ends_as_layers=True), 1), (DENSE, par(pp=5), "parallel.pp"),
    (DENSE, par(pp=4, ends_as_layers=True), "parallel.pp"), (DENSE, par(pp=2, vp=5, ends_as_layers=True), 1),
    (DENSE, par(pp=2, vp=2, ends_as_layers=True), "parallel.vp"),
    (DENSE, par(pp=2, layers=(5, 3)), 1), (DENSE, par(pp=2, layers=(5, 4)), "parallel.layers"),
    (DENSE, par(pp=2, layers=(8,)), "parallel.layers"), (DENSE, par(pp=2, vp=2, layers=(1, 2, 3, 2)), 1),
    # learned positions, context parallel halves, attention with them
    (PLAIN, {"sequence": 48}, 1), (PLAIN, {"sequence": 49}, "sequence"), (DENSE, {"sequence": 4900}, 1),
    (DENSE, {**par(cp=2), "sequence": 44}, 1), (DENSE, {**par(cp=2), "sequence": 46}, "sequence"),
    (DENSE, {"sequence": 47}, 1), (DENSE, {**par(cp=2), "attention": "materialised"}, "attention"),
    (DENSE, {"attention": "materialised"}, 1),
    # sequence parallel: tokens of a rank over tp ranks
    (DENSE, {**par(tp=2), "sequence_parallel": True}, 1),
    (DENSE, {"sequence_parallel": True}, "sequence_parallel"),
    (DENSE, {**par(tp=2), "sequence_parallel": True, "sequence": 47}, "sequence_parallel"),
    (DENSE, {**par(tp=2), "sequence_parallel": True, "sequence": 47, "micro_batch_size": 2}, 1),
    (DENSE, {**par(tp=2, cp=2), "sequence_parallel": True, "sequence": 44, "micro_batch_size": 1}, 1),
    (DENSE, {**par(tp=4, cp=2), "sequence_parallel": True, "sequence": 44}, "parallel.tp"),
    (DENSE, {**par(tp=3, cp=2), "sequence_parallel": True, "sequence": 44}, "sequence_parallel"),
    (DENSE, {**par(tp=2), "sequence": 47}, 1),
    # every second product kept: a dense, gated model
    (DENSE, {"recompute": "operations"}, 1), (DENSE, {**par(tp=2), "recompute": "operations"}, 1),
    (SPARSE, {"recompute": "operations"}, "recompute"), (LATENT, {"recompute": "operations"}, "recompute"),
    (PLAIN, {"recompute": "operations"}, "recompute"), (SPARSE, {"recompute": "full"}, 1),
    (PLAIN, {"recompute": "selective"}, 1),
    # modules that are recomputed
    (SPARSE, {"recompute_modules": ("norms", "experts")}, 1),
    (SPARSE, {"recompute_modules": ("norms", "norms")}, "recompute_modules"),
    (DENSE, {"recompute_modules": ("norms",), "recompute": "full"}, "recompute_modules"),
    (DENSE, {"recompute_modules": ("norms",), "recompute": "operations"}, "recompute_modules"),
    (DENSE, {"recompute_modules": ("norms",), "recompute": "selective"}, 1),
    (DENSE, {"recompute_modules": ("experts",)}, "recompute_modules"),
    (DENSE, {"recompute_modules": ("expert-activations",)}, "recompute_modules"),
    (SPARSE, {"recompute_modules": ("expert-activations",)}, 1),
    (SPARSE, {"recompute_modules": ("expert-activations", "experts")}, "recompute_modules"),
    (DENSE, {"recompute_modules": ("latent-up",)}, "recompute_modules"),
    (LATENT, {"recompute_modules": ("latent-up",)}, 1),
    # parts that are captured
    (HYBRID, {"host": {"captured": ("mamba",)}}, 1), (DENSE, {"host": {"captured": ("mamba",)}}, "host.captured"),
    (SPARSE, {"host": {"captured": ("router",)}}, 1),
    (DENSE, {"host": {"captured": ("router",)}}, "host.captured"),
    (DENSE, {"host": {"captured": ("attention", "attention")}}, "host.captured"),
    (DENSE, {"host": {"captured": ("attention",), "graphs": True}}, "host.captured"),
    (DENSE, {"host": {"captured": ("attention",)}}, 1), (DENSE, {"host": {"graphs": True}}, 1),
    # weights: gradients as wide, 16-bit products under autocast; norms that a compiler fuses anyway
    (DENSE, {"weights": "autocast"}, 1), (DENSE, {"weights": "same"}, 1),
    (DENSE, {"weights": "autocast", "precision": "fp8"}, "weights"),
    (DENSE, {"weights": "same", "precision": "fp8"}, 1),
    (DENSE, {"weights": "autocast", "gradient_precision": "same"}, "gradient_precision"),
    (DENSE, {"weights": "autocast", "gradient_precision": "fp32"}, 1),
    (DENSE, {"weights": "same", "gradient_precision": "fp32"}, "gradient_precision"),
    (DENSE, {"weights": "same", "lora": {}}, "weights"),
    (DENSE, {"fused_norms": True}, "fused_norms"), (DENSE, {"fused_norms": True, "kernels": "eager"}, 1),
    # layers in 16 bits
    (DENSE, {"wide_layers": {"first": 4, "last": 4}, "precision": "fp8"}, 1),
    (DENSE, {"wide_layers": {"first": 5, "last": 4}, "precision": "fp8"}, "wide_layers"),
    (DENSE, {"wide_layers": {"first": 1}}, "wide_layers"),
    (DENSE, {"wide_layers": {"last": 1}, "precision": "fp16"}, "wide_layers"),
    (DENSE, {"precision": "fp16"}, 1), (DENSE, {"wide_layers": {"last": 1}, "precision": "fp4"}, 1),
    # state-space layers
    (HYBRID, par(tp=3), 1), (HYBRID, par(tp=2), "parallel.tp"), (HYBRID, par(cp=2), "parallel.cp"),
    # experts
    (DENSE, par(ep=2), "parallel.ep"), (DENSE, par(expert_tp=1), "parallel.expert_tp"),
    (DENSE, {"routing": {"imbalance": 0.1}}, "routing"), (DENSE, {"routing": {"capacity_factor": 1.0}}, "routing"),
    (SPARSE, {"routing": {"imbalance": 0.1, "capacity_factor": 1.0}}, 1),
    (SPARSE, par(ep=4), 4), (SPARSE, par(ep=3), "parallel.ep"),
    (SPARSE, {**par(tp=2), "sequence_parallel": True}, 1), (SPARSE, par(tp=2), "sequence_parallel"),
    (SPARSE, {**par(tp=6, expert_tp=4), "sequence_parallel": True}, "parallel.expert_tp"),
    (SPARSE, {**par(tp=6, expert_tp=3), "sequence_parallel": True}, "parallel.expert_tp"),
    (SPARSE, {**par(tp=6, expert_tp=2), "sequence_parallel": True}, 1),
    (SPARSE, {"routing": {"dispatcher": "flex"}}, "routing.dispatcher"),
    (SPARSE, {**par(ep=2), "routing": {"dispatcher": "flex"}}, 2),
    (SPARSE, {"overlap": {"experts": True}}, "overlap.experts"),
    (SPARSE, {**par(ep=2), "overlap": {"experts": True}}, 2),
]  # fmt: skip


@pytest.mark.parametrize(("model", "section", "expected"), LAYOUTS)
def test_a_layout_is_refused_by_one_key_and_its_neighbour_is_not(model, section, expected):
    assert refused(model, section) == expected


@pytest.mark.parametrize(
    ("sizes", "dp", "expected"),
    [
        # expert ranks over data times context ranks: a unit is as wide as an expert-parallel group needs
        ({"ep": 2}, 4, 2), ({"ep": 4}, 4, 4), ({"ep": 8}, 8, 8), ({"ep": 8}, 4, "parallel.ep"),
        ({"ep": 2, "cp": 2}, 4, 1), ({"ep": 4, "cp": 2}, 4, 2), ({"ep": 8, "cp": 2}, 4, 4),
        ({"ep": 8, "cp": 2}, 2, "parallel.ep"), ({"ep": 4, "cp": 3}, 4, "parallel.ep"),
        ({"ep": 4, "tp": 2, "expert_tp": 1}, 4, 2), ({"ep": 4, "tp": 2}, 4, 4),
        ({"ep": 4, "tp": 2}, 2, "parallel.ep"),
        ({"ep": 2, "tp": 2, "expert_tp": 1}, 4, 1), ({"ep": 2, "tp": 6, "expert_tp": 1}, 4, 1),
        ({"ep": 4, "tp": 6, "expert_tp": 1}, 4, "parallel.ep"), ({"ep": 4}, 6, "parallel.ep"),
        ({"ep": 1}, 3, 1),
    ],
)  # fmt: skip
def test_a_unit_holds_whole_groups_of_experts(sizes, dp, expected):
    section = {**par(**sizes), "sequence_parallel": sizes.get("tp", 1) > 1}
    assert refused(SPARSE, section, dp) == expected


SHARDED = ("zero-2", "zero-3", "fsdp", "fsdp-1")


@pytest.mark.parametrize("strategy", ["none", "zero-1", *SHARDED])
def test_strategies_shard_over_units_where_they_exchange_in_every_pass(strategy):
    sharded = strategy in SHARDED
    assert refused(DENSE, {"sharding": strategy}) == (4 if sharded else 1)
    ranks = {"strategy": strategy, "ranks": 2}
    assert refused(DENSE, {"sharding": ranks}) == (2 if sharded else "sharding.ranks")
    assert refused(DENSE, {"sharding": {**ranks, "ranks": 3}}) == "sharding.ranks"
    assert refused(SPARSE, {**par(ep=2), "sharding": strategy}) == ("sharding.strategy" if sharded else 2)
    gathers = strategy in ("zero-3", "fsdp", "fsdp-1")
    for key, other in (("prefetch", 2), ("reshard_after_forward", False)):
        expected = 4 if gathers else f"sharding.{key}"
        assert refused(DENSE, {"sharding": {"strategy": strategy, key: other}}) == expected
    tree = {"gradients": {"algorithm": "tree"}}
    assert refused(DENSE, {"sharding": strategy, **tree}) == (1 if strategy == "none" else "gradients")
    if sharded:  # copies beyond the unit are all-reduced
        assert refused(DENSE, {"sharding": ranks, **tree}) == 2
        assert refused(DENSE, {"sharding": {**ranks, "ranks": 4}, **tree}) == "gradients"
    overlap = {"overlap": {"parameters": True}}
    shards_steps = strategy in ("zero-1", "zero-2")
    unit = 4 if sharded else 1
    assert refused(DENSE, {"sharding": strategy, **overlap}) == (unit if shards_steps else "overlap.parameters")
    overlap = {"overlap": {"gradients": True}}
    assert refused(DENSE, {"sharding": strategy, **overlap}) == ("overlap.gradients" if sharded else 1)
    if sharded:
        assert refused(DENSE, {"sharding": ranks, **overlap}) == 2


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"overlap": {"tensor": "gradients"}}, "overlap.tensor"),
        ({**par(tp=2), "overlap": {"tensor": "gradients"}}, 1),
        ({**par(tp=2), "overlap": {"tensor": "full"}}, "overlap.tensor"),
        ({**par(tp=2), "overlap": {"tensor": "full"}, "sequence_parallel": True}, 1),
        ({"overlap": {"optimizer": True}}, "overlap.optimizer"),
        ({"overlap": {"optimizer": True, "gradients": True}}, 1),
        ({"overlap": {"optimizer": True, "gradients": True}, "offload": {"optimizer": True,
         "memory_rate": "1 GB/s"}},
         "overlap.optimizer"),
        ({"overlap": {"gradients": True}, "offload": {"optimizer": True, "memory_rate": "1 GB/s"}}, 1),
        ({"offload": {"optimizer": True}}, "offload.memory_rate"),
        ({"offload": {"memory_rate": "1 GB/s"}}, "offload.memory_rate"),
        ({"attention": "materialised", "attention_throughput": "1 TFLOP/s"}, "attention_throughput"),
        ({"attention": "materialised", "attention_backward_throughput": "1 TFLOP/s"},
         "attention_backward_throughput"),
        ({"attention_throughput": "1 TFLOP/s", "attention_backward_throughput": "1 TFLOP/s"}, 1),
        ({"scaling": "block"}, "scaling"), ({"scaling": "block", "precision": "fp8"}, 1),
        ({"precision": "fp8"}, 1),
    ],
)  # fmt: skip
def test_switches_that_would_do_nothing_are_refused(section, expected):
    assert refused(DENSE, section) == expected
