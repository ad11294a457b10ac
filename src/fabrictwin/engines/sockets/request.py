"""Time of one message over a TCP socket: its segments pass sender, wire, interrupted core and reader in turn."""

from __future__ import annotations

from fabrictwin import catalog
from fabrictwin.engines.sockets.stack import Stack

ADAPTERS_PS = 1_500_000  # both adapters, PCIe and a switch: RDMA of a few bytes takes as long (1.9 us GPU to GPU)


def one_way_ps(
    stack: Stack, size: int, *, segment_bytes: int = 0, moderated: bool = True, polling: bool = False
) -> float:
    """Return the time from the write to when the reader has all, in picoseconds.

    Not `moderated`: the adapter interrupts at once. `polling`: the reader spins and is not woken.
    """
    largest = stack.segment_bytes(segment_bytes)
    sent = arrived = taken = read = 0.0
    left = float(size)
    while left > 0:
        segment = min(left, largest)
        left -= segment
        sent += stack.send_ps(segment)
        arrived = max(arrived, sent) + stack.wire.ps(segment)
        taken = max(arrived, taken) + stack.receive_ps(segment)
        read = max(taken, read) + stack.copy_ps(segment, near=True)
    costs, ends, waits = stack.costs, stack.ends, catalog.host_stack("linux").waits
    fixed = ADAPTERS_PS + 2 * costs.call + ends.namespaces * costs.namespace
    fixed += (costs.virtual if ends.virtual else 0.0) + (0.0 if polling else costs.wake)
    if moderated:
        train = size > stack.wire.payload_bytes
        fixed += float((waits.busy_moderation if train else waits.moderation).value)
    return read + fixed


def polled_step_ps(stack: Stack) -> float:
    """Return what a step of threads that poll costs beside wire and adapters, in picoseconds.

    NCCL tells the size over one socket and sends the data over others; the data waits behind that at the sender.
    """
    one = one_way_ps(stack, 1, polling=True) - ADAPTERS_PS - stack.wire.ps(1)
    return one + stack.costs.call + stack.send_ps(1)
