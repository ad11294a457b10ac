"""The blueprint: a cluster spelled out, every host, switch and cable by itself.

Generators and importers yield one; `fabric.compile` turns it into arrays. Cables are columns, because a large
fabric has a hundred thousand of them.

A cable's end is a *jack*: `(node, port)`. Nodes are numbered switches first, in order, then adapters (a host's
NICs in the order of its catalog entry), then aggregation nodes. Port numbers are the hardware's: from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Literal

import numpy as np
import numpy.typing as npt

from fabrictwin.base.records import record

Technology = Literal["infiniband", "ethernet"]
Int = npt.NDArray[np.int64]


@record
class Identity:
    """Who a network node says that it is, as it was discovered."""

    vendor: int
    device: int
    system_guid: int  # the same for all nodes of one card or chassis
    port_guid: int  # of the port that is plugged in; a switch's is that of port 0
    description: str
    node_guid: int = 0  # of the card that the port is on; 0: the node's own
    port: int = 1  # the port's number on its card
    ports: int = 1  # how many ports the card has
    lmc: int = 0
    enhanced_port0: bool = True  # of a switch
    router: bool = False  # of what stands among aggregation nodes
    place: int = -1  # among the nodes of the file, in its order; -1 where there is none
    origin: bool = False  # whether the fabric was discovered from here
    links: tuple[tuple[int, int, str], ...] = ()  # (port, width, speed) where the rate does not tell


@record
class HostSite:
    """One host: `type` names a catalog host; a host that is only adapters (management, storage) has type ''."""

    name: str
    type: str
    nics: tuple[str, ...]  # device names (mlx5_0, ...) in the catalog's order, or as discovered where type is ''
    guids: tuple[int, ...] = ()  # one a NIC; empty where the compiler may invent them
    lids: tuple[int, ...] = ()  # as discovered; empty where none are known


@record
class SwitchSite:
    """One switch. `tier` counts from 1 at the leaves; `pod` groups switches for views; NONE (-1) where unknown."""

    name: str
    type: str  # catalog switch; '' where the discovered model is not in the catalog
    ports: int
    tier: int = -1
    pod: int = -1
    guid: int = 0
    lid: int = 0


@record
class AggregationSite:
    """A SHARP aggregation node: an endpoint inside a switch, told apart from hosts."""

    name: str
    guid: int
    lid: int = 0


@record(eq=False)
class Cables:
    """Cables as columns, all of shape [cables]. Each is full duplex. Equal where all columns are."""

    a_node: Int
    a_port: Int
    b_node: Int
    b_port: Int
    rate_bps: Int  # data rate of each direction, after line code
    length_mm: Int

    def __len__(self) -> int:
        return len(self.a_node)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cables):
            return NotImplemented
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]


@record
class Blueprint:
    """A cluster spelled out. `notes` says what an importer could not place, one line each."""

    technology: Technology
    hosts: tuple[HostSite, ...]
    switches: tuple[SwitchSite, ...]
    cables: Cables
    aggregations: tuple[AggregationSite, ...] = ()
    mtu_bytes: int = 4096
    notes: tuple[str, ...] = field(default=())
    identities: Mapping[int, Identity] = field(default_factory=dict)  # by node GUID; what is not there is made up

    @property
    def adapters(self) -> list[tuple[int, int]]:
        """(host index, NIC index) of every adapter, in node order."""
        return [(h, k) for h, host in enumerate(self.hosts) for k in range(len(host.nics))]

    def node_name(self, node: int) -> str:
        """The name a person knows a node by: `leaf-3`, `host-0/mlx5_1`."""
        if node < len(self.switches):
            return self.switches[node].name
        node -= len(self.switches)
        for host in self.hosts:
            if node < len(host.nics):
                return f"{host.name}/{host.nics[node]}"
            node -= len(host.nics)
        return self.aggregations[node].name
