"""The errors of the interface: what the device refused (with its errno), and what the program got wrong."""

from __future__ import annotations

import os

from fabrictwin.base.errors import FabrictwinError


class PyverbsError(FabrictwinError):
    """Base class of both."""

    def __init__(self, msg: str, error_code: int = -1) -> None:
        if error_code != -1:
            msg = f"{msg}. Errno: {error_code}, {os.strerror(abs(error_code))}"
        super().__init__(msg)


class PyverbsRDMAError(PyverbsError):
    """A verb failed; `error_code` is its errno."""

    def __init__(self, msg: str, error_code: int = -1) -> None:
        super().__init__(msg, error_code)
        self._error_code = error_code

    @property
    def error_code(self) -> int:
        return self._error_code


class PyverbsUserError(PyverbsError):
    """A call that makes no sense, found before it became a verb."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
