"""Completion queues: fields, sizes, overruns, channels and their events."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest
from support.clusters import boxes
from support.verbs_ends import (
    ALL,
    QKEY,
    SIGNALED,
    SOLICITED,
    End,
    attributes,
    both,
    connect,
    pair,
    world,
)

from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError
from fabrictwin.verbs.pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from fabrictwin.verbs.pyverbs.wr import RecvWR, SendWR


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
