"""Speed of the page in headless Chromium: a slider's answer, a large map drawn and moved, a large step's timeline.

    python benchmarks/page_speed.py [--hosts 10000] [--spec llama-3-405b-16k]

Times are of the wall clock as a person sees them; the load of the machine stands beside them, since they mean
little on one that is busy. Frames are counted by requestAnimationFrame while the mouse drags the map.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = "/usr/bin/chromium"
PATIENCE_MS = 120_000
MOVES = 90

COUNT_FRAMES = """() => {
  window.frames_seen = [];
  const count = (now) => { window.frames_seen.push(now); if (!window.frames_over) requestAnimationFrame(count); };
  window.frames_over = false;
  requestAnimationFrame(count);
}"""


def slider(page: Any) -> dict[str, Any]:
    """Milliseconds from a key on a slider to the new step, of several moves."""
    took = []
    page.locator("#slide-hosts").focus()
    for key in ("ArrowRight", "ArrowLeft") * 5:
        before = page.locator("#closed-form dd").first.inner_text()
        begun = time.perf_counter()
        page.keyboard.press(key)
        page.wait_for_function(
            "before => document.querySelector('#closed-form dd').innerText !== before", arg=before
        )
        took.append(round(1000 * (time.perf_counter() - begun)))
    return {"slider_ms": sorted(took), "slider_median_ms": sorted(took)[len(took) // 2]}


def large_map(page: Any, hosts: int) -> dict[str, Any]:
    """Milliseconds until a large map is drawn, and frames a second while it is dragged."""
    text = (ROOT / "examples" / "laptop.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(?s)workload:.*", "", text.replace("count: 4", f"count: {hosts}").replace("qm9700", "q3400"))
    page.click("#edit-text")
    page.fill("#text", text)
    page.wait_for_selector("text=This spec has no job")
    begun = time.perf_counter()
    page.click("#tab-map")
    page.wait_for_selector(f"#map[data-drawn='{hosts}']")
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    first = time.perf_counter() - begun
    box = page.locator("#map").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    found = {}
    for name, zooms in (("whole", 0), ("zoomed", 6)):
        for _ in range(zooms):
            page.mouse.wheel(0, -400)
        page.wait_for_timeout(500)
        page.mouse.down()
        page.evaluate(COUNT_FRAMES)
        for i in range(MOVES):
            page.mouse.move(box["x"] + box["width"] / 2 + (i % 30) * 8 - 120, box["y"] + 200 + (i % 17) * 6)
        page.mouse.up()
        frames = page.evaluate("() => { window.frames_over = true; return window.frames_seen; }")
        gaps = sorted(b - a for a, b in pairwise(frames))
        found[f"frames_per_s_{name}"] = round(1000 * len(gaps) / (frames[-1] - frames[0]), 1)
        found[f"longest_frame_ms_{name}"] = round(gaps[-1])
    return {"map_ms": round(1000 * first), "map_says": page.locator("#map-said").inner_text(), **found}


def timeline(page: Any, spec: str) -> dict[str, Any]:
    """Milliseconds from a click until the timeline of a large step is drawn."""
    page.click("#tab-answer")
    page.select_option("#specs", f"examples/{spec}")
    page.wait_for_selector(f"#closed-form h2:has-text('{spec}')")
    page.wait_for_selector("#run-flow:enabled")
    begun = time.perf_counter()
    page.click("#run-flow")
    page.wait_for_selector("text=Busiest links")
    ran = time.perf_counter() - begun
    begun = time.perf_counter()
    page.click("#tab-timeline")
    page.wait_for_selector("#overview")
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    return {"run_s": round(ran, 1), "timeline_ms": round(1000 * (time.perf_counter() - begun))}


def main() -> int:
    """Measure and print JSON."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--spec", default="llama-3-405b-16k", help="an example whose step is large")
    given = parser.parse_args()
    command = [sys.executable, "-m", "fabrictwin", "ui", "--port", "0"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        with sync_playwright() as running:
            browser = running.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--enable-unsafe-swiftshader"]
            )
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(PATIENCE_MS)
            page.goto(url)
            page.wait_for_selector("#closed-form dl")
            page.wait_for_timeout(5000)
            found = {**slider(page), **large_map(page, given.hosts), **timeline(page, given.spec)}
            browser.close()
    finally:
        server.terminate()
        server.wait(30)
    print(json.dumps({**found, "load_average": [round(one, 1) for one in os.getloadavg()]}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
