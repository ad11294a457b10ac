"""Min-hop: shortest paths, and among equal ones the port that carries the fewest destinations so far.

What OpenSM calls minhop. Works on any graph; promises no freedom from deadlock where the shortest paths of a
graph turn down and up again. Port weights replace hops by sums of weights.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.routing.engines.filling import Tables, blank_tables, destinations, refuse
from fabrictwin.routing.engines.routing_options import Options, edge_costs
from fabrictwin.routing.graph.switch_tiers import graph_of
from fabrictwin.routing.graph.switches import Lids, Switches


def shortest(switches: Switches, lids: Lids, options: Options) -> Tables:
    """Tables by shortest paths."""
    from fabrictwin.kernel.routing import table_filling as forwarding

    refuse(options, "shortest", "weights")
    cost = edge_costs(switches, options.weights)
    lft = blank_tables(switches, lids)
    load = np.zeros(len(cost), np.int32)
    forwarding.fill_least_loaded(
        graph_of(switches, cost), forwarding.SHORTEST, destinations(switches, lids), lft, load
    )
    return Tables("shortest", lft)
