"""The Python face: the same answers as the commands give, in a shape for notebooks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fabrictwin as ft
from fabrictwin.cli import main

ROOT = Path(__file__).parents[2]
LAPTOP = ROOT / "examples" / "laptop.yaml"


def spec():
    return ft.load(LAPTOP).with_(run__fidelity="analytic")


def test_importing_the_package_imports_nothing_of_it():
    code = "import sys, fabrictwin as ft; dir(ft); print([m for m in ('numpy', 'pydantic') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_public_name_is_there_and_an_unknown_one_is_not():
    for name in ft.__all__:
        assert getattr(ft, name) is not None
        assert name in dir(ft)
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        ft.runn  # noqa: B018


def test_a_function_stays_one_when_rooms_are_imported():
    import fabrictwin.runs.execute
    import fabrictwin.study.compare.comparison
    import fabrictwin.tools.nccl_tests.perf  # noqa: F401

    assert all(callable(getattr(ft, name)) for name in ("run", "plan", "compare", "jitter", "nccl_tests", "load"))


def test_a_result_is_what_the_command_writes(tmp_path, capsys):
    result = ft.run(spec(), what_if=True)
    assert main(["run", str(LAPTOP), "--fidelity", "analytic", "--out", str(tmp_path / "command"), "--json"]) == 0
    assert result.summary == json.loads(capsys.readouterr().out)
    folder = result.save(tmp_path / "python")
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in (tmp_path / "command").iterdir()}
    for name in ("links.csv", "flows.csv", "timeline.pftrace"):
        assert (folder / name).read_bytes() == (tmp_path / "command" / name).read_bytes()


def test_the_breakdown_adds_up_to_the_step():
    result = ft.run(spec())
    assert sum(result.breakdown["time_s"]) == pytest.approx(result.step_time)
    assert sum(result.breakdown["percent"]) == pytest.approx(100)
    shown = repr(result)
    assert shown.startswith("<Result laptop: step 8.3")
    assert "\n" not in shown


def test_links_come_with_the_network_first_and_the_busiest_before_others():
    links = ft.run(spec()).links
    kinds = links["kind"]
    network = kinds.count("InfiniBand")
    assert set(kinds[:network]) == {"InfiniBand"}
    used = links["utilisation_percent"]
    assert used[:network] == sorted(used[:network], reverse=True)


def test_the_same_spec_from_a_file_and_from_plain_data(tmp_path):
    one = ft.load(LAPTOP)
    other = ft.load(one.to_dict(), folder=ROOT / "examples")
    assert one == other
    assert ft.load(one) is one
    assert ft.run(other, fidelity="analytic").step_time == ft.run(LAPTOP, fidelity="analytic").step_time


def test_keyword_edits_are_checked_as_a_file_would_be():
    before = ft.load(LAPTOP)
    edited = before.with_({"workload.training.parallel.tp": 4}, cluster__hosts__count=8, run={"seed": 7})
    assert edited.to_dict()["workload"]["training"]["parallel"] == {"tp": 4, "pp": 2}
    assert edited.to_dict()["cluster"]["hosts"][0]["count"] == 8
    assert (edited.run.seed, edited.run.fidelity) == (7, before.run.fidelity)
    assert before.to_dict()["cluster"]["hosts"][0]["count"] == 4
    with pytest.raises(ft.ConfigError, match="did you mean 'hosts'"):
        before.with_(cluster__host__count=8)
    with pytest.raises(ft.ConfigError, match=r"cluster\.hosts.*count"):
        before.with_(cluster__hosts__count=0)
    with pytest.raises(ft.ConfigError, match="expected a key of the spec"):
        before.with_(name__first="x")


def test_published_figures_go_where_the_job_changes_and_stay_where_it_does_not():
    compare = {"source": "somewhere", "mfu": 0.4}
    one = ft.load(LAPTOP).with_(run={"compare": compare})
    assert one.with_(run__seed=3).run.compare is not None
    assert one.with_(cluster__hosts__count=8).run.compare is None


@pytest.mark.second
def test_a_plan_ends_in_a_spec_that_runs(tmp_path):
    found = ft.plan(spec(), top=3, fidelity="analytic")
    assert len(found.layouts) == 3
    assert found.layouts["step_s"] == sorted(found.layouts["step_s"])
    assert ft.run(found.best).step_time == pytest.approx(found.layouts["step_s"][0])
    assert ft.run(found.write_best(tmp_path / "best.yaml"), fidelity="analytic").step_time == pytest.approx(
        found.layouts["step_s"][0]
    )


def test_nccl_tests_prints_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    arguments = ["-b", "1M", "-e", "16M", "-f", "4", "--fidelity", "analytic"]
    assert main(["nccl-tests", "all_reduce_perf", "--cluster", str(LAPTOP), *arguments]) == 0
    printed = capsys.readouterr().out
    found = ft.nccl_tests(
        "all_reduce_perf",
        str(LAPTOP),
        fidelity="analytic",
        environment={"NCCL_ALGO": "Ring"},
        minbytes="1M",
        maxbytes=16 << 20,
        stepfactor=4,
    )
    assert found.text == printed
    assert found.rows["size_bytes"] == [1 << 20, 4 << 20, 16 << 20]
    assert set(found.rows["algorithm"]) == {"RING"}
    assert not found.wrong


@pytest.mark.parametrize(
    ("test", "options", "message"),
    [
        ("all_reduce", {}, "did you mean 'all_reduce_perf'"),
        ("all_reduce_perf", {"minbyte": 8}, "minbyte: .*did you mean 'minbytes'"),
        ("all_reduce_perf", {"minbytes": "lots"}, "minbytes: got 'lots', expected a size"),
    ],
)
def test_a_wrong_test_or_option_is_one_clear_error(test, options, message):
    with pytest.raises(ft.ConfigError, match=message):
        ft.nccl_tests(test, LAPTOP, **options)


def test_jitter_and_compare_answer_in_tables(tmp_path):
    study = ft.jitter(spec(), steps=50)
    assert study.sizes["gpus"][-1] > study.sizes["gpus"][0]
    assert study.save(tmp_path / "jitter.html").read_text().startswith("<!doctype html>")
    found = ft.compare(spec(), ["infiniband-ndr", "roce-400g"], seeds=())
    assert found.fabrics["fabric"] == ["infiniband-ndr", "roce-400g"]
    assert found.best in found.fabrics["fabric"]
    assert json.loads((found.save(tmp_path / "fabrics") / "compare.json").read_text()) == json.loads(
        json.dumps(found.data)
    )


def test_a_table_shows_itself_and_escapes_what_it_shows():
    table = ft.Table({"name": ["a<b", "c"] * 30, "value": [1.5, None] * 30})
    assert len(table) == 60
    assert table[-1] == {"name": "c", "value": None}
    assert [row["name"] for row in table][:2] == ["a<b", "c"]
    assert "... 40 more rows" in repr(table)
    html = table._repr_html_()
    assert "a&lt;b" in html
    assert "a<b" not in html
    with pytest.raises(ValueError, match="one length"):
        ft.Table({"a": [1], "b": []})
