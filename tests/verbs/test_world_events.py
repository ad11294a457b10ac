"""Events of the wire and timers, and what the requester makes of them, on requests without a wire.

InfiniBand Architecture, volume 1, 9.7.6.1.3 (timeouts), 9.9.2 (requester errors), 10.8.3.3 (order).
"""

from __future__ import annotations

import errno
from collections import deque
from types import SimpleNamespace as Record

import pytest

from fabrictwin.engines.base.messages import EventKind
from fabrictwin.verbs.adapter import qp_transitions as t
from fabrictwin.verbs.adapter import world as worlds
from fabrictwin.verbs.adapter.qp_checks import OPERATIONS
from fabrictwin.verbs.adapter.queue_pair import QueuePair
from fabrictwin.verbs.adapter.receive_queues import ReceiveQueue, SharedReceiveQueue
from fabrictwin.verbs.adapter.transport import receivers, requester
from fabrictwin.verbs.adapter.transport.request_states import RequestState
from fabrictwin.verbs.adapter.work_requests import (
    ATOMIC_WRITE,
    BIND,
    COMPARE_SWAP,
    FENCE,
    FETCH_ADD,
    INLINE,
    LOCAL_INV,
    READ,
    SEND,
    SIGNALED,
    WRITE,
    AddressVector,
    Response,
    Work,
)
from fabrictwin.verbs.adapter.world import World

S = RequestState
LOC_LEN_ERR, LOC_QP_OP_ERR, LOC_PROT_ERR, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR = 1, 2, 4, 12, 13


def bare(events=(), **more):
    """A world whose engine gives these lists of events, one after the other."""
    made = World.__new__(World)
    left = list(events)
    asked = []

    def advance(limit, patient=False):
        asked.append((limit, patient) if patient else limit)
        return Record(events=left.pop(0) if left else [])

    engine = Record(advance=advance, now_ps=77, idle=True)
    for name, value in {
        "engine": engine, "timers": [], "records": {}, "plain": {}, "standing": 0, "instant_ps": 0,
        "places_memory": False, "_timed": 0,
        "asked": asked, "_pools": 0, "told": {}, **more,
    }.items():  # fmt: skip
        setattr(made, name, value)
    return made


def posted(opcode=SEND, *, length=8, flags=SIGNALED, state=S.POSTED, **more):
    work = Work(more.pop("qp", None), 1, opcode, flags, ((0, length, 0),))
    work.state = state
    for name, value in more.items():
        setattr(work, name, value)
    return work


@pytest.mark.parametrize("kind", list(EventKind))
@pytest.mark.parametrize("reliable", [True, False])
def test_each_event_of_a_message_goes_to_its_side(monkeypatch, kind, reliable):
    heard = []
    for part, name in (
        (worlds.requester, "ended"), (worlds.requester, "lost"), (worlds.requester, "failed"),
        (worlds.requester, "unanswered"), (worlds.requester, "answered"), (worlds.requester, "silent"),
        (worlds.responder, "begin"), (worlds.responder, "arrive"), (worlds.unreliable, "arrive"),
    ):  # fmt: skip
        place = f"{part.__name__.rpartition('.')[2]}.{name}"
        monkeypatch.setattr(part, name, lambda world, one, *more, place=place: heard.append((place, one, *more)))
    work = posted(qp=Record(reliable=reliable), state=S.UNDER_WAY)
    response = Response(work, None, b"", 0)
    made = bare([[(5, 1, int(kind)), (5, 9, int(kind))], [(6, 2, int(kind))]], records={1: work, 2: response})
    assert made.step()
    assert made.instant_ps == 5
    to_work = {
        EventKind.BEGUN: ("responder.begin", work), EventKind.ENDED: ("requester.ended", work),
        EventKind.LOST: ("requester.lost", work),
        EventKind.ARRIVED: ("responder.arrive" if reliable else "unreliable.arrive", work),
    }  # fmt: skip
    assert heard == [to_work.get(kind, ("requester.failed", work, int(kind)))]
    heard.clear()
    assert made.step()
    if kind == EventKind.ARRIVED:
        assert heard == [("requester.answered", response)]
        assert 2 not in made.records
    elif kind == EventKind.ENDED:
        assert heard == []
        assert 2 in made.records
    else:
        assert heard == [("requester.unanswered", work)]
        assert 2 not in made.records
    assert 1 in made.records


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("silence", [True, False])
def test_what_was_acknowledged_before_it_arrived_ends_with_it(monkeypatch, state, silence):
    heard = []
    outcome = worlds.responder.SILENCE if silence else worlds.responder.ANSWER
    monkeypatch.setattr(worlds.responder, "arrive", lambda world, work: outcome)
    monkeypatch.setattr(worlds.requester, "silent", lambda world, work: heard.append("silent"))
    monkeypatch.setattr(worlds.requester, "ended", lambda world, work: heard.append("ended"))
    work = posted(qp=Record(reliable=True), state=state)
    made = bare(records={4: work})
    made._arrived(4, work)
    expected = ["silent"] if silence else []
    assert heard == expected + (["ended"] if state in (S.ACKNOWLEDGED, S.FLUSHED_ACKNOWLEDGED) else [])
    heard.clear()
    made._arrived(4, posted())
    made._arrived(5, work)
    assert heard == []  # forgotten meanwhile


def test_time_goes_to_the_next_event_or_timer_and_no_further():
    done = []
    made = bare([[], [(40, 8, 0)], [], []])
    made.after(100, lambda: done.append("b"))
    made.after(30, lambda: done.append("a"))
    made.after(100, lambda: done.append("c"))
    assert not made.idle
    assert made.step()  # the engine has nothing by 30
    assert (done, made.instant_ps, made.asked) == (["a"], 77, [30])
    assert made.step(60)
    assert (done, made.instant_ps, made.asked[1:]) == (["a"], 40, [60])
    assert not made.step(60)
    assert made.step()
    assert (done, made.asked[2:]) == (["a", "b", "c"], [60, 100])
    assert made.idle
    assert not made.step()
    assert not made.run_until(lambda: False)
    made.settle()
    ticks = iter(range(1, 9))
    made.step = lambda until=None: setattr(made, "instant_ps", 10 * next(ticks)) or True
    made.instant_ps = 0
    made.advance(35)
    assert made.instant_ps == 40
    assert made.run_until(lambda: made.instant_ps >= 60)
    assert made.instant_ps == 60


def test_what_a_queue_pair_had_on_the_wire_is_forgotten(monkeypatch):
    heard = []
    monkeypatch.setattr(worlds.requester, "unanswered", lambda world, work: heard.append(work))
    own, other = object(), object()
    mine, theirs = posted(qp=own), posted(qp=other)
    made = bare(records={1: mine, 2: theirs, 3: Response(theirs, own, None, 0), 4: Response(mine, other, None, 0)})
    made.forget(own)
    assert set(made.records) == {2, 4}
    assert heard == [theirs]


def test_what_waits_for_a_receiver_that_is_deaf_goes_on_without_end():
    pools, added = [], []
    made = bare()
    made.engine.receives = lambda flow, pool: pools.append((flow, pool))
    made.engine.add_receives = lambda pool, count: added.append((pool, count))
    deaf, well = Record(name="deaf"), Record(name="well")
    target = Record(queue_pairs={5: deaf, 6: well})

    def one(number, *, counted=True, state=S.UNDER_WAY, reliable=True, to=5):
        qp = Record(reliable=reliable, attributes=Record(dest_qp_num=to))
        return posted(qp=qp, counted=counted, state=state, peer_flow=Record(target=target, pool=9, flow=number))

    works = [one(0), one(1, counted=False), one(2, state=S.DONE), one(3, reliable=False), one(4, to=6), one(5)]
    made.records = dict(enumerate([*works, Response(works[0], deaf, None, 0)]))
    made.deafen(deaf)
    assert pools == [(0, 1), (5, 1)]
    assert added == [(1, 1 << 40)]
    made.deafen(deaf)
    assert len(pools) == 2  # once is enough
    assert [work.peer_flow.pool for work in works] == [1, 9, 9, 9, 9, 1]


# ---------------------------------------------------------------------- posting


def sender(kind=t.RC, state=t.RTS, **more):
    """A queue pair as posting sees it; what it does is noted."""
    noted = []
    made = Record(
        kind=kind, state=state, occupied=0, max_send_wr=2, max_send_sge=2, max_inline=16, allowed=OPERATIONS[kind],
        pending=deque(), outstanding=deque(), halted=False, reads=0, max_reads=1, last_flow=None,
         reliable=kind == t.RC,
        unreported=0, signal_all=False, noted=noted, adapter=Record(mtu_bytes=2048),
        flush_sends=lambda: noted.append("flush"), enter_error=lambda: noted.append("error"),
        note_drained=lambda: noted.append("drained"),
        complete_send=lambda work, status: noted.append((work.wr_id, status)),
        peer_flow=lambda work: "flow", attributes=Record(timeout=1, retry_cnt=3),
    )  # fmt: skip
    for name, value in more.items():
        setattr(made, name, value)
    made.hold = made.pending.append
    return made


@pytest.mark.parametrize(
    ("more", "work", "code"),
    [
        ({"state": t.RESET}, {}, errno.EINVAL), ({"state": t.INIT}, {}, errno.EINVAL),
        ({"state": t.RTR}, {}, errno.EINVAL),
        ({"state": t.SQD}, {}, 0), ({"state": t.SQE}, {}, 0), ({"state": t.ERR}, {}, 0),
        ({"kind": t.UD}, {"vector": AddressVector()}, 0), ({"kind": t.UD}, {}, errno.EINVAL),
        ({"kind": t.UD}, {"opcode": WRITE, "vector": AddressVector()}, errno.EINVAL),
        ({"kind": t.UC}, {"opcode": READ}, errno.EINVAL),
        ({}, {"data": bytes(16), "flags": INLINE}, 0), ({}, {"data": bytes(17), "flags": INLINE}, errno.ENOMEM),
        ({}, {"data": bytes(17), "flags": INLINE, "opcode": ATOMIC_WRITE}, 0),
        ({"state": t.SQD, "occupied": 1}, {}, 0), ({"state": t.SQD, "occupied": 2}, {}, errno.ENOMEM),
        ({"occupied": 2}, {}, errno.ENOMEM), ({"occupied": 1}, {}, 0),
        ({}, {"segments": ((0, 1, 0),) * 2}, 0), ({}, {"segments": ((0, 1, 0),) * 3}, errno.EINVAL),
        ({"state": t.SQD}, {"segments": ((0, 1, 0),) * 3}, errno.EINVAL),
        ({"state": t.SQD}, {"segments": ((0, 1, 0),) * 2}, 0), ({}, {"opcode": 99}, errno.EINVAL),
    ],
)  # fmt: skip
def test_posting_refuses_at_once_what_can_never_go(monkeypatch, more, work, code):
    started = []
    monkeypatch.setattr(requester, "_start", lambda qp, work: started.append(work))
    qp = sender(**more)
    before = qp.occupied
    request = posted(work.pop("opcode", SEND), **work)
    assert requester.post(qp, request) == code
    assert qp.occupied == before + (code == 0)
    ready = qp.state == t.RTS and code == 0
    assert (started, list(qp.pending)) == ([request] if ready else [], [] if ready or code else [request])
    assert qp.noted == (["flush"] if code == 0 and qp.state in (t.ERR, t.SQE) else [])


@pytest.mark.parametrize(
    ("more", "opcode", "flags", "waits"),
    [
        ({}, SEND, 0, False), ({"reads": 1}, SEND, FENCE, True), ({"reads": 1}, SEND, 0, False),
        ({}, SEND, FENCE, False),
        ({"reads": 1}, READ, 0, True), ({"reads": 1, "max_reads": 2}, READ, 0, False),
        ({"reads": 2, "max_reads": 2}, COMPARE_SWAP, 0, True), ({"reads": 1}, BIND, FENCE, True),
        ({"outstanding": [1]}, LOCAL_INV, 0, True), ({}, LOCAL_INV, 0, False),
        ({"outstanding": [1]}, BIND, 0, False),
        ({"last_flow": Record(busy=1)}, SEND, 0, True), ({"last_flow": Record(busy=0)}, SEND, 0, False),
        ({"last_flow": Record(busy=1), "kind": t.UD}, SEND, 0, False),
        ({"last_flow": Record(busy=1)}, BIND, 0, False),
    ],
)  # fmt: skip
def test_a_request_waits_for_what_must_come_before_it(monkeypatch, more, opcode, flags, waits):
    qp = sender(**more)
    work = posted(opcode, flags=flags, vector=AddressVector() if qp.kind == t.UD else None)
    assert requester._waits(qp, work) == waits
    same = Record(busy=1)
    assert not requester._waits(sender(last_flow=same, peer_flow=lambda work: same), posted())
    started = []
    monkeypatch.setattr(requester, "_start", lambda qp, work: started.append(work))
    assert requester.post(qp, work) == 0
    assert (started, list(qp.pending)) == (([], [work]) if waits else ([work], []))
    if not waits:  # behind one that waits, or that failed, everything does
        for blocked in (sender(pending=deque([posted()])), sender(halted=True)):
            started.clear()
            requester.post(blocked, work)
            assert started == []
            assert blocked.pending[-1] is work
        pair = deque([posted(), posted()])
        requester.progress(sender(pending=pair))
        assert (len(started), len(pair)) == (2, 0)
        for stopped in (sender(pending=deque([work]), halted=True), sender(pending=deque([work]), state=t.SQD)):
            started.clear()
            requester.progress(stopped)
            assert started == []


@pytest.mark.parametrize(
    ("work", "more", "status"),
    [
        ({"length": 1 << 31}, {}, 0), ({"length": (1 << 31) + 1}, {}, LOC_LEN_ERR),
        ({"opcode": READ}, {"max_reads": 0}, LOC_QP_OP_ERR), ({"opcode": READ, "length": 9}, {}, 0),
        ({"opcode": COMPARE_SWAP}, {}, 0), ({"opcode": COMPARE_SWAP, "length": 7}, {}, LOC_LEN_ERR),
        ({"opcode": FETCH_ADD, "length": 9}, {"max_reads": 0}, LOC_QP_OP_ERR),
        ({"length": 2048}, {"kind": t.UD}, 0), ({"length": 2049}, {"kind": t.UD}, LOC_LEN_ERR),
        ({"length": 2049}, {}, 0),
        ({}, {"places": None}, LOC_PROT_ERR), ({"data": b"x"}, {"places": None}, 0),
    ],
)  # fmt: skip
def test_a_request_is_checked_against_memory_when_it_begins(work, more, status):
    asked = []
    places = more.pop("places", ((5, 8),))
    memory = Record(epoch=3, local_segments=lambda *given: asked.append(given) or places)
    qp = sender(memory=memory, domain="domain", **more)
    request = posted(work.pop("opcode", SEND), **work)
    assert requester._prepare(qp, request) == status
    if status == 0 and request.data is None:
        access = 1 if request.opcode in (READ, COMPARE_SWAP, FETCH_ADD) else 0
        assert asked == [(request.segments, "domain", access)]
        assert (request.places, request.epoch) == (places, 3)


# ---------------------------------------------------------------------- endings


def test_a_malformed_request_completes_in_order_and_stops_the_queue():
    first, second = posted(wr_id=1), posted(wr_id=2)
    first.state = S.UNDER_WAY
    qp = sender(outstanding=deque([first]))
    second.wr_id = 2
    requester.reject(qp, second, LOC_QP_OP_ERR)
    assert (qp.occupied, qp.halted, list(qp.outstanding), qp.noted) == (1, True, [first, second], [])
    assert (second.state, second.status) == (S.DONE, LOC_QP_OP_ERR)
    first.wr_id = 1
    first.peer_flow = Record(busy=2)
    assert requester.finish(qp, first)
    assert qp.noted == [(1, 0), (2, LOC_QP_OP_ERR), "error"]
    assert first.peer_flow.busy == 1
    alone = sender()
    requester.reject(alone, posted(), LOC_QP_OP_ERR)
    assert alone.noted == [(1, LOC_QP_OP_ERR), "error"]


@pytest.mark.parametrize("reliable", [True, False])
def test_what_leads_nowhere_is_lost_or_waits_for_its_timeouts(reliable):
    """4.096 us times 2 to the timeout, once and again for each retry."""
    timed = []
    made = Record(after=lambda delay, action: timed.append((delay, action)), records={})
    qp = sender(world=made, reliable=reliable)
    work = posted(qp=qp)
    qp.outstanding.append(work)
    requester._unreachable(qp, work)
    if not reliable:
        assert (qp.noted, work.state, timed) == ([(1, 0)], S.DONE, [])
        behind = posted(qp=qp)
        qp.outstanding.extend([posted(), behind])
        requester._unreachable(qp, behind)
        assert len(qp.noted) == 1
        return
    ((delay, action),) = timed
    assert (delay, work.state, qp.noted) == (4 * 8_192_000, S.UNANSWERED, [])
    made.records[0] = work
    action()
    assert (qp.noted, work.status, made.records) == ([(1, RETRY_EXC_ERR), "error"], RETRY_EXC_ERR, {})
    timed.clear()
    qp.attributes.timeout = 0
    requester.silent(made, posted(qp=qp))
    assert timed == []  # for ever


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("kind", [EventKind.FAILED, EventKind.NOT_READY_FAILED])
def test_what_the_wire_gives_up_fails_where_it_is_awaited(state, kind):
    qp = sender()
    work = posted(qp=qp, state=state, message=6)
    qp.outstanding.append(work)
    made = Record(records={6: work, 7: work})
    requester.failed(made, work, int(kind))
    assert made.records == {7: work}
    awaited = state in (S.POSTED, S.UNDER_WAY, S.ACKNOWLEDGED, S.ARRIVED, S.UNANSWERED)
    status = RNR_RETRY_EXC_ERR if kind == EventKind.NOT_READY_FAILED else RETRY_EXC_ERR
    assert qp.noted == ([(1, status), "error"] if awaited else [])
    if state == S.ACKNOWLEDGED:
        return  # what the wire acknowledged is no request that has an answer
    timed = []
    made.after = lambda delay, action: timed.append(delay)
    late = posted(qp=qp, state=state)
    requester.unanswered(made, late)
    assert len(timed) == awaited
    assert late.state == (S.UNANSWERED if awaited else state)


@pytest.mark.parametrize(
    ("state", "opcode", "refusal", "after", "kept", "noted"),
    [
        (S.UNDER_WAY, SEND, 0, S.ACKNOWLEDGED, True, []),
        (S.UNDER_WAY, SEND, 10, S.DONE, False, [(1, 10), "error"]),
        (S.UNDER_WAY, READ, 0, S.UNDER_WAY, False, []), (S.ARRIVED, SEND, 0, S.DONE, False, [(1, 0)]),
        (S.ARRIVED, READ, 0, S.ARRIVED, False, []), (S.ARRIVED, READ, 9, S.DONE, False, [(1, 9), "error"]),
        (S.UNANSWERED, SEND, 0, S.UNANSWERED, False, []), (S.GONE, SEND, 0, S.GONE, False, []),
        (S.FLUSHED, SEND, 0, S.FLUSHED_ACKNOWLEDGED, True, []),
    ],
)  # fmt: skip
def test_an_acknowledgement_ends_what_has_arrived(state, opcode, refusal, after, kept, noted):
    qp = sender()
    work = posted(opcode, qp=qp, state=state, refusal=refusal, message=6)
    qp.outstanding.append(work)
    made = Record(records={6: work})
    requester.ended(made, work)
    assert (work.state, 6 in made.records, qp.noted) == (after, kept, noted)


@pytest.mark.parametrize("epoch", [3, 4])
@pytest.mark.parametrize("checked", [((9, 8),), None])
def test_an_answer_is_placed_where_the_request_may_still_write(epoch, checked):
    placed, asked = [], []
    memory = Record(epoch=epoch, local_segments=lambda *given: asked.append(given) or checked)
    qp = sender(adapter=Record(memory=memory), reads=2, domain="domain")
    made = Record(
        records={6: 1}, process_memory=Record(scatter=lambda data, places: placed.append((data, places)))
    )
    responder = Record(inbound_reads=3)
    for data, value, expected in ((b"bytes", 0, b"bytes"), (None, 258, b"\2\1" + bytes(6))):
        work = posted(READ, qp=qp, state=S.ARRIVED, message=6, epoch=3, places=((5, 8),))
        qp.outstanding.append(work)
        placed.clear()
        qp.noted.clear()
        requester.answered(made, Response(work, responder, data, value))
        lost = epoch == 4 and checked is None
        assert work.status == (LOC_PROT_ERR if lost else 0)
        where = ((5, 8),) if epoch == 3 else checked
        assert placed == ([] if lost else [(expected, where)])
        assert qp.noted == ([(1, LOC_PROT_ERR), "error"] if lost else [(1, 0)])
    assert (qp.reads, responder.inbound_reads, made.records) == (0, 1, {})
    assert asked == ([] if epoch == 3 else [(work.segments, "domain", 1)] * 2)
    gone = posted(READ, qp=qp, state=S.FLUSHED)
    requester.answered(made, Response(gone, responder, b"", 0))
    assert (qp.reads, responder.inbound_reads) == (0, 0)


@pytest.mark.parametrize(
    ("flags", "every", "reported"), [(0, False, []), (SIGNALED, False, [1, 2]), (0, True, [1, 2])]
)
def test_requests_retire_in_order_and_let_others_begin(monkeypatch, flags, every, reported):
    begun = []
    monkeypatch.setattr(requester, "progress", begun.append)
    works = [posted(flags=flags, state=state) for state in (S.DONE, S.SENT, S.UNDER_WAY, S.DONE)]
    for n, work in enumerate(works, 1):
        work.wr_id = n
    qp = sender(outstanding=deque(works), signal_all=every, pending=deque([1]))
    requester.retire(qp)
    assert ([one for one, _ in qp.noted], list(qp.outstanding), qp.unreported) == (reported, works[2:], 2)
    assert begun == [qp]
    requester.retire(qp, again=False)
    requester.retire(sender(pending=deque()))
    assert begun == [qp]
    for outstanding, noted in ((deque(), ["drained"]), (deque([posted(state=S.UNDER_WAY)]), [])):
        draining = sender(outstanding=outstanding, state=t.SQD, pending=deque([1]))
        requester.retire(draining)
        assert (draining.noted, begun) == (noted, [qp])
    unreliable = sender(kind=t.UC, outstanding=deque([posted(state=S.DONE, status=4)]))
    requester.retire(unreliable)
    assert (unreliable.noted, unreliable.state) == ([(1, 4), "flush"], t.SQE)


# ---------------------------------------------------------------------- receives


def test_a_receive_that_is_not_taken_is_given_back_to_its_pool():
    counts = []
    made = Record(engine=Record(add_receives=lambda pool, count: counts.append((pool, count))), new_pool=lambda: 4)
    queue = ReceiveQueue(made, None, 3, 1)
    for n in range(3):
        assert not queue.full
        queue.add((n, (), 0))
    assert queue.full
    queue.release(1)
    assert (queue.full, queue.posted) == (False, 2)
    assert queue.take() == (0, (), 0)
    assert queue.clear() == [(1, (), 0), (2, (), 0)]
    assert queue.clear() == []
    assert queue.take() is None
    assert counts == [(4, 1)] * 3 + [(4, -2)]
    counts.clear()
    peer = Record(receives=queue)
    flow = Record(
        target=Record(queue_pairs={5: peer, 6: Record(receives=None)}, shared_receives={9: queue}), pool=4
    )

    def one(to=5, **more):
        return posted(qp=Record(attributes=Record(dest_qp_num=to)), peer_flow=flow, **more)

    for work in (one(), one(srqn=9), one(to=6), one(to=7), one(srqn=8)):
        receivers.give_back(work)
    assert counts == [(4, 1)] * 2
    flow.pool = 3
    receivers.give_back(one())
    assert len(counts) == 2
    # a message that the engine did not count takes one all the same
    queue.add((7, (), 0))
    counts.clear()
    assert receivers.take(made, peer, one(counted=True)) == (7, (), 0)
    assert counts == []
    queue.add((8, (), 0))
    counts.clear()
    assert receivers.take(made, peer, one()) == (8, (), 0)
    assert counts == [(4, -1)]
    assert receivers.take(made, peer, one()) is None
    assert counts == [(4, -1)]


def test_a_shared_queue_tells_once_when_it_runs_low():
    told = []
    made = Record(engine=Record(add_receives=lambda pool, count: None), new_pool=lambda: 4)
    queue = SharedReceiveQueue(made, None, 9, 1, number=3)
    queue.sink = Record(raise_event=lambda kind, of: told.append((kind, of, len(of.queue))))
    for n in range(5):
        queue.add((n, (), 0))
    queue.limit = 3
    for _ in range(5):
        queue.take()
    assert told == [(15, queue, 2)]  # IBV_EVENT_SRQ_LIMIT_REACHED, and two are left
    assert queue.limit == 0
    queue.sink, queue.limit = None, 1
    assert queue.take() is None


SILENT = "sent what nobody answers, and its timeout is never"
WAITING = "waits for the receiver, which has no receive posted"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"state": t.INIT}, ""), ({"state": t.RTS}, ""),
        ({"outstanding": [posted(state=S.UNANSWERED, message=3)]}, SILENT),
        ({"outstanding": [posted(state=S.UNDER_WAY)]}, SILENT),
        ({"outstanding": [posted(state=S.UNDER_WAY, message=3)]}, WAITING),
        ({"pending": [1]}, "has sends that cannot begin"),
        ({"pending": [1], "state": t.SQD}, "holds its send queue (it is to drain)"),
        ({"receives": Record(queue=[1, 2])}, "has 2 receives posted, but nobody sends to it"),
        ({"receives": Record(queue=[1, 2]), "shared": True}, ""), ({"receives": Record(queue=[])}, ""),
        ({"pending": [1], "state": t.ERR}, ""),
    ],
)  # fmt: skip
def test_a_queue_pair_says_what_it_waits_for(more, words):
    qp = Record(**{"state": t.RTS, "outstanding": [], "pending": [], "receives": None, "shared": False, **more})
    assert QueuePair.why_waiting(qp) == words
