"""The rate that NVLS comes to at most, by NCCL's own cost model.

Since 2.28 that model says which share of the NVLinks NVLS reaches on each generation, and what a channel of NVLS
tree moves, as NVIDIA measured them. They are figures of the hardware: they hold for what earlier releases choose.
Source: NCCL 2.30.7, src/graph/tuning.cc (`nvlsEfficiency`, `perChMaxNVLSTreeBws`).
"""

from __future__ import annotations

import math

from fabrictwin.fabric.fabric import Fabric
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.settings.version import Version
from fabrictwin.nccl.topology.graph_types import Algorithm
from fabrictwin.nccl.tuning.cost_model import generation
from fabrictwin.nccl.tuning.tuning_constants import constants

_MEASURED = Version(2, 30, 7)
_CHUNK_BYTES = Settings.nvls_chunksize  # NCCL's own, with which it was measured


def ceiling_gbps(communicator: Communicator, algorithm: Algorithm) -> float:
    """GB/s of an all-reduce's data; infinite where the model says nothing."""
    known = constants(_MEASURED)
    row, nodes = generation(communicator.compute_capability), communicator.nodes
    graph, share = communicator.graphs.get(algorithm), known.nvls_efficiency[row]
    if graph is None or graph.channels < 2 or not share or algorithm not in (Algorithm.NVLS, Algorithm.NVLS_TREE):
        return math.inf
    if communicator.ranks_per_node < _gpus_of_a_host(communicator):
        return math.inf  # whole machines were measured; the search for a few GPUs goes in coarse steps
    channel = 2 * graph.bw_intra * share * (graph.channels - 1) / graph.channels
    if nodes > 1:
        tree = algorithm == Algorithm.NVLS_TREE
        channel = min(channel, graph.bw_inter * (2 if tree and nodes == 2 else 1))
        if tree:
            channel = min(channel, known.channel_nvls_tree[row][min(nodes, 3) - 1])
    n = communicator.ranks
    return graph.channels * channel * n / (2 * (n - 1))


def _gpus_of_a_host(communicator: Communicator) -> int:
    fabric: Fabric = communicator.twin.fabric
    return len(fabric.templates[int(fabric.host_template[int(communicator.placement.host_of_node[0])])].gpus)


def beside_chunks_gbps(ceiling: float, *, chunk_us: float, channels: int) -> float:
    """The same without what chunks of NCCL's own size cost, which was in what NVIDIA measured."""
    us_per_gb = 1e6 / ceiling - chunk_us * 1e9 / (_CHUNK_BYTES * channels)
    return 1e6 / us_per_gb if us_per_gb > 0 else math.inf
