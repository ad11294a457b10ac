"""Small fabrics as plain arrays, for tests and benchmarks of the packet kernel: no catalog, no compiler."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from fabrictwin.base.grouped import grouped
from fabrictwin.kernel.packet.connection import Connection
from fabrictwin.kernel.packet.machine import Machine
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state.build import Wiring
from fabrictwin.kernel.packet.state.config import Config
from fabrictwin.kernel.routing import switch_graph as graph

GBPS = 10**9
US = 10**6


def wire(
    links: list[tuple[int, int]],
    hosts: int,
    nodes: int,
    *,
    kind: str = "ethernet",
    bps: int = 400 * GBPS,
    latency_ps: int = US,
    switch_latency_ps: int = 0,
    cut_through: bool = False,
    buffer_bytes: int = 32 << 20,
    credit_bytes: int = 128 << 10,
    link_bps: dict[tuple[int, int], int] | None = None,
) -> Wiring:
    """Nodes 0 .. hosts - 1 are endpoints with one link each, the rest are switches; shortest-path groups."""
    ends: list[list[tuple[int, int, int]]] = [[] for _ in range(nodes)]  # (peer node, link, side)
    for i, (a, b) in enumerate(links):
        ends[a].append((b, i, 0))
        ends[b].append((a, i, 1))
    start = np.concatenate([[0], np.cumsum([len(e) for e in ends])]).astype(np.int32)
    at: dict[tuple[int, int], int] = {}
    node, rate = [], []
    for n, e in enumerate(ends):
        for j, (peer, i, side) in enumerate(e):
            at[i, side] = int(start[n]) + j
            node.append(n)
            rate.append((link_bps or {}).get((n, peer), bps))
    ports = len(node)
    peer = np.zeros(ports, np.int32)
    for (i, side), p in at.items():
        peer[p] = at[i, 1 - side]
    port_node = np.array(node, np.int32)
    switch = np.arange(nodes) >= hosts
    credit = kind == "infiniband"
    flags = s.INPUT_QUEUED if credit else s.SHARED
    if cut_through:
        flags |= s.CUT_THROUGH
    row = np.where(switch, np.arange(nodes) - hosts, s.NONE).astype(np.int32)
    rows = nodes - hosts
    edges = np.unique(row[port_node[peer[start[:hosts]]]])
    column = np.full(max(rows, 1), s.NONE, np.int32)
    column[edges] = np.arange(len(edges))
    group_of, group_start, group_ports = _groups(rows, hosts, start, port_node, peer, edges)
    return Wiring(
        port_node=port_node,
        port_peer=peer,
        port_bps=np.array(rate, np.int64),
        port_latency_ps=np.full(ports, latency_ps, np.int64),
        port_flags=np.full(ports, s.CREDIT if credit else s.PFC, np.int32),
        node_flags=np.where(switch, flags, s.ENDPOINT).astype(np.int32),
        node_latency_ps=np.where(switch, switch_latency_ps, 0).astype(np.int64),
        node_buffer_bytes=np.where(switch, buffer_bytes, 0).astype(np.int64),
        node_row=row,
        node_port_start=start,
        endpoint_port=start[:hosts].copy(),
        credit_bytes=np.full(ports, credit_bytes, np.int64),
        endpoint_lid=np.arange(1, hosts + 1, dtype=np.int32),
        group_of=group_of,
        group_start=group_start,
        group_ports=group_ports,
        edge_column=column,
        seeds=np.random.default_rng(7).integers(0, 2**32, max(rows, 1)),
    )


def _groups(rows: int, hosts: int, start: Any, node: Any, peer: Any, edges: Any) -> tuple[Any, Any, Any]:
    """Equal-cost ports of every switch toward every edge switch."""
    first = int(start[hosts])
    ports = np.arange(first, len(node))
    between = node[peer[ports]] >= hosts
    ports = ports[between].astype(np.int32)
    row, near = node[ports] - hosts, (node[peer[ports]] - hosts).astype(np.int32)
    adjacent = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int32)
    distance = np.empty((len(edges), rows), np.uint8)
    graph.distances(adjacent, near, edges.astype(np.int32), distance)
    group_of = np.empty((rows, len(edges)), np.int32)
    room = 1024
    while True:
        group_start, group_ports = np.zeros(room + 1, np.int32), np.empty(4 * room, np.int32)
        count, filled = graph.equal_cost_groups(
            adjacent, near, ports, distance, group_of, group_start, group_ports
        )
        if count >= 0:
            return group_of, group_start[: count + 1].copy(), group_ports[: max(filled, 1)].copy()
        room *= 2


def fat_tree(k: int, **options: Any) -> Wiring:
    """A k-ary fat-tree of three tiers: k**3 / 4 hosts."""
    half = k // 2
    hosts, edges, aggregations, cores = k * half * half, k * half, k * half, half * half
    links = [(h, hosts + h // half) for h in range(hosts)]
    first = hosts + edges
    for pod in range(k):
        for e in range(half):
            links += [(hosts + pod * half + e, first + pod * half + a) for a in range(half)]
    for pod in range(k):
        for a in range(half):
            links += [(first + pod * half + a, first + aggregations + a * half + c) for c in range(half)]
    return wire(links, hosts, hosts + edges + aggregations + cores, **options)


def star(hosts: int, **options: Any) -> Wiring:
    """One switch."""
    return wire([(h, hosts) for h in range(hosts)], hosts, hosts + 1, **options)


def dumbbell(left: int, right: int, **options: Any) -> Wiring:
    """Two switches with one link between them."""
    n = left + right
    links = [(h, n if h < left else n + 1) for h in range(n)] + [(n, n + 1)]
    return wire(links, n, n + 2, **options)


def ring(switches: int, *, hosts_each: int = 1, turn: int = 1, **options: Any) -> Wiring:
    """A ring of switches whose every route goes `turn` (1: ascending) around, so that it can lock."""
    hosts = switches * hosts_each
    links = [(h, hosts + h // hosts_each) for h in range(hosts)]
    links += [(hosts + i, hosts + (i + 1) % switches) for i in range(switches)]
    wiring = wire(links, hosts, hosts + switches, **options)
    group_of = np.full((switches, switches), s.NONE, np.int32)
    ports = []
    for r in range(switches):
        for p in range(wiring.node_port_start[hosts + r], wiring.node_port_start[hosts + r + 1]):
            if wiring.port_node[wiring.port_peer[p]] == hosts + (r + turn) % switches:
                ports.append(p)
        group_of[r] = r
        group_of[r, r] = s.NONE
    return replace(
        wiring,
        group_of=group_of,
        group_start=np.arange(switches + 1, dtype=np.int32),
        group_ports=np.array(ports, np.int32),
    )


def roce(**changes: Any) -> Config:
    """RoCE v2 over Ethernet, PFC on, nothing marked."""
    return grouped(Config(), changes)


def infiniband(**changes: Any) -> Config:
    """InfiniBand headers; credits need `kind="infiniband"` wiring."""
    return grouped(Config(), {"header_bytes": 26, "ack_bytes": 30, **changes})


Flow = tuple[int, int, int]  # source, destination, bytes


def machine(wiring: Wiring, config: Config, flows: list[Flow], **connection: Any) -> Machine:
    """One queue pair and one message a flow, all posted at 0. `connection` goes to every queue pair."""
    m = Machine(wiring, config)
    post(m, flows, **connection)
    return m


def post(m: Machine, flows: list[Flow], **connection: Any) -> int:
    """More flows, now. Returns the number of the first task."""
    frames = m.config.frames
    made = []
    for a, b, _ in flows:
        options = {
            "header_bytes": frames.header_bytes,
            "ack_bytes": frames.ack_bytes,
            "entropy": (a * 7919 + b * 104729 + 17) & s.M31,
            "ack_entropy": (b * 7919 + a * 104729 + 71) & s.M31,
            **connection,
        }
        made.append(grouped(Connection(int(m.wiring.endpoint_port[a]), a, b), options))
    first = m.add_queue_pairs(made)
    n = len(flows)
    return m.add_tasks(
        np.full(n, s.MESSAGE), first + np.arange(n), np.array([size for *_, size in flows]), np.zeros(n, np.int64)
    )


def set_dcqcn(m: Machine, **changes: int) -> None:
    """DCQCN's parameters; defaults as in its paper, with 1 Gb/s as the lowest rate."""
    values = {
        "minimum": 1_000_000,
        "alpha_ps": 55 * US,
        "decrease_ps": 50 * US,
        "increase_ps": 55 * US,
        "byte_counter": 10_000_000,
        "g": 4,
        "clamp": 1,
        "fast": 5,
        "additive": 40_000,
        "hyper": 400_000,
    } | changes
    for name, value in values.items():
        m.state.dcqcn_settings[name] = value


def digest(m: Machine) -> str:
    """Everything that a run leaves behind, as one hash; padding and unused capacity left out."""
    h = hashlib.sha256()
    for array in (m.state.clock, m.state.port, m.state.count, m.state.outlet, m.state.task, m.state.qp):
        for name in array.dtype.names:
            if name not in ("free", "free_head", "pad"):
                h.update(np.ascontiguousarray(array[name]).tobytes())
    return h.hexdigest()


def done_us(m: Machine) -> Any:
    """Return the times at which the sender of each task knew, in microseconds."""
    return m.state.task.done_ps / US


def goodput_gbps(m: Machine, task: int = 0) -> float:
    """Payload a second of one message."""
    t = m.state.task[task]
    return float(t.size_bytes * 8000 / (t.done_ps - t.start_ps))
