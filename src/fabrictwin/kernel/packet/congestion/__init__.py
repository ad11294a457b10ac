"""Congestion control: one algorithm a file, told apart by `qp.control`.

An algorithm answers what concerns it of: a packet was sent, an acknowledgement came (with its round trip and
whether a mark was echoed), a CNP came, a loss was noticed, a timer of its own went off. It acts on the queue
pair's `gap_q` (pace) and `window`. Another one is a file with these functions, a
line in each of those here, and its columns in `kernel/packet/state`; docs/architecture.md lists the rest.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper
from fabrictwin.kernel.packet.congestion import dcqcn, nscc

NO_CONTROL = 0
DCQCN = 1
NSCC = 2


@helper
def on_sent(state, q, qp, wire, now):
    """A data packet left."""
    if qp.counts:
        dcqcn.on_sent(state, q, qp, wire, now)


@helper
def on_ack(state, q, qp, packets, echo, now):
    """So many packets were newly acknowledged; `qp.rtt_ps` is fresh."""
    if qp.control == NSCC:
        nscc.on_ack(state, q, qp, packets * state.settings[0].mtu, echo, now)


@helper
def on_cnp(state, q, qp, now):
    """A congestion notification packet came."""
    if qp.control == DCQCN:
        dcqcn.on_cnp(state, q, qp, now)


@helper
def on_loss(state, q, qp, now):
    """A packet was trimmed or declared lost."""
    if qp.control == NSCC:
        nscc.on_loss(state, q, qp, now)


@helper
def on_timer(state, q, qp, which, now):
    """A timer that the algorithm had set."""
    if qp.control == DCQCN:
        dcqcn.on_timer(state, q, qp, which, now)
