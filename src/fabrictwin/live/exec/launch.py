"""Start programs as if they ran on hosts of the twin."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.process.inherited import inherited
from fabrictwin.base.records import record
from fabrictwin.live import native_libraries
from fabrictwin.live.clock.pace import ClockName
from fabrictwin.live.exec import preloadable

_SOCKET, _ROOT, _HOST = "FABRICTWIN_LIVE_SOCKET", "FABRICTWIN_LIVE_ROOT", "FABRICTWIN_LIVE_HOST"
_CLOCK = "FABRICTWIN_LIVE_CLOCK"
_NETWORK = "FABRICTWIN_LIVE_NETWORK"  # set where the host has a namespace of its own
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
SIGNALLED = 128  # and the signal's number: an exit code, as shells have them
PATIENCE_S = 0.5  # between asking programs to end and ending them


@record
class Program:
    """A command, and the host that it runs on."""

    host: str
    command: tuple[str, ...]


def check(command: Sequence[str]) -> None:
    """See that a command can be run on the twin. Raises ConfigError."""
    found = preloadable.find_program(command[0])
    if found is None:
        raise ConfigError(f"got {command[0]!r}, expected a program that can be found")
    reason = preloadable.why_not(found)
    if reason:
        raise ConfigError(f"{found} {reason}: it cannot be run on the twin")


def environment(
    host: str, socket: Path, root: Path, base: Mapping[str, str], *, clock: ClockName = "real"
) -> dict[str, str]:
    """The variables that make a program run on a host."""
    preload = str(native_libraries.library("preload"))
    before = base.get("LD_PRELOAD", "")
    return {
        **base,
        "LD_PRELOAD": f"{preload}:{before}" if before else preload,
        _SOCKET: str(socket),
        _ROOT: str(root),
        _HOST: host,
        _CLOCK: clock,
    }


def start(
    program: Program,
    socket: Path,
    root: Path,
    *,
    clock: ClockName = "real",
    enter: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program, which `enter` puts into its host's namespace. Raises ConfigError."""
    variables = environment(program.host, socket, root, inherited(), clock=clock)
    if enter is not None:
        variables[_NETWORK] = "own"
    libc, parent = ctypes.CDLL(None), os.getpid()

    def begin() -> None:
        # without us there is no twin: what looks into its memory in a loop would do so for ever
        libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(SIGNALLED + signal.SIGTERM)
        if enter is not None:
            enter()

    try:
        return subprocess.Popen(program.command, env=variables, preexec_fn=begin)
    except OSError as error:
        raise ConfigError(f"{program.command[0]}: {error.strerror}") from None


class Interruption:
    """SIGINT and SIGTERM while programs run: they are asked to end, and ended where they do not in time."""

    def __init__(self) -> None:
        self.number = 0  # of the first signal
        self._since = 0.0
        self._asked = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Take the signals' places; what watches for interrupts waits for programs meanwhile."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        wakeup = signal.set_wakeup_fd(-1)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        if not self.number:
            self.number, self._since = number, time.monotonic()

    def exit_code(self, codes: Sequence[int]) -> int:
        """The exit code of programs that ended: the signal's where one came, however they took it."""
        return SIGNALLED + self.number if self.number else exit_code(codes)

    def act(self, running: Sequence[subprocess.Popen[bytes]]) -> None:
        """Do to programs what is due."""
        if self.number and not self._asked:
            self._asked = True
            end(running)
        if self.number and time.monotonic() > self._since + PATIENCE_S:
            kill(running)


def exit_code(codes: Sequence[int]) -> int:
    """The exit code of several programs: the first that is not 0 (128 and the number of a signal)."""
    for code in codes:
        if code:
            return SIGNALLED - code if code < 0 else code
    return 0


def end(programs: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask programs that still run to end."""
    for program in programs:
        if program.poll() is None:
            program.send_signal(signal.SIGTERM)


def kill(programs: Sequence[subprocess.Popen[bytes]]) -> None:
    """End programs that still run."""
    for program in programs:
        if program.poll() is None:
            program.kill()
            program.wait()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
