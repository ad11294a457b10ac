"""Memory regions and windows (`pyverbs.mr`). Regions are real memory of this process.

A region has a buffer of its own, or is registered over memory that the program has: `address` is then an
address, or anything with a buffer (a bytearray, an mmap, a numpy array, a torch tensor), which is used in place.
`fabrictwin.verbs.gpu.GpuBuffer` as an address puts the region on a GPU of the host.
"""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin.verbs.abi.memory_codes import ibv_rereg_mr_flags
from fabrictwin.verbs.adapter.memory_regions import (
    FLUSH_GLOBAL,
    FLUSH_PERSISTENT,
    LOCAL_WRITE,
    MW_BIND,
    ON_DEMAND,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    TYPE_1,
    TYPE_2,
    ZERO_BASED,
    Region,
    Window,
)
from fabrictwin.verbs.attributes.code_words import CLOSED, lines
from fabrictwin.verbs.pyverbs import mem_alloc
from fabrictwin.verbs.pyverbs.base import PyverbsCM, PyverbsObject, failure, still_open
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsUserError
from fabrictwin.verbs.pyverbs.utils import access_flags_to_str, rereg_error_to_str

if TYPE_CHECKING:
    from fabrictwin.verbs.pyverbs.device import DM, Context
    from fabrictwin.verbs.pyverbs.pd import PD

_CHANGE_PLACE = int(ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_TRANSLATION)
_CHANGE_PD = int(ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_PD)
_CHANGE_ACCESS = int(ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_ACCESS)
_HUGETLB, _RELAXED = 1 << 7, 1 << 20
_KNOWN = (
    LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | MW_BIND | ZERO_BASED | ON_DEMAND | _HUGETLB
    | FLUSH_GLOBAL | FLUSH_PERSISTENT | _RELAXED
)  # fmt: skip
_PAGE = 4096
_MAPPED_FROM = 1 << 20  # larger buffers are mapped, so that pages that nobody touches cost nothing


def check_access(access: int) -> int:
    """The errno that registering with these flags fails with, or 0."""
    if access & ~_KNOWN or (access & (REMOTE_WRITE | REMOTE_ATOMIC) and not access & LOCAL_WRITE):
        return errno.EINVAL
    return errno.EOPNOTSUPP if access & ON_DEMAND else 0


def _mapped(address: int, length: int) -> bool:
    """Return whether all of a range is memory of this process (`msync` of a hole fails)."""
    first = address & ~(_PAGE - 1)
    return not mem_alloc._libc.msync(
        ctypes.c_void_p(first), ctypes.c_size_t(address + length - first), ctypes.c_int(1)
    )


def locate(target: Any) -> tuple[int, int | None, Any]:
    """(address, fabric node, what must live as long) of an address, a buffer, an array or a tensor.

    The node is that of a GPU that the adapter reaches, else None.
    """
    if isinstance(target, int):
        return target, None, None
    if hasattr(target, "node") and hasattr(target, "address"):
        return int(target.address), None if target.staging is not None else int(target.node), target
    if isinstance(target, np.integer):
        return int(target), None, None
    if hasattr(target, "data_ptr"):
        return int(target.data_ptr()), None, target
    if hasattr(target, "__array_interface__"):
        return int(target.__array_interface__["data"][0]), None, target
    view = memoryview(target)
    if view.readonly:
        raise PyverbsUserError("A region needs memory that can be written, got a read-only buffer")
    kept = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(kept), None, (kept, target)


class MR(PyverbsCM):
    """A memory region."""

    _what = "register a MR"
    region: Region | None = None

    def __init__(
        self,
        creator: PD,
        length: int = 0,
        access: int = 0,
        address: Any = None,
        implicit: bool = False,
        **kwargs: Any,
    ) -> None:
        handle = kwargs.get("handle")
        self._start(creator)
        if handle is not None:
            self._import(handle, address)
            return
        self._register(int(length), int(access), address, implicit=implicit)

    def _start(self, pd: PD) -> None:
        self.pd: PD | None = pd
        self._memory = pd.adapter.memory
        self._own = 0  # bytes of a buffer that the region made itself
        self._kept: Any = None
        self._imported = False
        self.buf = 0

    def _import(self, handle: int, address: int | None) -> None:
        assert self.pd is not None
        found = self._memory.find(handle)
        if found is None or found.domain is not self.pd.pd:
            raise failure("Failed to import MR", errno.EINVAL)
        self.region = found
        self._imported = True
        self.buf = address or 0
        self.pd._adopt(self)

    def _register(
        self, length: int, access: int, address: Any, *, implicit: bool = False, iova: int | None = None
    ) -> None:
        pd = self.pd
        assert pd is not None
        code = check_access(access)
        if implicit and not code:
            code = errno.EOPNOTSUPP
        if code:
            raise self._failed(length, access, code)
        node = None
        if address is not None and not (isinstance(address, int) and address == 0):
            self.buf, node, self._kept = locate(address)
            if length and not _mapped(self.buf, length):
                raise self._failed(length, access, errno.EFAULT)
        elif length:
            self.buf = (
                mem_alloc.mmap(length=length)
                if length >= _MAPPED_FROM
                else mem_alloc.posix_memalign(length, _PAGE)
            )
            self._own = length
        self.region = self._memory.register(pd.pd, self.buf, length, access=access, iova=iova, node=node)
        self.region.staging = getattr(address, "staging", None)
        if node is not None or self.region.staging is not None:
            pd.world.places_memory = True
        pd._adopt(self)

    def _failed(self, length: int, access: int, code: int) -> Exception:
        return failure(f"Failed to {self._what}. length: {length}, access flags: {access}", code)

    def _release(self) -> None:
        if self._own:
            if self._own >= _MAPPED_FROM:
                mem_alloc.munmap(self.buf, self._own)
            else:
                mem_alloc.free(self.buf)
        self._own = 0
        self._kept = None

    def unimport(self) -> None:
        """Let go of an imported region; its owner keeps it."""
        self.region = None

    def close(self) -> None:
        if self.region is None:
            return
        if not self._imported:
            self._memory.deregister(self.region)
            self._release()
        self.region = None
        self.pd = None
        self.buf = 0

    @property
    def _registered(self) -> Region:
        return still_open(self.region, "memory region")

    lkey = rkey = property(attrgetter("_registered.key"))
    handle = property(attrgetter("_registered.handle"))

    @property
    def length(self) -> int:
        region = self._registered
        return region.end - region.start

    def write(self, data: bytes | str, length: int, offset: int = 0) -> None:
        """Write bytes (or a string) to the region's buffer."""
        raw = data.encode() if isinstance(data, str) else data
        if not self.buf or length < 0 or offset < 0:
            raise PyverbsUserError("The MR buffer isn't allocated or length or offset is negative")
        ctypes.memmove(self.buf + offset, bytes(raw), min(length, len(raw)))

    def read(self, length: int, offset: int) -> bytes:
        """Bytes of the region's buffer."""
        if offset < 0:
            raise PyverbsUserError(f"Invalid offset {offset}")
        if not self.buf or length < 0:
            raise PyverbsUserError("The MR buffer isn't allocated or length is negative")
        return ctypes.string_at(self.buf + offset, length)

    def rereg(self, flags: int, pd: PD | None = None, addr: int = 0, length: int = 0, access: int = 0) -> None:
        """Change the domain, the memory or the access of the region; its keys stay. Raises PyverbsRDMAError."""
        region = self._registered
        code = check_access(access) if flags & _CHANGE_ACCESS else 0
        wrong_pd = flags & _CHANGE_PD and (pd is None or pd.adapter.memory is not self._memory)
        if flags & _CHANGE_PLACE and not _mapped(addr, length):
            code = errno.EFAULT
        if code or wrong_pd or not flags or flags & ~(_CHANGE_PD | _CHANGE_PLACE | _CHANGE_ACCESS):
            raise failure(f"Failed to rereg MR: {rereg_error_to_str(-1)}", code or errno.EINVAL)
        self._memory.change(
            region,
            domain=pd.pd if flags & _CHANGE_PD and pd is not None else None,
            place=(addr, length) if flags & _CHANGE_PLACE else None,
            access=access if flags & _CHANGE_ACCESS else None,
        )
        if flags & _CHANGE_PLACE:
            self._release()
            self.buf = addr
        if flags & _CHANGE_PD and pd is not None:
            if self.pd is not None and self.pd._children is not None:
                self.pd._children.discard(self)
            self.pd = pd
            pd._adopt(self)

    def __str__(self) -> str:
        if self.region is None:
            return lines((("MR", CLOSED),))
        return lines((("lkey", self.lkey), ("rkey", self.rkey), ("length", self.length), ("buf", self.buf)))


class MREx(MR):
    """A memory region by the extended call: `iova` is the address that work requests name."""

    _what = "register MR using extended API"

    def __init__(
        self,
        pd: PD,
        length: int = 0,
        access: int = 0,
        address: Any = None,
        iova: int | None = None,
        fd: int | None = None,
        fd_offset: int = 0,
        dmah: Any = None,
        implicit: bool = False,
        buf: Any = None,
        **kwargs: Any,
    ) -> None:
        self._start(pd)
        if fd is not None or dmah is not None or buf is not None:
            wrong = fd is not None and (implicit or address)
            raise self._failed(length, access, errno.EINVAL if wrong else errno.EOPNOTSUPP)
        self._register(int(length), int(access), address, implicit=implicit, iova=iova)


@dataclass(eq=False, repr=False)
class MWBindInfo(PyverbsCM):
    """The part of a region that a window opens."""

    mr: MR
    addr: int
    length: int
    mw_access_flags: int

    def __str__(self) -> str:
        access = access_flags_to_str(self.mw_access_flags)
        return lines((("Addr", self.addr), ("Length", self.length), ("MW access flags", access)))


@dataclass(eq=False, repr=False)
class MWBind(PyverbsCM):
    """Binding of a type 1 window."""

    info: MWBindInfo
    send_flags: int
    wr_id: int = 0

    def __str__(self) -> str:
        return lines((("WR id", self.wr_id), ("Send flags", self.send_flags)))


class MW(PyverbsCM):
    """A memory window, type 1 or 2."""

    window: Window | None = None

    def __init__(self, pd: PD, mw_type: int) -> None:
        if mw_type not in (TYPE_1, TYPE_2):
            raise failure("Failed to allocate MW", errno.EINVAL)
        self._memory = pd.adapter.memory
        self.window = self._memory.window(pd.pd, int(mw_type))
        self._next_key = self.window.key
        pd._adopt(self)

    @property
    def _allocated(self) -> Window:
        return still_open(self.window, "memory window")

    @property
    def rkey(self) -> int:
        """The window's key: of type 1 the one that the last bind gave it."""
        return self._next_key if self._allocated.kind == TYPE_1 else self._allocated.key

    handle = property(attrgetter("_allocated.handle"))
    type = property(attrgetter("_allocated.kind"))

    def close(self) -> None:
        if self.window is not None:
            self._memory.free(self.window)
            self.window = None

    def __str__(self) -> str:
        if self.window is None:
            return lines((("MW", CLOSED),))
        return lines((("Rkey", self.rkey), ("Handle", self.handle), ("MW Type", mwtype2str(self.type))))


def mwtype2str(mw_type: int) -> str:
    return {TYPE_1: "IBV_MW_TYPE_1", TYPE_2: "IBV_MW_TYPE_2"}.get(mw_type, f"Unknown MW type ({mw_type})")


class DMMR(MR):
    """A region of device memory, which the twin's adapters have none of."""

    def __init__(self, pd: PD, length: int, access: int, dm: DM, offset: int) -> None:
        raise failure(
            f"Failed to register a device MR. length: {length}, access flags: {access}", errno.EOPNOTSUPP
        )


class DmaBufMR(MR):
    """A region of a dma-buf, which the twin has none of; memory of a GPU is a `GpuBuffer`."""

    def __init__(
        self, pd: PD, length: int, access: int, dmabuf: Any = None, offset: int = 0, gpu: int = 0, gtt: int = 0
    ) -> None:
        raise failure(
            f"Failed to register a dma-buf MR. length: {length}, access flags: {access}", errno.EOPNOTSUPP
        )


@dataclass(eq=False, repr=False)
class DmaHandleInitAttr(PyverbsObject):
    """Hints for the processor's caches."""

    comp_mask: int = 0
    cpu_id: int = 0
    ph: int = 0
    tph_mem_type: int = 0


class DMAHandle(PyverbsCM):
    """A handle of such hints, which the model of memory has no use for."""

    def __init__(self, ctx: Context, init_attr: DmaHandleInitAttr) -> None:
        raise failure("Failed to create DMA Handle", errno.EOPNOTSUPP)


class Buf(PyverbsCM):
    """A buffer that the provider allocates."""

    def __init__(self, pd: PD, size: int) -> None:
        raise failure(f"Failed to allocate ibv_buf of size {size}", errno.EOPNOTSUPP)


class BufMR(MR):
    """A region over such a buffer."""

    def __init__(self, pd: PD, buf: Buf, length: int = 0, access: int = 0, offset: int = 0) -> None:
        raise failure(f"Failed to register a buf MR. length: {length}, access flags: {access}", errno.EOPNOTSUPP)
