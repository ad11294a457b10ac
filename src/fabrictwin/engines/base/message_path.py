"""The way of a message from memory to memory, for engines without packets: its latencies added up, its ports."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base import host_memory
from fabrictwin.fabric.fabric import Fabric, NodeKind
from fabrictwin.fabric.memory_paths import PathFinder


class Way(NamedTuple):
    """From memory over both adapters into memory: the sum of its latencies, and the directed ports it takes."""

    latency_ps: int
    rate_bps: int  # of the narrowest
    ports: tuple[int, ...]


def find_way(finder: PathFinder, ends: tuple[int, int], memories: tuple[int | None, int | None]) -> Way:
    """From memory over both adapters into memory. Raises ConfigError."""
    fabric = finder.fabric
    source, target = ends
    latency = int(fabric.nic_deliver_ps[target])
    name = fabric.type_names[int(fabric.node_type[fabric.nic_node[source]])]
    if name:  # an adapter of unknown type takes no time
        latency += catalog.nic(name).doorbell.value + catalog.nic(name).processing.value
    latency += host_memory.read_ps(fabric, source) + host_memory.write_ps(fabric, target)
    taken: list[int] = []
    legs = ((memories[0], source, True), (memories[1], target, False))
    for memory, adapter, out in legs:
        nic = int(fabric.nic_node[adapter])
        node = _processor(fabric, adapter) if memory is None else memory
        if node is None:
            continue  # adapters without a host around them
        ends = (node, nic) if out else (nic, node)
        _, ports, _, _, way_ps = finder.inside(*(np.array([end], np.int32) for end in ends))
        latency += int(way_ps[0]) * (2 if out else 1)  # a read's request goes there first
        taken += ports.tolist()
    if source != target:
        ports, _ = finder.routes.walk(np.array([source], np.int32), np.array([target], np.int32))
        latency += int((fabric.node_latency_ps[fabric.port_node[ports]] + fabric.port_latency_ps[ports]).sum())
        taken += ports.tolist()
    if not taken:
        raise ConfigError(
            f"{fabric.node_name(int(fabric.nic_node[source]))} has neither host nor cable to reach itself by"
        )
    return Way(latency, int(fabric.port_payload_bps[taken].min()), tuple(taken))


def _processor(fabric: Fabric, adapter: int) -> int | None:
    """The processor nearest to an adapter; None where no host is around it."""
    nic = int(fabric.nic_node[adapter])
    host = int(fabric.node_host[nic])
    first, end = int(fabric.host_node_start[host]), int(fabric.host_node_start[host + 1])
    paths = fabric.templates[fabric.host_template[host]].paths
    n = end - first
    nearest: tuple[int, int] | None = None
    for node in range(first, end):
        if fabric.node_kind[node] != NodeKind.CPU:
            continue
        pair = (node - first) * n + (nic - first)
        at = int(paths.pair_start[pair])
        if at < int(paths.pair_start[pair + 1]):
            hops = int(paths.hop_start[at + 1] - paths.hop_start[at])
            nearest = min(nearest or (hops, node), (hops, node))
    return None if nearest is None else nearest[1]
