"""Paths, patterns and graphs: the words that detection, search, tuner, lowering and log share.

Rates are GB/s (1e9 bytes) as NCCL prints them. Values and their order are NCCL's.
"""

from __future__ import annotations

from enum import IntEnum

from fabrictwin.base.arrays import I32
from fabrictwin.base.records import record
from fabrictwin.kernel.codes import PathType as PathType
from fabrictwin.kernel.codes import Pattern as Pattern


class Algorithm(IntEnum):
    TREE = 0
    RING = 1
    COLLNET_DIRECT = 2
    COLLNET_CHAIN = 3
    NVLS = 4
    NVLS_TREE = 5
    PAT = 6


class Protocol(IntEnum):
    LL = 0
    LL128 = 1
    SIMPLE = 2


@record
class Graph:
    """The channels found for one pattern, inside each host (`ncclTopoGraph`).

    Where hosts differ the figures are those that all can hold: least bandwidth and channels, farthest type.
    """

    algorithm: Algorithm
    pattern: Pattern
    channels: int
    bw_intra: float  # GB/s a channel
    bw_inter: float
    latency_inter: float  # us that the adapter adds, as its driver reports it
    type_intra: PathType
    type_inter: PathType
    same_channels: bool
    cross_nic: int
    intra: I32  # [nodes, channels, local ranks] global ranks in the channel's order; -1 fills smaller hosts up
    inter: I32  # [nodes, channels, 2] adapter (index into fabric.nic_node) it enters and leaves by; -1 on one host

    @property
    def figures(self) -> tuple[object, ...]:
        """All but which ranks and adapters are on its channels."""
        return (
            *(self.algorithm, self.pattern, self.channels, self.bw_intra, self.bw_inter, self.latency_inter),
            *(self.type_intra, self.type_inter, self.same_channels, self.cross_nic),
        )
