"""Break mechanisms one at a time, and say which breaks no test notices.

    python benchmarks/mutants.py --count 200 --seed 1 [--room subnet ...] [--jobs 2] [--folder DIR]
    python benchmarks/mutants.py --list --count 20
    python benchmarks/mutants.py --again

A mutant is one small change of one file of a room (`mutants_syntax.py` has the kinds). It is caught when a test of
its own room's first tier fails. Mutants are drawn from all of the chosen rooms by the seed; the first 50 of 200
are those of `--count 50`. A survey comes first: every test file runs once, unbroken, and what each test reaches is
written down (`mutants_survey.py`). Each mutant then runs in a copy of the checkout, with the tests that reach its
line, those of the file named like its own first, then the other tests of their files. A line that no test reaches
is held against the tests of its room that reach its file.

DIR (default `mutants-out`) keeps copies, survey and `results.jsonl`: a run that was ended goes on where it was,
and `--no-resume` forgets the results. `--again` runs those that survived once more, after tests were added.
With `--seconds` a mutant faces so much of the tests only, the nearest and quickest: fewer are caught, and sooner.
Ends with 1 where less than `--least` percent (90) were caught.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutants_rooms import CHECKOUT, ROOMS, Copy, Surveys
from mutants_syntax import Mutant, mutants_of

CAUGHT, LATE, SURVIVED = "caught", "caught (time)", "survived"


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    name: str
    verdict: str
    room: str
    place: str  # file:line
    change: str
    before: str
    after: str
    by: str  # the test that failed first
    tests: int  # that were run, at most
    seconds: float


def drawn(rooms: list[str], count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of the rooms, in the order that the seed gives; of fewer, all."""
    every = []
    for room in rooms:
        for path in sorted((CHECKOUT / "src/fabrictwin" / room).rglob("*.py")):
            every += mutants_of(path, CHECKOUT, room)
    order = random.Random(seed)
    order.shuffle(every)
    chosen: list[Mutant] = []
    for mutant in every:
        if len(chosen) == count:
            break
        if _compiles(mutant):
            chosen.append(mutant)
    return chosen


def _compiles(mutant: Mutant) -> bool:
    try:
        compile(mutant.applied((CHECKOUT / mutant.file).read_bytes()), mutant.file, "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def judge(mutant: Mutant, surveys: Surveys, copy: Copy) -> Result:
    """Run tests in a fork, and in processes of their own where a fork cannot tell, until one fails."""
    begun, ran = time.monotonic(), 0
    verdict, by, plans = SURVIVED, "", surveys.plans(mutant)
    forked = surveys.plan_of_fork(mutant)
    if forked is not None:
        said, by = copy.in_fork(mutant, list(forked.tests), forked.limit_s)
        verdict = {"caught": CAUGHT, "late": LATE}.get(said, SURVIVED)
        ran = len(forked.tests)
        if said != "elsewhere" and not surveys.runs_on_import(mutant):
            plans = [plan for plan in plans if plan.mode != forked.mode]
    if verdict == SURVIVED:
        with copy.mutated(mutant):
            for plan in plans:
                ran += len(plan.tests)
                outcome = copy.run(plan)
                if outcome is not None:
                    verdict, by = (LATE, "") if outcome == "" else (CAUGHT, outcome)
                    break
    return Result(
        name=mutant.name,
        verdict=verdict,
        room=mutant.room,
        place=f"{mutant.file.removeprefix('src/fabrictwin/')}:{mutant.line}",
        change=mutant.change,
        before=mutant.before,
        after=mutant.after,
        by=by,
        tests=ran,
        seconds=round(time.monotonic() - begun, 1),
    )


class Run:
    """A sample on its way: who is done is in a file, a line each."""

    def __init__(self, folder: Path, jobs: int, most_s: float) -> None:
        self.folder, self.jobs = folder, jobs
        self.kept = folder / "results.jsonl"
        self.results: dict[str, Result] = {}
        self.surveys = Surveys(folder, most_s)
        self.lock = threading.Lock()
        self.copies: list[Copy] = []
        self.rooms: list[str] = []  # of the mutants to be run

    def read(self) -> None:
        """Take up results of earlier runs; of two for one mutant the later holds. A line cut short is left out."""
        if not self.kept.exists():
            return
        for line in self.kept.read_text().splitlines():
            try:
                result = Result(**json.loads(line))
            except (ValueError, TypeError):
                continue
            self.results[result.name] = result

    def work(self, mutants: list[Mutant], *, again: bool) -> None:
        """Judge those of the mutants that are not done yet, or those that survived."""
        done = self.results
        due = [m for m in mutants if m.name not in done or (again and done[m.name].verdict == SURVIVED)]
        if again:
            due = [m for m in due if m.name in done]
        if not due:
            return
        self.rooms = sorted({m.room for m in due})
        self.copies = [Copy(self.folder / f"job-{job}") for job in range(self.jobs)]
        every = list(self.copies)
        for at, copy in enumerate(every):
            copy.refresh()
            if at == 0:
                self.surveys.take(copy, self.rooms)
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                for _ in pool.map(lambda m: self._one(m, len(mutants)), due):
                    pass
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            finally:
                for copy in every:
                    copy.end()

    def _one(self, mutant: Mutant, of: int) -> None:
        with self.lock:
            copy = self.copies.pop()
        try:
            copy.warm(self.rooms)
            result = judge(mutant, self.surveys, copy)
        finally:
            with self.lock:
                self.copies.append(copy)
        with self.lock:
            self.results[result.name] = result
            with self.kept.open("a") as out:
                out.write(json.dumps(vars(result)) + "\n")
            print(f"{len(self.results)}/{of} {_line(result)}", flush=True)


def _line(result: Result) -> str:
    by = f"  [{result.by}]" if result.by else ""
    change = f"{_short(result.before)} → {_short(result.after)}"
    return f"{result.verdict}  {result.place}  {result.change}: {change}{by}  {result.seconds:.0f} s"


def _short(text: str) -> str:
    return text if len(text) <= 90 else f"{text[:87]}..."


def print_summary(results: list[Result], of: int) -> float:
    """Print the shares by room and the survivors; return the percentage caught, nan of none."""
    judged = Counter(r.room for r in results)
    survived = Counter(r.room for r in results if r.verdict == SURVIVED)
    late = Counter(r.room for r in results if r.verdict == LATE)
    print(f"\n{'room':<16}{'mutants':>8}{'caught':>8}{'by time':>9}{'survived':>10}{'share':>8}")
    for room in [*sorted(judged), "all"]:
        n, s, t = (c.total() if room == "all" else c[room] for c in (judged, survived, late))
        share = f"{100 * (n - s) / n:.1f}%" if n else "-"
        print(f"{room:<16}{n:>8}{n - s:>8}{t:>9}{s:>10}{share:>8}")
    if len(results) < of:
        print(f"{of - len(results)} of the {of} drawn were not run")
    for result in sorted((r for r in results if r.verdict == SURVIVED), key=lambda r: r.place):
        path, line = result.place.rsplit(":", 1)
        source = (CHECKOUT / "src/fabrictwin" / path).read_text().splitlines()[int(line) - 1].strip()
        print(f"\n{result.place}  {result.change}  ({result.tests} tests)\n    {source}")
        print(f"  - {_short(result.before)}\n  + {_short(result.after)}")
    total = judged.total()
    return 100 * (total - survived.total()) / total if total else float("nan")


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--room", action="append", choices=sorted(ROOMS), help="draw from this room; may be repeated"
    )
    parser.add_argument("--count", type=int, default=200, help="mutants to draw (200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (1)")
    parser.add_argument("--folder", type=Path, default=Path("mutants-out"))
    parser.add_argument(
        "--resume", action=argparse.BooleanOptionalAction, default=True, help="go on (the default)"
    )
    parser.add_argument("--list", action="store_true", help="print what would be run, and end")
    parser.add_argument("--again", action="store_true", help="run those that survived once more")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="of tests a mutant, nearest and quickest first (all)"
    )
    parser.add_argument("--least", type=float, default=90.0, help="percentage to catch (90)")
    options = parser.parse_args(arguments)
    for name in ("count", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: got {getattr(options, name)}, expected 1 or more")
    return options


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    mutants = drawn(options.room or list(ROOMS), options.count, options.seed)
    if options.list:
        for m in mutants:
            print(f"{m.file}:{m.line}  {m.change}: {_short(m.before)} → {_short(m.after)}")
        return 0
    run = Run(options.folder.absolute(), options.jobs, options.seconds)
    run.folder.mkdir(parents=True, exist_ok=True)
    if options.resume:
        run.read()
    elif run.kept.exists():
        run.kept.unlink()
    names = {m.name for m in mutants}
    run.results = {name: r for name, r in run.results.items() if name in names}
    interrupted = False
    try:
        run.work(mutants, again=options.again)
    except KeyboardInterrupt:
        interrupted = True
    share = print_summary(list(run.results.values()), len(mutants))
    if interrupted:
        return 130
    return 0 if share >= options.least else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
