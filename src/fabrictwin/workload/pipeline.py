"""The order in which a pipeline stage works through its micro-batches: one forward, one backward (1F1B).

Narayanan et al. 2021, section 2.2: a stage first runs as many forwards as there are stages after it, then one
forward and one backward in turn, then the backwards that are left (PipeDream-flush).
"""

from __future__ import annotations

from typing import NamedTuple


class Task(NamedTuple):
    """A forward (or backward) pass of a stage over one micro-batch."""

    forward: bool
    micro_batch: int


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Task]:
    """The tasks of a stage in order."""
    ahead = min(stages - stage - 1, micro_batches)
    order = [Task(True, i) for i in range(ahead)]
    for i in range(micro_batches - ahead):
        order += [Task(True, ahead + i), Task(False, i)]
    return order + [Task(False, i) for i in range(micro_batches - ahead, micro_batches)]
