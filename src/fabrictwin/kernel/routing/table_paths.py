"""Compiled: the path from a switch by one forwarding table, hop by hop.

A table is `table` [S], the port of every switch toward one LID; `port_edge` [S, ports] and `peer` [E] say which
channel leaves by a port, and to which switch.
"""

from __future__ import annotations

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.jit.decorators import helper

LONGEST_PATH = 64
UNKNOWN, WHOLE, BROKEN = 0, 1, 2


@helper
def follow(row, table, port_edge, peer, path):
    """Fill `path` with the channels of the path from switch `row` by `table` [S]. Returns how many.

    A path that loops is cut where `path`, [LONGEST_PATH], is full.
    """
    length = 0
    while length < len(path):
        e = port_edge[row, table[row]]
        if e == NONE:
            break
        path[length] = e
        length += 1
        row = peer[e]
    return length


@helper
def leads(row, table, port_edge, peer, channel, known, trail):
    """Tell whether the path from switch `row` comes to a switch that is `WHOLE`, or takes a channel (or `NONE`).

    `known` uint8 [S] is what is known of switches, `UNKNOWN`, `WHOLE` or `BROKEN`: all on the way are noted.
    `trail` [LONGEST_PATH] is scratch.
    """
    length = 0
    answer = BROKEN
    while length < LONGEST_PATH:
        if known[row] != UNKNOWN:
            answer = known[row]
            break
        e = port_edge[row, table[row]]
        if e == NONE:
            known[row] = BROKEN
            break
        trail[length] = row
        length += 1
        if e == channel:
            answer = WHOLE
            break
        row = peer[e]
    for i in range(length):
        known[trail[i]] = answer
    return answer == WHOLE
