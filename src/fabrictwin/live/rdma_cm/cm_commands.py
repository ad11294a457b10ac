"""The commands that a program writes to /dev/infiniband/rdma_cm."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

from fabrictwin.live.context import Refused, refuse
from fabrictwin.live.multicast import group_of, group_qkey
from fabrictwin.live.rdma_cm import cm_abi
from fabrictwin.live.rdma_cm.cm_abi import Address, Command, Event, Parameters
from fabrictwin.live.rdma_cm.identifier import CmChannel, Identifier, State
from fabrictwin.live.uverbs.queue_pairs import pack_address
from fabrictwin.verbs.abi.queue_codes import ibv_qp_attr_mask
from fabrictwin.verbs.adapter.qp_checks import MTU_CODES
from fabrictwin.verbs.adapter.work_requests import AddressVector

_KNOWN_SPACES = frozenset(int(space) for space in cm_abi.PortSpace) - {int(cm_abi.PortSpace.IB)}
_RTR, _RTS, _INIT = 2, 3, 1
_UD = 4
_REMOTE_WRITE, _REMOTE_READ, _REMOTE_ATOMIC = 2, 4, 8
_OPTION_ID = 0
_TOS, _REUSE, _AF_ONLY, _ACK_TIMEOUT = 0, 1, 2, 3
_PATH_LIFETIME = 18  # 4.096 us << 18, as the subnet manager and RoCE's connections have it
_ACK_TIMEOUT_CODE = _PATH_LIFETIME + 1  # cm_ack_timeout() in drivers/infiniband/core/cm.c
_RESPONSE_FIRST = struct.Struct("=QI")

_m = ibv_qp_attr_mask
_MASK_INIT = int(_m.IBV_QP_STATE | _m.IBV_QP_PKEY_INDEX | _m.IBV_QP_PORT)
_MASK_RTR = int(_m.IBV_QP_STATE | _m.IBV_QP_AV | _m.IBV_QP_PATH_MTU | _m.IBV_QP_DEST_QPN | _m.IBV_QP_RQ_PSN)
_MASK_RTR_RC = int(_m.IBV_QP_MAX_DEST_RD_ATOMIC | _m.IBV_QP_MIN_RNR_TIMER)
_MASK_RTS = int(_m.IBV_QP_STATE | _m.IBV_QP_SQ_PSN)
_MASK_RTS_RC = int(_m.IBV_QP_TIMEOUT | _m.IBV_QP_RETRY_CNT | _m.IBV_QP_RNR_RETRY | _m.IBV_QP_MAX_QP_RD_ATOMIC)


def _find(channel: CmChannel, number: int) -> Identifier:
    found = channel.identifiers.get(number)
    if found is None:
        raise refuse(errno.ENOENT)
    return found


def _address(data: bytes) -> Address:
    found = cm_abi.parse_address(data)
    if found is None:
        raise refuse(errno.EAFNOSUPPORT)
    return found


def create_id(channel: CmChannel, body: bytes) -> bytes:
    uid, _, space, qp_type = cm_abi.CREATE_ID.unpack_from(body)
    if space not in _KNOWN_SPACES:
        raise refuse(errno.EINVAL)
    made = channel.manager.create(channel, uid, space=space, qp_type=qp_type)
    return struct.pack("=I", made.number)


def destroy_id(channel: CmChannel, body: bytes) -> bytes:
    identifier = _find(channel, _RESPONSE_FIRST.unpack_from(body)[1])
    channel.manager.destroy(identifier)
    return struct.pack("=I", identifier.events_read)


def bind_ip(channel: CmChannel, body: bytes) -> bytes:
    _bind(_find(channel, struct.unpack_from("=I", body, 36)[0]), _address(body[8:36]))
    return b""


def bind(channel: CmChannel, body: bytes) -> bytes:
    number, size = struct.unpack_from("=IH", body)
    _bind(_find(channel, number), _address(body[8 : 8 + max(size, 8)]))
    return b""


def _bind(identifier: Identifier, address: Address) -> None:
    if identifier.state is not State.IDLE:
        raise refuse(errno.EINVAL)
    identifier.channel.manager.bind(identifier, address)


def resolve_ip(channel: CmChannel, body: bytes) -> bytes:
    identifier = _find(channel, struct.unpack_from("=I", body, 56)[0])
    channel.manager.resolve(identifier, cm_abi.parse_address(body[:28]), _address(body[28:56]))
    return b""


def resolve_addr(channel: CmChannel, body: bytes) -> bytes:
    number, _, source_size, _ = struct.unpack_from("=IIHH", body)
    source = cm_abi.parse_address(body[16:144]) if source_size else None
    channel.manager.resolve(_find(channel, number), source, _address(body[144:272]))
    return b""


def resolve_route(channel: CmChannel, body: bytes) -> bytes:
    channel.manager.resolve_route(_find(channel, struct.unpack_from("=I", body)[0]))
    return b""


def query_route(channel: CmChannel, body: bytes) -> bytes:
    """Addresses, and the path: `struct rdma_ucm_query_route_resp`."""
    identifier = _find(channel, _RESPONSE_FIRST.unpack_from(body)[1])
    near, far = identifier.adapter, identifier.far
    guid = bytes(8) if near is None else near.guid.to_bytes(8, "big")
    paths = [bytes(cm_abi.PATH_RECORD.size)] * 2
    if near is not None and far is not None:
        mode = near.roce_mode
        mtu = MTU_CODES[min(near.mtu_bytes, far.mtu_bytes)]
        paths[0] = cm_abi.PATH_RECORD.pack(
            far.gids[far.gid_index(mode)].raw, near.gids[near.gid_index(mode)].raw, far.lid.to_bytes(2, "big"),
            near.lid.to_bytes(2, "big"), 0, bytes(4), 1, mtu, near.pkeys[0].to_bytes(2, "big"),
            64 if near.ethernet else 0, identifier.traffic_class, 0, 0, 2, 2, 0, 2, _PATH_LIFETIME, 0,
        )  # fmt: skip
    elif near is not None:
        mode = near.roce_mode
        paths[0] = cm_abi.PATH_RECORD.pack(
            bytes(16), near.gids[near.gid_index(mode)].raw, bytes(2), near.lid.to_bytes(2, "big"), 0, bytes(4),
            0, 0, near.pkeys[0].to_bytes(2, "big"), *[0] * 10,
        )  # fmt: skip
    routed = identifier.state not in (State.IDLE, State.BOUND, State.LISTENING, State.ADDRESS_RESOLVED)
    tail = cm_abi.ROUTE_TAIL.pack(int(routed and far is not None), int(near is not None), cm_abi.NO_INDEX, 0)
    return guid + b"".join(paths) + identifier.source.pack() + identifier.target.pack() + tail


def connect(channel: CmChannel, body: bytes) -> bytes:
    size = cm_abi.CONNECTION.size
    identifier = _find(channel, struct.unpack_from("=I", body, size)[0])
    channel.manager.connect(identifier, Parameters.parse(body, 0))
    return b""


def listen(channel: CmChannel, body: bytes) -> bytes:
    number, backlog = struct.unpack_from("=II", body)
    channel.manager.listen(_find(channel, number), backlog)
    return b""


def accept(channel: CmChannel, body: bytes) -> bytes:
    (uid,) = struct.unpack_from("=Q", body)
    identifier = _find(channel, struct.unpack_from("=I", body, 8 + cm_abi.CONNECTION.size)[0])
    channel.manager.accept(identifier, Parameters.parse(body, 8), uid)
    return b""


def reject(channel: CmChannel, body: bytes) -> bytes:
    number, length = struct.unpack_from("=IB", body)
    identifier = _find(channel, number)
    if identifier.state is not State.CONNECTING or identifier.active:
        raise refuse(errno.EINVAL)
    channel.manager.reject(identifier, body[8 : 8 + length])
    return b""


def disconnect(channel: CmChannel, body: bytes) -> bytes:
    channel.manager.disconnect(_find(channel, struct.unpack_from("=I", body)[0]))
    return b""


def init_qp_attr(channel: CmChannel, body: bytes) -> bytes:
    """Attributes to modify a queue pair with for a state: `struct ib_uverbs_qp_attr`."""
    _, number, state = struct.unpack_from("=QII", body)
    i = _find(channel, number)
    if i.adapter is None or state not in (_INIT, _RTR, _RTS):
        raise refuse(errno.EINVAL)
    datagrams = i.datagrams or i.qp_type == _UD
    connected = i.peer is not None and not datagrams
    access, qkey, vector, mtu, peer_qpn = 0, 0, AddressVector(), 0, 0
    receive_psn = send_psn = 0
    if state == _INIT:
        mask = _MASK_INIT
        if datagrams:
            mask |= int(_m.IBV_QP_QKEY)
            qkey = i.own.qkey or cm_abi.UDP_QKEY
        else:
            mask |= int(_m.IBV_QP_ACCESS_FLAGS)
            if connected:
                access = _REMOTE_WRITE | (_REMOTE_READ | _REMOTE_ATOMIC if i.responder_resources else 0)
    elif datagrams:
        mask = int(_m.IBV_QP_STATE) if state == _RTR else _MASK_RTS
    elif not connected or i.peer is None:
        raise refuse(errno.EINVAL)
    elif state == _RTR:
        mask = _MASK_RTR | (_MASK_RTR_RC if i.qp_type != 3 else 0)
        vector, receive_psn = channel.manager.vector(i), i.first_psn
        assert i.far is not None
        mtu = MTU_CODES[min(i.adapter.mtu_bytes, i.far.mtu_bytes)]
        peer_qpn = i.peer.own.qp_num
    else:
        mask = _MASK_RTS | (_MASK_RTS_RC if i.qp_type != 3 else 0)
        send_psn = i.peer.first_psn
    timeout = i.ack_timeout or _ACK_TIMEOUT_CODE
    return cm_abi.QP_ATTRIBUTES.pack(
        mask, state, state, mtu, 0, qkey, receive_psn, send_psn, peer_qpn, access,
        pack_address(vector), bytes(32), 0, 0, 0, 0, 0, 0, 0, 0, 0,
        i.initiator_depth, i.responder_resources, 0, 1, timeout, i.retries, i.rnr_retries, 0, 0,
    )  # fmt: skip


def get_event(channel: CmChannel, body: bytes) -> bytes:
    """The oldest event. The program has taken a byte from the descriptor for it already."""
    if not channel.events:
        raise refuse(errno.EAGAIN)
    about, counted_on, record = channel.events.popleft()
    about.seen = True
    counted_on.events_read += 1
    return record


def set_option(channel: CmChannel, body: bytes) -> bytes:
    _, number, level, name, length = struct.unpack_from("=QIIII", body)
    value = body[24 : 24 + length]
    identifier = _find(channel, number)
    if level != _OPTION_ID or not value:
        raise refuse(errno.ENOSYS)
    if name == _TOS:
        identifier.traffic_class = value[0]
    elif name == _REUSE:
        identifier.reuse = any(value)
    elif name == _ACK_TIMEOUT:
        identifier.ack_timeout = value[0] & 31
    elif name != _AF_ONLY:
        raise refuse(errno.ENOSYS)
    return b""


def notify(channel: CmChannel, body: bytes) -> bytes:
    """A program says that its queue pair has seen an event (COMM_EST): the other side is ready then."""
    identifier = _find(channel, struct.unpack_from("=I", body)[0])
    if identifier.state is State.CONNECTING and not identifier.active and identifier.peer is not None:
        identifier.state = State.CONNECTED
        channel.tell(identifier, Event.ESTABLISHED, parameter=Parameters().pack())
    return b""


def join_ip_mcast(channel: CmChannel, body: bytes) -> bytes:
    uid, address, number = struct.unpack_from("=8xQ28sI", body)
    return _join(_find(channel, number), uid, _address(address))


def join_mcast(channel: CmChannel, body: bytes) -> bytes:
    uid, number, size = struct.unpack_from("=8xQIH", body)
    return _join(_find(channel, number), uid, _address(body[24 : 24 + max(size, 8)]))


def _join(identifier: Identifier, uid: int, address: Address) -> bytes:
    adapter, channel = identifier.adapter, identifier.channel
    if adapter is None or not identifier.datagrams:
        raise refuse(errno.EINVAL)
    gid, lid = group_of(adapter, address.ip, identifier.space)
    vector = AddressVector(
        dlid=lid, is_global=True, dgid=gid, sgid_index=adapter.gid_index(adapter.roce_mode), hop_limit=64
    )
    join = channel.manager.create(channel, uid, space=identifier.space, qp_type=identifier.qp_type)
    identifier.groups[join.number] = gid
    parameter = cm_abi.DATAGRAM.pack(cm_abi.MULTICAST_QPN, group_qkey(), pack_address(vector), bytes(256), 0)
    channel.tell(identifier, Event.MULTICAST_JOIN, uid=uid, parameter=parameter, counted_on=join)
    return struct.pack("=I", join.number)


def leave_mcast(channel: CmChannel, body: bytes) -> bytes:
    _, number = _RESPONSE_FIRST.unpack_from(body)
    join = _find(channel, number)
    for identifier in channel.identifiers.values():
        identifier.groups.pop(number, None)
    channel.identifiers.pop(number)
    return struct.pack("=I", join.events_read)


def migrate_id(channel: CmChannel, body: bytes) -> bytes:
    """An identifier of another opened device of the same process goes over to this one, and its events with it."""
    _, number, descriptor = struct.unpack_from("=QII", body)
    before = next(
        (
            each
            for each in channel.manager.channels
            if each.pid == channel.pid and each.descriptor == descriptor and number in each.identifiers
        ),
        None,
    )
    if before is None:
        raise refuse(errno.ENOENT)
    identifier = before.identifiers[number]
    if before is not channel:
        moving = [each for each in before.events if each[0] is identifier]
        before.drop_events(identifier)
        del before.identifiers[number]
        channel.identifiers[number] = identifier
        identifier.channel = channel
        for each in moving:
            channel.events.append(each)
            channel.pipe.write(b"e", None)
    return struct.pack("=I", identifier.events_read)


COMMANDS: dict[int, Callable[[CmChannel, bytes], bytes]] = {
    Command.CREATE_ID: create_id,
    Command.DESTROY_ID: destroy_id,
    Command.BIND_IP: bind_ip,
    Command.BIND: bind,
    Command.RESOLVE_IP: resolve_ip,
    Command.RESOLVE_ADDR: resolve_addr,
    Command.RESOLVE_ROUTE: resolve_route,
    Command.QUERY_ROUTE: query_route,
    Command.CONNECT: connect,
    Command.LISTEN: listen,
    Command.ACCEPT: accept,
    Command.REJECT: reject,
    Command.DISCONNECT: disconnect,
    Command.INIT_QP_ATTR: init_qp_attr,
    Command.GET_EVENT: get_event,
    Command.SET_OPTION: set_option,
    Command.NOTIFY: notify,
    Command.JOIN_IP_MCAST: join_ip_mcast,
    Command.JOIN_MCAST: join_mcast,
    Command.LEAVE_MCAST: leave_mcast,
    Command.MIGRATE_ID: migrate_id,
}


def answer(channel: CmChannel, data: bytes) -> bytes:
    """Do what a program has written. Raises Refused with the errno that the kernel would give."""
    try:
        command, _, _ = cm_abi.HEADER.unpack_from(data)
        function = COMMANDS.get(command)
        if function is None:
            raise refuse(errno.ENOSYS)
        return function(channel, data[cm_abi.HEADER.size :])
    except Refused:
        raise
    except (struct.error, ValueError, IndexError):
        raise refuse(errno.EINVAL) from None
