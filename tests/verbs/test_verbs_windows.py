"""Memory windows, invalidation, and regions by addresses of their own."""

from __future__ import annotations

import errno

import pytest
from support.clusters import boxes
from support.verbs_ends import (
    ALL,
    SIGNALED,
    End,
    pair,
    world,
)

from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.mr import MR, MW, MREx, MWBind, MWBindInfo
from fabrictwin.verbs.pyverbs.pd import PD
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError
from fabrictwin.verbs.pyverbs.wr import SGE, SendWR


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
