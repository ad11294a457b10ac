"""Which parts of a blueprint are joined by cables at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from fabrictwin.base.arrays import starts_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint, Int


def node_count(blueprint: Blueprint) -> int:
    """Switches, adapters and aggregation nodes."""
    adapters = sum(len(host.nics) for host in blueprint.hosts)
    return len(blueprint.switches) + adapters + len(blueprint.aggregations)


def first_adapter(blueprint: Blueprint) -> Int:
    """[H + 1] the node of each host's first adapter; its adapters follow."""
    counts = [len(host.nics) for host in blueprint.hosts]
    return len(blueprint.switches) + starts_of(counts)


def islands(blueprint: Blueprint, *, dead: Iterable[int] = ()) -> Int:
    """[nodes] the smallest node number that each node is joined to. `dead` cables join nothing."""
    alive = np.ones(len(blueprint.cables), bool)
    alive[np.fromiter(dead, np.int64, -1)] = False
    a, b = blueprint.cables.a_node[alive], blueprint.cables.b_node[alive]
    label = np.arange(node_count(blueprint))
    while True:
        lower = np.minimum(label[a], label[b])
        after = label.copy()
        np.minimum.at(after, a, lower)
        np.minimum.at(after, b, lower)
        after = after[after]
        if np.array_equal(after, label):
            return label
        label = after


def check_reachable(blueprint: Blueprint, hosts: Int, *, dead: Iterable[int] = ()) -> None:
    """Raises ConfigError where two of the hosts have no pair of adapters that cables join."""
    label = islands(blueprint, dead=dead)
    start = first_adapter(blueprint)
    # a rail without uplinks is an island of its own: hosts reach each other where they share one
    reached = {h: frozenset(label[start[h] : start[h + 1]].tolist()) for h in hosts.tolist()}
    # the rarest first: one host that was cut off is named rather than all the others
    kinds = [kind for kind, _ in reversed(Counter(reached.values()).most_common())]
    for kind in kinds:
        if all(kind & other for other in kinds):
            continue
        h = next(h for h, mine in reached.items() if mine == kind)
        adapters = np.arange(start[h], start[h + 1])
        plugged = np.isin(adapters, [blueprint.cables.a_node, blueprint.cables.b_node]).any()
        why = "no cable path to the other hosts" if plugged else "no cable at all"
        raise ConfigError(f"host {blueprint.hosts[h].name!r} is unreachable: it has {why}")
