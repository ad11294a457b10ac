"""InfiniBand's generations as a table: rates follow from lanes and codes, published figures from their sources."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from fabrictwin.catalog.generations import generations_data
from fabrictwin.catalog.quantities import parse_year
from fabrictwin.cli import root


def test_rates_follow_from_signalling_and_code():
    found = {one["generation"]: one for one in generations_data()}
    assert list(found) == ["SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR"]
    rates = {"SDR": 8, "DDR": 16, "QDR": 32, "FDR": 54.5455, "EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}
    for name, gbps in rates.items():
        assert found[name]["link_gbps"] == pytest.approx(gbps)
        assert found[name]["link_gbps"] == pytest.approx(4 * found[name]["lane_gbps"], abs=1e-3)
        assert found[name]["signalling_gbps"] > found[name]["lane_gbps"]
    years = [one["year"] for one in found.values()]
    assert years == sorted(years)


def test_adapters_before_those_that_are_simulated_have_published_latencies():
    found = {a["adapter"]: a for one in generations_data() for a in one["adapters"]}
    assert found["Mellanox InfiniHost III"]["latency_us"] == 2.6
    assert "less than" in found["Mellanox ConnectX-3"]["note"]
    assert all(one["source"] for one in found.values())


def test_the_command_prints_the_table():
    text = CliRunner().invoke(root, ["catalog", "generations"]).output.splitlines()
    assert len(text) == 1 + len(generations_data())
    assert text[1].startswith("SDR    2001  8/10")
    assert json.loads(CliRunner().invoke(root, ["catalog", "generations", "--json"]).output) == generations_data()


@pytest.mark.parametrize("value", ["2001", "year 01", 2001, "year 20011"])
def test_a_year_is_written_out(value):
    assert parse_year("year 2001") == 2001
    with pytest.raises(ValueError, match="expected a year"):
        parse_year(value)
