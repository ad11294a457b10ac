"""What one rank of a running program computes and calls, recorded as operations of a captured job.

Compute runs in order. A collective waits for the compute before it, and for the one before it on its group, as on
a stream of NCCL; compute that comes after its `wait`, or after an optimizer's step began, waits for it.
"""

from __future__ import annotations

from fabrictwin.interchange.rank_traces import RankTrace
from fabrictwin.nccl.lowering.tasks import Kind
from fabrictwin.workload.captured.captured_job import Collective, Compute, Message, Work


class RankRecorder:
    """Operations of this process."""

    def __init__(self, rank: int, world: int) -> None:
        self.trace = RankTrace(rank, world, f"rank {rank}")
        self._compute = -1
        self._waits: set[int] = set()
        self._last: dict[str, int] = {}
        self._flying: set[int] = set()

    def group(self, key: str, ranks: tuple[int, ...], description: str) -> None:
        """Make a group known by the name that calls give it."""
        self.trace.groups[key] = ranks, description

    def compute(self, name: str, work: Work) -> None:
        """Take a kernel, behind all that was waited for."""
        after = tuple(sorted({self._compute, *self._waits} - {-1}))
        self._waits.clear()
        self.trace.operations.append(Compute(name, after, None, work))
        self._compute = len(self.trace.operations) - 1

    def collective(self, kind: Kind, group: str, size_bytes: int, *, element_bytes: int, root: int = 0) -> int:
        """Take a call; the number by which it is waited for."""
        before = self._before(group)
        return self._posted(group, Collective(kind, group, size_bytes, before, element_bytes, root))

    def message(self, *, sends: bool, peer: int, size_bytes: int, tag: int) -> int:
        """Take a send to, or a receive from, a rank of the world; the number by which it is waited for."""
        # each pair has a connection of its own, so that a send and a receive can meet in any order
        stream = f"{'send' if sends else 'receive'} {peer}"
        one = Message(sends, peer - self.trace.rank, size_bytes, self._before(stream), tag)
        return self._posted(stream, one)

    def waited(self, number: int) -> None:
        """Let what is computed from now on wait for a call."""
        self._waits.add(number)
        self._flying.discard(number)

    def joined(self) -> None:
        """Let what is computed from now on wait for every call so far."""
        self._waits |= self._flying
        self._flying.clear()

    def _before(self, stream: str) -> tuple[int, ...]:
        return tuple(sorted({self._compute, *self._waits, self._last.get(stream, -1)} - {-1}))

    def _posted(self, stream: str, one: Collective | Message) -> int:
        self.trace.operations.append(one)
        number = len(self.trace.operations) - 1
        self._last[stream] = number
        self._flying.add(number)
        return number
