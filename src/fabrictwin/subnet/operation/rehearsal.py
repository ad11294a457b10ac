"""A fabric, its management and a manager, from a cluster file; and what happens to it when something breaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.manager.database import Memory
from fabrictwin.subnet.manager.mad_transport import MadTiming
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.settings.partitions import Everybody, read_partitions
from fabrictwin.subnet.manager.sweep.lids import read_guid2lid, write_guid2lid
from fabrictwin.subnet.manager.sweep.table_computation import port_guid
from fabrictwin.subnet.manager.sweep_report import SweepReport
from fabrictwin.subnet.operation.managed_fabric import Incident, ManagedFabric
from fabrictwin.subnet.operation.manager_host import HostedManager, one_for_each_plane
from fabrictwin.subnet.serve.console import find_node, find_target
from fabrictwin.subnet.serve.endpoint import Endpoint


def open_endpoint(cluster: Path) -> Endpoint:
    """The management of the fabric that a cluster or spec file describes. Raises ConfigError."""
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.fabric.compile import compile_fabric

    spec = load_cluster(cluster)
    fabric = compile_fabric(build(spec.cluster, spec=spec))
    try:
        return Endpoint(Network(SubnetState(fabric)))
    except ConfigError as error:
        raise error.within(file=cluster) from None


def has_job(cluster: Path) -> bool:
    """Whether a file is a spec with a workload. Raises ConfigError."""
    from fabrictwin.cluster.spec.spec import load_cluster

    return bool(load_cluster(cluster).workload)


def manager_nodes(endpoint: Endpoint, host: str) -> list[int]:
    """Where managers run, one a subnet; `host` names the first's node. Raises ConfigError."""
    nodes = one_for_each_plane(endpoint, find_node(endpoint.state, host) if host else NONE)
    if not nodes:
        raise ConfigError("got no adapter with a cable, expected one for the manager to run on", key="cluster")
    return nodes


def partitioned(settings: Settings, path: Path | None, endpoint: Endpoint, host: str) -> Settings:
    """Settings with the partitions of a file; without one as they are. Raises ConfigError."""
    if path is None:
        return settings
    state = endpoint.state
    guids = list(zip(state.port_guid, state.is_switch, strict=True))
    everybody = Everybody(
        adapters=frozenset(guid for guid, switch in guids if not switch),
        switches=frozenset(guid for guid, switch in guids if switch),
        manager=frozenset(state.port_guid[m] for m in manager_nodes(endpoint, host)),
    )
    return replace(settings, partitions=read_partitions(path, everybody))


class Rehearsal:
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

    def start(self) -> list[SweepReport]:
        """The first sweep of each subnet."""
        reports = self.fabric.start()
        self._remember()
        return reports

    def target(self, line: str) -> int:
        """The managed node that an event is about. Raises ConfigError."""
        return find_target(self.endpoint.state, line)

    def do(self, line: str) -> Incident:
        """Break or mend something and let the managers deal with it. Raises ConfigError."""
        known = len(self.fabric.incidents)
        at = self.fabric.now_ps
        self.fabric.plan(at, line, self.target(line))
        self.fabric.settle()
        self._remember()
        return self.fabric.incidents[known]

    def _remember(self) -> None:
        if self.guid2lid is not None:
            remember(self.guid2lid, self.managers)


def remember(path: Path, managers: list[HostedManager]) -> None:
    """Write what all managers know of LIDs."""
    lids: dict[int, int] = {}
    lmcs: dict[int, int] = {}
    for one in managers:
        lids |= {guid: lid for guid, lid in one.manager.database.memory.lid.items() if guid not in lids}
    for one in managers:
        lids |= one.manager.database.lid
        for node in one.manager.database.subnet.nodes.values():
            lmcs |= {port_guid(port): port.info.lmc for port in node.ends()}
    write_guid2lid(path, lids, lmcs)
