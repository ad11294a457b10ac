"""A bare packet loop for comparison: FIFO ports, fixed paths, two event rings, and nothing else.

No flow control, no acknowledgements, no counters, no buffers' limits, no choice of route. What a feature-laden
kernel takes beyond this is the price of its features on the same machine.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

NEVER = 2**62


@numba.njit(cache=False, nogil=True)
def bare(path: Any, length: Any, packets: int, serialize_ps: int, wire_ps: int, ports: int, room: int) -> Any:
    """Play `packets` packets of every flow over `path[f, :length[f]]`; returns (hops, events, end)."""
    flows = len(length)
    left = np.full(flows, packets)
    busy = np.zeros(ports, np.bool_)
    head, tail = np.full(ports, -1), np.full(ports, -1)
    source = np.full(ports, -1)
    following, flow_of, hop_of = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    for i in range(room):
        following[i] = i + 1
    free = 0
    mask = room - 1
    done_time, done_port = np.empty(room, np.int64), np.empty(room, np.int64)
    come_time, come_packet = np.empty(room, np.int64), np.empty(room, np.int64)
    done_head = done_tail = come_head = come_tail = 0
    hops = events = now = 0
    for f in range(flows):
        source[path[f, 0]] = f
        done_time[done_tail & mask], done_port[done_tail & mask] = 0, path[f, 0]
        done_tail += 1
    while True:
        done_at = done_time[done_head & mask] if done_head < done_tail else NEVER
        come_at = come_time[come_head & mask] if come_head < come_tail else NEVER
        if done_at == NEVER and come_at == NEVER:
            break
        events += 1
        if done_at <= come_at:
            now, at = done_at, done_port[done_head & mask]
            done_head += 1
            busy[at] = False
        else:
            now, p = come_at, come_packet[come_head & mask]
            come_head += 1
            f = flow_of[p]
            hop_of[p] += 1
            if hop_of[p] == length[f]:
                following[p] = free
                free = p
                continue
            at = path[f, hop_of[p]]
            following[p] = -1
            if head[at] < 0:
                head[at] = p
            else:
                following[tail[at]] = p
            tail[at] = p
        if busy[at]:
            continue
        p = head[at]
        if p >= 0:
            head[at] = following[p]
        elif source[at] >= 0 and left[source[at]] > 0:
            f = source[at]
            left[f] -= 1
            p = free
            free = following[p]
            flow_of[p], hop_of[p] = f, 0
        else:
            continue
        busy[at] = True
        hops += 1
        done_time[done_tail & mask], done_port[done_tail & mask] = now + serialize_ps, at
        done_tail += 1
        come_time[come_tail & mask], come_packet[come_tail & mask] = now + serialize_ps + wire_ps, p
        come_tail += 1
    return hops, events, now
