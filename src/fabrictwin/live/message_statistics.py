"""What clients did, counted: messages, bytes, and the modelled time from posting to completion.

Times are those of the twin's engine, in picoseconds; what the machine itself took is not in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from fabrictwin.live.ring_queues import RingQueuePair
    from fabrictwin.verbs.adapter.work_requests import Work

_TRANSPORTS = {2: "RC", 3: "UC", 4: "UD"}
_OPERATIONS = {
    0: "WRITE", 1: "WRITE_IMM", 2: "SEND", 3: "SEND_IMM", 4: "READ", 5: "CMP_SWAP", 6: "FETCH_ADD",
    7: "LOCAL_INV", 8: "BIND_MW", 9: "SEND_INV", 14: "FLUSH", 15: "ATOMIC_WRITE",
}  # fmt: skip
PS_PER_US = 1_000_000


@dataclass
class Row:
    """Messages of one kind, of one size, from one adapter."""

    messages: int = 0
    size_bytes: int = 0
    completed: int = 0
    failed: int = 0
    least_ps: int = 0
    most_ps: int = 0
    total_ps: int = 0


class Statistics:
    """Counts by adapter, transport, operation and size; each message as a line of `log`, where one is given."""

    def __init__(self, log: IO[str] | None = None) -> None:
        self.rows: dict[tuple[str, int, int, int], Row] = {}
        self.log = log
        self.messages = self.bytes = 0
        if log is not None:
            log.write("adapter,qpn,transport,operation,bytes,posted_ps,completed_ps,status\n")

    def posted(self, pair: RingQueuePair, work: Work) -> None:
        """A request was taken out of a send queue."""
        adapter = pair.adapter
        key = (f"{adapter.host_name}/{adapter.name}", pair.kind, work.opcode, work.length)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = Row()
        row.messages += 1
        row.size_bytes += work.length
        self.messages += 1
        self.bytes += work.length
        work.row = row  # type: ignore[attr-defined]

    def completed(self, pair: RingQueuePair, work: Work, status: int, now_ps: int) -> None:
        """A request has completed, and software is told."""
        row: Row | None = getattr(work, "row", None)
        if row is None:
            return  # malformed: never began
        took = now_ps - work.posted_ps  # type: ignore[attr-defined]
        row.failed += bool(status)
        if not status:
            row.least_ps = min(row.least_ps, took) if row.completed else took
            row.most_ps = max(row.most_ps, took)
            row.total_ps += took
            row.completed += 1
        if self.log is not None:
            adapter = pair.adapter
            self.log.write(
                f"{adapter.host_name}/{adapter.name},{pair.number},{_TRANSPORTS.get(pair.kind, pair.kind)},"
                f"{_OPERATIONS.get(work.opcode, work.opcode)},{work.length},{work.posted_ps},{now_ps},{status}\n"  # type: ignore[attr-defined]
            )

    def summary(self, wall_s: float, most: int = 12) -> str:
        """A table of what was done, the most bytes first."""
        if not self.rows:
            return "no messages crossed the twin"
        lines = [
            f"{self.messages:,} messages, {self.bytes:,} bytes in {wall_s:.2f} s of wall clock; modelled time from"
            " post to completion, of those that asked for one:",
            f"{'adapter':20} {'transport':9} {'operation':12} {'bytes':>10} {'messages':>9} {'failed':>6}"
            f" {'min µs':>9} {'mean µs':>9} {'max µs':>9}",
        ]
        ordered = sorted(self.rows.items(), key=lambda each: (-each[1].size_bytes, -each[1].messages, each[0]))
        for (adapter, kind, opcode, size), row in ordered[:most]:
            times = (row.least_ps, row.total_ps / max(row.completed, 1), row.most_ps)
            shown = " ".join(f"{time / PS_PER_US:9.3f}" if row.completed else f"{'-':>9}" for time in times)
            lines.append(
                f"{adapter:20} {_TRANSPORTS.get(kind, str(kind)):9} {_OPERATIONS.get(opcode, str(opcode)):12}"
                f" {size:10,} {row.messages:9,} {row.failed:6,} {shown}"
            )
        if len(ordered) > most:
            lines.append(f"... and {len(ordered) - most} more kinds and sizes")
        return "\n".join(lines)
