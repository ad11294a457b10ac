"""Progress on stderr: only on a terminal, and only for what takes more than two seconds."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

AFTER_S = 2.0
EVERY_S = 0.25
LOOK_S = 0.05  # while nothing is drawn, so that the first compilation is noticed

COMPILING = " (compiling kernels, once on this machine)"


class _Compilations:
    """Whether numba compiles at this moment, which it does for a minute after installing and not again.

    numba is not imported for that: it is asked once somebody else has imported it.
    """

    def __init__(self) -> None:
        self._open = 0
        self._stop: Callable[[], None] | None = None

    def listen(self) -> None:
        event: Any = sys.modules.get("numba.core.event")
        if self._stop is not None or not hasattr(event, "unregister"):
            return

        class Listener(event.Listener):  # type: ignore[misc]
            def on_start(_, event: Any) -> None:  # noqa: N805 (self is the one around)
                self._open += 1

            def on_end(_, event: Any) -> None:  # noqa: N805
                self._open = max(0, self._open - 1)  # begun before we listened

        listener = Listener()
        event.register("numba:compile", listener)
        self._stop = lambda: event.unregister("numba:compile", listener)

    def close(self) -> None:
        if self._stop is not None:
            self._stop()

    @property
    def under_way(self) -> bool:
        return self._open > 0


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
        compilations = _Compilations()
        try:
            while not self._done.wait(EVERY_S if self._drawn else LOOK_S):
                compilations.listen()
                elapsed = time.monotonic() - self._started
                if elapsed >= AFTER_S:
                    self._line(f"{self._stage}{COMPILING if compilations.under_way else ''}", elapsed)
        finally:
            compilations.close()

    def _line(self, what: str, elapsed: float) -> None:
        end = f" … {elapsed:.0f} s"
        # a line that wraps could not be drawn over
        room = max(shutil.get_terminal_size().columns - len(end) - 1, 0)
        print(f"\r\x1b[K{what[:room]}{end}", end="", file=sys.stderr, flush=True)
        self._drawn = True
