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
    ahead = min(stages - stage - 1, micro_batches)
    order = [Task(Pass.FORWARD, i) for i in range(ahead)]
    for i in range(micro_batches - ahead):
        order += [Task(Pass.FORWARD, ahead + i), Task(Pass.BACKWARD, i)]
    return order + [Task(Pass.BACKWARD, i) for i in range(micro_batches - ahead, micro_batches)]


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
    total = micro_batches * chunks

    def task(kind: Pass, k: int) -> Task:
        group, within = divmod(k, stages * chunks)
        chunk, i = divmod(within, stages)
        return Task(kind, group * stages + i, chunk if kind is Pass.FORWARD else chunks - 1 - chunk)

    ahead = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)
    order = [task(Pass.FORWARD, k) for k in range(ahead)]
    for k in range(total - ahead):
        order += [task(Pass.FORWARD, ahead + k), task(Pass.BACKWARD, k)]
    return order + [task(Pass.BACKWARD, k) for k in range(total - ahead, total)]


def order_of(schedule: Schedule, stage: int, stages: int, chunks: int, micro_batches: int) -> list[Task]:
    """The tasks of a stage in order, by the schedule's name."""
    if chunks > 1:
        return interleaved(stage, stages, chunks, micro_batches)
    if schedule == "gpipe":
        return gpipe(micro_batches)
    if schedule == "zero-bubble":
        return zero_bubble(stage, stages, micro_batches)
    return one_forward_one_backward(stage, stages, micro_batches)
