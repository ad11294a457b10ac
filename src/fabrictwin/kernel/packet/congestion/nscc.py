"""NSCC: Ultra Ethernet's window control from queueing delay and marks (UE specification 1.0, section 3.6).

Each acknowledgement falls into one of four cases by its mark and its queueing delay:

    not marked, delay below target    grow in proportion to the distance from the target
    not marked, delay above target    grow slowly (fair increase): the queue is elsewhere or fading
    marked, delay below target        leave it
    marked, delay above target        shrink by gamma times the excess, at most once a round trip

Growth is gathered and applied as gained / window after some bytes or a round trip, so that flows with different
windows gain alike. While there is no queueing at all the window grows by a share of every acknowledged byte; and
when losses or a delay of four targets show that far less came through in a round trip than the window allows, the
window becomes what came through (quick adapt).

Integers throughout: bytes, picoseconds, fixed-point factors.
"""

from __future__ import annotations

from fabrictwin.kernel.jit import helper, outlined

AVERAGE_SHIFT = 6  # of the delay's moving average: 1/64 a sample


@helper
def _clamp(qp, n, settings):
    qp.window = min(max(qp.window, settings.minimum), n.maximum)


@helper
def _quick_adapt(qp, n, settings, late, mtu, now):
    """At the end of each round: fall back to what came through, if that was far too little."""
    if now < n.quick_end:
        return False
    adapted = False
    if n.quick_end > 0:
        if (n.quick_wanted or late) and n.quick_bytes < n.maximum >> settings.gate_shift:
            n.ignore = qp.inflight * mtu
            qp.window = max(n.quick_bytes, settings.minimum)
            n.gained = 0
            n.fast = 0
            adapted = True
        n.quick_wanted = 0
    n.quick_bytes = 0
    n.quick_end = now + n.base_ps + settings.target_ps
    return adapted


@outlined
def on_ack(state, q, qp, acked, echo, now):
    """Adjust the window."""
    n = state.nscc[q]
    settings = state.nscc_settings[0]
    delay = max(qp.rtt_ps - n.base_ps, 0)
    target = settings.target_ps
    n.delay_ps += (delay - n.delay_ps) >> AVERAGE_SHIFT
    n.quick_bytes += acked
    if _quick_adapt(qp, n, settings, delay > 4 * target, state.settings[0].mtu, now):
        return
    if n.ignore > 0:
        n.ignore -= acked
        return
    if not echo and delay < settings.fast_ps:
        n.fast += acked
    else:
        n.fast = 0
    if not echo:
        if delay >= target:
            n.gained += settings.fair * acked
        elif n.fast > qp.window:
            qp.window += (acked * settings.fast_q) >> 16
        else:
            n.gained += (settings.alpha_q * acked * (target - delay)) >> 24
    elif delay >= target:
        if n.delay_ps > target and now - n.decreased_ps > n.base_ps:
            excess = (((n.delay_ps - target) << 16) // n.delay_ps) * settings.gamma_q >> 16
            qp.window = max(qp.window - (qp.window * excess >> 16), qp.window >> 1)
            n.decreased_ps = now
    n.acked += acked
    if n.acked >= settings.adjust_bytes or now - n.adjusted_ps > settings.adjust_ps:
        qp.window += n.gained // qp.window
        n.gained = 0
        n.acked = 0
        n.adjusted_ps = now
        if now - n.eta_ps > settings.adjust_ps:
            qp.window += settings.eta
            n.eta_ps = now
    _clamp(qp, n, settings)


@outlined
def on_loss(state, q, qp, now):
    """A trimmed or lost packet: give up its place, and look at what comes through."""
    n = state.nscc[q]
    settings = state.nscc_settings[0]
    n.quick_wanted = 1
    mtu = state.settings[0].mtu
    if n.ignore <= 0:
        qp.window -= mtu
        _clamp(qp, n, settings)
    if _quick_adapt(qp, n, settings, True, mtu, now):
        _clamp(qp, n, settings)
