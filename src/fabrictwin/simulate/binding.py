"""Communications bound to a fabric: which resources each channel uses, and what it takes beside its bytes.

Resources are the fabric's ports (bytes), then the adapters' message engines (messages). A channel moves all of
its edges at one rate; per byte of its busiest edge it uses `coefficient` of each resource that it crosses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fabrictwin.fabric.fabric import I32, I64, NONE, Fabric
from fabrictwin.fabric.paths import EndToEnd, PathFinder
from fabrictwin.program import patterns
from fabrictwin.program.program import Channels, Communication, Pattern
from fabrictwin.routing.tables import udp_source_port

F64 = npt.NDArray[np.float64]

PS_PER_S = 10**12
_FIRST_QPN = 0x48  # as adapters hand them out, after the reserved ones
_RINGS = (Pattern.RING_ALL_REDUCE, Pattern.RING_ALL_GATHER, Pattern.RING_REDUCE_SCATTER)


@dataclass(frozen=True)
class Bound:
    """C channels of several communications, one after the other."""

    communication: I32  # [C]
    size_bytes: I64  # [C] of the busiest edge
    fill_ps: I64  # [C]
    fill_bytes: I64  # [C]
    limit: F64  # [C] bytes a picosecond that queue pairs let through; inf inside a host
    use_start: I64  # [C + 1]
    use_resource: I32
    use_coefficient: F64
    port_start: I64  # [C + 1]
    port: I32  # ports that carry the channel's bytes
    port_bytes: I64  # per execution, exact
    step_ps: I64  # [C] mean latency of an edge, software's cost of a step included


def capacities(fabric: Fabric) -> F64:
    """[ports + adapters] bytes, or messages, a picosecond."""
    ports = fabric.port_payload_bps / (8 * PS_PER_S)
    with np.errstate(divide="ignore"):
        messages = np.where(fabric.nic_message_ps > 0, 1.0 / np.maximum(fabric.nic_message_ps, 1), np.inf)
    return np.concatenate([ports, messages])


def _serial(of: I32) -> I64:
    """The how-manieth occurrence of its value each entry is, from 0."""
    order = np.argsort(of, kind="stable")
    first = np.searchsorted(of[order], of[order])
    result = np.empty(len(of), np.int64)
    result[order] = np.arange(len(of)) - first
    return result


class QueuePairs:
    """Queue pair numbers as adapters hand them out: one after the other, for as long as a session lives."""

    def __init__(self, adapters: int) -> None:
        self._next = np.full(adapters, _FIRST_QPN, np.int64)

    def entropy(self, departing: I32, arriving: I32) -> npt.NDArray[np.uint32]:
        """UDP source ports of new connections between adapters."""
        adapters = np.concatenate([departing, arriving])
        qpn = (self._next[adapters] + _serial(adapters)).astype(np.uint32)
        np.add.at(self._next, adapters, 1)
        return udp_source_port(qpn[: len(departing)], qpn[len(departing) :])


def _critical_latency(channels: Channels, edges: patterns.Edges, edge_ps: I64, hops: I32) -> tuple[I64, I64]:
    """(fill_ps, step_ps) of each channel: hops along the critical path times what they take."""
    count = np.bincount(edges.channel, minlength=len(channels))
    total = np.bincount(edges.channel, weights=edge_ps, minlength=len(channels))
    mean = total / np.maximum(count, 1)
    fill = np.rint(hops * mean).astype(np.int64)
    trees = np.flatnonzero(channels.pattern == Pattern.TREE_ALL_REDUCE)
    for c in trees:  # a tree's critical path is its slowest leaf's way up, and down again
        ranks = channels.ranks[channels.rank_start[c] : channels.rank_start[c + 1]]
        parent = channels.parent[channels.rank_start[c] : channels.rank_start[c + 1]]
        mine = edges.channel == c
        place = {int(rank): i for i, rank in enumerate(ranks)}
        up = np.zeros(len(ranks), np.int64)
        down = np.zeros(len(ranks), np.int64)
        for a, b, ps in zip(edges.source[mine], edges.target[mine], edge_ps[mine], strict=True):
            i, j = place[int(a)], place[int(b)]
            if parent[i] == j:
                up[i] = ps
            else:
                down[j] = ps
        longest = 0
        for i in range(len(ranks)):
            at, way = i, 0
            while parent[at] != NONE:
                way += int(up[at] + down[at])
                at = int(parent[at])
            longest = max(longest, way)
        fill[c] = longest
    slow = np.zeros(len(channels))
    np.maximum.at(slow, edges.channel, edge_ps)
    single = np.isin(channels.pattern, (Pattern.MESSAGE, Pattern.SHIFT))
    return np.where(single, slow * hops, fill).astype(np.int64), np.rint(mean).astype(np.int64)


def message_bytes(channels: Channels) -> I64:
    """[C] bytes of one message on the wire: a chunk, or a ring's shard where that is smaller."""
    ranks = np.maximum(np.diff(channels.rank_start), 1)
    ring = np.isin(channels.pattern, _RINGS)
    step = np.where(ring, -(-channels.payload_bytes // ranks), channels.payload_bytes)
    message: I64 = np.maximum(np.minimum(step, patterns.chunk_sizes(channels)), 1)
    return message


def bind(
    communications: Sequence[Communication],
    rank_node: I32,
    fabric: Fabric,
    finder: PathFinder,
    queue_pairs: QueuePairs | None = None,
) -> tuple[Bound, EndToEnd]:
    """Every channel of every communication over the fabric. Raises ConfigError where there is no path.

    Edges that carry nothing use nothing, though they have their latency.
    """
    edges = [patterns.edges(c.channels) for c in communications]
    sizes = [len(c.channels) for c in communications]
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    channels = int(first[-1])

    def join(parts: list[np.ndarray], kind: type) -> np.ndarray:
        return np.concatenate(parts).astype(kind) if parts else np.zeros(0, kind)

    channel = join([e.channel + first[i] for i, e in enumerate(edges)], np.int64)
    source = rank_node[join([e.source for e in edges], np.int64)]
    target = rank_node[join([e.target for e in edges], np.int64)]
    size = join([e.size_bytes for e in edges], np.int64)
    hashed = fabric.technology == "ethernet"
    pairs = queue_pairs or QueuePairs(len(fabric.nic_node))
    found = finder.find(source, target, pairs.entropy if hashed else None)

    flow_bytes = np.zeros(channels, np.int64)
    np.maximum.at(flow_bytes, channel, size)
    ratio = size / np.maximum(flow_bytes[channel], 1)

    fill_ps, fill_bytes = np.zeros(channels, np.int64), np.zeros(channels, np.int64)
    step_ps, message = np.zeros(channels, np.int64), np.ones(channels, np.int64)
    edge_at = 0
    for i, communication in enumerate(communications):
        mine = slice(int(first[i]), int(first[i + 1]))
        hops, extra = patterns.fill(communication.channels)
        edge_ps = found.latency_ps[edge_at : edge_at + len(edges[i])] + communication.step_cost_ps
        fill_ps[mine], step_ps[mine] = _critical_latency(communication.channels, edges[i], edge_ps, hops)
        fill_bytes[mine] = extra
        message[mine] = message_bytes(communication.channels)
        edge_at += len(edges[i])

    # uses: ports by their share of each edge, and the message engine at either end of a network edge
    far = np.flatnonzero(found.source_nic != NONE)
    per_message = ratio[far] / message[channel[far]]
    use_channel = np.concatenate([channel[found.edge], channel[far], channel[far]])
    resource = np.concatenate(
        [found.port, fabric.ports + found.source_nic[far], fabric.ports + found.destination_nic[far]]
    )
    coefficient = np.concatenate([ratio[found.edge] * found.share, per_message, per_message])
    used = coefficient > 0
    use_start, use_resource, use_coefficient = _sum_by(
        use_channel[used], resource[used], coefficient[used], channels
    )

    # a queue pair's messages are a period apart, so n of them take n - 1 periods
    limit = np.full(channels, np.inf)
    if len(far):
        periods = -(-size[far] // message[channel[far]]) - 1
        with np.errstate(divide="ignore"):
            least_ps = periods * fabric.nic_qp_message_ps[found.source_nic[far]]
            queue_pair = np.where(least_ps > 0, flow_bytes[channel[far]] / least_ps, np.inf)
        np.minimum.at(limit, channel[far], queue_pair)

    upper = np.rint((found.before + found.share) * size[found.edge]).astype(np.int64)
    carried = upper - np.rint(found.before * size[found.edge]).astype(np.int64)
    port_start, port, port_bytes = _sum_by(channel[found.edge], found.port, carried, channels)
    bound = Bound(
        communication=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        size_bytes=flow_bytes,
        fill_ps=fill_ps,
        fill_bytes=fill_bytes,
        limit=limit,
        use_start=use_start,
        use_resource=use_resource,
        use_coefficient=use_coefficient,
        port_start=port_start,
        port=port,
        port_bytes=port_bytes,
        step_ps=step_ps,
    )
    return bound, found


def _sum_by(row: I64, column: I32, value: np.ndarray, rows: int) -> tuple[I64, I32, np.ndarray]:
    """A CSR over `rows` of the sums of `value` by (row, column), columns ascending."""
    order = np.lexsort((column, row))
    row, column, value = row[order], column[order], value[order]
    if not len(row):
        return np.zeros(rows + 1, np.int64), np.zeros(0, np.int32), value
    new = np.concatenate([[True], (row[1:] != row[:-1]) | (column[1:] != column[:-1])])
    at = np.flatnonzero(new)
    start = np.searchsorted(row[at], np.arange(rows + 1)).astype(np.int64)
    return start, column[at].astype(np.int32), np.add.reduceat(value, at)
