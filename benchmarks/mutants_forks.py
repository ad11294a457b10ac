"""A pytest plugin that holds mutants against tests in forks of one process that has collected them.

Started by `mutants_rooms.Forks`. A line of JSON on the file descriptor MUTANTS_ASKED names a mutant's file, its
text and the tests to run; a line of JSON on MUTANTS_ANSWERED says which test failed first. Each mutant has a fork
of its own: the functions that its text changes get their new code, and the tests run until one fails. So nothing
is imported, collected or compiled twice.

What a module or a class does when it is imported has been done before the fork. A mutant of that is `elsewhere`:
it needs a process that imports it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import shutil
import signal
import time
import types
from pathlib import Path
from typing import Any

import pytest

_TIME_IS_UP = (signal.SIGXCPU, signal.SIGKILL)


def codes_of(code: types.CodeType, found: dict[tuple[str, int], types.CodeType]) -> None:
    """Add a code object and all within it to `found`, by qualified name and first line."""
    found[code.co_qualname, code.co_firstlineno] = code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            codes_of(constant, found)


def _alike(one: types.CodeType, other: types.CodeType) -> bool:
    """Tell two code objects that do the same, whatever stands in functions within them."""

    def plain(code: types.CodeType) -> list[str]:
        return [repr(c) for c in code.co_consts if not isinstance(c, types.CodeType)]

    return (
        one.co_code == other.co_code
        and plain(one) == plain(other)
        and one.co_names == other.co_names
        and one.co_varnames == other.co_varnames
        and one.co_freevars == other.co_freevars
        and one.co_cellvars == other.co_cellvars
    )


Functions = dict[str, list[types.FunctionType]]  # by the file that they stand in


def functions_at_work() -> Functions:
    """Return all functions that the process has."""
    found: Functions = {}
    for thing in gc.get_objects():
        if isinstance(thing, types.FunctionType):
            found.setdefault(thing.__code__.co_filename, []).append(thing)
    return found


def replacements(
    functions: Functions, path: str, after: str
) -> list[tuple[types.FunctionType, types.CodeType]] | None:
    """Return the functions that a new text of their file changes, with their new code; None if it does more."""
    before = Path(path).read_text()
    old: dict[tuple[str, int], types.CodeType] = {}
    new: dict[tuple[str, int], types.CodeType] = {}
    codes_of(compile(before, path, "exec", dont_inherit=True), old)
    codes_of(compile(after, path, "exec", dont_inherit=True), new)
    if old.keys() != new.keys():
        return None
    changed = {key for key in old if not _alike(old[key], new[key])}
    is_function = {key: bool(old[key].co_flags & 2) for key in old}  # CO_NEWLOCALS: neither module nor class
    if not changed or not all(is_function[key] for key in changed):
        return None
    around = changed | {key for key in old if is_function[key] and any(_holds(old[key], old[c]) for c in changed)}
    pairs = []
    for function in functions.get(path, []):
        key = (function.__code__.co_qualname, function.__code__.co_firstlineno)
        if key in around:
            if function.__code__.co_freevars != new[key].co_freevars:
                return None
            pairs.append((function, new[key]))
    return pairs or None


def _holds(outer: types.CodeType, inner: types.CodeType) -> bool:
    return any(
        constant is inner or _holds(constant, inner)
        for constant in outer.co_consts
        if isinstance(constant, types.CodeType)
    )


class Forks:
    """The loop that answers instead of pytest's own."""

    def __init__(self) -> None:
        self.asked = os.fdopen(int(os.environ["MUTANTS_ASKED"]))
        self.answered = os.fdopen(int(os.environ["MUTANTS_ANSWERED"]), "w")
        self.functions: Functions = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        gc.collect()
        self.functions = functions_at_work()
        gc.freeze()  # so that forks share memory
        self.answer(ready=sorted(items), failed=session.testsfailed)
        for line in self.asked:
            question = json.loads(line)
            chosen = [items[name] for name in question["tests"] if name in items]
            outcome = self.held(session, question, chosen)
            self.answer(**outcome)
            for left in base.iterdir():
                shutil.rmtree(left, ignore_errors=True)
        return True

    def answer(self, **what: Any) -> None:
        self.answered.write(json.dumps(what) + "\n")
        self.answered.flush()

    def held(self, session: pytest.Session, question: dict[str, Any], items: list[pytest.Item]) -> dict[str, Any]:
        """Run the tests in a fork with the mutant in place; return what became of it."""
        pairs: list[tuple[types.FunctionType, types.CodeType]] | None = []
        if question["file"]:
            path = str(Path(question["file"]).absolute())
            pairs = replacements(self.functions, path, question["text"])
        if pairs is None:
            return {"verdict": "elsewhere", "by": "", "seconds": 0.0}
        begun = time.monotonic()
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            os.close(reads)
            most = round(question["limit_s"])
            resource.setrlimit(resource.RLIMIT_CPU, (most, most))
            for function, code in pairs:
                function.__code__ = code
            os.write(writes, _first_failed(session, items).encode()[:4000])
            os._exit(0)
        os.close(writes)
        ready, _, _ = select.select([reads], [], [], question["waits_s"])
        said = os.read(reads, 5000).decode() if ready else None
        os.close(reads)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what a test may have left
        _, status = os.waitpid(child, 0)
        seconds = round(time.monotonic() - begun, 2)
        if said is None or (said == "" and os.WIFSIGNALED(status) and os.WTERMSIG(status) in _TIME_IS_UP):
            return {"verdict": "late", "by": "", "seconds": seconds}
        if said == "passed":
            return {"verdict": "survived", "by": "", "seconds": seconds}
        return {"verdict": "caught", "by": said or "the process ended", "seconds": seconds}


def _first_failed(session: pytest.Session, items: list[pytest.Item]) -> str:
    """Run the tests and return the first that fails, `passed` where none does."""
    try:
        for at, item in enumerate(items):
            before = session.testsfailed
            following = items[at + 1] if at + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed > before:
                return item.nodeid
    except BaseException as error:
        return f"pytest ended with {type(error).__name__}"
    return "passed"


def pytest_configure(config: pytest.Config) -> None:
    if "MUTANTS_ASKED" in os.environ:
        config.pluginmanager.register(Forks(), "mutants-forks")
