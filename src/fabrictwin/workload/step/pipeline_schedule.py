"""The order in which a pipeline stage works through its micro-batches and its virtual stages (chunks).

- `gpipe` (Huang et al. 2019): all forwards, then all backwards.
- `1f1b` (Narayanan et al. 2021, section 2.2): as many forwards as there are stages after it, then one forward and
  one backward in turn, then the backwards that are left. With chunks: the interleaved schedule of the same
  section, in the order of Megatron-LM: groups of as many micro-batches as stages go through one chunk after the
  other; 2 (p - s - 1) + (v - 1) p forwards come first.
- `zero-bubble`: ZB-H1 of Qi et al. 2023 (arXiv 2401.10241, section 2.2): backward is split into the input's
  gradient, which the stage before waits for, and the weights', which stage s puts off by s micro-batches to fill
  the bubble at the end, at the memory of 1F1B.

Where stages are equal, F, B and W are the times of a stage's forward, input gradient and weight gradient, and
communication is free, a step of m micro-batches takes m (F + B + W) and a bubble of

    gpipe, 1f1b       (p - 1) (F + B + W)
    interleaved       (p - 1) (F + B + W) / v
    zero-bubble       (p - 1) (F + B - W)        F = B = W and m >= p
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np

from fabrictwin.base.arrays import I32

Schedule = Literal["1f1b", "gpipe", "zero-bubble"]


class Pass(IntEnum):
    FORWARD = 0
    BACKWARD = 1  # of the input alone where WEIGHT passes are apart
    WEIGHT = 2


class Task(NamedTuple):
    """A pass of one of a stage's chunks over one micro-batch."""

    kind: Pass
    micro_batch: int
    chunk: int = 0


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Task]:
    """The tasks of a stage in order."""
    return _tasks(_in_turn(stages - stage - 1, stages, 1, micro_batches))


def gpipe(micro_batches: int) -> list[Task]:
    """The tasks of every stage in order."""
    return [Task(kind, i) for kind in (Pass.FORWARD, Pass.BACKWARD) for i in range(micro_batches)]


def zero_bubble(stage: int, stages: int, micro_batches: int) -> list[Task]:
    """The tasks of a stage in order: 1F1B with weight gradients put off by `stage` micro-batches."""
    order: list[Task] = []
    done = 0
    for task in one_forward_one_backward(stage, stages, micro_batches):
        order.append(task)
        if task.kind is Pass.BACKWARD and task.micro_batch >= stage:
            order.append(Task(Pass.WEIGHT, done))
            done += 1
    return order + [Task(Pass.WEIGHT, i) for i in range(done, micro_batches)]


def interleaved(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Task]:
    """The tasks of a stage in order. `micro_batches` is a multiple of `stages`."""
    return _tasks(_in_turn(_ahead(stage, stages, chunks), stages, chunks, micro_batches))


def _ahead(stage: int, stages: int, chunks: int) -> int:
    """Forwards before a stage's first backward."""
    after = stages - stage - 1
    return after if chunks == 1 else 2 * after + (chunks - 1) * stages


def _in_turn(ahead: int, stages: int, chunks: int, micro_batches: int) -> I32:
    """[3, tasks] kind, micro-batch, chunk: so many forwards, then one forward and one backward in turn."""
    total = micro_batches * chunks
    ahead = min(ahead, total)
    k = np.arange(total, dtype=np.int32)
    group, within = np.divmod(k, stages * chunks)
    chunk, micro_batch = within // stages, group * stages + within % stages
    forward = np.where(k < ahead, k, 2 * k - ahead)
    backward = np.where(k < total - ahead, ahead + 2 * k + 1, total + k)
    columns = np.empty((3, 2 * total), np.int32)
    columns[:, forward] = np.full(total, Pass.FORWARD), micro_batch, chunk
    columns[:, backward] = np.full(total, Pass.BACKWARD), micro_batch, chunks - 1 - chunk
    return columns


def _tasks(columns: I32) -> list[Task]:
    passes = tuple(Pass)
    return [Task(passes[kind], micro_batch, chunk) for kind, micro_batch, chunk in columns.T.tolist()]


def rules_of(schedule: Schedule, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[int, int]:
    """(most forwards, less one, that have had no backward yet; backwards without weights' gradients, -1 for all).

    The order as `kernel.schedule.pipeline_times` takes it.
    """
    ahead = micro_batches if schedule == "gpipe" and chunks == 1 else _ahead(stage, stages, chunks)
    return ahead, stage if schedule == "zero-bubble" and chunks == 1 else -1


def order_of(schedule: Schedule, stage: int, stages: int, chunks: int, micro_batches: int) -> list[Task]:
    """The tasks of a stage in order, by the schedule's name."""
    if chunks > 1:
        return interleaved(stage, stages, chunks, micro_batches)
    if schedule == "gpipe":
        return gpipe(micro_batches)
    if schedule == "zero-bubble":
        return zero_bubble(stage, stages, micro_batches)
    return one_forward_one_backward(stage, stages, micro_batches)
