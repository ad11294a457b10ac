"""Servers against published measurements, with nothing fitted to a row."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fabrictwin.cluster.spec.spec import load_spec
from fabrictwin.serving.arrivals.demand import Demand, HashedBlocks
from fabrictwin.serving.cache.manager import CacheLayout, KvCache
from fabrictwin.serving.engine.bench import serve
from fabrictwin.serving.engine.replica import HostTimes, Replica
from fabrictwin.serving.engine.router import router
from fabrictwin.serving.predict import predict
from fabrictwin.serving.report.bench import latencies
from fabrictwin.serving.scheduler.config import SchedulerConfig
from fabrictwin.serving.scheduler.release import release
from fabrictwin.serving.scheduler.scheduler import Scheduler
from fabrictwin.serving.step.cuda_graphs import capture_sizes
from fabrictwin.serving.step.measured import MeasuredCost, OperatorFiles
from fabrictwin.validation.served_models import Answer, Client, Row, Texts, answer_row, ranking

MODELS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.1-70B": {
        "model_type": "llama",
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen3-32B": {
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
        "attention_bias": False,
    },
}
SMALL: dict[str, Any] = {
    **MODELS["Qwen/Qwen3-32B"], "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32,
}  # fmt: skip
HOSTS = {"h100_sxm": "dgx-h100", "h200_sxm": "dgx-h200"}
LONGEST_RUN = 60_000  # requests × output tokens


def _rows(path: Path) -> list[dict[str, str]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    return list(csv.DictReader(io.StringIO(text)))


def _errors(shared: Path, hardware: str, *, skew: bool) -> dict[str, float]:
    """Relative errors of one run of 300 requests, one by one measured on vLLM 0.19.0."""
    folder = shared / "validation/serving"
    rows = [
        row
        for row in _rows(folder / "llmservingsim_vllm_requests.csv")
        if row["series"] == f"{hardware}/Llama-3.1-8B"
    ]
    prompts = _rows(folder / "llmservingsim_workload_llama-3.1-8b.csv.gz")
    chains = [[int(one) for one in row["block16_ids"].split()] for row in prompts]
    offsets = np.cumsum([0, *map(len, chains)]).astype(np.int64)
    contents = HashedBlocks(16, offsets, np.array([one for chain in chains for one in chain], np.int64))
    sent = np.array([round(float(row["arrival_s"]) * 1e12) for row in rows], np.int64)
    prompt, output = (np.array([int(row[key]) for row in rows], np.int64) for key in ("input_len", "output_len"))
    profile = folder / "llmservingsim_profile"
    prefix = f"{hardware}__meta-llama__Llama-3.1-8B__bf16__tp1__"
    names = ("dense", "per_sequence", "attention", *(("skew_fit",) if skew else ()))
    most = int(rows[0]["max_num_seqs"])
    cost = MeasuredCost(
        OperatorFiles(*(profile / f"{prefix}{name}.csv.gz" for name in names)),
        32,
        max_tokens=2048,
        max_sequences=most,
        graph_sizes=capture_sizes(most, 2048, capability=89, release="0.19"),
    )
    chosen = release("0.19")
    config = SchedulerConfig(2048, most, 32768, async_scheduling=True)
    blocks = int(rows[0]["num_gpu_blocks"] or 20_000)  # ample where it is not told
    replica = Replica(Scheduler(config, KvCache(CacheLayout(blocks, 32768), chosen), chosen), cost, HostTimes())
    times = latencies(serve(Demand(sent, prompt, output, contents), [replica], router("round_robin")))
    ttft = np.array([float(row["first_token_s"]) - float(row["arrival_s"]) for row in rows])
    e2el = np.array([float(row["last_token_s"]) - float(row["arrival_s"]) for row in rows])
    tpot = (e2el - ttft) / np.maximum(output - 1, 1)
    return {
        "ttft": times.ttft.mean() / ttft.mean() - 1,
        "p99 ttft": np.percentile(times.ttft, 99) / np.percentile(ttft, 99) - 1,
        "tpot": times.tpot.mean() / tpot.mean() - 1,
        "e2el": times.e2el.mean() / e2el.mean() - 1,
    }


@pytest.mark.parametrize(
    ("hardware", "skew", "bounds"),
    [("RTX4090", False, (0.01, 0.01, 0.01)), ("RTXPRO6000", True, (0.04, 0.015, 0.02))],
)
def test_servers_request_by_request(
    shared: Path, hardware: str, skew: bool, bounds: tuple[float, float, float]
) -> None:
    """Replay two runs with skew as each profile says of itself (`skew_fit` of its `meta.yaml`).

    Goals are 3% of TTFT and 1.5% of TPOT and E2E: met by the RTX 4090, short of KV and with queues of a minute; of
    the RTX PRO 6000 TTFT's mean and E2E are not, whose steps of 2,048 tokens take 91 to 94 ms where its operators
    add up to 86.
    """
    told = (
        shared / f"validation/serving/llmservingsim_profile/{hardware}__meta-llama__Llama-3.1-8B__bf16__meta.yaml"
    )
    assert yaml.safe_load(told.read_text())["skew_fit"]["enabled"] is skew
    errors = _errors(shared, hardware, skew=skew)
    for name, bound in zip(("ttft", "tpot", "e2el"), bounds, strict=True):
        assert abs(errors[name]) < bound, errors
    assert abs(errors["p99 ttft"]) < 0.03


def _served(row: dict[str, str], folder: Path) -> tuple[float, float]:
    """Relative errors of TPOT and TTFT of one measured server."""
    concurrency = int(float(row["concurrency"] or row["batch_size"]))
    prompt, output = int(row["isl"]), int(row["osl"])
    serving = {
        "model": MODELS[row["model_path"]],
        "release": "0.12" if row["backend_version"].startswith("0.12") else "0.19",
        "quantization": "fp8" if row["gemm_quant_mode"] == "fp8" else "none",
        "tensor_parallel_size": int(row["tp_size"]),
        "max_model_len": int(1.2 * (prompt + output)) + 200,
        "benchmark": {
            "num_prompts": max(5 * concurrency, 10),
            "max_concurrency": concurrency,
            "random_input_len": prompt,
            "random_output_len": output,
            "random_range_ratio": 0.1,
        },
    }
    network = {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"}
    cluster = {"hosts": {"type": HOSTS[row["system"]], "count": 1}, "network": network}
    path = folder / "server.yaml"
    path.write_text(json.dumps({"schema": 1, "cluster": cluster, "workload": {"serving": serving}}))
    fields = predict(load_spec(path)).fields
    return (
        fields["mean_tpot_ms"] / float(row["silicon_tpot_ms"]) - 1,
        fields["mean_ttft_ms"] / float(row["silicon_ttft_ms"]) - 1,
    )


@pytest.mark.second
def test_means_of_served_models(shared: Path, tmp_path: Path) -> None:
    """Every sixth row of vLLM on H100 and H200 with a dense model of 32B or 70B."""
    rows = [
        row
        for row in _rows(shared / "validation/serving/aic_silicon_sample.csv")
        if row["backend"] == "vllm"
        and row["mode"] == "agg"
        and row["model_path"] in MODELS
        and int(float(row["concurrency"] or row["batch_size"])) * int(row["osl"]) <= LONGEST_RUN
    ][::6]
    errors = np.abs([_served(row, tmp_path) for row in rows])
    assert len(errors) > 15
    assert np.median(errors[:, 0]) < 0.13
    assert np.quantile(errors[:, 0], 0.9) < 0.25
    assert np.median(errors[:, 1]) < 0.45


def test_pairs_are_in_the_measured_order_or_not() -> None:
    def answer(tp: int, measured_ms: float, predicted_ms: float, *, output: int = 100) -> Answer:
        row = Row(
            model="m", hardware="h100", release="", quantization="none", tp=tp, dp=1, concurrency=8, input=1000,
            output=output, ttft_ms=1.0, tpot_ms=measured_ms,
        )  # fmt: skip
        return Answer(row, 1.0, predicted_ms)

    slow, fast = answer(1, 20.0, 22.0), answer(1, 10.0, 11.0)
    assert ranking([slow, fast]) == (1, 1)
    assert ranking([slow, answer(1, 10.0, 23.0)]) == (0, 1)
    assert ranking([slow, answer(1, 19.0, 23.0)]) == (0, 0)  # too close to ask
    assert ranking([slow, answer(1, 10.0, 11.0, output=200)]) == (0, 0)  # not the same lengths
    assert ranking([slow, answer(2, 9.0, 9.0)]) == (1, 1)  # twice the GPUs, hardly more tokens from each


def test_prompts_that_a_server_has_seen_are_not_computed_again() -> None:
    clients = {"": Client(requests=10, shortest=0.8)}
    texts = Texts(
        source="s", again=("m bf16, h100",), clients=clients, hosts={"h100": "dgx-h100"}, models={"m": SMALL}
    )
    row = Row(
        model="m", hardware="h100", release="", quantization="none", tp=1, dp=1, concurrency=8, input=4000,
        output=20, ttft_ms=1.0, tpot_ms=1.0,
    )  # fmt: skip
    never, again = (answer_row(each, row) for each in (texts.model_copy(update={"again": ()}), texts))
    assert again.ttft_ms < never.ttft_ms / 2
    assert again.tpot_ms < never.tpot_ms


def test_data_parallel_ranks_count_as_gpus() -> None:
    row = Row(
        model="m", hardware="h100", release="", quantization="none", tp=2, dp=2, concurrency=8, input=1000,
        output=100, ttft_ms=1.0, tpot_ms=20.0,
    )  # fmt: skip
    assert Answer(row, 1.0, 10.0).paces == (100.0, 200.0)


def test_a_row_runs_as_its_client_ran_it() -> None:
    """Prompts of one length one at a time wait for nobody; of lengths from 0.8 on, the mean is a tenth shorter."""
    row = Row(
        model="m", hardware="h100", release="", quantization="none", tp=1, dp=1, concurrency=1, input=4000,
        output=20, ttft_ms=1.0, tpot_ms=1.0,
    )  # fmt: skip

    def answer(**client: Any) -> Answer:
        clients = {"": Client(requests=30, **client)}
        texts = Texts(source="s", clients=clients, hosts={"h100": "dgx-h100"}, models={"m": SMALL})
        return answer_row(texts, row)

    alike, spread = answer(shortest=1.0), answer(shortest=0.8)
    assert 0.85 < spread.ttft_ms / alike.ttft_ms < 0.95
    # a step of at most 1 + 4000 + 1 tokens holds the prompt, of 256 it takes sixteen
    whole = answer(shortest=1.0, spare_tokens=1)
    parts = answer(shortest=1.0, server={"max_num_batched_tokens": 256})
    assert whole.ttft_ms == pytest.approx(alike.ttft_ms, rel=0.01)
    assert parts.ttft_ms > 1.2 * alike.ttft_ms
