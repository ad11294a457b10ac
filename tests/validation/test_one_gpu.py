"""Kernels and whole steps that were measured on one H100, beside the twin's: no step is fitted to."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from support.own_catalog import own_catalog

import fabrictwin as ft
from fabrictwin.workload.layers.number_formats import Scaling
from fabrictwin.workload.layers.roofline import AttentionKernel, Heads, Roofline

MEASURED = Path(__file__).parents[2] / "validation"
GPU = "h100-sxm"


def read(name: str) -> list[dict[str, str]]:
    lines = (MEASURED / name).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.fixture(scope="module")
def products() -> dict[tuple[int, ...], float]:
    """Measured milliseconds by (batch, m, n, k)."""
    rows = (row for row in read("h100_kernels.csv") if row["what"] == "product")
    return {tuple(int(row[side]) for side in ("batch", "m", "n", "k")): float(row["latency_ms"]) for row in rows}


def _misaligned(products: dict[tuple[int, ...], float]) -> Iterator[tuple[int, int, float, float]]:
    """(rows, elements beyond, measured, modelled) time over that of 64 elements beyond, of n or of k."""
    roof = Roofline(GPU, "bf16")
    for (batch, m, n, k), ms in products.items():
        for other in ((n - n % 64 + 64, k), (n, k - k % 64 + 64)):
            beyond = n % 64 + k % 64
            if batch == 1 and beyond and other[0] % 64 == other[1] % 64 == 0 and (1, m, *other) in products:
                modelled = roof.linear(m, n, k).ps / roof.linear(m, *other).ps
                yield m, beyond, ms / products[1, m, *other], modelled


def test_products_of_misaligned_sides_take_longer_as_measured(products: dict[tuple[int, ...], float]) -> None:
    """Rows of 16 bytes are fast; of other even numbers of elements and of odd ones two slower kernels."""
    found = list(_misaligned(products))
    for slow in (1, 2, 4):
        rows = [row for row in found if row[1] == slow]
        assert len(rows) == 32
        assert median(abs(modelled / measured - 1) for _, _, measured, modelled in rows) < 0.15
        assert min(modelled for _, _, _, modelled in rows) > 1.3
    aligned = [row for row in found if row[1] >= 8]
    assert len(aligned) >= 96
    assert median(abs(modelled / measured - 1) for _, _, measured, modelled in aligned) < 0.06


def test_an_odd_product_that_nothing_was_taken_from_is_met(products: dict[tuple[int, ...], float]) -> None:
    """13,825 by 13,825: seven times as long as 13,824."""
    ours = Roofline(GPU, "bf16").linear(2048, 13825, 13825).ps / 1e9
    assert ours == pytest.approx(products[1, 2048, 13825, 13825], rel=0.15)


def test_rows_of_activations_may_have_any_number(products: dict[tuple[int, ...], float]) -> None:
    """Nothing of m depends on alignment: an activation's rows are not what lies side by side."""
    roof = Roofline(GPU, "bf16")
    assert roof.linear(2049, 4096, 4096).ps == pytest.approx(roof.linear(2048, 4096, 4096).ps, rel=0.01)
    assert roof.linear(4096, 4096, 2049, accumulate=True).ps == pytest.approx(
        roof.linear(4096, 4096, 2048, accumulate=True).ps, rel=0.01
    )


def _fp8(what: str, least: int, *, backward: bool) -> list[float]:
    """Modelled over measured time of fp8 products from so many rows."""
    scaling: Scaling = "rowwise" if " row" in what else "current"
    roof, found = Roofline(GPU, "fp8", scaling=scaling), []
    for row in read("h100_kernels.csv"):
        m, n, k = (int(row[side]) for side in "mnk")
        if row["what"] == what and m >= least:
            found.append(roof.linear(m, n, k, backward=backward).ps / 1e9 / float(row["latency_ms"]))
    return found


def test_fp8_with_a_scale_a_row_is_as_far_off_as_with_one_a_tensor() -> None:
    """The share of rows was taken from the fast ones; full sums, of which nothing was, say whether it holds."""
    for what, backward in (("fp8 product row", False), ("fp8 product row full sums", True)):
        rows, tensors = (_fp8(one, 2048, backward=backward) for one in (what, what.replace("row", "tensor")))
        assert len(rows) == len(tensors) >= 12
        assert median(rows) == pytest.approx(1, abs=0.15)
        assert abs(median(rows) - 1) < abs(median(tensors) - 1) + 0.05


@pytest.mark.parametrize(("what", "moved_bytes"), [("fp8 cast row", 3), ("fp8 cast tensor", 5)])
def test_casts_move_one_order_at_the_memorys_rate(what: str, moved_bytes: int) -> None:
    """By rows a value is read once, with a scale a tensor twice; of small ones launches are most."""
    roof = Roofline(GPU, "bf16")
    found = []
    for row in read("h100_kernels.csv"):
        elements = int(row["m"]) * int(row["k"])
        if row["what"] == what and elements >= 2**25:
            found.append(roof.stream(moved_bytes * elements).ps / 1e9 / float(row["latency_ms"]))
    assert len(found) == 3
    assert all(0.7 < one < 1.05 for one in found)


def test_attention_by_cudnn_reaches_what_was_measured() -> None:
    """Heads of 64 and 128 from 4,096 tokens; others: docs/validation.md."""
    roof = Roofline(GPU, "bf16", attention=AttentionKernel("cudnn"))
    for row in read("h100_kernels.csv"):
        batch, length, heads, width = (int(row[key]) for key in ("batch", "m", "n", "k"))
        if not row["what"].startswith("attention") or width not in (64, 128) or length < 4096:
            continue
        part = "b" if row["what"].endswith("backward") else "f"
        ours = roof.flash_attention(batch, Heads(heads, width), length, part).ps / 1e9
        assert ours == pytest.approx(float(row["latency_ms"]), rel=0.17)


def step_of(row: dict[str, str]) -> float:
    """The twin's milliseconds of a measured step."""
    compiled, again = row["compiled"] == "1", row["recomputation"] == "1"
    model = {
        "model_type": "llama", "hidden_size": int(row["hidden"]), "num_hidden_layers": int(row["layers"]),
        "num_attention_heads": int(row["heads"]), "num_key_value_heads": int(row["kv_heads"]),
        "intermediate_size": int(row["ffn"]), "vocab_size": int(row["vocab"]), "hidden_act": "silu",
        "tie_word_embeddings": False, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    training = {
        "model": model, "micro_batch_size": int(row["micro_batch"]), "micro_batches": int(row["micro_batches"]),
        "sequence": int(row["sequence"]), "attention": "cudnn", "kernels": "fused" if compiled else "eager",
        "loss": "eager", "pad_vocabulary": 1, "recompute": "full" if again else "none",
        "weights": "autocast" if row["precision"] == "autocast" else "same",
        **({} if compiled else {"fused_norms": True}),  # torch.nn.RMSNorm of PyTorch 2.11
        **({"recompute_ends_early": True} if again else {}),
    }  # fmt: skip
    network = {"technology": "infiniband", "topology": {"kind": "single-switch"}, "switch": "qm9700"}
    spec = {
        "schema": 1, "name": "one", "cluster": {"hosts": {"type": "one-h100", "count": 1}, "network": network},
        "workload": {"training": training}, "run": {"fidelity": "analytic"},
    }  # fmt: skip
    return ft.run(ft.load(spec)).step_time * 1e3


@pytest.fixture(scope="module")
def step_errors() -> dict[bool, list[float]]:
    """Errors of step times that the host paces, and of those that the device does."""
    errors: dict[bool, list[float]] = {True: [], False: []}
    with own_catalog(Path(__file__).parent / "one_gpu"):
        for row in read("h100_steps.csv"):
            hosts = row["hidden"] == "1024" and int(row["micro_batch"]) < 4
            errors[hosts].append(step_of(row) / float(row["step_ms"]) - 1)
    return errors


@pytest.mark.second
def test_steps_on_one_gpu_are_predicted(step_errors: dict[bool, list[float]]) -> None:
    """Keep steps that the device paces within 7 %, half of them within 4 %."""
    found = step_errors[False]
    assert len(found) == 19
    assert max(map(abs, found)) < 0.07
    assert median(map(abs, found)) < 0.04


@pytest.mark.second
def test_steps_that_the_host_paces_are_short(step_errors: dict[bool, list[float]]) -> None:
    """Keep them within 40 %: this machine's host takes longer than the one whose time is in the catalog."""
    found = step_errors[True]
    assert len(found) == 3
    assert all(-0.4 < error < 0 for error in found)
