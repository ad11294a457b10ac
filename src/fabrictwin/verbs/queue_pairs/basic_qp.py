"""Queue pairs whose requests are posted whole, `QP`."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from fabrictwin.verbs.abi.queue_codes import (
    ibv_qp_attr_mask,
    ibv_qp_create_send_ops_flags,
    ibv_qp_init_attr_mask,
    ibv_query_qp_data_in_order_caps,
)
from fabrictwin.verbs.adapter import qp_transitions as t
from fabrictwin.verbs.adapter.memory_regions import TYPE_1, TYPE_2
from fabrictwin.verbs.adapter.queue_pair import QueuePair, QueuePairObjects, SendQueueLimits
from fabrictwin.verbs.adapter.receive_queues import ReceiveQueue
from fabrictwin.verbs.adapter.transport import requester
from fabrictwin.verbs.adapter.work_requests import BIND, INLINE, Work
from fabrictwin.verbs.attributes.code_words import CLOSED, lines
from fabrictwin.verbs.attributes.device_limits import limits
from fabrictwin.verbs.attributes.qp_attributes import ECE, QPAttr, QPCap, QPInitAttr, QPInitAttrEx, QPRateLimitAttr
from fabrictwin.verbs.pyverbs.base import PyverbsCM, failure, inc_rkey, still_open
from fabrictwin.verbs.pyverbs.device import Context
from fabrictwin.verbs.pyverbs.pd import PD
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsUserError
from fabrictwin.verbs.pyverbs.utils import qp_state_to_str, qp_type_to_str

if TYPE_CHECKING:
    from fabrictwin.verbs.pyverbs.mr import MW, MWBind
    from fabrictwin.verbs.pyverbs.wr import RecvWR, SendWR

_CREATE_FLAGS = int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_CREATE_FLAGS)
_SEND_OPS = int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
_NOT_DONE = int(
    ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_IND_TABLE
    | ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_RX_HASH
    | ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_MAX_TSO_HEADER
)
_BLOCK_SELF_MULTICAST = 2  # ibv_qp_create_flags; there is no multicast to block
_RATE_LIMIT = int(ibv_qp_attr_mask.IBV_QP_RATE_LIMIT)
_WHOLE_MESSAGE = int(
    ibv_query_qp_data_in_order_caps.IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG
    | ibv_query_qp_data_in_order_caps.IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES
)

_bit = ibv_qp_attr_mask
_CONNECTED = int(_bit.IBV_QP_PKEY_INDEX | _bit.IBV_QP_PORT | _bit.IBV_QP_ACCESS_FLAGS)
_ROUTE = int(_bit.IBV_QP_AV | _bit.IBV_QP_PATH_MTU | _bit.IBV_QP_DEST_QPN | _bit.IBV_QP_RQ_PSN)
_TARGET = int(_ROUTE | _bit.IBV_QP_MAX_DEST_RD_ATOMIC | _bit.IBV_QP_MIN_RNR_TIMER)
_SENDER = int(
    _bit.IBV_QP_TIMEOUT
    | _bit.IBV_QP_RETRY_CNT
    | _bit.IBV_QP_RNR_RETRY
    | _bit.IBV_QP_SQ_PSN
    | _bit.IBV_QP_MAX_QP_RD_ATOMIC
)
_UD_INIT = int(_bit.IBV_QP_PKEY_INDEX | _bit.IBV_QP_PORT | _bit.IBV_QP_QKEY)
# attributes that `to_init`, `to_rtr` and `to_rts` take from what they are given
_STEPS = {
    t.RC: (_CONNECTED, _TARGET, _SENDER),
    t.UC: (_CONNECTED, _ROUTE, int(_bit.IBV_QP_SQ_PSN)),
    t.UD: (_UD_INIT, 0, int(_bit.IBV_QP_SQ_PSN)),
    t.RAW: (int(_bit.IBV_QP_PORT), 0, 0),
    t.XRC_RECV: (_CONNECTED, _TARGET, int(_bit.IBV_QP_TIMEOUT | _bit.IBV_QP_SQ_PSN)),
    t.XRC_SEND: (_CONNECTED, _ROUTE, _SENDER),
}
_SEND_OPS_OF = {
    t.RC: 0x7FF & ~(1 << 10) | int(ibv_qp_create_send_ops_flags.IBV_QP_EX_WITH_FLUSH)
    | int(ibv_qp_create_send_ops_flags.IBV_QP_EX_WITH_ATOMIC_WRITE),
    t.XRC_SEND: 0x7FF & ~(1 << 10),
    t.UC: 0x0F | 1 << 7 | 1 << 8,
    t.UD: 0x0C,
    t.RAW: 0x04,
    t.XRC_RECV: 0,
}  # fmt: skip


class QP(PyverbsCM):
    """A queue pair of a PD, or, extended, of a Context.

    With `qp_attr` it is brought as far toward RTS as that allows: datagram types all the way, connected ones to
    INIT, because the way on needs to know the other end.
    """

    engine: QueuePair | None = None

    def __init__(self, creator: PD | Context, init_attr: QPInitAttr, qp_attr: QPAttr | None = None) -> None:
        pd = creator if isinstance(creator, PD) else getattr(init_attr, "pd", None)
        context = creator.ctx if isinstance(creator, PD) else creator
        if not isinstance(context, Context):
            raise PyverbsUserError(f"Cannot create QP from {type(creator).__name__}")
        extended = init_attr if isinstance(init_attr, QPInitAttrEx) else None
        code = self._refused(init_attr, extended, pd)
        if code:
            raise failure("Failed to create QP", code)
        self.pd: PD | None = pd
        self.context: Context | None = context
        self.scq, self.rcq, self.srq = init_attr.send_cq, init_attr.recv_cq, init_attr.srq
        self._create(context, init_attr, extended)
        if qp_attr is not None:
            (self.to_rts if self.qp.kind in (t.UD, t.RAW) else self.to_init)(qp_attr)

    @staticmethod
    def _refused(attr: QPInitAttr, extended: QPInitAttrEx | None, pd: PD | None) -> int:
        """The errno that creating fails with, or 0."""
        kind, cap, known = int(attr.qp_type), attr.cap, limits()
        if kind not in t.KINDS:
            return errno.EOPNOTSUPP
        if extended is not None:
            flags = extended.create_flags if extended.comp_mask & _CREATE_FLAGS else 0
            if extended.comp_mask & _NOT_DONE or flags & ~(_BLOCK_SELF_MULTICAST if kind in (t.UD, t.RAW) else 0):
                return errno.EOPNOTSUPP
            if extended.comp_mask & _SEND_OPS and extended.send_ops_flags & ~_SEND_OPS_OF[kind]:
                return errno.EOPNOTSUPP
        if kind == t.XRC_RECV:
            return 0 if extended is not None and extended.xrcd is not None else errno.EINVAL
        if pd is None or attr.send_cq is None or (attr.recv_cq is None and kind != t.XRC_SEND):
            return errno.EINVAL
        if kind == t.RAW and not pd.adapter.ethernet:
            return errno.EINVAL
        sizes = (
            0 <= cap.max_send_wr <= known.max_qp_wr.value
            and 0 <= cap.max_recv_wr <= known.max_qp_wr.value
            and 0 <= cap.max_send_sge <= known.max_sge.value
            and 0 <= cap.max_recv_sge <= known.max_sge.value
            and 0 <= cap.max_inline_data <= known.max_inline.value
        )
        return 0 if sizes else errno.EINVAL

    def _create(self, context: Context, attr: QPInitAttr, extended: QPInitAttrEx | None) -> None:
        kind, cap, world = int(attr.qp_type), attr.cap, context.world
        receives: ReceiveQueue | None = None
        domain = None if self.pd is None or kind == t.XRC_RECV else self.pd.pd
        if attr.srq is not None:
            receives = attr.srq.srq
        elif kind not in (t.XRC_SEND, t.XRC_RECV):
            receives = ReceiveQueue(world, domain, cap.max_recv_wr, cap.max_recv_sge)
        xrcd = extended.xrcd if extended is not None and kind == t.XRC_RECV else None
        self._cap = QPCap(
            cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data
        )
        self._sig_all = int(bool(attr.sq_sig_all))
        self.engine = QueuePair(
            world,
            context.adapter,
            kind,
            QueuePairObjects(
                domain,
                sends=None if attr.send_cq is None else attr.send_cq.cq,
                receive_completions=None if attr.recv_cq is None else attr.recv_cq.cq,
                receives=receives,
                extended=None if xrcd is None else xrcd.xrcd,
            ),
            SendQueueLimits(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data, bool(attr.sq_sig_all)),
            sink=context.context,
        )
        for owner in (context, self.pd, self.scq, self.rcq, self.srq, xrcd):
            if owner is not None:
                owner._adopt(self)

    def close(self) -> None:
        if self.engine is None:
            return
        self._close_children()
        self.engine.destroy()
        self.engine = None
        self.pd = self.context = None
        self.scq = self.rcq = self.srq = None

    # ------------------------------------------------------------------ states

    @property
    def qp(self) -> QueuePair:
        """The queue pair below this interface."""
        return still_open(self.engine, "QP")

    @property
    def qp_type(self) -> int:
        return self.qp.kind

    @property
    def qp_state(self) -> int:
        return self.qp.state

    @property
    def qp_num(self) -> int:
        return self.qp.number

    def _step(self, attr: QPAttr, state: int, step: int, name: str) -> None:
        attr.qp_state = state
        code = self.qp.modify(attr.plain(), _STEPS[self.qp.kind][step] | t.STATE)
        if code:
            raise failure(f"Failed to modify QP state to {name}", code)

    def to_init(self, qp_attr: QPAttr) -> None:
        """RESET to INIT. Raises PyverbsRDMAError."""
        self._step(qp_attr, t.INIT, 0, "init")

    def to_rtr(self, qp_attr: QPAttr) -> None:
        """To RTR, by INIT where it is not there yet. Raises PyverbsRDMAError."""
        if self.qp.state != t.INIT:
            self.to_init(qp_attr)
        self._step(qp_attr, t.RTR, 1, "RTR")

    def to_rts(self, qp_attr: QPAttr) -> None:
        """To RTS, by all states before it. Raises PyverbsRDMAError."""
        if self.qp.state != t.RTR:
            self.to_rtr(qp_attr)
        self._step(qp_attr, t.RTS, 2, "RTS")

    def modify(self, qp_attr: QPAttr, comp_mask: int) -> None:
        """Change the attributes that the mask names, the state among them. Raises PyverbsRDMAError."""
        code = self.qp.modify(qp_attr.plain(), int(comp_mask))
        if code:
            raise failure("Failed to modify QP", code)

    def modify_rate_limit(self, attr: QPRateLimitAttr) -> None:
        """Change how fast the queue pair sends. Raises PyverbsRDMAError."""
        if attr.max_burst_sz or attr.typical_pkt_sz or attr.comp_mask or self.qp.state != t.RTS:
            raise failure("Failed to modify QP rate limit", errno.EINVAL)
        wanted = QPAttr()
        wanted.rate_limit = attr.rate_limit
        if self.qp.kind == t.RAW:
            self.modify(wanted, _RATE_LIMIT)
        else:
            raise failure("Failed to modify QP rate limit", errno.EOPNOTSUPP)

    def query(self, attr_mask: int) -> tuple[QPAttr, QPInitAttr]:
        """Return the queue pair's attributes, and those that it was made with; all of them, whatever the mask."""
        engine = self.qp
        cap = QPCap(**vars(self._cap))
        init = QPInitAttr(engine.kind, None, self.scq, self.rcq, self.srq, cap, self._sig_all)
        attr = QPAttr.of(engine.attributes, state=engine.state, cap=cap)
        return attr, init

    def set_ece(self, ece: ECE) -> None:
        if ece.vendor_id or ece.options:
            raise failure("Failed to set ECE", errno.EOPNOTSUPP)

    def query_ece(self) -> ECE:
        return ECE()

    def query_data_in_order(self, op: int, flags: int = 0) -> int:
        """Return whether bytes of a message land in order of their addresses: whole messages land at once."""
        return _WHOLE_MESSAGE if flags else 1

    # ------------------------------------------------------------------ posting

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post one or a chain of receives. Raises PyverbsRDMAError where one is refused; those before stay."""
        engine = self.engine
        queue = None if engine is None else engine.receives
        if engine is None or queue is None or engine.shared or engine.state == t.RESET:
            raise failure("Failed to post recv", errno.EINVAL)
        at: RecvWR | None = wr
        while at is not None:
            segments = at.segments
            if len(segments) > queue.max_sge:
                raise failure("Failed to post recv", errno.EINVAL)
            if queue.posted >= queue.capacity:
                raise failure("Failed to post recv", errno.ENOMEM)
            room = 0
            for segment in segments:
                room += segment[1]
            queue.add((at.wr_id, segments, room))
            at = at.next_wr
        if engine.state == t.ERR:
            engine.flush_receives()

    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """Post one or a chain of requests. Raises PyverbsRDMAError where one is refused; those before stay."""
        engine = self.engine
        if engine is None:
            raise PyverbsUserError("The QP is closed")
        at: SendWR | None = wr
        while at is not None:
            work = Work(engine, at.wr_id, at.opcode, at.send_flags, at.segments, at.imm_data)
            if at.rdma_rkey:
                work.rkey = at.rdma_rkey
            work.address = at.rdma_remote_addr
            code = 0
            if at._ah is not None or at._srqn or at._compare or at._swap or at._info is not None:
                code = _fill(work, at)
            elif engine.kind == t.UD:
                code = errno.EINVAL  # a datagram without an address
            if at.next_wr is not None or at is not wr:
                work.chained = True
            if work.flags & INLINE:
                work.data = engine.world.process_memory.gather([(a, n) for a, n, _ in work.segments])
            code = code or requester.post(engine, work)
            if code:
                raise failure("Failed to post send", code)
            at = at.next_wr

    def bind_mw(self, mw: MW, mw_bind: MWBind) -> None:
        """Bind a type 1 window. It has its new key at once. Raises PyverbsRDMAError."""
        engine, info = self.qp, mw_bind.info
        window = mw.window
        if window is None or window.kind != TYPE_1 or info.mr.region is None:
            raise failure("Failed to Bind MW", errno.EINVAL)
        work = Work(engine, mw_bind.wr_id, BIND, mw_bind.send_flags, ())
        key = inc_rkey(mw.rkey)
        work.info = (window, info.mr.region, key, info.addr, info.length, info.mw_access_flags)
        code = requester.post(engine, work)
        if code:
            raise failure("Failed to Bind MW", code)
        mw._next_key = key

    def __str__(self) -> str:
        engine = self.engine
        if engine is None:
            return lines((("QP", CLOSED),))
        return lines(
            (
                ("QP type", qp_type_to_str(engine.kind)),
                ("number", engine.number),
                ("state", qp_state_to_str(engine.state)),
            )
        )


def _fill(work: Work, wr: SendWR) -> int:
    """Fill in what only some requests carry. Returns an errno, or 0."""
    work.compare, work.swap, work.srqn = wr._compare, wr._swap, wr._srqn
    if wr._ah is not None:
        work.vector, work.remote_qpn, work.remote_qkey = wr._ah.vector, wr._qpn, wr._qkey
    if wr._info is not None:
        mw, info = wr._info
        if mw.window is None or mw.window.kind != TYPE_2 or info.mr.region is None:
            return errno.EINVAL
        work.info = (mw.window, info.mr.region, wr._rkey, info.addr, info.length, info.mw_access_flags)
    return 0
