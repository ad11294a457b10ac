"""XRC domains (`pyverbs.xrcd`): what shared receive queues and XRC target queue pairs have in common.

A domain belongs to a file: contexts that open the same one share it. One without a file is its opener's alone.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from fabrictwin.verbs.pyverbs.base import PyverbsCM, PyverbsObject, failure
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsUserError

if TYPE_CHECKING:
    from fabrictwin.verbs.pyverbs.device import Context


class XRCDInitAttr(PyverbsObject):
    """The domain's file, and whether it may or must be new (`O_CREAT`, `O_EXCL`)."""

    def __init__(self, comp_mask: int, oflags: int, fd: int) -> None:
        self.comp_mask = comp_mask
        self.oflags = oflags
        self.fd = fd


class ExtendedDomain:
    """The domain itself; identity is all there is to it."""

    __slots__ = ("__weakref__",)


_by_file: WeakValueDictionary[tuple[int, int, int], ExtendedDomain] = WeakValueDictionary()


class XRCD(PyverbsCM):
    """An open XRC domain."""

    def __init__(self, context: Context, init_attr: XRCDInitAttr) -> None:
        self.domain: ExtendedDomain | None = None
        if init_attr.fd < 0:
            domain = ExtendedDomain()
        else:
            try:
                found = os.fstat(init_attr.fd)
            except OSError as error:
                raise failure("Failed to allocate XRCD", error.errno or errno.EBADF) from None
            key = (context.adapter.index, found.st_dev, found.st_ino)
            existing = _by_file.get(key)
            if existing is not None and init_attr.oflags & os.O_EXCL and init_attr.oflags & os.O_CREAT:
                raise failure("Failed to allocate XRCD", errno.EINVAL)
            if existing is None and not init_attr.oflags & os.O_CREAT:
                raise failure("Failed to allocate XRCD", errno.EAGAIN)
            domain = existing or ExtendedDomain()
            _by_file[key] = domain
        self.domain = domain
        context._adopt(self)

    @property
    def xrcd(self) -> ExtendedDomain:
        if self.domain is None:
            raise PyverbsUserError("The XRC domain is closed")
        return self.domain

    def close(self) -> None:
        if getattr(self, "domain", None) is not None:
            self._close_children()
            self.domain = None
