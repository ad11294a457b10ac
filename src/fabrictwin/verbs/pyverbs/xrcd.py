"""XRC domains (`pyverbs.xrcd`): what shared receive queues and XRC target queue pairs have in common.

A domain belongs to a file: contexts that open the same one share it. One without a file is its opener's alone.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from fabrictwin.verbs.pyverbs.base import PyverbsCM, PyverbsObject, failure, still_open

if TYPE_CHECKING:
    from fabrictwin.verbs.pyverbs.device import Context


@dataclass(eq=False, repr=False)
class XRCDInitAttr(PyverbsObject):
    """The domain's file, and whether it may or must be new (`O_CREAT`, `O_EXCL`)."""

    comp_mask: int
    oflags: int
    fd: int


class ExtendedDomain:
    """The domain itself; identity is all there is to it."""

    __slots__ = ("__weakref__",)


_by_file: WeakValueDictionary[tuple[int, int, int], ExtendedDomain] = WeakValueDictionary()


class XRCD(PyverbsCM):
    """An open XRC domain."""

    domain: ExtendedDomain | None = None

    def __init__(self, context: Context, init_attr: XRCDInitAttr) -> None:
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
        return still_open(self.domain, "XRC domain")

    def close(self) -> None:
        self._close_children()
        self.domain = None
