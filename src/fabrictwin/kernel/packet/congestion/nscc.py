"""NSCC: Ultra Ethernet's window control from queueing delay and marks (UE specification 1.0, section 3.6).

The rules are those of the consortium's reference simulator (uet-htsim, `uec.cpp`: `updateCwndOnAck_NSCC`,
`updateCwndOnNack_NSCC`, `quick_adapt`, `update_delay`). Each acknowledgement falls into one of four cases by its
mark and its queueing delay:

    not marked, delay below target    grow in proportion to the distance from the target
    not marked, delay above target    grow slowly (fair increase): the queue is elsewhere or fading
    marked, delay below target        leave it
    marked, delay above target        shrink by gamma times the average's excess, at most once a round trip

Growth is gathered and applied as gained / window after some bytes or a round trip, so that flows with different
windows gain alike. While there is hardly any queueing for a window's worth of bytes the window grows by a share of
every acknowledged byte. When a loss or a delay of four targets comes with far fewer bytes through in a round than
the window allows, the window becomes what came through (quick adapt), and marks of what was in flight then are old
news. The average takes a quarter of the round trip for a long delay without a mark, and a round trip for a loss.

Integers throughout: bytes, picoseconds, fixed-point factors.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.state.records import layout

AVERAGE_Q = 819  # of 2**16: a sample's weight in the delay's moving average, 0.0125

settings_dtype = layout(
    ("target_ps", "i8"),  # queueing delay aimed at
    ("adjust_bytes", "i8"),  # what was gained is applied after this many bytes ...
    ("adjust_ps", "i8"),  # ... or after this long
    ("gamma_q", "i8"),  # of 2**16
    ("fair", "i8"),  # bytes squared an acknowledged byte
    ("alpha_q", "i8"),  # of 2**24: bytes squared an acknowledged byte and picosecond below the target
    ("eta", "i8"),  # bytes gained every adjust_ps
    ("fast_q", "i8"),  # of 2**16: growth while there is no queue at all
    ("fast_ps", "i8"),  # "no queue": less delay than this
    ("gate_shift", "i8"),  # quick adapt only where less than maximum >> gate_shift came through
    ("minimum", "i8"),
)

dtype = layout(
    ("base_ps", "i8"),  # round trip without queues; 0: the smallest seen
    ("maximum", "i8"),  # of the window
    ("gained", "i8"),
    ("acked", "i8"),  # bytes since the last adjustment
    ("adjusted_ps", "i8"),
    ("growing", "i8"),  # by a share of every byte, until there is a queue
    ("delay_ps", "i8"),  # moving average
    ("decreased_ps", "i8"),
    ("fast", "i8"),  # bytes acknowledged in a row without queueing
    ("quick_end", "i8"),
    ("quick_bytes", "i8"),
    ("quick_wanted", "i8"),
    ("ignore", "i8"),  # bytes in flight when the window was adapted: their echoes are old news
)


def start(n, line_kbps, connection):
    """A queue pair's first state: the largest window is that which it starts with."""
    n.base_ps, n.maximum = connection.pacing.base_ps, connection.reliability.window_bytes


@helper
def _clamp(qp, n, settings):
    qp.window = min(max(qp.window, settings.minimum), n.maximum)


@helper
def _average(n, sample):
    n.delay_ps += ((sample - n.delay_ps) * AVERAGE_Q) >> 16


@helper
def _quick_adapt(qp, n, settings, marked, late, mtu, now):
    """At the end of each round: fall back to what came through, if that was far too little; whether to stop."""
    stop = False
    if n.ignore > 0 and marked:
        stop = True
    elif now > n.quick_end:
        if n.quick_end > 0 and (n.quick_wanted or late) and n.quick_bytes < n.maximum >> settings.gate_shift:
            qp.window = max(n.quick_bytes, settings.minimum)
            n.ignore = qp.inflight * mtu
            n.quick_wanted = 0
            stop = True
        n.quick_bytes = 0
        n.quick_end = now + n.base_ps + settings.target_ps
    if stop:
        n.gained = 0
        n.acked = 0
    return stop


@helper
def _grow(qp, n, settings, acked, delay):
    """Below the target and not marked."""
    if delay < settings.fast_ps:
        n.fast += acked
        if n.fast > qp.window or n.growing:
            n.growing = 1
            qp.window += (acked * settings.fast_q) >> 16
            return
    else:
        n.fast = 0
    n.growing = 0
    n.gained += (settings.alpha_q * acked * (settings.target_ps - delay)) >> 24


@outlined
def on_ack(state, q, qp, acked, echo, now):
    """Adjust the window."""
    n = state.nscc[q]
    settings = state.nscc_settings[0]
    delay = max(qp.rtt_ps - n.base_ps, 0)
    target = settings.target_ps
    if not echo and delay > target:
        _average(n, n.base_ps >> 2)
    else:
        _average(n, delay)
    n.quick_bytes += acked
    n.ignore = max(n.ignore - acked, 0)
    if _quick_adapt(qp, n, settings, echo != 0, delay > 4 * target, state.settings[0].mtu, now):
        return
    if not echo:
        if delay >= target:
            n.gained += settings.fair * acked
        else:
            _grow(qp, n, settings, acked, delay)
    elif delay >= target:
        n.growing = 0
        n.fast = 0
        if n.delay_ps > target and now - n.decreased_ps > n.base_ps:
            excess = (((n.delay_ps - target) << 16) // n.delay_ps) * settings.gamma_q >> 16
            qp.window = max(qp.window - (qp.window * excess >> 16), qp.window >> 1)
            n.decreased_ps = now
    n.acked += acked
    _clamp(qp, n, settings)
    if n.acked > settings.adjust_bytes or now - n.adjusted_ps > settings.adjust_ps:
        qp.window += n.gained // qp.window
        n.gained = 0
        n.acked = 0
        if now - n.adjusted_ps >= settings.adjust_ps:
            qp.window += settings.eta
            n.adjusted_ps = now
        _clamp(qp, n, settings)


@outlined
def on_loss(state, q, qp, now):
    """A trimmed or lost packet: give up its place, and look at what comes through."""
    n = state.nscc[q]
    settings = state.nscc_settings[0]
    mtu = state.settings[0].mtu
    n.ignore = max(n.ignore - mtu, 0)
    _average(n, settings.adjust_ps)
    n.quick_wanted = 1
    if not _quick_adapt(qp, n, settings, True, True, mtu, now):
        qp.window -= mtu
        _clamp(qp, n, settings)
