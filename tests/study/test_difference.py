"""Two runs side by side: folders and specs, what differs, the exit code for checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fabrictwin as ft
from fabrictwin.base.errors import ConfigError
from fabrictwin.cli import main

LAPTOP = Path(__file__).parents[2] / "examples" / "laptop.yaml"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    spec = ft.load(LAPTOP)
    slower = spec.with_({"cluster.network.link_rate": "100 Gb/s", "name": "slow"})
    return ft.run(spec).save(place / "a"), ft.run(slower).save(place / "b"), spec, slower


def test_a_run_is_the_same_as_itself_and_as_its_spec(folders):
    a, _, spec, _ = folders
    assert ft.diff(a, a).same
    again = ft.diff(a, spec)
    assert again.same
    assert again.slower == 0
    assert list(again.asked) == []


def test_what_differs_is_found_and_adds_up(folders):
    a, b, _, _ = folders
    found = ft.diff(a, b)
    assert found.asked["key"] == ["cluster.network.link_rate"]
    assert found.asked["after"] == ["100 Gb/s"]
    before, after = (json.loads((folder / "summary.json").read_text()) for folder in (a, b))
    assert found.slower == pytest.approx(after["step_time_s"] / before["step_time_s"] - 1, abs=1e-12)
    # the parts of a step add up to it, so their changes do too
    assert sum(found.parts["added_s"]) == pytest.approx(after["step_time_s"] - before["step_time_s"], rel=1e-6)
    added = [abs(one) for one in found.parts["added_s"]]
    assert added == sorted(added, reverse=True)
    assert found.parts["part"][0] == "data-parallel communication"
    slowed = {one["link"]: one for one in found.links}
    assert (
        slowed["host-0/mlx5_0/2 > leaf-0/1"]["utilisation_after"]
        > 3 * slowed["host-0/mlx5_0/2 > leaf-0/1"]["utilisation_before"]
    )


def test_turned_round_it_is_the_other_way(folders):
    a, b, _, _ = folders
    there, back = ft.diff(a, b), ft.diff(b, a)
    assert (1 + there.slower) * (1 + back.slower) == pytest.approx(1)
    assert len(there.links) == len(back.links) > 0


@pytest.mark.parametrize(("limit", "code"), [("0%", 1), ("0.1", 1), ("900%", 0)])
def test_a_check_fails_where_the_step_is_longer(folders, limit, code, capsys):
    a, b, _, _ = folders
    assert main(["diff", str(a), str(b), "--fail-over", limit, "--json"]) == code
    said = json.loads(capsys.readouterr().out)
    assert said["slower"] > 0.001
    assert main(["diff", str(b), str(a), "--fail-over", limit]) == 0


def test_the_page_says_it_in_a_sentence(folders, tmp_path):
    a, b, _, _ = folders
    page = ft.diff(a, b).save(tmp_path / "d.html").read_text()
    assert "longer" in page
    assert "host-0/mlx5_0/2 &gt; leaf-0/1" in page


def test_links_that_differ_by_less_than_is_shown_are_counted_and_not_listed(folders, capsys):
    """The closed form's step is a little shorter, so that every link is busy for a little more of it."""
    _, _, spec, _ = folders
    found = ft.diff(spec, spec.with_({"run.fidelity": "analytic"}))
    assert 0 < max(abs(one["utilisation_after"] - one["utilisation_before"]) for one in found.links) < 5e-5
    assert f"{len(found.links)} links differ by less than 0.005 points" in str(found)
    assert "+0.00 points" not in str(found)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("summary.json", "[]", "expected the summary of a run"),
        ("summary.json", '{"name": "x"}', "expected the summary of a run"),
        ("summary.json", "[" * 100_000, "expected the summary of a run: got JSON nested too deep"),
        ("summary.json", f'{{"name": {"9" * 5000}}}', "expected a number of at most 40 digits"),
        ("links.csv", "link,utilisation,tx_bytes\na > b,much,1\n", r"links.csv:2: expected the links of a run"),
        ("links.csv", f"link,utilisation,tx_bytes\na > b,1,{'9' * 5000}\n", "2: .*expected a whole number"),
        ("links.csv", f"link,utilisation,tx_bytes\n{'a' * 200_000},1,1\n", "expected the links of a run: field"),
    ],
)
def test_a_folder_that_is_no_run_is_named(folders, tmp_path, file, content, said):
    for one in folders[0].iterdir():
        (tmp_path / one.name).write_bytes(one.read_bytes())
    (tmp_path / file).write_text(content)
    with pytest.raises(ConfigError, match=said):
        ft.diff(tmp_path, folders[0])


def test_a_name_too_long_for_a_folder_is_said_so():
    with pytest.raises(ConfigError, match="File name too long"):
        ft.diff("9" * 5000, "b")


@pytest.mark.parametrize("limit", ["-1", "much", "nan"])
def test_a_limit_is_a_percentage(folders, limit, capsys):
    assert main(["diff", str(folders[0]), str(folders[0]), "--fail-over", limit]) == 2
    assert "expected a percentage" in capsys.readouterr().err


def test_servers_differ_by_what_their_users_wait_for(tmp_path, capsys):
    spec = ft.load(LAPTOP.with_name("serve-llama-3-70b.yaml"))
    few = spec.with_({"workload.serving.benchmark.num_prompts": 30})
    busy = few.with_({"workload.serving.benchmark.request_rate": 40})
    assert ft.diff(few, few).same
    found = ft.diff(few, busy)
    assert found.asked["key"] == ["workload.serving.benchmark.request_rate"]
    change = {one.name: one.change for one in found.detail.answer}
    assert found.slower == max(change["mean_ttft_ms"], change["mean_tpot_ms"]) > 0
    assert "mean_ttft_ms" in str(found)
    assert "First token" in found.save(tmp_path / "d.html").read_text()
