"""Fidelities, and what the engine of each can do.

Callers ask for a capability, by a running engine (`Engine.capabilities`) or by name before there is one
(`capabilities_of`); nobody asks for an engine's type or compares names of fidelities.
"""

from __future__ import annotations

from typing import Literal

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record

Fidelity = Literal["packet", "flow", "analytic"]


@record
class LinkChanges:
    """What a link that changes does while something is under way."""

    under_way: bool = False  # it changes what is under way too
    bit_errors: bool = False  # it may get an error rate


@record(kw_only=True)
class Capabilities:
    """Declares what an engine models beyond the times of operations and messages."""

    routes: bool = False  # programs travel by forwarding tables, which may change while it runs
    hop_by_hop: bool = False  # each switch looks up its own table when a packet comes
    changes: LinkChanges = LinkChanges()
    spreading: bool = False  # switches may spread one connection over equal-cost ports
    packets: bool = False  # loss, retransmission, queues, captures: `Engine.packets` is there
    one_network: bool = False  # operations and messages share links with each other
    transfers: bool = False  # `Engine.transfer`
    closed_forms: bool = False  # a communication's time alone is known before it runs: `Twin.closed_forms`

    @property
    def reduces_in_switches(self) -> bool:
        """Return true if switches add up what passes them (NVLS, SHARP): packets are only passed on."""
        return not self.packets


_CAPABILITIES: dict[str, Capabilities] = {
    "analytic": Capabilities(closed_forms=True),
    "flow": Capabilities(routes=True, changes=LinkChanges(under_way=True), spreading=True),
    "packet": Capabilities(
        routes=True,
        hop_by_hop=True,
        changes=LinkChanges(under_way=True, bit_errors=True),
        spreading=True,
        packets=True,
        one_network=True,
        transfers=True,
    ),
}


def capabilities_of(fidelity: str) -> Capabilities:
    """Return what the engine of a fidelity can do. Raises ConfigError for a name that is none."""
    if fidelity not in _CAPABILITIES:
        raise ConfigError(f"got fidelity {fidelity!r}, expected packet, flow or analytic")
    return _CAPABILITIES[fidelity]
