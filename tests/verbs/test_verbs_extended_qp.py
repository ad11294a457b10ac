"""Extended queue pairs: requests by calls, operations that have to be asked for, flushes, atomic writes."""

from __future__ import annotations

import errno
import socket
import struct
from types import SimpleNamespace

import pytest
from support.clusters import boxes
from support.verbs_ends import (
    ALL,
    SIGNALED,
    End,
    attributes,
    world,
)

from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.mr import MW, MWBindInfo
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError
from fabrictwin.verbs.pyverbs.qp import QPCap, QPEx, QPInitAttrEx

FLUSHES = e.IBV_ACCESS_FLUSH_GLOBAL | e.IBV_ACCESS_FLUSH_PERSISTENT


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
