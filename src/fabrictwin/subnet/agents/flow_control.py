"""Ports that break the rules of link-level flow control, and how the other end notices (IBTA volume 1, 7.9.4).

A port that *ignores credits* sends more than the other end has room for, and the receiver loses what does not fit.
Each `PortInfo.OverrunErrors` flow-control update periods in a row with such a loss are one
ExcessiveBufferOverrunErrors and a trap 130. A port that is *mute* sends no credit updates: the other end's
watchdog expires, which retrains the link (LinkErrorRecovery) and is a trap 131.

Periods are counted in symbol times (one byte on one lane): 65,536 between updates, 400,000 until the watchdog
expires; both figures as recalled from the standard. Left out: what such a port does to packets of a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabrictwin.fabric.fabric import NONE
from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.subnet.agents.notices import Notices
from fabrictwin.subnet.agents.port_states import PortStates
from fabrictwin.subnet.wire.fields import Field
from fabrictwin.subnet.wire.link_encodings import lane_rate_bps
from fabrictwin.subnet.wire.notice import Trap
from fabrictwin.subnet.wire.smp import PortInfo

UPDATE_SYMBOLS = 65_536
WATCHDOG_SYMBOLS = 400_000
OVERRUN, WATCHDOG = Trap.BUFFER_OVERRUN, Trap.FLOW_CONTROL_WATCHDOG
_COUNTER = {OVERRUN: "excessive_buffer_overrun_errors", WATCHDOG: "link_error_recovery"}
_OVERRUN_ERRORS = Field(PortInfo, "overrun_errors")


@dataclass
class _Fault:
    trap: Trap
    since_ps: int  # NONE while the link is down
    counted: int = 0


class FlowControl:
    """The faulty ports of one fabric."""

    def __init__(self, state: PortStates, notices: Notices) -> None:
        self.state, self.notices = state, notices
        notices.next_cause.append(self.next_ps)
        notices.raise_due.append(self.advance)
        self.awaited_events = 1  # events of a fault for whose sake time goes on by itself
        self._faults: dict[int, _Fault] = {}  # by the slot that misbehaves

    def misbehave(self, slot: int, trap: Trap, now_ps: int) -> None:
        """A port ignores credits (OVERRUN) or sends no updates (WATCHDOG) from now on, until `heal`."""
        self._faults[slot] = _Fault(trap, now_ps)

    def heal(self, slot: int, now_ps: int) -> bool:
        """A port follows the rules again; whether it did not."""
        self.advance(now_ps)
        return self._faults.pop(slot, None) is not None

    def period_ps(self, slot: int, trap: Trap) -> int:
        """Return how long the receiving end at `slot` takes to complain."""
        built = self.state.built[slot]
        assert built is not None
        symbols = WATCHDOG_SYMBOLS
        if trap == OVERRUN:
            symbols = UPDATE_SYMBOLS * max(1, _OVERRUN_ERRORS.get(self.state.info, 64 * slot))
        return symbols * 8 * PS_PER_S // lane_rate_bps(built[1])

    def advance(self, now_ps: int) -> None:
        """Count what happened until now, and tell of it."""
        state = self.state
        for slot, fault in self._faults.items():
            far = state.link[slot]
            if far == NONE:
                fault.since_ps = NONE
                continue
            if fault.since_ps == NONE:
                fault.since_ps, fault.counted = now_ps, 0
            times = (now_ps - fault.since_ps) // self.period_ps(far, fault.trap)
            if times > fault.counted:
                state.counters[_COUNTER[fault.trap]][far] += times - fault.counted
                fault.counted = times
                self.notices.raise_trap(state.node_of[far], fault.trap, now_ps, port=state.number[far])

    def next_ps(self, plane: int) -> int | None:
        """Return when the other end of a subnet's faulty port complains next, while it is to be waited for."""
        state = self.state
        due = [
            fault.since_ps + (fault.counted + 1) * self.period_ps(state.link[slot], fault.trap)
            for slot, fault in self._faults.items()
            if state.link[slot] != NONE
            and fault.since_ps != NONE
            and fault.counted < self.awaited_events
            and state.plane_of(state.node_of[slot]) == plane
        ]
        return min(due, default=None)
