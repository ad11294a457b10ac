"""Answers of the kernel's nldev (drivers/infiniband/core/nldev.c): devices, links and what programs hold of them.

A host's adapters have the numbers in which it lists them. What changes devices wants CAP_NET_ADMIN there and is
refused here; hardware counters are refused as by a driver that has none.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator

from fabrictwin.base.records import record
from fabrictwin.live import sysfs, wire
from fabrictwin.live.context import Context
from fabrictwin.live.netlink import nldev_abi as abi
from fabrictwin.live.netlink.nldev_abi import Name, Operation, Request, nested, text, u8, u32, u64
from fabrictwin.verbs.adapter import qp_transitions
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.attributes import device_limits

_NODE_TYPE_CA = 1
_RXE = 14  # enum rdma_driver_id
_ROWS = 32  # of a table in a message: programs have room for a page
_SHARED = 1  # network namespaces see one another's devices, the kernel's default
_CM_DEVICE = 10 << 8 | 120
_FIRST_UVERBS = 231 << 8 | 192
_PREFIX = 0xFE80 << 48
_CONNECTED = (qp_transitions.RC, qp_transitions.UC)


class _Refusal(Exception):  # noqa: N818 - an errno for the program
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@record
class Devices:
    """What a program's netlink socket can be told of: a host's adapters, and who has opened them."""

    adapters: list[Adapter]
    opened: Callable[[Adapter], Iterable[Context]]
    pid: int  # of the program: its socket's port id where it asks for none

    def answer(self, data: bytes) -> list[bytes]:
        """Return the datagrams that answer one. Raises ValueError where it is malformed."""
        return [each for request in abi.requests(data) for each in self._replies(request)]

    def _replies(self, request: Request) -> Iterator[bytes]:
        port = request.port or self.pid
        if not request.flags & abi.F_REQUEST:
            return
        dump = request.flags & abi.F_DUMP == abi.F_DUMP
        try:
            if request.client != abi.NLDEV:
                raise _Refusal(errno.EINVAL)
            bodies = list(self._bodies(request, dump))
        except _Refusal as refusal:
            yield abi.error(request, port, refusal.code)
            return
        for body in bodies:
            yield abi.message(request, port, body, multi=dump)
        if dump:
            yield abi.done(request, port)
        elif request.flags & abi.F_ACK:
            yield abi.error(request, port, 0)

    def _bodies(self, request: Request, dump: bool) -> Iterator[bytes]:
        if request.operation in abi.PRIVILEGED:
            raise _Refusal(errno.EPERM)
        if request.operation == Operation.SYS_GET:
            yield u8(Name.SYS_NETNS_MODE, _SHARED) + u8(Name.SYS_COPY_ON_FORK, 1)
        elif request.operation == Operation.GET_CHARDEV:
            yield self._character_device(request)
        elif request.operation == Operation.GET:
            for number in range(len(self.adapters)) if dump else [self._index(request)]:
                yield _device(self.adapters[number], number)
        elif request.operation == Operation.PORT_GET:
            number = self._index(request)
            if not dump and request.number(Name.PORT_INDEX) != 1:
                raise _Refusal(errno.EINVAL)
            yield _port(self.adapters[number], number)
        elif request.operation == Operation.RES_GET:
            for number in range(len(self.adapters)) if dump else [self._index(request)]:
                yield _handle(self.adapters[number], number) + self._summary(self.adapters[number])
        elif dump and request.operation in _TABLES:
            number = self._index(request)
            adapter = self.adapters[number]
            table, entry, rows = _TABLES[Operation(request.operation)]
            held = [nested(entry, row) for one in self.opened(adapter) for row in rows(one)]
            for at in range(0, len(held), _ROWS):
                yield _handle(adapter, number) + nested(table, b"".join(held[at : at + _ROWS]))
        else:
            raise _Refusal(errno.EINVAL)

    def _index(self, request: Request) -> int:
        """Return the number of the device that a request is about. Raises _Refusal."""
        number = request.number(Name.DEV_INDEX)
        if number is None or number >= len(self.adapters):
            raise _Refusal(errno.EINVAL)
        return number

    def _character_device(self, request: Request) -> bytes:
        kind = request.text(Name.CHARDEV_TYPE)
        if kind == "rdma_cm" and Name.DEV_INDEX not in request.attributes:
            name, number, version, more = "rdma_cm", _CM_DEVICE, wire.CM_ABI, b""
        elif kind == "uverbs":
            at = self._index(request)
            name, number, version = f"uverbs{at}", _FIRST_UVERBS + at, wire.RXE_ABI
            more = u32(Name.UVERBS_DRIVER_ID, _RXE)
        else:
            raise _Refusal(errno.ENOENT)
        return more + u64(Name.CHARDEV, number) + u64(Name.CHARDEV_ABI, version) + text(Name.CHARDEV_NAME, name)

    def _summary(self, adapter: Adapter) -> bytes:
        opened = list(self.opened(adapter))
        counts = {
            "pd": sum(len(one.domains) for one in opened),
            "cq": sum(len(one.completions) for one in opened),
            "qp": sum(len(one.queues) for one in opened),
            "mr": sum(len(one.regions) for one in opened),
            "ctx": len(opened),
            "srq": sum(len(one.shared) for one in opened),
        }
        entries = (
            nested(
                Name.RES_SUMMARY_ENTRY,
                text(Name.RES_SUMMARY_ENTRY_NAME, name) + u64(Name.RES_SUMMARY_ENTRY_CURR, count),
            )
            for name, count in counts.items()
        )
        return nested(Name.RES_SUMMARY, b"".join(entries))


def _handle(adapter: Adapter, number: int) -> bytes:
    return u32(Name.DEV_INDEX, number) + text(Name.DEV_NAME, adapter.name)


def _device(adapter: Adapter, number: int) -> bytes:
    a = device_limits.device_attributes(adapter)
    return b"".join([
        _handle(adapter, number),
        u32(Name.PORT_INDEX, 1),
        u64(Name.CAP_FLAGS, a.device_cap_flags),
        text(Name.FW_VERSION, a.fw_version),
        u64(Name.NODE_GUID, adapter.guid),
        u64(Name.SYS_IMAGE_GUID, adapter.guid),
        u8(Name.DEV_NODE_TYPE, _NODE_TYPE_CA),
        u8(Name.DEV_DIM, 0),
        text(Name.DEV_PROTOCOL, "roce" if adapter.ethernet else "ib"),
    ])  # fmt: skip


def _port(adapter: Adapter, number: int) -> bytes:
    a = device_limits.port_attributes(adapter)
    parts = [_handle(adapter, number), u32(Name.PORT_INDEX, 1)]
    if not adapter.ethernet:
        parts += [
            u64(Name.CAP_FLAGS, a.port_cap_flags),
            u64(Name.SUBNET_PREFIX, _PREFIX),
            u32(Name.LID, a.lid),
            u32(Name.SM_LID, a.sm_lid),
            u8(Name.LMC, a.lmc),
        ]
    parts += [u8(Name.PORT_STATE, a.state), u8(Name.PORT_PHYS_STATE, a.phys_state)]
    if adapter.ethernet:
        parts += [
            u32(Name.NDEV_INDEX, sysfs.FIRST_IFINDEX + number),
            text(Name.NDEV_NAME, sysfs.netdev(adapter, number)),
        ]
    return b"".join(parts)


def _queue_pairs(context: Context) -> Iterator[bytes]:
    for held in context.queues.values():
        pair = held.pair
        a = pair.attributes
        row = u32(Name.PORT_INDEX, 1) + u32(Name.RES_LQPN, pair.number)
        if pair.kind in _CONNECTED:
            row += u32(Name.RES_RQPN, a.dest_qp_num) + u32(Name.RES_RQ_PSN, a.rq_psn)
            row += u8(Name.RES_PATH_MIG_STATE, a.path_mig_state)
        row += u32(Name.RES_SQ_PSN, a.sq_psn) + u8(Name.RES_TYPE, pair.kind) + u8(Name.RES_STATE, pair.state)
        yield row + u32(Name.RES_PDN, held.domain) + u32(Name.RES_PID, context.pid)


def _completion_queues(context: Context) -> Iterator[bytes]:
    for handle, queue in context.completions.items():
        users = sum(handle in (held.sends, held.receives) for held in context.queues.values())
        row = u32(Name.RES_CQE, queue.capacity) + u64(Name.RES_USECNT, users)
        yield row + u32(Name.RES_CQN, handle) + u32(Name.RES_PID, context.pid)


def _regions(context: Context) -> Iterator[bytes]:
    for handle, held in context.regions.items():  # keys want CAP_NET_ADMIN
        row = u64(Name.RES_MRLEN, held.region.end - held.region.start) + u32(Name.RES_MRN, handle)
        yield row + u32(Name.RES_PDN, held.domain) + u32(Name.RES_PID, context.pid)


def _domains(context: Context) -> Iterator[bytes]:
    used = [held.domain for held in context.queues.values()]
    used += [held.domain for held in context.regions.values()]
    for handle in context.domains:
        yield u64(Name.RES_USECNT, used.count(handle)) + u32(Name.RES_PDN, handle) + u32(Name.RES_PID, context.pid)


def _contexts(context: Context) -> Iterator[bytes]:
    yield u32(Name.RES_CTXN, 0) + u32(Name.RES_PID, context.pid)


def _shared_receives(context: Context) -> Iterator[bytes]:
    for handle, (_, domain) in context.shared.items():
        yield u32(Name.RES_SRQN, handle) + u32(Name.RES_PDN, domain) + u32(Name.RES_PID, context.pid)


_TABLES: dict[Operation, tuple[Name, Name, Callable[[Context], Iterator[bytes]]]] = {
    Operation.RES_QP_GET: (Name.RES_QP, Name.RES_QP_ENTRY, _queue_pairs),
    Operation.RES_CQ_GET: (Name.RES_CQ, Name.RES_CQ_ENTRY, _completion_queues),
    Operation.RES_MR_GET: (Name.RES_MR, Name.RES_MR_ENTRY, _regions),
    Operation.RES_PD_GET: (Name.RES_PD, Name.RES_PD_ENTRY, _domains),
    Operation.RES_CTX_GET: (Name.RES_CTX, Name.RES_CTX_ENTRY, _contexts),
    Operation.RES_SRQ_GET: (Name.RES_SRQ, Name.RES_SRQ_ENTRY, _shared_receives),
}
