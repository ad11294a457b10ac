"""Single messages on the packet engine: what happens to them, when, and to whose cost."""

from __future__ import annotations

import numpy as np
import pytest
from support.clusters import boxes, dgx
from support.flow_options import flow_options
from support.programs import operations

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.messages import (
    NAK_REMOTE_ACCESS,
    EventKind,
    Message,
    Opcode,
    Posting,
    Service,
)
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.fabric.fabric import NodeKind
from fabrictwin.kernel.packet.invariants import violations
from fabrictwin.program import collectives

BEGUN, ARRIVED, ENDED = EventKind.BEGUN, EventKind.ARRIVED, EventKind.ENDED
FAILED, NOT_READY, LOST = EventKind.FAILED, EventKind.NOT_READY_FAILED, EventKind.LOST
US = 1_000_000
UC = flow_options(service=Service.UNRELIABLE_CONNECTION)
UD = flow_options(service=Service.UNRELIABLE_DATAGRAM)


def engine(technology: str = "infiniband", **options) -> PacketEngine:
    twin = boxes(8, technology)
    return PacketEngine(twin.fabric, twin.routes, options_with(**options))


def settle(s: PacketEngine) -> list[tuple[int, int, EventKind]]:
    """Everything that happens, to the end; laws of the kernel hold then."""
    seen = []
    while events := s.advance().events:
        assert [e.time_ps for e in events] == [s.now_ps] * len(events)
        seen += events
    assert s.idle
    assert violations(s.network.machine.state) == []
    return seen


def kinds(seen, message) -> list[EventKind]:
    return [e.kind for e in seen if e.message == message]


def walk_ps(fabric, ports) -> int:
    ports = list(ports)
    passed = fabric.node_latency_ps[fabric.port_node[ports[1:]]]
    return int(fabric.port_latency_ps[ports].sum() + passed.sum())


@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
@pytest.mark.parametrize("target", [1, 7])  # on the same leaf, and across the spines
def test_a_write_takes_the_sum_of_its_parts(technology, target):
    s = engine(technology)
    fabric, network = s.fabric, s.network
    size, flow = 64, s.open(0, target)
    m = s.send(flow, Message(size, Opcode.WRITE))
    seen = settle(s)
    assert kinds(seen, m) == [ARRIVED, ENDED]
    cpu = [n for n in range(fabric.nodes) if fabric.node_kind[n] == NodeKind.CPU]
    out = network.connections.inside(cpu[0], int(fabric.nic_node[0]))[0][1]
    into = network.connections.inside(int(fabric.nic_node[target]), cpu[target])[0][1]
    wires, _ = network.routes.walk(np.array([0], np.int32), np.array([target], np.int32))
    wire = size + network.model.headers.data + 16
    ps = 0
    for at, port in enumerate([*out, *wires, *into]):
        internal = port in out or port in into
        bps = int(fabric.port_payload_bps[port] if internal else fabric.port_rate_bps[port])
        serial = (size if internal else wire) * 8 * 10**12 / bps
        # cut through: a packet is stored once, where its last link ends, and where a link is faster than the last
        last = at == len(out) + len(wires) + len(into) - 1 or port == wires[-1] or port == out[-1]
        ps += int(fabric.port_latency_ps[port]) + (serial if last else 0)
    path = [*out, *wires, *into]
    nodes = [int(fabric.port_node[p]) for p in path[1:]]
    # an adapter that takes packets from the wire forwards none
    ps += sum(int(fabric.node_latency_ps[n]) for n in nodes if n != fabric.nic_node[target])
    # memory is read and written behind a root port; the work request comes with the doorbell
    processor = catalog.chip(fabric.type_names[int(fabric.node_type[cpu[0]])])
    assert processor.memory_latency is not None
    memory, root = processor.memory_latency.value, processor.latency.value // 2
    nic = catalog.nic(fabric.type_names[int(fabric.node_type[fabric.nic_node[0]])])
    before = nic.doorbell.value + nic.processing.value + walk_ps(fabric, out) + 2 * root + memory
    expected = before + ps + root + memory + int(fabric.nic_deliver_ps[target])
    assert seen[0].time_ps == pytest.approx(expected, rel=0.005)


def test_a_message_moves_as_a_program_s_does():
    """The same bytes between the same memories, but for what each counts before and after."""
    from fabrictwin.engines.packet.packet_engine import PacketEngine
    from fabrictwin.kernel.packet.state.constants import MESSAGE

    twin = boxes(8)
    cpu = [n for n in range(twin.fabric.nodes) if twin.fabric.node_kind[n] == NodeKind.CPU]
    other = PacketEngine(twin.fabric, twin.routes)
    other.post(operations([0], [[]]), [collectives.send(np.array([[0, 1]]), 1 << 20)], np.array([cpu[0], cpu[7]]))
    other.advance()
    tasks = other.network.machine.state.task
    (done,) = tasks[tasks.kind == MESSAGE]
    s = engine()
    m = s.send(s.open(0, 7), Message(1 << 20, Opcode.WRITE))
    arrived, ended = settle(s)
    assert (arrived.message, arrived.kind, ended.kind) == (m, ARRIVED, ENDED)
    fabric = twin.fabric
    chip = catalog.chip(fabric.type_names[int(fabric.node_type[cpu[0]])])
    nic = catalog.nic(fabric.type_names[int(fabric.node_type[fabric.nic_node[0]])])
    assert chip.memory_latency is not None
    # a program's message fetches its work request, and memory at its ends takes no time
    sooner = chip.memory_latency.value + chip.latency.value - nic.wqe_fetch.value
    written = chip.memory_latency.value - chip.latency.value // 2
    assert arrived.time_ps - int(done.received_ps) == sooner + written
    late = ended.time_ps - int(done.done_ps) - sooner  # its completion goes over PCIe into memory
    back = s.network.connections.inside(int(fabric.nic_node[0]), cpu[0])[0][1]
    assert late == walk_ps(fabric, back) + chip.latency.value // 2 + chip.memory_latency.value


def test_a_read_is_a_request_and_a_response_that_acknowledges_it():
    s = engine()
    a = s.open(0, 7, options=flow_options(source_qpn=0x100, target_qpn=0x200))
    b = s.open(7, 0, options=flow_options(source_qpn=0x200, target_qpn=0x100))
    request = s.send(a, Message(1 << 20, Opcode.READ_REQUEST))
    seen = []
    while not kinds(seen, request):
        seen += s.advance().events
    assert seen[-1].kind == ARRIVED
    response = s.send(b, Message(1 << 20, Opcode.READ_RESPONSE))
    seen = settle(s)
    assert kinds(seen, request) == [ENDED]
    assert ARRIVED in kinds(seen, response)
    end = next(e.time_ps for e in seen if e.message == request)
    came = next(e.time_ps for e in seen if e.message == response and e.kind == ARRIVED)
    assert end < came  # the first packet acknowledges it
    # headers one way, payload the other, and no acknowledgement of the response
    out = int(s.fabric.nic_port[0])
    assert s.network.machine.state.port.tx_packets[out] == 1
    assert s.counters().tx_bytes[out] == 0


def test_atomics_and_reads_do_not_pass_writes_before_them():
    s = engine()
    flow = s.open(0, 7)
    write = s.send(flow, Message(1 << 16, Opcode.WRITE))
    read = s.send(flow, Message(8, Opcode.READ_REQUEST))
    order = []
    while read not in [m for m, _ in order]:
        order += [(e.message, e.kind) for e in s.advance().events]
    assert order.index((write, ARRIVED)) < order.index((read, ARRIVED))


@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
@pytest.mark.parametrize("service", list(Service))
def test_messages_of_a_flow_stay_in_order(technology, service):
    s = engine(technology)
    flow = s.open(0, 7, options=flow_options(service=service))
    draw = np.random.default_rng(3)
    sizes = draw.integers(0, 2000 if service == Service.UNRELIABLE_DATAGRAM else 30_000, 200)
    sent = [s.send(flow, Message(int(n), Opcode.SEND, posting=Posting(inline=bool(n < 200)))) for n in sizes]
    seen = settle(s)
    for kind in (ARRIVED, ENDED):
        assert [e.message for e in seen if e.kind == kind] == sent


def test_a_receiver_that_is_not_ready_is_asked_again_after_its_timer():
    s = engine()
    options = flow_options(rnr_timer_ps=30 * US, rnr_retry=5)
    flow = s.open(0, 7, options=options)
    s.receives(flow, 5)
    s.send(flow, Message(5000, Opcode.SEND, takes_receive=True))
    assert s.advance(100 * US).events == []
    assert not s.idle
    s.add_receives(5, 1)
    arrived, ended = settle(s)
    assert (arrived.kind, ended.kind) == (ARRIVED, ENDED)
    assert 100 * US < arrived.time_ps < 140 * US
    other = s.send(flow, Message(10, Opcode.SEND, takes_receive=True))
    (event,) = settle(s)
    assert event[1:] == (other, NOT_READY)
    assert event.time_ps - arrived.time_ps == pytest.approx(5 * 30 * US, rel=0.2)
    # the flow sends nothing more
    s.send(flow, Message(10, Opcode.WRITE))
    assert settle(s) == []


def test_a_write_with_immediate_takes_its_receive_with_the_last_packet():
    s = engine()
    flow = s.open(0, 7, options=flow_options(rnr_timer_ps=20 * US))
    s.receives(flow, 1)
    m = s.send(flow, Message(1 << 20, Opcode.WRITE_IMMEDIATE, takes_receive=True))
    assert s.advance(80 * US).events == []
    s.add_receives(1, 1)
    seen = settle(s)
    assert kinds(seen, m) == [ARRIVED, ENDED]
    # all but the last packet went once
    qp = s.network.machine.state.qp[0]
    assert int(qp.retransmitted) == int(qp.rnr_naks) > 0


def test_flows_share_a_pool_and_datagrams_without_receives_are_lost():
    s = engine()
    flows = [s.open(i, 7, options=UD) for i in range(3)]
    for f in flows:
        s.receives(f, 9)
    s.add_receives(9, 2)
    sent = [s.send(f, Message(1000, Opcode.SEND, takes_receive=True)) for f in flows]
    seen = settle(s)
    outcomes = sorted(kinds(seen, m)[-1] if LOST in kinds(seen, m) else ARRIVED for m in sent)
    assert outcomes == sorted([ARRIVED, ARRIVED, LOST])
    assert all(ENDED in kinds(seen, m) for m in sent)


def test_an_unreliable_message_that_misses_a_packet_is_lost_and_the_next_is_not():
    s = engine("ethernet")
    flow = s.open(0, 1, options=UC)
    first = s.send(flow, Message(1 << 20, Opcode.WRITE))
    port = int(s.fabric.nic_port[0])
    s.change(TimedChange(20 * US, port, 0))
    s.change(TimedChange(25 * US, port))
    second = s.send(flow, Message(100, Opcode.WRITE))
    seen = settle(s)
    assert kinds(seen, first) == [LOST, ENDED] or kinds(seen, first) == [ENDED, LOST]
    assert sorted(kinds(seen, second)) == [ARRIVED, ENDED]


def test_a_reliable_flow_repairs_what_a_flapping_link_lost():
    s = engine("ethernet")
    flow = s.open(0, 1, options=flow_options(timeout=4))
    m = s.send(flow, Message(1 << 20, Opcode.WRITE))
    port = int(s.fabric.nic_port[0])
    s.change(TimedChange(40 * US, port, 0))
    s.change(TimedChange(45 * US, port))
    assert kinds(settle(s), m) == [ARRIVED, ENDED]
    assert int(s.network.machine.state.qp[0].retransmitted) > 0


def test_responses_that_are_lost_are_asked_for_again():
    s = engine("ethernet")
    a = s.open(0, 1, options=flow_options(timeout=4, source_qpn=2, target_qpn=3))
    b = s.open(1, 0, options=flow_options(timeout=4, source_qpn=3, target_qpn=2))
    request = s.send(a, Message(1 << 20, Opcode.READ_REQUEST))
    (event,) = s.advance().events
    assert event.kind == ARRIVED
    response = s.send(b, Message(1 << 20, Opcode.READ_RESPONSE, answers=request))
    port = int(s.fabric.nic_port[1])
    s.change(TimedChange(s.now_ps + 20 * US, port, 0))
    s.change(TimedChange(s.now_ps + 25 * US, port))
    seen = settle(s)
    assert ARRIVED in kinds(seen, response)
    assert kinds(seen, request) == [ENDED]


def test_retries_run_out_when_nobody_is_there():
    s = engine("ethernet")
    flow = s.open(0, 1, options=flow_options(timeout=4, retry_count=2))
    s.change(TimedChange(s.now_ps, int(s.fabric.nic_port[0]), 0))
    first, second = (s.send(flow, Message(100, Opcode.WRITE)) for _ in range(2))
    s.change(TimedChange(s.now_ps, int(s.fabric.port_peer[s.fabric.nic_port[1]]), 0))
    s.change(TimedChange(s.now_ps, int(s.fabric.nic_port[0]), None))
    seen = settle(s)
    assert kinds(seen, first) == [FAILED]
    assert kinds(seen, second) == []
    assert seen[0].time_ps > 3 * (4_096_000 << 4)


def test_a_message_refused_at_its_first_packet_never_arrives():
    s = engine()
    flow = s.open(0, 7)
    before = s.send(flow, Message(100, Opcode.WRITE))
    refused = s.send(flow, Message(100_000, Opcode.WRITE, begun=True))
    after = s.send(flow, Message(100, Opcode.WRITE))
    seen = []
    while BEGUN not in kinds(seen, refused):
        seen += s.advance().events
    s.refuse(refused, NAK_REMOTE_ACCESS)
    seen += settle(s)
    assert kinds(seen, before) == [ARRIVED, ENDED]
    assert kinds(seen, refused) == [BEGUN, ENDED]
    assert kinds(seen, after) == []


@pytest.mark.parametrize("opcode", [Opcode.SEND, Opcode.READ_REQUEST])
def test_a_message_refused_on_arrival_ends_and_nothing_after_it_arrives(opcode):
    s = engine()
    flow = s.open(0, 7)
    refused = s.send(flow, Message(64, opcode))
    after = [s.send(flow, Message(64, Opcode.WRITE)) for _ in range(20)]
    seen = []
    while ARRIVED not in kinds(seen, refused):
        seen += s.advance().events
    s.refuse(refused)
    seen += settle(s)
    assert kinds(seen, refused) == [ARRIVED, ENDED]
    assert not any(ARRIVED in kinds(seen, m) for m in after)


@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
def test_loopback_goes_through_the_adapter_and_never_on_the_wire(technology):
    s = engine(technology)
    a = s.open(3, 3, options=flow_options(source_qpn=1, target_qpn=2))
    b = s.open(3, 3, options=flow_options(source_qpn=2, target_qpn=1))
    s.receives(a, 1)
    s.add_receives(1, 1)
    m = s.send(a, Message(100_000, Opcode.SEND, takes_receive=True))
    read = s.send(a, Message(5000, Opcode.READ_REQUEST))
    seen = []
    while ARRIVED not in kinds(seen, read):
        seen += s.advance().events
    response = s.send(b, Message(5000, Opcode.READ_RESPONSE))
    seen += settle(s)
    assert sorted(kinds(seen, m)) == [ARRIVED, ENDED]
    assert ARRIVED in kinds(seen, response)
    assert not s.counters().tx_bytes[s.fabric.nic_port[s.fabric.nic_port >= 0]].any()


def test_memory_of_a_gpu_takes_its_own_path_and_order_holds_over_a_change_of_memory():
    twin = dgx()
    s = PacketEngine(twin.fabric, twin.routes)
    gpu = twin.fabric.find_node(f"{twin.fabric.host_names[0]}/gpu0")
    flow = s.open(0, 8)
    postings = [Posting(source_memory=gpu if i % 3 else None) for i in range(12)]
    sent = [s.send(flow, Message(4096, Opcode.WRITE, posting=posting)) for posting in postings]
    seen = settle(s)
    assert [e.message for e in seen if e.kind == ARRIVED] == sent
    moved = s.network.machine.state.port.tx_payload
    node = twin.fabric.port_node
    assert moved[: twin.fabric.ports][node == gpu].sum() == 8 * 4096


def test_memory_of_a_gpu_needs_gpudirect():
    s = engine(gpudirect=False)
    gpu = int(s.fabric.gpu_node[0])
    with pytest.raises(ConfigError, match="without GPUDirect"):
        s.open(0, 1, memories=(gpu, None))
    flow = s.open(0, 1)
    with pytest.raises(ConfigError, match="without GPUDirect"):
        s.send(flow, Message(100, Opcode.WRITE, posting=Posting(source_memory=gpu)))


def test_a_closed_flow_says_nothing_and_its_place_is_used_again():
    s = engine()
    for _ in range(50):
        flow = s.open(0, 7)
        s.send(flow, Message(100_000, Opcode.WRITE))
        s.advance(s.now_ps + 3 * US)
        s.close(flow)
        assert s.advance(s.now_ps + 50 * US).events == []
    assert s.network.machine.queue_pairs == 1
    with pytest.raises(ConfigError, match="expected one that is open"):
        s.send(flow, Message(1, Opcode.WRITE))


def test_over_a_short_cable_a_message_is_in_memory_before_its_sender_knows():
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import read_spec
    from fabrictwin.twin import Twin

    hosts = [{"name": n, "type": "pcie-box"} for n in "ab"]
    cables = ["a/mlx5_0 - b/mlx5_0 ; 200 Gb/s ; 1 m"]
    cluster = {"technology": "infiniband", "hosts": hosts, "cables": cables}
    spec = read_spec({"schema": 1, "name": "direct", "cluster": cluster})
    twin = Twin(build(spec.cluster, spec=spec))
    s = PacketEngine(twin.fabric, twin.routes)
    flow = s.open(0, 1)
    sent = [s.send(flow, Message(n, Opcode.WRITE, posting=Posting(inline=True))) for n in (0, 1, 64, 4096, 50_000)]
    seen = settle(s)
    assert all(kinds(seen, m) == [ARRIVED, ENDED] for m in sent)


def test_many_messages_take_no_more_memory_than_a_few():
    s = engine()
    flow = s.open(0, 1)
    count = 0
    for _ in range(3000):
        s.send(flow, Message(8, Opcode.WRITE))
        count += len(s.advance().events) + len(s.advance().events)
    assert count == 6000
    assert s.network.machine.tasks == 1024


def test_a_smaller_path_mtu_makes_more_packets():
    packets = []
    for mtu in (4096, 256):
        s = engine()
        s.send(s.open(0, 1, options=flow_options(mtu_bytes=mtu)), Message(8192, Opcode.WRITE))
        settle(s)
        packets.append(int(s.network.machine.state.port.tx_packets[s.fabric.nic_port[0]]))
    assert packets == [2, 32]
    with pytest.raises(ConfigError, match="expected one of 256, 512, 1024, 2048, 4096"):
        s.open(0, 1, options=flow_options(mtu_bytes=8192))


def test_a_static_rate_limit_holds():
    s = engine()
    flow = s.open(0, 1, options=flow_options(rate_bps=10 * 10**9))
    s.send(flow, Message(1 << 20, Opcode.WRITE))
    seen = settle(s)
    assert (1 << 20) * 8e12 / seen[-1].time_ps == pytest.approx(10e9, rel=0.03)


def test_time_that_passes_without_messages_stays_where_it_was_asked_to():
    s = engine()
    flow = s.open(0, 1)
    s.send(flow, Message(100, Opcode.WRITE))
    settle(s)
    end = s.now_ps
    assert s.advance().events == []
    assert s.now_ps == end  # no timer that nobody waits for moves the clock
    assert s.advance(end + 500_000 * US).events == []
    assert s.now_ps == end + 500_000 * US
    m = s.send(flow, Message(100, Opcode.WRITE))
    seen = settle(s)
    assert seen[0].time_ps - s.now_ps < 0 < seen[0].time_ps - end - 500_000 * US
    assert kinds(seen, m) == [ARRIVED, ENDED]


def test_reordering_fabrics_are_refused():
    with pytest.raises(ConfigError, match="go-back-n"):
        engine(balance="adaptive").open(0, 7)


def test_the_same_messages_give_the_same_events():
    runs = []
    for _ in range(2):
        s = engine("ethernet", control="dcqcn")
        flows = [s.open(i, 7) for i in range(4)]
        for i in range(40):
            s.send(flows[i % 4], Message(50_000, Opcode.WRITE))
        runs.append(settle(s))
    assert runs[0] == runs[1]
    assert len(runs[0]) == 80


def test_a_message_that_was_posted_before_is_posted_again_the_same():
    """Rows of messages are kept: with and without, on one flow and anew, by every kind of posting."""
    rng = np.random.default_rng(5)
    kinds = [Opcode.WRITE, Opcode.SEND, Opcode.WRITE_IMMEDIATE]
    messages = [
        Message(size, kind, takes_receive=kind != Opcode.WRITE, posting=Posting(inline=inline, chained=chained))
        for size in (0, 1, 63, 64, 300, 5000)
        for kind in kinds
        for inline in (False, True)
        for chained in (False, True)
    ]
    order = rng.integers(0, len(messages), 300)
    times = []
    for fresh in (False, True):
        s = engine("ethernet")
        flow = s.open(0, 7)
        s.add_receives(1, 1000)
        s.receives(flow, 1)
        for at in order:
            if fresh:
                s.messages._flows[flow].pairs.rows.clear()
            s.send(flow, messages[at])
        times.append(settle(s))
    assert times[0] == times[1]
    assert len(times[0]) == 600
