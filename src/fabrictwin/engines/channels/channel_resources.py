"""Communications bound to a fabric: which resources each channel uses, and what it takes beside its bytes.

Resources are the fabric's ports (bytes), the adapters' message engines (messages), then for every node its memory
(bytes), its cores and the thread that serves a rank's sockets (time). A channel moves all of its edges at one
rate; per byte of its busiest edge it uses `coefficient` of each resource that it crosses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fabrictwin.base.arrays import F64, I32, I64, starts_of
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.channels.channel_contention import Alone, loops, meeting
from fabrictwin.engines.channels.column_cache import LastColumns
from fabrictwin.engines.channels.connection_paths import Uses, memory_and_cores
from fabrictwin.engines.channels.edge_paths import Found, OpenConnections, Paths, batches, join, paths_apart
from fabrictwin.engines.channels.pipeline_latency import (
    Beyond,
    CriticalPaths,
    at_once,
    edge_rates,
    loaded_rates,
    packet_tail_ps,
    pieces,
)
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.fabric.memory_paths import EndToEnd
from fabrictwin.program import patterns
from fabrictwin.program.program import Channels, Communication, Connections


@record
class PortBytes:
    """Ports that carry the bytes of C channels, one channel's after the other's."""

    start: I64  # [C + 1]
    port: I32
    size: I64  # bytes per execution, exact

    def __len__(self) -> int:
        return len(self.start) - 1


@record
class Bound:
    """C channels of several communications, one after the other."""

    communication: I32  # [C]
    size_bytes: I64  # [C] of the busiest edge
    fill_ps: I64  # [C] what follows the drain: see `pipeline_latency.Beyond`
    serial_ps: I64  # [C]
    piece_bytes: I64  # [C]
    path_ps: I64  # [C]
    limit: F64  # [C] bytes a picosecond that queue pairs let through; inf inside a host
    use_start: I64  # [C + 1]
    use_resource: I32
    use_coefficient: F64
    counts: tuple[PortBytes, ...]  # of some channels and of those that follow; nothing where nobody counts
    step_ps: I64  # [C] mean latency of an edge, software's cost of a step included
    critical: tuple[CriticalPaths, ...]  # of each communication

    @classmethod
    def joined(cls, parts: Sequence[Bound]) -> Bound:
        """Return the channels of all parts, one part's communications numbered after the other's."""
        if len(parts) == 1:
            return parts[0]
        first = starts_of([len(part.critical) for part in parts]).tolist()
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in (*_BY_CHANNEL, "use_resource", "use_coefficient")
        }
        communication = [part.communication + at for part, at in zip(parts, first, strict=False)]
        return cls(
            communication=np.concatenate(communication).astype(np.int32),
            use_start=starts_of(np.concatenate([np.diff(part.use_start) for part in parts])),
            counts=tuple(each for part in parts for each in part.counts),
            critical=tuple(each for part in parts for each in part.critical),
            **columns,
        )

    def add_carried(self, flow: I64, whole: I64, part: F64, carried: I64) -> None:
        """Add bytes to `carried` [ports]: of `whole` executions, and a `part` of one, of each channel's `flow`."""
        from fabrictwin.kernel.flow import sums

        at = 0
        for counts in self.counts:
            end = at + len(counts)
            sums.add_carried(flow[at:end], counts.start, counts.port, counts.size, whole, part, carried)
            at = end


_BY_CHANNEL = ("size_bytes", "fill_ps", "serial_ps", "piece_bytes", "path_ps", "limit", "step_ps")


def capacities(fabric: Fabric) -> F64:
    """[ports + adapters + 3 nodes] bytes, messages, memory's bytes, cores and threads, a picosecond."""
    ports = fabric.port_payload_bps / (8 * PS_PER_S)
    with np.errstate(divide="ignore"):
        messages = np.where(fabric.nic_message_ps > 0, 1.0 / np.maximum(fabric.nic_message_ps, 1), np.inf)
    return np.concatenate([ports, messages, *memory_and_cores(fabric)])


def message_bytes(channels: Channels) -> I64:
    """[C] bytes of one message on the wire: a chunk, or a ring's shard where that is smaller."""
    ranks = np.maximum(np.diff(channels.rank_start), 1)
    ring = patterns.among(channels.pattern, patterns.RINGS)
    step = np.where(ring, -(-channels.payload_bytes // ranks), channels.payload_bytes)
    message: I64 = np.maximum(np.minimum(step, patterns.chunk_sizes(channels)), 1)
    return message


@record
class _Columns:
    """E edges of all communications, in C channels, one after the other."""

    first: I64  # [communications + 1] channels of each
    row: I64  # [communications + 1] edges of each
    channel: I64  # [E]
    size: I64  # [E] bytes of data
    flow_bytes: I64  # [C] of the busiest edge
    ratio: F64  # [E] of an edge's bytes to those of its channel's busiest
    on_wire: F64  # [E] bytes on the wire for a byte of data
    drag: F64  # [E] what of a wire's time a byte takes inside a host or rack, beside its own
    message: I64  # [C] bytes of one message

    @classmethod
    def of(
        cls, communications: Sequence[Communication], edges: Sequence[patterns.Edges], how: Connections
    ) -> _Columns:
        counts = np.array([len(c.channels) for c in communications], np.int64)
        first = starts_of(counts)
        row = starts_of([len(e) for e in edges])
        channel = join([e.channel + first[i] for i, e in enumerate(edges)], np.int64)
        size = join([e.size_bytes for e in edges], np.int64)
        flow_bytes = np.zeros(int(first[-1]), np.int64)
        np.maximum.at(flow_bytes, channel, size)
        of = np.repeat(np.arange(len(counts)), counts)[channel]
        return cls(
            first=first,
            row=row,
            channel=channel,
            size=size,
            flow_bytes=flow_bytes,
            ratio=size / np.maximum(flow_bytes[channel], 1),
            on_wire=np.array(
                [c.transport.wire_bytes / c.transport.data_bytes for c in communications], np.float64
            )[of],
            drag=np.where(
                how.inside_domain, np.array([1.0 / c.transport.rate_share for c in communications])[of], 1.0
            ),
            message=join([message_bytes(c.channels) for c in communications], np.int64),
        )

    @property
    def channels(self) -> int:
        return len(self.flow_bytes)

    def part(self, channels: slice, edges: slice) -> _Columns:
        """Return some channels with their edges, as of one communication."""
        return _Columns(
            first=np.array([0, channels.stop - channels.start]),
            row=np.array([0, edges.stop - edges.start]),
            channel=self.channel[edges] - channels.start,
            size=self.size[edges],
            flow_bytes=self.flow_bytes[channels],
            ratio=self.ratio[edges],
            on_wire=self.on_wire[edges],
            drag=self.drag[edges],
            message=self.message[channels],
        )


def bind_in_parts(
    communications: Sequence[Communication],
    rank_node: I32,
    connections: OpenConnections,
    *,
    edges: Sequence[patterns.Edges] | None = None,
    counted: bool = True,
) -> Iterator[tuple[slice, Bound, EndToEnd]]:
    """Bind some communications at a time: (which, their channels over their connections, their edges' paths).

    Edges that carry nothing use nothing, though they have their latency. `edges` are the communications' where the
    caller has them; what ports count is left out unless `counted`. Raises ConfigError where there is no path.
    """
    if edges is None:
        edges = [patterns.edges(c.channels) for c in communications]
    for paths in connections.paths(communications, edges, rank_node):
        which = paths.communications
        yield which, _bind(communications[which], edges[which], paths, connections, counted=counted), paths.found


def bind(
    communications: Sequence[Communication], rank_node: I32, connections: OpenConnections, *, counted: bool = True
) -> Bound:
    """Bind every channel of every communication, as `bind_in_parts` does."""
    return Bound.joined(
        [bound for _, bound, _ in bind_in_parts(communications, rank_node, connections, counted=counted)]
    )


def _bind(
    communications: Sequence[Communication],
    edges: Sequence[patterns.Edges],
    paths: Paths,
    connections: OpenConnections,
    *,
    counted: bool,
) -> Bound:
    found, how = paths.found, paths.how
    columns = _Columns.of(communications, edges, how)
    channel, channels = columns.channel, columns.channels
    edge_ps, criticals, beyond = _on_the_way(communications, edges, columns, paths, connections.fabric)
    total = np.bincount(channel, weights=edge_ps, minlength=channels)
    use_start, use_resource, use_coefficient, counts = _used(columns, paths, connections.fabric, counted=counted)
    return Bound(
        communication=np.repeat(np.arange(len(communications), dtype=np.int32), np.diff(columns.first)),
        size_bytes=columns.flow_bytes,
        fill_ps=join([b.fill_ps for b in beyond], np.int64),
        serial_ps=join([b.serial_ps for b in beyond], np.int64),
        piece_bytes=join([b.piece_bytes for b in beyond], np.int64),
        path_ps=join([b.path_ps for b in beyond], np.int64),
        limit=_limits(columns, found, how, connections.fabric),
        use_start=use_start,
        use_resource=use_resource,
        use_coefficient=use_coefficient,
        counts=counts,
        step_ps=np.rint(total / np.maximum(np.bincount(channel, minlength=channels), 1)).astype(np.int64),
        critical=criticals,
    )


def _on_the_way(
    communications: Sequence[Communication],
    edges: Sequence[patterns.Edges],
    columns: _Columns,
    paths: Paths,
    fabric: Fabric,
) -> tuple[I64, tuple[CriticalPaths, ...], list[Beyond]]:
    """([E] latency, software's cost of a step included; critical paths, and what they mean, of communications)."""
    each = list(zip(communications, edges, columns.first[:-1].tolist(), strict=True))
    found, how = paths.found, paths.how
    alone, edge_ps, edge_rate, weight = _edge_times(each, columns, paths, fabric)
    criticals, beyond = [], []
    for i, (communication, mine, first) in enumerate(each):
        costs = communication.costs
        channels, rows = communication.channels, slice(int(columns.row[i]), int(columns.row[i + 1]))
        if communication.transport.connections is None:
            edge_ps[rows] += costs.step_ps
        # what software spends on a step is not the same on all channels: those side by side come apart at once
        by_software = costs.step_ps > 0 or bool(how.cost_ps[rows].any())
        once: I64 | int = costs.base_ps
        if costs.chunk_ps or costs.copy_ps_per_byte:
            flow_bytes, chunk = columns.flow_bytes[first : first + len(channels)], patterns.chunk_sizes(channels)
            copied = np.rint(np.minimum(flow_bytes, chunk) * costs.copy_ps_per_byte).astype(np.int64)
            once = once + -(-flow_bytes // chunk) * costs.chunk_ps + copied
        by_itself = Alone.of(found, rows, edge_ps[rows], alone[rows], weight[rows])
        critical = CriticalPaths.of(
            channels,
            mine,
            edge_ps[rows],
            edge_rate[rows],
            meeting(channels, mine, by_itself, fabric),
            None if by_software else loops(channels, mine, by_itself, fabric),
        )
        criticals.append(critical)
        beyond.append(critical.beyond(channels).after(once))
    return edge_ps, tuple(criticals), beyond


def _edge_times(
    each: Sequence[tuple[Communication, patterns.Edges, int]],
    columns: _Columns,
    paths: Paths,
    fabric: Fabric,
) -> tuple[F64, I64, F64, F64]:
    """[E] rate alone; latency; rate beside others at work; time on the wire for a byte of data, to a byte's."""
    found, how, last, weight = paths.found, paths.how, paths.last, columns.on_wire * columns.drag
    uses = found.edge, found.port, found.share
    alone = last.of("alone", uses, lambda: edge_rates(found, fabric, len(columns.size)))
    piece = join([pieces(c.channels)[e.channel] for c, e, _ in each], np.int64)
    wired = np.rint(piece * columns.on_wire).astype(np.int64)
    edge_ps = found.latency_ps + how.cost_ps + packet_tail_ps(found, fabric, wired, alone)
    together = join([at_once(c.channels, e) + 2 * first for c, e, first in each], np.int64)
    loaded = last.of("loaded", (*uses, together), lambda: loaded_rates(found, fabric, together))
    return alone, edge_ps, loaded / weight, weight


@record
class _Users:
    """Uses by kind: of ports, at either end of a network edge, of memory and cores."""

    leaves: I64  # edges
    enters: I64
    channel: I32  # of each use
    resource: I32

    @classmethod
    def of(cls, channel: I64, found: EndToEnd, beside: Uses, fabric: Fabric) -> _Users:
        leaves, enters = np.flatnonzero(found.source_nic != NONE), np.flatnonzero(found.destination_nic != NONE)
        resource = np.concatenate(
            [
                found.port,
                fabric.ports + found.source_nic[leaves],
                fabric.ports + found.destination_nic[enters],
                beside.resource,
            ]
        )
        users = np.concatenate([found.edge, leaves, enters, beside.edge])
        return cls(leaves, enters, channel.astype(np.int32)[users], resource)


def _used(
    columns: _Columns, paths: Paths, fabric: Fabric, *, counted: bool
) -> tuple[I64, I32, F64, tuple[PortBytes, ...]]:
    """(where each channel's resources start, resources, coefficients, port counts), some channels at a time."""
    number: list[I64] = []
    resources: list[I32] = []
    coefficients: list[F64] = []
    counts: list[PortBytes] = []
    for i, (part, found) in enumerate(_in_parts(columns, Found(paths.found, paths.beside))):
        start, resource, coefficient = _uses(part, found, fabric, paths.last, i)
        number.append(np.diff(start))
        resources.append(resource)
        coefficients.append(coefficient)
        if counted:
            counts.append(_counts(part, found.on, paths.last, i))
    joined = join(resources, np.int32)
    resources.clear()  # each column is there twice only while it is joined
    return starts_of(join(number, np.int64)), joined, join(coefficients, np.float64), tuple(counts)


def _in_parts(columns: _Columns, found: Found) -> Iterator[tuple[_Columns, Found]]:
    """Yield some channels at a time, so that what is made of their uses takes little memory."""
    edges = np.bincount(columns.channel, minlength=columns.channels)
    parts = batches(edges.tolist())
    if len(parts) <= 1:
        yield columns, found
        return
    first = starts_of(edges)
    rows = [slice(int(first[part.start]), int(first[part.stop])) for part in parts]
    apart = paths_apart(found, [row.stop - row.start for row in rows])
    for part, row, mine in zip(parts, rows, apart, strict=True):
        yield columns.part(part, row), mine


def _uses(
    columns: _Columns, of: Found, fabric: Fabric, last: LastColumns, part: int
) -> tuple[I64, I32, np.ndarray]:
    """Ports by their share of each edge, the message engine at either end of a network edge, memory and cores."""
    channel, ratio, found, beside = columns.channel, columns.ratio, of.on, of.beside
    users = last.of(
        f"users {part}",
        (channel, found.edge, found.port, beside.edge, beside.resource),
        lambda: _Users.of(channel, found, beside, fabric),
    )
    wired = ratio * columns.on_wire
    per_message = ratio / columns.message[channel]
    coefficient = np.concatenate(
        [
            (wired * columns.drag)[found.edge] * found.share,
            per_message[users.leaves],
            per_message[users.enters],
            wired[beside.edge] * beside.amount,
        ]
    )
    row, resource, used = users.channel, users.resource, coefficient > 0
    if not used.all():
        row, resource, coefficient = row[used], resource[used], coefficient[used]
    return _sum_by(row, resource, coefficient, columns.channels, (last, f"uses {part}"))


def _limits(columns: _Columns, found: EndToEnd, how: Connections, fabric: Fabric) -> F64:
    """[C] bytes a picosecond that queue pairs and their ends let through.

    A queue pair's messages are a period apart, so n of them take n - 1 periods; so are a connection's.
    """
    channel, size = columns.channel, columns.size
    limit = np.full(columns.channels, np.inf)
    far = np.flatnonzero(found.source_nic != NONE)
    if len(far):
        # each of several has every message, or its share of them, one after the other
        each = columns.message[channel[far]] * np.where(how.round_robin, how.paths, 1)[far]
        least_ps = (-(-size[far] // each) - 1) * fabric.nic_qp_message_ps[found.source_nic[far]]
        # what hands messages on does so for all queue pairs of a connection
        handed_ps = (-(-size[far] // columns.message[channel[far]]) - 1) * how.message_ps[far]
        least_ps = np.maximum(least_ps, handed_ps)
        with np.errstate(divide="ignore"):
            queue_pair = np.where(least_ps > 0, columns.flow_bytes[channel[far]] / least_ps, np.inf)
        np.minimum.at(limit, channel[far], queue_pair)
    bounded = np.flatnonzero(np.isfinite(how.limit) & (size > 0))
    np.minimum.at(limit, channel[bounded], how.limit[bounded] / (columns.ratio * columns.on_wire)[bounded])
    return limit


def _counts(columns: _Columns, found: EndToEnd, last: LastColumns, part: int) -> PortBytes:
    """Bytes that ports carry of each channel, without a remainder."""
    from fabrictwin.kernel.flow import sums

    carried = np.empty(len(found.edge), np.int64)
    sums.carried(found.edge, found.before, found.share, np.rint(columns.size * columns.on_wire), carried)
    row = columns.channel.astype(np.int32)[found.edge]
    return PortBytes(*_sum_by(row, found.port, carried, columns.channels, (last, f"counts {part}")))


def _sum_by(
    row: I32, column: I32, value: np.ndarray, rows: int, last: tuple[LastColumns, str]
) -> tuple[I64, I32, np.ndarray]:
    """A CSR over `rows` of the sums of `value` by (row, column), columns ascending; `last` keeps places."""
    from fabrictwin.kernel.flow import sums

    def places() -> tuple[I64, I32, I32, I32]:
        start, order, first = (
            np.zeros(rows + 1, np.int64),
            np.empty(len(row), np.int32),
            np.empty(len(row) + 1, np.int32),
        )
        made = sums.places_by(row, column, int(column.max(initial=-1)) + 1, start, order, first)
        first = first[: made + 1].copy()
        return start, order, first, column[order[first[:-1]]]

    columns, name = last
    start, order, first, to_column = columns.of(name, (row, column), places)
    total = np.empty(len(to_column), value.dtype)
    sums.add_up(order, first, value, total)
    return start, to_column, total
