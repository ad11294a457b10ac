"""A subnet manager of the twin's own, on a port of the fabric.

Joins three things that know nothing of each other: a manager, the transport that carries its requests, and the
endpoint, where traps, queries and other managers' questions come in. Time is handed in.
"""

from __future__ import annotations

from collections.abc import Callable

from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.mad_routing import Fate, Frame
from fabrictwin.subnet.manager.database import Memory
from fabrictwin.subnet.manager.mad_transport import MadTiming, TwinTransport
from fabrictwin.subnet.manager.manager import SubnetManager
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.sweep_report import SweepReport
from fabrictwin.subnet.serve.endpoint import OWN_TID, Endpoint
from fabrictwin.subnet.wire.smp import SmState

AskClient = Callable[[int, Frame], Frame | None]


class HostedTransport(TwinTransport):
    """Carries a manager's requests over the twin's fabric, and to software on other ports of it."""

    def __init__(
        self, endpoint: Endpoint, slot: int, *, timing: MadTiming | None = None, now_ps: int = 0, loss: float = 0.0
    ) -> None:
        super().__init__(endpoint.network, slot, timing=timing, now_ps=now_ps, loss=loss)
        self.endpoint = endpoint
        self.ask_client: AskClient | None = None  # how to ask a program that is attached to the endpoint
        self._tid = OWN_TID << 48
        self.to_clients: list[tuple[int, bytes]] = []

    def ask_software(self, slot: int, frame: Frame) -> Frame | None:
        software = self.endpoint.software.get(slot)
        if software is None:
            return None if self.ask_client is None else self.ask_client(slot, frame)
        answer = None
        for reply in software(frame, self.clock_ps):
            outcome = self.network.send(slot, reply, self.clock_ps)
            if outcome.fate == Fate.FORWARDED and outcome.frame is not None:
                if outcome.slot == self.slot and answer is None:
                    answer = outcome.frame
                else:
                    self.to_clients += self.endpoint.forward(outcome.slot, outcome.frame, self.clock_ps)
        return answer


class HostedManager:
    """A manager at work on a node of the fabric."""

    def __init__(
        self,
        endpoint: Endpoint,
        m: int,
        *,
        settings: Settings | None = None,
        memory: Memory | None = None,
        timing: MadTiming | None = None,
        now_ps: int = 0,
        loss: float = 0.0,
    ) -> None:
        self.endpoint = endpoint
        self.slot = endpoint.state.end_slot(m)
        self.transport = HostedTransport(endpoint, self.slot, timing=timing, now_ps=now_ps, loss=loss)
        self.manager = SubnetManager(self.transport, settings, memory=memory)
        self.reports: list[SweepReport] = []
        endpoint.attach(self.slot, self.manager.receive, now_ps)

    def step(self, now_ps: int) -> list[tuple[int, bytes]]:
        """Do what is due: sweep if something calls for it, repeat, poll. Returns frames for clients."""
        transport, manager = self.transport, self.manager
        transport.clock_ps = max(transport.clock_ps, now_ps)
        out = self.endpoint.send(self.slot, manager.poll(transport.clock_ps), transport.clock_ps)
        if manager.wants_sweep and manager.state in (SmState.MASTER, SmState.DISCOVERING):
            self.reports.append(manager.light_sweep() if manager.state == SmState.MASTER else manager.sweep())
            out += self.endpoint.send(self.slot, manager.poll(transport.clock_ps), transport.clock_ps)
        out += transport.to_clients
        transport.to_clients = []
        return out


def first_adapter(endpoint: Endpoint) -> int:
    """Return the first channel adapter with a link, where a manager runs if nobody says; NONE without one."""
    state = endpoint.state
    return next(
        (m for m, switch in enumerate(state.is_switch) if not switch and state.link[state.end_slot(m)] != NONE),
        NONE,
    )


def one_for_each_plane(endpoint: Endpoint, chosen: int = NONE) -> list[int]:
    """Return the nodes that managers run on: in each subnet `chosen`, or the first adapter with a link.

    The subnet of `chosen` comes first, then in the order of planes.
    """
    state = endpoint.state
    plane = state.fabric.node_plane[state.fabric_node].tolist()
    found: dict[int, int] = {} if chosen == NONE else {plane[chosen]: chosen}
    for m, switch in enumerate(state.is_switch):
        if not switch and state.link[state.end_slot(m)] != NONE:
            found.setdefault(plane[m], m)
    first = [] if chosen == NONE else [chosen]
    return first + [m for _, m in sorted(found.items()) if m not in first]


def settle(hosted: list[HostedManager], now_ps: int, *, rounds: int = 16) -> int:
    """Deliver traps and let managers sweep until none wants to any more. Returns the time then.

    At most so many rounds: a fabric whose ports never come to rest is left as it is.
    """
    for _ in range(rounds):
        endpoint = hosted[0].endpoint
        endpoint.poll(now_ps)
        before = sum(len(one.reports) for one in hosted)
        for one in hosted:
            one.step(now_ps)
            now_ps = max(now_ps, one.transport.clock_ps)
        if sum(len(one.reports) for one in hosted) == before:
            return now_ps
    return now_ps
