"""Checks of a request against its receiver's memory (InfiniBand Architecture, volume 1, 9.9.3, annex A19)."""

from __future__ import annotations

from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.completions import REM_ACCESS_ERR, REM_INV_REQ_ERR
from fabrictwin.verbs.adapter.memory_regions import FLUSH_GLOBAL, FLUSH_PERSISTENT, REMOTE_WRITE
from fabrictwin.verbs.adapter.queue_pair import QueuePair
from fabrictwin.verbs.adapter.transport.receivers import domain_of
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
