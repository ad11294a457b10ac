"""Other machines than the usual: GPUs of another maker, racks, switches that reduce."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.clusters import blueprint
from support.nccl_machines import twin_of

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.nccl.communicator.communicator import Algorithm, PathType, initialise
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.topology.detect import detect, system_of
from fabrictwin.nccl.topology.host_views import dump_topology
from fabrictwin.nccl.topology.system import Kind, LinkClass, NetPort
from fabrictwin.nccl.topology.topology_xml import to_xml
from fabrictwin.twin import Twin

SHARP = read_settings({"NCCL_COLLNET_ENABLE": "1"})


def test_gpus_of_another_maker_are_data() -> None:
    twin = Twin(blueprint(2, "mi300x-8", switch="qm9700"))
    system = detect(twin.fabric, 0)
    gpus = system.of(Kind.GPU)
    assert not system.of(Kind.NVS)
    for gpu in gpus:
        links = [system.links[n] for n in system.out[gpu] if system.links[n].kind == LinkClass.NVL]
        assert {link.to for link in links} == set(gpus) - {gpu}
        assert all(link.bw == 48.0 for link in links)
    one, two = initialise(twin, 8), initialise(twin)
    assert one.compute_capability == 94
    assert one.cpu == "amd"
    assert all(one.path(a, b).type == PathType.NVL for a in range(8) for b in range(8) if a != b)
    ring = one.graphs[Algorithm.RING]
    # a directed ring takes one of a GPU's seven links each way, so seven rings at a link's speed are the most
    assert 0 < ring.channels * ring.bw_intra <= 7 * 48.0
    assert Algorithm.NVLS not in one.graphs
    assert two.nodes == 2
    assert (np.sort(two.channels.rings.order, axis=1) == np.arange(16)).all()


def test_a_rack_is_one_domain_of_several_machines() -> None:
    twin = Twin(blueprint(1, "gb200-nvl72", switch="q3400", topology={"kind": "single-switch"}))
    comm = initialise(twin)
    assert comm.nodes == 1
    view = comm.hosts.kinds[0]
    assert view.system.parts == 18
    assert all(comm.path(0, b).type == PathType.NVL for b in range(1, 72))
    # an adapter is near the two GPUs of its superchip, out of reach from another machine
    assert comm.net_path(0, comm.adapters(0)[0]).type == PathType.P2C
    assert comm.net_path(0, comm.adapters(71)[0]).type == PathType.DIS
    assert comm.graphs[Algorithm.NVLS].channels
    assert (np.sort(comm.channels.rings.order, axis=1) == np.arange(72)).all()


def test_switches_that_reduce_where_they_are_asked_to() -> None:
    twin = Twin(blueprint(2, "dgx-h100", switch="qm9700"))
    assert Algorithm.COLLNET_CHAIN not in initialise(twin).graphs
    comm = initialise(twin, settings=SHARP)
    chain, direct = comm.graphs[Algorithm.COLLNET_CHAIN], comm.graphs[Algorithm.COLLNET_DIRECT]
    assert chain.channels == comm.graphs[Algorithm.RING].channels
    assert direct.channels <= 8
    heads = direct.intra[0, :, 0]
    assert len(set(heads.tolist())) == len(heads)
    assert Algorithm.COLLNET_CHAIN not in initialise(twin, 8, settings=SHARP).graphs
    few = read_settings({"NCCL_COLLNET_ENABLE": "1", "NCCL_COLLNET_NODE_THRESHOLD": "3"})
    assert Algorithm.COLLNET_CHAIN not in initialise(twin, settings=few).graphs
    ethernet = Twin(blueprint(2, "dgx-h100", switch="spectrum-4", technology="ethernet"))
    assert not catalog.switch("spectrum-4").sharp
    assert Algorithm.COLLNET_CHAIN not in initialise(ethernet, settings=SHARP).graphs


def test_many_hosts_alike_are_searched_once() -> None:
    twin = Twin(blueprint(128, "dgx-h100", switch="qm9700"))
    comm = initialise(twin)
    assert len(comm.hosts.kinds) == 1
    assert (np.sort(comm.channels.rings.order, axis=1) == np.arange(1024)).all()
    up = comm.channels.trees.up
    assert ((up == -1).sum(axis=1) == 1).all()
    # in two complementary trees no host is an inner one of both, but for the roots
    first, second = (comm.channels.trees.down[half] for half in (0, comm.channels.collective // 2))
    heads = comm.graphs[Algorithm.TREE].intra[:, 0, 0]
    inner = [(down[heads] != -1).sum(axis=1) > 1 for down in (first, second)]
    assert (inner[0] & inner[1]).sum() <= 2


def test_a_rack_whose_machines_are_taken_apart() -> None:
    twin = Twin(blueprint(1, "gb200-nvl72", switch="q3400", topology={"kind": "single-switch"}))
    comm = initialise(twin, settings=read_settings({"NCCL_MNNVL_ENABLE": "0"}))
    assert (comm.nodes, comm.ranks_per_node) == (18, 4)
    assert comm.path(0, 3).type == PathType.NVL
    assert comm.path(0, 4).type == PathType.NET
    assert all(view.system.parts == 1 for view in comm.hosts.kinds)
    assert (np.sort(comm.channels.rings.order, axis=1) == np.arange(72)).all()


def test_a_dumped_topology_reads_as_the_same_machine(tmp_path: Path) -> None:
    twin = Twin(blueprint(2, "dgx-h100", switch="qm9700"))
    path = tmp_path / "dump.xml"
    comm = initialise(twin, settings=read_settings({"NCCL_TOPO_DUMP_FILE": str(path)}))
    dump_topology(comm)
    again = initialise(twin, settings=read_settings({"NCCL_TOPO_FILE": str(path)}))
    np.testing.assert_array_equal(again.channels.rings.order, comm.channels.rings.order)
    assert again.graphs[Algorithm.RING].bw_inter == comm.graphs[Algorithm.RING].bw_inter
    nowhere = initialise(twin, settings=read_settings({"NCCL_TOPO_DUMP_FILE": str(tmp_path / "no" / "dump.xml")}))
    with pytest.raises(ConfigError, match="NCCL_TOPO_DUMP_FILE: cannot be written"):
        dump_topology(nowhere)


def test_a_topology_file_stands_for_what_is_detected(tmp_path: Path) -> None:
    twin = Twin(blueprint(2, "dgx-h100", switch="qm9700"))
    system = detect(twin.fabric, 0)
    slower = to_xml(system, link_gbps=20.6).replace("32.0 GT/s", "16.0 GT/s")
    path = tmp_path / "topo.xml"
    path.write_text(slower)
    comm = initialise(twin, settings=read_settings({"NCCL_TOPO_FILE": str(path)}))
    ring, before = comm.graphs[Algorithm.RING], initialise(twin).graphs[Algorithm.RING]
    assert (ring.bw_inter, before.bw_inter) == (24.0, 48.0)
    path.write_text(to_xml(detect(twin.fabric, 0, adapters=(0, 1)), link_gbps=20.6))
    with pytest.raises(ConfigError, match=r"topo.xml NCCL_TOPO_FILE: got 8 GPUs and 2 adapters, expected 8 and 8"):
        initialise(twin, settings=read_settings({"NCCL_TOPO_FILE": str(path)}))


def test_every_host_of_the_catalog_is_detected_with_one_pci_link_a_gpu() -> None:
    """Beside C2C too: searches take that link's rate for what is worth looking for."""
    for name in catalog.names("host"):
        nodes = catalog.host(name).nodes
        system = system_of(name, (NetPort(bw=25.0),) * nodes.nic)
        for gpu in system.of(Kind.GPU):
            links = [system.links[number] for number in system.out[gpu]]
            assert sum(link.kind == LinkClass.PCI for link in links) == 1, name


@pytest.mark.parametrize(
    ("host", "gbps", "nvls"),
    [
        ("hgx-h800", 8 * 20.6, True),
        ("hgx-h20", 18 * 20.6, True),
        ("mi325x-8", 7 * 48.0, False),
        ("mi355x-8", 7 * 57.6, False),
        ("h100-pcie-8", 64.0, False),
        ("a40-8", 32.0, False),
        ("dgx-1-v100", 6 * 20.0, False),
        ("dgx-2", 6 * 20.0, False),
    ],
)
def test_rings_inside_a_host_get_no_more_than_its_wires(host: str, gbps: float, nvls: bool) -> None:
    """NVLink of every GPU where all are joined; where pairs are, what PCIe carries between them."""
    one = initialise(twin_of(host, 1, "infiniband"), settings=read_settings({}))
    ring = one.graphs[Algorithm.RING]
    assert 0.2 * gbps <= ring.channels * ring.bw_intra <= gbps
    assert (Algorithm.NVLS in one.graphs) == nvls


@pytest.mark.parametrize("host", ["h100-pcie-8", "a40-8"])
def test_pairs_reach_each_other_by_their_bridge_and_others_by_pcie(host: str) -> None:
    one = initialise(twin_of(host, 1, "infiniband"), settings=read_settings({}))
    kinds = {(a, b): one.path(a, b).type for a in range(8) for b in range(8) if a != b}
    assert {pair for pair, kind in kinds.items() if kind == PathType.NVL} == {
        (a, b) for a, b in kinds if a // 2 == b // 2
    }
    assert all(kind != PathType.NVL for (a, b), kind in kinds.items() if a // 4 != b // 4)


def test_a_cube_mesh_of_v100_is_searched_as_nccl_prints_it() -> None:
    """Links of GPU 0 and 1 as NCCL's topology of a DGX-1 has them (NCCL issue 671); six rings use all of them."""
    twin = twin_of("dgx-1-v100", 1, "infiniband")
    system = detect(twin.fabric, 0)
    gpus = system.of(Kind.GPU)
    joined = {
        (gpus.index(node), gpus.index(link.to)): round(link.bw / 20.0)
        for node in gpus
        for link in (system.links[number] for number in system.out[node])
        if link.kind == LinkClass.NVL
    }
    assert {b: n for (a, b), n in joined.items() if a == 0} == {1: 1, 2: 1, 3: 2, 4: 2}
    assert {b: n for (a, b), n in joined.items() if a == 1} == {0: 1, 2: 2, 3: 1, 5: 2}
    assert all(sum(n for (a, _), n in joined.items() if a == gpu) == 6 for gpu in range(8))
    ring = initialise(twin, settings=read_settings({})).graphs[Algorithm.RING]
    assert (ring.channels, ring.bw_intra) == (6, 20.0)
    hops = [(int(path[i]), int(path[(i + 1) % 8])) for path in ring.intra[0] for i in range(8)]
    assert all(hops.count(pair) == n for pair, n in joined.items())
