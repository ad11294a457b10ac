"""The order in which a discovered fabric answers: that in which it answered when its file was written.

`ibnetdiscover` (libibnetdisc of rdma-core) has two requests on the wire at a time, puts every node that it meets
for the first time before the others, and prints switches, then channel adapters, then routers in that order:
what answered last comes first. Its queue is first in, first out, so a file tells which answers came late: a
NodeInfo that a node met after its turn, and a PortInfo of port 0 that let the adapters of another switch pass.

`AnswerOrder` follows one client and holds such answers back until those have gone that went first. It takes a
client for a discovery while it asks for NodeInfo where it is, and after that for nothing but what libibnetdisc
asks for. Agents that were slow then are so again; nothing else of their timing is known. Where a client waits
for nothing but what is held, the first of that goes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.wire.header import MadClass, Method
from fabrictwin.subnet.wire.smp import AttributeId, NodeType

STALL_PS = 50 * 10**9  # nothing came from a client for so long: it waits for what is held
_ASKED = frozenset(
    (
        AttributeId.NODE_INFO,
        AttributeId.NODE_DESCRIPTION,
        AttributeId.SWITCH_INFO,
        AttributeId.PORT_INFO,
        AttributeId.EXTENDED_PORT_INFO,
    )
)
_NEVER = 1 << 62


class Turns:
    """Each node's turn among those of its kind, and the turns of the adapters behind each switch."""

    def __init__(self, state: SubnetState) -> None:
        places = [(who.place, m) for m, who in enumerate(state.identities) if who is not None and who.place >= 0]
        known = [m for _, m in places]
        met = [m for _, m in sorted(places, key=lambda one: -one[0])]
        self.turn: dict[int, int] = {}  # by GUID, among nodes of its kind
        count = dict.fromkeys(NodeType, 0)
        self.kind = {state.guid[m]: NodeType(state.node_info[m].node_type) for m in known}
        for m in met:
            if state.guid[m] not in self.turn:
                kind = self.kind[state.guid[m]]
                self.turn[state.guid[m]] = count[kind]
                count[kind] += 1
        self.adapters: dict[int, list[int]] = {}  # turns of the adapters behind each switch, by its GUID, in order
        for m in known:
            far = state.cable[state.end_slot(m)]
            if state.node_info[m].node_type == NodeType.CA and far != NONE:
                insort(self.adapters.setdefault(state.guid[state.node_of[far]], []), self.turn[state.guid[m]])


@dataclass
class _Held:
    """An answer that waits."""

    guid: int
    attribute: int
    frame: bytes


@dataclass
class AnswerOrder:
    """One client's discovery: which of its answers go now, and which wait."""

    turns: Turns
    active: bool = True
    met: set[int] = field(default_factory=set)
    _next: dict[NodeType, int] = field(default_factory=lambda: dict.fromkeys(NodeType, 0))
    _open: dict[int, None] = field(default_factory=dict)  # switches met whose port 0 has not told yet, by GUID
    _held: list[_Held] = field(default_factory=list)

    def pass_on(self, mad: bytes, guid: int, frame: bytes) -> list[bytes]:
        """Return the frames that go to the client now that node `guid` answers request `mad` by `frame`."""
        attribute = int.from_bytes(mad[16:18], "big")
        if self.active and not self._is_discovery(mad, attribute):
            return [*self.stop(), frame]
        if not self.active:
            return [frame]
        if attribute == AttributeId.PORT_INFO and (int.from_bytes(mad[20:24], "big") or guid not in self._open):
            attribute = NONE  # of a port other than a switch's port 0: never held
        one = _Held(guid, attribute, frame)
        if self._waits(one):
            self._held.append(one)
            return []
        self._go(one)
        return [frame, *self._release()]

    @property
    def holds(self) -> bool:
        """Return whether an answer waits."""
        return bool(self._held)

    def stalled(self) -> list[bytes]:
        """Return what goes when the client waits for nothing but what is held: the first of it."""
        if not self._held:
            return []
        at = min(range(len(self._held)), key=lambda i: self._held[i].attribute == AttributeId.NODE_INFO)
        one = self._held.pop(at)
        self._go(one)
        return [one.frame, *self._release()]

    def stop(self) -> list[bytes]:
        """Return all that waits, and hold nothing any more."""
        self.active = False
        frames = [one.frame for one in self._held]
        self._held.clear()
        return frames

    def _is_discovery(self, mad: bytes, attribute: int) -> bool:
        if mad[1] != MadClass.SUBN_DIRECTED or mad[3] != Method.GET:
            return False
        if not self.met:
            return attribute == AttributeId.NODE_INFO and mad[7] == 0
        return attribute in _ASKED

    def _waits(self, one: _Held) -> bool:
        if one.attribute == AttributeId.NODE_INFO and one.guid not in self.met:
            turn = self.turns.turn.get(one.guid, NONE)
            return turn > self._next[self.turns.kind.get(one.guid, NodeType.CA)]
        if one.attribute == AttributeId.PORT_INFO:
            mine = self._next_behind(one.guid)
            return mine < _NEVER and min(self._next_behind(guid) for guid in self._open) < mine
        return False

    def _next_behind(self, switch: int) -> int:
        """Return the turn of the first adapter behind a switch that is not met yet; _NEVER where there is none."""
        turns = self.turns.adapters.get(switch, [])
        at = bisect_left(turns, self._next[NodeType.CA])
        return turns[at] if at < len(turns) else _NEVER

    def _go(self, one: _Held) -> None:
        if one.attribute == AttributeId.NODE_INFO and one.guid not in self.met:
            self.met.add(one.guid)
            if one.guid in self.turns.turn:
                kind = self.turns.kind[one.guid]
                self._next[kind] = max(self._next[kind], self.turns.turn[one.guid] + 1)
                if kind == NodeType.SWITCH:
                    self._open[one.guid] = None
        elif one.attribute == AttributeId.PORT_INFO:
            self._open.pop(one.guid, None)

    def _release(self) -> list[bytes]:
        """Return what waited for what has just gone."""
        frames: list[bytes] = []
        while True:
            ready = next((one for one in self._held if not self._waits(one)), None)
            if ready is None:
                return frames
            self._held.remove(ready)
            self._go(ready)
            frames.append(ready.frame)
