"""Arrivals of unreliable connections and datagrams.

InfiniBand Architecture, volume 1, 9.8.2 (unreliable connection), 9.8.3 (datagram), 10.2.4 (Q_Keys), 11.4.1.2 (the
40 bytes before a datagram). What may not be done is dropped without a word; a receive that fails fails here only.
"""

from __future__ import annotations

import struct

from fabrictwin.subnet.wire.notice import Trap
from fabrictwin.verbs.abi.completion_codes import ibv_wc_flags
from fabrictwin.verbs.adapter import qp_transitions as t
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.completions import LOC_LEN_ERR, LOC_PROT_ERR, WC
from fabrictwin.verbs.adapter.gid import ROCE_V2
from fabrictwin.verbs.adapter.memory_regions import LOCAL_WRITE
from fabrictwin.verbs.adapter.queue_pair import QueuePair, Simulation
from fabrictwin.verbs.adapter.transport import requester
from fabrictwin.verbs.adapter.transport.receivers import (
    give_back,
    queue_key,
    queue_of,
    receiver,
    take,
    tell_manager,
)
from fabrictwin.verbs.adapter.transport.remote_access import write_refused
from fabrictwin.verbs.adapter.transport.responder import WC_RECV, WC_RECV_WRITE, WC_WITH_IMM, complete
from fabrictwin.verbs.adapter.work_requests import SEND_IMM, TAKES_RECEIVE, WRITE, WRITE_IMM, AddressVector, Work

GRH_BYTES = 40
_GRH = int(ibv_wc_flags.IBV_WC_GRH)


def arrive(world: Simulation, work: Work) -> None:
    """Take a message of an unreliable service that is here whole."""
    requester.lost(world, work)  # of the wire there is no more to come but the sender's end
    requester.take_data(work)
    qp = receiver(work)
    if qp is None:
        if work.counted:
            give_back(work)
        return
    if qp.kind == t.UC and work.opcode in (WRITE, WRITE_IMM):
        _write(world, qp, work)
    elif work.opcode in TAKES_RECEIVE:
        _receive(world, qp, work)


def _write(world: Simulation, qp: QueuePair, work: Work) -> None:
    data = work.data or b""
    refusal, place = write_refused(qp, work)
    if refusal:
        if work.counted:
            give_back(work)
        return
    if work.opcode == WRITE:
        world.process_memory.write(place, data, len(data))
        return
    taken, queue = take(world, qp, work), queue_of(qp, work)
    if taken is None or queue is None:
        return
    world.process_memory.write(place, data, len(data))
    completion = WC(taken[0], 0, WC_RECV_WRITE, 0, len(data), qp.number, 0, work.immediate, WC_WITH_IMM)
    complete(qp, work, queue, completion)


def _receive(world: Simulation, qp: QueuePair, work: Work) -> None:
    opcode, data = work.opcode, work.data or b""
    sender: QueuePair = work.qp
    datagram = qp.kind == t.UD
    if datagram and queue_key(work) != qp.attributes.qkey:
        qp.adapter.qkey_violations += 1
        tell_manager(work, qp, Trap.BAD_Q_KEY, queue_key(work))
        if work.counted:
            give_back(work)
        return
    queue = queue_of(qp, work)
    taken = take(world, qp, work)
    if taken is None or queue is None:
        return
    wr_id, segments, room = taken
    completion = WC(wr_id, 0, WC_RECV, 0, len(data), qp.number)
    if datagram:
        vector = work.vector
        assert vector is not None
        header = _global_header(sender.adapter, vector, len(data)) if vector.is_global else bytes(GRH_BYTES)
        data = header + data
        completion.byte_len = len(data)
        completion.src_qp = sender.number
        completion.slid = sender.adapter.lid
        completion.sl = vector.sl
        completion.pkey_index = qp.attributes.pkey_index
        completion.wc_flags = _GRH if vector.is_global else 0
    if opcode == SEND_IMM:
        completion.wc_flags |= WC_WITH_IMM
        completion.imm_data = work.immediate
    if len(data) > room:
        completion.status = LOC_LEN_ERR
    else:
        places = qp.memory.local_segments(segments, queue.domain, LOCAL_WRITE)
        if places is None:
            completion.status = LOC_PROT_ERR
        elif data:
            world.process_memory.scatter(data, places)
    complete(qp, work, queue, completion)
    if completion.status:
        qp.enter_error()


def _global_header(sender: Adapter, vector: AddressVector, length: int) -> bytes:
    """The 40 bytes before a datagram: its GRH, or for RoCE v2 over IPv4 that header in the last 20 bytes."""
    gid = sender.gids[vector.sgid_index]
    if gid.kind == ROCE_V2 and gid.raw.startswith(bytes(10) + b"\xff\xff"):
        total = 20 + 8 + 12 + 8 + length + 4  # IPv4, UDP, BTH, DETH, payload, ICRC
        head = struct.pack(
            "!BBHHHBBH4s4s",
            0x45,
            vector.traffic_class,
            total,
            0,
            0x4000,
            vector.hop_limit,
            17,
            0,
            gid.raw[12:],
            vector.dgid[12:],
        )
        return bytes(20) + head[:10] + struct.pack("!H", _checksum(head)) + head[12:]
    word = 6 << 28 | vector.traffic_class << 20 | vector.flow_label
    next_header = 17 if gid.kind == ROCE_V2 else 0x1B
    return struct.pack("!IHBB", word, 12 + 8 + length + 4, next_header, vector.hop_limit) + gid.raw + vector.dgid


def _checksum(header: bytes) -> int:
    """The IPv4 header checksum: the ones' complement of the ones' complement sum of its 16-bit words."""
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
