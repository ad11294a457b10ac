"""Changes of links and tables on the packet kernel, and what is said of a network in which nothing moves any more.

A link that goes down loses what waits for it and what is on its wire. Where lanes wait for each other for ever the
error names the cycle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.engines.base.changes import TableEntries, TimedChange
from fabrictwin.engines.packet.network.congestion import set_congestion
from fabrictwin.engines.packet.network.partitions import set_partition_keys
from fabrictwin.engines.packet.network.virtual_lanes import set_lane_tables
from fabrictwin.fabric.fabric import NETWORK, Fabric
from fabrictwin.routing.port_settings import PortSettings

if TYPE_CHECKING:
    from fabrictwin.engines.packet.network.connections import Connections
    from fabrictwin.engines.packet.network.model import NetworkModel
    from fabrictwin.kernel.packet.machine import Machine

_NETWORK = frozenset(int(kind) for kind in NETWORK)


def apply_change(machine: Machine, model: NetworkModel, connections: Connections, change: TimedChange) -> None:
    """Change a link, its bit errors, tables or settings now. Raises ConfigError."""
    fabric = model.fabric
    if change.tables is not None:
        _set_tables(machine, fabric, change.tables)
        return
    if change.settings is not None:
        _set_ports(machine, model, connections, change.settings)
        return
    if not 0 <= change.port < fabric.ports:
        raise ConfigError(f"got port {change.port}, expected one of the fabric's {fabric.ports}")
    if change.pause is not None:
        _set_storm(machine, fabric, change.port, *change.pause)
    elif change.error_rate is not None:
        machine.set_errors(change.port, round(8 * change.error_rate * 2**48))
    else:
        _set_rate(machine, fabric, change.port, change.rate_bps)


def _set_ports(machine: Machine, model: NetworkModel, connections: Connections, settings: PortSettings) -> None:
    """Give all ports other lanes, congestion control, partition keys."""
    if model.fabric.technology != "infiniband":
        message = "got lanes, congestion control or partition keys on Ethernet, expected InfiniBand"
        raise ConfigError(message, key="change")
    if settings.keys is not None:
        connections.keys = settings.keys
        set_partition_keys(machine, settings.keys)
    if settings.lanes is not None:
        set_lane_tables(model.routes, model.options, machine, settings.lanes)
    if settings.congestion is not None:
        set_congestion(machine, settings.congestion)


def _set_rate(machine: Machine, fabric: Fabric, port: int, rate_bps: int | None) -> None:
    """Let a directed link run at a rate: None is what was built, 0 takes it down."""
    built = int(fabric.port_rate_bps[port])
    wanted = built if rate_bps is None else rate_bps
    if int(fabric.port_kind[port]) not in _NETWORK:
        wanted = wanted * int(fabric.port_payload_bps[port]) // max(built, 1)
    machine.set_rate(port, wanted)


def _set_storm(machine: Machine, fabric: Fabric, port: int, priority: int, on: bool) -> None:
    """Let a port pause its peer without end; a run without priorities has one lane for all."""
    if fabric.technology != "ethernet":
        raise ConfigError("got a pause storm on InfiniBand, expected Ethernet", key="faults")
    if machine.config.qos is None and not machine.config.buffers.lossless:
        raise ConfigError("got a pause storm where nothing obeys pauses (lossless: false)", key="faults")
    machine.storm(port, priority % machine.config.lanes, on)


def _set_tables(machine: Machine, fabric: Fabric, entries: TableEntries) -> None:
    if fabric.technology != "infiniband":
        raise ConfigError("got a change of forwarding tables on Ethernet, expected InfiniBand", key="change")
    machine.set_tables(entries.row, entries.lid, entries.port)


def stall_error(machine: Machine, fabric: Fabric) -> SimulatedError:
    """Return why nothing moves any more: a deadlock, exhausted retries, or tasks that wait for nothing to come."""

    deadlock, state = machine.deadlock, machine.state
    if deadlock is not None:
        names = " -> ".join(f"{fabric.port_name(port)} lane {vl}" for port, vl in deadlock.cycle)
        return SimulatedError(
            "deadlock",
            fabric.port_name(deadlock.cycle[0][0]),
            f"{len(deadlock.all)} outputs wait for each other for ever: {names}",
        )
    failed = np.flatnonzero(state.qp.failed[: machine.queue_pairs])
    if len(failed):
        qp = state.qp[failed[0]]
        a, b = (fabric.node_name(int(fabric.nic_node[int(n)])) for n in (qp.src, qp.dst))
        return SimulatedError(
            "IBV_WC_RETRY_EXC_ERR",
            a,
            f"{len(failed)} queue pairs gave up after {int(qp.retry_limit)} retries, the first toward {b}",
        )
    left = int(state.clock[0].open)
    return SimulatedError("stalled", "packet engine", f"{left} tasks are open and nothing will ever move again")
