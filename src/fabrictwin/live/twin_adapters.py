"""What live programs need of the twin's verbs adapters: every import from there stands here."""

from __future__ import annotations

from fabrictwin.verbs.abi.device_codes import ibv_event_type
from fabrictwin.verbs.abi.queue_codes import ibv_qp_attr_mask
from fabrictwin.verbs.adapter import qp_transitions
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.completions import LOC_QP_OP_ERR, WC, Channel, CompletionQueue
from fabrictwin.verbs.adapter.gid import ROCE_V1, ROCE_V2
from fabrictwin.verbs.adapter.memory_regions import Domain, ProcessMemory, Region, Window
from fabrictwin.verbs.adapter.qp_checks import MTU_BYTES, MTU_CODES, Attributes
from fabrictwin.verbs.adapter.queue_pair import QueuePair, QueuePairObjects, SendQueueLimits
from fabrictwin.verbs.adapter.receive_queues import Receive, ReceiveQueue, SharedReceiveQueue
from fabrictwin.verbs.adapter.transport import requester
from fabrictwin.verbs.adapter.work_requests import (
    ATOMIC_WRITE,
    BIND,
    COMPARE_SWAP,
    FETCH_ADD,
    FLUSH,
    INLINE,
    LOCAL_INV,
    NAMES_ADDRESS,
    SEND_INV,
    AddressVector,
    Work,
)
from fabrictwin.verbs.adapter.world import World
from fabrictwin.verbs.attributes import device_limits
from fabrictwin.verbs.attributes.device_attributes import guid_format
from fabrictwin.verbs.pyverbs.mr import check_access

__all__ = [
    "ATOMIC_WRITE",
    "BIND",
    "COMPARE_SWAP",
    "FETCH_ADD",
    "FLUSH",
    "INLINE",
    "LOCAL_INV",
    "LOC_QP_OP_ERR",
    "MTU_BYTES",
    "MTU_CODES",
    "NAMES_ADDRESS",
    "ROCE_V1",
    "ROCE_V2",
    "SEND_INV",
    "WC",
    "Adapter",
    "AddressVector",
    "Attributes",
    "Channel",
    "CompletionQueue",
    "Domain",
    "ProcessMemory",
    "QueuePair",
    "QueuePairObjects",
    "Receive",
    "ReceiveQueue",
    "Region",
    "SendQueueLimits",
    "SharedReceiveQueue",
    "Window",
    "Work",
    "World",
    "check_access",
    "device_limits",
    "guid_format",
    "ibv_event_type",
    "ibv_qp_attr_mask",
    "qp_transitions",
    "requester",
]
