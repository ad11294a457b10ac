"""Base classes of the interface's objects: closing, with everything that was made from them first."""

from __future__ import annotations

import logging
from typing import Any, TypeVar
from weakref import WeakSet

from fabrictwin.base.closing import Closing
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError

Held = TypeVar("Held")

last_errno = 0  # of the last verb that failed, as C's errno


def inc_rkey(rkey: int) -> int:
    """The next key of a type 2 window: its low 8 bits count on."""
    return (rkey & ~0xFF) | ((rkey + 1) & 0xFF)


def failure(msg: str, code: int) -> PyverbsRDMAError:
    """The error of a verb that failed with an errno, which stands as the last one."""
    global last_errno
    last_errno = code
    return PyverbsRDMAError(msg, code)


def PyverbsRDMAErrno(msg: str) -> PyverbsRDMAError:  # noqa: N802 - the interface's name
    """An error with the errno of the last verb that failed."""
    return PyverbsRDMAError(msg, last_errno)


def still_open(held: Held | None, name: str) -> Held:
    """Return what an object holds. Raises PyverbsUserError once it has been given back."""
    if held is None:
        raise PyverbsUserError(f"The {name} is closed")
    return held


class PyverbsObject:
    """Base class of everything."""

    @property
    def logger(self) -> logging.Logger:
        return logging.getLogger(type(self).__name__)

    def set_log_level(self, val: int) -> None:
        self.logger.setLevel(val)


class PyverbsCM(PyverbsObject, Closing):
    """Base class of what is closed: by hand, by a `with` statement, with its maker, or when it is forgotten."""

    _children: WeakSet[Any] | None = None

    def __del__(self) -> None:
        self.close()

    def _adopt(self, child: PyverbsCM) -> None:
        if self._children is None:
            self._children = WeakSet()
        self._children.add(child)

    def _close_children(self) -> None:
        if self._children:
            children, self._children = list(self._children), None
            for child in children:
                child.close()

    def close(self) -> None:
        """Give back what the object holds; a second time does nothing."""
