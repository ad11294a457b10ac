"""Receivers of requests: the queue pair that one names, and the receive queue that it takes a buffer from."""

from __future__ import annotations

from fabrictwin.subnet.agents.key_violations import BadKey, refuse_at_port
from fabrictwin.subnet.wire.notice import Trap
from fabrictwin.verbs.adapter import qp_transitions as t
from fabrictwin.verbs.adapter.adapter import FULL_MEMBER, Adapter
from fabrictwin.verbs.adapter.memory_regions import Domain
from fabrictwin.verbs.adapter.queue_pair import QueuePair, Simulation
from fabrictwin.verbs.adapter.receive_queues import Receive, ReceiveQueue, SharedReceiveQueue
from fabrictwin.verbs.adapter.work_requests import Work

_PEERS = {t.RC: t.RC, t.UC: t.UC, t.UD: t.UD, t.XRC_SEND: t.XRC_RECV}
PRIVILEGED_QKEY = 1 << 31


def addressed(work: Work) -> QueuePair | None:
    """Return the queue pair whose number a request names."""
    number = work.remote_qpn if work.vector is not None else work.qp.attributes.dest_qp_num
    named: QueuePair | None = work.peer_flow.target.queue_pairs.get(number)
    return named


def ready(work: Work) -> QueuePair | None:
    """Return the queue pair that a request names; None where that receives nothing, or no such requests."""
    qp = addressed(work)
    return None if qp is None or qp.state not in t.RECEIVING or _PEERS.get(work.qp.kind) != qp.kind else qp


def receiver(work: Work) -> QueuePair | None:
    """Return the queue pair that takes a request; None where packets are dropped."""
    sender: QueuePair = work.qp
    target: Adapter = work.peer_flow.target
    qp = ready(work)
    if qp is None:
        return None
    if not same_partition(sender, qp):
        target.pkey_violations += 1
        tell_manager(work, qp, Trap.BAD_P_KEY, sender.adapter.pkeys[sender.attributes.pkey_index])
        return None
    return qp


def tell_manager(work: Work, qp: QueuePair, trap: Trap, key: int) -> None:
    """Let a managed fabric's agent count a bad key and tell its manager by a trap."""
    sender: QueuePair = work.qp
    world = qp.adapter.world
    management = world.twin.management
    if management is None:
        return
    state = management.state
    source, destination = (state.end_slot(int(state.managed[each.adapter.node])) for each in (sender, qp))
    level = work.vector.sl if work.vector is not None else 0
    refuse_at_port(
        state,
        BadKey(source, destination, key, level, sender.number, qp.number),
        1,
        max(management.now_ps, world.instant_ps),
        trap,
    )
    management.hear_agents()


def same_partition(sender: QueuePair, qp: QueuePair) -> bool:
    """Volume 1, 10.9.3: the low 15 bits agree and are not zero, and one of the two is a full member."""
    sent = sender.adapter.pkeys[sender.attributes.pkey_index]
    held = qp.adapter.pkeys[qp.attributes.pkey_index]
    return (sent ^ held) & 0x7FFF == 0 and sent & 0x7FFF != 0 and (sent | held) & FULL_MEMBER != 0


def queue_key(work: Work) -> int:
    """Return the Q_Key of a datagram: a privileged one stands for the sender's own."""
    sender: QueuePair = work.qp
    return work.remote_qkey if not work.remote_qkey & PRIVILEGED_QKEY else sender.attributes.qkey


def queue_of(qp: QueuePair, work: Work) -> ReceiveQueue | None:
    """Return the receive queue of a request that is here: its receiver's, or the one that an XRC request names."""
    if not work.srqn:
        return qp.receives
    shared: SharedReceiveQueue | None = work.peer_flow.target.shared_receives.get(work.srqn)
    return shared if shared is not None and shared.extended is qp.extended else None


def give_back(work: Work) -> None:
    """Give a receive back that the engine counted, and that the message does not take after all."""
    queue: ReceiveQueue | None
    if work.srqn:
        queue = work.peer_flow.target.shared_receives.get(work.srqn)
    else:
        qp = addressed(work)
        queue = None if qp is None else qp.receives
    if queue is not None and queue.pool == work.peer_flow.pool:
        queue.give_back()


def take(world: Simulation, qp: QueuePair, work: Work) -> Receive | None:
    """Take the buffer for a message; None where the receiver has none after all."""
    queue = queue_of(qp, work)
    taken = None if queue is None else queue.take()
    if queue is not None and taken is not None and not work.counted:
        world.engine.add_receives(queue.pool, -1)
    return taken


def domain_of(qp: QueuePair, work: Work) -> Domain | None:
    """Return the protection domain that remote accesses are held to: an XRC target's is its receive queue's."""
    if qp.domain is None and work.srqn:
        queue = queue_of(qp, work)
        if queue is not None and queue.domain is not None:
            return queue.domain
    return qp.domain
