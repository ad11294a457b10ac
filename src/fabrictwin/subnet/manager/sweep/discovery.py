"""The heavy sweep: what is there, found by directed routes alone (IBTA volume 1, 14.4.6).

Wave after wave outward from the manager's port: who answers behind each port that has a link, what it is, what its
ports say. Links between switches are looked at from both ends, because what one end says may be wrong: two
devices with the same GUID, a device that lies about its ports. Each is a named finding, and is left out of the
subnet as far as it has to be. The sweep ends on any fabric: each port of each GUID is looked behind once, a route
has at most 63 hops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from fabrictwin.base.records import record
from fabrictwin.subnet.manager.mad_transport import HERE, Answer, Path, Request, Transport, get
from fabrictwin.subnet.wire.fields import MadError
from fabrictwin.subnet.wire.header import MAX_HOPS
from fabrictwin.subnet.wire.smp import AttributeId, NodeInfo, NodeType, PhysState, PortInfo, SwitchInfo

MOST_NODES = 0xBFFF


class Kind(StrEnum):
    """Kinds of findings."""

    DUPLICATE_GUID = "duplicate GUID"
    SILENT = "silent node"
    LIES = "lying node"
    TOO_FAR = "too far away"
    REFUSED = "refused setting"
    LOST = "lost node"
    TROUBLE = "port in trouble"
    BAD_KEY = "bad key"


@record
class Finding:
    """Something wrong, and where."""

    kind: Kind
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.text}"


@dataclass(slots=True, eq=False)
class Port:
    """A port as it last told of itself. `peer` is None where nothing is joined to it, or nothing usable."""

    node: Node
    number: int
    info: PortInfo
    peer: Port | None = None

    def __str__(self) -> str:
        return f"{self.node.name}/{self.number}"

    @property
    def path(self) -> Path:
        """The way to it: ports of a switch are set through the switch, each port of an adapter at itself."""
        node, peer = self.node, self.peer
        here = node.path.hops == 0 and self.number == node.info.local_port_num
        if node.is_switch or peer is None or here:
            return node.path
        return peer.node.path.beyond(peer.number)


@dataclass(slots=True, eq=False)
class Node:
    """A node, with the way to it."""

    guid: int
    info: NodeInfo
    path: Path
    description: bytes = b""
    switch: SwitchInfo | None = None
    ports: dict[int, Port] = field(default_factory=dict)
    silent: bool = False

    @property
    def is_switch(self) -> bool:
        return self.info.node_type == NodeType.SWITCH

    @property
    def name(self) -> str:
        text = self.description.split(b"\0", 1)[0].decode(errors="replace").strip()
        return text or f"0x{self.guid:016x}"

    @property
    def end(self) -> Port:
        """The port that holds the LID: a switch's port 0, a channel adapter's only or first seen."""
        return self.ports[0] if self.is_switch else next(iter(self.ports.values()))

    def ends(self) -> list[Port]:
        """Ports with LIDs of their own."""
        return [self.ports[0]] if self.is_switch else list(self.ports.values())


@dataclass
class Subnet:
    """A subnet as a sweep found it. The manager's own node comes first."""

    nodes: dict[int, Node] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    own: Port | None = None

    @property
    def switches(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_switch]

    @property
    def endpoints(self) -> list[Port]:
        return [port for node in self.nodes.values() if not node.is_switch for port in node.ports.values()]

    def find(self, kind: Kind, where: str, text: str) -> None:
        finding = Finding(kind, where, text)
        if finding not in self.findings:
            self.findings.append(finding)


@record
class _Seen:
    """A finding behind a port: whose answer came, and where it came in."""

    guid: int
    port: int
    info: NodeInfo
    path: Path


class Discovery:
    """One heavy sweep."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.subnet = Subnet()
        self._behind: dict[tuple[int, int], _Seen] = {}  # by (GUID, port)
        self._entry: dict[tuple[int, int], Path] = {}  # ways to further ports of adapters, likewise

    def run(self) -> Subnet:
        """Sweep. The subnet has no `own` port where the manager's own node does not answer."""
        (first,) = self.transport.exchange([get(HERE, AttributeId.NODE_INFO)])
        info = _node_info(first)
        if info is None:
            self.subnet.find(Kind.SILENT, "the manager's own port", "it answers no NodeInfo")
            return self.subnet
        node = Node(info.node_guid, info, HERE)
        self.subnet.nodes[node.guid] = node
        frontier = self._describe([(node, info.local_port_num)])
        self.subnet.own = node.ports.get(0 if node.is_switch else info.local_port_num)
        while frontier:
            frontier = self._wave(frontier)
        self._join()
        return self.subnet

    # -- waves ---------------------------------------------------------------------------------------------

    def _wave(self, frontier: list[Port]) -> list[Port]:
        """Look behind the ports of the frontier; returns the next one's."""
        paths = [port.node.path.beyond(port.number) for port in frontier]
        answers = self.transport.exchange([get(path, AttributeId.NODE_INFO) for path in paths])
        found: list[tuple[Node, int]] = []
        for port, path, answer in zip(frontier, paths, answers, strict=True):
            info = _node_info(answer)
            if info is None:
                what = "does not answer" if answer is None else f"answers NodeInfo with status 0x{answer[0]:04x}"
                self.subnet.find(Kind.SILENT, f"behind {port}", f"the link is up, and what is there {what}")
                continue
            if not self._plausible(port, info):
                continue
            seen = _Seen(info.node_guid, info.local_port_num, info, path)
            self._behind[port.node.guid, port.number] = seen
            node = self.subnet.nodes.get(info.node_guid)
            if node is None:
                if len(self.subnet.nodes) >= MOST_NODES:
                    self.subnet.find(Kind.TOO_FAR, f"behind {port}", f"more than {MOST_NODES} nodes")
                    continue
                node = self.subnet.nodes[info.node_guid] = Node(info.node_guid, info, path)
                found.append((node, info.local_port_num))
            elif not node.is_switch and info.local_port_num not in node.ports:
                self._entry[info.node_guid, info.local_port_num] = path
                found.append((node, info.local_port_num))  # another port of the same adapter
        return self._describe(found)

    def _plausible(self, port: Port, info: NodeInfo) -> bool:
        """Return what cannot be, whoever says it."""
        where = f"behind {port}, GUID 0x{info.node_guid:016x}"
        wrong = ""
        if info.node_guid == 0:
            wrong = "it has GUID 0"
        elif info.node_type not in (NodeType.CA, NodeType.SWITCH, NodeType.ROUTER):
            wrong = f"it is a node of type {info.node_type}"
        elif not 1 <= info.local_port_num <= info.num_ports:
            wrong = f"it says that it has {info.num_ports} ports, and answers from port {info.local_port_num}"
        if wrong:
            self.subnet.find(Kind.LIES, where, wrong)
        return not wrong

    def _describe(self, found: list[tuple[Node, int]]) -> list[Port]:
        """Ask new nodes what they are; returns the ports to look behind."""
        self._ask_names([node for node, _ in found if not node.ports])
        asked: list[tuple[Node, int]] = []
        for node, entry in found:
            if node.silent:
                continue
            numbers = range(node.info.num_ports + 1) if node.is_switch else [entry]
            asked += [(node, number) for number in numbers if number not in node.ports]
        answers = self.transport.exchange(
            [
                get(self._entry.get((node.guid, n), node.path), AttributeId.PORT_INFO, n if node.is_switch else 0)
                for node, n in asked
            ]
        )
        out: list[Port] = []
        for (node, number), answer in zip(asked, answers, strict=True):
            if answer is None:
                self._silent(node)
                continue
            if answer[0]:
                self._lies(node, f"it has {node.info.num_ports} ports, and refuses PortInfo of port {number}")
                continue
            port = node.ports[number] = Port(node, number, PortInfo.decode(answer[1]))
            is_way_on = number > 0 and (node.is_switch or node.path.hops == 0)
            if is_way_on and port.info.port_physical_state == PhysState.LINK_UP:
                if node.path.hops < MAX_HOPS:
                    out.append(port)
                else:
                    self.subnet.find(Kind.TOO_FAR, str(port), f"a directed route has at most {MAX_HOPS} hops")
        self._forget([node for node, _ in found if not node.ports or (node.is_switch and 0 not in node.ports)])
        return [port for port in out if not port.node.silent and port.node.guid in self.subnet.nodes]

    def _ask_names(self, nodes: list[Node]) -> None:
        names = self.transport.exchange([get(node.path, AttributeId.NODE_DESCRIPTION) for node in nodes])
        for node, answer in zip(nodes, names, strict=True):
            if answer is None:
                self._silent(node)
            else:
                node.description = answer[1]
        switches = [node for node in nodes if node.is_switch and not node.silent]
        infos = self.transport.exchange([get(node.path, AttributeId.SWITCH_INFO) for node in switches])
        for node, answer in zip(switches, infos, strict=True):
            if answer is None:
                self._silent(node)
            elif answer[0]:
                self._lies(node, "it says that it is a switch, and has no SwitchInfo")
                node.silent = True
            else:
                node.switch = SwitchInfo.decode(answer[1])
        self._forget([node for node in nodes if node.silent])

    def _silent(self, node: Node) -> None:
        if not node.silent:
            self.subnet.find(Kind.SILENT, node.name, "it answered at first, and stopped in mid-sweep")
        node.silent = True

    def _lies(self, node: Node, text: str) -> None:
        self.subnet.find(Kind.LIES, node.name, text)

    def _forget(self, nodes: list[Node]) -> None:
        """Nodes that cannot be managed are no part of the subnet."""
        for node in nodes:
            self.subnet.nodes.pop(node.guid, None)

    # -- links ---------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Make links of what was seen, where both ends agree."""
        nodes = self.subnet.nodes
        taken: dict[tuple[int, int], Port] = {}
        for (guid, number), seen in self._behind.items():
            near = nodes[guid].ports.get(number) if guid in nodes else None
            node = nodes.get(seen.guid)
            if near is None or node is None:
                continue
            far = node.ports.get(seen.port)
            if far is None:
                self._contradiction(near, seen, node)
                continue
            if node.is_switch:
                back = self._behind.get((seen.guid, seen.port))
                if back is None or (back.guid, back.port) != (guid, number):
                    # the manager's own adapter is passed through by nobody, so nothing was seen from its far end
                    self._contradiction(near, seen, node)
                    continue
            else:
                first = taken.setdefault((seen.guid, seen.port), near)
                if first is not near and first.node.guid != seen.guid:
                    self._duplicate(node, first, near)
                    continue
                far.peer = near
            near.peer = far

    def _duplicate(self, node: Node, first: Port, second: Port) -> None:
        text = f"it answers behind {first} and behind {second}; the first is kept"
        self.subnet.find(Kind.DUPLICATE_GUID, f"{node.name}, GUID 0x{node.guid:016x}", text)

    def _contradiction(self, near: Port, seen: _Seen, node: Node) -> None:
        """`near` leads to a port that does not lead back: are there two devices, or does one not tell the truth?

        The port in question is read over both ways. Two devices give themselves away by different answers.
        """
        both: list[Request] = [
            get(seen.path, AttributeId.PORT_INFO, seen.port),
            get(node.path, AttributeId.PORT_INFO, seen.port),
        ]
        over, known = self.transport.exchange(both)
        if over is None or known is None:
            self.subnet.find(Kind.SILENT, f"{node.name}", "it stopped answering while its links were compared")
            return
        here, there = (_physical(answer) for answer in (over, known))
        back = self._behind.get((seen.guid, seen.port))
        if (over[0], here) != (known[0], there) or (back is not None and here == there == PhysState.LINK_UP):
            leads = f"its port {seen.port} leads to " + (self._name(back) if back is not None else "nothing")
            text = f"it answers behind {near}, but over another way {leads}"
            self.subnet.find(Kind.DUPLICATE_GUID, f"{node.name}, GUID 0x{node.guid:016x}", text)
        else:
            text = f"a link of {near} ends at its port {seen.port}, which it says is not up"
            self.subnet.find(Kind.LIES, node.name, text)

    def _name(self, seen: _Seen) -> str:
        node = self.subnet.nodes.get(seen.guid)
        return f"{node.name if node else f'0x{seen.guid:016x}'}/{seen.port}"


def _node_info(answer: Answer | None) -> NodeInfo | None:
    if answer is None or answer[0]:
        return None
    try:
        return NodeInfo.decode(answer[1])
    except MadError:
        return None


def _physical(answer: Answer) -> int:
    return PortInfo.decode(answer[1]).port_physical_state
