"""Checks of a request against its receiver's memory (InfiniBand Architecture, volume 1, 9.9.3, annex A19)."""

from __future__ import annotations

from fabrictwin.verbs.adapter import qp_transitions as t
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.completions import REM_ACCESS_ERR, REM_INV_REQ_ERR
from fabrictwin.verbs.adapter.memory_regions import FLUSH_GLOBAL, FLUSH_PERSISTENT, REMOTE_WRITE
from fabrictwin.verbs.adapter.queue_pair import PeerFlow, QueuePair
from fabrictwin.verbs.adapter.transport.receivers import domain_of, ready, same_partition
from fabrictwin.verbs.adapter.work_requests import ATOMIC_WRITE, Work

FLUSH_TYPE_GLOBAL, FLUSH_TYPE_PERSISTENT = 1, 2  # ibv_placement_type
FLUSH_LEVEL_MR = 1  # ibv_selectivity_level


def place_of(qp: QueuePair, work: Work, access: int) -> int | None:
    """Return the real address of what a request names at its receiver; None: a remote access error."""
    return qp.memory.remote_place(
        work.rkey, work.address, work.length, domain=domain_of(qp, work), access=access, queue_pair=qp.number
    )


def write_refused(qp: QueuePair, work: Work) -> tuple[int, int]:
    """Return the NAK that a write gets, or 0, and the real address that it goes to."""
    if not qp.attributes.qp_access_flags & REMOTE_WRITE:
        return REM_INV_REQ_ERR, 0
    if not work.length:
        return 0, 0
    if work.opcode == ATOMIC_WRITE and (work.length != 8 or work.address % 8):
        return REM_INV_REQ_ERR, 0
    place = place_of(qp, work, REMOTE_WRITE)
    return (REM_ACCESS_ERR, 0) if place is None else (0, place)


def certain_place(qp: QueuePair, peer_flow: PeerFlow, work: Work) -> int | None:
    """Return the real address of a write that is about to begin, where nothing speaks against it as all stands.

    Then it is a *plain* one: until `World.note_change` is called it can only arrive, be placed and be
    acknowledged, and need not be checked again. None: its receiver decides when it is there.
    """
    standing = qp.world.standing
    if peer_flow.standing != standing:
        peer_flow.standing, peer_flow.in_step = standing, False
        peer_flow.receiver = _writable(qp, work)
        peer_flow.keys = {}
    receiver = peer_flow.receiver
    if receiver is None:
        return None
    if not peer_flow.busy:
        peer_flow.in_step = receiver.expected_psn == work.psn
    if not peer_flow.in_step:
        return None
    length = work.length
    if not length:
        return 0
    opened = peer_flow.keys.get(work.rkey)
    if opened is None:
        if place_of(receiver, work, REMOTE_WRITE) is None:
            return None
        opened = peer_flow.keys[work.rkey] = receiver.memory.remote[work.rkey]
    address = work.address
    return address + opened.shift if opened.start <= address and address + length <= opened.end else None


def _writable(qp: QueuePair, work: Work) -> QueuePair | None:
    """Return the receiver of a connection's writes, where it takes any that names one of its keys."""
    receiver = ready(work)
    if receiver is None or qp.kind != t.RC or not same_partition(qp, receiver) or receiver.mtu < qp.mtu:
        return None
    return receiver if receiver.attributes.qp_access_flags & REMOTE_WRITE else None


def refuses_write(target: Adapter, work: Work) -> bool:
    """Return whether a write would be refused if it were there now."""
    qp: QueuePair | None = target.queue_pairs.get(work.qp.attributes.dest_qp_num)
    return qp is not None and write_refused(qp, work)[0] != 0


def flush_refused(qp: QueuePair, work: Work) -> int:
    """Return the NAK that a FLUSH gets, or 0: the region must allow the kind of placement that is asked for."""
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
