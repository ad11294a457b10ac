"""A fabric and its tables as the packet kernel is built from them.

Inside hosts every path is source-routed over NVLink and PCIe, whose bursts move at the rate of payload. Between
adapters, InfiniBand switches look up their LFT and Ethernet ones their groups. Buffers of NVLink and PCIe are as
deep as a round trip needs (figures are not public).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.packet.network.host_costs import host_work, with_host_work
from fabrictwin.engines.packet.network.model import NetworkModel
from fabrictwin.engines.packet.network.qos_rows import gearbox_ps
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric, NodeKind

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.state.build import Wiring

NIC_BUFFER_BYTES = 4 << 20  # an estimate: adapters do not publish their buffers


def build_wiring(model: NetworkModel) -> tuple[Wiring, dict[tuple[int, int], int]]:
    """Return what the kernel is built from, and the ports that stand for memory, cores and threads of hosts."""
    from fabrictwin.kernel.packet.state import constants as s
    from fabrictwin.kernel.packet.state.build import Wiring

    fabric, routes, options = model.fabric, model.routes, model.options
    network = np.isin(fabric.port_kind, NETWORK)
    infiniband = fabric.technology == "infiniband"
    rate = np.where(network, fabric.port_rate_bps, fabric.port_payload_bps).astype(np.int64)
    peer = fabric.port_peer
    plugged = peer != NONE
    peer_node = fabric.port_node[np.maximum(peer, 0)]
    passing = 4 * (fabric.mtu_bytes + 2 * model.headers.data) + options.switching.credit_batch_bytes
    deep = _round_trip_bytes(fabric, rate, peer_node) + passing
    # cut-through latency is counted where a packet passes, not where an adapter takes it
    arrives = fabric.port_latency_ps + np.where(
        network & (fabric.node_kind[peer_node] == NodeKind.NIC), 0, fabric.node_latency_ps[peer_node]
    )
    if options.lanes.qos is not None:
        arrives = arrives + gearbox_ps(model, options.lanes.qos)
    groups, nothing = routes.groups, np.zeros((1, 1), np.uint8)
    wiring = Wiring(
        port_node=fabric.port_node,
        port_peer=peer,
        port_bps=np.where(plugged, rate, 0),
        port_latency_ps=fabric.port_latency_ps,
        port_flags=np.where(network, s.CREDIT if infiniband else s.PFC, s.CREDIT | s.INTERNAL).astype(np.int32),
        node_flags=_node_flags(model),
        node_latency_ps=fabric.node_latency_ps,
        node_buffer_bytes=_node_buffers(model),
        node_row=routes.switches.node_row,
        node_port_start=fabric.node_port_start,
        endpoint_port=np.where(fabric.nic_port == NONE, 0, fabric.nic_port).astype(np.int32),
        arrive_ps=np.where(plugged, arrives, 0).astype(np.int64),
        credit_bytes=np.where(network & infiniband, _lane_buffers(model, deep), deep).astype(np.int64),
        endpoint_lid=routes.lid[fabric.nic_node].astype(np.int32),
        lft=routes.lft if routes.lft.size else nothing,
        group_of=groups.group_of if groups.group_of.size else np.full((1, 1), NONE, np.int32),
        group_start=groups.group_start,
        group_ports=groups.group_ports if len(groups.group_ports) else np.zeros(1, np.int32),
        edge_column=routes.switches.edge_column,
        seeds=routes.hash_seeds.astype(np.int64),
    )
    if not options.hosts.host_work:
        return wiring, {}
    work = host_work(fabric)
    return with_host_work(wiring, work, passing), work.port(fabric.ports)


def _node_flags(model: NetworkModel) -> I32:
    """[nodes] how each takes packets in and passes them on."""
    from fabrictwin.kernel.packet.state import constants as s

    fabric = model.fabric
    infiniband, kind = fabric.technology == "infiniband", fabric.node_kind
    through = 0 if model.options.switching.store_and_forward else s.CUT_THROUGH
    flags = np.zeros(fabric.nodes, np.int32)
    flags[kind == NodeKind.GPU] = s.ENDPOINT
    flags[kind == NodeKind.AGGREGATION] = s.ENDPOINT
    flags[kind == NodeKind.CPU] = s.ENDPOINT | s.INPUT_QUEUED | s.CUT_THROUGH
    flags[kind == NodeKind.NIC] = s.ENDPOINT | s.CUT_THROUGH | (0 if infiniband else s.SHARED)
    flags[np.isin(kind, (NodeKind.NVSWITCH, NodeKind.PCIE_SWITCH))] = s.INPUT_QUEUED | s.CUT_THROUGH
    flags[kind == NodeKind.SWITCH] = through | (s.INPUT_QUEUED if infiniband else s.SHARED)
    return flags


def _node_buffers(model: NetworkModel) -> I64:
    """[nodes] bytes that Ethernet switches and adapters hold."""
    fabric, kind = model.fabric, model.fabric.node_kind
    ethernet = model.options.switching.buffer_bytes or fabric.node_buffer_bytes
    buffer = np.where(kind == NodeKind.SWITCH, ethernet, 0).astype(np.int64)
    buffer[kind == NodeKind.NIC] = NIC_BUFFER_BYTES
    return buffer


def _lane_buffers(model: NetworkModel, deep: I64) -> I64 | int:
    """[ports] bytes of a lane's buffer behind an InfiniBand link: the switch's share, a round trip at least."""
    fabric, options = model.fabric, model.options
    if options.switching.credit_bytes:
        return options.switching.credit_bytes
    ports = np.diff(fabric.node_port_start)[fabric.port_node]
    share: I64 = fabric.node_buffer_bytes[fabric.port_node] // np.maximum(ports * model.lanes, 1)
    return np.maximum(share, deep)


def _round_trip_bytes(fabric: Fabric, rate: I64, peer_node: I32) -> I64:
    """[ports] bytes that pass in a round trip of credits."""
    passing = fabric.node_latency_ps[fabric.port_node] + fabric.node_latency_ps[peer_node]
    flight: I64 = 2 * fabric.port_latency_ps + passing
    return rate * flight // (8 * PS_PER_S)
