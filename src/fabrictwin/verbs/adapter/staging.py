"""Copies between a GPU's memory and host memory, for GPUs that the adapter does not reach."""

from __future__ import annotations

from fabrictwin.base.records import record
from fabrictwin.kernel.codes import PS_PER_S


@record
class Staging:
    """Time of a copy: software for each piece, then latency and rate of the way."""

    latency_ps: int
    rate_bps: int
    piece_bytes: int
    piece_ps: int

    def copy_ps(self, size: int) -> int:
        """Return how long so many bytes take."""
        pieces = -(-size // self.piece_bytes)
        return pieces * self.piece_ps + self.latency_ps + size * 8 * PS_PER_S // self.rate_bps if size else 0
