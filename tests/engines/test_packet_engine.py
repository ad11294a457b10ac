"""The packet engine over compiled fabrics: it agrees with the flow engine where nothing is congested."""

from __future__ import annotations

import numpy as np
import pytest
from support.clusters import blueprint, boxes, dgx
from support.programs import operations, times

from fabrictwin.base.congestion_controls import CONTROLS, Tcp
from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.engines.analytic.analytic_engine import AnalyticEngine
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.flow.flow_engine import FlowEngine
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.fabric.fabric import NONE, LinkKind, NodeKind
from fabrictwin.kernel.packet.congestion import Control
from fabrictwin.program import collectives
from fabrictwin.twin import Twin

MIB = 1 << 20


def packet(twin, **options) -> PacketEngine:
    return PacketEngine(twin.fabric, twin.routes, options_with(**options))


def both(twin, communications, **options) -> tuple[list[int], list[int]]:
    nodes = twin.fabric.gpu_node
    return (
        times(FlowEngine(twin.fabric, twin.routes), communications, nodes),
        times(packet(twin, **options), communications, nodes),
    )


def memory(twin) -> np.ndarray:
    """The first GPU of every host."""
    _, first = np.unique(twin.fabric.node_host[twin.fabric.gpu_node], return_index=True)
    return twin.fabric.gpu_node[first]


def send(a: int, b: int, size: int = 16 * MIB):
    return collectives.send(np.array([[a, b]]), size)


@pytest.mark.parametrize(("a", "b"), [(0, 1), (0, 8), (3, 17)])
def test_an_uncontended_message_takes_what_the_flow_engine_says(a, b):
    flow, packets = both(dgx(), [send(a, b)])
    assert packets[0] == pytest.approx(flow[0], rel=0.03)


@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
def test_messages_of_any_size_over_one_to_five_switches_take_what_the_other_engines_say(technology):
    """Within 3 %, which is far more than the 16 bytes of a first packet's header that only packets know."""
    shape = {"kind": "fat-tree", "tiers": 3, "radix": 4}
    switch = "qm8700" if technology == "infiniband" else "spectrum-4"
    twin = Twin(blueprint(16, "pcie-box", technology=technology, switch=switch, topology=shape))
    nodes, hops = memory(twin), set()
    for to in (1, 2, 4):
        ends = np.array([0]), np.array([to])
        nics = PacketEngine(twin.fabric, twin.routes).network.connections.adapters(nodes[ends[0]], nodes[ends[1]])
        hops.add(int(np.diff(twin.routes.walk(*nics)[1])[0]) - 1)
        for size in (64, 1000, 4096, 4097, 10_000, 65_536, MIB, 16 * MIB):
            message = [send(0, to, size)]
            (packets,) = times(packet(twin), message, nodes)
            for other in (FlowEngine(twin.fabric, twin.routes), AnalyticEngine(twin.fabric)):
                (took,) = times(other, message, nodes)
                assert packets == pytest.approx(took, rel=0.03), (to, size, other.fidelity)
    assert hops == {1, 3, 5}


@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
def test_an_uncontended_permutation_takes_what_the_flow_engine_says(technology):
    flow, packets = both(boxes(8, technology), [send(i, (i + 3) % 8, 4 * MIB) for i in range(8)])
    assert packets == pytest.approx(flow, rel=0.03)


@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
def test_a_ring_over_plain_hosts_takes_what_the_flow_engine_says(technology):
    flow, packets = both(boxes(8, technology), [collectives.all_reduce(np.arange(8)[None], 16 * MIB)])
    assert packets[0] == pytest.approx(flow[0], rel=0.03)


@pytest.mark.parametrize("channels", [1, *(pytest.param(n, marks=pytest.mark.second) for n in (2, 8))])
def test_a_ring_all_reduce_of_64_mb_on_64_gpus_agrees_within_five_percent(channels):
    hosts = np.arange(64) // 8
    ring = collectives.all_reduce(np.arange(64)[None], 64_000_000, channels=channels, host_of_rank=hosts)
    flow, packets = both(dgx(8), [ring])
    assert packets[0] == pytest.approx(flow[0], rel=0.05)


@pytest.mark.parametrize(("size", "within"), [(64 * 1024, 0.05), (4 * MIB, 0.05)])
def test_rings_agree_where_latency_rules_as_well(size, within):
    """Channels share NVLink: the shards of one move while those of another are on their way."""
    everyone, hosts = np.arange(32)[None], np.arange(32) // 8
    for lower in (collectives.all_reduce, collectives.all_gather, collectives.reduce_scatter):
        flow, packets = both(dgx(), [lower(everyone, size, channels=8, host_of_rank=hosts)])
        assert packets[0] == pytest.approx(flow[0], rel=within)


@pytest.mark.parametrize(
    ("hosts", "channels", "size", "within"),
    [
        (1, 1, 8 * MIB, 0.01),
        (1, 2, MIB, 0.01),
        (1, 8, MIB, 0.02),
        (1, 8, 8 * MIB, 0.03),
        (1, 16, 8 * MIB, 0.02),
        (2, 8, 8 * MIB, 0.03),
        (4, 8, MIB, 0.03),
    ],
)
def test_chains_whose_channels_meet_on_nvlink_agree(hosts, channels, size, within):
    """Chunks of several channels take turns on a link, and come apart on their way."""
    ranks = np.arange(8 * hosts)
    chain = collectives.broadcast(ranks[None], size, channels=channels, host_of_rank=ranks // 8)
    flow, packets = both(dgx(hosts), [chain])
    assert packets[0] == pytest.approx(flow[0], rel=within)


@pytest.mark.parametrize(
    ("hosts", "channels", "size"), [(1, 2, MIB), (1, 16, MIB), (2, 2, 8 * MIB), (2, 8, 8 * MIB), (4, 8, MIB)]
)
def test_trees_whose_channels_meet_agree_within_two_percent(hosts, channels, size):
    """Up and down share links, and so do the two trees of a pair."""
    ranks = np.arange(8 * hosts)
    tree = collectives.all_reduce(ranks[None], size, algorithm="tree", channels=channels, host_of_rank=ranks // 8)
    flow, packets = both(dgx(hosts), [tree])
    assert packets[0] == pytest.approx(flow[0], rel=0.02)


@pytest.mark.parametrize(("channels", "size"), [(2, MIB), (8, MIB), (2, 8 * MIB)])
def test_rings_side_by_side_inside_a_host_agree_within_one_percent(channels, size):
    """They set out together: at first a link is idle while all shards are on their way."""
    ring = collectives.all_gather(np.arange(8)[None], size, channels=channels)
    flow, packets = both(dgx(), [ring])
    assert packets[0] == pytest.approx(flow[0], rel=0.01)


def test_every_port_carries_the_bytes_that_the_flow_engine_counts():
    twin = boxes(8)
    ring = collectives.all_reduce(np.arange(8)[None], 8 * MIB)
    flow, packets = FlowEngine(twin.fabric, twin.routes), packet(twin)
    for engine in (flow, packets):
        times(engine, [ring], twin.fabric.gpu_node)
    assert packets.counters().tx_bytes.tolist() == flow.counters().tx_bytes.tolist()


def test_operations_wait_for_each_other_and_compute_takes_its_time():
    twin = boxes(8)
    engine = packet(twin)
    engine.post(
        operations([NONE, 0, NONE, 1], [[], [0], [1], [1, 2]], [5_000_000, 0, 7_000_000, 0]),
        [send(0, 1, MIB), send(1, 2, MIB)],
        twin.fabric.gpu_node,
    )
    done = engine.advance().completions
    start, end = engine.started_ps(), engine.ended_ps()
    assert done.operation.tolist() == [0, 1, 2, 3]
    assert done.time_ps.tolist() == end.tolist()
    assert start.tolist() == [0, end[0], end[1], end[2]]
    assert end[0] == 5_000_000
    assert end[2] - start[2] == 7_000_000


def test_time_stops_where_it_is_asked_to_and_goes_on():
    twin = boxes(8)
    whole, parts = packet(twin), packet(twin)
    times(whole, [send(0, 5)], twin.fabric.gpu_node)
    parts.post(operations([0], [[]]), [send(0, 5)], twin.fabric.gpu_node)
    assert len(parts.advance(100_000_000).completions.operation) == 0
    assert parts.now_ps == 100_000_000
    assert parts.advance().completions.operation.tolist() == [0]
    assert parts.ended_ps().tolist() == whole.ended_ps().tolist()
    again = parts.post(operations([0], [[]]), [send(5, 0)], twin.fabric.gpu_node)
    assert again == 1
    parts.advance()
    assert parts.started_ps()[1] == whole.ended_ps()[0] or parts.started_ps()[1] >= parts.ended_ps()[0]


def test_without_gpudirect_a_message_crosses_pcie_twice_more():
    """Pipelined, the wire stays the bottleneck: what is left is a chunk's way through host memory at each end."""
    twin = dgx()
    size, chunk = 16 * MIB, 512 << 10
    nodes, fabric = twin.fabric.gpu_node, twin.fabric
    (direct,) = times(packet(twin), [send(0, 8, size)], nodes)
    engine = packet(twin, gpudirect=False, staging_ps=0)
    (staged,) = times(engine, [send(0, 8, size)], nodes)
    pcie = fabric.port_kind == LinkKind.PCIE
    slowest = int(fabric.port_payload_bps[pcie].min())
    crossing = chunk * 8 * 10**12 // slowest
    assert direct + 2 * crossing * 0.9 < staged < direct + 2 * crossing * 1.5
    cpus = np.flatnonzero(fabric.node_kind == NodeKind.CPU)
    into = np.isin(fabric.port_node[fabric.port_peer], cpus) & pcie
    assert engine.counters().tx_bytes[into].sum() == 2 * size  # once written by the GPU, once by the adapter


def test_one_chunk_without_gpudirect_costs_two_crossings_more():
    twin = dgx()
    size = 256 << 10
    nodes, fabric = twin.fabric.gpu_node, twin.fabric
    (direct,) = times(packet(twin), [send(0, 8, size)], nodes)
    (staged,) = times(packet(twin, gpudirect=False, staging_ps=0), [send(0, 8, size)], nodes)
    rate = int(fabric.port_payload_bps[fabric.port_kind == LinkKind.PCIE].min())
    assert staged - direct == pytest.approx(2 * size * 8e12 / rate, rel=0.15)


@pytest.mark.parametrize("balance", ["adaptive", "spray"])
@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
def test_other_ways_to_balance_deliver_the_same_bytes(technology, balance):
    twin = boxes(8, technology)
    engine = packet(twin, balance=balance)
    times(engine, [send(i, (i + 5) % 8, MIB) for i in range(8)], memory(twin))
    arrived = engine.counters().tx_bytes[twin.fabric.port_peer[twin.fabric.nic_port]]
    assert arrived.tolist() == [MIB] * 8


OF_ADAPTERS = [
    name
    for name, sets in CONTROLS.items()
    if name != "none" and not any(isinstance(one, Tcp) for one in sets.values())
]


@pytest.mark.parametrize("control", OF_ADAPTERS)
def test_congestion_control_runs_over_a_compiled_fabric(control):
    twin = boxes(8, "ethernet")
    engine = packet(twin, control=control)
    size = 16 * MIB  # longer than Swift's first round trips
    ends = times(engine, [send(i, 7, size) for i in range(4)], memory(twin))
    floor = 4 * size * 8e12 / int(twin.fabric.port_payload_bps[twin.fabric.nic_port[7]])
    assert max(ends) > floor
    network = engine.network
    asked = CONTROLS[control]
    if any("ecn_kmax_bytes" in one.switches(network.model.scale, 1) for one in asked.values()):
        assert engine.counters().ecn_marks.sum() > 0
    else:  # what the ends see has taken from every window
        state = network.machine.state
        own = getattr(state, control)[state.qp.control == Control[control.upper()]]
        assert len(own) >= 4
        assert (own.decreased_ps > 0).all()


def test_tcp_that_loses_the_end_of_a_message_waits_for_its_time_out_and_marks_spare_it():
    """Seven to one through a shallow buffer: CUBIC fills it and loses, DCTCP stays below."""
    twin = boxes(8, "ethernet")
    ends, drops = {}, {}
    for control in ("cubic", "dctcp"):
        engine = packet(twin, control=control, lossless=False, buffer_bytes=4 * MIB)
        ends[control] = max(times(engine, [send(i, 7, 8 * MIB) for i in range(7)], memory(twin)))
        drops[control] = int(engine.counters().drops.sum())
    assert drops["cubic"] > 0
    assert 200e9 < ends["cubic"] < 700e9  # at least 200 ms, at most some of them
    assert drops["dctcp"] == 0
    floor = 7 * 8 * MIB * 8e12 / int(twin.fabric.port_payload_bps[twin.fabric.nic_port[7]])
    assert ends["dctcp"] == pytest.approx(floor, rel=0.1)


def test_a_link_at_half_rate_halves_the_rate():
    twin = boxes(8)
    engine = packet(twin)
    (whole,) = times(packet(twin), [send(0, 5)], memory(twin))
    port = int(twin.fabric.nic_port[0])
    engine.change(TimedChange(engine.now_ps, port, int(twin.fabric.port_rate_bps[port]) // 2))
    (half,) = times(engine, [send(0, 5)], memory(twin))
    assert half == pytest.approx(2 * whole, rel=0.02)


def test_a_dead_link_uses_up_the_retries_and_says_between_whom():
    twin = boxes(8)
    engine = packet(twin, timeout=4, retry_count=2)
    engine.change(TimedChange(engine.now_ps, int(twin.fabric.port_peer[twin.fabric.nic_port[5]]), 0))
    engine.post(operations([0], [[]]), [send(0, 5, MIB)], memory(twin))
    with pytest.raises(
        SimulatedError, match=r"mlx5_0: IBV_WC_RETRY_EXC_ERR: 1 queue pairs gave up after 2 retries"
    ):
        engine.advance()


def test_what_would_take_too_long_is_refused_with_the_figure():
    twin = boxes(8)
    engine = packet(twin, packet_limit=1000)
    with pytest.raises(ConfigError, match=r"this program takes about .* packet-hops, the limit is 1e\+03: cut it"):
        engine.post(operations([0], [[]]), [send(0, 5)], memory(twin))


def test_what_would_not_fit_into_memory_is_refused_with_the_figure():
    twin = boxes(8)
    with pytest.raises(ConfigError, match=r"needs \d+ bytes, the limit is 200000"):
        times(packet(twin, memory_limit_bytes=200_000), [send(0, 5)], memory(twin))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("balance", "adaptiv", "did you mean 'adaptive'"),
        ("control", "dqcn", "did you mean 'dcqcn'"),
        ("dcqcn", "sigcomm", "did you mean 'sigcomm15'"),
        ("lanes", 3, "expected 1, 2, 4 or 8"),
        ("window_packets", 1000, "expected a power of two"),
        ("timeout", -1, "not negative"),
    ],
)
def test_options_that_do_not_exist_are_refused(key, value, message):
    with pytest.raises(ConfigError, match=message):
        options_with(**{key: value})


def test_the_same_seed_gives_the_same_times():
    twin = boxes(8, "ethernet")
    comms = [send(i, (i + 3) % 8, MIB) for i in range(8)]
    runs = [times(packet(twin, balance="adaptive", seed=3), comms, memory(twin)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_operations_may_stand_before_what_they_wait_for():
    twin = boxes(8)
    engine = packet(twin)
    engine.post(operations([0, NONE], [[1], []], [0, 3_000_000]), [send(0, 5, 4096)], memory(twin))
    engine.advance()
    start, end = engine.started_ps(), engine.ended_ps()
    assert start.tolist() == [3_000_000, 0]
    assert end[1] == 3_000_000 < end[0]


def test_operations_that_wait_for_each_other_are_said_to_stall():
    twin = boxes(8)
    engine = packet(twin)
    engine.post(operations([NONE, NONE], [[1], [0]], [1, 1]), [], memory(twin))
    with pytest.raises(SimulatedError, match="2 tasks are open and nothing will ever move again"):
        engine.advance()


def test_a_small_training_step_takes_what_the_flow_engine_says():
    from pathlib import Path

    from fabrictwin.cluster.spec.spec import read_spec
    from fabrictwin.engines.base.play import play
    from fabrictwin.runs.execute import prepare

    model = Path(__file__).parents[2] / "examples" / "models" / "llama-3-8b.json"
    network = {"technology": "infiniband", "switch": "qm9700", "topology": {"kind": "rail-optimised"}}
    training = {
        "model": str(model),
        "parallel": {"tp": 8, "pp": 2},
        "micro_batch_size": 1,
        "global_batch": 2,
        "sequence": 512,
        "precision": "bf16",
    }
    spec = read_spec(
        {
            "schema": 1,
            "name": "step",
            "cluster": {"hosts": {"type": "dgx-h100", "count": 2}, "network": network},
            "workload": {"training": training},
            "nccl": {"NCCL_NVLS_ENABLE": 0},  # packets are not reduced in switches
        }
    )
    prepared = prepare(spec)
    end = {
        fidelity: play(prepared.job.program, prepared.job.rank_node, prepared.twin.start_engine(fidelity)).end_ps
        for fidelity in ("flow", "packet")
    }
    assert end["packet"] == pytest.approx(end["flow"], rel=0.05)


@pytest.mark.parametrize(
    "options",
    [*({"control": name} for name in CONTROLS if name != "none"), {"lossless": False}],
)
def test_what_is_for_ethernet_is_refused_on_infiniband(options):
    twin = boxes(2)
    with pytest.raises(ConfigError, match="Ethernet"):
        PacketEngine(twin.fabric, twin.routes, options_with(**options))
