"""Fat-tree routing: balanced trees for shift permutations, on regular and nearly regular fat-trees.

The rules are those of OpenSM's ftree. Without a root GUID file the fabric must be a proper fat-tree: 2 to 8
tiers, all adapters at the lowest, links between neighbouring tiers only, and all switches of a tier with equally
many neighbours up (roots excepted) and down (leaves excepted) and equally many cables to each. With a root GUID
file only the number of tiers and the place of the adapters matter. What is odd about a fabric is said by name.

The filling is not OpenSM's code path. A regular tree is filled by d-mod-k, whose tables carry every shift
without a collision as OpenSM's do; others by `kernel.routing.destination_trees.fill_fat_trees`, which knows the
paths that a link really carries, and takes d-mod-k's places where links are equally loaded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.routing.engines import dmodk
from fabrictwin.routing.engines.filling import Tables, blank_tables, destinations, refuse
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.engines.updown import oriented, with_lanes
from fabrictwin.routing.graph.shape import irregularity, misfit
from fabrictwin.routing.graph.switch_tiers import Tiers, graph_of
from fabrictwin.routing.graph.switches import Lids, Switches


def fill(switches: Switches, lids: Lids, tiers: Tiers, options: Options, *, engine: str) -> Tables:
    """Tables by chains of main switches; paths that need it get lanes of their own."""
    from fabrictwin.kernel.routing import destination_trees as trees

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


def fattree(switches: Switches, lids: Lids, options: Options) -> Tables:
    """Tables of a fat-tree. Raises ConfigError that says what about the shape does not fit."""
    refuse(options, "fattree", "roots")
    tiers = oriented(switches, options)
    odd = misfit(switches, tiers, proper=not options.roots)
    if odd:
        hint = "the engine auto" if options.roots else "the engine auto or a root GUID file"
        raise ConfigError(f"got a fabric that is no fat-tree: {odd}; expected one, or {hint}", key="engine")
    if not irregularity(switches, tiers, even=not options.roots):
        return replace(dmodk.fill(switches, lids, tiers), engine="fattree")
    return fill(switches, lids, tiers, options, engine="fattree")
