"""Congestion control: one algorithm a file, told apart by `qp.control`.

An algorithm answers what concerns it of: a packet was sent, an acknowledgement came (with its round trip and
whether a mark was echoed), a CNP came, a loss was noticed, nothing came for the retransmission time, a timer of
its own went off. It acts on the queue pair's `gap_q` (pace) and `window`. Beside these its file has the records
that it keeps, `dtype` for a queue pair and `settings_dtype`, and `start`, which fills the first. `State` has
the two under its name.
"""

from __future__ import annotations

from enum import IntEnum

from fabrictwin.kernel.jit.decorators import helper
from fabrictwin.kernel.packet.congestion import cubic, dcqcn, dctcp, ibcc, nscc, swift
from fabrictwin.kernel.packet.state.constants import RC


class Control(IntEnum):
    """Algorithms by `qp.control`; in small letters their names."""

    NONE = 0
    DCQCN = 1
    NSCC = 2
    IBCC = 3
    SWIFT = 4
    CUBIC = 5
    DCTCP = 6


ALGORITHMS = {
    Control.DCQCN: dcqcn,
    Control.NSCC: nscc,
    Control.IBCC: ibcc,
    Control.SWIFT: swift,
    Control.CUBIC: cubic,
    Control.DCTCP: dctcp,
}


@helper
def on_sent(state, q, qp, wire, now):
    """A data packet left."""
    if qp.counts:
        if qp.control == Control.IBCC:
            ibcc.on_sent(state, q, qp, wire, now)
        else:
            dcqcn.on_sent(state, q, qp, wire, now)


@helper
def not_before(state, qp, time):
    """The time from which a queue pair that may send at `time` may send, as far as others of its port say."""
    if qp.counts:
        if qp.control == Control.IBCC:
            return max(time, ibcc.not_before(state, qp))
    return time


@helper
def on_ack(state, q, qp, packets, echo, now):
    """So many packets were newly acknowledged; `qp.rtt_ps` is fresh."""
    if qp.control == Control.NSCC:
        nscc.on_ack(state, q, qp, packets * state.settings[0].mtu, echo, now)
    elif qp.control == Control.IBCC:
        if echo:
            ibcc.on_becn(state, q, qp, now)
    elif qp.control == Control.SWIFT:
        swift.on_ack(state, q, qp, packets * state.settings[0].mtu, now)
    elif qp.control == Control.CUBIC:
        cubic.on_ack(state, q, qp, packets * state.settings[0].mtu, now)
    elif qp.control == Control.DCTCP:
        dctcp.on_ack(state, q, qp, packets * state.settings[0].mtu, echo, now)


@helper
def wants_cnps(qp):
    """The sender slows down by notifications, so its receiver sends them."""
    return qp.control == Control.DCQCN or (qp.control == Control.IBCC and qp.service != RC)


@helper
def on_marked(state, qp):
    """A packet with a mark came to the receiver."""
    if qp.control == Control.IBCC:
        ibcc.on_marked(state, qp)


@helper
def on_cnp(state, q, qp, now):
    """A congestion notification packet came."""
    if qp.control == Control.DCQCN:
        dcqcn.on_cnp(state, q, qp, now)
    elif qp.control == Control.IBCC:
        ibcc.on_becn(state, q, qp, now)


@helper
def on_loss(state, q, qp, now):
    """A packet was trimmed or declared lost."""
    if qp.control == Control.NSCC:
        nscc.on_loss(state, q, qp, now)
    elif qp.control == Control.SWIFT:
        swift.on_loss(state, q, qp, now)
    elif qp.control == Control.CUBIC:
        cubic.on_loss(state, q, qp, now)
    elif qp.control == Control.DCTCP:
        dctcp.on_loss(state, q, qp, now)


@helper
def on_silence(state, q, qp, now):
    """Nothing came for the retransmission time."""
    if qp.control == Control.CUBIC:
        cubic.on_silence(state, q, qp, now)
    elif qp.control == Control.DCTCP:
        dctcp.on_silence(state, q, qp, now)
    else:
        on_loss(state, q, qp, now)


@helper
def on_timer(state, q, qp, which, now):
    """A timer that the algorithm had set."""
    if qp.control == Control.DCQCN:
        dcqcn.on_timer(state, q, qp, which, now)
