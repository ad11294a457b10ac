"""Builds programs: single operations by name, and *blocks* laid down many times at once.

A block is a short run of operations that repeats (the forward pass of a stage for one micro-batch, say). It is
written once with relative predecessors; `ProgramBuilder.place` lays down all its copies in a few numpy calls,
so that half a million operations take a fraction of a second. What a copy waits for outside of itself comes
through numbered *inlets*: column `i` of `inlets` gives the operation that inlet `i` of each copy stands for.

Ids are positions in the table of operations. `reserve` hands them out before the operations are written, so
that copies can wait for each other in any direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.errors import ConfigError, InvariantError
from fabrictwin.program.program import NONE, Actor, Communication, Label, Operations, OpKind, Program

MOST_OPERATIONS = 20_000_000  # about 3 GB while it is built


def inlet(number: int) -> int:
    """A predecessor inside a block: whatever the copy's inlet of that number stands for."""
    return -2 - number


@dataclass
class Block:
    """A run of operations with relative predecessors. `add` returns the position inside the block."""

    _rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    _edges: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._rows)

    def compute(self, actor: int, duration_ps: int, label: int, after: Iterable[int] = ()) -> int:
        """A stretch of compute."""
        return self._add((OpKind.COMPUTE, actor, duration_ps, NONE, label), after)

    def communicate(self, actor: int, communication: int, label: int, after: Iterable[int] = ()) -> int:
        """A communication, by its number in the builder."""
        return self._add((OpKind.COMMUNICATE, actor, 0, communication, label), after)

    def _add(self, row: tuple[int, int, int, int, int], after: Iterable[int]) -> int:
        self._rows.append(row)
        here = len(self._rows) - 1
        self._edges.extend((here, before) for before in after if before != NONE)
        return here

    @property
    def inlets(self) -> int:
        """The number of inlets that the block's predecessors name."""
        return max((-1 - before for _, before in self._edges if before < NONE), default=0)


class ProgramBuilder:
    """Collects actors, labels, communications and operations into a Program."""

    def __init__(self, name: str, ranks: int) -> None:
        self.name = name
        self.ranks = ranks
        self._actors: list[Actor] = []
        self._labels: dict[Label, int] = {}
        self._communications: list[Communication] = []
        self._participants: list[list[int]] = []
        self._count = 0
        self._columns: list[list[I64]] = []
        self._edges: list[tuple[I64, I64]] = []

    def __len__(self) -> int:
        return self._count

    def actor(self, name: str, ranks: npt.ArrayLike) -> int:
        """A set of ranks that act alike."""
        self._actors.append(Actor(name, np.asarray(ranks, dtype=np.int32)))
        return len(self._actors) - 1

    def label(self, name: str, category: str) -> int:
        """The number of a label; the same label twice is one."""
        return self._labels.setdefault(Label(name, category), len(self._labels))

    def communication(self, communication: Communication, participants: Sequence[int]) -> int:
        """A communication that operations can post, and the actors that take part in it."""
        self._communications.append(communication)
        self._participants.append(sorted(participants))
        return len(self._communications) - 1

    def compute(
        self, actor: int, duration_ps: int, label: int, *, after: Iterable[int] = (), micro_batch: int = NONE
    ) -> int:
        """One stretch of compute. Returns its id."""
        block = Block()
        block.compute(actor, duration_ps, label)
        return self._single(block, after, micro_batch)

    def communicate(
        self, communication: int, label: int, *, after: Iterable[int] = (), micro_batch: int = NONE
    ) -> int:
        """One communication, by its number. Returns its id."""
        block = Block()
        block.communicate(self._participants[communication][0], communication, label)
        return self._single(block, after, micro_batch)

    def _single(self, block: Block, after: Iterable[int], micro_batch: int) -> int:
        here = self.reserve(1)
        self.place(block, [here], micro_batch=[micro_batch])
        before = np.array([i for i in after if i != NONE], dtype=np.int64)
        self._edges.append((np.full(len(before), here), before))
        return here

    def reserve(self, count: int) -> int:
        """Ids for operations that are placed later. Returns the first. Raises ConfigError for too many."""
        first = self._count
        if first + count > MOST_OPERATIONS:
            raise ConfigError(
                f"got a program of more than {MOST_OPERATIONS:,} operations, which would not fit into memory",
                key="workload",
            )
        self._count += count
        return first

    def place(
        self,
        block: Block,
        starts: npt.ArrayLike,
        *,
        micro_batch: npt.ArrayLike,
        inlets: npt.ArrayLike | None = None,
    ) -> None:
        """Copies of a block at reserved ids: `starts` and `micro_batch` are [copies], `inlets` [copies, inlets].

        An inlet that is NONE is no predecessor.
        """
        if not len(block):
            return
        start = np.asarray(starts, dtype=np.int64)
        copies, rows = len(start), np.array(block._rows, dtype=np.int64)
        ids = (start[:, None] + np.arange(len(block))).reshape(-1)
        self._columns.append(
            [
                ids,
                *(np.tile(rows[:, i], copies) for i in range(5)),
                np.repeat(np.asarray(micro_batch, dtype=np.int64), len(block)),
            ]
        )
        if not block._edges:
            return
        edges = np.array(block._edges, dtype=np.int64)
        after = start[:, None] + edges[:, 1]
        outside = edges[:, 1] < NONE
        if outside.any():
            if inlets is None:
                raise InvariantError("a block waits for something outside of itself, and no inlets were given")
            after[:, outside] = np.asarray(inlets, dtype=np.int64)[:, -2 - edges[outside, 1]]
        later = np.broadcast_to(start[:, None] + edges[:, 0], after.shape)
        known = after != NONE
        self._edges.append((later[known], after[known]))

    def build(self) -> Program:
        """The program. Raises InvariantError where a reserved id was not written, or was written twice."""
        columns = [np.concatenate(column) for column in zip(*self._columns, strict=True)]
        ids = columns[0]
        if len(ids) != self._count or (np.bincount(ids, minlength=self._count) != 1).any():
            raise InvariantError(f"{self._count} operations were reserved and {len(ids)} written")
        place = np.empty(self._count, np.int64)
        place[ids] = np.arange(self._count)
        kind, actor, duration, communication, label, micro_batch = (column[place] for column in columns[1:])
        start, after = self._predecessors()
        sizes = [len(actors) for actors in self._participants]
        return Program(
            name=self.name,
            ranks=self.ranks,
            actors=tuple(self._actors),
            labels=tuple(self._labels),
            communications=tuple(self._communications),
            operations=Operations(
                kind=kind.astype(np.int8),
                actor=actor.astype(np.int32),
                duration_ps=duration,
                communication=communication.astype(np.int32),
                label=label.astype(np.int16),
                micro_batch=micro_batch.astype(np.int32),
                after_start=start,
                after=after,
            ),
            participants_start=np.cumsum([0, *sizes]).astype(np.int32),
            participants=np.array([a for actors in self._participants for a in actors], dtype=np.int32),
        )

    def _predecessors(self) -> tuple[I32, I32]:
        """CSR of all predecessors, each once."""
        later = np.concatenate([edge[0] for edge in self._edges] or [np.empty(0, np.int64)])
        before = np.concatenate([edge[1] for edge in self._edges] or [np.empty(0, np.int64)])
        if len(before) and (before.min() < 0 or before.max() >= self._count):
            raise InvariantError("an operation waits for one that does not exist")
        pairs = np.sort(later * self._count + before)
        pairs = pairs[np.concatenate([[True], pairs[1:] != pairs[:-1]])] if len(pairs) else pairs
        waiting, after = np.divmod(pairs, max(self._count, 1))
        start = np.zeros(self._count + 1, np.int32)
        np.cumsum(np.bincount(waiting, minlength=self._count), out=start[1:])
        return start, after.astype(np.int32)
