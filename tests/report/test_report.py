"""report.html: its data, its matrices, and (second tier) what a browser makes of it."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from support.page_colours import COLOURS
from support.run_sample import Builder, fabric, pipeline, sample

from fabrictwin.fabric.fabric import NETWORK, NodeKind
from fabrictwin.report import utilisation_matrix as matrix_module
from fabrictwin.report.breakdown import breakdown
from fabrictwin.report.link_usage import utilisation
from fabrictwin.report.report import report_html
from fabrictwin.report.result import RunResult
from fabrictwin.report.timeline import timeline_data as timeline_module
from fabrictwin.report.timeline.timeline_data import overview, stage
from fabrictwin.report.utilisation_matrix import matrices

CHROMIUM = Path("/usr/bin/chromium")


def embedded(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


class Tags(HTMLParser):
    """Checks that tags nest, and remembers what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.links += [value for key, value in attrs if key in ("src", "href", "srcset", "action") and value]
        if tag not in ("meta", "br", "rect", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag != "rect":
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_whole_and_fetches_nothing():
    page = report_html(sample())
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    assert parser.links == []
    assert not re.search(r"url\(|@import|https?://", page)
    text = " ".join(parser.text)
    for part in ("Where the step goes", "leaf switches × spine switches", "Published: 300", "assumed nothing"):
        assert part in text


def test_names_cannot_break_the_page():
    evil = "</script><script>alert(1)</script>&amp;'\""
    program = sample().job.program
    labels = tuple(dataclasses.replace(label, name=evil) for label in program.labels)
    actors = tuple(dataclasses.replace(actor, name=evil) for actor in program.actors)
    result = sample(
        name=evil,
        cluster_line=evil,
        notes=(evil,),
        resolved={"name": evil},
        program=dataclasses.replace(program, labels=labels, actors=actors),
    )
    page = report_html(result)
    assert "alert(1)</script>" not in page
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    assert embedded(page)["stage"]["labels"] == [evil] * len(labels)


def test_a_run_without_communication_or_time_still_has_a_page():
    made = Builder(pipeline(1, 1).actors)
    made.compute(0, 0, 0, [])
    empty = np.zeros(fabric().ports, np.int64)
    page = report_html(sample(program=made.program(), trace=made.trace(empty), work=None, reference=None))
    assert "No link carried anything" in page
    parser = Tags()
    parser.feed(page)
    assert parser.open == []


# --- matrices


def by_hand(result: RunResult, keep) -> list[float]:
    net, used = result.fabric, utilisation(result.fabric, result.trace)
    return [
        float(used[p])
        for p in range(net.ports)
        if net.port_kind[p] in NETWORK and keep(int(net.port_node[p]), int(net.port_node[net.port_peer[p]]))
    ]


def test_leaf_by_spine_cells_are_the_links_between_them():
    result = sample()
    net = result.fabric
    found = {m.title: m for m in matrices(net, result.trace)}["leaf switches × spine switches"]
    assert found.rows == ("leaf-0", "leaf-1")
    assert found.columns == ("spine-0", "spine-1")
    for r, leaf in enumerate(found.rows):
        for c, spine in enumerate(found.columns):
            ends = {net.find_node(leaf), net.find_node(spine)}
            used = by_hand(result, lambda a, b, ends=ends: {a, b} == ends)
            assert len(used) == found.links[r, c] == 2
            assert found.greatest[r, c] == max(used)
            assert found.mean[r, c] == pytest.approx(np.mean(used))


def test_hosts_by_nics_shows_the_hosts_that_carried_anything():
    net = fabric()
    tx = np.zeros(net.ports, np.int64)
    tx[net.nic_port[2]] = 10_000  # the first NIC of host 1
    result = sample(tx=tx)
    found = matrices(net, result.trace)[0]
    assert (found.title, found.rows, found.columns) == ("hosts × adapters", ("host-1",), ("NIC 0", "NIC 1"))
    assert found.greatest.tolist() == [[utilisation(net, result.trace)[net.nic_port[2]], 0.0]]
    assert found.links.tolist() == [[2, 2]]


def test_idle_tiers_are_named_and_not_drawn():
    net = fabric()
    tx = np.zeros(net.ports, np.int64)
    tx[net.nic_port[0]] = 10_000
    page = report_html(sample(tx=tx))
    assert page.count("<svg") == 1
    assert "Carried nothing: leaf switches × spine switches." in page


def test_spines_of_pods_are_columns_by_position():
    """Leaf i of each pod joins spines of its own pod only; pods share the columns."""
    plain = fabric(hosts=8, leaves=4, spines=4)
    # spines 0 and 1 belong to pod 0, 2 and 3 to pod 1, and so do leaves
    pods = plain.node_pod.copy()
    switches = plain.switch_nodes
    pods[switches] = [0, 0, 1, 1, 0, 0, 1, 1]
    net = dataclasses.replace(plain, node_pod=pods)
    result = sample(fabric=net, tx=np.ones(net.ports, np.int64))
    found = matrices(net, result.trace)[-1]
    assert found.title == "leaf switches × spine switches, by position in the pod"
    assert found.columns == ("1", "2")
    assert found.rows == ("leaf-0", "leaf-1", "leaf-2", "leaf-3")
    assert found.links.sum() == 4 * 4 * 2


def test_unknown_tiers_give_one_square_matrix():
    result = sample(fabric=fabric(tiers=False))
    found = matrices(result.fabric, result.trace)[-1]
    assert found.title == "switches × switches"
    assert found.rows == found.columns == ("leaf-0", "leaf-1", "spine-0", "spine-1")
    assert found.links.sum() == 8


def test_a_large_fabric_is_grouped_and_loses_no_link():
    net = fabric(hosts=128, leaves=64, spines=50, gpus=2)
    tx = np.random.default_rng(5).integers(1, 10**6, net.ports)
    made = pipeline(2, 2)
    result = sample(fabric=net, trace=made.trace(tx), program=made.program())
    for found in matrices(net, result.trace):
        assert max(found.greatest.shape) <= matrix_module.LIMIT
        assert found.links.sum() == (2 * 128 * 2 if "hosts" in found.title else 64 * 50 * 2)
    switched = by_hand(result, lambda a, b: net.node_kind[a] == net.node_kind[b] == NodeKind.SWITCH)
    assert found.greatest.max() == max(switched)
    assert (found.mean * found.links).sum() == pytest.approx(sum(switched))


# --- timelines


def drawn(row: dict, step_ns: float) -> dict[int, float]:
    """Time by state in one row of the overview."""
    start = np.cumsum(row["start"])
    total: dict[int, float] = {}
    for state, width in zip(row["state"], np.diff(start, append=step_ns), strict=True):
        total[state] = total.get(state, 0.0) + width
    return total


def test_the_overview_draws_the_breakdown():
    result = sample()
    data = overview(result.job.program, result.breakdown)
    assert not data["aggregated"]
    for actor, row in enumerate(data["rows"]):
        for state, width in drawn(row, result.trace.end_ps / 1000).items():
            assert width * 1000 == result.breakdown.actor_ps[actor, state]


def test_a_long_run_is_drawn_coarsely_but_in_proportion(monkeypatch):
    monkeypatch.setattr(timeline_module, "LIMIT", 2_000)
    made = pipeline(4, 200)
    program, trace = made.program(), made.trace()
    parts = breakdown(program, trace)
    data = overview(program, parts)
    assert data["aggregated"]
    assert sum(len(row["start"]) for row in data["rows"]) <= 2_000
    for actor, row in enumerate(data["rows"]):
        shares = drawn(row, trace.end_ps / 1000)
        for state in range(len(data["states"])):
            exact = parts.actor_ps[actor, state] / trace.end_ps
            assert shares.get(state, 0) * 1000 / trace.end_ps == pytest.approx(exact, abs=0.01)


def test_many_actors_are_sampled_evenly():
    made = pipeline(150, 2)
    program = made.program()
    data = overview(program, breakdown(program, made.trace()))
    assert (len(data["rows"]), data["actors"]) == (timeline_module.ROWS, 150)
    assert (data["rows"][0]["name"], data["rows"][-1]["name"]) == ("stage 0", "stage 149")


def test_a_stage_with_few_slices_is_drawn_as_it_is():
    made = pipeline(3, 4)
    data = stage(made.program(), made.trace())
    assert data["name"] == "stage 1"
    assert "close_up" not in data
    assert "count" not in data["all"]
    assert len(data["all"]["start"]) == data["slices"]


@pytest.mark.parametrize("limit", [1_000, 300, 50])
def test_a_stage_with_many_slices_is_merged_and_keeps_a_close_up(monkeypatch, limit):
    monkeypatch.setattr(timeline_module, "LIMIT", limit)
    monkeypatch.setattr(timeline_module, "CLOSE_UP", 40)
    made = pipeline(2, 150)
    program, trace = made.program(), made.trace()
    data = stage(program, trace)
    everything, close = data["all"], data["close_up"]
    assert len(everything["start"]) <= limit < data["slices"]
    assert sum(everything["count"]) == data["slices"]
    # the close-up is every slice that touches its window, unmerged
    start = np.cumsum(close["start"])
    assert len(start) >= 40
    assert "count" not in close
    assert ((start < close["to"]) & (start + close["width"] > close["from"])).all()


# --- in a browser


@pytest.fixture
def browser():
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.second
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_draws_it_and_asks_for_nothing(browser, tmp_path, scheme, width):
    path = tmp_path / "report.html"
    path.write_text(report_html(sample()), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    complaints: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_timeout(200)
    assert complaints == []
    assert asked == [path.as_uri()]
    assert page.locator(".matrix rect").count() == 4 * 2 + 2 * 2
    assert page.evaluate(COLOURS, "overview") > 5
    assert page.evaluate(COLOURS, "stage") > 4
    assert page.evaluate("document.documentElement.scrollWidth") == width, "the page scrolls sideways"


@pytest.mark.second
def test_the_timeline_zooms_and_tells(browser, tmp_path):
    monkey = pipeline(4, 8)
    path = tmp_path / "report.html"
    path.write_text(report_html(sample(program=monkey.program())), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    image = "document.getElementById('overview').toDataURL()"
    page.locator("#overview").scroll_into_view_if_needed()
    page.wait_for_timeout(150)
    whole = page.evaluate(image)
    box = page.locator("#overview").bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 40)
    page.mouse.wheel(0, -800)
    page.wait_for_timeout(150)
    zoomed = page.evaluate(image)
    assert zoomed != whole
    page.mouse.move(box["x"] + 402, box["y"] + 40)
    assert "stage 0" in page.locator("#tip").inner_text()
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 40)
    page.mouse.up()
    page.wait_for_timeout(150)
    assert page.evaluate(image) not in (whole, zoomed)
    page.locator("#zoom-reset").click()
    page.wait_for_timeout(150)
    assert page.evaluate(image) == whole
    assert errors == []
