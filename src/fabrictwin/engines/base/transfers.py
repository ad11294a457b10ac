"""Messages between adapters that start each other, as columns: what generators of traffic ask for.

Each transfer has a connection of its own, from adapter to adapter, without memory behind them. It starts when its
predecessors are through, or when a gate opens that it waits for.
"""

from __future__ import annotations

from typing import NamedTuple

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.records import record


@record
class Gate:
    """Opens so long after all of its causes; `one_each`: for one more of those that wait, in order, each time.

    Causes are transfers: `received` those whose last byte is there, `acknowledged` those whose sender knows.
    """

    waiting: tuple[int, ...]
    received: tuple[int, ...] = ()
    acknowledged: tuple[int, ...] = ()
    delay_ps: int = 0
    one_each: bool = False


@record
class Transfers:
    """T messages and the gates that start some of them; the others start at once."""

    source: I32  # [T] adapters
    target: I32  # [T]
    size_bytes: I64  # [T]
    gates: tuple[Gate, ...] = ()
    level: I32 | None = None  # [T] service level, NONE the options'; None: of all

    def __len__(self) -> int:
        return len(self.source)


class TransferTimes(NamedTuple):
    """Times of T transfers, -1 where they did not come to it."""

    start_ps: I64
    received_ps: I64  # the last byte is at the receiver
    done_ps: I64  # the sender has its last acknowledgement
