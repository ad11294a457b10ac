"""Commands that make and destroy objects: domains, regions, windows, address handles, channels, completion queues,
shared receive queues. Queue pairs are in `queue_pairs`."""

from __future__ import annotations

import errno
import struct
from functools import partial

from fabrictwin.live import wire
from fabrictwin.live.context import Context, Registered, refuse
from fabrictwin.live.event_pipe import EventPipe
from fabrictwin.live.ring_queues import RingCompletions, RingSharedReceives
from fabrictwin.live.uverbs.reply import Reply
from fabrictwin.verbs.adapter.memory_regions import Domain
from fabrictwin.verbs.adapter.work_requests import AddressVector
from fabrictwin.verbs.attributes import device_limits
from fabrictwin.verbs.pyverbs.mr import check_access

_PAGE = 4096
_REREG_TRANSLATION, _REREG_DOMAIN, _REREG_ACCESS = 1, 2, 4
_LIVE_CQ_BYTES = 8
_SRQ_MAX_WR, _SRQ_LIMIT = 1, 2
_WINDOW_KINDS = (1, 2)


def _u32(*values: int) -> bytes:
    return struct.pack(f"={len(values)}I", *values)


# ---------------------------------------------------------------------- domains and memory


def alloc_pd(context: Context, call: wire.Call) -> Reply:
    handle = context.handle()
    context.domains[handle] = Domain(handle)
    return Reply(_u32(handle))


def dealloc_pd(context: Context, call: wire.Call) -> Reply:
    (handle,) = struct.unpack_from("=I", call.body)
    context.find(context.domains, handle)
    users = (
        *(each.domain for each in context.regions.values()),
        *(domain for _, domain in context.windows.values()),
        *(domain for _, domain in context.shared.values()),
        *(each.domain for each in context.queues.values()),
    )
    if handle in users:
        raise refuse(errno.EBUSY)
    del context.domains[handle]
    context.release(handle)
    return Reply()


def reg_mr(context: Context, call: wire.Call) -> Reply:
    """Register memory. Nothing is pinned: what is unmapped later reads as zeros."""
    _, start, length, address, domain, access = wire.REG_MR.unpack_from(call.body)
    code = check_access(access)
    if code or start % _PAGE != address % _PAGE:
        raise refuse(code or errno.EINVAL)
    protection = context.find(context.domains, domain)
    place = context.place(start, length)
    handle = context.handle()
    region = context.adapter.memory.register(protection, place, length, access=access, iova=address)
    context.regions[handle] = Registered(region, domain)
    return Reply(_u32(handle, region.key, region.key))


def rereg_mr(context: Context, call: wire.Call) -> Reply:
    _, handle, flags, start, length, address, domain, access = wire.REREG_MR.unpack_from(call.body)
    registered = context.find(context.regions, handle)
    if not flags or flags & ~(_REREG_TRANSLATION | _REREG_DOMAIN | _REREG_ACCESS):
        raise refuse(errno.EINVAL)
    if registered.region.windows:
        raise refuse(errno.EBUSY)
    if flags & _REREG_ACCESS and check_access(access):
        raise refuse(check_access(access))
    place = None
    if flags & _REREG_TRANSLATION:
        if start % _PAGE != address % _PAGE:
            raise refuse(errno.EINVAL)
        place = context.place(start, length)
    protection = context.find(context.domains, domain) if flags & _REREG_DOMAIN else None
    region, memory = registered.region, context.adapter.memory
    memory.change(region, domain=protection, access=access if flags & _REREG_ACCESS else None)
    if place is not None:
        region.start, region.end, region.shift = address, address + length, place - address
    if protection is not None:
        registered.domain = domain
    return Reply(_u32(region.key, region.key))


def dereg_mr(context: Context, call: wire.Call) -> Reply:
    (handle,) = struct.unpack_from("=I", call.body)
    registered = context.find(context.regions, handle)
    if registered.region.windows:
        raise refuse(errno.EBUSY)
    context.adapter.memory.deregister(registered.region)
    del context.regions[handle]
    context.release(handle)
    return Reply()


def alloc_mw(context: Context, call: wire.Call) -> Reply:
    domain, kind = struct.unpack_from("=IB", call.body, 8)
    protection = context.find(context.domains, domain)
    if kind not in _WINDOW_KINDS:
        raise refuse(errno.EINVAL)
    handle = context.handle()
    window = context.adapter.memory.window(protection, kind)
    context.windows[handle] = window, domain
    return Reply(_u32(handle, window.key))


def dealloc_mw(context: Context, call: wire.Call) -> Reply:
    (handle,) = struct.unpack_from("=I", call.body)
    window, _ = context.find(context.windows, handle)
    context.adapter.memory.free(window)
    del context.windows[handle]
    context.release(handle)
    return Reply()


# ---------------------------------------------------------------------- address handles


def address_vector(record: bytes) -> AddressVector:
    """`struct ib_uverbs_ah_attr`."""
    gid, label, index, hops, traffic, lid, sl, bits, rate, is_global, port = wire.AH_ATTRIBUTES.unpack(record)
    return AddressVector(
        dlid=lid, sl=sl, src_path_bits=bits, static_rate=rate, is_global=bool(is_global), port_num=port,
        dgid=gid, flow_label=label, sgid_index=index, hop_limit=hops, traffic_class=traffic,
    )  # fmt: skip


def create_ah(context: Context, call: wire.Call) -> Reply:
    _, _, domain, _ = struct.unpack_from("=QQII", call.body)
    context.find(context.domains, domain)
    vector = address_vector(call.body[24 : 24 + wire.AH_ATTRIBUTES.size])
    wants_gid = context.adapter.ethernet and not vector.is_global
    if vector.port_num != 1 or wants_gid or (vector.is_global and vector.sgid_index >= len(context.adapter.gids)):
        raise refuse(errno.EINVAL)
    handle = context.handle()
    context.vectors[handle] = vector
    return Reply(_u32(handle, handle, 0))


def destroy_ah(context: Context, call: wire.Call) -> Reply:
    (handle,) = struct.unpack_from("=I", call.body)
    context.find(context.vectors, handle)
    del context.vectors[handle]
    context.release(handle)
    return Reply()


# ---------------------------------------------------------------------- completions


def create_comp_channel(context: Context, call: wire.Call) -> Reply:
    pipe = EventPipe(_LIVE_CQ_BYTES)
    context.fresh_channel = pipe
    context.add_pipe(pipe, partial(context.drop_channel, pipe))
    return Reply(bytes(4), descriptor=pipe.reader, descriptor_at=0, after=pipe.hand_over)


def create_cq(context: Context, call: wire.Call) -> Reply:
    front = 0 if call.extended else 8
    user_handle, entries, vector, descriptor = wire.CREATE_CQ.unpack_from(call.body, front)
    if call.extended and struct.unpack_from("=II", call.body, front + wire.CREATE_CQ.size) != (0, 0):
        raise refuse(errno.EOPNOTSUPP)  # time stamps, overruns that are ignored: rxe has neither
    if not 0 < entries <= device_limits.limits().max_cqe.value or vector >= device_limits.COMPLETION_VECTORS:
        raise refuse(errno.EINVAL)
    channel = None if descriptor < 0 else context.channels.get(descriptor)
    if descriptor >= 0 and channel is None:
        raise refuse(errno.EINVAL)
    ring = context.file.ring(entries, 1 << wire.COMPLETION_LOG2)
    handle = context.handle()
    queue = RingCompletions(context.world, handle, ring, user_handle=user_handle, handle=handle)
    queue.sink, queue.tell = context, context.tell_channel
    context.completions[handle] = queue
    if channel is not None:
        context.channel_of[handle] = channel
    extra = _u32(0, 16) if call.extended else b""
    return Reply(_u32(handle, ring.capacity) + extra + ring.info())


def resize_cq(context: Context, call: wire.Call) -> Reply:
    _, handle, entries = struct.unpack_from("=QII", call.body)
    queue = context.find(context.completions, handle)
    if not 0 < entries <= device_limits.limits().max_cqe.value:
        raise refuse(errno.EINVAL)
    old, ring = queue.ring, context.file.ring(entries, 1 << wire.COMPLETION_LOG2)
    try:
        queue.move_to(ring)
    except OSError:
        context.file.give_back(ring)
        raise
    context.file.give_back(old)
    return Reply(_u32(ring.capacity, 0) + ring.info())


def req_notify_cq(context: Context, call: wire.Call) -> Reply:
    handle, solicited = struct.unpack_from("=II", call.body)
    queue = context.find(context.completions, handle)
    queue.armed = 2 if solicited and queue.armed != 1 else 1
    return Reply()


def destroy_cq(context: Context, call: wire.Call) -> Reply:
    _, handle = struct.unpack_from("=QI", call.body)
    queue = context.find(context.completions, handle)
    if any(handle in (each.sends, each.receives) for each in context.queues.values()):
        raise refuse(errno.EBUSY)
    del context.completions[handle]
    channel = context.channel_of.pop(handle, None)
    told = 0 if channel is None else channel.end(id(queue))
    happened = 0 if context.asynchronous is None else context.asynchronous.end(id(queue))
    context.file.give_back(queue.ring)
    context.release(handle)
    return Reply(_u32(told, happened))


# ---------------------------------------------------------------------- shared receive queues


def create_srq(context: Context, call: wire.Call) -> Reply:
    user_handle, domain, entries, segments, limit = wire.CREATE_SRQ.unpack_from(call.body, 8)
    protection, known = context.find(context.domains, domain), device_limits.limits()
    sizes = 0 < entries <= known.max_srq_wr.value and 0 < segments <= known.max_srq_sge.value
    if not sizes or limit > entries:
        raise refuse(errno.EINVAL)
    ring = context.file.ring(entries, wire.RECEIVE_BYTES + segments * wire.SEGMENT.size)
    handle, adapter = context.handle(), context.adapter
    number = adapter.new_number()
    shared = RingSharedReceives(context.world, protection, ring.capacity, segments, number=number)
    shared.attach(ring, context.server.watch)
    shared.sink, shared.limit, shared.handle, shared.user_handle = context, limit, handle, user_handle
    adapter.shared_receives[number] = shared
    context.shared[handle] = shared, domain
    return Reply(_u32(handle, ring.capacity, segments, number) + ring.info() + _u32(number, 0))


def modify_srq(context: Context, call: wire.Call) -> Reply:
    handle, given, entries, limit = struct.unpack_from("=IIII", call.body)
    shared, _ = context.find(context.shared, handle)
    if given & ~(_SRQ_MAX_WR | _SRQ_LIMIT):
        raise refuse(errno.EINVAL)
    if given & _SRQ_MAX_WR:
        _resize_srq(context, shared, entries, struct.unpack_from("=Q", call.body, 16)[0])
    if given & _SRQ_LIMIT:
        if limit > shared.capacity:
            raise refuse(errno.EINVAL)
        shared.limit = limit
    return Reply()


def _resize_srq(context: Context, shared: RingSharedReceives, entries: int, info_at: int) -> None:
    """Another ring: librxe is told by a `struct mminfo` in its memory, and maps it."""
    if not shared.limit < entries <= device_limits.limits().max_srq_wr.value:
        raise refuse(errno.EINVAL)
    shared.collect()
    if shared.posted > entries:
        raise refuse(errno.EINVAL)
    old = shared.ring
    ring = context.file.ring(entries, old.element)
    info = ring.info()
    context.server.memory.write(context.place(info_at, len(info)), info, len(info))
    shared.move_to(ring)
    context.file.give_back(old)


def query_srq(context: Context, call: wire.Call) -> Reply:
    _, handle = struct.unpack_from("=QI", call.body)
    shared, _ = context.find(context.shared, handle)
    return Reply(_u32(shared.capacity, shared.max_sge, shared.limit, 0))


def destroy_srq(context: Context, call: wire.Call) -> Reply:
    _, handle = struct.unpack_from("=QI", call.body)
    shared, _ = context.find(context.shared, handle)
    if any(each.shared == handle for each in context.queues.values()):
        raise refuse(errno.EBUSY)
    del context.shared[handle]
    context.adapter.shared_receives.pop(shared.number, None)
    shared.clear()
    context.file.give_back(shared.ring)
    context.release(handle)
    return Reply(_u32(0 if context.asynchronous is None else context.asynchronous.end(id(shared))))
