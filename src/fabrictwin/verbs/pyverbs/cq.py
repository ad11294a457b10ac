"""Completion queues and channels (`pyverbs.cq`).

Looking at a queue is what lets simulated time pass: a poll that finds nothing goes on to the next instant at which
something happens anywhere on the twin, and looks again. A completion's `timestamp_ps`, and the time stamps of
extended queues, are simulated time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fabrictwin.verbs.adapter.completions import ANY, SOLICITED, WC, Channel, CompletionQueue
from fabrictwin.verbs.attributes.code_words import CLOSED, WC_FLAGS, flag_text, lines, opcode_text, status_text
from fabrictwin.verbs.attributes.device_limits import limits
from fabrictwin.verbs.pyverbs.base import PyverbsCM, PyverbsObject, failure, still_open

if TYPE_CHECKING:
    from fabrictwin.verbs.pyverbs.device import Context
    from fabrictwin.verbs.pyverbs.pd import PD

__all__ = [
    "CQ",
    "CQEX",
    "WC",
    "CompChannel",
    "CqInitAttrEx",
    "PollCqAttr",
    "WcTmInfo",
    "cqe_flags_to_str",
    "cqe_opcode_to_str",
    "cqe_status_to_str",
]

_FLAGS_MASK, _PD_MASK = 1, 2  # ibv_cq_init_attr_mask
_SINGLE_THREADED, _IGNORE_OVERRUN = 1, 2  # ibv_create_cq_attr_flags
# byte length, immediate data, QP numbers, LIDs, service level, both time stamps
_WC_FLAGS = 0x7F | 1 << 7 | 1 << 11
PS_PER_NS = 1000


class CompChannel(PyverbsCM):
    """A channel that tells which of its queues have new completions."""

    channel: Channel | None = None

    def __init__(self, context: Context) -> None:
        self.channel = Channel()
        self._world = context.world
        self._fd = -1
        context._adopt(self)

    def get_cq_event(self, expected_cq: CQ | CQEX) -> None:
        """Wait for the next event, to be of `expected_cq`. Raises PyverbsRDMAError where none can come."""
        channel = self._open
        events = channel.events
        if not events and not self._world.run_until(lambda: events):
            raise failure(f"Failed to get CQ event: {self._world.why_idle()}", errno.EAGAIN)
        queue = events.popleft()
        if self._fd >= 0:
            os.eventfd_read(self._fd)
        if queue is not expected_cq.queue:
            raise failure("Received event on an unexpected CQ", 0)
        expected_cq.num_events += 1

    @property
    def _open(self) -> Channel:
        return still_open(self.channel, "completion channel")

    @property
    def fd(self) -> int:
        """A descriptor that is readable while events wait. Waiting on it lets no simulated time pass."""
        if self._fd < 0:
            channel = self._open
            self._fd = os.eventfd(len(channel.events), os.EFD_SEMAPHORE | os.EFD_NONBLOCK)
            channel.on_event = lambda: os.eventfd_write(self._fd, 1)
        return self._fd

    def close(self) -> None:
        if getattr(self, "channel", None) is None:
            return
        self._close_children()
        self.channel = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Queue(PyverbsCM):
    """Base class of both kinds of completion queue."""

    queue: CompletionQueue | None = None

    def _create(
        self,
        context: Context,
        cqe: float,
        *,
        channel: CompChannel | None,
        vector: int,
        ignore_overrun: bool = False,
        what: str,
    ) -> None:
        known = limits()
        if not 1 <= int(cqe) <= known.max_cqe.value or not 0 <= vector < known.completion_vectors.value:
            raise failure(f"Failed to create {what}", errno.EINVAL)
        self.context: Context | None = context
        self.comp_channel = channel
        self.num_events = 0
        self.queue = CompletionQueue(
            context.world,
            context.adapter.new_number(),
            _capacity(int(cqe)),
            channel=None if channel is None else channel.channel,
            ignore_overrun=ignore_overrun,
        )
        self.queue.sink = context.context
        self._world = context.world
        context._adopt(self)
        if channel is not None:
            channel._adopt(self)

    def close(self) -> None:
        if self.queue is None:
            return
        self._close_children()
        queue, self.queue = self.queue, None
        if queue.channel is not None:
            events = queue.channel.events
            for _ in range(events.count(queue)):
                events.remove(queue)
        self.context = None

    @property
    def cq(self) -> CompletionQueue:
        return still_open(self.queue, "completion queue")

    @property
    def cqe(self) -> int:
        """Number of completions that the queue holds; at least what was asked for."""
        return self.cq.capacity

    def req_notify(self, solicited_only: bool = False) -> None:
        """Tell the channel of the next completion, or of the next that is solicited or an error."""
        self.cq.armed = SOLICITED if solicited_only else ANY

    def ack_events(self, num_events: int) -> None:
        """Say that events were seen."""
        self.num_events -= num_events

    def wait(self, count: int = 1) -> None:
        """Let simulated time pass until the queue holds `count` completions.

        Raises PyverbsRDMAError, with the reason, where that can never be.
        """
        entries = (self.queue or self.cq).entries
        while len(entries) < count:
            if not self._world.step(patient=True) and len(entries) < count:
                raise failure(
                    f"Failed to wait for {count} completions, {len(entries)} are here: {self._world.why_idle()}",
                    errno.EAGAIN,
                )

    def _refuse_overrun(self) -> None:
        if self.cq.overrun:
            raise failure("Failed to poll CQ: it has overrun", errno.EIO)


def _capacity(cqe: int) -> int:
    """Queues are a power of two long, and one entry stays free."""
    return (1 << cqe.bit_length()) - 1


class CQ(_Queue):
    """A completion queue."""

    def __init__(
        self,
        context: Context,
        cqe: float,
        cq_context: Any = None,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        self._create(context, cqe, channel=channel, vector=comp_vector, what="a CQ")
        self.cq_context = cq_context

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Up to `num_entries` completions: (how many, the completions)."""
        queue = self.queue or self.cq  # which says that it is closed
        if not queue.entries:
            if queue.overrun:
                self._refuse_overrun()
            self._world.step()
            if not queue.entries:
                return 0, []
        taken = queue.take(num_entries)
        return len(taken), taken

    def resize(self, cqe: int) -> None:
        """Change how many completions the queue holds. Raises PyverbsRDMAError where more are in it.

        A command of the driver takes long on the adapter's scale: what is in flight lands first.
        """
        self._world.settle()
        if not 1 <= cqe <= limits().max_cqe.value or _capacity(cqe) < len(self.cq.entries):
            raise failure("Failed to resize CQ", errno.EINVAL)
        self.cq.capacity = _capacity(cqe)

    def __str__(self) -> str:
        if self.queue is None:
            return lines((("CQ", CLOSED),))
        return lines((("CQ", self.queue.number), ("CQEs", self.cqe)))


@dataclass(eq=False, repr=False)
class CqInitAttrEx(PyverbsObject):
    """Wanted attributes of an extended completion queue."""

    cqe: int = 100
    channel: InitVar[CompChannel | None] = None
    comp_vector: int = 0
    wc_flags: int = 0
    comp_mask: int = 0
    flags: int = 0
    parent_domain: PD | None = None

    def __post_init__(self, channel: CompChannel | None) -> None:
        self.comp_channel = channel

    def __str__(self) -> str:
        return lines((("Number of CQEs", self.cqe), ("WC flags", self.wc_flags), ("comp mask", self.comp_mask)))


class PollCqAttr(PyverbsObject):
    comp_mask = 0


class WcTmInfo(PyverbsObject):
    """Tag matching, which there is none of."""

    tag = 0
    priv = 0


def _read(field: str) -> Callable[[CQEX], int]:
    """Return the method that reads a field of the completion that a poll is at."""

    def read(queue: CQEX) -> int:
        value: int = getattr(queue._at, field)
        return value

    return read


class CQEX(_Queue):
    """An extended completion queue: completions are read field by field, one at a time."""

    def __init__(self, context: Context, init_attr: CqInitAttrEx | None = None) -> None:
        attr = CqInitAttrEx() if init_attr is None else init_attr
        if attr.comp_mask & _PD_MASK or attr.wc_flags & ~_WC_FLAGS:
            raise failure("Failed to create extended CQ", errno.EOPNOTSUPP)
        flags = attr.flags if attr.comp_mask & _FLAGS_MASK else 0
        if flags & ~(_SINGLE_THREADED | _IGNORE_OVERRUN):
            raise failure("Failed to create extended CQ", errno.EINVAL)
        self._create(
            context,
            attr.cqe,
            channel=attr.comp_channel,
            vector=attr.comp_vector,
            ignore_overrun=bool(flags & _IGNORE_OVERRUN),
            what="extended CQ",
        )
        self._at = WC()

    def start_poll(self, attr: PollCqAttr | None = None) -> int:
        """Go to the first completion: 0, or ENOENT where there is none."""
        queue = self.cq
        if not queue.entries:
            if queue.overrun:
                self._refuse_overrun()
            self._world.step()
        return self._next()

    def poll_next(self) -> int:
        """Go to the next completion: 0, or ENOENT where there is none."""
        if not self.cq.entries:
            self._world.step()
        return self._next()

    def _next(self) -> int:
        taken = self.cq.take(1)
        if not taken:
            return errno.ENOENT
        self._at = taken[0]
        return 0

    def end_poll(self) -> None:
        """The completions that were seen are done with."""

    status = property(attrgetter("_at.status"))
    wr_id = property(attrgetter("_at.wr_id"))

    read_opcode = _read("opcode")
    read_vendor_err = _read("vendor_err")
    read_byte_len = _read("byte_len")
    read_imm_data = _read("imm_data")
    read_qp_num = _read("qp_num")
    read_src_qp = _read("src_qp")
    read_wc_flags = _read("wc_flags")
    read_slid = _read("slid")
    read_sl = _read("sl")
    read_dlid_path_bits = _read("dlid_path_bits")

    def read_timestamp(self) -> int:
        """Simulated time in ticks of the device's clock (`hca_core_clock`, 1 GHz)."""
        return self._at.timestamp_ps // PS_PER_NS

    def read_completion_wallclock_ns(self) -> int:
        """Simulated time in nanoseconds."""
        return self._at.timestamp_ps // PS_PER_NS

    def read_cvlan(self) -> int:
        return 0

    def read_flow_tag(self) -> int:
        return 0

    def read_tm_info(self) -> WcTmInfo:
        return WcTmInfo()

    def __str__(self) -> str:
        if self.queue is None:
            return lines((("CQEX", CLOSED),))
        return lines((("CQEX", self.queue.number), ("CQEs", self.cqe)))


def cqe_status_to_str(status: int) -> str:
    return status_text(status)


def cqe_opcode_to_str(opcode: int) -> str:
    return opcode_text(opcode)


def cqe_flags_to_str(flags: int) -> str:
    return flag_text(flags, WC_FLAGS)
