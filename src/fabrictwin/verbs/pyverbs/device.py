"""Devices and contexts (`pyverbs.device`)."""

from __future__ import annotations

import errno
import os
from collections import deque
from dataclasses import dataclass
from typing import Any

from fabrictwin.verbs import current_host
from fabrictwin.verbs.abi.device_codes import ibv_event_type, ibv_node_type, ibv_transport_type
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.gid import ROCE_V2
from fabrictwin.verbs.adapter.memory_regions import Domain
from fabrictwin.verbs.adapter.world import World
from fabrictwin.verbs.attributes.code_words import lines
from fabrictwin.verbs.attributes.device_attributes import (
    CQModerationCaps,
    DeviceAttr,
    DeviceAttrEx,
    ODPCaps,
    PacketPacingCaps,
    PCIAtomicCaps,
    PortAttr,
    QueryDeviceExInput,
    RSSCaps,
    TMCaps,
    TSOCaps,
    guid_format,
    guid_to_hex,
    phys_state_to_str,
    port_state_to_str,
    speed_to_str,
    str_from_flags,
    translate_device_caps,
    translate_gid_type,
    translate_link_layer,
    translate_mtu,
    translate_node_type,
    translate_port_cap_flags,
    translate_port_cap_flags2,
    translate_transport_type,
    width_to_str,
)
from fabrictwin.verbs.attributes.device_limits import (
    COMPLETION_VECTORS,
    device_attributes,
    extended_attributes,
    port_attributes,
)
from fabrictwin.verbs.pyverbs.base import PyverbsCM, PyverbsObject, failure
from fabrictwin.verbs.pyverbs.gid import GID
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from fabrictwin.verbs.pyverbs.utils import gid_str

__all__ = [
    "DM",
    "AllocDmAttr",
    "AsyncEvent",
    "CQModerationCaps",
    "Context",
    "Device",
    "DeviceAttr",
    "DeviceAttrEx",
    "FdArr",
    "GIDEntry",
    "ODPCaps",
    "PCIAtomicCaps",
    "PacketPacingCaps",
    "PortAttr",
    "QueryDeviceExInput",
    "RSSCaps",
    "TMCaps",
    "TSOCaps",
    "get_device_list",
    "guid_format",
    "guid_to_hex",
    "phys_state_to_str",
    "port_state_to_str",
    "rdma_get_devices",
    "speed_to_str",
    "str_from_flags",
    "translate_device_caps",
    "translate_event_type",
    "translate_gid_type",
    "translate_link_layer",
    "translate_mtu",
    "translate_node_type",
    "translate_port_cap_flags",
    "translate_port_cap_flags2",
    "translate_transport_type",
    "width_to_str",
]


@dataclass(eq=False, repr=False)
class Device(PyverbsObject):
    """An adapter that can be opened. Its name is bytes, as the C library's."""

    name: bytes
    guid: int
    node_type: int
    transport_type: int
    index: int

    def __str__(self) -> str:
        return (
            f"Device {self.index}: {self.name.decode()}, node type {translate_node_type(self.node_type)}, "
            f"transport type {translate_transport_type(self.transport_type)}, guid {guid_to_hex(self.guid)}"
        )


def _device(adapter: Adapter) -> Device:
    kind, transport = int(ibv_node_type.IBV_NODE_CA), int(ibv_transport_type.IBV_TRANSPORT_IB)
    return Device(adapter.name.encode(), adapter.guid, kind, transport, adapter.index)


def get_device_list(host: str | None = None) -> list[Device]:
    """The devices of this process's host, or of another by name."""
    return [_device(adapter) for adapter in current_host.adapters(host)]


def rdma_get_devices() -> list[Device]:
    """The devices that the connection manager can use: all."""
    return get_device_list()


def translate_event_type(event_type: int) -> str:
    known = {kind.value: kind.name for kind in ibv_event_type}
    return known.get(event_type, f"Unknown event_type ({event_type})")


@dataclass(eq=False, repr=False)
class AsyncEvent(PyverbsObject):
    """Something that happened to a device, or to one of its objects."""

    event_type: int = 0
    element: Any = None  # the engine's queue pair, completion queue or shared receive queue

    def ack(self) -> None:
        """Say that the event was seen."""

    def __str__(self) -> str:
        return lines((("Event Type", translate_event_type(self.event_type)),), 24)


class Opened:
    """State that contexts of one opened device share: its domains, and events. Imported contexts share it too."""

    def __init__(self, adapter: Adapter, world: World) -> None:
        self.adapter = adapter
        self.world = world
        self.events: deque[AsyncEvent] = deque()
        self.domains: dict[int, Domain] = {}
        self.handles = 0
        self.fd = -1
        self.users = 0

    def raise_event(self, kind: int, element: object) -> None:
        self.events.append(AsyncEvent(kind, element))

    def domain(self) -> Domain:
        self.handles += 1
        made = self.domains[self.handles] = Domain(self.handles)
        return made


_by_inode: dict[int, Opened] = {}  # command descriptors that were asked for, by what lies behind them


class Context(PyverbsCM):
    """An open device.

    `name` on this process's host, or `name` and `host`, or `host/name`; `cmd_fd` imports what another context
    of this process has opened.
    """

    def __init__(self, **kwargs: Any) -> None:
        name, host, cmd_fd = kwargs.get("name"), kwargs.get("host"), kwargs.get("cmd_fd")
        self._fd = -1
        if cmd_fd is not None:
            opened = _by_inode.get(os.fstat(cmd_fd).st_ino)
            if opened is None:
                raise failure("Failed to import device", errno.EINVAL)
            self._fd = cmd_fd
        else:
            if name is None:
                raise PyverbsUserError("Device name must be provided")
            adapter = current_host.find(name, host)
            if adapter is None:
                raise PyverbsRDMAError(f"Failed to find device {name}")
            opened = Opened(adapter, current_host.world())
        opened.users += 1
        self.opened: Opened | None = opened
        self.adapter, self.world = opened.adapter, opened.world
        self.name = self.adapter.name

    @property
    def context(self) -> Opened:
        """The opened device below this interface."""
        if self.opened is None:
            raise PyverbsUserError(f"Context of {self.name} is closed")
        return self.opened

    def close(self) -> None:
        opened = getattr(self, "opened", None)
        if opened is None:
            return
        self._close_children()
        self.opened = None
        opened.users -= 1
        if self._fd >= 0:
            try:
                if not opened.users:
                    _by_inode.pop(os.fstat(self._fd).st_ino, None)
                os.close(self._fd)
            except OSError:
                pass  # the program has closed it
            self._fd = -1

    @property
    def num_comp_vectors(self) -> int:
        return COMPLETION_VECTORS

    @property
    def cmd_fd(self) -> int:
        """A descriptor that stands for this open device; importing a duplicate shares its domains and regions."""
        if self._fd < 0:
            self._fd = os.memfd_create(f"fabrictwin-{self.name}")
            _by_inode[os.fstat(self._fd).st_ino] = self.context
        return self._fd

    # ------------------------------------------------------------------ queries

    def query_device(self) -> DeviceAttr:
        return device_attributes(self.adapter)

    def query_device_ex(self, ex_input: QueryDeviceExInput | None = None) -> DeviceAttrEx:
        return extended_attributes(self.adapter)

    def query_port(self, port_num: int) -> PortAttr:
        if port_num != 1:
            raise failure(f"Failed to query port {port_num}", errno.EINVAL)
        return port_attributes(self.adapter)

    def query_port_speed(self, port_num: int) -> int:
        """The port's rate in Mb/s."""
        if port_num != 1:
            raise failure(f"Failed to query port speed for port {port_num}", errno.EINVAL)
        return self.adapter.rate_bps // 1_000_000

    def query_pkey(self, port_num: int, index: int) -> int:
        """An entry of the partition key table, as it lies in memory: big-endian."""
        if port_num != 1 or not 0 <= index < len(self.adapter.pkeys):
            raise failure(f"Failed to query pkey {index} of port {port_num}", errno.EINVAL)
        return int.from_bytes(self.adapter.pkeys[index].to_bytes(2, "little"), "big")

    def get_pkey_index(self, port_num: int, pkey: int) -> int:
        """The index of a partition key. Raises PyverbsRDMAError."""
        if port_num == 1 and pkey in self.adapter.pkeys:
            return self.adapter.pkeys.index(pkey)
        raise failure(f"Failed to get pkey index of pkey = {pkey} of port {port_num}", errno.ENOENT)

    def query_gid(self, port_num: int, index: int) -> GID:
        if port_num != 1 or not 0 <= index < self.adapter.gid_table_length:
            raise failure(f"Failed to query gid {index} of port {port_num}", errno.EINVAL)
        gids = self.adapter.gids
        return GID.of(gids[index].raw) if index < len(gids) else GID()

    def query_gid_type(self, port_num: int, index: int) -> int:
        """`ibv_gid_type_sysfs`: 0 for InfiniBand and RoCE v1, 1 for RoCE v2."""
        gids = self.adapter.gids
        if port_num != 1 or not 0 <= index < len(gids):
            raise failure(f"Failed to query gid type of port {port_num} and gid index {index}", errno.EINVAL)
        return int(gids[index].kind == ROCE_V2)

    def query_gid_table(self, max_entries: int, flags: int = 0) -> list[GIDEntry]:
        entries = [GIDEntry.at(self.adapter, index) for index in range(len(self.adapter.gids))]
        if max_entries < len(entries):
            raise failure("Failed to query gid tables of the device", -errno.EINVAL)
        return entries

    def query_gid_ex(self, port_num: int, gid_index: int, flags: int = 0) -> GIDEntry:
        valid = port_num == 1 and 0 <= gid_index < self.adapter.gid_table_length
        if not valid or gid_index >= len(self.adapter.gids):
            raise failure(
                f"Failed to query gid table of port {port_num} in index {gid_index}",
                errno.ENODATA if valid else errno.EINVAL,
            )
        return GIDEntry.at(self.adapter, gid_index)

    def query_rt_values_ex(self, comp_mask: int = 1) -> tuple[int, int]:
        """The device's clock, which is simulated time: (seconds, nanoseconds)."""
        return divmod(self.world.now_ps // 1000, 10**9)

    def get_async_event(self) -> AsyncEvent:
        """Wait for the next asynchronous event. Raises PyverbsRDMAError where none can come."""
        events = self.context.events
        if not self.world.run_until(lambda: events):
            raise failure(f"Failed to get async event: {self.world.why_idle()}", errno.EAGAIN)
        return events.popleft()


class GIDEntry(PyverbsObject):
    """An entry of the GID table. The halves of the GID are as they lie in memory."""

    def __init__(
        self,
        subnet_prefix: int = 0,
        interface_id: int = 0,
        gid_index: int = 0,
        port_num: int = 0,
        gid_type: int = 0,
        ndev_ifindex: int = 0,
    ) -> None:
        self.gid_subnet_prefix = subnet_prefix
        self.gid_interface_id = interface_id
        self.gid_index = gid_index
        self.port_num = port_num
        self.gid_type = gid_type
        self.ndev_ifindex = ndev_ifindex

    @classmethod
    def at(cls, adapter: Adapter, index: int) -> GIDEntry:
        gid = adapter.gids[index]
        prefix, interface = (int.from_bytes(half, "little") for half in (gid.raw[:8], gid.raw[8:]))
        return cls(prefix, interface, index, 1, gid.kind, adapter.index + 1 if adapter.ethernet else 0)

    def gid_str(self) -> str:
        return gid_str(self.gid_subnet_prefix, self.gid_interface_id)

    def __str__(self) -> str:
        return lines(
            (
                ("GID", self.gid_str()),
                ("GID Index", self.gid_index),
                ("Port number", self.port_num),
                ("GID type", translate_gid_type(self.gid_type)),
                ("Ndev ifindex", self.ndev_ifindex),
            ),
            24,
        )


@dataclass(eq=False, repr=False)
class AllocDmAttr(PyverbsObject):
    """Wanted amount of device memory."""

    length: int
    log_align_req: int = 0
    comp_mask: int = 0


class DM(PyverbsCM):
    """Memory on the adapter, which the twin's have none of (`max_dm_size` is 0)."""

    def __init__(self, context: Context, dm_attr: AllocDmAttr | None = None, **kwargs: Any) -> None:
        raise failure("Failed to allocate device memory", errno.EOPNOTSUPP)


class FdArr(PyverbsCM):
    """A list of file descriptors."""

    def __init__(self, arr: list[int] | None = None, count: int = 0) -> None:
        self.arr = list(arr or [])
        self.count = count

    def __str__(self) -> str:
        return str(self.arr)
