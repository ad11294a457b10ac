"""A network sized by what it needs: the fewest switches that join the cluster's adapters.

    one switch    while its ports are enough
    two tiers     leaves with as many times more ports down than up as they are oversubscribed, spines above
    three tiers   pods of leaves and as many middle switches as their ports up fill, cores above

A generated cluster has the tiers and rails that its spec asks for, which small clusters do not need; what is
bought is judged by this.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.catalog.price_book import PriceBook
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.study.cost.bill_of_materials import Bill, Item, bill_of_materials, cable_item


@record
class Clos:
    """Switches of a network, and cables between them."""

    switches: int
    trunks: int


def smallest(adapters: int, ports: int, oversubscription: float = 1.0) -> Clos | None:
    """The smallest network of switches with so many ports; None where three tiers are not enough."""
    if adapters <= ports:
        return Clos(1, 0)
    down = min(ports - 1, int(ports * oversubscription / (1 + oversubscription)))
    up = min(ports - down, math.ceil(down / oversubscription - 1e-9))
    leaves = -(-adapters // down)
    trunks = leaves * up
    if leaves <= ports:
        return Clos(leaves + -(-trunks // ports), trunks)
    half = ports // 2
    middle = -(-trunks // half)
    cores = -(-middle * half // ports)
    if middle > ports * half:
        return None
    return Clos(leaves + middle + cores, trunks + middle * half)


def needed(blueprint: Blueprint, book: PriceBook, oversubscription: float = 1.0) -> Bill:
    """The bill with the network that its adapters need, where that is fewer switches than are built."""
    built = bill_of_materials(blueprint, book)
    cables, switches = blueprint.cables, Counter(switch.type for switch in blueprint.switches)
    if len(switches) != 1 or not len(cables):
        return built
    to_host = (cables.a_node >= len(blueprint.switches)) | (cables.b_node >= len(blueprint.switches))
    ports = min(switch.ports for switch in blueprint.switches)
    size = smallest(int(to_host.sum()), ports, oversubscription)
    if size is None or size.switches >= len(blueprint.switches):
        return built
    items = [replace(item, count=size.switches) if item.kind == "switch" else item for item in built.items]
    items = [item for item in items if item.kind != "cable"]
    runs = Counter(zip(cables.rate_bps[to_host].tolist(), cables.length_mm[to_host].tolist(), strict=True))
    if size.trunks:
        # as the longest that is built
        rate, length = int(cables.rate_bps.max()), int(np.max(cables.length_mm))
        runs[rate, length] += size.trunks
    found: list[Item] = [cable_item(rate, length, count, book) for (rate, length), count in sorted(runs.items())]
    return replace(built, items=(*items, *found))
