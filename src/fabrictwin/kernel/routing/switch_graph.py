"""Compiled walks over the switch graph: distances, equal-cost ports, tables and paths.

Switches are *rows* 0..S-1, edge switches (those with endpoints) *columns* 0..D-1. The graph is a CSR over rows:
`adjacent_start[S + 1]`, `adjacent_row[E]`, `adjacent_port[E]` (global port that transmits), in order of port.
All functions fill arrays of their caller; none allocates but for scratch.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.jit.decorators import entry, inner

UNREACHED = 255  # a distance no fabric has
NO_PORT = 255  # LFT entry of a destination that cannot be reached

OK = 0
TOO_LONG = 1  # a walk met a loop
NO_ROUTE = 2  # a walk met a table entry that leads nowhere
ARRIVED = 3


@entry
def distances(adjacent_start, adjacent_row, edge_row, distance):
    """Hops from every switch to every edge switch by breadth-first search. `distance` uint8 [D, S], filled."""
    rows = len(adjacent_start) - 1
    queue = np.empty(rows, np.int32)
    for column in range(len(edge_row)):
        reached = distance[column]
        reached[:] = UNREACHED
        reached[edge_row[column]] = 0
        queue[0] = edge_row[column]
        head, tail = 0, 1
        while head < tail:
            row = queue[head]
            head += 1
            step = reached[row] + 1
            for e in range(adjacent_start[row], adjacent_start[row + 1]):
                neighbour = adjacent_row[e]
                if reached[neighbour] == UNREACHED:
                    reached[neighbour] = step
                    queue[tail] = neighbour
                    tail += 1


@entry
def equal_cost_groups(adjacent_start, adjacent_row, adjacent_port, distance, group_of, group_start, group_ports):
    """Sets of ports on shortest paths, each distinct set of a switch once.

    `group_of` int32 [S, D] gets the set's index, NONE at the edge switch itself and where there is no path.
    `group_start` and `group_ports` are filled as a CSR. Returns (groups, ports), or (-1, -1) where they did not
    fit: call again with larger arrays.
    """
    columns, rows = distance.shape
    groups = 0
    filled = 0
    group_start[0] = 0
    for row in range(rows):
        first_group = groups
        for column in range(columns):
            here = distance[column, row]
            if here == 0 or here == UNREACHED:
                group_of[row, column] = NONE
                continue
            begin = filled
            for e in range(adjacent_start[row], adjacent_start[row + 1]):
                if distance[column, adjacent_row[e]] + 1 == here:
                    if filled == len(group_ports):
                        return -1, -1
                    group_ports[filled] = adjacent_port[e]
                    filled += 1
            size = filled - begin
            found = NONE
            for g in range(first_group, groups):
                start = group_start[g]
                if group_start[g + 1] - start != size:
                    continue
                same = True
                for k in range(size):
                    if group_ports[start + k] != group_ports[begin + k]:
                        same = False
                        break
                if same:
                    found = g
                    break
            if found == NONE:
                if groups + 1 == len(group_start):
                    return -1, -1
                found = groups
                groups += 1
                group_start[groups] = filled
            else:
                filled = begin
            group_of[row, column] = found
    return groups, filled


@inner
def _hop(path, count, port, to_node, port_peer, port_node, node_row):
    """Take the link that `port` transmits on as hop `count` of `path`. Returns (status, node that it leads to)."""
    if count == len(path):
        return TOO_LONG, NONE
    path[count] = port
    peer = port_peer[port]
    if peer == NONE:
        return NO_ROUTE, NONE
    node = port_node[peer]
    if node == to_node:
        return ARRIVED, node
    return (NO_ROUTE if node_row[node] == NONE else OK), node


@entry
def walk_tables(lft, node_row, node_port_start, port_peer, port_node, from_port, to_node, to_lid, hops, path):
    """Follow forwarding tables from network port `from_port[i]` to node `to_node[i]` of LID `to_lid[i]`.

    `path` int32 [n, longest] gets the transmitting ports, `hops` int32 [n] their number. Returns (status, i).
    """
    for i in range(len(from_port)):
        port, count = from_port[i], 0
        while True:
            status, node = _hop(path[i], count, port, to_node[i], port_peer, port_node, node_row)
            if status != OK:
                break
            count += 1
            number = lft[node_row[node], to_lid[i]]
            if number == NO_PORT or number == 0:
                return NO_ROUTE, i
            port = node_port_start[node] + number - 1
        if status != ARRIVED:
            return status, i
        hops[i] = count + 1
    return OK, 0


@inner
def crc32(words, seed):
    """CRC-32 (IEEE 802.3, reflected) of 32-bit words, little end first, started at `seed`."""
    crc = np.uint32(seed) ^ np.uint32(0xFFFFFFFF)
    for word in words:
        value = np.uint32(word)
        for byte in range(4):
            crc = crc ^ ((value >> np.uint32(8 * byte)) & np.uint32(0xFF))
            for _ in range(8):
                low = crc & np.uint32(1)
                crc = crc >> np.uint32(1)
                if low:
                    crc = crc ^ np.uint32(0xEDB88320)
    return crc ^ np.uint32(0xFFFFFFFF)


@inner
def murmur3(words, seed):
    """MurmurHash3_x86_32 of 32-bit words."""
    h = np.uint32(seed)
    for word in words:
        k = np.uint32(word)
        k = np.uint32(k * np.uint32(0xCC9E2D51))
        k = np.uint32((k << np.uint32(15)) | (k >> np.uint32(17)))
        k = np.uint32(k * np.uint32(0x1B873593))
        h = h ^ k
        h = np.uint32((h << np.uint32(13)) | (h >> np.uint32(19)))
        h = np.uint32(h * np.uint32(5) + np.uint32(0xE6546B64))
    h = h ^ np.uint32(4 * len(words))
    h = h ^ (h >> np.uint32(16))
    h = np.uint32(h * np.uint32(0x85EBCA6B))
    h = h ^ (h >> np.uint32(13))
    h = np.uint32(h * np.uint32(0xC2B2AE35))
    return h ^ (h >> np.uint32(16))


CRC32 = 0


@inner
def hash_tuple(kind, words, seed):
    """The 5-tuple's hash by the named function."""
    if kind == CRC32:
        return crc32(words, seed)
    return murmur3(words, seed)


@entry
def walk_groups(
    group_of,
    group_start,
    group_ports,
    seeds,
    kind,
    edge_column,
    node_row,
    port_peer,
    port_node,
    from_port,
    to_node,
    to_port,
    tuples,
    hops,
    path,
):
    """Follow equal-cost groups from `from_port[i]`, choosing by the hash of `tuples[i]` (uint32 [n, 5]).

    `to_port[i]` is the edge switch's port to the destination, `edge_column` [S] the column of an edge row.
    Otherwise as `walk_tables`.
    """
    for i in range(len(from_port)):
        port, count = from_port[i], 0
        last = to_port[i]
        column = edge_column[node_row[port_node[last]]]
        while True:
            status, node = _hop(path[i], count, port, to_node[i], port_peer, port_node, node_row)
            if status != OK:
                break
            count += 1
            if node == port_node[last]:
                port = last
                continue
            row = node_row[node]
            g = group_of[row, column]
            if g == NONE:
                return NO_ROUTE, i
            start = group_start[g]
            size = group_start[g + 1] - start
            port = group_ports[start + hash_tuple(kind, tuples[i], seeds[row]) % size]
        if status != ARRIVED:
            return status, i
        hops[i] = count + 1
    return OK, 0
