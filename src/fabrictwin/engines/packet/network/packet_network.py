"""The packet kernel over one fabric and its tables, and its time.

What it is built from stands in `model`, `wiring` and `kernel_config`; what is added to it in `connections`; what
changes in it in `faults`; what it counted in `port_counters`.
"""

from __future__ import annotations

import os

from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.engines.base.changes import PendingChanges, TimedChange
from fabrictwin.engines.base.engine import Stop
from fabrictwin.engines.packet.network.congestion import set_congestion
from fabrictwin.engines.packet.network.connections import Connections, too_large
from fabrictwin.engines.packet.network.faults import apply_change, stall_error
from fabrictwin.engines.packet.network.kernel_config import build_config, set_control, set_endpoints
from fabrictwin.engines.packet.network.model import NetworkModel
from fabrictwin.engines.packet.network.wiring import build_wiring
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.routing.tables import Routes


class PacketNetwork:
    """The packet kernel over one fabric. Adapters are endpoints, numbered as in the fabric."""

    def __init__(self, fabric: Fabric, routes: Routes, options: PacketOptions | None = None) -> None:
        from fabrictwin.kernel.packet.machine import Machine, OutOfMemoryError

        self.fabric, self.routes, self.options = fabric, routes, options or PacketOptions()
        self.model = NetworkModel(fabric, routes, self.options)
        wiring, self.work_port = build_wiring(self.model)  # ports that stand for memory, cores and threads
        try:
            config = build_config(self.model, len(self.work_port))
            self.machine = Machine(wiring, config, limit_bytes=self.options.limits.memory_limit_bytes)
            self.machine.check_memory(0)
        except ValueError as error:
            raise ConfigError(f"the packet engine cannot model this network: {error}", key="packet") from None
        except OutOfMemoryError as error:
            raise too_large(error) from None
        set_endpoints(self.machine, self.model)
        set_control(self.machine, self.model)
        if routes.congestion is not None:
            set_congestion(self.machine, routes.congestion)
        self.connections = Connections(self.model, self.machine)
        self.changes = PendingChanges()
        self.awaits_changes = False  # somebody outside may yet repair what a run waits for

    def at(self, change: TimedChange) -> None:
        """Let something happen to a link at a time to come. Raises ConfigError for a time that is over."""
        self.changes.add(change, self.machine.now)

    def run(self, until_ps: int | None = None, *, drain: bool = False, budget: int | None = None) -> Stop:
        """Advance, changes on the way included; says FINISHED where all tasks are done, REACHED, or BUDGET.

        Raises SimulatedError for a deadlock, an exhausted retry or an unreachable adapter.
        """
        last = None if budget is None else self.events + budget
        while True:
            due = self.changes.next_ps if self.changes else None
            if due is not None and until_ps is not None and due > until_ps:
                due = None
            stop = self.advance(
                until_ps if due is None else due,
                drain=drain,
                budget=None if last is None else max(last - self.events, 0),
            )
            if due is None or stop != Stop.REACHED:
                return stop  # where everything is done before a change, it does not happen
            self.apply_next()

    def divide(self) -> None:
        """Play the fabric in parts, as many as the options or its size say, where that can be.

        Raises ConfigError where parts that were asked for have no delay between them.
        """
        from fabrictwin.kernel.packet.division import divide_ports, usual_parts

        machine, limits = self.machine, self.options.limits
        parts = limits.parts or usual_parts(len(machine.wiring.endpoint_port))
        machine.threads = limits.threads or len(os.sched_getaffinity(0))
        if machine.has_congestion_tables:
            self.keep_whole("tables of InfiniBand's congestion control")
        if parts == 1:
            return
        try:
            machine.divide(divide_ports(machine.wiring, parts))
        except ValueError as error:
            if limits.parts:
                raise ConfigError(f"got {parts} parts of this network: {error}", key="packet.parts") from None

    def keep_whole(self, what: str) -> None:
        """Raise ConfigError where parts were asked for and `what` is played in one."""
        if self.options.limits.parts > 1:
            message = f"got {self.options.limits.parts} parts with {what}, which are played in one"
            raise ConfigError(message, key="packet.parts")

    @property
    def events(self) -> int:
        """Events of the kernel so far."""
        return int(self.machine.state.clock[0].events)

    def apply_next(self) -> None:
        """Let the next change happen now."""
        change = self.changes.pop()
        self.machine.state.clock[0].now = change.time_ps
        apply_change(self.machine, self.model, self.connections, change)

    def advance(self, until_ps: int | None, *, drain: bool, budget: int | None = None) -> Stop:
        """Run to a time, or to an event of single messages; FINISHED where all tasks are done before."""
        from fabrictwin.kernel.packet.machine import MachineError, OutOfMemoryError
        from fabrictwin.kernel.packet.state import constants as s

        try:
            until = s.NEVER - 1 if until_ps is None else until_ps
            status = self.machine.run(until, drain=drain, budget=budget)
        except OutOfMemoryError as error:
            raise too_large(error) from None
        except MachineError as error:
            at = int(self.machine.state.clock[0].unroutable)
            name = self.fabric.node_name(int(self.fabric.nic_node[at])) if at != NONE else "packet engine"
            raise SimulatedError("unreachable", name, str(error)) from None
        if status == s.SLICED:
            return Stop.BUDGET
        if status == s.STALLED:
            # a change to come may be the repair that everything waits for
            to_come = (self.changes or self.awaits_changes) and until_ps is not None
            if not to_come or self.machine.deadlock is not None:
                raise stall_error(self.machine, self.fabric)
            return Stop.REACHED
        done = status in (s.FINISHED, s.IDLE) and self.machine.state.clock[0].open == 0
        return Stop.FINISHED if done else Stop.REACHED
