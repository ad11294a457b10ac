"""Placement of the bytes of requests: beside the adapter, on a GPU that it reaches, or on one that it does not.

A region on a GPU that the adapter reaches (GPUDirect RDMA) is read and written there. Where it is not reached, the
bytes go through host memory: a copy before they are sent, one after they have come, each by software in pieces,
before anything behind them on the same queue pair. Copies take the rate and latency of the way between GPU and
processor, without contention, and the time that software needs for a piece.

Real drivers refuse to register such memory, and programs copy for themselves; the twin does it for them.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.fabric.fabric import NodeKind
from fabrictwin.fabric.memory_paths import PathFinder
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.memory_regions import Region, Window
from fabrictwin.verbs.adapter.message_layer import MessageLayer
from fabrictwin.verbs.adapter.queue_pair import PeerFlow, QueuePair
from fabrictwin.verbs.adapter.receive_queues import ReceiveQueue
from fabrictwin.verbs.adapter.staging import Staging
from fabrictwin.verbs.adapter.work_requests import ANSWERED, TAKES_RECEIVE, WRITE_IMM, Response, Work


def staging(world: MessageLayer, gpu: int) -> Staging:
    """Copies between a GPU and the memory nearest to it."""
    fabric = world.fabric
    host = int(fabric.node_host[gpu])
    nodes = np.arange(fabric.host_node_start[host], fabric.host_node_start[host + 1])
    processors = nodes[fabric.node_kind[nodes] == NodeKind.CPU].astype(np.int32)
    finder = PathFinder(fabric, world.routes)
    pair, port, *_, latency = finder.inside(np.full(len(processors), gpu, np.int32), processors)
    near = int(np.argmin(latency))
    packets, usual = world.engine.packets, PacketOptions().hosts
    chunk, chunk_ps = (usual.staging_chunk_bytes, usual.staging_ps) if packets is None else packets.staging
    return Staging(
        int(latency[near]),
        int(fabric.port_payload_bps[port[pair == near]].min()),
        chunk,
        chunk_ps,
    )


# ---------------------------------------------------------------------- which region


def local_region(qp: QueuePair, work: Work) -> Region | None:
    """The region that the bytes of a request are in."""
    return qp.memory.local.get(work.segments[0][2]) if work.segments else None


def remote_region(target: Adapter, work: Work) -> Region | None:
    """The region that a request's bytes go to, as far as is known now."""
    if work.opcode in TAKES_RECEIVE and work.opcode != WRITE_IMM:
        if work.srqn:
            queue: ReceiveQueue | None = target.shared_receives.get(work.srqn)
        else:
            number = work.remote_qpn if work.vector is not None else work.qp.attributes.dest_qp_num
            peer: QueuePair | None = target.queue_pairs.get(number)
            queue = None if peer is None else peer.receives
        if queue is None or not queue.queue or not queue.queue[0][1]:
            return None
        return region_of_key(target, queue.queue[0][1][0][2])
    return region_of_key(target, work.rkey)


def region_of_key(adapter: Adapter, key: int) -> Region | None:
    """The region that a remote key opens."""
    found = adapter.memory.remote.get(key)
    return found.region if isinstance(found, Window) else found


def node_of(region: Region | None) -> int | None:
    """The fabric node that the adapter reads or writes, where that is a GPU."""
    return None if region is None else region.node


def copy_ps(region: Region | None, size: int) -> int:
    """Return the time of copying bytes of a region to or from host memory; none where the adapter reaches it."""
    return 0 if region is None or region.staging is None else region.staging.copy_ps(size)


def after_arrival_ps(record: Work | Response, now_ps: int) -> int:
    """Return how long after their arrival in host memory bytes are in their place, those before them first."""
    if isinstance(record, Response):
        work = record.work
        holder: QueuePair | PeerFlow = work.qp
        region = local_region(work.qp, work)
    else:
        work, holder = record, record.peer_flow
        region = None if work.opcode in ANSWERED else remote_region(record.peer_flow.target, work)
    copied = max(holder.copied_ps, now_ps) + copy_ps(region, work.length)
    holder.copied_ps = copied
    return copied - now_ps
