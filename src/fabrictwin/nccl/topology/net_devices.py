"""Which network NCCL finds on a host, and which adapters it has there.

NET/IB needs RDMA devices in reach, NCCL_IB_DISABLE unset and at least one active port that NCCL_IB_HCA lets
through; otherwise sockets over the same adapters carry the data. A device without the peer memory module, or
one that sockets use, cannot take part in GPUDirect RDMA. Some causes end a communicator before it begins; they
are named with the call that fails and what NCCL returns.

Source: NCCL 2.30.7, src/transport/net_ib, src/bootstrap.cc, src/misc/socket.cc; NCCL user guide,
troubleshooting.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.records import record
from fabrictwin.cluster.faults import HostCause
from fabrictwin.fabric.fabric import NONE, Fabric, LinkKind, NodeKind
from fabrictwin.nccl.constants import BUFFER_BYTES
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.topology.failures import Failure
from fabrictwin.nccl.topology.gids import gid_of, unreachable
from fabrictwin.nccl.topology.graph_types import Protocol
from fabrictwin.nccl.topology.ip_interfaces import chosen, interfaces

IB, SOCKET = "IB", "Socket"


@record
class HostNetwork:
    """The network devices that NCCL finds on one host."""

    name: str  # IB or Socket
    adapters: tuple[int, ...]  # of the host, by their number there
    gpudirect: bool


def has(causes: Iterable[HostCause], kind: str) -> HostCause | None:
    """The cause of that kind, where there is one."""
    return next((cause for cause in causes if cause.kind == kind), None)


def network_of(fabric: Fabric, host: int, causes: tuple[HostCause, ...], settings: Settings) -> HostNetwork:
    """The network of one host."""
    nics = np.flatnonzero(fabric.node_host[fabric.nic_node] == host)
    names = [fabric.node_name(int(node)).rpartition("/")[2] for node in fabric.nic_node[nics]]
    up = [k for k, nic in enumerate(nics) if fabric.nic_port[nic] != NONE]
    wanted = settings.ib_hca
    verbs = [k for k in up if wanted is None or wanted.allows(names[k], 1)]
    asked = (settings.net or "").lower()
    off = bool(settings.ib_disable) or asked == "socket"
    if off or not verbs or has(causes, "no-rdma-devices"):
        # sockets use the interfaces that NCCL_SOCKET_IFNAME leaves
        taken = {each.adapter for each in chosen(settings, interfaces(fabric, host))}
        return HostNetwork(SOCKET, tuple(k for k in up if int(nics[k]) in taken), False)
    return HostNetwork(IB, tuple(verbs), not has(causes, "no-gpudirect-module"))


def reducing_adapters(fabric: Fabric) -> frozenset[int]:
    """Adapters (of the fabric) whose subnet reduces in its switches (SHARP).

    A subnet does where aggregation nodes were discovered in it, or where all of its switches can by the catalog.
    """
    network = np.flatnonzero(np.isin(fabric.node_kind, (NodeKind.SWITCH, NodeKind.AGGREGATION)))
    reduces: dict[int, bool] = {}
    for node in network:
        plane = int(fabric.node_plane[node])
        if fabric.node_kind[node] == NodeKind.AGGREGATION:
            reduces[plane] = True
    found = set(reduces)
    for node in network:
        plane, name = int(fabric.node_plane[node]), fabric.type_names[fabric.node_type[node]]
        if plane not in found and fabric.node_kind[node] == NodeKind.SWITCH:
            able = fabric.technology == "infiniband" and bool(name) and catalog.switch(name).sharp
            reduces[plane] = reduces.get(plane, True) and able
    planes = [plane for plane, able in reduces.items() if able]
    return frozenset(np.flatnonzero(np.isin(fabric.node_plane[fabric.nic_node], planes)).tolist())


def failure(
    fabric: Fabric, networks: dict[int, HostNetwork], causes: dict[int, tuple[HostCause, ...]], settings: Settings
) -> Failure | None:
    """The first thing that keeps ranks on these hosts from making a communicator, if any."""
    for host in networks:
        filtered = has(causes.get(host, ()), "interface-filter")
        wanted = settings.socket_ifname
        why = ""
        if filtered:
            why = f"NCCL_SOCKET_IFNAME={filtered.interfaces} lets no interface of the host through"
        elif wanted is not None and not chosen(settings, interfaces(fabric, host)):
            names = ", ".join(each.name for each in interfaces(fabric, host))
            why = f"NCCL_SOCKET_IFNAME={wanted.text} lets none of {names} through"
        if why:
            return Failure(host, "Bootstrap : no socket interface found", "ncclInternalError", why)
    if len(networks) == 1:
        return None  # nothing of the rest is used inside a host
    buffer = settings.buffsize or BUFFER_BYTES[Protocol.SIMPLE]
    for host, network in networks.items():
        locked = has(causes.get(host, ()), "locked-memory")
        if locked and network.name == IB and locked.limit_bytes < buffer:
            why = f"locked memory is limited to {locked.limit_bytes} bytes; ulimit -l unlimited"
            warning = "Call to ibv_reg_mr failed with error Cannot allocate memory"
            return Failure(host, warning, "ncclSystemError", why)
    for host, nic in _over_routers(fabric, networks):
        unreached = _unreached(fabric, host, nic, causes.get(host, ()), settings)
        if unreached is not None:
            return unreached
    for host, network in networks.items():
        if network.name == SOCKET and not network.adapters and settings.socket_ifname is not None:
            why = (
                f"NCCL_SOCKET_IFNAME={settings.socket_ifname.text} leaves sockets the management network alone, "
                "which the twin has no links of"
            )
            return Failure(host, "NET/Socket : no interface of the fabric", "ncclSystemError", why)
    for host, network in networks.items():
        first = next(iter(networks))
        if network.name != networks[first].name:
            why = f"this host has NET/{network.name}, another NET/{networks[first].name}"
            return Failure(host, "Network does not match that of other ranks", "ncclInvalidUsage", why)
    return None


def _over_routers(fabric: Fabric, networks: dict[int, HostNetwork]) -> list[tuple[int, int]]:
    """(host, its first adapter) of hosts that take RoCE, where routers may be on the way: beyond one switch."""
    taken = [(host, network.adapters[0]) for host, network in networks.items() if network.name == IB]
    if not taken or len(fabric.switch_names) <= 1:
        return []
    hosts, first = np.array(taken).T
    nics = np.searchsorted(fabric.nic_node, fabric.host_node_start[hosts]) + first
    ethernet = fabric.port_kind[fabric.nic_port[nics]] == LinkKind.ETHERNET
    return list(zip(hosts[ethernet].tolist(), nics[ethernet].tolist(), strict=True))


def _unreached(
    fabric: Fabric, host: int, nic: int, causes: tuple[HostCause, ...], settings: Settings
) -> Failure | None:
    """RoCE with a GID that no router carries on."""
    if "efa" in fabric.type_names[fabric.node_type[fabric.nic_node[nic]]]:
        return None
    name = fabric.node_name(int(fabric.nic_node[nic])).rpartition("/")[2]
    return unreachable(host, gid_of(settings, has(causes, "wrong-gid")), settings, name)
