"""Causes: what is wrong with a host, and what NCCL makes of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.faults import host_causes
from fabrictwin.cluster.spec.spec import Spec, read_spec
from fabrictwin.fabric.fabric import NodeKind
from fabrictwin.fabric.memory_paths import PathFinder
from fabrictwin.nccl.communicator.communicator import Algorithm, Communicator, PathType, initialise
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.twin import Twin
from fabrictwin.twin.routed_twin import make_twin


def spec(*faults: dict[str, Any]) -> Spec:
    network = {"technology": "infiniband", "switch": "qm9700", "topology": {"kind": "rail-optimised"}}
    cluster = {"hosts": {"type": "dgx-h100", "count": 2}, "network": network}
    return read_spec({"schema": 1, "name": "test", "cluster": cluster, "faults": list(faults)})


def twin(*faults: dict[str, Any]) -> Twin:
    read = spec(*faults)
    return make_twin(read, build(read.cluster, spec=read))


@cache
def sound() -> Communicator:
    return initialise(twin())


def test_nothing_is_wrong_unless_it_is_said() -> None:
    comm = sound()
    assert (comm.network.name, comm.network.causes, comm.network.failure) == ("IB", {}, None)
    assert comm.gpudirect(0, comm.adapters(0)[0], send=True)


def test_without_the_kernel_module_traffic_goes_through_the_processor() -> None:
    comm = initialise(twin({"host": "host-*", "cause": "no-gpudirect-module"}))
    adapter = comm.adapters(0)[0]
    assert comm.network.name == "IB"
    assert not comm.gpudirect(0, adapter, send=True)
    assert not comm.gpudirect(0, adapter, send=False)
    assert sound().net_path(0, adapter).type == PathType.PIX
    assert comm.net_path(0, adapter).type == PathType.PHB
    # and the search sees it: no PXN, farther, and Intel's root complex takes its share
    ring, before = comm.graphs[Algorithm.RING], sound().graphs[Algorithm.RING]
    assert ring.type_inter > before.type_inter
    assert ring.channels * ring.bw_inter < before.channels * before.bw_inter


def test_one_host_without_the_module_slows_all_down() -> None:
    comm = initialise(twin({"host": "host-1", "cause": "no-gpudirect-module"}))
    assert comm.gpudirect(0, comm.adapters(0)[0], send=True)
    assert not comm.gpudirect(8, comm.adapters(8)[0], send=True)
    assert comm.graphs[Algorithm.RING].type_inter >= PathType.PHB
    assert len(comm.hosts.kinds) == 2


def test_a_container_without_devices_is_left_with_sockets() -> None:
    comm = initialise(twin({"host": "host-*", "cause": "no-rdma-devices"}))
    assert comm.network.name == "Socket"
    assert not comm.gpudirect(0, comm.adapters(0)[0], send=True)
    with pytest.raises(SimulatedError, match="host-1: ncclInvalidUsage"):
        initialise(twin({"host": "host-1", "cause": "no-rdma-devices"}))
    # inside one host no network is needed
    assert initialise(twin({"host": "host-1", "cause": "no-rdma-devices"}), 8).nodes == 1


def test_locked_memory_ends_it_before_it_begins() -> None:
    low = twin({"host": "host-1", "cause": "locked-memory", "limit": "64 KiB"})
    with pytest.raises(SimulatedError, match="ibv_reg_mr failed with error Cannot allocate memory"):
        initialise(low)
    failed = initialise(low, strict=False).network.failure
    assert failed is not None
    assert (failed.host, failed.result) == (1, "ncclSystemError")
    assert initialise(low, 8).network.failure is None
    assert initialise(twin({"host": "host-1", "cause": "locked-memory", "limit": "1 GiB"})).network.failure is None


def test_a_filter_that_lets_nothing_through_ends_it_even_on_one_host() -> None:
    with pytest.raises(SimulatedError, match="no socket interface found"):
        initialise(twin({"host": "host-0", "cause": "interface-filter", "interfaces": "eth7"}), 8)


def test_the_rest_is_for_whoever_connects() -> None:
    comm = initialise(
        twin({"host": "host-0", "cause": "acs"}, {"host": "*", "cause": "wrong-gid", "gid": "roce-v1"})
    )
    assert [cause.kind for cause in comm.network.causes[0]] == ["acs", "wrong-gid"]
    assert comm.network.causes[1][0].gid == "roce-v1"


def test_access_control_leads_peers_over_the_root_complex() -> None:
    twins = twin(), twin({"host": "host-0", "cause": "acs"})
    plain = twins[0].fabric
    before, after = (PathFinder(one.fabric, one.routes) for one in twins)
    adapters = plain.nic_node[plain.node_host[plain.nic_node] == 0]
    gpus, cpus = (
        np.flatnonzero((plain.node_host == 0) & (plain.node_kind == k)) for k in (NodeKind.GPU, NodeKind.CPU)
    )
    longer = 0
    for gpu in gpus.tolist():
        for adapter in adapters.tolist():
            ports = [f.inside(np.array([gpu]), np.array([adapter]))[1].tolist() for f in (before, after)]
            passed = [set(plain.port_node[p[1:]].tolist()) for p in ports]
            assert passed[1] & set(cpus.tolist())
            nodes = [gpu, *plain.port_node[plain.port_peer[ports[1]]].tolist()]
            assert nodes[1:-1] == plain.port_node[ports[1][1:]].tolist()
            assert nodes[-1] == adapter
            longer += not passed[0] & set(cpus.tolist())
            assert (ports[0] == ports[1]) == bool(passed[0] & set(cpus.tolist()))
    assert longer >= len(gpus)  # every GPU has an adapter below its own switch
    # NVLink knows nothing of it
    assert np.array_equal(before.inside(gpus[:1], gpus[1:2])[1], after.inside(gpus[:1], gpus[1:2])[1])
    # the other host is as it was
    other = plain.gpu_node[8:9], plain.nic_node[plain.node_host[plain.nic_node] == 1][:1]
    assert np.array_equal(before.inside(*other)[1], after.inside(*other)[1])


def test_settings_that_change_what_is_found() -> None:
    whole = twin()

    def comm(**variables: Any) -> Communicator:
        given = {f"NCCL_{name.upper()}": str(value) for name, value in variables.items()}
        return initialise(whole, settings=read_settings(given))

    assert comm(ib_disable=1).network.name == "Socket"
    assert comm(net="Socket").network.name == "Socket"
    assert comm(ib_hca="=none").network.name == "Socket"
    one = comm(ib_hca="=mlx5_0")
    assert {int(a) for a in one.graphs[Algorithm.RING].inter[0].ravel()} == {0}
    assert one.graphs[Algorithm.RING].channels * one.graphs[Algorithm.RING].bw_inter <= 50
    assert comm(cross_nic=0).graphs[Algorithm.RING].cross_nic == 0
    assert comm(max_nchannels=3).channels.collective == 3
    assert comm(min_nchannels=20).channels.collective == 20
    assert Algorithm.NVLS not in comm(nvls_enable=0).graphs
    apart = comm(p2p_disable=1)
    assert not apart.direct(0, 1)
    assert apart.path(0, 1).type >= PathType.PHB
    assert comm(p2p_level="NVL").direct(0, 1)
    assert comm(pxn_disable=1).proxy(0, comm().adapters(1)[0]) == 0
    assert comm().proxy(0, comm().adapters(1)[0]) == 1
    assert not comm(net_gdr_level="LOC").gpudirect(0, 0, send=True)
    assert not comm(net_gdr_read=0).gpudirect(0, 0, send=True)
    assert comm(net_gdr_read=0).gpudirect(0, 0, send=False)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"host": "host-9", "cause": "acs"}, "no host of the cluster, did you mean 'host-"),
        ({"host": "host-0", "cause": "acs", "limit": "1 KiB"}, "means nothing without cause: locked-memory"),
        ({"host": "host-0", "cause": "asc"}, "did you mean 'acs'"),
        ({"host": "host-0"}, "missing"),
    ],
)
def test_faults_that_cannot_be(fault: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        twin(fault)


def test_the_same_cause_twice() -> None:
    read = spec({"host": "host-0", "cause": "acs"}, {"host": "*", "cause": "acs"})
    with pytest.raises(ConfigError, match=r"faults\[1\].host: got 'acs' for host-0"):
        host_causes(build(read.cluster, spec=read), read)


def test_a_saved_twin_keeps_its_causes(tmp_path: Any) -> None:
    broken = twin({"host": "host-1", "cause": "locked-memory", "limit": "1 KiB"})
    broken.save(tmp_path / "twin.npz")
    assert Twin.load(tmp_path / "twin.npz").host_causes == broken.host_causes
