"""A scenario: managers bring a fabric up, then links and nodes break or come back, and the managers act."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.manager.database import Memory
from fabrictwin.subnet.manager.mad_transport import MadTiming
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.sweep.lids import read_guid2lid, write_guid2lid
from fabrictwin.subnet.manager.sweep.table_computation import BLOCK, port_guid
from fabrictwin.subnet.manager.sweep_report import SweepReport
from fabrictwin.subnet.operation.cluster_endpoint import manager_nodes
from fabrictwin.subnet.operation.managed_fabric import Incident, ManagedFabric
from fabrictwin.subnet.operation.manager_commands import target_of
from fabrictwin.subnet.operation.manager_host import HostedManager
from fabrictwin.subnet.serve.endpoint import Endpoint
from fabrictwin.subnet.wire.smp import SwitchInfo


class Scenario:
    """A manager at work on each subnet of a fabric in this process, on the twin's own clock."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        host: str = "",
        settings: Settings | None = None,
        guid2lid: Path | None = None,
        timing: MadTiming | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.guid2lid = guid2lid
        kept = {} if guid2lid is None else read_guid2lid(guid2lid)
        self.managers = [
            HostedManager(endpoint, m, settings=settings, memory=Memory(dict(kept)), timing=timing)
            for m in manager_nodes(endpoint, host)
        ]
        self.fabric = ManagedFabric(endpoint, self.managers)

    @property
    def progress(self) -> float:
        """The share of the first sweeps' datagrams that was sent, as far as those can be counted beforehand."""
        return share_sent(self.managers, self._datagrams)

    @cached_property
    def _datagrams(self) -> int:
        state = self.endpoint.state
        return sum(first_sweep_datagrams(state, plane.number) for plane in self.fabric.planes)

    def start(self) -> list[SweepReport]:
        """The first sweep of each subnet."""
        reports = self.fabric.start()
        self._keep_lids()
        return reports

    def target(self, line: str) -> int:
        """The managed node that an event is about. Raises ConfigError."""
        return target_of(line, self.endpoint, self.managers[0].manager.settings)

    def do(self, line: str) -> Incident:
        """Break or mend something and let the managers deal with it. Raises ConfigError."""
        known = len(self.fabric.incidents)
        at = self.fabric.now_ps
        self.fabric.plan(at, line, self.target(line))
        self.fabric.settle()
        self._keep_lids()
        return self.fabric.incidents[known]

    def _keep_lids(self) -> None:
        if self.guid2lid is not None:
            keep_lids(self.guid2lid, self.managers)


def share_sent(managers: Sequence[HostedManager], datagrams: int) -> float:
    """Return the share of so many datagrams that managers have sent."""
    sent = sum(sum(list(one.transport.statistics.by_attribute.values())) for one in managers)
    return min(sent / max(datagrams, 1), 0.99)


def first_sweep_datagrams(state: SubnetState, plane: int) -> int:
    """Return how many datagrams find a sound subnet and set it up, by default settings."""
    nodes = [m for m in range(len(state.guid)) if state.plane_of(m) == plane]
    switches = [m for m in nodes if state.is_switch[m]]
    linked = {
        m: sum(far != NONE for far in state.link[state.base[m] : state.base[m] + state.ports[m] + 1])
        for m in nodes
    }
    behind = sum(linked[m] for m in switches)  # what NodeInfo is asked of
    active = sum(linked.values())
    ports = sum(state.ports[m] + state.is_switch[m] for m in nodes)
    blocks = -(-(len(nodes) + 1) // BLOCK)
    adapters = len(nodes) - len(switches)
    with_lanes = sum(SwitchInfo.decode(bytes(state.switch_info[m])).enhanced_port0 for m in switches)
    # NodeInfo of the manager's own node and behind its port; name, P_Keys read, SL to VL of nodes; P_Keys set of
    # adapters (switches power on with theirs); SwitchInfo read and set, tables and port 0 of switches; PortInfo of
    # ports; arbitration of two kinds of ports that are in use and of enhanced ports 0; two steps upwards of links
    each = 3 * len(nodes) + adapters + (3 + blocks) * len(switches)
    return 2 + each + behind + ports + 2 * (active + with_lanes) + 2 * active


def keep_lids(path: Path, managers: list[HostedManager]) -> None:
    """Write the LIDs that all managers know."""
    lids: dict[int, int] = {}
    lmcs: dict[int, int] = {}
    for one in managers:
        lids |= {guid: lid for guid, lid in one.manager.database.memory.lid.items() if guid not in lids}
    for one in managers:
        lids |= one.manager.database.lid
        for node in one.manager.database.subnet.nodes.values():
            lmcs |= {port_guid(port): port.info.lmc for port in node.ends()}
    write_guid2lid(path, lids, lmcs)
