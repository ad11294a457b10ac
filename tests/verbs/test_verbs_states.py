"""States of queue pairs, packet numbers, retries, attributes, and what closing takes with it."""

from __future__ import annotations

import errno

import pytest
from support.clusters import boxes
from support.verbs_ends import (
    ALL,
    SIGNALED,
    End,
    attributes,
    connect,
    pair,
    world,
)

from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.mr import MR, MW
from fabrictwin.verbs.pyverbs.pd import PD
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from fabrictwin.verbs.pyverbs.qp import QPAttr
from fabrictwin.verbs.pyverbs.wr import SGE, RecvWR, SendWR


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
    assert one.qp.qp.peer_flows
    one.done()
    attr = QPAttr(qp_state=e.IBV_QPS_SQD)
    one.qp.modify(attr, e.IBV_QP_STATE)
    attr.timeout = 3
    one.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_TIMEOUT)
    assert not one.qp.qp.peer_flows
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
