"""Which virtual lane a port serves next.

*Ethernet* (IEEE 802.1Q 8.6.8): strict priorities from the highest, the others by deficit-weighted turns.

*InfiniBand* (Architecture 7.6.9): two tables of (lane, weight). While the high-priority table has something to
send and its limit is not used up, it is served; the low-priority table has its turn when the high one has nothing
or has sent its limit, and a packet of the low one gives the limit back. Within a table entries are served in a
circle: an entry sends until its weight, in blocks of 64 bytes, is used up (the last packet may go beyond) or its
lane has nothing, and has its whole weight again when its turn comes round. The limit counts 4,096 bytes; 0 is one
packet, 255 no limit.

An entry's turn is taken when its packet leaves, not when it is looked at, so a lane without credits loses nothing.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.state.constants import ARBITRATED, BLOCK_BITS, NONE

HIGH = 0
LOW = 1
ENTRIES = 64
UNLIMITED = 255
LIMIT_UNIT = 4096


@helper
def highest(lanes):
    """The highest lane of a mask that is not empty."""
    vl = 0
    while lanes > 1:
        lanes >>= 1
        vl += 1
    return vl


@outlined
def _entry(state, row, table, at, left, eligible):
    """The entry to serve: the present one while it has weight left and something to send, else the next."""
    first = (row * 2 + table) * ENTRIES
    if left > 0 and (eligible >> int(state.arbitration[first + at, 0])) & 1:
        return at
    for step in range(1, ENTRIES + 1):
        entry = (at + step) & (ENTRIES - 1)
        lane, weight = int(state.arbitration[first + entry, 0]), int(state.arbitration[first + entry, 1])
        if weight > 0 and (eligible >> lane) & 1:
            return entry
    return NONE


@outlined
def from_tables(state, at, eligible):
    """The lane by the port's tables; notes which entry that is, for `charge`."""
    arbiter = state.arbiter[at]
    row = int(arbiter.row)
    entry = _entry(state, row, LOW, int(arbiter.low_at), int(arbiter.low_left), eligible)
    table = LOW
    if entry == NONE or arbiter.budget > 0:
        high = _entry(state, row, HIGH, int(arbiter.high_at), int(arbiter.high_left), eligible)
        if high != NONE:
            table = HIGH
            entry = high
    arbiter.pick_table = table
    arbiter.pick = entry
    # `build` refuses tables that leave a lane out, so there is an entry
    return int(state.arbitration[(row * 2 + table) * ENTRIES + entry, 0])


@outlined
def charge(state, at, wire):
    """The packet that `from_tables` chose leaves, or the only one there was: pay for it."""
    arbiter = state.arbiter[at]
    row = int(arbiter.row)
    entry = int(arbiter.pick)
    if entry == NONE:  # nothing else had anything to send: the low table had its opportunity
        arbiter.budget = state.high_limit[row]
        return
    arbiter.pick = NONE
    table = int(arbiter.pick_table)
    weight = int(state.arbitration[(row * 2 + table) * ENTRIES + entry, 1])
    used = (wire + (1 << BLOCK_BITS) - 1) >> BLOCK_BITS
    if table == HIGH:
        left = int(arbiter.high_left)
        if entry != arbiter.high_at or left <= 0:
            left = weight
        arbiter.high_at = entry
        arbiter.high_left = left - used
        arbiter.budget -= used << BLOCK_BITS
    else:
        left = int(arbiter.low_left)
        if entry != arbiter.low_at or left <= 0:
            left = weight
        arbiter.low_at = entry
        arbiter.low_left = left - used
        arbiter.budget = state.high_limit[row]


@helper
def arbitrate(state, at, port, eligible):
    """The lane to serve; `eligible` has a bit for each lane that could send, at least one."""
    if eligible & (eligible - 1) == 0:
        if port.traits & ARBITRATED:
            state.arbiter[at].pick = NONE
        return highest(eligible)
    if port.traits & ARBITRATED:
        return from_tables(state, at, eligible)
    first = eligible & port.strict
    if first:
        return highest(first)
    base = at << state.settings[0].vl_bits
    vl = int(port.wrr)
    if (eligible >> vl) & 1 and state.outlet[base + vl].deficit > 0:
        return vl
    lanes = 1 << state.settings[0].vl_bits
    for _ in range(lanes):
        vl += 1
        if vl >= lanes:
            vl = 0
        if (eligible >> vl) & 1:
            break
    outlet = state.outlet[base + vl]
    outlet.deficit = min(outlet.deficit, 0) + state.hold[base + vl].quantum
    port.wrr = vl
    return vl
