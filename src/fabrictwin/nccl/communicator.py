"""What NCCL knows of a communicator once it is initialised: its graphs, channels and how ranks connect.

The border between parts of this room: detection and search (`system`, `search`, `connect`) make it, the tuner
reads it, lowering follows it, the log prints it. Rates are GB/s (1e9 bytes) as NCCL prints them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]


class PathType(IntEnum):
    """How far two devices are apart, nearest first, in NCCL's order."""

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9
    NET = 10
    DIS = 11


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


@dataclass(frozen=True)
class Graph:
    """What the search found for one pattern, inside each host (`ncclTopoGraph`)."""

    algorithm: Algorithm
    channels: int
    bw_intra: float  # GB/s a channel
    bw_inter: float
    type_intra: PathType
    type_inter: PathType
    same_channels: bool
    cross_nic: int
    intra: I32  # [nodes, channels, local ranks] global ranks in the channel's order in each host
    inter: I32  # [nodes, channels, 2] adapter (index into fabric.nic_node) it enters and leaves by; -1 on one host


@dataclass(frozen=True)
class Rings:
    """[channels, ranks] ranks in ring order; each sends to the next."""

    order: I32


@dataclass(frozen=True)
class Trees:
    """One tree a channel: [channels, ranks] the parent, and [channels, ranks, 3] the children; -1 is none."""

    up: I32
    down: I32


@dataclass(frozen=True)
class Communicator:
    """Ranks that communicate, as NCCL sees them after `ncclCommInitRank`."""

    twin: Any  # twin.Twin, whose fabric and routes it runs on
    version: str  # of NCCL, such as "2.21.5"
    settings: Any  # nccl.settings.Settings
    rank_node: I32  # [ranks] fabric node of each rank's GPU
    node_of_rank: I32  # [ranks] which of the communicator's hosts
    local_rank: I32  # [ranks]
    nodes: int  # hosts (or NVLink domains that span hosts)
    compute_capability: int  # lowest, such as 90
    cpu: str  # "intel", "amd", "arm", of the first host
    graphs: dict[Algorithm, Graph]  # those that can run; others are absent
    rings: Rings
    trees: Trees
    channels: int  # collective channels
    nvls_channels: int
    p2p_channels: int
    p2p_channels_per_peer: int

    @property
    def ranks(self) -> int:
        return len(self.rank_node)

    @property
    def ranks_per_node(self) -> int:
        return int(np.bincount(self.node_of_rank).max())
