"""Layer files of ASTRA-sim 1 (its text workloads, which Chakra's text converter still takes).

    HYBRID_DATA_MODEL              what is parallel
    2                              layers
    conv1 -1 10 NONE 0 12 NONE 0 8 ALLREDUCE 9408 1

Columns of a layer: name, reserved; then for the forward pass, the gradient of inputs and that of weights each a
compute time in us, a collective and its bytes; last the time of the update. Weights' gradients are exchanged
beside the rest of the backward pass and waited for before the layer's next forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.whole_numbers import whole
from fabrictwin.interchange.rank_traces import RankTrace
from fabrictwin.nccl.lowering.tasks import Kind
from fabrictwin.workload.captured.captured_job import Collective, Compute

PS_PER_US = 1_000_000
KINDS: Mapping[str, Kind | None] = {
    "NONE": None,
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
}
# which ranks exchange in the forward pass and for inputs' gradients, and for weights' gradients
PARALLEL = {
    "MICRO": ("all", "all"),
    "DATA": ("", "all"),
    "MODEL": ("all", ""),
    "HYBRID_DATA_MODEL": ("model", "data"),
    "HYBRID_MODEL_DATA": ("model", "data"),
    "HYBRID_TRANSFORMER": ("model", "data"),
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD": ("model", "data"),
    "HYBRID_DLRM": ("all", "all"),
    "HYBRID_DLRM_ENHANCED": ("all", "all"),
}
MOST_LAYERS = 1_000_000


class _Phase(NamedTuple):
    time_ps: int
    kind: Kind | None
    size_bytes: int


class _Layer(NamedTuple):
    name: str
    forward: _Phase
    inputs: _Phase
    weights: _Phase
    update_ps: int


def recognises(text: str) -> bool:
    """Return true for a file of layers."""
    words = text[:400].split()
    return len(words) > 1 and words[0].rstrip(":") in PARALLEL


def _phase(columns: list[str]) -> _Phase:
    if columns[1] not in KINDS:
        raise ValueError(f"got {columns[1][:40]!r}, expected one of {', '.join(KINDS)}")
    took = whole(columns[0], most=10**12)
    return _Phase(took * PS_PER_US, KINDS[columns[1]], whole(columns[2], most=1 << 50))


def _layer(line: str) -> _Layer:
    columns = line.split()
    if len(columns) not in (12, 13):
        raise ValueError(f"got {len(columns)} columns, expected the 12 of a layer")
    forward, inputs, weights = (_phase(columns[i : i + 3]) for i in (2, 5, 8))
    update_ps = whole(columns[11], most=10**12) * PS_PER_US
    return _Layer(columns[0][:80], forward, inputs, weights, update_ps)


def read(text: str, file: str, *, world: int, model_ranks: int | None = None, passes: int = 1) -> RankTrace:
    """Read what every rank does. Raises ConfigError with the line."""
    lines = text.split("\n")
    head = lines[0].split() if lines else []
    form = head[0].rstrip(":") if head else ""
    if form not in PARALLEL:
        raise ConfigError(f"got {form[:40]!r}, expected one of {', '.join(PARALLEL)}", file=file, line=1)
    for i, word in enumerate(head[:-1]):
        if (
            word.rstrip(":") == "model_parallel_NPU_group"
            and head[i + 1].isascii()
            and head[i + 1].isdigit()
            and len(head[i + 1]) < 8
        ):
            model_ranks = model_ranks or int(head[i + 1])
    layers: list[_Layer] = []
    expected = None
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            if expected is None:
                expected = whole(line.strip(), least=1, most=MOST_LAYERS)
            else:
                layers.append(_layer(line))
        except ValueError as error:
            raise ConfigError(str(error), file=file, line=number) from None
    if expected is None or len(layers) != expected:
        raise ConfigError(f"has {len(layers)} layers, expected the {expected or 1} that it says", file=file)
    trace = RankTrace(0, world, file)
    trace.groups["all"] = tuple(range(world)), "all ranks"
    inner, outer = PARALLEL[form]
    if "model" in (inner, outer):
        size = model_ranks or 0
        if not 0 < size <= world or world % size:
            message = f"got {size or 'no'} ranks that hold a model, expected a divisor of {world}"
            raise ConfigError(message, file=file, key="--model-ranks")
        trace.groups["model"] = tuple(range(size)), "model parallel"
        trace.groups["data"] = tuple(range(0, world, size)), "data parallel"
    _play(layers, trace, inner, outer, passes)
    return trace


class _Chain:
    """The rank's compute, one after the other, and collectives beside it."""

    def __init__(self, trace: RankTrace) -> None:
        self.trace, self.last = trace, -1
        self.waits: set[int] = set()

    def compute(self, name: str, time_ps: int) -> None:
        after = tuple(sorted({self.last, *self.waits} - {-1}))
        self.waits.clear()
        self.trace.operations.append(Compute(name, after, time_ps))
        self.last = len(self.trace.operations) - 1

    def collective(self, phase: _Phase, group: str, name: str) -> int:
        """Post one behind the compute; -1 where there is none."""
        if phase.kind is None or not group or not phase.size_bytes:
            if phase.kind is not None and phase.size_bytes:
                self.trace.miss(name, "this kind of parallelism exchanges nothing there")
            return -1
        ranks = len(self.trace.groups[group][0])
        size = phase.size_bytes * (ranks if phase.kind == "all_gather" else 1)
        after = (self.last,) if self.last >= 0 else ()
        self.trace.operations.append(Collective(phase.kind, group, size, after, 1, 0, name))
        return len(self.trace.operations) - 1

    def blocking(self, phase: _Phase, group: str, name: str) -> None:
        posted = self.collective(phase, group, name)
        if posted >= 0:
            self.waits.add(posted)


def _play(layers: list[_Layer], trace: RankTrace, inner: str, outer: str, passes: int) -> None:
    chain = _Chain(trace)
    reduced: dict[int, int] = {}
    for _ in range(passes):
        for i, layer in enumerate(layers):
            if i in reduced:
                chain.waits.add(reduced.pop(i))
                chain.compute(f"{layer.name} update", layer.update_ps)
            chain.compute(f"{layer.name} forward", layer.forward.time_ps)
            chain.blocking(layer.forward, inner, f"{layer.name} forward")
        for i, layer in reversed(list(enumerate(layers))):
            chain.compute(f"{layer.name} weight gradient", layer.weights.time_ps)
            posted = chain.collective(layer.weights, outer, f"{layer.name} weight gradient")
            if posted >= 0:
                reduced[i] = posted
            if i:
                chain.compute(f"{layer.name} input gradient", layer.inputs.time_ps)
                chain.blocking(layer.inputs, inner, f"{layer.name} input gradient")
    for i, posted in sorted(reduced.items()):
        chain.waits.add(posted)
        chain.compute(f"{layers[i].name} update", layers[i].update_ps)
