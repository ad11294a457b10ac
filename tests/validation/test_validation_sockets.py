"""Published sockets: rows are read and judged, costs are those of the fit, publications are left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.cli import root
from fabrictwin.engines.sockets.stack import Costs
from fabrictwin.validation.published_data import find_data
from fabrictwin.validation.sockets.socket_rows import TABLE, TEXTS, read_sockets
from fabrictwin.validation.sockets.sockets_fit import fit, leave_out, median_absolute

COSTS = Costs.of(catalog.host_stack("linux"))
POINTS, SETS = read_sockets(find_data(None, TABLE))


def test_published_sockets_are_met():
    assert len(POINTS) >= 60
    assert {one.row.set for one in POINTS} == set(SETS.sets)
    assert median_absolute(one.error(COSTS) for one in POINTS) < 0.2
    assert median_absolute(one.error(COSTS) for one in POINTS if one.by(COSTS) != "wire") < 0.2


def test_the_catalog_has_what_the_fit_finds():
    found = fit(POINTS)
    for name in Costs.__dataclass_fields__:
        assert getattr(COSTS, name) == pytest.approx(getattr(found, name), rel=0.04), name


def test_a_publication_that_is_left_out_does_not_count():
    few = [one for one in POINTS if one.row.set in ("cai-2021", "homa", "iperf-1078")]
    left = {one.name: one.errors for one in leave_out(few)}
    assert set(left) == {"cai-2021", "homa", "iperf-1078"}
    without = fit([one for one in few if one.row.set != "homa"])
    assert left["homa"] == tuple(one.error(without) for one in few if one.row.set == "homa")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("cai-2022,x,stream,,42,Gb/s", r"sockets.csv:2 set: got 'cai-2022'.*did you mean"),
        ("cai-2021,x,stream,mtuu=1,42,Gb/s", r"settings: got 'mtuu=1'.*did you mean 'mtu'"),
        ("cai-2021,x,stream,mtu=10,42,Gb/s", r"settings mtu"),
        ("cai-2021,x,stream,path=hosts,42,Gb/s", r"settings path"),
        ("cai-2021,x,stream,,42,us", r"unit: got 'us' for stream"),
        ("cai-2021,x,stream,,-1,Gb/s", r"value"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, row: str, message: str):
    folder = find_data(None, TABLE)
    (tmp_path / TEXTS).write_text((folder / TEXTS).read_text())
    (tmp_path / TABLE).write_text(f"set,row,test,settings,value,unit\n{row}\n")
    with pytest.raises(ConfigError, match=message):
        read_sockets(tmp_path)


def test_the_commands_print_rows_and_costs():
    asked = ["validate", "sockets"]
    whole = json.loads(CliRunner().invoke(root, [*asked, "--json"]).output)
    assert whole["medians"]["all"]["rows"] == len(whole["rows"]) == len(POINTS)
    assert whole["left_out"] is None
    text = CliRunner().invoke(root, [*asked, "--rows"]).output
    assert text.count("\n") > len(POINTS)
    assert "far_copy" in CliRunner().invoke(root, [*asked, "--fit"]).output


def test_sockets_of_two_hosts():
    found = json.loads(CliRunner().invoke(root, ["sockets", "--rate", "10 Gb/s", "--json"]).output)
    assert found["limited_by"] == "wire"
    assert found["bandwidth_gbps"] == pytest.approx(9.415, abs=0.001)
    text = CliRunner().invoke(root, ["sockets", "--streams", "4", "--threads", "1"]).output
    assert "streams 4, threads at each end 1" in text
    for option, value in (("--rate", "7"), ("--size", "0 B"), ("--write", "many"), ("--host", "dgx-h10")):
        assert CliRunner().invoke(root, ["sockets", option, value]).exception is not None
