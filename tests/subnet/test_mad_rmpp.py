"""Tables of records over a channel that loses, repeats and reorders datagrams."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictwin.subnet.wire import rmpp
from fabrictwin.subnet.wire.fields import MadError
from fabrictwin.subnet.wire.header import Method, SaMad

HEAD = SaMad(method=Method.GET_TABLE_RESP, tid=7, attribute=0x11, attribute_offset=14)


def transfer(table: bytes, lost: list[bool]) -> tuple[rmpp.Sender, rmpp.Receiver]:
    """Both ends with a channel between them that drops the datagrams that `lost` says."""
    sender, receiver = rmpp.Sender(rmpp.segments(HEAD, table)), rmpp.Receiver()
    fate = iter(lost)
    now = 0
    out = sender.start(now)
    for _ in range(10_000):
        acks: list[SaMad] = []
        for mad in out:
            if not next(fate, False):
                acks += receiver.receive(SaMad.decode(mad.encode()))
        out = []
        for ack in acks:
            if not next(fate, False):
                out += sender.receive(SaMad.decode(ack.encode()), now)
        if sender.done:
            break
        if not out:
            now += sender.timeout_ps
            out = sender.poll(now)
    return sender, receiver


@settings(max_examples=60)
@given(st.integers(0, 12_000), st.lists(st.booleans(), max_size=12))
def test_a_table_arrives_whole_in_spite_of_losses(size, lost):
    table = bytes(i * 7 & 0xFF for i in range(size))
    sender, receiver = transfer(table, lost)
    if sender.failed is None:
        assert receiver.done
        assert receiver.table == table
    else:
        # only a run of losses as long as all retries may end it
        assert sender.failed == rmpp.Reason.TOO_MANY_RETRIES
        assert sum(lost) > rmpp.RETRIES


def test_without_losses_nothing_is_sent_twice():
    table = bytes(200 * 40)
    sender, receiver = transfer(table, [])
    assert receiver.table == table
    assert sender.window.tries == 0


def test_the_first_segment_tells_the_length_and_the_last_what_is_left():
    parts = rmpp.segments(HEAD, bytes(450))
    assert [p.rmpp_data1 for p in parts] == [1, 2, 3]
    assert [p.rmpp_flags for p in parts] == [3, 1, 5]
    assert parts[0].rmpp_data2 == 450 + 3 * 20
    assert parts[2].rmpp_data2 == 50 + 20


def test_an_empty_table_is_one_segment():
    assert [p.rmpp_flags for p in rmpp.segments(HEAD, b"")] == [7]
    _, receiver = transfer(b"", [])
    assert receiver.done
    assert receiver.table == b""


def test_a_peer_that_never_acknowledges_gets_one_window_and_is_given_up():
    sender = rmpp.Sender(rmpp.segments(HEAD, bytes(2000)), retries=0)
    assert len(sender.start(0)) == rmpp.FIRST_WINDOW
    assert sender.poll(sender.timeout_ps) == []
    assert sender.done
    assert sender.failed == rmpp.Reason.TOO_MANY_RETRIES


@settings(max_examples=100)
@given(st.lists(st.binary(min_size=256, max_size=256), max_size=6))
def test_a_receiver_ends_or_waits_whatever_it_is_sent(mads):
    receiver = rmpp.Receiver()
    for mad in mads:
        for answer in receiver.receive(SaMad.decode(mad)):
            answer.encode()
    if receiver.failed is None and receiver.done:
        assert receiver.head is not None


@given(st.binary(max_size=400), st.integers(-2, 20))
def test_records_come_out_even_or_raise(table, words):
    try:
        cut = rmpp.records(table, words)
    except MadError:
        assert table
        assert words <= 0 or len(table) % (8 * words)
    else:
        assert b"".join(cut) == table


def test_a_stopped_transfer_says_so():
    receiver = rmpp.Receiver()
    stop = SaMad(method=Method.GET_TABLE_RESP, rmpp_flags=1, rmpp_type=rmpp.Kind.STOP, rmpp_status=1)
    assert receiver.receive(stop) == []
    assert receiver.done
    assert receiver.failed == rmpp.Reason.RESOURCES
    sender = rmpp.Sender(rmpp.segments(HEAD, bytes(900)))
    sender.start(0)
    assert sender.receive(stop, 0) == []
    assert sender.failed is not None


def test_aborts_carry_their_reason():
    receiver = rmpp.Receiver()
    (abort,) = receiver.receive(SaMad(rmpp_flags=1, rmpp_type=rmpp.Kind.DATA, rmpp_data1=1))
    assert abort.rmpp_type == rmpp.Kind.ABORT
    assert abort.rmpp_status == rmpp.Reason.INCONSISTENT_FIRST
    with pytest.raises(ValueError, match="999"):
        rmpp.Reason(999)
