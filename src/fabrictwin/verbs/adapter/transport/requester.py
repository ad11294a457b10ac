"""The sending side of a queue pair: from posted work to its completion, in order.

InfiniBand Architecture, volume 1, 9.9.2 (requester errors), 10.8.3.3 (ordering and the fence), 11.6.2 (statuses).
A request is checked when it begins. One that fails then completes with its error after all before it, and nothing
behind it begins. The states that it goes through are those of `request_states`.
"""

from __future__ import annotations

import errno
from functools import lru_cache

from fabrictwin.engines.base.messages import NO_CONTENTS, Awaited, Contents, EventKind, Message, Opcode, Posting
from fabrictwin.verbs.adapter import payload_placement as placement
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.completions import (
    LOC_LEN_ERR,
    LOC_PROT_ERR,
    LOC_QP_OP_ERR,
    MW_BIND_ERR,
    RETRY_EXC_ERR,
    RNR_RETRY_EXC_ERR,
)
from fabrictwin.verbs.adapter.memory_regions import LOCAL_WRITE
from fabrictwin.verbs.adapter.qp_checks import OPERATIONS, PSN_MASK, timeout_ps
from fabrictwin.verbs.adapter.qp_transitions import ERR, RECEIVING, RTS, SQD, SQE, UD
from fabrictwin.verbs.adapter.queue_pair import QueuePair, Simulation
from fabrictwin.verbs.adapter.transport.receivers import queue_key, same_partition
from fabrictwin.verbs.adapter.transport.remote_access import certain_place, refuses_write
from fabrictwin.verbs.adapter.transport.request_states import AWAITED, ON_ITS_WAY, Input, RequestState
from fabrictwin.verbs.adapter.work_requests import (
    ANSWERED,
    ATOMIC_WRITE,
    BIND,
    COMPARE_SWAP,
    FENCE,
    FETCH_ADD,
    FLUSH,
    INLINE,
    LOCAL,
    LOCAL_INV,
    READ,
    SEND,
    SEND_IMM,
    SEND_INV,
    SIGNALED,
    TAKES_RECEIVE,
    WRITE,
    WRITE_IMM,
    Response,
    Work,
)

# members of an enum by name of their own: looking one up in its class takes long on the scale of a message
_BEGIN, _ARRIVE, _ACKNOWLEDGE, _LEAVE = Input.BEGIN, Input.ARRIVE, Input.ACKNOWLEDGE, Input.LEAVE
_COMPLETE, _SILENCE = Input.COMPLETE, Input.SILENCE
_ARRIVED, _UNANSWERED = RequestState.ARRIVED, RequestState.UNANSWERED

MAX_MESSAGE = 1 << 31

_ALL, _END, _FAILURE = Awaited
_WIRE = {
    WRITE: Opcode.WRITE,
    WRITE_IMM: Opcode.WRITE_IMMEDIATE,
    SEND: Opcode.SEND,
    SEND_IMM: Opcode.SEND_IMMEDIATE,
    SEND_INV: Opcode.SEND_INVALIDATE,
    READ: Opcode.READ_REQUEST,
    COMPARE_SWAP: Opcode.COMPARE_SWAP,
    FETCH_ADD: Opcode.FETCH_ADD,
    # the two memory-placement extensions travel as writes do
    FLUSH: Opcode.WRITE,
    ATOMIC_WRITE: Opcode.WRITE,
}

_RETIRES = frozenset((RequestState.DONE, RequestState.SENT))
_OPEN = frozenset((RTS, SQD, SQE, ERR))


def check(qp: QueuePair, work: Work) -> int:
    """Return the errno with which posting refuses a request at once, or 0."""
    if qp.state not in _OPEN or work.opcode not in OPERATIONS[qp.kind]:
        return errno.EINVAL
    if qp.occupied >= qp.max_send_wr:
        return errno.ENOMEM
    if work.data is not None and work.opcode != ATOMIC_WRITE:
        return errno.ENOMEM if len(work.data) > qp.max_inline else 0
    if work.vector is None and qp.kind == UD:
        return errno.EINVAL
    return errno.EINVAL if len(work.segments) > qp.max_send_sge else 0


def post(qp: QueuePair, work: Work) -> int:
    """Add a work request to the send queue. Returns an errno, 0 where it was taken."""
    ready = qp.state == RTS
    if ready and not work.flags & INLINE and (work.vector is not None or qp.kind != UD):
        # the common case in short
        if work.opcode not in qp.allowed or len(work.segments) > qp.max_send_sge:
            return errno.EINVAL
        if qp.occupied >= qp.max_send_wr:
            return errno.ENOMEM
    else:
        refused = check(qp, work)
        if refused:
            return refused
    qp.occupied += 1
    if ready:
        if qp.pending or qp.halted or _waits(qp, work):
            qp.hold(work)
        else:
            _start(qp, work)
        return 0
    qp.hold(work)
    if qp.state == ERR or qp.state == SQE:
        qp.flush_sends()
    return 0


def progress(qp: QueuePair) -> None:
    """Begin what may begin."""
    pending = qp.pending
    while pending and not qp.halted and qp.state == RTS and not _waits(qp, pending[0]):
        _start(qp, pending.popleft())


def _waits(qp: QueuePair, work: Work) -> bool:
    """Return whether a request may not begin yet, because of what is under way before it."""
    opcode = work.opcode
    if qp.reads and (work.flags & FENCE or (opcode in ANSWERED and qp.reads >= qp.max_reads)):
        return True
    if opcode in LOCAL:
        return opcode == LOCAL_INV and bool(qp.outstanding)  # what came before may still use the key
    last = qp.last_flow
    # two flows would not keep the order
    return last is not None and last.busy > 0 and qp.kind != UD and qp.peer_flow(work) is not last


def _start(qp: QueuePair, work: Work) -> None:
    qp.outstanding.append(work)
    if work.opcode in LOCAL:
        _locally(qp, work)
        return
    status = _prepare(qp, work)
    if status:
        _fail_here(qp, work, status)
    else:
        _begin(qp, work)


def reject(qp: QueuePair, work: Work, status: int) -> None:
    """Fail a request that the adapter finds malformed in its queue: it completes, in order, with `status`."""
    qp.occupied += 1
    qp.outstanding.append(work)
    _fail_here(qp, work, status)


def _fail_here(qp: QueuePair, work: Work, status: int) -> None:
    """A request failed before it left."""
    work.status = status
    work.enter(_COMPLETE)
    qp.halted = True
    if qp.outstanding[0] is work:
        retire(qp)


def _prepare(qp: QueuePair, work: Work) -> int:
    """Check a request against local memory. Returns the status that it fails with, or 0."""
    if work.length > MAX_MESSAGE:
        return LOC_LEN_ERR
    opcode = work.opcode
    if opcode in ANSWERED:
        if qp.max_reads == 0 or (opcode != READ and work.length != 8):
            return LOC_QP_OP_ERR if qp.max_reads == 0 else LOC_LEN_ERR
        access = LOCAL_WRITE
    else:
        access = 0
        if qp.kind == UD and work.length > qp.adapter.mtu_bytes:
            return LOC_LEN_ERR
    if work.data is None:
        memory = qp.memory
        places = memory.local_segments(work.segments, qp.domain, access)
        if places is None:
            return LOC_PROT_ERR
        work.places = places
        work.epoch = memory.epoch
    return 0


def _begin(qp: QueuePair, work: Work) -> None:
    """Hand a request to the wire."""
    opcode, length, world = work.opcode, work.length, qp.world
    peer_flow = qp.peer_flows.get(0) if work.vector is None and not work.srqn else None
    if peer_flow is None:
        peer_flow = qp.peer_flow(work)
    qp.last_flow = peer_flow
    answered = opcode in ANSWERED
    if qp.reliable:
        psn = work.psn = qp.next_psn
        if length <= qp.mtu:
            qp.next_psn = psn + 1 & PSN_MASK
        else:
            work.packets = -(-length // qp.mtu)
            qp.next_psn = psn + work.packets & PSN_MASK
        if answered:
            qp.reads += 1
    if peer_flow is None:
        _unreachable(qp, work)
        return
    shown = world.captures or world.places_memory
    work.peer_flow = peer_flow
    place, counted, warned = None, False, False
    if opcode == WRITE:
        if not (shown or qp.pending):
            place = certain_place(qp, peer_flow, work)
        if place is None and length > qp.mtu:
            warned = refuses_write(peer_flow.target, work)  # by its first packet
    elif opcode in TAKES_RECEIVE:
        pool = _pool(qp, work, peer_flow.target)
        work.counted = counted = pool != 0
        if counted and pool != peer_flow.pool:
            world.engine.receives(peer_flow.flow, pool)
            peer_flow.pool = pool
    peer_flow.busy += 1
    work.enter(_BEGIN)
    awaited = _ALL
    if place is not None:
        work.place = place
        awaited = _END if qp.signal_all or work.flags & SIGNALED else _FAILURE
    asked = _message(length, opcode, work.data is not None, work.chained, counted, awaited)
    if warned:
        asked = asked._replace(begun=True)
    if shown:
        posting, contents = _shown(qp, work)
        asked = asked._replace(posting=posting, contents=contents)
    work.message = message = world.engine.send(peer_flow.flow, asked)
    (world.records if place is None else world.plain)[message] = work


@lru_cache(1024)
def _message(length: int, opcode: int, inline: bool, chained: bool, counted: bool, awaited: Awaited) -> Message:
    """Return a request as the engine takes it. The answer of a READ or an atomic says as much as its end."""
    posting = Posting(inline, chained, awaited=awaited)
    return Message(length, _WIRE[opcode], counted, None, posting, NO_CONTENTS, opcode not in ANSWERED)


def _shown(qp: QueuePair, work: Work) -> tuple[Posting, Contents]:
    """Return the parts of a request that only captures show, or that say in which memory its bytes lie."""
    world, answered, length = qp.world, work.opcode in ANSWERED, work.length
    payload = None
    local = None if answered or work.data is not None else placement.local_region(qp, work)
    if world.captures and not answered and length:
        payload = memoryview(world.process_memory.gather(work.places) if work.data is None else work.data)
    posting = Posting(
        work.data is not None,
        work.chained,
        placement.node_of(local),
        None if answered else placement.node_of(placement.remote_region(work.peer_flow.target, work)),
        placement.copy_ps(local, length),
    )
    operands = (work.swap, work.compare) if work.opcode == COMPARE_SWAP else (work.compare, 0)
    return posting, Contents(work.address, work.rkey, _wire_order(work), operands, payload)


def _pool(qp: QueuePair, work: Work, target: Adapter) -> int:
    """Return the pool that the receiver takes its buffer from; 0 where it will take none."""
    number = work.remote_qpn if work.vector is not None else qp.attributes.dest_qp_num
    peer: QueuePair | None = target.queue_pairs.get(number)
    if peer is None or peer.state not in RECEIVING:
        return 0
    if not same_partition(qp, peer) or (qp.kind == UD and queue_key(work) != peer.attributes.qkey):
        return 0  # dropped at the adapter
    if work.srqn:
        shared = target.shared_receives.get(work.srqn)
        return shared.pool if shared is not None else 0
    if peer.receives is None:
        return 0
    peer.receives.refresh()
    return peer.receives.pool


def _unreachable(qp: QueuePair, work: Work) -> None:
    """No way leads there: datagrams are gone, a connection's request is never answered."""
    if qp.reliable:
        silent(qp.world, work)
    else:
        work.enter(_COMPLETE)
        if qp.outstanding[0] is work:
            retire(qp)


def _locally(qp: QueuePair, work: Work) -> None:
    """Binding and invalidating are done by the adapter alone."""
    memory = qp.adapter.memory
    if work.opcode == BIND:
        window, region, key, address, length, access = work.info
        done = window.domain is qp.domain and memory.bind(
            window, region, key=key, address=address, length=length, access=access, queue_pair=qp.number
        )
        status = 0 if done else MW_BIND_ERR
    else:
        assert qp.domain is not None
        status = 0 if memory.invalidate(work.immediate, qp.domain, qp.number) else LOC_QP_OP_ERR
    if status:
        _fail_here(qp, work, status)
        return
    work.enter(_COMPLETE)
    if qp.outstanding[0] is work:
        retire(qp, again=False)


# ---------------------------------------------------------------------- what comes back


def ended(world: Simulation, work: Work) -> None:
    """Take the wire's word that a message has ended: acknowledged, refused, or of an unreliable service, sent."""
    qp: QueuePair = work.qp
    if not qp.reliable:
        _left(world, qp, work)
        return
    if work.state in ON_ITS_WAY and not work.refusal and work.opcode not in ANSWERED:
        work.enter(_ACKNOWLEDGE)
        return
    world.records.pop(work.message, None)
    if work.state not in AWAITED or work.state is _UNANSWERED:
        return
    if work.refusal:
        work.status = work.refusal
    elif work.opcode in ANSWERED:
        return
    finish(qp, work)


def _left(world: Simulation, qp: QueuePair, work: Work) -> None:
    """An unreliable message is on the wire whole: its sender has done with it, wherever it is."""
    awaited = work.state in AWAITED
    if awaited:
        take_data(work)  # what is sent is sent: the program may use its buffer again
    if work.enter(_LEAVE) not in ON_ITS_WAY:
        world.records.pop(work.message, None)
    if awaited:
        if work.peer_flow is not None:
            work.peer_flow.busy -= 1
        retire(qp)


def finish(qp: QueuePair, work: Work) -> bool:
    """Complete a request that is on the wire no more. Returns whether it was the oldest: then others went on."""
    work.enter(_COMPLETE)
    if work.peer_flow is not None:
        work.peer_flow.busy -= 1
    if qp.outstanding[0] is not work:
        return False
    retire(qp)
    return True


def take_data(work: Work) -> bytes:
    """The bytes of an unreliable message, read when it leaves (or is there, should that be earlier)."""
    if work.data is None:
        places, memory = work.places, work.qp.adapter.memory
        if work.epoch != memory.epoch:
            places = memory.local_segments(work.segments, work.qp.domain, 0) or ()
        work.data = work.qp.world.process_memory.gather(places)
    return work.data


def lost(world: Simulation, work: Work) -> None:
    """Take note that an unreliable message is no more on its way: arrived, or gone."""
    if work.enter(_ARRIVE) is not _ARRIVED:
        world.records.pop(work.message, None)


def failed(world: Simulation, work: Work, kind: int) -> None:
    """Complete a request that the wire, or its requester after the last timeout, gave up."""
    world.records.pop(work.message, None)
    if work.state in AWAITED:
        work.status = RNR_RETRY_EXC_ERR if kind == EventKind.NOT_READY_FAILED else RETRY_EXC_ERR
        finish(work.qp, work)


def answered(world: Simulation, response: Response) -> None:
    """Place a READ's bytes or an atomic's former value, and complete the request."""
    work = response.work
    qp: QueuePair = work.qp
    response.responder.inbound_reads -= 1
    world.records.pop(work.message, None)
    if work.state not in AWAITED:
        return
    qp.reads -= 1
    memory = qp.adapter.memory
    places = work.places
    if work.epoch != memory.epoch:
        checked = memory.local_segments(work.segments, qp.domain, LOCAL_WRITE)
        if checked is None:
            work.status = LOC_PROT_ERR
        places = checked or ()
    if not work.status and places:
        data = response.data if response.data is not None else response.value.to_bytes(8, "little")
        world.process_memory.scatter(data, places)
    if not finish(qp, work):
        progress(qp)


def unanswered(world: Simulation, work: Work) -> None:
    """Take note that the answer was lost on its way."""
    if work.state in AWAITED:
        silent(world, work)


def silent(world: Simulation, work: Work) -> None:
    """Give a request up after as many timeouts as it may have: nobody answers.

    Volume 1, 9.7.6.1.3: each try waits for the timeout; a timeout of 0 waits for ever.
    """
    qp: QueuePair = work.qp
    work.enter(_SILENCE)
    wait_ps = timeout_ps(qp.attributes.timeout)
    if wait_ps:
        world.after(wait_ps * (qp.attributes.retry_cnt + 1), lambda: failed(world, work, int(EventKind.FAILED)))


def retire(qp: QueuePair, again: bool = True) -> None:
    """Complete in order what is done, and go on."""
    outstanding = qp.outstanding
    while outstanding and outstanding[0].state in _RETIRES:
        work = outstanding.popleft()
        qp.unreported += 1
        if work.status:
            _fail(qp, work)
            return
        if qp.signal_all or work.flags & SIGNALED:
            qp.complete_send(work, 0)
            if qp.state == ERR:
                return  # its completion queue has overrun
    if qp.state == SQD:
        if not outstanding:
            qp.note_drained()
    elif qp.pending and again:
        progress(qp)


def _fail(qp: QueuePair, work: Work) -> None:
    qp.complete_send(work, work.status)
    if qp.reliable:
        qp.enter_error()
    else:
        qp.state = SQE
        qp.flush_sends()


def _wire_order(work: Work) -> int:
    """Immediate data as a number (it lies in memory big-endian), or the key that is to be invalidated."""
    if work.opcode == SEND_INV:
        return work.immediate
    return int.from_bytes((work.immediate & 0xFFFFFFFF).to_bytes(4, "little"), "big")
