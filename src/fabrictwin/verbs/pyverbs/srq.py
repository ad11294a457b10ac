"""Shared receive queues (`pyverbs.srq`)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fabrictwin.verbs.abi.queue_codes import ibv_srq_attr_mask, ibv_srq_init_attr_mask, ibv_srq_type
from fabrictwin.verbs.adapter.receive_queues import SharedReceiveQueue
from fabrictwin.verbs.attributes.device_limits import limits
from fabrictwin.verbs.pyverbs.base import PyverbsCM, PyverbsObject, failure
from fabrictwin.verbs.pyverbs.device import Context
from fabrictwin.verbs.pyverbs.pd import PD
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError

if TYPE_CHECKING:
    from fabrictwin.verbs.pyverbs.wr import RecvWR
    from fabrictwin.verbs.pyverbs.xrcd import XRCD

_MAX_WR, _LIMIT = int(ibv_srq_attr_mask.IBV_SRQ_MAX_WR), int(ibv_srq_attr_mask.IBV_SRQ_LIMIT)
_TYPE_MASK = int(ibv_srq_init_attr_mask.IBV_SRQ_INIT_ATTR_TYPE)
_BASIC, _XRC = int(ibv_srq_type.IBV_SRQT_BASIC), int(ibv_srq_type.IBV_SRQT_XRC)


class SrqAttr(PyverbsObject):
    """Sizes and the limit of a shared receive queue."""

    def __init__(self, max_wr: int = 100, max_sge: int = 1, srq_limit: int = 0) -> None:
        self.max_wr = max_wr
        self.max_sge = max_sge
        self.srq_limit = srq_limit


class SrqInitAttr(PyverbsObject):
    """Wanted attributes of a shared receive queue of a protection domain."""

    def __init__(self, attr: SrqAttr | None = None) -> None:
        made = SrqAttr() if attr is None else attr
        self.max_wr, self.max_sge, self.srq_limit = made.max_wr, made.max_sge, made.srq_limit


class SrqInitAttrEx(PyverbsObject):
    """Wanted attributes of a shared receive queue of a context."""

    def __init__(self, max_wr: int = 100, max_sge: int = 1, srq_limit: int = 0) -> None:
        self.max_wr, self.max_sge, self.srq_limit = max_wr, max_sge, srq_limit
        self.comp_mask = 0
        self.srq_type = _BASIC
        self.pd: PD | None = None
        self.xrcd: XRCD | None = None
        self.cq: Any = None
        self.max_num_tags = 0
        self.max_ops = 0


class OpsWr(PyverbsCM):
    """A change to a list of tags, which no queue of the twin has."""

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = 0,
        flags: int = 1,
        next_wr: OpsWr | None = None,
        unexpected_cnt: int = 0,
        recv_wr_id: int = 0,
        num_sge: int | None = None,
        tag: int = 0,
        mask: int = 0,
        sg_list: Sequence[Any] | None = None,
    ) -> None:
        self.wr_id, self.opcode, self.flags, self.next_wr = wr_id, opcode, flags, next_wr
        self.unexpected_cnt, self.recv_wr_id, self.tag, self.mask = unexpected_cnt, recv_wr_id, tag, mask
        self.handle = 0


class SRQ(PyverbsCM):
    """A shared receive queue, of a PD or, extended, of a Context."""

    def __init__(self, creator: PD | Context, attr: SrqInitAttr | SrqInitAttrEx) -> None:
        self.queue: SharedReceiveQueue | None = None
        known = limits()
        sizes = 0 < attr.max_wr <= known.max_srq_wr.value and 0 < attr.max_sge <= known.max_srq_sge.value
        if not sizes or attr.srq_limit > attr.max_wr:
            raise failure("Failed to create SRQ", errno.EINVAL)
        if isinstance(creator, Context):
            self._create_extended(creator, attr)  # type: ignore[arg-type]
        elif isinstance(creator, PD):
            self._create(creator, attr, events=creator.ctx.context if creator.ctx else None)
        else:
            raise PyverbsRDMAError("Srq needs either Context or PD for creation")

    def _create(self, pd: PD, attr: Any, *, events: Any, cq: Any = None, xrcd: XRCD | None = None) -> None:
        self.adapter = pd.adapter
        number = self.adapter.new_number()
        self.queue = SharedReceiveQueue(
            pd.world,
            pd.pd,
            attr.max_wr,
            attr.max_sge,
            number=number,
            completions=None if cq is None else cq.cq,
            extended=None if xrcd is None else xrcd.xrcd,
        )
        self.queue.sink = events
        self.queue.limit = attr.srq_limit
        self.adapter.shared_receives[number] = self.queue
        pd._adopt(self)
        for owner in (cq, xrcd):
            if owner is not None:
                owner._adopt(self)

    def _create_extended(self, context: Context, attr: SrqInitAttrEx) -> None:
        kind = attr.srq_type if attr.comp_mask & _TYPE_MASK else _BASIC
        if kind not in (_BASIC, _XRC):
            raise failure("Failed to create SRQ", errno.EOPNOTSUPP)
        if attr.pd is None or (kind == _XRC and (attr.cq is None or attr.xrcd is None)):
            raise failure("Failed to create SRQ", errno.EINVAL)
        extended = attr if kind == _XRC else None
        self._create(
            attr.pd,
            attr,
            events=context.context,
            cq=None if extended is None else extended.cq,
            xrcd=None if extended is None else extended.xrcd,
        )

    @property
    def srq(self) -> SharedReceiveQueue:
        if self.queue is None:
            raise PyverbsUserError("The shared receive queue is closed")
        return self.queue

    def close(self) -> None:
        queue = getattr(self, "queue", None)
        if queue is None:
            return
        self._close_children()
        queue.clear()
        self.adapter.shared_receives.pop(queue.number, None)
        self.queue = None

    def get_srq_num(self) -> int:
        """The number that XRC senders name."""
        return self.srq.number

    def modify(self, attr: SrqAttr, comp_mask: int) -> None:
        """Set the limit, or how many receives the queue holds. Raises PyverbsRDMAError."""
        queue = self.srq
        if comp_mask & ~(_MAX_WR | _LIMIT):
            raise failure("Failed to modify SRQ", errno.EINVAL)
        size = attr.max_wr if comp_mask & _MAX_WR else queue.capacity
        limit = attr.srq_limit if comp_mask & _LIMIT else queue.limit
        if size > limits().max_srq_wr.value or size < queue.posted or limit > size:
            raise failure("Failed to modify SRQ", errno.EINVAL)
        queue.capacity = size
        queue.limit = limit

    def query(self) -> SrqAttr:
        queue = self.srq
        return SrqAttr(queue.capacity, queue.max_sge, queue.limit)

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post one or a chain of receives. Raises PyverbsRDMAError where one is refused; those before stay."""
        queue = self.srq
        at: RecvWR | None = wr
        while at is not None:
            if len(at.segments) > queue.max_sge:
                raise failure("Failed to post receive to SRQ.", errno.EINVAL)
            if queue.posted >= queue.capacity:
                raise failure("Failed to post receive to SRQ.", errno.ENOMEM)
            room = 0
            for segment in at.segments:
                room += segment[1]
            queue.add((at.wr_id, at.segments, room))
            at = at.next_wr

    def post_srq_ops(self, wr: OpsWr, bad_wr: OpsWr | None = None) -> None:
        raise failure("post SRQ ops failed.", errno.EOPNOTSUPP)
