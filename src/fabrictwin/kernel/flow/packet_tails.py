"""Compiled: how late the last packet of a piece is, behind the bytes before it."""

from __future__ import annotations

import numpy as np

from fabrictwin.kernel.jit.decorators import entry


@entry
def packet_tails(edge, port, before, share, inside, piece, rate, stages, mtu, tail):
    """Set `tail[e]` to what the slowest path of edge e takes beyond its latency and `piece[e] / rate[e]`.

    Uses are grouped by edge; those of one path stand one after the other. Only `inside` a host a piece is split
    over several paths, by `share`; of others the first stands for all. The last packet leaves a stage of the
    tandem once it has come and the one before it has left.
    """
    network, wire_bps, byte_ps, of_adapter, header = stages
    u, uses = 0, len(edge)
    while u < uses:
        e = edge[u]
        end = u + 1
        while end < uses and edge[end] == e and before[end] == before[u]:
            end += 1
        if not inside[e] and before[u] != 0:
            u = end
            continue
        size = float(piece[e])
        if inside[e]:
            size = np.rint(size * share[u])
        packets = max(np.ceil(size / mtu), 1.0)
        last = size - (packets - 1) * mtu
        last_ps = full_sum = full_max = 0.0
        for at in range(u, end):
            p = port[at]
            if at + 1 < end:
                onwards = port[at + 1]
                stored = (of_adapter[onwards] and network[p]) or wire_bps[onwards] > wire_bps[p]
                if not stored:
                    continue
            full = byte_ps[p] * (mtu + header[p])
            full_sum += full
            full_max = max(full_max, full)
            left = full_sum + (packets - 2) * full_max if packets > 1 else 0.0
            last_ps = max(last_ps, left) + byte_ps[p] * (last + header[p])
        if np.isfinite(last_ps):  # no link on the way is down
            tail[e] = max(tail[e], last_ps - piece[e] / rate[e])
        u = end
