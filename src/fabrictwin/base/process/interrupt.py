"""Ctrl-C: the command ends within a second, whatever it is in, and leaves nothing half-written.

Python handles a signal between two instructions of its main thread. A compiled kernel and LLVM run for minutes
without one, but they release the interpreter's lock; so a thread that the signal wakes (`signal.set_wakeup_fd`)
ends the process where the main thread has not come back by itself in `GRACE_S`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

INTERRUPTED = 130  # 128 + SIGINT, as shells count
GRACE_S = 0.4
SETTLED_S = 0.05  # for the thread to have read of a signal that came before an error

_unfinished: set[Path] = set()
_code = [INTERRUPTED]  # of a process that is ended here


@contextmanager
def serving() -> Iterator[None]:
    """Take an interrupt for the normal end, with exit code 0: nobody ends a server in another way."""
    _code.append(0)
    try:
        yield
    finally:
        _code.pop()


def leave(code: int) -> NoReturn:
    """End the process at once, and remove what is unfinished or was for this process alone.

    Taking a compiler down as Python does takes a second of its own.
    """
    caches = sys.modules.get("fabrictwin.kernel.jit.cache_folder")
    for path in (*_unfinished, *(caches.private_folders if caches is not None else ())):
        _remove(path)
    os._exit(code)


def begin(path: Path) -> None:
    """Say that a file or folder is being written or of use for this process alone: an interrupt removes it."""
    _unfinished.add(path)


def finish(path: Path) -> None:
    """Say that a file or folder is whole; it is removed where an interrupt is what ends its writing."""
    if isinstance(sys.exc_info()[1], KeyboardInterrupt):
        _remove(path)
    _unfinished.discard(path)


@contextmanager
def unfinished(path: Path) -> Iterator[None]:
    """Remove a file or folder that is being written when the process is interrupted or the block fails."""
    begin(path)
    try:
        yield
    except BaseException:
        _remove(path)
        raise
    finally:
        finish(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # what cannot be removed now could not be a moment ago either
            path.unlink(missing_ok=True)


class InterruptGuard:
    """While it is open, SIGINT raises KeyboardInterrupt, and ends the process where that is not seen in time.

    Only the main thread of a process can open one; elsewhere it does nothing.
    """

    def __init__(self) -> None:
        self._left = threading.Event()
        self._seen = threading.Event()
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._before = -1
        self._unraisable = sys.unraisablehook

    def __enter__(self) -> InterruptGuard:
        if threading.current_thread() is not threading.main_thread():
            return self
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return self  # somebody else takes care of it, or it is ignored (nohup, a job in the background)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._ends = ours, theirs
        self._before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self._unraisable = sys.unraisablehook
        sys.unraisablehook = self._drop
        threading.Thread(target=self._watch, args=(ours,), daemon=True, name="interrupt").start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._left.set()
        if self._ends is not None:
            signal.set_wakeup_fd(self._before)
            sys.unraisablehook = self._unraisable
            self._ends[1].close()  # the thread reads an end and leaves

    def _drop(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Say nothing of an interrupt that reached a callback of LLVM, which swallows it: the watch ends it."""
        if unraisable.exc_type is not KeyboardInterrupt:
            self._unraisable(unraisable)

    def interrupted(self) -> bool:
        """True where SIGINT came: an error after it may be no more than what is left of a swallowed interrupt."""
        return self._seen.wait(SETTLED_S)

    def _watch(self, ours: socket.socket) -> None:
        with ours:
            while received := ours.recv(64):
                if signal.SIGINT not in received:
                    continue
                self._seen.set()
                if not self._left.wait(GRACE_S):
                    self._end()

    def _end(self) -> None:
        pools = sys.modules.get("multiprocessing")
        for process in pools.active_children() if pools is not None else ():
            process.kill()  # it would go on alone
        if sys.stderr.isatty():
            os.write(2, b"\r\x1b[K\x1b[?25h")  # what progress drew, and the cursor that it hid
        leave(_code[-1])
