"""NCCL's cost model: the latency and bandwidth of every algorithm and protocol, and the time that they give.

`time = latency + bytes / bandwidth` for 5 collectives × 7 algorithms × 3 protocols (src/graph/tuning.cc of the
release that is asked for). The model serves to choose, not to predict: its latencies are those of NVIDIA's own
machines. Arithmetic is in single precision where NCCL keeps a `float`, so that near ties fall alike. Left out:
POWER's exception for trees over PCIe, a CUDA 11.8 exception of two ranks, tuner plugins.
"""

from __future__ import annotations

from fabrictwin.base.records import record
from fabrictwin.nccl.constants import CORRECTIONS, LEAST_CORRECTED_BYTES
from fabrictwin.nccl.settings.algorithm_selection import COLLECTIVES, PROTOCOLS
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.topology.graph_types import Algorithm, Graph, PathType, Protocol
from fabrictwin.nccl.tuning.algorithm_rules import (
    CommunicatorShape,
    Table,
    enable,
    single,
    thread_counts,
    thread_thresholds,
)
from fabrictwin.nccl.tuning.tuning_constants import Constants, constants

A = Algorithm
P = Protocol
KEYS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")  # in the data
GATHERS = ("AllGather", "ReduceScatter")


@record
class Tables:
    """µs and GB/s of each algorithm and protocol of a collective; a bandwidth of 0 is one that cannot be."""

    shape: CommunicatorShape
    constants: Constants
    latency: Table
    bandwidth: Table
    backup: Table  # what ring would have had
    max_threads: dict[tuple[Algorithm, Protocol], int]
    thread_threshold: dict[tuple[Algorithm, Protocol], int]

    def time_us(self, collective: str, algorithm: Algorithm, protocol: Protocol, nbytes: int) -> float | None:
        """Time of one operation in µs; None where it cannot be."""
        return self._time(collective, algorithm, protocol, nbytes, self.bandwidth[collective, algorithm, protocol])

    def backup_time_us(self, collective: str, protocol: Protocol, nbytes: int) -> float | None:
        """Ring's time though NCCL_ALGO excludes it."""
        return self._time(collective, A.RING, protocol, nbytes, self.backup[collective, A.RING, protocol])

    def _time(
        self, collective: str, algorithm: Algorithm, protocol: Protocol, nbytes: int, bandwidth: float
    ) -> float | None:
        if bandwidth == 0:
            return None
        rules, shape = self.constants.rules, self.shape
        latency = self.latency[collective, algorithm, protocol]
        step = (nbytes // LEAST_CORRECTED_BYTES).bit_length() - 1
        if step < 0 and rules.below_64_bytes == "first":
            step = 0
        correction = self.constants.tree_correction[PROTOCOLS[protocol]]
        if collective == "AllReduce" and step >= 0:
            blackwell = rules.nvls_tree_correction and shape.hardware.capability >= 100 and shape.hardware.x86
            known = CORRECTIONS if algorithm == A.TREE else len(correction)
            if (algorithm == A.TREE or (algorithm == A.NVLS_TREE and blackwell)) and step < known:
                bandwidth = single(bandwidth * single(correction[step]))
        if (
            collective == "AllReduce"
            and algorithm == A.RING
            and protocol == P.SIMPLE
            and shape.nodes > 1
            and nbytes // (shape.channels * shape.ranks) >= 64
        ):
            plateau = self.constants.ring_plateau["before_ampere" if shape.hardware.capability < 80 else "later"]
            latency = single(latency * plateau)
        return single(latency + single(single(nbytes) / single(1000 * bandwidth)))


def tables(shape: CommunicatorShape, settings: Settings) -> Tables:
    """Evaluate the model for a communicator, with NCCL_ALGO, NCCL_PROTO and the like applied."""
    known = constants(settings.release)
    latency: Table = {}
    bandwidth: Table = {}
    for collective in COLLECTIVES:
        for algorithm in Algorithm:
            for protocol in Protocol:
                cell = (collective, algorithm, protocol)
                model = _Model(shape, settings, known, *cell)
                possible = shape.ranks > 1 and model.possible()
                bandwidth[cell] = model.bandwidth() if possible else 0.0
                latency[cell] = model.latency() if possible else 0.0
    backup = {cell: value for cell, value in bandwidth.items() if cell[1] == A.RING}
    enable(shape, settings, known, bandwidth, backup)
    return Tables(
        shape,
        known,
        latency,
        bandwidth,
        backup,
        thread_counts(shape, settings, known),
        thread_thresholds(shape, settings, known),
    )


def generation(capability: int) -> str:
    """The row of GPU generations that a compute capability falls into."""
    for least, name in ((100, "blackwell"), (90, "hopper"), (80, "ampere")):
        if capability >= least:
            return name
    return "volta"


@record
class _Model:
    """One cell of the tables."""

    shape: CommunicatorShape
    settings: Settings
    known: Constants
    collective: str
    algorithm: Algorithm
    protocol: Protocol

    @property
    def steps(self) -> int:
        n = self.shape.ranks
        return {"AllReduce": 2 * (n - 1), "AllGather": n - 1, "ReduceScatter": n - 1}.get(self.collective, n)

    def possible(self) -> bool:
        if KEYS[self.algorithm] not in self.known.algorithms[self.collective]:
            return False
        if self.algorithm not in self.shape.graphs or self.graph.channels == 0:
            return False
        simple = self.protocol == P.SIMPLE
        if self.algorithm in (A.NVLS, A.NVLS_TREE):
            return simple and self.graph.channels >= self.known.rules.nvls_least_channels
        if self.algorithm == A.PAT:
            wanted = self.settings.pat_enable
            return simple and bool(wanted if wanted != 2 else self.shape.nodes == self.shape.ranks)
        return simple or self.algorithm not in (A.COLLNET_DIRECT, A.COLLNET_CHAIN)

    @property
    def graph(self) -> Graph:
        return self.shape.graphs[self.algorithm]

    def bandwidth(self) -> float:
        """`busBw` as algorithm bandwidth, GB/s."""
        shape, graph, rules = self.shape, self.graph, self.known.rules
        nodes, n, channels = shape.nodes, shape.ranks, graph.channels
        column = min(nodes, 3) - 1
        row = generation(shape.hardware.capability)
        amd = shape.hardware.cpu == "amd" or (shape.hardware.cpu == "mixed" and rules.mixed_cpu_counts_as_amd)
        ll_max = self.known.ll_max[row if nodes == 1 else "ampere" if amd else "volta"][column]
        collnet = self.algorithm in (A.COLLNET_DIRECT, A.COLLNET_CHAIN)
        channel = single(graph.bw_intra if nodes <= 2 or collnet else graph.bw_inter)
        if self.algorithm in (A.NVLS, A.NVLS_TREE):
            channel = self._nvls_channel(channel, row, column)
        bus = single(channels * channel)
        alone = n / nodes < 2
        if self.algorithm == A.RING and self.protocol == P.LL:
            share = 0.5
            if rules.ring_ll == "by_collective":
                quarter = nodes > 1 or self.collective in ("AllReduce", "Reduce")
                share = 1 / 4 if quarter else 1 / 3
            bus = single(min(ll_max, bus * share))
        if self.algorithm == A.RING and self.protocol == P.LL128:
            share = rules.ring_ll128_alone if alone else 0.92
            bus = single(min(bus * share, channels * self.known.channel_ring_ll128[row][column]))
        if self.algorithm == A.TREE:
            bus = single(min(bus * 0.92, channels * self.known.channel_tree[row][column]))
            if self.protocol == P.LL:
                bus = single(min(bus / 3.8, ll_max))
            if self.protocol == P.LL128:
                share = 7 / 9 if nodes == 1 else 120 / 128
                bus = single(min(bus * share, channels * self.known.channel_tree_ll128[row][column]))
            if not shape.split_trees:
                bus = single(bus * 0.85)
        if self.algorithm == A.PAT:
            bus = single(bus * rules.pat_share)
        if self.algorithm == A.COLLNET_DIRECT:
            bus = self._collnet_direct(bus, channel)
        if self.collective in GATHERS and nodes > 1 and self._needs_an_adapter_each():
            bus = bus if shape.collnet and shape.local_ranks <= shape.collnet_heads else 0.0
        return single(bus * self._ratio())

    def _needs_an_adapter_each(self) -> bool:
        of_both = self.known.rules.collnet_gather == "nine_tenths"
        return self.algorithm == A.COLLNET_DIRECT or (of_both and self.algorithm == A.NVLS)

    def _nvls_channel(self, generic: float, row: str, column: int) -> float:
        shape, graph, rules = self.shape, self.graph, self.known.rules
        tree = self.algorithm == A.NVLS_TREE
        ppn = single(shape.ranks / shape.nodes)
        if rules.nvls_bandwidth == "generic":
            return generic
        if rules.nvls_bandwidth == "efficiency":
            channels = graph.channels
            intra = single(graph.bw_intra * single(self.known.nvls_efficiency[row]) * (channels - 1) / channels)
            # an all-reduce has both directions at work
            intra = single(intra * 2 if self.collective == "AllReduce" else intra * (ppn - 1) / ppn)
            inter = single(graph.bw_inter * (2 if tree and shape.nodes <= 2 else 1))
            limit = single(self.known.channel_nvls_tree[row][column]) if tree else float("inf")
            return min(intra, inter, limit)
        if tree:
            return single(min(graph.bw_intra, graph.bw_inter if shape.nodes <= 2 else graph.bw_inter / 2))
        if rules.nvls_bandwidth == "by_collective" and self.collective in GATHERS:
            return single(min(single(graph.bw_intra * (ppn - 1) / ppn), single(graph.bw_inter * single(0.9))))
        return single(min(graph.bw_intra, graph.bw_inter))

    def _collnet_direct(self, bus: float, channel: float) -> float:
        shape, graph = self.shape, self.graph
        ppn = single(shape.ranks / shape.nodes)
        if self.collective in GATHERS:
            if self.known.rules.collnet_gather == "nine_tenths":
                return single(ppn * min(graph.bw_intra, single(graph.bw_inter * single(0.9))))
            weight = single((ppn - 1) / 7)
            return single(single(ppn * channel) * (weight * 0.85 + (1 - weight) * 0.95))
        factor = single(ppn / graph.channels)  # GPUs for each adapter
        factor = single(factor - (factor - 1) / 2)
        bus = single(bus / factor)
        return single(bus * 0.85) if shape.hardware.capability >= 90 else bus

    def _ratio(self) -> float:
        """Bus bandwidth to algorithm bandwidth."""
        rules, nodes = self.known.rules, self.shape.nodes
        if self.collective in GATHERS and self.algorithm != A.RING:
            if rules.gather_ratio == "ring_only":
                return 1.0
            if rules.gather_ratio == "not_collnet_direct" and self.algorithm == A.COLLNET_DIRECT:
                return 1.0
        ring = self.shape.ranks / self.steps
        if self.algorithm == A.RING:
            return single(ring)
        if self.algorithm in (A.NVLS, A.NVLS_TREE):
            if rules.nvls_ratio == "ring":
                return single(ring)
            if rules.nvls_ratio == "measured" and self.algorithm == A.NVLS_TREE and nodes > 1:
                return single(0.70 * nodes / (2 * (nodes - 1)))
            return single(5 / 6)
        return 0.5

    def latency(self) -> float:
        """µs before the first byte counts."""
        shape, graph, rules = self.shape, self.graph, self.known.rules
        nodes, n, p = shape.nodes, shape.ranks, self.protocol
        key, hop = KEYS[self.algorithm], self.known.hop_latency
        inside = hop["nvlink" if graph.type_intra == PathType.NVL else "pci"]
        base = single(self.known.base_latency[key][p])
        intra = single(inside[key][p])
        alone = n == nodes and rules.inter_latency_alone == "tree"
        inter = single(hop["net"]["tree" if alone else key][p])
        # once more for Simple, which flushes what the adapter wrote
        inter = single(inter + graph.latency_inter * (2 if p == P.SIMPLE else 1))
        local = n // nodes - 1
        log = nodes.bit_length() - 1
        if self.algorithm == A.RING:
            return single(base + self._ring_hops(intra, inter, inside if nodes == 1 else hop["net"]))
        if self.algorithm == A.TREE:
            return single(base + 2 * (local * intra + log * inter))
        if self.algorithm == A.COLLNET_DIRECT:
            return single(base + 2 * (min(1, local) * intra + local * rules.collnet_arity) + inter)
        if self.algorithm == A.COLLNET_CHAIN:
            return single(base + 2 * local * intra + inter)
        if self.algorithm == A.PAT:
            return single(base + log * (inter / 3.5) + n * 2.8)
        if rules.nvls_latency == "steps":
            own = single(hop["net"][key][p])
            if self.algorithm == A.NVLS:
                return single(base + (own if nodes > 1 else 0))
            return single(base + 2 * (nodes - 1) * own)
        if self.algorithm == A.NVLS:
            return single(intra + (inter if nodes > 1 else 0))
        return single(base + intra + 2 * log * inter)

    def _ring_hops(self, intra: float, inter: float, place: dict[str, tuple[float, float, float]]) -> float:
        shape, p = self.shape, self.protocol
        if self.collective in ("Broadcast", "Reduce"):
            if self.graph.same_channels:
                return place["ring"][p]
            return self.steps * place["tree" if p == P.SIMPLE else "ring"][p]
        across = 0
        if shape.nodes > 1:
            overhead = self._net_overhead() * (self.known.net_overhead_simple if p == P.SIMPLE else 1)
            intra = single(max(intra, overhead))
            across = shape.nodes - 1
            if self.collective == "AllReduce":
                across = 2 * across if self.known.rules.inter_steps == "pairs" else 2 * shape.nodes
        return (self.steps - across) * intra + across * inter

    def _net_overhead(self) -> float:
        if self.settings.net_overhead is not None:
            return self.settings.net_overhead * 0.001
        table, hardware = self.known.net_overhead, self.shape.hardware
        return table[hardware.cpu] if hardware.x86 and hardware.cpu in table else table["other"]
