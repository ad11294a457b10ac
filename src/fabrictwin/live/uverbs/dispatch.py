"""Which function answers which command of /dev/infiniband/uverbsN."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

from fabrictwin.live import wire
from fabrictwin.live.context import Context, Refused, refuse
from fabrictwin.live.uverbs import objects, queries, queue_pairs
from fabrictwin.live.uverbs.reply import Reply
from fabrictwin.live.wire import Command

COMMANDS: dict[int, Callable[[Context, wire.Call], Reply]] = {
    Command.GET_CONTEXT: queries.get_context,
    Command.QUERY_DEVICE: queries.query_device,
    Command.QUERY_PORT: queries.query_port,
    Command.ALLOC_PD: objects.alloc_pd,
    Command.DEALLOC_PD: objects.dealloc_pd,
    Command.CREATE_AH: objects.create_ah,
    Command.DESTROY_AH: objects.destroy_ah,
    Command.REG_MR: objects.reg_mr,
    Command.REREG_MR: objects.rereg_mr,
    Command.DEREG_MR: objects.dereg_mr,
    Command.ALLOC_MW: objects.alloc_mw,
    Command.DEALLOC_MW: objects.dealloc_mw,
    Command.CREATE_COMP_CHANNEL: objects.create_comp_channel,
    Command.CREATE_CQ: objects.create_cq,
    Command.RESIZE_CQ: objects.resize_cq,
    Command.REQ_NOTIFY_CQ: objects.req_notify_cq,
    Command.DESTROY_CQ: objects.destroy_cq,
    Command.CREATE_SRQ: objects.create_srq,
    Command.MODIFY_SRQ: objects.modify_srq,
    Command.QUERY_SRQ: objects.query_srq,
    Command.DESTROY_SRQ: objects.destroy_srq,
    Command.ATTACH_MCAST: queue_pairs.attach_mcast,
    Command.DETACH_MCAST: queue_pairs.detach_mcast,
    Command.CREATE_QP: queue_pairs.create_qp,
    Command.MODIFY_QP: queue_pairs.modify_qp,
    Command.QUERY_QP: queue_pairs.query_qp,
    Command.DESTROY_QP: queue_pairs.destroy_qp,
}
_EXTENDED = frozenset((Command.QUERY_DEVICE, Command.CREATE_CQ, Command.CREATE_QP, Command.MODIFY_QP))


def answer(context: Context, data: bytes) -> Reply:
    """Do what a client has written. Raises Refused with the errno that the kernel would give."""
    try:
        call = wire.parse(data)
        function = COMMANDS.get(call.number)
        if function is None or (call.extended and call.number not in _EXTENDED):
            raise refuse(errno.EOPNOTSUPP)
        if context.asynchronous is None and call.number != Command.GET_CONTEXT:
            raise refuse(errno.EINVAL)
        return function(context, call)
    except Refused:
        raise
    except (struct.error, ValueError, IndexError):
        raise refuse(errno.EINVAL) from None
    except OSError as error:
        raise refuse(error.errno or errno.EINVAL) from None
