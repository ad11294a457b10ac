"""Tiers and pods of a discovered network, from how its switches are joined.

A leaf is a switch that holds hosts; a switch's tier is one more than its distance from the nearest leaf. Hosts
that hang on a spine (a subnet manager's, say) would make it a leaf: so a switch with fewer hosts than
neighbouring switches, none of them bound to a catalog host, is no leaf where it is next to one. The top tier is
the one in which the ways between the leaves farthest apart turn back; what lies beyond has no tier.

Pods are what falls apart when the top tier is taken away, switches joined by a common host counting as joined:
pods of a fat-tree of three tiers, scalable units of a rail-optimised one of two.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from fabrictwin.base.records import record
from fabrictwin.kernel.codes import NONE

_TYPICAL = 0.02  # the share of pairs of leaves that makes a distance a tier's


@record
class Tiers:
    tier: list[int]  # [switches] from 1; NONE where no leaf reaches, and beyond the top
    demoted: list[int]  # switches with hosts that are no leaves
    doubtful: list[int]  # leaves that hold only a few unbound hosts
    beyond: list[int]  # switches above the top tier


def infer_tiers(
    neighbours: Sequence[set[int]],
    *,
    hosts: Sequence[set[int]],
    bound: set[int],
    given: dict[int, int],
) -> Tiers:
    """The tier of every switch.

    `neighbours[s]` are switches joined to switch s, `hosts[s]` the hosts on it, `bound` the hosts of a catalog
    type, `given` tiers that are known.
    """
    everyone = range(len(neighbours))
    candidates = [s for s in everyone if hosts[s] and s not in given]
    leaves = {s for s in candidates if hosts[s] & bound or len(hosts[s]) >= len(neighbours[s])}
    leaves |= {s for s, tier in given.items() if tier == 1}
    unsure = [s for s in candidates if s not in leaves]
    demoted = [s for s in unsure if neighbours[s] & leaves]
    doubtful = [s for s in unsure if not neighbours[s] & leaves]
    leaves |= set(doubtful)
    tier = [NONE] * len(neighbours)
    queue = deque(sorted(leaves))
    for s in leaves:
        tier[s] = 1
    while queue:
        s = queue.popleft()
        for other in sorted(neighbours[s]):
            if tier[other] == NONE:
                tier[other] = tier[s] + 1
                queue.append(other)
    top = _top_tiers(neighbours, {s for s in leaves if hosts[s] & bound} or leaves)
    beyond = [s for s in everyone if s not in given and tier[s] > top[s] != NONE]
    for s in beyond:
        tier[s] = NONE
    for s, known in given.items():
        tier[s] = known
    return Tiers(tier, demoted, doubtful if bound else [], beyond)


def _top_tiers(neighbours: Sequence[set[int]], leaves: set[int]) -> list[int]:
    """For each switch the tier in which the longest shortest ways between leaves of its component turn back."""
    component = _components(len(neighbours), ((s, o) for s, others in enumerate(neighbours) for o in others))
    by_root: dict[int, list[int]] = {}
    for leaf in sorted(leaves):
        by_root.setdefault(component[leaf], []).append(leaf)
    top: dict[int, int] = {}
    for root, members in by_root.items():
        # in a tree of tiers any leaf is as far from some other as any: a few stand for all
        counts: Counter[int] = Counter()
        for source in members[:: max(1, len(members) // 16)]:
            distance = _distances(neighbours, source)
            counts.update(distance[leaf] for leaf in members if leaf != source)
        # a few oddly placed leaves, such as those of a management network, do not make a tier
        if counts:
            longest = max(d for d in counts if counts[d] >= _TYPICAL * counts.total())
            top[root] = longest // 2 + 1 + longest % 2
    return [top.get(root, NONE) for root in component]


def _distances(neighbours: Sequence[set[int]], source: int) -> dict[int, int]:
    distance = {source: 0}
    queue = deque([source])
    while queue:
        s = queue.popleft()
        for other in neighbours[s]:
            if other not in distance:
                distance[other] = distance[s] + 1
                queue.append(other)
    return distance


def infer_pods(
    neighbours: Sequence[set[int]], *, hosts: Sequence[set[int]], joining: set[int], tier: Sequence[int]
) -> list[int]:
    """Pod of each switch, numbered in switch order; NONE above the pods and where there are none.

    `joining` are the hosts that count as joining their leaves.
    """
    count = len(neighbours)
    component = _components(count, ((s, other) for s in range(count) for other in neighbours[s]))
    top = {root: max(tier[s] for s in range(count) if component[s] == root) for root in set(component)}
    below = [s for s in range(count) if tier[s] != NONE and tier[s] < top[component[s]]]
    lower = set(below)
    pairs = [(s, other) for s in below for other in neighbours[s] if other in lower]
    first_leaf: dict[int, int] = {}
    for s in below:
        for host in sorted(hosts[s] & joining):
            pairs.append((first_leaf.setdefault(host, s), s))
    root = _components(count, pairs)
    sizes: dict[int, int] = {}
    for s in below:
        sizes[root[s]] = sizes.get(root[s], 0) + 1
    pod = [NONE] * count
    if not sizes or max(sizes.values()) == 1:
        return pod  # each leaf by itself: a plain fat-tree of two tiers has no pods
    numbers: dict[int, int] = {}
    for s in below:
        pod[s] = numbers.setdefault(root[s], len(numbers))
    return pod


def _components(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """The smallest member of each one's component."""
    parent = list(range(count))

    def find(s: int) -> int:
        while parent[s] != s:
            parent[s] = parent[parent[s]]
            s = parent[s]
        return s

    for a, b in pairs:
        low, high = sorted((find(a), find(b)))
        parent[high] = low
    return [find(s) for s in range(count)]
