"""Which part of a fabric each port belongs to: a pod with its share of the cores, leaf groups, or single hosts.

Nodes stand in tiers by their distance from hosts. Without the topmost tiers a fabric falls apart into groups; as
many tiers are taken off as it needs to fall into enough of them. Groups that follow each other make a part, of
about as many ports as the others; the switches that were taken off are dealt out evenly, tier by tier.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state.build import Wiring

FEWEST_ENDPOINTS = 4000  # below, one part's memory is in the caches nearly as well
ENDPOINTS_A_PART = 256
MOST_PARTS = 64


def usual_parts(endpoints: int) -> int:
    """Return into how many parts a fabric of so many endpoints is divided unless somebody says otherwise."""
    return 1 if endpoints < FEWEST_ENDPOINTS else min(endpoints // ENDPOINTS_A_PART, MOST_PARTS)


def divide_ports(wiring: Wiring, parts: int) -> Any:
    """Return [P] the part of each port, at most so many parts: as many as the fabric falls into groups."""
    nodes = len(wiring.node_flags)
    plugged = np.flatnonzero(wiring.port_peer >= 0)
    here, there = wiring.port_node[plugged], wiring.port_node[wiring.port_peer[plugged]]
    inside = (wiring.port_flags[plugged] & s.INTERNAL) != 0
    host = _groups(nodes, here[inside], there[inside])
    tier = _tiers(host, host[here], host[there], host[wiring.port_node[wiring.endpoint_port]])[host]
    group = host
    for top in range(int(tier.max(initial=0)), 0, -1):
        kept = (tier[here] < top) & (tier[there] < top)
        group = _groups(nodes, here[kept], there[kept])
        if len(np.unique(group[tier < top])) >= parts:
            break
    else:
        top = 1
    level = np.where(tier < top, s.NONE, tier)
    return _dealt(group, level, np.diff(wiring.node_port_start), parts)[wiring.port_node]


def _groups(nodes: int, here: Any, there: Any) -> Any:
    """[N] the lowest node that each is linked to, directly or not."""
    lowest = np.arange(nodes)
    while True:
        before = lowest.copy()
        np.minimum.at(lowest, here, before[there])
        np.minimum.at(lowest, there, before[here])
        lowest = lowest[lowest]
        if (lowest == before).all():
            return lowest


def _tiers(host: Any, here: Any, there: Any, ends: Any) -> Any:
    """[N] links from the nearest host that has an adapter; what none reaches counts as a host."""
    tier = np.full(len(host), len(host))
    tier[ends] = 0
    while True:
        before = tier.copy()
        np.minimum.at(tier, here, before[there] + 1)
        if (tier == before).all():
            return np.where(tier < len(host), tier, 0)


def _dealt(group: Any, level: Any, ports: Any, parts: int) -> Any:
    """[N] parts of about as many ports each, of whole groups, where `level` is NONE; others in turn by level."""
    grouped = level == s.NONE
    labels, of = np.unique(group[grouped], return_inverse=True)
    parts = min(parts, len(labels))
    weight = np.bincount(of, weights=ports[grouped])
    middle = np.cumsum(weight) - weight / 2
    part_of_label = np.minimum((middle * parts / max(weight.sum(), 1)).astype(np.int64), parts - 1)
    part_of_label = np.unique(part_of_label, return_inverse=True)[1]  # none is empty
    parts = int(part_of_label.max()) + 1
    part = np.zeros(len(group), np.int64)
    part[grouped] = part_of_label[of]
    for tier in np.unique(level[~grouped]):
        those = np.flatnonzero(level == tier)
        part[those] = np.arange(len(those)) * parts // len(those)
    return part
