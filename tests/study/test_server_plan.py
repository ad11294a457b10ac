"""Layouts of a server for an objective, and a server on several fabrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.servers import MODELS, server_spec

from fabrictwin.base.errors import ConfigError
from fabrictwin.catalog.price_book import price_book
from fabrictwin.cli import main
from fabrictwin.cluster.spec.spec import Origin, Spec, load_spec, read_spec
from fabrictwin.serving.config.server import serving_section
from fabrictwin.serving.predict import predict
from fabrictwin.study.servers.fabrics import compare_server, comparison_data, verdict
from fabrictwin.study.servers.layouts import layouts
from fabrictwin.study.servers.objective import Objective, parse_request_rate
from fabrictwin.study.servers.server_plan import ServerPlan, best_spec, plan_server


def spec_of(folder: Path, serving: dict[str, Any] | None = None, *, hosts: int = 1, **benchmark: Any) -> Spec:
    return load_spec(server_spec(folder, serving, hosts=hosts, **benchmark))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Spec, ServerPlan]:
    steps = {"max_num_batched_tokens": 4096}
    spec = spec_of(tmp_path_factory.mktemp("plan"), steps, num_prompts=100)
    return spec, plan_server(spec, Objective(rate=150.0, ttft_s=0.05, tpot_s=0.010))


def test_the_best_layout_meets_the_objective_when_it_is_run(planned: tuple[Spec, ServerPlan]) -> None:
    spec, found = planned
    best = found.ranked[0]
    again = predict(best_spec(spec, found))
    assert again.gpus == best.gpus
    assert found.objective.met(again) >= 0.9
    assert again.fields["request_rate"] == 150


def test_no_layout_with_fewer_replicas_met_it(planned: tuple[Spec, ServerPlan]) -> None:
    _, found = planned
    for best in found.ranked:
        fewer = [one for one in found.points if one.layout == best.layout and one.replicas < best.replicas]
        assert all(one.met < 0.9 for one in fewer)
    assert [one.gpus for one in found.ranked] == sorted(one.gpus for one in found.ranked)


def test_the_frontier_is_beaten_by_nothing(planned: tuple[Spec, ServerPlan]) -> None:
    _, found = planned
    pairs = [(one.user_tokens_per_s, one.tokens_per_s / one.gpus) for one in found.frontier]
    assert len(pairs) > 1
    for user, each in pairs:
        assert not any(one.user_tokens_per_s > user and one.tokens_per_s / one.gpus > each for one in found.points)


def test_layouts_are_those_that_fit(tmp_path: Path) -> None:
    large = {"model": str(MODELS / "llama-3-70b.json"), "max_num_batched_tokens": 2048, "max_model_len": 4096}
    spec = spec_of(tmp_path, large, hosts=2)
    names = [one.name for one in layouts(spec, serving_section(spec))]
    # 141 GB of weights are on no single GPU of 80
    assert names == ["TP 2", "TP 4", "TP 8", "TP 16", "TP 8 × PP 2"]


def test_an_objective_that_nothing_meets_says_what_comes_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = server_spec(tmp_path, {"max_num_batched_tokens": 4096})
    with pytest.raises(SystemExit, match="1"):
        main(["plan", str(path), "--tpot", "1ms"])
    head, _, nearest = capsys.readouterr().out.partition("no layout of 8 GPUs meets it; nearest:")
    assert "90% of them within TPOT 1 ms" in head
    assert nearest.splitlines()[3].split()[:4] == ["1", "×", "(TP", "8)"]


def test_bounds_are_asked_for_and_rates_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_request_rate("90/min") == 1.5
    for wrong in ("20/d", "fast", "-3", "0"):
        with pytest.raises(ConfigError, match="requests a second"):
            parse_request_rate(wrong)
    path = server_spec(tmp_path)
    assert main(["plan", str(path)]) == 2
    assert "expected --ttft, --tpot or both" in capsys.readouterr().err
    job = MODELS.parent / "llama-3-70b.yaml"
    assert main(["plan", str(job), "--ttft", "2s"]) == 2
    assert "got no server" in capsys.readouterr().err


def test_a_plan_is_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = server_spec(tmp_path, {"max_num_batched_tokens": 4096})
    page, best = tmp_path / "plan.html", tmp_path / "best.yaml"
    asked = ["plan", str(path), "--ttft", "1s", "--tpot", "20ms", "--json"]
    assert main([*asked, "--page", str(page), "--write", str(best)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["layouts"][0]["gpus"] == predict(load_spec(best)).gpus == 1
    assert "tokens a second and user" in page.read_text()


@pytest.mark.second
def test_what_crosses_hosts_takes_its_time_from_the_fabric(tmp_path: Path) -> None:
    wide = spec_of(tmp_path, {"tensor_parallel_size": 16}, hosts=2, num_prompts=10)
    found = compare_server(wide, ["infiniband-ndr", "tcp-100g"], book=price_book(None))
    fast, slow = found.fabrics
    assert slow.fields["mean_tpot_ms"] > 1.3 * fast.fields["mean_tpot_ms"]
    assert slow.between > fast.between
    assert "tcp-100g takes" in verdict(found)


def test_one_host_does_not_care_for_the_fabric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = server_spec(tmp_path, {"tensor_parallel_size": 8}, hosts=2)
    assert main(["compare", str(path), "--fabrics", "infiniband-ndr,tcp-100g", "--out", str(tmp_path / "c")]) == 0
    assert "makes no difference" in capsys.readouterr().out
    assert "a million" in (tmp_path / "c/compare.html").read_text()
    apart = {"disaggregated": {"prefill": {}, "decode": {}}, "tensor_parallel_size": 2}
    found = compare_server(spec_of(tmp_path, apart), ["infiniband-ndr", "tcp-100g"], book=price_book(None))
    assert "needs RDMA" in found.refused["tcp-100g"]
    with pytest.raises(ConfigError, match="each once"):
        compare_server(spec_of(tmp_path), [], book=price_book(None))


@pytest.mark.second
def test_neighbours_come_along_to_each_fabric() -> None:
    """A thin InfiniBand fabric is shared with a job that trains; the presets' fabrics are too, as they are."""
    spec = load_spec(Path(__file__).parents[2] / "examples/neighbours/server.yaml")
    short = spec.to_dict()
    short["workload"]["serving"]["benchmark"]["num_prompts"] = 20
    found = compare_server(
        read_spec(short, Origin(spec.folder, spec.path)), ["infiniband-ndr", "roce-400g"], book=price_book(None)
    )
    assert not found.refused
    thin, even = found.fabrics
    assert thin.fields["mean_tpot_ms"] > even.fields["mean_tpot_ms"]
    assert all(one.neighbours[0].name == "training" for one in found.fabrics)
    assert thin.neighbours[0].beside_ms > thin.neighbours[0].alone_ms
    assert comparison_data(found)["fabrics"][0]["neighbours"][0]["what"] == "step"
