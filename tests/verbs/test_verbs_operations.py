"""Operations one by one, and everything that their completions say: opcodes, flags, lengths, numbers."""

from __future__ import annotations

import errno
import struct

import pytest
from support.verbs_ends import (
    ALL,
    INLINE,
    SIGNALED,
    both,
    pair,
)

from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from fabrictwin.verbs.pyverbs.wr import SGE, RecvWR, SendWR


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


def test_a_write_of_nothing_needs_no_key(twin):
    """IBTA volume 1, section 9.7.5.1.3.2: of a request without data the receiver does not look at the R_Key."""
    one, other = pair(twin)
    one.mr.write(b"\x11" * 16, 16)
    one.send(e.IBV_WR_RDMA_WRITE, length=0, remote=other, rkey=0xDEAD00, at=1 << 40)
    assert one.statuses() == [0]
    assert other.mr.read(16, 0) == bytes(16)
    other.receive(3)
    one.send(e.IBV_WR_RDMA_WRITE_WITH_IMM, imm=5, length=0, remote=other, rkey=0xDEAD00, at=1 << 40)
    sent, received = both(one, other)
    assert (sent.status, received.status, received.byte_len, received.imm_data) == (0, 0, 0, 5)
