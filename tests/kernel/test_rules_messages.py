"""Rules of tasks and single messages one by one, on state of a few lines: chains, notes, what software is told."""

from __future__ import annotations

import pytest
from support.plain_kernel import NONE, Record, plain
from support.plain_messages import Pair

from fabrictwin.kernel.codes import EventKind
from fabrictwin.kernel.packet.events import QueueEvent
from fabrictwin.kernel.packet.state import constants as c
from fabrictwin.kernel.packet.transport import dependencies, message_commands, message_events, message_receive


def told(pair):
    """(kind, message, time) of what is to be told."""
    assert all(kind == QueueEvent.REPORT for _, kind, _, _ in pair.events)
    return [(EventKind(kind), t, time) for time, _, kind, t in pair.events]


ARRIVED, ENDED, LOST = EventKind.ARRIVED, EventKind.ENDED, EventKind.LOST


@plain
def test_a_task_is_free_when_nobody_needs_it(monkeypatch):
    pair = Pair(monkeypatch, 1, 1)
    message_events.release_task(pair.state, 1)
    assert (pair.note[1].holds, pair.qp.live, pair.clock.open, pair.clock.tasks_free) == (1, 2, 2, 0)
    for t, tail in ((1, NONE), (0, NONE)):
        pair.note[t].holds = 1
        message_events.release_task(pair.state, t)
        assert pair.qp.tail == tail
    assert (pair.qp.live, pair.clock.open, pair.clock.tasks_free, pair.clock.tasks_head) == (0, 0, 2, 0)
    assert (pair.task[0].next, pair.task[1].next) == (1, NONE)
    pair = Pair(monkeypatch, 1, 1)
    pair.note[0].holds = 1
    message_events.release_task(pair.state, 0)
    assert pair.qp.tail == 1  # the last is still there


@plain
@pytest.mark.parametrize(("filled", "grow"), [(0, 0), (11, 0), (12, c.MESSAGE_EVENT)])
def test_what_is_told_stands_in_a_row_and_is_read_before_the_table_is_full(monkeypatch, filled, grow):
    pair = Pair(monkeypatch, 1, 1)
    pair.clock.message_events = filled
    message_events.report_now(pair.state, 1, LOST)
    table = pair.state.message_event
    assert [table[filled, column] for column in range(3)] == [50, 101, LOST]
    assert (pair.clock.message_events, pair.clock.grow) == (filled + 1, grow)


@plain
@pytest.mark.parametrize(
    ("changed", "kind", "wanted"),
    [
        ({}, ARRIVED, True),
        ({"closed": 1}, ARRIVED, False),
        ({"closed": 1}, ENDED, False),
        ({"refused": 5, "refused_psn": 2}, ARRIVED, False),
        ({"refused": 5, "refused_psn": 3}, ARRIVED, True),
        ({"refused": 5, "refused_psn": 2}, ENDED, True),
    ],
)
def test_a_report_that_nobody_wants_is_dropped(monkeypatch, changed, kind, wanted):
    pair = Pair(monkeypatch, 2, 1, **changed)
    message_events.report(pair.state, 1, kind, 900)
    assert pair.note[1].holds == 3
    assert told(pair) == [(kind, 1, 900)]
    assert bool(message_events.on_report(pair.state, 1, kind)) == wanted
    assert (pair.clock.message_events, pair.note[1].holds) == (int(wanted), 2)


@plain
@pytest.mark.parametrize("patient", [0, 1])
@pytest.mark.parametrize(("traits", "later"), [
    (0, set()), (c.LATER_ARRIVED, {ARRIVED}), (c.LATER_ARRIVED | c.LATER_ENDED, {ARRIVED, ENDED}),
])  # fmt: skip
def test_patient_software_is_not_stopped_by_what_it_may_read_of_later(monkeypatch, patient, traits, later):
    for kind in EventKind:
        pair = Pair(monkeypatch, 2, 1)
        pair.clock.patient, pair.note[1].traits = patient, traits
        message_events.report(pair.state, 1, kind, 900)
        stops = bool(message_events.on_report(pair.state, 1, kind))
        assert stops == (not patient or kind not in later)
        assert (pair.clock.message_events, pair.note[1].holds) == (1, 2)  # told in any case
        assert [pair.state.message_event[0, column] for column in range(3)] == [50, 101, kind]


@plain
def test_what_is_in_memory_is_passed_and_told_by_its_traits(monkeypatch):
    """In memory 500 later than at the adapter."""
    pair = Pair(monkeypatch, 2, 2, 2, 2, in_memory=6)
    pair.note[0].traits = c.REPORT_ARRIVED
    pair.note[1].end_ps = 10_000
    pair.note[2].end_ps = 100
    message_events.pass_received(pair.state, pair.qp, 1000)
    assert [task.received_ps for task in pair.task] == [1500, 1500, 1500, NONE]
    assert told(pair) == [(ARRIVED, 0, 1500), (ENDED, 1, 10_000), (ENDED, 2, 1500)]
    assert (pair.chain, pair.qp.accepting) == ([3], 3)
    pair.note[3].accepted = 1
    message_events.pass_received(pair.state, pair.qp, 2000)
    assert (pair.chain, pair.task[3].received_ps, pair.qp.accepting) == ([], 2500, NONE)
    assert [note.holds for note in pair.note] == [2, 2, 2, 1]


@plain
def test_what_was_lost_is_passed_and_arrives_nowhere(monkeypatch):
    pair = Pair(monkeypatch, 2, 2, service=c.UC)
    pair.note[0].traits = c.REPORT_ARRIVED
    pair.qp.accepting = 1
    message_events.mark_lost(pair.state, pair.qp, 0)
    assert told(pair) == [(LOST, 0, 50)]
    assert (pair.chain, pair.task[0].received_ps, pair.qp.accepting, pair.note[0].lost) == ([1], NONE, 1, 1)


@plain
@pytest.mark.parametrize(
    ("service", "psn", "lost"),
    [(c.UC, 0, 0), (c.UC, 1, 0), (c.UD, 2, 1), (c.UC, 3, None), (c.UC, 4, 2), (c.UC, 6, None), (c.RC, 0, None),
     (c.RESPONSES, 0, None)],
)  # fmt: skip
def test_a_packet_that_is_dropped_loses_its_unreliable_message(monkeypatch, service, psn, lost):
    pair = Pair(monkeypatch, 2, 2, 2, service=service)
    pair.note[1].lost = int(psn == 3)
    pair.state.packet[4] = Record(psn=psn, qp=0)
    message_events.lose_message(pair.state, 4)
    assert [t for _, t, _ in told(pair)] == ([] if lost is None else [lost])


@plain
def test_a_gap_between_messages_loses_nothing(monkeypatch):
    pair = Pair(monkeypatch, 2, 2, service=c.UC)
    pair.task[0].psn_start = 1
    pair.state.packet[4] = Record(psn=0, qp=0)
    message_events.lose_message(pair.state, 4)
    assert told(pair) == []


@plain
def test_a_silent_queue_pair_forgets_what_it_still_has(monkeypatch):
    """The sender's side lets go of all; the receiver keeps what it has taken, for it still comes to memory."""
    pair = Pair(monkeypatch, 2, 2, 2, 2, expected=4, retransmit=3)
    pair.note[0].lost = 1
    message_events.silence(pair.state, pair.qp)
    qp = pair.qp
    assert (qp.failed, qp.head, qp.sending, qp.accepting, qp.tail, qp.retransmit) == (1, NONE, NONE, NONE, NONE, 0)
    assert (pair.chain, [note.holds for note in pair.note]) == ([1], [0, 1, 0, 0])
    pair = Pair(monkeypatch, 1, 1, 1, 1, expected=3)
    message_events.silence(pair.state, pair.qp)
    assert pair.chain == [0, 1, 2]


@plain
def test_a_sender_is_told_when_all_is_acknowledged_and_in_memory(monkeypatch):
    """The adapter's acknowledgement, and 30 of delivery and 7 of completion."""
    pair = Pair(monkeypatch, 2, 2, 2, 2, una=6)
    for note in pair.note:
        note.traits = c.REPORT_ENDED
    pair.task[0].received_ps = 9_000
    pair.task[1].received_ps = 900
    message_events.complete_messages(pair.state, pair.qp, 1000)
    assert told(pair) == [(ENDED, 0, 9_000), (ENDED, 1, 1037)]
    assert [note.end_ps for note in pair.note] == [NONE, NONE, 1037, NONE]  # told once it is in memory
    assert [task.done_ps for task in pair.task] == [1037, 1037, 1037, NONE]
    assert (pair.qp.head, pair.qp.sending) == (3, 3)


@plain
@pytest.mark.parametrize("changed", [{"service": c.UD}, {"service": c.UC}, {}])
def test_what_ends_at_the_adapter_or_is_not_acknowledged_is_told_at_once(monkeypatch, changed):
    pair = Pair(monkeypatch, 1, una=1, **changed)
    pair.note[0].traits = c.REPORT_ENDED
    pair.note[0].accepted = int(not changed)
    message_events.complete_messages(pair.state, pair.qp, 1000)
    assert told(pair) == [(ENDED, 0, 1037)]
    pair = Pair(monkeypatch, 1, una=1, **changed)
    message_events.complete_messages(pair.state, pair.qp, 1000)
    assert told(pair) == []  # nobody asked
    assert (pair.qp.head, pair.task[0].done_ps) == (NONE, 1037)


@plain
def test_a_sender_s_place_stays_where_it_is_ahead(monkeypatch):
    pair = Pair(monkeypatch, 1, 1, 1, una=1, sending=2)
    message_events.complete_messages(pair.state, pair.qp, 1000)
    assert (pair.qp.head, pair.qp.sending) == (1, 2)


@plain
@pytest.mark.parametrize(("una", "silent"), [(1, False), (2, True), (3, True)])
def test_nothing_beyond_a_refused_message_is_done(monkeypatch, una, silent):
    pair = Pair(monkeypatch, 1, 1, 1, una=una, refused=message_events.ALREADY, refused_psn=2)
    message_events.complete_messages(pair.state, pair.qp, 1000)
    assert [task.done_ps != NONE for task in pair.task] == [una > 0, una > 1, False]
    assert pair.qp.failed == silent


@plain
def test_the_oldest_message_is_told_of_a_failure(monkeypatch):
    pair = Pair(monkeypatch, 1, 1)
    message_events.fail_messages(pair.state, pair.qp, 1000, EventKind.FAILED)
    assert told(pair) == [(EventKind.FAILED, 0, 1037)]
    assert (pair.qp.failed, pair.qp.head) == (1, NONE)
    assert [note.holds for note in pair.note] == [1, 0]  # what is told keeps it
    pair = Pair(monkeypatch)
    message_events.fail_messages(pair.state, pair.qp, 1000, EventKind.FAILED)
    assert (pair.events, pair.qp.failed) == ([], 1)


@plain
def test_the_oldest_unreliable_message_is_done_once_sent(monkeypatch):
    pair = Pair(monkeypatch, 2, 3, service=c.UD)
    message_events.on_sent(pair.state, 0, 400)
    assert (pair.qp.una, pair.qp.head, pair.task[0].done_ps, pair.task[1].done_ps) == (2, 1, 437, NONE)
    pair.qp.head = NONE
    message_events.on_sent(pair.state, 0, 400)
    assert pair.qp.una == 2


# ---------------------------------------------------------------------- what software asks for


@plain
@pytest.mark.parametrize(("begins", "delay", "begun"), [(0, 25, 75), (200, 25, 200), (75, 25, 75)])
def test_a_posted_message_takes_a_free_task_and_begins_after_those_before(monkeypatch, begins, delay, begun):
    pair = Pair(monkeypatch, 1, 1)
    pair.clock.tasks_head, pair.clock.tasks_free, pair.clock.open, pair.qp.live = 1, 5, 3, 2
    pair.task[1].next, pair.qp.begin_ps = 0, begins
    row = [c.POST, 0, 9000, delay, 777, 16, 3, c.REPORT_ENDED, 4, 55]
    pair.state.inbox = {(0, column): value for column, value in enumerate(row)}
    pair.clock.inbox = 1
    message_commands.take_inbox(pair.state)
    task, note = pair.task[1], pair.note[1]
    assert (pair.clock.tasks_head, pair.clock.tasks_free, pair.clock.open, pair.qp.live) == (0, 4, 4, 3)
    assert (task.kind, task.status, task.qp, task.next, task.size_bytes) == (c.MESSAGE, c.WAITING, 0, NONE, 9000)
    assert (task.delay_ps, task.start_ps, task.received_ps, task.done_ps) == (delay, 50, NONE, NONE)
    assert vars(note) == {
        "message": 777, "first_extra": 16, "last_extra": 3, "traits": c.REPORT_ENDED, "partner": 4, "answers": 55,
        "holds": 1, "lost": 0, "accepted": 0, "end_ps": NONE,
    }  # fmt: skip
    assert (pair.qp.begin_ps, pair.events) == (begun, [(begun, QueueEvent.TASK, 0, 1)])
    assert pair.clock.inbox == 0


def refusing(pair, message, syndrome=2):
    pair.state.inbox = {(0, 0): c.REFUSE, (0, 1): 0, (0, 2): syndrome, (0, 4): message}
    pair.clock.inbox = 1
    message_commands.take_inbox(pair.state)
    return pair.qp.refused, pair.qp.refused_psn


@plain
def test_a_message_is_refused_where_it_has_come_to(monkeypatch):
    pair = Pair(monkeypatch, 2, 4, accepting=1, expected=2)
    assert refusing(pair, 101) == (2, 2)
    assert refusing(pair, 101, 4) == (2, 2)  # once
    assert refusing(Pair(monkeypatch, 2, 4, accepting=1, expected=4), 101) == (2, 4)
    assert refusing(Pair(monkeypatch, 2, 4, failed=1), 100) == (0, 0)


@plain
def test_a_message_that_was_taken_is_refused_behind_it(monkeypatch):
    pair = Pair(monkeypatch, 2, 4, 1, accepting=2, expected=6)
    assert refusing(pair, 101) == (message_events.ALREADY, 6)
    assert pair.qp.failed == 0
    pair = Pair(monkeypatch, 2, 4, 1, accepting=2, expected=6, una=6)
    assert refusing(pair, 101) == (message_events.ALREADY, 6)
    assert pair.qp.failed == 1
    pair = Pair(monkeypatch, 2, 4, accepting=NONE, una=1)
    assert refusing(pair, 999) == (message_events.ALREADY, 1)  # nothing is known of it
    assert pair.qp.failed == 1


@plain
@pytest.mark.parametrize("loopback", [False, True])
def test_a_request_is_refused_in_place_of_its_response(monkeypatch, loopback):
    pair = Pair(monkeypatch, 2, 1, accepting=NONE, expected=3, src=2 if loopback else 1)
    pair.note[1].traits = c.QUIET
    seen = []
    monkeypatch.setattr(
        message_commands, "progress", lambda state, q, qp, psn, now: seen.append(("progress", psn, now))
    )
    monkeypatch.setattr(
        message_commands, "on_nak", lambda state, q, qp, kind, psn, now: seen.append((kind, psn, now))
    )
    assert refusing(pair, 101, 3) == (-3, 2)
    if loopback:
        assert (seen, pair.answers) == ([("progress", 2, 50), (c.REFUSED, 2, 50)], [])
    else:
        assert (seen, pair.answers) == ([], [(c.REFUSED, 2, 50, 2, 3)])
    assert pair.qp.failed == 0


@plain
def test_a_closed_queue_pair_says_no_more(monkeypatch):
    pair = Pair(monkeypatch, 1, 1)
    pair.state.inbox = {(0, 0): c.CLOSE, (0, 1): 0}
    pair.clock.inbox = 1
    message_commands.take_inbox(pair.state)
    assert (pair.qp.closed, pair.qp.failed, pair.clock.inbox) == (1, 1, 0)


# ---------------------------------------------------------------------- what the receiver takes

NOT, MEMORY, TAKEN, HELD = (
    message_receive.NOT_TAKEN, message_receive.TO_MEMORY, message_receive.TAKEN, message_receive.HELD
)  # fmt: skip


@plain
def test_a_connection_takes_packets_in_order(monkeypatch):
    pair = Pair(monkeypatch, 3, 2, 4, ack_every=3)
    qp = pair.qp
    assert [pair.take(psn) for psn in (0, 1)] == [MEMORY] * 2
    assert (qp.expected, qp.unacked, pair.answers, pair.state.packet[4].extra) == (2, 2, [], 2)
    assert pair.take(4) == NOT
    assert (qp.out_of_sequence, qp.naks, qp.nak_sent) == (1, 1, 1)
    assert pair.answers == [(c.NAK, 2, 5, 2, 0)]
    assert pair.take(3) == NOT
    assert (qp.out_of_sequence, qp.naks, len(pair.answers)) == (2, 1, 1)  # asked for once
    assert pair.take(1) == NOT
    assert (qp.duplicates, pair.answers[1:]) == (1, [(c.ACK, 2, 5, NONE, 0)])
    qp.echo = 1
    assert pair.take(2, c.LAST) == MEMORY
    assert pair.answers[2:] == [(c.ACK, 3, 5, NONE, 1)]
    assert (qp.accepting, qp.nak_sent, qp.unacked, qp.echo) == (1, 0, 0, 0)
    assert pair.take(3, c.REQUEST) == MEMORY
    assert pair.answers[3:] == [(c.ACK, 4, 5, NONE, 0)]
    assert pair.take(4, c.LAST) == MEMORY
    assert [pair.take(psn) for psn in (5, 6, 7)] == [MEMORY] * 3
    assert pair.answers[5:] == [(c.ACK, 8, 5, NONE, 0)]
    pair.qp.closed = 1
    assert pair.take(8) == NOT


@plain
def test_what_its_sender_has_given_up_is_not_taken(monkeypatch):
    pair = Pair(monkeypatch, 1, accepting=NONE)
    assert pair.take(0) == NOT
    assert (pair.qp.expected, pair.answers) == (0, [])


@plain
def test_duplicates_of_a_stream_of_responses_are_not_acknowledged(monkeypatch):
    pair = Pair(monkeypatch, 2, 2, service=c.RESPONSES, expected=2)
    assert pair.take(0) == NOT
    assert (pair.qp.duplicates, pair.answers) == (1, [])


@plain
def test_a_quiet_message_is_not_acknowledged(monkeypatch):
    pair = Pair(monkeypatch, 1, 1, ack_every=1)
    pair.note[0].traits = c.QUIET
    assert pair.take(0, c.FIRST | c.LAST) == MEMORY
    assert (pair.answers, pair.qp.unacked) == ([], 0)


@plain
@pytest.mark.parametrize("service", [c.UC, c.UD])
def test_unreliable_services_take_what_is_whole_so_far(monkeypatch, service):
    pair = Pair(monkeypatch, 2, 2, 2, service=service)
    assert pair.take(0) == MEMORY
    assert pair.take(2) == MEMORY  # the next message, though the first lacks a packet
    assert (pair.qp.expected, pair.qp.accepting) == (3, 1)
    assert pair.take(1) == NOT  # of what is past
    pair.note[1].lost = 1
    assert pair.take(3) == NOT
    assert pair.take(6) == NOT
    assert (pair.qp.accepting, pair.answers) == (NONE, [])


@plain
@pytest.mark.parametrize("service", [c.RC, c.UD])
@pytest.mark.parametrize(
    ("traits", "marks", "takes"),
    [
        (c.TAKES_FIRST, c.FIRST, True), (c.TAKES_FIRST, 0, False), (c.TAKES_FIRST, c.LAST, False),
        (c.TAKES_LAST, c.LAST, True), (c.TAKES_LAST, c.FIRST, False), (0, c.FIRST | c.LAST, False),
    ],
)  # fmt: skip
def test_a_message_takes_a_receive_with_its_first_or_its_last_packet(monkeypatch, service, traits, marks, takes):
    pair = Pair(monkeypatch, 2, 2, service=service, pool=1)
    pair.note[0].traits = traits
    assert pair.take(0, marks) == MEMORY
    assert pair.state.pool == [0, 1 if takes else 2]
    pair = Pair(monkeypatch, 2, 2, service=service, pool=0)
    pair.note[0].traits = traits
    assert pair.take(0, marks) == (NOT if takes else MEMORY)
    assert pair.state.pool == [0, 2]
    if takes and service == c.RC:
        assert (pair.qp.rnr_naks, pair.qp.nak_sent, pair.answers) == (1, 1, [(c.RNR, 0, 5, 0, 0)])
        assert pair.qp.expected == 0
    elif takes:
        assert (pair.note[0].lost, pair.answers) == (1, [])
    pair = Pair(monkeypatch, 2, 2, service=service, pool=NONE)
    pair.note[0].traits = traits
    assert pair.take(0, marks) == MEMORY


@plain
def test_software_sees_a_message_before_its_first_packet_is_taken(monkeypatch):
    pair = Pair(monkeypatch, 2)
    pair.note[0].traits = c.REPORT_BEGIN
    assert pair.take(0, c.FIRST, 80) == HELD
    assert pair.events == [(80, QueueEvent.LATE_ARRIVE, 3, 4)]  # once more at the port of its slot
    assert (pair.clock.grow, pair.clock.message_events, pair.note[0].traits) == (c.MESSAGE_EVENT, 1, 0)
    assert pair.state.message_event[0, 2] == EventKind.BEGUN
    assert pair.take(0, c.FIRST) == MEMORY
    pair = Pair(monkeypatch, 2)
    pair.note[0].traits = c.REPORT_BEGIN
    assert pair.take(0, c.LAST) == MEMORY


@plain
def test_a_refused_message_is_answered_with_its_syndrome(monkeypatch):
    pair = Pair(monkeypatch, 2, 2, refused=2, refused_psn=0)
    assert pair.take(0, c.FIRST) == NOT
    assert (pair.qp.naks, pair.answers) == (1, [(c.REFUSED, 0, 5, 0, 2)])
    assert pair.take(1) == NOT  # behind it nothing is answered
    assert len(pair.answers) == 1
    pair = Pair(monkeypatch, 2, 2, refused=2, refused_psn=2, expected=2, accepting=1)
    assert pair.take(1) == NOT  # before it, an acknowledgement that was lost
    assert pair.answers == [(c.ACK, 2, 5, NONE, 0)]
    pair = Pair(monkeypatch, 2, 2, refused=-3, refused_psn=1, expected=2, accepting=1)
    assert pair.take(1) == NOT  # its NAK once more
    assert pair.answers == [(c.REFUSED, 1, 5, 1, 3)]
    pair = Pair(monkeypatch, 2, 2, refused=message_events.ALREADY, refused_psn=1, expected=1)
    assert pair.take(1) == NOT
    assert pair.answers == []
    pair = Pair(monkeypatch, 2, 2, refused=-3, refused_psn=1, expected=2, service=c.UC)
    assert pair.take(0) == NOT
    assert pair.answers == []


@plain
def test_a_request_ends_at_the_adapter_behind_what_was_written_before(monkeypatch):
    pair = Pair(monkeypatch, 1, 1)
    pair.note[1].traits = c.AT_ADAPTER | c.QUIET
    pair.qp.accepting, pair.qp.expected = 1, 1
    assert pair.take(1, c.FIRST | c.LAST) == TAKEN
    assert (pair.note[1].accepted, pair.task[1].received_ps, pair.chain) == (1, NONE, [0, 1])
    pair.qp.in_memory = 1
    message_events.pass_received(pair.state, pair.qp, 1000)
    assert pair.chain == []


@plain
def test_a_response_acknowledges_the_request_that_it_answers(monkeypatch):
    pair = Pair(monkeypatch, 2, 2, 2)
    state = pair.state
    moved = []
    monkeypatch.setattr(message_receive, "progress", lambda s, q, qp, psn, now: moved.append((q, psn, now)))
    state.qp = {3: pair.qp}
    message_receive.acknowledge_request(state, Record(partner=3, answers=101), 70)
    assert (moved, pair.ready) == ([(3, 4, 70)], [3])
    message_receive.acknowledge_request(state, Record(partner=3, answers=555), 70)
    message_receive.acknowledge_request(state, Record(partner=NONE, answers=101), 70)
    assert (len(moved), len(pair.ready)) == (1, 1)
    pair = Pair(monkeypatch, 2, service=c.RESPONSES)
    asked = []
    monkeypatch.setattr(message_receive, "acknowledge_request", lambda s, note, now: asked.append(note.message))
    assert [pair.take(0, c.FIRST, 60), pair.take(1, c.LAST, 61)] == [MEMORY] * 2
    assert (asked, moved[1:], pair.answers) == ([100], [(0, 1, 60), (0, 2, 61)], [])


@plain
@pytest.mark.parametrize("kind", [c.ACK, c.NAK, c.RNR, c.REFUSED])
@pytest.mark.parametrize("failed", [0, 1])
def test_on_one_adapter_the_answer_is_there_at_once(monkeypatch, kind, failed):
    pair = Pair(monkeypatch, 3, 3, src=2, expected=4, failed=failed)
    seen = []
    monkeypatch.setattr(message_receive, "progress", lambda s, q, qp, psn, now: seen.append(("progress", psn)))
    monkeypatch.setattr(message_receive, "on_nak", lambda s, q, qp, k, psn, now: seen.append((k, psn)))
    message_receive.answer(pair.state, 0, pair.qp, kind, 6, 5, 0, 70)
    message_receive.answer(pair.state, 0, pair.qp, kind, 2, 5, 0, 70)
    expected = [("progress", 4), (kind, 6), ("progress", 2), (kind, 2)]
    if kind == c.ACK or failed:
        expected = [one for one in expected if one[0] == "progress"]
    assert (seen, pair.answers, pair.ready) == (expected, [], [0, 0])


# ---------------------------------------------------------------------- tasks


@plain
@pytest.mark.parametrize(("size", "packets"), [(0, 1), (1, 1), (4096, 1), (4097, 2), (8192, 2), (8193, 3)])
def test_a_message_joins_its_queue_pair_s_chain(monkeypatch, size, packets):
    pair = Pair(monkeypatch, 2, 1, 1)
    pair.qp.posted_psn, pair.qp.tail, pair.task[1].next = 9, 1, NONE
    pair.task[2].status, pair.task[2].size_bytes, pair.note[2].holds = c.WAITING, size, 1
    dependencies.begin_task(pair.state, 2, 60)
    assert (pair.task[2].psn_start, pair.task[2].psn_end, pair.qp.posted_psn) == (9, 9 + packets, 9 + packets)
    assert (pair.task[1].next, pair.task[2].next, pair.qp.tail) == (2, NONE, 2)
    assert (pair.qp.head, pair.qp.sending, pair.qp.receiving, pair.qp.accepting) == (0, 0, 0, 0)
    assert (pair.note[2].holds, pair.ready, pair.task[2].status) == (2, [0], c.POSTED)
    dependencies.begin_task(pair.state, 2, 61)
    assert pair.ready == [0]  # once
    places = dict.fromkeys(("head", "sending", "receiving", "accepting", "tail"), NONE)
    pair = Pair(monkeypatch, 1, **places)
    pair.task[0].status = c.WAITING
    dependencies.begin_task(pair.state, 0, 60)
    assert {name: getattr(pair.qp, name) for name in places} == dict.fromkeys(places, 0)


@plain
@pytest.mark.parametrize(("left", "linked"), [({}, False), ({"head": 1}, True)])
def test_a_task_that_is_acknowledged_may_be_another_s(monkeypatch, left, linked):
    """Its record may have been placed anew: nothing is linked behind it; sending begins with what is posted."""
    chain = {"head": NONE, "receiving": NONE, "sending": 1, "tail": 1} | left
    pair = Pair(monkeypatch, 1, 1, 1, noted=0, **chain)
    pair.task[1].next, pair.task[2].status = NONE, c.WAITING
    dependencies.begin_task(pair.state, 2, 60)
    assert pair.task[1].next == (2 if linked else NONE)
    assert (pair.qp.sending, pair.qp.tail) == (1 if linked else 2, 2)
    assert pair.qp.head == left.get("head", 2)
    assert pair.qp.receiving == NONE  # packets name their tasks


@plain
@pytest.mark.parametrize(("kind", "called"), [(c.DELAY, False), (c.CALL, True)])
def test_a_call_s_delay_ends_and_stops_the_loop(monkeypatch, kind, called):
    pair = Pair(monkeypatch, 1)
    pair.clock.called, pair.clock.grow = NONE, 0
    pair.task[0].status, pair.task[0].kind = c.WAITING, kind
    pair.task[0].next_start = pair.task[0].next_middle = pair.task[0].next_end = 0
    dependencies.begin_task(pair.state, 0, 60)
    assert (pair.task[0].status, pair.task[0].received_ps, pair.task[0].done_ps) == (c.DONE, 60, 60)
    assert (pair.clock.called, pair.clock.grow) == ((0, c.CALLED) if called else (NONE, 0))


@plain
@pytest.mark.parametrize("noted", [0, 1])
def test_a_message_for_a_failed_queue_pair_fails(monkeypatch, noted):
    pair = Pair(monkeypatch, 1, failed=1, noted=noted)
    pair.task[0].status, pair.note[0].holds = c.WAITING, 1
    dependencies.begin_task(pair.state, 0, 60)
    assert (pair.task[0].status, pair.clock.open, pair.ready) == (c.FAILED, 0, [])
    assert (pair.clock.logged, pair.clock.tasks_free) == ((0, 1) if noted else (1, 0))


@plain
def test_a_failed_queue_pair_ends_all_that_is_posted(monkeypatch):
    pair = Pair(monkeypatch, 1, 1, 1)
    dependencies.fail_queue_pair(pair.state, pair.qp, 60)
    assert [(task.status, task.done_ps) for task in pair.task] == [(c.FAILED, 60)] * 3
    assert pair.state.log[:4] == [0, 1, 2, NONE]
    assert (pair.clock.logged, pair.clock.open, pair.qp.failed, pair.qp.head) == (3, 0, 1, NONE)


@plain
def test_both_ends_of_a_message_start_their_own_successors(monkeypatch):
    pair = Pair(monkeypatch, 1, 1, 1, 1)
    first = pair.task[0]
    first.next_start, first.next_middle, first.next_end = 1, 3, 4
    pair.state.successor = [9, 1, 2, 3, 9]
    for t, waits in ((1, 1), (2, 2), (3, 1)):
        pair.task[t].waits, pair.task[t].delay_ps = waits, 10 * t
    dependencies.receive_task(pair.state, 0, 200)
    assert pair.events == [(210, QueueEvent.TASK, 0, 1)]
    assert (first.received_ps, first.status, pair.task[2].waits, pair.task[1].start_ps) == (200, c.POSTED, 1, 200)
    dependencies.finish_task(pair.state, 0, 300)
    assert pair.events[1:] == [(330, QueueEvent.TASK, 0, 3)]
    assert (first.done_ps, first.status, pair.clock.open, pair.state.log[0]) == (300, c.DONE, 3, 0)
    dependencies.receive_task(pair.state, 0, 400)
    assert first.status == c.DONE
