"""Regular networks: single switch, fat-tree, rail-optimised fat-tree.

A fat-tree of two tiers is leaves and spines; of three, *groups* of leaves that share spines, and cores, where
core group i joins spine i of every group. In a plain fat-tree a group is a pod. In a rail-optimised one NIC k
of each host of a scalable unit goes to leaf k of that unit, and a group is one rail of a pod, as built in DGX
SuperPODs of three tiers.

The trees are the parallel-link fat-trees (PGFT) of E. Zahavi, "D-Mod-K Routing Providing Non-Blocking Traffic
for Shift Permutations on Real Life Fat Trees" (CCIT report 776, 2010): up port j of a switch goes to parent
j mod parents, so that consecutive destinations spread over parents first and parallel links second.

As few switches are built as the hosts need, with the links of a switch spread evenly over its parents; where
that cannot come out even (a number of spines that was asked for), the parents' loads differ by one at most.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import ranges, within_runs
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.cluster.blueprint import Int
from fabrictwin.cluster.spec.cluster_section import Topology
from fabrictwin.kernel.codes import NONE


@record
class Wiring:
    """The switches of a network and what is plugged into which of their ports (from 1)."""

    names: tuple[str, ...]  # [S]
    tier: Int  # [S] from 1
    pod: Int  # [S] NONE where there are none
    adapter_switch: Int  # [A] adapters in host order
    adapter_port: Int  # [A]
    lower: Int  # [T] trunks: the switch nearer to the hosts
    lower_port: Int  # [T]
    upper: Int  # [T]
    upper_port: Int  # [T]


@record
class _Leaves:
    """Where hosts are plugged in: leaves are numbered unit by unit, and in a unit rail by rail."""

    down: int  # ports to hosts
    up: int
    needed: int  # leaves of one rail that the hosts fill
    rails: int  # 1 in a plain fat-tree
    adapter_leaf: Int  # [A]
    adapter_port: Int  # [A]


def wire(topology: Topology, *, nics: npt.ArrayLike, radix: int) -> Wiring:
    """Wire hosts with `nics[h]` adapters to switches of `radix` ports. Raises ConfigError with a key."""
    counts = np.asarray(nics, dtype=np.int64)
    if topology.radix is not None:
        radix = topology.radix
    if topology.kind == "single-switch":
        return _single(int(counts.sum()), radix)
    if radix < 2:
        raise ConfigError(f"got {radix}, expected at least 2 ports", key="radix")
    if counts.sum() > radix**3 / 2:  # what three tiers hold even if leaves have next to no ports up
        raise ConfigError(
            f"got hosts with {counts.sum()} adapters, more than three tiers of {radix}-port switches can hold",
            key="tiers",
        )
    leaves = _plug_hosts(topology, counts, radix)
    if topology.tiers == 3 or (topology.tiers is None and not _fits_two_tiers(topology, leaves, radix)):
        return _three_tiers(topology, leaves, radix)
    return _two_tiers(topology, leaves, radix)


def _single(adapters: int, radix: int) -> Wiring:
    if adapters > radix:
        raise ConfigError(f"got {adapters} adapters, expected at most the {radix} ports of one switch", key="kind")
    none = np.zeros(0, np.int64)
    return Wiring(
        names=("switch-0",),
        tier=np.ones(1, np.int64),
        pod=np.full(1, NONE),
        adapter_switch=np.zeros(adapters, np.int64),
        adapter_port=np.arange(1, adapters + 1),
        lower=none,
        lower_port=none,
        upper=none,
        upper_port=none,
    )


def _evenly(hosts: int, down: int, each: int) -> int:
    """Ports down of a leaf when hosts of `each` ports spread evenly over as few leaves as they need."""
    if each > down:
        return down
    leaves = _ceil(hosts / (down // each))
    return _ceil(hosts / leaves) * each


def _plug_hosts(topology: Topology, nics: Int, radix: int) -> _Leaves:
    ratio = topology.oversubscription
    if topology.leaf_down is None:
        # the most ports down that leave enough ports up for the ratio, then no more than the hosts fill evenly
        down = max(d for d in range(1, radix) if d + _ceil(d / ratio) <= radix or d == 1)
        down = _evenly(len(nics), down, 1 if topology.kind == "rail-optimised" else int(nics.max()))
    else:
        down = topology.leaf_down
    up = _ceil(down / ratio)
    if down + up > radix:
        raise ConfigError(
            f"got {down} ports to hosts, which at {ratio:g}:1 need {up} ports up, expected no more than the "
            f"{radix} ports of a switch in all",
            key="leaf_down",
        )
    if topology.kind == "rail-optimised":
        rails = int(nics.max())
        unit, place = np.divmod(np.arange(len(nics)), down)
        host = np.repeat(np.arange(len(nics)), nics)
        rail = within_runs(nics)
        return _Leaves(
            down=down,
            up=up,
            needed=int(unit[-1]) + 1,
            rails=rails,
            adapter_leaf=unit[host] * rails + rail,
            adapter_port=place[host] + 1,
        )
    first = np.zeros(len(nics), np.int64)  # ports counted through all leaves
    used = 0
    for h, count in enumerate(nics.tolist()):
        if count <= down and used % down + count > down:
            used += down - used % down  # a host that fits on one leaf does not straddle two
        first[h] = used
        used += count
    slot = ranges(first, nics)
    leaf, port = np.divmod(slot, down)
    return _Leaves(down=down, up=up, needed=_ceil(used / down), rails=1, adapter_leaf=leaf, adapter_port=port + 1)


def _fits_two_tiers(topology: Topology, leaves: _Leaves, radix: int) -> bool:
    return max(leaves.needed, topology.leaves or 0) * leaves.rails <= radix


def _two_tiers(topology: Topology, leaves: _Leaves, radix: int) -> Wiring:
    per_rail = leaves.needed if topology.leaves is None else topology.leaves
    _enough("leaves", per_rail, leaves.needed, "to plug in all hosts")
    count = per_rail * leaves.rails
    if count > radix:
        raise ConfigError(
            f"got hosts that need {count} leaves, expected at most {radix}: a spine has a port for each",
            key="tiers",
        )
    spines = _parents(topology.spines, "spines", children=count, up=leaves.up, radix=radix)
    leaf, spine, spine_port, up = _fan(count, leaves.up, spines)
    unit = np.arange(count) // leaves.rails
    return Wiring(
        names=(*_named("leaf", count), *_named("spine", spines)),
        tier=np.repeat([1, 2], [count, spines]),
        pod=np.concatenate([unit if leaves.rails > 1 else np.full(count, NONE), np.full(spines, NONE)]),
        adapter_switch=leaves.adapter_leaf,
        adapter_port=leaves.adapter_port,
        lower=leaf,
        lower_port=leaves.down + 1 + up,
        upper=count + spine,
        upper_port=spine_port + 1,
    )


def _three_tiers(topology: Topology, leaves: _Leaves, radix: int) -> Wiring:
    rails = leaves.rails
    half = radix // 2
    if topology.leaves is not None:
        in_group = topology.leaves
        pods = _ceil(leaves.needed / in_group) if topology.pods is None else topology.pods
        per_rail = in_group * pods
        _enough("leaves", per_rail, leaves.needed, "in all pods together to plug in all hosts")
    else:
        pods = _ceil(leaves.needed / half) if topology.pods is None else topology.pods
        per_rail = leaves.needed
        if pods > per_rail:
            raise ConfigError(
                f"got {pods}, expected at most {per_rail}: the hosts fill no more leaves", key="pods"
            )
        in_group = _ceil(per_rail / pods)
        _enough("pods", pods, _ceil(leaves.needed / half), "with enough spine ports for all leaves")
    groups = pods * rails
    spines = _parents(topology.spines, "spines", children=in_group, up=leaves.up, radix=half)
    spine_down = _ceil(in_group * leaves.up / spines)
    spine_up = spine_down
    if topology.cores is not None and topology.cores % spines:
        raise ConfigError(
            f"got {topology.cores}, expected a multiple of {spines}: one core group for each spine of a pod",
            key="cores",
        )
    asked = None if topology.cores is None else topology.cores // spines
    in_core_group = _parents(asked, "cores", children=groups, up=spine_up, radix=radix, factor=spines)

    # leaves unit by unit, in a unit rail by rail; pods differ by one unit at most
    count = per_rail * rails
    unit, rail = np.divmod(np.arange(count), rails)
    units = per_rail // pods + (np.arange(pods) < per_rail % pods)
    pod = np.repeat(np.arange(pods), units)[unit]
    unit_in_pod = unit - (np.cumsum(units) - units)[pod]
    group = pod * rails + rail
    member, parent, _, up = _fan(in_group, leaves.up, spines)
    place = np.zeros((in_group, leaves.up), np.int64)
    place[member, up] = parent
    leaf = np.repeat(np.arange(count), leaves.up)
    leaf_up = np.tile(np.arange(leaves.up), count)
    leaf_parent = group[leaf] * spines + place[unit_in_pod[leaf], leaf_up]

    spine_group = np.arange(groups * spines) // spines
    _, core_of, core_port, core_up = _fan(groups, spine_up, in_core_group)
    # the same fan for every core group i, from spine i of every group
    fan_group = np.repeat(np.arange(groups), spine_up)
    lower = (fan_group[:, None] * spines + np.arange(spines)[None, :]).ravel()
    upper = (core_of[:, None] + np.arange(spines)[None, :] * in_core_group).ravel()
    cores = spines * in_core_group
    order = np.lexsort((np.repeat(core_up, spines), lower))
    return Wiring(
        names=(*_named("leaf", count), *_named("spine", groups * spines), *_named("core", cores)),
        tier=np.repeat([1, 2, 3], [count, groups * spines, cores]),
        pod=np.concatenate([pod, spine_group // rails, np.full(cores, NONE)]),
        adapter_switch=leaves.adapter_leaf,
        adapter_port=leaves.adapter_port,
        lower=np.concatenate([leaf, count + lower[order]]),
        lower_port=np.concatenate([leaves.down + 1 + leaf_up, spine_down + 1 + np.repeat(core_up, spines)[order]]),
        upper=np.concatenate([count + leaf_parent, count + groups * spines + upper[order]]),
        upper_port=np.concatenate([_rank(leaf_parent), np.repeat(core_port, spines)[order]]) + 1,
    )


def _fan(children: int, up: int, parents: int) -> tuple[Int, Int, Int, Int]:
    """Spread `up` links of each child over parents: (child, parent, parent's port from 0, child's up port)."""
    child = np.repeat(np.arange(children), up)
    port = np.tile(np.arange(up), children)
    # where it does not come out even, each child goes on where the one before stopped
    start = child * up if up % parents else np.zeros_like(child)
    parent = (start + port) % parents
    return child, parent, _rank(parent), port


def _rank(parent: Int) -> Int:
    """Count earlier links to the same parent, for each link: the parent's next free port."""
    order = np.argsort(parent, kind="stable")
    sizes = np.bincount(parent)
    starts = np.cumsum(sizes) - sizes
    rank = np.empty_like(parent)
    rank[order] = np.arange(len(parent)) - starts[parent[order]]
    return rank


def _parents(asked: int | None, key: str, *, children: int, up: int, radix: int, factor: int = 1) -> int:
    """Number of parents for `children` with `up` ports each: as asked, or the fewest that come out even."""
    least = _ceil(children * up / radix)
    if asked is None:
        fitting = [n for n in range(1, up + 1) if up % n == 0 and n >= least]
        if not fitting:
            raise ConfigError(
                f"got hosts that need {least * factor} {key}, expected at most {up * factor}: a switch below "
                f"has {up} ports up",
                key="tiers",
            )
        return fitting[0]
    if asked > up:
        raise ConfigError(
            f"got {asked * factor}, expected at most {up * factor}: a switch below has {up} ports up", key=key
        )
    _enough(key, asked * factor, least * factor, "for the ports of the tier below")
    return asked


def _enough(key: str, got: int, least: int, why: str) -> None:
    if got < least:
        raise ConfigError(f"got {got}, expected at least {least} {why}", key=key)


def _named(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{i}" for i in range(count)]


def _ceil(value: float) -> int:
    # ratios such as 1/3 must not round 9.000000001 up
    return int(-(-(value - 1e-9) // 1))
