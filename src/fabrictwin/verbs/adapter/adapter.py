"""One adapter and its port: names, addresses, keys, queue pairs.

GIDs follow the drivers: on InfiniBand index 0 is the subnet prefix with the port's GUID; on Ethernet indices 0
and 1 are the link-local address made of the MAC, as RoCE v1 and v2, and 2 and 3 the IPv4 address that the twin
gives the port, mapped into IPv6, as v1 and v2. A MAC is the GUID without its middle two bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.tables import adapter_ipv4
from fabrictwin.verbs.adapter.gid import IB_GID, ROCE_V1, ROCE_V2, Gid
from fabrictwin.verbs.adapter.memory_regions import Memory
from fabrictwin.verbs.adapter.message_layer import MessageLayer
from fabrictwin.verbs.adapter.receive_queues import SharedReceiveQueue

SUBNET_PREFIX = bytes.fromhex("fe80000000000000")
DEFAULT_PKEY = 0xFFFF
FULL_MEMBER = 0x8000
PKEYS = 128  # entries of the table
GIDS_INFINIBAND, GIDS_ETHERNET = 8, 256


class PartitionTable(list[int]):
    """P_Keys of a port by index. Says so where one changes."""

    def __init__(self, keys: list[int], on_change: Callable[[], None]) -> None:
        super().__init__(keys)
        self._on_change = on_change

    def __setitem__(self, index: Any, key: Any) -> None:
        super().__setitem__(index, key)
        self._on_change()


class Adapter:
    """One adapter of the fabric, one port."""

    def __init__(self, world: MessageLayer, index: int) -> None:
        fabric = world.fabric
        self.world = world
        self.index = index
        self.node = int(fabric.nic_node[index])
        self.host = int(fabric.node_host[self.node])
        self.host_name = fabric.host_names[self.host]
        self.name = fabric.node_name(self.node).removeprefix(f"{self.host_name}/")
        self.type_name = fabric.type_names[int(fabric.node_type[self.node])]
        self.port = int(fabric.nic_port[index])
        self.plane = int(fabric.node_plane[self.node])
        self.guid = int(fabric.node_guid[self.node])
        self.memory = Memory(world.note_change)
        self.queue_pairs: dict[int, Any] = {}  # of QueuePair, which stands above this file
        self.shared_receives: dict[int, SharedReceiveQueue] = {}
        self.pkeys = PartitionTable([DEFAULT_PKEY] + [0] * (PKEYS - 1), world.note_change)
        self.pkey_violations = 0
        self.qkey_violations = 0
        self.roce_mode = ROCE_V2  # what the connection manager takes when nobody says (cma_roce_mode)
        self._numbers = 0x40

    def new_number(self) -> int:
        """A number for a queue pair or a shared receive queue: 24 bits, not used twice."""
        self._numbers += 1
        return self._numbers & 0xFFFFFF

    @property
    def ethernet(self) -> bool:
        return self.world.fabric.technology == "ethernet"

    @property
    def cabled(self) -> bool:
        return self.port != NONE and int(self.world.fabric.port_peer[self.port]) != NONE

    @property
    def rate_bps(self) -> int:
        """Data rate of the port now; 0 where it is down."""
        if not self.cabled:
            return 0
        twin = self.world.twin
        return int(twin.link_rate_bps.get(self.port, int(self.world.fabric.port_rate_bps[self.port])))

    @property
    def active(self) -> bool:
        return self.rate_bps > 0

    @property
    def lid(self) -> int:
        return 0 if self.ethernet else int(self.world.routes.lid[self.node])

    @property
    def mtu_bytes(self) -> int:
        """The largest path MTU: the fabric's, in one of the five sizes that there are."""
        sizes = [size for size in (256, 512, 1024, 2048, 4096) if size <= self.world.fabric.mtu_bytes]
        return sizes[-1] if sizes else 256

    @cached_property
    def mac(self) -> bytes:
        raw = self.guid.to_bytes(8, "big")
        return raw[:3] + raw[5:]

    @cached_property
    def ipv4(self) -> bytes:
        address = adapter_ipv4(np.array([self.index], np.int32))
        return int(address[0]).to_bytes(4, "big")

    @cached_property
    def gids(self) -> tuple[Gid, ...]:
        """The entries in use, from index 0."""
        if not self.ethernet:
            return (Gid(SUBNET_PREFIX + self.guid.to_bytes(8, "big"), IB_GID),)
        mac = self.mac
        local = SUBNET_PREFIX + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
        mapped = bytes(10) + b"\xff\xff" + self.ipv4
        return tuple(Gid(raw, kind) for raw in (local, mapped) for kind in (ROCE_V1, ROCE_V2))

    @property
    def gid_table_length(self) -> int:
        return GIDS_ETHERNET if self.ethernet else GIDS_INFINIBAND

    def gid_index(self, kind: int) -> int:
        """The index that a connection by IP address takes: the IPv4 entry of that kind (InfiniBand: 0)."""
        if not self.ethernet:
            return 0
        return next(i for i, gid in enumerate(self.gids) if gid.kind == kind and not gid.raw.startswith(b"\xfe"))
