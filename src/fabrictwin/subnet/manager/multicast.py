"""Multicast groups and the trees that reach their members (IBTA volume 1, 15.2.5.17 and 18.2.5).

One spanning tree of the switches for all groups, from the switch that is nearest to all others; a group's tree is
what of it lies between members. What OpenSM does too; several trees to spread load are left out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from fabrictwin.subnet.manager.discovery import Node, Port, Subnet
from fabrictwin.subnet.wire.sa import McMemberRecord

FIRST_MLID, LAST_MLID = 0xC000, 0xFFFE
FULL_MEMBER, NON_MEMBER, SEND_ONLY = 1, 2, 4
IPOIB_SIGNATURE = 0x401B


def broadcast_gid(pkey: int, scope: int = 2) -> int:
    """The IPv4 broadcast group of a partition (RFC 4391, 4): ff12:401b:PKEY:0:0:0:ffff:ffff."""
    return 0xFF10_0000 << 96 | scope << 112 | IPOIB_SIGNATURE << 96 | (pkey | 0x8000) << 80 | 0xFFFF_FFFF


@dataclass
class Group:
    """A multicast group: its parameters (those of its creator), its members by port GID."""

    record: McMemberRecord
    members: dict[int, int] = field(default_factory=dict)  # port GID to join state
    standing: bool = False  # made by the manager, so it stays without members

    @property
    def mlid(self) -> int:
        return self.record.mlid


def free_mlid(groups: dict[int, Group]) -> int:
    """The lowest MLID that no group has; 0 where there is none."""
    taken = {group.mlid for group in groups.values()}
    return next((mlid for mlid in range(FIRST_MLID, LAST_MLID) if mlid not in taken), 0)


def spanning_tree(subnet: Subnet) -> dict[int, list[Port]]:
    """By switch GUID the ports that belong to the tree, both ends of each of its links."""
    switches = sorted(subnet.switches, key=lambda node: node.guid)
    tree: dict[int, list[Port]] = {node.guid: [] for node in switches}
    done: set[int] = set()
    for first in switches:
        if first.guid in done:
            continue
        root = _center(first)
        done.add(root.guid)
        queue = deque([root])
        while queue:
            node = queue.popleft()
            for number in sorted(node.ports):
                port = node.ports[number]
                far = port.peer
                if far is None or not far.node.is_switch or far.node.guid in done:
                    continue
                done.add(far.node.guid)
                tree[node.guid].append(port)
                tree[far.node.guid].append(far)
                queue.append(far.node)
    return tree


def _distances(start: Node) -> dict[int, tuple[int, Node]]:
    distance = {start.guid: (0, start)}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for port in node.ports.values():
            far = port.peer
            if far is not None and far.node.is_switch and far.node.guid not in distance:
                distance[far.node.guid] = (distance[node.guid][0] + 1, far.node)
                queue.append(far.node)
    return distance


def _center(start: Node) -> Node:
    """The middle of a longest shortest path: two breadth-first searches, whatever the size of the fabric."""
    far = max(_distances(start).values(), key=lambda d: (d[0], -d[1].guid))[1]
    from_far = _distances(far)
    length, other = max(from_far.values(), key=lambda d: (d[0], -d[1].guid))
    from_other = _distances(other)
    middle = [
        node
        for guid, (steps, node) in from_far.items()
        if steps == length // 2 and steps + from_other[guid][0] == length
    ]
    # among equals the best connected, since all groups share it
    return max(middle, key=lambda node: (sum(p.peer is not None for p in node.ports.values()), -node.guid))


def port_masks(subnet: Subnet, tree: dict[int, list[Port]], members: set[Port]) -> dict[int, int]:
    """By switch GUID the ports (as bits) that a group's packets leave by. Empty without members."""
    masks: dict[int, int] = {}
    wanted: dict[int, int] = dict.fromkeys(tree, 0)  # members that hang on each switch
    for port in members:
        if port.number == 0:
            wanted[port.node.guid] += 1
            masks[port.node.guid] = masks.get(port.node.guid, 0) | 1
        elif port.peer is not None and port.peer.node.is_switch:
            wanted[port.peer.node.guid] += 1
            masks[port.peer.node.guid] = masks.get(port.peer.node.guid, 0) | 1 << port.peer.number
    degree = {guid: len(ports) for guid, ports in tree.items()}
    cut: set[int] = set()
    bare = deque(guid for guid in tree if degree[guid] <= 1 and not wanted[guid])
    while bare:  # strip branches that lead to nobody
        guid = bare.popleft()
        if guid in cut:
            continue
        cut.add(guid)
        for port in tree[guid]:
            assert port.peer is not None
            neighbour = port.peer.node.guid
            if neighbour not in cut:
                degree[neighbour] -= 1
                if degree[neighbour] <= 1 and not wanted[neighbour]:
                    bare.append(neighbour)
    if sum(wanted.values()):
        for guid, ports in tree.items():
            for port in ports:
                assert port.peer is not None
                if guid not in cut and port.peer.node.guid not in cut:
                    masks[guid] = masks.get(guid, 0) | 1 << port.number
    return masks
