"""The table of a work request's states: what can follow on what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.base.errors import InvariantError
from fabrictwin.verbs.adapter.transport.request_states import AWAITED, ON_ITS_WAY, TRANSITIONS, Input, RequestState
from fabrictwin.verbs.adapter.transport.request_states import after as next_state

S, IN = RequestState, Input
DEAD = {S.FLUSHED, S.FLUSHED_ACKNOWLEDGED, S.GONE}


@given(st.lists(st.sampled_from(Input), max_size=12))
def test_whatever_happens_what_ends_stays_ended(happened):
    state, flushed = S.POSTED, False
    for one in happened:
        if (state, one) not in TRANSITIONS:
            with pytest.raises(InvariantError, match=f"{state.name} got {one.name}"):
                next_state(state, one)
            continue
        before, state = state, next_state(state, one)
        flushed |= one is IN.FLUSH
        assert (state in DEAD) == flushed, "a flushed request never comes back to life"
        if before in (S.DONE, S.GONE):
            assert state in (S.DONE, S.GONE)
        if before not in ON_ITS_WAY and before is not S.POSTED:
            assert state not in ON_ITS_WAY, "what has arrived does not travel again"


@pytest.mark.parametrize(
    ("happened", "end"),
    [
        ((IN.BEGIN, IN.ARRIVE, IN.ACKNOWLEDGE), S.DONE),
        ((IN.BEGIN, IN.ACKNOWLEDGE, IN.ARRIVE, IN.COMPLETE), S.DONE),  # the acknowledgement overtakes the bytes
        ((IN.BEGIN, IN.ARRIVE, IN.SILENCE, IN.ACKNOWLEDGE, IN.COMPLETE), S.DONE),  # given up after the timeout
        ((IN.BEGIN, IN.LEAVE, IN.ARRIVE), S.DONE),  # an unreliable message
        ((IN.BEGIN, IN.ARRIVE, IN.LEAVE), S.DONE),
        ((IN.BEGIN, IN.FLUSH, IN.ARRIVE), S.GONE),
        ((IN.BEGIN, IN.LEAVE, IN.FLUSH, IN.ARRIVE), S.GONE),
        ((IN.SILENCE, IN.COMPLETE), S.DONE),  # no way leads there
        ((IN.COMPLETE,), S.DONE),  # done by the adapter alone
    ],
)
def test_requests_take_the_ways_that_there_are(happened, end):
    state = S.POSTED
    for one in happened:
        state = next_state(state, one)
    assert state is end


def test_every_state_can_be_flushed_but_the_flushed_ones():
    assert {state for state in S if (state, IN.FLUSH) in TRANSITIONS} == set(S) - DEAD | {S.GONE}
    assert not AWAITED & DEAD
