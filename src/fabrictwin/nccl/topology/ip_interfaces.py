"""The IP interfaces of a host, and which of them NCCL takes.

A host of the twin has `eth0`, its management network, and one interface for every adapter with a cable: `ib0` and
on for InfiniBand (IP over InfiniBand), `eth1` and on for Ethernet, in the adapters' order. These names and their
addresses (10.0.0.0/16 for management, 10.1.0.0/16 and on by adapter) are the twin's own; of NCCL is how it picks:
NCCL_SOCKET_IFNAME or nothing; else `ib*`, else all but docker, lo and virbr (`ncclFindInterfaces`). With
NCCL_SOCKET_FAMILY=AF_INET6 it takes their IPv6 addresses: every interface has a link-local one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE, Fabric, LinkKind
from fabrictwin.nccl.constants import MOST_INTERFACES
from fabrictwin.nccl.settings.settings import Settings

MANAGEMENT = "eth0"


@record
class Interface:
    name: str
    address: str
    adapter: int = NONE  # index into fabric.nic_node

    @property
    def link_local(self) -> str:
        """Its IPv6 address, made of the other's bytes, with its scope."""
        a, b, c, d = (int(part) for part in self.address.split("."))
        return f"fe80::{a:x}{b:02x}:{c:x}{d:02x}%{self.name}"

    def __str__(self) -> str:
        return f"{self.name}:{self.address}<0>"


def interfaces(fabric: Fabric, host: int) -> tuple[Interface, ...]:
    """Those of a host that are up, management first."""
    tail = f"{(host + 1) // 256}.{(host + 1) % 256}"
    found = [Interface(MANAGEMENT, f"10.0.{tail}")]
    mine = np.flatnonzero((fabric.node_host[fabric.nic_node] == host) & (fabric.nic_port != NONE)).tolist()
    for k, adapter in enumerate(mine):
        infiniband = fabric.port_kind[fabric.nic_port[adapter]] == LinkKind.INFINIBAND
        name = f"ib{k}" if infiniband else f"eth{k + 1}"
        found.append(Interface(name, f"10.{(k % 250) + 1}.{tail}", adapter))
    return tuple(found)


def chosen(
    settings: Settings, there: tuple[Interface, ...], *, most: int = MOST_INTERFACES
) -> tuple[Interface, ...]:
    """The interfaces that NCCL takes of those there; nothing where NCCL_SOCKET_IFNAME excludes all."""
    wanted = settings.socket_ifname
    if settings.socket_family == "AF_INET6":
        there = tuple(replace(each, address=each.link_local) for each in there)
    if wanted is not None:
        return tuple(each for each in there if wanted.allows(each.name))[:most]
    over_ib = tuple(each for each in there if each.name.startswith("ib"))
    return (over_ib or there)[:most]
