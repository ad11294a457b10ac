"""Is the answer right? A test's collectives on real numbers, against numpy.

For every way that a run takes (algorithm and protocol) the functional executor plays the same lowering with a
small buffer: large enough that every channel and every rank has elements, no larger. Communicators above
`MOST_RANKS` are sampled: the same way on their first hosts. Channels above `MOST_CHANNELS` do the same to other
parts of the buffer and are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fabrictwin.nccl.communicator.communicator import Communicator, initialise
from fabrictwin.nccl.lowering.lower import Lowering
from fabrictwin.nccl.lowering.tasks import Task
from fabrictwin.program.data_execution import execute
from fabrictwin.program.reductions import from_bfloat16, to_bfloat16
from fabrictwin.tools.nccl_tests.perf import Plan, Run

MOST_RANKS = 32
MOST_CHANNELS = 4
EACH = 4  # elements of a rank on a channel
Array = npt.NDArray[Any]

NUMPY = {
    "int8": np.int8, "uint8": np.uint8, "int32": np.int32, "uint32": np.uint32, "int64": np.int64,
    "uint64": np.uint64, "half": np.float16, "float": np.float32, "double": np.float64, "bfloat16": np.uint16,
}  # fmt: skip
REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda data: data.sum(axis=0),
    "prod": lambda data: data.prod(axis=0),
    "min": lambda data: data.min(axis=0),
    "max": lambda data: data.max(axis=0),
}


@dataclass
class Checker:
    """Counts wrong elements; each way is checked once."""

    run: Run

    def __post_init__(self) -> None:
        self._seen: dict[tuple[object, ...], int | None] = {}
        self._lowering: Lowering | None = None
        self.sample: Communicator | None = None

    def wrong(self, plan: Plan) -> int | None:
        """Wrong elements, None where the executor has no such numbers or operation, or nothing is moved."""
        reduces = self.run.options.test.reduces and self.run.options.test.kind != "send_recv"
        operation = plan.operation if reduces else "sum"
        if plan.task is None:
            return 0
        if plan.datatype not in NUMPY or operation not in (*REDUCTIONS, "avg"):
            return None
        way = () if plan.choice is None else (plan.choice.algorithm, plan.choice.protocol)
        key = (plan.task.kind, plan.datatype, operation, plan.root, *way)
        if key not in self._seen:
            self._seen[key] = self._play(plan, plan.task, operation)
        return self._seen[key]

    def lowering(self) -> Lowering:
        """The lowering of the communicator, or of a sample of it."""
        if self._lowering is None:
            whole = self.run.communicator
            self.sample = whole
            if whole.ranks > MOST_RANKS:
                hosts = max(2, MOST_RANKS // whole.ranks_per_node)
                members = whole.placement.rank_node[whole.placement.node_of_rank < hosts]
                self.sample = initialise(whole.twin, members, settings=whole.settings, version=whole.version)
            self._lowering = Lowering(self.sample)
        return self._lowering

    def _play(self, plan: Plan, task: Task, operation: str) -> int:
        lowering = self.lowering()
        assert self.sample is not None
        ranks = self.sample.ranks
        root = task.root % ranks
        channels = 1 if plan.choice is None else min(plan.choice.channels, MOST_CHANNELS)
        elements = ranks * channels * EACH
        if task.kind in ("all_reduce", "broadcast", "reduce"):
            elements += 3  # shares that are not alike
        rng = np.random.default_rng(ranks + elements)
        whole = rng.integers(1, 3 if operation == "prod" else 9, (ranks, elements))
        if operation == "prod":
            # few twos, so that products stay exact in every type
            whole = np.where(rng.random(whole.shape) < 2 / ranks, whole, 1)
        numbers = NUMPY[plan.datatype]
        brain = plan.datatype == "bfloat16"
        data: Array = to_bfloat16(whole.astype(np.float32)) if brain else whole.astype(numbers)
        small = replace(task, size_bytes=elements * data.itemsize, element_bytes=data.itemsize, root=root)
        choice = None if plan.choice is None else replace(plan.choice, channels=channels)
        communication = lowering(small, choice)
        done = execute([communication], data, operation=operation, number="bf16" if brain else "")
        found: Array = from_bfloat16(done) if brain else done
        want, mask = _expected(small.kind, whole, root, operation)
        return int((~_near(found, want, plan.datatype, ranks)[mask]).sum())


def _near(found: Array, want: Array, datatype: str, ranks: int) -> Array:
    """Equal, for whole numbers wrapped around as C does, for others within what rounding at each step loses."""
    if datatype in ("half", "float", "double", "bfloat16"):
        unit = {"half": 2.0**-11, "float": 2.0**-24, "double": 2.0**-53, "bfloat16": 2.0**-8}[datatype]
        close: Array = np.abs(found.astype(np.float64) - want) <= ranks * unit * np.abs(want)
        return close
    exact: Array = found == np.floor(want).astype(np.int64).astype(NUMPY[datatype])
    return exact


def _expected(kind: str, data: Array, root: int, operation: str) -> tuple[Array, Array]:
    """The data that buffers should hold afterwards, and where that is defined."""
    ranks, elements = data.shape
    shares = np.array_split(np.arange(elements), ranks)
    total = data.mean(axis=0) if operation == "avg" else REDUCTIONS[operation](data)
    want: Array = data.astype(np.float64 if operation == "avg" else np.int64)
    mask = np.ones(data.shape, bool)
    if kind == "all_reduce":
        want[:] = total
    elif kind == "reduce":
        want[root], mask[:] = total, False
        mask[root] = True
    elif kind == "broadcast":
        want[:] = data[root]
    elif kind == "all_gather":
        want[:] = np.concatenate([data[rank, share] for rank, share in enumerate(shares)])
    elif kind == "reduce_scatter":
        mask[:] = False
        for rank, share in enumerate(shares):
            want[rank, share], mask[rank, share] = total[share], True
    elif kind == "all_to_all":
        want[:] = data.reshape(ranks, ranks, -1).transpose(1, 0, 2).reshape(ranks, -1)
    elif kind == "send_recv":
        want[:] = np.roll(data, 1, axis=0)
    return want, mask
