"""What tests of the kernel's rules share."""

from __future__ import annotations

import pytest


@pytest.fixture
def scheduled(monkeypatch):
    """Return the rows put on the heap instead: (time, kind, port, value)."""
    from fabrictwin.kernel.packet.congestion import dcqcn
    from fabrictwin.kernel.packet.events import KIND_SHIFT, PORT_MASK, PORT_SHIFT, VALUE_MASK
    from fabrictwin.kernel.packet.switch import buffer, transmit
    from fabrictwin.kernel.packet.transport import receive

    seen: list[tuple[int, int, int, int]] = []

    def push(state, time, what):
        seen.append((time, what >> KIND_SHIFT, (what >> PORT_SHIFT) & PORT_MASK, what & VALUE_MASK))

    for module in (dcqcn, buffer, receive, transmit):
        if hasattr(module, "push_heap"):
            monkeypatch.setattr(module, "push_heap", push)
    return seen
