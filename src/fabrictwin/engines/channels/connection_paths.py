"""Paths that edges of communications take: the shortest one, or the one that their connections say.

A connection may lead over host memory (without GPUDirect, or between GPUs that cannot reach each other), over
another GPU whose adapter it uses (PXN), or into switches that reduce and multicast: the NVSwitches of a host, over
which bytes spread in proportion to their links, or one switch of the network.

Beside ports, edges use what is not a wire: memory of a processor (staged bytes are written and read), cores that
work on each byte, and the one thread of a rank that serves its sockets.
"""

from __future__ import annotations

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import F64, I32, I64, distinct, ranges, within_runs
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.fabric.fabric import NONE, Fabric, LinkKind, NodeKind
from fabrictwin.fabric.memory_paths import EndToEnd, Entropy, PathFinder
from fabrictwin.program.patterns import Edges, among
from fabrictwin.program.program import Connections, Seat


def memory_and_cores(fabric: Fabric) -> tuple[F64, F64, F64]:
    """([nodes] bytes a picosecond of memory, [nodes] cores, [nodes] threads that serve sockets)."""
    memory, cores = np.full(fabric.nodes, np.inf), np.full(fabric.nodes, np.inf)
    for cpu in distinct(fabric.node_type[fabric.node_kind == NodeKind.CPU]):
        name = fabric.type_names[cpu]
        if not name:
            continue
        chip, mine = catalog.chip(name), fabric.node_type == cpu
        if chip.memory_bandwidth is not None:
            memory[mine] = chip.memory_bandwidth.value / (8 * PS_PER_S)
        if chip.cores is not None:
            cores[mine] = chip.cores.value
    return memory, cores, np.ones(fabric.nodes)


@record
class Uses:
    """Resources that edges use beside ports: a byte of `edge[i]` uses `amount[i]` of `resource[i]`."""

    edge: I64
    resource: I32
    amount: F64


@record
class Travellers:
    """E edges that do not take the shortest path, with fabric nodes; NONE where an end is no node but
    NVSwitches.
    """

    source: I32
    target: I32
    source_seat: np.ndarray
    target_seat: np.ndarray
    how: Connections


def plain(edges: int) -> Connections:
    """Connections that say nothing: the shortest path."""
    none = np.full(edges, NONE, np.int32)
    return Connections(
        cost_ps=np.zeros(edges, np.int64),
        out=none,
        nic_out=none,
        nic_in=none,
        into=none,
        paths=np.ones(edges, np.int32),
        round_robin=np.zeros(edges, np.bool_),
        limit=np.full(edges, np.inf),
        message_ps=np.zeros(edges, np.int64),
        send_ps_per_byte=np.zeros(edges),
        receive_ps_per_byte=np.zeros(edges),
        read_ps_per_byte=np.zeros(edges),
        threads=np.zeros(edges, np.int32),
    )


def travellers(edges: Edges, how: Connections | None, rank_node: I32) -> Travellers:
    """Edges of one communication with the nodes that they start and end at."""

    def node(of: I32, seat: np.ndarray) -> I32:
        memory = among(seat, (Seat.RANK, Seat.RELAY))
        return np.where(
            memory, rank_node[np.where(memory, of, 0)], np.where(seat == Seat.SWITCH, of, NONE)
        ).astype(np.int32)

    return Travellers(
        node(edges.source, edges.source_seat),
        node(edges.target, edges.target_seat),
        edges.source_seat,
        edges.target_seat,
        how or plain(len(edges)),
    )


class _Legs:
    """Uses of ports as they are found, leg by leg."""

    def __init__(self, edges: int) -> None:
        self.parts: list[tuple[I64, I32, F64, F64, int]] = []
        self.latency = np.zeros(edges, np.int64)

    def add(self, edge: np.ndarray, port: I32, share: np.ndarray, before: np.ndarray, order: int) -> None:
        columns = np.asarray(edge, np.int64), port, np.asarray(share, np.float64), np.asarray(before, np.float64)
        self.parts.append((*columns, order))

    def in_order(self, edges: int) -> tuple[I64, I32, F64, F64]:
        """Take all uses out: (edge, port, share, share before), by edge and in the order of its legs."""
        from fabrictwin.kernel.flow import sums

        parts = sorted(self.parts, key=lambda part: part[4])
        self.parts = []
        following = np.zeros(edges + 1, np.int64)  # where the next use of each edge goes
        for part in parts:
            sums.count(part[0], following[1:])
        np.cumsum(following, out=following)
        uses = int(following[-1])
        columns = np.empty(uses, np.int64), np.empty(uses, np.int32), np.empty(uses), np.empty(uses)
        while parts:  # each is given up as it is read
            sums.place(*parts.pop(0)[:4], following, *columns)
        return columns


def travel(go: Travellers, fabric: Fabric, finder: PathFinder, entropy: Entropy | None) -> tuple[EndToEnd, Uses]:
    """Every edge's ports in order, its latency and adapters, and what it uses beside. Raises ConfigError."""
    edges, how = len(go.source), go.how
    legs = _Legs(edges)
    near, far = _adapters(go, fabric, finder)
    into_switch = np.flatnonzero((go.target_seat == Seat.SWITCH) & (go.source_seat != Seat.SWITCH))
    from_switch = np.flatnonzero((go.source_seat == Seat.SWITCH) & (go.target_seat != Seat.SWITCH))
    between = np.flatnonzero((go.source_seat == Seat.SWITCH) & (go.target_seat == Seat.SWITCH))

    for seat, port_of, hub, end in (
        (Seat.NVSWITCH, "out", go.target_seat, go.source),
        (Seat.NVSWITCH, "in", go.source_seat, go.target),
    ):
        _nvlink(legs, np.flatnonzero(hub == seat), end, fabric, inwards=port_of == "in")

    # up to the adapter: over host memory or another GPU where the connection says so
    leaving = np.concatenate([near, far.edge, into_switch])
    first_nic = np.concatenate([np.full(len(near), NONE), far.departing, how.nic_out[into_switch]])
    at = go.source[leaving].copy()
    staged = np.flatnonzero(how.out[leaving] != NONE)
    _local(legs, leaving[staged], at[staged], how.out[leaving][staged], finder, order=0)
    at[staged] = how.out[leaving][staged]
    goal = np.where(first_nic == NONE, go.target[leaving], fabric.nic_node[first_nic])
    before = legs.latency.copy()
    _local(legs, leaving, at, goal.astype(np.int32), finder, order=1)
    reading = leaving[first_nic != NONE]  # the adapter reads memory before it sends: a request, then the data
    legs.latency[reading] += (legs.latency - before)[reading]

    _network(legs, far, how.paths, finder, entropy)
    legs.latency[far.edge] += fabric.nic_post_ps[far.departing] + fabric.nic_deliver_ps[far.arriving]
    _single(legs, into_switch, fabric.nic_port[how.nic_out[into_switch]], fabric)
    legs.latency[into_switch] += fabric.nic_post_ps[how.nic_out[into_switch]]
    _single(legs, between, _trunk(go.source[between], go.target[between], fabric), fabric)
    _single(legs, from_switch, fabric.port_peer[fabric.nic_port[how.nic_in[from_switch]]], fabric)
    legs.latency[from_switch] += fabric.nic_deliver_ps[how.nic_in[from_switch]]

    arriving = np.concatenate([far.edge, from_switch])
    at = fabric.nic_node[np.concatenate([far.arriving, how.nic_in[from_switch]])]
    staged = np.flatnonzero(how.into[arriving] != NONE)
    _local(legs, arriving[staged], at[staged], how.into[arriving][staged], finder, order=3)
    at = at.copy()
    at[staged] = how.into[arriving][staged]
    _local(legs, arriving, at, go.target[arriving], finder, order=4)

    source_nic, destination_nic = np.full(edges, NONE, np.int32), np.full(edges, NONE, np.int32)
    source_nic[far.edge], destination_nic[far.edge] = far.departing, far.arriving
    source_nic[into_switch] = how.nic_out[into_switch]
    destination_nic[from_switch] = how.nic_in[from_switch]
    found = EndToEnd(*legs.in_order(edges), legs.latency, source_nic, destination_nic)
    return found, _beside(go, fabric)


@record
class _Far:
    edge: I64
    departing: I32
    arriving: I32


def _adapters(go: Travellers, fabric: Fabric, finder: PathFinder) -> tuple[I64, _Far]:
    """(edges inside hosts, edges between adapters)."""
    memory = np.flatnonzero((go.source != NONE) & (go.target != NONE))
    memory = memory[(go.source_seat[memory] != Seat.SWITCH) & (go.target_seat[memory] != Seat.SWITCH)]
    given = go.how.nic_out[memory] != NONE
    apart = fabric.node_host[go.source[memory]] != fabric.node_host[go.target[memory]]
    near, far = memory[~given & ~apart], memory[given | apart]
    departing, arriving = go.how.nic_out[far].copy(), go.how.nic_in[far].copy()
    open_ = np.flatnonzero(departing == NONE)
    if len(open_):
        departing[open_], arriving[open_] = finder.adapters_between(go.source[far[open_]], go.target[far[open_]])
    loose = np.flatnonzero((fabric.nic_port[departing] == NONE) | (fabric.nic_port[arriving] == NONE))
    if len(loose):
        names = (fabric.node_name(int(fabric.nic_node[nics[loose[0]]])) for nics in (departing, arriving))
        raise ConfigError(f"a connection uses {' and '.join(names)}, one of which has no cable", key="cluster")
    return near, _Far(far, departing, arriving)


def _local(legs: _Legs, edge: I64, source: I32, target: I32, finder: PathFinder, *, order: int) -> None:
    """Add a path inside a host, none where both ends are one."""
    moving = np.flatnonzero(source != target)
    if not len(moving):
        return
    pair, port, share, before, latency = finder.inside(source[moving], target[moving])
    legs.add(edge[moving][pair], port, share, before, order)
    legs.latency[edge[moving]] += latency


def _network(legs: _Legs, far: _Far, paths: I32, finder: PathFinder, entropy: Entropy | None) -> None:
    """Over the network, on several paths in equal parts where a connection has several."""
    if not len(far.edge):
        return
    count = paths[far.edge].astype(np.int64)
    row = np.repeat(np.arange(len(far.edge)), count)
    found = finder.between(far.departing[row], far.arriving[row], entropy)
    part = 1.0 / count[row]
    done = part * within_runs(count)
    share, before = part[found.pair] * found.share, done[found.pair] + part[found.pair] * found.before
    legs.add(far.edge[row[found.pair]], found.port, share, before, 2)
    longest = np.zeros(len(far.edge), np.int64)
    np.maximum.at(longest, row, found.latency_ps)
    legs.latency[far.edge] += longest


def _nvlink(legs: _Legs, edge: I64, gpu: I32, fabric: Fabric, *, inwards: bool) -> None:
    """Between a GPU and the NVSwitches of its host, in proportion to its links to each."""
    if not len(edge):
        return
    node, which = np.unique(gpu[edge], return_inverse=True)
    start = fabric.node_port_start[node].astype(np.int64)
    count = fabric.node_port_start[node + 1] - start
    port = ranges(start, count)
    row = np.repeat(np.arange(len(node)), count)
    peer = fabric.port_peer[port]
    links = (fabric.port_kind[port] == LinkKind.NVLINK) & (
        fabric.node_kind[fabric.port_node[peer]] == NodeKind.NVSWITCH
    )
    port, row = port[links], row[links]
    rate = fabric.port_payload_bps[port].astype(np.float64)
    total = np.bincount(row, weights=rate, minlength=len(node))
    if (total == 0).any():
        name = fabric.node_name(int(node[np.flatnonzero(total == 0)[0]]))
        raise ConfigError(f"{name} has no NVSwitch to reduce in", key="cluster.hosts")
    share = rate / total[row]
    sums = np.cumsum(share)
    first = np.searchsorted(row, np.arange(len(node) + 1))
    before = np.maximum(sums - share - (sums - share)[first[:-1]][row], 0.0)
    used = (fabric.port_peer[port] if inwards else port).astype(np.int32)
    latency = fabric.port_latency_ps[used] + (
        0 if inwards else fabric.node_latency_ps[fabric.port_node[fabric.port_peer[used]]]
    )
    longest = np.maximum.reduceat(latency, first[:-1])
    legs.latency[edge] += longest[which]
    links_of = np.diff(first)[which]
    use = ranges(first[which], links_of)
    legs.add(np.repeat(edge, links_of), used[use], share[use], before[use], 0)


def _single(legs: _Legs, edge: I64, port: I32, fabric: Fabric) -> None:
    """One port each."""
    one = np.ones(len(edge))
    legs.add(edge, port.astype(np.int32), one, 0 * one, 2)
    legs.latency[edge] += fabric.port_latency_ps[port] + fabric.node_latency_ps[fabric.port_node[port]]


def _trunk(source: I32, target: I32, fabric: Fabric) -> I32:
    """[edges] a port from one switch to the next; several parallel ones are taken in turn. Raises ConfigError."""
    result = np.full(len(source), NONE, np.int32)
    taken: dict[tuple[int, int], int] = {}
    ports: dict[tuple[int, int], I32] = {}
    for i, (a, b) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        if (a, b) not in ports:
            own = np.arange(fabric.node_port_start[a], fabric.node_port_start[a + 1])
            peer = fabric.port_peer[own]
            there = (peer != NONE) & (fabric.port_node[np.maximum(peer, 0)] == b)
            ports[a, b] = own[there].astype(np.int32)
            if not len(ports[a, b]):
                raise ConfigError(f"{fabric.node_name(a)} has no cable to {fabric.node_name(b)}", key="cluster")
        turn = taken.get((a, b), 0)
        result[i] = ports[a, b][turn % len(ports[a, b])]
        taken[a, b] = turn + 1
    return result


def _beside(go: Travellers, fabric: Fabric) -> Uses:
    """Memory that staged bytes pass (written and read), cores and threads that work on them."""
    how, base = go.how, fabric.ports + len(fabric.nic_node)
    edge, resource, amount = [], [], []
    cpu = fabric.node_kind == NodeKind.CPU
    for node in (how.out, how.into):
        staged = np.flatnonzero((node != NONE) & cpu[np.maximum(node, 0)])
        edge.append(staged)
        resource.append(base + node[staged])
        amount.append(np.full(len(staged), 2.0))
    send, receive, read = how.send_ps_per_byte, how.receive_ps_per_byte, how.read_ps_per_byte
    for work, mine, node, gpu in ((send, send, how.out, go.source), (receive, read, how.into, go.target)):
        busy = np.flatnonzero((work > 0) & (node != NONE))
        edge.append(busy)
        resource.append(base + fabric.nodes + node[busy])
        amount.append(work[busy])
        alone = busy[how.threads[busy] == 0]
        edge.append(alone)
        resource.append(base + 2 * fabric.nodes + gpu[alone])
        amount.append(mine[alone])
    return Uses(
        np.concatenate(edge).astype(np.int64),
        np.concatenate(resource).astype(np.int32),
        np.concatenate(amount).astype(np.float64),
    )
