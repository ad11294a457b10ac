"""Steps that are skipped within an error that was allowed, seen to be steady before and held to that after.

Of a communication that is alone, two windows of some steps are compared. The error of a skip is what they differ
by in time a step, over the steps to be skipped, and by how much more the last queue pair is behind the mean in
some steps than in others, for it ends the communication. It is within what is allowed of the time until then, less
what earlier skips took. No more steps are skipped than were done before. After a skip a window is played: where
its steps take another time by more than is left, the state from before the skip comes back, and they are played.

Nothing is skipped past what else is scheduled, nor where marks, drops or pauses came or a control acts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fabrictwin.base.records import record
from fabrictwin.engines.packet.repetition.kernel_snapshots import PORT_COUNTS
from fabrictwin.engines.packet.repetition.steady_steps import (
    Seen,
    Steps,
    jump,
    lead_ps,
    other_tasks_ps,
    progress,
    reach,
    steps_of,
)

if TYPE_CHECKING:
    from fabrictwin.engines.packet.communication_tasks import PlacedTasks
    from fabrictwin.kernel.packet.machine import Machine

WINDOW = 6  # steps
LEAST = 6  # steps worth a skip
SETTLING = 2  # steps of a communication before the first window


@record
class _Mark:
    """How far a communication is at a time, and what ports and controls counted until then."""

    now_ps: int
    sent: float  # steps, on average
    done: int  # steps, by all
    done_ps: float  # on average
    port: dict[str, Any]
    disturbed: int


@record
class _Trial:
    """A skip that is yet to be held to what comes after it."""

    saved: dict[str, Any]
    after: _Mark
    step_ps: float
    by: int
    hops: int
    drift_ps: float
    lead_ps: float


class StepSkips:
    """Skips of whole steps on one network; `share` is the error that is allowed, of the time so far."""

    def __init__(self, machine: Machine, placed: PlacedTasks, share: float) -> None:
        self.machine, self.placed, self.share = machine, placed, share
        self.hops = 0  # packet-hops that were skipped
        self.error_ps = 0.0  # the bound on what they moved times by
        self._lead_ps = 0.0  # of it what the communication at hand has by its last queue pair
        self._end = -1  # task that ends the communication that is looked at
        self._steps: Steps | None = None
        self._marks: list[_Mark] = []
        self._trial: _Trial | None = None

    @property
    def on_trial(self) -> bool:
        """A skip is yet to be held to what comes after it."""
        return self._trial is not None

    def close(self) -> None:
        """All is done: a skip that nothing came after keeps the error that was seen before it."""
        if self._trial is not None:
            self._accept(self._trial, self._trial.drift_ps)

    def look(self) -> None:
        """Skip steps where that is allowed; judge the skip before."""
        under_way = self.placed.alone()
        if under_way is None:
            self._end, self._steps, self._marks = -1, None, []
            return
        end, place, count = under_way
        if end != self._end:
            self._end, self._marks, self._lead_ps = end, [], 0.0
            self._steps = steps_of(self.machine.state, place, count)
        if self._steps is None:
            return
        least = self._marks[-1].sent + WINDOW if self._marks else SETTLING
        if progress(self.machine.state, self._steps) < least:
            return
        self._marks.append(self._mark(self._steps))
        if self._trial is not None and not self._holds(self._trial):
            return
        if len(self._marks) >= 3:
            self._skip(self._steps, *self._marks[-3:])

    def _mark(self, steps: Steps) -> _Mark:
        state = self.machine.state
        disturbed = sum(int(state.count[name].sum()) for name in state.count.dtype.names)
        disturbed += int(state.clock[0].dropped) + int(state.qp.retransmitted.sum())
        disturbed += int((state.qp.gap_q[steps.pair] > 0).sum())
        port = {name: state.port[name].copy() for name in PORT_COUNTS}
        done, _, done_ps = reach(state, steps)
        return _Mark(int(state.clock[0].now), progress(state, steps), done, done_ps, port, disturbed)

    def _skip(self, steps: Steps, first: _Mark, second: _Mark, third: _Mark) -> None:
        """Skip what two windows allow."""
        state = self.machine.state
        if first.disturbed != third.disturbed:
            return
        step_ps = _step_ps(first, third)
        _, posted, _ = reach(state, steps)
        by = min(third.done - steps.alike[0], steps.alike[1] - WINDOW - posted)
        by = min(by, int((other_tasks_ps(state, steps) - third.now_ps) / step_ps) - 2 * WINDOW)
        drift_ps = abs(_step_ps(first, second) - _step_ps(second, third))
        lead = max(lead_ps(state, steps, first.done, third.done), self._lead_ps)
        # what is allowed grows with the steps that are skipped, and so does the error
        left_ps = self.share * third.now_ps - self.error_ps - (lead - self._lead_ps)
        more_ps = self.share * step_ps - drift_ps
        if more_ps < 0:
            by = min(by, int(left_ps / -more_ps))
        elif left_ps + more_ps * by < 0:
            return
        if by < LEAST:
            return
        saved = {name: array.copy() for name, array in state._asdict().items()}
        sent = third.sent - first.sent
        seen = Seen(
            step_ps, first.now_ps, {name: (third.port[name] - first.port[name]) / sent for name in PORT_COUNTS}
        )
        hops = jump(state, steps, seen, by)
        self._marks = [self._mark(steps)]
        self._trial = _Trial(saved, self._marks[0], step_ps, by, hops, drift_ps * by, lead)

    def _holds(self, trial: _Trial) -> bool:
        """Return True where steps after a skip take the time that those before it took; else undo it."""
        self._trial = None
        last = self._marks[-1]
        drift_ps = max(abs(_step_ps(trial.after, last) - trial.step_ps) * trial.by, trial.drift_ps)
        error_ps = drift_ps + trial.lead_ps - self._lead_ps
        if self.error_ps + error_ps > self.share * last.now_ps or last.disturbed != trial.after.disturbed:
            self.machine.state = self.machine.state._replace(**trial.saved)
            self._marks = []
            return False
        self._accept(trial, drift_ps)
        return True

    def _accept(self, trial: _Trial, drift_ps: float) -> None:
        self._trial = None
        self.error_ps += drift_ps + trial.lead_ps - self._lead_ps
        self._lead_ps = trial.lead_ps
        self.hops += trial.hops


def _step_ps(first: _Mark, last: _Mark) -> float:
    """Time a step between two marks."""
    return (last.done_ps - first.done_ps) / max(last.done - first.done, 1)
