"""Progress on stderr, for what takes more than two seconds: a bar on a terminal, a line now and then elsewhere.

Who works for long takes a `Stage` and calls it with what it does and, where it knows, with how far the whole is:
a fraction, or a function that reads one from where a kernel keeps count. Percentage and time left come from that.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


AFTER_S = 2.0
EVERY_S = 0.25
LOOK_S = 0.05  # while nothing is drawn, so that the first compilation is noticed
WIDE = 80  # columns of a terminal from which on a bar is drawn as well
LINES_S = (10.0, 20.0, 40.0, 60.0)  # off a terminal: when the first lines come, and the time between later ones

COMPILING = " (compiling kernels, once on this machine)"


Measure = float | Callable[[], float]


class Stage(Protocol):
    """The callback by which work says what it does, and how far the whole is (0 to 1) where it knows."""

    def __call__(self, name: str, done: Measure | None = None, /) -> None: ...


def silent(name: str, done: Measure | None = None, /) -> None:
    """Take note of no stage: the default where nobody watches."""


def part(stage: Stage, first: float, last: float) -> Stage:
    """A stage for a part of some work that is from `first` to `last` of the whole."""

    def scaled(done: Measure | None) -> Measure | None:
        if callable(done):
            read = done
            return lambda: first + (last - first) * read()
        return first if done is None else first + (last - first) * done

    def within(name: str, done: Measure | None = None, /) -> None:
        stage(name, scaled(done))

    return within


_OF_NUMBA = ("register", "unregister", "Listener")  # of `numba.core.event`


class _Compilations:
    """Watch whether numba compiles, which it does for a minute after installing and not again.

    numba is not imported for that: it is asked once somebody else has imported it.
    """

    def __init__(self) -> None:
        self._open = 0
        self._stop: Callable[[], None] | None = None

    def listen(self) -> None:
        event: Any = sys.modules.get("numba.core.event")
        # another thread may be in the middle of importing it: the names of its end come last
        if self._stop is not None or not all(hasattr(event, name) for name in _OF_NUMBA):
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
    """Says which stage is under way, how far it is and how long the rest takes; gone when the work is done.

    A thread of its own draws it, because compiled stages do not call back.
    """

    def __init__(self, *, visible: bool | None = None) -> None:
        self._terminal = sys.stderr.isatty() if visible is None else visible
        self._stage = ""
        self._measure: Measure | None = None
        self._origin = (0.0, 0.0)  # when something was measured first, and how far it was then
        self._started = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True, name="progress")

    def stage(self, name: str, done: Measure | None = None, /) -> None:
        """Say what is under way from now on, and how far the whole is."""
        fresh = self._measure is None and done is not None
        self._stage, self._measure = name, done
        if fresh:
            self._origin = (time.monotonic(), self.fraction() or 0.0)

    def fraction(self) -> float | None:
        """Share of the whole that is done, 0 to 1; None where nobody knows."""
        measure = self._measure
        if measure is None:
            return None
        return min(max(float(measure() if callable(measure) else measure), 0.0), 1.0)

    def left_s(self, fraction: float) -> float | None:
        """Seconds that the rest takes if it goes on as it has; None before anything was done."""
        since, first = self._origin
        if fraction <= first:
            return None
        return (time.monotonic() - since) * (1 - fraction) / (fraction - first)

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _draw(self) -> None:
        compilations = _Compilations()
        shown: _Bar | _Lines | None = None
        try:
            while not self._done.wait(EVERY_S if shown else LOOK_S):
                compilations.listen()
                elapsed = time.monotonic() - self._started
                if elapsed < AFTER_S:
                    continue
                shown = shown or (_Bar() if self._terminal else _Lines())
                fraction = self.fraction()
                left = None if fraction is None else self.left_s(fraction)
                shown.show(f"{self._stage}{COMPILING if compilations.under_way else ''}", fraction, elapsed, left)
        finally:
            compilations.close()
            if shown is not None:
                shown.close()


def _times(elapsed: float, left: float | None) -> str:
    return f"{elapsed:.0f} s" + ("" if left is None else f", about {max(left, 1):.0f} s left")


class _Bar:
    """One line on a terminal, drawn over."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        console = Console(file=sys.stderr)
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1))
        ]
        if console.width >= WIDE:
            columns.append(BarColumn(bar_width=16))
        for field in ("percent", "times"):
            columns.append(TextColumn(f"{{task.fields[{field}]}}", table_column=Column(no_wrap=True)))
        self._bar: Bar = Bar(
            *columns,
            console=console,
            auto_refresh=False,
            transient=True,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=None, percent="", times="")
        self._bar.start()

    def show(self, what: str, fraction: float | None, elapsed: float, left: float | None) -> None:
        """Draw the line."""
        self._bar.update(
            self._task,
            description=what,
            total=None if fraction is None else 1.0,
            completed=fraction or 0.0,
            percent="" if fraction is None else f"{fraction:.0%}",
            times=_times(elapsed, left),
            refresh=True,
        )

    def close(self) -> None:
        """Remove the line."""
        self._bar.stop()


class _Lines:
    """A line now and then, for logs."""

    def __init__(self) -> None:
        self._next = LINES_S[0]

    def show(self, what: str, fraction: float | None, elapsed: float, left: float | None) -> None:
        """Print a line where it is time for one."""
        if elapsed < self._next:
            return
        later = [at for at in LINES_S if at > elapsed]
        self._next = later[0] if later else elapsed + LINES_S[-1]
        percent = "" if fraction is None else f"{fraction:.0%}, "
        print(f"{what}: {percent}{_times(elapsed, left)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the lines where they are."""
