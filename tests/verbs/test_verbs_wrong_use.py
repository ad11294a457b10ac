"""Wrong use of the verbs is refused as hardware refuses it: by errno at once, or by a completion's status."""

from __future__ import annotations

import ctypes
import errno

import pytest
from support import verbs_ends
from support.clusters import boxes
from support.verbs_ends import ALL, QKEY, End, attributes, connect, pair, world

from fabrictwin.subnet.wire.smp import PortInfo
from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.pyverbs.enums import (  # type: ignore[attr-defined]
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_RESET,
    IBV_QPS_RTS,
    IBV_QPS_SQE,
    IBV_QPT_RC,
    IBV_QPT_UC,
    IBV_QPT_UD,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
)
from fabrictwin.verbs.pyverbs.mr import MR
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError
from fabrictwin.verbs.pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from fabrictwin.verbs.pyverbs.wr import SGE, RecvWR


@pytest.fixture(autouse=True, params=["analytic", "packet", pytest.param("flow", marks=pytest.mark.second)])
def engine(request, monkeypatch):
    monkeypatch.setattr(verbs_ends, "ENGINE", request.param)


@pytest.fixture(params=["infiniband", "ethernet"])
def twin(request):
    return boxes(8, request.param)


def test_a_stale_rkey(twin):
    one, other = pair(twin)
    stale = other.mr.rkey
    other.mr.close()
    other.mr = MR(other.pd, 4096, ALL)
    one.send(IBV_WR_RDMA_WRITE, remote=other, rkey=stale)
    assert one.statuses() == [IBV_WC_REM_ACCESS_ERR]
    assert one.qp.qp_state == other.qp.qp_state == IBV_QPS_ERR


@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ])
def test_one_byte_past_a_region(twin, opcode):
    one, other = pair(twin)
    one.send(opcode, remote=other, at=4096 - 64)
    assert one.statuses() == [IBV_WC_SUCCESS]
    one.send(opcode, remote=other, at=4096 - 63)
    assert one.statuses() == [IBV_WC_REM_ACCESS_ERR]


def test_one_byte_before_a_region(twin):
    one, other = pair(twin)
    one.send(IBV_WR_RDMA_WRITE, remote=other, at=-1)
    assert one.statuses() == [IBV_WC_REM_ACCESS_ERR]


def test_one_byte_past_the_local_region(twin):
    one, other = pair(twin)
    other.receive()
    one.send(offset=4096 - 63)
    assert one.statuses() == [IBV_WC_LOC_PROT_ERR]


def test_a_write_without_remote_access_of_the_region(twin):
    one, other = pair(twin, access=IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, qp_access=ALL)
    before = other.mr.read(64, 0)
    one.mr.write(b"x" * 64, 64)
    one.send(IBV_WR_RDMA_WRITE, remote=other)
    assert one.statuses() == [IBV_WC_REM_ACCESS_ERR]
    assert other.mr.read(64, 0) == before
    assert other.ctx.get_async_event().event_type == 3  # IBV_EVENT_QP_ACCESS_ERR


def test_a_write_without_remote_access_of_the_queue_pair(twin):
    one, other = pair(twin, qp_access=IBV_ACCESS_LOCAL_WRITE)
    one.send(IBV_WR_RDMA_WRITE, remote=other)
    assert one.statuses() == [IBV_WC_REM_INV_REQ_ERR]


def test_posting_to_a_queue_pair_in_reset(twin):
    world(twin)
    end = End("host-0")
    end.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    with pytest.raises(PyverbsRDMAError) as send:
        end.send()
    with pytest.raises(PyverbsRDMAError) as receive:
        end.receive()
    assert send.value.error_code == receive.value.error_code == errno.EINVAL


def test_a_pkey_mismatch(twin):
    one, other = pair(twin)
    here = place.world()
    other.ctx.adapter.pkeys[0] = 0x8001
    try:
        other.receive()
        one.send()
        started = here.now_ps
        assert one.statuses() == [IBV_WC_RETRY_EXC_ERR]
        # three retries after the first try, each after 4.096 us * 2^14
        assert here.now_ps - started >= 4 * 4_096_000 * 2**14
        assert other.ctx.query_port(1).bad_pkey_cntr == 1
    finally:
        other.ctx.adapter.pkeys[0] = 0xFFFF


def test_a_limited_member_talks_to_full_members_only(twin):
    one, other = pair(twin)
    one.ctx.adapter.pkeys[0] = 0x7FFF
    other.receive()
    one.send()
    assert one.statuses() == [IBV_WC_SUCCESS]
    other.ctx.adapter.pkeys[0] = 0x7FFF
    other.receive()
    one.send()
    assert one.statuses() == [IBV_WC_RETRY_EXC_ERR]


def test_a_receive_buffer_that_is_too_small(twin):
    one, other = pair(twin)
    other.receive(7, length=63)
    one.send()
    assert one.statuses() == [IBV_WC_REM_INV_REQ_ERR]
    (received,) = other.done()
    assert (received.status, received.wr_id) == (IBV_WC_LOC_LEN_ERR, 7)


def test_a_datagram_into_a_receive_buffer_without_room_for_the_header(twin):
    one, other = pair(twin, kind=IBV_QPT_UD)
    other.receive(length=64)
    one.send(to=other)
    assert one.statuses() == [IBV_WC_SUCCESS]
    assert other.statuses() == [IBV_WC_LOC_LEN_ERR]


def test_an_unregistered_buffer(twin):
    one, other = pair(twin)
    other.receive()
    buffer = ctypes.create_string_buffer(64)
    one.send(sge=SGE(ctypes.addressof(buffer), 64, one.mr.lkey))
    assert one.statuses() == [IBV_WC_LOC_PROT_ERR]
    assert one.qp.qp_state == IBV_QPS_ERR


def test_an_unregistered_receive_buffer(twin):
    one, other = pair(twin)
    other.qp.post_recv(RecvWR(0, 1, [SGE(other.mr.buf, 64, other.mr.lkey + 1)]))
    one.send()
    assert one.statuses() == [IBV_WC_REM_OP_ERR]
    assert other.statuses() == [IBV_WC_LOC_PROT_ERR]


def test_memory_of_another_domain(twin):
    one, other = pair(twin)
    stranger = End(one.ctx.adapter.host_name)
    one.send(IBV_WR_RDMA_WRITE, remote=other, sge=stranger.sge())
    assert one.statuses() == [IBV_WC_LOC_PROT_ERR]


def test_memory_that_is_not_this_process_s():
    world(boxes(8))
    end = End("host-0")
    with pytest.raises(PyverbsRDMAError) as error:
        MR(end.pd, 4096, ALL, address=0x1000)
    assert error.value.error_code == errno.EFAULT


def test_a_region_that_goes_while_its_bytes_are_under_way(twin):
    one, other = pair(twin)
    other.receive()
    one.send()
    one.mr.close()
    assert one.statuses() == [IBV_WC_LOC_PROT_ERR]


def test_an_atomic_off_its_alignment(twin):
    one, other = pair(twin)
    one.send(IBV_WR_ATOMIC_FETCH_AND_ADD, length=8, remote=other, at=4, operands=(1,))
    assert one.statuses() == [IBV_WC_REM_INV_REQ_ERR]


def test_more_reads_than_the_responder_has_resources_for(twin):
    one, other = pair(twin, max_rd_atomic=4, max_dest_rd_atomic=1)
    for _ in range(2):
        one.send(IBV_WR_RDMA_READ, remote=other)
    assert one.statuses(2) == [IBV_WC_SUCCESS, IBV_WC_REM_INV_REQ_ERR]


def test_no_receive_posted_fails_after_the_retries_that_are_allowed(twin):
    one, other = pair(twin, rnr_retry=2)
    one.send()
    assert one.statuses() == [IBV_WC_RNR_RETRY_EXC_ERR]
    assert not other.cq.poll()[0]


def test_no_receive_posted_waits_for_ever_and_says_so(twin):
    one, other = pair(twin, rnr_retry=7)
    one.send()
    with pytest.raises(PyverbsRDMAError, match=r"nothing is in flight: .*receiver, which has no receive posted"):
        one.cq.wait()
    other.receive()
    assert one.statuses() == other.statuses() == [IBV_WC_SUCCESS]


def test_what_is_behind_a_request_that_waits_for_ever_waits_too(twin):
    one, other = pair(twin, rnr_retry=7)
    one.send()
    one.send(IBV_WR_RDMA_WRITE, remote=other, at=64)
    other.send(IBV_WR_RDMA_WRITE, remote=one, at=128)
    assert other.statuses() == [IBV_WC_SUCCESS]  # what does not wait goes on
    for _ in range(2):
        with pytest.raises(PyverbsRDMAError, match="receiver, which has no receive posted"):
            one.cq.wait()
    now = place.world().now_ps
    assert not one.cq.poll()[0]
    assert place.world().now_ps == now  # time does not run for what cannot be
    other.receive()
    assert one.statuses(2) == [IBV_WC_SUCCESS] * 2
    assert other.statuses() == [IBV_WC_SUCCESS]


@pytest.mark.parametrize("last", [IBV_QPS_ERR, IBV_QPS_RESET])
def test_a_receiver_that_takes_nothing_any_more_does_not_answer(twin, last):
    one, other = pair(twin, rnr_retry=7, timeout=10)
    one.send()
    place.world().settle()
    other.qp.modify(QPAttr(qp_state=last), IBV_QP_STATE)
    began = place.world().now_ps
    assert one.statuses() == [IBV_WC_RETRY_EXC_ERR]
    assert place.world().now_ps - began >= 4 * 4_096_000 << 10  # its timeout, as often as it tries


def test_what_is_behind_a_failed_request_is_flushed(twin):
    one, other = pair(twin)
    other.receive(1)
    other.receive(2)
    one.send(wr_id=1)
    one.send(IBV_WR_RDMA_WRITE, wr_id=2, remote=other, rkey=1)
    one.send(wr_id=3)
    one.send(wr_id=4, flags=0)
    found = [(wc.wr_id, wc.status) for wc in one.done(4)]
    assert found == [
        (1, IBV_WC_SUCCESS),
        (2, IBV_WC_REM_ACCESS_ERR),
        (3, IBV_WC_WR_FLUSH_ERR),
        (4, IBV_WC_WR_FLUSH_ERR),
    ]
    assert [(wc.wr_id, wc.status) for wc in other.done(2)] == [(1, IBV_WC_SUCCESS), (2, IBV_WC_WR_FLUSH_ERR)]


def test_a_send_queue_is_full_until_completions_are_seen(twin):
    one, other = pair(twin, depth=4)
    for _ in range(4):
        one.send(IBV_WR_RDMA_WRITE, remote=other)
    place.world().settle()
    with pytest.raises(PyverbsRDMAError) as error:
        one.send(IBV_WR_RDMA_WRITE, remote=other)
    assert error.value.error_code == errno.ENOMEM
    one.done(4)
    one.send(IBV_WR_RDMA_WRITE, remote=other)


def test_unsignalled_requests_keep_their_slots_until_a_signalled_one_is_seen(twin):
    one, other = pair(twin, depth=4)
    for _ in range(3):
        one.send(IBV_WR_RDMA_WRITE, remote=other, flags=0)
    one.send(IBV_WR_RDMA_WRITE, remote=other)
    assert len(one.done()) == 1
    for _ in range(4):
        one.send(IBV_WR_RDMA_WRITE, remote=other)


def test_a_receive_queue_is_full(twin):
    _, other = pair(twin, depth=4)
    for _ in range(4):
        other.receive()
    with pytest.raises(PyverbsRDMAError) as error:
        other.receive()
    assert error.value.error_code == errno.ENOMEM


def test_a_completion_queue_overruns(twin):
    one, other = pair(twin, cqe=1, depth=8)
    for _ in range(3):
        one.send(IBV_WR_RDMA_WRITE, remote=other)
    place.world().settle()
    assert one.ctx.get_async_event().event_type == 0  # IBV_EVENT_CQ_ERR
    assert one.ctx.get_async_event().event_type == 1  # IBV_EVENT_QP_FATAL
    assert one.qp.qp_state == IBV_QPS_ERR
    assert one.cq.poll()[0] == 1
    with pytest.raises(PyverbsRDMAError, match="overrun"):
        one.cq.poll()


def test_a_datagram_with_the_wrong_qkey_is_dropped(twin):
    one, other = pair(twin, kind=IBV_QPT_UD)
    other.receive(1)
    one.send(to=other, qkey=QKEY + 1)
    one.send(to=other)
    assert one.statuses(2) == [IBV_WC_SUCCESS] * 2
    place.world().settle()
    count, received = other.cq.poll(4)
    assert (count, received[0].wr_id) == (1, 1)
    assert other.ctx.query_port(1).qkey_viol_cntr == 1


def test_the_manager_hears_of_a_datagram_with_the_wrong_qkey():
    twin = boxes(8, "infiniband")
    management = twin.manage()
    one, other = pair(twin, kind=IBV_QPT_UD)
    other.receive(1)
    one.send(to=other, qkey=QKEY + 1)
    assert one.statuses(1) == [IBV_WC_SUCCESS]
    place.world().settle()
    management.settle()
    counted = [PortInfo.decode(management.state.get(s)).q_key_violations for s in range(management.state.slots)]
    assert sum(counted) == 1
    (found,) = management.managers[0].reports[-1].findings
    assert f"trap 258: Q_Key 0x{QKEY + 1:04x}" in str(found)
    assert not management.state.notices.pending


def test_a_datagram_longer_than_the_mtu(twin):
    one, other = pair(twin, kind=IBV_QPT_UD, size=8192)
    one.send(to=other, length=4097)
    assert one.statuses() == [IBV_WC_LOC_LEN_ERR]
    assert one.qp.qp_state == IBV_QPS_SQE
    one.send(to=other)
    assert one.statuses() == [IBV_WC_WR_FLUSH_ERR]
    one.qp.modify(QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
    one.send(to=other)
    assert one.statuses() == [IBV_WC_SUCCESS]


def test_an_unreliable_write_out_of_bounds_is_dropped(twin):
    one, other = pair(twin, kind=IBV_QPT_UC)
    one.mr.write(b"x" * 64, 64)
    one.send(IBV_WR_RDMA_WRITE, remote=other, at=4090)
    assert one.statuses() == [IBV_WC_SUCCESS]
    place.world().settle()
    assert other.mr.read(6, 4090) == bytes(6)


@pytest.mark.parametrize("kind", [IBV_QPT_UC, IBV_QPT_UD])
def test_services_have_operations_that_they_do_not_know(twin, kind):
    one, other = pair(twin, kind=kind)
    with pytest.raises(PyverbsRDMAError) as error:
        one.send(IBV_WR_RDMA_READ, remote=other, to=other if kind == IBV_QPT_UD else None)
    assert error.value.error_code == errno.EINVAL


def test_a_peer_that_is_not_there(twin):
    world(twin)
    one, other = End("host-0"), End("host-1")
    one.qp.to_rts(attributes(one, other, dest_qp_num=0xABCDEF))
    one.send()
    assert one.statuses() == [IBV_WC_RETRY_EXC_ERR]


def test_a_peer_that_is_not_ready(twin):
    world(twin)
    one, other = End("host-0"), End("host-1")
    one.qp.to_rts(attributes(one, other))
    one.send(IBV_WR_RDMA_WRITE, remote=other)
    assert one.statuses() == [IBV_WC_RETRY_EXC_ERR]


def test_packet_numbers_that_do_not_agree(twin):
    world(twin)
    one, other = End("host-0"), End("host-1")
    one.qp.to_rts(attributes(one, other, sq_psn=200))
    other.qp.to_rts(attributes(other, one))
    other.receive()
    one.send()
    assert one.statuses() == [IBV_WC_RETRY_EXC_ERR]
    assert not other.cq.poll()[0]


def test_a_duplicate_is_acknowledged_and_not_done_again(twin):
    world(twin)
    one, other = End("host-0"), End("host-1")
    one.qp.to_rts(attributes(one, other, sq_psn=99))
    other.qp.to_rts(attributes(other, one))
    one.mr.write(b"x" * 64, 64)
    one.send(IBV_WR_RDMA_WRITE, remote=other)
    assert one.statuses() == [IBV_WC_SUCCESS]
    assert other.mr.read(64, 0) == bytes(64)


@pytest.mark.parametrize(
    "cap",
    [
        QPCap(max_send_wr=1 << 20),
        QPCap(max_recv_wr=1 << 20),
        QPCap(max_send_sge=1000),
        QPCap(max_inline_data=1 << 20),
    ],
)
def test_sizes_that_the_device_does_not_have(cap):
    world(boxes(8))
    end = End("host-0")
    with pytest.raises(PyverbsRDMAError) as error:
        QP(end.pd, QPInitAttr(IBV_QPT_RC, None, end.cq, end.cq, cap=cap))
    assert error.value.error_code == errno.EINVAL


def test_remote_write_needs_local_write():
    world(boxes(8))
    end = End("host-0")
    with pytest.raises(PyverbsRDMAError) as error:
        MR(end.pd, 64, IBV_ACCESS_REMOTE_WRITE)
    assert error.value.error_code == errno.EINVAL


def test_a_queue_pair_comes_back_from_its_error(twin):
    one, other = pair(twin)
    one.send(IBV_WR_RDMA_WRITE, remote=other, rkey=1)
    assert one.statuses() == [IBV_WC_REM_ACCESS_ERR]
    for end in (one, other):
        end.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    connect(one, other, qp_access_flags=ALL)
    other.receive()
    one.send(IBV_WR_SEND)
    assert one.statuses() == other.statuses() == [IBV_WC_SUCCESS]


def test_what_is_closed_prints_so_and_cannot_be_used():
    from fabrictwin.verbs.pyverbs.cq import CQ, CQEX, CompChannel
    from fabrictwin.verbs.pyverbs.mr import MW
    from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsUserError
    from fabrictwin.verbs.pyverbs.srq import SRQ, SrqInitAttr
    from fabrictwin.verbs.pyverbs.xrcd import XRCD, XRCDInitAttr

    world(boxes(2))
    end = End("host-0")
    channel = CompChannel(end.ctx)
    queues = [CQ(end.ctx, 10, None, channel), CQEX(end.ctx)]
    shared, window, domain = SRQ(end.pd, SrqInitAttr()), MW(end.pd, 1), XRCD(end.ctx, XRCDInitAttr(3, 0, -1))
    printed = {"CQ": queues[0], "CQEX": queues[1], "QP": end.qp, "MR": end.mr, "MW": window}
    assert not any("closed" in str(one) for one in printed.values())
    channel.close()  # its queue goes with it
    assert str(queues[0]) == f"{'CQ':<22}: closed\n"
    for one in (shared, window, domain, end.qp, end.cq, *queues, end.mr, end.pd, end.ctx):
        one.close()
    for name, one in printed.items():
        assert str(one) == f"{name:<22}: closed\n"
    for one in (shared, domain, end.pd, end.ctx, channel):
        assert str(one)
    uses = (
        queues[0].poll, queues[1].start_poll, lambda: queues[0].cqe, lambda: channel.fd,
        lambda: channel.get_cq_event(queues[0]), shared.query, lambda: domain.xrcd, lambda: end.pd.handle,
        lambda: end.mr.lkey, lambda: window.rkey, lambda: end.qp.qp_state,
    )  # fmt: skip
    for use in uses:
        with pytest.raises(PyverbsUserError, match="closed"):
            use()
