"""Extended queue pairs: requests are built call by call, then posted (`pyverbs.qp.QPEx`)."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fabrictwin.verbs.abi.queue_codes import ibv_qp_create_send_ops_flags as ops
from fabrictwin.verbs.abi.queue_codes import ibv_qp_init_attr_mask
from fabrictwin.verbs.adapter.memory_regions import TYPE_2
from fabrictwin.verbs.adapter.transport import requester
from fabrictwin.verbs.adapter.work_requests import (
    ATOMIC_WRITE,
    BIND,
    COMPARE_SWAP,
    FETCH_ADD,
    FLUSH,
    INLINE,
    LOCAL_INV,
    READ,
    SEND,
    SEND_IMM,
    SEND_INV,
    WRITE,
    WRITE_IMM,
    Work,
)
from fabrictwin.verbs.pyverbs.base import failure
from fabrictwin.verbs.queue_pairs.basic_qp import QP

if TYPE_CHECKING:
    from fabrictwin.verbs.attributes.qp_attributes import QPAttr, QPInitAttr
    from fabrictwin.verbs.pyverbs.addr import AH
    from fabrictwin.verbs.pyverbs.device import Context
    from fabrictwin.verbs.pyverbs.mr import MW, MWBindInfo
    from fabrictwin.verbs.pyverbs.pd import PD
    from fabrictwin.verbs.pyverbs.wr import SGE

_SEND_OPS = int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
_NEEDS = {
    WRITE: int(ops.IBV_QP_EX_WITH_RDMA_WRITE),
    WRITE_IMM: int(ops.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM),
    SEND: int(ops.IBV_QP_EX_WITH_SEND),
    SEND_IMM: int(ops.IBV_QP_EX_WITH_SEND_WITH_IMM),
    SEND_INV: int(ops.IBV_QP_EX_WITH_SEND_WITH_INV),
    READ: int(ops.IBV_QP_EX_WITH_RDMA_READ),
    COMPARE_SWAP: int(ops.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP),
    FETCH_ADD: int(ops.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD),
    LOCAL_INV: int(ops.IBV_QP_EX_WITH_LOCAL_INV),
    BIND: int(ops.IBV_QP_EX_WITH_BIND_MW),
    FLUSH: int(ops.IBV_QP_EX_WITH_FLUSH),
    ATOMIC_WRITE: int(ops.IBV_QP_EX_WITH_ATOMIC_WRITE),
}


def _network_order(value: int) -> int:
    """A 32-bit number as it lies in memory when written big-endian."""
    return int.from_bytes((value & 0xFFFFFFFF).to_bytes(4, "big"), "little")


class QPEx(QP):
    """A queue pair whose requests are built in parts. `wr_id` and `wr_flags` count for what follows."""

    def __init__(self, creator: PD | Context, init_attr: QPInitAttr, qp_attr: QPAttr | None = None) -> None:
        super().__init__(creator, init_attr, qp_attr)
        mask = getattr(init_attr, "comp_mask", 0)
        self._allowed = getattr(init_attr, "send_ops_flags", 0) if mask & _SEND_OPS else 0
        self.comp_mask = 0
        self.wr_id = 0
        self.wr_flags = 0
        self.ind_table: Any = None
        self._building: list[Work] = []
        self._code = 0

    def _new(self, opcode: int, *, rkey: int = 0, address: int = 0, immediate: int = 0) -> Work:
        work = Work(self.qp, self.wr_id, opcode, int(self.wr_flags), (), immediate)
        work.rkey, work.address = rkey, address
        if not self._allowed & _NEEDS[opcode]:
            self._code = self._code or errno.EINVAL
        self._building.append(work)
        return work

    @property
    def _last(self) -> Work:
        if not self._building:
            raise failure("A work request's setter came before the request", errno.EINVAL)
        return self._building[-1]

    # ------------------------------------------------------------------ requests

    def wr_start(self) -> None:
        """Begin to build requests."""
        self._building = []
        self._code = 0

    def wr_send(self) -> None:
        self._new(SEND)

    def wr_send_imm(self, data: int) -> None:
        self._new(SEND_IMM, immediate=_network_order(data))

    def wr_send_inv(self, invalidate_rkey: int) -> None:
        self._new(SEND_INV, immediate=invalidate_rkey)

    def wr_send_tso(self, hdr: int, hdr_sz: int, mss: int) -> None:
        self._code = self._code or errno.EOPNOTSUPP

    def wr_rdma_write(self, rkey: int, remote_addr: int) -> None:
        self._new(WRITE, rkey=rkey, address=remote_addr)

    def wr_rdma_write_imm(self, rkey: int, remote_addr: int, data: int) -> None:
        self._new(WRITE_IMM, rkey=rkey, address=remote_addr, immediate=_network_order(data))

    def wr_rdma_read(self, rkey: int, remote_addr: int) -> None:
        self._new(READ, rkey=rkey, address=remote_addr)

    def wr_atomic_cmp_swp(self, rkey: int, remote_addr: int, compare: int, swap: int) -> None:
        work = self._new(COMPARE_SWAP, rkey=rkey, address=remote_addr)
        work.compare, work.swap = compare, swap

    def wr_atomic_fetch_add(self, rkey: int, remote_addr: int, add: int) -> None:
        self._new(FETCH_ADD, rkey=rkey, address=remote_addr).compare = add

    def wr_atomic_write(self, rkey: int, remote_addr: int, atomic_wr: bytes | str) -> None:
        """Write 8 bytes at once."""
        work = self._new(ATOMIC_WRITE, rkey=rkey, address=remote_addr)
        raw = atomic_wr.encode() if isinstance(atomic_wr, str) else bytes(atomic_wr)
        work.data = raw[:8].ljust(8, b"\0")
        work.length = 8

    def wr_flush(self, rkey: int, remote_addr: int, length: int, ptype: int, level: int) -> None:
        """Make sure that what was written before has reached memory, or persistent memory."""
        work = self._new(FLUSH, rkey=rkey, address=remote_addr)
        work.compare, work.swap, work.info = int(ptype), int(level), int(length)

    def wr_local_inv(self, invalidate_rkey: int) -> None:
        self._new(LOCAL_INV, immediate=invalidate_rkey)

    def wr_bind_mw(self, mw: MW, rkey: int, bind_info: MWBindInfo) -> None:
        """Bind a type 2 window under a key that differs from its own in the low 8 bits."""
        window, region = mw.window, bind_info.mr.region
        if window is None or region is None or window.kind != TYPE_2:
            self._code = self._code or errno.EINVAL
            return
        work = self._new(BIND)
        work.info = (window, region, rkey, bind_info.addr, bind_info.length, bind_info.mw_access_flags)

    # ------------------------------------------------------------------ setters

    def wr_set_ud_addr(self, ah: AH, remote_qpn: int, remote_rkey: int) -> None:
        work = self._last
        work.vector, work.remote_qpn, work.remote_qkey = ah.vector, remote_qpn, remote_rkey

    def wr_set_xrc_srqn(self, remote_srqn: int) -> None:
        self._last.srqn = remote_srqn

    def _set(self, segments: tuple[tuple[int, int, int], ...]) -> None:
        work = self._last
        work.segments = segments
        work.length = sum(length for _, length, _ in segments)

    def wr_set_sge(self, sge: SGE) -> None:
        self._set(((sge.addr, sge.length, sge.lkey),))

    def wr_set_sge_list(self, num_sge: int, sg_list: Sequence[SGE]) -> None:
        self._set(tuple((sge.addr, sge.length, sge.lkey) for sge in sg_list[:num_sge]))

    def wr_set_inline_data(self, addr: int, length: int) -> None:
        work = self._last
        work.data = ctypes.string_at(addr, length)
        work.length = length
        work.flags |= INLINE

    def wr_set_inline_data_list(self, num_buf: int, buf_list: Sequence[Any]) -> None:
        work = self._last
        work.data = b"".join(ctypes.string_at(buf.addr, buf.length) for buf in buf_list[:num_buf])
        work.length = len(work.data)
        work.flags |= INLINE

    def wr_complete(self) -> None:
        """Post what was built. Raises PyverbsRDMAError, and nothing is posted, where a request is refused."""
        engine, built = self.qp, self._building
        self._building = []
        code = self._code
        if not code and engine.occupied + len(built) > engine.max_send_wr:
            code = errno.ENOMEM
        code = code or next((found for found in (requester.check(engine, work) for work in built) if found), 0)
        if code:
            raise failure("ibv_wr_complete failed.", code)
        for work in built:
            work.chained = len(built) > 1
            requester.post(engine, work)

    def wr_abort(self) -> None:
        """Forget what was built."""
        self._building = []
        self._code = 0
