"""Operations one by one, and everything that their completions say: opcodes, flags, lengths, numbers."""

from __future__ import annotations

import errno
import socket
import struct
from types import SimpleNamespace

import pytest
from support import verbs_ends
from support.clusters import boxes
from support.verbs_ends import ALL, QKEY, End, attributes, connect, pair, world

from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.addr import AH, GID, GRH, AHAttr, GlobalRoute
from fabrictwin.verbs.pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from fabrictwin.verbs.pyverbs.mr import MR, MW, MREx, MWBind, MWBindInfo
from fabrictwin.verbs.pyverbs.pd import PD
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from fabrictwin.verbs.pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from fabrictwin.verbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from fabrictwin.verbs.pyverbs.wr import SGE, RecvWR, SendWR
from fabrictwin.verbs.pyverbs.xrcd import XRCD, XRCDInitAttr

SIGNALED, SOLICITED, INLINE = 2, 4, 8
FLUSHES = e.IBV_ACCESS_FLUSH_GLOBAL | e.IBV_ACCESS_FLUSH_PERSISTENT


@pytest.fixture(params=["infiniband", "ethernet"])
def twin(request):
    return boxes(8, request.param)


def both(one: End, other: End) -> tuple:
    """The next completion of each, after everything has happened."""
    place.world().settle()
    return tuple(end.cq.poll(1)[1][0] for end in (one, other))


@pytest.mark.parametrize("kind", [e.IBV_QPT_RC, e.IBV_QPT_UC])
def test_a_send_with_immediate(twin, kind):
    one, other = pair(twin, kind=kind)
    one.mr.write(b"hello", 5)
    other.receive(77, offset=100, length=64)
    one.send(e.IBV_WR_SEND_WITH_IMM, wr_id=5, imm=0x11223344, length=5)
    sent, received = both(one, other)
    assert (sent.wr_id, sent.status, sent.opcode, sent.qp_num) == (5, 0, 0, one.qp.qp_num)
    assert (received.wr_id, received.status, received.opcode, received.byte_len) == (77, 0, 128, 5)
    assert (received.wc_flags, received.imm_data, received.qp_num) == (2, 0x11223344, other.qp.qp_num)
    assert other.mr.read(6, 100) == b"hello\0"


@pytest.mark.parametrize("kind", [e.IBV_QPT_RC, e.IBV_QPT_UC])
def test_a_write_with_immediate_takes_a_receive_and_lands_where_it_says(twin, kind):
    one, other = pair(twin, kind=kind)
    one.mr.write(b"hello", 5)
    other.receive(77)
    one.send(e.IBV_WR_RDMA_WRITE_WITH_IMM, imm=9, length=5, remote=other, at=300)
    sent, received = both(one, other)
    assert (sent.opcode, received.opcode) == (1, 129)
    assert (received.wr_id, received.byte_len, received.wc_flags, received.imm_data) == (77, 5, 2, 9)
    assert received.qp_num == other.qp.qp_num
    assert other.mr.read(5, 300) == b"hello"
    assert other.mr.read(5, 0) == bytes(5)
    assert other.qp.qp.receives.posted == 0


@pytest.mark.parametrize("kind", [e.IBV_QPT_RC, e.IBV_QPT_UC])
def test_a_plain_write_takes_none(twin, kind):
    one, other = pair(twin, kind=kind)
    one.mr.write(b"hello", 5)
    other.receive(77)
    one.send(e.IBV_WR_RDMA_WRITE, length=5, remote=other, at=300)
    place.world().settle()
    assert other.mr.read(5, 300) == b"hello"
    assert other.cq.poll()[0] == 0
    assert one.cq.poll()[1][0].opcode == 1


def test_an_unreliable_write_with_immediate_that_is_refused_takes_no_receive(twin):
    one, other = pair(twin, kind=e.IBV_QPT_UC)
    other.receive(1)
    one.send(e.IBV_WR_RDMA_WRITE_WITH_IMM, remote=other, at=4090)
    one.send(e.IBV_WR_SEND, wr_id=2)
    place.world().settle()
    assert [(wc.wr_id, wc.opcode) for wc in other.cq.poll(4)[1]] == [(1, 128)]


def test_unreliable_sends_into_wrong_memory_fail_at_the_receiver_alone(twin):
    one, other = pair(twin, kind=e.IBV_QPT_UC)
    other.qp.post_recv(RecvWR(3, 1, [SGE(other.mr.buf, 64, other.mr.lkey + 1)]))
    one.send()
    sent, received = both(one, other)
    assert (sent.status, received.status, received.wr_id) == (0, e.IBV_WC_LOC_PROT_ERR, 3)
    assert (one.qp.qp_state, other.qp.qp_state) == (e.IBV_QPS_RTS, e.IBV_QPS_ERR)


def test_reads_and_atomics_say_their_length(twin):
    one, other = pair(twin)
    other.mr.write(b"0123456789", 10, 64)
    one.send(e.IBV_WR_RDMA_READ, remote=other, at=64, offset=500, length=10)
    (wc,) = one.done()
    assert (wc.opcode, wc.byte_len, one.mr.read(10, 500)) == (2, 10, b"0123456789")
    other.mr.write(struct.pack("<Q", 41), 8, 128)
    one.send(e.IBV_WR_ATOMIC_FETCH_AND_ADD, remote=other, at=128, length=8, operands=(1,))
    one.send(e.IBV_WR_ATOMIC_CMP_AND_SWP, remote=other, at=128, length=8, offset=8, operands=(42, 7))
    one.send(e.IBV_WR_ATOMIC_CMP_AND_SWP, remote=other, at=128, length=8, offset=16, operands=(42, 9))
    found = one.done(3)
    assert [(wc.opcode, wc.byte_len) for wc in found] == [(4, 8), (3, 8), (3, 8)]
    assert struct.unpack("<3Q", one.mr.read(24, 0)) == (41, 42, 7)
    assert struct.unpack("<Q", other.mr.read(8, 128)) == (7,)
    one.send(e.IBV_WR_RDMA_READ, remote=other, length=0)
    assert one.statuses() == [0]


@pytest.mark.parametrize("length", [7, 9, 16])
def test_atomics_are_of_eight_bytes(twin, length):
    one, other = pair(twin)
    one.send(e.IBV_WR_ATOMIC_FETCH_AND_ADD, remote=other, length=length, operands=(1,))
    assert one.statuses() == [e.IBV_WC_LOC_LEN_ERR]


def test_reads_need_resources_of_the_requester(twin):
    one, other = pair(twin, max_rd_atomic=0)
    one.send(e.IBV_WR_RDMA_READ, remote=other)
    assert one.statuses() == [e.IBV_WC_LOC_QP_OP_ERR]


@pytest.mark.parametrize("opcode", [e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_FETCH_AND_ADD])
@pytest.mark.parametrize("allowed", [False, True])
def test_reads_and_atomics_need_the_queue_pair_s_leave(twin, opcode, allowed):
    right = e.IBV_ACCESS_REMOTE_READ if opcode == e.IBV_WR_RDMA_READ else e.IBV_ACCESS_REMOTE_ATOMIC
    access = e.IBV_ACCESS_LOCAL_WRITE | (right if allowed else ALL & ~right)
    one, other = pair(twin, qp_access=access)
    more = {"operands": (1,)} if opcode != e.IBV_WR_RDMA_READ else {}
    one.send(opcode, remote=other, length=8, **more)
    assert one.statuses() == [0 if allowed else e.IBV_WC_REM_INV_REQ_ERR]
    if not allowed:
        assert other.ctx.get_async_event().event_type == e.IBV_EVENT_QP_REQ_ERR


def test_as_many_reads_at_a_time_as_the_responder_has_resources_for(twin):
    one, other = pair(twin, max_rd_atomic=2, max_dest_rd_atomic=2)
    for index in range(6):
        one.send(e.IBV_WR_RDMA_READ, wr_id=index, remote=other)
        assert len(one.qp.qp.outstanding) == min(index + 1, 2)
    assert [wc.wr_id for wc in one.done(6)] == list(range(6))


def test_a_fence_waits_for_reads(twin):
    one, other = pair(twin)
    one.send(e.IBV_WR_RDMA_READ, remote=other)
    one.send(e.IBV_WR_RDMA_WRITE, remote=other, flags=SIGNALED | 1)
    assert (len(one.qp.qp.outstanding), len(one.qp.qp.pending)) == (1, 1)
    assert one.statuses(2) == [0, 0]
    one.send(e.IBV_WR_RDMA_READ, remote=other)
    one.send(e.IBV_WR_RDMA_WRITE, remote=other)
    assert (len(one.qp.qp.outstanding), len(one.qp.qp.pending)) == (2, 0)


def test_inline_data_is_taken_when_it_is_posted(twin):
    one, other = pair(twin)
    other.receive()
    one.mr.write(b"before", 6)
    one.send(length=6, flags=SIGNALED | INLINE)
    one.mr.write(b"after!", 6)
    assert one.statuses() == other.statuses() == [0]
    assert other.mr.read(6, 0) == b"before"
    one.send(e.IBV_WR_RDMA_WRITE, length=64, flags=SIGNALED | INLINE, remote=other)
    assert one.statuses() == [0]
    with pytest.raises(PyverbsRDMAError) as error:
        one.send(length=65, flags=SIGNALED | INLINE)
    assert error.value.error_code == errno.ENOMEM


def test_pieces_are_gathered_and_scattered(twin):
    one, other = pair(twin)
    one.mr.write(b"abcdefgh", 8)
    other.qp.post_recv(RecvWR(1, 2, [other.sge(0, 3), other.sge(100, 9)]))
    one.qp.post_send(SendWR(2, e.IBV_WR_SEND, 2, 0, [one.sge(4, 4), one.sge(0, 4)], SIGNALED))
    place.world().settle()
    assert other.mr.read(3, 0) == b"efg"
    assert other.mr.read(5, 100) == b"habcd"
    assert other.cq.poll()[1][0].byte_len == 8
    with pytest.raises(PyverbsRDMAError) as error:
        one.qp.post_send(SendWR(2, e.IBV_WR_SEND, 5, 0, [one.sge()] * 5, SIGNALED))
    assert error.value.error_code == errno.EINVAL
    with pytest.raises(PyverbsRDMAError):
        other.qp.post_recv(RecvWR(1, 5, [other.sge()] * 5))
    with pytest.raises(PyverbsUserError):
        SendWR(1, e.IBV_WR_SEND, 2, 0, [one.sge()])
    with pytest.raises(PyverbsUserError):
        SendWR(1, e.IBV_WR_SEND)


def test_chains_are_posted_in_order(twin):
    one, other = pair(twin)
    last = RecvWR(11, 1, [other.sge(64, 64)])
    other.qp.post_recv(RecvWR(10, 1, [other.sge(0, 64)], last))
    second = SendWR(2, e.IBV_WR_SEND, 1, 0, [one.sge(5, 1)])
    one.qp.post_send(SendWR(1, e.IBV_WR_SEND, 1, 0, [one.sge(0, 1)], SIGNALED, second))
    assert [wc.wr_id for wc in one.done(2)] == [1, 2]
    assert [wc.wr_id for wc in other.done(2)] == [10, 11]


@pytest.mark.parametrize("kind", [e.IBV_QPT_RC, e.IBV_QPT_UC, e.IBV_QPT_UD])
def test_messages_without_bytes(twin, kind):
    one, other = pair(twin, kind=kind)
    other.receive(1)
    one.send(length=0, to=other if kind == e.IBV_QPT_UD else None)
    sent, received = both(one, other)
    assert (sent.status, received.status) == (0, 0)
    assert received.byte_len == (40 if kind == e.IBV_QPT_UD else 0)
    if kind != e.IBV_QPT_UD:
        one.send(e.IBV_WR_RDMA_WRITE, length=0, remote=other, rkey=1)  # no key is looked at
        place.world().settle()
        assert one.cq.poll()[1][0].status == 0


# ---------------------------------------------------------------------- datagrams


def test_a_datagram_says_who_sent_it(twin):
    one, other = pair(twin, kind=e.IBV_QPT_UD)
    one.mr.write(b"datagram", 8)
    other.receive(1)
    one.send(e.IBV_WR_SEND_WITH_IMM, imm=7, length=8, to=other)
    _, wc = both(one, other)
    assert (wc.src_qp, wc.slid, wc.sl) == (one.qp.qp_num, one.ctx.adapter.lid, 0)
    assert (wc.byte_len, wc.imm_data, wc.opcode, wc.pkey_index) == (48, 7, 128, 0)
    assert wc.wc_flags == 2 | int(one.ctx.adapter.ethernet)
    assert other.mr.read(8, 40) == b"datagram"


def test_an_ipv4_header_stands_before_a_datagram():
    """RFC 791: the header, 20 bytes before the datagram, sums up to all ones."""
    one, other = pair(boxes(8, "ethernet"), kind=e.IBV_QPT_UD)
    far, near = other.ctx.adapter, one.ctx.adapter
    index = near.gid_index(e.IBV_GID_TYPE_ROCE_V2)
    route = GlobalRoute(GID.of(far.gids[index].raw), sgid_index=index, hop_limit=17, traffic_class=0x68)
    request = SendWR(1, e.IBV_WR_SEND, 1, 0, [one.sge(0, 100)], SIGNALED)
    request.set_wr_ud(AH(one.pd, attr=AHAttr(gr=route, is_global=1)), other.qp.qp_num, QKEY)
    other.mr.write(b"\xee" * 40, 40)
    other.receive(1)
    one.qp.post_send(request)
    place.world().settle()
    header = other.mr.read(40, 0)
    assert header[:20] == bytes(20)
    words = struct.unpack("!10H", header[20:])
    total = sum(words)
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
    version, service, length, _, fragment, hops, protocol = struct.unpack("!BBHHHBB", header[20:30])
    assert (version, service, hops, protocol, fragment) == (0x45, 0x68, 17, 17, 0x4000)
    assert length == 20 + 8 + 12 + 8 + 100 + 4
    assert header[32:36] == near.ipv4
    assert header[36:40] == far.ipv4
    assert near.ipv4 != far.ipv4
    wc = other.cq.poll()[1][0]
    back = AH(other.pd, wc=wc, grh=other.mr.buf, port_num=1)
    assert back.vector.dgid == near.gids[index].raw
    assert (back.vector.is_global, back.vector.hop_limit) == (True, 255)
    assert far.gids[back.vector.sgid_index].raw == far.gids[index].raw


def test_the_way_back_of_a_datagram_over_infiniband():
    one, other = pair(boxes(8, "infiniband"), kind=e.IBV_QPT_UD)
    wc = SimpleNamespace(slid=5, sl=3, dlid_path_bits=2, wc_flags=1)
    mine, theirs = (GID.of(end.ctx.adapter.gids[0].raw) for end in (other, one))
    back = AH(other.pd, wc=wc, grh=GRH(sgid=theirs, dgid=mine), port_num=1).vector
    assert (back.dlid, back.sl, back.src_path_bits, back.sgid_index) == (5, 3, 2, 0)
    assert (back.dgid, back.is_global) == (theirs.raw, True)
    other.mr.write(bytes([0x60]) + bytes(7) + theirs.raw + mine.raw, 40)
    assert AH(other.pd, wc=wc, grh=other.mr.buf, port_num=1).vector == back
    wc.wc_flags = 0
    assert not AH(other.pd, wc=wc, grh=other.mr.buf, port_num=1).vector.is_global
    with pytest.raises(PyverbsRDMAError):
        AH(other.pd, wc=wc, grh=other.mr.buf, port_num=2)


@pytest.mark.parametrize(
    ("index", "port", "good"), [(0, 1, True), (3, 1, True), (4, 1, False), (-1, 1, False), (0, 2, False)]
)
def test_addresses_name_an_entry_of_the_table(index, port, good):
    world(boxes(8, "ethernet"))
    end = End("host-0")
    attr = AHAttr(gr=GlobalRoute(GID(), sgid_index=index), is_global=1, port_num=port)
    if good:
        assert AH(end.pd, attr=attr).vector.sgid_index == index
    else:
        with pytest.raises(PyverbsRDMAError) as error:
            AH(end.pd, attr=attr)
        assert error.value.error_code == errno.EINVAL
    with pytest.raises(PyverbsRDMAError):
        AH(end.pd, attr=AHAttr(dlid=1))  # Ethernet has no local addresses


def test_an_address_vector_goes_both_ways():
    route = GlobalRoute(GID("fe80:0000:0000:0000:0001:0002:0003:0004"), 11, 2, 13, 14)
    made = AHAttr(5, 6, 7, 8, 1, 1, route)
    vector = made.vector()
    assert (vector.dlid, vector.sl, vector.src_path_bits, vector.static_rate) == (5, 6, 7, 8)
    assert (vector.is_global, vector.port_num) == (True, 1)
    assert (vector.flow_label, vector.sgid_index, vector.hop_limit, vector.traffic_class) == (11, 2, 13, 14)
    assert vector.dgid == bytes.fromhex("fe800000000000000001000200030004")
    assert AHAttr.of(vector).vector() == vector
    assert made.dgid == route.dgid
    made.dgid = "fe80:0000:0000:0000:0000:0000:0000:0009"
    assert made.vector().dgid[-1] == 9
    assert AHAttr(5).dgid is None
    assert (AHAttr(5).hop_limit, AHAttr(5).vector().is_global) == (0, False)
    with pytest.raises(PyverbsUserError):
        AHAttr(is_global=1)


# ---------------------------------------------------------------------- completion queues


def test_extended_queues_read_field_by_field(twin):
    world(twin)
    one, other = End("host-0", kind=e.IBV_QPT_UD), End("host-7", kind=e.IBV_QPT_UD)
    queue = CQEX(other.ctx, CqInitAttrEx(cqe=4, wc_flags=0x7F))
    assert (queue.status, queue.wr_id, queue.read_opcode()) == (0, 0, 0)
    cap = QPCap(4, 4, 1, 1, 0)
    attr = QPAttr()
    attr.qkey = QKEY
    qp = QP(other.pd, QPInitAttr(e.IBV_QPT_UD, None, queue, queue, None, cap), attr)
    target = SimpleNamespace(address=other.address, qp=qp)
    assert queue.start_poll() == errno.ENOENT
    for wr_id in (4, 5):
        qp.post_recv(RecvWR(wr_id, 1, [other.sge(0, 256)]))
        one.send(e.IBV_WR_SEND_WITH_IMM, imm=wr_id, to=target, length=10)
    place.world().settle()
    instants = [wc.timestamp_ps for wc in queue.cq.entries]
    assert queue.start_poll() == 0
    assert (queue.status, queue.wr_id, queue.read_opcode(), queue.read_vendor_err()) == (0, 4, 128, 0)
    assert (queue.read_byte_len(), queue.read_imm_data(), queue.read_qp_num()) == (50, 4, qp.qp_num)
    assert (queue.read_src_qp(), queue.read_slid(), queue.read_sl()) == (one.qp.qp_num, one.ctx.adapter.lid, 0)
    assert queue.read_wc_flags() == 2 | int(one.ctx.adapter.ethernet)
    assert (queue.read_dlid_path_bits(), queue.read_cvlan(), queue.read_flow_tag()) == (0, 0, 0)
    assert (queue.read_tm_info().tag, queue.read_tm_info().priv) == (0, 0)
    assert queue.read_timestamp() == queue.read_completion_wallclock_ns() == instants[0] // 1000
    assert queue.poll_next() == 0
    assert (queue.wr_id, queue.read_imm_data()) == (5, 5)
    assert queue.poll_next() == errno.ENOENT
    queue.end_poll()


@pytest.mark.parametrize(
    ("attr", "code"),
    [
        (CqInitAttrEx(comp_mask=2), errno.EOPNOTSUPP),
        (CqInitAttrEx(wc_flags=1 << 8), errno.EOPNOTSUPP),
        (CqInitAttrEx(wc_flags=1 << 9), errno.EOPNOTSUPP),
        (CqInitAttrEx(wc_flags=1 << 10), errno.EOPNOTSUPP),
        (CqInitAttrEx(comp_mask=1, flags=4), errno.EINVAL),
        (CqInitAttrEx(cqe=0), errno.EINVAL),
        (CqInitAttrEx(comp_vector=63), errno.EINVAL),
        (CqInitAttrEx(comp_vector=-1), errno.EINVAL),
        (CqInitAttrEx(cqe=1 << 30), errno.EINVAL),
        (CqInitAttrEx(wc_flags=0x8FF & ~0x100, comp_mask=1, flags=3, comp_vector=62, cqe=1), 0),
        (CqInitAttrEx(flags=4), 0),  # not looked at
    ],
)
def test_what_an_extended_queue_can_be(attr, code):
    world(boxes(2))
    ctx = End("host-0").ctx
    if not code:
        assert not CQEX(ctx, attr).cq.overrun
        return
    with pytest.raises(PyverbsRDMAError) as error:
        CQEX(ctx, attr)
    assert error.value.error_code == code


def test_a_queue_that_ignores_overruns(twin):
    world(twin)
    one, other = End("host-0"), End("host-7")
    for flags, overruns in ((2, False), (1, True)):
        queue = CQEX(one.ctx, CqInitAttrEx(cqe=1, comp_mask=1, flags=flags))
        init = QPInitAttr(e.IBV_QPT_RC, None, queue, queue, None, QPCap(8, 8, 1, 1, 0))
        attr = QPAttr()
        attr.qp_access_flags = ALL
        end = SimpleNamespace(qp=QP(one.pd, init, attr), address=one.address)
        far = End("host-7")
        end.qp.to_rts(attributes(SimpleNamespace(qp=end.qp), far))
        far.qp.to_rts(attributes(far, end))
        for _ in range(3):
            request = SendWR(1, e.IBV_WR_RDMA_WRITE, 1, 0, [one.sge()], SIGNALED)
            request.set_wr_rdma(far.mr.rkey, far.mr.buf)
            end.qp.post_send(request)
        place.world().settle()
        assert queue.cq.overrun == overruns
    assert other.cq.poll() == (0, [])


@pytest.mark.parametrize(("asked", "held"), [(1, 1), (2, 3), (3, 3), (4, 7), (100, 127), (127, 127), (128, 255)])
def test_queues_are_powers_of_two_less_one(asked, held):
    world(boxes(2))
    ctx = End("host-0").ctx
    queue = CQ(ctx, asked)
    assert queue.cqe == held
    queue.resize(3)
    assert queue.cqe == 3
    for wrong in (0, 1 << 30):
        with pytest.raises(PyverbsRDMAError) as error:
            queue.resize(wrong)
        assert error.value.error_code == errno.EINVAL
    for vector in (-1, 63):
        with pytest.raises(PyverbsRDMAError):
            CQ(ctx, 1, None, None, vector)
    assert ctx.num_comp_vectors == 63
    assert CQ(ctx, 1, "mine", None, 62).cq_context == "mine"


def test_a_queue_shrinks_to_what_is_in_it(twin):
    one, other = pair(twin)
    for _ in range(3):
        one.send(e.IBV_WR_RDMA_WRITE, remote=other)
    with pytest.raises(PyverbsRDMAError):
        one.cq.resize(1)  # what is in flight lands first
    one.cq.resize(3)
    assert one.statuses(3) == [0, 0, 0]


def test_completions_of_a_queue_pair_that_goes_are_dropped_and_the_others_kept(twin):
    world(twin)
    one, other = End("host-0"), End("host-7")
    connect(one, other)
    init = QPInitAttr(e.IBV_QPT_RC, None, one.cq, one.cq, None, QPCap(8, 8, 1, 1, 0))
    attr = QPAttr()
    attr.qp_access_flags = ALL
    second, far = QP(one.pd, init, attr), End("host-7")
    second.to_rts(attributes(SimpleNamespace(qp=second), far))
    far.qp.to_rts(attributes(far, SimpleNamespace(qp=second, address=one.address)))
    one.send(e.IBV_WR_RDMA_WRITE, wr_id=1, remote=other)
    request = SendWR(2, e.IBV_WR_RDMA_WRITE, 1, 0, [one.sge()], SIGNALED)
    request.set_wr_rdma(far.mr.rkey, far.mr.buf)
    second.post_send(request)
    place.world().settle()
    second.close()
    assert [wc.wr_id for wc in one.cq.poll(5)[1]] == [1]


def channelled(twin):
    """Two connected ends; the second's queue tells a channel."""
    world(twin)
    one, other = End("host-0"), End("host-7")
    channel = CompChannel(other.ctx)
    other.cq = CQ(other.ctx, 16, None, channel)
    init = QPInitAttr(e.IBV_QPT_RC, None, other.cq, other.cq, None, QPCap(8, 8, 1, 1, 0))
    attr = QPAttr()
    attr.qp_access_flags = ALL
    other.qp = QP(other.pd, init, attr)
    connect(one, other)
    return one, other, channel


def test_a_channel_tells_once_each_time_it_is_armed(twin):
    one, other, channel = channelled(twin)
    for _ in range(4):
        other.receive()
    one.send()
    place.world().settle()
    assert not channel.channel.events  # nobody asked
    other.cq.req_notify()
    one.send()
    one.send()
    channel.get_cq_event(other.cq)
    assert other.cq.num_events == 1
    place.world().settle()
    assert not channel.channel.events
    other.cq.ack_events(1)
    assert other.cq.num_events == 0
    with pytest.raises(PyverbsRDMAError, match="Failed to get CQ event") as error:
        channel.get_cq_event(other.cq)
    assert error.value.error_code == errno.EAGAIN


def test_a_channel_tells_of_what_is_solicited(twin):
    one, other, channel = channelled(twin)
    for _ in range(4):
        other.receive()
    other.cq.req_notify(solicited_only=True)
    one.send()
    place.world().settle()
    assert not channel.channel.events
    one.send(flags=SIGNALED | SOLICITED)
    place.world().settle()
    assert list(channel.channel.events) == [other.cq.queue]
    with pytest.raises(PyverbsRDMAError, match="unexpected CQ"):
        channel.get_cq_event(one.cq)
    other.cq.req_notify(solicited_only=True)
    other.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)  # an error counts as solicited
    assert len(channel.channel.events) == 1


def test_a_descriptor_is_readable_while_events_wait(twin):
    import select

    one, other, channel = channelled(twin)
    other.receive()
    other.receive()
    other.cq.req_notify()
    one.send()
    place.world().settle()
    fd = channel.fd
    assert channel.fd == fd >= 0
    assert select.select([fd], [], [], 0)[0] == [fd]
    channel.get_cq_event(other.cq)
    assert select.select([fd], [], [], 0)[0] == []
    other.cq.req_notify()
    one.send()
    place.world().settle()
    assert select.select([fd], [], [], 0)[0] == [fd]
    other.cq.close()
    assert not channel.channel.events
    channel.close()
    assert channel._fd == -1


# ---------------------------------------------------------------------- shared receive queues


def test_receives_that_queue_pairs_share(twin):
    world(twin)
    host = "host-7"
    owner = End(host)
    shared = SRQ(owner.pd, SrqInitAttr(SrqAttr(max_wr=3, max_sge=2)))
    found = shared.query()
    assert (found.max_wr, found.max_sge, found.srq_limit) == (3, 2, 0)
    one, two = End("host-0"), End("host-1")
    ends = []
    for end in (one, two):
        init = QPInitAttr(e.IBV_QPT_RC, None, owner.cq, owner.cq, shared, QPCap(4, 4, 1, 1, 0))
        attr = QPAttr()
        attr.qp_access_flags = ALL
        far = SimpleNamespace(qp=QP(owner.pd, init, attr), address=owner.address, mr=owner.mr)
        end.qp.to_rts(attributes(end, far))
        far.qp.to_rts(attributes(far, end))
        ends.append(far)
    shared.post_recv(RecvWR(1, 1, [owner.sge(0, 64)], RecvWR(2, 2, [owner.sge(64, 4), owner.sge(128, 60)])))
    shared.post_recv(RecvWR(3, 1, [owner.sge(256, 64)]))
    for wr, code in ((RecvWR(4, 1, [owner.sge()]), errno.ENOMEM), (RecvWR(4, 3, [owner.sge()] * 3), errno.EINVAL)):
        with pytest.raises(PyverbsRDMAError) as error:
            shared.post_recv(wr)
        assert error.value.error_code == code
    with pytest.raises(PyverbsRDMAError):
        ends[0].qp.post_recv(RecvWR(9, 1, [owner.sge()]))  # it has none of its own
    shared.modify(SrqAttr(srq_limit=2), e.IBV_SRQ_LIMIT)
    one.send(length=64)
    place.world().settle()
    two.send(length=64)
    place.world().settle()
    received = owner.cq.poll(5)[1]
    assert [(wc.wr_id, wc.qp_num, wc.byte_len) for wc in received] == [
        (1, ends[0].qp.qp_num, 64),
        (2, ends[1].qp.qp_num, 64),
    ]
    event = owner.ctx.get_async_event()
    assert (event.event_type, event.element) == (e.IBV_EVENT_SRQ_LIMIT_REACHED, shared.queue)
    assert shared.query().srq_limit == 0
    ends[0].qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert owner.ctx.get_async_event().event_type == e.IBV_EVENT_QP_LAST_WQE_REACHED
    assert shared.queue.posted == 1  # what is shared is not flushed
    number = shared.get_srq_num()
    assert owner.ctx.adapter.shared_receives[number] is shared.queue
    shared.close()
    assert number not in owner.ctx.adapter.shared_receives


@pytest.mark.parametrize(
    ("size", "pieces", "limit"),
    [(0, 1, 0), (1, 0, 0), (4, 1, 5), (1 << 30, 1, 0), (1, 1 << 20, 0)],
)
def test_shared_queues_that_cannot_be(size, pieces, limit):
    world(boxes(2))
    end = End("host-0")
    with pytest.raises(PyverbsRDMAError) as error:
        SRQ(end.pd, SrqInitAttr(SrqAttr(size, pieces, limit)))
    assert error.value.error_code == errno.EINVAL


def test_shared_queues_are_changed_within_their_limits():
    world(boxes(2))
    end = End("host-0")
    shared = SRQ(end.pd, SrqInitAttr(SrqAttr(4, 1, 4)))
    shared.post_recv(RecvWR(1, 1, [end.sge()], RecvWR(2, 1, [end.sge()])))
    for attr, mask in (
        (SrqAttr(max_wr=1), 1),  # fewer than are posted
        (SrqAttr(max_wr=3), 1),  # fewer than its limit
        (SrqAttr(max_wr=1 << 30), 1),
        (SrqAttr(srq_limit=5), 2),
        (SrqAttr(), 4),
    ):
        with pytest.raises(PyverbsRDMAError) as error:
            shared.modify(attr, mask)
        assert error.value.error_code == errno.EINVAL
    shared.modify(SrqAttr(max_wr=2, srq_limit=2), 3)
    assert (shared.query().max_wr, shared.query().srq_limit) == (2, 2)
    shared.modify(SrqAttr(max_wr=9, srq_limit=0), 2)
    assert (shared.query().max_wr, shared.query().srq_limit) == (2, 0)
    with pytest.raises(PyverbsRDMAError):
        shared.post_srq_ops(None)


def extended_srq(end: End, **more) -> SRQ:
    attr = SrqInitAttrEx(max_wr=8)
    for name, value in more.items():
        setattr(attr, name, value)
    return SRQ(end.ctx, attr)


def test_extended_shared_queues_by_kind():
    world(boxes(2))
    end = End("host-0")
    domain = XRCD(end.ctx, XRCDInitAttr(3, 0, -1))
    assert extended_srq(end, pd=end.pd).query().max_wr == 8
    assert extended_srq(end, pd=end.pd, srq_type=2).queue.extended is None  # the mask does not ask for it
    xrc = extended_srq(end, pd=end.pd, comp_mask=1, srq_type=1, cq=end.cq, xrcd=domain)
    assert (xrc.queue.extended, xrc.queue.completions) == (domain.xrcd, end.cq.cq)
    for more, code in (
        ({}, errno.EINVAL),
        ({"pd": end.pd, "comp_mask": 1, "srq_type": 2}, errno.EOPNOTSUPP),
        ({"pd": end.pd, "comp_mask": 1, "srq_type": 1, "cq": end.cq}, errno.EINVAL),
        ({"pd": end.pd, "comp_mask": 1, "srq_type": 1, "xrcd": domain}, errno.EINVAL),
        ({"comp_mask": 1, "srq_type": 1, "cq": end.cq, "xrcd": domain}, errno.EINVAL),
    ):
        with pytest.raises(PyverbsRDMAError) as error:
            extended_srq(end, **more)
        assert error.value.error_code == code
    domain.close()
    with pytest.raises(PyverbsUserError):
        assert xrc.srq


def test_xrc_domains_belong_to_files(tmp_path):
    import os

    world(boxes(2))
    ctx = End("host-0").ctx
    with (tmp_path / "domain").open("w") as file, (tmp_path / "other").open("w") as other:
        with pytest.raises(PyverbsRDMAError) as error:
            XRCD(ctx, XRCDInitAttr(3, 0, file.fileno()))
        assert error.value.error_code == errno.EAGAIN
        one = XRCD(ctx, XRCDInitAttr(3, os.O_CREAT, file.fileno()))
        again = XRCD(ctx, XRCDInitAttr(3, 0, file.fileno()))
        assert one.xrcd is again.xrcd
        assert XRCD(ctx, XRCDInitAttr(3, os.O_CREAT, file.fileno())).xrcd is one.xrcd
        assert XRCD(ctx, XRCDInitAttr(3, os.O_EXCL, file.fileno())).xrcd is one.xrcd
        with pytest.raises(PyverbsRDMAError) as error:
            XRCD(ctx, XRCDInitAttr(3, os.O_CREAT | os.O_EXCL, file.fileno()))
        assert error.value.error_code == errno.EINVAL
        made = XRCD(ctx, XRCDInitAttr(3, os.O_CREAT | os.O_EXCL, other.fileno()))
        assert made.xrcd is not one.xrcd
        assert XRCD(ctx, XRCDInitAttr(3, 0, -1)).xrcd is not one.xrcd
        elsewhere = End("host-1").ctx  # another adapter
        with pytest.raises(PyverbsRDMAError):
            XRCD(elsewhere, XRCDInitAttr(3, 0, file.fileno()))
    with pytest.raises(PyverbsRDMAError) as error:
        XRCD(ctx, XRCDInitAttr(3, 0, 9999))
    assert error.value.error_code == errno.EBADF


def xrc_pair(twin):
    """(a sender with its queue pair, a receiver with its target, its shared queue)."""
    world(twin)
    one, other = End("host-0"), End("host-7")
    domain = XRCD(other.ctx, XRCDInitAttr(3, 0, -1))
    target = QP(other.ctx, QPInitAttrEx(e.IBV_QPT_XRC_RECV, comp_mask=2, xrcd=domain))
    init = QPInitAttrEx(e.IBV_QPT_XRC_SEND, scq=one.cq, cap=QPCap(8, 0, 2, 0, 16), comp_mask=1, pd=one.pd)
    sender = QP(one.ctx, init)
    attr = QPAttr()
    attr.qp_access_flags = ALL
    near = SimpleNamespace(qp=sender, address=one.address, mr=one.mr)
    far = SimpleNamespace(qp=target, address=other.address, mr=other.mr)
    sender.qp.attributes.qp_access_flags = target.qp.attributes.qp_access_flags = ALL
    sender.to_rts(attributes(near, far))
    target.to_rts(attributes(far, near))
    return one, other, sender, (domain, target)


@pytest.mark.parametrize("opcode", [e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE_WITH_IMM])
def test_xrc_messages_take_the_queue_that_they_name(twin, opcode):
    one, other, sender, (domain, _target) = xrc_pair(twin)
    queues = [
        extended_srq(other, pd=other.pd, comp_mask=1, srq_type=1, cq=other.cq, xrcd=domain) for _ in range(2)
    ]
    for index, queue in enumerate(queues):
        queue.post_recv(RecvWR(index, 1, [other.sge(1000 * index, 64)]))
    one.mr.write(b"xrc", 3)
    request = SendWR(3, opcode, 1, 0, [one.sge(0, 3)])
    request.set_qp_type_xrc(queues[1].get_srq_num())
    request.set_wr_rdma(other.mr.rkey, other.mr.buf + 1000)
    sender.post_send(request)
    place.world().settle()
    (wc,) = other.cq.poll(2)[1]
    assert (wc.wr_id, wc.status, wc.byte_len) == (1, 0, 3)
    assert other.mr.read(3, 1000) == b"xrc"
    assert one.cq.poll()[1][0].wr_id == 3


def test_an_xrc_message_to_a_queue_of_another_domain_is_refused(twin):
    one, other, sender, (domain, _target) = xrc_pair(twin)
    assert domain.xrcd is not None
    stranger = XRCD(other.ctx, XRCDInitAttr(3, 0, -1))
    queue = extended_srq(other, pd=other.pd, comp_mask=1, srq_type=1, cq=other.cq, xrcd=stranger)
    queue.post_recv(RecvWR(1, 1, [other.sge()]))
    request = SendWR(3, e.IBV_WR_SEND, 1, 0, [one.sge()])
    request.set_qp_type_xrc(queue.get_srq_num())
    sender.post_send(request)
    place.world().settle()
    assert one.cq.poll()[1][0].status == e.IBV_WC_REM_INV_REQ_ERR
    assert other.cq.poll()[0] == 0


# ---------------------------------------------------------------------- windows, invalidation, placement


def test_a_window_of_type_1_is_bound_by_a_call(twin):
    one, other = pair(twin)
    window = MW(other.pd, e.IBV_MW_TYPE_1)
    old = window.rkey
    other.qp.bind_mw(window, MWBind(MWBindInfo(other.mr, other.mr.buf + 64, 64, 2), SIGNALED, 9))
    assert window.rkey == (old & ~0xFF) | ((old + 1) & 0xFF)  # at once
    (wc,) = other.done()
    assert (wc.wr_id, wc.status, wc.opcode) == (9, 0, e.IBV_WC_BIND_MW)
    one.send(e.IBV_WR_RDMA_WRITE, remote=other, at=64, rkey=window.rkey)
    one.send(e.IBV_WR_RDMA_WRITE, remote=other, at=65, rkey=window.rkey)
    assert one.statuses(2) == [0, e.IBV_WC_REM_ACCESS_ERR]
    with pytest.raises(PyverbsRDMAError):
        other.qp.bind_mw(MW(other.pd, e.IBV_MW_TYPE_2), MWBind(MWBindInfo(other.mr, other.mr.buf, 1, 2), 2))
    with pytest.raises(PyverbsRDMAError):
        MW(other.pd, 3)


def test_a_bind_that_cannot_be_fails_its_queue(twin):
    _, other = pair(twin)
    window = MW(other.pd, e.IBV_MW_TYPE_1)
    other.qp.bind_mw(window, MWBind(MWBindInfo(other.mr, other.mr.buf - 1, 64, 2), SIGNALED, 9))
    assert other.statuses() == [e.IBV_WC_MW_BIND_ERR]
    assert other.qp.qp_state == e.IBV_QPS_ERR


def bound(other: End, window: MW, **more) -> SendWR:
    request = SendWR(21, e.IBV_WR_BIND_MW)
    info = {"addr": other.mr.buf, "length": 128, "mw_access_flags": 2} | more
    request.set_bind_wr(window, MWBindInfo(other.mr, **info))
    return request


@pytest.mark.parametrize("by", ["send", "local"])
def test_a_window_of_type_2_lives_until_it_is_invalidated(twin, by):
    one, other = pair(twin)
    window = MW(other.pd, e.IBV_MW_TYPE_2)
    assert (window.type, window.handle) == (2, window.rkey >> 8)
    request = bound(other, window)
    other.qp.post_send(request)
    (wc,) = other.done()
    assert (wc.wr_id, wc.status, wc.opcode) == (21, 0, 5)
    assert window.rkey == request.rkey
    one.send(e.IBV_WR_RDMA_WRITE, remote=other, rkey=window.rkey)
    assert one.statuses() == [0]
    if by == "send":
        other.receive(5)
        one.send(e.IBV_WR_SEND_WITH_INV, imm=window.rkey)
        (wc,) = other.done()
        assert (wc.wr_id, wc.wc_flags, wc.imm_data) == (5, e.IBV_WC_WITH_INV, window.rkey)
        assert one.statuses() == [0]
    else:
        other.qp.post_send(SendWR(6, e.IBV_WR_LOCAL_INV, imm_data=window.rkey))
        (wc,) = other.done()
        assert (wc.wr_id, wc.status, wc.opcode) == (6, 0, 6)
    one.send(e.IBV_WR_RDMA_WRITE, remote=other, rkey=window.rkey)
    assert one.statuses() == [e.IBV_WC_REM_ACCESS_ERR]


def test_an_invalidation_of_what_is_no_window(twin):
    one, other = pair(twin)
    other.receive(5)
    one.send(e.IBV_WR_SEND_WITH_INV, imm=other.mr.rkey)
    assert one.statuses() == [e.IBV_WC_REM_ACCESS_ERR]
    (wc,) = other.done()
    assert (wc.status, wc.byte_len) == (e.IBV_WC_LOC_PROT_ERR, 0)
    one, other = pair(twin)
    one.qp.post_send(SendWR(6, e.IBV_WR_LOCAL_INV, imm_data=one.mr.rkey))
    assert one.statuses() == [e.IBV_WC_LOC_QP_OP_ERR]


def test_an_invalidation_waits_for_what_came_before(twin):
    one, other = pair(twin)
    one.send(e.IBV_WR_RDMA_WRITE, remote=other)
    one.qp.post_send(SendWR(6, e.IBV_WR_LOCAL_INV, imm_data=77))
    assert (len(one.qp.qp.outstanding), len(one.qp.qp.pending)) == (1, 1)
    assert one.statuses(2) == [0, e.IBV_WC_LOC_QP_OP_ERR]


def test_regions_by_addresses_of_their_own_and_changed(twin):
    one, other = pair(twin)
    named = MREx(one.pd, 64, ALL, iova=0x5000)
    named.write(b"named", 5)
    assert (named.length, named.handle) == (64, named.lkey >> 8)
    one.send(e.IBV_WR_RDMA_WRITE, remote=other, sge=SGE(0x5000, 5, named.lkey))
    assert one.statuses() == [0]
    assert other.mr.read(5, 0) == b"named"
    key = other.mr.rkey
    other.mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=e.IBV_ACCESS_LOCAL_WRITE)
    assert other.mr.rkey == key
    one.send(e.IBV_WR_RDMA_WRITE, remote=other)
    assert one.statuses() == [e.IBV_WC_REM_ACCESS_ERR]


def test_a_change_of_place_and_domain():
    world(boxes(2))
    end, target = End("host-0"), bytearray(8192)
    second = PD(end.ctx)
    home = MR(end.pd, 8192, ALL, address=target)
    end.mr.rereg(e.IBV_REREG_MR_CHANGE_TRANSLATION, addr=home.buf + 16, length=32)
    assert (end.mr.buf, end.mr.length) == (home.buf + 16, 32)
    end.mr.write(b"there", 5)
    assert target[16:21] == b"there"
    end.mr.rereg(e.IBV_REREG_MR_CHANGE_PD, pd=second)
    assert end.mr.region.domain is second.pd
    second.close()
    assert end.mr.region is None
    for flags, more, code in (
        (0, {}, errno.EINVAL),
        (8, {}, errno.EINVAL),
        (e.IBV_REREG_MR_CHANGE_PD, {}, errno.EINVAL),
        (e.IBV_REREG_MR_CHANGE_ACCESS, {"access": 2}, errno.EINVAL),
        (e.IBV_REREG_MR_CHANGE_TRANSLATION, {"addr": 4096, "length": 64}, errno.EFAULT),
    ):
        with pytest.raises(PyverbsRDMAError) as error:
            home.rereg(flags, **more)
        assert error.value.error_code == code
    other = End("host-1")
    with pytest.raises(PyverbsRDMAError):
        home.rereg(e.IBV_REREG_MR_CHANGE_PD, pd=other.pd)


# ---------------------------------------------------------------------- extended queue pairs


def extended(twin, ops=None):
    world(twin)
    one, other = End("host-0", access=ALL | FLUSHES), End("host-7", access=ALL | FLUSHES)
    every = 0x3FF | 1 << 11 | 1 << 12
    init = QPInitAttrEx(
        e.IBV_QPT_RC, scq=one.cq, rcq=one.cq, cap=QPCap(8, 8, 2, 2, 64), comp_mask=1 | 64, pd=one.pd,
        send_ops_flags=every if ops is None else ops,
    )  # fmt: skip
    qp = QPEx(one.ctx, init)
    qp.qp.attributes.qp_access_flags = ALL
    near = SimpleNamespace(qp=qp, address=one.address)
    qp.to_rts(attributes(near, other))
    other.qp.to_rts(attributes(other, near))
    qp.wr_flags = SIGNALED
    return one, other, qp


def test_every_request_of_an_extended_queue_pair(twin):
    one, other, qp = extended(twin)
    far, key = other.mr.buf, other.mr.rkey
    one.mr.write(b"0123456789", 10)
    other.receive(1, offset=100, length=64)
    other.receive(2, offset=200, length=64)
    other.receive(3, offset=300, length=64)

    def step(wr_id, call, *args, sge=(0, 10)):
        qp.wr_id = wr_id
        qp.wr_start()
        getattr(qp, call)(*args)
        if sge:
            qp.wr_set_sge(one.sge(*sge))
        qp.wr_complete()
        (wc,) = one.done()
        assert (wc.wr_id, wc.status) == (wr_id, 0), call
        return wc.opcode

    assert step(1, "wr_send") == 0
    assert step(2, "wr_send_imm", 0x01020304) == 0
    assert step(3, "wr_rdma_write", key, far + 400) == 1
    assert step(4, "wr_rdma_write_imm", key, far + 500, 5) == 1
    assert [other.mr.read(10, at) for at in (100, 200, 400, 500)] == [b"0123456789"] * 4
    received = other.done(3)
    assert [wc.wr_id for wc in received] == [1, 2, 3]
    assert [socket.ntohl(wc.imm_data) for wc in received] == [0, 0x01020304, 5]
    other.mr.write(b"read me", 7, 600)
    assert step(5, "wr_rdma_read", key, far + 600, sge=(100, 7)) == 2
    assert one.mr.read(7, 100) == b"read me"
    other.mr.write(struct.pack("<Q", 5), 8, 704)
    assert step(6, "wr_atomic_fetch_add", key, far + 704, 2, sge=(8, 8)) == 4
    assert step(7, "wr_atomic_cmp_swp", key, far + 704, 7, 1, sge=(16, 8)) == 3
    assert struct.unpack("<QQ", one.mr.read(16, 8)) == (5, 7)
    assert struct.unpack("<Q", other.mr.read(8, 704)) == (1,)
    assert step(8, "wr_atomic_write", key, far + 712, b"8 bytes!", sge=None) == 9
    assert other.mr.read(8, 712) == b"8 bytes!"
    assert step(8, "wr_atomic_write", key, far + 712, "abc", sge=None) == 9
    assert other.mr.read(8, 712) == b"abc\0\0\0\0\0"
    assert step(9, "wr_flush", key, far, 4096, e.IBV_FLUSH_GLOBAL, e.IBV_FLUSH_RANGE, sge=None) == 8
    window = MW(one.pd, e.IBV_MW_TYPE_2)
    new = (window.rkey & ~0xFF) | ((window.rkey + 9) & 0xFF)
    assert step(10, "wr_bind_mw", window, new, MWBindInfo(one.mr, one.mr.buf, 64, 2), sge=None) == 5
    assert window.rkey == new
    assert step(11, "wr_local_inv", new, sge=None) == 6


def test_several_requests_are_posted_together_or_none(twin):
    one, other, qp = extended(twin)
    one.mr.write(b"abcdefgh", 8)
    qp.wr_start()
    qp.wr_id = 1
    qp.wr_rdma_write(other.mr.rkey, other.mr.buf)
    qp.wr_set_sge_list(2, [one.sge(4, 4), one.sge(0, 2), one.sge()])
    qp.wr_id = 2
    qp.wr_rdma_write(other.mr.rkey, other.mr.buf + 64)
    qp.wr_set_inline_data(one.mr.buf + 1, 3)
    qp.wr_id = 3
    qp.wr_rdma_write(other.mr.rkey, other.mr.buf + 128)
    qp.wr_set_inline_data_list(2, [one.sge(0, 2), one.sge(6, 2), one.sge()])
    one.mr.write(b"xxxx", 4, 0)
    qp.wr_complete()
    assert [wc.wr_id for wc in one.done(3)] == [1, 2, 3]
    assert other.mr.read(6, 0) == b"efghxx"
    assert other.mr.read(4, 64) == b"bcd\0"
    assert other.mr.read(5, 128) == b"abgh\0"
    qp.wr_start()
    for _ in range(9):
        qp.wr_send()
        qp.wr_set_sge(one.sge())
    with pytest.raises(PyverbsRDMAError) as error:
        qp.wr_complete()
    assert error.value.error_code == errno.ENOMEM
    qp.wr_start()
    qp.wr_send()
    qp.wr_abort()
    qp.wr_complete()
    assert qp.qp.occupied == 0
    with pytest.raises(PyverbsRDMAError):
        qp.wr_set_sge(one.sge())
    qp.wr_start()
    qp.wr_rdma_write(other.mr.rkey, other.mr.buf)
    qp.wr_set_inline_data(one.mr.buf, 65)
    with pytest.raises(PyverbsRDMAError) as error:
        qp.wr_complete()
    assert error.value.error_code == errno.ENOMEM


OPS = {
    "wr_rdma_write": (0, (1, 2)),
    "wr_rdma_write_imm": (1, (1, 2, 3)),
    "wr_send": (2, ()),
    "wr_send_imm": (3, (1,)),
    "wr_rdma_read": (4, (1, 2)),
    "wr_atomic_cmp_swp": (5, (1, 8, 3, 4)),
    "wr_atomic_fetch_add": (6, (1, 8, 3)),
    "wr_local_inv": (7, (1,)),
    "wr_send_inv": (9, (1,)),
    "wr_flush": (11, (1, 2, 3, 1, 0)),
    "wr_atomic_write": (12, (1, 8, b"")),
}


@pytest.mark.parametrize("call", sorted(OPS))
def test_operations_have_to_be_asked_for(call):
    bit, given = OPS[call]
    for ops, refused in ((1 << bit, False), (0x1BFF & ~(1 << bit), True)):
        one, _, qp = extended(boxes(8), ops)
        qp.wr_start()
        getattr(qp, call)(*given)
        if call not in ("wr_local_inv", "wr_flush", "wr_atomic_write"):
            qp.wr_set_sge(one.sge(0, 8))
        if refused:
            with pytest.raises(PyverbsRDMAError) as error:
                qp.wr_complete()
            assert error.value.error_code == errno.EINVAL
        else:
            qp.wr_complete()


def test_segmentation_is_not_offered(twin):
    one, other, qp = extended(twin)
    del one, other
    qp.wr_start()
    qp.wr_send_tso(0, 0, 0)
    with pytest.raises(PyverbsRDMAError) as error:
        qp.wr_complete()
    assert error.value.error_code == errno.EOPNOTSUPP


@pytest.mark.parametrize(
    ("kind", "more", "code"),
    [
        (e.IBV_QPT_RC, {"comp_mask": 1 | 64, "send_ops_flags": 1 << 10}, errno.EOPNOTSUPP),
        (e.IBV_QPT_RC, {"comp_mask": 1 | 64, "send_ops_flags": 0x3FF | 3 << 11}, 0),
        (e.IBV_QPT_UC, {"comp_mask": 1 | 64, "send_ops_flags": 0x18F}, 0),
        (e.IBV_QPT_UC, {"comp_mask": 1 | 64, "send_ops_flags": 0x10}, errno.EOPNOTSUPP),
        (e.IBV_QPT_UD, {"comp_mask": 1 | 64, "send_ops_flags": 0x0C}, 0),
        (e.IBV_QPT_UD, {"comp_mask": 1 | 64, "send_ops_flags": 0x01}, errno.EOPNOTSUPP),
        (e.IBV_QPT_UD, {"comp_mask": 1, "send_ops_flags": 0x01}, 0),
        (e.IBV_QPT_UD, {"comp_mask": 1 | 4, "create_flags": 2}, 0),
        (e.IBV_QPT_RC, {"comp_mask": 1 | 4, "create_flags": 2}, errno.EOPNOTSUPP),
        (e.IBV_QPT_RC, {"comp_mask": 1, "create_flags": 2}, 0),
        (e.IBV_QPT_RC, {"comp_mask": 1 | 8}, errno.EOPNOTSUPP),
        (e.IBV_QPT_RC, {"comp_mask": 1 | 16}, errno.EOPNOTSUPP),
        (e.IBV_QPT_RC, {"comp_mask": 1 | 32}, errno.EOPNOTSUPP),
        (e.IBV_QPT_RAW_PACKET, {}, errno.EINVAL),
        (e.IBV_QPT_DRIVER, {}, errno.EOPNOTSUPP),
        (e.IBV_QPT_XRC_RECV, {}, errno.EINVAL),
        (e.IBV_QPT_RC, {"rcq": None}, errno.EINVAL),
        (e.IBV_QPT_RC, {"scq": None}, errno.EINVAL),
        (e.IBV_QPT_XRC_SEND, {"rcq": None}, 0),
        (e.IBV_QPT_RC, {"pd": None}, errno.EINVAL),
    ],
)
def test_queue_pairs_that_can_and_cannot_be_made(kind, more, code):
    world(boxes(2))
    end = End("host-0")
    given = {"scq": end.cq, "rcq": end.cq, "pd": end.pd, "comp_mask": 1} | more
    init = QPInitAttrEx(kind, **given)
    if code:
        with pytest.raises(PyverbsRDMAError) as error:
            QPEx(end.ctx, init)
        assert error.value.error_code == code
    else:
        assert QPEx(end.ctx, init).qp_type == kind


@pytest.mark.parametrize(
    ("ptype", "level", "start", "length", "access", "status"),
    [
        (1, 0, 0, 4096, FLUSHES, 0),
        (2, 0, 0, 4096, FLUSHES, 0),
        (3, 0, 1, 4095, FLUSHES, 0),
        (1, 0, 1, 4096, FLUSHES, e.IBV_WC_REM_ACCESS_ERR),
        (1, 0, -1, 8, FLUSHES, e.IBV_WC_REM_ACCESS_ERR),
        (1, 1, -1, 8192, FLUSHES, 0),  # the whole region
        (1, 0, 0, 8, e.IBV_ACCESS_FLUSH_GLOBAL, 0),
        (2, 0, 0, 8, e.IBV_ACCESS_FLUSH_GLOBAL, e.IBV_WC_REM_ACCESS_ERR),
        (0, 0, 0, 8, FLUSHES, e.IBV_WC_REM_INV_REQ_ERR),
    ],
)
def test_flushes_ask_for_a_kind_of_placement(ptype, level, start, length, access, status):
    one, other, qp = extended(boxes(8))
    other.mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=ALL | access)
    other.qp.qp.attributes.qp_access_flags = ALL | FLUSHES
    qp.wr_start()
    qp.wr_flush(other.mr.rkey, other.mr.buf + start, length, ptype, level)
    qp.wr_complete()
    assert one.statuses() == [status]


def test_a_flush_needs_the_queue_pair_s_leave():
    one, other, qp = extended(boxes(8))
    other.qp.qp.attributes.qp_access_flags = ALL | e.IBV_ACCESS_FLUSH_PERSISTENT
    qp.wr_start()
    qp.wr_flush(other.mr.rkey, other.mr.buf, 8, 1, 0)
    qp.wr_complete()
    assert one.statuses() == [e.IBV_WC_REM_INV_REQ_ERR]


def test_an_atomic_write_off_its_alignment():
    one, other, qp = extended(boxes(8))
    qp.wr_start()
    qp.wr_atomic_write(other.mr.rkey, other.mr.buf + 4, b"12345678")
    qp.wr_complete()
    assert one.statuses() == [e.IBV_WC_REM_INV_REQ_ERR]


# ---------------------------------------------------------------------- states, errors, closing


def test_a_queue_that_drains_says_when_it_has(twin):
    one, other = pair(twin)
    one.send(e.IBV_WR_RDMA_WRITE, remote=other)
    attr = QPAttr(qp_state=e.IBV_QPS_SQD)
    attr.en_sqd_async_notify = 1
    one.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
    assert one.qp.query(0)[0].sq_draining == 1
    one.send(e.IBV_WR_RDMA_WRITE, remote=other)
    place.world().settle()
    assert one.ctx.get_async_event().event_type == e.IBV_EVENT_SQ_DRAINED
    assert one.qp.query(0)[0].sq_draining == 0
    assert one.cq.poll(5)[0] == 1
    assert "holds its send queue" in place.world().why_idle()
    one.qp.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    assert one.statuses() == [0]


def test_a_queue_that_drains_with_nothing_under_way(twin):
    one, _ = pair(twin)
    attr = QPAttr(qp_state=e.IBV_QPS_SQD)
    attr.en_sqd_async_notify = 1
    one.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
    assert one.ctx.get_async_event().event_type == e.IBV_EVENT_SQ_DRAINED


def test_communication_is_established_by_the_first_arrival(twin):
    world(twin)
    one, other = End("host-0"), End("host-7")
    one.qp.to_rts(attributes(one, other))
    other.qp.to_rtr(attributes(other, one))
    for _ in range(2):
        one.send(e.IBV_WR_RDMA_WRITE, remote=other)
    assert one.statuses(2) == [0, 0]
    assert [event.event_type for event in other.ctx.opened.events] == [e.IBV_EVENT_COMM_EST]


def test_packets_longer_than_the_receiver_s_path(twin):
    world(twin)
    one, other = End("host-0"), End("host-7")
    one.qp.to_rts(attributes(one, other, path_mtu=e.IBV_MTU_1024))
    other.qp.to_rts(attributes(other, one, path_mtu=e.IBV_MTU_512))
    for length, status in ((512, 0), (513, e.IBV_WC_REM_INV_REQ_ERR)):
        one.send(e.IBV_WR_RDMA_WRITE, remote=other, length=length)
        assert one.statuses() == [status]


@pytest.mark.parametrize(("length", "packets"), [(0, 1), (1, 1), (256, 1), (257, 2), (1024, 4), (1025, 5)])
def test_packet_numbers_count_packets(twin, length, packets):
    one, other = pair(twin, path_mtu=e.IBV_MTU_256, sq_psn=0xFFFFFE, rq_psn=0xFFFFFE)
    one.send(e.IBV_WR_RDMA_WRITE, remote=other, length=length)
    assert one.statuses() == [0]
    assert one.qp.qp.next_psn == other.qp.qp.expected_psn == (0xFFFFFE + packets) % 2**24


def test_no_message_is_longer_than_two_gib():
    one, other = pair(boxes(8))
    half = SGE(one.mr.buf, 1 << 30, one.mr.lkey)
    # of so many bytes no region is here: what is too long is said first
    for pieces, status in (
        ([half, half], e.IBV_WC_LOC_PROT_ERR),
        ([half, half, one.sge(0, 1)], e.IBV_WC_LOC_LEN_ERR),
    ):
        request = SendWR(1, e.IBV_WR_RDMA_WRITE, len(pieces), 0, pieces, SIGNALED)
        request.set_wr_rdma(other.mr.rkey, other.mr.buf)
        one.qp.post_send(request)
        assert one.statuses() == [status]
        one, other = pair(boxes(8))
        half = SGE(one.mr.buf, 1 << 30, one.mr.lkey)


def test_what_waits_says_for_what(twin):
    one, other = pair(twin, rnr_retry=7)
    other.receive()
    assert "has 1 receives posted, but nobody sends to it" in place.world().why_idle()
    one.send()
    place.world().settle()
    one.done()
    other.done()
    assert place.world().why_idle() == "nothing is in flight"
    world(twin)
    one, other = End("host-0"), End("host-7")
    one.qp.to_rts(attributes(one, other, timeout=0))
    one.send(e.IBV_WR_RDMA_WRITE, remote=other)  # the other end is not ready
    place.world().settle()
    assert "nobody answers, and its timeout is never" in place.world().why_idle()
    assert f"host-0/mlx5_0 QP {one.qp.qp_num:#x} " in place.world().why_idle()


@pytest.mark.parametrize("code", [1, 10, 14])
def test_a_timeout_is_four_microseconds_times_a_power_of_two(twin, code):
    world(twin)
    one, other = End("host-0"), End("host-7")
    one.qp.to_rts(attributes(one, other, timeout=code, retry_cnt=2))
    one.send(e.IBV_WR_RDMA_WRITE, remote=other)
    assert one.statuses() == [e.IBV_WC_RETRY_EXC_ERR]
    passed = place.world().now_ps
    assert 3 * 4_096_000 << code <= passed <= (3 * 4_096_000 << code) + 20_000_000


def test_a_static_rate_slows_what_is_sent(twin):
    """2 Gb/s of bytes on the wire take at least as long as their payload would."""
    took = {}
    for rate in (0, 2):  # IBV_RATE_2_5_GBPS
        world(twin)
        one, other = End("host-0", size=1 << 20), End("host-7", size=1 << 20)
        for own, far in ((one, other), (other, one)):
            address = far.address
            address.static_rate = rate
            own.qp.to_rts(attributes(own, far, ah_attr=address))
        one.send(e.IBV_WR_RDMA_WRITE, remote=other, length=1 << 20)
        assert one.statuses() == [0]
        took[rate] = place.world().now_ps
    assert took[2] == pytest.approx((1 << 20) * 8 / 2.5e9 * 1e12, rel=0.1)
    assert took[0] < took[2] / 5


def test_flow_labels_fold_to_a_port():
    """rdma_flow_label_to_udp_sport: the low 14 bits, by the high 6 exclusively or, in the dynamic range."""
    from fabrictwin.verbs.adapter.queue_pair import _udp_source_port

    assert _udp_source_port(0) is None
    for label in (1, 0x3FFF, 0x4000, 0xFFFFF, 0x12345):
        assert _udp_source_port(label) == 0xC000 | ((label & 0x3FFF) ^ (label >> 14))


def test_a_pair_that_is_closed_stops_its_traffic(twin):
    one, other = pair(twin)
    for _ in range(3):
        one.send(e.IBV_WR_RDMA_READ, remote=other)
    other.qp.close()
    assert one.done()[0].status == e.IBV_WC_RETRY_EXC_ERR
    assert other.ctx.adapter.queue_pairs == {}
    with pytest.raises(PyverbsRDMAError):
        other.qp.post_recv(RecvWR(1, 1, [other.sge()]))


def test_a_reset_forgets_what_was_posted(twin):
    one, other = pair(twin, depth=4)
    for _ in range(3):
        one.send(e.IBV_WR_RDMA_WRITE, remote=other)
        other.receive()
    for end in (one, other):
        end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        assert (end.qp.qp.occupied, end.qp.qp.receives.posted) == (0, 0)
        attr, _ = end.qp.query(0)
        assert (attr.qp_state, attr.dest_qp_num, attr.timeout) == (0, 0, 0)
    place.world().settle()
    assert one.cq.poll() == (0, [])
    connect(one, other, qp_access_flags=ALL)
    for wr_id in range(4):
        other.receive(wr_id)
        one.send(wr_id=wr_id)
    assert [wc.wr_id for wc in one.done(4)] == [wc.wr_id for wc in other.done(4)] == [0, 1, 2, 3]


def test_attributes_are_read_back(twin):
    one, other = pair(twin, timeout=11, retry_cnt=5, rnr_retry=4, min_rnr_timer=9, max_rd_atomic=3)
    attr, init = one.qp.query(0)
    assert (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer, attr.max_rd_atomic) == (
        11,
        5,
        4,
        9,
        3,
    )
    assert (attr.qp_state, attr.cur_qp_state, attr.dest_qp_num) == (3, 3, other.qp.qp_num)
    assert (attr.rq_psn, attr.sq_psn, attr.port_num) == (100, 100, 1)
    assert attr.ah_attr.vector() == other.address.vector()
    assert (init.qp_type, init.sq_sig_all, init.send_cq, init.recv_cq) == (2, 0, one.cq, one.cq)
    cap = (64, 64, 4, 4, 64)
    for held in (attr.cap, init.cap):
        assert (
            held.max_send_wr,
            held.max_recv_wr,
            held.max_send_sge,
            held.max_recv_sge,
            held.max_inline_data,
        ) == cap
    init.max_send_wr = 5
    assert init.cap.max_send_wr == 5
    assert one.qp.query_data_in_order(2) == 1
    assert one.qp.query_data_in_order(2, 1) == 3


def test_every_request_may_complete_with_a_signal(twin):
    one, other = pair(twin, signal_all=1)
    one.send(e.IBV_WR_RDMA_WRITE, remote=other, flags=0)
    assert one.statuses() == [0]
    assert one.qp.query(0)[1].sq_sig_all == 1


def test_a_rate_limit_is_for_raw_packets(twin):
    from fabrictwin.verbs.attributes.qp_attributes import ECE, QPRateLimitAttr

    one, _ = pair(twin)
    for attr, code in ((QPRateLimitAttr(5), errno.EOPNOTSUPP), (QPRateLimitAttr(5, 1), errno.EINVAL)):
        with pytest.raises(PyverbsRDMAError) as error:
            one.qp.modify_rate_limit(attr)
        assert error.value.error_code == code
    assert one.qp.query_ece().vendor_id == 0
    one.qp.set_ece(ECE())
    for ece in (ECE(1), ECE(0, 1)):
        with pytest.raises(PyverbsRDMAError):
            one.qp.set_ece(ece)


def test_closing_takes_what_was_made_with_it(twin):
    one, other = pair(twin)
    made = [PD(one.ctx), one.mr, one.qp, one.cq]
    window = MW(one.pd, e.IBV_MW_TYPE_1)
    with MR(one.pd, 64, ALL) as region:
        key = region.lkey
        assert key in one.ctx.adapter.memory.local
    assert key not in one.ctx.adapter.memory.local
    one.pd.close()
    assert (one.mr.region, window.window, one.qp.engine) == (None, None, None)
    one.ctx.close()
    assert one.cq.queue is None
    assert made[0].domain is None
    assert not one.ctx.adapter.queue_pairs
    with pytest.raises(PyverbsUserError):
        assert one.ctx.context
    other.ctx.close()


def test_an_opened_device_is_imported_with_its_domains_and_regions():
    from fabrictwin.verbs.pyverbs.device import Context

    world(boxes(2))
    end = End("host-0")
    fd = end.ctx.cmd_fd
    assert end.ctx.cmd_fd == fd
    import os

    again = Context(cmd_fd=os.dup(fd))
    assert again.context is end.ctx.context
    domain = PD(again, handle=end.pd.handle)
    region = MR(domain, handle=end.mr.handle)
    assert (domain.pd, region.region, region.lkey) == (end.pd.pd, end.mr.region, end.mr.lkey)
    assert domain.handle == end.pd.handle
    for wrong in (
        lambda: PD(again, handle=99),
        lambda: MR(domain, handle=9999),
        lambda: MR(PD(again), handle=end.mr.handle),
    ):
        with pytest.raises(PyverbsRDMAError) as error:
            wrong()
        assert error.value.error_code == errno.EINVAL
    region.unimport()
    region.close()
    domain.unimport()
    domain.close()
    again.close()
    assert end.mr.region is not None
    assert end.mr.lkey in end.ctx.adapter.memory.local
    assert end.pd.handle in end.ctx.context.domains
    end.pd.close()
    assert end.ctx.context.domains == {}
    with pytest.raises(PyverbsRDMAError), open("/dev/null") as null:
        Context(cmd_fd=null.fileno())
    with pytest.raises(PyverbsUserError):
        Context()
    with pytest.raises(PyverbsRDMAError):
        Context(name="mlx5_9")
    with pytest.raises(PyverbsUserError):
        PD(end.pd)


def test_memory_by_address():
    from fabrictwin.verbs.pyverbs import mem_alloc as m

    at = m.mmap(length=8192)
    assert at % 4096 == 0
    m.write(at, b"abcdef", 4, 2)
    assert m.read(at, 7, 1) == b"\0abcd\0\0"
    m.write(at, "xyz", 9, 64)
    assert m.read(at, 4, 64) == b"xyz\0"
    m.writebe32(at, 0x01020304, 3)
    assert m.read(at, 4, 12) == bytes([1, 2, 3, 4])
    assert m.read32(at, 3) == 0x04030201
    m.writebe64(at, 5, 4)
    assert m.read(at, 8, 32) == bytes(7) + b"\5"
    assert m.read64(at, 4) == 5 << 56
    m.madvise(at, 4096)
    assert m.read(at, 8) == bytes(8)
    with pytest.raises(PyverbsError):
        m.madvise(at + 1, 64)
    m.munmap(at, 8192)
    with pytest.raises(PyverbsError):
        m.munmap(at + 1, 64)
    with pytest.raises(MemoryError):
        m.mmap(length=0)
    block = m.posix_memalign(100, 256)
    assert (block % 256, m.read(block, 100)) == (0, bytes(100))
    m.free(block)
    with pytest.raises(MemoryError, match="EINVAL"):
        m.posix_memalign(8, 3)
    block = m.malloc(16)
    m.write(block, b"x" * 16, 16)
    m.free(block)
    assert (m.PROT_NONE_, m.MAP_PUBLIC_, m.MAP_HUGETLB_) == (0, 1, 0x40000)


@pytest.mark.parametrize("size", [64, (1 << 20) - 1, 1 << 20, 3 << 20])
def test_buffers_of_regions_begin_with_nothing(size):
    world(boxes(2))
    end = End("host-0")
    region = MR(end.pd, size, ALL)
    assert (region.buf % 4096, region.length, region.read(8, size - 8)) == (0, size, bytes(8))
    region.write(b"end", 3, size - 3)
    assert region.read(3, size - 3) == b"end"
    region.close()
    assert (region.buf, region.region) == (0, None)
    for wrong in (lambda: end.mr.write(b"x", 1, -1), lambda: end.mr.write(b"x", -1), lambda: end.mr.read(1, -1),
                  lambda: end.mr.read(-1, 0)):  # fmt: skip
        with pytest.raises(PyverbsUserError):
            wrong()
    end.mr.write("text", 9)
    assert end.mr.read(5, 0) == b"text\0"


@pytest.mark.parametrize(
    ("access", "code"),
    [(1, 0), (0x3BF & ~64 | 1 << 20, 0), (64, errno.EOPNOTSUPP), (2, errno.EINVAL), (8, errno.EINVAL),
     (1 << 10 | 1, errno.EINVAL), (4, 0), (16, 0), (32, 0), (0x80, 0), (0x100, 0), (0x200, 0)],
)  # fmt: skip
def test_rights_that_can_be_registered(access, code):
    from fabrictwin.verbs.pyverbs.mr import check_access

    assert check_access(access) == code


def test_regions_that_are_not_offered():
    world(boxes(2))
    end = End("host-0")
    for more, code in (
        ({"implicit": True}, errno.EOPNOTSUPP),
        ({"fd": 3}, errno.EOPNOTSUPP),
        ({"fd": 3, "implicit": True}, errno.EINVAL),
        ({"fd": 3, "address": 4096}, errno.EINVAL),
        ({"dmah": 1}, errno.EOPNOTSUPP),
        ({"buf": 1}, errno.EOPNOTSUPP),
    ):
        with pytest.raises(PyverbsRDMAError) as error:
            MREx(end.pd, 64, ALL, **more)
        assert error.value.error_code == code
    with pytest.raises(PyverbsUserError):
        MR(end.pd, 3, ALL, address=b"abc")


assert verbs_ends.ENGINE == "analytic"  # these tests say what happens, not when


@pytest.mark.parametrize(
    ("name", "mask", "least", "most"),
    [
        ("port_num", e.IBV_QP_PORT, 1, 1),
        ("pkey_index", e.IBV_QP_PKEY_INDEX, 0, 127),
        ("path_mtu", e.IBV_QP_PATH_MTU, 1, 5),
        ("timeout", e.IBV_QP_TIMEOUT, 0, 31),
        ("retry_cnt", e.IBV_QP_RETRY_CNT, 0, 7),
        ("rnr_retry", e.IBV_QP_RNR_RETRY, 0, 7),
        ("min_rnr_timer", e.IBV_QP_MIN_RNR_TIMER, 0, 31),
        ("max_rd_atomic", e.IBV_QP_MAX_QP_RD_ATOMIC, 0, 16),
        ("max_dest_rd_atomic", e.IBV_QP_MAX_DEST_RD_ATOMIC, 0, 16),
        ("dest_qp_num", e.IBV_QP_DEST_QPN, 0, 2**24 - 1),
    ],
)
def test_attributes_have_ranges(name, mask, least, most):
    from fabrictwin.verbs.adapter.qp_checks import Attributes, valid

    world(boxes(2))
    adapter = End("host-0").ctx.adapter
    for value, good in ((least - 1, False), (least, True), (most, True), (most + 1, False)):
        attributes = Attributes()
        setattr(attributes, name, value)
        assert valid(attributes, mask, adapter) == good, (name, value)
        assert valid(attributes, e.IBV_QP_STATE, adapter)  # what is not given is not looked at


def test_attributes_of_the_way_open_it_anew_once_it_is_idle(twin):
    one, other = pair(twin)
    one.send(e.IBV_WR_RDMA_WRITE, remote=other)
    assert one.qp.qp.ways
    one.done()
    attr = QPAttr(qp_state=e.IBV_QPS_SQD)
    one.qp.modify(attr, e.IBV_QP_STATE)
    attr.timeout = 3
    one.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_TIMEOUT)
    assert not one.qp.qp.ways
    one.qp.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    one.send(e.IBV_WR_RDMA_WRITE, remote=other)
    assert one.statuses() == [0]


def test_a_datagram_needs_an_address():
    from fabrictwin.verbs.adapter.transport import requester
    from fabrictwin.verbs.adapter.work_requests import Work

    one, other = pair(boxes(8), kind=e.IBV_QPT_UD)
    work = Work(one.qp.qp, 1, e.IBV_WR_SEND, SIGNALED, ((one.mr.buf, 8, one.mr.lkey),))
    assert requester.post(one.qp.qp, work) == errno.EINVAL
    assert one.qp.qp.occupied == 0
    del other


def test_requests_that_are_posted_together_know_it(twin):
    one, other = pair(twin)
    for count in (1, 2, 3):
        request = None
        for _ in range(count):
            request = SendWR(1, e.IBV_WR_RDMA_WRITE, 1, 0, [one.sge()], SIGNALED, request)
            request.set_wr_rdma(other.mr.rkey, other.mr.buf)
        one.qp.post_send(request)
        assert [work.chained for work in one.qp.qp.outstanding] == [count > 1] * count
        one.done(count)


@pytest.mark.parametrize("kind", [e.IBV_QPT_RC, e.IBV_QPT_UC])
def test_what_a_completion_has_not_is_nothing(twin, kind):
    one, other = pair(twin, kind=kind)
    for opcode in (e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE_WITH_IMM):
        other.receive(1, length=64)
        one.send(opcode, remote=other, length=8)
        for wc in both(one, other):
            assert (wc.vendor_err, wc.src_qp, wc.slid, wc.sl, wc.pkey_index, wc.dlid_path_bits) == (0,) * 6


def test_an_extended_queue_that_overran_says_so(twin):
    world(twin)
    one, other = End("host-0"), End("host-7")
    queue = CQEX(one.ctx, CqInitAttrEx(cqe=1))
    init = QPInitAttr(e.IBV_QPT_RC, None, queue, queue, None, QPCap(8, 8, 1, 1, 0))
    qp = QP(one.pd, init)
    near = SimpleNamespace(qp=qp, address=one.address)
    qp.to_rts(attributes(near, other))
    other.qp.to_rts(attributes(other, near))
    for _ in range(3):
        request = SendWR(1, e.IBV_WR_RDMA_WRITE, 1, 0, [one.sge()], SIGNALED)
        request.set_wr_rdma(other.mr.rkey, other.mr.buf)
        qp.post_send(request)
    place.world().settle()
    assert queue.start_poll() == 0
    with pytest.raises(PyverbsRDMAError, match="overrun"):
        queue.start_poll()
