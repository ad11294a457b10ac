"""One process that works for this one, says how far it is, and may be killed in the middle of its work.

Where `runs.workers` spreads many alike items, this is for a server: one piece of work after another, each with its
progress, each to be cancelled. Compiled kernels do not look at a flag, so that cancelling is killing; the next
piece of work starts a process anew.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError, FabrictwinError, SimulatedError
from fabrictwin.base.progress import Measure, Stage, silent
from fabrictwin.base.records import record
from fabrictwin.runs.workers import follow_parent, without_main

EVERY_S = 0.1  # between two looks at how far the work is
MOST_BYTES = 3 * 2**30  # of memory at its peak, beyond which a process is not kept for the next piece of work

Work = Callable[..., Any]  # a function of a module: takes a stage, then what it is given


class WorkerEndedError(FabrictwinError):
    """The process ended before its work did: it was cancelled, or killed for its memory."""


@record
class _Failure:
    """An error, as it goes through a pipe."""

    kind: str
    message: str
    file: str | None = None
    line: int | None = None
    key: str | None = None

    @classmethod
    def of(cls, error: Exception) -> _Failure:
        if isinstance(error, ConfigError):
            return cls("config", error.message, error.file, error.line, error.key)
        if isinstance(error, SimulatedError):
            return cls("simulated", str(error))
        return cls("internal", f"{type(error).__name__}: {error}")

    def raised(self) -> FabrictwinError:
        if self.kind == "config":
            return ConfigError(self.message, file=self.file, line=self.line, key=self.key)
        if self.kind == "simulated":
            return ReportedError(self.message)
        return FabrictwinError(self.message)


class ReportedError(SimulatedError):
    """What the simulated hardware of another process reported, in its words."""

    def __init__(self, message: str) -> None:
        super().__init__("reported", "the simulation", message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class _Teller:
    """Sends what is under way, when it has changed."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._name = ""
        self._measure: Measure | None = None
        self._said: tuple[str, float | None] = ("", None)
        self._over = threading.Event()

    def stage(self, name: str, done: Measure | None = None, /) -> None:
        self._name, self._measure = name, done

    def watch(self) -> None:
        while not self._over.wait(EVERY_S):
            measure = self._measure
            share = measure() if callable(measure) else measure
            now = self._name, None if share is None else round(min(max(float(share), 0.0), 1.0), 4)
            if now != self._said:
                self._said = now
                self.send(("stage", *now))

    def end(self) -> None:
        self._over.set()

    def send(self, message: tuple[Any, ...]) -> None:
        with self._lock:
            self._pipe.send(message)


def _serve(pipe: Connection, scratch: Path | None) -> None:
    """Do what comes through the pipe until it is closed."""
    follow_parent()
    if scratch is not None:
        tempfile.tempdir = str(scratch)
    while True:
        try:
            work, given = pipe.recv()
        except EOFError:
            return
        teller = _Teller(pipe)
        watch = threading.Thread(target=teller.watch, daemon=True, name="progress")
        watch.start()
        answer: tuple[Any, ...]
        try:
            answer = ("done", work(teller.stage, *given))
        except Exception as error:  # whatever it is: the server lives on, and says it
            answer = ("failed", _Failure.of(error))
        teller.end()
        watch.join()
        teller.send((*answer, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


class WorkerProcess:
    """A process of one's own, started when it is first needed.

    Its temporary files lie in `scratch`, since one that is killed does not remove them.
    """

    def __init__(self, scratch: Path | None = None) -> None:
        self._scratch = scratch
        self._context = multiprocessing.get_context("spawn")  # threads of ours must not be copied
        self._process: Any = None
        self._pipe: Connection | None = None
        self._lock = threading.Lock()

    def do(self, work: Work, *given: Any, stage: Stage = silent) -> Any:
        """Have `work(stage, *given)` done and return its answer; one at a time.

        Raises ConfigError and SimulatedError as the work does, FabrictwinError for any other error of it, and
        WorkerEndedError where the process was killed meanwhile.
        """
        pipe = self._started()
        try:
            pipe.send((work, given))
            while True:
                kind, *said = pipe.recv()
                if kind == "stage":
                    stage(*said)
                    continue
                answer, peak_bytes = said
                break
        except (EOFError, OSError):
            self.kill()
            raise WorkerEndedError("the work was ended") from None
        if peak_bytes > MOST_BYTES:
            self.kill()
        if kind == "failed":
            raise answer.raised()
        return answer

    def kill(self) -> None:
        """End the process and whatever it is doing, from any thread."""
        with self._lock:
            process = self._process
            self._process = self._pipe = None  # whoever waits at the pipe reads its end, and lets go of it
        if process is not None:
            process.kill()
            process.join()

    def _started(self) -> Connection:
        with self._lock:
            if self._pipe is None or not self._process.is_alive():
                ours, theirs = self._context.Pipe()
                self._process = self._context.Process(target=_serve, args=(theirs, self._scratch), daemon=True)
                with without_main():
                    self._process.start()
                theirs.close()
                self._pipe = ours
            return self._pipe
