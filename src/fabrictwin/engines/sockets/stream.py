"""Bandwidth of TCP streams: the slowest of the wire, senders, readers, and cores that adapters interrupt."""

from __future__ import annotations

from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.sockets.stack import Stack

USUAL_WRITE = 128 * 1024  # of iperf


@record
class Streams:
    """So many connections, served by so many threads at each end.

    `at_once`: each write leaves as its own segment (TCP_NODELAY), however small.
    """

    count: int = 1
    threads: int = 1
    write_bytes: int = USUAL_WRITE
    at_once: bool = False
    segment_bytes: int = 0  # largest; 0: what is usual


def limits_bps(stack: Stack, streams: Streams) -> dict[str, float]:
    """Return bits a second that each part would let through: `wire`, `sender`, `reader`, `interrupts`."""
    segment = stack.segment_bytes(streams.segment_bytes)
    if streams.at_once:
        segment = min(segment, streams.write_bytes)
    calls = stack.costs.call * segment / streams.write_bytes
    near = stack.ends.cores != ""
    send = calls + stack.send_ps(segment)
    read = calls + stack.copy_ps(segment, near=near)
    interrupted = stack.receive_ps(segment)
    bits = 8.0 * segment * PS_PER_S
    found = {"wire": bits / stack.wire.ps(segment), "sender": streams.threads * bits / send}
    if stack.ends.cores == "together":
        return {**found, "reader": streams.threads * bits / (read + interrupted)}
    return {
        **found,
        "reader": streams.threads * bits / read if read else float("inf"),
        "interrupts": streams.count * bits / interrupted,
    }


def stream_bps(stack: Stack, streams: Streams) -> tuple[float, str]:
    """Return the bandwidth in bits a second, and which part sets it."""
    found = limits_bps(stack, streams)
    part = min(found, key=lambda name: found[name])
    return found[part], part
