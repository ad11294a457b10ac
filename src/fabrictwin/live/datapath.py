"""The compiled part of the server: rings in shared memory, bytes between processes (datapath/datapath.c)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from fabrictwin.live import native_libraries, wire
from fabrictwin.verbs.adapter.memory_regions import ProcessMemory

PLACE_SHIFT = 47
_PLACES = 65536
PAGE_BYTES = 4096


@cache
def library() -> ctypes.CDLL:
    """The shared object with its functions' types. Raises ConfigError where it cannot be compiled."""
    lib = ctypes.CDLL(str(native_libraries.library("datapath")), use_errno=True)
    u32, u64, address, text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("live_set_process", None, (u32, ctypes.c_int32)),
        ("live_read", ctypes.c_int, (u64, text, u64)),
        ("live_write", ctypes.c_int, (u64, text, u64)),
        ("live_copy", ctypes.c_int, (u64, u64, u64)),
        ("live_map", address, (ctypes.c_int, u64, u64)),
        ("live_unmap", None, (address, u64)),
        ("live_ring", None, (address, u32, u32)),
        ("live_take", u32, (address, u32, u32, u32, text, u32)),
        ("live_free", None, (address, u32, u32)),
        ("live_clear", u32, (address, u32)),
        ("live_complete", ctypes.c_int, (address, u32, u32, u32, text, u32)),
        ("live_held", u32, (address, u32, u32)),
        ("live_follow", ctypes.c_int, (ctypes.c_int32,)),
        ("live_forget_all", None, ()),
        ("live_mark", None, (ctypes.c_int32, ctypes.c_int32)),
        ("live_await_quiet", ctypes.c_int, (ctypes.c_int, u64, u64, address)),
        ("live_take_short_turns", None, (ctypes.c_int32,)),
        ("live_spinners", ctypes.c_int, (address, ctypes.c_int)),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class ClientMemory(ProcessMemory):
    """Bytes of clients: an address carries the place of its process above its own bits.

    Hardware holds registered pages whatever the program does with its mappings. Here bytes that a program has
    unmapped read as zeros, and what is written there is gone; `faults` counts both.
    """

    def __init__(self) -> None:
        self.faults = 0
        self.written: Callable[[int], None] | None = None  # told a client's place when its memory was written
        self._library = library()
        self._next = 0
        self._used: set[int] = set()

    def admit(self, pid: int) -> int:
        """The tag of a process's addresses (to be added to them)."""
        if len(self._used) >= _PLACES - 1:
            raise OSError(11, "too many clients")
        while True:
            self._next = self._next % (_PLACES - 1) + 1
            if self._next not in self._used:
                break
        self._used.add(self._next)
        self._library.live_set_process(self._next, pid)
        return self._next << PLACE_SHIFT

    def dismiss(self, tag: int) -> None:
        """Forget a process: nothing reaches its memory any more."""
        place = tag >> PLACE_SHIFT
        self._used.discard(place)
        self._library.live_set_process(place, 0)

    def copy(self, to: int, source: int, length: int) -> None:
        if self._library.live_copy(to, source, length):
            self.faults += 1
        if self.written is not None:
            self.written(to >> PLACE_SHIFT)

    def write(self, to: int, data: bytes, length: int) -> None:
        if self._library.live_write(to, bytes(data), length):
            self.faults += 1
        if self.written is not None:
            self.written(to >> PLACE_SHIFT)

    def read(self, address: int, length: int) -> bytes:
        room = ctypes.create_string_buffer(length)
        if self._library.live_read(address, room, length):
            self.faults += 1
        return room.raw


@dataclass
class Ring:
    """A queue in memory that a client maps too: its slots, and where it lies in the client's file."""

    address: int
    size: int  # bytes that are mapped
    offset: int
    log2_element: int
    mask: int
    index: int = 0  # of the side that the server writes: next slot to fill, or to look at

    def __post_init__(self) -> None:
        self._put, self._take, self._free = library().live_complete, library().live_take, library().live_free

    @property
    def capacity(self) -> int:
        """Elements that fit: one slot stays free."""
        return self.mask

    @property
    def element(self) -> int:
        return 1 << self.log2_element

    def info(self) -> bytes:
        """`struct mminfo`."""
        return wire.MEMORY_INFO.pack(self.offset, self.size, 0)

    def take(self, room: ctypes.Array[ctypes.c_char], most: int) -> int:
        """Copy new elements into `room`, at most so many; returns how many."""
        count: int = self._take(self.address, self.log2_element, self.mask, self.index, room, most)
        self.index = self.index + count & self.mask
        return count

    def put(self, record: bytes) -> bool:
        """Add an element to a ring that the server fills. False: it is full, or gone."""
        if not self.address or not self._put(
            self.address, self.log2_element, self.mask, self.index, record, len(record)
        ):
            return False
        self.index = self.index + 1 & self.mask
        return True

    def unmap(self) -> None:
        if self.address:
            library().live_unmap(self.address, self.size)
            self.address = 0


class SharedFile:
    """The memory file of an opened device: its control area, and rings behind it, each given out once.

    The file cannot be shrunk (a seal), so that a client cannot take the server's pages away.
    """

    def __init__(self, name: str, most_bytes: int) -> None:
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._end = wire.CONTROL_BYTES
        self._most = most_bytes
        self._free: dict[int, list[int]] = {}  # offsets of what was given back, by size
        import fcntl

        os.ftruncate(self.descriptor, self._end)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        self._control = self._map(0, wire.CONTROL_BYTES)
        kind = ctypes.c_uint8 * wire.HANDLES
        self.state = kind.from_address(self._control)
        self.rung = kind.from_address(self._control + wire.HANDLES)
        self.rings = (ctypes.c_uint32 * wire.HANDLES).from_address(self._control + 2 * wire.HANDLES)

    def _map(self, offset: int, size: int) -> int:
        address = library().live_map(self.descriptor, offset, size)
        if not address:
            raise OSError(ctypes.get_errno() or 12, "cannot map a queue")
        return int(address)

    def ring(self, entries: int, element_bytes: int) -> Ring:
        """A ring with room for `entries` elements. Raises OSError where the client has had its share."""
        log2_element = max(element_bytes - 1, 1).bit_length()
        log2_slots = entries.bit_length()  # one slot stays free
        size = -(-(wire.RING_HEADER_BYTES + (1 << log2_slots + log2_element)) // PAGE_BYTES) * PAGE_BYTES
        again = self._free.get(size)
        if again:
            offset = again.pop()
        else:
            offset = self._end
            if offset + size > self._most:
                raise OSError(12, "too much memory for queues")
            os.ftruncate(self.descriptor, offset + size)
            self._end += size
        ring = Ring(self._map(offset, size), size, offset, log2_element, (1 << log2_slots) - 1)
        library().live_ring(ring.address, log2_element, log2_slots)
        return ring

    def give_back(self, ring: Ring) -> None:
        """A ring is not used any more: a later one may lie there."""
        if ring.address:
            ring.unmap()
            self._free.setdefault(ring.size, []).append(ring.offset)

    def close(self) -> None:
        if self._control:
            library().live_unmap(self._control, wire.CONTROL_BYTES)
            self._control = 0
            os.close(self.descriptor)
