"""Ranks of servers on GPUs, in vLLM's order (`vllm/distributed/parallel_state.py`).

Ranks count through tensor parallelism first, then the pipeline, then data parallelism; servers take GPUs one after
the other, host by host, as Ray packs them and as `--nnodes` numbers nodes.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I32
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import Fabric


@record
class Placement:
    """Ranks of one server.

    Attributes:
        fabric: The cluster.
        rank_node: The GPU of each, of shape [data, pipeline, tensor].
    """

    fabric: Fabric
    rank_node: np.ndarray[tuple[int, int, int], np.dtype[np.int32]]

    def tensor_group(self) -> I32:
        """Return the GPUs of the group that lies over most hosts, the first of equals."""
        data, stages, size = self.rank_node.shape
        groups = self.rank_node.reshape(data * stages, size)
        return self._widest(groups)

    def data_group(self) -> I32:
        """Return the GPUs that hold the same part of the model beside each other, of all data parallel ranks."""
        return self._widest(self.rank_node.reshape(self.rank_node.shape[0], -1).T)

    def expert_group(self) -> I32:
        """Return the GPUs of one stage, over which experts are spread: data parallel rank by rank."""
        data, stages, size = self.rank_node.shape
        return self._widest(self.rank_node.transpose(1, 0, 2).reshape(stages, data * size))

    def boundary(self, stage: int) -> tuple[I32, I32]:
        """Return the GPUs of a stage and of the next, rank by rank, where they lie furthest apart."""
        host = self.fabric.node_host[self.rank_node]
        apart = (host[:, stage] != host[:, stage + 1]).sum(axis=1)
        which = int(np.argmax(apart))
        return self.rank_node[which, stage], self.rank_node[which, stage + 1]

    def hosts(self, nodes: I32) -> int:
        """Return how many hosts GPUs lie on."""
        return len(np.unique(self.fabric.node_host[nodes]))

    def _widest(self, groups: np.ndarray[tuple[int, int], np.dtype[np.int32]]) -> I32:
        spread = [self.hosts(group) for group in groups]
        return np.ascontiguousarray(groups[int(np.argmax(spread))])


def place(fabric: Fabric, sizes: tuple[int, int, int], first: int = 0, gpus: I32 | None = None) -> Placement:
    """Return a server of `sizes` (data, pipeline, tensor parallel) on GPUs from number `first` on.

    `gpus` are those that there are, in order; the cluster's where None.
    """
    world = int(np.prod(sizes))
    nodes = fabric.gpu_node if gpus is None else gpus
    return Placement(fabric, nodes[first : first + world].reshape(sizes))
