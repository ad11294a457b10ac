"""NCCL's connections packet by packet: what NCCL_IB_* do to the time, and every way that bytes take."""

from __future__ import annotations

import numpy as np
import pytest
from support.clusters import boxes
from support.nccl_machines import chosen, communicator, twin_of

from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base.play import play
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import PacketOptions, options_with
from fabrictwin.fabric.fabric import NodeKind
from fabrictwin.nccl.communicator.communicator import Communicator, initialise
from fabrictwin.nccl.lowering.lower import Lowering
from fabrictwin.nccl.lowering.queue_pair_options import packet_options
from fabrictwin.nccl.lowering.task_times import measure, traffic
from fabrictwin.nccl.lowering.tasks import Kind, Task
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.topology.graph_types import Algorithm, Protocol
from fabrictwin.nccl.tuning.tuner import Choice
from fabrictwin.program import collectives
from fabrictwin.program.builder import ProgramBuilder
from fabrictwin.twin import Twin

A, P = Algorithm, Protocol
MIB = 1 << 20
TWO_LANES = {
    "infiniband": {"lanes": 2, "vl_high": ((1, 255),), "vl_low": ((0, 64),), "vl_high_limit": 255},
    "ethernet": {"lanes": 4, "strict_priorities": (3,)},
}


def beside(twin: Twin, packet: PacketOptions, *settings: dict[str, str]) -> list[int]:
    """Return the times in ps of sends of the same two GPUs at once, each under its settings."""
    fabric = twin.fabric
    ranks = np.array([fabric.gpu_node[0], fabric.gpu_node[8]], np.int32)
    builder = ProgramBuilder("beside", 2)
    actor = builder.actor("ranks", np.arange(2))
    for variables in settings:
        comm = initialise(twin, ranks, settings=read_settings(variables), version="2.27")
        number = builder.communication(Lowering(comm)(Task("send_recv", 4 * MIB)), [actor])
        builder.communicate(number, builder.label("send", "other"))
    trace = play(builder.build(), ranks, twin.start_engine("packet", packet))
    return [int(end - start) for start, end in zip(trace.start_ps, trace.end_op_ps, strict=True)]


@pytest.mark.second
@pytest.mark.parametrize(
    ("technology", "variables"),
    [
        ("infiniband", {"NCCL_IB_SL": "1"}),
        ("ethernet", {"NCCL_IB_TC": "106"}),  # DSCP 26, as RoCE usually has it: priority 3
        ("ethernet", {"NCCL_IB_SL": "3"}),
    ],
)
def test_service_level_and_traffic_class_decide_who_waits(technology: str, variables: dict[str, str]) -> None:
    twin = twin_of("dgx-h100", 2, technology)
    in_turns = options_with(lanes=4)
    equal = beside(twin, in_turns, variables, {})
    assert equal[0] == pytest.approx(equal[1], rel=0.05)
    before = options_with(**TWO_LANES[technology])  # type: ignore[arg-type]
    first, second = beside(twin, before, variables, {})
    assert first < 0.7 * equal[0]
    assert second == pytest.approx(equal[1], rel=0.05)


def test_levels_that_no_link_has() -> None:
    for variables in ({"NCCL_IB_SL": "16"}, {"NCCL_IB_TC": "256"}):
        with pytest.raises(ConfigError, match="NCCL_IB_"):
            Lowering(communicator(hosts=2, **variables))


def crossing(comm: Communicator) -> np.ndarray:
    """Ports of leaf switches towards spines."""
    fabric = comm.twin.fabric
    switch = fabric.node_kind[fabric.port_node] == NodeKind.SWITCH
    peer = np.where(fabric.port_peer < 0, 0, fabric.port_peer)
    up = switch & switch[peer] & (fabric.port_peer >= 0)
    return np.flatnonzero(up & (fabric.node_tier[fabric.port_node] < fabric.node_tier[fabric.port_node[peer]]))


@pytest.mark.second
def test_adaptive_routing_spreads_what_tables_do_not() -> None:
    """Two sends whose receivers the tables reach by the same spine, though there are two."""
    twin = boxes(8, "infiniband", 2)
    fabric = twin.fabric
    first = [int(fabric.gpu_node[fabric.node_host[fabric.gpu_node] == host][0]) for host in (0, 4, 1, 6)]

    def over(**variables: str) -> int:
        comm = initialise(twin, np.array(first, np.int32), settings=read_settings(variables), version="2.27")
        packet = packet_options(None, "infiniband", comm.settings)
        return int(measure(comm, [(Task("send_recv", 4 * MIB), None)], fidelity="packet", packet=packet)[0])

    default, off = over(), over(NCCL_IB_ADAPTIVE_ROUTING="0")
    assert default == over(NCCL_IB_ADAPTIVE_ROUTING="1")
    assert default < 0.7 * off


@pytest.mark.second
def test_queue_pairs_and_adaptive_routing_spread_what_ecmp_lets_meet() -> None:
    """On Ethernet each queue pair has a UDP source port, and ECMP sends it where its hash says."""
    twin = boxes(16, "ethernet")
    fabric = twin.fabric
    ranks = fabric.gpu_node[fabric.gpu_local[fabric.node_gpu[fabric.gpu_node]] == 0]

    def over(**variables: str) -> tuple[int, int]:
        comm = initialise(twin, ranks.astype(np.int32), settings=read_settings(variables), version="2.27")
        packet = packet_options(None, "ethernet", comm.settings)
        taken, counters = traffic(comm, Task("all_to_all", 4 * MIB), fidelity="packet", packet=packet)
        return taken, int(counters.tx_bytes[crossing(comm)].max())

    one, four, adaptive = over(), over(NCCL_IB_QPS_PER_CONNECTION="4"), over(NCCL_IB_ADAPTIVE_ROUTING="1")
    assert adaptive[0] < four[0] < one[0]
    assert adaptive[1] < four[1] < one[1]


WAYS: list[tuple[dict[str, str], Kind, Choice | None, int, float]] = [
    ({}, "all_reduce", chosen(A.RING, P.LL128, 8), 4 * MIB, 0.1),
    ({}, "all_reduce", chosen(A.TREE, P.LL, 8), MIB, 0.1),
    ({}, "all_to_all", None, 8 * MIB, 0.1),
    ({"NCCL_PXN_DISABLE": "1"}, "all_to_all", None, 8 * MIB, 0.1),
    ({"NCCL_NET_GDR_LEVEL": "LOC"}, "all_reduce", chosen(A.RING, P.SIMPLE, 8), 32 * MIB, 0.3),
    ({"NCCL_P2P_DISABLE": "1"}, "all_reduce", chosen(A.RING, P.SIMPLE, 8), 8 * MIB, 0.1),
    ({"NCCL_IB_DISABLE": "1"}, "all_reduce", chosen(A.RING, P.SIMPLE, 8), 8 * MIB, 0.1),
]


@pytest.mark.second
@pytest.mark.parametrize(("variables", "kind", "choice", "size", "apart"), WAYS)
def test_every_way_takes_the_same_links_and_about_as_long_as_on_flow(
    variables: dict[str, str], kind: Kind, choice: Choice | None, size: int, apart: float
) -> None:
    """Flags among the data, neighbours' adapters, host memory, sockets: none is left out on packets.

    Chunks that stand in host memory before they go on are what flow leaves out.
    """
    comm = communicator(hosts=2, **variables)
    on_flow, flow = traffic(comm, Task(kind, size), choice)
    on_packet, packet = traffic(comm, Task(kind, size), choice, fidelity="packet")
    np.testing.assert_allclose(packet.tx_bytes, flow.tx_bytes, rtol=1e-3, atol=4096)
    assert on_packet == pytest.approx(on_flow, rel=apart)


@pytest.mark.second
def test_sockets_on_packets_cost_the_proxys_thread() -> None:
    """A ring's pace is that of the thread that serves two of its connections, both ways."""
    comm = communicator(hosts=2, NCCL_IB_DISABLE="1")
    more = communicator(hosts=2, NCCL_IB_DISABLE="1", NCCL_SOCKET_NTHREADS="4", NCCL_NSOCKS_PERTHREAD="2")
    asked = [(Task("all_reduce", 16 * MIB), chosen(A.RING, P.SIMPLE, 8))]
    one, four = (int(measure(c, asked, fidelity="packet")[0]) for c in (comm, more))
    sends, reads = 8e12 / 89e9, 8e12 / 84e9
    # eight channels over four of the host's ranks: each thread sends and receives two eighths
    busy = 2 / 8 * 2 * 15 / 16 * 16 * MIB * (sends + reads)
    assert busy < one < 1.3 * busy
    assert four < 0.6 * one


def test_what_switches_reduce_is_refused_in_one_line() -> None:
    comm = communicator(hosts=2)
    with pytest.raises(ConfigError, match="NCCL_ALGO=Ring,Tree"):
        measure(comm, [(Task("all_reduce", MIB), chosen(A.NVLS_TREE, P.SIMPLE, 8))], fidelity="packet")


def test_communicators_have_queue_pairs_of_their_own() -> None:
    """Collectives of the same ranks share theirs; those of other ranks do not, though they join the same GPUs."""
    twin = twin_of("dgx-h100", 2)
    fabric = twin.fabric

    def queue_pairs(*groups: list[int]) -> int:
        """Between GPU 0 of either host, over communicators of these ranks."""
        engine = twin.start_engine("packet", PacketOptions())
        assert isinstance(engine, PacketEngine)
        builder = ProgramBuilder("two", 16)
        actor = builder.actor("ranks", np.arange(16))
        for ranks in groups:
            ring = collectives.all_reduce(np.array(ranks), MIB, element_bytes=4)
            builder.communicate(builder.communication(ring, [actor]), builder.label("all-reduce", "other"))
        play(builder.build(), fabric.gpu_node[:16].astype(np.int32), engine)
        pairs = engine.network.machine.state.qp[: engine.network.machine.queue_pairs]
        return int(((pairs.src == 0) & (pairs.dst == 8)).sum())

    assert queue_pairs([0, 8]) == queue_pairs([0, 8], [0, 8]) == 1
    assert queue_pairs([0, 8], [0, 8, 1, 9]) == 2


@pytest.mark.second
def test_queue_pairs_in_turns_and_all_at_once() -> None:
    """Without splitting a message takes one path of ECMP's, the next one the next; together they are as spread."""
    twin = boxes(16, "ethernet")
    fabric = twin.fabric
    ranks = fabric.gpu_node[fabric.gpu_local[fabric.node_gpu[fabric.gpu_node]] == 0].astype(np.int32)
    size = 4 * MIB

    def over(**variables: str) -> tuple[int, int]:
        settings = read_settings({"NCCL_IB_QPS_PER_CONNECTION": "4", **variables})
        comm = initialise(twin, ranks, settings=settings, version="2.27")
        choice = chosen(A.RING, P.SIMPLE, 1)
        taken, counters = traffic(comm, Task("all_reduce", size), choice, fidelity="packet")
        return taken, int(counters.tx_bytes[crossing(comm)].max())

    turns, split = over(), over(NCCL_IB_SPLIT_DATA_ON_QPS="1")
    assert turns[0] != split[0]
    assert turns[1] == pytest.approx(split[1], rel=0.2)
