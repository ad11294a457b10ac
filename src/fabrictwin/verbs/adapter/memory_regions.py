"""Memory as an adapter sees it: regions and windows behind keys, and every check of an access.

A key is an index and, in its low 8 bits, a tag that the owner of a window may choose (InfiniBand Architecture,
volume 1, 10.6.3 and 10.6.7). Indices are not used twice, so that a stale key stays stale. An access copies bytes
from address to address, by default in this process.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence

from fabrictwin.verbs.abi.memory_codes import ibv_access_flags, ibv_mw_type
from fabrictwin.verbs.adapter.staging import Staging

LOCAL_WRITE = int(ibv_access_flags.IBV_ACCESS_LOCAL_WRITE)
REMOTE_WRITE = int(ibv_access_flags.IBV_ACCESS_REMOTE_WRITE)
REMOTE_READ = int(ibv_access_flags.IBV_ACCESS_REMOTE_READ)
REMOTE_ATOMIC = int(ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC)
MW_BIND = int(ibv_access_flags.IBV_ACCESS_MW_BIND)
ZERO_BASED = int(ibv_access_flags.IBV_ACCESS_ZERO_BASED)
ON_DEMAND = int(ibv_access_flags.IBV_ACCESS_ON_DEMAND)
FLUSH_GLOBAL = int(ibv_access_flags.IBV_ACCESS_FLUSH_GLOBAL)
FLUSH_PERSISTENT = int(ibv_access_flags.IBV_ACCESS_FLUSH_PERSISTENT)

TYPE_1 = int(ibv_mw_type.IBV_MW_TYPE_1)
TYPE_2 = int(ibv_mw_type.IBV_MW_TYPE_2)

TAG_BITS = 8
_TAG = (1 << TAG_BITS) - 1

Segment = tuple[int, int]  # a real address and a length
Segments = Sequence[Segment]

_WORD = 1 << 64
_BYTES = memoryview((ctypes.c_char * sys.maxsize).from_address(0)).cast("B")  # all of this process, by address


class Domain:
    """A protection domain: what belongs together. Identity is all there is to it."""

    __slots__ = ("handle",)

    def __init__(self, handle: int) -> None:
        self.handle = handle


class Region:
    """A registered memory region. Programs name its bytes `[start, end)`; they lie `shift` further on."""

    __slots__ = ("access", "domain", "end", "handle", "key", "node", "shift", "staging", "start", "windows")

    def __init__(
        self, key: int, domain: Domain, start: int, length: int, *, shift: int, access: int, node: int | None
    ) -> None:
        self.key = key
        self.handle = key >> TAG_BITS
        self.domain = domain
        self.start = start
        self.end = start + length
        self.shift = shift
        self.access = access
        self.node = node  # the fabric node that holds it; None: the processor nearest to the adapter
        self.staging: Staging | None = None  # of a GPU that the adapter does not reach: copies to host memory
        self.windows = 0  # bound to it


class Window:
    """A memory window: a part of a region under a key of its own."""

    __slots__ = ("access", "domain", "end", "handle", "key", "kind", "queue_pair", "region", "shift", "start")

    def __init__(self, key: int, domain: Domain, kind: int) -> None:
        self.key = key
        self.handle = key >> TAG_BITS
        self.domain = domain
        self.kind = kind
        self.region: Region | None = None  # bound to none
        self.queue_pair = 0  # type 2: the queue pair that bound it
        self.start = self.end = self.shift = self.access = 0


def _allows(found: Region | Window, domain: Domain | None, address: int, length: int, access: int) -> bool:
    """Return True where a key of a domain is good for such an access."""
    inside = found.start <= address and address + length <= found.end
    return inside and found.domain is domain and found.access & access == access


class Memory:
    """The translation and protection table of one adapter. Says so where a key opens less than before."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._index = 0x10
        self.epoch = 0  # counts what makes a place that was checked before worth another check
        self.local: dict[int, Region] = {}
        self.remote: dict[int, Region | Window] = {}

    def _key(self) -> int:
        self._index += 1
        return (self._index << TAG_BITS | self._index * 0x3B & _TAG) & 0xFFFFFFFF

    # ------------------------------------------------------------------ regions

    def register(
        self,
        domain: Domain,
        address: int,
        length: int,
        *,
        access: int,
        iova: int | None = None,
        node: int | None = None,
    ) -> Region:
        """A region of `length` bytes that lie at `address`; `iova` is the address that work requests name."""
        start = (0 if access & ZERO_BASED else address) if iova is None else iova
        region = Region(self._key(), domain, start, length, shift=address - start, access=access, node=node)
        self.local[region.key] = self.remote[region.key] = region
        return region

    def _changed(self) -> None:
        self.epoch += 1
        self._on_change()

    def deregister(self, region: Region) -> None:
        self._changed()
        self.local.pop(region.key, None)
        self.remote.pop(region.key, None)

    def change(
        self,
        region: Region,
        *,
        domain: Domain | None = None,
        place: tuple[int, int] | None = None,
        access: int | None = None,
    ) -> None:
        """Register a region anew under its keys: another domain, (address, length), or access."""
        self._changed()
        if domain is not None:
            region.domain = domain
        if access is not None:
            region.access = access
        if place is not None:
            address, length = place
            region.start = 0 if region.access & ZERO_BASED else address
            region.end = region.start + length
            region.shift = address - region.start

    def find(self, handle: int) -> Region | None:
        return next((region for region in self.local.values() if region.handle == handle), None)

    # ------------------------------------------------------------------ windows

    def window(self, domain: Domain, kind: int) -> Window:
        """A window that is bound to nothing yet."""
        return Window(self._key(), domain, kind)

    def free(self, window: Window) -> None:
        self.unbind(window)

    def unbind(self, window: Window) -> None:
        if window.region is not None:
            self._on_change()
            window.region.windows -= 1
            window.region = None
            self.remote.pop(window.key, None)

    def bind(
        self, window: Window, region: Region, *, key: int, address: int, length: int, access: int, queue_pair: int
    ) -> bool:
        """Bind a window to a part of a region under `key`; without length unbind it. False: a bind error.

        Volume 1, 10.6.7.2: the region allows binding and is of the same domain, the part lies inside it, and
        remote writes or atomics want local writes.
        """
        if window.kind == TYPE_2 and window.region is not None:
            return False
        if key >> TAG_BITS != window.handle:
            return False
        if length:
            wants_write = access & (REMOTE_WRITE | REMOTE_ATOMIC)
            if (
                self.local.get(region.key) is not region
                or region.domain is not window.domain
                or not region.access & MW_BIND
                or address < region.start
                or address + length > region.end
                or (wants_write and not region.access & LOCAL_WRITE)
            ):
                return False
        self.unbind(window)
        window.key = key
        if length:
            window.region = region
            region.windows += 1
            window.start, window.end, window.shift = address, address + length, region.shift
            if access & ZERO_BASED:
                window.start, window.end, window.shift = 0, length, region.shift + address
            window.access = access
            window.queue_pair = queue_pair
            self.remote[key] = window
        return True

    def invalidate(self, key: int, domain: Domain | None, queue_pair: int) -> bool:
        """A local or remote invalidate of a type 2 window's key. False where it may not be."""
        found = self.remote.get(key)
        if type(found) is not Window or found.kind != TYPE_2 or found.domain is not domain:
            return False
        if found.queue_pair != queue_pair:
            return False
        self.unbind(found)
        return True

    # ------------------------------------------------------------------ checks

    def local_segments(
        self, segments: Iterable[tuple[int, int, int]], domain: Domain | None, access: int
    ) -> list[Segment] | None:
        """Real places of (address, length, lkey), checked for `access`; None: a local protection error."""
        places: list[Segment] = []
        local = self.local
        for address, length, key in segments:
            if not length:
                continue
            region = local.get(key)
            # `_allows`, without a call
            if (
                region is None
                or address < region.start
                or address + length > region.end
                or region.domain is not domain
                or access & ~region.access
            ):
                return None
            places.append((address + region.shift, length))
        return places

    def remote_place(
        self, key: int, address: int, length: int, *, domain: Domain | None, access: int, queue_pair: int
    ) -> int | None:
        """The real address of a remote access of `length` bytes; None: a remote access error."""
        found = self.remote.get(key)
        if found is None or not _allows(found, domain, address, length, access):
            return None
        if type(found) is Window:
            region = found.region
            if region is None or self.local.get(region.key) is not region:
                return None
            if found.kind == TYPE_2 and found.queue_pair != queue_pair:
                return None
        return address + found.shift


class ProcessMemory:
    """Bytes of this process, by address.

    Other memories (of other processes) have methods of the same names; `read`, `write`, `copy` are all that they
    need to replace.
    """

    def copy(self, to: int, source: int, length: int) -> None:
        """Copy so many bytes from an address to another; they may overlap."""
        _BYTES[to : to + length] = _BYTES[source : source + length]

    def write(self, to: int, data: bytes, length: int) -> None:
        """Put the first so many of these bytes at an address."""
        _BYTES[to : to + length] = data[:length]

    def read(self, address: int, length: int) -> bytes:
        """So many bytes from an address."""
        return bytes(_BYTES[address : address + length])

    def scatter(self, data: bytes, into: Segments) -> None:
        """Copy bytes into segments, one after the other."""
        length = len(data)
        if length <= into[0][1]:
            self.write(into[0][0], data, length)
            return
        at = 0
        for address, room in into:
            part = room if room < length - at else length - at
            self.write(address, data[at : at + part] if at else data, part)
            at += part
            if at == length:
                return

    def join(self, source: Segments, at: int) -> None:
        """Copy segments one after the other to an address."""
        for address, length in source:
            self.copy(at, address, length)
            at += length

    def move(self, source: Segments, target: Segments) -> None:
        """Copy segments into segments; the target has room for all."""
        if len(target) == 1:
            self.join(source, target[0][0])
            return
        copy = self.copy
        rest = list(target)
        for address, length in source:
            while length:
                at, room = rest[0]
                part = room if room < length else length
                copy(at, address, part)
                address += part
                length -= part
                if part == room:
                    del rest[0]
                else:
                    rest[0] = at + part, room - part

    def gather(self, source: Segments) -> bytes:
        """The bytes of segments."""
        return b"".join(self.read(address, length) for address, length in source)

    def compare_swap(self, address: int, compare: int, swap: int) -> int:
        """Put `swap` where `compare` stands in 8 bytes; returns what stood there."""
        value = int.from_bytes(self.read(address, 8), sys.byteorder)
        if value == compare:
            self.write(address, (swap % _WORD).to_bytes(8, sys.byteorder), 8)
        return value

    def fetch_add(self, address: int, operand: int) -> int:
        """Add to 8 bytes; returns what stood there."""
        value = int.from_bytes(self.read(address, 8), sys.byteorder)
        self.write(address, ((value + operand) % _WORD).to_bytes(8, sys.byteorder), 8)
        return value
