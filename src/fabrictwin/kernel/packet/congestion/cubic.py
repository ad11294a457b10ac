"""CUBIC: TCP's usual window control, by losses alone (RFC 9438).

Slow start doubles the window each round trip until the first loss. A loss takes the share `beta` of it, once a
round trip, and begins an epoch: the window then follows a cubic of the time since, flat where it was before the
loss (with fast convergence, somewhat below), and steep beyond. Where a Reno of the same average would have more
(short round trips, as in data centres), the window follows that. After a retransmission time-out it is one
packet, and slow start goes to where the loss left the threshold.

Times of the cubic are in ticks of 2**-10 s, as Linux takes them. Left out: HyStart, which ends slow start
before a loss.

Integers throughout: bytes, ticks.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.state.records import layout

TICK_PS = 976_562_500
MOST_TICKS = 1 << 15  # of the cubic: half a minute
ROOT_BITS = 21  # of a cube root below 2**63

settings_dtype = layout(
    ("beta_q", "i8"),  # of 2**16: what a loss leaves
    ("converge_q", "i8"),  # of 2**16: what of the last window is aimed at where it shrank
    ("friendly_q", "i8"),  # of 2**16: packets a round trip that Reno with this beta may gain
    ("per_ten", "i8"),  # of the cubic's C, packets a second cubed
    ("minimum", "i8"),
    ("maximum", "i8"),
)

dtype = layout(
    ("threshold", "i8"),  # of slow start
    ("epoch_ps", "i8"),  # begin of the cubic, -1: none
    ("before", "i8"),  # the window before the last loss
    ("plateau", "i8"),  # where the cubic is flat
    ("until_flat", "i8"),  # ticks from the epoch to there
    ("friendly", "i8"),  # Reno's window
    ("gained", "i8"),  # bytes squared that are not yet a byte of Reno's
    ("decreased_ps", "i8"),
)


def start(w, line_kbps, connection):
    """A queue pair's first state: slow start without an end, no loss yet."""
    w.threshold = 1 << 62
    w.epoch_ps = -1
    w.decreased_ps = -(1 << 62)


@helper
def cube_root(x):
    """The integer part of a cube root, bit by bit."""
    root = 0
    for bit in range(ROOT_BITS - 1, -1, -1):
        more = root | (1 << bit)
        if more * more * more <= x:
            root = more
    return root


@helper
def _begin_epoch(qp, w, settings, mtu, now):
    w.epoch_ps = now
    w.friendly = qp.window
    w.gained = 0
    missing = max(w.plateau - qp.window, 0)
    w.until_flat = cube_root((missing * 10 << 30) // (settings.per_ten * mtu))
    w.plateau = max(w.plateau, qp.window)


@helper
def cubic_window(w, settings, mtu, now):
    """Return the cubic's bytes at a time."""
    ticks = min((now - w.epoch_ps) // TICK_PS, MOST_TICKS) - w.until_flat
    ticks = max(ticks, -MOST_TICKS)
    cubed = ticks * ticks * ticks
    return w.plateau + ((((cubed * settings.per_ten) >> 10) * mtu // 10) >> 20)


@outlined
def on_ack(state, q, qp, acked, now):
    """Open the window."""
    w = state.cubic[q]
    settings = state.cubic_settings[0]
    mtu = state.settings[0].mtu
    if qp.window < w.threshold:
        qp.window += acked
    else:
        if w.epoch_ps < 0:
            _begin_epoch(qp, w, settings, mtu, now)
        aim = min(cubic_window(w, settings, mtu, now + qp.rtt_ps), qp.window + (qp.window >> 1))
        friendly = settings.friendly_q
        if w.friendly >= w.before:
            friendly = 1 << 16
        w.gained += ((friendly * mtu) >> 16) * acked
        w.friendly += w.gained // max(w.friendly, 1)
        w.gained %= max(w.friendly, 1)
        if w.friendly > aim:
            qp.window = max(qp.window, w.friendly)
        elif aim > qp.window:
            qp.window += (aim - qp.window) * acked // qp.window
    qp.window = min(max(qp.window, settings.minimum), settings.maximum)


@helper
def _lose(qp, w, settings):
    w.plateau = qp.window
    if qp.window < w.before:
        w.plateau = (qp.window * settings.converge_q) >> 16
    w.before = qp.window
    w.threshold = max((qp.window * settings.beta_q) >> 16, 2 * settings.minimum)
    w.epoch_ps = -1


@outlined
def on_loss(state, q, qp, now):
    """A lost packet: what beta leaves, once a round trip."""
    w = state.cubic[q]
    settings = state.cubic_settings[0]
    if now - w.decreased_ps >= qp.rtt_ps:
        _lose(qp, w, settings)
        qp.window = w.threshold
        w.decreased_ps = now


@outlined
def on_silence(state, q, qp, now):
    """A retransmission time-out: one packet, and slow start again."""
    w = state.cubic[q]
    settings = state.cubic_settings[0]
    _lose(qp, w, settings)
    qp.window = settings.minimum
    w.decreased_ps = now
