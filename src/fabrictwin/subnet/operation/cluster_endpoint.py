"""The management of a cluster file's fabric, and the nodes and partitions of its managers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.settings.partitions import Everybody, read_partitions
from fabrictwin.subnet.operation.manager_host import one_for_each_plane
from fabrictwin.subnet.serve.console import find_node
from fabrictwin.subnet.serve.endpoint import Endpoint
from fabrictwin.subnet.wire.smp import NodeType


def open_endpoint(cluster: Path) -> Endpoint:
    """The management of the fabric that a cluster or spec file describes, with links that are dead or slow from
    the start. Raises ConfigError."""
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.faults import find_faults
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.fabric.compile import compile_fabric, ports_of_cable

    spec = load_cluster(cluster)
    blueprint = build(spec.cluster, spec=spec)
    faults, _ = find_faults(blueprint, spec)
    try:
        state = SubnetState(compile_fabric(blueprint))
    except ConfigError as error:
        raise error.within(file=cluster) from None
    for fault in faults:
        port, _ = ports_of_cable(state.fabric, blueprint, fault.cable)
        for slot in np.flatnonzero(state.fabric_port == port).tolist():  # none of a cable of another fabric
            state.build_slower(slot, fault.rate_bps)
    try:
        return Endpoint(Network(state))
    except ConfigError as error:
        raise error.within(file=cluster) from None


def has_job(cluster: Path) -> bool:
    """Return whether a file is a spec with a workload. Raises ConfigError."""
    from fabrictwin.cluster.spec.spec import load_cluster

    return bool(load_cluster(cluster).workload)


def manager_nodes(endpoint: Endpoint, host: str) -> list[int]:
    """Return the nodes that managers run on, one a subnet; `host` names the first's node. Raises ConfigError."""
    nodes = one_for_each_plane(endpoint, find_node(endpoint.state, host) if host else NONE)
    if not nodes:
        raise ConfigError("got no adapter with a cable, expected one for the manager to run on", key="cluster")
    return nodes


def partitioned(settings: Settings, path: Path | None, endpoint: Endpoint, host: str) -> Settings:
    """Settings with the partitions of a file; without one as they are. Raises ConfigError."""
    if path is None:
        return settings
    state = endpoint.state

    def of(kind: NodeType) -> frozenset[int]:
        kinds = zip(state.port_guid, state.node_info, strict=True)
        return frozenset(guid for guid, info in kinds if info.node_type == kind)

    everybody = Everybody(
        adapters=of(NodeType.CA),
        switches=of(NodeType.SWITCH),
        routers=of(NodeType.ROUTER),
        manager=frozenset(state.port_guid[m] for m in manager_nodes(endpoint, host)),
    )
    return replace(settings, partitions=read_partitions(path, everybody))
