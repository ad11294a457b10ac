"""Networks sized by what they need, ranges of prices, and answers that turn with an assumed price."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import blueprint
from support.specs import small_job as spec

from fabrictwin import catalog
from fabrictwin.api.jitter import jitter
from fabrictwin.catalog.price_book import price_book
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.study.compare.compare_page import page
from fabrictwin.study.compare.compare_text import data, text
from fabrictwin.study.compare.comparison import compare
from fabrictwin.study.compare.verdict import verdict
from fabrictwin.study.cost.bill_of_materials import bill_of_materials
from fabrictwin.study.cost.cluster_cost import cost
from fabrictwin.study.cost.network_sizing import Clos, needed, smallest
from fabrictwin.study.cost.price_ranges import changed, network_range
from fabrictwin.study.cost.turning_inputs import answers


@pytest.mark.parametrize(
    ("adapters", "ports", "ratio", "found"),
    [
        (32, 64, 1.0, Clos(1, 0)),
        (64, 64, 1.0, Clos(1, 0)),
        (65, 64, 1.0, Clos(3 + 2, 96)),
        (2048, 64, 1.0, Clos(64 + 32, 2048)),
        (2048, 64, 3.0, Clos(43 + 11, 43 * 16)),
        (2049, 64, 1.0, Clos(65 + 65 + 33, 65 * 32 + 65 * 32)),
    ],
)
def test_the_smallest_clos_is_the_closed_form(adapters, ports, ratio, found):
    assert smallest(adapters, ports, ratio) == found


@given(st.integers(1, 60_000), st.sampled_from([32, 40, 64, 128]))
def test_more_adapters_never_need_less_and_none_blocks(adapters, ports):
    found, more = smallest(adapters, ports), smallest(adapters + 1, ports)
    if found is None or more is None:
        assert adapters + 1 > ports * ports // 4 * ports - ports
        return
    assert (found.switches, found.trunks) <= (more.switches, more.trunks)
    # all cable ends find a port
    assert adapters + 2 * found.trunks <= found.switches * ports


def test_a_small_cluster_of_rails_needs_one_switch():
    built = blueprint(4, "dgx-h100", switch="qm9700")
    book = price_book()
    whole, bill = bill_of_materials(built, book), needed(built, book)
    assert whole.count("switch") > bill.count("switch") == 1
    assert bill.count("cable") == 32
    assert bill.total("host") == whole.total("host")
    assert bill.total("switch") == book.switches["qm9700"].price.value.amount


def test_a_quoted_price_has_its_range_and_an_assumed_one_half_and_twice():
    book = price_book()
    built = blueprint(4, "dgx-h100", switch="qm9700")
    bill = needed(built, book)
    cables = sum(item.count * item.price for item in bill.items if item.kind == "cable")
    low, high = network_range(bill, book)
    assert (low, high) == (36_000 + cables / 2, 50_000 + 2 * cables)  # copper's price is assumed
    white = needed(blueprint(4, "dgx-h100", technology="ethernet", switch="tomahawk-5-white-box"), book)
    assert white.count("switch") == 1
    price = book.switches["tomahawk-5-white-box"].price.value.amount
    assert network_range(white, book)[0] == price / 2 + cables / 2


def test_a_price_changed_in_the_sum_is_a_price_changed_in_the_book(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("switches: {spectrum-4: {price: 100000 USD}}\n")
    built = blueprint(4, "dgx-h100", technology="ethernet", switch="spectrum-4")
    one, other = (cost(needed(built, book), book, tokens_per_s=1e5) for book in (price_book(), price_book(own)))
    assert changed(one, "spectrum-4", 2.0) == pytest.approx(other.per_million_tokens)
    assert changed(cost(needed(built, price_book()), price_book()), "spectrum-4", 2.0) is None


def test_an_answer_turns_with_the_price_of_one_side_alone():
    book = price_book()
    costs = {
        name: cost(
            needed(blueprint(4, "dgx-h100", technology=technology, switch=switch), book), book, tokens_per_s=1e5
        )
        for name, technology, switch in (("ib", "infiniband", "qm9700"), ("eth", "ethernet", "spectrum-4"))
    }
    steps = {"ib": 1.0, "eth": 1.01}
    found = answers(costs, book, steps)
    cheapest = {name: {factor: one.cheapest for factor, one in at.items()} for name, at in found.items()}
    assert cheapest["the price of spectrum-4"] == {0.5: "eth", 2.0: "ib"}  # 25,000 and 100,000 beside 36,000
    assert "the price of qm9700" not in found  # quoted, not assumed
    assert cheapest["the price of dac"] == {0.5: "ib", 2.0: "ib"}  # both have the same copper
    assert {one.fastest for at in found.values() for one in at.values()} == {"ib"}


def costs_of(book):
    ends = (("ib", "infiniband", "qm9700"), ("eth", "ethernet", "spectrum-4"))
    return {
        name: cost(needed(blueprint(4, "dgx-h100", technology=kind, switch=switch), book), book, tokens_per_s=1e5)
        for name, kind, switch in ends
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("electricity", "site: {electricity: 0.16 USD/kWh}"),
        ("the site's overhead", "site: {overhead: 160 %}"),
        ("the hosts' mean power", "site: {draw: 100 %}"),
        ("upkeep", "site: {upkeep: 6 %}"),
        ("time lost by interruptions", "site: {lost: 37.2 min}"),
        (
            "people",
            "people: {network architects: {pay: 259680 USD}, administrators: {pay: 181040 USD}}",
        ),
    ],
)
def test_an_input_at_twice_is_a_book_that_says_twice(tmp_path, name, text):
    own = tmp_path / "own.yaml"
    own.write_text(text + "\n")
    book = price_book()
    found = answers(costs_of(book), book, {"ib": 1.0, "eth": 1.0})[name][2.0]
    there = {fabric: one.per_million_tokens for fabric, one in costs_of(price_book(own)).items()}
    low, high = sorted(there.values())
    assert found.cheapest == min(there, key=there.__getitem__)
    assert found.ahead == pytest.approx(high / low - 1)
    assert found.ahead != answers(costs_of(book), book, {"ib": 1.0, "eth": 1.0})[name][0.5].ahead or "lost" in name


def test_steps_that_are_longer_there_turn_the_fastest_and_the_cheapest():
    book = price_book()
    steps, at = {"ib": 1.0, "eth": 1.1}, {0.5: 1.0, 2.0: 1.3}
    found = answers(costs_of(book), book, steps, {"ib": {"delays": at}, "eth": {"delays": {0.5: 1.1, 2.0: 1.2}}})
    assert {factor: one.fastest for factor, one in found["delays"].items()} == {0.5: "ib", 2.0: "eth"}
    assert {factor: one.cheapest for factor, one in found["delays"].items()} == {0.5: "ib", 2.0: "eth"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    names = ["infiniband-ndr", "roce-400g", "roce-400g-white-box"]
    return compare(spec(tmp_path_factory.mktemp("prices")), names, book=price_book(), seeds=())


def test_the_verdict_says_which_networks_lie_within_each_others_range_and_what_turns_it(found):
    said = verdict(found).would_change
    (line,) = (line for line in said if "is cheaper is not known" in line)
    for fabric in found.fabrics:
        others = [other.network for other in found.fabrics if other is not fabric]
        meets = any(other.low <= fabric.network.high and fabric.network.low <= other.high for other in others)
        assert (fabric.name in line) == meets
    now = found.cheapest.name
    for name, at in found.answers_at.items():
        turned = [one for one in at.values() if one.cheapest != now]
        lines = [line for line in said if f"with {name} at" in line and "cheapest" in line]
        assert len(lines) == len(turned), (name, lines)
        assert text(found).count(f"  {name} ") == 2  # at half and at twice
    jitter = found.answers_at["jitter of hosts"]
    for fabric in found.fabrics:
        at = fabric.steps_at["jitter of hosts"]
        assert at[0.5] < fabric.steps.p50 < at[2.0]
    assert jitter[2.0].cheapest
    drawn = page(found)
    assert drawn.count("the price of spectrum-4</td>") == 2
    assert "switches needed" in text(found)
    plain = data(found)
    assert plain["fabrics"][0]["network_price"]["switches"] == 1
    assert set(plain["answers_at"]) == set(found.answers_at)


def test_both_kinds_of_tomahawk_5_are_the_same_switch_at_other_prices():
    maker, box = (catalog.switch(name) for name in ("tomahawk-5", "tomahawk-5-white-box"))
    assert (maker.latency.value, maker.buffer.value, maker.ports) == (
        box.latency.value,
        box.buffer.value,
        box.ports,
    )
    book = price_book().switches
    assert book["tomahawk-5"].price.value > book["tomahawk-5-white-box"].price.value
    assert book["tomahawk-5"].price.estimate
    assert book["tomahawk-5-white-box"].price.estimate


@pytest.mark.parametrize(("kind", "there"), [("dgx-h100", True), ("grand-teton-hbm2e", False)])
def test_hosts_without_a_price_give_no_cost_of_jitter(tmp_path, kind, there):
    data = spec(tmp_path).to_dict()
    data["cluster"]["hosts"][0]["type"] = kind
    found = jitter(read_spec(data), steps=64, gpus=[])
    assert (found.gpu_hour is not None) == there == (kind in price_book().hosts)
    assert ("no price" in str(found)) != there
