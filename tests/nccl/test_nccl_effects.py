"""Every NCCL_* variable that the twin honours changes what it changes in NCCL: graph, choice, way or time."""

from __future__ import annotations

import ast
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from support.clusters import blueprint

import fabrictwin.nccl
import fabrictwin.tools
from fabrictwin import catalog
from fabrictwin.base.errors import SimulatedError
from fabrictwin.cluster.spec.packet_section import Packet
from fabrictwin.nccl.communicator.communicator import Communicator, initialise
from fabrictwin.nccl.lowering.lower import Lowering
from fabrictwin.nccl.lowering.queue_pair_options import packet_options
from fabrictwin.nccl.lowering.task_times import measure
from fabrictwin.nccl.lowering.tasks import COLLECTIVE, Task
from fabrictwin.nccl.lowering.transport import Route, Transport, Transports
from fabrictwin.nccl.settings.settings import NOT_FELT, VARIABLES, Settings, read_settings
from fabrictwin.nccl.topology.graph_types import Algorithm
from fabrictwin.nccl.topology.ip_interfaces import chosen, interfaces
from fabrictwin.nccl.tuning.tuner import Call, Choice, tuner
from fabrictwin.twin import Twin
from fabrictwin.validation.collective_series import _twin

A, T = Algorithm, Transport
MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


@cache
def twin(host: str = "dgx-h100", hosts: int = 2, technology: str = "infiniband") -> Twin:
    switch = {"infiniband": "qm8700" if "a100" in host else "qm9700", "ethernet": "spectrum-4"}[technology]
    return Twin(blueprint(hosts, host, technology=technology, switch=switch))


def tcp_is_known() -> bool:
    return catalog.chip(catalog.host("dgx-h100").chips["cpu"]).tcp_send is not None


@cache
def made(ranks: int, release: str, given: tuple[tuple[str, str], ...], host: str) -> Communicator:
    return initialise(twin(host), ranks, settings=read_settings(dict(given), release=release), version=release)


def comm(ranks: int = 16, *, release: str = "2.28.9", host: str = "dgx-h100", **variables: str) -> Communicator:
    return made(ranks, release, tuple(sorted(variables.items())), host)


def choice(communicator: Communicator, kind: str, size: int) -> Choice:
    return tuner(communicator).choose(Call(COLLECTIVE[kind], size))


def time(communicator: Communicator, kind: str = "all_reduce", size: int = 64 * MIB) -> int:
    chosen = choice(communicator, kind, size) if kind in COLLECTIVE else None
    return int(measure(communicator, [(Task(kind, size), chosen)], fidelity="analytic")[0])  # type: ignore[arg-type]


def routes(communicator: Communicator, algorithm: Algorithm = A.RING) -> list[Route]:
    """Every connection of the rings."""
    transports = Transports(communicator)
    graph = communicator.graphs[algorithm]
    return [
        transports.route(int(a), int(b), graph=graph, channel=channel)
        for channel, ring in enumerate(communicator.channels.rings.order)
        for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]


def ways(communicator: Communicator) -> set[Transport]:
    return {route.transport for route in routes(communicator)}


def test_algo_and_proto_are_timed_as_they_are_chosen() -> None:
    ring = comm(NCCL_ALGO="Ring", NCCL_PROTO="Simple")
    low = comm(NCCL_ALGO="Ring", NCCL_PROTO="LL")
    assert choice(ring, "all_reduce", MIB).algorithm == choice(low, "all_reduce", MIB).algorithm == A.RING
    assert time(low) > time(ring)
    assert time(low, size=1024) < time(ring, size=1024)


def test_numbers_of_channels() -> None:
    usual = comm().channels.collective
    assert comm(NCCL_MAX_NCHANNELS="4").channels.collective == 4
    assert comm(NCCL_MIN_NCHANNELS="32").channels.collective == 32
    assert comm(NCCL_MAX_CTAS="2").channels.collective == 2
    assert comm(NCCL_MAX_NRINGS="6").channels.collective == 6
    assert usual not in (2, 4, 6, 32)
    few = comm(NCCL_MAX_NCHANNELS="2", NCCL_ALGO="Ring")
    assert time(few) > 1.5 * time(comm(NCCL_ALGO="Ring"))
    sends = comm(8, NCCL_MAX_P2P_NCHANNELS="2")
    assert sends.channels.p2p == 2
    assert time(sends, "send_recv", 256 * MIB) > time(comm(8), "send_recv", 256 * MIB)


def test_buffsize_sets_the_chunk_that_fills_a_tree() -> None:
    def took(**variables: str) -> int:
        return time(comm(NCCL_ALGO="Tree", NCCL_PROTO="Simple", **variables))

    assert took(NCCL_BUFFSIZE="1048576") < took() < took(NCCL_BUFFSIZE="8388608")


def test_nthreads_holds_channels_back() -> None:
    ring = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    few = choice(comm(NCCL_NTHREADS="64", **ring), "all_reduce", 128 * 1024)
    many = choice(comm(**ring), "all_reduce", 128 * 1024)
    assert few.threads < many.threads
    assert few.channels > many.channels


def test_cross_nic() -> None:
    def crosses(communicator: Communicator) -> bool:
        ends = communicator.graphs[A.RING].inter
        return bool((ends[:, :, 0] != ends[:, :, 1]).any())

    assert crosses(comm())
    assert not crosses(comm(NCCL_CROSS_NIC="0"))
    assert comm(NCCL_CROSS_NIC="0").graphs[A.RING].cross_nic == 0


def test_nvls_enable() -> None:
    assert A.NVLS in comm(8).graphs
    off = comm(8, NCCL_NVLS_ENABLE="0")
    assert A.NVLS not in off.graphs
    assert off.channels.nvls == 0
    assert time(off, size=1024 * MIB) > time(comm(8), size=1024 * MIB)
    assert comm(8, NCCL_NVLS_NCHANNELS="8").channels.nvls == 8


def test_collnet_enable() -> None:
    on = comm(NCCL_COLLNET_ENABLE="1")
    assert A.COLLNET_CHAIN in on.graphs
    assert A.COLLNET_CHAIN not in comm().graphs
    assert A.COLLNET_CHAIN not in comm(NCCL_COLLNET_ENABLE="1", NCCL_COLLNET_NODE_THRESHOLD="3").graphs
    assert {a for a, _ in tuner(on).costs(Call("AllReduce", MIB))} > {
        a for a, _ in tuner(comm()).costs(Call("AllReduce", MIB))
    }


def test_p2p_disable_and_level() -> None:
    assert ways(comm(8)) == {T.P2P_NVLINK}
    assert ways(comm(8, NCCL_P2P_DISABLE="1")) == {T.SHM}
    assert ways(comm(8, NCCL_P2P_LEVEL="LOC")) == {T.SHM}
    assert ways(comm(8, NCCL_P2P_LEVEL="NVL")) == {T.P2P_NVLINK}
    assert time(comm(8, NCCL_P2P_DISABLE="1", NCCL_ALGO="Ring")) > 3 * time(comm(8, NCCL_ALGO="Ring"))


def test_shm_disable() -> None:
    assert ways(comm(8, NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")) == {T.NET_IB}


def test_gpudirect_level_and_read() -> None:
    def direct(communicator: Communicator) -> tuple[bool, bool]:
        over = [route.gdr for route in routes(communicator) if route.transport == T.NET_IB]
        return all(send for send, _ in over), all(receive for _, receive in over)

    assert direct(comm()) == (True, True)
    assert direct(comm(NCCL_NET_GDR_LEVEL="LOC")) == (False, False)
    assert direct(comm(NCCL_NET_GDR_LEVEL="SYS")) == (True, True)
    assert direct(comm(NCCL_NET_GDR_READ="0")) == (False, True)
    staged = comm(NCCL_NET_GDR_LEVEL="LOC", NCCL_ALGO="Ring")
    assert time(staged) > time(comm(NCCL_ALGO="Ring"))


def test_ib_hca_leaves_adapters() -> None:
    half = comm(NCCL_IB_HCA="=mlx5_0,mlx5_4,mlx5_6,mlx5_10", NCCL_ALGO="Ring")
    used = {route.nic_out for route in routes(half) if route.transport == T.NET_IB}
    assert len({nic % 8 for nic in used}) == 4
    assert time(half, size=1024 * MIB) > 1.5 * time(comm(NCCL_ALGO="Ring"), size=1024 * MIB)


@pytest.mark.parametrize("variables", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_HCA": "none"}, {"NCCL_NET": "Socket"}])
def test_no_verbs_means_sockets(variables: dict[str, str]) -> None:
    sockets = comm(NCCL_ALGO="Ring", **variables)
    assert T.NET_SOCKET in ways(sockets)
    assert T.NET_IB not in ways(sockets)


def test_ib_gid_index() -> None:
    def comes_up(index: str) -> bool:
        settings = read_settings({"NCCL_IB_GID_INDEX": index})
        return initialise(twin(technology="ethernet"), 16, settings=settings, strict=False).network.failure is None

    assert [comes_up(index) for index in ("0", "1", "2", "3")] == [False, False, False, True]


def test_roce_v1_cannot_be_marked() -> None:
    """It has no IP header, so what slows senders down by marks (DCQCN) is off."""

    def control(index: str, technology: str = "ethernet") -> str:
        section = Packet(control="dcqcn") if technology == "ethernet" else None
        return packet_options(section, technology, read_settings({"NCCL_IB_GID_INDEX": index})).congestion.control

    assert [control(index) for index in ("0", "1", "2", "3", "-1")] == ["none", "dcqcn", "none", "dcqcn", "dcqcn"]


def paths(communicator: Communicator) -> int:
    """Over how many paths a connection between hosts spreads its bytes."""
    call = choice(communicator, "all_reduce", MIB)
    found = Lowering(communicator)(Task("all_reduce", MIB), call).transport.connections
    assert found is not None
    return int(found.paths.max())


def test_queue_pairs() -> None:
    assert paths(comm(NCCL_ALGO="Ring")) == 1
    assert paths(comm(NCCL_ALGO="Ring", NCCL_IB_QPS_PER_CONNECTION="4")) == 4


def test_split_data_on_queue_pairs() -> None:
    """A message at a time takes one path unless it is split; and a split one is a message to each queue pair."""

    def of_one_send(**variables: str) -> int:
        found = Lowering(comm(NCCL_IB_QPS_PER_CONNECTION="4", **variables))(
            Task("send_recv", 16 * 1024)
        ).transport.connections
        assert found is not None
        return int(found.paths.max())

    assert of_one_send() == 1
    assert of_one_send(NCCL_IB_SPLIT_DATA_ON_QPS="1") == 4
    assert paths(comm(NCCL_ALGO="Ring", NCCL_IB_QPS_PER_CONNECTION="4", NCCL_IB_SPLIT_DATA_ON_QPS="1")) == 4
    turns = {
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
        "NCCL_IB_QPS_PER_CONNECTION": "8",
        "NCCL_BUFFSIZE": "4096",
    }
    assert time(comm(**turns)) < time(comm(**turns, NCCL_IB_SPLIT_DATA_ON_QPS="1"))


def test_mnnvl_enable() -> None:
    """A rack of 18 machines: one NVLink domain, or 18 hosts."""
    rack = _twin("gb200-nvl72", 1, "infiniband", "q3400")
    assert initialise(rack, 72).nodes == 1
    assert initialise(rack, 72, settings=read_settings({"NCCL_MNNVL_ENABLE": "0"})).nodes == 18


def test_net_disable_intra() -> None:
    alone = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    assert ways(comm(8, **alone)) == {T.NET_IB}
    with pytest.raises(SimulatedError, match="No transport found for rank"):
        ways(comm(8, **alone, NCCL_NET_DISABLE_INTRA="1"))
    assert ways(comm(8, NCCL_P2P_DISABLE="1", NCCL_NET_DISABLE_INTRA="1")) == {T.SHM}


def test_socket_family() -> None:
    def first(**variables: str) -> str:
        return str(chosen(read_settings(variables), interfaces(twin().fabric, 0))[0])

    assert first(NCCL_SOCKET_FAMILY="AF_INET") == first() == "ib0:10.1.0.1<0>"
    assert first(NCCL_SOCKET_FAMILY="AF_INET6") == "ib0:fe80::a01:001%ib0<0>"


def test_adaptive_routing_time_out_and_retries_set_up_queue_pairs() -> None:
    def options(technology: str, **variables: str) -> tuple[str, int, int]:
        found = packet_options(None, technology, read_settings(variables))
        return found.balance, found.transport.timeout, found.transport.retry_count

    assert options("infiniband") == ("adaptive", 20, 7)
    assert options("ethernet") == ("routed", 20, 7)
    assert options("infiniband", NCCL_IB_ADAPTIVE_ROUTING="0")[0] == "routed"
    assert options("ethernet", NCCL_IB_ADAPTIVE_ROUTING="1")[0] == "adaptive"
    assert options("infiniband", NCCL_IB_TIMEOUT="22", NCCL_IB_RETRY_CNT="3")[1:] == (22, 3)


def test_pxn_disable() -> None:
    def relayed(communicator: Communicator) -> bool:
        transports = Transports(communicator)
        return any(transports.route(0, 8 + k).pxn for k in range(8))

    assert relayed(comm())
    assert not relayed(comm(NCCL_PXN_DISABLE="1"))
    assert not relayed(comm(NCCL_P2P_PXN_LEVEL="0"))


@pytest.mark.skipif(not tcp_is_known(), reason="no processor of the catalog says what sockets cost it")
def test_sockets_are_slower_and_have_threads_and_several_connections() -> None:
    sockets = {"NCCL_IB_DISABLE": "1", "NCCL_ALGO": "Ring"}
    assert time(comm(**sockets)) > 3 * time(comm(NCCL_ALGO="Ring"))
    more = {**sockets, "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "2"}
    assert paths(comm(**sockets)) == 1
    assert paths(comm(**more)) == 8
    most = {**sockets, "NCCL_SOCKET_NTHREADS": "64", "NCCL_NSOCKS_PERTHREAD": "8"}
    assert paths(comm(**most)) == 64  # 16 threads of 4
    assert time(comm(**more)) < time(comm(**sockets))


def test_socket_ifname() -> None:
    def why(**variables: str) -> object:
        settings = read_settings(variables)
        return initialise(twin(), 16, settings=settings, strict=False).network.failure

    assert why(NCCL_SOCKET_IFNAME="eth0") is None
    assert why(NCCL_SOCKET_IFNAME="^eth0") is None
    assert why(NCCL_SOCKET_IFNAME="=ib") is not None
    # sockets have the interfaces that it leaves, and the management network is none of the fabric's
    assert why(NCCL_SOCKET_IFNAME="eth0", NCCL_IB_DISABLE="1") is not None
    sockets = {"NCCL_IB_DISABLE": "1", "NCCL_ALGO": "Ring"}
    one = comm(**sockets, NCCL_SOCKET_IFNAME="ib0")
    assert {route.nic_out % 8 for route in routes(one) if route.transport == T.NET_SOCKET} == {0}
    assert time(one, size=1024 * MIB) > 1.5 * time(comm(**sockets), size=1024 * MIB)


@pytest.mark.parametrize(
    ("technology", "variables", "level"),
    [
        ("infiniband", {}, None),
        ("infiniband", {"NCCL_IB_SL": "3", "NCCL_IB_TC": "106"}, 3),
        ("ethernet", {"NCCL_IB_TC": "106"}, 3),
        ("ethernet", {"NCCL_IB_TC": "0", "NCCL_IB_SL": "5"}, 0),
        ("ethernet", {"NCCL_IB_SL": "5"}, 5),
    ],
)
def test_service_level_and_traffic_class(technology: str, variables: dict[str, str], level: int | None) -> None:
    """Their effect on time is a matter of packets: test_nccl_packet."""
    found = initialise(twin(technology=technology), 16, settings=read_settings(variables), version="2.27")
    assert Lowering(found)(Task("send_recv", MIB)).transport.service_level == level


def test_what_is_not_felt_is_named() -> None:
    notes = read_settings({"NCCL_IB_MERGE_NICS": "0"}).notes
    assert any("an adapter of its own" in note.text for note in notes)


# --- nothing is ignored in silence, and the page says it all -------------------------------------------------


def test_every_setting_is_used_somewhere_or_named() -> None:
    used = set()
    for path in chain(*(Path(room.__file__).parent.rglob("*.py") for room in (fabrictwin.nccl, fabrictwin.tools))):
        if path.name in ("settings.py", "variable_values.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.add(node.value)
    used |= {"p2p_disable", "p2p_level"} if "p2p_limit" in used else set()
    silent = {name[5:].lower() for name in VARIABLES} - used - set(NOT_FELT)
    assert not silent


def test_the_page_has_every_variable_with_its_default() -> None:
    page = (ROOT / "docs" / "nccl-settings.md").read_text(encoding="utf-8")
    rows = {
        cells[0].strip("` "): [cell.strip() for cell in cells[1:]]
        for line in page.splitlines()
        if line.startswith("| `NCCL_")
        for cells in [line.strip("|").split("|")]
    }
    assert set(rows) == set(VARIABLES)
    for name, (default, meaning, effect) in rows.items():
        value = getattr(Settings, name[5:].lower())
        if isinstance(value, int) and not isinstance(value, bool):
            assert default.split(";")[0] == str(value), name
        assert meaning, name
        assert effect, name
        assert effect.startswith("none") == (name[5:].lower() in NOT_FELT), name
