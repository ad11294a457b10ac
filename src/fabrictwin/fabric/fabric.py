"""The fabric: a cluster as arrays.

GPUs, NVSwitches, PCIe switches, CPUs, NICs and switches are all nodes; NVLink, PCIe, InfiniBand, Ethernet are
all links. A *port* belongs to one node and transmits on exactly one directed link, to its peer port; so a link
is named by the port that transmits on it, and there is no separate link table.

Nodes: the insides of hosts first, host after host, each host's nodes in the order of its template; then
switches; then aggregation nodes. A node's ports are contiguous: port number `k` (from 1) of node `n` is
`node_port_start[n] + k - 1`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.base.arrays import I8 as I8
from fabrictwin.base.arrays import I16 as I16
from fabrictwin.base.arrays import I32 as I32
from fabrictwin.base.arrays import I64 as I64
from fabrictwin.base.arrays import U64 as U64
from fabrictwin.base.arrays import place_of
from fabrictwin.base.records import record
from fabrictwin.fabric.host_template import HostTemplate
from fabrictwin.fabric.kinds import NETWORK as NETWORK
from fabrictwin.fabric.kinds import LinkKind as LinkKind
from fabrictwin.fabric.kinds import NodeKind as NodeKind
from fabrictwin.kernel.codes import NONE as NONE

if TYPE_CHECKING:
    from fabrictwin.cluster.blueprint import Identity, Technology


@record
class Fabric:
    """The graph as arrays. N nodes, P ports, H hosts, G GPUs, A adapters (NICs); NONE is -1."""

    technology: Technology
    mtu_bytes: int
    host_names: tuple[str, ...]  # [H]
    switch_names: tuple[str, ...]  # switches, then aggregation nodes
    templates: tuple[HostTemplate, ...]
    host_template: I32  # [H] into templates
    host_node_start: I32  # [H + 1] first node of each host
    type_names: tuple[str, ...]  # catalog names that node_type points to

    node_kind: I8  # [N] NodeKind
    node_host: I32  # [N] host index, NONE for switches and aggregation nodes
    node_type: I16  # [N] into type_names
    node_tier: I8  # [N] switches: 1 at the leaves; NIC 0; NONE elsewhere or where unknown
    node_pod: I32  # [N] switches: a group for views, NONE where there is none
    node_plane: I16  # [N] which subnet a switch, NIC or aggregation node belongs to; NONE inside hosts
    node_guid: U64  # [N] network nodes; 0 elsewhere
    node_lid: I32  # [N] as discovered; 0 where none is known
    node_latency_ps: I64  # [N] from the first bit in to the first bit out
    node_buffer_bytes: I64  # [N] packet buffer of a switch; 0 elsewhere
    node_port_start: I32  # [N + 1]

    port_node: I32  # [P] owner
    port_peer: I32  # [P] the port at the other end, NONE where nothing is plugged in
    port_kind: I8  # [P] LinkKind
    port_rate_bps: I64  # [P] data rate after line code, 0 where nothing is plugged in
    port_payload_bps: I64  # [P] what bulk payload gets of it after packet overhead
    port_latency_ps: I64  # [P] propagation, with transceivers and FEC

    gpu_node: I32  # [G] node of each GPU, host after host
    gpu_local: I32  # [G] its index in its host
    nic_node: I32  # [A] node of each adapter, host after host
    nic_port: I32  # [A] its network port (NONE where it has no cable)
    nic_message_ps: I64  # [A] time the adapter needs a message at least: 1 / message rate
    nic_post_ps: I64  # [A] doorbell, WQE fetch and processing before the first byte of a message leaves
    nic_deliver_ps: I64  # [A] from the last byte on the wire to the completion that software sees
    nic_qp_message_ps: I64  # [A] time between messages of one queue pair at least
    identities: Mapping[int, Identity] = field(default_factory=dict)  # as discovered, by node GUID

    @cached_property
    def port_guid(self) -> U64:
        """[N] GUIDs of ports: a switch's own; of a channel adapter as discovered, else the node's plus 1.

        That is how libumad2sim derives it, except where the number is another node's own.
        """
        guid = self.node_guid.copy()
        end = np.isin(self.node_kind, (NodeKind.NIC, NodeKind.AGGREGATION)) & (guid != 0)
        after = guid[end] + np.uint64(1)
        guid[end] = np.where(np.isin(after, self.node_guid), guid[end], after)
        if self.identities:
            for node in np.flatnonzero(self.node_guid):
                identity = self.identities.get(int(self.node_guid[node]))
                if identity is not None and identity.port_guid:
                    guid[node] = identity.port_guid
        return guid

    @property
    def nodes(self) -> int:
        return len(self.node_kind)

    @property
    def ports(self) -> int:
        return len(self.port_node)

    @property
    def hosts(self) -> int:
        return len(self.host_names)

    @property
    def gpus(self) -> int:
        return len(self.gpu_node)

    @cached_property
    def port_number(self) -> I32:
        """[P] the number of each port on its node, from 1."""
        return (np.arange(self.ports) - self.node_port_start[self.port_node] + 1).astype(np.int32)

    @cached_property
    def switch_nodes(self) -> I32:
        """Nodes that are network switches."""
        return np.flatnonzero(self.node_kind == NodeKind.SWITCH).astype(np.int32)

    @cached_property
    def node_nic(self) -> I32:
        """[N] adapter index of a NIC node, NONE elsewhere."""
        return place_of(self.nic_node, self.nodes)

    @cached_property
    def node_gpu(self) -> I32:
        """[N] GPU index of a GPU node, NONE elsewhere."""
        return place_of(self.gpu_node, self.nodes)

    def node_name(self, node: int) -> str:
        """`host-0/gpu3`, `host-0/mlx5_1`, `leaf-2`."""
        host = int(self.node_host[node])
        if host == NONE:
            return self.switch_names[node - int(self.host_node_start[-1])]
        template = self.templates[self.host_template[host]]
        return f"{self.host_names[host]}/{template.node_names[node - int(self.host_node_start[host])]}"

    def port_name(self, port: int) -> str:
        """`leaf-2/17`: the node's name and the port's number."""
        return f"{self.node_name(int(self.port_node[port]))}/{int(self.port_number[port])}"

    def link_name(self, port: int) -> str:
        """`leaf-2/17 > spine-0/3`: the directed link that `port` transmits on."""
        peer = int(self.port_peer[port])
        return f"{self.port_name(port)} > {self.port_name(peer) if peer != NONE else 'nothing'}"

    @cached_property
    def node_names(self) -> list[str]:
        """The name of every node, as `node_name` has it."""
        templates = (self.templates[template] for template in self.host_template.tolist())
        hosts = zip(self.host_names, templates, strict=True)
        inside = [f"{host}/{name}" for host, template in hosts for name in template.node_names]
        return [*inside, *self.switch_names]

    def link_names(self, ports: I64) -> list[str]:
        """The names of directed links, as `link_name` has them."""
        nodes, numbers = (self.node_names[node] for node in self.port_node.tolist()), self.port_number.tolist()
        names = [*map("{}/{}".format, nodes, numbers), "nothing"]  # the last one at NONE
        own, peers = ports.tolist(), self.port_peer[ports].tolist()
        return [f"{names[port]} > {names[peer]}" for port, peer in zip(own, peers, strict=True)]

    @cached_property
    def _names(self) -> dict[str, int]:
        return {name: node for node, name in enumerate(self.node_names)}

    def find_node(self, name: str) -> int:
        """The node of that name. Raises KeyError."""
        return self._names[name]
