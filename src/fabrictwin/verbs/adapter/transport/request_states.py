"""States of a work request, from the send queue to its completion, as a table of transitions.

1. A request is posted, and begins when nothing before it holds it back.
2. Once begun it is under way until it has arrived whole. An acknowledgement can overtake the bytes on their way
   into memory; what they meet there decides.
3. A reliable request is done once it has arrived and was acknowledged, answered, or given up. An unreliable one is
   done when it has left, wherever it is then.
4. A request that nobody answers waits for its timeout, whatever else the wire says.
5. A queue pair that fails or is reset flushes its requests: it waits for them no more, but what is on the wire
   still arrives.

A completion is made in order of posting (`requester.retire`), so a request that is done may wait for others.
"""

from __future__ import annotations

from enum import IntEnum, auto

from fabrictwin.base.errors import InvariantError


class RequestState(IntEnum):
    """State of a request."""

    POSTED = auto()  # not on the wire yet
    UNDER_WAY = auto()
    ACKNOWLEDGED = auto()  # by the wire, before it is in the receiver's memory
    ARRIVED = auto()  # and not acknowledged or answered yet
    UNANSWERED = auto()  # the receiver does not answer; the timeout runs
    SENT = auto()  # unreliable: it has left, done as far as its sender knows, and not arrived
    DONE = auto()
    FLUSHED = auto()  # its queue pair waits for it no more; it is still under way
    FLUSHED_ACKNOWLEDGED = auto()
    GONE = auto()  # flushed, and nothing more comes of it


class Input(IntEnum):
    """Something that happens to a request."""

    BEGIN = auto()  # it goes onto the wire
    ARRIVE = auto()  # it is with the receiver whole, or of an unreliable service lost
    ACKNOWLEDGE = auto()  # the wire's own acknowledgement of a reliable message
    LEAVE = auto()  # the last byte of an unreliable message has left
    COMPLETE = auto()  # done by the adapter alone, answered, refused, failed or given up
    SILENCE = auto()  # the receiver drops it, or its answer is lost
    FLUSH = auto()  # its queue pair failed or was reset


_S, _I = RequestState, Input

TRANSITIONS: dict[tuple[RequestState, Input], RequestState] = {
    (_S.POSTED, _I.BEGIN): _S.UNDER_WAY,
    (_S.POSTED, _I.COMPLETE): _S.DONE,
    (_S.POSTED, _I.SILENCE): _S.UNANSWERED,
    (_S.POSTED, _I.FLUSH): _S.GONE,
    (_S.UNDER_WAY, _I.ARRIVE): _S.ARRIVED,
    (_S.UNDER_WAY, _I.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.UNDER_WAY, _I.LEAVE): _S.SENT,
    (_S.UNDER_WAY, _I.COMPLETE): _S.DONE,
    (_S.UNDER_WAY, _I.SILENCE): _S.UNANSWERED,
    (_S.UNDER_WAY, _I.FLUSH): _S.FLUSHED,
    (_S.ACKNOWLEDGED, _I.ARRIVE): _S.ARRIVED,
    (_S.ACKNOWLEDGED, _I.COMPLETE): _S.DONE,
    (_S.ACKNOWLEDGED, _I.FLUSH): _S.FLUSHED_ACKNOWLEDGED,
    (_S.ARRIVED, _I.ACKNOWLEDGE): _S.DONE,
    (_S.ARRIVED, _I.LEAVE): _S.DONE,
    (_S.ARRIVED, _I.COMPLETE): _S.DONE,
    (_S.ARRIVED, _I.SILENCE): _S.UNANSWERED,
    (_S.ARRIVED, _I.FLUSH): _S.GONE,
    (_S.UNANSWERED, _I.ACKNOWLEDGE): _S.UNANSWERED,
    (_S.UNANSWERED, _I.SILENCE): _S.UNANSWERED,
    (_S.UNANSWERED, _I.COMPLETE): _S.DONE,
    (_S.UNANSWERED, _I.FLUSH): _S.GONE,
    (_S.SENT, _I.ARRIVE): _S.DONE,
    (_S.SENT, _I.FLUSH): _S.FLUSHED,
    (_S.DONE, _I.FLUSH): _S.GONE,
    (_S.FLUSHED, _I.ARRIVE): _S.GONE,
    (_S.FLUSHED, _I.ACKNOWLEDGE): _S.FLUSHED_ACKNOWLEDGED,
    (_S.FLUSHED, _I.LEAVE): _S.FLUSHED,
    (_S.FLUSHED, _I.COMPLETE): _S.GONE,
    (_S.FLUSHED, _I.SILENCE): _S.GONE,
    (_S.FLUSHED_ACKNOWLEDGED, _I.ARRIVE): _S.GONE,
    (_S.FLUSHED_ACKNOWLEDGED, _I.COMPLETE): _S.GONE,
    **{(_S.GONE, some): _S.GONE for some in (_I.ACKNOWLEDGE, _I.LEAVE, _I.COMPLETE, _I.SILENCE, _I.FLUSH)},
}

# the same as a table, for every step of every request: `STATE_AFTER[state][input]`
STATE_AFTER = tuple(tuple(TRANSITIONS.get((state, one)) for one in (0, *Input)) for state in (0, *RequestState))

# states in which the message is still on its way to the receiver's memory
ON_ITS_WAY = frozenset((_S.UNDER_WAY, _S.ACKNOWLEDGED, _S.SENT, _S.FLUSHED, _S.FLUSHED_ACKNOWLEDGED))
# states in which the queue pair still waits for the request
AWAITED = frozenset((_S.POSTED, _S.UNDER_WAY, _S.ACKNOWLEDGED, _S.ARRIVED, _S.UNANSWERED))


def after(state: RequestState, happened: Input) -> RequestState:
    """Return the state after something happened. Raises InvariantError for what cannot happen in a state."""
    following = TRANSITIONS.get((state, happened))
    if following is None:
        raise InvariantError(f"a request that is {state.name} got {happened.name}")
    return following
