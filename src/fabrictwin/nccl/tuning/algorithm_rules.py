"""Rules of NCCL's tuner before it compares times: algorithms and protocols allowed, threads, thresholds.

Source: src/graph/tuning.cc of the release that is asked for.
"""

from __future__ import annotations

from ctypes import c_float

from fabrictwin.base.records import record
from fabrictwin.nccl.settings.algorithm_selection import ALGORITHMS, COLLECTIVES, PROTOCOLS
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.topology.graph_types import Algorithm, Graph, PathType, Pattern, Protocol
from fabrictwin.nccl.tuning.tuning_constants import Constants

A = Algorithm
P = Protocol

Table = dict[tuple[str, Algorithm, Protocol], float]


@record
class HostHardware:
    """GPUs and processors of a communicator's hosts, as far as the cost model tells them apart."""

    capability: int  # lowest compute capability, such as 90
    highest_capability: int
    cpu: str  # intel, amd, arm, other or mixed
    nvswitch: bool = False  # every host has NVSwitches
    instance: str = ""  # a cloud's kind of host, where its network plugin serves it

    @property
    def x86(self) -> bool:
        return self.cpu != "arm"


@record
class CommunicatorShape:
    """A communicator as the cost model sees it."""

    ranks: int
    nodes: int
    local_ranks: int  # most on one host
    hardware: HostHardware
    graphs: dict[Algorithm, Graph]
    channels: int
    nvls_channels: int
    collnet_heads: int = 0  # adapters of a host that lead into switches which reduce; 0 where CollNet is off

    @property
    def figures(self) -> tuple[object, ...]:
        """All that the cost model reads: equal for communicators that it takes for one."""
        of_graphs = tuple(graph.figures for graph in self.graphs.values())
        counts = self.ranks, self.nodes, self.local_ranks, self.channels, self.nvls_channels, self.collnet_heads
        return (*counts, self.hardware, of_graphs)

    @property
    def collnet(self) -> bool:
        """Return true if switches reduce, NCCL_COLLNET_ENABLE is set and there are hosts enough."""
        return self.collnet_heads > 0

    @property
    def split_trees(self) -> bool:
        """Return true if no host needed the plain tree pattern."""
        tree = self.graphs.get(Algorithm.TREE)
        return tree is None or tree.pattern != Pattern.TREE


def single(value: float) -> float:
    """Round as a C `float` does."""
    return c_float(value).value


def enable(
    shape: CommunicatorShape, settings: Settings, known: Constants, bandwidth: Table, backup: Table
) -> None:
    """Take out what is switched off, by rule or by NCCL_ALGO and NCCL_PROTO."""
    rules = known.rules
    for collective in COLLECTIVES:
        lists_algorithms = _algorithms(collective, shape, settings, rules.collnet_ignored)
        for algorithm in Algorithm:
            for protocol in Protocol:
                cell = (collective, algorithm, protocol)
                wanted = _protocol(collective, algorithm, protocol, shape, settings, known)
                if not wanted:
                    bandwidth[cell] = 0.0
                    if algorithm == A.RING and rules.ring_fallback == "allowed_protocol":
                        backup[cell] = 0.0
                spared = algorithm == A.RING and collective != "AllReduce"
                if spared and rules.ring_fallback == "other_collectives":
                    continue
                if not lists_algorithms[algorithm]:
                    bandwidth[cell] = 0.0
        if rules.ring_fallback in ("any_protocol", "allowed_protocol") and not any(
            bandwidth[collective, algorithm, protocol] for algorithm in Algorithm for protocol in Protocol
        ):
            for protocol in Protocol:
                bandwidth[collective, A.RING, protocol] = backup[collective, A.RING, protocol]


def _algorithms(
    collective: str, shape: CommunicatorShape, settings: Settings, collnet_ignored: bool
) -> list[bool]:
    chosen = settings.algo
    allowed = [chosen is None or chosen.allows(collective, name) is not False for name in ALGORITHMS]
    if shape.nodes == 1:
        allowed[A.NVLS_TREE] = False
    if not shape.collnet:
        allowed[A.COLLNET_DIRECT] = allowed[A.COLLNET_CHAIN] = False
        if shape.nodes > 1:
            allowed[A.NVLS] = False
        if collnet_ignored and not any(allowed[a] for a in (A.RING, A.TREE, A.NVLS, A.NVLS_TREE)):
            allowed[A.RING] = allowed[A.TREE] = True
    if not shape.hardware.nvswitch:
        allowed[A.COLLNET_DIRECT] = False
    return allowed


def _protocol(
    collective: str,
    algorithm: Algorithm,
    protocol: Protocol,
    shape: CommunicatorShape,
    settings: Settings,
    known: Constants,
) -> bool:
    said = None if settings.proto is None else settings.proto.allows(collective, PROTOCOLS[protocol])
    if said is not None:
        return said
    if protocol != P.LL128:
        return True
    # LL128 unasked only where 128 bytes are known to arrive as one
    graph, rules, capability = shape.graphs.get(algorithm), known.rules, shape.hardware.capability
    if graph is None or graph.type_intra > PathType.NVB:
        return False
    farthest = PathType.PXB
    if capability >= 90 and (settings.ll128_c2c or not rules.ll128_c2c):
        farthest = PathType.PXN
    if graph.type_inter > farthest:
        return False
    if capability != shape.hardware.highest_capability and capability < rules.ll128_mixed_from:
        return False
    return capability in rules.ll128_capabilities if rules.ll128_capabilities else capability >= 70


def thread_counts(
    shape: CommunicatorShape, settings: Settings, known: Constants
) -> dict[tuple[Algorithm, Protocol], int]:
    most = known.max_threads
    ring = shape.graphs[A.RING]
    slow = single(single(ring.bw_intra) * ring.channels) <= known.slow_ring_below
    result: dict[tuple[Algorithm, Protocol], int] = {}
    for algorithm in Algorithm:
        for protocol in Protocol:
            threads = 0
            if algorithm in (A.RING, A.TREE):
                name = PROTOCOLS[protocol]
                default = (
                    most["slow_ring"] if slow and algorithm == A.RING and protocol == P.SIMPLE else most[name]
                )
                if protocol == P.LL128:
                    threads = _threads_wanted(settings.ll128_nthreads, most[name] // 4, most[name], default)
                else:
                    threads = _threads_wanted(settings.nthreads, 2 * 32, most[name], default)
            elif algorithm != A.PAT and protocol == P.SIMPLE:
                threads = most["others"]
            result[algorithm, protocol] = threads
    return result


def _threads_wanted(wanted: int | None, least: int, most: int, default: int) -> int:
    if wanted is None or wanted <= 0:
        return default
    return most if wanted % 32 else min(max(wanted, least), most)


def thread_thresholds(
    shape: CommunicatorShape, settings: Settings, known: Constants
) -> dict[tuple[Algorithm, Protocol], int]:
    table = known.thread_threshold
    result = {(a, p): table[PROTOCOLS[p]] for a in Algorithm for p in Protocol}
    result[A.RING, P.LL] *= shape.ranks
    result[A.COLLNET_DIRECT, P.SIMPLE] = result[A.COLLNET_CHAIN, P.SIMPLE] = table["collnet"]
    cells = [(a, p) for a in (A.TREE, A.RING) for p in Protocol]
    for cell, wanted in zip(cells, settings.thread_thresholds, strict=False):
        if wanted >= 0:
            result[cell] = wanted
    return result
