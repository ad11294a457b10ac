"""The light sweep: which ports of a known subnet changed, looked at only where switches say so.

It begins where traps came from and at what lies around it, so that no time is lost with what cannot answer. Links
that are down are taken apart and what no route leads to any more is dropped; a link that came up calls for a heavy
sweep (`Looked.MORE`), since nobody knows what is behind it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

from fabrictwin.subnet.manager.mad_transport import Transport, get
from fabrictwin.subnet.manager.sweep.discovery import Kind, Node, Port, Subnet
from fabrictwin.subnet.wire.smp import AttributeId, PhysState, PortInfo, PortState, SwitchInfo


class Looked(Enum):
    """Result of a light sweep."""

    NOTHING = auto()
    LESS = auto()  # something is gone, or answers no more
    MORE = auto()  # a link came up


class LightSweep:
    """One look at a subnet, whose links and nodes it brings up to date."""

    def __init__(self, transport: Transport, subnet: Subnet) -> None:
        self.transport = transport
        self.subnet = subnet
        self._doubtful: dict[int, Node] = {}  # switches that lost a link in this sweep

    def run(self, issuers: list[Node]) -> Looked:
        """`issuers` are switches whose traps came: what they say gives the ways that still lead to the others."""
        quiet = not issuers
        if self._look_at(issuers) or self._look_across():
            return Looked.MORE
        silent = self.subnet.switches
        while silent:
            self._find_paths()
            asked = [node for node in silent if node.guid in self.subnet.nodes]
            answers = self.transport.exchange([get(node.path, AttributeId.SWITCH_INFO) for node in asked])
            silent = [node for node, answer in zip(asked, answers, strict=True) if answer is None]
            changed: list[Node] = []
            for node, answer in zip(asked, answers, strict=True):
                if answer is not None and not answer[0]:
                    node.switch = SwitchInfo.decode(answer[1])
                    if node.switch.port_state_change:
                        changed.append(node)
            quiet = quiet and not changed and not silent
            if self._look_at(changed) or self._look_across():
                return Looked.MORE
            if silent and not changed:
                # the nearest are to blame; what lies behind them may have other ways
                nearest = min(node.path.hops for node in silent)
                for node in [node for node in silent if node.path.hops == nearest]:
                    self.subnet.find(Kind.LOST, node.name, "its links are up, and it does not answer any more")
                    silent.remove(node)
                    for port in node.ports.values():
                        _part(port)
        if quiet:
            return Looked.NOTHING
        self._find_paths()
        return Looked.LESS

    def _look_across(self) -> bool:
        """Ask the neighbours of switches that lost a link about the others: a dead one answers nothing itself."""
        doubtful, self._doubtful = self._doubtful, {}
        if not doubtful:
            return False
        self._find_paths()
        asked = [
            port.peer
            for node in doubtful.values()
            for port in node.ports.values()
            if port.peer is not None and port.peer.node.is_switch and port.peer.node.guid in self.subnet.nodes
        ]
        appeared = self._read_ports(asked)
        self._doubtful.clear()
        return appeared

    def _look_at(self, switches: list[Node]) -> bool:
        """Read the ports of changed switches; True where a link came up."""
        return self._read_ports([port for node in switches for port in node.ports.values() if port.number])

    def _read_ports(self, asked: list[Port]) -> bool:
        """Read ports and take links apart that are down; True where one came up."""
        answers = self.transport.exchange([get(port.path, AttributeId.PORT_INFO, port.number) for port in asked])
        appeared = False
        for port, answer in zip(asked, answers, strict=True):
            if answer is None or answer[0]:
                continue
            port.info = PortInfo.decode(answer[1])
            if port.info.port_physical_state != PhysState.LINK_UP:
                if port.peer is not None and port.peer.node.is_switch:
                    self._doubtful[port.peer.node.guid] = port.peer.node
                _part(port)
            elif port.peer is None or port.info.port_state < PortState.ARMED:
                appeared = True  # it came, or went and came back: what is behind it may have changed
        return appeared

    def _find_paths(self) -> None:
        """Directed routes over the links that are left; nodes that none leads to are gone."""
        own = self.subnet.own
        assert own is not None
        start = own.node
        reached = {start.guid: start}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for number in sorted(node.ports):
                far = node.ports[number].peer
                if far is None or far.node.guid in reached or (not node.is_switch and node is not start):
                    continue
                far.node.path = node.path.beyond(number)
                reached[far.node.guid] = far.node
                queue.append(far.node)
        self.subnet.nodes = {guid: node for guid, node in self.subnet.nodes.items() if guid in reached}


def _part(port: Port) -> None:
    """Take a link apart at both ends."""
    if port.peer is not None:
        port.peer.peer = None
        port.peer = None
