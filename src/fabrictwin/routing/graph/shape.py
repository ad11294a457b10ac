"""What about a fabric's shape is odd, in words: for engines that need a regular tree, and for people."""

from __future__ import annotations

from collections import Counter

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.graph.switch_tiers import Tiers
from fabrictwin.routing.graph.switches import Switches

FTREE_TIERS = (2, 8)


def irregularity(switches: Switches, tiers: Tiers, *, even: bool = False) -> str:
    """Return the reason why d-mod-k has no place for everything, or an empty string.

    `even`: it is known that nothing is `uneven`.

    It needs endpoints on the lowest tier alone, and that every switch of a tier has as many cables to each of the
    switches above that share its children as all others have.
    """
    rank = tiers.rank.astype(np.int64)
    a, b = switches.adjacent_from, switches.adjacent_row
    level = np.flatnonzero(rank[a] == rank[b])
    if len(level):
        return f"{switches.edge_name(int(level[0]))} joins two switches of the same tier"
    hung = np.flatnonzero(switches.endpoint_row != NONE)
    lowest = int(rank.max(initial=0))
    high = hung[rank[switches.endpoint_row[hung]] != lowest]
    if len(high):
        what = "an adapter" if switches.endpoint_adapter[high[0]] else "an aggregation node"
        return f"{switches.row_name[int(switches.endpoint_row[high[0]])]} carries {what} above the lowest tier"
    odd = "" if even else uneven(switches, tiers)
    if odd:
        return odd
    row, peer, _ = _pairs(switches)
    up = rank[peer] < rank[row]
    parents = np.bincount(row[up], minlength=switches.rows)
    short = np.flatnonzero(up & (parents[row] != tiers.slots[peer]))
    if len(short):
        r, group = int(row[short[0]]), tiers.slots[peer[short[0]]]
        return f"{switches.row_name[r]} has {parents[r]} neighbours up of the {group} that its pod shares"
    return ""


def misfit(switches: Switches, tiers: Tiers, *, proper: bool) -> str:
    """Return the reason why OpenSM's ftree refuses the shape, or an empty string.

    `proper` asks for equal numbers too.
    """
    lowest = int(tiers.rank.max(initial=0))
    if not FTREE_TIERS[0] <= lowest + 1 <= FTREE_TIERS[1]:
        return f"it has {lowest + 1} tiers, expected {FTREE_TIERS[0]} to {FTREE_TIERS[1]}"
    a, b = switches.adjacent_from, switches.adjacent_row
    level = np.flatnonzero(tiers.rank[a] == tiers.rank[b])
    if len(level):
        tier = lowest + 1 - tiers.rank[a[level[0]]]
        return f"{switches.edge_name(int(level[0]))} joins two switches of tier {tier}"
    high = np.flatnonzero((switches.row_adapters > 0) & (tiers.rank != lowest))
    if len(high):
        row = int(high[0])
        return (
            f"{switches.row_name[row]} carries adapters at tier {lowest + 1 - tiers.rank[row]}, "
            "expected them all at tier 1"
        )
    return uneven(switches, tiers) if proper else ""


def uneven(switches: Switches, tiers: Tiers) -> str:
    """The first switch whose neighbours or cables differ in number from those of most others of its tier."""
    lowest = int(tiers.rank.max(initial=0))
    row, peer, cables = _pairs(switches)
    up = tiers.rank[peer] < tiers.rank[row]
    for way, chosen, skipped in (("up", up, 0), ("down", ~up, lowest)):
        groups = np.bincount(row[chosen], minlength=switches.rows)
        for rank in range(lowest + 1):
            rows = np.flatnonzero(tiers.rank == rank)
            if rank != skipped:
                usual = _usual(groups[rows])
                odd = rows[groups[rows] != usual]
                if len(odd):
                    return (
                        f"{switches.row_name[int(odd[0])]} has {groups[odd[0]]} neighbours {way}, where most of "
                        f"tier {lowest + 1 - rank} have {usual}"
                    )
            mine = np.flatnonzero(chosen & (tiers.rank[row] == rank))
            if len(mine):
                usual = _usual(cables[mine])
                wrong = mine[cables[mine] != usual]
                if len(wrong):
                    i = int(wrong[0])
                    return (
                        f"{switches.row_name[int(row[i])]} has {cables[i]} cables {way} to "
                        f"{switches.row_name[int(peer[i])]}, where most of tier {lowest + 1 - rank} have {usual}"
                    )
    return ""


def _usual(counts: I64) -> int:
    """Return the commonest value, of equals the first; regular fabrics are all alike."""
    if (counts == counts[0]).all():
        return int(counts[0])
    return int(Counter(counts.tolist()).most_common(1)[0][0])


def _pairs(switches: Switches) -> tuple[I64, I64, I64]:
    """Pairs of neighbours, both ways, and the cables of each."""
    joined = switches.adjacent_from.astype(np.int64) * switches.rows + switches.adjacent_row
    joined = np.sort(joined)
    first = np.flatnonzero(np.concatenate([[True], joined[1:] != joined[:-1]])[: len(joined)])
    return joined[first] // switches.rows, joined[first] % switches.rows, np.diff(np.append(first, len(joined)))
