"""Costs of memory for an adapter beyond the links that lead to it, for single messages.

A transaction over PCIe ends in a root port, and from there goes to memory; a read comes back by the same port.
Half of a processor's latency from port to port is a root port's (Zambre et al., Breaking Band, ICPP 2019: 137.49
ns between an adapter and the root port, 240.96 ns from there to memory). What memory of a GPU takes is not
published; it is reckoned as that of its host's processor.

Leaves out: caches that are hit or missed, translation by an IOMMU.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from fabrictwin import catalog
from fabrictwin.fabric.fabric import Fabric, NodeKind


@cache
def _ends(chip: str) -> tuple[int, int]:
    """(a root port's time, the time from it to memory) of a processor, in picoseconds."""
    found = catalog.chip(chip)
    return found.latency.value // 2, 0 if found.memory_latency is None else found.memory_latency.value


def _processor(fabric: Fabric, adapter: int) -> str:
    """Return the type of processor in an adapter's host; empty where no host is around it."""
    host = int(fabric.node_host[fabric.nic_node[adapter]])
    nodes = np.arange(fabric.host_node_start[host], fabric.host_node_start[host + 1])
    processors = nodes[fabric.node_kind[nodes] == NodeKind.CPU]
    return fabric.type_names[int(fabric.node_type[processors[0]])] if len(processors) else ""


def read_ps(fabric: Fabric, adapter: int) -> int:
    """Time in ps from a read's request at the end of its path to the data's start back."""
    chip = _processor(fabric, adapter)
    if not chip:
        return 0
    port, memory = _ends(chip)
    return 2 * port + memory


def write_ps(fabric: Fabric, adapter: int) -> int:
    """Time in ps from a write's arrival at the end of its path until it is in memory."""
    chip = _processor(fabric, adapter)
    return sum(_ends(chip)) if chip else 0


def late_ps(fabric: Fabric, adapter: int) -> int:
    """Time in ps of a write beyond the latency that the fabric's graph has for its last node, a processor."""
    chip = _processor(fabric, adapter)
    return max(write_ps(fabric, adapter) - catalog.chip(chip).latency.value, 0) if chip else 0
