"""The work of a step as its workload counts it, and the workload as a program."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fabrictwin.base.records import record
from fabrictwin.program.program import Program
from fabrictwin.workload.memory.gpu_memory import Memory


@record
class Work:
    """The work of one step over all GPUs."""

    tokens: int
    model_flops: float  # what the model needs
    hardware_flops: float  # what the GPUs execute: recomputation included
    parameters: int
    peak_flops_per_gpu: float  # dense peak at `precision`
    precision: str


@record
class Lowered:
    """A workload as a program on the nodes that it was placed on."""

    program: Program
    rank_node: npt.NDArray[np.int32]  # [ranks] fabric node of each rank's memory
    work: Work | None  # None where a program counts no model FLOPs
    layout_line: str
    notes: tuple[str, ...] = ()  # what was assumed, one line each
    memory: Memory | None = None  # of the fullest GPU; None where a program says nothing of it
