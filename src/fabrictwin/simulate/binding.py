"""Communications bound to a fabric: which resources each channel uses, and what it takes beside its bytes.

Resources are the fabric's ports (bytes), the adapters' message engines (messages), then for every node its memory
(bytes), its cores and the thread that serves a rank's sockets (time). A channel moves all of its edges at one
rate; per byte of its busiest edge it uses `coefficient` of each resource that it crosses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from fabrictwin.fabric.fabric import I32, I64, NONE, Fabric
from fabrictwin.fabric.paths import EndToEnd, PathFinder
from fabrictwin.program import patterns
from fabrictwin.program.program import Channels, Communication, Connections
from fabrictwin.routing.tables import udp_source_port
from fabrictwin.simulate.critical import (
    Beyond,
    Critical,
    at_once,
    edge_rates,
    loaded_rates,
    packet_tail_ps,
    pieces,
)
from fabrictwin.simulate.turns import Alone, loops, meeting
from fabrictwin.simulate.ways import Travellers, Uses, memory_and_cores, plain, travel, travellers

F64 = npt.NDArray[np.float64]

PS_PER_S = 10**12
_FIRST_QPN = 0x48  # as adapters hand them out, after the reserved ones


@dataclass(frozen=True)
class Bound:
    """C channels of several communications, one after the other."""

    communication: I32  # [C]
    size_bytes: I64  # [C] of the busiest edge
    fill_ps: I64  # [C] what follows the drain: see `critical.Beyond`
    serial_ps: I64  # [C]
    piece_bytes: I64  # [C]
    path_ps: I64  # [C]
    limit: F64  # [C] bytes a picosecond that queue pairs let through; inf inside a host
    use_start: I64  # [C + 1]
    use_resource: I32
    use_coefficient: F64
    port_start: I64  # [C + 1]
    port: I32  # ports that carry the channel's bytes
    port_bytes: I64  # per execution, exact
    step_ps: I64  # [C] mean latency of an edge, software's cost of a step included
    critical: tuple[Critical, ...]  # of each communication


def capacities(fabric: Fabric) -> F64:
    """[ports + adapters + 3 nodes] bytes, messages, memory's bytes, cores and threads, a picosecond."""
    ports = fabric.port_payload_bps / (8 * PS_PER_S)
    with np.errstate(divide="ignore"):
        messages = np.where(fabric.nic_message_ps > 0, 1.0 / np.maximum(fabric.nic_message_ps, 1), np.inf)
    return np.concatenate([ports, messages, *memory_and_cores(fabric)])


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


def message_bytes(channels: Channels) -> I64:
    """[C] bytes of one message on the wire: a chunk, or a ring's shard where that is smaller."""
    ranks = np.maximum(np.diff(channels.rank_start), 1)
    ring = patterns.among(channels.pattern, patterns.RINGS)
    step = np.where(ring, -(-channels.payload_bytes // ranks), channels.payload_bytes)
    message: I64 = np.maximum(np.minimum(step, patterns.chunk_sizes(channels)), 1)
    return message


def _is_plain(communication: Communication) -> bool:
    """Whether every edge takes the shortest way between two ranks."""
    return communication.connections is None and communication.channels.seat is None


def _find(
    communications: Sequence[Communication],
    edges: Sequence[patterns.Edges],
    rank_node: I32,
    fabric: Fabric,
    finder: PathFinder,
    pairs: QueuePairs,
) -> tuple[EndToEnd, Uses, Connections]:
    """The ways of all edges of all communications, one after the other, and how they are connected."""
    entropy = pairs.entropy if fabric.technology == "ethernet" else None
    simple = [_is_plain(c) for c in communications]
    sizes = np.array([len(e) for e in edges], np.int64)
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def rows(which: bool) -> I64:
        of = [np.arange(first[i], first[i + 1]) for i in range(len(edges)) if simple[i] == which]
        return np.concatenate(of).astype(np.int64) if of else np.zeros(0, np.int64)

    source = rank_node[_join([e.source for e, s in zip(edges, simple, strict=True) if s], np.int64)]
    target = rank_node[_join([e.target for e, s in zip(edges, simple, strict=True) if s], np.int64)]
    shortest = finder.find(source, target, entropy)
    if all(simple):
        how = plain(int(first[-1]))
        none = np.zeros(0, np.int64)
        return shortest, Uses(none, none.astype(np.int32), np.zeros(0)), how
    parts = [
        travellers(e, c.connections, rank_node)
        for e, c, s in zip(edges, communications, simple, strict=True)
        if not s
    ]
    names = [f.name for f in fields(Connections)]
    special = Travellers(
        source=np.concatenate([p.source for p in parts]),
        target=np.concatenate([p.target for p in parts]),
        source_seat=np.concatenate([p.source_seat for p in parts]),
        target_seat=np.concatenate([p.target_seat for p in parts]),
        how=Connections(**{name: np.concatenate([getattr(p.how, name) for p in parts]) for name in names}),
    )
    guided, uses = travel(special, fabric, finder, entropy)
    plain_rows, special_rows = rows(True), rows(False)
    total = int(first[-1])
    edge = np.concatenate([plain_rows[shortest.edge], special_rows[guided.edge]])
    order = np.argsort(edge, kind="stable")

    def scatter(name: str) -> np.ndarray:
        result = np.empty(total, getattr(shortest, name).dtype)
        result[plain_rows], result[special_rows] = getattr(shortest, name), getattr(guided, name)
        return result

    def beside(name: str) -> np.ndarray:
        return np.concatenate([getattr(shortest, name), getattr(guided, name)])[order]

    found = EndToEnd(
        edge[order],
        beside("port"),
        beside("share"),
        beside("before"),
        scatter("latency_ps"),
        scatter("source_nic"),
        scatter("destination_nic"),
    )
    default = plain(total)
    for name in names:
        getattr(default, name)[special_rows] = getattr(special.how, name)
    return found, Uses(special_rows[uses.edge], uses.resource, uses.amount), default


def _join(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts).astype(kind) if len(parts) else np.zeros(0, kind)


def bind(
    communications: Sequence[Communication],
    rank_node: I32,
    fabric: Fabric,
    finder: PathFinder,
    queue_pairs: QueuePairs | None = None,
    *,
    edges: Sequence[patterns.Edges] | None = None,
    counted: bool = True,
) -> tuple[Bound, EndToEnd]:
    """Every channel of every communication over the fabric. Raises ConfigError where there is no path.

    Edges that carry nothing use nothing, though they have their latency. `edges` are the communications' where the
    caller has them; what ports count is left out unless `counted`.
    """
    if edges is None:
        edges = [patterns.edges(c.channels) for c in communications]
    sizes = [len(c.channels) for c in communications]
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    channels = int(first[-1])
    channel = _join([e.channel + first[i] for i, e in enumerate(edges)], np.int64)
    size = _join([e.size_bytes for e in edges], np.int64)
    pairs = queue_pairs or QueuePairs(len(fabric.nic_node))
    found, beside, how = _find(communications, edges, rank_node, fabric, finder, pairs)

    flow_bytes = np.zeros(channels, np.int64)
    np.maximum.at(flow_bytes, channel, size)
    ratio = size / np.maximum(flow_bytes[channel], 1)
    # bytes on the wire for a byte of data, and what of the wire's rate they get
    of = np.repeat(np.arange(len(sizes)), sizes)
    on_wire = np.array([c.wire_bytes / c.data_bytes for c in communications])[of][channel] if len(size) else ratio
    drag = np.array([1.0 / c.rate_share for c in communications])[of][channel] if len(size) else ratio

    alone = edge_rates(found, fabric, len(size))
    weight = on_wire * drag if len(size) else np.ones(0)
    piece = _join([pieces(c.channels)[e.channel] for c, e in zip(communications, edges, strict=True)], np.int64)
    wired_piece = np.rint(piece * (on_wire if len(size) else 1)).astype(np.int64)
    edge_ps = found.latency_ps + how.cost_ps + packet_tail_ps(found, fabric, wired_piece, alone)
    together = [at_once(c.channels, e) + 2 * f for c, e, f in zip(communications, edges, first[:-1], strict=True)]
    edge_rate = loaded_rates(found, fabric, _join(together, np.int64)) / weight
    beyond: list[Beyond] = []
    criticals: list[Critical] = []
    message = np.ones(channels, np.int64)
    edge_at = 0
    for i, communication in enumerate(communications):
        mine = slice(int(first[i]), int(first[i + 1]))
        rows = slice(edge_at, edge_at + len(edges[i]))
        if communication.connections is None:
            edge_ps[rows] += communication.step_cost_ps
        once: I64 | int = communication.base_ps
        if communication.chunk_cost_ps:
            chunks = -(-flow_bytes[mine] // patterns.chunk_sizes(communication.channels))
            once = once + chunks * communication.chunk_cost_ps
        on_way = Alone.of(found, rows, edge_ps[rows], alone[rows], weight[rows])
        critical = Critical.of(
            communication.channels,
            edges[i],
            edge_ps[rows],
            edge_rate[rows],
            meeting(communication.channels, edges[i], on_way, fabric),
            loops(communication.channels, edges[i], on_way, fabric),
        )
        criticals.append(critical)
        beyond.append(critical.beyond(communication.channels).after(once))
        message[mine] = message_bytes(communication.channels)
        edge_at = rows.stop
    total = np.bincount(channel, weights=edge_ps, minlength=channels)
    step_ps = np.rint(total / np.maximum(np.bincount(channel, minlength=channels), 1)).astype(np.int64)

    # uses: ports by their share of each edge, and the message engine at either end of a network edge
    leaves = np.flatnonzero(found.source_nic != NONE)
    enters = np.flatnonzero(found.destination_nic != NONE)
    use_channel = np.concatenate([channel[found.edge], channel[leaves], channel[enters], channel[beside.edge]])
    resource = np.concatenate(
        [
            found.port,
            fabric.ports + found.source_nic[leaves],
            fabric.ports + found.destination_nic[enters],
            beside.resource,
        ]
    )
    per_message = ratio / message[channel] if len(size) else ratio
    coefficient = np.concatenate(
        [
            (ratio * on_wire * drag)[found.edge] * found.share,
            per_message[leaves],
            per_message[enters],
            (ratio * on_wire)[beside.edge] * beside.amount,
        ]
    )
    used = coefficient > 0
    use_start, use_resource, use_coefficient = _sum_by(
        use_channel[used], resource[used], coefficient[used], channels
    )

    # a queue pair's messages are a period apart, so n of them take n - 1 periods
    limit = np.full(channels, np.inf)
    far = leaves
    if len(far):
        # each of several has every message, or in turns its share of them
        periods = -(-size[far] // (message[channel[far]] * np.where(how.turns, how.paths, 1)[far])) - 1
        with np.errstate(divide="ignore"):
            least_ps = periods * fabric.nic_qp_message_ps[found.source_nic[far]]
            queue_pair = np.where(least_ps > 0, flow_bytes[channel[far]] / least_ps, np.inf)
        np.minimum.at(limit, channel[far], queue_pair)
    bounded = np.flatnonzero(np.isfinite(how.limit) & (size > 0))
    np.minimum.at(limit, channel[bounded], how.limit[bounded] / (ratio * on_wire)[bounded])

    port_start, port, port_bytes = np.zeros(channels + 1, np.int64), found.port[:0], size[:0]
    if counted:
        wired = np.rint(size * on_wire).astype(np.int64) if len(size) else size
        upper = np.rint((found.before + found.share) * wired[found.edge]).astype(np.int64)
        carried = upper - np.rint(found.before * wired[found.edge]).astype(np.int64)
        port_start, port, port_bytes = _sum_by(channel[found.edge], found.port, carried, channels)
    bound = Bound(
        communication=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        size_bytes=flow_bytes,
        fill_ps=_join([b.fill_ps for b in beyond], np.int64),
        serial_ps=_join([b.serial_ps for b in beyond], np.int64),
        piece_bytes=_join([b.piece_bytes for b in beyond], np.int64),
        path_ps=_join([b.path_ps for b in beyond], np.int64),
        limit=limit,
        use_start=use_start,
        use_resource=use_resource,
        use_coefficient=use_coefficient,
        port_start=port_start,
        port=port,
        port_bytes=port_bytes,
        step_ps=step_ps,
        critical=tuple(criticals),
    )
    return bound, found


def _sum_by(row: I64, column: I32, value: np.ndarray, rows: int) -> tuple[I64, I32, np.ndarray]:
    """A CSR over `rows` of the sums of `value` by (row, column), columns ascending."""
    if not len(row):
        return np.zeros(rows + 1, np.int64), np.zeros(0, np.int32), value
    order = np.argsort(row.astype(np.int64) * (int(column.max()) + 1) + column, kind="stable")
    row, column, value = row[order], column[order], value[order]
    new = np.concatenate([[True], (row[1:] != row[:-1]) | (column[1:] != column[:-1])])
    at = np.flatnonzero(new)
    start = np.searchsorted(row[at], np.arange(rows + 1)).astype(np.int64)
    return start, column[at].astype(np.int32), np.add.reduceat(value, at)
