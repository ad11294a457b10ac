"""Cost: counts against closed forms of the topology, sums against plain ones, price books that are wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import blueprint

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.catalog.entry_kinds import figures
from fabrictwin.catalog.price_book import price_book
from fabrictwin.cli import main
from fabrictwin.study.cost.bill_of_materials import bill_of_materials
from fabrictwin.study.cost.cluster_cost import HOURS_A_YEAR, cost, cost_data, cost_text, without_hosts

CLUSTER = """schema: 1
name: c
cluster:
  hosts: {type: dgx-h100, count: 8}
  network: {technology: infiniband, switch: qm9700, topology: {kind: rail-optimised}}
"""


def own_book(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    return path


def test_every_figure_of_the_book_has_a_source_and_every_assumption_says_so():
    found = list(figures(price_book()))
    assert found
    for key, figure in found:
        assert figure.source in catalog.sources(), key
        if figure.source == "derived":
            assert figure.note, key


@pytest.mark.parametrize(("hosts", "leaf_down"), [(8, 4), (16, 8)])
def test_a_two_tier_fat_tree_has_as_many_switches_and_cables_as_its_closed_form(hosts, leaf_down):
    """N adapters, d a leaf: N/d leaves, each with d links up; N links to hosts, N between switches."""
    shape = {
        "kind": "fat-tree",
        "tiers": 2,
        "leaf_down": leaf_down,
        "leaves": hosts // leaf_down,
        "spines": leaf_down,
    }
    built = blueprint(hosts, "pcie-box", topology=shape, host_cable="2 m", trunk_cable="30 m")
    bill = bill_of_materials(built, price_book())
    counts = {(item.kind, item.name): item.count for item in bill.items}
    adapters = sum(len(host.nics) for host in built.hosts)
    assert counts[("switch", "qm8700")] == hosts // leaf_down + leaf_down
    assert sum(count for (kind, _), count in counts.items() if kind == "cable") == 2 * adapters
    lengths = {item.title.rpartition(", ")[2]: item.count for item in bill.items if item.kind == "cable"}
    assert lengths == {"2 m": adapters, "30 m": adapters}


def test_the_sum_is_what_a_plain_sum_over_every_part_gives():
    built, book = blueprint(8, "dgx-h100", switch="qm9700"), price_book()
    plain = 0.0
    for host in built.hosts:
        plain += book.hosts[host.type].price.value.amount
    for switch in built.switches:
        plain += book.switches[switch.type].price.value.amount
    for rate, length in zip(built.cables.rate_bps.tolist(), built.cables.length_mm.tolist(), strict=True):
        plain += book.cable(catalog.medium(length, rate).name, rate)[0]
    assert bill_of_materials(built, book).total() == pytest.approx(plain)


def test_a_year_of_power_and_a_token_cost_what_they_should(tmp_path):
    own = own_book(
        tmp_path,
        "site: {electricity: 0.10 EUR/kWh, overhead: 200 %, draw: 50 %, upkeep: 10 %}\n"
        "hosts: {dgx-h100: {price: 100 EUR, power: 1000 W}}\n"
        "switches:\n"
        + "".join(f"  {name}: {{price: 10 EUR, power: 100 W}}\n" for name in price_book().switches)
        + "cables:\n"
        + "".join(f"  {name}: [{{rate: 400 Gb/s, link: 1 EUR, power: 1 W}}]\n" for name in price_book().cables),
    )
    # the catalog's other hosts are in another currency than this book
    with pytest.raises(ConfigError, match="got USD, expected EUR"):
        price_book(own)
    own.write_text(own.read_text().replace("EUR", "USD"))
    book = price_book(own)
    built = blueprint(8, "dgx-h100", switch="qm9700")
    found = cost(bill_of_materials(built, book), book, years=2, tokens_per_s=1e6)
    switches, links = len(built.switches), len(built.cables)
    assert found.purchase == pytest.approx(8 * 100 + switches * 10 + links)
    watts = 2 * (8 * 1000 * 0.5 + switches * 100 + links)
    assert found.draw_w == pytest.approx(watts)
    people = 129840 * 64 / 4096 + 90520 * 64 / 1024
    assert found.staff.pay_a_year == pytest.approx(people)
    running = watts / 1000 * HOURS_A_YEAR * 0.10 + 0.1 * found.purchase + people
    assert found.running_a_year == pytest.approx(running)
    whole = found.purchase + 2 * running
    lost = 64 * 419 / 884736 / 24 * 18.6 / 60  # of the time between two interruptions
    assert found.staff.down == pytest.approx(lost / (1 + lost))
    trained = 2 * HOURS_A_YEAR * 3600 * 1e6 / (1 + lost)
    assert found.per_million_tokens == pytest.approx(whole / trained * 1e6)
    assert found.joules_per_token == pytest.approx(watts / 1e6)


def test_hosts_without_a_price_leave_no_cost_of_a_token_rather_than_the_networks():
    book = price_book()
    bill = bill_of_materials(blueprint(8, "dgx-h100", switch="qm9700"), book)
    hostless = book.model_copy(update={"hosts": {}})
    found = cost(
        bill_of_materials(blueprint(8, "dgx-h100", switch="qm9700"), hostless), hostless, tokens_per_s=1e6
    )
    assert found.purchase == pytest.approx(bill.total() - bill.total("host"))
    assert without_hosts(found).per_million_tokens is None
    assert cost_data(found)["gpu_hour"] is None
    assert "dgx-h100" in cost_text(found)
    assert "GPU and hour" not in cost_text(found)


def test_beyond_the_fastest_row_a_cable_costs_in_proportion_to_its_rate():
    book = price_book()
    price, watts, row = book.cable("optics-pam4", 800 * 10**9)
    assert (price, watts) == (2 * row.link.value.amount, 2 * row.power.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "hosts: {dgx-h100: {price: 310000}}",
            r":1 hosts.dgx-h100.price: got 310000, expected a string with its unit",
        ),
        ("hosts:\n  dgx-h10: {price: 1 USD}", r":2 hosts.dgx-h10: got 'dgx-h10'.*did you mean 'dgx-h100'"),
        ("switches: {qm9700: {pryce: 1 USD}}", r"switches.qm9700.pryce: got an unknown key.*did you mean 'price'"),
        ("site: {electricity: 1 USD}", r"site.electricity.*such as '0.08 USD/kWh'"),
        ("site: {upkeep: 3 of 4}", r"site.upkeep.*such as"),
        (
            "site: {interruptions: 1 / 10 adapter-days}",
            r"site.interruptions: got adapter-days, expected days of one of GPU",
        ),
        (
            "people: {administrators: {looks_after: 0 GPUs}}",
            r"people.administrators.looks_after: got 0, expected at least",
        ),
        ("people: {clerks: {pay: 1 USD}}", r"people.clerks.looks_after"),
        ("[1]", r"expected a price book"),
        ("hosts: 3", r"hosts: got 3"),
        ("cables: {dac: [{rate: 400, link: 1 USD, power: 1 W}]}", r"cables.dac.*rate.*without a unit"),
    ],
)
def test_a_wrong_book_is_one_clear_line(tmp_path, text, said, capsys):
    spec = tmp_path / "c.yaml"
    spec.write_text(CLUSTER)
    assert main(["cost", str(spec), "--prices", str(own_book(tmp_path, text))]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert re.search(said, line), line


@settings(max_examples=150)
@given(st.text(max_size=120))
def test_no_text_makes_a_book_raise_anything_but_its_own_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("book") / "p.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        book = price_book(path)
    except ConfigError:
        return
    assert book == price_book(None)  # text that names no price changes none


def test_the_command_prints_the_bill_and_as_json_the_same(tmp_path, capsys):
    spec = tmp_path / "c.yaml"
    spec.write_text(CLUSTER)
    assert main(["cost", str(spec)]) == 0
    text = capsys.readouterr().out
    assert "NVIDIA DGX H100" in text
    assert "USD a million tokens" not in text  # no job
    assert main(["cost", str(spec), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["purchase"] == sum(item["count"] * item["price"] for item in data["items"])
    assert data["per_million_tokens"] is None
    assert main(["cost", "--sources"]) == 0
    assert "h100-cluster-costs-2024" in capsys.readouterr().out
    assert main(["cost"]) == 2
