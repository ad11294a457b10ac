"""Bytes that a server's messages put on every port of the fabric in a step, over all hosts that it lies on.

Collectives are what NCCL lowers them to, played by the flow engine; sends of a pipeline and DeepEP's copies take
the routes between their GPUs. What stays inside a host is nobody else's and is left out, as are logits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fabrictwin.base.arrays import F64, I32
from fabrictwin.fabric.memory_paths import PathFinder
from fabrictwin.serving.network.exchange import between_hosts, to_fellows
from fabrictwin.serving.network.nccl_times import NcclTimes
from fabrictwin.serving.network.placement import Placement
from fabrictwin.serving.step.analytic import HIDDEN_BYTES, ServedModel
from fabrictwin.serving.step.expert_parallel import DeepEpTraffic, GatherScatter
from fabrictwin.twin.twin import Twin


def routed_bytes(
    twin: Twin, source: I32, target: I32, each_bytes: float | F64, through: tuple[I32, I32] | None = None
) -> F64:
    """Return the bytes over each port if GPU `source[i]` sends so many to `target[i]`, of shape [ports].

    `through`: the adapters of each pair, of one host too; else its best, and none inside a host.
    """
    if not len(source):
        return np.zeros(twin.fabric.ports)
    found = PathFinder(twin.fabric, twin.routes).find(
        source, target, stays_inside=through is None, through=through
    )
    each = np.broadcast_to(each_bytes, len(source))[found.edge]
    load: F64 = np.bincount(found.port, found.share * each, minlength=twin.fabric.ports).astype(float)
    return load


def step_bytes(
    twin: Twin, nccl: Callable[[I32], NcclTimes], where: Placement, served: ServedModel, tokens: float
) -> F64:
    """Return the bytes over each port of one replica's step, of shape [ports].

    `tokens` are those of each data parallel rank; `nccl` makes NCCL of the GPUs of a group.
    """
    total = np.zeros(twin.fabric.ports)
    model = served.model
    row = model.hidden * HIDDEN_BYTES
    data, stages, size = where.rank_node.shape
    traffic = served.experts.traffic
    ends = model.layers - (0 if traffic is None or served.experts.reduces else model.sparse_layers)
    for group in where.rank_node.reshape(-1, size):
        if size > 1 and where.hosts(group) > 1:
            reduces = (model.layers + ends + 1) / stages
            total += reduces * nccl(group).port_bytes("all_reduce", round(tokens * row))
    for stage in range(stages - 1):
        here, there = (where.rank_node[:, at].ravel() for at in (stage, stage + 1))
        total += routed_bytes(twin, here, there, 2 * tokens * row / size)
    if isinstance(traffic, GatherScatter):
        for group in where.rank_node.reshape(data, -1).T:
            if where.hosts(group) > 1:
                times, rows = nccl(np.ascontiguousarray(group)), round(data * tokens * HIDDEN_BYTES)
                gathered = times.port_bytes("all_gather", rows * (traffic.hidden + traffic.experts))
                scattered = times.port_bytes("reduce_scatter", rows * traffic.hidden)
                total += model.sparse_layers / stages * (gathered + scattered)
    elif isinstance(traffic, DeepEpTraffic):
        calls, nodes = traffic.calls, where.expert_group()
        own = tokens / traffic.tensor
        both = calls.tokens.bytes_of("dispatch") + calls.tokens.bytes_of("combine")
        if calls.mode == "low latency":
            pairs_of, copies = between_hosts, own * calls.tokens.top_k / calls.ranks
        else:
            pairs_of, copies = to_fellows, own * calls.tokens.reaches(calls.per_host / calls.ranks)
        total += routed_bytes(twin, *pairs_of(twin, nodes), model.sparse_layers * copies * both)
    return total
