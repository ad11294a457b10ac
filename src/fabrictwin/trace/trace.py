"""The trace: columns of what happened. Every view (summary, tables, timeline, report) is computed from it."""

from __future__ import annotations

from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record

# columns of `Counters` beside the bytes, and what each is called where it was not modelled
OPTIONAL_COUNTERS = {
    "wait_ps": "time that ports waited for credits or leave to send",
    "drops": "dropped packets",
    "ecn_marks": "ECN marks",
    "pauses": "pause frames",
}


@record
class Counters:
    """Counts of the ports so far. All of shape [ports]; the port is the one that transmits.

    A count that the engine's fidelity does not model is None, and prints as "not modelled".
    """

    tx_bytes: I64  # payload bytes that left the port
    wait_ps: I64 | None = None  # time with something to send and no credit or leave to send it
    drops: I64 | None = None  # packets discarded
    ecn_marks: I64 | None = None
    pauses: I64 | None = None  # pause frames sent

    def since(self, earlier: Counters) -> Counters:
        """Return what was counted after `earlier`, an older reading of the same engine."""

        def less(now: I64 | None, before: I64 | None) -> I64 | None:
            return None if now is None or before is None else now - before

        return Counters(
            self.tx_bytes - earlier.tx_bytes,
            **{name: less(getattr(self, name), getattr(earlier, name)) for name in OPTIONAL_COUNTERS},
        )


@record
class Trace:
    """One run: when each operation of the program started and ended, and what the ports carried."""

    fidelity: str
    end_ps: int
    start_ps: I64  # [operations]
    end_op_ps: I64  # [operations] the receiver has the last byte, or the compute is done
    counters: Counters
