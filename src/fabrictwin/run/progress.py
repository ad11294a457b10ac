"""Progress on stderr: only on a terminal, and only for what takes more than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

AFTER_S = 2.0
EVERY_S = 0.25


class Progress:
    """One line that says which stage is under way and for how long; gone when the work is done.

    A thread of its own draws it, because compiled stages do not call back.
    """

    def __init__(self, *, visible: bool | None = None) -> None:
        self._visible = sys.stderr.isatty() if visible is None else visible
        self._stage = ""
        self._started = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True)
        self._drawn = False

    def stage(self, name: str) -> None:
        """What is under way from now on."""
        self._stage = name

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        if self._visible:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._visible:
            self._thread.join()
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _draw(self) -> None:
        if self._done.wait(AFTER_S):
            return
        while True:
            elapsed = time.monotonic() - self._started
            print(f"\r\x1b[K{self._stage} … {elapsed:.0f} s", end="", file=sys.stderr, flush=True)
            self._drawn = True
            if self._done.wait(EVERY_S):
                return
