"""Jobs: a queue with a limit, workers that take from it, answers in folders of which a limited number is kept."""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fabrictwin.base.errors import ConfigError, FabrictwinError, SimulatedError
from fabrictwin.base.records import record
from fabrictwin.runs.worker_process import Work, WorkerEndedError, WorkerProcess

State = Literal["queued", "running", "done", "failed", "cancelled"]
OVER = ("done", "failed", "cancelled")


class FullError(FabrictwinError):
    """There is no place left in the queue."""


@record
class Request:
    """What is asked for. `given` is what the work takes after its stage."""

    kind: str
    title: str
    work: Work
    given: tuple[Any, ...]


@dataclass
class Progress:
    """How far a job is."""

    stage: str = "waiting"
    fraction: float | None = None
    begun: float = 0.0  # of the machine's clock
    seconds: float | None = None  # that it took
    measured: tuple[float, float] | None = None  # when something was measured first, and how far it was

    def elapsed_s(self) -> float | None:
        """Seconds that it has taken; None before it begins."""
        if self.seconds is not None:
            return self.seconds
        return time.monotonic() - self.begun if self.begun else None

    def left_s(self) -> float | None:
        """Seconds that the rest takes if it goes on as it has; None where nobody knows."""
        if self.measured is None or self.fraction is None or self.fraction <= self.measured[1]:
            return None
        since, first = self.measured
        return (time.monotonic() - since) * (1 - self.fraction) / (self.fraction - first)


@dataclass
class Job:
    """One piece of work and what is known of it. Fields change until `state` is one of `OVER`."""

    id: str
    request: Request
    folder: Path
    state: State = "queued"
    progress: Progress = field(default_factory=Progress)
    error: dict[str, Any] | None = None
    version: int = 0  # counts what changed, for who watches

    def data(self) -> dict[str, Any]:
        """Plain data, as the interface has it."""
        elapsed = self.progress.elapsed_s()
        left = self.progress.left_s() if self.state == "running" else None
        return {
            "id": self.id,
            "kind": self.request.kind,
            "title": self.request.title,
            "state": self.state,
            "stage": self.progress.stage,
            "fraction": self.progress.fraction,
            "elapsed_s": None if elapsed is None else round(elapsed, 3),
            "left_s": None if left is None else round(left, 1),
            "error": self.error,
        }


@record
class Limits:
    """How much is kept and waits."""

    waiting: int = 32  # jobs that have not begun
    kept: int = 40  # jobs that are over, the oldest goes first
    kept_bytes: int = 2 * 2**30  # of their folders
    quick_waiting: int = 32  # questions that are answered at once


@dataclass
class Jobs:
    """The jobs of a server. Methods may be called from any thread."""

    root: Path
    workers: int
    limits: Limits = field(default_factory=Limits)
    changed: Callable[[], None] = lambda: None  # called after every change, from any thread

    def __post_init__(self) -> None:
        self._jobs: dict[str, Job] = {}  # in the order that they came
        self._queue: queue.Queue[Job | None] = queue.Queue()
        self._lock = threading.RLock()
        self._count = 0
        self._under_way: dict[str, WorkerProcess] = {}
        self._threads = [
            threading.Thread(target=self._work, daemon=True, name=f"jobs-{n}") for n in range(self.workers)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, kind: str, title: str, work: Work, given: tuple[Any, ...]) -> Job:
        """Queue a job; `given` is what the work takes after its stage and folder. Raises FullError."""
        with self._lock:
            if sum(job.state == "queued" for job in self._jobs.values()) >= self.limits.waiting:
                raise FullError(f"got more than {self.limits.waiting} jobs that wait, expected some to end first")
            self._count += 1
            name = f"{self._count:04d}"
            folder = self.root / name
            folder.mkdir(mode=0o700)
            job = Job(name, Request(kind, title, work, (str(folder), *given)), folder)
            self._jobs[name] = job
            self._queue.put(job)
        self._say(job)
        return job

    def find(self, name: str) -> Job | None:
        """The job of that name; None where there is none any more."""
        with self._lock:
            return self._jobs.get(name)

    def all(self) -> list[Job]:
        """All jobs that are known, in the order that they came."""
        with self._lock:
            return list(self._jobs.values())

    def cancel(self, job: Job) -> None:
        """End a job that is not over; one that is stays as it is."""
        with self._lock:
            if job.state in OVER:
                return
            job.state, job.progress.stage = "cancelled", "cancelled"
            process = self._under_way.get(job.id)
            if process is not None:
                process.kill()
        self._say(job)

    def forget(self, job: Job) -> None:
        """Cancel a job, and remove it and its folder."""
        self.cancel(job)
        with self._lock:
            self._jobs.pop(job.id, None)
        shutil.rmtree(job.folder, ignore_errors=True)
        self._say(job)

    def close(self) -> None:
        """End everything."""
        for job in self.all():
            self.cancel(job)
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _say(self, job: Job) -> None:
        job.version += 1
        self.changed()

    def _work(self) -> None:
        process = WorkerProcess(self.root)
        while (job := self._queue.get()) is not None:
            with self._lock:
                if job.state != "queued":
                    continue
                job.state, job.progress.begun, job.progress.stage = "running", time.monotonic(), "starting"
                self._under_way[job.id] = process
            self._say(job)
            self._do(job, process)
            with self._lock:
                del self._under_way[job.id]
                job.progress.seconds = time.monotonic() - job.progress.begun
            self._say(job)
            self._tidy()
        process.kill()

    def _do(self, job: Job, process: WorkerProcess) -> None:
        def stage(name: str, done: Any = None, /) -> None:
            if job.state == "cancelled":  # before the process was there to be killed
                process.kill()
                return
            if job.progress.measured is None and done is not None:
                job.progress.measured = (time.monotonic(), done)
            job.progress.stage, job.progress.fraction = name, done
            self._say(job)

        state: State = "done"
        try:
            process.do(job.request.work, *job.request.given, stage=stage)
        except WorkerEndedError:
            state = "failed"
            job.error = job.error or {"message": "its process was killed: too little memory?", "key": None}
        except ConfigError as error:
            state = "failed"
            job.error = {"message": error.message, "key": error.key, "line": error.line, "file": error.file}
        except (SimulatedError, FabrictwinError) as error:
            state = "failed"
            job.error = {"message": str(error), "key": None}
        with self._lock:
            if job.state == "cancelled":
                job.error = None
                return
            job.state, job.progress.stage = state, state
            if state == "done":
                job.progress.fraction = 1.0

    def _tidy(self) -> None:
        """Forget the oldest jobs that are over, where there are too many or they take too much."""
        while True:
            with self._lock:
                over = [job for job in self._jobs.values() if job.state in OVER]
                taken = sum(_bytes(job.folder) for job in over)
                if len(over) <= self.limits.kept and (taken <= self.limits.kept_bytes or len(over) <= 1):
                    return
            self.forget(over[0])


def _bytes(folder: Path) -> int:
    try:
        return sum(entry.stat().st_size for entry in folder.iterdir())
    except FileNotFoundError:
        return 0


class Quick:
    """Questions that are answered at once, by processes of their own."""

    def __init__(self, workers: int, limit: int, scratch: Path) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting = 0
        self._free: queue.Queue[WorkerProcess] = queue.Queue()
        self._processes = [WorkerProcess(scratch) for _ in range(workers)]
        for process in self._processes:
            self._free.put(process)

    def ask(self, work: Work, *given: Any, within_s: float) -> Any:
        """Return the answer. Raises FullError, WorkerEndedError after `within_s`, and what the work does."""
        with self._lock:
            if self._waiting >= self._limit:
                raise FullError("got more questions than are answered at once, expected some to end first")
            self._waiting += 1
        try:
            process = self._free.get()
            try:
                watch = threading.Timer(within_s, process.kill)
                watch.start()
                try:
                    return process.do(work, *given)
                finally:
                    watch.cancel()
            finally:
                self._free.put(process)
        finally:
            with self._lock:
                self._waiting -= 1

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
