"""A functional executor: real numpy data moved through the single sends of communications.

It knows nothing of collectives: it reads, moves, adds and writes what `program.sends` says. A payload is
read when its send starts and written when it arrives; between, any other send whose predecessors have
arrived may go. The seed draws which starts or arrives next, so that a dependency that is missing shows as a
wrong result for some seed. Time is not modelled.

In an exchange (all-to-all, everybody sending to the next), blocks are received into a buffer of their own, as the
field does it. Switches and relays of trees have scratch memory, which is empty until something lands there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fabrictwin.base.errors import InvariantError
from fabrictwin.program import patterns, reductions
from fabrictwin.program.program import NONE, Communication, Pattern, Seat
from fabrictwin.program.sends import Sends, sends_of

T = TypeVar("T", bound=np.generic)
EXCHANGES = ("all_to_all", "send_recv")


def execute(
    communications: Sequence[Communication],
    data: npt.NDArray[T],
    *,
    seed: int | None = None,
    operation: str = "sum",
    number: str = "",
) -> npt.NDArray[T]:
    """Return what each rank's buffer holds after the communications, one after the other.

    `data` is [ranks, elements], the buffer of each rank before. Without a seed the order is fixed. `operation` is
    sum, prod, min, max or avg (of all ranks of `data`); `number` "bf16" says that uint16 holds bfloat16.
    """
    rng = None if seed is None else np.random.default_rng(seed)
    kind = number or data.dtype.name
    reduce = reductions.reduction(operation, kind)
    buffers: npt.NDArray[T] = data.copy()
    for communication in communications:
        exchanged = communication.kind in EXCHANGES or (communication.channels.pattern == Pattern.SHIFT).any()
        # in an exchange every block that is sent is one of the original buffer
        source = data if exchanged else buffers
        _play(merge(communication), source, buffers, rng, reduce)
        if operation == "avg":
            _divide(communication, buffers, kind)
    return buffers


def _divide(communication: Communication, buffers: npt.NDArray[Any], number: str) -> None:
    """Averages from sums, where a rank holds a result: everywhere, in its own shard, or at the root alone."""
    channels = communication.channels
    members = np.unique(channels.ranks[channels.seats == Seat.RANK])
    n, total = len(members), communication.size_bytes // buffers.dtype.itemsize
    for index, rank in enumerate(members.tolist()):
        low, high = 0, total
        if communication.kind == "reduce_scatter":
            low = int(patterns.share_start(total, index, n))
            high = low + int(patterns.share(total, index, n))
        elif communication.kind == "reduce":
            high = total if rank in channels.ranks[channels.parent == NONE] else 0
        elif communication.kind != "all_reduce":
            return
        buffers[rank, low:high] = reductions.divide(buffers[rank, low:high], n, number)


def merge(communication: Communication) -> Sends:
    """The sends of all channels in one table."""
    parts = [sends_of(communication.channels, c) for c in range(len(communication.channels))]
    first = np.cumsum([0] + [len(part) for part in parts])[:-1]
    first_after = np.cumsum([0] + [len(part.after) for part in parts])[:-1]

    def join(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    starts = [part.after_start[:-1] + base for part, base in zip(parts, first_after, strict=True)]
    return Sends(
        step=join("step"),
        source=join("source"),
        target=join("target"),
        offset_bytes=join("offset_bytes"),
        target_offset_bytes=join("target_offset_bytes"),
        length_bytes=join("length_bytes"),
        reduce=join("reduce"),
        after_start=np.append(np.concatenate(starts), sum(len(part.after) for part in parts)).astype(np.int32),
        after=np.concatenate([part.after + base for part, base in zip(parts, first, strict=True)]).astype(
            np.int32
        ),
    )


def _play(
    sends: Sends,
    source: npt.NDArray[T],
    buffers: npt.NDArray[T],
    rng: np.random.Generator | None,
    reduce: reductions.Reduction,
) -> None:
    item = buffers.dtype.itemsize
    columns = (sends.offset_bytes, sends.target_offset_bytes, sends.length_bytes)
    if any((column % item).any() for column in columns):
        raise InvariantError(f"a send splits an element of {item} bytes")
    read_at, write_at, length = (column // item for column in columns)

    waits_for = np.diff(sends.after_start)
    order = np.argsort(sends.after, kind="stable")
    next_start = np.searchsorted(sends.after[order], np.arange(len(sends) + 1))
    nexts = np.repeat(np.arange(len(sends)), waits_for)[order]

    places = np.unique(np.concatenate([sends.source, sends.target]))
    scratch: dict[int, npt.NDArray[T]] = {int(p): np.zeros_like(buffers[0]) for p in places[places < 0]}
    landed = {place: np.zeros(buffers.shape[1], bool) for place in scratch}

    # what may happen next: a send that may start is `i`, one that is under way arrives as `~i`
    open_: list[int] = np.flatnonzero(waits_for == 0).tolist()[::-1]
    moving: dict[int, npt.NDArray[T]] = {}
    arrived = 0
    while open_:
        if rng is not None:
            pick = int(rng.integers(len(open_)))
            open_[pick], open_[-1] = open_[-1], open_[pick]
        event = open_.pop()
        if event >= 0:
            start, place = read_at[event], int(sends.source[event])
            held = source[place] if place >= 0 else scratch[place]
            moving[event] = held[start : start + length[event]].copy()
            open_.append(~event)
            continue
        i, place = ~event, int(sends.target[~event])
        where = slice(int(write_at[i]), int(write_at[i] + length[i]))
        into = (buffers[place] if place >= 0 else scratch[place])[where]
        payload = moving.pop(i)
        if len(into) != len(payload):
            raise InvariantError(f"a send of {len(payload)} elements ends outside its buffer")
        reduces = bool(sends.reduce[i])
        if place < 0 and reduces:
            reduces = bool(landed[place][where].any())  # the first only lands
            landed[place][where] = True
        np.copyto(into, reduce(into, payload) if reduces else payload)
        arrived += 1
        for later in nexts[next_start[i] : next_start[i + 1]]:
            waits_for[later] -= 1
            if waits_for[later] == 0:
                open_.append(int(later))
    if arrived != len(sends):
        raise InvariantError(f"{len(sends) - arrived} of {len(sends)} sends wait for each other")
