"""A fabric that stands: its endpoint served, with or without a manager of its own, until somebody ends it.

Real programs run by the wall clock, and so does this; what a datagram takes is then the machine's time, and
outages are not measured.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.process.interrupt import serving
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.subnet.agents.mad_routing import Frame
from fabrictwin.subnet.manager.database import Memory
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.sweep.discovery import Finding
from fabrictwin.subnet.manager.sweep.lids import read_guid2lid
from fabrictwin.subnet.manager.sweep_report import SweepReport
from fabrictwin.subnet.operation.cluster_endpoint import manager_nodes
from fabrictwin.subnet.operation.manager_commands import SETTINGS, Membership, settings_after, verb_of
from fabrictwin.subnet.operation.manager_host import HostedManager
from fabrictwin.subnet.operation.scenario import first_sweep_datagrams, keep_lids, share_sent
from fabrictwin.subnet.operation.sweep_text import sweep_lines
from fabrictwin.subnet.serve.console import obey
from fabrictwin.subnet.serve.endpoint import Endpoint, node_id, pack_frame
from fabrictwin.subnet.serve.sockets import Server, wall_ps

CLIENT_TIMEOUT_S = 1.0
SWEEP_S = 10.0  # a light sweep so often, for what no trap tells of


@record
class ManagerOptions:
    """The managers of a served fabric: the host they run on ("" for the first), settings, where LIDs are kept."""

    host: str = ""
    settings: Settings | None = None
    guid2lid: Path | None = None


DEFAULT_MANAGER = ManagerOptions()


class ServedFabric:
    """The endpoint, its sockets and perhaps a manager, together."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        name: str = "",
        udp_port: int | None = None,
        manager: ManagerOptions | None = DEFAULT_MANAGER,
        say: Callable[[str], None] = print,
        watch: Callable[[], AbstractContextManager[Stage]] = lambda: nullcontext(silent),
    ) -> None:
        self.endpoint = endpoint
        self.say = say
        self._watch = watch  # yields whom to tell how far the first sweep is
        self.guid2lid = manager.guid2lid if manager is not None else None
        self._host = manager.host if manager is not None else ""
        self.console = False  # whether commands are read from stdin
        self.managers: list[HostedManager] = []
        self._datagrams = 0  # of the first sweeps
        if manager is not None:
            kept = {} if manager.guid2lid is None else read_guid2lid(manager.guid2lid)
            for m in manager_nodes(endpoint, manager.host):
                self._datagrams += first_sweep_datagrams(endpoint.state, endpoint.state.plane_of(m))
                one = HostedManager(
                    endpoint, m, settings=manager.settings, memory=Memory(dict(kept)), now_ps=wall_ps()
                )
                one.transport.ask_client = self._ask_client
                # clients cannot take part in RMPP: an answer that is not confirmed is not repeated
                one.manager.administration.rmpp_retries = 0
                self.managers.append(one)
        self.server = Server(endpoint, name=name, udp_port=udp_port)
        self.server.idle = self._idle
        self.commands: dict[str, Callable[[], str]] = {}  # of the console, beside those that change the fabric
        self.first: Callable[[], str] | None = None  # what is to be run and printed once the fabric is up
        self._typed = b""
        self._printed = [0] * len(self.managers)
        self._said: set[Finding] = set()
        self._refused: set[int] = set()  # users that were named as refused
        self._next_sweep = 0.0
        self._up = self._stopped = False

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM, or the end of the console's input.

        An interrupt before the fabric is up raises KeyboardInterrupt.
        """
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        if self.console:
            self.server.watch(sys.stdin, self._read_lines)
        try:
            self.serve(lambda: self._stopped)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def serve(self, until: Callable[[], bool]) -> None:
        """Serve until `until` says so, then close."""
        state = self.endpoint.state
        try:
            self._first_sweep()
            where = f"IBSIM_SOCKNAME={self.server.name}"
            if self.server.udp_port is not None:
                where = f"IBSIM_SERVER_NAME={self.server.host} IBSIM_SERVER_PORT={self.server.udp_port}"
            if self.first is not None:
                self.say(self.first())
            self._up = True
            with serving():
                self.say(f"up: {len(state.guid):,} nodes; for example")
                here = node_id(self.endpoint.network, state.origin)
                self.say(f"  {where} SIM_HOST={here} LD_PRELOAD=libumad2sim.so ibstat")
                if self.server.udp_port is not None:
                    self.say("  over UDP every user of this machine can manage the fabric")
                self.server.run(until)
        finally:
            self.server.close()

    def _first_sweep(self) -> None:
        """Have the managers set the fabric up, and print what they did once nobody watches them any more."""
        said: list[str] = []
        say, self.say = self.say, said.append
        try:
            with self._watch() as stage:
                stage("bringing the subnets up", lambda: share_sent(self.managers, self._datagrams))
                self._idle()
                stage("preparing to reroute", 0.0)
                for one in self.managers:
                    one.manager.rehearse_rerouting()
        finally:
            self.say = say
            for line in said:
                say(line)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        if number == signal.SIGINT and not self._up:
            raise KeyboardInterrupt

    def _idle(self) -> None:
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + SWEEP_S
            for one in self.managers:
                one.manager.wants_sweep = True
        for uid in sorted(self.server.refused.keys() - self._refused):
            self._refused.add(uid)
            self.say(f"refused: datagrams of user {uid}; only user {os.getuid()} is served")
        for number, one in enumerate(self.managers):
            self.server.send_all(one.step(wall_ps()))
            fresh = one.reports[self._printed[number] :]
            self._printed[number] = len(one.reports)
            for report in fresh:
                self._print_report(one, report)
            if fresh and self.guid2lid is not None:
                keep_lids(self.guid2lid, self.managers)

    def _print_report(self, one: HostedManager, report: SweepReport) -> None:
        if report.kind == "heavy":
            lines = sweep_lines(report, len(one.manager.database.lid), one.transport.statistics)
            self.say("\n".join([*lines[:2], *lines[3:]]))
            self._said.update(report.findings)
        elif report.rerouting is not None and report.rerouting.entries:
            gone = f"; gone: {', '.join(report.gone)}" if report.gone else ""
            self.say(f"rerouted: {report.rerouting.entries:,} table entries changed{gone}")
        for finding in report.findings:
            if finding not in self._said:
                self._said.add(finding)
                self.say(f"found {finding}")

    def _read_lines(self) -> None:
        """Read what was typed, without Python's buffer: a line in it would wait for the next one."""
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            self._stopped = True
            return
        *lines, self._typed = (self._typed + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            try:
                known = self.commands.get(text.strip())
                answer = known() if known else self._obey(text)
            except ConfigError as error:
                answer = f"error: {error}"
            if answer:
                self.say(answer)

    def _obey(self, line: str) -> str:
        """Do what a line of the console says."""
        verb = verb_of(line)
        if not verb or (verb in SETTINGS and not self.managers):
            return obey(self.endpoint.state, line, wall_ps())
        if verb in SETTINGS:
            for one in self.managers:
                one.manager.reconfigure(
                    settings_after(line, one.manager.latest_settings, self.endpoint, self._host)
                )
            return f"{line.strip()}: the manager sweeps"
        membership = Membership(line.strip(), self.endpoint)
        while True:
            self.server.send_all(self.endpoint.send(membership.slot, [membership.request()], wall_ps()))
            until = time.monotonic() + CLIENT_TIMEOUT_S
            while not membership.is_answered and time.monotonic() < until and not self._stopped:
                self.server.step(0.05)  # the manager may be a program
            said = membership.conclude()
            if said is not None:
                return f"{membership.line}: {said}"

    def _ask_client(self, slot: int, frame: Frame) -> Frame | None:
        """Ask a manager that is a client, and serve everybody until it answers or the time is up."""
        endpoint = self.endpoint
        number = next(
            (i for i, c in enumerate(endpoint.clients) if c is not None and c.slot == slot and c.is_sm), None
        )
        if number is None:
            return None
        tid = frame.mad[8:16]
        endpoint.awaited[tid] = None
        self.server.send_all([(number, pack_frame(frame))])
        until = time.monotonic() + CLIENT_TIMEOUT_S
        while endpoint.awaited[tid] is None and time.monotonic() < until and not self._stopped:
            self.server.step(0.05)
        return endpoint.awaited.pop(tid)
