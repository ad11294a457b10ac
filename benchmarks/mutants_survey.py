"""A pytest plugin that writes down what every test runs: its seconds of processors, and the lines that it reaches.

    MUTANTS_SURVEY='{"tests/subnet/test_mad_wire.py": "OUT.json", ...}' MUTANTS_ROOMS=subnet:routing \\
        python -m pytest -p mutants_survey tests/...

One process collects all; each test file then runs in a fork of its own, so that no cache that another file filled
hides what it reaches, and nothing is imported twice.

`MUTANTS_CAP_S` ends a test after so many seconds; it is written down as `ended`, with the lines reached till then.
Without MUTANTS_SURVEY the plugin only has Hypothesis draw the same examples each time and not shrink what it
finds: to catch a mutant, any counterexample will do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import coverage
import hypothesis
import pytest

OUT: dict[str, str] = json.loads(os.environ.get("MUTANTS_SURVEY", "{}"))  # by test file
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
        self.checkout = Path.cwd()
        self.coverage = self._begun()
        self.seconds: dict[str, float] = {}
        self.ended: set[str] = set()
        self.failed: set[str] = set()

    def _begun(self) -> coverage.Coverage:
        rooms = [self.checkout / "src/fabrictwin" / room for room in os.environ["MUTANTS_ROOMS"].split(":")]
        begun = coverage.Coverage(data_file=None, include=[f"{room}/*" for room in rooms], config_file=False)
        begun.start()
        return begun

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run each file's tests in a fork; the next one begins where that has ended."""
        self.coverage.stop()
        imported = self._reached({"": {}})[""]
        by_file: dict[str, list[pytest.Item]] = {file: [] for file in OUT}  # none where all are of the second tier
        for item in session.items:
            by_file.setdefault(item.nodeid.split("::")[0], []).append(item)
        for file, items in by_file.items():
            print(f"survey: {file}", file=sys.__stderr__, flush=True)
            child = os.fork()
            if child == 0:
                self._survey(items, Path(OUT[file]), imported)
            os.waitpid(child, 0)
        return True

    def _survey(self, items: list[pytest.Item], out: Path, imported: dict[str, list[int]]) -> NoReturn:
        """Run tests of one file, write down what they reach, and end."""
        try:
            self.coverage = self._begun()
            for at, item in enumerate(items):
                following = items[at + 1] if at + 1 < len(items) else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self.coverage.stop()
            lines = self._reached({name: {} for name in ("", *self.seconds)})
            for short, more in imported.items():
                lines[""][short] = sorted({*lines[""].get(short, ()), *more})
            tests = {
                name: {
                    "seconds": round(seconds, 3),
                    "ended": name in self.ended,
                    "failed": name in self.failed,
                    "lines": lines[name],
                }
                for name, seconds in self.seconds.items()
            }
            out.write_text(json.dumps({"tests": tests, "imported": lines[""]}))
        finally:
            os._exit(0)

    def _reached(self, lines: dict[str, dict[str, list[int]]]) -> dict[str, dict[str, list[int]]]:
        """Add the lines that ran to the contexts that are there, by file."""
        data = self.coverage.get_data()
        for file in data.measured_files():
            short = str(Path(file).relative_to(self.checkout))
            for line, names in data.contexts_by_lineno(file).items():
                for name in names:
                    if name in lines:
                        lines[name].setdefault(short, []).append(line)
        return lines

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
