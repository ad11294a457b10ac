"""Chunks of chains that meet: channels of one broadcast on the same link at the same time.

A channel sends a chunk every period, which its busiest link sets, and the last one has the whole chain before it.
While that is on an edge, chunks that another channel sent whole periods earlier are further on, and perhaps on the
same link. For as long as both are there each gets an equal part of it, which delays both; when they are where
follows from that, found in a few rounds. Channels that take the same way side by side stay together all along it,
and each edge takes as long as for all their chunks.

Left out: arbitration between packets, by which channels side by side come apart hop by hop, one ahead of the
others, so that a chain inside a host with few chunks ends sooner (docs/engines.md). What is added up is time, not
queues: chunks that delay others are taken to be where a steady flow has them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fabrictwin.fabric.fabric import I64, NONE, Fabric
from fabrictwin.fabric.paths import EndToEnd
from fabrictwin.units import PS_PER_S

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

_ROUNDS = 6  # of finding when chunks meet, and how that delays them
_SEED = 0xC4A1
_PAIRS = 1 << 20  # of edges on one link that are looked at together


def met_rates(
    found: EndToEnd,
    fabric: Fabric,
    group: I64,
    channel: I64,
    latency_ps: I64,
    rate: F64,
    chunk: F64,
    chunks: I64,
    mine: Bool,
) -> F64:
    """[E] what a chain's last chunk gets of `rate` where it meets chunks of other channels on a link.

    Arrays are [E], edges in the order of their chains; those not `mine` keep their rate, and those of different
    groups do not meet.
    """
    edges = np.flatnonzero(mine)
    at = np.full(len(mine), NONE, np.int64)
    at[edges] = np.arange(len(edges))
    used = np.flatnonzero(at[found.edge] != NONE)
    key = group[found.edge[used]] * fabric.ports + found.port[used]
    order = np.argsort(key, kind="stable")
    used, key = used[order], key[order]
    edge, port = at[found.edge[used]], found.port[used]
    channel, latency, alone_rate = channel[edges], latency_ps[edges], rate[edges]
    alone, most = chunk[edges] / alone_rate, chunks[edges] - 1
    # of a link's whole rate, what a byte of the edge's needs
    need = found.share[used] * 8 * PS_PER_S / fabric.port_payload_bps[port] * alone_rate[edge]
    begin = np.searchsorted(key, key)
    slowest = np.zeros(int(channel.max()) + 1)
    np.maximum.at(slowest, channel[edge], alone[edge] * np.bincount(begin, weights=need)[begin])
    period = np.maximum(slowest, 1.0)[channel]
    kept = _tightest(begin, edge, need)
    if not len(kept):
        return rate
    edge, need = edge[kept], need[kept]
    begin = np.searchsorted(key[kept], key[kept])
    size = np.searchsorted(key[kept], key[kept], side="right") - begin
    first = np.searchsorted(channel, channel)
    cut = np.flatnonzero(np.diff(np.cumsum(size) // _PAIRS, prepend=-1))
    took = alone.copy()
    for _ in range(_ROUNDS):
        after = np.cumsum(took + latency)
        start = after - took - latency
        start = start - start[first]
        load = np.ones(len(edges))
        for low, high in zip(cut, np.append(cut[1:], len(edge)), strict=True):
            here = np.arange(low, high)
            row = np.repeat(here, size[here])
            other = np.arange(len(row)) - np.repeat(np.cumsum(size[here]) - size[here], size[here]) + begin[row]
            a, b = edge[row], edge[other]
            both = np.zeros(len(row))
            for more in (0, 1):
                earlier = np.floor((start[b] - start[a]) / period[b]) + more
                come = start[b] - earlier * period[b]
                shared = np.minimum(start[a] + took[a], come + took[b]) - np.maximum(start[a], come)
                both += np.where((earlier >= 0) & (earlier <= most[b]), np.maximum(shared, 0.0), 0.0)
            part = np.where(a == b, 1.0, np.minimum(both / np.maximum(took[a], 1e-9), 1.0))
            total = np.bincount(row - low, weights=need[other] * part, minlength=len(here))
            np.maximum.at(load, edge[here], total)
        took = alone * load
    result = rate.copy()
    slowed = np.flatnonzero(load > 1.0)
    result[edges[slowed]] = alone_rate[slowed] / load[slowed]
    return result


def _tightest(begin: I64, edge: I64, need: F64) -> I64:
    """Uses of links where edges meet; of links that the same edges use only the one they need most of."""
    if not len(edge):
        return begin
    keys = np.random.Generator(np.random.PCG64(_SEED)).integers(1, 2**64, int(edge.max()) + 1, dtype=np.uint64)
    link = np.flatnonzero(begin == np.arange(len(begin)))
    size = np.diff(np.append(link, len(begin)))
    users, total = np.add.reduceat(keys[edge], link), np.add.reduceat(need, link)
    order = np.lexsort((link, -total, users))
    first = order[np.concatenate([[True], users[order][1:] != users[order][:-1]])]
    stays = np.zeros(len(link), bool)
    stays[first[size[first] > 1]] = True
    found: I64 = np.flatnonzero(np.repeat(stays, size))
    return found
