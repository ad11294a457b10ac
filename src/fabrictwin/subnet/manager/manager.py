"""The subnet manager: sweeps, decides who is master, keeps the subnet up, answers.

It speaks datagrams and nothing else, through a `Transport`; it has no clock of its own. A sweep runs to its end
when it is called; what arrives otherwise (traps, queries, another manager's questions) is handed to `receive`,
and `poll` says what is to be sent by now. Whoever runs it sweeps again when `wants_sweep` says so.

After a failure only what must move is routed anew, and the report says which paths were broken, for how long, and
which entries of tables changed. Engines whose freedom from deadlock hangs on more than shortest paths route anew
as a whole where keeping entries would break it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from fabrictwin.base.arrays import U8
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.filling import Tables
from fabrictwin.routing.engines.registry import OPENSM
from fabrictwin.subnet.agents.mad_routing import Frame, trap_mad
from fabrictwin.subnet.manager.administration import multicast_trees as multicast
from fabrictwin.subnet.manager.administration.administration import Administration
from fabrictwin.subnet.manager.database import Memory, SubnetDatabase
from fabrictwin.subnet.manager.election import Election
from fabrictwin.subnet.manager.mad_transport import Transport, get
from fabrictwin.subnet.manager.port_complaints import COMPLAINTS, KEY_TRAPS, Complaints, hear_bad_key
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.sweep.congestion_setup import CongestionSetup
from fabrictwin.subnet.manager.sweep.discovery import Discovery, Node, Port, Subnet
from fabrictwin.subnet.manager.sweep.light_sweep import LightSweep, Looked
from fabrictwin.subnet.manager.sweep.path_mending import mend, remember, staged
from fabrictwin.subnet.manager.sweep.programming import Programmer
from fabrictwin.subnet.manager.sweep.table_computation import (
    Graph,
    broken_paths,
    carry_over,
    fill,
    fill_anew,
    graph_of,
    keep_shortest,
    port_guid,
)
from fabrictwin.subnet.manager.sweep_report import Rerouting, RoutePlan, SweepReport
from fabrictwin.subnet.wire.fields import MadError
from fabrictwin.subnet.wire.header import SMP_DATA, MadClass, Method, check_mad
from fabrictwin.subnet.wire.notice import LocalChangesDetails, Notice, PortDetails, Trap
from fabrictwin.subnet.wire.smp import (
    AttributeId,
    PortState,
    SmState,
)


class SubnetManager:
    """One manager on one port."""

    def __init__(
        self, transport: Transport, settings: Settings | None = None, *, memory: Memory | None = None
    ) -> None:
        self.transport = transport
        self.database = SubnetDatabase(settings, memory)
        self.settings = self.database.settings
        transport.m_key = self.settings.m_key
        self.election = Election(transport, self.settings)
        self.programmer = Programmer(transport, self.settings, self.database.lft, self.database.mft)
        self.congestion = CongestionSetup(transport)
        self.administration = Administration(self.database, self.election)
        self._next_settings: Settings | None = None  # to be taken with the next heavy sweep
        self.wants_heavy = False  # whether the next sweep is to look at everything
        self._trap_issuers: set[int] = set()  # switches whose traps came since the last sweep
        self._renamed: set[int] = set()  # nodes whose traps said that their description changed
        self.complaints = Complaints(self.settings.babbling_traps)
        self.malformed = 0  # datagrams that were dropped because they were none

    @property
    def state(self) -> SmState:
        """State of this manager among managers."""
        return self.election.state

    @property
    def wants_sweep(self) -> bool:
        """True while something calls for a sweep."""
        return self.election.wants_sweep

    @wants_sweep.setter
    def wants_sweep(self, wanted: bool) -> None:
        self.election.wants_sweep = wanted

    def reconfigure(self, settings: Settings) -> None:
        """Work by other settings from the next sweep on, and sweep: as OpenSM reads its files again."""
        self._next_settings = settings
        self.wants_sweep = self.wants_heavy = True

    @property
    def latest_settings(self) -> Settings:
        """Settings that it works by, or will from the next sweep on."""
        return self._next_settings or self.settings

    def _take_settings(self) -> None:
        settings, self._next_settings = self._next_settings, None
        if settings is not None:
            self.settings = self.database.settings = self.election.settings = self.programmer.settings = settings
            self.transport.m_key = settings.m_key
            self.programmer.forget_lanes()

    # -- sweeps --------------------------------------------------------------------------------------------

    def sweep(self) -> SweepReport:
        """The heavy sweep: discover, decide who is master, and if it is this one, set everything up."""
        started = self.transport.now_ps
        self._take_settings()
        self.wants_sweep = self.wants_heavy = False
        self._trap_issuers.clear()
        self._renamed.clear()
        self.election.activity += 1
        found = Discovery(self.transport).run()
        before = self.database.subnet
        if found.own is None:
            self.election.state = SmState.NOT_ACTIVE
            self.database.subnet = found
            return self._report("heavy", started, (), (), None)
        self.election.guid = port_guid(found.own)
        self.database.subnet = found
        if not self.election.elect(found):
            self.database.list_ends()
            return self._report("heavy", started, (), (), None)
        self.election.state = SmState.MASTER
        self._forget_restarted(before)
        arrived, gone = self._compare(before, found) if before.own is not None else ([], [])
        self._configure(kind_of_change="heavy")
        self._announce(arrived, gone)
        rerouting = self._last_rerouting if before.own is not None else None
        return self._report("heavy", started, _names(arrived), _names(gone), rerouting)

    def light_sweep(self) -> SweepReport:
        """Ask every switch whether a port changed; look closer only there. A new link calls for a heavy sweep."""
        started = self.transport.now_ps
        if self.state != SmState.MASTER or self.database.subnet.own is None or self.wants_heavy:
            return self.sweep()
        self.wants_sweep = False
        self.election.activity += 1
        self._trap_issuers |= self.complaints.disable(self.transport)
        before = {port_guid(port): port for port in self.database.ends()}
        issuers = self._nodes_of(self._trap_issuers)
        self._trap_issuers.clear()
        looked = LightSweep(self.transport, self.database.subnet).run(issuers)
        self._read_descriptions()
        if looked is Looked.MORE:
            return self.sweep()
        if looked is Looked.NOTHING:
            return self._report("light", started, (), (), None)
        now = {port_guid(port) for port in self.database.ends()}
        gone = [port for guid, port in before.items() if guid not in now]
        self._configure(kind_of_change="failure")
        self._announce([], gone)
        return self._report("light", started, (), _names(gone), self._last_rerouting)

    def _nodes_of(self, guids: set[int]) -> list[Node]:
        nodes = self.database.subnet.nodes
        return [nodes[guid] for guid in sorted(guids) if guid in nodes]

    def _read_descriptions(self) -> None:
        """Read the descriptions of nodes that notice of a new one (trap 144)."""
        nodes = [
            self.database.subnet.nodes[guid]
            for guid in sorted(self._renamed)
            if guid in self.database.subnet.nodes
        ]
        self._renamed.clear()
        asked = [get(node.path, AttributeId.NODE_DESCRIPTION) for node in nodes]
        answers = self.transport.exchange(asked) if asked else []
        for node, answer in zip(nodes, answers, strict=True):
            if answer is not None and not answer[0]:
                node.description = answer[1]

    def _forget_restarted(self, before: Subnet) -> None:
        """A node that was away, or that has lost its LID, has lost its tables too."""
        if before.own is None:
            return
        for node in self.database.subnet.nodes.values():
            if node.guid not in before.nodes or any(port.info.lid == 0 for port in node.ends()):
                self.programmer.forget(node)
                for port in node.ends():
                    self.congestion.forget(port_guid(port))

    def _compare(self, before: Subnet, found: Subnet) -> tuple[list[Port], list[Port]]:
        old = {port_guid(port): port for node in before.nodes.values() for port in node.ends()}
        new = {port_guid(port): port for node in found.nodes.values() for port in node.ends()}
        arrived = [port for guid, port in new.items() if guid not in old]
        gone = [port for guid, port in old.items() if guid not in new]
        return arrived, gone

    # -- setting up ----------------------------------------------------------------------------------------

    _last_rerouting: Rerouting | None = None

    def _configure(self, *, kind_of_change: str) -> None:
        subnet, programmer = self.database.subnet, self.programmer
        self.database.assign_lids()
        programmer.findings.clear()
        if kind_of_change == "heavy":
            programmer.partitions(subnet)
        route = self._route(kind_of_change)
        rising = any(
            port.number and port.peer is not None and port.info.port_state < PortState.ACTIVE
            for node in subnet.nodes.values()
            for port in node.ports.values()
        )
        # nothing leads over a link before it is active, nor to a switch whose tables are empty
        if rising:
            programmer.forwarding(route.graph, route.tables.lft, only=route.fresh)
            self._set_up_ports()
        repaired = NONE
        needed = None if route.broken is None else route.broken.needed
        for lft in (*route.stages, route.tables.lft):
            repaired = max(repaired, programmer.forwarding(route.graph, lft, needed=needed))
        if not rising:
            self._set_up_ports()
        if self.settings.congestion is not None:
            self.congestion.run(subnet, self.database.lid, self.settings.congestion)
        self._last_rerouting = None if route.broken is None else route.report(route.broken, repaired)
        for kind, where, text in programmer.findings:
            subnet.find(kind, where, text)

    def _set_up_ports(self) -> None:
        """Lanes, multicast, then LIDs and the way to Active."""
        subnet = self.database.subnet
        if self.settings.qos:
            self.programmer.lanes(subnet)
        self.administration.groups.add_broadcast()
        self.update_multicast()
        assert subnet.own is not None
        self.programmer.ports(subnet, self.database.lid, sm_lid=self.database.lid[self.election.guid])

    def _route(self, kind_of_change: str) -> RoutePlan:
        """Tables for what was found; nothing is sent."""
        graph = graph_of(self.database.subnet, self.database.lid, self.settings.lmc)
        before, self.database.graph = self.database.graph, graph
        held = self.database.lft
        old = carry_over(graph, held)
        anew = cache(lambda: fill_anew(graph, self.settings) if held else fill(graph, self.settings))
        tables, stages = self._mended(graph, before, old, kind_of_change, anew)
        if tables is None:
            tables = anew()
            self.database.routed = remember(graph, tables, self.settings.routing)
            if held and tables.engine not in OPENSM:
                stages = staged(graph, old, tables.lft)
        self.database.tables = tables
        broken = broken_paths(graph, old, tables.lft) if held else None
        fresh = frozenset(node.guid for node in graph.nodes if node.guid not in held)
        return RoutePlan(graph, tables, old, broken, fresh, stages)

    def _mended(
        self, graph: Graph, before: Graph | None, old: U8, kind_of_change: str, anew: Callable[[], Tables]
    ) -> tuple[Tables | None, tuple[U8, ...]]:
        """(tables that keep what is whole, those to program before them); None where an engine routes anew."""
        last, routed = self.database.tables, self.database.routed
        if last is None or last.engine in OPENSM:
            return None, ()
        if routed is not None:
            mended = mend(graph, old, routed, last.engine, returned=kind_of_change != "failure", anew=anew)
            return (None, ()) if mended is None else (mended.tables, mended.stages)
        if kind_of_change == "failure":
            kept = keep_shortest(graph, old, last, before)
            return kept, () if kept is None else staged(graph, old, kept.lft)
        return None, ()

    def rehearse_rerouting(self) -> None:
        """Compute what a change would have routed, where nothing has changed, and send nothing.

        Kernels that only a change needs are compiled by this, not while clients wait.
        """
        graph, last = self.database.graph, self.database.tables
        if graph is None or last is None or last.engine in OPENSM:
            return
        old = carry_over(graph, self.database.lft)
        for kind in ("heavy", "failure"):
            self._mended(graph, graph, old, kind, lambda: last)
        staged(graph, old, old)
        broken_paths(graph, old, old)

    def update_multicast(self) -> None:
        """Bring the trees of all groups in line with their members."""
        subnet = self.database.subnet
        self.administration.groups.tree_changed = False
        groups = self.administration.groups.known.values()
        if not any(group.members for group in groups) and not self.programmer.mft:
            return
        graph = self.database.graph
        if graph is None:
            return
        masks: dict[int, dict[int, int]] = {}
        for group in groups:
            members = {
                self.database.by_guid[gid & 0xFFFFFFFFFFFFFFFF]
                for gid in group.members
                if gid & 0xFFFFFFFFFFFFFFFF in self.database.by_guid
            }
            masks[group.mlid] = multicast.port_masks(graph, members, group.mlid)
        self.programmer.multicast(subnet, masks)

    def _announce(self, arrived: list[Port], gone: list[Port]) -> None:
        prefix = self.settings.gid_prefix << 64
        for port in gone:
            self.administration.groups.drop(port_guid(port))
        for trap, ports in ((Trap.GID_IN_SERVICE, arrived), (Trap.GID_OUT_OF_SERVICE, gone)):
            for port in ports:
                self.administration.reports.report_gid(trap, prefix | port_guid(port))
        if self.administration.groups.tree_changed:
            self.update_multicast()

    def _report(
        self,
        kind: str,
        started: int,
        arrived: tuple[str, ...],
        gone: tuple[str, ...],
        rerouting: Rerouting | None,
    ) -> SweepReport:
        subnet = self.database.subnet
        return SweepReport(
            kind=kind,
            state=self.state,
            started_ps=started,
            ended_ps=self.transport.now_ps,
            nodes=len(subnet.nodes),
            switches=len(subnet.switches),
            endpoints=len(subnet.endpoints),
            engine=self.database.tables.engine if self.database.tables is not None else "",
            remark=self.database.tables.remark if self.database.tables is not None else "",
            findings=tuple(subnet.findings),
            arrived=arrived,
            gone=gone,
            rerouting=rerouting,
        )

    # -- what arrives --------------------------------------------------------------------------------------

    def receive(self, frame: Frame, now_ps: int) -> list[Frame]:
        """A datagram that nobody here asked for; what to send in return. Malformed ones are dropped."""
        mad = frame.mad
        try:
            check_mad(mad)
            if mad[1] == MadClass.SUBN_ADM:
                if self.state != SmState.MASTER:
                    return []
                out = self.administration.receive(frame, now_ps)
                if self.administration.groups.tree_changed:
                    self.update_multicast()
                return out + self.administration.poll(now_ps)
            if mad[1] not in (MadClass.SUBN_LID, MadClass.SUBN_DIRECTED):
                return []
            if mad[3] == Method.TRAP:
                return self._trap(frame, now_ps)
            attribute = mad[16] << 8 | mad[17]
            if attribute == AttributeId.SM_INFO and mad[3] in (Method.GET, Method.SET):
                return [self.election.answer(frame)]
        except MadError:
            self.malformed += 1
        return []

    def _trap(self, frame: Frame, now_ps: int) -> list[Frame]:
        """Repress it, remember to look, pass it on to who subscribed."""
        if self.state != SmState.MASTER:
            return []
        notice = Notice.decode(frame.mad, SMP_DATA.start)
        tid = int.from_bytes(frame.mad[8:16], "big")
        back = trap_mad(tid, notice.encode(), Method.TRAP_REPRESS)
        issuer = self.database.by_lid(notice.issuer_lid)
        if notice.trap_number in (Trap.LINK_STATE_CHANGE, Trap.LOCAL_CHANGES):
            self.wants_sweep = True
            if issuer is not None and issuer.node.is_switch:
                self._trap_issuers.add(issuer.node.guid)
            if issuer is not None and notice.trap_number == Trap.LOCAL_CHANGES:
                self._note_local_changes(issuer, LocalChangesDetails.decode(notice.details))
        elif notice.trap_number in COMPLAINTS and issuer is not None:
            number = PortDetails.decode(notice.details).port
            subnet, trap = self.database.subnet, Trap(notice.trap_number)
            self.wants_sweep |= self.complaints.hear(subnet, issuer.node, number, trap)
        elif notice.trap_number in KEY_TRAPS and issuer is not None:
            self.wants_sweep |= hear_bad_key(self.database, issuer, notice)
        self.administration.reports.report(notice, port_guid(issuer) if issuer is not None else 0)
        return [Frame(frame.slid, frame.dlid, 0, 0, back), *self.administration.poll(now_ps)]

    def _note_local_changes(self, port: Port, details: LocalChangesDetails) -> None:
        """Take the capabilities that a trap 144 carries; a new description is read by the next sweep."""
        port.info.capability_mask = details.capability_mask
        if details.node_description_change:
            self._renamed.add(port.node.guid)

    def poll(self, now_ps: int) -> list[Frame]:
        """Return the frames that are due by now."""
        self.election.poll(now_ps)
        return self.administration.poll(now_ps) if self.state == SmState.MASTER else []


def _names(ports: list[Port]) -> tuple[str, ...]:
    return tuple(str(port) for port in ports)
