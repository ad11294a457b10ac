"""A flow that is opened after time has passed: its messages leave at that time, not at the engine's beginning."""

from __future__ import annotations

import pytest
from support.clusters import boxes

from fabrictwin.base.capabilities import Fidelity
from fabrictwin.engines.base.messages import Message, Opcode

LATE_PS = 5 * 10**9


@pytest.mark.parametrize("fidelity", ["packet", "flow", "analytic"])
def test_a_message_on_a_flow_that_is_opened_late(fidelity: Fidelity) -> None:
    times = []
    for begin_ps in (0, LATE_PS):
        engine = boxes(2).start_engine(fidelity)
        if begin_ps:
            engine.advance(begin_ps)
        assert engine.now_ps == begin_ps
        engine.send(engine.open(0, 1), Message(64, Opcode.WRITE))
        times.append(engine.advance().events[0].time_ps)
    assert times[1] - times[0] == LATE_PS
