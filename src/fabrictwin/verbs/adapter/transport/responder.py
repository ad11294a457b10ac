"""The receiving side of a queue pair: checks of requests that have arrived, and answers to them.

InfiniBand Architecture, volume 1, 9.7.5.2 (acknowledgements and NAK codes), 9.9.3 (responder errors, table 60),
9.4.5 (atomics). A NAK puts the queue pair into the error state. Unreliable services are in `unreliable`.

A request that is dropped is returned as `SILENCE`: its requester is told by whoever called, never from here.
"""

from __future__ import annotations

from enum import Enum, auto

from fabrictwin.engines.base.messages import (
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATION,
    Contents,
    Message,
    Opcode,
    Posting,
)
from fabrictwin.verbs.abi.completion_codes import ibv_wc_flags, ibv_wc_opcode
from fabrictwin.verbs.abi.device_codes import ibv_event_type as event
from fabrictwin.verbs.adapter import payload_placement as placement
from fabrictwin.verbs.adapter import qp_transitions as t
from fabrictwin.verbs.adapter.completions import (
    LOC_LEN_ERR,
    LOC_PROT_ERR,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    REM_OP_ERR,
    WC,
)
from fabrictwin.verbs.adapter.memory_regions import (
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    Segments,
)
from fabrictwin.verbs.adapter.qp_checks import PSN_BITS, PSN_MASK
from fabrictwin.verbs.adapter.queue_pair import QueuePair, Simulation
from fabrictwin.verbs.adapter.receive_queues import ReceiveQueue, SharedReceiveQueue
from fabrictwin.verbs.adapter.transport.receivers import domain_of, give_back, queue_of, receiver, take
from fabrictwin.verbs.adapter.transport.remote_access import flush_refused, place_of, write_refused
from fabrictwin.verbs.adapter.transport.request_states import Input
from fabrictwin.verbs.adapter.work_requests import (
    ANSWERED,
    ATOMIC_WRITE,
    COMPARE_SWAP,
    FLUSH,
    READ,
    SEND,
    SEND_INV,
    SOLICITED,
    WRITE,
    WRITE_IMM,
    Response,
    Work,
)

WC_RECV, WC_RECV_WRITE = int(ibv_wc_opcode.IBV_WC_RECV), int(ibv_wc_opcode.IBV_WC_RECV_RDMA_WITH_IMM)
_WC_GRH, WC_WITH_IMM = int(ibv_wc_flags.IBV_WC_GRH), int(ibv_wc_flags.IBV_WC_WITH_IMM)
_WC_WITH_INV = int(ibv_wc_flags.IBV_WC_WITH_INV)

_COMM_EST = int(event.IBV_EVENT_COMM_EST)
_REQ_ERR, _ACCESS_ERR = int(event.IBV_EVENT_QP_REQ_ERR), int(event.IBV_EVENT_QP_ACCESS_ERR)

_SYNDROMES = {
    REM_INV_REQ_ERR: NAK_INVALID_REQUEST,
    REM_ACCESS_ERR: NAK_REMOTE_ACCESS,
    REM_OP_ERR: NAK_REMOTE_OPERATION,
}
_WRITES = frozenset((WRITE, WRITE_IMM, ATOMIC_WRITE))


def begin(world: Simulation, work: Work) -> None:
    """The first packet of a long write is here: its header says enough to refuse it."""
    qp = receiver(work)
    if qp is None or (work.packets > 1 and _misnumbered(qp, work)):
        return
    refusal = write_refused(qp, work)[0]
    if refusal:
        _nak(world, qp, work, refusal)


_ARRIVE = Input.ARRIVE


class Outcome(Enum):
    """The wire's part in what becomes of a request that has arrived."""

    ANSWER = auto()  # an acknowledgement, a NAK or a response goes back
    SILENCE = auto()  # nothing does


ANSWER, SILENCE = Outcome.ANSWER, Outcome.SILENCE


def arrive(world: Simulation, work: Work) -> Outcome:
    """Take a request that is here whole."""
    work.enter(_ARRIVE)
    qp = receiver(work)
    sender: QueuePair = work.qp
    if qp is None:
        if work.counted:
            give_back(work)
        return SILENCE
    if work.psn != qp.expected_psn:
        return _out_of_sequence(qp, work)
    _expect_next(qp, work)
    opcode = work.opcode
    if work.length > qp.mtu < sender.mtu and opcode not in ANSWERED:
        return _nak(world, qp, work, REM_INV_REQ_ERR)  # packets longer than the receiver's path allows
    source = work.places
    if work.data is None and work.epoch != sender.adapter.memory.epoch and opcode not in ANSWERED:
        checked = sender.adapter.memory.local_segments(work.segments, sender.domain, 0)
        if checked is None:  # the sender's memory went away before it was read
            if work.counted:
                give_back(work)
            work.refusal = LOC_PROT_ERR
            world.engine.refuse(work.message, NAK_REMOTE_OPERATION)
            return ANSWER
        source = checked
    if opcode in ANSWERED:
        return _answer(world, qp, work)
    if opcode in _WRITES:
        return _write(world, qp, work, source)
    if opcode == FLUSH:
        refusal = flush_refused(qp, work)
        return _nak(world, qp, work, refusal) if refusal else ANSWER
    return _receive(world, qp, work, source)


def take_plain(world: Simulation, work: Work) -> None:
    """Take a write that is here whole, and was found plain when it began."""
    work.enter(_ARRIVE)
    _expect_next(work.peer_flow.receiver, work)
    if work.data is None:
        world.process_memory.join(work.places, work.place)
    elif work.length:
        world.process_memory.write(work.place, work.data, work.length)


def _expect_next(qp: QueuePair, work: Work) -> None:
    """A request has come in its turn."""
    qp.expected_psn = (work.psn + work.packets) & PSN_MASK
    if qp.first_arrival:
        qp.first_arrival = False
        if qp.state == t.RTR:
            qp.raise_event(_COMM_EST)


def _misnumbered(qp: QueuePair, work: Work) -> bool:
    return work.psn != qp.expected_psn


def _out_of_sequence(qp: QueuePair, work: Work) -> Outcome:
    """Volume 1, 9.7.5.1: a number from the past is a duplicate, acknowledged and not done again; a number from
    the future is a gap that retries never fill."""
    if work.counted:
        give_back(work)
    behind = (qp.expected_psn - work.psn) & PSN_MASK < 1 << (PSN_BITS - 1)
    return SILENCE if not behind or work.opcode in ANSWERED else ANSWER


def _nak(world: Simulation, qp: QueuePair, work: Work, refusal: int) -> Outcome:
    """Refuse a request: the sender learns why, the receiver fails too."""
    if work.counted and work.refusal == 0 and refusal != REM_OP_ERR:
        give_back(work)
    work.refusal = refusal
    world.engine.refuse(work.message, _SYNDROMES[refusal])
    if refusal == REM_ACCESS_ERR:
        qp.raise_event(_ACCESS_ERR)
    elif refusal == REM_INV_REQ_ERR:
        qp.raise_event(_REQ_ERR)
    qp.enter_error()
    return ANSWER


# ---------------------------------------------------------------------- sends


def _receive(world: Simulation, qp: QueuePair, work: Work, source: Segments) -> Outcome:
    queue = queue_of(qp, work)
    taken = take(world, qp, work)
    if taken is None or queue is None:
        return _nak(world, qp, work, REM_INV_REQ_ERR) if work.srqn and queue is None else SILENCE
    wr_id, segments, room = taken
    completion = WC.of(wr_id, 0, WC_RECV, work.length, qp.number)
    if work.length > room:
        return _receive_failed(world, qp, work, completion, LOC_LEN_ERR, REM_INV_REQ_ERR)
    if work.length:
        places = qp.memory.local_segments(segments, queue.domain, LOCAL_WRITE)
        if places is None:
            return _receive_failed(world, qp, work, completion, LOC_PROT_ERR, REM_OP_ERR)
        _place(world, work, source, places)
    if work.opcode == SEND_INV:
        if not qp.memory.invalidate(work.immediate, domain_of(qp, work), qp.number):
            return _receive_failed(world, qp, work, completion, LOC_PROT_ERR, REM_ACCESS_ERR)
        completion.wc_flags = _WC_WITH_INV
        completion.imm_data = work.immediate
    elif work.opcode != SEND:  # with immediate data
        completion.wc_flags = WC_WITH_IMM
        completion.imm_data = work.immediate
    complete(qp, work, queue, completion)
    return ANSWER


def _place(world: Simulation, work: Work, source: Segments, places: Segments) -> None:
    if work.data is None:
        world.process_memory.move(source, places)
    else:
        world.process_memory.scatter(work.data, places)


def complete(qp: QueuePair, work: Work, queue: ReceiveQueue, completion: WC) -> None:
    completion.slots = 1
    completion.queue = queue
    target = qp.receive_completions
    if isinstance(queue, SharedReceiveQueue) and work.srqn:
        target = queue.completions
    solicited = bool(work.flags & SOLICITED)
    if target is not None and not target.push(completion, solicited):
        qp.overrun()


def _receive_failed(
    world: Simulation, qp: QueuePair, work: Work, completion: WC, status: int, refusal: int
) -> Outcome:
    """Fail a receive here, and let its sender learn that it did."""
    completion.status = status
    completion.byte_len = 0
    queue = queue_of(qp, work)
    assert queue is not None
    complete(qp, work, queue, completion)
    work.counted = False  # its receive is used up
    return _nak(world, qp, work, refusal)


# ---------------------------------------------------------------------- writes


def _write(world: Simulation, qp: QueuePair, work: Work, source: Segments) -> Outcome:
    refusal, place = write_refused(qp, work)
    if refusal:
        return _nak(world, qp, work, refusal)
    taken = queue = None
    if work.opcode == WRITE_IMM:
        queue = queue_of(qp, work)
        taken = take(world, qp, work)
        if taken is None:
            return SILENCE
    if work.length:
        _place(world, work, source, [(place, work.length)])
    if taken is not None and queue is not None:
        completion = WC(taken[0], 0, WC_RECV_WRITE, 0, work.length, qp.number, 0, work.immediate, WC_WITH_IMM)
        complete(qp, work, queue, completion)
    return ANSWER


# ---------------------------------------------------------------------- reads and atomics


def _answer(world: Simulation, qp: QueuePair, work: Work) -> Outcome:
    """Do a READ or an atomic, and send back what it yields."""
    reading = work.opcode == READ
    needs = REMOTE_READ if reading else REMOTE_ATOMIC
    refusal = 0
    place: int | None = 0
    if not qp.attributes.qp_access_flags & needs:
        refusal = REM_INV_REQ_ERR
    elif qp.inbound_reads >= qp.attributes.max_dest_rd_atomic:
        refusal = REM_INV_REQ_ERR  # more at a time than it has resources for
    elif not reading and work.address % 8:
        refusal = REM_INV_REQ_ERR
    elif work.length:
        place = place_of(qp, work, needs)
        if place is None:
            refusal = REM_ACCESS_ERR
    if refusal:
        return _nak(world, qp, work, refusal)
    assert place is not None
    peer_flow = qp.answer_flow()
    if peer_flow is None:
        return SILENCE
    data, value = None, 0
    if reading:
        data = world.process_memory.read(place, work.length) if work.length else b""
    elif work.opcode == COMPARE_SWAP:
        value = world.process_memory.compare_swap(place, work.compare, work.swap)
    else:
        value = world.process_memory.fetch_add(place, work.compare)
    qp.inbound_reads += 1
    opcode = Opcode.READ_RESPONSE if reading else Opcode.ATOMIC_RESPONSE
    if world.captures or world.places_memory:
        region = placement.region_of_key(qp.adapter, work.rkey)
        posting = Posting(
            source_memory=placement.node_of(region),
            target_memory=placement.node_of(placement.local_region(work.qp, work)),
            later_ps=placement.copy_ps(region, work.length),
        )
        payload = memoryview(data) if world.captures and data else None
        contents = Contents(operands=(value, 0), payload=payload)
        response = Message(work.length, opcode, False, work.message, posting, contents)
    else:
        response = Message(work.length, opcode, False, work.message)
    message = world.engine.send(peer_flow.flow, response)
    world.records[message] = Response(work, qp, data, value)
    return ANSWER
