"""The page in a real browser: what people do on it, at two widths, light and dark, without a complaint."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.page_colours import COLOURS

pytest.importorskip("starlette", reason="the extra web is not installed")

CHROMIUM = Path("/usr/bin/chromium")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_MS = 240_000

pytestmark = pytest.mark.second


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        arguments = ["--no-sandbox", "--enable-unsafe-swiftshader"]
        opened = running.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "fabrictwin", "ui", "--port", "0"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait(30)


@contextmanager
def opened(browser, url: str, width: int = 1280, scheme: str = "light"):
    """Yield the page with the laptop's answer; fail where the browser complained."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    page.wait_for_selector("#closed-form dl")
    yield page
    assert complaints == []
    assert all(one.startswith(url) for one in asked)
    page.close()


def step(page) -> str:
    return page.locator("#closed-form dd").first.inner_text()


def run_flow(page) -> None:
    page.click("#tab-answer")
    page.click("#run-flow")
    page.wait_for_selector("text=Busiest links")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_slider_moves_the_step(browser, url, width, scheme):
    with opened(browser, url, width, scheme) as page:
        assert page.locator("#specs").input_value() == "examples/laptop"
        before = step(page)
        if width < 860:
            page.click("#settings")
        page.locator("#slide-hosts").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function(
            "before => document.querySelector('#closed-form dd').innerText !== before", arg=before
        )
        assert float(step(page).split()[0]) < float(before.split()[0])
        assert page.locator("label[for=slide-hosts] + output").inner_text() == "8"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if width < 860:
            assert page.locator("#now").inner_text().startswith(step(page).split()[0])


def test_what_is_wrong_stands_beside_its_slider_and_its_field(browser, url):
    with opened(browser, url) as page:
        page.locator("#slide-tp").focus()
        page.keyboard.press("End")
        page.wait_for_function("() => document.querySelector('#why-tp').innerText.includes('64')")
        assert page.locator("#slide-tp").get_attribute("aria-invalid") == "true"
        page.click("#edit-form")
        field = page.locator("[id='field-workload.training.parallel.tp']")
        field.wait_for()
        assert field.get_attribute("aria-invalid") == "true"
        field.fill("4")
        field.press("Enter")
        page.wait_for_selector("#closed-form dl")
        assert page.locator("#problems").inner_text() == ""


def test_a_broken_spec_that_is_dropped_says_where(browser, url):
    text = (ROOT / "examples" / "laptop.yaml").read_text().replace("pp: 2", "pp: two")
    with opened(browser, url) as page:
        page.set_input_files("#file", [{"name": "mine.yaml", "mimeType": "text/yaml", "buffer": text.encode()}])
        page.wait_for_selector("#problems li")
        line = next(i for i, one in enumerate(text.splitlines(), 1) if "pp: two" in one)
        assert "expected a whole number" in page.locator("#why-pp").inner_text()
        assert f"line {line}" in page.locator("#problems").inner_text()
        page.click("#edit-text")
        page.fill("#text", text.replace("pp: two", "pp: 4"))
        page.wait_for_selector("#closed-form dl")


def test_files_of_each_kind_take_their_place(browser, url):
    model = (ROOT / "examples" / "models" / "llama-3-70b.json").read_bytes()
    with opened(browser, url) as page:
        page.set_input_files("#file", [{"name": "big.json", "mimeType": "application/json", "buffer": model}])
        page.wait_for_selector("text=big.json: the model")
        assert "model: big.json" in page.evaluate("document.querySelector('#text').value")
        log = b"h:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
        page.set_input_files("#file", [{"name": "run.log", "mimeType": "text/plain", "buffer": log}])
        page.wait_for_selector("#findings strong")
        assert page.locator("#tab-doctor").get_attribute("aria-selected") == "true"


def test_a_run_its_matrix_its_path_and_its_timeline(browser, url):
    with opened(browser, url) as page:
        run_flow(page)
        page.click("#tab-map")
        page.wait_for_selector("#map[data-drawn='4']")
        page.locator(".cell").nth(3).click()
        page.wait_for_selector("#cell-links table")
        assert "mlx5" in page.locator("#cell-links").inner_text()
        page.click("#show-path")
        page.wait_for_selector("#hops table")
        assert "PCIe" in page.locator("#hops").inner_text()
        page.fill("#find-node", "leaf-2")
        page.keyboard.press("Enter")
        page.wait_for_selector("#chosen h3")
        assert "host-0" in page.locator("#chosen").inner_text()
        page.click("#tab-timeline")
        page.wait_for_selector("#overview")
        assert page.evaluate(COLOURS, "overview") > 5
        page.locator("#stage").focus()
        page.keyboard.press("+")


def test_a_packet_run_is_cancelled(browser, url):
    with opened(browser, url) as page:
        page.select_option("#specs", "examples/packets")
        page.wait_for_selector("#closed-form h2:has-text('packets')")
        page.click("#run-packet")
        page.wait_for_selector("#cancel")
        page.click("#cancel")
        page.wait_for_selector("text=Cancelled.")
        assert page.locator("#run-packet").is_enabled()


def test_fabrics_layouts_and_runs_side_by_side(browser, url):
    with opened(browser, url) as page:
        run_flow(page)
        page.locator("#slide-rate").focus()
        page.keyboard.press("Home")
        page.wait_for_selector("text=The spec has changed since this run.")
        page.click("#run-flow")
        page.wait_for_selector("[aria-label=Runs] button:nth-of-type(2)[aria-pressed=true]")
        page.click("#tab-compare")
        page.click("#compare-fabrics")
        page.wait_for_selector("#compare-fabrics-answer tbody tr:nth-child(2)")
        page.click("#diff-runs")
        page.wait_for_selector("#diff-runs-answer table")
        assert "link_rate" in page.locator("#diff-runs-answer").inner_text()
        page.click("#plan-layouts")
        page.locator("#plan-layouts-answer button").first.click()
        page.wait_for_selector("#closed-form dl", state="attached")


def test_the_catalog_names_its_sources(browser, url):
    with opened(browser, url) as page:
        page.click("#tab-catalog")
        page.fill("[aria-label='search the catalog']", "dgx h100")
        page.locator("#view-catalog button.name").first.click()
        page.wait_for_selector("#entry a[href^='https://']")


def test_it_can_be_taken_along(browser, url):
    with opened(browser, url) as page:
        page.click("#share summary")
        assert "fabrictwin run 'laptop.yaml'" in page.locator("#shared").inner_text()
        page.locator("#slide-hosts").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("() => document.querySelector('#shared').innerText.includes('with_')")
        said = page.locator("#shared").inner_text()
        assert "count: 8" in said
        assert 'spec.with_({"cluster.hosts.count": 8})' in said


def test_tabs_go_by_the_keyboard(browser, url):
    with opened(browser, url) as page:
        page.locator("#tab-answer").focus()
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        page.wait_for_selector("#view-catalog table")
        page.keyboard.press("Home")
        assert page.locator("#view-answer").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(browser, url, scheme):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    with opened(browser, url, scheme=scheme) as page:
        # the page's own policy forbids scripts of others, axe's too
        source = Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
        run_flow(page)
        for tab in ("answer", "map", "timeline", "compare", "doctor", "catalog"):
            page.click(f"#tab-{tab}")
            page.wait_for_timeout(700)
            for pane in ("sliders", "form", "text") if tab == "answer" else ("sliders",):
                page.click(f"#edit-{pane}")
                page.wait_for_timeout(300)
                page.evaluate(source)
                found = page.evaluate("axe.run().then((found) => found.violations)")
                serious = {
                    one["id"]: [node["html"][:160] for node in one["nodes"][:3]]
                    for one in found
                    if one["impact"] in ("serious", "critical")
                }
                assert serious == {}, (tab, pane)


def test_ten_thousand_hosts_are_drawn_and_moved(browser, url):
    with opened(browser, url) as page:
        page.click("#edit-text")
        text = (ROOT / "examples" / "laptop.yaml").read_text()
        page.fill(
            "#text",
            re.sub(r"(?s)workload:.*", "", text.replace("count: 4", "count: 10000").replace("qm9700", "q3400")),
        )
        page.wait_for_selector("text=This spec has no job")
        page.click("#tab-map")
        page.wait_for_selector("#map[data-drawn='10000']")
        assert page.evaluate(COLOURS, "map") > 3
        box = page.locator("#map").bounding_box()
        page.mouse.move(box["x"] + 300, box["y"] + 200)
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 300, steps=20)
        page.mouse.up()
