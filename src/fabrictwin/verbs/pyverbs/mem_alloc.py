"""Memory by address, as C programs have it (`pyverbs.mem_alloc`). Real memory of this process."""

from __future__ import annotations

import ctypes
import errno
import mmap as _mmap

from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsError

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]
_libc.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]

MAP_FAILED = (1 << 64) - 1
PROT_EXEC_, PROT_READ_, PROT_WRITE_, PROT_NONE_ = _mmap.PROT_EXEC, _mmap.PROT_READ, _mmap.PROT_WRITE, 0
MAP_PUBLIC_, MAP_SHARED_, MAP_PRIVATE_, MAP_ANONYMOUS_ = (
    1,
    _mmap.MAP_SHARED,
    _mmap.MAP_PRIVATE,
    _mmap.MAP_ANONYMOUS,
)
MAP_HUGETLB_ = 0x40000
_DONT_NEED = 4
_ANONYMOUS = MAP_PRIVATE_ | MAP_ANONYMOUS_


def mmap(
    addr: int = 0,
    length: int = 100,
    prot: int = PROT_READ_ | PROT_WRITE_,
    flags: int = _ANONYMOUS,
    fd: int = -1,
    offset: int = 0,
) -> int:
    """Map memory; its address. Raises MemoryError."""
    found = _libc.mmap(addr or None, length, prot, flags, fd, offset)
    if found is None or found == MAP_FAILED:
        raise MemoryError(f"Failed to mmap {length} bytes")
    return int(found)


def munmap(addr: int, length: int) -> None:
    """Give mapped memory back. Raises PyverbsError."""
    if _libc.munmap(addr, length):
        raise PyverbsError(f"Failed to munmap {length} bytes", ctypes.get_errno())


def madvise(addr: int, length: int, flags: int = _DONT_NEED) -> None:
    """Advise the kernel about memory; pages that do not start one are refused by it. Raises PyverbsError."""
    if _libc.madvise(addr, length, flags):
        raise PyverbsError(f"Failed to madvise {length} bytes", ctypes.get_errno())


def malloc(size: int) -> int:
    """Allocate memory; its address. Raises MemoryError."""
    found = _libc.malloc(size)
    if not found:
        raise MemoryError(f"Failed to allocate {size} bytes")
    return int(found)


def posix_memalign(size: int, alignment: int = 8) -> int:
    """Allocate aligned memory, zeroed; its address. Raises MemoryError."""
    found = ctypes.c_void_p()
    code = _libc.posix_memalign(ctypes.byref(found), alignment, size)
    if code or not found.value:
        raise MemoryError(
            f"Failed to allocate {size} bytes aligned to {alignment}: {errno.errorcode.get(code, code)}"
        )
    ctypes.memset(found.value, 0, size)
    return found.value


def free(ptr: int) -> None:
    """Give allocated memory back."""
    _libc.free(ptr)


def write(addr: int, data: bytes | str, length: int, offset: int = 0) -> None:
    """Write bytes to memory."""
    raw = data.encode() if isinstance(data, str) else bytes(data)
    ctypes.memmove(addr + offset, raw, min(length, len(raw)))


def read(addr: int, length: int, offset: int = 0) -> bytes:
    """Bytes from memory."""
    return ctypes.string_at(addr + offset, length)


def writebe32(addr: int, val: int, offset: int = 0) -> None:
    """Write 32 bits, big-endian, `offset` words behind `addr`."""
    write(addr, val.to_bytes(4, "big"), 4, 4 * offset)


def writebe64(addr: int, val: int, offset: int = 0) -> None:
    """Write 64 bits, big-endian, `offset` words behind `addr`."""
    write(addr, val.to_bytes(8, "big"), 8, 8 * offset)


def read32(addr: int, offset: int = 0) -> int:
    """32 bits of this machine's order, `offset` words behind `addr`."""
    return ctypes.c_uint32.from_address(addr + 4 * offset).value


def read64(addr: int, offset: int = 0) -> int:
    """64 bits of this machine's order, `offset` words behind `addr`."""
    return ctypes.c_uint64.from_address(addr + 8 * offset).value
