"""Utilisation of the fabric as matrices that can be read: hosts × adapters, leaf × spine, pod × core.

A large fabric has ten thousand links; a matrix of it has at most `LIMIT` rows and columns. Where there are more
switches or hosts than that, a row or column stands for a pod, or for neighbours in order. A cell covers all
links between its row and its column, in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fabrictwin.base.arrays import F64, I64
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric, NodeKind
from fabrictwin.report.link_usage import utilisation
from fabrictwin.trace.trace import Trace

LIMIT = 32


@record
class Matrix:
    """Greatest and mean utilisation by row and column; `links` counts directed links and is 0 where none is."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    greatest: F64  # [rows, columns]
    mean: F64
    links: I64
    port: I64  # [links of all cells] the port that each directed link is named by, and its row and column
    row: I64
    column: I64


@record
class _Groups:
    """Which row or column each of some nodes belongs to."""

    names: tuple[str, ...]
    of: dict[int, int]


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} … {last}"


def _chunks(names: Sequence[str]) -> tuple[tuple[str, ...], I64]:
    """Names in at most LIMIT groups of neighbours, and the group of each name."""
    size = -(-len(names) // LIMIT)
    group = np.arange(len(names)) // max(1, size)
    titles = [_span(names[i], names[min(i + size, len(names)) - 1]) for i in range(0, len(names), max(1, size))]
    return tuple(titles), group


def _group_nodes(fabric: Fabric, nodes: I64) -> _Groups:
    """Leaves by themselves where they are few; else by pod, where there are pods; else by neighbours.

    Above the leaves a pod's switches each have their own part of the tier above, so single rows would be all but
    empty.
    """
    pods = fabric.node_pod[nodes]
    found = np.unique(pods)
    crowded = len(nodes) > LIMIT or (fabric.node_tier[nodes] > 1).all()
    if crowded and found[0] != NONE and len(found) > 1:
        titles, group = _chunks([f"pod {p}" for p in found.tolist()])
        members = group[np.searchsorted(found, pods)]
    else:
        titles, members = _chunks([fabric.node_name(n) for n in nodes.tolist()])
    return _Groups(titles, dict(zip(nodes.tolist(), members.tolist(), strict=True)))


def _positions(fabric: Fabric, nodes: I64) -> _Groups:
    """Nodes by their position in their pod: the k-th switch of each pod together."""
    pods = fabric.node_pod[nodes]
    seen: dict[int, int] = {}
    position = []
    for pod in pods.tolist():
        position.append(seen.get(pod, 0))
        seen[pod] = position[-1] + 1
    titles, group = _chunks([str(k + 1) for k in range(max(seen.values()))])
    return _Groups(titles, {n: int(group[p]) for n, p in zip(nodes.tolist(), position, strict=True)})


def _matrix(title: str, rows: _Groups, columns: _Groups, place: tuple[I64, I64], port: I64, used: F64) -> Matrix:
    """The matrix of directed links, by the ports that they are named by and the row and column of each."""
    row, column = place
    shape = (len(rows.names), len(columns.names))
    greatest, total, links = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64)
    np.maximum.at(greatest, (row, column), used[port])
    np.add.at(total, (row, column), used[port])
    np.add.at(links, (row, column), 1)
    mean = total / np.maximum(links, 1)
    return Matrix(title, rows.names, columns.names, greatest, mean, links, port, row, column)


def _tier_name(tier: int) -> str:
    names = {NONE: "switches", 1: "leaf switches", 2: "spine switches", 3: "core switches"}
    return names.get(tier, f"switches of tier {tier}")


def matrices(fabric: Fabric, trace: Trace) -> list[Matrix]:
    """One matrix for the adapters and one for each pair of tiers that links join."""
    used = utilisation(fabric, trace)
    ports = np.flatnonzero((fabric.port_peer != NONE) & np.isin(fabric.port_kind, NETWORK))
    near = fabric.port_node[ports].astype(np.int64)
    far = fabric.port_node[fabric.port_peer[ports]].astype(np.int64)
    found = [_adapters(fabric, used, ports, near, far)]

    switched = (fabric.node_kind[near] == NodeKind.SWITCH) & (fabric.node_kind[far] == NodeKind.SWITCH)
    ports, near, far = ports[switched], near[switched], far[switched]
    low = np.minimum(fabric.node_tier[near], fabric.node_tier[far])
    high = np.maximum(fabric.node_tier[near], fabric.node_tier[far])
    pairs = set(zip(low.tolist(), high.tolist(), strict=True))
    for a, b in sorted(pairs, key=lambda pair: (NONE in pair, pair)):
        here = np.flatnonzero((low == a) & (high == b))
        # the lower tier gives the row, whichever end transmits
        upward = fabric.node_tier[near[here]] == a
        row_node = np.where(upward, near[here], far[here])
        column_node = np.where(upward, far[here], near[here])
        members = [np.flatnonzero((fabric.node_kind == NodeKind.SWITCH) & (fabric.node_tier == t)) for t in (a, b)]
        rows = _group_nodes(fabric, members[0])
        pods = np.unique(fabric.node_pod[members[1]])
        podded = a != b and len(pods) > 1 and pods[0] != NONE
        columns = _positions(fabric, members[1]) if podded else _group_nodes(fabric, members[1])
        title = f"{_tier_name(a)} × {_tier_name(b)}{', by position in the pod' if podded else ''}"
        row = np.array([rows.of[n] for n in row_node.tolist()], np.int64)
        column = np.array([columns.of[n] for n in column_node.tolist()], np.int64)
        found.append(_matrix(title, rows, columns, (row, column), ports[here], used))
    return [m for m in found if m is not None]


def _adapters(fabric: Fabric, used: F64, ports: I64, near: I64, far: I64) -> Matrix | None:
    """Hosts that carried anything × the adapters of a host, in its order."""
    at_near = fabric.node_kind[near] == NodeKind.NIC
    at_far = fabric.node_kind[far] == NodeKind.NIC
    nic = np.where(at_near, near, far)
    host = fabric.node_host[nic]
    is_nic = (at_near | at_far) & (host != NONE)
    busy = np.zeros(fabric.hosts, bool)
    busy[host[is_nic & (used[ports] > 0)]] = True
    keep = is_nic.copy()
    keep[is_nic] = busy[host[is_nic]]
    if not keep.any():
        return None
    # the k-th adapter of its host
    nth = np.zeros(fabric.nodes, np.int64)
    nics = fabric.nic_node.astype(np.int64)
    first = np.ones(len(nics), bool)
    first[1:] = np.diff(fabric.node_host[nics]) != 0
    nth[nics] = np.arange(len(nics)) - np.flatnonzero(first)[np.cumsum(first) - 1]
    hosts = np.flatnonzero(busy)
    titles, group = _chunks([fabric.host_names[h] for h in hosts.tolist()])
    group_of = np.full(fabric.hosts, NONE, np.int64)
    group_of[hosts] = group
    width = int(nth[nic[keep]].max()) + 1
    columns, column_group = _chunks([f"NIC {k}" for k in range(width)])
    rows_of, columns_of = _Groups(titles, {}), _Groups(columns, {})
    row, column = group_of[host[keep]], column_group[nth[nic[keep]]]
    return _matrix("hosts × adapters", rows_of, columns_of, (row, column), ports[keep], used)
