"""Fabrics drawn at random: a kind, its sizes, and what sites add to it, by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

from support.odd_fabrics import Draft

_Kind = Callable[[Draft, random.Random], list[str]]


def _pods(draft: Draft, draw: random.Random) -> list[str]:
    """Two or three tiers; pods, leaves and cables differ. Returns the switches that hosts may hang on."""
    cables, tops = draw.randint(1, 3), [draft.switch(f"core-{i}") for i in range(draw.randint(1, 5))]
    leaves: list[str] = []
    for p in range(draw.randint(1, 4)):
        mids = [draft.switch(f"pod-{p}-mid-{i}") for i in range(draw.randint(1, 3))] if draw.random() < 0.6 else []
        for mid in mids:
            for top in tops:
                draft.join(mid, top, draw.randint(1, cables))
        for i in range(draw.randint(1, 5)):
            leaf = draft.switch(f"pod-{p}-leaf-{i}")
            leaves.append(leaf)
            for above in mids or tops:
                draft.join(leaf, above, draw.randint(1, cables))
    return leaves


def _regular(draft: Draft, draw: random.Random) -> list[str]:
    """A tree of two or three tiers that is regular."""
    down, up, cables = draw.randint(1, 4), draw.randint(1, 4), draw.randint(1, 2)
    pods = draw.choice([1, 1, 2, 3])
    cores = [draft.switch(f"core-{i}") for i in range(up * draw.randint(1, 2) if pods > 1 else 0)]
    leaves: list[str] = []
    for p in range(pods):
        mids = [draft.switch(f"pod-{p}-mid-{i}") for i in range(up)]
        for m, mid in enumerate(mids):
            for core in cores[m::up]:
                draft.join(mid, core, cables)
        for i in range(down + 1):
            leaves.append(draft.switch(f"pod-{p}-leaf-{i}"))
            for mid in mids:
                draft.join(leaves[-1], mid, cables)
    return leaves


def _director(draft: Draft, draw: random.Random) -> list[str]:
    """One or two chassis of line and spine modules, hosts on line modules or on leaves below."""
    lines: list[str] = []
    for d in range(draw.randint(1, 2)):
        first = f"chassis-{d}-spine-0"
        spines = [draft.switch(f"chassis-{d}-spine-{i}", first) for i in range(draw.randint(2, 4))]
        for i in range(draw.randint(3, 8)):
            lines.append(draft.switch(f"chassis-{d}-line-{i}", first))
            for spine in spines:
                draft.join(lines[-1], spine, draw.randint(1, 2))
    if draw.random() < 0.4 and not any("chassis-1" in line for line in lines):
        return lines
    leaves = [draft.switch(f"leaf-{i}") for i in range(draw.randint(2, 8))]
    for leaf in leaves:
        for line in draw.sample(lines, draw.randint(1, min(4, len(lines)))):
            draft.join(leaf, line, draw.randint(1, 2))
    for line in {line.split("-line")[0]: line for line in lines}.values():  # no chassis stays alone
        draft.join(leaves[0], line)
    return leaves


def _groups(draft: Draft, draw: random.Random) -> list[str]:
    """A dragonfly: groups that are joined within, each with every other."""
    size, cables = draw.randint(2, 5), draw.randint(1, 2)
    names = [[draft.switch(f"g{g}-{i}") for i in range(size)] for g in range(draw.randint(2, 5))]
    for group in names:
        for i, one in enumerate(group):
            for other in group[:i]:
                draft.join(one, other)
    for g, group in enumerate(names):
        for h in range(g):
            draft.join(group[h % size], names[h][(g - 1) % size], cables)
    return [name for group in names for name in group]


def _grid(draft: Draft, draw: random.Random) -> list[str]:
    """A torus or a mesh of two or three dimensions."""
    sides = [draw.randint(2, 4) for _ in range(draw.randint(2, 3))]
    closed, cables = draw.random() < 0.6, draw.randint(1, 2)
    at = {where: draft.switch("t" + "-".join(map(str, where))) for where in product(*map(range, sides))}
    for where, name in at.items():
        for axis, side in enumerate(sides):
            step = list(where)
            step[axis] = (where[axis] + 1) % side
            if step[axis] or (closed and side > 2):
                draft.join(name, at[tuple(step)], cables)
    return list(at.values())


def _random_graph(draft: Draft, draw: random.Random) -> list[str]:
    """Switches joined at random, some of them more than once."""
    names = [draft.switch(f"s{i}") for i in range(draw.randint(2, 14))]
    for i, name in enumerate(names[1:], 1):
        draft.join(name, names[draw.randrange(i)])
    for _ in range(draw.randint(0, 2 * len(names))):
        a, b = draw.sample(names, 2)
        draft.join(a, b)
    return names


def _storage(draft: Draft, draw: random.Random) -> list[str]:
    """A compute tree and a storage tree, joined by a few cables between their tops or their leaves."""
    leaves: list[str] = []
    tops: list[list[str]] = []
    for side in ("compute", "storage"):
        tops.append([draft.switch(f"{side}-spine-{i}") for i in range(draw.randint(1, 4))])
        for i in range(draw.randint(2, 5)):
            leaves.append(draft.switch(f"{side}-leaf-{i}"))
            for top in tops[-1]:
                draft.join(leaves[-1], top, draw.randint(1, 2))
    ends = tops if draw.random() < 0.6 else [leaves[:2], leaves[-2:]]
    for a in ends[0]:
        draft.join(a, draw.choice(ends[1]), draw.randint(1, 2))
    return leaves


KINDS: dict[str, _Kind] = {
    kind.__name__.strip("_"): kind
    for kind in (_pods, _regular, _director, _groups, _grid, _random_graph, _storage)
}


def drawn(seed: int) -> tuple[str, str]:
    """(kind, what ibnetdiscover would print) of the fabric of a seed."""
    draw = random.Random(seed)
    kind = draw.choice(list(KINDS))
    draft = Draft(seed)
    leaves = KINDS[kind](draft, draw)
    _hang(draft, draw, leaves)
    return kind, draft.text(lid_gap=draw.randint(1, 5))


def _hang(draft: Draft, draw: random.Random, leaves: list[str]) -> None:
    """Hosts, and what sites add: uneven leaves, cards of two ports, hosts and SHARP nodes on any switch, loops."""
    even = draw.random() < 0.5
    most = draw.randint(1, 6)
    for leaf in leaves:
        draft.hosts(leaf, most if even else draw.randint(0, most))
    switches = [name for name, switch in draft.is_switch.items() if switch]
    for k in range(2):
        draft.join(draft.adapter(f"login-{k} mlx5_0"), leaves[0])
    if draw.random() < 0.3:
        for k in range(draw.randint(1, 4)):
            card = draft.adapter(f"twin-{k} mlx5_0")
            for leaf in draw.choices(leaves, k=2):
                draft.join(card, leaf)
    if draw.random() < 0.25:
        for k in range(draw.randint(1, 3)):
            draft.join(draft.adapter(f"manager-{k} mlx5_0"), draw.choice(switches))
    if draw.random() < 0.25:
        for name in draw.sample(switches, draw.randint(1, len(switches))):
            draft.join(draft.adapter(f"Mellanox Technologies Aggregation Node {name}"), name)
    if draw.random() < 0.15:
        loop = draw.choice(switches)
        draft.join(loop, loop)
