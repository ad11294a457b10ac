"""Work completions, completion queues, and the channels that tell of them.

InfiniBand Architecture, volume 1, 10.2.5, 11.4.2 and 11.6.1. A queue that overruns is lost: its affiliated
asynchronous error is raised once, and the queue pairs that complete into it fail.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from fabrictwin.verbs.abi.completion_codes import ibv_wc_status as status
from fabrictwin.verbs.abi.device_codes import ibv_event_type
from fabrictwin.verbs.adapter.message_layer import MessageLayer

SUCCESS, LOC_LEN_ERR = int(status.IBV_WC_SUCCESS), int(status.IBV_WC_LOC_LEN_ERR)
LOC_QP_OP_ERR, LOC_PROT_ERR = int(status.IBV_WC_LOC_QP_OP_ERR), int(status.IBV_WC_LOC_PROT_ERR)
WR_FLUSH_ERR, MW_BIND_ERR = int(status.IBV_WC_WR_FLUSH_ERR), int(status.IBV_WC_MW_BIND_ERR)
REM_INV_REQ_ERR, REM_ACCESS_ERR = int(status.IBV_WC_REM_INV_REQ_ERR), int(status.IBV_WC_REM_ACCESS_ERR)
REM_OP_ERR, RETRY_EXC_ERR = int(status.IBV_WC_REM_OP_ERR), int(status.IBV_WC_RETRY_EXC_ERR)
RNR_RETRY_EXC_ERR = int(status.IBV_WC_RNR_RETRY_EXC_ERR)

CQ_ERR = int(ibv_event_type.IBV_EVENT_CQ_ERR)

UNARMED, ANY, SOLICITED = 0, 1, 2
_new = object.__new__


@dataclass(eq=False, repr=False)
class WC:
    """A work completion: what `ibv_wc` holds, and `timestamp_ps`, the simulated time of its making."""

    wr_id: int = 0
    status: int = 0
    opcode: int = 0
    vendor_err: int = 0
    byte_len: int = 0
    qp_num: int = 0
    src_qp: int = 0
    imm_data: int = 0
    wc_flags: int = 0
    pkey_index: int = 0
    slid: int = 0
    sl: int = 0
    dlid_path_bits: int = 0
    # not of `ibv_wc`, and the class's until somebody sets them
    timestamp_ps: int = field(default=0, init=False)
    queue: Any = field(default=None, init=False)  # whose slots are free again once software has seen this
    slots: int = field(default=0, init=False)

    @staticmethod
    def of(wr_id: int, status: int, opcode: int, byte_len: int, qp_num: int) -> WC:
        """Return a completion whose other fields stay the class's, in half the time."""
        made = _new(WC)
        made.wr_id, made.status, made.opcode, made.byte_len, made.qp_num = wr_id, status, opcode, byte_len, qp_num
        return made

    def __str__(self) -> str:
        from fabrictwin.verbs.attributes.code_words import completion_text

        return completion_text(self)


class Channel:
    """A completion channel: queues that have something to tell, in the order in which they had."""

    __slots__ = ("events", "on_event")

    def __init__(self) -> None:
        self.events: deque[CompletionQueue] = deque()
        self.on_event: Any = None  # called when there is one more

    def notify(self, queue: CompletionQueue) -> None:
        self.events.append(queue)
        if self.on_event is not None:
            self.on_event()


class CompletionQueue:
    """Completions of any number of work queues, in the order in which they were made."""

    __slots__ = (
        "armed",
        "capacity",
        "channel",
        "entries",
        "ignore_overrun",
        "number",
        "overrun",
        "sink",
        "world",
    )

    def __init__(
        self,
        world: MessageLayer,
        number: int,
        capacity: int,
        *,
        channel: Channel | None,
        ignore_overrun: bool = False,
    ) -> None:
        self.world = world
        self.number = number
        self.capacity = capacity
        self.channel = channel
        self.ignore_overrun = ignore_overrun
        self.entries: deque[WC] = deque()
        self.armed = UNARMED
        self.overrun = False
        self.sink: Any = None  # takes asynchronous events

    def push(self, completion: WC, solicited: bool = False) -> bool:
        """Add a completion. False: the queue has overrun, and the completion is lost."""
        completion.timestamp_ps = self.world.instant_ps
        if len(self.entries) >= self.capacity and not self.ignore_overrun:
            if not self.overrun:
                self.overrun = True
                if self.sink is not None:
                    self.sink.raise_event(CQ_ERR, self)
            return False
        self.entries.append(completion)
        armed = self.armed
        if armed and (armed == ANY or solicited or completion.status):
            self.armed = UNARMED
            if self.channel is not None:
                self.channel.notify(self)
        return True

    def take(self, count: int) -> list[WC]:
        """Up to `count` completions; their work queues' slots are free again."""
        entries = self.entries
        taken: list[WC] = []
        while entries and count > 0:
            completion = entries.popleft()
            queue = completion.queue
            if queue is not None:
                queue.release(completion.slots)
                completion.queue = None
            taken.append(completion)
            count -= 1
        return taken

    def forget(self, qp_num: int) -> None:
        """Drop the completions of a queue pair that is reset or destroyed, as drivers do."""
        if any(completion.qp_num == qp_num for completion in self.entries):
            kept = [completion for completion in self.entries if completion.qp_num != qp_num]
            self.entries.clear()
            self.entries.extend(kept)
