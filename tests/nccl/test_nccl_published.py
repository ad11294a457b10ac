"""Channels against what NCCL and RCCL printed on real machines, as their users published it."""

from __future__ import annotations

import numpy as np
import pytest
from support.clusters import blueprint

from fabrictwin.nccl.communicator.communicator import Algorithm, Communicator, PathType, Pattern, initialise
from fabrictwin.nccl.search.graph_search import Channels, Search
from fabrictwin.nccl.search.search_order import Relaxation
from fabrictwin.nccl.settings.release_rules import Rules
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.topology.system import Device, Kind, LinkClass, Processor, System, SystemBuilder
from fabrictwin.nccl.topology.topology_paths import PathTable, Policy
from fabrictwin.twin import Twin


def searched(system: System, pattern: Pattern, minor: int, *, inter: bool = False, **limits: int) -> Channels:
    table = PathTable(system, Rules((2, minor)), Policy())
    search = Search(table, inter=inter)
    limits = {"least": 1, "most": search.rules.max_channels // 2} | limits
    return Relaxation(search, pattern, cross_nic=2, collnet=False, **limits).run()


def line(found: Channels) -> str:
    """Return the line that `ncclTopoPrintGraph` prints."""
    types = f"{found.type_intra.name}/{found.type_inter.name}"
    return (
        f"Pattern {int(found.pattern)}, crossNic {found.cross_nic}, nChannels {found.count}, "
        f"bw {found.bw_intra:f}/{found.bw_inter:f}, type {types}, sameChannels {int(found.same)}"
    )


def graph_line(comm: Communicator, algorithm: Algorithm) -> str:
    graph = comm.graphs[algorithm]
    types = f"{graph.type_intra.name}/{graph.type_inter.name}"
    return (
        f"Pattern {int(graph.pattern)}, crossNic {graph.cross_nic}, nChannels {graph.channels}, "
        f"bw {graph.bw_intra:f}/{graph.bw_inter:f}, type {types}, sameChannels {int(graph.same_channels)}"
    )


def channels_line(comm: Communicator) -> str:
    return (
        f"{comm.channels.collective} coll channels, 0 collnet channels, {comm.channels.nvls} nvls channels, "
        f"{comm.channels.p2p} p2p channels, {comm.channels.p2p_per_peer} p2p channels per peer"
    )


def test_eight_a100_behind_nvswitches() -> None:
    # a line of every DGX A100, such as in https://github.com/NVIDIA/nccl-tests/issues/100 and its like
    comm = initialise(Twin(blueprint(1)), version="2.18.3")
    expected = "Pattern 4, crossNic 0, nChannels 12, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1"
    assert graph_line(comm, Algorithm.RING) == expected
    assert comm.channels.collective == 24


def test_eight_h100_behind_nvswitches() -> None:
    # https://github.com/NVIDIA/nccl/issues/1197
    comm = initialise(Twin(blueprint(1, "dgx-h100", switch="qm9700")), version="2.19.4")
    expected = "Pattern 4, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX, sameChannels 1"
    assert graph_line(comm, Algorithm.RING) == expected
    assert (comm.hosts.kinds[0].search.max_bw, comm.hosts.kinds[0].search.total_bw) == (370.8, 370.8)


@pytest.mark.parametrize("version", ["2.19.3", "2.20.5", "2.21.5"])
def test_two_hosts_of_two_hopper_gpus_and_two_adapters_without_pxn(version: str) -> None:
    # https://github.com/NVIDIA/nccl/issues/1189: H20, whose NVLinks are the H100's; each GPU has a 400G adapter
    given = {"NCCL_PXN_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_IB_HCA": "=mlx5_0,mlx5_3"}
    settings = read_settings(given, release=version)
    twin = Twin(blueprint(2, "dgx-h100", switch="qm9700"))
    fabric = twin.fabric
    gpus = [int(fabric.gpu_node[g]) for g in (0, 1, 8, 9)]
    comm = initialise(twin, gpus, settings=settings, version=version)
    expected = "Pattern 4, crossNic 1, nChannels 4, bw 24.000000/24.000000, type NVL/PIX, sameChannels 0"
    assert graph_line(comm, Algorithm.RING) == expected
    ring = comm.graphs[Algorithm.RING]
    # NET/3 GPU/0 GPU/1 NET/2, NET/2 GPU/1 GPU/0 NET/3, and once more: NET/3 is at GPU 0, NET/2 at GPU 1
    near = {int(comm.adapters(0)[0]): "at 0", int(comm.adapters(1)[0]): "at 1"}
    ways = [
        [near[int(a)], *map(int, gpus), near[int(b)]]
        for gpus, (a, b) in zip(ring.intra[0], ring.inter[0], strict=True)
    ]
    there, back = ["at 0", 0, 1, "at 1"], ["at 1", 1, 0, "at 0"]
    assert ways == [there, back, there, back]
    assert channels_line(comm) == (
        "8 coll channels, 0 collnet channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer"
    )
    assert (comm.hosts.kinds[0].search.max_bw, comm.hosts.kinds[0].search.total_bw) == (48.0, 370.8)


def apart() -> System:
    """Two GPUs on different sockets of Skylake Xeons, nothing else."""
    build = SystemBuilder()
    cpus = [
        build.add(Device(Kind.CPU, f"cpu{i}", index=i, cpu=Processor("x86_64", "GenuineIntel"))) for i in range(3)
    ]
    for i, cpu in enumerate((cpus[0], cpus[1])):
        gpu = build.add(Device(Kind.GPU, f"gpu{i}", index=i, capability=80))
        build.connect(gpu, cpu, LinkClass.PCI, 24.0)
    build.connect_cpus(dict.fromkeys(cpus, 10.0))
    return build.build()


def test_two_gpus_on_two_sockets() -> None:
    # https://github.com/NVIDIA/nccl/issues/1358
    expected = "crossNic 0, nChannels 1, bw 10.000000/10.000000, type SYS/PIX, sameChannels 1"
    assert line(searched(apart(), Pattern.RING, 18)) == f"Pattern 4, {expected}"
    assert line(searched(apart(), Pattern.BALANCED_TREE, 18, least=1, most=1)) == f"Pattern 1, {expected}"


def test_four_a100_joined_pairwise() -> None:
    # four links a pair (NV4): a published graph has 12 channels at 20 GB/s, the first 0 1 2 3, the second 0 1 3 2
    build = SystemBuilder()
    cpu = build.add(Device(Kind.CPU, "cpu0", index=0, cpu=Processor("x86_64", "AuthenticAMD")))
    gpus = [build.add(Device(Kind.GPU, f"gpu{i}", index=i, capability=80)) for i in range(4)]
    for i, gpu in enumerate(gpus):
        build.connect(gpu, cpu, LinkClass.PCI, 24.0)
        for other in gpus[:i]:
            build.connect(gpu, other, LinkClass.NVL, 80.0)
    system = build.build()
    found = searched(system, Pattern.RING, 21)
    assert (found.count, found.bw_intra, found.type_intra) == (12, 20.0, PathType.NVL)
    order = [[system.devices[gpu].index for gpu in channel] for channel in found.intra]
    assert order[:2] == [[0, 1, 2, 3], [0, 1, 3, 2]]


def test_one_gpu_a_host() -> None:
    # "Pattern 4 ... nChannels 1, bw 24.000000/24.000000, type LOC/PHB" and
    # "Pattern 3 ... nChannels 1, bw 48.000000/24.000000, type LOC/PHB": one GPU, 200G, through the processor
    twin = Twin(blueprint(2, "pcie-box", topology={"kind": "single-switch"}))
    comm = initialise(twin, [int(twin.fabric.gpu_node[g]) for g in (0, 2)], version="2.18.3")
    same = "nChannels 1, bw {}/24.000000, type LOC/PHB, sameChannels 1"
    assert graph_line(comm, Algorithm.RING) == "Pattern 4, crossNic 0, " + same.format("24.000000")
    assert graph_line(comm, Algorithm.TREE) == "Pattern 3, crossNic 0, " + same.format("48.000000")
    # "Tree 0 : -1 -> 0 -> 1/-1/-1" and "Tree 1 : 1 -> 0 -> -1/-1/-1"
    assert comm.channels.trees.up[:2, 0].tolist() == [-1, 1]
    assert comm.channels.trees.down[:2, 0].tolist() == [[1, -1, -1], [-1, -1, -1]]
    assert (comm.channels.rings.order == np.arange(2)).all()


def test_four_mi300x_have_what_three_links_carry() -> None:
    # https://github.com/ROCm/rccl/issues/1210: totalBw 144.0, three links of 48 GB/s
    comm = initialise(Twin(blueprint(1, "mi300x-8", switch="qm9700")), 4)
    assert comm.hosts.kinds[0].search.total_bw == 144.0
