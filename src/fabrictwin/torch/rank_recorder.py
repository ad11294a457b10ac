"""What one rank of a program computes and calls, recorded as operations of a captured job.

Work goes onto streams, as in CUDA: a kernel waits for what its stream did before and for what the stream was told
to wait for. A collective waits for the stream that it is called on, and for the one before it on its group, as on
a stream of NCCL; a stream waits for it from its `wait` on, and every stream from where an optimizer's step begins.
What the host waits for, all streams wait for: what it launches later cannot begin before.
"""

from __future__ import annotations

from fabrictwin.interchange.rank_traces import RankTrace
from fabrictwin.nccl.lowering.tasks import Kind
from fabrictwin.workload.captured.captured_job import Collective, Compute, Message, Work

DEFAULT_STREAM = 0


class RankRecorder:
    """Operations of this process."""

    def __init__(self, rank: int, world: int) -> None:
        self.trace = RankTrace(rank, world, f"rank {rank}")
        self.stream = DEFAULT_STREAM  # the one that work goes onto
        self._awaited: dict[int, set[int]] = {}  # what the next work of each stream waits for
        self._host: set[int] = set()  # what streams to come wait for
        self._last: dict[str, int] = {}
        self._flying: set[int] = set()
        self._generation = 0

    def regrouped(self) -> None:
        """Take groups from now on for others than those before: c10d counts their names anew."""
        self._generation += 1

    def key(self, name: str) -> str:
        """Return the key of a group that c10d gives a name."""
        return f"{name} of {self._generation}" if self._generation else name

    def begin(self) -> None:
        """Forget what was recorded so far: what is to be kept begins here."""
        self.trace.operations.clear()
        self._awaited, self._host, self._last, self._flying = {}, set(), {}, set()

    def group(self, key: str, ranks: tuple[int, ...], description: str) -> None:
        """Make a group known by the name that calls give it."""
        self.trace.groups[key] = ranks, description

    def compute(self, name: str, work: Work, took_ps: int | None = None) -> None:
        """Take a kernel, behind all that its stream waits for; by its work, or by the time that it took."""
        before = self._before_next(self.stream)
        given = None if took_ps is not None else work
        self.trace.operations.append(Compute(name, tuple(sorted(before)), took_ps, given))
        before.clear()
        before.add(len(self.trace.operations) - 1)

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
        """Let what goes onto this stream from now on wait for a call."""
        self._before_next(self.stream).add(number)
        self._flying.discard(number)

    def joined(self) -> None:
        """Let what goes onto any stream from now on wait for every call so far."""
        self.host_waited(frozenset(self._flying))
        self._flying.clear()

    def mark(self, stream: int | None = None) -> frozenset[int]:
        """Return what a stream has been given so far, as an event recorded on it stands for."""
        return frozenset(self._before_next(self.stream if stream is None else stream))

    def stream_waited(self, stream: int, mark: frozenset[int]) -> None:
        """Let what goes onto a stream from now on wait for an event."""
        self._before_next(stream).update(mark)

    def host_waited(self, mark: frozenset[int] | None = None) -> None:
        """Let all that is launched from now on wait for an event; for all streams where none is given."""
        found = frozenset[int]().union(*self._awaited.values()) if mark is None else mark
        self._host |= found
        for each in self._awaited.values():
            each |= found

    def _before_next(self, stream: int) -> set[int]:
        if stream not in self._awaited:
            self._awaited[stream] = set(self._host)
        return self._awaited[stream]

    def _before(self, stream: str) -> tuple[int, ...]:
        return tuple(sorted({*self._before_next(self.stream), self._last.get(stream, -1)} - {-1}))

    def _posted(self, stream: str, one: Collective | Message) -> int:
        self.trace.operations.append(one)
        number = len(self.trace.operations) - 1
        self._last[stream] = number
        self._flying.add(number)
        return number
