"""`fabrictwin serve`: from a spec to a table, and what vLLM would refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fabrictwin.base.errors import ConfigError, FabrictwinError
from fabrictwin.cli import main
from fabrictwin.cluster.spec.spec import load_spec
from fabrictwin.serving.config.server import server, serving_section
from fabrictwin.serving.predict import Prediction, predict
from fabrictwin.serving.report.bench import latencies
from fabrictwin.serving.scheduler.release import NAMES
from fabrictwin.serving.step.cuda_graphs import capture_sizes
from fabrictwin.serving.step.kernels import Kernels, runs_marlin
from fabrictwin.workload.model.model_blocks import Experts, Weights
from fabrictwin.workload.operators.tables import chip_of, table

EXAMPLES = Path(__file__).parents[2] / "examples"


def spec_file(
    folder: Path, serving: dict[str, Any] | None = None, benchmark: dict[str, Any] | None = None
) -> Path:
    path = folder / "server.yaml"
    section = {"model": str(EXAMPLES / "models/llama-3-8b.json"), "release": "0.19", **(serving or {})}
    section["benchmark"] = {
        "num_prompts": 40,
        "request_rate": 8,
        "random_input_len": 300,
        "random_output_len": 40,
        **(benchmark or {}),
    }
    cluster = {
        "hosts": {"type": "dgx-h100", "count": 2},
        "network": {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"},
    }
    path.write_text(json.dumps({"schema": 1, "name": "s", "cluster": cluster, "workload": {"serving": section}}))
    return path


def predicted(folder: Path, **serving: Any) -> Prediction:
    benchmark = serving.pop("benchmark", None)
    return predict(load_spec(spec_file(folder, serving, benchmark)))


def test_the_example_prints_vllms_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved, rows, steps = tmp_path / "r.json", tmp_path / "r.csv", tmp_path / "s.csv"
    arguments = ["serve", str(EXAMPLES / "serve-llama-3-70b.yaml"), "--save", str(saved), "--csv", str(rows)]
    assert main([*arguments, "--steps", str(steps)]) == 0
    shown = capsys.readouterr().out
    assert "Successful requests:                     400" in shown
    fields = json.loads(saved.read_text())
    assert fields["total_output_tokens"] == sum(fields["output_lens"])
    assert len(rows.read_text().splitlines()) == 401
    tokens = [int(line.split(",")[3]) for line in steps.read_text().splitlines()[1:]]
    cached = sum(int(line.split(",")[5]) for line in rows.read_text().splitlines()[1:])
    # every prompt's token is computed or found; the last of each output is not computed
    assert sum(tokens) == fields["total_input_tokens"] - cached + fields["total_output_tokens"] - 400
    assert main([*arguments[:2], "--json"]) == 0
    assert "itls" not in json.loads(capsys.readouterr().out)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = (predicted(tmp_path).fields for _ in range(2))
    assert json.dumps(one) == json.dumps(two)
    other = predict(load_spec(spec_file(tmp_path)), seed=7).fields
    assert other["start_times"] != one["start_times"]


@pytest.mark.parametrize("release", NAMES)
def test_defaults_of_each_release(tmp_path: Path, release: str) -> None:
    spec = load_spec(spec_file(tmp_path, {"release": release}))
    ready = server(spec, serving_section(spec))
    assert (ready.scheduler.max_num_batched_tokens, ready.scheduler.max_num_seqs) == (8192, 1024)
    assert ready.scheduler.async_scheduling == (release != "0.12")
    assert ready.layout.caching


def test_kv_blocks_from_memory(tmp_path: Path) -> None:
    """An H100 of 80 GiB at 0.9 holds 16 GB of weights and some 430,000 tokens of 128 KiB."""
    found = predicted(tmp_path)
    tokens = found.server.layout.blocks * 16
    assert 400_000 < tokens < 460_000
    split = predicted(tmp_path, tensor_parallel_size=2)
    assert split.server.layout.blocks * 16 > 2.1 * tokens


def test_weights_are_stored_as_the_models_file_says(tmp_path: Path) -> None:
    """An H100 multiplies no fp4: weights of 4 bits are widened while they are read, and prompts gain nothing."""
    model = json.loads((EXAMPLES / "models/llama-3-8b.json").read_text())

    def fields(**stored: Any) -> Any:
        told = {"model": {**model, "quantization_config": stored}} if stored else {}
        return predicted(tmp_path, **told).fields

    awq = fields(quant_method="awq", bits=4)
    assert awq == predicted(tmp_path, quantization="int4").fields
    assert fields(quant_method="fp8") == predicted(tmp_path, quantization="fp8").fields
    fp4, wide = Kernels("h100-sxm", Weights("fp4", "fp4")), Kernels("h100-sxm")
    assert fp4.linear(8, 14336, 4096) < 0.6 * wide.linear(8, 14336, 4096)
    assert fp4.linear(8192, 14336, 4096) > 0.97 * wide.linear(8192, 14336, 4096)
    with pytest.raises(ConfigError, match="got hqq of the model's quantization_config, expected one of none, fp8"):
        fields(quant_method="hqq")


def test_one_row_takes_a_server_as_long_as_two_though_a_layer_alone_takes_longer() -> None:
    """Measured layers cast one row by another kernel on Blackwell; a server's program has one for any number."""
    fp8 = Kernels("gb200", Weights("fp8", "fp8"))
    assert fp8.linear(1, 4096, 4096) == fp8.linear(2, 4096, 4096)
    known = table("products", "gb200", "fp8")
    shapes = np.array([[rows, 4096, 4096] for rows in (1, 2)], float)
    one, two = known.time_us(chip_of("gb200", "products", "fp8"), shapes)
    assert one - two > 10


@pytest.mark.parametrize("stored", ["int4", "mxfp4"])
def test_weights_of_4_bits_are_read_as_they_are_and_computed_slower(stored: str) -> None:
    """Measured of Marlin: half of what 16 bits reach on an H100, and no more on a B200, twice as fast in these."""
    kimi = Experts(384, 8, 2048)
    wide, hopper, blackwell = (
        Kernels(gpu, weights, moe_backend=backend)
        for gpu, weights, backend in (
            ("h100-sxm", Weights(), "auto"),
            ("h100-sxm", Weights("none", stored), "marlin"),
            ("b200-sxm", Weights("none", stored), "marlin"),
        )
    )
    few, many = (8, kimi, 7168, 2048, 2), (8192, kimi, 7168, 2048, 2)
    assert hopper.experts(*few) < 0.5 * wide.experts(*few)
    assert hopper.experts(*many) > 1.5 * wide.experts(*many)
    assert blackwell.experts(*many) > 0.7 * hopper.experts(*many)


def test_graphs_are_captured_up_to_the_largest_that_is_asked_for(tmp_path: Path) -> None:
    assert capture_sizes(64, 8192, capability=90, release="0.19")[-3:] == (112, 120, 128)
    assert capture_sizes(64, 8192, capability=90, release="0.19", most=300)[-4:] == (248, 256, 272, 288)
    assert capture_sizes(64, 100, capability=90, release="0.19", most=300)[-1] == 96
    spec = load_spec(spec_file(tmp_path, {"cudagraph_capture_sizes": [1, 8], "max_cudagraph_capture_size": 16}))
    with pytest.raises(ConfigError, match="max_cudagraph_capture_size 16 and cudagraph_capture_sizes up to 8"):
        serving_section(spec)


def test_marlin_is_for_weights_of_4_bits(tmp_path: Path) -> None:
    wanted = {"model": str(EXAMPLES / "models/mixtral-8x7b.json"), "moe_backend": "marlin"}
    spec = load_spec(spec_file(tmp_path, {**wanted, "tensor_parallel_size": 2}))
    with pytest.raises(ConfigError, match=r"got marlin for experts in 16 bits, .* expected int4, fp4, mxfp4"):
        server(spec, serving_section(spec))
    assert runs_marlin("a100-80", "mxfp4")
    assert not runs_marlin("h100-sxm", "mxfp4")
    assert runs_marlin("h100-sxm", "fp4")
    assert not runs_marlin("b200-sxm", "fp4")
    assert not runs_marlin("h100-sxm", "fp8")


@pytest.mark.parametrize(("gpu", "slower"), [("b200-sxm", True), ("gb200", True), ("h100-sxm", False)])
def test_experts_whose_swiglu_is_clamped_take_other_kernels_on_blackwell(gpu: str, slower: bool) -> None:
    """Measured of MiniMax M3: its 128 experts take two and more times what plain ones of that size take."""
    experts = Experts(128, 4, 3072)
    for stored in (Weights("fp4", "fp4"), Weights("mxfp4", "mxfp4")):
        plain, clamped = (
            Kernels(gpu, stored, clamped=each).experts(1024, experts, 6144, 3072, 2) for each in (False, True)
        )
        if slower and stored.experts == "fp4":
            assert clamped > 1.6 * plain
        else:
            assert clamped == plain


def test_the_longest_request_is_the_models(tmp_path: Path) -> None:
    spec = load_spec(spec_file(tmp_path, {"max_model_len": None}))
    assert server(spec, serving_section(spec)).scheduler.max_model_len == 8192


def test_more_gpus_and_fewer_bits_are_faster(tmp_path: Path) -> None:
    base = predicted(tmp_path).fields["median_tpot_ms"]
    assert predicted(tmp_path, tensor_parallel_size=4).fields["median_tpot_ms"] < 0.6 * base
    assert predicted(tmp_path, quantization="fp8").fields["median_tpot_ms"] < 0.75 * base
    assert predicted(tmp_path, quantization="int4").fields["median_tpot_ms"] < 0.55 * base
    captured, eager = (
        predicted(tmp_path, tensor_parallel_size=8, enforce_eager=eager).fields["median_tpot_ms"]
        for eager in (False, True)
    )
    assert eager > 1.2 * captured  # the host launches kernels that are done sooner
    staged = predicted(tmp_path, pipeline_parallel_size=2).fields
    assert staged["median_ttft_ms"] > 0.5 * predicted(tmp_path).fields["median_ttft_ms"]
    assert staged["median_tpot_ms"] == pytest.approx(base, rel=0.2)


def test_drafts_that_are_accepted_shorten_what_decodes(tmp_path: Path) -> None:
    config = {"method": "eagle", "num_speculative_tokens": 3, "acceptance": [0.8, 0.7, 0.6]}
    plain, drafted = predicted(tmp_path), predicted(tmp_path, speculative_config=config)
    assert drafted.fields["mean_tpot_ms"] < 0.7 * plain.fields["mean_tpot_ms"]
    never = predicted(tmp_path, speculative_config=config | {"acceptance": [0, 0, 0]})
    assert never.fields["mean_tpot_ms"] > plain.fields["mean_tpot_ms"]
    # 1 + 0.8 + 0.8 × 0.7 + 0.8 × 0.7 × 0.6 tokens a step on average, less at the end of each output
    per_step = drafted.served.tokens.mean()
    assert 2.2 < per_step < 2.7


def test_shared_prefixes_are_found(tmp_path: Path) -> None:
    found = predicted(tmp_path, benchmark={"prefixes": 1, "prefix_tokens": 320})
    assert found.served.hits.sum() >= 39 * 320 - 320
    off = predicted(tmp_path, benchmark={"prefixes": 1, "prefix_tokens": 320}, enable_prefix_caching=False)
    assert off.served.hits.sum() == 0


def test_a_closed_loop_holds_its_limit(tmp_path: Path) -> None:
    found = predicted(tmp_path, benchmark={"request_rate": "inf", "max_concurrency": 4})
    times = latencies(found.served)
    sent, ends = found.served.sent_ps / 1e12, found.served.sent_ps / 1e12 + times.e2el
    assert max(((sent <= at) & (ends > at + 1e-9)).sum() for at in sent) == 4
    assert found.fields["request_rate"] == "inf"
    assert np.unique(found.served.sent_ps).size > 5


def test_a_trace_keeps_its_times(tmp_path: Path) -> None:
    rows = "\n".join(f"{second},m,200,20,220,c" for second in range(5))
    (tmp_path / "burst.csv").write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + rows
    )
    trace = {"file": "burst.csv", "format": "burstgpt", "rate_scale": 2}
    path = spec_file(tmp_path)
    data = json.loads(path.read_text())
    data["workload"]["serving"]["benchmark"] = {"trace": trace}
    path.write_text(json.dumps(data))
    found = predict(load_spec(path))
    assert found.fields["start_times"] == [0.0, 0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize(
    ("serving", "benchmark", "error"),
    [
        (
            {"tensor_parallel_size": 3},
            {},
            "tensor_parallel_size: got 3, expected a divisor of .* 32 attention heads",
        ),
        ({"tensor_parallel_size": 16, "replicas": 2}, {}, "replicas: got 2 replicas of 16 GPUs each, .* has 16"),
        (
            {"max_model_len": 10_000_000, "allow_long_max_model_len": True},
            {},
            "max_model_len: got 10000000: one request needs 625000 KV blocks",
        ),
        ({"gpu_memory_utilization": 0.1}, {}, "gpu_memory_utilization: got a model of 15.* GiB a GPU: no memory"),
        ({"max_model_len": 320}, {}, "max_model_len: got 320, and the longest request has 340 tokens"),
        ({"enable_lora": True}, {}, "got enable_lora: LoRA is not modelled"),
        ({"limit_mm_per_prompt": {}}, {}, "multimodal input is not modelled"),
        ({"enable_expert_parallel": True}, {}, "enable_expert_parallel: got true, and .* has no experts"),
        ({"all2all_backend": "deepep_low_latency"}, {}, "which needs enable_expert_parallel and data parallelism"),
        ({"all2all_backend": "pplx"}, {}, "all2all_backend"),
        ({"data_parallel_size": 17}, {}, "got 1 replicas of 17 GPUs each, and the cluster has 16"),
        ({"kv_transfer_config": {}}, {}, "a connector of one engine alone .* is not modelled"),
        ({"max_num_seq": 3}, {}, "max_num_seq"),
        ({"release": "0.11"}, {}, "expected a release of vLLM from 0.12 on"),
        (
            {"model": str(EXAMPLES / "models/llama-3-8b.json"), "max_model_len": 8193},
            {},
            r"max_model_len \(8193\) is greater than the derived max_model_len \(8192 in model's config.json\)",
        ),
        ({"watermark": 0.1}, {}, "got watermark: not in vLLM 0.19"),
        (
            {"speculative_config": {"num_speculative_tokens": 2, "acceptance": [0.5]}},
            {},
            "got 1 acceptances for 2",
        ),
        ({}, {"request_rate": 0}, "request_rate"),
        ({}, {"prefixes": 3}, "expected prefixes and prefix_tokens together"),
        ({}, {"trace": {"file": "x", "format": "mooncake"}}, "got a trace and random_input_len"),
        ({"operators": {"dense": "no", "per_sequence": "no", "attention": "no"}}, {}, "no: no such file"),
        ({"model": "nothing.json"}, {}, "nothing.json: no such file"),
    ],
)
def test_what_is_refused(tmp_path: Path, serving: dict[str, Any], benchmark: dict[str, Any], error: str) -> None:
    with pytest.raises(FabrictwinError, match=error):
        predict(load_spec(spec_file(tmp_path, serving, benchmark)))


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(spec_file(tmp_path, {"tensor_parallel_size": 3}))]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "server.yaml" in lines[0]


def test_a_spec_without_a_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"workload.*serving"):
        predict(load_spec(EXAMPLES / "laptop.yaml"))
