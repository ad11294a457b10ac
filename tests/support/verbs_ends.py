"""Two or more ends of connections on a small twin, for tests of the verbs."""

from __future__ import annotations

from typing import Any

from fabrictwin.twin import Twin
from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.adapter.world import World
from fabrictwin.verbs.pyverbs.addr import AH, AHAttr, GlobalRoute
from fabrictwin.verbs.pyverbs.cq import CQ
from fabrictwin.verbs.pyverbs.device import Context
from fabrictwin.verbs.pyverbs.enums import (  # type: ignore[attr-defined]
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_MW_BIND,
    IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_QPT_RC,
    IBV_QPT_UD,
    IBV_WR_SEND,
)
from fabrictwin.verbs.pyverbs.mr import MR
from fabrictwin.verbs.pyverbs.pd import PD
from fabrictwin.verbs.pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from fabrictwin.verbs.pyverbs.wr import SGE, RecvWR, SendWR

ALL = (
    IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND
)
QKEY = 0x11111111
SIGNALED, SOLICITED, INLINE = 2, 4, 8  # flags of a request
ENGINE = "analytic"  # what new worlds are timed by


def world(twin: Twin) -> World:
    """A new world of a twin, at time 0."""
    return place.use(twin, engine=ENGINE)  # type: ignore[arg-type]


class End:
    """A context with a domain, a completion queue, a region and a queue pair."""

    def __init__(
        self,
        host: str,
        *,
        kind: int = IBV_QPT_RC,
        size: int = 4096,
        access: int = ALL,
        depth: int = 64,
        **more: Any,
    ) -> None:
        self.ctx = Context(name=more.pop("device", "mlx5_0"), host=host)
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, more.pop("cqe", 4 * depth))
        self.mr = MR(self.pd, size, access)
        cap = QPCap(depth, depth, 4, 4, 64)
        init = QPInitAttr(
            kind, None, self.cq, self.cq, more.pop("srq", None), cap, sq_sig_all=more.pop("signal_all", 0)
        )
        attr = QPAttr()
        attr.qkey = QKEY
        attr.qp_access_flags = more.pop("qp_access", access)
        self.qp = QP(self.pd, init, attr)
        assert not more

    @property
    def address(self) -> AHAttr:
        port = self.ctx.query_port(1)
        route = GlobalRoute(self.ctx.query_gid(1, self.ctx.adapter.gid_index(2)), sgid_index=0, hop_limit=64)
        return AHAttr(dlid=port.lid, gr=route, is_global=int(self.ctx.adapter.ethernet))

    def sge(self, offset: int = 0, length: int = 64) -> SGE:
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def receive(self, wr_id: int = 0, offset: int = 0, length: int = 4096) -> None:
        self.qp.post_recv(RecvWR(wr_id, 1, [self.sge(offset, length)]))

    def send(self, opcode: int = IBV_WR_SEND, **wanted: Any) -> SendWR:
        """Post a request over `length` bytes at `offset`; to `remote` (an end) at `at` where it names memory."""
        sge = wanted.pop("sge", None) or self.sge(wanted.pop("offset", 0), wanted.pop("length", 64))
        request = SendWR(wanted.pop("wr_id", 0), opcode, 1, wanted.pop("imm", 0), [sge], wanted.pop("flags", 2))
        remote = wanted.pop("remote", None)
        if remote is not None:
            key = wanted.pop("rkey", remote.mr.rkey)
            address = remote.mr.buf + wanted.pop("at", 0)
            operands = wanted.pop("operands", None)
            if operands is None:
                request.set_wr_rdma(key, address)
            else:
                request.set_wr_atomic(key, address, *operands)
        to = wanted.pop("to", None)
        if to is not None:
            request.set_wr_ud(AH(self.pd, attr=to.address), to.qp.qp_num, wanted.pop("qkey", QKEY))
        assert not wanted
        self.qp.post_send(request)
        return request

    def done(self, count: int = 1) -> list[Any]:
        """The next completions, waited for."""
        self.cq.wait(count)
        return self.cq.poll(count)[1]

    def statuses(self, count: int = 1) -> list[int]:
        return [wc.status for wc in self.done(count)]


def attributes(own: End, other: End, **wanted: int) -> QPAttr:
    """Return the attributes that bring an end to RTS toward another."""
    attr = QPAttr()
    attr.qp_access_flags = own.qp.qp.attributes.qp_access_flags
    attr.dest_qp_num = other.qp.qp_num
    attr.ah_attr = other.address
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
    attr.min_rnr_timer = 1
    attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 3, 7
    attr.rq_psn = attr.sq_psn = 100
    for name, value in wanted.items():
        assert hasattr(attr, name)
        setattr(attr, name, value)
    return attr


def connect(one: End, other: End, **wanted: int) -> None:
    for own, far in ((one, other), (other, one)):
        own.qp.to_rts(attributes(own, far, **wanted))


def pair(twin: Twin, *, kind: int = IBV_QPT_RC, **wanted: Any) -> tuple[End, End]:
    """Two connected ends on the first host and the last, alone in a new world of the twin."""
    names = twin.fabric.host_names
    world(twin)
    attr = {name: wanted.pop(name) for name in list(wanted) if hasattr(QPAttr(), name)}
    one, other = End(names[0], kind=kind, **wanted), End(names[-1], kind=kind, **wanted)
    if kind != IBV_QPT_UD:
        connect(one, other, **attr)
    return one, other


def both(one: End, other: End) -> tuple:
    """The next completion of each, after everything has happened."""
    place.world().settle()
    return tuple(end.cq.poll(1)[1][0] for end in (one, other))
