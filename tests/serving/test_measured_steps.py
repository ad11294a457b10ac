"""Steps from measured operators: what unequal contexts cost beside their mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictwin.serving.step.measured import MeasuredCost, OperatorFiles
from fabrictwin.serving.step.shape import StepShape


def _cost(folder: Path, alpha: float | None) -> MeasuredCost:
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
    skew = None
    if alpha is not None:
        skew = folder / "skew.csv"
        bins = [
            f"0,{count},{rate},kvB<=1k,kp=0,{value}\n"
            for count in ("n<=2", "n<=4")
            for rate, value in (("sr<=70%", alpha), ("sr<=40%", 0.25))
        ]
        skew.write_text("pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha\n" + "".join(bins))
    files = OperatorFiles(folder / "dense.csv", folder / "rows.csv", folder / "attention.csv", skew)
    return MeasuredCost(files, 1, max_tokens=64, max_sequences=8)


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
