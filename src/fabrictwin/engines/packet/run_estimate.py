"""Size of a packet run, found before it runs: packet-hops, messages, bytes of the engine's arrays.

Packet-hops stand for time. Memory is what the arrays will hold: messages, queue pairs, and packets, of which there
are at most as many as fit into the buffers on their way, or as one message of every queue pair has. Left out: what
setting up takes in Python, some hundred bytes a message, freed before it runs. Of runs of 32 GPUs hops came
out within 15% of what was counted, memory up to 25% above what was held.
"""

from __future__ import annotations

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.units import format_size
from fabrictwin.engines.packet.packet_options import PacketOptions


@record
class PacketSize:
    """Packet-hops, messages and memory of a run."""

    hops: int
    messages: int
    memory_bytes: int = 0

    def excess(self, options: PacketOptions) -> float:
        """Return the share of the nearest limit; above 1 it is refused."""
        return max(
            self.hops / options.limits.packet_limit,
            self.messages / options.limits.message_limit,
            self.memory_bytes / options.limits.memory_limit_bytes,
        )


class TooLargeError(ConfigError):
    """A run would take too long, or more memory than it may."""


def check_size(size: PacketSize, options: PacketOptions, what: str) -> None:
    """Refuse what takes too much. Raises TooLargeError with the figures."""
    excess = size.excess(options)
    if excess <= 1:
        return
    parts = []
    if size.hops > options.limits.packet_limit:
        parts.append(f"{size.hops:.3g} packet-hops, the limit is {options.limits.packet_limit:.3g}")
    if size.messages > options.limits.message_limit:
        parts.append(f"{size.messages:.3g} messages, the limit is {options.limits.message_limit:.3g}")
    if size.memory_bytes > options.limits.memory_limit_bytes:
        limit = format_size(options.limits.memory_limit_bytes)
        parts.append(f"{format_size(size.memory_bytes)} of memory, the limit is {limit}")
    raise TooLargeError(
        f"{what} takes about {' and '.join(parts)}: cut it to about {1 / excess:.0%} of its work, "
        "or use fidelity flow",
        key="packet",
    )
