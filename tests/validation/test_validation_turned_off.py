"""What turning things off costs, beside what was published of it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fabrictwin.base.errors import ConfigError
from fabrictwin.cli.predict.validate import validate as app
from fabrictwin.validation.published_data import find_data
from fabrictwin.validation.turned_off import FILE, Answer, answers, as_text, read_tests

FOLDER = find_data(None, FILE)
TESTS = read_tests(FOLDER)


@pytest.mark.second
def test_ratios_are_those_that_were_published() -> None:
    """Fitted to rows among them are NVLS's figures and what rings get of H100's NVLinks."""
    published = [test for test in TESTS if test.published is not None and test.kind != "all_to_all"]
    assert {test.what for test in published} == {"GPUDirect RDMA", "NVLS"}
    for answer in answers(published, fidelity="analytic"):
        figures = answer.test.published
        assert figures is not None
        assert answer.factor == pytest.approx(figures.factor, rel=0.08), answer.test.machine
        assert answer.on == pytest.approx(figures.on, rel=0.08), answer.test.machine
        assert answer.off == pytest.approx(figures.off, rel=0.04), answer.test.machine


@pytest.mark.second
def test_what_nobody_published_costs_what_its_mechanism_says() -> None:
    rest = {
        (a.test.what, a.test.machine): a.factor for a in answers(TESTS, fidelity="analytic") if not a.test.source
    }
    rails = {machine: factor for (what, machine), factor in rest.items() if what == "one rail of eight"}
    # of eight rails seven are left: rings lose an eighth, an NVLS tree only where its network decides
    assert rails["two DGX H100, rings"] == pytest.approx(8 / 7, rel=0.03)
    assert 1 < rails["two DGX H100, NCCL's choice"] < 8 / 7
    pxn = [factor for (what, _), factor in rest.items() if what == "PXN"]
    assert pxn[0] == pytest.approx(1.0, abs=0.01)
    assert pxn[0] < pxn[1] < pxn[2]
    sockets = {machine: factor for (what, machine), factor in rest.items() if what.startswith("NET/IB")}
    # "about a tenth" has one digit: between 0.05 and 0.15 (the costs of sockets come from other publications)
    assert 1 / 0.15 < sockets["two DGX A100, rings"] < 1 / 0.05
    # sockets are held back by processors, so beside links twice as fast they are half as much
    assert sockets["two DGX H100, rings"] == pytest.approx(2 * sockets["two DGX A100, rings"], rel=0.05)


def test_published_figures_of_gpudirect_are_the_sources(shared: Path) -> None:
    with (shared / "validation" / "gdr_on_off_gh200.csv").open() as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    mine = {test.kind: test.published for test in TESTS if test.published and test.what.startswith("GPUDirect")}
    for name, kind in (("All_Reduce", "all_reduce"), ("AlltoAll", "all_to_all"), ("All_Gather", "all_gather")):
        (row,) = (r for r in rows if r["op"] == name)
        figures = mine[kind]  # type: ignore[index]
        assert figures is not None
        assert (figures.on, figures.off) == (float(row["busbw_gdr"]), float(row["busbw_no_gdr"]))


def test_the_table_has_a_line_a_test_with_ratios() -> None:
    text = as_text([Answer(test, 100.0, 50.0) for test in TESTS], "flow")
    assert text.count("    2.00") == len(TESTS)
    for test in TESTS:
        assert test.machine in text


def test_the_command_prints_what_matches_and_names_what_does_not(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["collectives", "--turned-off", "--match", "4 GPUs of", "--json"])
    (one,) = json.loads(found.stdout)["tests"]
    assert one["what"] == "NVLS"
    assert one["twin"]["ratio"] == pytest.approx(1.0)
    nothing = CliRunner().invoke(app, ["collectives", "--turned-off", "--match", "teleport"])
    assert isinstance(nothing.exception, ConfigError)
    (tmp_path / FILE).write_text("tests:\n  - {what: x, machine: y, host: dgx-h100, hosts: 2, size: 1 GB/s}\n")
    with pytest.raises(ConfigError, match=rf"{FILE}:\d+ tests\[0\].size"):
        read_tests(tmp_path)
