"""A run inside a fabric that is served: over the tables that its switches hold, counted in its ports' counters.

Whoever manages the subnet (the twin's own managers, or the real OpenSM) programs the tables; a run takes them as
they are then, with the links that are up then, and what its packets count is what `perfquery` shows afterwards.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fabrictwin.base.errors import FabrictwinError
from fabrictwin.base.units import format_size, format_time
from fabrictwin.cluster.spec.spec import load_spec
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.engine import Engine
from fabrictwin.engines.base.play import play
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.graph.switches import switch_graph
from fabrictwin.routing.port_settings import PortSettings
from fabrictwin.runs.execute import prepare, start_engine
from fabrictwin.subnet.agents.pma import EngineCounters
from fabrictwin.subnet.manager.manager import SubnetManager
from fabrictwin.subnet.operation.cluster_endpoint import open_endpoint
from fabrictwin.subnet.operation.congestion_in_force import tell_agents
from fabrictwin.subnet.operation.partitions_in_force import Partitions, ViolationTeller, partitions_of
from fabrictwin.subnet.operation.tables_in_force import routes_of
from fabrictwin.subnet.serve.sockets import wall_ps
from fabrictwin.subnet.wire.smp import PortState
from fabrictwin.trace.trace import Trace


class ServedRun:
    """A spec's job, to be run inside the fabric that the spec describes. Raises ConfigError."""

    def __init__(self, spec: Path) -> None:
        self.prepared = prepare(load_spec(spec))
        self.twin = self.prepared.twin
        # the twin's fabric lacks the cables that are dead from the start: managers see their ports, at Polling
        self.endpoint = open_endpoint(spec)

    def run(self, managers: list[SubnetManager]) -> Trace:
        """Play the job once. `managers` tell service levels; under another manager all are 0.

        Raises ConfigError where tables do not lead to somebody, SimulatedError as any run.
        """
        state, prepared = self.endpoint.state, self.prepared
        fabric = self.twin.fabric
        # ports and nodes count alike with and without dead cables
        self.twin.take_tables(replace(routes_of(state, managers), fabric=fabric, switches=switch_graph(fabric)))
        engine = start_engine(prepared)
        for slot, port in enumerate(state.fabric_port.tolist()):
            if port == NONE or state.cable[slot] == NONE or fabric.port_peer[port] == NONE:
                continue
            if state.logical(slot) != PortState.ACTIVE:
                engine.change(TimedChange(engine.now_ps, port, 0))
        partitions = partitions_of(state)
        if engine.capabilities.packets and not partitions.open:
            engine.change(TimedChange(engine.now_ps, settings=PortSettings(keys=partitions.keys)))
        trace = play(prepared.job.program, prepared.job.rank_node, engine)
        self._tell_agents(engine, partitions)
        return trace

    def _tell_agents(self, engine: Engine, partitions: Partitions) -> None:
        """Agents count what ports did, and tell their manager of what it wants to know."""
        state, packets = self.endpoint.state, engine.packets
        counted = EngineCounters(state)
        counted.load(engine.counters(), None if packets is None else packets.port_counters())
        if packets is not None:
            began_ps = wall_ps() - engine.now_ps
            counted.load_congestion(packets.congestion_counts())
            tell_agents(state, packets.congestion_log(), began_ps)
            ViolationTeller(state).tell(packets.key_violations(), partitions, began_ps)

    def say(self, managers: list[SubnetManager]) -> str:
        """Run, and say in a line how that went."""
        try:
            trace = self.run(managers)
        except FabrictwinError as error:
            return f"error: {error}"
        ports = self.endpoint.state.fabric_port
        moved = int(trace.counters.tx_bytes[ports[ports != NONE]].sum())
        return (
            f"run: {self.prepared.spec.name} took {format_time(trace.end_ps)} at fidelity {trace.fidelity}, "
            f"{format_size(moved)} over all links of the subnet; perfquery shows them"
        )
