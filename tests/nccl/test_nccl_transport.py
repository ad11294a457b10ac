"""What turning things off costs, and how bytes travel then: transports chosen and their times."""

from __future__ import annotations

import numpy as np
import pytest
from support.nccl_machines import chosen, communicator, twin_of

from fabrictwin.fabric.fabric import NodeKind
from fabrictwin.nccl.communicator.communicator import Communicator, initialise
from fabrictwin.nccl.lowering.task_times import measure, traffic
from fabrictwin.nccl.lowering.tasks import Kind, Task
from fabrictwin.nccl.lowering.transport import Transport, Transports
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.topology.graph_types import Algorithm, Protocol
from fabrictwin.validation.collective_series import _twin

A, P = Algorithm, Protocol
GIB = 1 << 30


def ring_time(comm: Communicator, size: int = GIB, kind: Kind = "all_reduce") -> int:
    choice = None if kind == "all_to_all" else chosen(A.RING, P.SIMPLE, comm.channels.collective)
    return int(measure(comm, [(Task(kind, size), choice)])[0])


@pytest.fixture(scope="module")
def pair() -> Communicator:
    return communicator(hosts=2)


def test_transports_in_nccls_order(pair: Communicator) -> None:
    ways = Transports(pair)
    assert ways.route(0, 0).transport == Transport.SELF
    assert ways.route(0, 1).transport == Transport.P2P_NVLINK
    far = ways.route(0, 8)
    assert (far.transport, far.gdr, far.pxn) == (Transport.NET_IB, (True, True), False)
    other_rail = ways.route(0, 9)
    assert other_rail.pxn  # a neighbour's adapter on the receiver's rail
    assert other_rail.out == pair.placement.rank_node[1]


@pytest.mark.parametrize(
    ("environment", "transport"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, Transport.SHM),
        ({"NCCL_P2P_LEVEL": "LOC"}, Transport.SHM),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, Transport.NET_IB),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}, Transport.NET_SOCKET),
    ],
)
def test_inside_a_host(environment: dict[str, str], transport: Transport) -> None:
    comm = communicator("pcie-box", 2, **environment)
    found = Transports(comm).route(0, 1)
    assert found.transport == transport
    assert comm.twin.fabric.node_kind[found.out] == NodeKind.CPU  # the adapter is beyond it: no GPUDirect either


@pytest.mark.parametrize(
    "environment", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_HCA": "=none"}, {"NCCL_NET": "Socket"}]
)
def test_sockets_cost_an_order_of_magnitude(pair: Communicator, environment: dict[str, str]) -> None:
    sockets = communicator(hosts=2, **environment)
    assert Transports(sockets).route(0, 8).transport == Transport.NET_SOCKET
    assert 8 < ring_time(sockets) / ring_time(pair) < 40


def test_more_socket_threads_carry_more() -> None:
    one = communicator(hosts=2, NCCL_IB_DISABLE="1")
    four = communicator(hosts=2, NCCL_IB_DISABLE="1", NCCL_SOCKET_NTHREADS="4", NCCL_NSOCKS_PERTHREAD="4")
    assert ring_time(one) > 2 * ring_time(four)


def test_gpudirect_off_on_gh200_as_measured() -> None:
    """NVIDIA/nccl issue 1579: 96.1 GB/s with GPUDirect RDMA, 79.7 without it."""
    twin = _twin("gh200-4x200", 2, "infiniband", "qm8700")

    def bus_gbps(**environment: str) -> float:
        comm = initialise(twin, settings=read_settings(environment), version="2.27")
        return 4 * GIB / ring_time(comm, 4 * GIB) * 1e3

    assert bus_gbps() == pytest.approx(96.07, rel=0.07)
    assert bus_gbps(NCCL_NET_GDR_C2C="0") == pytest.approx(79.72, rel=0.07)


def test_without_gpudirect_pcie_carries_everything_twice(pair: Communicator) -> None:
    staged = communicator(hosts=2, NCCL_NET_GDR_LEVEL="LOC")
    assert Transports(staged).route(0, 8).gdr == (False, False)
    assert ring_time(staged) > 1.5 * ring_time(pair)


def test_pxn_off_leaves_the_rail() -> None:
    """An all-to-all over rails: with PXN nothing crosses the spines; without, seven of eight blocks do."""
    on, off = communicator(hosts=4), communicator(hosts=4, NCCL_PXN_DISABLE="1")
    assert Transports(off).route(0, 9).pxn is False
    fabric = on.twin.fabric
    switch = fabric.node_kind[fabric.port_node] == NodeKind.SWITCH
    peer = np.where(fabric.port_peer < 0, 0, fabric.port_peer)
    trunks = np.flatnonzero(switch & switch[peer] & (fabric.port_peer >= 0))
    task = Task("all_to_all", 32 << 20)
    crossing = [int(traffic(comm, task)[1].tx_bytes[trunks].sum()) for comm in (on, off)]
    assert crossing[0] == 0
    # each rank sends to 24 others, 21 of them on other rails, up and down a spine
    assert crossing[1] == 32 * 21 * (task.size_bytes // 32) * 2


def test_nvls_off_costs_what_was_measured() -> None:
    """H200, 8 GiB: 473 GB/s with NVLS on eight GPUs, 366 without."""
    comm = communicator("dgx-h200")
    nvls, ring = measure(
        comm,
        [(Task("all_reduce", 8 * GIB), chosen(a, P.SIMPLE, 16 if a == A.NVLS else 24)) for a in (A.NVLS, A.RING)],
    )
    assert ring / nvls == pytest.approx(1.29, rel=0.05)


def test_one_rail_down_costs_its_share() -> None:
    """One of eight rails at a tenth of its rate: the ring channels on it set the pace of their slices."""
    twin = twin_of("dgx-h100", 2)
    fabric = twin.fabric
    healthy = ring_time(communicator(hosts=2))
    port = int(fabric.nic_port[3])
    try:
        for end in (port, int(fabric.port_peer[port])):
            twin.link_rate_bps[end] = int(fabric.port_rate_bps[end]) // 10
        slow = ring_time(communicator(hosts=2))
    finally:
        twin.link_rate_bps.clear()
    assert 5 < slow / healthy < 11


def test_a_rail_without_a_cable_is_left_out() -> None:
    from support.clusters import blueprint

    from fabrictwin.twin import Twin

    whole = twin_of("dgx-h100", 2)
    cables = whole.blueprint.cables
    switches = len(whole.blueprint.switches)
    gone = [i for i in range(len(cables)) if switches + 3 in (int(cables.a_node[i]), int(cables.b_node[i]))]
    twin = Twin(blueprint(2, "dgx-h100", switch="qm9700"), dead=tuple(gone))
    comm = initialise(twin, settings=read_settings({}), version="2.27")
    assert 3 not in {Transports(comm).route(int(r), 8).nic_out for r in range(8)}
    healthy = initialise(whole, settings=read_settings({}), version="2.27")
    assert ring_time(comm) > 1.05 * ring_time(healthy)


@pytest.mark.second
@pytest.mark.parametrize("algorithm", [A.RING, A.TREE])
def test_packet_and_flow_put_the_same_bytes_on_links(algorithm: Algorithm) -> None:
    comm = communicator(hosts=2)
    task, choice = Task("all_reduce", 1 << 20), chosen(algorithm, P.SIMPLE, 8)
    on_flow, flow = traffic(comm, task, choice, fidelity="flow")
    on_packet, packet = traffic(comm, task, choice, fidelity="packet")
    network = np.flatnonzero(np.isin(comm.twin.fabric.port_kind, (3, 4)))
    assert flow.tx_bytes[network].sum() == packet.tx_bytes[network].sum()
    assert on_packet == pytest.approx(on_flow, rel=0.15)


@pytest.mark.second
def test_64_mib_on_eight_hosts_packet_by_packet() -> None:
    """Bytes on every link are the ring's closed form; the time is within 5 % of flow."""
    comm = communicator(hosts=8)
    size, n = 64 << 20, comm.ranks
    task, choice = Task("all_reduce", size), chosen(A.RING, P.SIMPLE, 8)
    on_flow, flow = traffic(comm, task, choice, fidelity="flow")
    on_packet, packet = traffic(comm, task, choice, fidelity="packet")
    fabric = comm.twin.fabric
    out = packet.tx_bytes[fabric.nic_port]
    assert out.sum() == 8 * 2 * (n - 1) * size // n  # eight channels leave and enter each of eight hosts once
    np.testing.assert_array_equal(packet.tx_bytes[fabric.nic_port], flow.tx_bytes[fabric.nic_port])
    assert on_packet == pytest.approx(on_flow, rel=0.05)
