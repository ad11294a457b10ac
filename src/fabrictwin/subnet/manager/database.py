"""The subnet database: all that a manager knows of its subnet, as OpenSM's `osm_subn` holds it.

Sweeps write it; administration, elections and reports read it. It sends nothing and has no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fabrictwin.base.arrays import U8
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.filling import Tables
from fabrictwin.subnet.manager.settings.manager_settings import FULL, Settings
from fabrictwin.subnet.manager.sweep.discovery import Node, Port, Subnet
from fabrictwin.subnet.manager.sweep.lids import Wish, assign
from fabrictwin.subnet.manager.sweep.path_mending import Routed
from fabrictwin.subnet.manager.sweep.table_computation import Graph, port_guid


@dataclass
class Memory:
    """LIDs by port GUID, which outlive a manager."""

    lid: dict[int, int] = field(default_factory=dict)


class SubnetDatabase:
    """Nodes, LIDs, tables and settings of one subnet."""

    def __init__(self, settings: Settings | None = None, memory: Memory | None = None) -> None:
        self.settings = settings or Settings()
        self.memory = memory or Memory()
        self.subnet = Subnet()  # as the last sweep found it
        self.lid: dict[int, int] = {}  # by port GUID
        self.by_guid: dict[int, Port] = {}  # ports with LIDs of their own
        self._by_lid: dict[int, Port] = {}
        self.graph: Graph | None = None  # of the switches
        self.tables: Tables | None = None  # as they were computed last
        self.routed: Routed | None = None  # the fabric as it was when an engine routed it last as a whole
        self.lft: dict[int, U8] = {}  # forwarding tables as switches hold them, by switch GUID
        self.mft: dict[tuple[int, int, int], bytes] = {}  # multicast's, by (switch GUID, block, position)

    @property
    def own_lid(self) -> int:
        """The LID of the manager's own port; 0 before there is one."""
        own = self.subnet.own
        return own.info.lid if own else 0

    @property
    def own_guid(self) -> int:
        """The GUID of the manager's own port; 0 before it is known."""
        own = self.subnet.own
        return port_guid(own) if own else 0

    def in_order(self) -> list[Node]:
        """Return the nodes in the order of OpenSM's tables, in which records are answered."""
        nodes = self.subnet.nodes
        return [nodes[guid] for guid in sorted(nodes, key=lambda guid: guid.to_bytes(8, "big")[::-1])]

    def ends(self) -> list[Port]:
        """Return the ports with LIDs of their own, in the order in which they were found."""
        return [port for node in self.subnet.nodes.values() for port in node.ends()]

    def list_ends(self) -> None:
        """Bring `by_guid` in line with the subnet."""
        self.by_guid = {port_guid(port): port for port in self.ends()}

    def assign_lids(self) -> None:
        """Give every end its LIDs: those remembered, else those that it has, else the lowest free ones."""
        lmc = self.settings.lmc
        ends = self.ends()
        wishes = [Wish(port_guid(port), port.info.lid, 0 if port.number == 0 else lmc) for port in ends]
        self.lid = assign(wishes, self.memory.lid)
        self.memory.lid.update(self.lid)
        self.list_ends()
        self._by_lid = {}
        for port in ends:
            for k in range(1 << (0 if port.number == 0 else lmc)):
                self._by_lid[self.lid[port_guid(port)] + k] = port

    def by_lid(self, lid: int) -> Port | None:
        """Return the port that has a LID, path bits included."""
        return self._by_lid.get(lid)

    def common_pkey(self, a: int, b: int) -> int:
        """Return a P_Key over which two ports may talk, 0 for none: limited members do not talk to each other."""
        mine = {key & ~FULL: key for key in self.settings.pkeys_of(a)}
        for key in self.settings.pkeys_of(b):
            other = mine.get(key & ~FULL)
            if other is not None and (key | other) & FULL:
                return other | (key & FULL)
        return 0

    def shares_pkey(self, a: int, b: int, pkey: int) -> bool:
        """Return whether two ports are in a P_Key's partition, one of them as a full member."""
        held = [
            key for port in (a, b) for key in self.settings.pkeys_of(port) if (key ^ pkey) & ~FULL & 0xFFFF == 0
        ]
        return len(held) >= 2 and any(key & FULL for key in held)

    @property
    def levels_are_given(self) -> bool:
        """Tell whether the tables want service levels of their own."""
        return self.tables is not None and bool(self.tables.lane.size)

    def service_level(self, source: Port, lid: int) -> int:
        """Return the service level that the tables want from a port to a LID."""
        tables, graph = self.tables, self.graph
        if tables is None or graph is None or not tables.lane.size or source.peer is None:
            return 0
        switch: Node = source.node if source.node.is_switch else source.peer.node
        row = graph.row.get(switch.guid, NONE)
        column = int(graph.switches.edge_column[row]) if row != NONE else NONE
        return 0 if column == NONE else int(tables.lane[lid, column])
