"""Fabrics of odd shapes as ibnetdiscover prints them: directors, planes, uneven leaves, hosts on spines, parallel
cables, dragonflies, tori, LIDs with gaps, cards of two ports, chassis that share a system image GUID.

GUIDs are drawn, so that no order by GUID is that of names.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Draft:
    """A fabric while it is drawn: nodes take ports in the order of mention."""

    seed: int
    nodes: dict[str, list[tuple[str, int] | None]] = field(default_factory=dict)  # ports from 1 by node
    system: dict[str, str] = field(default_factory=dict)  # the node whose GUID is that of the system
    is_switch: dict[str, bool] = field(default_factory=dict)

    def switch(self, name: str, system: str = "") -> str:
        """Add a switch; `system` names the first of the chassis that it is part of."""
        self.nodes[name], self.is_switch[name], self.system[name] = [], True, system or name
        return name

    def adapter(self, name: str) -> str:
        """Add an adapter."""
        self.nodes[name], self.is_switch[name], self.system[name] = [], False, name
        return name

    def join(self, a: str, b: str, cables: int = 1, *, skip: int = 0) -> None:
        """Join two nodes by the next free ports; `skip` leaves some of them empty before."""
        for _ in range(cables):
            for node in {a: None, b: None}:
                if self.is_switch[node]:
                    self.nodes[node] += [None] * skip
            if a == b:
                at = len(self.nodes[a]) + 1
                self.nodes[a] += [(a, at + 1), (a, at)]
                continue
            pa, pb = len(self.nodes[a]) + 1, len(self.nodes[b]) + 1
            self.nodes[a].append((b, pb))
            self.nodes[b].append((a, pa))

    def hosts(self, switch: str, count: int) -> None:
        """Hang adapters on a switch."""
        for k in range(count):
            self.join(self.adapter(f"{switch}-h{k} mlx5_0"), switch)

    def text(self, *, lid_gap: int = 1) -> str:
        """Return what ibnetdiscover would print; LIDs are `lid_gap` apart, in the order of drawing."""
        draw = random.Random(self.seed)
        guid = {name: draw.randrange(1 << 48, 1 << 62) << 2 for name in self.nodes}
        lid = {name: 1 + lid_gap * i for i, name in enumerate(self.nodes)}
        order = sorted(self.nodes, key=lambda name: not self.is_switch[name])
        out = ["#", "# Topology file: drawn", "#"]
        for name in order:
            ports, here = self.nodes[name], f"{guid[name]:016x}"
            out += ["", "vendid=0x2c9", f"devid={'0xd2f0' if self.is_switch[name] else '0x101b'}"]
            out += [f"sysimgguid=0x{guid[self.system[name]]:x}"]
            if self.is_switch[name]:
                out += [f"switchguid=0x{guid[name]:x}({guid[name]:x})"]
                tail = f'"MF0;{name}:MQM8700/U1" enhanced port 0 lid {lid[name]} lmc 0'
                out += [f'Switch\t{max(len(ports), 36)} "S-{here}"\t\t# {tail}']
            else:
                out += [f"caguid=0x{guid[name]:x}", f'Ca\t{len(ports)} "H-{here}"\t\t# "{name}"']
            out += [
                self._line(name, number, far, guid, lid) for number, far in enumerate(ports, 1) if far is not None
            ]
        return "\n".join(out) + "\n"

    def _line(
        self, name: str, number: int, far: tuple[str, int], guid: dict[str, int], lid: dict[str, int]
    ) -> str:
        def described(node: str) -> str:
            return f'"MF0;{node}:MQM8700/U1"' if self.is_switch[node] else f'"{node}"'

        def port_guid(node: str, port: int) -> str:
            return "" if self.is_switch[node] else f"({guid[node] + port:x})"

        peer, peer_number = far
        kind = "S" if self.is_switch[peer] else "H"
        mine = "" if self.is_switch[name] else f"lid {lid[name]} lmc 0 "
        return (
            f'[{number}]{port_guid(name, number)}\t"{kind}-{guid[peer]:016x}"[{peer_number}]'
            f"{port_guid(peer, peer_number)}\t\t# {mine}{described(peer)} lid {lid[peer]} 4xHDR"
        )


def _tree(draft: Draft, leaves: list[int], spines: int, cables: int = 1, name: str = "") -> list[str]:
    """Two tiers: so many hosts on each leaf. Returns the spines."""
    tops = [draft.switch(f"{name}spine-{i}") for i in range(spines)]
    for i, hosts in enumerate(leaves):
        leaf = draft.switch(f"{name}leaf-{i}")
        draft.hosts(leaf, hosts)
        for top in tops:
            draft.join(leaf, top, cables)
    return tops


def uneven_leaves(draft: Draft) -> None:
    """Leaves with 1 to 9 hosts, one without any, another on half of the spines."""
    tops = _tree(draft, [9, 1, 4, 4, 7, 0, 2], 4)
    half = draft.switch("leaf-half")
    draft.hosts(half, 5)
    for top in tops[:2]:
        draft.join(half, top, 2, skip=1)


def hosts_on_spines(draft: Draft) -> None:
    """Managers' and storage's hosts on some spines."""
    tops = _tree(draft, [6] * 6, 4, 2)
    draft.hosts(tops[0], 2)
    draft.hosts(tops[3], 1)


def parallel_cables(draft: Draft) -> None:
    """One to four cables between neighbours, and cables back to the same switch."""
    tops = [draft.switch(f"spine-{i}") for i in range(3)]
    for i in range(5):
        leaf = draft.switch(f"leaf-{i}")
        draft.hosts(leaf, 4)
        for k, top in enumerate(tops):
            draft.join(leaf, top, 1 + (i + k) % 4)
    draft.join("leaf-1", "leaf-1")
    draft.join("spine-2", "spine-2")


def directors(draft: Draft) -> None:
    """Two directors of 6 line and 3 spine modules each, a system image GUID a chassis; leaves on both."""
    for d in range(2):
        first = f"director-{d}-spine-0"
        spines = [draft.switch(f"director-{d}-spine-{i}", first) for i in range(3)]
        for i in range(6):
            line = draft.switch(f"director-{d}-line-{i}", first)
            for spine in spines:
                draft.join(line, spine, 2)
    for i in range(8):
        leaf = draft.switch(f"leaf-{i}")
        draft.hosts(leaf, 6)
        for d in range(2):
            draft.join(leaf, f"director-{d}-line-{i % 6}", 2)
            draft.join(leaf, f"director-{d}-line-{(i + 2) % 6}")


def three_tiers(draft: Draft) -> None:
    """Pods of different sizes below cores that some pods do not all reach."""
    cores = [draft.switch(f"core-{i}") for i in range(6)]
    for p, leaves in enumerate((4, 3, 5)):
        mids = [draft.switch(f"pod-{p}-mid-{i}") for i in range(3)]
        for m, mid in enumerate(mids):
            for core in cores[m::3] if p else cores[m * 2 : m * 2 + 2]:
                draft.join(mid, core, 1 + (p == 2))
        for i in range(leaves):
            leaf = draft.switch(f"pod-{p}-leaf-{i}")
            draft.hosts(leaf, 3 + i % 3)
            for mid in mids:
                draft.join(leaf, mid)


def dragonfly(draft: Draft) -> None:
    """Five groups of four switches, all joined within, two cables between groups."""
    for g in range(5):
        names = [draft.switch(f"g{g}-{i}") for i in range(4)]
        for i, name in enumerate(names):
            draft.hosts(name, 3)
            for other in names[:i]:
                draft.join(name, other)
    for g in range(5):
        for h in range(g):
            draft.join(f"g{g}-{h % 4}", f"g{h}-{(g - 1) % 4}", 2)


def torus(draft: Draft) -> None:
    """Four by three switches in rings."""
    for x in range(4):
        for y in range(3):
            draft.hosts(draft.switch(f"t{x}-{y}"), 3)
    for x in range(4):
        for y in range(3):
            draft.join(f"t{x}-{y}", f"t{(x + 1) % 4}-{y}")
            draft.join(f"t{x}-{y}", f"t{x}-{(y + 1) % 3}")


def two_ports(draft: Draft) -> None:
    """Cards with both ports in one tree, a dozen of them, beside ordinary ones."""
    _tree(draft, [4] * 6, 3)
    for k in range(12):
        card = draft.adapter(f"twin-{k} mlx5_0")
        draft.join(card, f"leaf-{k % 6}")
        draft.join(card, f"leaf-{(k + 1) % 6}")


def one_switch(draft: Draft) -> None:
    """A switch with a dozen hosts."""
    draft.hosts(draft.switch("only"), 12)


def small_tree(draft: Draft) -> None:
    """A plain tree of two tiers."""
    _tree(draft, [4] * 4, 4)


SHAPES: dict[str, Callable[[Draft], None]] = {
    shape.__name__: shape
    for shape in (
        *(uneven_leaves, hosts_on_spines, parallel_cables, directors, three_tiers),
        *(dragonfly, torus, two_ports, one_switch, small_tree),
    )
}


def draw(shape: str, seed: int = 1, *, lid_gap: int = 1) -> str:
    """Return a fabric of a shape as ibnetdiscover prints it."""
    draft = Draft(seed)
    SHAPES[shape](draft)
    return draft.text(lid_gap=lid_gap)
