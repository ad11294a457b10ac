"""minhop, updn and dnup as OpenSM 3.3.23 computes them: the best ports by hops, then counters a port.

- minhop: fewest hops, or the least sum of hop weights.
- updn: up, then down. Roots come from a root GUID file; otherwise they are the switches from which more than 90%
  of all adapters are equally far, and no other distance holds more than 5%. Where none is, OpenSM gives no
  tables and tries again for ever; this refuses.
- dnup: away from the adapters, then back, by ranks that count from the switches with adapters.

(osm_ucast_mgr.c, osm_switch.c, osm_ucast_updn.c, osm_ucast_dnup.c.) Left out: `connect_roots`, `ids_guid_file`,
`port_search_ordering_file`, `port_shifting`, ports left out of profiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.base.arrays import I32
from fabrictwin.base.errors import ConfigError
from fabrictwin.routing.engines.filling import Tables, refuse
from fabrictwin.routing.engines.routing_options import Options, edge_costs
from fabrictwin.routing.graph.switch_tiers import graph_of
from fabrictwin.routing.graph.switches import Lids, Switches
from fabrictwin.routing.opensm.subnets import (
    Subnet,
    endpoint_counts,
    fill_subnets,
    mask_words,
    systems,
    wanted,
)

if TYPE_CHECKING:
    from fabrictwin.kernel.routing.hop_counts import Loops

TALL, HIGH = 0.9, 0.05  # shares of all adapters: a root has one bar above the first, and it alone above the second


def minhop(switches: Switches, lids: Lids, options: Options) -> Tables:
    """OpenSM's tables by fewest hops."""
    refuse(options, "minhop", "weights", "order", "scatter")
    return Tables("minhop", fill_subnets(switches, lids, options, _minhop))


def updn(switches: Switches, lids: Lids, options: Options) -> Tables:
    """OpenSM's tables by paths up, then down. Raises ConfigError where OpenSM finds no roots."""
    refuse(options, "updn", "roots", "weights", "order", "scatter")
    known = set(switches.row_guid.tolist())
    strange = sum(guid not in known for guid in options.roots)
    remark = f"{strange} of {len(options.roots)} roots are not in the fabric" if strange else ""
    return Tables("updn", fill_subnets(switches, lids, options, _updn), remark=remark)


def dnup(switches: Switches, lids: Lids, options: Options) -> Tables:
    """OpenSM's tables by paths away from the adapters, then back."""
    refuse(options, "dnup", "order", "scatter")
    return Tables("dnup", fill_subnets(switches, lids, options, _dnup))


def _hops(subnet: Subnet) -> I32:
    """[S, S] fewest hops (or sums of weights) by destination, then switch."""
    from fabrictwin.kernel.routing import table_filling as forwarding

    switches = subnet.switches
    hops = np.empty((switches.rows, switches.rows), np.int32)
    known = set(switches.row_guid.tolist())
    weights = {at: weight for at, weight in subnet.options.weights.items() if at[0] in known}
    graph = graph_of(switches, edge_costs(switches, weights))
    forwarding.shortest_hops(graph, np.arange(switches.rows, dtype=np.int32), hops)
    return hops


def _fill(subnet: Subnet, best: np.ndarray) -> None:
    from fabrictwin.kernel.routing import port_counters

    switches = subnet.switches
    port_counters.least_loaded(
        switches.adjacent_start,
        switches.adjacent_number,
        switches.adjacent_row,
        systems(switches),
        best,
        wanted(subnet),
        subnet.options.scatter,
        subnet.lft,
    )


def _room(switches: Switches) -> np.ndarray:
    return np.empty((switches.rows, switches.rows, mask_words(switches)), np.uint64)


def _minhop(subnet: Subnet) -> None:
    from fabrictwin.kernel.routing import hop_counts

    switches = subnet.switches
    known = set(switches.row_guid.tolist())
    weights = {at: weight for at, weight in subnet.options.weights.items() if at[0] in known}
    best = _room(switches)
    hop_counts.best_ports_by_hops(
        switches.adjacent_start, switches.adjacent_row, edge_costs(switches, weights), _hops(subnet), best
    )
    _fill(subnet, best)


def _roots(subnet: Subnet) -> I32:
    """Rows that OpenSM takes for roots. Raises ConfigError where it finds none."""
    from fabrictwin.kernel.routing import hop_counts

    switches = subnet.switches
    if subnet.options.roots:
        return np.flatnonzero(np.isin(switches.row_guid, np.array(subnet.options.roots, np.uint64))).astype(
            np.int32
        )
    adapters = endpoint_counts(switches)
    found = np.empty(switches.rows, np.uint8)
    total = int(adapters.sum())
    hop_counts.bars(_hops(subnet), adapters, total * TALL, total * HIGH, found)
    return np.flatnonzero(found).astype(np.int32)


def _updn(subnet: Subnet) -> None:
    from fabrictwin.kernel.routing import hop_counts

    roots = _roots(subnet)
    if not len(roots):
        why = (
            "none of the roots is in this subnet"
            if subnet.options.roots
            else "no switch is equally far from 90% of the adapters with no other distance above 5%"
        )
        raise ConfigError(
            f"got a fabric in which OpenSM's updn finds no roots: {why}; expected roots", key="roots"
        )
    _by_queue(subnet, roots, hop_counts.RULE_UPDN)


def _dnup(subnet: Subnet) -> None:
    from fabrictwin.kernel.routing import hop_counts

    leaves = np.flatnonzero(endpoint_counts(subnet.switches)).astype(np.int32)
    if not len(leaves):
        raise ConfigError("got a subnet without adapters, where OpenSM's dnup has no leaf switches", key="engine")
    _by_queue(subnet, leaves, hop_counts.RULE_DNUP)


def _loops(switches: Switches) -> Loops:
    """Cables from a switch to itself as the queue meets them."""
    from fabrictwin.kernel.routing.hop_counts import Loops

    row, number, other = switches.loops.T
    start = np.searchsorted(row, np.arange(switches.rows + 1)).astype(np.int32)
    first = switches.adjacent_start
    before = [
        first[r] + np.searchsorted(switches.adjacent_number[first[r] : first[r + 1]], n)
        for r, n in zip(row.tolist(), number.tolist(), strict=True)
    ]
    place = {(r, n): i for i, (r, n) in enumerate(zip(row.tolist(), number.tolist(), strict=True))}
    back = [place[r, n] for r, n in zip(row.tolist(), other.tolist(), strict=True)]
    return Loops(start, np.array(before, np.int32), np.array(back, np.int32))


def _by_queue(subnet: Subnet, top: I32, rule: int) -> None:
    from fabrictwin.kernel.routing import hop_counts

    switches = subnet.switches
    rank = np.empty(switches.rows, np.int32)
    hop_counts.ranks_below(switches.adjacent_start, switches.adjacent_row, top, rank)
    place = np.empty(switches.rows, np.int64)
    place[np.argsort(switches.row_guid, kind="stable")] = np.arange(switches.rows)
    best = _room(switches)
    hop_counts.best_ports_by_queue(
        switches.adjacent_start,
        switches.adjacent_row,
        switches.adjacent_back,
        rank,
        place,
        rule,
        _loops(switches),
        best,
    )
    _fill(subnet, best)
