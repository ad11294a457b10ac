"""Which tests a mutant is held against, in which order, and where they run."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from mutants_syntax import Mutant

CHECKOUT = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "examples", "validation", "docs", "benchmarks", "pyproject.toml", "README.md")
MEMORY_BYTES = 12 << 30  # of address space; llvm reserves some
FIRST_S = {"compiled": 6.0, "interpreted": 15.0}  # of tests in the first go, before what a survivor has to face
START_S, COMPILE_S = 30.0, 60.0  # what a process may take beside its tests
SLOWER = 5.0  # than unbroken: what takes longer runs for ever
WAITING = 8.0  # seconds by the clock for one of processors, on a machine that others use too
COMPILED, INTERPRETED = "compiled", "interpreted"
PYTEST = (sys.executable, "-m", "pytest", "-p", "mutants_survey", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Room:
    """A room's tests, and how its compiled loops run in them."""

    tests: tuple[str, ...]  # patterns below tests/
    modes: tuple[str, ...] = (COMPILED,)  # one after the other
    cap_s: float = 60.0  # of a test in the survey; longer ones are left to the next mode


# A changed kernel would be compiled anew, for half a minute: its tests run as plain Python, those that take
# less than a second so. Tests of the packet engine, most of which take longer, are not asked.
ROOMS = {
    "kernel/packet": Room(
        (
            "kernel/test_packet_*.py",
            "kernel/test_rules_*.py",
            "kernel/test_dcqcn_alpha.py",
            "kernel/test_slices.py",
        ),
        (INTERPRETED,),
        1.0,
    ),
    "subnet": Room(("subnet/test_*.py", "cli/test_sm_cli.py")),
    "routing": Room(("routing/test_*.py",)),
    "verbs": Room(("verbs/test_*.py", "tools/test_verbs_face.py")),
    "nccl/tuning": Room(("nccl/test_*.py",)),
    "workload": Room(("workload/test_*.py",)),
}


@dataclass(frozen=True)
class Plan:
    """Tests to run in one process, in this order, and the seconds that they have."""

    tests: tuple[str, ...]
    mode: str
    limit_s: float


class Copy:
    """A copy of the checkout for one job, with its own cache of compiled loops; `shared` beside it as in place."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkout = folder, folder / "checkout"
        self.process: subprocess.Popen[str] | None = None
        self.cold = False  # the mutant in place changes a kernel
        self.forks: dict[str, Forks] = {}  # by room

    def refresh(self) -> None:
        """Bring the copy to the checkout's state; what did not change keeps its time, and so its compiled code."""
        self.checkout.mkdir(parents=True, exist_ok=True)
        wanted = set()
        for top in COPIED:
            source = CHECKOUT / top
            for path in [source] if source.is_file() else sorted(source.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    wanted.add(path.relative_to(CHECKOUT))
        for short in wanted:
            here, there = CHECKOUT / short, self.checkout / short
            if not there.exists() or there.read_bytes() != here.read_bytes():
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(here, there)
        for path in sorted(self.checkout.rglob("*")):
            stale = path.is_file() and path.relative_to(self.checkout) not in wanted
            if stale and not {"__pycache__", ".hypothesis"} & set(path.parts):
                path.unlink()
        beside = self.folder / "shared"
        if (CHECKOUT.parent / "shared").exists() and not beside.is_symlink():
            beside.symlink_to((CHECKOUT.parent / "shared").resolve())

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Have the mutant in place; afterwards the file is as it was, its time included."""
        path = self.checkout / mutant.file
        original, status = path.read_bytes(), path.stat()
        self.cold = "/kernel/" in mutant.file
        for kept in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            kept.unlink()  # by time and length alone it would pass for the mutant's
        path.write_bytes(mutant.applied(original))
        try:
            yield
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            shutil.rmtree(self.folder / "mutant-cache", ignore_errors=True)
            self.cold = False

    def warm(self, rooms: list[str]) -> None:
        """Compile what the rooms' tests use, by running them."""
        tests = [file for room in rooms if ROOMS[room].modes[0] == COMPILED for file in test_files(room)]
        if tests and not self.is_warm:
            print(f"compiling in {self.folder}", flush=True)
            self.pytest([*tests, "--maxfail=100000"], COMPILED, {"PYTHONDONTWRITEBYTECODE": ""}, 1800.0)
            self.set_warm()

    @property
    def is_warm(self) -> bool:
        """Tell whether what the tests use was compiled since the kernels changed."""
        mark = self.folder / "warm"
        return mark.exists() and mark.read_text() == _digest([self.checkout / "src/fabrictwin/kernel"])

    def set_warm(self) -> None:
        """Note that it was."""
        (self.folder / "warm").write_text(_digest([self.checkout / "src/fabrictwin/kernel"]))

    def run(self, plan: Plan) -> str | None:
        """Return the first test of the plan that fails; None where none does, nothing where time ran out."""
        code, output = self.pytest(list(plan.tests), plan.mode, {}, plan.limit_s)
        if code == 0:
            return None
        if code is None:
            return ""
        found = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", output, re.MULTILINE)
        return found[1] if found else f"pytest ended with {code}"

    def pytest(self, tests: list[str], mode: str, more: dict[str, str], limit_s: float) -> tuple[int | None, str]:
        """Run tests in the copy: the exit code (None where the time ran out) and what was printed."""
        command = [*PYTEST, "-x"]
        self.process = subprocess.Popen(
            [*command, "--tb=no", "-rfE", *tests],
            cwd=self.checkout,
            env=self.environment(mode) | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=partial(_limit, round(limit_s)),
        )
        try:
            output, _ = self.process.communicate(timeout=WAITING * limit_s)
            if self.process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
                return None, ""
            return self.process.returncode, output
        except subprocess.TimeoutExpired:
            self.end_tests()
            return None, ""

    def in_fork(self, mutant: Mutant, tests: list[str], limit_s: float) -> tuple[str, str]:
        """Hold a mutant against tests in a fork of its room's process: the verdict, and the test that failed."""
        if mutant.room not in self.forks:
            self.forks[mutant.room] = Forks(self, mutant.room)
        text = mutant.applied((self.checkout / mutant.file).read_bytes()).decode()
        return self.forks[mutant.room].held(mutant.file, text, tests, limit_s)

    def environment(self, mode: str) -> dict[str, str]:
        """Return the environment of tests in the copy."""
        cache = self.folder / ("mutant-cache" if self.cold else "cache")
        cache.mkdir(mode=0o700, exist_ok=True)
        return os.environ | {
            "PYTHONPATH": f"{self.checkout / 'src'}:{self.checkout / 'benchmarks'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
            "FABRICTWIN_CACHE": str(cache),
            "NUMBA_DISABLE_JIT": "1" if mode == INTERPRETED else "0",
        }

    def end(self) -> None:
        """End everything that runs in the copy."""
        for forks in self.forks.values():
            forks.end()
        self.end_tests()

    def end_tests(self) -> None:
        """End the tests that run, and what they started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Forks:
    """A process that has collected a room's tests and forks for each mutant (`mutants_forks.py`)."""

    def __init__(self, copy: Copy, room: str) -> None:
        self.checkout = copy.checkout
        asked, asks = os.pipe()
        answers, answered = os.pipe()
        ends = {"MUTANTS_ASKED": str(asked), "MUTANTS_ANSWERED": str(answered)}
        own = copy.folder / f"forks-{room.replace('/', '-')}"
        said = own.with_suffix(".log")
        files = [file for file in test_files(room) if (copy.checkout / file).exists()]  # written since: none of it
        self.process = subprocess.Popen(
            [*PYTEST, "-p", "mutants_forks", "--tb=short", f"--basetemp={own}", *files],
            cwd=copy.checkout,
            env=copy.environment(ROOMS[room].modes[0]) | ends,
            pass_fds=(asked, answered),
            stdin=subprocess.DEVNULL,
            stdout=said.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_limit,
        )
        os.close(asked)
        os.close(answered)
        self.asks, self.answers = os.fdopen(asks, "w"), os.fdopen(answers)
        first = self.answers.readline()
        if not first:
            raise SystemExit(f"{room}: tests could not be collected:\n{said.read_text()[-2000:]}")
        self.ready = set(json.loads(first)["ready"])

    def held(self, file: str, text: str, tests: list[str], limit_s: float) -> tuple[str, str]:
        """Return the verdict and the test that failed first."""
        limits = {"limit_s": limit_s, "waits_s": WAITING * limit_s}
        question = {"file": str(self.checkout / file), "text": text} | limits
        self.asks.write(json.dumps(question | {"tests": [test for test in tests if test in self.ready]}) + "\n")
        self.asks.flush()
        answer = json.loads(self.answers.readline())
        return answer["verdict"], answer["by"]

    def end(self) -> None:
        """End the process and its fork."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _limit(cpu_s: int = 0) -> None:
    """Limit what a process may take of memory, and of processors where it is told how much."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    if cpu_s:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))


def test_files(room: str) -> list[str]:
    """Return the test files of a room, relative to the checkout."""
    tests = CHECKOUT / "tests"
    return [str(p.relative_to(CHECKOUT)) for pattern in ROOMS[room].tests for p in sorted(tests.glob(pattern))]


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _state(file: str) -> str:
    path = CHECKOUT / file
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


@cache
def _in_functions(file: str) -> set[int]:
    """Return the lines of a file that run when functions are called."""
    found: set[int] = set()
    for node in ast.walk(ast.parse((CHECKOUT / file).read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            first = node.body.lineno if isinstance(node, ast.Lambda) else node.body[0].lineno
            found.update(range(first, (node.end_lineno or first) + 1))
    return found


@cache
def _on_import(file: str, line: int) -> tuple[frozenset[str], frozenset[int]]:
    """Return what a line that runs on import is about: names that it binds or that hold it, lines that use it.

    Of a parameter's default the function's own lines use it; of a class or a module that is not known.
    """
    names: set[str] = set()
    body: set[int] = set()
    if line in _in_functions(file):
        return frozenset(), frozenset()
    for node in ast.walk(ast.parse((CHECKOUT / file).read_bytes())):
        if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
            body.update(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
    return frozenset(names), frozenset(body)


@cache
def _words_of_tests(file: str) -> tuple[frozenset[str], dict[str, frozenset[str]]]:
    """Return the words of a test file, and of each of its test functions with their decorators."""
    text = (CHECKOUT / file).read_text()
    lines = text.splitlines()
    by_test = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            by_test[node.name] = frozenset(re.findall(r"\w+", "\n".join(lines[first - 1 : node.end_lineno])))
    return frozenset(re.findall(r"\w+", text)), by_test


def _mentions(test: str, names: frozenset[str]) -> int:
    """Return 0 where a test's own text has one of the names, 1 where its file has, 2 otherwise."""
    if not names:
        return 2
    file, _, rest = test.partition("::")
    whole, by_test = _words_of_tests(file)
    own = by_test.get(rest.rpartition("::")[2].partition("[")[0], frozenset())
    return 0 if names & own else 1 if names & whole else 2


def _usual_s(tests: dict[str, Any], chosen: list[str]) -> float:
    return sum(tests[test]["seconds"] for test in chosen)


class Surveys:
    """What every test of the rooms reaches, kept by file and mode until the test or the room changes."""

    def __init__(self, folder: Path, most_s: float = math.inf) -> None:
        self.folder = folder / "survey"
        self.most_s = most_s  # of tests that a mutant has to face
        self.taken: dict[tuple[str, str], dict[str, Any]] = {}  # by room and mode: test to what was written down
        self.imported: dict[str, dict[str, set[int]]] = {}  # by room and file: lines that run on import
        self.importers: dict[str, set[str]] = {}  # by file: the test files that have it imported

    def take(self, copy: Copy, rooms: list[str]) -> None:
        """Run each test file that has not been surveyed since it or its room changed."""
        self.folder.mkdir(exist_ok=True)
        surveyed = False
        for room in rooms:
            for mode in ROOMS[room].modes:
                kept = {file: self._kept(room, mode, file) for file in test_files(room)}
                due = {file: str(path) for file, path in kept.items() if not self._holds(file, path)}
                if due:
                    surveyed = True
                    self._survey(copy, room, mode, due)
                for file, path in kept.items():
                    self._read(room, mode, file, path)
        if surveyed:  # the tests of what changed have just run in the copy
            copy.set_warm()
        else:
            copy.warm(rooms)

    def _kept(self, room: str, mode: str, file: str) -> Path:
        return self.folder / f"{f'{room}-{Path(file).stem}-{mode}'.replace('/', '-')}.json"

    @staticmethod
    def _holds(file: str, path: Path) -> bool:
        """Tell whether neither a test file nor what its tests reach has changed since they were surveyed."""
        if not path.exists():
            return False
        state: dict[str, str] = json.loads(path.read_text()).get("state", {})
        return file in state and all(_state(known) == digest for known, digest in state.items())

    @staticmethod
    def _survey(copy: Copy, room: str, mode: str, due: dict[str, str]) -> None:
        print(f"survey of {room}: {len(due)} test files, {mode}", flush=True)
        for path in due.values():
            Path(path).unlink(missing_ok=True)
        more = {
            "MUTANTS_SURVEY": json.dumps(due),
            "MUTANTS_ROOMS": room,
            "MUTANTS_CAP_S": str(ROOMS[room].cap_s if mode == INTERPRETED else 600.0),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        code, output = copy.pytest([*due, "--maxfail=100000"], mode, more, 3600.0)
        missing = []
        for file, path in due.items():
            if not Path(path).exists():
                missing.append(file)
                continue
            found = json.loads(Path(path).read_text())
            reached = {one for test in found["tests"].values() for one in test["lines"]}
            found["state"] = {one: _state(one) for one in sorted(reached | {file})}
            Path(path).write_text(json.dumps(found))
        if missing:
            raise SystemExit(f"survey of {', '.join(missing)} ended with {code}:\n{output[-2000:]}")

    def _read(self, room: str, mode: str, file: str, path: Path) -> None:
        found = json.loads(path.read_text())
        for short, lines in found["imported"].items():
            self.imported.setdefault(room, {}).setdefault(short, set()).update(lines)
            self.importers.setdefault(short, set()).add(file)
        tests = found["tests"]
        for test in [name for name, found in tests.items() if found["failed"]]:
            print(f"left out, since it fails unbroken ({mode}): {test}", flush=True)
            del tests[test]
        self.taken.setdefault((room, mode), {}).update(tests)

    def plan_of_fork(self, mutant: Mutant) -> Plan | None:
        """Return the first mode's tests for a mutant, nearest and quickest first; None where none reaches it."""
        modes = ROOMS[mutant.room].modes
        mode = modes[0]
        tests = self.taken[mutant.room, mode]
        if not any(mutant.line in found["lines"].get(mutant.file, ()) for found in tests.values()):
            return None
        chosen = self._in_order(mutant, tests, whole=len(modes) == 1)
        self._cut(chosen, tests, min(self.most_s, FIRST_S[mode]) if mode == INTERPRETED else self.most_s)
        return Plan(tuple(chosen), mode, START_S + SLOWER * _usual_s(tests, chosen))

    def plans(self, mutant: Mutant) -> list[Plan]:
        """Return what to run, mode by mode: a few quick tests that reach the line, then the rest."""
        plans = []
        modes = ROOMS[mutant.room].modes
        for mode in modes:
            last = mode == modes[-1]
            tests = self.taken[mutant.room, mode]
            if mode == COMPILED and "/kernel/" in mutant.file:  # what reaches a compiled line does not show
                tests = self._as_interpreted(mutant.room)
            chosen = self._in_order(mutant, tests, whole=last)
            self._cut(chosen, tests, self.most_s)
            first: list[str] = []
            while len(first) < len(chosen) and _usual_s(tests, first) < FIRST_S[mode]:
                first.append(chosen[len(first)])
            compiling = COMPILE_S if mode == COMPILED and "/kernel/" in mutant.file else 0.0
            for part in (first, chosen[len(first) :] if mode == COMPILED else []):
                if part:
                    limit = START_S + compiling + SLOWER * _usual_s(tests, part)
                    plans.append(Plan(tuple(part), mode, limit))
        return plans

    @staticmethod
    def _cut(chosen: list[str], tests: dict[str, Any], most_s: float) -> None:
        """Keep, in their order, those that fit into so many seconds; where none does, the quickest."""
        took, kept = 0.0, []
        for test in chosen:
            if took + tests[test]["seconds"] <= most_s:
                took += tests[test]["seconds"]
                kept.append(test)
        chosen[:] = kept or [min(chosen, key=lambda test: tests[test]["seconds"])]

    def runs_on_import(self, mutant: Mutant) -> bool:
        """Tell a line that runs when modules are imported or tests collected: no fork undoes what it did.

        What a conftest imports is imported before the survey begins, so that a line in no function counts too.
        """
        imported = self.imported[mutant.room].get(mutant.file, ())
        return mutant.line in imported or mutant.line not in _in_functions(mutant.file)

    def _as_interpreted(self, room: str) -> dict[str, Any]:
        """The compiled tests' times with the interpreted ones' lines."""
        lines = self.taken[room, INTERPRETED]
        return {
            test: found | {"lines": lines.get(test, found)["lines"]}
            for test, found in self.taken[room, COMPILED].items()
        }

    def _in_order(self, mutant: Mutant, tests: dict[str, Any], *, whole: bool) -> list[str]:
        """Tests that reach the line, nearest and quickest first; where `whole`, also the others of their files.

        Fixtures and caches hide from the survey what a later test rests on, hence those. What runs on import may
        show in any test of a file that has it imported. A line that runs in no test goes with the tests that
        reach its file at all, and without such with all.
        """
        usable = {name: found for name, found in tests.items() if not found["ended"]}
        exact = {name for name, found in usable.items() if mutant.line in found["lines"].get(mutant.file, ())}
        near = exact or {name for name, found in usable.items() if mutant.file in found["lines"]} or set(usable)
        if self.runs_on_import(mutant):
            importers = self.importers.get(mutant.file, ())
            near = near | {name for name in usable if not importers or name.split("::")[0] in importers}
        words = set(Path(mutant.file).stem.split("_"))
        names, body = _on_import(mutant.file, mutant.line)

        def distance(test: str) -> tuple[bool, int, bool, float]:
            reached = usable[test]["lines"].get(mutant.file, ())
            named = words & set(Path(test.split("::")[0]).stem.split("_"))
            calls = bool(body) and not body.isdisjoint(reached)
            return not calls, _mentions(test, names), not named, usable[test]["seconds"]

        chosen = sorted(near, key=distance)
        if whole:
            files = {test.split("::")[0] for test in near}
            chosen += sorted((t for t in usable if t not in near and t.split("::")[0] in files), key=distance)
        return chosen
