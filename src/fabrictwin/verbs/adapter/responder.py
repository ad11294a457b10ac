"""The receiving side of a queue pair: what a request that has arrived may do, and what is answered.

InfiniBand Architecture, volume 1, 9.7.5.2 (acknowledgements and NAK codes), 9.9.3 (responder errors, table 60),
9.4.5 (atomics). A NAK puts the queue pair into the error state. Unreliable services are in `unreliable`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabrictwin.engines.base.messages import NAK_INVALID_REQUEST, NAK_REMOTE_ACCESS, NAK_REMOTE_OPERATION, Opcode
from fabrictwin.verbs.abi.completion_codes import ibv_wc_flags, ibv_wc_opcode
from fabrictwin.verbs.abi.device_codes import ibv_event_type as event
from fabrictwin.verbs.adapter import payload_placement as placing
from fabrictwin.verbs.adapter import qp_transitions as t
from fabrictwin.verbs.adapter import requester
from fabrictwin.verbs.adapter.adapter import FULL_MEMBER
from fabrictwin.verbs.adapter.completions import (
    LOC_LEN_ERR,
    LOC_PROT_ERR,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    REM_OP_ERR,
    WC,
)
from fabrictwin.verbs.adapter.memory_regions import (
    FLUSH_GLOBAL,
    FLUSH_PERSISTENT,
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    Domain,
    Segments,
)
from fabrictwin.verbs.adapter.qp_checks import PSN_BITS, PSN_MASK
from fabrictwin.verbs.adapter.receive_queues import ReceiveQueue
from fabrictwin.verbs.adapter.work_requests import (
    ANSWERED,
    ATOMIC_WRITE,
    COMPARE_SWAP,
    FLUSH,
    READ,
    SEND_INV,
    SOLICITED,
    WRITE,
    WRITE_IMM,
    Response,
    Work,
)

if TYPE_CHECKING:
    from fabrictwin.verbs.adapter.adapter import Adapter
    from fabrictwin.verbs.adapter.queue_pair import QueuePair
    from fabrictwin.verbs.adapter.world import World

WC_RECV, WC_RECV_WRITE = int(ibv_wc_opcode.IBV_WC_RECV), int(ibv_wc_opcode.IBV_WC_RECV_RDMA_WITH_IMM)
_WC_GRH, WC_WITH_IMM = int(ibv_wc_flags.IBV_WC_GRH), int(ibv_wc_flags.IBV_WC_WITH_IMM)
_WC_WITH_INV = int(ibv_wc_flags.IBV_WC_WITH_INV)

_COMM_EST = int(event.IBV_EVENT_COMM_EST)
_REQ_ERR, _ACCESS_ERR = int(event.IBV_EVENT_QP_REQ_ERR), int(event.IBV_EVENT_QP_ACCESS_ERR)

_PEERS = {t.RC: t.RC, t.UC: t.UC, t.UD: t.UD, t.XRC_SEND: t.XRC_RECV}
_NEEDS = {WRITE: REMOTE_WRITE, WRITE_IMM: REMOTE_WRITE, READ: REMOTE_READ, ATOMIC_WRITE: REMOTE_WRITE}
_SYNDROMES = {
    REM_INV_REQ_ERR: NAK_INVALID_REQUEST,
    REM_ACCESS_ERR: NAK_REMOTE_ACCESS,
    REM_OP_ERR: NAK_REMOTE_OPERATION,
}
_WRITES = frozenset((WRITE, WRITE_IMM, ATOMIC_WRITE))

FLUSH_TYPE_GLOBAL, FLUSH_TYPE_PERSISTENT = 1, 2  # ibv_placement_type
FLUSH_LEVEL_MR = 1  # ibv_selectivity_level

PRIVILEGED_QKEY = 1 << 31


def begin(world: World, work: Work) -> None:
    """The first packet of a long write is here: its header says enough to refuse it."""
    qp = receiver(work)
    if qp is None or (work.packets > 1 and _misnumbered(qp, work)):
        return
    refusal = write_refused(qp, work)[0]
    if refusal:
        _nak(world, qp, work, refusal)


def arrive(world: World, work: Work) -> None:
    """A request is here whole."""
    work.arrived = True
    qp = receiver(work)
    sender = work.qp
    if qp is None:
        if work.counted:
            give_back(work)
        requester.silent(world, work)
        return
    if work.psn != qp.expected_psn:
        _out_of_sequence(world, qp, work)
        return
    qp.expected_psn = (work.psn + work.packets) & PSN_MASK
    if qp.first_arrival:
        qp.first_arrival = False
        if qp.state == t.RTR:
            qp.raise_event(_COMM_EST)
    opcode = work.opcode
    if work.length > qp.mtu < sender.mtu and opcode not in ANSWERED:
        _nak(world, qp, work, REM_INV_REQ_ERR)  # packets longer than the receiver's path allows
        return
    source = work.places
    if work.data is None and work.epoch != sender.adapter.memory.epoch and opcode not in ANSWERED:
        checked = sender.adapter.memory.local_segments(work.segments, sender.domain, 0)
        if checked is None:  # the sender's memory went away before it was read
            if work.counted:
                give_back(work)
            work.refusal = LOC_PROT_ERR
            world.session.refuse(work.message, NAK_REMOTE_OPERATION)
            return
        source = checked
    if opcode in ANSWERED:
        _answer(world, qp, work)
    elif opcode in _WRITES:
        _write(world, qp, work, source)
    elif opcode == FLUSH:
        refusal = _flush_refused(qp, work)
        if refusal:
            _nak(world, qp, work, refusal)
    else:
        _receive(world, qp, work, source)


def addressed(work: Work) -> QueuePair | None:
    """The queue pair whose number a request names."""
    number = work.remote_qpn if work.vector is not None else work.qp.attributes.dest_qp_num
    return work.way.target.queue_pairs.get(number)  # type: ignore[no-any-return]


def receiver(work: Work) -> QueuePair | None:
    """The queue pair that takes a request; None where packets are dropped."""
    sender = work.qp
    target: Adapter = work.way.target
    qp = addressed(work)
    if qp is None or qp.state not in requester.RECEIVING or _PEERS.get(sender.kind) != qp.kind:
        return None
    if not same_partition(sender, qp):
        target.pkey_violations += 1
        return None
    return qp


def same_partition(sender: QueuePair, qp: QueuePair) -> bool:
    """Volume 1, 10.9.3: the low 15 bits agree and are not zero, and one of the two is a full member."""
    sent = sender.adapter.pkeys[sender.attributes.pkey_index]
    held = qp.adapter.pkeys[qp.attributes.pkey_index]
    return (sent ^ held) & 0x7FFF == 0 and sent & 0x7FFF != 0 and (sent | held) & FULL_MEMBER != 0


def queue_key(work: Work) -> int:
    """The Q_Key of a datagram: a privileged one stands for the sender's own."""
    key = work.remote_qkey
    return key if not key & PRIVILEGED_QKEY else work.qp.attributes.qkey


def _misnumbered(qp: QueuePair, work: Work) -> bool:
    return work.psn != qp.expected_psn


def _out_of_sequence(world: World, qp: QueuePair, work: Work) -> None:
    """Volume 1, 9.7.5.1: a number from the past is a duplicate, acknowledged and not done again; a number from
    the future is a gap that retries never fill."""
    if work.counted:
        give_back(work)
    behind = (qp.expected_psn - work.psn) & PSN_MASK < 1 << (PSN_BITS - 1)
    if not behind or work.opcode in ANSWERED:
        requester.silent(world, work)


def queue_of(qp: QueuePair, work: Work) -> ReceiveQueue | None:
    if not work.srqn:
        return qp.receives
    shared = work.way.target.shared_receives.get(work.srqn)
    return shared if shared is not None and shared.extended is qp.extended else None


def give_back(work: Work) -> None:
    """The session counted a receive that the message does not take after all."""
    queue = queue_for(work)
    if queue is not None and queue.pool == work.way.pool:
        queue.give_back()


def queue_for(work: Work) -> ReceiveQueue | None:
    """The queue that a message under way will take its receive from."""
    if work.srqn:
        return work.way.target.shared_receives.get(work.srqn)  # type: ignore[no-any-return]
    qp = addressed(work)
    return None if qp is None else qp.receives


def _nak(world: World, qp: QueuePair, work: Work, refusal: int) -> None:
    """Refuse a request: the sender learns why, the receiver fails too."""
    if work.counted and work.refusal == 0 and refusal != REM_OP_ERR:
        give_back(work)
    work.refusal = refusal
    world.session.refuse(work.message, _SYNDROMES[refusal])
    if refusal == REM_ACCESS_ERR:
        qp.raise_event(_ACCESS_ERR)
    elif refusal == REM_INV_REQ_ERR:
        qp.raise_event(_REQ_ERR)
    qp.enter_error()


# ---------------------------------------------------------------------- sends


def take(world: World, qp: QueuePair, work: Work) -> tuple[int, tuple[tuple[int, int, int], ...], int] | None:
    """The buffer for a message; None where the receiver has none after all."""
    queue = queue_of(qp, work)
    taken = None if queue is None else queue.take()
    if taken is not None and not work.counted:
        world.session.add_receives(queue.pool, -1)  # type: ignore[union-attr]
    return taken


def _receive(world: World, qp: QueuePair, work: Work, source: Segments) -> None:
    queue = queue_of(qp, work)
    taken = take(world, qp, work)
    if taken is None or queue is None:
        if work.srqn and queue is None:
            _nak(world, qp, work, REM_INV_REQ_ERR)
        else:
            requester.silent(world, work)
        return
    wr_id, segments, room = taken
    completion = WC(wr_id, 0, WC_RECV, 0, work.length, qp.number)
    if work.length > room:
        _receive_failed(world, qp, work, completion, LOC_LEN_ERR, REM_INV_REQ_ERR)
        return
    if work.length:
        places = qp.memory.local_segments(segments, queue.domain, LOCAL_WRITE)
        if places is None:
            _receive_failed(world, qp, work, completion, LOC_PROT_ERR, REM_OP_ERR)
            return
        _place(world, work, source, places)
    if work.opcode == SEND_INV:
        if not qp.memory.invalidate(work.immediate, domain_of(qp, work), qp.number):
            _receive_failed(world, qp, work, completion, LOC_PROT_ERR, REM_ACCESS_ERR)
            return
        completion.wc_flags = _WC_WITH_INV
        completion.imm_data = work.immediate
    elif work.opcode != 2:  # with immediate data
        completion.wc_flags = WC_WITH_IMM
        completion.imm_data = work.immediate
    complete(qp, work, queue, completion)


def domain_of(qp: QueuePair, work: Work) -> Domain:
    """The protection domain that remote accesses are held to: an XRC target's is its receive queue's."""
    if qp.domain is None and work.srqn:
        queue = queue_of(qp, work)
        if queue is not None and queue.domain is not None:
            return queue.domain
    return qp.domain  # type: ignore[return-value]


def _place(world: World, work: Work, source: Segments, places: Segments) -> None:
    if work.data is None:
        world.process_memory.move(source, places)
    else:
        world.process_memory.scatter(work.data, places)


def complete(qp: QueuePair, work: Work, queue: ReceiveQueue, completion: WC) -> None:
    completion.slots = 1
    completion.queue = queue
    target = qp.receive_completions
    if work.srqn:
        target = queue.completions  # type: ignore[attr-defined]
    solicited = bool(work.flags & SOLICITED)
    if target is not None and not target.push(completion, solicited):
        qp.overrun()


def _receive_failed(world: World, qp: QueuePair, work: Work, completion: WC, status: int, refusal: int) -> None:
    """A receive fails here, and its sender learns that it did."""
    completion.status = status
    completion.byte_len = 0
    queue = queue_of(qp, work)
    assert queue is not None
    complete(qp, work, queue, completion)
    work.counted = False  # its receive is used up
    _nak(world, qp, work, refusal)


# ---------------------------------------------------------------------- writes


def write_refused(qp: QueuePair, work: Work) -> tuple[int, int]:
    """(the NAK that a write gets or 0, the real address that it goes to)."""
    if not qp.attributes.qp_access_flags & REMOTE_WRITE:
        return REM_INV_REQ_ERR, 0
    if not work.length:
        return 0, 0
    if work.opcode == ATOMIC_WRITE and (work.length != 8 or work.address % 8):
        return REM_INV_REQ_ERR, 0
    place = qp.memory.remote_place(
        work.rkey,
        work.address,
        work.length,
        domain=domain_of(qp, work),
        access=REMOTE_WRITE,
        queue_pair=qp.number,
    )
    return (REM_ACCESS_ERR, 0) if place is None else (0, place)


def refuses_write(target: Adapter, work: Work) -> bool:
    """Whether a write would be refused if it were there now."""
    qp = target.queue_pairs.get(work.qp.attributes.dest_qp_num)
    return qp is not None and write_refused(qp, work)[0] != 0


def _write(world: World, qp: QueuePair, work: Work, source: Segments) -> None:
    refusal, place = write_refused(qp, work)
    if refusal:
        _nak(world, qp, work, refusal)
        return
    taken = queue = None
    if work.opcode == WRITE_IMM:
        queue = queue_of(qp, work)
        taken = take(world, qp, work)
        if taken is None:
            requester.silent(world, work)
            return
    if work.length:
        _place(world, work, source, [(place, work.length)])
    if taken is not None and queue is not None:
        completion = WC(taken[0], 0, WC_RECV_WRITE, 0, work.length, qp.number, 0, work.immediate, WC_WITH_IMM)
        complete(qp, work, queue, completion)


def _flush_refused(qp: QueuePair, work: Work) -> int:
    """RDMA FLUSH (volume 1, annex A19): the region must allow the kind of placement that is asked for."""
    kind, level = work.compare, work.swap
    access = (FLUSH_GLOBAL if kind & FLUSH_TYPE_GLOBAL else 0) | (
        FLUSH_PERSISTENT if kind & FLUSH_TYPE_PERSISTENT else 0
    )
    if not access or qp.attributes.qp_access_flags & access != access:
        return REM_INV_REQ_ERR
    found = qp.memory.remote.get(work.rkey)
    if found is None or found.domain is not domain_of(qp, work) or found.access & access != access:
        return REM_ACCESS_ERR
    inside = found.start <= work.address and work.address + work.info <= found.end
    return 0 if level == FLUSH_LEVEL_MR or inside else REM_ACCESS_ERR


# ---------------------------------------------------------------------- reads and atomics


def _answer(world: World, qp: QueuePair, work: Work) -> None:
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
        place = qp.memory.remote_place(
            work.rkey,
            work.address,
            work.length,
            domain=domain_of(qp, work),
            access=needs,
            queue_pair=qp.number,
        )
        if place is None:
            refusal = REM_ACCESS_ERR
    if refusal:
        _nak(world, qp, work, refusal)
        return
    assert place is not None
    way = qp.answer_way()
    if way is None:
        requester.silent(world, work)
        return
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
        region = placing.region_of_key(qp.adapter, work.rkey)
        message = world.session.send(
            way.flow,
            work.length,
            opcode,
            answers=work.message,
            operands=(value, 0),
            payload=memoryview(data) if world.captures and data else None,
            memory=placing.node_of(region),
            target_memory=placing.node_of(placing.local_region(work.qp, work)),
            later_ps=placing.copy_ps(region, work.length),
        )
    else:
        message = world.session.send(way.flow, work.length, opcode, answers=work.message)
    world.records[message] = Response(work, qp, data, value)
