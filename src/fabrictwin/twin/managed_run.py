"""An engine and the managers of its fabric on one clock.

The engine carries data; the managers hear of what breaks, sweep and program. Whichever has something due first
goes first: the engine advances to that moment, then the managers deal with it to the end of their sweeps, and
what their datagrams set reaches the engine at its time. Management does not wait for data (it has a lane of its
own that is always served), so a sweep may run ahead of the engine, which never sees a change before its time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.engines.base.changes import TableEntries, TimedChange
from fabrictwin.engines.base.engine import Engine
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.routing.port_settings import PortSettings
from fabrictwin.subnet.agents.port_states import NO_PORT
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.operation.changed_paths import ChangedPath
from fabrictwin.subnet.operation.congestion_in_force import tell_agents
from fabrictwin.subnet.operation.managed_fabric import (
    NEVER,
    Course,
    Effect,
    Incident,
    LinkEffect,
    ManagedFabric,
    SettingsEffect,
    TableEffect,
)
from fabrictwin.subnet.operation.partitions_in_force import ViolationTeller, partitions_of


@record
class Outage(Course):
    """An incident as far as the run lived to see it; times after the run's start, NONE for what it did not see.

    The manager works ahead of the run, so the incident itself may know of more: `broken_paths` are those of sweeps
    that ended before the run did, `paths` that were not whole again when it ended lead nowhere.
    """

    incident: Incident
    lost: int | None  # data packets until the next incident or the end; None where the fidelity knows none
    retransmitted: int | None


class ManagedRun:
    """One run under management. `rates` are what links run at now that do not run as built, by port."""

    def __init__(
        self,
        managed: ManagedFabric,
        fabric: Fabric,
        *,
        changes: Sequence[TimedChange] = (),
        rates: dict[int, int] | None = None,
    ) -> None:
        self.managed = managed
        self.changes = changes  # of links that management has no word in: other rates, bit errors
        self.origin_ps = managed.now_ps  # the managers' time when the run begins
        self._known = len(managed.incidents)
        self._partitions = partitions_of(managed.state)  # that the engine's packets meet
        self._violations = ViolationTeller(managed.state)
        self._rate: dict[int, int | None] = dict(rates or {})
        self._down: set[int] = set()
        self._queue: list[tuple[int, int, TimedChange | Effect, int]] = []
        self._sequence = count()
        self._losses: list[tuple[int, int] | None] = []  # when each incident began
        self._held = managed.state.lft.copy()
        self._entries: dict[tuple[int, int], int] = {}  # by (managed node, LID) those that the run has seen change
        self._changed: list[dict[tuple[int, int], tuple[int, int]]] = []  # of each incident
        self.end_ps = NEVER  # when the run ended, after its start
        self._row = np.full(fabric.nodes, -1, np.int64)
        self._row[fabric.switch_nodes] = np.arange(len(fabric.switch_nodes))

    def plan_settings(self, time_ps: int, settings: Settings) -> None:
        """Let managers take other settings so long after the run's start."""
        self.managed.plan_settings(self.origin_ps + time_ps, settings)

    def plan(self, time_ps: int, line: str, node: int) -> None:
        """Let something happen so long after the run's start, in the words of the console."""
        self.managed.plan(self.origin_ps + time_ps, line, node)

    @property
    def outages(self) -> tuple[Outage, ...]:
        """Outages so far, in order."""
        end = self.origin_ps + self.end_ps
        return tuple(self._outage(i, end) for i in range(len(self._changed)))

    def _outage(self, i: int, end_ps: int) -> Outage:
        one = self.managed.incidents[self._known + i]
        before, after = self._losses[i], self._losses[i + 1]
        lost = None if before is None or after is None else (after[0] - before[0], after[1] - before[1])
        sweeps = [sweep.rerouting for sweep in one.sweeps if sweep.ended_ps <= end_ps and sweep.rerouting]
        mended = max((sweep.repaired_ps for sweep in sweeps), default=NONE)

        def seen(time_ps: int) -> int:
            return time_ps - self.origin_ps if NONE < time_ps <= end_ps else NONE

        return Outage(
            incident=one,
            what=", ".join(text for at, text in one.happened if at <= end_ps),
            at_ps=one.at_ps - self.origin_ps,
            noticed_ps=seen(one.noticed_ps),
            settled_ps=seen(one.settled_ps),
            broken_paths=sum(sweep.broken_paths for sweep in sweeps),
            outage_ps=mended - one.at_ps if one.at_ps < mended <= end_ps else NONE,
            entries=tuple(self.managed.named(self._changed[i])),
            paths=tuple(_until(path, end_ps) for path in one.paths if min(_times(path)) <= end_ps),
            lost=None if lost is None else lost[0],
            retransmitted=None if lost is None else lost[1],
        )

    def drive(self, engine: Engine, began: int, operations: int) -> None:
        """Run an engine to its end; `began` is its time when the run began. Raises SimulatedError."""
        for change in self.changes:
            if change.error_rate is None:
                self._push(change.time_ps, change)
            else:
                engine.change(replace(change, time_ps=began + change.time_ps))
        if engine.capabilities.packets and not self._partitions.open:
            engine.change(TimedChange(began, settings=PortSettings(keys=self._partitions.keys)))
        engine.await_changes(True)
        if self._advance(engine, began, operations):
            engine.await_changes(False)
            engine.advance()
        self._losses.append(_losses(engine))
        if engine.packets is not None:
            tell_agents(self.managed.state, engine.packets.congestion_log(), self.origin_ps - began)
            self._tell_violations(engine, began)
        self.end_ps = int(engine.ended_ps().max(initial=0)) - began
        while self.managed.next_ps() <= self.origin_ps + engine.now_ps - began:
            self.managed.step()  # what agents told of at last

    def _tell_violations(self, engine: Engine, began: int) -> None:
        """Let agents count what keys kept out since the last call, and their traps travel."""
        if engine.packets is not None and self._violations.tell(
            engine.packets.key_violations(), self._partitions, self.origin_ps - began
        ):
            self.managed.hear_agents()

    def _advance(self, engine: Engine, began: int, operations: int) -> bool:
        """Advance as long as anything is to change; tells whether operations are left then."""
        done = 0
        while True:
            due = self.managed.next_ps()
            due = NEVER if due >= NEVER else due - self.origin_ps
            at = min(self._queue[0][0] if self._queue else NEVER, due)
            if at >= NEVER:
                return True
            done += len(engine.advance(began + at).completions)
            if done == operations:
                return False
            if self._queue and self._queue[0][0] <= due:
                while self._queue and self._queue[0][0] == at:
                    _, _, change, incident = heapq.heappop(self._queue)
                    if isinstance(change, SettingsEffect) and change.partitions is not None:
                        self._tell_violations(engine, began)
                    engine.change(self._change(change, incident, began + at))
            else:
                known, losses = len(self.managed.incidents), _losses(engine)
                effects = self.managed.step()
                opened = len(self.managed.incidents) - known
                self._losses += [losses] * opened
                self._changed += [{} for _ in range(opened)]
                if not engine.capabilities.packets:  # lanes and marks are of packets
                    effects = [e for e in effects if not isinstance(e, SettingsEffect)]
                self._take(effects, coalesce=not engine.capabilities.hop_by_hop)

    def _push(self, time_ps: int, change: TimedChange | Effect) -> None:
        # what is set late is the last incident's doing
        heapq.heappush(self._queue, (time_ps, next(self._sequence), change, len(self._changed) - 1))

    def _take(self, effects: list[Effect], *, coalesce: bool) -> None:
        """Effects to come. Flows look up whole paths: for them entries of a sweep change together, at the last."""
        last = max((e.time_ps for e in effects if isinstance(e, TableEffect)), default=0)
        for effect in effects:
            late = coalesce and isinstance(effect, TableEffect)
            self._push((last if late else effect.time_ps) - self.origin_ps, effect)

    def _note(self, effect: TableEffect, incident: int) -> None:
        """The run sees entries change."""
        state = self.managed.state
        m = int(state.managed[effect.node])
        for lid, port in zip(effect.lid.tolist(), effect.port.tolist(), strict=True):
            key = (m, lid)
            held = int(self._held[state.row[m], lid]) if lid < self._held.shape[1] else NO_PORT
            before = self._entries.get(key, held)
            first = self._changed[incident].get(key, (before, 0))[0]
            self._changed[incident][key] = first, port
            self._entries[key] = port

    def _change(self, what: TimedChange | Effect, incident: int, now_ps: int) -> TimedChange:
        """The change that the engine is told. A link that is down stays down, whatever its rate would be."""
        if isinstance(what, TableEffect):
            if incident != NONE:
                self._note(what, incident)
            rows = np.full(len(what.lid), self._row[what.node], np.int64)
            return TimedChange(now_ps, tables=TableEntries(rows, what.lid, what.port))
        if isinstance(what, SettingsEffect):
            self._partitions = what.partitions or self._partitions
            return TimedChange(now_ps, settings=what.settings)
        if isinstance(what, LinkEffect):
            (self._down.discard if what.up else self._down.add)(what.port)
        else:
            self._rate[what.port] = what.rate_bps
        return TimedChange(now_ps, what.port, 0 if what.port in self._down else self._rate.get(what.port))


def _times(path: ChangedPath) -> list[int]:
    return [time_ps for time_ps in (path.broken_ps, path.whole_ps) if time_ps != NONE] or [NONE]


def _until(path: ChangedPath, end_ps: int) -> ChangedPath:
    """A changed path as it was known at a time."""
    return path if path.whole_ps <= end_ps else replace(path, after=(), whole_ps=NONE)


def _losses(engine: Engine) -> tuple[int, int] | None:
    return None if engine.packets is None else engine.packets.losses()
