"""Methods of ioctl(RDMA_VERBS_IOCTL) on /dev/infiniband/uverbsN that have no command to be written.

Laid out as in uapi rdma/rdma_user_ioctl_cmds.h and ib_user_ioctl_cmds.h (Linux 6.1): a header and attributes.
All other methods are refused as a kernel does that does not know them (EPROTONOSUPPORT); rdma-core then writes.
"""

from __future__ import annotations

import errno
import struct

from fabrictwin.live import sysfs, wire
from fabrictwin.live.context import Context, refuse
from fabrictwin.live.uverbs.reply import Reply
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.gid import IB_GID, ROCE_V1, ROCE_V2

HEADER = struct.Struct("=4H8xII")  # length, object, method, attributes; driver
ATTRIBUTE = struct.Struct("=HHHHQ")  # id, length, flags, -, data or a pointer
PIECE = struct.Struct("=HHI")  # attribute's place among all, -, bytes that follow
DEVICE = 0  # UVERBS_OBJECT_DEVICE
QUERY_GID_TABLE, QUERY_GID_ENTRY = 5, 6
GID_ENTRY = struct.Struct("=16sIIII")  # gid, index, port, type, interface
_ENTRY_SIZE, _TABLE_FLAGS, _TABLE, _COUNT = range(4)
_PORT, _INDEX, _ENTRY_FLAGS, _ENTRY = range(4)
_KERNEL_TYPES = {IB_GID: 0, ROCE_V1: 1, ROCE_V2: 2}  # enum ib_uverbs_gid_type


class Attributes:
    """Attributes of a call by their number: what came in, and where answers go."""

    def __init__(self, data: bytes, count: int) -> None:
        if len(data) != HEADER.size + count * ATTRIBUTE.size:
            raise refuse(errno.EINVAL)
        self._all: dict[int, tuple[int, int, int]] = {}  # place, length, data
        for place in range(count):
            number, length, _, _, value = ATTRIBUTE.unpack_from(data, HEADER.size + place * ATTRIBUTE.size)
            self._all[number] = place, length, value
        self.answer = b""

    def value(self, number: int) -> int:
        """Return a number that came in. Raises Refused where there is none."""
        if number not in self._all:
            raise refuse(errno.EINVAL)
        return self._all[number][2]

    def room(self, number: int) -> int:
        """Return how many bytes an answer may have. Raises Refused where none is asked for."""
        if number not in self._all:
            raise refuse(errno.EINVAL)
        return self._all[number][1]

    def put(self, number: int, data: bytes) -> None:
        """Answer an attribute, as much as there is room for."""
        data = data[: self.room(number)]
        self.answer += PIECE.pack(self._all[number][0], 0, len(data)) + data


def answer(context: Context, data: bytes) -> Reply:
    """Do what a client asks by ioctl. Raises Refused with the errno that the kernel would give."""
    try:
        _, thing, method, count, _, _ = HEADER.unpack_from(data)
    except struct.error:
        raise refuse(errno.EINVAL) from None
    if thing != DEVICE or method not in (QUERY_GID_TABLE, QUERY_GID_ENTRY):
        raise refuse(errno.EPROTONOSUPPORT)
    attributes = Attributes(data, count)
    number = context.world.host(context.adapter.host_name).index(context.adapter)
    query = _query_table if method == QUERY_GID_TABLE else _query_entry
    query(context.adapter, number, attributes)
    return Reply(attributes.answer)


def _entry(adapter: Adapter, number: int, index: int) -> bytes:
    gid = adapter.gids[index]
    interface = sysfs.FIRST_IFINDEX + number if adapter.ethernet else 0
    return GID_ENTRY.pack(gid.raw, index, 1, _KERNEL_TYPES[gid.kind], interface)


def _query_table(adapter: Adapter, number: int, attributes: Attributes) -> None:
    """All entries of the device that are in use."""
    size = attributes.value(_ENTRY_SIZE)
    if attributes.value(_TABLE_FLAGS) or not size or attributes.room(_TABLE) % size:
        raise refuse(errno.EINVAL)
    count = len(adapter.gids)
    if count * size > attributes.room(_TABLE) or size * count > wire.PAYLOAD_BYTES - 64:
        raise refuse(errno.EINVAL)
    entries = (_entry(adapter, number, index)[:size].ljust(size, b"\0") for index in range(count))
    attributes.put(_TABLE, b"".join(entries))
    attributes.put(_COUNT, count.to_bytes(8, "little"))


def _query_entry(adapter: Adapter, number: int, attributes: Attributes) -> None:
    """One entry; ENODATA where it is empty."""
    index = attributes.value(_INDEX)
    if attributes.value(_ENTRY_FLAGS) or attributes.value(_PORT) != 1 or index >= adapter.gid_table_length:
        raise refuse(errno.EINVAL)
    if index >= len(adapter.gids):
        raise refuse(errno.ENODATA)
    attributes.put(_ENTRY, _entry(adapter, number, index))
