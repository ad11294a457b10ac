"""Steps from measured operators: what unequal contexts cost beside their mean."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.servers import server_spec

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.spec.spec import load_spec
from fabrictwin.serving.predict import predict
from fabrictwin.serving.step.measured import MeasuredCost, MeasuredExperts, OperatorFiles
from fabrictwin.serving.step.shape import StepShape


def _files(folder: Path) -> OperatorFiles:
    """A layer of attention that takes its decodes' number times their context in ns, and nothing else."""
    dense = "layer,tokens,time_us\n" + "".join(
        f"{name},{tokens},0\n"
        for name in ("layernorm", "qkv_proj", "rotary_emb", "o_proj", "embedding", "final_layernorm")
        for tokens in (1, 64)
    )
    attention = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n" + "".join(
        f"{chunk},0,{count},{context},{chunk + count * context / 1000}\n"
        for chunk in (0, 16)
        for count in (0, 1, 8)
        for context in ((0,) if not count else (100, 1000))
        if chunk or count
    )
    (folder / "dense.csv").write_text(dense)
    (folder / "rows.csv").write_text("layer,sequences,time_us\nlm_head,1,0\nlm_head,8,0\n")
    (folder / "attention.csv").write_text(attention)
    return OperatorFiles(folder / "dense.csv", folder / "rows.csv", folder / "attention.csv")


def _cost(folder: Path, alpha: float | None) -> MeasuredCost:
    files = _files(folder)
    skew = None
    if alpha is not None:
        skew = folder / "skew.csv"
        bins = [
            f"0,{count},{rate},kvB<=1k,kp=0,{value}\n"
            for count in ("n<=2", "n<=4")
            for rate, value in (("sr<=70%", alpha), ("sr<=40%", 0.25))
        ]
        skew.write_text("pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha\n" + "".join(bins))
    return MeasuredCost(replace(files, skew=skew), 1, max_tokens=64, max_sequences=8)


def _decodes(*contexts: int) -> StepShape:
    count = len(contexts)
    squares = sum(one * one for one in contexts)
    return StepShape(count, count, sum(contexts), max(contexts), squares, [], count, uniform=True)


@pytest.mark.parametrize(
    ("alpha", "contexts", "expected_us"),
    [
        (None, (200, 400), 0.6),
        (0.5, (200, 400), 0.6 + 0.5 * 0.2),  # half of them as long as the longest
        (0.5, (300, 300), 0.6),
        (3.0, (200, 400), 0.8),  # never slower than if all were as long
        (-1.0, (200, 400), 0.6),  # nor quicker than their mean
        (0.5, (200, 200, 200, 400), 1.0 + 0.25 * 0.6),  # a quarter of them
        (0.5, (100, 200, 300, 400), 1.0 + 0.25 * 0.6),  # variance 12,500 and 150 beyond the mean: 0.36
    ],
)
def test_contexts_count_by_mean_variance_and_longest(
    tmp_path: Path, alpha: float | None, contexts: tuple[int, ...], expected_us: float
) -> None:
    assert _cost(tmp_path, alpha).stages_ps(_decodes(*contexts)) == (pytest.approx(expected_us * 1e6, abs=1),)


def _moe(folder: Path) -> Path:
    """Experts that take 10 µs for each that is met and 1 µs a token."""
    lines = [
        f"{tokens},{met},{10 * met + tokens}\n"
        for met in (2, 4, 8, 16)
        for tokens in (1, 2, 4, 8, 64)
        if met <= 2 * tokens
    ]
    path = folder / "moe.csv"
    path.write_text("tokens,activated_experts,time_us\n" + "".join(lines))
    return path


def test_ranks_that_share_experts_meet_their_part_of_them(tmp_path: Path) -> None:
    files = replace(_files(tmp_path), moe=_moe(tmp_path))

    def experts_us(tokens: int, ranks: int, others: int | None = None) -> float:
        shared = MeasuredExperts(16, 2, ranks, ranks, [0.0] * 65)
        cost = MeasuredCost(files, 1, max_tokens=64, max_sequences=64, experts=shared)
        own = _decodes(*[0] * tokens)
        time = cost.stages_ps(own) if ranks == 1 else cost.together_ps([own, _decodes(*[0] * (others or tokens))])
        return time[0] / 1e6 - cost._attention.layer_us(own)

    met = 16 * (1 - (1 - 2 / 16) ** 32)
    assert experts_us(32, 1) == pytest.approx(10 * met + 32, rel=0.01)
    assert experts_us(16, 2) == pytest.approx(10 * met / 2 + 16, rel=0.01)  # half of the experts, of all tokens
    assert experts_us(24, 2, 8) == pytest.approx(experts_us(16, 2), rel=0.01)  # not captured: as many in all
    with pytest.raises(ConfigError, match="expected the file `moe`"):
        MeasuredCost(_files(tmp_path), 1, max_tokens=4, max_sequences=4, experts=MeasuredExperts(16, 2, 1, 1, []))


def test_a_mixture_runs_from_measured_operators(tmp_path: Path) -> None:
    files = {"dense": "dense.csv", "per_sequence": "rows.csv", "attention": "attention.csv", "moe": "moe.csv"}
    _files(tmp_path)
    _moe(tmp_path)
    mixture: dict[str, Any] = {
        "model_type": "qwen3_moe", "hidden_size": 1024, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 1000,
        "max_position_embeddings": 4096, "num_experts": 16, "num_experts_per_tok": 2, "_name": "mixture",
        "moe_intermediate_size": 256, "tie_word_embeddings": False, "attention_bias": False,
    }  # fmt: skip
    section = {
        "model": mixture,
        "release": "0.19",
        "operators": files,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
    }

    def answer(**serving: Any) -> dict[str, Any]:
        path = server_spec(tmp_path, {**section, **serving}, num_prompts=20)
        return dict(predict(load_spec(path)).fields)

    one, two = answer(), answer(data_parallel_size=2, enable_expert_parallel=True)
    assert one["completed"] == two["completed"] == 20
    assert two["mean_tpot_ms"] < one["mean_tpot_ms"]
    assert json.dumps(two) == json.dumps(answer(data_parallel_size=2, enable_expert_parallel=True))
    with pytest.raises(ConfigError, match="experts in parts"):
        answer(data_parallel_size=2)


def test_products_go_up_in_steps_of_their_tiles(tmp_path: Path) -> None:
    """Between 16 and 32 tokens they take what 32 take, what works on each token a share; beyond all go on."""
    rows = [
        f"{name},{tokens},{time * tokens}\n"
        for name, time in (("qkv_proj", 2), ("o_proj", 0), ("layernorm", 0), ("rotary_emb", 1), ("embedding", 0))
        for tokens in (16, 32)
    ]
    files = _files(tmp_path)
    files.dense.write_text(
        "layer,tokens,time_us\n" + "".join(rows) + "final_layernorm,16,0\nfinal_layernorm,32,0\n"
    )
    cost = MeasuredCost(files, 1, max_tokens=64, max_sequences=8)
    assert [cost._linear_us[count] for count in (3, 16, 17, 24, 32)] == [48, 48, 64 + 17, 64 + 24, 96]
    assert cost._linear_us[48] == 3 * 48
