"""Channels, threads and thresholds that NCCL's tuner ends with, and what it allows: tables worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.nccl.settings.settings import Settings, read_settings
from fabrictwin.nccl.topology.graph_types import Algorithm, Graph, PathType, Pattern, Protocol
from fabrictwin.nccl.tuning.algorithm_rules import CommunicatorShape, HostHardware
from fabrictwin.nccl.tuning.cost_model import generation, tables
from fabrictwin.nccl.tuning.tuner import Call, Choice, Tuner

A, P = Algorithm, Protocol
EMPTY = np.zeros(0, np.int32)
KIB, MIB = 1 << 10, 1 << 20


def graph(algorithm: Algorithm, channels: int = 8, **others: object) -> Graph:
    given = {
        "pattern": Pattern.RING, "bw_intra": 40.0, "bw_inter": 48.0, "latency_inter": 0.0,
        "type_intra": PathType.NVL, "type_inter": PathType.PXB, "same_channels": True, "cross_nic": 0,
        "intra": EMPTY, "inter": EMPTY, **others,
    }  # fmt: skip
    return Graph(algorithm=algorithm, channels=channels, **given)  # type: ignore[arg-type]


def hosts(
    nodes: int, local: int = 8, *, capability: tuple[int, int] = (90, 90), nvswitch: bool = True, **others: int
) -> CommunicatorShape:
    """Hosts of GPUs on NVSwitches with every algorithm at hand."""
    graphs = {algorithm: graph(algorithm) for algorithm in Algorithm}
    given = {"channels": 16, "nvls_channels": 20, "collnet_heads": 8} | others
    hardware = HostHardware(*capability, cpu="intel", nvswitch=nvswitch)
    return CommunicatorShape(nodes * local, nodes, local, hardware, graphs, **given)


def chosen(shape: CommunicatorShape, call: Call | int, release: str = "2.28.9", **variables: str) -> Choice:
    call = Call("AllReduce", call) if isinstance(call, int) else call
    return Tuner(shape, read_settings(variables, release=release)).choose(call)


THRESHOLD = {P.LL: 8, P.LL128: 8, P.SIMPLE: 64}  # bytes a thread
MOST = {P.LL: 512, P.LL128: 640, P.SIMPLE: 512}
NAMES = {P.LL: "LL", P.LL128: "LL128", P.SIMPLE: "Simple"}


@pytest.mark.parametrize("release", ["2.21.5", "2.28.9"])
@pytest.mark.parametrize("algorithm", [A.RING, A.TREE])
@pytest.mark.parametrize("protocol", list(P))
def test_channels_fall_until_each_thread_has_its_bytes_then_threads_halve(release, algorithm, protocol):
    shape = hosts(2)
    threads = MOST[protocol]
    each = THRESHOLD[protocol] * (shape.ranks if (algorithm, protocol) == (A.RING, P.LL) else 1)
    for nbytes in sorted(
        {channels * threads * each + d for channels in (1, 2, 5, 16) for d in (-1, 0)} | {1, 9000, 1 << 28}
    ):
        channels = max([c for c in range(1, 17) if nbytes >= c * threads * each], default=1)
        left = threads
        while channels == 1 and nbytes < left * each and left % 128 == 0:
            left //= 2
        if protocol == P.SIMPLE:
            left += 32 if algorithm == A.RING else 128
        full = algorithm == A.TREE and release != "2.21.5"
        name = {"NCCL_ALGO": algorithm.name, "NCCL_PROTO": NAMES[protocol]}
        found = chosen(shape, nbytes, release, **name)
        assert (found.algorithm, found.protocol) == (algorithm, protocol)
        assert found.max_channels == channels
        assert found.threads == (640 if full else max(left, 96)), nbytes


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
@pytest.mark.parametrize("most", [1, 3, 16, 32])
def test_collnet_direct_keeps_the_most_channels_that_a_falling_threshold_allows(heads, most):
    """512 bytes a thread of 640 and head; half of that below 24, 12, 6 and 3 channels, as they are passed."""
    shape = hosts(4, collnet_heads=heads, channels=most)
    tuner = Tuner(shape, read_settings({"NCCL_ALGO": "CollnetDirect"}, release="2.21.5"))

    def wanted(channels: int) -> int:
        halved = sum(channels < mark <= most for mark in (24, 12, 6, 3))
        return channels * 640 * heads * (512 >> halved)

    for at in range(1, most + 1):
        for nbytes in (wanted(at) - 1, wanted(at)):
            expected = max([c for c in range(1, most + 1) if nbytes >= wanted(c)], default=1)
            found = tuner.choose(Call("AllReduce", nbytes))
            assert (found.algorithm, found.max_channels, found.channels) == (A.COLLNET_DIRECT, expected, expected)
            assert found.threads == 640


@pytest.mark.parametrize(
    ("algorithm", "nodes", "release", "most"),
    [
        ("NVLS", 1, "2.27.7", 20), ("NVLS", 1, "2.28.9", 20), ("NVLS", 2, "2.27.7", 20), ("NVLS", 2, "2.28.9", 16),
        ("NVLSTree", 2, "2.27.7", 20), ("NVLSTree", 2, "2.28.9", 20),
    ],
)  # fmt: skip
def test_nvlink_sharp_takes_its_own_channels_and_over_hosts_no_more_than_all(algorithm, nodes, release, most):
    found = chosen(hosts(nodes), 1 << 30, release, NCCL_ALGO=algorithm)
    assert (found.algorithm.name.replace("_", ""), found.max_channels) == (algorithm.upper(), most)
    assert (found.channels, found.threads) == (most, 640)
    few = chosen(hosts(nodes, nvls_channels=5), 1 << 30, release, NCCL_ALGO=algorithm)
    assert few.max_channels == few.channels == 5


@pytest.mark.parametrize(("release", "threads"), [("2.23.4", 640), ("2.28.9", 640)])
def test_pat_runs_all_threads_on_all_channels(release, threads):
    shape = hosts(16, 1, nvls_channels=0, collnet_heads=0)
    found = chosen(shape, Call("AllGather", 1 << 26), release, NCCL_ALGO="PAT")
    assert (found.algorithm, found.max_channels, found.threads) == (A.PAT, 16, threads)


def dealt(nbytes: int, most: int, limit: int, least: int, a_byte: int) -> int:
    """Channels by dealing cells of a least traffic, one channel after the other."""
    cell = 16 * math.ceil(math.ceil(least / a_byte) / 16)  # bytes
    share = 16 * math.ceil(max(least, nbytes * a_byte) // most / 16)  # traffic of a channel
    cells, used = math.ceil(nbytes / cell), 0
    each = max(math.ceil(share / (cell * a_byte)), 1)
    while cells > 0:
        cells, used = cells - each, used + 1
    return max(1, min(limit, used))


@pytest.mark.parametrize(
    ("release", "least"), [("2.21.5", 0), ("2.22.3", 512), ("2.23.4", 16384), ("2.29.7", 32768)]
)
@pytest.mark.parametrize("collective", ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"])
@pytest.mark.parametrize("protocol", ["LL", "Simple"])
def test_channels_get_cells_of_a_least_traffic(release, least, collective, protocol):
    shape = hosts(2, nvls_channels=0, collnet_heads=0)
    settings = read_settings(
        {"NCCL_ALGO": "Ring", "NCCL_PROTO": protocol, "NCCL_THREAD_THRESHOLDS": "0 0 0 0 0 0"}, release=release
    )
    tuner = Tuner(shape, settings)
    gather = collective in ("AllGather", "ReduceScatter")
    a_byte = {"AllReduce": 2, "AllGather": 16, "ReduceScatter": 16}.get(collective, 1) * (
        4 if protocol == "LL" else 1
    )
    for nbytes in (16, 500, 4096, 16400, 40_000, 150_000, 300_016, 1 << 20, 5 << 20):
        found = tuner.choose(Call(collective, nbytes))
        assert found.max_channels == 16
        own = nbytes // 16 if gather else nbytes
        assert found.channels == (dealt(own, 16, 16, least, a_byte) if least else 16), nbytes


def test_channels_that_get_cells_are_known_by_hand():
    """In 2.29 a channel carries 32 KiB; an all-reduce moves each byte twice. CollNet deals nothing out."""
    shape = hosts(2, nvls_channels=0)
    ring = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_THREAD_THRESHOLDS": "0 0 0 0 0 0"}
    counts = [chosen(shape, n * 16 * KIB, "2.29.7", **ring).channels for n in (1, 2, 3, 8, 15, 16, 17, 64)]
    assert counts == [1, 2, 3, 8, 15, 16, 9, 16]
    assert chosen(shape, 3000, "2.29.7", NCCL_ALGO="CollnetChain", NCCL_THREAD_THRESHOLDS="0").max_channels == 1
    one = chosen(hosts(1, 8, nvls_channels=20), 40 * KIB, "2.29.7", NCCL_ALGO="NVLS")
    assert (one.max_channels, one.channels) == (20, 3)
    many = chosen(hosts(2, 8, nvls_channels=20), 40 * KIB, "2.29.7", NCCL_ALGO="NVLS")
    assert (many.max_channels, many.channels) == (16, 16)
    tree = chosen(hosts(2, 8, nvls_channels=20), 40 * KIB, "2.29.7", NCCL_ALGO="NVLSTree")
    assert (tree.max_channels, tree.channels) == (20, 3)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (512, 640, 512)),
        ({"NCCL_NTHREADS": "64"}, (64, 640, 64)), ({"NCCL_NTHREADS": "32"}, (64, 640, 64)),
        ({"NCCL_NTHREADS": "100"}, (512, 640, 512)), ({"NCCL_NTHREADS": "0"}, (512, 640, 512)),
        ({"NCCL_NTHREADS": "1024"}, (512, 640, 512)), ({"NCCL_NTHREADS": "96"}, (96, 640, 96)),
        ({"NCCL_LL128_NTHREADS": "32"}, (512, 160, 512)), ({"NCCL_LL128_NTHREADS": "320"}, (512, 320, 512)),
        ({"NCCL_LL128_NTHREADS": "170"}, (512, 640, 512)), ({"NCCL_LL128_NTHREADS": "960"}, (512, 640, 512)),
    ],
)  # fmt: skip
def test_threads_are_whole_warps_between_ends(variables, expected):
    found = tables(hosts(2), read_settings(variables)).max_threads
    for algorithm in (A.RING, A.TREE):
        assert tuple(found[algorithm, protocol] for protocol in P) == expected
    for algorithm in (A.COLLNET_DIRECT, A.COLLNET_CHAIN, A.NVLS, A.NVLS_TREE):
        assert [found[algorithm, protocol] for protocol in P] == [0, 0, 640]
    assert [found[A.PAT, protocol] for protocol in P] == [0, 0, 0]


@pytest.mark.parametrize(
    ("bandwidth", "channels", "threads"), [(6.0, 2, 256), (6.1, 2, 512), (12.0, 1, 256), (3.0, 8, 512)]
)
def test_a_slow_ring_of_pcie_runs_half_the_threads(bandwidth, channels, threads):
    """All rings together at 12 GB/s or less: PCIe Gen3 x16."""
    shape = hosts(2)
    shape.graphs[A.RING] = graph(A.RING, channels, bw_intra=bandwidth)
    found = tables(shape, Settings()).max_threads
    assert (found[A.RING, P.SIMPLE], found[A.RING, P.LL], found[A.TREE, P.SIMPLE]) == (threads, 512, 512)
    asked = tables(shape, read_settings({"NCCL_NTHREADS": "128"})).max_threads
    assert asked[A.RING, P.SIMPLE] == 128


def test_thresholds_are_those_of_trees_then_of_rings():
    plain = tables(hosts(2), Settings()).thread_threshold
    assert [[plain[a, p] for p in P] for a in Algorithm] == [
        [8, 8, 64], [8 * 16, 8, 64], [8, 8, 512], [8, 8, 512], [8, 8, 64], [8, 8, 64], [8, 8, 64]
    ]  # fmt: skip
    asked = tables(hosts(2), read_settings({"NCCL_THREAD_THRESHOLDS": "1 2 3 0 -2 6"})).thread_threshold
    assert [[asked[a, p] for p in P] for a in (A.TREE, A.RING)] == [[1, 2, 3], [0, 8, 6]]
    assert asked[A.COLLNET_DIRECT, P.SIMPLE] == 512


NEAR, FAR = [PathType.NVL, PathType.NVB], [PathType.PIX, PathType.PXB]


@pytest.mark.parametrize("release", ["2.21.5", "2.28.9"])
@pytest.mark.parametrize("capability", [80, 90])
def test_ll128_unasked_is_for_short_paths_alone(release, capability):
    """NVLink inside, over one GPU at most; outside PCIe switches, from Hopper on also another GPU's adapter."""
    shape = hosts(2, capability=(capability, capability))

    def on(settings: Settings, intra: PathType, inter: PathType) -> bool:
        shape.graphs[A.RING] = graph(A.RING, type_intra=intra, type_inter=inter)
        return tables(shape, settings).bandwidth["AllReduce", A.RING, P.LL128] > 0

    plain = read_settings({}, release=release)
    for kind in PathType:
        assert on(plain, kind, PathType.PXB) == (kind <= PathType.NVB)
        furthest = PathType.PXN if capability >= 90 else PathType.PXB
        assert on(plain, PathType.NVL, kind) == (kind <= furthest)
        assert on(read_settings({"NCCL_PROTO": "LL128"}, release=release), kind, kind)
        assert not on(read_settings({"NCCL_PROTO": "^LL128"}, release=release), PathType.NVL, PathType.PIX)
        no_c2c = read_settings({"NCCL_LL128_C2C": "0"}, release=release)
        furthest = PathType.PXB if release == "2.28.9" else furthest
        assert on(no_c2c, PathType.NVL, kind) == (kind <= furthest)


@pytest.mark.parametrize("release", ["2.21.5", "2.24.3", "2.25.1", "2.26.6", "2.27.7", "2.29.7", "2.30.7"])
def test_ll128_by_compute_capability(release):
    known = {"2.21.5": {70, 80, 90}, "2.24.3": {70, 80, 90}}.get(release, {70, 80, 90, 100, 120})
    for low, high in (
        (60, 60),
        (70, 70),
        (75, 75),
        (80, 80),
        (86, 86),
        (90, 90),
        (100, 100),
        (120, 120),
        (80, 90),
        (90, 100),
    ):
        shape = hosts(2, capability=(low, high))
        one = low in known if release < "2.27" else low >= 70
        mixed = low == high or (release == "2.30.7" and low >= 90)
        found = tables(shape, read_settings({}, release=release)).bandwidth["AllReduce", A.TREE, P.LL128]
        assert (found > 0) == (one and mixed), (low, high)


@pytest.mark.parametrize(
    ("capability", "name"),
    [(60, "volta"), (79, "volta"), (80, "ampere"), (89, "ampere"), (90, "hopper"), (99, "hopper"),
     (100, "blackwell"), (120, "blackwell")],
)  # fmt: skip
def test_generations_begin_at_their_capability(capability, name):
    assert generation(capability) == name


def ways(shape: CommunicatorShape, call: Call, release: str = "2.28.9", **variables: str) -> set[Algorithm]:
    return {a for a, _ in Tuner(shape, read_settings(variables, release=release)).costs(call)}


ALL = {A.TREE, A.RING, A.COLLNET_DIRECT, A.COLLNET_CHAIN, A.NVLS, A.NVLS_TREE}


@pytest.mark.parametrize(
    ("shape", "missing"),
    [
        (hosts(2), set()), (hosts(1), {A.NVLS_TREE}),
        (hosts(2, collnet_heads=0), {A.COLLNET_DIRECT, A.COLLNET_CHAIN, A.NVLS}),
        (hosts(1, collnet_heads=0), {A.COLLNET_DIRECT, A.COLLNET_CHAIN, A.NVLS_TREE}),
        (hosts(2, nvswitch=False), {A.COLLNET_DIRECT}), (hosts(2, nvls_channels=0), {A.NVLS, A.NVLS_TREE}),
        (hosts(2, 9), {A.COLLNET_DIRECT, A.COLLNET_CHAIN}),
    ],
)  # fmt: skip
def test_what_a_communicator_can_do_at_all(shape, missing):
    assert ways(shape, Call("AllReduce", MIB)) == ALL - missing


def test_a_graph_without_channels_or_with_too_few_for_nvlink_sharp_is_none():
    shape = hosts(2)
    shape.graphs[A.TREE] = graph(A.TREE, 0)
    shape.graphs[A.NVLS_TREE] = graph(A.NVLS_TREE, 1)
    shape.graphs[A.NVLS] = graph(A.NVLS, 2)
    del shape.graphs[A.COLLNET_CHAIN]
    assert ways(shape, Call("AllReduce", MIB)) == {A.RING, A.COLLNET_DIRECT, A.NVLS}
    assert A.NVLS_TREE in ways(shape, Call("AllReduce", MIB), "2.27.7")


WHOLE = ("int32", "uint32", "int64", "uint64", "half", "bfloat16")


@pytest.mark.parametrize("datatype", [*WHOLE, "float", "double", "int8", "uint8", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("operation", ["sum", "prod", "max", "min", "avg", "mulsum"])
def test_switches_reduce_some_types_by_some_operations(datatype, operation):
    """NVLink SHARP: sums, least and greatest of whole numbers and halves, sums of floats; SHARP: no products."""
    nvls = (
        operation in ("sum", "min", "max")
        if datatype in WHOLE
        else operation == "sum" and datatype in ("float", "double")
    )
    found = ways(hosts(2), Call("AllReduce", MIB, datatype, operation))
    assert found >= {A.RING, A.TREE}
    assert (found & {A.NVLS, A.NVLS_TREE}) == (
        {A.NVLS_TREE} | ({A.NVLS} if operation != "prod" else set()) if nvls else set()
    )
    sharp = {A.COLLNET_DIRECT, A.COLLNET_CHAIN}
    assert found & sharp == (set() if operation == "prod" else sharp)
    gathers = ways(hosts(2), Call("AllGather", MIB, datatype, operation))
    assert gathers == {A.RING, A.COLLNET_DIRECT, A.NVLS}
    flat = hosts(4, 1)
    scattered = ways(flat, Call("ReduceScatter", MIB, datatype, operation))
    assert (A.PAT in scattered) == (operation not in ("avg", "mulsum"))
    assert A.PAT in ways(flat, Call("AllGather", MIB, datatype, operation))


@pytest.mark.parametrize(("value", "flat", "deep"), [("0", False, False), ("1", True, True), ("2", True, False)])
def test_pat_unasked_is_for_hosts_of_one_gpu(value, flat, deep):
    for shape, expected in ((hosts(4, 1), flat), (hosts(4, 2), deep)):
        assert (A.PAT in ways(shape, Call("AllGather", MIB), NCCL_PAT_ENABLE=value)) == expected


@pytest.mark.parametrize("release", ["2.23.4", "2.24.3"])
@pytest.mark.parametrize("ranks", [8, 16])
@pytest.mark.parametrize("datatype", ["fp8_e4m3", "fp8_e5m2", "int8"])
def test_rings_of_eight_bit_floats_are_avoided_beyond_eight_ranks(release, ranks, datatype):
    shape = hosts(ranks // 8, collnet_heads=0, nvls_channels=0)
    tuner = Tuner(shape, read_settings({}, release=release))
    plain = tuner.costs(Call("AllReduce", MIB, "float"))
    times = 1024 if ranks > 8 and datatype != "int8" and release == "2.24.3" else 1
    found = tuner.costs(Call("AllReduce", MIB, datatype))
    assert found == {way: time * (times if way[0] == A.RING else 1) for way, time in plain.items()}


@pytest.mark.parametrize(
    ("release", "collective", "variables", "expected"),
    [
        # 2.18: rings of all but all-reduce stay; a list of CollNet alone is passed over where there is none
        ("2.18.3", "Broadcast", {"NCCL_ALGO": "Tree"}, {A.RING}),
        ("2.18.3", "AllReduce", {"NCCL_ALGO": "CollnetChain"}, {A.RING, A.TREE}),
        ("2.18.3", "AllReduce", {"NCCL_ALGO": "Tree,CollnetChain"}, {A.TREE}),
        # 2.19: a ring where nothing is left, with any protocol
        ("2.19.4", "Broadcast", {"NCCL_ALGO": "Tree"}, {A.RING}),
        ("2.19.4", "AllReduce", {"NCCL_ALGO": "Tree"}, {A.TREE}),
        # 2.22: with an allowed protocol
        ("2.22.3", "Broadcast", {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}, {A.RING}),
        # 2.24: nothing
        ("2.24.3", "AllReduce", {"NCCL_ALGO": "CollnetChain"}, set()),
        ("2.24.3", "Broadcast", {"NCCL_ALGO": "Tree"}, set()),
    ],
)  # fmt: skip
def test_what_is_left_where_lists_exclude_it(release, collective, variables, expected):
    shape = hosts(2, collnet_heads=0, nvls_channels=0)
    assert ways(shape, Call(collective, MIB), release, **variables) == expected


def test_a_ring_that_stands_in_keeps_allowed_protocols_from_2_22_on():
    shape = hosts(2, collnet_heads=0, nvls_channels=0)
    for release, expected in (("2.19.4", {P.LL, P.LL128, P.SIMPLE}), ("2.22.3", {P.LL})):
        settings = read_settings({"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}, release=release)
        tuner = Tuner(shape, settings)
        found = tuner.costs(Call("Broadcast", MIB))
        assert {protocol for _, protocol in found} == expected
        free = Tuner(shape, read_settings({"NCCL_PROTO": "LL,LL128,Simple"}, release=release))
        times = free.costs(Call("Broadcast", MIB))
        assert found == {way: times[way] for way in found}


@pytest.mark.parametrize(
    ("datatype", "name"),
    [
        ("int8", "ncclInt8"), ("uint8", "Unknown"), ("int32", "ncclInt32"), ("uint32", "ncclUint32"),
        ("int64", "ncclInt64"), ("uint64", "ncclUint64"), ("half", "ncclFloat16"), ("float", "ncclFloat32"),
        ("double", "ncclFloat64"), ("bfloat16", "ncclBfloat16"), ("fp8_e4m3", "ncclFloat8e4m3"),
        ("fp8_e5m2", "ncclFloat8e5m2"),
    ],
)  # fmt: skip
def test_types_have_nccls_names_where_nothing_is_left(datatype, name):
    with pytest.raises(ConfigError) as refused:
        chosen(hosts(2), Call("Broadcast", 8, datatype), NCCL_ALGO="Tree", NCCL_PROTO="LL")
    assert str(refused.value).endswith(
        f"No algorithm/protocol available for function Broadcast with datatype {name}. "
        "NCCL_ALGO was set to Tree. NCCL_PROTO was set to LL."
    )


def test_equal_times_go_to_the_first_algorithm_and_one_rank_takes_none():
    alone = replace(hosts(1), ranks=1)
    assert Tuner(alone, Settings()).costs(Call("AllReduce", 8)) == {(A.RING, P.SIMPLE): 0.0}
    tuner = Tuner(hosts(2), Settings())
    cells = tuner.tables.bandwidth
    for cell in cells:
        cells[cell] = 1.0 if cell[1] in (A.RING, A.COLLNET_CHAIN) and cell[2] == P.SIMPLE else 0.0
        tuner.tables.latency[cell] = 0.0
    found = tuner.choose(Call("Broadcast", 1000))
    assert (found.algorithm, found.protocol, found.time_us) == (A.RING, P.SIMPLE, 1.0)
