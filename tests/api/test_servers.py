"""Servers from Python: the same answers as the commands give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fabrictwin as ft
from fabrictwin.cli import main

LAPTOP = Path(__file__).parents[2] / "examples" / "laptop.yaml"
MODEL = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
}
LOAD = {"num_prompts": 40, "request_rate": 20, "random_input_len": 200, "random_output_len": 20}


def server(**serving: Any) -> dict[str, Any]:
    """Return a small server as plain data: 40 requests on eight H100."""
    network = {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"}
    return {
        "schema": 1,
        "name": "small",
        "cluster": {"hosts": {"type": "dgx-h100", "count": 1}, "network": network},
        "workload": {"serving": {"model": MODEL, "release": "0.19", "benchmark": LOAD, **serving}},
    }


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "server.yaml"
    path.write_text(json.dumps(server()))
    return path


def test_a_server_answers_as_its_command(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ft.serve(written)
    assert main(["serve", str(written)]) == 0
    assert str(found) == capsys.readouterr().out
    assert main(["serve", str(written), "--json"]) == 0
    assert found.json() == capsys.readouterr().out
    assert len(found.requests) == 40
    assert sum(found.requests["ttft_s"]) / 40 == pytest.approx(found.data["mean_ttft_ms"] / 1000)
    # a prompt's last chunk makes the first token, and each other token is of a step
    assert sum(found.steps["requests"]) >= sum(found.requests["output_tokens"])
    other = ft.serve(written, seed=9)
    assert other.data["mean_ttft_ms"] != found.data["mean_ttft_ms"]


@pytest.mark.second
def test_layouts_for_an_objective_as_the_command_finds_them(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ft.plan(written, ttft="2s", tpot="20ms", rate="20/s", top=3)
    assert isinstance(found, ft.ServerPlan)
    page = tmp_path / "command.html"
    asked = ["--ttft", "2s", "--tpot", "20ms", "--rate", "20/s", "--top", "3", "--page", str(page)]
    assert main(["plan", str(written), *asked]) == 0
    assert str(found) == capsys.readouterr().out
    assert found.save(tmp_path / "python.html").read_bytes() == page.read_bytes()
    assert found.layouts["gpus"][0] == min(found.layouts["gpus"]) == 1
    best = ft.serve(found.write_best(tmp_path / "best.yaml"))
    assert best.data["mean_tpot_ms"] <= 20
    assert best.detail.gpus == 1
    impossible = ft.plan(written, ttft="1us", tpot="1us")
    assert isinstance(impossible, ft.ServerPlan)
    assert not len(impossible.layouts)
    with pytest.raises(ft.ConfigError, match="meets the objective"):
        _ = impossible.best


def test_an_objective_is_of_servers() -> None:
    with pytest.raises(ft.ConfigError, match="got no server, for which --ttft is"):
        ft.plan(LAPTOP, ttft="2s")
    with pytest.raises(ft.ConfigError, match="expected --ttft, --tpot or both"):
        ft.plan(server())


def test_a_server_on_fabrics_as_the_command_plays_it(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("infiniband-ndr", "tcp-100g")
    found = ft.compare(written, names)
    assert isinstance(found, ft.ServerComparison)
    assert main(["compare", str(written), "--fabrics", ",".join(names), "--out", str(tmp_path / "command")]) == 0
    assert capsys.readouterr().out.startswith(str(found))
    saved = found.save(tmp_path / "python")
    for name in ("compare.json", "compare.html"):
        assert (saved / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    assert found.fabrics["fabric"] == list(names)
    assert found.best in names
    assert found.verdict
    with pytest.raises(ft.ConfigError, match="varies its keys"):
        ft.compare(written, names, vary=("cluster.hosts.count=1,2",))
