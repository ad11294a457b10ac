"""DCQCN: rate control from congestion notification packets (Zhu et al., SIGCOMM 2015, section 3).

The sender cuts its rate by alpha/2 on a CNP and remembers the old one as target; alpha follows how often CNPs
come. Then it climbs: fast recovery halves the distance to the target, additive and hyper increase raise the
target. A timer and a byte counter count stages; the larger count decides fast recovery, both together hyper
increase. As in public code for adapters (HPCC's ns-3), alpha is updated by a timer that asks whether a CNP came
since its last tick, and cuts are at least `decrease_ps` apart. In the paper every cut makes the rate before it the
target; adapters do so only where the timer raised the rate since the last cut (NVIDIA's CLAMP_TGT_RATE off,
CLAMP_TGT_RATE_AFTER_TIME_INC on). Rates are integers in kb/s, alpha is a fraction of 2**30.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.events import QueueEvent, pack, push_heap
from fabrictwin.kernel.packet.state.constants import RATE_BITS
from fabrictwin.kernel.packet.state.records import layout

ALPHA_ONE = 1 << 30
ALPHA_TIMER = 0
INCREASE_TIMER = 1
GAP_UNIT = 8_000_000_000 << RATE_BITS  # gap_q of 1 kb/s
G_BITS = 10
MOST_TICKS = 4096  # after so many decays nothing is left of alpha

settings_dtype = layout(
    ("line", "i8"),  # kb/s, as all rates here
    ("minimum", "i8"),
    ("alpha_ps", "i8"),
    ("decrease_ps", "i8"),
    ("increase_ps", "i8"),
    ("byte_counter", "i8"),
    ("g", "i8"),  # of 1,024
    ("clamp", "i8"),  # every cut sets the target; 0: only the first after the timer raised the rate
    ("fast", "i8"),  # stages of fast recovery
    ("additive", "i8"),
    ("hyper", "i8"),
)

dtype = layout(
    ("rate", "i8"),
    ("target", "i8"),
    ("alpha", "i8"),  # of 2**30
    ("line", "i8"),  # this queue pair's port
    ("active", "i8"),
    ("marked", "i8"),  # a CNP since the last alpha update
    ("alpha_due", "i8"),
    ("increase_due", "i8"),
    ("last_decrease", "i8"),
    ("time_stage", "i8"),
    ("byte_stage", "i8"),
    ("bytes", "i8"),
)


def start(d, line_kbps, connection):
    """A queue pair's first state: at the line's rate, ready for the first notification."""
    d.line = line_kbps
    d.alpha = ALPHA_ONE


@helper
def _set_rate(qp, d):
    """The queue pair's pace from its rate."""
    if d.rate >= d.line:
        qp.gap_q = 0
    else:
        qp.gap_q = GAP_UNIT // d.rate


@outlined
def _increase(qp, d, settings):
    """One more stage: climb."""
    stage = max(d.time_stage, d.byte_stage)
    if stage >= settings.fast:
        if min(d.time_stage, d.byte_stage) >= settings.fast:
            d.target += settings.hyper
        else:
            d.target += settings.additive
    d.target = min(d.target, d.line)
    d.rate = (d.rate + d.target) >> 1
    if d.target >= d.line and d.rate >= d.line - (d.line >> 10):
        d.rate = d.line
        d.active = 0
        qp.counts = 0
    _set_rate(qp, d)


@outlined
def on_cnp(state, q, qp, now):
    """Cut the rate, and start the clocks that raise it again."""
    d = state.dcqcn[q]
    settings = state.dcqcn_settings[0]
    if d.active == 0:
        d.active = 1
        qp.counts = 1
        d.rate = d.line
        d.target = d.line
        ticks = min((now - d.alpha_due) // settings.alpha_ps, MOST_TICKS)
        for _ in range(ticks):
            d.alpha -= (d.alpha * settings.g) >> G_BITS
        d.alpha_due = now + settings.alpha_ps
        d.increase_due = now + settings.increase_ps
        push_heap(state, d.alpha_due, pack(QueueEvent.CONTROL, ALPHA_TIMER, q))
        push_heap(state, d.increase_due, pack(QueueEvent.CONTROL, INCREASE_TIMER, q))
    d.marked = 1
    if now - d.last_decrease >= settings.decrease_ps:
        if settings.clamp or d.time_stage > 0:
            d.target = d.rate
        d.rate = max(d.rate - ((d.rate * d.alpha) >> 31), settings.minimum)
        d.last_decrease = now
        d.time_stage = 0
        d.byte_stage = 0
        d.bytes = 0
        d.increase_due = now + settings.increase_ps
        _set_rate(qp, d)


@helper
def on_sent(state, q, qp, wire, now):
    """Bytes count toward the next stage, while the rate is not the line's."""
    d = state.dcqcn[q]
    d.bytes += wire
    settings = state.dcqcn_settings[0]
    if d.bytes >= settings.byte_counter:
        d.bytes -= settings.byte_counter
        d.byte_stage += 1
        _increase(qp, d, settings)


@outlined
def on_timer(state, q, qp, which, now):
    """Alpha decays or grows, or the timer's stage is reached; a timer that is no longer due is let go."""
    d = state.dcqcn[q]
    settings = state.dcqcn_settings[0]
    if d.active == 0:
        return
    if which == ALPHA_TIMER:
        if now != d.alpha_due:
            return
        d.alpha -= (d.alpha * settings.g) >> G_BITS
        if d.marked:
            d.alpha += (ALPHA_ONE * settings.g) >> G_BITS
        d.marked = 0
        d.alpha_due = now + settings.alpha_ps
        push_heap(state, d.alpha_due, pack(QueueEvent.CONTROL, ALPHA_TIMER, q))
    else:
        if now < d.increase_due:
            push_heap(state, d.increase_due, pack(QueueEvent.CONTROL, INCREASE_TIMER, q))
            return
        if now > d.increase_due:
            return
        d.time_stage += 1
        d.increase_due = now + settings.increase_ps
        push_heap(state, d.increase_due, pack(QueueEvent.CONTROL, INCREASE_TIMER, q))
        _increase(qp, d, settings)
