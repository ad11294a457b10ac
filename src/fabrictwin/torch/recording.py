"""What this process records into: its recorder once there is one, and what is kept out of the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fabrictwin.torch.call_log import CallLog
from fabrictwin.torch.rank_recorder import RankRecorder

RECORDERS: list[RankRecorder] = []  # of this process, once a group is made
LOGS: list[CallLog] = []  # of this process, where somebody compares
OWN: list[None] = []  # not empty while the backend itself copies, which a program on NCCL does not

NOTES: list[str] = []  # on the record, for people
PENDING: dict[int, Callable[[], None]] = {}  # calls whose bytes nobody has waited for: what waits for each
WORLDS = [0]  # how often the program has made its world: stores keep the addresses of groups that have ended


@contextmanager
def own_copies() -> Iterator[None]:
    """Keep what the backend computes out of the record."""
    OWN.append(None)
    try:
        yield
    finally:
        OWN.pop()


def finish_calls() -> None:
    """Wait for the bytes of every call so far."""
    for wait in list(PENDING.values()):
        wait()


def eager(model: Any = None, *_: Any, **__: Any) -> Any:
    """Return a model as it is, in place of `torch.compile`: programs are recorded operator by operator."""
    return (lambda one: one) if model is None else model
