"""Shared receive queues (`pyverbs.srq`)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fabrictwin.verbs.abi.queue_codes import ibv_srq_attr_mask, ibv_srq_init_attr_mask, ibv_srq_type
from fabrictwin.verbs.adapter.receive_queues import SharedReceiveQueue
from fabrictwin.verbs.attributes.device_limits import limits
from fabrictwin.verbs.pyverbs.base import PyverbsCM, PyverbsObject, failure, still_open
from fabrictwin.verbs.pyverbs.device import Context
from fabrictwin.verbs.pyverbs.pd import PD
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError

if TYPE_CHECKING:
    from fabrictwin.verbs.pyverbs.wr import RecvWR
    from fabrictwin.verbs.pyverbs.xrcd import XRCD

_MAX_WR, _LIMIT = int(ibv_srq_attr_mask.IBV_SRQ_MAX_WR), int(ibv_srq_attr_mask.IBV_SRQ_LIMIT)
_TYPE_MASK = int(ibv_srq_init_attr_mask.IBV_SRQ_INIT_ATTR_TYPE)
_BASIC, _XRC = int(ibv_srq_type.IBV_SRQT_BASIC), int(ibv_srq_type.IBV_SRQT_XRC)


@dataclass(eq=False, repr=False)
class SrqAttr(PyverbsObject):
    """Sizes and the limit of a shared receive queue."""

    max_wr: int = 100
    max_sge: int = 1
    srq_limit: int = 0


class SrqInitAttr(PyverbsObject):
    """Wanted attributes of a shared receive queue of a protection domain."""

    def __init__(self, attr: SrqAttr | None = None) -> None:
        made = SrqAttr() if attr is None else attr
        self.max_wr, self.max_sge, self.srq_limit = made.max_wr, made.max_sge, made.srq_limit


@dataclass(eq=False, repr=False)
class SrqInitAttrEx(SrqAttr):
    """Wanted attributes of a shared receive queue of a context."""

    comp_mask = 0
    srq_type = _BASIC
    max_num_tags = 0
    max_ops = 0
    pd: PD | None = field(default=None, init=False)
    xrcd: XRCD | None = field(default=None, init=False)
    cq: Any = field(default=None, init=False)


@dataclass(eq=False, repr=False)
class OpsWr(PyverbsCM):
    """A change to a list of tags, which no queue of the twin has."""

    wr_id: int = 0
    opcode: int = 0
    flags: int = 1
    next_wr: OpsWr | None = None
    unexpected_cnt: int = 0
    recv_wr_id: int = 0
    num_sge: int | None = None
    tag: int = 0
    mask: int = 0
    sg_list: Sequence[Any] | None = None
    handle = 0


class SRQ(PyverbsCM):
    """A shared receive queue, of a PD or, extended, of a Context."""

    queue: SharedReceiveQueue | None = None

    def __init__(self, creator: PD | Context, attr: SrqInitAttr | SrqInitAttrEx) -> None:
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
        return still_open(self.queue, "shared receive queue")

    def close(self) -> None:
        if self.queue is None:
            return
        self._close_children()
        self.queue.clear()
        self.adapter.shared_receives.pop(self.queue.number, None)
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
