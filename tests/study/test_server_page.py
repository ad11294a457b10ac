"""What is said of a served benchmark beside its table: where time goes, what tokens cost, what would gain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.servers import MODELS, server_spec

from fabrictwin.catalog.price_book import price_book
from fabrictwin.cli import main
from fabrictwin.cluster.spec.spec import Spec, load_spec
from fabrictwin.serving.config.server import server, serving_section
from fabrictwin.serving.engine.replica import STEP_FIELDS
from fabrictwin.serving.predict import predict
from fabrictwin.serving.report.sent_bytes import EXPERTS, PIPELINE, TENSOR_PARALLEL, sent_per_token
from fabrictwin.serving.report.token_time import token_time
from fabrictwin.study.servers.gains import as_it_is, gains
from fabrictwin.study.servers.token_cost import Prices

NO_HOST = {"schedule_us": 0, "request_us": 0}


def spec_of(folder: Path, serving: dict[str, Any] | None = None, **more: Any) -> Spec:
    return load_spec(server_spec(folder, serving, **more))


@pytest.mark.parametrize(
    ("serving", "host_us"),
    [
        ({"tensor_parallel_size": 4}, 0),
        ({"host": NO_HOST, "async_scheduling": False}, 0),
        ({"host": NO_HOST, "async_scheduling": False, "enforce_eager": True}, 0),
        ({"host": {"schedule_us": 500, "request_us": 0}, "async_scheduling": False}, 500),
        ({"async_scheduling": False}, 1300),  # 1,250 us and some requests of 13
    ],
)
def test_parts_make_up_the_time_between_tokens(tmp_path: Path, serving: dict[str, Any], host_us: int) -> None:
    found = predict(spec_of(tmp_path, serving))
    spent = token_time(found)
    assert sum(spent.parts_s.values()) == pytest.approx(spent.token_s, rel=1e-6)
    assert 1000 * (spent.queue_s + spent.prefill_s) == pytest.approx(found.fields["mean_ttft_ms"])
    # what a synchronous step waits for the host is no part of a step
    waiting = spent.parts_s.get("waiting", 0.0)
    assert waiting == pytest.approx(host_us / 1e6, rel=0.05, abs=1e-9)
    assert ("tensor_parallel" in spent.parts_s) == (found.gpus == 4)
    assert 0 < spent.mixed_share < 1


def test_a_queue_is_time_until_a_request_runs(tmp_path: Path) -> None:
    free = token_time(predict(spec_of(tmp_path)))
    held = token_time(predict(spec_of(tmp_path, {"max_num_seqs": 2})))
    assert held.queue_s > 10 * free.queue_s
    assert held.prefill_s < 2 * free.prefill_s


def test_steps_tell_decodes_from_prompts(tmp_path: Path) -> None:
    found = predict(spec_of(tmp_path, {"tensor_parallel_size": 2}))
    steps = found.replicas[0].steps
    decodes = steps[:, STEP_FIELDS.index("decodes")].sum()
    prompts = steps[:, STEP_FIELDS.index("tokens")].sum() - decodes
    assert decodes == found.fields["total_output_tokens"] - 30
    assert prompts == found.fields["total_input_tokens"]


def test_what_a_gpu_sends_for_a_token(tmp_path: Path) -> None:
    """Llama 3 8B: 65 all-reduces of 8 KiB a token, of which each of four moves 3/2; two rows a stage."""

    def sent(**serving: Any) -> dict[str, float]:
        ready = spec_of(tmp_path, serving, hosts=2)
        return sent_per_token(server(ready, serving_section(ready)).served)

    assert sent() == {}
    assert sent(tensor_parallel_size=4) == {TENSOR_PARALLEL: 65 * 8192 * 1.5}
    both = sent(tensor_parallel_size=4, pipeline_parallel_size=2)
    assert both == {TENSOR_PARALLEL: 65 * 8192 * 1.5 / 2, PIPELINE: 2 * 8192 / 4 / 2}
    experts = {"model": str(MODELS / "mixtral-8x7b.json"), "data_parallel_size": 4, "enable_expert_parallel": True}
    assert sent(**experts) == {EXPERTS: 3 * (2 * 4096 + 8) * 2 * 32}
    calls = sent(**experts, all2all_backend="deepep_low_latency")[EXPERTS]
    assert calls == pytest.approx(2 * 0.75 * 4096 * (2 + 2) * 32)  # two copies in 16 bits each way


def test_tokens_cost_what_their_gpus_do(tmp_path: Path) -> None:
    prices = Prices.of(spec_of(tmp_path), price_book(None))
    one, two = (prices.token(gpus=gpus, tokens_per_s=1000.0) for gpus in (1, 2))
    assert two.per_million == pytest.approx(2 * one.per_million)
    assert one.per_million == pytest.approx(one.gpu_hour / 3600 / 1000 * 1e6)
    assert two.joules == pytest.approx(2 * one.joules)


@pytest.mark.second
def test_changes_are_run_and_those_that_do_not_fit_left_out(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {"tensor_parallel_size": 4, "model": str(MODELS / "llama-3-70b.json")})
    found = predict(spec)
    changes = {one.change: one for one in gains(spec, found)}
    before = as_it_is(found)
    assert changes["weights in fp8"].tpot_ms < 0.85 * before.tpot_ms
    assert changes["tensor_parallel_size 8"].tpot_ms < 0.85 * before.tpot_ms
    assert changes["replicas 2"].gpus == 8
    wider = spec_of(tmp_path, {"tensor_parallel_size": 8})
    assert not {"replicas 2", "tensor_parallel_size 16"} & {one.change for one in gains(wider, predict(wider))}
    assert [one.e2el_ms for one in changes.values()] == sorted(one.e2el_ms for one in changes.values())


def test_the_page_and_a_row_a_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    page, rows = tmp_path / "s.html", tmp_path / "r.parquet"
    two = {"tensor_parallel_size": 2}
    assert main(["serve", str(server_spec(tmp_path, two)), "--page", str(page), "--csv", str(rows)]) == 0
    text = page.read_text()
    for said in (
        "What each GPU sends to others",
        "Where the time between tokens goes",
        "weights in fp8",
        "KV cache",
        "USD",
    ):
        assert said in text
    table = parquet.read_table(rows)
    assert table.num_rows == 30
    assert min(table["ttft_s"].to_pylist()) > 0
    capsys.readouterr()
    assert main(["cost", str(tmp_path / "server.yaml"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["per_million_tokens"] > 0
