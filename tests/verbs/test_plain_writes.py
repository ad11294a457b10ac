"""Writes that can only be taken are not looked at one by one, and everything is as if they were.

The same random calls run twice, once in a world that stops at every event: completions with all their fields and
times, bytes in memory, asynchronous events and counters of ports must be the same. Calls change what writes are
checked against while some are under way: keys, windows, rights, partitions, states, links.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.clusters import boxes
from support.verbs_ends import ALL, INLINE, SIGNALED, End, connect

from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.adapter.completions import WC
from fabrictwin.verbs.adapter.world import World
from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.mr import MW, MWBindInfo
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError
from fabrictwin.verbs.pyverbs.qp import QPAttr
from fabrictwin.verbs.pyverbs.wr import RecvWR, SendWR

SIZE, DEPTH = 16384, 64
FIELDS = [field.name for field in fields(WC) if field.name != "queue"]
twin = cache(boxes)


class Program:
    """Three queue pairs to others; what they saw."""

    def __init__(self, patient: bool, technology: str) -> None:
        self.twin = twin(8, technology)
        self.world = place.use(self.twin, engine="packet")
        if not patient:
            self.world.step = lambda until=2**62, *, patient=False: World.step(self.world, until)
        self.pairs, self.seen = [], []
        for a, b in ((0, 1), (0, 1), (2, 0)):
            one, other = (End(f"host-{at}", size=SIZE, depth=DEPTH) for at in (a, b))
            for end in (one, other):
                end.mr.write(bytes(range(256)) * (SIZE // 256), SIZE, 0)
            connect(one, other, timeout=4, retry_cnt=2)
            self.pairs.append((one, other))

    def look(self, end: End, count: int) -> None:
        for wc in end.cq.poll(count)[1]:
            self.seen.append((*(getattr(wc, name) for name in FIELDS), self.world.now_ps))

    def play(self, calls: list[tuple[str, int, int, int]]) -> tuple:
        for name, which, size, more in calls:
            one, other = self.pairs[which]
            try:
                getattr(self, name)(one, other, size, more)
            except PyverbsRDMAError as error:
                self.seen.append((name, error.error_code))
        self.world.settle()
        events = []
        for one, other in self.pairs:
            for end in (one, other):
                self.look(end, 9999)
                events += [event.event_type for event in end.ctx.opened.events]
        memory = [end.mr.read(SIZE, 0) for pair in self.pairs for end in pair]
        counters = self.world.engine.packets.port_counters()
        return self.seen, events, memory, self.world.now_ps, {name: list(c) for name, c in counters.items()}

    # ------------------------------------------------------------------ calls

    def write(self, one, other, size, more):
        flags = SIGNALED * (more % 2) | (INLINE if more & 2 and size <= 64 else 0)
        one.send(e.IBV_WR_RDMA_WRITE, length=size, remote=other, at=more * 40, flags=flags, wr_id=more)

    def writes(self, one, other, size, more):
        """A chain."""
        first = None
        for at in range(1 + more % 5):
            request = SendWR(at, e.IBV_WR_RDMA_WRITE, 1, 0, [one.sge(at, size)], SIGNALED * (at % 2), first)
            request.set_wr_rdma(other.mr.rkey, other.mr.buf + at * 100)
            first = request
        one.qp.post_send(first)

    def send(self, one, other, size, more):
        if more & 3:
            other.qp.post_recv(RecvWR(more, 1, [other.sge(8192, 4096)]))
        one.send(e.IBV_WR_SEND, length=size % 4096, wr_id=more)

    def read(self, one, other, size, more):
        one.send(e.IBV_WR_RDMA_READ, length=size, offset=8000, remote=other, at=more, wr_id=more)

    def add(self, one, other, size, more):
        one.send(e.IBV_WR_ATOMIC_FETCH_AND_ADD, length=8, offset=16, remote=other, at=64, operands=(size,))

    def wrong(self, one, other, size, more):
        request = {"rkey": other.mr.rkey + 1} if more % 2 else {"at": SIZE - size // 2}
        one.send(e.IBV_WR_RDMA_WRITE, length=size, remote=other, wr_id=more, **request)

    def wait(self, one, other, size, more):
        one.cq.wait(1 + more % 3)
        self.look(one, 9)

    def poll(self, one, other, size, more):
        self.look(one, more)
        self.seen.append(other.mr.read(64, more * 40))

    def settle(self, one, other, size, more):
        self.world.settle()

    def rereg(self, one, other, size, more):
        access = ALL if more % 2 else e.IBV_ACCESS_LOCAL_WRITE
        (other if more & 2 else one).mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, None, 0, 0, access)

    def rights(self, one, other, size, more):
        attr = QPAttr()
        attr.qp_access_flags = ALL if more % 2 else e.IBV_ACCESS_REMOTE_READ
        other.qp.modify(attr, e.IBV_QP_ACCESS_FLAGS)

    def partition(self, one, other, size, more):
        other.ctx.adapter.pkeys[0] = 0x7FFF if more % 4 == 1 else 0xFFFF

    def window(self, one, other, size, more):
        """A write through a window that is unbound behind it."""
        window = MW(other.pd, e.IBV_MW_TYPE_2)
        for rights, length in ((e.IBV_ACCESS_REMOTE_WRITE, 4096), (0, 0)):
            request = SendWR(5, e.IBV_WR_BIND_MW, 0, 0, None, SIGNALED)
            request.set_bind_wr(window, MWBindInfo(other.mr, other.mr.buf, length, rights))
            if length:
                other.qp.post_send(request)
                key, flags = request.rkey, SIGNALED * (more % 2)
                one.send(e.IBV_WR_RDMA_WRITE, length=size % 4096, remote=other, rkey=key, flags=flags)
                if more & 2:
                    self.wait(one, other, size, 0)
        window.close()

    def reset(self, one, other, size, more):
        for end in (one, other):
            end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        connect(one, other, timeout=4, retry_cnt=2, sq_psn=more, rq_psn=more)

    def link(self, one, other, size, more):
        """One end's link goes down at once and comes back."""
        port = one.ctx.adapter.port
        rate = int(self.twin.fabric.port_rate_bps[port])
        now = self.world.engine.now_ps
        self.world.engine.change(TimedChange(now + 1000 * more, port, 0))
        self.world.engine.change(TimedChange(now + 1000 * more + 30_000_000 * (more % 3), port, rate))


NAMES = (
    *["write"] * 8, *["writes"] * 3, *["wait"] * 3, *["reset"] * 2, "poll", "settle", "send", "read", "add",
    "wrong", "rereg", "rights", "partition", "window", "link",
)  # fmt: skip
sizes = st.sampled_from([0, 8, 64, 300, 4096, 9000])
calls = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 2), sizes, st.integers(0, 15)),
    min_size=5,
    max_size=40,
)


def assert_alike(technology, calls):
    every, plain = (Program(patient, technology).play(calls) for patient in (False, True))
    assert plain == every


@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=calls)
def test_calls_do_the_same_where_nobody_looks_at_plain_writes(technology, calls):
    assert_alike(technology, calls)


@pytest.mark.second
@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=calls)
def test_many_more_calls_do_the_same(technology, calls):
    assert_alike(technology, calls)
