"""The search for channels: compiled against recursive, what must hold of any result, small truths."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nccl_recursive_search import RecursiveSearch

from fabrictwin.nccl.search.graph_search import Channels, Search
from fabrictwin.nccl.search.search_order import Relaxation
from fabrictwin.nccl.settings.release_rules import Rules
from fabrictwin.nccl.topology.graph_types import PathType, Pattern
from fabrictwin.nccl.topology.system import Device, Kind, LinkClass, NetPort, Processor, System, SystemBuilder
from fabrictwin.nccl.topology.topology_paths import PathTable, Policy

VENDORS = ("GenuineIntel", "AuthenticAMD")
PATTERNS = tuple(Pattern)


@st.composite
def machines(draw: st.DrawFn) -> System:
    """One or two processors with PCI switches, GPUs and adapters below, and NVLinks in some form."""
    build = SystemBuilder()
    vendor = draw(st.sampled_from(VENDORS))
    capability = draw(st.sampled_from((70, 80, 90, 100)))
    pcie = draw(st.sampled_from((12.0, 24.0, 48.0)))
    cpus = [
        build.add(Device(Kind.CPU, f"cpu{i}", index=i, cpu=Processor("x86_64", vendor)))
        for i in range(draw(st.integers(1, 2)))
    ]
    gpus, nets = [], 0
    for cpu in cpus:
        for _ in range(draw(st.integers(0, 2))):
            switch = build.add(Device(Kind.PCI, f"pci{len(build.devices)}"))
            build.connect(switch, cpu, LinkClass.PCI, pcie)
            for _ in range(draw(st.integers(0, 2))):
                gpus.append(build.add(Device(Kind.GPU, "gpu", index=len(gpus), capability=capability)))
                build.connect(gpus[-1], switch, LinkClass.PCI, pcie)
            for _ in range(draw(st.integers(0, 1))):
                nic = build.add(Device(Kind.NIC, "nic"))
                bw = draw(st.sampled_from((12.5, 25.0, 50.0)))
                port = NetPort(asic=nets, bw=bw, coll=draw(st.booleans()))
                net = build.add(Device(Kind.NET, "net", index=nets, net=port))
                nets += 1
                build.connect(nic, net, LinkClass.NET, bw)
                build.connect(nic, switch, LinkClass.PCI, pcie)
    while len(gpus) < 2:
        gpus.append(build.add(Device(Kind.GPU, "gpu", index=len(gpus), capability=capability)))
        build.connect(gpus[-1], cpus[0], LinkClass.PCI, pcie)
    nvlink = draw(st.sampled_from(("none", "switch", "pairs")))
    if nvlink == "switch":
        switch = build.add(Device(Kind.NVS, "nvs"))
        for gpu in gpus:
            build.connect(gpu, switch, LinkClass.NVL, 80.0)
    elif nvlink == "pairs":
        for i, a in enumerate(gpus):
            for b in gpus[:i]:
                if draw(st.booleans()):
                    build.connect(a, b, LinkClass.NVL, draw(st.sampled_from((20.0, 40.0))))
    build.connect_cpus(dict.fromkeys(cpus, 10.0))
    return build.build()


def asked(pattern: Pattern, speed: float, draw_same: bool, types: tuple[int, int], cross: int) -> Channels:
    return Channels(
        pattern=pattern,
        bw_intra=speed,
        bw_inter=speed,
        type_intra=PathType(types[0]),
        type_inter=PathType(types[1]),
        cross_nic=cross,
        same=draw_same,
        least=1,
        most=6,
    )


@given(
    system=machines(),
    minor=st.sampled_from((18, 21, 23, 27, 28, 30)),
    inter=st.booleans(),
    pattern=st.sampled_from(PATTERNS),
    speed=st.sampled_from((3.0, 6.0, 12.0, 20.0, 24.0, 40.0)),
    same=st.booleans(),
    types=st.tuples(st.integers(1, 9), st.integers(4, 9)),
    cross=st.integers(0, 2),
)
@settings(max_examples=150)
def test_the_compiled_search_finds_what_the_recursive_one_does(
    system: System, minor: int, inter: bool, pattern: Pattern, speed: float, same: bool, types, cross: int
) -> None:
    table = PathTable(system, Rules((2, minor)), Policy())
    inter = inter and bool(table.nets)
    if pattern == Pattern.NVLS and not table.switches:
        pattern = Pattern.RING
    question = asked(pattern, speed, same, types, cross)
    if not inter and pattern == Pattern.NVLS:
        question = Channels(**{**vars(question), "most": len(table.gpus)})
    nothing = Channels(**{**vars(question), "bw_intra": 0.0, "bw_inter": 0.0})
    compiled = Search(table, inter=inter).run(question, nothing, 700)
    plain = RecursiveSearch(table, inter=inter).run(question, nothing, 700)
    assert compiled == plain


@given(system=machines(), minor=st.sampled_from((18, 21, 23, 28, 30)), inter=st.booleans())
@settings(max_examples=60)
def test_what_is_found_fits_on_the_links(system: System, minor: int, inter: bool) -> None:
    table = PathTable(system, Rules((2, minor)), Policy())
    inter = inter and bool(table.nets)
    search = Search(table, inter=inter)
    found = Relaxation(search, Pattern.RING, least=1, most=16, cross_nic=2, collnet=False).run()
    assert found.count
    if found.bw_intra < 1:
        return  # the simple order, when nothing was found
    load: Counter[int] = Counter()
    for channel, (enter, leave) in zip(found.intra, found.inter, strict=True):
        assert sorted(channel) == sorted(table.gpus)
        hops = list(pairwise(channel))
        if inter:
            hops += [(enter, channel[0]), (channel[-1], leave)]
        elif len(channel) > 1:
            hops.append((channel[-1], channel[0]))
        for a, b in hops:
            inside = a in table.gpus and b in table.gpus
            path = table(a, b)
            assert path.type <= (found.type_intra if inside else found.type_inter)
            for link in path.links:
                load[link] += found.bw_intra if inside else found.bw_inter
    for link, gbps in load.items():
        assert gbps <= system.links[link].bw + 0.01


def hosts(nvlinks: dict[tuple[int, int], float], gpus: int) -> System:
    build = SystemBuilder()
    cpu = build.add(Device(Kind.CPU, "cpu0", index=0, cpu=Processor("x86_64", "GenuineIntel")))
    numbers = [build.add(Device(Kind.GPU, f"gpu{i}", index=i, capability=80)) for i in range(gpus)]
    for gpu in numbers:
        build.connect(gpu, cpu, LinkClass.PCI, 24.0)
    for (a, b), bw in nvlinks.items():
        build.connect(numbers[a], numbers[b], LinkClass.NVL, bw)
    return build.build()


def test_a_ring_goes_along_the_only_ring_of_nvlinks() -> None:
    # 0-2-1-3-0: by number it would leave the NVLinks
    system = hosts({(0, 2): 40.0, (2, 1): 40.0, (1, 3): 40.0, (3, 0): 40.0}, 4)
    table = PathTable(system, Rules((2, 21)), Policy())
    found = Relaxation(
        Search(table, inter=False), Pattern.RING, least=1, most=16, cross_nic=2, collnet=False
    ).run()
    assert found.type_intra == PathType.NVL
    for ring in found.intra:
        order = [system.devices[gpu].index for gpu in ring]
        pairs = {frozenset(pair) for pair in zip(order, order[1:] + order[:1], strict=True)}
        assert pairs == {frozenset(p) for p in ((0, 2), (2, 1), (1, 3), (3, 0))}
    # both directions of every link carry all that they can
    assert found.count * found.bw_intra == pytest.approx(80.0)


def test_an_intel_root_complex_costs_a_fifth() -> None:
    def speed(vendor: str) -> float:
        build = SystemBuilder()
        cpu = build.add(Device(Kind.CPU, "cpu0", index=0, cpu=Processor("x86_64", vendor)))
        for i in range(4):
            gpu = build.add(Device(Kind.GPU, f"gpu{i}", index=i, capability=80))
            build.connect(gpu, cpu, LinkClass.PCI, 12.0)
        table = PathTable(build.build(), Rules((2, 21)), Policy())
        found = Relaxation(
            Search(table, inter=False), Pattern.RING, least=1, most=1, cross_nic=2, collnet=False
        ).run()
        return found.bw_intra * found.count

    assert (speed("AuthenticAMD"), speed("GenuineIntel")) == (12.0, 10.0)


def test_two_groups_of_nvlinked_gpus_get_two_rings_at_least() -> None:
    # pairs on two sockets: from 2.26 on one fast ring gives way to two
    build = SystemBuilder()
    cpus = [
        build.add(Device(Kind.CPU, f"cpu{i}", index=i, cpu=Processor("x86_64", "GenuineIntel"))) for i in (0, 1)
    ]
    gpus = [build.add(Device(Kind.GPU, f"gpu{i}", index=i, capability=80)) for i in range(4)]
    for i, gpu in enumerate(gpus):
        build.connect(gpu, cpus[i // 2], LinkClass.PCI, 24.0)
    build.connect(gpus[0], gpus[1], LinkClass.NVL, 80.0)
    build.connect(gpus[2], gpus[3], LinkClass.NVL, 80.0)
    build.connect_cpus(dict.fromkeys(cpus, 20.0))
    system = build.build()

    def rings(minor: int) -> int:
        table = PathTable(system, Rules((2, minor)), Policy())
        search = Search(table, inter=False)
        return Relaxation(search, Pattern.RING, least=1, most=16, cross_nic=2, collnet=False).run().count

    assert (rings(25), rings(26)) == (1, 2)
