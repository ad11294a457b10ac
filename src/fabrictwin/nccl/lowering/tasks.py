"""Tasks as NCCL calls them: a collective, how many bytes, of which numbers, from which root.

Sizes are as nccl-tests prints them: of all-reduce, broadcast, reduce and send-receive the buffer; of all-gather,
reduce-scatter, all-to-all, gather and scatter the buffer that holds the blocks of all ranks.
"""

from __future__ import annotations

from typing import Literal, get_args

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record

Kind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send_recv",
    "gather",
    "scatter",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
POINT_TO_POINT = ("all_to_all", "send_recv", "gather", "scatter")

# how the tuner's tables name what they hold
COLLECTIVE = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}


@record
class Task:
    """One operation. Raises ConfigError for what cannot be one."""

    kind: Kind
    size_bytes: int
    element_bytes: int = 4
    root: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"got {self.kind!r}, expected one of {', '.join(KINDS)}{did_you_mean(self.kind, KINDS)}"
            )
        if self.size_bytes < 1 or self.element_bytes < 1 or self.size_bytes % self.element_bytes:
            raise ConfigError(
                f"got {self.size_bytes} bytes of elements of {self.element_bytes}, expected at least one "
                "and no part"
            )

    def check(self, ranks: int) -> None:
        """Check that so many ranks can do it. Raises ConfigError."""
        if not 0 <= self.root < ranks:
            raise ConfigError(f"got root {self.root}, expected a rank from 0 to {ranks - 1}")
        blocks = self.kind in ("all_to_all", "gather", "scatter")
        if blocks and self.size_bytes % (ranks * self.element_bytes):
            raise ConfigError(
                f"got {self.size_bytes} bytes, expected a multiple of {ranks} blocks of whole elements of "
                f"{self.element_bytes} bytes"
            )
