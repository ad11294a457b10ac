"""Two browsers and ten programs at one server of the page: no wrong answer, bounded memory, the hostile refused.

    python benchmarks/page_load.py [--minutes 10] [--clients 10] [--browsers 2]

Before it begins, every question is answered in this process alone; each answer of the server must be the same.
Clients ask for closed forms, runs, tables, maps and paths, cancel runs, and a hostile one among them sends what
must be refused. 503 (come back later) is an answer, and is asked again. Resident memory of the server and of
all its processes is read each second. Exit code 1 where an answer was wrong, a page complained, or memory went
over `--most-gib`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fabrictwin as ft

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
CHROMIUM = "/usr/bin/chromium"
TEXT = (EXAMPLES / "laptop.yaml").read_text(encoding="utf-8")
EDITS: tuple[dict[str, Any], ...] = tuple(
    {"cluster.hosts.count": hosts, "workload.training.parallel.tp": tp} for hosts in (2, 4, 8) for tp in (1, 2, 4)
)
HOSTILE = (
    ("GET", "/api/info", None, {"host": "evil.example"}, 421),
    ("POST", "/api/jobs", b"{}", {"origin": "http://evil.example", "content-type": "application/json"}, 403),
    ("GET", "/..%2f..%2fetc/passwd", None, {}, 404),
    ("POST", "/api/answer", b" " * (5 * 2**20), {"content-type": "application/json"}, 413),
    ("POST", "/api/answer", b'{"text":"x"}', {"content-type": "text/plain"}, 415),
    ("POST", "/api/answer", b"[" * 100_000, {"content-type": "application/json"}, 422),
    ("PUT", "/api/files/..%2fx", b"x", {"content-type": "application/octet-stream"}, 404),
)


@dataclass
class Seen:
    """What clients have seen together."""

    wrong: list[str] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    slowest_s: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, took_s: float) -> None:
        """Count an answer."""
        with self.lock:
            self.answered[kind] += 1
            self.slowest_s[kind] = max(self.slowest_s.get(kind, 0.0), round(took_s, 2))

    def complain(self, text: str) -> None:
        """Keep a wrong answer."""
        with self.lock:
            self.wrong.append(text[:400])


def expected() -> tuple[list[int], list[int]]:
    """Steps in picoseconds of every question, in closed form and at flow."""
    specs = [ft.load(EXAMPLES / "laptop.yaml").with_(edits) for edits in EDITS]
    return tuple(  # type: ignore[return-value]
        [ft.run(spec, fidelity=fidelity).summary["step_time_ps"] for spec in specs]
        for fidelity in ("analytic", "flow")
    )


def ask(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and content of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    given = (
        {"content-type": "application/json"} if content is not None and headers is None else dict(headers or {})
    )
    try:
        connection.request(method, path, content, given)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Client:
    """A program that asks again and again."""

    def __init__(self, port: int, seed: int, seen: Seen, truth: tuple[list[int], list[int]]) -> None:
        self.port, self.seen, self.truth = port, seen, truth
        self.random = random.Random(seed)

    def until(self, end: float) -> None:
        """Ask until then."""
        kinds = [self.closed_form] * 6 + [self.run] * 2 + [self.cancelled, self.path, self.map, self.hostile]
        while time.monotonic() < end:
            one = self.random.choice(kinds)
            begun = time.monotonic()
            try:
                if one():
                    self.seen.note(one.__name__, time.monotonic() - begun)
                else:
                    self.seen.note("asked to come back", 0.0)
                    time.sleep(1)
            except Exception as error:
                self.seen.complain(f"{one.__name__}: {error!r}")

    def _check(self, what: str, got: object, wanted: object) -> None:
        if got != wanted:
            self.seen.complain(f"{what}: got {got!r}, expected {wanted!r}")

    def _spec(self) -> tuple[int, dict[str, Any]]:
        which = self.random.randrange(len(EDITS))
        return which, {"text": TEXT, "edits": EDITS[which]}

    def closed_form(self) -> bool:
        """Ask for a step in closed form."""
        which, spec = self._spec()
        status, content = ask(self.port, "POST", "/api/answer", spec)
        if status == 503:
            return False
        self._check("status", status, 200)
        self._check("closed form", json.loads(content)["summary"]["step_time_ps"], self.truth[0][which])
        return True

    def _begin(self, spec: dict[str, Any], fidelity: str) -> str | None:
        status, content = ask(self.port, "POST", "/api/jobs", {"kind": "run", "spec": spec, "fidelity": fidelity})
        if status == 503:
            return None
        self._check("status", status, 202)
        return str(json.loads(content)["id"])

    def run(self) -> bool:
        """Run a step at flow, read its answer and a table, and forget it."""
        which, spec = self._spec()
        job = self._begin(spec, "flow")
        if job is None:
            return False
        state = {"state": "queued"}
        while state["state"] in ("queued", "running"):
            time.sleep(0.2)
            status, content = ask(self.port, "GET", f"/api/jobs/{job}")
            self._check("status", status, 200)
            state = json.loads(content)
        self._check("state and error", (state["state"], state["error"]), ("done", None))
        _, content = ask(self.port, "GET", f"/api/jobs/{job}/answer")
        self._check("flow", json.loads(content)["step_time_ps"], self.truth[1][which])
        status, content = ask(self.port, "GET", f"/api/jobs/{job}/tables/breakdown")
        if status == 200:
            whole = round(1e12 * sum(json.loads(content)["columns"]["time_s"]))
            self._check("breakdown", abs(whole - self.truth[1][which]) < 1000, True)
        ask(self.port, "DELETE", f"/api/jobs/{job}")
        return True

    def cancelled(self) -> bool:
        """Begin a run and cancel it."""
        job = self._begin(self._spec()[1], "flow")
        if job is None:
            return False
        time.sleep(self.random.random())
        status, content = ask(self.port, "POST", f"/api/jobs/{job}/cancel", b"")
        self._check("status", status, 200)
        self._check("cancelled", json.loads(content)["state"] in ("cancelled", "done"), True)
        ask(self.port, "DELETE", f"/api/jobs/{job}")
        return True

    def path(self) -> bool:
        """Ask for a path."""
        asked = {"text": TEXT, "from": "host-0/gpu0", "to": "host-3/gpu3"}
        status, content = ask(self.port, "POST", "/api/path", asked)
        if status == 503:
            return False
        self._check("hops", (status, len(json.loads(content)["hops"])), (200, 8))
        return True

    def map(self) -> bool:
        """Ask for a map."""
        status, content = ask(self.port, "POST", "/api/map", {"text": TEXT})
        if status == 503:
            return False
        self._check("map", (status, json.loads(content)["hosts"]["count"]), (200, 4))
        return True

    def hostile(self) -> bool:
        """Send what must be refused."""
        method, path, body, headers, wanted = self.random.choice(HOSTILE)
        try:
            status, _ = ask(self.port, method, path, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            status = wanted  # refused before it was read to its end
        self._check(f"{method} {path}", status, wanted)
        return True


def browse(url: str, end: float, seed: int, seen: Seen) -> None:
    """Use the page until then: sliders, a run, a cancelled run, every view."""
    from playwright.sync_api import TimeoutError, sync_playwright

    drawn = random.Random(seed)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(600_000)  # slow is not wrong
        page.on("pageerror", lambda error: seen.complain(f"page: {error}"))
        page.goto(url)
        page.wait_for_selector("#closed-form dl")
        while time.monotonic() < end:
            begun = time.monotonic()
            try:
                page.click("#tab-answer")
                slide = page.locator(f"#slide-{drawn.choice(['hosts', 'tp', 'pp', 'batch'])}")
                slide.focus()
                page.keyboard.press(drawn.choice(["ArrowLeft", "ArrowRight"]))
                page.wait_for_timeout(300)
                if drawn.random() < 0.2 and page.locator("#run-flow").is_enabled():
                    page.click("#run-flow")
                    if drawn.random() < 0.5 and page.locator("#cancel").is_visible():
                        with contextlib.suppress(TimeoutError):  # the run may be over before
                            page.click("#cancel", timeout=2_000)
                    page.wait_for_selector("#cancel", state="detached")
                page.click(f"#tab-{drawn.choice(['map', 'timeline', 'compare', 'doctor', 'catalog'])}")
                page.wait_for_timeout(200)
                seen.note("a person's round", time.monotonic() - begun)
            except Exception as error:
                seen.complain(f"browser: {error!r}")
        browser.close()


def resident_bytes(process: int) -> int:
    """Resident memory of a process and of all below it."""
    parents: dict[int, list[int]] = {}
    size: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            status = (entry / "status").read_text(encoding="utf-8")
        except OSError:
            continue
        parent = re.search(r"^PPid:\s+(\d+)", status, re.MULTILINE)
        held = re.search(r"^VmRSS:\s+(\d+)", status, re.MULTILINE)
        if parent and held:
            parents.setdefault(int(parent[1]), []).append(int(entry.name))
            size[int(entry.name)] = 1024 * int(held[1])
    found, left = 0, [process]
    while left:
        one = left.pop()
        found += size.get(one, 0)
        left += parents.get(one, [])
    return found


def main() -> int:
    """Ask, and print what was seen as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--browsers", type=int, default=2)
    parser.add_argument("--most-gib", type=float, default=4.0, help="memory that all processes may have together")
    given = parser.parse_args()
    truth, seen = expected(), Seen()
    command = [sys.executable, "-m", "fabrictwin", "ui", "--port", "0"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    memory: list[int] = []
    try:
        url = server.stdout.readline().strip()
        port = int(url.rstrip("/").rpartition(":")[2])
        ask(port, "POST", "/api/answer", {"text": TEXT})
        end = time.monotonic() + 60 * given.minutes
        threads = [
            threading.Thread(target=Client(port, seed, seen, truth).until, args=(end,))
            for seed in range(given.clients)
        ]
        threads += [threading.Thread(target=browse, args=(url, end, seed, seen)) for seed in range(given.browsers)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            memory.append(resident_bytes(server.pid))
            time.sleep(1)
        kept = len(json.loads(ask(port, "GET", "/api/jobs")[1])["jobs"])
    finally:
        server.terminate()
        server.wait(60)
    most = max(memory) / 2**30
    tenth = max(1, len(memory) // 10)
    report = {
        "minutes": given.minutes,
        "answers": dict(seen.answered),
        "slowest_s": seen.slowest_s,
        "wrong": len(seen.wrong),
        "first_wrong": seen.wrong[:5],
        "jobs_kept": kept,
        "memory_gib": {
            "most": round(most, 2),
            "median_of_first_tenth": round(sorted(memory[:tenth])[tenth // 2] / 2**30, 2),
            "median_of_last_tenth": round(sorted(memory[-tenth:])[tenth // 2] / 2**30, 2),
        },
        "load_average": [round(one, 1) for one in os.getloadavg()],
    }
    print(json.dumps(report, indent=2))
    return int(bool(seen.wrong) or most > given.most_gib)


if __name__ == "__main__":
    raise SystemExit(main())
