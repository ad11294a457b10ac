"""DCTCP: a window that shrinks by the share of marked packets (RFC 8257; Alizadeh et al., SIGCOMM 2010).

Switches mark above one threshold. The sender counts, over each window's worth of acknowledgements, how many
bytes came with a mark, and keeps a moving average of that share, `alpha`. A window in which one came ends slow
start and takes alpha / 2 of the window; otherwise it gains a packet a round trip. A loss takes half, once a
round trip; a retransmission time-out leaves one packet, as in other TCP.

Different here: a mark is echoed by the next acknowledgement, for all packets that it acknowledges.

Integers throughout: bytes, picoseconds, shares of 2**16.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.state.records import layout

settings_dtype = layout(
    ("gain_shift", "i8"),  # a sample's weight in alpha, as a power of two
    ("minimum", "i8"),
    ("maximum", "i8"),
)

dtype = layout(
    ("threshold", "i8"),  # of slow start
    ("alpha_q", "i8"),  # of 2**16
    ("acked", "i8"),  # bytes in this window of observation
    ("marked", "i8"),  # of these
    ("observed", "i8"),  # bytes that it lasts
    ("gained", "i8"),  # bytes squared that are not yet a byte of the window
    ("decreased_ps", "i8"),
)


def start(w, line_kbps, connection):
    """A queue pair's first state: slow start, and as if all had been marked (RFC 8257, 4.2)."""
    w.threshold = 1 << 62
    w.alpha_q = 1 << 16
    w.decreased_ps = -(1 << 62)


@helper
def _observe(qp, w, settings):
    """At the end of a window: update alpha, and shrink where a mark came."""
    share = (w.marked << 16) // w.acked
    # never stuck above nothing: what the shift would lose is taken off whole
    w.alpha_q += (share >> settings.gain_shift) - max(w.alpha_q >> settings.gain_shift, min(w.alpha_q, 1))
    w.alpha_q = min(w.alpha_q, 1 << 16)
    if w.marked > 0:
        qp.window -= (qp.window * w.alpha_q) >> 17
        w.threshold = qp.window
    w.acked = 0
    w.marked = 0
    w.observed = qp.window


@outlined
def on_ack(state, q, qp, acked, echo, now):
    """Count marks, and open the window or close it."""
    w = state.dctcp[q]
    settings = state.dctcp_settings[0]
    w.acked += acked
    if echo:
        w.marked += acked
        w.threshold = min(w.threshold, qp.window)
    if qp.window < w.threshold:
        qp.window += acked
    else:
        w.gained += state.settings[0].mtu * acked
        qp.window += w.gained // qp.window
        w.gained %= qp.window
    if w.acked >= w.observed:
        _observe(qp, w, settings)
    qp.window = min(max(qp.window, settings.minimum), settings.maximum)


@outlined
def on_loss(state, q, qp, now):
    """A lost packet: half, once a round trip."""
    w = state.dctcp[q]
    if now - w.decreased_ps >= qp.rtt_ps:
        qp.window = max(qp.window >> 1, 2 * state.dctcp_settings[0].minimum)
        w.threshold = qp.window
        w.decreased_ps = now


@outlined
def on_silence(state, q, qp, now):
    """A retransmission time-out: one packet, and slow start again."""
    w = state.dctcp[q]
    settings = state.dctcp_settings[0]
    w.threshold = max(qp.window >> 1, 2 * settings.minimum)
    qp.window = settings.minimum
    w.decreased_ps = now
