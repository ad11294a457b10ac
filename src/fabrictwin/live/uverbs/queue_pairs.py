"""Commands of queue pairs: create, modify, query, destroy, multicast groups.

Sizes are rounded as the rxe driver rounds them (drivers/infiniband/sw/rxe/rxe_qp.c, rxe_queue.c): a power of two
slots, one of them free; segments and inline data share the room behind a request.
"""

from __future__ import annotations

import errno
import struct

from fabrictwin.live import wire
from fabrictwin.live.context import Context, Queue, refuse
from fabrictwin.live.ring_queues import RingQueuePair, RingReceives
from fabrictwin.live.uverbs.reply import Reply
from fabrictwin.verbs.abi.queue_codes import ibv_qp_attr_mask
from fabrictwin.verbs.adapter import qp_transitions
from fabrictwin.verbs.adapter.qp_checks import Attributes
from fabrictwin.verbs.adapter.queue_pair import QueuePairObjects, SendQueueLimits
from fabrictwin.verbs.adapter.work_requests import AddressVector
from fabrictwin.verbs.attributes import device_limits

_KINDS = (qp_transitions.RC, qp_transitions.UC, qp_transitions.UD)
_RATE_LIMIT = int(ibv_qp_attr_mask.IBV_QP_RATE_LIMIT)


def _vector(record: tuple[bytes, int, int, int, int, int, int, int, int, int, int, int]) -> AddressVector:
    gid, label, lid, _, index, hops, traffic, sl, bits, rate, is_global, port = record
    return AddressVector(
        dlid=lid, sl=sl, src_path_bits=bits, static_rate=rate, is_global=bool(is_global), port_num=port or 1,
        dgid=gid, flow_label=label, sgid_index=index, hop_limit=hops, traffic_class=traffic,
    )  # fmt: skip


def pack_address(vector: AddressVector) -> bytes:
    """`struct ib_uverbs_ah_attr`."""
    v = vector
    return wire.AH_ATTRIBUTES.pack(
        v.dgid, v.flow_label, v.sgid_index, v.hop_limit, v.traffic_class, v.dlid, v.sl, v.src_path_bits,
        v.static_rate, int(v.is_global), v.port_num,
    )  # fmt: skip


def _destination(vector: AddressVector) -> bytes:
    v = vector
    return wire.QP_DESTINATION.pack(
        v.dgid, v.flow_label, v.dlid, 0, v.sgid_index, v.hop_limit, v.traffic_class, v.sl, v.src_path_bits,
        v.static_rate, int(v.is_global), v.port_num,
    )  # fmt: skip


def create_qp(context: Context, call: wire.Call) -> Reply:
    front = 0 if call.extended else 8
    fields = wire.CREATE_QP.unpack_from(call.body, front)
    user_handle, domain, sends, receives, shared_handle, sq_size, rq_size, sq_sge, rq_sge, inline = fields[:10]
    signal_all, kind, is_shared = fields[10:]
    known = device_limits.limits()
    if kind not in _KINDS:
        raise refuse(errno.EOPNOTSUPP)
    if call.extended and any(struct.unpack_from("=IIII", call.body, front + wire.CREATE_QP.size)[:3]):
        raise refuse(errno.EOPNOTSUPP)
    fits = (
        sq_size <= known.max_qp_wr.value
        and rq_size <= known.max_qp_wr.value
        and sq_sge <= known.max_sge.value
        and rq_sge <= known.max_sge.value
        and inline <= known.max_inline.value
    )
    if not fits:
        raise refuse(errno.EINVAL)
    protection = context.find(context.domains, domain)
    send_queue, receive_queue = (context.find(context.completions, each) for each in (sends, receives))
    shared = context.find(context.shared, shared_handle)[0] if is_shared else None
    behind = max(sq_sge * wire.SEGMENT.size, inline)  # of a request: segments, or the data itself
    ring = context.file.ring(sq_size, wire.SEND_BYTES + behind)
    own = None
    if shared is None:
        rq_ring = context.file.ring(rq_size, wire.RECEIVE_BYTES + rq_sge * wire.SEGMENT.size)
        own = RingReceives(context.world, protection, rq_ring, rq_sge)
        own.attach(rq_ring, context.server.watch)
    handle = context.handle()
    pair = RingQueuePair(
        context.world,
        context.adapter,
        kind,
        QueuePairObjects(
            protection,
            sends=send_queue,
            receive_completions=receive_queue,
            receives=own if shared is None else shared,
        ),
        SendQueueLimits(ring.capacity, behind // wire.SEGMENT.size, behind, bool(signal_all)),
        sink=context,
    )
    pair.attach(context, ring, handle=handle, user_handle=user_handle)
    context.queues[handle] = Queue(pair, domain, sends, receives, shared_handle if is_shared else 0)
    context.note_state(pair)
    rq_capacity, rq_info = (0, bytes(wire.MEMORY_INFO.size)) if own is None else (own.capacity, own.ring.info())
    data = struct.pack(
        "=8I", handle, pair.number, ring.capacity, rq_capacity, pair.max_send_sge, rq_sge, pair.max_inline, 0
    )
    return Reply(data + (struct.pack("=II", 0, 40) if call.extended else b"") + rq_info + ring.info())


def modify_qp(context: Context, call: wire.Call) -> Reply:
    at = 2 * wire.QP_DESTINATION.size
    main = wire.QP_DESTINATION.unpack_from(call.body)
    alternate = wire.QP_DESTINATION.unpack_from(call.body, wire.QP_DESTINATION.size)
    fields = wire.MODIFY_QP.unpack_from(call.body, at)
    handle, given = fields[:2]
    pair = context.find(context.queues, handle).pair
    a = Attributes()
    a.qkey, a.rq_psn, a.sq_psn, a.dest_qp_num, a.qp_access_flags, a.pkey_index, a.alt_pkey_index = fields[2:9]
    a.qp_state, a.cur_qp_state, a.path_mtu, a.path_mig_state, a.en_sqd_async_notify = fields[9:14]
    a.max_rd_atomic, a.max_dest_rd_atomic, a.min_rnr_timer, a.port_num, a.timeout = fields[14:19]
    a.retry_cnt, a.rnr_retry, a.alt_port_num, a.alt_timeout = fields[19:]
    a.ah_attr, a.alt_ah_attr = _vector(main), _vector(alternate)
    if call.extended:
        (a.rate_limit,) = struct.unpack_from("=I", call.body, at + wire.MODIFY_QP.size)
    elif given & _RATE_LIMIT:
        raise refuse(errno.EOPNOTSUPP)
    code = pair.modify(a, given)
    context.note_state(pair)
    if code:
        raise refuse(code)
    return Reply(struct.pack("=II", 0, 8) if call.extended else b"")


def query_qp(context: Context, call: wire.Call) -> Reply:
    _, handle = struct.unpack_from("=QI", call.body)
    pair = context.find(context.queues, handle).pair
    a, receives = pair.attributes, pair.receives
    rq = (0, 0) if receives is None or pair.shared else (receives.capacity, receives.max_sge)
    tail = wire.QUERY_QP_TAIL.pack(
        pair.max_send_wr, rq[0], pair.max_send_sge, rq[1], pair.max_inline,
        a.qkey, a.rq_psn, a.sq_psn, a.dest_qp_num, a.qp_access_flags, a.pkey_index, a.alt_pkey_index,
        pair.state, pair.state, a.path_mtu, a.path_mig_state, a.sq_draining, a.max_rd_atomic, a.max_dest_rd_atomic,
        a.min_rnr_timer, a.port_num, a.timeout, a.retry_cnt, a.rnr_retry, a.alt_port_num, a.alt_timeout,
        int(pair.signal_all),
    )  # fmt: skip
    return Reply(_destination(a.ah_attr) + _destination(a.alt_ah_attr) + tail)


def attach_mcast(context: Context, call: wire.Call) -> Reply:
    gid, handle, _, _ = wire.MULTICAST.unpack_from(call.body)
    queue = context.find(context.queues, handle)
    if queue.pair.kind != qp_transitions.UD:
        raise refuse(errno.EINVAL)
    if not context.server.groups.join(gid, queue.pair):
        raise refuse(errno.ENOMEM)
    queue.groups.add(gid)
    return Reply()


def detach_mcast(context: Context, call: wire.Call) -> Reply:
    gid, handle, _, _ = wire.MULTICAST.unpack_from(call.body)
    queue = context.find(context.queues, handle)
    if gid not in queue.groups:
        raise refuse(errno.EINVAL)
    queue.groups.discard(gid)
    context.server.groups.leave(gid, queue.pair)
    return Reply()


def destroy_qp(context: Context, call: wire.Call) -> Reply:
    _, handle = struct.unpack_from("=QI", call.body)
    context.find(context.queues, handle)
    return Reply(struct.pack("=I", context.destroy_queue(handle)))
