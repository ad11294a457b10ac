"""The conditions of a communicator's hosts: the network, the adapters, GPUDirect RDMA.

Detection has found most of it (`nccl.topology.net_devices`). Causes may be added to what the cluster's faults
say: without RDMA devices in a container, or where memory cannot be locked, sockets carry the data; without the
peer memory module, adapters do not reach GPU memory and bytes are staged.
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from functools import cached_property

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.topology.net_devices import SOCKET

NO_PEER_MEMORY = "no-gpudirect-module"
LOCKED_MEMORY = "locked-memory"
NO_DEVICES = "no-rdma-devices"


class Network(IntEnum):
    IB = 0
    SOCKET = 1


@record
class Cause:
    """One thing that is wrong on some hosts; all where `hosts` is empty."""

    kind: str
    hosts: frozenset[str] = frozenset()


@record
class Conditions:
    """Conditions of one communicator's hosts."""

    communicator: Communicator
    causes: tuple[Cause, ...] = field(default=())

    @classmethod
    def of(cls, communicator: Communicator, causes: tuple[Cause, ...] = ()) -> Conditions:
        fabric: Fabric = communicator.twin.fabric
        known = tuple(
            Cause(cause.kind, frozenset((fabric.host_names[host],)))
            for host, found in communicator.network.causes.items()
            for cause in found
        )
        return cls(communicator, (*causes, *known))

    @property
    def fabric(self) -> Fabric:
        fabric: Fabric = self.communicator.twin.fabric
        return fabric

    def has(self, kind: str, host: int) -> bool:
        """Return true if that is wrong on a host of the fabric."""
        name = self.fabric.host_names[host]
        return any(c.kind == kind and (not c.hosts or name in c.hosts) for c in self.causes)

    def gpudirect(self, rank: int) -> bool:
        """Return true if adapters of a rank's host can reach GPU memory at all."""
        node = self.communicator.placement.rank_node[rank]
        return not self.has(NO_PEER_MEMORY, int(self.fabric.node_host[node]))

    @cached_property
    def network(self) -> Network:
        """The network that all ranks end up with."""
        hosts = self.communicator.placement.host_of_node.tolist()
        broken = any(self.has(kind, h) for kind in (NO_DEVICES, LOCKED_MEMORY) for h in hosts)
        return Network.SOCKET if broken or self.communicator.network.name == SOCKET else Network.IB

    @cached_property
    def _taken(self) -> dict[int, tuple[int, ...]]:
        return {}

    @cached_property
    def _number(self) -> dict[int, int]:
        """The communicator's number of each host of the fabric; of a host of several, the first."""
        hosts = self.communicator.placement.host_of_node.tolist()
        return {host: node for node, host in reversed([*enumerate(hosts)])}

    @cached_property
    def _first_adapter(self) -> I64:
        """[hosts] the first adapter of each host of the fabric."""
        first: I64 = np.searchsorted(self.fabric.nic_node, self.fabric.host_node_start)
        return first

    def adapters(self, host: int) -> tuple[int, ...]:
        """The adapters of a host that connections may use; sockets use the interfaces of all that have a cable."""
        if host not in self._taken:
            fabric, communicator = self.fabric, self.communicator
            node = self._number[host]
            first = int(self._first_adapter[host])
            view = communicator.hosts.kinds[int(communicator.hosts.kind_of_node[node])]
            mine = [first + view.system.devices[net].index for net in view.table.nets]
            self._taken[host] = tuple(n for n in mine if fabric.nic_port[n] != NONE)
        return self._taken[host]
