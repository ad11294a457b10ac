"""Swift: window control from the round trip alone (Kumar et al., SIGCOMM 2020, section 3).

An acknowledgement that comes back within the target adds to the window, so much a round trip whatever the window;
a later one takes from it in proportion to how far the target was missed, at most by a share and once a round
trip. The target is what the path takes when empty, what may be queued, and a part that shrinks with the root of
the window, so that many flows through one port meet with small windows and few with large ones.

Different here: the round trip without queues stands for the paper's share of the target by hops; the window is at
least one packet, so that there is no pacing below that; delay of the receiving host counts as the network's.

Integers throughout: bytes and picoseconds.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.state.records import layout

ROOT_BITS = 8  # fraction of a root

settings_dtype = layout(
    ("target_ps", "i8"),  # of a round trip, without the part that depends on the window
    ("increase", "i8"),  # bytes a round trip
    ("beta_q", "i8"),  # of 2**16: share of the relative excess that a late acknowledgement takes
    ("most_q", "i8"),  # of 2**16: most that one decrease takes
    ("scaling_ps", "i8"),  # times the root of one packet over the window ...
    ("offset_ps", "i8"),  # ... less this, is what small windows may queue more
    ("range_ps", "i8"),  # most of it
    ("minimum", "i8"),
    ("maximum", "i8"),
)

dtype = layout(
    ("decreased_ps", "i8"),
    ("gained", "i8"),  # bytes squared that are not yet a byte of the window
)


def start(w, line_kbps, connection):
    """A queue pair's first state: no decrease yet, so that the first late acknowledgement makes one."""
    w.decreased_ps = -(1 << 62)


@helper
def _root(x):
    """The integer part of a square root, by Newton's iteration from above."""
    if x < 2:
        return x
    guess = x
    better = (guess + 1) >> 1
    while better < guess:
        guess = better
        better = (guess + x // guess) >> 1
    return guess


@helper
def target_ps(window, mtu, settings):
    """Return the round trip aimed at."""
    root = max(_root((window << (2 * ROOT_BITS)) // mtu), 1)  # of packets
    more = (settings.scaling_ps << ROOT_BITS) // root - settings.offset_ps
    return settings.target_ps + min(max(more, 0), settings.range_ps)


@outlined
def on_ack(state, q, qp, acked, now):
    """Adjust the window."""
    w = state.swift[q]
    settings = state.swift_settings[0]
    target = target_ps(qp.window, state.settings[0].mtu, settings)
    if qp.rtt_ps < target:
        w.gained += settings.increase * acked
        qp.window += w.gained // qp.window
        w.gained %= qp.window
    elif now - w.decreased_ps >= qp.rtt_ps:
        excess = ((qp.rtt_ps - target) << 16) // qp.rtt_ps
        cut = min((settings.beta_q * excess) >> 16, settings.most_q)
        qp.window -= (qp.window * cut) >> 16
        w.decreased_ps = now
    qp.window = min(max(qp.window, settings.minimum), settings.maximum)


@outlined
def on_loss(state, q, qp, now):
    """A lost packet: the largest decrease, once a round trip."""
    w = state.swift[q]
    settings = state.swift_settings[0]
    if now - w.decreased_ps >= qp.rtt_ps:
        qp.window = max(qp.window - ((qp.window * settings.most_q) >> 16), settings.minimum)
        w.decreased_ps = now
