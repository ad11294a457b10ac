"""What a layout cannot be: one clear line each, with the key and what was expected."""

from __future__ import annotations

import pytest
from support.specs import MIXTRAL
from support.specs import tiny_job as spec

from fabrictwin.base.errors import ConfigError
from fabrictwin.runs.execute import predict

MOE = {"model": MIXTRAL, "parallel": {"tp": 1, "pp": 2, "ep": 4}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": MIXTRAL, "parallel": {"pp": 2, "ep": 3}},
            r"parallel.ep: got 3, expected a divisor .* 8 experts",
        ),
        ({"parallel": {"ep": 2}}, r"parallel.ep: got 2, expected 1: model has no experts"),
        ({"parallel": {"tp": 2, "expert_tp": 2}}, r"parallel.expert_tp: got 2, expected none"),
        (
            {"model": MIXTRAL, "parallel": {"tp": 4, "pp": 4, "ep": 8}, "sequence_parallel": True},
            r"parallel.ep: got ep 8 × expert_tp 4, expected a divisor of dp 1 × cp 1 × tp 4",
        ),
        ({"model": MIXTRAL, "parallel": {"tp": 2, "pp": 2}}, r"sequence_parallel: got false, expected true"),
        ({**MOE, "sharding": "fsdp"}, r"sharding.strategy: got fsdp, expected none or zero-1 with expert"),
        ({"routing": {"imbalance": 0.1}}, r"routing: expected nothing: model has no experts"),
        ({"parallel": {"cp": 2}, "sequence": 2050}, r"sequence: got 2050, expected a multiple of 4"),
        ({"parallel": {"cp": 2}, "attention": "materialised"}, r"attention: got materialised, expected flash"),
        (
            {"parallel": {"pp": 2, "vp": 3}, "micro_batches": 4},
            r"parallel.vp: got pp 2 × vp 3 = 6, expected a divisor",
        ),
        ({"parallel": {"pp": 1, "vp": 2}}, r"parallel.vp: got 2 with pp 1, expected 1"),
        ({"parallel": {"pp": 4, "vp": 2}, "micro_batches": 6}, r"micro_batches: got 6 .* multiple of pp 4"),
        ({"parallel": {"pp": 2, "vp": 2, "schedule": "gpipe"}}, r"parallel.schedule: got gpipe, expected 1f1b"),
        (
            {"parallel": {"pp": 2, "layers": [4, 3]}},
            r"parallel.layers: got 2 numbers that add up to 7, expected 2",
        ),
        ({"parallel": {"pp": 4, "ends_as_layers": True}}, r"parallel.pp: got 4, .* 8 layers plus embedding"),
        ({"parallel": {"tp": 1}, "sequence_parallel": True}, r"sequence_parallel: got true with tp 1"),
        ({"parallel": {"tp": 4}, "sequence_parallel": True, "sequence": 2046}, r"expected a multiple of tp 4"),
        ({"parallel": {"tp": 2}, "overlap": {"tensor": "full"}}, r"overlap.tensor: got full, expected it with"),
        ({"parallel": {"tp": 1}, "overlap": {"tensor": "gradients"}}, r"overlap.tensor: got gradients with tp 1"),
        ({"overlap": {"parameters": True}}, r"overlap.parameters: got true with strategy none"),
        ({"overlap": {"optimizer": True}}, r"overlap.optimizer: got true, expected it with overlap.gradients"),
        (
            {"sharding": "fsdp", "overlap": {"gradients": True}},
            r"overlap.gradients: got true with fsdp, which always",
        ),
        ({"sharding": {"strategy": "fsdp", "ranks": 3}}, r"sharding.ranks: got 3, expected a divisor of dp 4"),
        ({"sharding": {"strategy": "zero-1", "ranks": 2}}, r"sharding.ranks: got 2, expected none with zero-1"),
        ({"sharding": {"strategy": "zero-1", "prefetch": 3}}, r"sharding.prefetch: expected only with zero-3"),
        ({"sharding": "zero-1", "gradients": {"algorithm": "tree"}}, r"gradients: expected nothing with zero-1"),
        ({"sharding": "zero4"}, r"sharding: got 'zero4'.*did you mean 'zero-3'"),
        ({"recompute_modules": ["latent-up"]}, r"recompute_modules: got latent-up, expected none: model has no"),
        ({"recompute_modules": ["expert-activations"]}, r"recompute_modules: .* model has no experts"),
        (
            {"recompute_modules": ["norms"], "recompute": "full"},
            r"recompute_modules: got some with recompute full",
        ),
        ({"recompute_modules": ["norms", "norms"]}, r"recompute_modules: got norms, norms, expected each once"),
        ({"host": {"captured": ["router"]}}, r"host.captured: got router, expected none: model has no experts"),
        ({"host": {"captured": ["attention"], "graphs": True}}, r"host.captured: got attention with graphs: true"),
        ({"host": {"captured": ["mamba"]}}, r"host.captured: got mamba, expected none: model has no state-space"),
        (
            {"wide_layers": {"first": 5, "last": 4}, "precision": "fp16"},
            r"wide_layers: got 5 and 4, expected at most 8",
        ),
        ({"wide_layers": {"last": 2}}, r"wide_layers: got some with (bf16|fp16), in which all layers are"),
        ({"overlap": {"experts": True}}, r"overlap.experts: got true with ep 1"),
        ({"routing": {"dispatcher": "flex"}}, r"routing.dispatcher: got flex with ep 1"),
        ({"offload": {"optimizer": True}}, r"offload.memory_rate: got nothing"),
        ({"offload": {"memory_rate": "1 GB/s"}}, r"offload.memory_rate: got a rate"),
        (
            {"attention": "materialised", "attention_throughput": "1 TFLOP/s"},
            r"attention_throughput: expected only",
        ),
        ({"precision": "fp8"}, r"precision: got fp8, expected what a100-80 computes in: bf16, fp16"),
        ({"parallel": {"tp": 2, "schdule": "gpipe"}}, r"schdule: .*did you mean 'schedule'"),
        ({"overlap": {"bucket": 100}}, r"overlap.bucket: .*100"),
    ],
)
def test_a_layout_that_cannot_be_is_one_clear_error(change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        predict(spec(2, **change))
    assert "\n" not in str(caught.value)


def test_short_forms_are_what_they_stand_for():
    long = spec(
        2, sharding={"strategy": "zero-1"}, overlap={"gradients": True, "parameters": True, "tensor": "gradients"}
    )
    short = spec(2, sharding="zero-1", overlap=True)
    assert (
        predict(short).trace.end_ps
        == predict(long).trace.end_ps
        < predict(spec(2, sharding="zero-1")).trace.end_ps
    )
