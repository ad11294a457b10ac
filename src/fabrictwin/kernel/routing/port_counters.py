"""Compiled: one port of the best for each destination, by counters of destinations a port, as OpenSM chooses.

Switch after switch, destination after destination in one order for all: among the best ports the one with the
fewest destinations so far, the lowest of equals. With an LMC further LIDs of a port look on from the port that the
LID before took, and prefer ports toward systems, then switches, that the port's earlier LIDs do not use. Scattered
destinations take one of the least loaded at random, by the numbers of the C library's random().
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.jit.decorators import entry, helper, inner

_MOST = 1 << 30


class Wanted(NamedTuple):
    """K destinations in the order in which they are given ports."""

    row: np.ndarray  # int32 [K] the switch that it is or hangs on
    lid: np.ndarray  # int32 [K] base LID
    counted: np.ndarray  # uint8 [K] whether load is counted: adapters yes, switches no
    paths: np.ndarray  # int32 [K] LIDs from the base
    scattered: np.ndarray  # uint8 [K]


class Used(NamedTuple):
    """The switches that earlier LIDs of each destination go on to, from one switch."""

    row: np.ndarray  # int32 [K, paths]
    times: np.ndarray  # int32 [K, paths]
    filled: np.ndarray  # int32 [K]


@helper
def _member(best, to, row, at):
    return (best[to, row, at >> 6] >> np.uint64(at & 63)) & np.uint64(1) != 0


@helper
def _share_out(to_these, k, last, best, first, row, numbers, load, entries):
    """Ports for destinations `k` up to `last`, which all live at one switch: in rounds over the least loaded."""
    to = to_these.row[k]
    while k < last:
        least = _MOST
        for i in range(len(numbers)):
            if load[i] < least and _member(best, to, row, i):
                least = load[i]
        if least == _MOST:
            return
        for i in range(len(numbers)):
            if load[i] == least and _member(best, to, row, i):
                load[i] += to_these.counted[k]
                until = k + 1 if to_these.counted[k] else last
                while k < until:
                    entries[to_these.lid[k]] = numbers[i]
                    k += 1
                if k == last:
                    return


@inner
def _seeded(seed):
    """The state of random() after srandom(seed): 31 numbers, and the places of the two that are added next."""
    state = np.empty(33, np.uint32)
    value = np.int64(seed)
    state[0] = value
    for i in range(1, 31):
        value = (16807 * value) % 2147483647
        state[i] = value
    state[31], state[32] = 3, 0
    for _ in range(310):
        _random(state)
    return state


@helper
def _random(state):
    """The next number of random(): additive feedback over 31 numbers."""
    front, rear = np.int64(state[31]), np.int64(state[32])
    total = np.uint32(state[front] + state[rear])
    state[front] = total
    state[31] = front + 1 if front < 30 else 0
    state[32] = rear + 1 if rear < 30 else 0
    return np.int64(total >> np.uint32(1))


@helper
def _scattered(best, to, row, numbers, load, state):
    """The place of one of the least loaded ports, drawn; NONE where there is none."""
    least, count = _MOST, 0
    for i in range(len(numbers)):
        if _member(best, to, row, i):
            if load[i] < least:
                least, count = load[i], 0
            count += load[i] == least
    if count == 0:
        return NONE
    left = _random(state) % count
    for i in range(len(numbers)):
        if load[i] == least and _member(best, to, row, i):
            if left == 0:
                return i
            left -= 1
    return NONE


@helper
def _find(used, k, row, system, by_system):
    """The place of the first earlier way of destination `k` by that switch or its system, or NONE."""
    for j in range(used.filled[k]):
        at = used.row[k, j]
        if (system[at] == system[row]) if by_system else (at == row):
            return j
    return NONE


@helper
def _apart(best, k, to, row, first, begin, numbers, peer, system, used, load):
    """The place of the port for a further LID of destination `k`, looking from place `begin` on."""
    chosen, other_system, other_switch = NONE, NONE, NONE
    least, least_system, least_switch, forwarded = _MOST, _MOST, _MOST, _MOST
    for turn in range(len(numbers)):
        i = begin + turn if begin + turn < len(numbers) else begin + turn - len(numbers)
        if not _member(best, to, row, i):
            continue
        onward = peer[first + i]
        known = NONE
        if _find(used, k, onward, system, True) == NONE:
            if load[i] < least_system:
                least_system, other_system, forwarded = load[i], i, 0
        else:
            known = _find(used, k, onward, system, False)
            if known == NONE and load[i] < least_switch:
                least_switch, other_switch, forwarded = load[i], i, 0
        if load[i] < least:
            chosen, least = i, load[i]
            if known != NONE:
                forwarded = min(forwarded, used.times[k, known])
        elif known != NONE and load[i] == least and used.times[k, known] < forwarded:
            forwarded, chosen = used.times[k, known], i
    if other_system != NONE:
        return other_system
    return other_switch if other_switch != NONE else chosen


@helper
def _remember(used, k, row):
    """Note that a LID of destination `k` goes on to a switch."""
    at = 0
    while at < used.filled[k] and used.row[k, at] != row:
        at += 1
    if at == used.filled[k]:
        used.row[k, at], used.times[k, at] = row, 0
        used.filled[k] += 1
    used.times[k, at] += 1


@helper
def _one_by_one(to_these, offset, best, first, row, numbers, peer, system, used, state, load, entries):
    """Ports from one switch for LID `offset` of all destinations, where ranges or chance have a say."""
    for k in range(len(to_these.row)):
        to = to_these.row[k]
        if to == row or offset >= to_these.paths[k]:
            continue
        lid = to_these.lid[k] + offset
        if to_these.scattered[k] and offset == 0:
            i = _scattered(best, to, row, numbers, load, state)
        else:
            begin = 0
            while offset and begin < len(numbers) and numbers[begin] <= entries[lid - 1]:
                begin += 1
            i = _apart(best, k, to, row, first, begin, numbers, peer, system, used, load)
        if i == NONE:
            continue
        entries[lid] = numbers[i]
        if to_these.counted[k]:
            load[i] += 1
            _remember(used, k, peer[first + i])


@entry
def least_loaded(start, number, peer, system, best, to_these, seed, lft):
    """Fill forwarding tables `lft` uint8 [S, LIDs] with the ports toward all destinations at other switches.

    `best` is as of `hop_counts`; `system` int32 [S] numbers the chassis that switches belong to; `seed` is that of
    scattered destinations, 0 where there are none.
    """
    rows, total = len(start) - 1, len(to_these.row)
    offsets = to_these.paths.max() if total else 0
    plain = offsets <= 1 and seed == 0
    room = 0 if plain else total
    used = Used(np.empty((room, offsets), np.int32), np.empty((room, offsets), np.int32), np.zeros(room, np.int32))
    state = _seeded(seed if seed else 1)
    for row in range(rows):
        first = start[row]
        numbers = number[first : start[row + 1]]
        load = np.zeros(len(numbers), np.int64)
        if not plain:
            used.filled[:] = 0
            for offset in range(offsets):
                _one_by_one(to_these, offset, best, first, row, numbers, peer, system, used, state, load, lft[row])
            continue
        k = 0
        while k < total:
            last = k + 1
            while (
                last < total
                and to_these.row[last] == to_these.row[k]
                and (to_these.counted[last] == to_these.counted[k])
            ):
                last += 1
            if to_these.row[k] != row:
                _share_out(to_these, k, last, best, first, row, numbers, load, lft[row])
            k = last
