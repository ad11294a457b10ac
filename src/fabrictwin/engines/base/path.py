"""A path through the fabric, and the one that a message takes from memory to memory.

The path of a message leads from memory over both adapters into memory; its latencies are added up, for engines
without packets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base import host_memory
from fabrictwin.fabric.memory_paths import PathFinder, nearest_processor


class Path(NamedTuple):
    """Directed ports one after the other."""

    ports: tuple[int, ...]
    latency_ps: int  # of all of them, and of what lies between and at the ends
    rate_bps: int  # of the narrowest


def memory_path(finder: PathFinder, ends: tuple[int, int], memories: tuple[int | None, int | None]) -> Path:
    """Return the path between two adapters and the memories behind them. Raises ConfigError without one."""
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
        node = nearest_processor(fabric, nic) if memory is None else memory
        if node is None:
            continue  # adapters without a host around them
        ends = (node, nic) if out else (nic, node)
        _, ports, _, _, inside_ps = finder.inside(*(np.array([end], np.int32) for end in ends))
        latency += int(inside_ps[0]) * (2 if out else 1)  # a read's request goes there first
        taken += ports.tolist()
    if source != target:
        ports, _ = finder.routes.walk(np.array([source], np.int32), np.array([target], np.int32))
        latency += int((fabric.node_latency_ps[fabric.port_node[ports]] + fabric.port_latency_ps[ports]).sum())
        taken += ports.tolist()
    if not taken:
        raise ConfigError(
            f"{fabric.node_name(int(fabric.nic_node[source]))} has neither host nor cable to reach itself by"
        )
    return Path(tuple(taken), latency, int(fabric.port_payload_bps[taken].min()))
