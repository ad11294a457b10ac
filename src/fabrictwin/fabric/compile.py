"""From a blueprint to a fabric: every host's inside copied from its template, switches and cables beside it.

Vectorised by kind of host: ten thousand hosts compile in about a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import I8, I16, I32, I64, U64, place_of, starts_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint, Technology
from fabrictwin.cluster.guids import node_guids
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric, LinkKind, NodeKind
from fabrictwin.fabric.host_template import HostTemplate, host_template, with_access_control
from fabrictwin.kernel.codes import PS_PER_S

MAX_SWITCH_PORTS = 254  # port numbers are a byte; 255 means "none" in a forwarding table


def packet_overhead(technology: Technology) -> int:
    """Bytes around a full data packet of a reliable connection on the wire, beside its payload."""
    transport = catalog.headers("infiniband").bytes_of("BTH", "ICRC")
    if technology == "infiniband":
        return transport + catalog.headers("infiniband").bytes_of("LRH", "VCRC")
    framing = catalog.headers("ethernet")
    return transport + framing.bytes_of("preamble", "gap", "ethernet", "FCS", "IPv4", "UDP")


def _fec_ps(technology: Technology, rate_bps: int) -> int:
    """Return what error correction adds to a link of that data rate; 0 where the catalog knows no such speed."""
    if technology == "ethernet":
        speeds = [catalog.ethernet(name) for name in catalog.names("ethernet")]
        return next((speed.fec_latency_ps for speed in speeds if speed.rate_bps == rate_bps), 0)
    for width in (4, 2, 1, 8, 12):
        for name in catalog.names("infiniband"):
            lane = catalog.infiniband(name)
            if width in lane.widths and lane.rate_bps(width) == rate_bps:
                return lane.fec_latency_ps(width)
    return 0


def _by_value(values: I64, of: I64 | None = None) -> tuple[list[tuple[int, ...]], I64]:
    """Distinct values (or pairs) and where each entry is among them: many cables are alike."""
    stacked = values[:, None] if of is None else np.stack([values, of], axis=1)
    distinct, inverse = np.unique(stacked, axis=0, return_inverse=True)
    return [tuple(int(v) for v in row) for row in distinct], inverse.reshape(-1).astype(np.int64)


class _Numbering:
    """Places of blueprint nodes among fabric nodes."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.templates: list[HostTemplate] = []
        seen: dict[tuple[str, tuple[str, ...]], int] = {}
        self.host_template = np.empty(len(blueprint.hosts), np.int32)
        for h, host in enumerate(blueprint.hosts):
            key = (host.type, host.nics)
            if key not in seen:
                seen[key] = len(self.templates)
                self.templates.append(host_template(*key))
            self.host_template[h] = seen[key]
        nodes = np.array([len(t.node_kind) for t in self.templates], np.int64)
        ports = np.array([len(t.port_node) for t in self.templates], np.int64)
        self.host_node_start = starts_of(nodes[self.host_template]).astype(np.int32)
        self.host_port_start = starts_of(ports[self.host_template])
        self.host_nodes, self.host_ports = int(self.host_node_start[-1]), int(self.host_port_start[-1])


def with_access_control_on(fabric: Fabric, hosts: Iterable[int]) -> Fabric:
    """The fabric with access control services on the PCIe switches of these hosts."""
    templates, which = list(fabric.templates), fabric.host_template.copy()
    redirected: dict[int, int] = {}
    for host in hosts:
        plain = int(which[host])
        if plain not in redirected:
            redirected[plain] = len(templates)
            templates.append(with_access_control(templates[plain]))
        which[host] = redirected[plain]
    return replace(fabric, templates=tuple(templates), host_template=which)


def with_adapter_corrections(fabric: Fabric, *, latency_ps: int, message_rate: float) -> Fabric:
    """The fabric with so much added to what a message takes at its end, and other rates of messages.

    No adapter delivers a message before it is there: what is taken off ends at 0.
    """
    return replace(
        fabric,
        nic_deliver_ps=np.maximum(fabric.nic_deliver_ps + latency_ps, 0),
        nic_message_ps=np.rint(fabric.nic_message_ps / message_rate).astype(np.int64),
        nic_qp_message_ps=np.rint(fabric.nic_qp_message_ps / message_rate).astype(np.int64),
    )


@dataclass
class _Columns:
    """Node and port columns of a Fabric, under its names, while they are filled in."""

    node_kind: I8
    node_host: I32
    node_type: I16
    node_tier: I8
    node_pod: I32
    node_plane: I16
    node_guid: U64
    node_lid: I32
    node_latency_ps: I64
    node_buffer_bytes: I64
    node_port_start: I64
    port_node: I32
    port_peer: I32
    port_kind: I8
    port_rate_bps: I64
    port_payload_bps: I64
    port_latency_ps: I64

    @classmethod
    def of_size(cls, nodes: int, ports: int) -> _Columns:
        return cls(
            node_kind=np.empty(nodes, np.int8),
            node_host=np.full(nodes, NONE, np.int32),
            node_type=np.zeros(nodes, np.int16),
            node_tier=np.full(nodes, NONE, np.int8),
            node_pod=np.full(nodes, NONE, np.int32),
            node_plane=np.full(nodes, NONE, np.int16),
            node_guid=np.zeros(nodes, np.uint64),
            node_lid=np.zeros(nodes, np.int32),
            node_latency_ps=np.zeros(nodes, np.int64),
            node_buffer_bytes=np.zeros(nodes, np.int64),
            node_port_start=np.empty(nodes + 1, np.int64),
            port_node=np.empty(ports, np.int32),
            port_peer=np.full(ports, NONE, np.int32),
            port_kind=np.full(ports, LinkKind.INFINIBAND, np.int8),
            port_rate_bps=np.zeros(ports, np.int64),
            port_payload_bps=np.zeros(ports, np.int64),
            port_latency_ps=np.zeros(ports, np.int64),
        )


class _TypeNames:
    """Catalog names of nodes, numbered in order of first use; 0 is a node without one."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {"": 0}

    def __getitem__(self, name: str) -> int:
        return self.number.setdefault(name, len(self.number))


def _outside_port_start(blueprint: Blueprint, numbering: _Numbering) -> I64:
    """First ports of switches, then aggregation nodes, behind those of hosts; the last entry ends them."""
    for site in blueprint.switches:
        if not 1 <= site.ports <= MAX_SWITCH_PORTS:
            raise ConfigError(
                f"got {site.ports} ports, expected 1 to {MAX_SWITCH_PORTS}", key=f"switch {site.name}"
            )
    counts = np.array([s.ports for s in blueprint.switches] + [1] * len(blueprint.aggregations), np.int64)
    start: I64 = numbering.host_ports + starts_of(counts)
    return start


def _copy_hosts(columns: _Columns, numbering: _Numbering, network_kind: LinkKind, types: _TypeNames) -> None:
    """Fill in the nodes and ports of hosts from their templates."""
    node_base, port_base = numbering.host_node_start, numbering.host_port_start
    for t, template in enumerate(numbering.templates):
        members = np.flatnonzero(numbering.host_template == t)
        at = (node_base[members][:, None] + np.arange(len(template.node_kind))).astype(np.int64)
        columns.node_kind[at] = template.node_kind
        columns.node_host[at] = members[:, None]
        columns.node_type[at] = [types[name] for name in template.node_type]
        columns.node_tier[at] = np.where(template.node_kind == NodeKind.NIC, 0, NONE)
        columns.node_latency_ps[at] = template.node_latency_ps
        columns.node_port_start[at] = port_base[members][:, None] + template.node_port_start[:-1]
        port_at = port_base[members][:, None] + np.arange(len(template.port_node))
        columns.port_node[port_at] = node_base[members][:, None] + template.port_node
        columns.port_peer[port_at] = np.where(
            template.port_peer == NONE, NONE, port_base[members][:, None] + template.port_peer
        )
        columns.port_kind[port_at] = np.where(template.port_kind == NONE, network_kind, template.port_kind)
        columns.port_rate_bps[port_at] = template.port_rate_bps
        columns.port_payload_bps[port_at] = template.port_payload_bps
        columns.port_latency_ps[port_at] = template.port_latency_ps


def _of_hosts(numbering: _Numbering, field: str) -> I32:
    """A template's list of nodes or ports for every host, in order of hosts, as numbered in the fabric."""
    which = numbering.host_template
    if not len(which):
        return np.zeros(0, np.int32)
    parts = [np.asarray(getattr(template, field), np.int64) for template in numbering.templates]
    sizes = np.array([len(part) for part in parts])[which]
    start = numbering.host_port_start if field == "nic_network_port" else numbering.host_node_start
    listed: I32 = (np.concatenate([parts[t] for t in which]) + np.repeat(start[:-1], sizes)).astype(np.int32)
    return listed


def _local_gpus(numbering: _Numbering, node_host: I32, gpu_node: I32) -> I32:
    """Places of GPUs among those of their hosts."""
    if not len(gpu_node):
        return gpu_node
    local: I32 = (gpu_node - numbering.host_node_start[node_host[gpu_node]]).astype(np.int32)
    for t, template in enumerate(numbering.templates):
        order = place_of(template.gpus, len(template.node_kind))
        mine = numbering.host_template[node_host[gpu_node]] == t
        local[mine] = order[local[mine]]
    return local


def _place_switches(
    columns: _Columns, blueprint: Blueprint, host_nodes: int, port_start: I64, types: _TypeNames
) -> None:
    """Fill in the nodes of switches and aggregation nodes, which follow the hosts', and owners of their ports."""
    switches, aggregations = blueprint.switches, blueprint.aggregations
    at = np.arange(host_nodes, len(columns.node_kind))
    columns.node_kind[at] = [NodeKind.SWITCH] * len(switches) + [NodeKind.AGGREGATION] * len(aggregations)
    columns.node_port_start[host_nodes:] = port_start
    columns.port_node[port_start[0] :] = np.repeat(at, np.diff(port_start))
    for node, site in enumerate(switches, host_nodes):
        columns.node_type[node] = types[site.type]
        columns.node_tier[node] = site.tier
        columns.node_pod[node] = site.pod
        columns.node_lid[node] = site.lid
        if site.type:
            model = catalog.switch(site.type)
            columns.node_latency_ps[node] = model.latency.value
            columns.node_buffer_bytes[node] = model.buffer.value
    for node, aggregation in enumerate(aggregations, host_nodes + len(switches)):
        columns.node_lid[node] = aggregation.lid


def compile_fabric(blueprint: Blueprint) -> Fabric:
    """The cluster as arrays. Raises ConfigError where a cable uses a port that is not there or is taken."""
    numbering = _Numbering(blueprint)
    templates, which = numbering.templates, numbering.host_template
    switches, host_nodes = blueprint.switches, numbering.host_nodes
    outside_start = _outside_port_start(blueprint, numbering)
    nodes = host_nodes + len(switches) + len(blueprint.aggregations)
    columns, types = _Columns.of_size(nodes, int(outside_start[-1])), _TypeNames()
    network_kind = LinkKind.INFINIBAND if blueprint.technology == "infiniband" else LinkKind.ETHERNET

    _copy_hosts(columns, numbering, network_kind, types)
    gpu_node, nic_node = _of_hosts(numbering, "gpus"), _of_hosts(numbering, "nics")
    nic_port = _of_hosts(numbering, "nic_network_port")
    outside = np.arange(host_nodes, nodes)
    as_cabled = np.concatenate([outside[: len(switches)], nic_node, outside[len(switches) :]])
    columns.node_guid[as_cabled] = np.array(node_guids(blueprint), np.uint64)
    columns.node_lid[nic_node] = [lid for host in blueprint.hosts for lid in (host.lids or (0,) * len(host.nics))]
    _place_switches(columns, blueprint, host_nodes, outside_start, types)
    columns.port_kind[numbering.host_ports :] = network_kind

    _plug(blueprint, nic_port, host_nodes, columns)
    network = np.isin(columns.port_kind, NETWORK)
    fraction = blueprint.mtu_bytes / (blueprint.mtu_bytes + packet_overhead(blueprint.technology))
    columns.port_payload_bps[network] = np.rint(columns.port_rate_bps[network] * fraction).astype(np.int64)

    cost = {name: _nic_cost(name) for template in templates for name in template.nic_types}
    nic_types = [name for t in which for name in templates[t].nic_types]
    costs = np.array([cost[name] for name in nic_types], np.int64).reshape(-1, 4)
    if len(nic_port):
        nic_port = np.where(columns.port_peer[nic_port] == NONE, NONE, nic_port).astype(np.int32)
    filled = vars(columns) | {"node_port_start": columns.node_port_start.astype(np.int32)}
    fabric = Fabric(
        technology=blueprint.technology,
        mtu_bytes=blueprint.mtu_bytes,
        host_names=tuple(host.name for host in blueprint.hosts),
        switch_names=tuple(s.name for s in switches) + tuple(a.name for a in blueprint.aggregations),
        templates=tuple(templates),
        host_template=which,
        host_node_start=numbering.host_node_start,
        type_names=tuple(types.number),
        **filled,
        gpu_node=gpu_node,
        gpu_local=_local_gpus(numbering, columns.node_host, gpu_node),
        nic_node=nic_node,
        nic_port=nic_port,
        nic_message_ps=costs[:, 0].copy(),
        nic_post_ps=costs[:, 1].copy(),
        nic_deliver_ps=costs[:, 2].copy(),
        nic_qp_message_ps=costs[:, 3].copy(),
        identities=blueprint.identities,
    )
    _find_planes(fabric)
    for column in vars(fabric).values():
        if isinstance(column, np.ndarray):
            column.setflags(write=False)
    return fabric


def _nic_cost(name: str) -> tuple[int, int, int, int]:
    """(a message's time at full rate, before its first byte, after its last, a queue pair's messages), in ps.

    The walk over PCIe to memory and back is the host graph's, not counted here. An adapter of unknown type
    costs nothing; only adapters without GPUs have none.
    """
    if not name:
        return 0, 0, 0, 0
    nic = catalog.nic(name)
    post = nic.doorbell.value + nic.wqe_fetch.value + nic.processing.value
    return (
        round(PS_PER_S / nic.message_rate.value),
        post,
        nic.processing.value,
        round(PS_PER_S / nic.qp_message_rate.value),
    )


def _plug(blueprint: Blueprint, nic_port: I32, host_nodes: int, columns: _Columns) -> None:
    """Join the two ports of every cable, both directions."""
    node_port_start = columns.node_port_start
    cables = blueprint.cables
    switches, nics = len(blueprint.switches), len(nic_port)
    ends = []
    for side, node, number in (("a", cables.a_node, cables.a_port), ("b", cables.b_node, cables.b_port)):
        node, number = np.asarray(node, np.int64), np.asarray(number, np.int64)
        is_nic = (node >= switches) & (node < switches + nics)
        outside = np.where(is_nic, 0, host_nodes + np.where(node < switches, node, node - nics))
        capacity = np.where(is_nic, 1, node_port_start[outside + 1] - node_port_start[outside])
        bad = (node < 0) | (node >= switches + nics + len(blueprint.aggregations))
        bad |= (number < 1) | (number > capacity)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise ConfigError(
                f"got port {number[i]} of {blueprint.node_name(int(node[i]))}, "
                f"expected one from 1 to {capacity[i]}",
                key=f"cables[{i}] end {side}",
            )
        ends.append(
            np.where(
                is_nic,
                nic_port[np.where(is_nic, node - switches, 0)] if nics else 0,
                node_port_start[outside] + number - 1,
            )
        )
    both = np.concatenate(ends)
    order = np.argsort(both, kind="stable")
    twice = np.flatnonzero(both[order][1:] == both[order][:-1])
    if len(twice):
        i = int(order[twice[0] + 1]) % max(len(cables), 1)
        raise ConfigError(
            f"got a second cable in a port that is taken: {blueprint.node_name(int(cables.a_node[i]))}"
            f"/{cables.a_port[i]} - {blueprint.node_name(int(cables.b_node[i]))}/{cables.b_port[i]}",
            key=f"cables[{i}]",
        )
    a, b = ends
    columns.port_peer[a], columns.port_peer[b] = b, a
    columns.port_rate_bps[a] = columns.port_rate_bps[b] = cables.rate_bps
    if len(cables):
        kinds, inverse = _by_value(np.asarray(cables.length_mm), np.asarray(cables.rate_bps))
        wire = np.array([catalog.cable_latency_ps(mm, bps) for mm, bps in kinds], np.int64)
        # error correction is done where the link ends; the catalog's switch latencies hold theirs already
        fec = np.array([_fec_ps(blueprint.technology, bps) for _, bps in kinds], np.int64)
        for port, far in ((a, b), (b, a)):
            ends_at_host = far < node_port_start[host_nodes]
            columns.port_latency_ps[port] = wire[inverse] + np.where(ends_at_host, fec[inverse], 0)


def _find_planes(fabric: Fabric) -> None:
    """Number the network's connected components: each is a subnet of its own. Largest first, ties by node."""
    plane = fabric.node_plane
    network = np.isin(fabric.node_kind, (NodeKind.NIC, NodeKind.SWITCH, NodeKind.AGGREGATION))
    ports = np.flatnonzero(
        (fabric.port_peer != NONE) & network[fabric.port_node] & np.isin(fabric.port_kind, NETWORK)
    )
    a, b = fabric.port_node[ports], fabric.port_node[fabric.port_peer[ports]]
    label = np.arange(fabric.nodes)
    while True:  # pointer jumping: the smallest node number wins, in a few rounds of vectors
        low = np.minimum(label[a], label[b])
        before = label.copy()
        np.minimum.at(label, a, low)
        np.minimum.at(label, b, low)
        label = np.minimum(label, label[label])
        if np.array_equal(label, before):
            break
    members = np.flatnonzero(network)
    roots, counts = np.unique(label[members], return_counts=True)
    order = np.lexsort((roots, -counts))
    number = place_of(order, len(roots))
    plane[members] = number[np.searchsorted(roots, label[members])]


def ports_of_cable(fabric: Fabric, blueprint: Blueprint, cable: int) -> tuple[int, int]:
    """Return the ports of a blueprint's fabric that drive the two directions of a cable."""
    cables = blueprint.cables
    node = int(cables.a_node[cable])
    switches, nics = len(blueprint.switches), len(fabric.nic_node)
    if switches <= node < switches + nics:
        port = int(fabric.nic_port[node - switches])
    else:
        first = int(fabric.host_node_start[-1])
        at = first + (node if node < switches else node - nics)
        port = int(fabric.node_port_start[at]) + int(cables.a_port[cable]) - 1
    return port, int(fabric.port_peer[port])
