"""Times of NCCL's operations among ranks of a server: its own choice of algorithm, on the twin's routes.

Sizes are timed at powers of two, once each; between them times are linear.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise

import numpy as np

from fabrictwin.base.arrays import F64, I32
from fabrictwin.base.units import PS_PER_US
from fabrictwin.engines.base.engine import Engine
from fabrictwin.nccl.communicator.communicator import Communicator, initialise
from fabrictwin.nccl.lowering.lower import Lowering, program
from fabrictwin.nccl.lowering.task_times import measure, traffic
from fabrictwin.nccl.lowering.tasks import COLLECTIVE, Kind, Task
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.tuning.tuner import Call, Tuner, tuner
from fabrictwin.twin.twin import Twin

ELEMENT_BYTES = 2
LEAST = 256


class _Table(ABC):
    """A function of bytes, asked at powers of two."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}

    def __call__(self, size_bytes: int) -> float:
        """Return the value at a size, microseconds."""
        if size_bytes <= LEAST:
            return self._point(LEAST)
        low = 1 << (size_bytes.bit_length() - 1)
        if low == size_bytes:
            return self._point(low)
        share = size_bytes / low - 1
        return self._point(low) * (1 - share) + self._point(2 * low) * share

    def _point(self, size_bytes: int) -> float:
        if size_bytes not in self._known:
            self._known[size_bytes] = self.measure(size_bytes)
        return self._known[size_bytes]

    @abstractmethod
    def measure(self, size_bytes: int) -> float:
        """Return the time of a size."""


class _Collective(_Table):
    def __init__(self, communicator: Communicator, chooser: Tuner, kind: Kind) -> None:
        super().__init__()
        self._communicator, self._chooser, self._kind = communicator, chooser, kind

    def measure(self, size_bytes: int) -> float:
        task = Task(self._kind, size_bytes, ELEMENT_BYTES)
        choice = self._chooser.choose(Call(COLLECTIVE[self._kind], size_bytes, "bfloat16"))
        return float(measure(self._communicator, [(task, choice)])[0]) / PS_PER_US


class NcclTimes:
    """Times of collectives among some GPUs of the twin."""

    def __init__(self, twin: Twin, rank_node: I32, settings: Settings) -> None:
        self._communicator = initialise(twin, rank_node, settings=settings)
        self._chooser = tuner(self._communicator)
        self._tables: dict[Kind, _Collective] = {}

    def time_us(self, kind: Kind, size_bytes: int) -> float:
        """Return how long a collective takes, microseconds; `size_bytes` as nccl-tests counts it."""
        if kind not in self._tables:
            self._tables[kind] = _Collective(self._communicator, self._chooser, kind)
        return self._tables[kind](size_bytes)

    def port_bytes(self, kind: Kind, size_bytes: int) -> F64:
        """Return the bytes that a collective sends over each port, of shape [ports]."""
        size_bytes = max(1, size_bytes // ELEMENT_BYTES) * ELEMENT_BYTES
        task = Task(kind, size_bytes, ELEMENT_BYTES)
        choice = self._chooser.choose(Call(COLLECTIVE[kind], size_bytes, "bfloat16"))
        return traffic(self._communicator, task, choice)[1].tx_bytes.astype(float)


class SendTimes(_Table):
    """Times of sends from each rank of one group to its fellow of another, all at once, by bytes of one of them.

    vLLM has a communicator for each pair of fellows, so that none waits for another but where they share links.
    """

    def __init__(self, twin: Twin, pairs: tuple[I32, I32], settings: Settings) -> None:
        super().__init__()
        self._twin = twin
        ends = list(zip(*(nodes.reshape(-1, 1) for nodes in pairs), strict=True))
        self._communicators = [
            initialise(twin, _joined(source, target), settings=settings) for source, target in ends
        ]
        self._lowerings = [Lowering(communicator) for communicator in self._communicators]

    def measure(self, size_bytes: int) -> float:
        engine: Engine = next(self._twin.flow_engines(1))
        starts = [0]
        for lowering, communicator in zip(self._lowerings, self._communicators, strict=True):
            # to gather at the second of two ranks is one send of half the size
            played = program([lowering(Task("gather", 2 * size_bytes, ELEMENT_BYTES, root=1))], 2)
            engine.post(played.operations, played.communications, communicator.placement.rank_node)
            starts.append(starts[-1] + len(played.operations))
        engine.advance()
        ended = engine.ended_ps()
        return max(int(ended[low:high].max()) for low, high in pairwise(starts)) / PS_PER_US


def _joined(source: I32, target: I32) -> I32:
    joined: I32 = np.concatenate([source, target])
    return joined
