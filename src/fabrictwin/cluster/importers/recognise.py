"""Hosts, switches and aggregation nodes, told by the descriptions that discovered nodes carry.

Hosts set theirs to their name and the adapter's (`luna-0001 mlx5_3`, `r-dcs96 HCA-1`); managed switches of the
Mellanox line give name, model and place in a chassis (`MF0;LG28-08:MQM8700/U1`); the aggregation node of SHARP,
an endpoint inside each switch, names itself. Ports of a card share its system image GUID, which tells the host of
an adapter whose own description says nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict

from fabrictwin.base.records import record
from fabrictwin.cluster.importers.ibnetdiscover import Discovery, Node, Port
from fabrictwin.cluster.names import clean_name, listed, natural_key

_HCA = re.compile(r"(\S+)\s+([A-Za-z][\w.-]*\d)\Z")
_SWITCH = re.compile(r"(?:MF\d+;)?([^:;]+):M?([A-Z]+\d+)\w*((?:/[A-Z]+\d+)+)\Z")
_AGGREGATION = re.compile(r"aggregation node", re.IGNORECASE)


@record
class Adapter:
    """A channel adapter's port that a link is plugged into."""

    node: Node
    port: Port

    @property
    def guid(self) -> int:
        return self.node.guid if self.port.number == 1 or not self.port.guid else self.port.guid


@record
class Recognised:
    """Hosts with their adapters by adapter name, switches with the model they give ('' if none), the rest.

    `notes` says what could not be told.
    """

    hosts: dict[str, dict[str, Adapter]]
    switches: dict[str, tuple[Node, str]]
    aggregations: dict[str, Adapter]  # routers too
    notes: tuple[str, ...]


def recognise(discovery: Discovery) -> Recognised:
    """Recognise the kind of each node of a discovered fabric."""
    notes: list[str] = []
    nodes = discovery.nodes.values()
    switches = _switches([node for node in nodes if node.kind == "switch"], notes)
    inside = {node.name: name for name, (node, _) in switches.items()}
    aggregations: dict[str, Adapter] = {}
    routers: list[str] = []
    adapters: list[Node] = []
    idle: list[str] = []
    for node in nodes:
        if node.kind == "switch":
            continue
        if not node.ports:
            idle.append(node.description.strip() or node.name)
        elif node.kind == "ca" and _AGGREGATION.search(node.description) and node.ports[0].peer in inside:
            name = inside[node.ports[0].peer] + "-sharp"
            while name in aggregations:
                name += "+"
            aggregations[name] = Adapter(node, node.ports[0])
        elif node.kind == "ca":
            adapters.append(node)
        else:
            routers.append(_place_router(node, inside, aggregations))
    if routers:
        what = "which have LIDs and pass nothing on to other subnets"
        notes.append(f"{len(routers)} InfiniBand routers, {what} ({listed(sorted(routers, key=natural_key))})")
    if idle:
        notes.append(f"not placed: {len(idle)} nodes without a link ({listed(sorted(idle, key=natural_key))})")
    hosts = _hosts(adapters, notes)
    return Recognised(hosts, switches, aggregations, tuple(notes))


def _place_router(node: Node, inside: dict[str, str], aggregations: dict[str, Adapter]) -> str:
    """Place each port of a router that a switch is at the other end of; returns the router's name."""
    own = clean_name(node.description) or f"router-{node.guid:016x}"
    for port in node.ports:
        if port.peer not in inside:
            continue
        name = own if len(node.ports) == 1 else f"{own}.{port.number}"
        while name in aggregations or name in inside.values():
            name += "+"
        aggregations[name] = Adapter(node, port)
    return own


def _switches(nodes: list[Node], notes: list[str]) -> dict[str, tuple[Node, str]]:
    wanted: dict[str, list[tuple[Node, str]]] = defaultdict(list)
    for node in nodes:
        match = _SWITCH.match(node.description.strip())
        if match:
            name, model, place = match.groups()
            # a switch by itself is unit 1; the parts of a chassis share its name
            name = clean_name(name + ("" if place == "/U1" else place))
            wanted[name or f"switch-{node.guid:016x}"].append((node, model.lower()))
        else:
            wanted[clean_name(node.description) or f"switch-{node.guid:016x}"].append((node, ""))
    found: dict[str, tuple[Node, str]] = {}
    shared: list[str] = []
    for name, several in wanted.items():
        for node, model in several:
            if len(several) == 1:
                found[name] = (node, model)
            else:
                found[f"{name}-{node.guid:016x}"] = (node, model)
        if len(several) > 1:
            shared.append(f"{name} ({len(several)})")
    if shared:
        notes.append(f"switches of the same name, told apart by their GUIDs: {listed(shared)}")
    return found


def _hosts(nodes: list[Node], notes: list[str]) -> dict[str, dict[str, Adapter]]:
    named: dict[str, list[tuple[str, Node]]] = defaultdict(list)
    host_of_card: dict[int, str] = {}
    unknown: list[Node] = []
    for node in nodes:
        match = _HCA.match(node.description.strip())
        host = clean_name(match[1]) if match else ""
        if match and host:
            named[host].append((clean_name(match[2]), node))
            host_of_card.setdefault(node.system_guid, host)
        else:
            unknown.append(node)
    adopted: list[str] = []
    nameless: list[str] = []
    for node in sorted(unknown, key=lambda n: n.guid):
        sibling = host_of_card.get(node.system_guid) if node.system_guid else None
        host = sibling or f"ca-{node.system_guid or node.guid:016x}"
        taken = {hca for hca, _ in named[host]}
        hca = next(f"port{i}" for i in range(1, len(taken) + 2) if f"port{i}" not in taken)
        named[host].append((hca, node))
        what = f"{node.description.strip() or 'no description'} {node.name}"
        (adopted if sibling else nameless).append(what)
    if adopted:
        notes.append(f"adapters without a host's name, given to the host of their card: {listed(adopted)}")
    if nameless:
        notes.append(f"{len(nameless)} adapters whose host could not be told: {listed(nameless)}")
    hosts: dict[str, dict[str, Adapter]] = {}
    shared: list[str] = []
    for name, members in named.items():
        names = [hca for hca, _ in members]
        if len(set(names)) == len(names):
            hosts.setdefault(name, {}).update(_adapters(members))
            continue
        # several machines of one name: all that can be told is which ports sit on one card
        shared.append(name)
        for hca, node in members:
            own = hosts.setdefault(f"{name}-{node.system_guid or node.guid:016x}", {})
            own.update(_adapters([(hca if hca not in own else f"{hca}-{node.guid:016x}", node)]))
    if shared:
        notes.append(f"host names that several machines share, told apart by card: {listed(shared)}")
    return hosts


def _adapters(members: list[tuple[str, Node]]) -> dict[str, Adapter]:
    """Adapters by name; each plugged port of a card with several ports is one of its own."""
    found: dict[str, Adapter] = {}
    for hca, node in members:
        for port in node.ports:
            name = hca if len(node.ports) == 1 else f"{hca}.{port.number}"
            while name in found:
                name += "+"
            found[name] = Adapter(node, port)
    return found
