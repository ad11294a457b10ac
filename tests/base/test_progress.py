"""Progress: stages, percentages and the time left, on a terminal and off it."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest

from fabrictwin.base import progress as drawing
from fabrictwin.base.progress import Progress, part, silent


class Told:
    """A stage that remembers what it was told."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.done: list[float | None] = []

    def __call__(self, name: str, done: drawing.Measure | None = None, /) -> None:
        self.names.append(name)
        self.done.append(float(done()) if callable(done) else done)


def test_a_part_of_some_work_is_scaled_to_the_whole():
    told = Told()
    half = part(told, 0.5, 1.0)
    half("a", 0.5)
    half("b", lambda: 1.0)
    half("c")
    part(half, 0.0, 0.5)("d", 0.5)
    assert told.done == [0.75, 1.0, 0.5, 0.625]
    silent("nobody", 0.3)


def test_the_time_left_is_what_the_rest_takes_at_the_same_pace(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(drawing.time, "monotonic", lambda: now[0])
    progress = Progress(visible=False)
    progress.stage("building")
    assert progress.fraction() is None
    now[0] = 130.0
    progress.stage("walking", 0.0)
    assert progress.left_s(0.0) is None
    now[0] = 140.0
    progress.stage("walking on", 0.25)
    assert progress.left_s(0.25) == pytest.approx(30.0)


def test_a_measure_is_read_when_it_is_drawn_and_kept_within_0_and_1():
    at = [0.2]
    progress = Progress(visible=False)
    progress.stage("x", lambda: at[0])
    assert progress.fraction() == 0.2
    at[0] = 7.0
    assert progress.fraction() == 1.0


def wait_for(stream: io.StringIO, pattern: str) -> None:
    for _ in range(1000):
        if re.search(pattern, stream.getvalue()):
            return
        time.sleep(0.01)
    raise AssertionError(stream.getvalue()[-500:])


def test_off_a_terminal_a_line_comes_now_and_then(monkeypatch):
    for name, value in (("AFTER_S", 0.0), ("EVERY_S", 0.001), ("LOOK_S", 0.001), ("LINES_S", (0.05, 0.1))):
        monkeypatch.setattr(drawing, name, value)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress() as progress:
        progress.stage("routing")
        wait_for(stream, r"^routing: \d s\n")
        progress.stage("simulating", 0.25)
        progress.stage("simulating", 0.5)
        wait_for(stream, r"\nsimulating: 50%, \d s, about 1 s left\n")
    assert "\x1b" not in stream.getvalue()


def test_what_takes_no_time_says_nothing(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress() as progress:
        progress.stage("routing", 0.5)
    assert stream.getvalue() == ""
