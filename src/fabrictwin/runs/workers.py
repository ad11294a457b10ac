"""The same work on many items, in processes of this machine or on a Ray cluster.

Answers come as they end, each with the place of its item. A worker that dies (killed for its memory, say)
takes nothing else with it: what it may have had is asked again, alone, and only what then kills its worker
again is lost. Workers end with the process that started them, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait as wait_for
from types import ModuleType
from typing import Any, TypeVar

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record

T = TypeVar("T")
R = TypeVar("R")

CONNECT_S = 10.0
AHEAD = 4  # items a worker: enough that none waits, few enough that little is asked again after a death


@record
class Lost:
    """Stands for the answer of an item whose worker died twice."""

    why: str


Answers = Generator[tuple[int, R | Lost], None, None]


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def answers(work: Callable[[T], R], items: Sequence[T], workers: int | str | None = None) -> Answers[R]:
    """Yield (place, answer) of every item as they end.

    `work` is a function of a module, or a partial of one. `workers` are processes here (all processors if None);
    1 works in this process. A text is the address of a Ray cluster instead (`auto`, `ray://host:10001`).
    Raises ConfigError where none answers there.
    """
    if isinstance(workers, str):
        return _on_ray(work, items, workers)
    count = min(processors() if workers is None else workers, len(items))
    return _here(work, items) if count <= 1 else _in_processes(work, items, count)


def in_order(
    work: Callable[[T], R],
    items: Sequence[T],
    workers: int | str | None = 1,
    stage: Stage = silent,
    names: Sequence[str] = (),
) -> list[R]:
    """Answers of all items in their order; `names` are what a stage calls them. Raises what the work does.

    An item whose worker was killed twice is a ConfigError.
    """
    found: dict[int, R] = {}

    def say(place: int) -> None:
        if place < len(items):
            stage(names[place] if names else f"{place + 1:,} of {len(items):,}", len(found) / len(items))

    say(0)
    for place, answer in answers(work, items, workers):
        if isinstance(answer, Lost):
            name = names[place] if names else f"item {place + 1}"
            raise ConfigError(f"{name}: {answer.why}", key="--workers")
        found[place] = answer
        say(place + 1 if workers == 1 else len(found))
    return [found[place] for place in range(len(items))]


def _here(work: Callable[[T], R], items: Sequence[T]) -> Answers[R]:
    for place, item in enumerate(items):
        yield place, work(item)


def follow_parent() -> None:
    """Leave Ctrl-C to the parent, and end when the parent does: the first that a process of ours does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True, name="follow").start()


@contextmanager
def _quiet_tracker() -> Iterator[None]:
    """Have the process that removes what killed pools leave, which starts with the first one, do so silently."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before, "ignore:resource_tracker")))
    try:
        yield
    finally:
        del os.environ["PYTHONWARNINGS"]
        if before is not None:
            os.environ["PYTHONWARNINGS"] = before


def get_ready() -> None:
    """Start the process that workers are forked from, which imports meanwhile: worth it before work is planned.

    Workers are no forks of this process, whose threads would be copied in whatever state they are.
    """
    forkserver.set_forkserver_preload(["fabrictwin.runs.worker_preload"])
    with _quiet_tracker():
        resource_tracker.ensure_running()  # now, since it unblocks signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until it has a handler
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(environment: dict[str, str]) -> None:
    """Be a worker, with the environment as it is: what workers are forked from may be older."""
    follow_parent()
    os.environ.clear()
    os.environ.update(environment)


@contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    get_ready()
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(count, context, _begin, (dict(os.environ),))
    ended = False
    try:
        yield pool
        ended = True
    finally:
        processes = [*(pool._processes or {}).values()]  # nothing public names them
        pool.shutdown(wait=ended, cancel_futures=True)
        if not ended:
            for process in processes:
                process.kill()


@contextmanager
def without_main() -> Iterator[None]:
    """Start processes that do not import the program again: it may be a script that would start them anew."""
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


def _in_processes(work: Callable[[T], R], items: Sequence[T], count: int) -> Answers[R]:
    left = list(range(len(items)))
    suspects: list[int] = []
    while left or suspects:
        alone = bool(suspects)
        asked = [suspects.pop()] if alone else left
        under_way: dict[Future[R], int] = {}
        queue = iter(tuple(asked))
        try:
            with _pool(1 if alone else count) as pool:
                with without_main():
                    for place in _some(queue, count * AHEAD):
                        under_way[pool.submit(work, items[place])] = place
                while under_way:
                    done, _ = wait(under_way, return_when=FIRST_COMPLETED)
                    for future in done:
                        answer = future.result()
                        place = under_way.pop(future)
                        if not alone:
                            left.remove(place)
                        yield place, answer
                        for following in _some(queue, 1):
                            under_way[pool.submit(work, items[following])] = following
        except BrokenProcessPool:
            dead = sorted(under_way.values())
            if alone:
                yield dead[0], Lost("its worker was killed, twice: too little memory?")
                continue
            left = [place for place in left if place not in under_way.values()]
            suspects = dead


def _some(queue: Iterator[int], count: int) -> Iterator[int]:
    for _, place in zip(range(count), queue, strict=False):
        yield place


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError("needs Ray: pip install 'fabrictwin[ray]'", key="--on") from None
    return ray


def _apply(work: Callable[[T], R], item: T) -> R:
    return work(item)


def _reach(address: str) -> None:
    """Connect to HOST:PORT once; Ray itself would try for minutes. Raises OSError."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), CONNECT_S).close()


def _on_ray(work: Callable[[T], R], items: Sequence[T], address: str) -> Answers[R]:
    ray = _ray()
    try:
        _reach(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"got {address!r}, where no Ray cluster answers: {error}", key="--on") from None
    try:
        # a task whose node dies is asked again by Ray itself
        remote, shared = ray.remote(num_cpus=1, max_retries=2)(_apply), ray.put(work)
        queue = iter(range(len(items)))
        under_way: dict[Any, int] = {}
        ahead = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        for place in _some(queue, ahead):
            under_way[remote.remote(shared, items[place])] = place
        while under_way:
            done, _ = ray.wait([*under_way])
            for reference in done:
                place = under_way.pop(reference)
                answer: R | Lost
                try:
                    answer = ray.get(reference)
                except ray.exceptions.WorkerCrashedError:
                    answer = Lost("its worker was killed: too little memory?")
                yield place, answer
                for following in _some(queue, 1):
                    under_way[remote.remote(shared, items[following])] = following
    finally:
        ray.shutdown()
