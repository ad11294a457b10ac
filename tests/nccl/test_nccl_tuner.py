"""The tuner against a second evaluation of NCCL's cost model, and what the variables do to its choice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.clusters import blueprint

from fabrictwin.base.errors import ConfigError
from fabrictwin.nccl.communicator.communicator import initialise
from fabrictwin.nccl.settings.settings import Settings, read_settings
from fabrictwin.nccl.settings.version import version
from fabrictwin.nccl.topology.graph_types import Algorithm, Graph, PathType, Pattern, Protocol
from fabrictwin.nccl.tuning.algorithm_rules import CommunicatorShape, HostHardware
from fabrictwin.nccl.tuning.cost_model import tables
from fabrictwin.nccl.tuning.tuner import Call, Choice, Tuner, choose, shape_of
from fabrictwin.nccl.tuning.tuning_constants import constants
from fabrictwin.twin import Twin

A, P = Algorithm, Protocol
RELEASES = ("2.18.3", "2.21.5", "2.24.3", "2.27.7", "2.28.9", "2.30.7")
SIZES = [1 << e for e in range(3, 35)] + [3 << e for e in range(4, 32, 9)] + [24, 48, 1000, 10**6 + 4]
NONE = np.zeros(0, np.int32)


def graph(algorithm: Algorithm, channels: int, intra: float, inter: float, **others: object) -> Graph:
    given = {
        "pattern": Pattern.RING,
        "latency_inter": 0.0,
        "type_intra": PathType.NVL,
        "type_inter": PathType.PIX,
        "same_channels": True,
        "cross_nic": 0,
        "intra": NONE,
        "inter": NONE,
        **others,
    }
    return Graph(algorithm=algorithm, channels=channels, bw_intra=intra, bw_inter=inter, **given)  # type: ignore[arg-type]


def hopper(
    hosts: int,
    local: int = 8,
    *,
    nvls: bool = True,
    collnet: bool = False,
    tree: Pattern = Pattern.BALANCED_TREE,
    **hardware: object,
) -> CommunicatorShape:
    """H100s on NVSwitches with a 400G adapter each, as NCCL's search finds them."""
    many = hosts > 1
    channels = 16 if not many else 8 if local == 8 else local
    inter = 48.0 if many else 20.0
    intra = 40.0 if many else 20.0
    far = PathType.PXB if many else PathType.PIX
    graphs = {
        A.RING: graph(A.RING, channels, intra, inter, type_inter=far),
        A.TREE: graph(A.TREE, channels, intra, inter, type_inter=far, pattern=tree),
        A.PAT: graph(A.PAT, channels, intra, inter, type_inter=far),
    }
    if nvls and local > 1:
        graphs[A.NVLS] = graph(
            A.NVLS, 16 if not many else local, 20.0 if not many else 60.0, inter, type_inter=far
        )
        graphs[A.NVLS_TREE] = graphs[A.NVLS]
    if collnet:
        graphs[A.COLLNET_DIRECT] = graph(A.COLLNET_DIRECT, local, 40.0, 48.0, type_inter=far)
        graphs[A.COLLNET_CHAIN] = graph(A.COLLNET_CHAIN, local, 40.0, 48.0, type_inter=far)
    given = {"capability": 90, "highest_capability": 90, "cpu": "intel", "nvswitch": True} | hardware
    return CommunicatorShape(
        ranks=hosts * local,
        nodes=hosts,
        local_ranks=local,
        hardware=HostHardware(**given),  # type: ignore[arg-type]
        graphs=graphs,
        channels=2 * channels,
        nvls_channels=16 if nvls and local > 1 else 0,
        collnet_heads=local if collnet else 0,
    )


def shapes() -> Iterator[CommunicatorShape]:
    for hosts, local in itertools.product((1, 2, 3, 16, 128), (1, 4, 8)):
        if hosts * local > 1:
            yield hopper(hosts, local)
    yield hopper(4, 8, cpu="amd")
    yield hopper(2, 8, cpu="mixed")
    yield hopper(4, 4, cpu="arm")
    yield hopper(1, 8, capability=100, highest_capability=100)
    yield hopper(4, 8, capability=100, highest_capability=100)
    yield hopper(4, 8, capability=80, highest_capability=80, nvls=False)
    yield hopper(4, 8, capability=80, highest_capability=90, nvls=False)
    yield hopper(4, 8, tree=Pattern.TREE)
    yield hopper(8, 8, collnet=True)
    yield hopper(2, 8, collnet=True)


# --- a second evaluation: NCCL's formulas with their numbers as they stand in its sources ---------------------

NVLINK, PCI, NET = 0, 1, 2


def latencies(release: tuple[int, int]) -> tuple[dict[int, list[float]], list[dict[int, list[float]]]]:
    """Base, and per hop by NVLink, PCIe and network: algorithm to [LL, LL128, Simple]."""
    base = {0: [6.8, 14, 8.4 if release >= (2, 23) else 0], 1: [6.6, 14, 8.4], 6: [8.0, 8.0, 8.0]}
    hops: list[dict[int, list[float]]] = [
        {0: [0.6, 1.25, 4], 1: [0.6, 1.9, 3.4], 2: [0, 0, 3.7], 3: [0, 0, 2.8], 4: [0, 0, 25], 5: [0, 0, 25]},
        {0: [1, 1.9, 4], 1: [1, 2.5, 5.7], 2: [0, 0, 3.7], 3: [0, 0, 2.8]},
        {0: [5, 8.5, 14], 1: [2.7, 4, 14], 2: [0, 0, 31], 3: [0, 0, 30], 4: [0, 0, 18], 5: [0, 0, 14]},
    ]
    if release < (2, 21):
        hops[NVLINK] |= {4: [0, 0, 23], 5: [0, 0, 23]}
    if release < (2, 19):
        hops[PCI] |= {0: [1, 1.9, 6], 2: [0, 0, 8], 3: [0, 0, 8]}
        base |= {2: [6.8, 14, 0], 3: [6.8, 14, 0], 4: [0, 0, 23], 5: [0, 0, 23]}
        hops[NVLINK] |= {2: [0, 0, 8], 3: [0, 0, 4.75], 4: [0, 0, 0], 5: [0, 0, 0]}
        hops[NET] |= {2: [0, 0, 10.7], 3: [0, 0, 14], 5: [0, 0, 19]}
    elif release < (2, 23):
        for place in hops:
            place[0] = [*place[0][:2], 28]
    if release >= (2, 28):
        hops[NET] |= {5: [0, 0, 20.9], 6: [0, 0, 14]}
    return base, hops


def caps(release: tuple[int, int], shape: CommunicatorShape) -> dict[str, float]:
    """GB/s that a channel, or LL as a whole, cannot exceed."""
    generation = sum(shape.hardware.capability >= least for least in (80, 90, 100))
    column = 0 if shape.nodes == 1 else 1 if shape.nodes == 2 else 2
    ring = [[20] * 3, [20] * 3, [36.7] * 3]
    tree128 = [[20] * 3, [20] * 3, [36.7, 36.7, 29.0]]
    tree = [[26.5, 18.5, 10.0], [24, 23.6, 17.8], [38.7, 41.4, 36.0]]
    ll = [
        [39.0, 39.0, 20.4],
        [87.7, 22.5, 19.0],
        [141.0, 45.0, 35.0] if release >= (2, 21) else [87.7, 22.5, 19.0],
    ]
    nvls_tree = [[0] * 3, [24, 23.6, 17.8], [0, 57.7, 45.5]]
    if release < (2, 25):
        ring, tree128, tree, ll = ([*table, table[2]] for table in (ring, tree128, tree, ll))
    elif release < (2, 28):
        ring, tree128, tree, ll = ([*table, [2 * x for x in table[2]]] for table in (ring, tree128, tree, ll))
    else:
        ring = [*ring, [73.4, 34.6, 73.4] if release < (2, 29) else [40, 40, 40]]
        tree128, tree = [*tree128, [55.6, 31.67, 20.0]], [*tree, [70, 42.8, 24]]
        ll, nvls_tree = [*ll, [282, 90, 70]], [*nvls_tree, [0, 96, 43.8 if release < (2, 30) else 80]]
    amd = shape.hardware.cpu == "amd" or (shape.hardware.cpu == "mixed" and release >= (2, 24))
    return {
        "ring": ring[generation][column],
        "tree128": tree128[generation][column],
        "tree": tree[generation][column],
        "ll": ll[generation][0] if shape.nodes == 1 else ll[1 if amd else 0][column],
        "nvls": {2: 0.85, 3: 0.74}.get(generation, 0.0),
        "nvls_tree": nvls_tree[generation][column] if release >= (2, 28) else 0.0,
    }


def allowed(release: tuple[int, int], collective: str, a: int) -> bool:
    if collective in ("Broadcast", "Reduce"):
        return a == 1
    if collective == "AllReduce":
        return a != 6
    return (
        a == 1
        or (a == 4 and release >= (2, 19))
        or (a == 2 and release >= (2, 20))
        or (a == 6 and release >= (2, 23))
    )


def second_time(
    release: tuple[int, int], shape: CommunicatorShape, collective: str, nbytes: int, a: int, p: int
) -> float | None:
    """µs, or None where it cannot be."""
    n, nodes = shape.ranks, shape.nodes
    ppn = n / nodes
    found = shape.graphs.get(Algorithm(a))
    gather = collective in ("AllGather", "ReduceScatter")
    if found is None or not allowed(release, collective, a) or (a >= 2 and p != 2):
        return None
    if a == 5 and nodes == 1:
        return None
    if (a in (2, 3) or (a == 4 and nodes > 1)) and not shape.collnet:
        return None
    if a == 6 and n != nodes:
        return None
    if shape.local_ranks > 8 and ((a == 2 and release >= (2, 23)) or (a == 3 and release >= (2, 28))):
        return None
    if a == 4 and gather and shape.local_ranks > 32 and release >= (2, 25):
        return None
    if a == 4 and gather and nodes > 1 and release < (2, 27):
        return None
    if p == 1:  # LL128: all GPUs here are on NVLink with a near adapter
        same = shape.hardware.capability == shape.hardware.highest_capability
        if not same and not (release >= (2, 30) and shape.hardware.capability >= 90):
            return None
        if shape.hardware.capability >= 100 and release < (2, 25):
            return None
        if found.type_intra != PathType.NVL or (shape.hardware.capability == 75 and release < (2, 27)):
            return None
    base, hops = latencies(release)
    cap = caps(release, shape)
    steps = 2 * (n - 1) if collective == "AllReduce" else n - 1 if gather else n

    bw = found.bw_intra if nodes <= 2 or a in (2, 3) else found.bw_inter
    if a in (4, 5) and release >= (2, 28):
        if found.channels < 2:
            return None
        intra = found.bw_intra * cap["nvls"] * (found.channels - 1) / found.channels
        intra *= 2 if collective == "AllReduce" else (ppn - 1) / ppn
        limits = [intra, found.bw_inter * (2 if nodes == 2 and a == 5 else 1)]
        bw = min([*limits, cap["nvls_tree"]] if a == 5 else limits)
    elif a == 4 and gather and release >= (2, 27):
        bw = min(found.bw_intra * (ppn - 1) / ppn, 0.9 * found.bw_inter)
    elif a == 4 and release >= (2, 19):
        bw = min(found.bw_intra, found.bw_inter)
    elif a == 5 and release >= (2, 19):
        bw = min(found.bw_intra, found.bw_inter if nodes <= 2 else found.bw_inter / 2)
    bus = found.channels * bw
    if a == 1 and p == 0:
        quarter = nodes > 1 or collective in ("AllReduce", "Reduce")
        bus = min(cap["ll"], bus / 2 if release >= (2, 21) else bus / 4 if quarter else bus / 3)
    if a == 1 and p == 1:
        bus = min(bus * (0.7 if ppn < 2 and release < (2, 23) else 0.92), found.channels * cap["ring"])
    if a == 0:
        bus = min(0.92 * bus, found.channels * cap["tree"])
        if p == 0:
            bus = min(bus / 3.8, cap["ll"])
        if p == 1:
            bus = min(bus * (7 / 9 if nodes == 1 else 120 / 128), found.channels * cap["tree128"])
        if not shape.split_trees:
            bus *= 0.85
    if a == 6:
        bus *= 0.75 if release >= (2, 24) else 0.85
    if a == 2 and gather:
        w = (ppn - 1) / 7
        interpolated = ppn * bw * (w * 0.85 + (1 - w) * 0.95)
        bus = ppn * min(found.bw_intra, 0.9 * found.bw_inter) if release >= (2, 27) else interpolated
    elif a == 2:
        ratio = ppn / found.channels
        bus = bus / (ratio - (ratio - 1) / 2) * (0.85 if shape.hardware.capability >= 90 else 1)
    if gather and a != 1 and (release >= (2, 23) or (a == 2 and release >= (2, 20))):
        pass
    elif a == 1 or (a in (4, 5) and release >= (2, 28)):
        bus *= n / steps
    elif a == 5 and release < (2, 19):
        bus *= 0.7 * nodes / (2 * (nodes - 1))
    elif a in (4, 5):
        bus *= 5 / 6
    else:
        bus /= 2

    zero = [0.0, 0.0, 0.0]
    inside = NVLINK if found.type_intra == PathType.NVL else PCI
    intra_lat = hops[inside].get(a, zero)[p]
    inter_lat = hops[NET].get(0 if ppn == 1 and release >= (2, 23) else a, zero)[p]
    log = int(np.log2(nodes))
    lat = base.get(a, zero)[p]
    if a == 1 and collective in ("Broadcast", "Reduce"):
        place = hops[inside if nodes == 1 else NET]
        lat += place[1][p] if found.same_channels else n * place[0 if p == 2 else 1][p]
    elif a == 1:
        across = 0
        if nodes > 1:
            posting = {"intel": 1.0, "amd": 2.0}.get(shape.hardware.cpu, 1.0) * (3 if p == 2 else 1)
            intra_lat = max(intra_lat, posting)
            across = nodes - 1
            if collective == "AllReduce":
                across = 2 * across if release >= (2, 23) else 2 * nodes
        lat += (steps - across) * intra_lat + across * inter_lat
    elif a == 0:
        lat += 2 * ((n // nodes - 1) * intra_lat + log * inter_lat)
    elif a == 2:
        arity = 0.4 if release >= (2, 19) else 0.5
        lat += 2 * (min(1, n // nodes - 1) * intra_lat + (n // nodes - 1) * arity) + inter_lat
    elif a == 3:
        lat += 2 * (n // nodes - 1) * intra_lat + inter_lat
    elif a == 4:
        lat = (
            lat + (inter_lat if nodes > 1 else 0)
            if release < (2, 19)
            else intra_lat + (inter_lat if nodes > 1 else 0)
        )
    elif a == 5:
        lat += 2 * (nodes - 1) * inter_lat if release < (2, 19) else intra_lat + 2 * log * inter_lat
    else:
        lat += log * inter_lat / 3.5 + 2.8 * n

    table = [
        "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1 1",
        "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1 1",
        ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9 .9",
    ]
    place = int(np.log2(nbytes // 64)) if nbytes >= 64 else 0 if release < (2, 22) else -1
    if collective == "AllReduce" and place >= 0:
        blackwell = release >= (2, 29) and shape.hardware.capability >= 100 and shape.hardware.x86
        if (a == 0 and place < 23) or (a == 5 and place < 24 and blackwell):
            bus *= float(table[p].split()[place])
    if a == 1 and p == 2 and nodes > 1 and collective == "AllReduce" and nbytes // (shape.channels * n) >= 64:
        lat *= 1.4 if shape.hardware.capability >= 80 else 1.9
    return lat + nbytes / (1000 * bus) if bus > 0 else None


@pytest.mark.parametrize("release", RELEASES)
def test_choice_equals_a_second_evaluation_of_the_model(release: str) -> None:
    at = version(release)
    settings = read_settings({}, release=release)
    compared = 0
    seen = set()
    for shape in shapes():
        tuner = Tuner(shape, settings)
        for collective in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"):
            for nbytes in SIZES:
                times = {
                    (a, p): time
                    for a in range(7)
                    for p in range(3)
                    if (time := second_time((at.major, at.minor), shape, collective, nbytes, a, p)) is not None
                }
                choice = tuner.choose(Call(collective, nbytes))
                best = min(times, key=lambda way: (times[way], way))
                where = f"{shape.nodes}x{shape.local_ranks} {shape.hardware.cpu}"
                here = f"{release} {collective} {nbytes} B on {where}"
                assert (int(choice.algorithm), int(choice.protocol)) == best, here
                assert choice.time_us == pytest.approx(times[best], rel=3e-6), here
                compared += 1
                seen.add(choice.algorithm)
    assert compared > 4000
    assert {A.RING, A.TREE, A.NVLS} <= seen
    if at >= (2, 23):
        assert A.PAT in seen


def odd_shapes() -> Iterator[CommunicatorShape]:
    """Older GPUs, PCIe, adapters short of GPUs, racks, rings that differ between channels."""
    yield hopper(1, 4, capability=70, highest_capability=70, nvls=False)
    yield hopper(3, 8, capability=75, highest_capability=75, nvls=False, cpu="amd")
    yield hopper(3, 8, capability=100, highest_capability=100)
    yield hopper(2, 12, collnet=True)
    yield hopper(3, 8, collnet=True)
    yield hopper(2, 8, capability=90, highest_capability=100)
    yield hopper(1, 36)
    yield hopper(1, 32)
    yield hopper(4, 1, cpu="mixed")
    for hosts, local in ((1, 4), (2, 4), (4, 1)):
        plain = hopper(hosts, local, capability=80, highest_capability=80, nvls=False)
        change = {"type_intra": PathType.PHB, "same_channels": False}
        yield replace(plain, graphs={key: replace(one, **change) for key, one in plain.graphs.items()})


@pytest.mark.parametrize(
    "release", ["2.18.3", "2.20.5", "2.22.3", "2.23.4", "2.25.1", "2.27.7", "2.28.9", "2.30.7"]
)
def test_every_way_takes_the_time_of_a_second_evaluation(release: str) -> None:
    """Not the best alone: each algorithm and protocol, about the ends of the table of corrections."""
    at, settings = version(release), read_settings({}, release=release)
    for shape in odd_shapes():
        tuner = Tuner(shape, settings)
        for collective in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"):
            for nbytes in (63, 64, 1 << 17, 64 * shape.channels * shape.ranks, 1 << 28, 1 << 29):
                times = {
                    (Algorithm(a), Protocol(p)): pytest.approx(time, rel=3e-6)
                    for a in range(7)
                    for p in range(3)
                    if (time := second_time((at.major, at.minor), shape, collective, nbytes, a, p)) is not None
                }
                assert tuner.costs(Call(collective, nbytes)) == times, (release, collective, nbytes, shape)


def test_a_hundred_releases_share_one_file() -> None:
    assert constants(version("2.21.0")) == constants(version("2.21.99"))
    assert constants(version("2.99")).rules == constants(version("2.30.7")).rules
    assert constants(version("2.18")) != constants(version("2.19"))


# --- what the variables do --------------------------------------------------------------------------------------


def chosen(
    shape: CommunicatorShape, nbytes: int, collective: str = "AllReduce", release: str = "2.28.9", **variables: str
) -> Choice:
    return Tuner(shape, read_settings(variables, release=release)).choose(Call(collective, nbytes))


MIB = 1 << 20


def test_algo_and_proto() -> None:
    one = hopper(1)
    assert chosen(one, 64 * MIB).algorithm == A.NVLS
    assert chosen(one, 64 * MIB, NCCL_ALGO="Ring").algorithm == A.RING
    assert chosen(one, 64 * MIB, NCCL_ALGO="^NVLS,Ring").algorithm == A.TREE
    assert chosen(one, 64 * MIB, NCCL_ALGO="Ring", NCCL_PROTO="LL").protocol == P.LL
    assert chosen(one, 64 * MIB, NCCL_ALGO="allreduce:ring;allgather:nvls").algorithm == A.RING
    assert chosen(one, 64 * MIB, "AllGather", NCCL_ALGO="allreduce:ring;allgather:nvls").algorithm == A.NVLS


def test_nothing_left_is_said_in_nccls_words() -> None:
    with pytest.raises(ConfigError, match=r"No algorithm/protocol available for function Broadcast with datatype "
                       r"ncclFloat32\. NCCL_ALGO was set to Tree\."):  # fmt: skip
        chosen(hopper(2), MIB, "Broadcast", NCCL_ALGO="Tree")


@pytest.mark.parametrize("release", ["2.18.3", "2.21.5", "2.22.3"])
def test_before_2_24_ring_stands_in(release: str) -> None:
    assert chosen(hopper(2), MIB, "Broadcast", release=release, NCCL_ALGO="Tree").algorithm == A.RING


def test_ll128_only_where_it_is_safe() -> None:
    middle = 2 * MIB
    assert chosen(hopper(2), middle, NCCL_ALGO="Ring").protocol == P.LL128
    far = hopper(2)
    far.graphs[A.RING] = graph(A.RING, 8, 40, 48, type_inter=PathType.PHB)
    assert chosen(far, middle, NCCL_ALGO="Ring").protocol != P.LL128
    assert chosen(far, middle, NCCL_ALGO="Ring", NCCL_PROTO="LL128").protocol == P.LL128
    over = hopper(2)
    over.graphs[A.RING] = graph(A.RING, 8, 40, 48, type_inter=PathType.PXN)
    assert chosen(over, middle, NCCL_ALGO="Ring").protocol == P.LL128
    assert chosen(over, middle, NCCL_ALGO="Ring", NCCL_LL128_C2C="0").protocol != P.LL128


def test_threads() -> None:
    big = 256 * MIB
    assert chosen(hopper(2), big, NCCL_ALGO="Ring", NCCL_PROTO="Simple").threads == 512 + 32
    assert chosen(hopper(2), big, NCCL_ALGO="Ring", NCCL_PROTO="Simple", NCCL_NTHREADS="256").threads == 256 + 32
    assert chosen(hopper(2), big, NCCL_ALGO="Ring", NCCL_PROTO="Simple", NCCL_NTHREADS="100").threads == 512 + 32
    assert chosen(hopper(2), big, NCCL_ALGO="Ring", NCCL_PROTO="LL128", NCCL_LL128_NTHREADS="320").threads == 320
    assert chosen(hopper(2), big, NCCL_ALGO="Tree", NCCL_PROTO="Simple").threads == 640


def test_channels_drop_then_threads_halve_for_small_operations() -> None:
    ring = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    choices = [chosen(hopper(2), 1 << e, **ring) for e in range(3, 31)]
    assert [c.max_channels for c in choices] == sorted(c.max_channels for c in choices)
    assert [c.threads for c in choices] == sorted(c.threads for c in choices)
    assert (choices[0].max_channels, choices[0].threads) == (1, 96)
    assert choices[-1].max_channels == 16
    # 64 bytes for each of 512 threads of a channel
    at = [c.max_channels for c in choices]
    for e, channels in zip(range(3, 31), at, strict=True):
        assert channels == max(1, min(16, (1 << e) // (512 * 64)))


def test_thresholds_move_the_channels() -> None:
    ring = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    assert chosen(hopper(2), MIB // 4, **ring).max_channels == 8
    less = chosen(hopper(2), MIB // 4, NCCL_THREAD_THRESHOLDS="8 8 64 128 8 32", **ring)
    assert less.max_channels == 16


def test_channels_that_would_carry_too_little_stay_out() -> None:
    settings = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL", "NCCL_THREAD_THRESHOLDS": "0"}
    counts = [chosen(hopper(1), 1 << e, release="2.28.9", **settings).channels for e in range(3, 24)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 32)
    assert chosen(hopper(1), 8, release="2.21.5", **settings).channels == 32


def test_net_overhead() -> None:
    usual = Tuner(hopper(2), Settings()).tables.latency["AllReduce", A.RING, P.LL]
    slow = Tuner(hopper(2), read_settings({"NCCL_NET_OVERHEAD": "5000"})).tables.latency["AllReduce", A.RING, P.LL]
    assert slow == pytest.approx(usual + 28 * (5 - 1))


def test_pat_can_be_switched() -> None:
    assert chosen(hopper(16, 1), 1024, "AllGather").algorithm == A.PAT
    assert chosen(hopper(16, 1), 1024, "AllGather", NCCL_PAT_ENABLE="0").algorithm == A.RING
    tuner = Tuner(hopper(4, 2), read_settings({"NCCL_PAT_ENABLE": "1"}))
    assert (A.PAT, P.SIMPLE) in tuner.costs(Call("AllGather", 1024))


def test_types_and_operations_that_switches_cannot_reduce() -> None:
    tuner = Tuner(hopper(1), Settings())
    big = 256 * MIB
    assert tuner.choose(Call("AllReduce", big)).algorithm == A.NVLS
    assert tuner.choose(Call("AllReduce", big, "bfloat16", "max")).algorithm == A.NVLS
    for datatype, operation in (("float", "max"), ("float", "prod"), ("float", "avg"), ("int8", "sum")):
        assert tuner.choose(Call("AllReduce", big, datatype, operation)).algorithm != A.NVLS
    ways = tuner.costs(Call("AllGather", big, "int8", "prod"))
    assert (A.NVLS, P.SIMPLE) in ways  # nothing is reduced


def test_collnet() -> None:
    with_switches = hopper(8, collnet=True)
    found = Tuner(with_switches, Settings()).costs(Call("AllReduce", MIB))
    assert {A.COLLNET_DIRECT, A.COLLNET_CHAIN, A.NVLS} <= {a for a, _ in found}
    without = Tuner(hopper(8), Settings()).costs(Call("AllReduce", MIB))
    assert not {A.COLLNET_DIRECT, A.COLLNET_CHAIN, A.NVLS} & {a for a, _ in without}


def test_one_rank_has_nothing_to_do() -> None:
    assert chosen(hopper(1, 1), MIB).time_us == 0


@pytest.mark.parametrize(
    "call", [Call("AllReduc", 8), Call("AllReduce", 8, "float33"), Call("AllReduce", 8, "float", "add")]
)
def test_calls_that_are_none(call: Call) -> None:
    with pytest.raises(ConfigError, match="expected one of"):
        Tuner(hopper(1), Settings()).choose(call)


@cache
def twin() -> Twin:
    return Twin(blueprint(2, "dgx-h100", switch="qm9700"))


def test_a_communicator_of_the_twin() -> None:
    # a DGX H100: 24 channels, NVLS of 8 heads
    communicator = initialise(twin(), 8, version="2.21.5")
    shape = shape_of(communicator)
    assert (shape.ranks, shape.nodes, shape.channels, shape.nvls_channels, shape.collnet) == (8, 1, 24, 16, False)
    assert shape.hardware == HostHardware(90, 90, "intel", nvswitch=True)
    assert choose(communicator, "AllReduce", 1024).protocol == P.LL
    assert choose(communicator, "AllReduce", 1 << 30).algorithm == A.NVLS
    assert choose(communicator, "AllGather", 1 << 30).algorithm == A.RING
    two = initialise(twin(), 16, version="2.28.9", settings=read_settings({"NCCL_ALGO": "^NVLSTree"}))
    assert choose(two, "AllReduce", 1 << 30).algorithm in (A.RING, A.TREE)


def test_tables_hold_every_cell() -> None:
    found = tables(hopper(4), Settings())
    assert len(found.latency) == len(found.bandwidth) == 5 * 7 * 3


def test_an_average_leaves_reduce_scatter_every_algorithm_but_pat() -> None:
    tuner = Tuner(hopper(16, 1), read_settings({}))
    algorithms = {
        op: {a for a, _ in tuner.costs(Call("ReduceScatter", 1024, operation=op))} for op in ("sum", "avg")
    }
    assert algorithms["sum"] - algorithms["avg"] == {A.PAT}
    assert A.RING in algorithms["avg"]


def with_latency(shape: CommunicatorShape, latency: float) -> CommunicatorShape:
    graphs = {key: replace(one, latency_inter=latency) for key, one in shape.graphs.items()}
    return replace(shape, graphs=graphs)


@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_a_link_s_own_latency_counts_a_hop_and_twice_where_adapters_are_flushed(hosts):
    """A tree crosses hosts log2 times up and as often down; Simple flushes what the adapter wrote."""
    settings = read_settings({}, release=version("2.21.5"))
    plain, slow = (tables(with_latency(hopper(hosts), us), settings) for us in (0.0, 1.5))
    log = hosts.bit_length() - 1
    for protocol in Protocol:
        cell = ("AllReduce", A.TREE, protocol)
        once = 2 * log * 1.5 * (2 if protocol == P.SIMPLE else 1)
        assert slow.latency[cell] - plain.latency[cell] == pytest.approx(once, rel=1e-4)


@pytest.mark.parametrize(("heads", "possible"), [(8, True), (4, False)])
def test_gathers_by_switches_need_an_adapter_for_each_gpu(heads, possible):
    shape = replace(hopper(4, collnet=True), collnet_heads=heads)
    found = tables(shape, read_settings({"NCCL_COLLNET_ENABLE": "1"}, release=version("2.27.7")))
    for collective in ("AllGather", "ReduceScatter"):
        assert (found.bandwidth[collective, A.COLLNET_DIRECT, P.SIMPLE] > 0) == possible
    assert found.bandwidth["AllReduce", A.COLLNET_DIRECT, P.SIMPLE] > 0


def test_a_plateau_of_rings_is_between_hosts():
    """On one host a ring takes its latency and its bytes over its bandwidth, and not a µs more."""
    found = tables(hopper(1), read_settings({}, release=version("2.21.5")))
    cell = ("AllReduce", A.RING, P.SIMPLE)
    for size in (1 << 14, 1 << 20, 1 << 30):
        plain = found.latency[cell] + size / (1000 * found.bandwidth[cell])
        assert found.time_us(*cell, size) == pytest.approx(plain, rel=1e-6)
    many = tables(hopper(2), read_settings({}, release=version("2.21.5")))
    plain = many.latency[cell] + (1 << 20) / (1000 * many.bandwidth[cell])
    assert many.time_us(*cell, 1 << 20) > plain * 1.01
