"""Shared receive queues and XRC domains."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest
from support.clusters import boxes
from support.verbs_ends import (
    ALL,
    End,
    attributes,
    world,
)

from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from fabrictwin.verbs.pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from fabrictwin.verbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from fabrictwin.verbs.pyverbs.wr import RecvWR, SendWR
from fabrictwin.verbs.pyverbs.xrcd import XRCD, XRCDInitAttr


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
