"""What the hosts allow NCCL: which network it finds there, which adapters, and whether GPUDirect RDMA works.

A cause does what it does in reality. Without RDMA devices in a container, with `NCCL_IB_DISABLE` or a filter that
matches nothing, there is no NET/IB: sockets carry the job. A RoCE GID of version 1 or a link-local one gets
packets that no router passes on, so that NCCL cannot connect over NET/IB beyond the subnet either. Without the
peer memory module, adapters do not reach GPU memory and bytes are staged. ACS sends PCIe peers through the
processor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

from fabrictwin.fabric.fabric import I32, NONE, Fabric
from fabrictwin.nccl.communicator import Communicator

SRD_PATHS = (
    16  # a queue pair's packets spread over so many paths at a time, as modelled (the protocol has up to 64)
)
VERBS_NAMES = "NET/IB"


class Network(IntEnum):
    IB = 0
    SOCKET = 1


@dataclass(frozen=True)
class Cause:
    """One thing that is wrong on some hosts; all where `hosts` is empty."""

    kind: str
    hosts: frozenset[str] = frozenset()


NO_PEER_MEMORY = "no-gpudirect-module"
LOCKED_MEMORY = "locked-memory"
NO_DEVICES = "no-rdma-devices"
BAD_GID = "wrong-gid"
CAUSES = (NO_PEER_MEMORY, LOCKED_MEMORY, NO_DEVICES, BAD_GID)


@dataclass(frozen=True)
class Conditions:
    """Of one communicator's hosts."""

    fabric: Fabric
    rank_node: I32
    settings: Any
    causes: tuple[Cause, ...] = field(default=())

    @classmethod
    def of(cls, communicator: Communicator, causes: tuple[Cause, ...] = ()) -> Conditions:
        return cls(communicator.twin.fabric, communicator.rank_node, communicator.settings, causes)

    def has(self, kind: str, host: int) -> bool:
        """Whether something is wrong on a host."""
        name = self.fabric.host_names[host]
        return any(c.kind == kind and (not c.hosts or name in c.hosts) for c in self.causes)

    def gpudirect(self, rank: int) -> bool:
        """Whether adapters of a rank's host can reach GPU memory at all."""
        return not self.has(NO_PEER_MEMORY, int(self.fabric.node_host[self.rank_node[rank]]))

    @cached_property
    def _usable(self) -> dict[int, tuple[int, ...]]:
        """Adapters of each host with a cable that NCCL_IB_HCA lets through."""
        fabric, wanted = self.fabric, self.settings.ib_hca
        host = fabric.node_host[fabric.nic_node]
        found: dict[int, tuple[int, ...]] = {}
        for h in range(fabric.hosts):
            mine = np.flatnonzero((host == h) & (fabric.nic_port != NONE)).tolist()
            if wanted is not None:
                mine = [n for n in mine if wanted.allows(fabric.node_name(int(fabric.nic_node[n])).split("/")[-1])]
            found[h] = tuple(mine)
        return found

    @cached_property
    def network(self) -> Network:
        """What NCCL ends up with: every rank must find it, or all use sockets."""
        settings = self.settings
        net = (settings.net or "").lower()
        if settings.ib_disable or net == "socket":
            return Network.SOCKET
        hosts = range(self.fabric.hosts)
        broken = (NO_DEVICES, LOCKED_MEMORY, BAD_GID)
        if any(self.has(kind, h) for kind in broken for h in hosts):
            return Network.SOCKET
        return Network.IB if all(self._usable[h] for h in hosts) else Network.SOCKET

    def adapters(self, host: int) -> tuple[int, ...]:
        """The adapters of a host that connections may use; sockets use the interfaces of all that have a cable."""
        if self.network == Network.IB:
            return self._usable[host]
        fabric = self.fabric
        mine = np.flatnonzero((fabric.node_host[fabric.nic_node] == host) & (fabric.nic_port != NONE))
        return tuple(mine.tolist())

    @property
    def socket_threads(self) -> int:
        """Threads of a connection; 0 is the rank's one proxy thread."""
        return max(int(self.settings.socket_nthreads or 0), 0)

    def paths(self, settings: Any) -> int:
        """Over how many paths a connection spreads its bytes."""
        if self.network == Network.SOCKET:
            return max(1, self.socket_threads * max(int(settings.nsocks_perthread or 1), 1))
        if any("efa" in name for name in self.fabric.type_names):
            return SRD_PATHS
        return int(settings.ib_qps_per_connection)
