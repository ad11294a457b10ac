"""Queue pair numbers, and what switches hash of them on Ethernet.

An adapter hands numbers out one after the other, after those that are reserved. RoCE v2 packets carry a UDP source
port that follows from both numbers of a connection (`routing.tables.udp_source_port`).
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I32, I64, U32
from fabrictwin.routing.tables import udp_source_port

FIRST_QPN = 0x48


def _occurrence(values: I32) -> I64:
    """Number the occurrences of each value, from 0."""
    order = np.argsort(values, kind="stable")
    first = np.searchsorted(values[order], values[order])
    result = np.empty(len(values), np.int64)
    result[order] = np.arange(len(values)) - first
    return result


class QueuePairNumbers:
    """Numbers that each adapter hands out, for as long as an engine lives."""

    def __init__(self, adapters: int) -> None:
        self._next = np.full(adapters, FIRST_QPN, np.int64)

    def ports_by_side(self, departing: I32, arriving: I32) -> U32:
        """Return UDP source ports of new connections; requesters' numbers are handed out before the others'."""
        adapters = np.concatenate([departing, arriving])
        qpn = (self._next[adapters] + _occurrence(adapters)).astype(np.uint32)
        np.add.at(self._next, adapters, 1)
        return udp_source_port(qpn[: len(departing)], qpn[len(departing) :])

    def ports_by_connection(self, source: I32, target: I32) -> U32:
        """Return UDP source ports of new connections, whose numbers are handed out one connection after the other.

        An adapter that is connected with itself has one number for both ends.
        """
        ends = np.empty((2, len(source)), np.uint32)
        for i, (a, b) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
            ends[:, i] = self.connection(a, b)
        return udp_source_port(ends[0], ends[1])

    def connection(self, source: int, target: int) -> tuple[int, int]:
        """Return the numbers of the two ends of one new connection."""
        numbers = int(self._next[source]), int(self._next[target])
        self._next[source] += 1
        if target != source:
            self._next[target] += 1
        return numbers


def udp_port(source_qpn: int, target_qpn: int) -> int:
    """Return the UDP source port of a connection between two queue pairs."""
    return int(udp_source_port(*np.array([[source_qpn], [target_qpn]], np.uint32))[0])


def hash_key(udp: int, source: int, target: int) -> int:
    """Return what switches hash of a connection between adapters: its UDP source port above both ends."""
    return (udp << 15) ^ _ends_key(source, target)


def hashed_udp_port(key: int, source: int, target: int) -> int:
    """Return the UDP source port that a `hash_key` was made with."""
    return (key ^ _ends_key(source, target)) >> 15 & 0xFFFF


def _ends_key(source: int, target: int) -> int:
    return (source * 0x1F35) ^ (target * 0x5BD1)
