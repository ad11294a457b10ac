"""NCCL's log from the twin, read by a parser of real ones."""

from __future__ import annotations

import io
from copy import copy
from functools import cache

import numpy as np
import pytest
from support.clusters import blueprint
from support.nccl_log_parser import Log as Read
from support.nccl_log_parser import parse

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.faults import HostCause
from fabrictwin.nccl.communicator.communicator import Communicator, initialise
from fabrictwin.nccl.log.log import Log, Processes, file_name
from fabrictwin.nccl.log.log_connect import Connections, operation
from fabrictwin.nccl.log.log_init import Scene, initialisation
from fabrictwin.nccl.lowering.transport import Transports
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.topology.graph_types import Algorithm
from fabrictwin.nccl.topology.ip_interfaces import chosen, interfaces
from fabrictwin.nccl.tuning.tuner import Call, tuner
from fabrictwin.twin import Twin

RELEASES = ("2.18.3", "2.20.5", "2.21.5", "2.24.3", "2.27.7", "2.28.9", "2.30.7")
EVERYTHING = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}


@cache
def twin(hosts: int = 2, technology: str = "infiniband", host: str = "dgx-h100") -> Twin:
    switch = "qm9700" if technology == "infiniband" else "spectrum-4"
    return Twin(blueprint(hosts, host, technology=technology, switch=switch))


def scene_of(
    ranks: int = 16,
    *,
    release: str = "2.28.9",
    per_process: int = 1,
    causes: dict[int, tuple[HostCause, ...]] | None = None,
    on: Twin | None = None,
    **variables: str,
) -> Scene:
    settings = read_settings(variables, release=release)
    where = copy(on or twin())
    where.host_causes = causes or {}
    communicator = initialise(where, ranks, settings=settings, version=release, strict=False)
    transports = Transports(communicator)
    return Scene(communicator, settings, transports, Processes(communicator, per_process), tuner(communicator))


def text_of(scene: Scene, *calls: Call) -> str:
    out = io.StringIO()
    log = Log(scene.settings, scene.processes, out)
    connections = Connections(scene)
    log.write(initialisation(scene))
    if connections.at_once:
        log.write(connections.everything())
    for call in calls:
        choice = scene.tuner.choose(call)
        log.write(operation(scene, call, choice, count=call.nbytes // 4))
        log.write(connections.for_algorithm(choice.algorithm))
    return out.getvalue()


def read(scene: Scene, *calls: Call) -> Read:
    return parse(text_of(scene, *calls))


def everything(communicator: Communicator) -> list[tuple[int, int, int]]:
    """(channel, from, to) of every ring's connections."""
    return [
        (channel, int(a), int(b))
        for channel, ring in enumerate(communicator.channels.rings.order)
        for a, b in zip(ring, np.roll(ring, -1), strict=True)
    ]


@pytest.mark.parametrize("release", RELEASES)
def test_a_parser_of_real_logs_reads_every_line(release: str) -> None:
    scene = scene_of(release=release, NCCL_IB_TC="106", NCCL_ALGO="Ring", **EVERYTHING)
    c = scene.communicator
    log = read(scene, Call("AllReduce", 1 << 26))
    assert log.unread == []
    assert log.version == release
    assert log.hosts == {"host-0", "host-1"}
    assert len(log.processes) == 16
    assert log.started == log.complete == set(range(16))
    if release >= "2.20":
        assert log.ranks[11] == {"nRanks": 16, "nNodes": 2, "localRanks": 8, "localRank": 3, "MNNVL": 0}
    assert log.environment["NCCL_IB_TC"] == "106"
    assert log.network == {"IB"}
    assert log.adapters[0][:2] == ["mlx5_0:1/IB", "mlx5_3:1/IB"]
    assert log.bootstrap[0] == ("ib0", "10.1.0.1")
    assert set(log.gdr.values()) == {True}
    for channel, ring in enumerate(c.channels.rings.order):
        assert log.whole_rings[channel] == ring.tolist()
        for at, rank in enumerate(ring.tolist()):
            assert log.rings[channel, rank] == (ring[at - 1], ring[(at + 1) % 16])
    for (channel, rank), (down, up) in log.trees.items():
        assert down == c.channels.trees.down[channel, rank].tolist()
        assert up == c.channels.trees.up[channel, rank]
    collnet = () if release < "2.20" else (0,) if release < "2.21" else (c.channels.collective,)
    number = c.channels
    assert log.counts == {(number.collective, *collnet, number.nvls, number.p2p, number.p2p_per_peer)}
    assert len(log.patterns) == 16 * 3
    assert log.thresholds == {(8, 8, 64, 128, 8, 64, 512, 512)}


@pytest.mark.parametrize("release", ["2.21.5", "2.28.9"])
def test_every_connection_of_the_rings_is_told_once_by_each_end(release: str) -> None:
    scene = scene_of(release=release, NCCL_ALGO="Ring", **EVERYTHING)
    c = scene.communicator
    told = [via for via in read(scene, Call("AllReduce", 1 << 26)).via if via.transport == "NET"]
    node = c.placement.node_of_rank
    crossing = {(ch, a, b) for ch, a, b in everything(c) if node[a] != node[b]}
    for side in ("send", "receive"):
        mine = [(via.channel, via.source, via.target) for via in told if via.side == side]
        assert len(mine) == len(set(mine))
        assert set(mine) >= crossing
    assert all(via.gdr for via in told if via.side == "send")
    if release >= "2.22":
        # nothing but rings was used, so nothing else is connected
        assert {(via.channel, via.source, via.target) for via in told} == crossing


def test_without_crossing_both_ends_are_on_one_rail() -> None:
    scene = scene_of(NCCL_ALGO="Ring", NCCL_CROSS_NIC="0", **EVERYTHING)
    ends: dict[tuple[int, int, int], set[str]] = {}
    for via in read(scene, Call("AllReduce", 1 << 26)).via:
        if via.transport == "NET":
            ends.setdefault((via.channel, via.source, via.target), set()).add(via.detail.split("/")[1])
    assert {len(adapters) for adapters in ends.values()} == {1}
    assert set.union(*ends.values()) == {str(k) for k in range(8)}


def test_one_process_has_direct_pointers_several_use_cumem_or_ipc() -> None:
    def ways(release: str, per_process: int) -> set[str]:
        scene = scene_of(8, release=release, per_process=per_process, NCCL_ALGO="Ring", **EVERYTHING)
        return {via.detail for via in read(scene, Call("AllReduce", 1 << 26)).via}

    assert ways("2.28.9", 1) == {"CUMEM"}
    assert ways("2.18.3", 1) == {"IPC"}
    assert ways("2.28.9", 8) == {"direct pointer"}


def test_what_the_twin_chose_stands_in_the_log() -> None:
    for release, wanted in (
        ("2.21.5", ("", "1048576", "5", "2")),
        ("2.23.4", ("AllReduce", "1048576")),
        ("2.28.9", ("AllReduce", "1048576")),
    ):
        scene = scene_of(release=release, **EVERYTHING)
        call = Call("AllReduce", 1 << 20)
        choice = scene.tuner.choose(call)
        found = read(scene, call).choices[0]
        assert found[: len(wanted)] == wanted
        if release >= "2.24":
            assert found[2].replace("_", "") == choice.algorithm.name.replace("_", "")
            assert found[3:] == (choice.protocol.name, "0", str(choice.channels - 1))
        else:
            assert (int(found[2]), int(found[3])) == (choice.algorithm, choice.protocol)
            assert float(found[4]) == pytest.approx(choice.time_us, abs=1e-5)


def test_pxn_names_the_rank_whose_proxy_sends() -> None:
    # with one adapter left for each pair of GPUs, half of them send through their neighbour
    scene = scene_of(NCCL_ALGO="Ring", NCCL_IB_HCA="=mlx5_0,mlx5_4,mlx5_6,mlx5_10", **EVERYTHING)
    log = read(scene, Call("AllReduce", 1 << 26))
    assert log.adapters[0] == ["mlx5_0:1/IB", "mlx5_4:1/IB", "mlx5_6:1/IB", "mlx5_10:1/IB"]
    assert {via.detail.split("/")[1] for via in log.via if via.transport == "NET"} <= {"0", "1", "2", "3"}


def test_levels_and_subsystems() -> None:
    assert text_of(scene_of()) == ""
    assert text_of(scene_of(NCCL_DEBUG="VERSION")) == "NCCL version 2.28.9+cuda12.4\n"
    default = parse(text_of(scene_of(NCCL_DEBUG="INFO")))
    assert default.complete
    assert not default.patterns
    assert not default.gdr
    graph = parse(text_of(scene_of(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="GRAPH")))
    assert graph.patterns
    assert not graph.complete
    assert graph.rings
    net = parse(text_of(scene_of(NCCL_DEBUG="info", NCCL_DEBUG_SUBSYS="NET"), Call("AllReduce", 1 << 26)))
    assert net.gdr
    assert {via.transport for via in net.via} == {"NET"}
    tuning = text_of(scene_of(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING"))
    assert tuning.count("AllReduce |") == 3
    assert not parse(text_of(scene_of(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="^INIT,NET,P2P"))).complete


def test_trace_shows_the_lines_that_tell_rdma_from_sockets() -> None:
    call = Call("AllReduce", 1 << 26)
    rdma = text_of(scene_of(NCCL_DEBUG="TRACE"), call)
    assert "[send] via NET/IB/0/GDRDMA" in rdma
    assert "[receive] via NET/IB/0/GDRDMA" in rdma
    plain = text_of(scene_of(NCCL_DEBUG="TRACE", NCCL_IB_DISABLE="1"), call)
    assert "[send] via NET/Socket/0" in plain
    assert "NET/IB" not in plain


def test_the_whole_table_of_the_cost_model() -> None:
    scene = scene_of(8, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING", release="2.21.5")
    rows = [line for line in text_of(scene).splitlines() if "AllReduce |" in line]
    cells = [cell for row in rows for cell in row.split("|")[1:-1]]
    assert len(cells) == 18
    ring_ll = cells[3]
    tables = scene.tuner.tables
    assert ring_ll.strip().split("/")[0] == f"{tables.latency['AllReduce', Algorithm.RING, 0]:.1f}"


def everywhere(kind: str, **rest: object) -> dict[int, tuple[HostCause, ...]]:
    return {host: (HostCause(kind, **rest),) for host in range(2)}  # type: ignore[arg-type]


def test_no_gpudirect_module() -> None:
    scene = scene_of(NCCL_ALGO="Ring", causes=everywhere("no-gpudirect-module"), **EVERYTHING)
    log = read(scene, Call("AllReduce", 1 << 26))
    assert set(log.gdr.values()) == {False}
    assert not any(via.gdr for via in log.via)
    assert "Connected all rings, use ring PXN 0 GDR 0" in log.said


def test_container_without_devices_falls_to_sockets() -> None:
    scene = scene_of(NCCL_ALGO="Ring", causes=everywhere("no-rdma-devices"), **EVERYTHING)
    log = read(scene, Call("AllReduce", 1 << 26))
    assert log.no_device == 16
    assert log.network == {"Socket"}
    assert log.interfaces[0] == [f"ib{k}" for k in range(8)]
    assert {via.detail.split("/")[0] for via in log.via if via.transport == "NET"} == {"Socket"}


def test_a_filter_that_matches_no_adapter_falls_to_sockets() -> None:
    log = read(scene_of(NCCL_IB_HCA="mlx4", **EVERYTHING))
    assert log.environment["NCCL_IB_HCA"] == "mlx4"
    assert log.no_device == 16
    assert log.network == {"Socket"}


def test_too_little_locked_memory_ends_it() -> None:
    scene = scene_of(causes={1: (HostCause("locked-memory"),)}, **EVERYTHING)
    log = read(scene)
    assert log.warnings == ["Call to ibv_reg_mr failed with error Cannot allocate memory"] * 8
    assert log.started == set(range(16))
    assert not log.complete
    assert scene.communicator.network.failure is not None
    assert scene.communicator.network.failure.result == "ncclSystemError"


def test_an_interface_filter_that_excludes_all_ends_it() -> None:
    for scene in (
        scene_of(NCCL_SOCKET_IFNAME="=eno1", NCCL_DEBUG="WARN"),
        scene_of(causes={0: (HostCause("interface-filter"),)}, NCCL_DEBUG="WARN"),
    ):
        assert read(scene).warnings == ["Bootstrap : no socket interface found"]
        assert scene.communicator.network.failure is not None
        assert scene.communicator.network.failure.result == "ncclInternalError"


LINK_LOCAL = "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1"


@pytest.mark.parametrize(
    ("variables", "causes", "ending"),
    [
        ({}, None, ""),
        ({"NCCL_IB_GID_INDEX": "3"}, None, ""),
        ({"NCCL_IB_GID_INDEX": "1"}, None, LINK_LOCAL),
        ({"NCCL_IB_GID_INDEX": "9"}, None, "failed with 61 No data available"),
        ({}, everywhere("wrong-gid"), LINK_LOCAL),
    ],
)
def test_gids_that_no_router_passes_on(variables: dict, causes: dict | None, ending: str) -> None:
    comes_up = not ending
    log = read(scene_of(on=twin(2, "ethernet"), causes=causes, **variables, **EVERYTHING))
    assert bool(log.complete) == comes_up
    assert bool(log.warnings) != comes_up
    if not comes_up:
        assert ending in log.warnings[0]
    # InfiniBand has nothing of it
    assert read(scene_of(**variables, **EVERYTHING)).complete


@pytest.mark.parametrize(
    ("variables", "causes", "release", "line"),
    [
        ({"NCCL_IB_GID_INDEX": "0"}, None, "2.28.9", "status=IBV_WC_RETRY_EXC_ERR(12)"),
        ({"NCCL_IB_GID_INDEX": "2"}, None, "2.24.3", "with status=12 opcode=1"),
        ({}, everywhere("wrong-gid", gid="roce-v1"), "2.18.3", "with error 12, opcode 1"),
        ({}, None, "2.20.5", "with status=12 opcode=1"),  # which took GID 0 unasked
    ],
)
def test_roce_v1_connects_and_its_first_message_fails(
    variables: dict, causes: dict | None, release: str, line: str
) -> None:
    scene = scene_of(on=twin(2, "ethernet"), causes=causes, release=release, **variables, **EVERYTHING)
    assert read(scene).complete
    failed = scene.communicator.network.failure
    assert failed is not None
    assert failed.connected
    assert failed.result == "ncclRemoteError"
    assert line in failed.warning


def test_before_2_21_roce_needs_its_index() -> None:
    told = {"NCCL_IB_GID_INDEX": "3"}
    scene = scene_of(on=twin(2, "ethernet"), release="2.20.5", **told, **EVERYTHING)
    assert scene.communicator.network.failure is None


def test_interfaces_are_taken_as_nccl_takes_them() -> None:
    on_ib = interfaces(twin().fabric, 0)
    on_ethernet = interfaces(twin(2, "ethernet").fabric, 1)
    assert [each.name for each in chosen(read_settings({}), on_ib)] == [f"ib{k}" for k in range(8)]
    assert [each.name for each in chosen(read_settings({}), on_ethernet)][:3] == ["eth0", "eth1", "eth2"]
    only = chosen(read_settings({"NCCL_SOCKET_IFNAME": "eth0"}), on_ib)
    assert [str(each) for each in only] == ["eth0:10.0.0.1<0>"]
    assert len(chosen(read_settings({"NCCL_SOCKET_IFNAME": "^ib,eth"}), on_ib)) == 0


def test_roce_is_called_so() -> None:
    log = read(scene_of(on=twin(2, "ethernet"), **EVERYTHING))
    assert log.adapters[0][0] == "mlx5_0:1/RoCE"


def test_log_files(tmp_path) -> None:
    assert file_name("/x/%h.%p%%.%q", host="n1", pid=7) == "/x/n1.7%.%q"
    scene = scene_of(per_process=8, NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(tmp_path / "nccl.%h.%p"))
    out = io.StringIO()
    log = Log(scene.settings, scene.processes, out)
    log.write(initialisation(scene))
    log.close()
    assert out.getvalue() == "NCCL version 2.28.9+cuda12.4\n"
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["nccl.host-0.4000", "nccl.host-1.4000"]
    assert parse((tmp_path / files[1]).read_text()).complete == set(range(8, 16))
    broken = scene_of(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(tmp_path / "none" / "x"))
    with pytest.raises(ConfigError, match=r"NCCL_DEBUG_FILE: .* cannot be written"):
        Log(broken.settings, broken.processes, out).write(initialisation(broken))


def test_the_same_log_twice() -> None:
    call = Call("AllReduce", 1 << 26)
    assert text_of(scene_of(**EVERYTHING), call) == text_of(scene_of(**EVERYTHING), call)
