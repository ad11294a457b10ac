"""A fabric that is managed and that things happen to, on one clock.

Cables are cut and mended, switches go off and on at times that are planned beforehand. What nodes notice travels
to the manager of their subnet as traps (so long in the agent, so long for each hop, and only if the tables lead
there at that moment); the manager sweeps; what its datagrams set takes effect when they arrive, and what is
planned happens in the middle of a sweep if that is its time. Each subnet has its own clock: they never meet.

What all this does to data is told to whoever carries data, as effects with their times: directed links that pass
packets or do not (a link passes them while its port is active and the other end armed or active), and entries of
forwarding tables.

A trap that got lost is repeated after the subnet's timeout, and while a switch has a change to tell the manager
looks after everybody each `sweep_ps`. Left out: what the manager itself needs to think.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import U8
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.kernel.codes import NEVER as NEVER
from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.routing.port_settings import PortSettings
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Frame
from fabrictwin.subnet.agents.port_states import NO_PORT
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.sweep_report import SweepReport
from fabrictwin.subnet.operation.changed_paths import ChangedPath, Changes, PathFollower
from fabrictwin.subnet.operation.congestion_in_force import congestion_tables
from fabrictwin.subnet.operation.manager_commands import SETTINGS, Membership, settings_after, verb_of
from fabrictwin.subnet.operation.manager_host import HostedManager
from fabrictwin.subnet.operation.partitions_in_force import Partitions, partitions_of
from fabrictwin.subnet.operation.tables_in_force import lane_tables
from fabrictwin.subnet.serve.console import obey
from fabrictwin.subnet.serve.endpoint import Endpoint
from fabrictwin.subnet.wire.smp import PortState

SWEEP_PS = 10 * PS_PER_S  # as often as OpenSM sweeps
MOST_ROUNDS = 64  # sweeps in a row: a fabric whose ports never come to rest is left as it is


@record
class _Effect:
    """Something that is so from a time on."""

    time_ps: int


@record
class LinkEffect(_Effect):
    """The directed link of a port of the fabric passes data from now on, or no longer."""

    port: int
    up: bool


@record
class TableEffect(_Effect):
    """Entries of a switch's forwarding table (its fabric node) are others from now on; 255 is none."""

    node: int
    lid: npt.NDArray[np.int64]
    port: U8


@record
class SettingsEffect(_Effect):
    """Ports and adapters work by these settings from now on."""

    settings: PortSettings
    partitions: Partitions | None = None  # where it is partition keys: what switch ports enforce, too


Effect = LinkEffect | TableEffect | SettingsEffect
_SETTINGS: dict[str, Callable[[SubnetState], Any]] = {"lanes": lane_tables, "congestion": congestion_tables}


@record
class Entry:
    """A table entry that is another than before."""

    switch: str
    destination: str
    before: int  # port, NO_PORT none
    after: int


@record
class Course:
    """How an incident went, as far as somebody saw it; NONE for times that they did not see."""

    what: str
    at_ps: int
    noticed_ps: int
    settled_ps: int
    broken_paths: int
    outage_ps: int  # NONE where nothing broke, or nothing was mended
    entries: Sequence[Entry]
    paths: Sequence[ChangedPath]


@dataclass
class Incident:
    """Things that happened to one subnet until its manager was at rest again."""

    happened: list[tuple[int, str]] = field(default_factory=list)  # (when, what)
    noticed_ps: int = NONE  # when the manager first heard of it
    settled_ps: int = NONE  # when it was at rest again
    sweeps: list[SweepReport] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    paths: list[ChangedPath] = field(default_factory=list)  # that are others, or were broken
    answers: list[str] = field(default_factory=list)  # of subnet administration to who joined or left a group

    @property
    def what(self) -> str:
        return ", ".join(text for _, text in self.happened)

    @property
    def at_ps(self) -> int:
        return self.happened[0][0]

    @property
    def broken_paths(self) -> int:
        """(switch with adapters, LID) whose packets went nowhere."""
        return sum(s.rerouting.broken_paths for s in self.sweeps if s.rerouting is not None)

    @property
    def outage_ps(self) -> int:
        """From what happened first to the last entry that mends a broken path; NONE where no path broke."""
        repaired = [s.rerouting.repaired_ps for s in self.sweeps if s.rerouting is not None]
        return max(repaired) - self.at_ps if repaired and max(repaired) > self.at_ps else NONE

    @property
    def course(self) -> Course:
        """Return all of it."""
        return Course(**{part.name: getattr(self, part.name) for part in fields(Course)})


class _Plane:
    """One subnet: its manager, its clock, what is planned for it, traps on their way."""

    def __init__(self, owner: ManagedFabric, hosted: HostedManager) -> None:
        self.owner, self.hosted = owner, hosted
        state = hosted.endpoint.state
        self.number = state.plane_of(state.node_of[hosted.slot])
        self.clock_ps = 0
        self.planned: list[tuple[int, int, str | Settings]] = []
        self.inbox: list[tuple[int, int, int, Frame]] = []  # (arrival, sequence, slot, trap)
        self.next_sweep_ps = NEVER
        self.unrest = False  # something changed since a sweep found that all is as it was
        self.open: Incident | None = None
        self.changes = Changes.none()  # of the open incident
        self.asked: list[Membership] = []  # requests that subnet administration has not answered
        self._host = state.fabric.node_name(int(state.fabric_node[state.node_of[hosted.slot]]))
        self.switches = [m for m in state.row if state.plane_of(m) == self.number]
        hosted.transport.passing = self.pass_time

    def next_ps(self) -> int:
        """Return when something is next due."""
        due = [self.planned[0][0]] if self.planned else []
        due += [self.inbox[0][0]] if self.inbox else []
        if self.unrest:
            trap = self.hosted.endpoint.state.notices.next_ps(self.number)
            due += [] if trap is None else [max(trap, self.clock_ps)]
            due += [self.next_sweep_ps] if self._has_news() else []
        return min(due, default=NEVER)

    def _has_news(self) -> bool:
        """Return whether a switch notes a change that the manager has not seen."""
        state = self.hosted.endpoint.state
        return any(state.alive[m] and state.has_news(m) for m in self.switches)

    def pass_time(self, now_ps: int) -> None:
        """Let what is due by now happen, each at its time."""
        while self.planned and self.planned[0][0] <= now_ps:
            at, _, line = heapq.heappop(self.planned)
            if isinstance(line, Settings):
                self.hosted.manager.reconfigure(line)
                self.unrest = True
                continue
            if self.open is None:
                self.open = Incident()
                self.owner.incidents.append(self.open)
            self.open.happened.append((at, line))
            self.unrest = True
            self._obey(line, at)
            self._send_traps(at)
        self._send_traps(now_ps)
        self.clock_ps = max(self.clock_ps, now_ps)

    def _obey(self, line: str, now_ps: int) -> None:
        """Let a line of the console happen; what the manager is to do waits for it as datagrams do."""
        endpoint, verb = self.hosted.endpoint, verb_of(line)
        if verb in SETTINGS:
            manager = self.hosted.manager
            manager.reconfigure(settings_after(line, manager.latest_settings, endpoint, self._host))
        elif verb:
            self._ask(Membership(line, endpoint), now_ps)
        else:
            obey(endpoint.state, line, now_ps)

    def _ask(self, membership: Membership, now_ps: int) -> None:
        """A node's request to subnet administration sets out; lost where the tables do not lead there."""
        frame, timing = membership.request(), self.hosted.transport.timing
        end, hops = self.hosted.endpoint.network.route(membership.slot, frame.dlid)
        if end != self.hosted.slot:
            assert self.open is not None
            self.open.answers.append("the manager is not reached")
            return
        arrival = now_ps + timing.agent_ps + hops * timing.hop_ps
        heapq.heappush(self.inbox, (arrival, next(self.owner.sequence), end, frame))
        self.asked.append(membership)

    def _hear_answers(self, now_ps: int) -> None:
        """Nodes that asked hear of it, or ask again for a group that is to be made."""
        waiting, self.asked = self.asked, []
        for membership in waiting:
            if not membership.is_answered:
                self.asked.append(membership)
                continue
            said = membership.conclude()
            if said is None:
                self._ask(membership, now_ps)
            elif self.open is not None:
                self.open.answers.append(said)

    def _send_traps(self, now_ps: int) -> None:
        self.hosted.endpoint.state.flow_control.advance(now_ps)
        if not self.hosted.endpoint.state.notices.pending:
            return
        timing = self.hosted.transport.timing
        for outcome in self.hosted.endpoint.network.traps(now_ps, plane=self.number):
            if outcome.frame is not None:
                arrival = now_ps + timing.agent_ps + outcome.hops * timing.hop_ps
                heapq.heappush(self.inbox, (arrival, next(self.owner.sequence), outcome.slot, outcome.frame))

    def step(self) -> None:
        """Let what is due next happen, and the manager deal with it until it is at rest."""
        now, looks = self.next_ps(), False
        transport, reports = self.hosted.transport, self.hosted.reports
        effects = len(self.owner._effects)
        for _ in range(MOST_ROUNDS):
            self.pass_time(now)
            while self.inbox and self.inbox[0][0] <= now:
                _, _, slot, frame = heapq.heappop(self.inbox)
                if self.open is not None and self.open.noticed_ps == NONE:
                    self.open.noticed_ps = now
                transport.clock_ps = max(transport.clock_ps, now)
                self.hosted.endpoint.forward(slot, frame, now)
                self._hear_answers(max(now, transport.clock_ps))
            if self.next_sweep_ps <= now:
                self.hosted.manager.wants_sweep = looks = True
                self.next_sweep_ps = now + self.owner.sweep_ps
            known = len(reports)
            self.hosted.step(now)
            self.owner.note_settings()
            if len(reports) > known:
                self._note(reports[known:])
                now = max(now, transport.clock_ps)
            elif self.inbox:
                now = max(now, self.inbox[0][0])
            else:
                break
        self.clock_ps = max(self.clock_ps, now)
        news = self._has_news()
        if looks and len(self.owner._effects) == effects:
            self.unrest = False  # what is left to tell comes from where nobody hears it
        elif not news and self.hosted.endpoint.state.notices.next_ps(self.number) is None:
            self.unrest = False
        awaited = self.hosted.endpoint.state.flow_control.next_ps(self.number) is not None
        if not self.unrest or not (news or awaited):
            self._close()  # a trap that is repeated later tells the manager nothing new

    def start(self) -> None:
        """The first sweep."""
        self.unrest = True
        self.hosted.step(0)
        self.clock_ps = self.hosted.transport.clock_ps
        self.next_sweep_ps = self.clock_ps + self.owner.sweep_ps
        while self.next_ps() <= self.clock_ps:
            self.step()

    def _note(self, sweeps: list[SweepReport]) -> None:
        self.next_sweep_ps = sweeps[-1].ended_ps + self.owner.sweep_ps
        if self.open is not None:
            if self.open.noticed_ps == NONE:
                self.open.noticed_ps = sweeps[0].started_ps
            self.open.sweeps += sweeps

    def _close(self) -> None:
        """An incident ends when nobody has anything to tell any more, or nobody who is heard."""
        one = self.open
        if one is None:
            return
        one.settled_ps = self.clock_ps
        one.entries = self.owner.entries(self.changes.before)
        one.paths = self.owner.follower.changed(self.changes, self.number)
        self.changes = Changes.none()
        self.open = None


class ManagedFabric:
    """The managers of a fabric's subnets at work, and what they and fate do to its links and tables."""

    def __init__(self, endpoint: Endpoint, managers: list[HostedManager], *, sweep_ps: int = SWEEP_PS) -> None:
        self.endpoint = endpoint
        self.state: SubnetState = endpoint.state
        self.sweep_ps = sweep_ps
        self.sequence = count()
        self.incidents: list[Incident] = []  # in the order in which they began
        self.planes = [_Plane(self, one) for one in managers]
        self._by_number = {plane.number: plane for plane in self.planes}
        self._manages = {plane.hosted.slot: plane for plane in self.planes}
        self._effects: list[Effect] = []
        state = self.state
        state.flow_control.awaited_events = max(1, *(one.manager.settings.babbling_traps for one in managers), 1)
        self._passes = [self._is_up(slot) for slot in range(state.slots)]
        state.on_state.append(self._state_changed)
        state.on_table.append(self._table_changed)
        self._held = PortSettings()  # when settings were last looked at
        self._partitions: Partitions | None = None  # likewise
        self._set_ps: dict[str, int] = {}  # when a kind of them was last set, since then
        state.on_lanes.append(partial(self._setting_changed, "lanes"))
        state.on_congestion.append(partial(self._setting_changed, "congestion"))
        state.on_keys.append(partial(self._setting_changed, "keys"))

    @cached_property
    def follower(self) -> PathFollower:
        """Follows paths over the tables as they are."""
        return PathFollower(self.state)

    @property
    def managers(self) -> list[HostedManager]:
        return [plane.hosted for plane in self.planes]

    @property
    def now_ps(self) -> int:
        """Time of the subnet that has come farthest."""
        return max((plane.clock_ps for plane in self.planes), default=0)

    def start(self) -> list[SweepReport]:
        """The first sweep of each subnet; afterwards all links that are up pass data."""
        for plane in self.planes:
            plane.start()
        self.note_settings()
        self._effects.clear()
        return [plane.hosted.reports[0] for plane in self.planes]

    def plan(self, time_ps: int, line: str, node: int) -> None:
        """Let something happen to a managed node, in the words of the console (`cut leaf-0/9`, `off spine-1`).

        NONE is every subnet (`qos FILE`).
        """
        if node == NONE:
            for each in self.planes:
                heapq.heappush(each.planned, (max(time_ps, each.clock_ps), next(self.sequence), line))
            return
        plane = self._by_number.get(self.state.plane_of(node))
        if plane is None:
            plane = self.planes[0]  # a subnet that nobody manages: it happens all the same
        heapq.heappush(plane.planned, (max(time_ps, plane.clock_ps), next(self.sequence), line))

    def plan_settings(self, time_ps: int, settings: Settings) -> None:
        """Let all managers take other settings and sweep, as OpenSM does that is told to read its files again."""
        for plane in self.planes:
            at = max(time_ps, plane.clock_ps)
            heapq.heappush(plane.planned, (at, next(self.sequence), settings))

    def next_ps(self) -> int:
        """Return when something is next due in any subnet; NEVER where nothing is."""
        return min((plane.next_ps() for plane in self.planes), default=NEVER)

    def step(self) -> list[Effect]:
        """Let what is due next happen, with all that follows; its effects, none before `next_ps`, in order."""
        plane = min(self.planes, key=lambda one: one.next_ps())
        if plane.next_ps() < NEVER:
            plane.step()
        effects, self._effects = self._effects, []
        return sorted(effects, key=lambda effect: effect.time_ps)

    def settle(self) -> list[Effect]:
        """Let everything happen that is planned or follows."""
        effects: list[Effect] = []
        while self.next_ps() < NEVER:
            effects += self.step()
        return effects

    def _setting_changed(self, kind: str, now_ps: int) -> None:
        self._set_ps[kind] = max(self._set_ps.get(kind, NONE), now_ps)

    def note_settings(self) -> None:
        """Tell of what was set port by port; it takes effect together, with the last of it."""
        for kind, read in _SETTINGS.items():
            if kind not in self._set_ps:
                continue
            held, now = getattr(self._held, kind), read(self.state)
            if now is not None and now != held:
                self._effects.append(SettingsEffect(self._set_ps[kind], PortSettings(**{kind: now})))
                self._held = replace(self._held, **{kind: now})
        if "keys" in self._set_ps and not (partitions := partitions_of(self.state)).is_like(self._partitions):
            settings = PortSettings(keys=partitions.keys)
            self._effects.append(SettingsEffect(self._set_ps["keys"], settings, partitions))
            self._partitions = partitions
        self._set_ps.clear()

    def hear_agents(self) -> None:
        """Agents were told of what happened to data: let their traps travel."""
        for plane in self.planes:
            plane.unrest |= self.state.notices.next_ps(plane.number) is not None

    # -- what data sees ------------------------------------------------------------------------------------

    def _is_up(self, slot: int) -> bool:
        state, far = self.state, self.state.link[slot]
        return (
            far != NONE
            and state.logical(slot) == PortState.ACTIVE
            and state.logical(far) in (PortState.ARMED, PortState.ACTIVE)
        )

    def _state_changed(self, slot: int, now_ps: int) -> None:
        state, far = self.state, self.state.cable[slot]
        for end in (slot, far):
            if end == NONE:
                continue
            plane = self._manages.get(end)
            if plane is not None and state.logical(end) == PortState.INIT:
                # a manager knows of its own port without being told
                plane.hosted.manager.wants_sweep = plane.hosted.manager.wants_heavy = True
            up, port = self._is_up(end), int(state.fabric_port[end])
            if up != self._passes[end] and port != NONE:
                self._passes[end] = up
                self._effects.append(LinkEffect(now_ps, port, up))
                at = self._by_number.get(state.plane_of(state.node_of[end]))
                if at is not None and at.open is not None:
                    at.changes.link(end, up, now_ps)

    def _table_changed(self, m: int, first: int, before: U8, now_ps: int) -> None:
        state = self.state
        held = state.lft[state.row[m], first : first + len(before)]
        at = np.flatnonzero(held != before)
        if not len(at):
            return
        self._effects.append(TableEffect(now_ps, int(state.fabric_node[m]), first + at, held[at].copy()))
        plane = self._by_number.get(state.plane_of(m))
        if plane is not None and plane.open is not None:
            for lid, old in zip((first + at).tolist(), before[at].tolist(), strict=True):
                plane.changes.entry((m, lid), old, now_ps)

    def entries(self, before: dict[tuple[int, int], int]) -> list[Entry]:
        """Those of some entries, by (managed node, LID), that are others now."""
        state = self.state
        return self.named({key: (old, int(state.lft[state.row[key[0]], key[1]])) for key, old in before.items()})

    def named(self, changed: dict[tuple[int, int], tuple[int, int]]) -> list[Entry]:
        """Entries by (managed node, LID) with their ports before and after: those that differ, by name."""
        state = self.state
        owner: dict[tuple[int, int], str] = {}
        for m, node in enumerate(state.fabric_node):
            if state.lid(state.end_slot(m)):
                owner[state.plane_of(m), state.lid(state.end_slot(m))] = state.fabric.node_name(int(node))
        found = []
        for (m, lid), (old, new) in sorted(changed.items()):
            if new != old:
                name = owner.get((state.plane_of(m), lid), f"LID {lid}")
                found.append(Entry(state.fabric.node_name(int(state.fabric_node[m])), name, old, new))
        return found


def port_text(port: int) -> str:
    """A table entry's port, for people."""
    return {NO_PORT: "none", 0: "itself"}.get(port, str(port))
