"""A pytest plugin that writes down what every test runs: its seconds of processors, and the lines that it reaches.

    MUTANTS_SURVEY=OUT.json MUTANTS_ROOMS=subnet:routing python -m pytest -p mutants_survey tests/...

`MUTANTS_CAP_S` ends a test after so many seconds; it is written down as `ended`, with the lines reached till then.
Without MUTANTS_SURVEY the plugin only has Hypothesis draw the same examples each time and not shrink what it
finds: to catch a mutant, any counterexample will do.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import coverage
import hypothesis
import pytest

OUT = os.environ.get("MUTANTS_SURVEY", "")
COVERAGE = Path(coverage.__file__).parent
CAP_S = float(os.environ.get("MUTANTS_CAP_S", "60"))


class CapError(BaseException):
    """A test took longer than the cap. No Exception, so that no test takes it for its own."""


def _used_s() -> float:
    """Return seconds of processors that this process and those that it has waited for have used."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _end(_number: int, frame: FrameType | None) -> None:
    """Raise CapError, unless coverage is at work, which would keep its lock: then a little later."""
    while frame is not None:
        if Path(frame.f_code.co_filename).parent == COVERAGE:
            signal.setitimer(signal.ITIMER_PROF, 0.01)
            return
        frame = frame.f_back
    raise CapError


class Survey:
    """What each test took and reached."""

    def __init__(self) -> None:
        checkout = Path.cwd()
        rooms = [str(checkout / "src/fabrictwin" / room) for room in os.environ["MUTANTS_ROOMS"].split(":")]
        self.checkout = checkout
        self.coverage = coverage.Coverage(
            data_file=None, include=[f"{room}/*" for room in rooms], config_file=False
        )
        self.seconds: dict[str, float] = {}
        self.ended: set[str] = set()
        self.failed: set[str] = set()
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        begun = _used_s()
        signal.signal(signal.SIGPROF, _end)
        signal.setitimer(signal.ITIMER_PROF, CAP_S)
        try:
            return (yield)
        except CapError:  # between the phases of a test
            self.ended.add(item.nodeid)
            return True
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.seconds[item.nodeid] = _used_s() - begun
            self.coverage.switch_context("")

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
        if call.excinfo is None:
            return
        if call.excinfo.errisinstance(CapError):
            self.ended.add(item.nodeid)
        elif not call.excinfo.errisinstance(pytest.skip.Exception):
            self.failed.add(item.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.coverage.stop()
        if exitstatus == pytest.ExitCode.INTERRUPTED:  # not every test has run
            return
        data = self.coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = {name: {} for name in self.seconds}
        imported: dict[str, list[int]] = {}
        for file in data.measured_files():
            short = str(Path(file).relative_to(self.checkout))
            for line, names in data.contexts_by_lineno(file).items():
                for name in names:
                    reached = imported if name == "" else lines.get(name, {})
                    reached.setdefault(short, []).append(line)
        tests = {
            name: {
                "seconds": round(seconds, 3),
                "ended": name in self.ended,
                "failed": name in self.failed,
                "lines": lines[name],
            }
            for name, seconds in self.seconds.items()
        }
        Path(OUT).write_text(json.dumps({"tests": tests, "imported": imported}))


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.register_profile(
        "mutants",
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        deadline=None,
        derandomize=True,
        database=None,
    )
    hypothesis.settings.load_profile("mutants")
    if OUT:
        config.pluginmanager.register(Survey(), "mutants-survey")
