"""Power of servers by GPU generation: racks add up, tokens a joule follow from what was measured."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from fabrictwin import catalog
from fabrictwin.catalog.price_book import price_book
from fabrictwin.cli import root


def test_racks_and_joules_follow_from_the_figures():
    h200, b200 = catalog.server_power("power-dgx-h200"), catalog.server_power("power-dgx-b200")
    assert h200.rack_watts == 4 * 10200
    assert h200.measured["Llama 2 70B offline"].tokens_per_joule == pytest.approx(4.106, abs=0.001)
    assert b200.measured["Llama 2 70B offline"].tokens_per_joule == pytest.approx(9.894, abs=0.001)
    for one in (h200, b200):
        assert all(measured.power.value < one.most.value for measured in one.measured.values())
    assert catalog.server_power("power-gb300-nvl72").rack_watts == 135_000


def test_the_price_book_draws_what_the_table_says():
    hosts, servers = price_book(None).hosts, catalog.names("server_power")
    both = [name for name in hosts if f"power-{name}" in servers and "-nvl" not in name]  # racks: assumed apart
    assert len(both) >= 4
    for name in both:
        assert hosts[name].power.value == catalog.server_power(f"power-{name}").most.value


def test_the_command_prints_every_server_and_run():
    whole = json.loads(CliRunner().invoke(root, ["catalog", "power", "--json"]).output)
    assert [one["server"] for one in whole] == list(catalog.names("server_power"))
    for one in whole:
        assert one["rack_kw"] == pytest.approx(one["most_w_per_gpu"] * one["rack_gpus"] / 1e3, rel=0.001)
        for run in one["measured"]:
            assert run["joules_per_token"] * run["tokens_per_s"] == pytest.approx(run["watts"], rel=0.002)
    text = CliRunner().invoke(root, ["catalog", "power"]).output.splitlines()
    assert len(text) == 1 + sum(max(1, len(one["measured"])) for one in whole)
    assert "(assumed)" in text[2]
