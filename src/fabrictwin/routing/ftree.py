"""Fat-tree routing: balanced trees for shift permutations, on regular and nearly regular fat-trees.

The rules are those of OpenSM's ftree. Without a root GUID file the fabric must be a proper fat-tree: 2 to 8
tiers, all adapters at the lowest, links between neighbouring tiers only, and all switches of a tier with equally
many neighbours up (roots excepted) and down (leaves excepted) and equally many cables to each. With a root GUID
file only the number of tiers and the place of the adapters matter. What is odd about a fabric is said by name.

The filling itself (`kernel.trees.fill_fat_trees`) is not OpenSM's code path: it knows the paths that a link
really carries, and falls back on d-mod-k's places where links are equally loaded.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from fabrictwin.errors import ConfigError
from fabrictwin.routing.filling import Tables, blank_tables, destinations, refuse
from fabrictwin.routing.options import Options
from fabrictwin.routing.switches import Lids, Switches
from fabrictwin.routing.tiers import Tiers, graph_of
from fabrictwin.routing.updn import oriented, with_lanes

TIERS = (2, 8)


def misfit(switches: Switches, tiers: Tiers, *, proper: bool) -> str:
    """Why ftree refuses the shape, or an empty string. `proper` asks for equal numbers of neighbours too."""
    lowest = int(tiers.rank.max(initial=0))
    if not TIERS[0] <= lowest + 1 <= TIERS[1]:
        return f"it has {lowest + 1} tiers, expected {TIERS[0]} to {TIERS[1]}"
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
    return _uneven(switches, tiers) if proper else ""


def _uneven(switches: Switches, tiers: Tiers) -> str:
    """The first switch whose neighbours or cables differ in number from those of most others of its tier."""
    lowest = int(tiers.rank.max(initial=0))
    a, b = switches.adjacent_from.astype(np.int64), switches.adjacent_row.astype(np.int64)
    pair, cables = np.unique(a * switches.rows + b, return_counts=True)
    row, peer = pair // switches.rows, pair % switches.rows
    up = tiers.rank[peer] < tiers.rank[row]
    for way, chosen, skipped in (("up", up, 0), ("down", ~up, lowest)):
        groups = np.bincount(row[chosen], minlength=switches.rows)
        for rank in range(lowest + 1):
            rows = np.flatnonzero(tiers.rank == rank)
            if rank != skipped:
                usual = Counter(groups[rows].tolist()).most_common(1)[0][0]
                odd = rows[groups[rows] != usual]
                if len(odd):
                    return (
                        f"{switches.row_name[int(odd[0])]} has {groups[odd[0]]} neighbours {way}, where most of "
                        f"tier {lowest + 1 - rank} have {usual}"
                    )
            mine = np.flatnonzero(chosen & (tiers.rank[row] == rank))
            if len(mine):
                usual = Counter(cables[mine].tolist()).most_common(1)[0][0]
                wrong = mine[cables[mine] != usual]
                if len(wrong):
                    i = int(wrong[0])
                    return (
                        f"{switches.row_name[int(row[i])]} has {cables[i]} cables {way} to "
                        f"{switches.row_name[int(peer[i])]}, where most of tier {lowest + 1 - rank} have {usual}"
                    )
    return ""


def fill(switches: Switches, lids: Lids, tiers: Tiers, options: Options, *, engine: str) -> Tables:
    """Tables by chains of main switches; paths that need it get lanes of their own."""
    from fabrictwin.kernel import trees

    lft = blank_tables(switches, lids)
    load = np.zeros(len(switches.adjacent_row), np.int64)
    graph = graph_of(switches, np.ones(len(load), np.int32), tiers)
    astray, _ = trees.fill_fat_trees(
        graph,
        destinations(switches, lids, tiers.visit),
        switches.row_adapters,
        tiers.slot,
        tiers.slots,
        tiers.rank,
        lft,
        load,
    )
    if not astray:
        return Tables(engine, lft)
    return with_lanes(switches, tiers, lids, lft, options, engine=engine)


def ftree(switches: Switches, lids: Lids, options: Options) -> Tables:
    """Tables of a fat-tree. Raises ConfigError that says what about the shape does not fit."""
    refuse(options, "ftree", "roots")
    tiers = oriented(switches, options)
    odd = misfit(switches, tiers, proper=not options.roots)
    if odd:
        hint = "the engine auto" if options.roots else "the engine auto or a root GUID file"
        raise ConfigError(f"got a fabric that is no fat-tree: {odd}; expected one, or {hint}", key="engine")
    return fill(switches, lids, tiers, options, engine="ftree")
