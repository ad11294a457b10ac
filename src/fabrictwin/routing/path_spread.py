"""Paths of traffic that switches spread packet by packet: every equal-cost port takes the same part.

Adaptive routing and spraying on a regular network, seen over many packets: at each switch a pair's bytes divide
evenly over the ports on shortest paths (`routing.graph.equal_cost_groups`) whose own link is up. A switch knows
of its own links alone: what is down behind them it does not avoid. Which port a packet takes, how queues steer
that, and packets out of order are left to the packet engine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.fabric.memory_paths import Between
from fabrictwin.routing.tables import Routes


def spread(routes: Routes, source: I32, destination: I32, up: npt.NDArray[np.bool_] | None = None) -> Between:
    """From adapters `source[i]` to `destination[i]`; `up` [ports] says which links carry something, None all.

    Where all of a switch's ports are down its packets wait at them. Raises ConfigError where an adapter cannot be
    reached.
    """
    fabric, groups, switches = routes.fabric, routes.groups, routes.switches
    routes.check_cables(source, destination)
    goal, last = fabric.nic_node[destination], routes.nic_endpoint[destination]
    pair = np.arange(len(source), dtype=np.int64)
    port = fabric.nic_port[source].astype(np.int64)
    share, so_far = np.ones(len(source)), np.zeros(len(source), np.int64)
    parts: list[tuple[I64, I64, np.ndarray, np.ndarray]] = []
    longest = np.zeros(len(source), np.int64)
    while len(pair):
        total = np.cumsum(share) - share
        first = np.searchsorted(pair, pair)
        parts.append((pair, port, share, total - total[first]))
        so_far = so_far + fabric.node_latency_ps[fabric.port_node[port]] + fabric.port_latency_ps[port]
        node = fabric.port_node[fabric.port_peer[port]].astype(np.int64)
        there = node == goal[pair]
        np.maximum.at(longest, pair[there], so_far[there])
        pair, node, share, so_far = _meet(pair[~there], node[~there], share[~there], so_far[~there])
        if len(parts) > fabric.nodes:
            raise ConfigError("the tables loop", key="cluster")
        row, final = switches.node_row[node], last[pair]
        lost = (row == NONE) | (final == NONE)
        edge = fabric.port_node[np.where(lost, 0, final)]
        column = switches.edge_column[switches.node_row[edge]]
        at_edge = node == edge
        group = groups.group_of[np.where(lost, 0, row), column]
        lost |= ~at_edge & (group == NONE)
        if lost.any():
            at = int(pair[np.flatnonzero(lost)[0]])
            a, b = (fabric.node_name(int(fabric.nic_node[nics[at]])) for nics in (source, destination))
            raise ConfigError(f"{b} cannot be reached from {a}: no path", key="cluster")
        start = np.where(at_edge, 0, groups.group_start[group])
        count = np.where(at_edge, 1, groups.group_start[group + 1] - start).astype(np.int64)
        of = np.repeat(np.arange(len(pair)), count)
        place = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
        chosen = groups.group_ports[np.minimum(start[of] + place, max(len(groups.group_ports) - 1, 0))]
        port = np.where(at_edge[of], final[of], chosen).astype(np.int64)
        if up is not None:
            live = np.bincount(of, weights=up[port], minlength=len(pair)).astype(np.int64)
            kept = up[port] | (live[of] == 0)
            of, port, count = of[kept], port[kept], np.where(live > 0, live, count)
        pair, share, so_far = pair[of], (share / count)[of], so_far[of]
    hop = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
    of_pair, ports, shares, before = (np.concatenate([part[i] for part in parts]) for i in range(4))
    order = np.lexsort((hop, of_pair))
    return Between(of_pair[order], ports[order].astype(np.int32), shares[order], before[order], longest)


def _meet(pair: I64, node: I64, share: np.ndarray, so_far: I64) -> tuple[I64, I64, np.ndarray, I64]:
    """Parts of a pair that reach the same switch are one again."""
    if not len(pair):
        return pair, node, share, so_far
    order = np.lexsort((node, pair))
    pair, node, share, so_far = pair[order], node[order], share[order], so_far[order]
    new = np.flatnonzero(np.concatenate([[True], (pair[1:] != pair[:-1]) | (node[1:] != node[:-1])]))
    return pair[new], node[new], np.add.reduceat(share, new), np.maximum.reduceat(so_far, new)
