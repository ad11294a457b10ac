"""A queue pair of single messages as plain objects, for rules of the packet kernel called as plain Python."""

from __future__ import annotations

from support.plain_kernel import NONE, Record

from fabrictwin.kernel.packet.events import KIND_SHIFT, PORT_MASK, PORT_SHIFT, VALUE_MASK
from fabrictwin.kernel.packet.state import constants as c
from fabrictwin.kernel.packet.transport import dependencies, message_commands, message_events, message_receive


def _note(message: int) -> Record:
    """Return what is noted of a message that was just posted."""
    return Record(
        message=message, traits=0, holds=2, lost=0, accepted=0, end_ps=NONE, partner=NONE, answers=NONE
    )  # fmt: skip


class Pair:
    """A queue pair (number 0) with a chain of messages of so many packets each; the clock stands at 50."""

    def __init__(self, monkeypatch, *sizes, **more):
        self.events: list[tuple[int, int, int, int]] = []
        self.answers: list[tuple] = []

        def push(state, time, what):
            self.events.append((time, what >> KIND_SHIFT, what >> PORT_SHIFT & PORT_MASK, what & VALUE_MASK))

        for module in (dependencies, message_commands, message_events, message_receive):
            monkeypatch.setattr(module, "push_heap", push, raising=False)
        self.ready: list[int] = []
        for module in (dependencies, message_receive):
            monkeypatch.setattr(module, "make_ready", lambda state, q: self.ready.append(q))
        for module in (message_commands, message_receive):
            monkeypatch.setattr(
                module, "reply",
                lambda state, q, qp, kind, psn, sent, extra, flags: self.answers.append((kind, psn, sent, extra,
                flags)),
            )  # fmt: skip
        self.task, self.note, at = [], [], 0
        for i, size in enumerate(sizes):
            after = i + 1 if i + 1 < len(sizes) else NONE
            self.task.append(
                Record(
                    psn_start=at,
                    psn_end=at + size,
                    next=after,
                    qp=0,
                    status=c.POSTED,
                    received_ps=NONE,
                    done_ps=NONE,
                    waits=0,
                    kind=c.MESSAGE,
                    place=0,
                    size_bytes=size * 4096,
                    delay_ps=0,
                    start_ps=0,
                )
            )
            self.note.append(_note(100 + i))
            at += size
        last = len(sizes) - 1
        first = 0 if sizes else NONE
        self.qp = Record(
            src=1, dst=2, head=first, sending=first, tail=last, receiving=first, accepting=first,
            live=len(sizes), closed=0,
            refused=0, refused_psn=0, service=c.RC, failed=0, una=0, expected=0, in_memory=0, late_ps=7,
            retransmit=0,
            noted=1, posted_psn=at, mtu=4096, begin_ps=0, nak_sent=0, naks=0, out_of_sequence=0, duplicates=0,
            pool=NONE,
            rnr_naks=0, unacked=0, ack_every=4, echo=0, progress_ps=0, retries=3, rnr_retries=3,
        )  # fmt: skip
        for name, value in more.items():
            assert hasattr(self.qp, name)
            setattr(self.qp, name, value)
        self.clock = Record(
            now=50,
            open=len(sizes),
            tasks_head=NONE,
            tasks_free=0,
            message_events=0,
            grow=0,
            inbox=0,
            logged=0,
            patient=0,
        )
        self.state = Record(
            task=self.task, note=self.note, qp=[self.qp], clock=[self.clock], message_event=Rows(20),
            endpoint={1: Record(deliver_ps=30), 2: Record(deliver_ps=500)}, settings=[Record(vl_bits=1)],
            pool=[0, 2],
            packet={}, inbox={}, successor=[], log=[NONE] * 8,
        )  # fmt: skip

    @property
    def chain(self):
        return self._from(self.qp.receiving)

    def _from(self, t):
        found = []
        while t != NONE:
            found.append(t)
            t = self.task[t].next
        return found

    def take(self, psn, marks=0, now=50):
        self.state.packet[4] = Record(psn=psn, marks=marks, sent_ps=5, extra=NONE, slot=6, qp=0)
        return message_receive.accept_message(self.state, 0, self.qp, 4, now)


class Rows(dict):
    """A table of so many rows, as far as it is filled."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows
