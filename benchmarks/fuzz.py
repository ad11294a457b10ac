"""Fuzz everything that reads what others wrote: files, options, datagrams.

    python benchmarks/fuzz.py --minutes 10 [--inputs N] [--most N] [--seed 1] [--target NAME ...] [--jobs 2]
        [--batch S] [--folder DIR]

An input passes when the reader takes it or refuses it with an error of its own. Saved as a failure are a traceback
of anything else, more than 5 s, and more than 1 GiB beyond what the process had after its imports. Not its own are
time in which it waited for a processor, as Linux counts it, time in the compiler, and pauses of the whole machine,
which the process that watches sees too. Inputs follow from the seed and their number; DIR (default `fuzz-out`)
keeps how far each target is, so that a run goes on where the last one ended, and the failures.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]

HANG_S = 5.0
MEMORY_BYTES = 1 << 30
BATCH_S = 4.0  # of a target, before the next one's turn, unless told otherwise
LONGEST_TURN = 6  # times that
LOST_S = 20.0  # without a sign of life: compiled code that no alarm reaches
PAUSE_S = 1.0  # between two looks of the watching process, 20 ms apart: more, and the machine stood still
START_S = 180.0  # for imports, compilation and the samples, on a machine that does other things too


class Shared(NamedTuple):
    """Numbers that a batch's process writes and the one that watches it reads."""

    at: Any  # the input that is being read
    compiling: Any  # compilations under way
    clock: Any  # seconds that the watching process has seen pass, without the machine's pauses


class HangError(Exception):
    """An input took longer than HANG_S."""


_compiling: list[int] = [0]
_compiled_s: list[float] = [0.0]  # by compilations that have ended


def _watch_compilation(shared: Any) -> None:
    """Count compilations under way: a kernel that is new to this machine takes longer than an input may."""
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            if not _compiling[0]:
                self.begun = _ready_s()
            _compiling[0] += 1
            shared.value = _compiling[0]

        def on_end(self, event: Any) -> None:
            _compiling[0] -= 1
            shared.value = _compiling[0]
            if not _compiling[0]:
                _compiled_s[0] += _ready_s() - self.begun

    event.register("numba:compile", Listener())


def _ready_s() -> float:
    """Seconds of this process less those in which it was ready to run and other processes had the processors."""
    try:
        waited_ns = int(Path("/proc/self/schedstat").read_text().split()[1])
    except OSError:
        waited_ns = 0
    return time.monotonic() - waited_ns / 1e9


class Clock:
    """Seconds that pass, less pauses: a virtual machine that is stopped goes on with its clocks advanced."""

    def __init__(self, context: Any) -> None:
        self.shared = context.Value("d", 0.0)
        self.paused_s = 0.0
        self._last = time.monotonic()

    def tick(self) -> None:
        """Advance by what has passed since the last tick, at most a second."""
        now = time.monotonic()
        step, self._last = now - self._last, now
        if step > PAUSE_S:
            self.paused_s += step - PAUSE_S
        self.shared.value += min(step, PAUSE_S)


class _Stopwatch:
    """Times an input, and ends one that takes HANG_S of its own."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self._start_s = self._start_clock = 0.0
        signal.signal(signal.SIGALRM, self._alarm)

    def start(self) -> None:
        self._start_s, self._start_clock = _ready_s() - _compiled_s[0], self.clock.value
        signal.setitimer(signal.ITIMER_REAL, HANG_S)

    def stop(self) -> float:
        """Return seconds of the input."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        return self._own_s()

    def _own_s(self) -> float:
        """Seconds since the start, without other processes', the compiler's and pauses, to about 0.1 s."""
        return min(_ready_s() - _compiled_s[0] - self._start_s, self.clock.value - self._start_clock + 0.1)

    def _alarm(self, _number: int, _frame: object) -> None:
        left = HANG_S - self._own_s()
        if left <= 0.01 and not _compiling[0]:
            raise HangError
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.5))


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _batch(name: str, first: int, seed: int, until_s: float, shared: Shared, out: Any) -> None:
    """Run inputs of one target from number `first` on; the child's own process."""
    from fuzzing.inputs import mutated
    from fuzzing.targets import TARGETS

    from fabrictwin.base.errors import FabrictwinError, InvariantError

    faulthandler.enable()
    _watch_compilation(shared.compiling)
    target = TARGETS[name]()
    for sample in target.samples:  # imports and compilation are nobody's memory or time
        try:
            target.read(sample)
        except (FabrictwinError, *target.refusals):
            pass
    limit = _virtual_bytes() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    watch = _Stopwatch(shared.clock)
    number, end = first, time.monotonic() + until_s
    failures: list[dict[str, Any]] = []
    slowest = 0.0
    while time.monotonic() < end and len(failures) < 20:
        shared.at.value = number
        data = mutated(target.samples, number, seed)
        watch.start()
        try:
            target.read(data)
        except InvariantError:  # always a defect of ours, whatever the input
            failures.append(_failure(name, number, seed, data, traceback.format_exc()))
        except (FabrictwinError, *target.refusals):
            pass
        except HangError:
            failures.append(_failure(name, number, seed, data, f"more than {HANG_S} s\n{traceback.format_exc()}"))
        except BaseException:  # an interrupt or SystemExit out of a reader is a failure too
            failures.append(_failure(name, number, seed, data, traceback.format_exc()))
        finally:
            slowest = max(slowest, watch.stop())
        number += 1
    try:
        target.close()
    except Exception:
        failures.append(_failure(name, number - 1, seed, data, traceback.format_exc()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    out.put((name, number, failures, slowest, peak))


def _failure(name: str, number: int, seed: int, data: bytes, what: str) -> dict[str, Any]:
    return {"target": name, "number": number, "seed": seed, "input": repr(data), "what": what}


class Fuzzing:
    """Where a run of the fuzzer stands, kept in its folder."""

    def __init__(self, folder: Path, seed: int, batch_s: float = BATCH_S) -> None:
        self.folder, self.seed, self.batch_s = folder, seed, batch_s
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"progress-{seed}.json"
        self.done: dict[str, int] = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.failed: dict[str, int] = {}
        self.slowest: dict[str, float] = {}
        self.peak: dict[str, int] = {}
        self.seen: set[str] = set()
        self.turns: dict[str, int] = {}  # that have ended in this run
        self.spent_s: dict[str, float] = {}  # in turns of this run
        self.before = dict(self.done)

    def keep(self, failure: dict[str, Any]) -> None:
        """Save a failure, once for each place that it came from."""
        name = failure["target"]
        self.failed[name] = self.failed.get(name, 0) + 1
        where = "".join(failure["what"].splitlines(keepends=True)[-6:-1])
        key = f"{name}-{hashlib.sha256(where.encode()).hexdigest()[:8]}"
        if key in self.seen:
            return
        self.seen.add(key)
        (self.folder / f"{key}.txt").write_text(
            f"{name}, seed {failure['seed']}, input {failure['number']}\n{failure['input']}\n\n{failure['what']}",
            encoding="utf-8",
            errors="replace",
        )
        print(f"FAILED {key}: {failure['what'].strip().splitlines()[-1][:160]}", flush=True)

    def finish(self, result: tuple[str, int, list[dict[str, Any]], float, int]) -> None:
        """Take in what a batch found."""
        name, number, failures, slowest, peak = result
        self.done[name] = number
        self.spent_s[name] = self.spent_s.get(name, 0.0) + self.turn_s(name)
        self.turns[name] = self.turns.get(name, 0) + 1
        self.slowest[name] = max(slowest, self.slowest.get(name, 0.0))
        self.peak[name] = max(peak, self.peak.get(name, 0))
        for failure in failures:
            self.keep(failure)
        self.file.write_text(json.dumps(self.done, indent=1, sort_keys=True))

    def turn_s(self, name: str) -> float:
        """Seconds of a target's next turn: they grow, since each begins with imports."""
        return self.batch_s * min(1 + self.turns.get(name, 0), LONGEST_TURN)

    def next_of(self, waiting: list[str], most: int | None) -> str | None:
        """Take the next target out of `waiting`: each once, then the quickest that had fewer than `most`."""
        if most is not None and all(self.turns.get(name) for name in waiting):
            open_yet = [name for name in waiting if self.done[name] - self.before.get(name, 0) < most]
            if not open_yet:
                return None
            waiting.sort(key=lambda name: name not in open_yet)
            waiting[: len(open_yet)] = sorted(
                open_yet, key=lambda name: -(self.done[name] - self.before.get(name, 0)) / self.spent_s[name]
            )
        return waiting.pop(0)

    def table(self) -> str:
        """Counts by target, this run's and all."""
        lines = [f"{'target':22} {'this run':>10} {'in all':>10} {'failed':>7} {'slowest s':>10} {'peak MiB':>9}"]
        for name in sorted(self.done):
            new = self.done[name] - self.before.get(name, 0)
            lines.append(
                f"{name:22} {new:10,} {self.done[name]:10,} {self.failed.get(name, 0):7} "
                f"{self.slowest.get(name, 0.0):10.2f} {self.peak.get(name, 0) >> 20:9}"
            )
        new = sum(self.done.values()) - sum(self.before.values())
        lines.append(f"{'all':22} {new:10,} {sum(self.done.values()):10,} {sum(self.failed.values()):7}")
        return "\n".join(lines)


class Batch:
    """A target's turn in a process of its own."""

    def __init__(self, name: str, fuzzing: Fuzzing, context: Any, clock: Clock) -> None:
        self.name, self.clock = name, clock.shared
        at, compiling = context.Value("q", fuzzing.done.get(name, 0)), context.Value("i", 0)
        self.shared = Shared(at, compiling, self.clock)
        self.out = context.SimpleQueue()
        self.last, self.compiling, self.since = -1, False, self.clock.value
        self.turn_s = fuzzing.turn_s(name)
        self.process = context.Process(
            target=_batch,
            args=(name, fuzzing.done.get(name, 0), fuzzing.seed, self.turn_s, self.shared, self.out),
        )
        self.process.start()

    def ended(self, fuzzing: Fuzzing) -> bool:
        """Look whether it is over; a process that hangs or died counts as a failure of the input it was at."""
        if not self.out.empty():
            fuzzing.finish(self.out.get())
            self.process.join()
            self._tidy()
            return True
        now = self.clock.value
        compiling = bool(self.shared.compiling.value)
        # silence begins anew where compilation ends: the input that it was in has to come to its own end yet
        if self.shared.at.value != self.last or compiling != self.compiling:
            self.last, self.compiling, self.since = self.shared.at.value, compiling, now
        dead = not self.process.is_alive() and self.out.empty()
        waits = self.shared.at.value == fuzzing.done.get(self.name, 0) or compiling
        if not dead and now - self.since < LOST_S + self.turn_s + START_S * waits:
            return False
        what = f"process ended with {self.process.exitcode}\n" if dead else f"no sign of life for {LOST_S} s\n"
        self.process.kill()
        self.process.join()
        self._tidy()
        from fuzzing.inputs import mutated
        from fuzzing.targets import TARGETS

        data = mutated(TARGETS[self.name]().samples, self.shared.at.value, fuzzing.seed)
        fuzzing.finish(
            (
                self.name, self.shared.at.value + 1,
                [_failure(self.name, self.shared.at.value, fuzzing.seed, data, what)], LOST_S, 0,
            )
        )  # fmt: skip
        return True

    def _tidy(self) -> None:
        from fuzzing.target import root

        shutil.rmtree(root() / str(self.process.pid), ignore_errors=True)


def _import_what_most_need() -> None:
    """Import once what each turn's process would import by itself."""
    import numba  # noqa: F401

    import fabrictwin.cluster.build_blueprint
    import fabrictwin.fabric.compile
    import fabrictwin.runs.execute  # noqa: F401


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--inputs", type=int, help="stop once so many inputs were tried in all")
    parser.add_argument(
        "--most", type=int, help="a target's inputs, the quickest targets first; otherwise in turns"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--batch", type=float, default=BATCH_S, help="seconds of a target's turn")
    parser.add_argument("--folder", type=Path, default=Path("fuzz-out"))
    parser.add_argument("--list", action="store_true", help="print the targets")
    given = parser.parse_args()
    from fuzzing.target import root
    from fuzzing.targets import TARGETS

    names = given.target or list(TARGETS)
    if given.list:
        print("\n".join(names))
        return 0
    if unknown := set(names) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}")
    os.nice(5)
    root()  # before the first fork
    _import_what_most_need()
    context = multiprocessing.get_context("fork")
    fuzzing = Fuzzing(given.folder, given.seed, given.batch)
    clock = Clock(context)
    end = time.monotonic() + 60 * given.minutes
    waiting, running = list(names), []
    while waiting or running:
        over = time.monotonic() > end or (given.inputs and sum(fuzzing.done.values()) >= given.inputs)
        while waiting and len(running) < given.jobs and not over:
            name = fuzzing.next_of(waiting, given.most)
            if name is None:
                break
            running.append(Batch(name, fuzzing, context, clock))
        over = over or not running
        for batch in [batch for batch in running if batch.ended(fuzzing)]:
            running.remove(batch)
            waiting.append(batch.name)
        if over and not running:
            break
        time.sleep(0.02)
        clock.tick()
    print(fuzzing.table())
    if clock.paused_s:
        print(f"the machine stood still for {clock.paused_s:.0f} s meanwhile")
    shutil.rmtree(root(), ignore_errors=True)
    return 1 if fuzzing.failed else 0


if __name__ == "__main__":
    sys.exit(main())
