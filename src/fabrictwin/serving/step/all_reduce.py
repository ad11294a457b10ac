"""All-reduces of tensor parallelism as vLLM sends them, and how long each way takes.

Order of dispatch (`vllm/distributed/device_communicators/cuda_communicator.py`), for a group inside one node:
FlashInfer's all-reduce up to a size, from 0.29 on; the custom all-reduce for 2, 4, 6 or 8 GPUs of an NVLink switch
below a size; PyTorch's symmetric memory below another; else NCCL. Between nodes all go to NCCL, whose choice and
time there are the twin's. Sizes are those of `all_reduce_utils.py` and, for FlashInfer, `allreduce_rms_fusion.py`.
Left out: FlashInfer between nodes of one NVLink domain, its fusion with the norm, and NCCL's symmetric memory, off
by default.

GPUs that are joined without a switch (GB200 NVL4) have no multicast: `symm_mem.py` turns itself off, and with it
the sizes at which the custom kernel would leave off before its own 8 MiB.

Times are one formula a way: a base, a part for every rank or hop, and bytes over a rate. Constants were fitted to
NVIDIA's measurements in aiconfigurator's database (Apache-2.0): the custom kernel in CUDA graphs, nccl-tests
without host time. Some GB200 of that database are NVL4 (vLLM 0.19 and 0.24, SGLang 0.5.9): NCCL moves 200 GB/s
between two of them and 500 among four, as six links a pair do and a switch does not. What the kernel waits for is
shorter without a switch (a read from another GPU takes 1.7 us in a GB200 NVL72, by nvbandwidth); its base and
second stage there were fitted to SGLang's measurements, and a pair's links bound what it reads.
Symmetric memory is taken to be as fast as NCCL, which no measurement supports or denies. FlashInfer's one-shot
kernels are taken to be as fast as TensorRT-LLM's, which they come from; constants were fitted to measurements of
these (1.3.0rc10 and rc20) from 1 KiB to where one shot ends or 4 MiB, 2% and 3% off in the median, 15% at most.
Beyond, they are no slower than NCCL.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Literal, Protocol

from fabrictwin.base.records import record

MIB = 2**20
CUSTOM_MOST = 8 * MIB
CUSTOM_SIZES = (2, 4, 6, 8)

Way = Literal["none", "flashinfer", "custom", "symmetric memory", "nccl"]


@record
class _Limits:
    """Sizes by GPUs: the custom kernel strictly below the first, symmetric memory below the second."""

    custom: dict[int, int]
    symmetric: dict[int, int]


LIMITS = {
    90: _Limits(
        {2: 64 * MIB, 4: 32 * MIB, 6: MIB // 2, 8: MIB // 4}, {2: 64 * MIB, 4: 32 * MIB, 6: 64 * MIB, 8: 64 * MIB}
    ),
    100: _Limits({2: 2 * MIB, 4: 2 * MIB, 6: MIB, 8: MIB}, {2: 8 * MIB, 4: 32 * MIB, 6: 128 * MIB, 8: 128 * MIB}),
    103: _Limits(
        {2: 4 * MIB, 4: 4 * MIB, 6: 8 * MIB, 8: 4 * MIB}, {2: 4 * MIB, 4: 32 * MIB, 6: 32 * MIB, 8: 64 * MIB}
    ),
}

LATE_CAPABILITY = 103

FLASHINFER_MOST = {
    90: {2: 64 * MIB, 4: 2 * MIB, 8: MIB // 2},
    100: {2: 64 * MIB, 4: 32 * MIB, 8: 128 * MIB},
    103: {2: 64 * MIB, 4: 80 * MIB, 8: 128 * MIB},
}
"""The largest tensors that FlashInfer's all-reduce takes in a node, by GPUs."""


@record
class _Custom:
    """Constants of the custom kernel, microseconds and GB/s.

    `second` and `second_rank` are for its second stage, the latter for each rank; `peer_rate` is the most that it
    reads from one peer.
    """

    base: float
    second: float
    rank: float
    rate: float
    second_rank: float = 0.0
    peer_rate: float = inf

    def time_us(self, size: int, moved_bytes: int) -> float:
        """Return how long an all-reduce among `size` ranks takes, microseconds.

        In one stage every rank reads all of every other; in two each reduces a part and gathers the others'.
        """
        once = size == 2 or (size <= 4 and moved_bytes < MIB // 2) or moved_bytes < MIB // 4
        from_peer = moved_bytes if once else 2 * moved_bytes / size
        reading = max((size - 1) * from_peer / self.rate, from_peer / self.peer_rate) / 1e3
        stage = 0.0 if once else self.second + self.second_rank * size
        return self.base + stage + self.rank * size + reading


@record
class _OneShot:
    """Constants of a kernel in which each rank sends all it has to all others, microseconds and GB/s."""

    base: float
    rank: float
    rate: float

    def time_us(self, size: int, moved_bytes: int) -> float:
        """Return how long an all-reduce among `size` ranks takes, microseconds."""
        return self.base + self.rank * size + (size - 1) * moved_bytes / self.rate / 1e3


@record
class _Nccl:
    """Constants of NCCL's ring, microseconds and GB/s."""

    base: float
    hop: float
    rate: float


CUSTOM = {
    "nvlink3": _Custom(4.73, 6.41, 0.18, 209),
    "nvlink4": _Custom(4.25, 4.10, 0.06, 294),
    "nvlink5": _Custom(7.13, 0.0, 0.05, 396, second_rank=2.16, peer_rate=175),
}
UNSWITCHED = {"nvlink5": _Custom(5.3, 4.4, 0.05, 396)}
"""The same among GPUs that are joined without a switch, where that was measured."""
FLASHINFER = {"nvlink4": _OneShot(2.65, 0.098, 313), "nvlink5": _OneShot(4.66, 0.102, 675)}
NCCL = {
    "nvlink3": _Nccl(10.02, 0.95, 154),
    "nvlink4": _Nccl(5.52, 0.83, 269),
    "nvlink5": _Nccl(7.87, 1.37, 430),
    "pcie": _Nccl(3.03, 1.79, 27),
}


class Collectives(Protocol):
    """Times of NCCL's collectives among the ranks of a group."""

    def time_us(self, kind: Literal["all_reduce", "all_gather"], size_bytes: int) -> float:
        """Return how long one takes, microseconds."""


@record
class Switches:
    """Which all-reduces a release and its settings have.

    Attributes:
        flashinfer: FlashInfer's is taken where it can be.
        early: There are no sizes for capability 10.3: the custom kernel's own, and no symmetric memory.
        custom: The custom kernel is taken where it can be (without `disable_custom_all_reduce`).
    """

    flashinfer: bool = False
    early: bool = False
    custom: bool = True


@record
class TensorGroup:
    """A tensor-parallel group: its GPUs, how many of them share a node, and what links them.

    Attributes:
        size: Ranks.
        per_node: Ranks of the group in a node.
        nvlink: Name of the NVLink generation in the catalog, empty for PCIe alone.
        capability: CUDA compute capability × 10, such as 90.
        network: NCCL on the cluster's routes, for a group that lies on several nodes.
        switches: What the release and its settings have.
        pair_gbps: What links between two GPUs that no switch joins carry, GB/s; 0 where switches do.
    """

    size: int
    per_node: int
    nvlink: str
    capability: int
    network: Collectives | None = None
    switches: Switches = Switches()
    pair_gbps: float = 0.0

    @property
    def _links(self) -> str:
        return self.nvlink if self.nvlink in NCCL else "pcie"

    def way(self, moved_bytes: int) -> Way:
        """Return which all-reduce vLLM takes for a tensor."""
        if self.size == 1:
            return "none"
        if self.size != self.per_node or (not self.nvlink and self.size != 2):
            return "nccl"
        taken = FLASHINFER_MOST.get(self.capability, {}).get(self.size, -1)
        if self.switches.flashinfer and self._links in FLASHINFER and moved_bytes <= taken:
            return "flashinfer"
        limits = (
            None if self.switches.early and self.capability == LATE_CAPABILITY else LIMITS.get(self.capability)
        )
        most = CUSTOM_MOST
        multicast = limits is not None and bool(self.nvlink) and not self.pair_gbps
        if limits and multicast:
            most = min(most, limits.custom.get(self.size, 0))
        if self.switches.custom and self.size in CUSTOM_SIZES and moved_bytes % 16 == 0 and moved_bytes < most:
            return "custom"
        if limits and multicast and moved_bytes < limits.symmetric.get(self.size, 0):
            return "symmetric memory"
        return "nccl"

    def time_us(self, moved_bytes: int) -> float:
        """Return how long an all-reduce takes on the device, microseconds."""
        way = self.way(moved_bytes)
        if way == "none":
            return 0.0
        size = self.size
        if way == "custom" and self._links in CUSTOM:
            return self._custom.time_us(size, moved_bytes)
        if self.network is not None:
            time = self.network.time_us("all_reduce", moved_bytes)
        else:
            ring = NCCL[self._links]
            time = ring.base + 2 * (size - 1) * ring.hop + 2 * (size - 1) / size * moved_bytes / ring.rate / 1e3
        return min(time, FLASHINFER[self._links].time_us(size, moved_bytes)) if way == "flashinfer" else time

    @property
    def _custom(self) -> _Custom:
        if not self.pair_gbps:
            return CUSTOM[self._links]
        joined = UNSWITCHED.get(self._links, CUSTOM[self._links])
        return replace(joined, peer_rate=min(joined.peer_rate, self.pair_gbps))

    def gather_us(self, gathered_bytes: int) -> float:
        """Return how long an all-gather takes: NCCL's, half of its all-reduce's way in a node."""
        if self.size == 1:
            return 0.0
        if self.network is not None:
            return self.network.time_us("all_gather", gathered_bytes)
        ring = NCCL[self._links]
        return (
            ring.base + (self.size - 1) * ring.hop + (self.size - 1) / self.size * gathered_bytes / ring.rate / 1e3
        )
