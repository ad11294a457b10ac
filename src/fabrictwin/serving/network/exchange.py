"""Exchanges among GPUs over the twin's routes, as fluid: all messages begin at once, the fullest link ends last.

A pattern of messages loads links in proportion to their bytes. Its time is that of the link which takes longest to
carry its load, and the longest path's latency; of many alike messages that is when the last of them is through,
since those which share the fullest link share it evenly.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import F64, I32
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_US
from fabrictwin.fabric.memory_paths import PathFinder
from fabrictwin.twin.twin import Twin


@record
class Exchange:
    """A pattern of messages on its links.

    Attributes:
        us_per_byte: Of one message's bytes, if every message has as many; 0 where none crosses a link.
        latency_us: Of the longest path.
        busiest: The port that ends last.
        rate_gb_per_s: What one message moves at beside all others.
    """

    us_per_byte: float
    latency_us: float
    busiest: int

    @property
    def rate_gb_per_s(self) -> float:
        """Return the rate of one message, GB/s."""
        return 1e-3 / self.us_per_byte if self.us_per_byte else float("inf")

    def time_us(self, size_bytes: float) -> float:
        """Return when the last message is through, microseconds, if each has `size_bytes`."""
        return self.latency_us + self.us_per_byte * size_bytes


def exchange(twin: Twin, source: I32, target: I32, weight: F64 | None = None) -> Exchange:
    """Return the exchange in which GPU `source[i]` sends to `target[i]`, `weight[i]` times as much as others.

    Raises ConfigError where there is no path.
    """
    if not len(source):
        return Exchange(0.0, 0.0, -1)
    found = PathFinder(twin.fabric, twin.routes).find(source, target)
    weights = np.ones(len(source)) if weight is None else weight
    load = np.bincount(found.port, found.share * weights[found.edge], minlength=twin.fabric.ports)
    payload = twin.as_it_runs.port_payload_bps
    used = np.flatnonzero(load)
    times = load[used] * 8e6 / np.maximum(payload[used], 1)
    fullest = int(np.argmax(times))
    return Exchange(float(times[fullest]), float(found.latency_ps.max()) / PS_PER_US, int(used[fullest]))


def between_hosts(twin: Twin, nodes: I32) -> tuple[I32, I32]:
    """Return every ordered pair of GPUs that lie on different hosts."""
    first, second = (grid.ravel() for grid in np.meshgrid(nodes, nodes, indexing="ij"))
    apart = twin.fabric.node_host[first] != twin.fabric.node_host[second]
    return first[apart].astype(np.int32), second[apart].astype(np.int32)


def to_fellows(twin: Twin, nodes: I32) -> tuple[I32, I32]:
    """Return each GPU with those of the same number in every other host."""
    first, second = between_hosts(twin, nodes)
    number = np.full(twin.fabric.nodes, -1, np.int64)
    number[twin.fabric.gpu_node] = twin.fabric.gpu_local
    alike = number[first] == number[second]
    return first[alike], second[alike]
