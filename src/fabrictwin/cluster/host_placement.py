"""Which hosts a job gets, in the order of its ranks.

Contiguous, the default, sorts hosts by the leaf switches of their adapters in rail order, then by name, so that
neighbours in rank order are neighbours in the network. Only hosts of a catalog type can hold ranks.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.cluster.blueprint import Blueprint, Int
from fabrictwin.cluster.connectivity import check_reachable, first_adapter, node_count
from fabrictwin.cluster.faults import find_faults
from fabrictwin.cluster.names import natural_key
from fabrictwin.cluster.spec.spec import Spec


def place(blueprint: Blueprint, spec: Spec, *, hosts: int | None = None) -> Int:
    """Indices of the first `hosts` hosts (all where None) that the spec's placement names, in order.

    Raises ConfigError where there are not as many, or where two of them cannot reach each other.
    """
    order = _order(blueprint, spec)
    if hosts is not None:
        if hosts > len(order):
            what = "that placement.hosts names" if spec.placement.hosts else "of a catalog type in the cluster"
            raise spec.error("placement", f"got a job for {hosts} hosts, expected at most the {len(order)} {what}")
        order = order[:hosts]
    cables, _ = find_faults(blueprint, spec)
    try:
        check_reachable(blueprint, order, dead=[fault.cable for fault in cables if fault.rate_bps == 0])
    except ConfigError as error:
        raise spec.error("cluster", error.message) from None
    return order


def _order(blueprint: Blueprint, spec: Spec) -> Int:
    typed = [h for h, host in enumerate(blueprint.hosts) if host.type]
    placement = spec.placement
    if placement.hosts:
        return _named(blueprint, spec)
    if placement.order == "scattered":
        return np.array(sorted(typed, key=lambda h: (_mix(placement.seed, h), h)), dtype=np.int64)
    return contiguous(blueprint, typed)


def contiguous(blueprint: Blueprint, hosts: list[int]) -> Int:
    """`hosts` sorted by the leaf switches of their adapters in rail order, then by name."""
    cables = blueprint.cables
    peer = np.full(node_count(blueprint), np.iinfo(np.int64).max)
    peer[cables.a_node] = cables.b_node
    # a switch may be the a end of many cables, but an adapter has only one
    peer[cables.b_node] = cables.a_node
    start = first_adapter(blueprint)

    def key(h: int) -> tuple[object, ...]:
        rails = [nic.rail for nic in catalog.host(blueprint.hosts[h].type).nics]
        by_rail = sorted(range(len(rails)), key=lambda k: (rails[k], k))
        return tuple(peer[start[h] + by_rail].tolist()), natural_key(blueprint.hosts[h].name)

    return np.array(sorted(hosts, key=key), dtype=np.int64)


def _named(blueprint: Blueprint, spec: Spec) -> Int:
    names = {host.name: h for h, host in enumerate(blueprint.hosts)}
    chosen: dict[int, None] = {}
    for i, pattern in enumerate(spec.placement.hosts):
        key = f"placement.hosts[{i}]"
        if pattern in names:
            h = names[pattern]
            if not blueprint.hosts[h].type:
                raise spec.error(
                    key, f"got {pattern!r}, which is not bound to a catalog host, expected one that is"
                )
            if h in chosen:
                raise spec.error(key, f"got {pattern!r} a second time, expected each host once")
            chosen[h] = None
            continue
        found = [h for name, h in names.items() if fnmatchcase(name, pattern) and blueprint.hosts[h].type]
        if not found:
            hint = did_you_mean(pattern, names)
            raise spec.error(key, f"got {pattern!r}, expected the name of a catalog host or a glob of such{hint}")
        chosen |= dict.fromkeys(sorted(found, key=lambda h: natural_key(blueprint.hosts[h].name)))
    return np.array(list(chosen), dtype=np.int64)


def _mix(seed: int, index: int) -> int:
    """splitmix64 (Steele, Lea, Flood 2014) of seed and index: the same order on every machine and version."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31
