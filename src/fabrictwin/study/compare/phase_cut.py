"""The cut of a cluster on which phases of its job are played packet by packet, and those phases.

A cluster of up to `HOSTS` hosts is cut by leaving out GPUs only. A larger one becomes a network of the same kind
and oversubscription whose leaves have `DOWN` ports to hosts, so that few hosts fill many leaves: as in the cluster
every port down is loaded and flows of a leaf share its ports up. Its switches have as much buffer a port as the
real ones have when all of their ports are in use: what is left when few are would swallow any burst.

Ranks are scattered by a seed, as on a cluster that jobs come to and leave: neighbours in rank order are mostly not
under one leaf. With one rail a leaf, all ranks are of one rail; rails do not meet.

    ring       all-reduces among GPUs of the same place in their hosts, as data-parallel groups are where
               tensor-parallel ones fill hosts; `QUEUE_PAIRS` channels each, which a switch may hash onto one port
    exchange   an all-to-all of experts with the job's blocks: everybody sends to everybody at once, and a few
               GPUs, whose experts are hot, get more
    neighbours the ring once more, ranks in the order of their leaves, where the job's own are placed so

A job without experts is given those of `AS_IF_TOP_K` a token, so that fabrics can be told apart by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import I32, I64, place_of
from fabrictwin.base.grouped import grouped
from fabrictwin.base.records import record
from fabrictwin.base.units import format_size
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.host_placement import place
from fabrictwin.cluster.spec.cluster_section import GeneratedCluster
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.fabric.fabric import NONE, NodeKind
from fabrictwin.program import collectives
from fabrictwin.program.builder import ProgramBuilder
from fabrictwin.program.program import Communication, Program
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.twin.twin import Twin
from fabrictwin.workload.captured.captured_section import PlacedCapture
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.job_communications import exchange
from fabrictwin.workload.layers.feedforward import peak_load

Phase = Literal["ring", "exchange", "neighbours"]
PHASES: tuple[Phase, ...] = ("ring", "exchange")  # of scattered ranks, once a seed

RANKS = 64
HOSTS = 64
GPUS = 1024  # that are built at most
DOWN = 8

QUEUE_PAIRS = 2
SHARD_BYTES = 256 << 10  # that a channel of the ring sends in a step

LARGEST_BLOCK = 512 << 10  # what is sent after it changes no ratio, and costs time
AS_IF_TOP_K = 2
HOT, HOT_TIMES = 4, 4.0  # GPUs whose experts get so many times as many tokens, where the job's loads are even


@record
class Load:
    """What a job's experts exchange."""

    block_bytes: int  # between each two ranks of the cut
    hot_times: float  # of the average, what the hot ranks receive
    says: str

    @classmethod
    def of(cls, job: Job | PlacedCapture, ranks: int) -> Load:
        """A layer's tokens, divided over so many ranks; of a captured job, its largest all-to-all's bytes."""
        if isinstance(job, PlacedCapture):
            own = job.exchanged_bytes
            block = max(min(own // ranks, LARGEST_BLOCK) // 2 * 2, 2) if own else LARGEST_BLOCK
            whose = "the job's" if own else "as if it had one"
            return cls(block, HOT_TIMES, f"{format_size(block)} blocks ({whose})")
        experts, routing, layout = job.model.experts, job.training.routing, job.layout
        tokens = job.training.micro_batch_size * job.training.sequence // (layout.cp * layout.tp)
        top_k = AS_IF_TOP_K if experts is None else experts.top_k
        block = min(max(tokens * top_k * job.model.hidden * 2 // ranks, 1), LARGEST_BLOCK) // 2 * 2
        hot = HOT_TIMES
        if experts is not None and routing.imbalance:
            hot = peak_load(experts.count, layout.ep, routing.imbalance, routing.seed, layer=0)
        whose = f"as if {top_k} experts took each token" if experts is None else "the job's"
        return cls(max(block, 2), hot, f"{format_size(max(block, 2))} blocks ({whose})")


@record
class Cut:
    """A small twin with the nodes and hosts of its ranks."""

    twin: Twin
    nodes: I32  # [ranks]
    host: I32  # [ranks]
    text: str

    @property
    def ranks(self) -> int:
        return len(self.nodes)

    def options(self, whole: PacketOptions) -> PacketOptions:
        """For the packet engine: a buffer that they give is in the cut's switches already, by their ports."""
        return grouped(whole, {"buffer_bytes": 0})


def _shape(spec: Spec) -> tuple[int, int, dict[str, object]]:
    """(hosts, GPUs of each that hold ranks, changes to the topology)."""
    assert isinstance(spec.cluster, GeneratedCluster)
    group = max(spec.cluster.hosts, key=lambda one: one.count)
    topology = spec.cluster.network.topology
    host = catalog.host(group.type) if group.type else None
    gpus, nics = (8, 8) if host is None else (host.nodes.gpu, len(host.nics))
    by_rail = topology.kind == "rail-optimised"
    most = min(HOSTS if by_rail else -(-RANKS // gpus), max(DOWN, GPUS // gpus))
    if topology.kind == "single-switch" or group.count <= HOSTS:
        hosts = min(group.count, max(most, 2))
        return hosts, max(1, min(gpus, RANKS // hosts)), {}
    if by_rail:
        # three tiers: the leaves of a rail have spines of their own, as they do where rails are many
        return most, max(1, min(gpus, RANKS // most)), {"leaf_down": DOWN, "tiers": 3}
    return most, gpus, {"leaf_down": max(DOWN, nics), "tiers": 2}


def cut_of(spec: Spec, *, seed: int | None) -> Cut:
    """A small cluster of the spec's kind, its ranks scattered by a seed, or not at all. Raises ConfigError."""
    hosts, each, shape = _shape(spec)
    assert isinstance(spec.cluster, GeneratedCluster)
    whole = max(spec.cluster.hosts, key=lambda group: group.count)
    count = hosts if shape else min(whole.count, HOSTS)
    group = whole.model_copy(update={"count": count})
    network = spec.cluster.network
    topology = network.topology
    if shape:
        unset = dict.fromkeys(("radix", "leaves", "spines", "pods", "cores"))
        topology = topology.model_copy(update={**unset, **shape})
    cluster = spec.cluster.model_copy(
        update={"hosts": (group,), "network": network.model_copy(update={"topology": topology})}
    )
    order = {"order": "contiguous"} if seed is None else {"order": "scattered", "seed": seed}
    placement = spec.placement.model_copy(update={"hosts": (), **order})
    small = spec.model_copy(update={"cluster": cluster, "placement": placement, "faults": ()})
    blueprint = build(small.cluster, spec=small)
    twin = make_twin(small, blueprint)
    _share_buffers(twin, spec)
    chosen = place(blueprint, small, hosts=hosts)
    fabric = twin.fabric
    gpu_host = fabric.node_host[fabric.gpu_node]
    nodes = np.concatenate([fabric.gpu_node[gpu_host == host][:each] for host in chosen.tolist()]).astype(np.int32)
    which = "neighbouring" if seed is None else "scattered"
    text = f"{len(nodes)} GPUs of {hosts} {which} hosts, {len(fabric.switch_nodes)} switches"
    return Cut(twin, nodes, fabric.node_host[nodes].astype(np.int32), text)


def _share_buffers(twin: Twin, spec: Spec) -> None:
    """Ethernet switches keep the buffer of the ports that the cut uses; InfiniBand's ports have buffers each."""
    fabric = twin.fabric
    if fabric.technology == "infiniband":
        return
    given = None if spec.run.packet is None else spec.run.packet.buffer
    whole = np.where(fabric.node_kind == NodeKind.SWITCH, given or fabric.node_buffer_bytes, 0)
    used = np.bincount(fabric.port_node[fabric.port_peer != NONE], minlength=fabric.nodes)
    share = whole * used // np.maximum(np.diff(fabric.node_port_start), 1)
    twin.fabric = replace(fabric, node_buffer_bytes=share.astype(np.int64))


def program_of(phase: Phase, host: I32, load: Load) -> Program:
    """A phase over ranks that live on these hosts."""
    builder = ProgramBuilder(phase, len(host))
    add_phase(builder, phase, host, load, np.arange(len(host)))
    return builder.build()


def beside(phase: Phase, other: Phase, host: I32, load: Load, *, alone: bool) -> tuple[Program, int]:
    """A phase on every other host, with another job's on the rest unless `alone`; and how many operations are its.

    The other job goes through its phase twice.
    """
    builder = ProgramBuilder(f"{phase} beside {other}", len(host))
    _, order = np.unique(host, return_inverse=True)
    first = order[np.sort(np.unique(order, return_index=True)[1])]  # hosts as ranks meet them
    turn = place_of(first, len(first))
    mine = turn[order] % 2 == 0
    operations = len(add_phase(builder, phase, host, load, np.flatnonzero(mine)))
    if not alone:
        before = add_phase(builder, other, host, load, np.flatnonzero(~mine))
        add_phase(builder, other, host, load, np.flatnonzero(~mine), after=before)
    return builder.build(), operations


def add_phase(
    builder: ProgramBuilder, phase: Phase, host: I32, load: Load, ranks: I64, after: Sequence[int] = ()
) -> list[int]:
    """A phase over some of the ranks; returns its operations."""
    n = len(ranks)
    every = builder.actor(f"ranks from {ranks[0]}", ranks)
    label = builder.label(phase, "other")

    def post(communication: Communication) -> int:
        return builder.communicate(builder.communication(communication, [every]), label, after=after)

    if phase != "exchange":
        each = int(np.bincount(host[ranks]).max())
        size = SHARD_BYTES * -(-n // each) * QUEUE_PAIRS
        return [
            post(
                collectives.all_reduce(
                    ranks[None, place_in_host::each],
                    size,
                    channels=QUEUE_PAIRS,
                    host_of_rank=host,
                    element_bytes=4,
                    name=f"ring {place_in_host}",
                )
            )
            for place_in_host in range(each)
        ]
    found = [post(exchange(ranks[None, :], load.block_bytes, step_cost_ps=0, name="tokens"))]
    hot = ranks[np.linspace(0, n, min(HOT, n), endpoint=False).astype(int)]
    more_bytes = int(load.block_bytes * (load.hot_times - 1)) // 2 * 2
    if more_bytes > 0:
        pairs = np.array([(a, b) for b in hot.tolist() for a in ranks.tolist() if a != b])
        found.append(post(collectives.send(pairs, more_bytes, element_bytes=2, name="hot experts")))
    return found
