"""Times of a step from operators that were measured on the very GPU, model and degree of tensor parallelism.

The tables are those that LLMServingSim's profiler writes of vLLM's own kernels (`profiler/perf`), CSV files,
packed or not:

- `dense`: `layer`, `tokens`, `time_us` of what works on tokens;
- `per_sequence`: `layer`, `sequences`, `time_us` of what works on sampled rows;
- `attention`: `prefill_chunk`, `kv_prefill`, `n_decode`, `kv_decode`, `time_us` of one layer's attention;
- `moe`: `tokens`, `activated_experts`, `time_us` of a mixture's experts on one rank that holds them all;
- `skew`: how far decodes of unequal contexts lie from their mean towards the longest (`alpha`), by bucket.

Experts are drawn at random: of ranks that share them whole, each works on its part of all copies of tokens and
meets its part of the experts. Data parallel ranks step together, at the one with most to do.

Several chunks of prompts are added up as if each ran alone, but for what a kernel costs at least; decodes are
counted at the mean of their contexts. What a mixed batch costs beyond prompts alone is taken at the chunks' sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_US
from fabrictwin.serving.step.cuda_graphs import padded_to
from fabrictwin.serving.step.interpolation import Grid, grid_of, staircase, table
from fabrictwin.serving.step.parts import Parts
from fabrictwin.serving.step.shape import StepShape
from fabrictwin.serving.traces.rows import Row, csv_rows

PER_LAYER = {
    "layernorm": 2,
    "qkv_proj": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
    "qk_norm": 1,
}
PRODUCTS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
"""Matrix products work on tiles of rows: of numbers of tokens between two that were measured they take what the
larger takes."""
ONCE = ("embedding", "final_layernorm")
NEEDED = ("layernorm", "qkv_proj", "rotary_emb", "o_proj", "embedding", "final_layernorm")


@record
class OperatorFiles:
    """Files of measured operators."""

    dense: Path
    per_sequence: Path
    attention: Path
    skew: Path | None = None
    moe: Path | None = None


@record
class MeasuredExperts:
    """A mixture's routed experts over data parallel ranks.

    Attributes:
        count: Experts of a layer.
        top_k: Experts of a token.
        ranks: Ranks that share them, each whole.
        data: Data parallel ranks, which step together.
        exchanges_us: Ways of tokens to experts and back in a layer, by tokens of each data parallel rank.
    """

    count: int
    top_k: int
    ranks: int
    data: int
    exchanges_us: Sequence[float]


def _time_us(row: Row) -> float:
    return row.time_ps("time_us", PS_PER_US) / PS_PER_US


def _by_layer(path: Path, variable: str) -> dict[str, dict[int, float]]:
    times: dict[str, dict[int, float]] = {}
    for row in csv_rows(path, "layer", variable, "time_us"):
        times.setdefault(str(row.field("layer", "a layer's name")), {})[row.tokens(variable, least=0)] = _time_us(
            row
        )
    if not times:
        raise ConfigError("got no measured times", file=path)
    return times


def _sum(times: dict[str, dict[int, float]], names: Iterable[tuple[str, int]], last: int) -> list[float]:
    total = np.zeros(last + 1)
    for name, count in names:
        points = times.get(name)
        if points:
            axis = sorted(points)
            between = staircase if name in PRODUCTS else table
            total += count * np.array(between(axis, [points[place] for place in axis], last))
    values: list[float] = total.tolist()
    return values


def _experts_us(path: Path, experts: MeasuredExperts, last: int) -> list[float]:
    """Return times of one layer's experts on a rank, by tokens of all data parallel ranks."""
    times: dict[int, dict[int, float]] = {}
    for row in csv_rows(path, "tokens", "activated_experts", "time_us"):
        met_there = row.tokens("activated_experts", least=1)
        times.setdefault(met_there, {})[row.tokens("tokens", least=1)] = _time_us(row)
    if not times:
        raise ConfigError("got no measured times", file=path)
    met = sorted(times)
    by_tokens = [grid_of(axis := sorted(times[one]), [times[one][place] for place in axis]) for one in met]
    own, found = experts.count / experts.ranks, [0.0]
    for tokens in range(1, last + 1):
        activated = own * (1 - (1 - experts.top_k / experts.count) ** tokens)
        each = [grid.at(tokens / experts.ranks) for grid in by_tokens]
        found.append(grid_of(met, each).at(min(activated, met[-1])))
    return found


COUNT_BINS = {2: "n<=2", 4: "n<=4", 8: "n<=8", 16: "n<=16", 32: "n<=32", 64: "n<=64", 128: "n<=128", 256: "n<=256"}
RATE_BINS = {0.05: "sr<=5%", 0.15: "sr<=15%", 0.4: "sr<=40%", 0.7: "sr<=70%"}
LONGEST_BINS = {1024: "kvB<=1k", 4096: "kvB<=4k", 16384: "kvB<=16k"}
BEFORE_BINS = {0: "kp=0", 512: "kp<=512", 1024: "kp<=1k", 2048: "kp<=2k", 4096: "kp<=4k", 8192: "kp<=8k"}


def _bin(bins: dict[int, str] | dict[float, str], value: float, beyond: str) -> str:
    return next((label for most, label in bins.items() if value <= most), beyond)


class _Skew:
    """Place of attention between two bounds: 0 as if all contexts were the mean, 1 as if all were the longest."""

    def __init__(self, path: Path | None) -> None:
        self._alpha: dict[tuple[int, str, str, str, str], float] = {}
        columns = ("n_label", "skew_rate_label", "kv_big_label", "kp_label")
        for row in csv_rows(path, "pc", *columns, "alpha") if path else ():
            labels = tuple(str(row.field(column, "a label")) for column in columns)
            try:
                alpha = float(str(row.field("alpha", "a number")))
            except ValueError:
                raise row.error("alpha", row.field("alpha", "a number"), "a number") from None
            self._alpha[row.tokens("pc", least=0), labels[0], labels[1], labels[2], labels[3]] = alpha
        self._chunks = sorted({key[0] for key in self._alpha})

    def alpha(self, shape: StepShape, chunk: int, before: float) -> float:
        """Return it for a step; 0 where it was not measured.

        Measured were batches of two contexts, some as long as the longest and the rest of one length: a step
        counts as the batch of two with its mean, its variance and its longest. No batch is quicker than its mean
        or slower than if all were as long as its longest, so what was measured beyond that is noise.
        """
        mean = shape.decode_context / shape.decodes
        variance = shape.decode_squares / shape.decodes - mean * mean
        beyond = shape.longest_decode - mean
        rate = variance / max(beyond * beyond + variance, 1.0)
        nearest = min(self._chunks, key=lambda one: (abs(one - chunk), one))
        key = (
            nearest,
            _bin(COUNT_BINS, shape.decodes, "n>256"),
            _bin(RATE_BINS, rate, "sr>70%"),
            _bin(LONGEST_BINS, shape.longest_decode, "kvB>16k"),
            _bin(BEFORE_BINS, before, "kp>8k") if nearest else "kp=0",
        )
        return min(max(self._alpha.get(key, 0.0), 0.0), 1.0)

    def __bool__(self) -> bool:
        return bool(self._alpha)


class _Attention:
    """One layer's attention by chunk, tokens before it, decodes and their mean context."""

    def __init__(self, path: Path, skew: Path | None) -> None:
        alone: dict[tuple[int, ...], float] = {}
        decodes: dict[tuple[int, ...], float] = {}
        mixed: dict[tuple[int, ...], float] = {}
        columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
        for row in csv_rows(path, *columns, "time_us"):
            chunk, before, count, context = (row.tokens(column, least=0) for column in columns)
            time = _time_us(row)
            if count == 0:
                alone[chunk, before] = time
            elif chunk == 0:
                decodes[count, context] = time
            else:
                mixed[chunk, before, count, context] = time
        self._alone = _full(alone, path)
        self._decodes = _full(decodes, path)
        self._mixed = _full(mixed, path)
        self._least = min(alone.values())
        self._skew = _Skew(skew)

    def layer_us(self, shape: StepShape) -> float:
        """Return the time of one layer."""
        if not shape.chunks:
            return self._between(shape, 0, 0.0)
        time = sum(self._alone.at(chunk, before) for chunk, before in shape.chunks)
        time -= self._least * (len(shape.chunks) - 1)
        if shape.decodes:
            chunk = sum(tokens for tokens, _ in shape.chunks)
            pairs = sum(tokens * (before + tokens / 2) for tokens, before in shape.chunks)
            before = max(0.0, pairs / chunk - chunk / 2)
            time += max(0.0, self._between(shape, chunk, before) - self._alone.at(chunk, before))
        return time

    def _between(self, shape: StepShape, chunk: int, before: float) -> float:
        """Return the time of decodes, beside a chunk or alone, by the mean and the longest of their contexts."""
        mean = self._decoding(chunk, before, shape.decodes, shape.decode_context / shape.decodes)
        if shape.decodes == 1 or not self._skew:
            return mean
        alpha = self._skew.alpha(shape, chunk, before)
        return mean + alpha * (self._decoding(chunk, before, shape.decodes, shape.longest_decode) - mean)

    def _decoding(self, chunk: int, before: float, count: int, context: float) -> float:
        return self._mixed.at(chunk, before, count, context) if chunk else self._decodes.at(count, context)


def _full(times: dict[tuple[int, ...], float], path: Path) -> Grid:
    """Return the grid of those values of each variable that were measured with all values of the others."""
    points = dict(times)
    if not points:
        raise ConfigError("got no times of prompts, of decodes, or of both in a step", file=path)
    axes = [sorted({point[place] for point in points}) for place in range(len(next(iter(points))))]
    while True:
        size = int(np.prod([len(axis) for axis in axes]))
        if len(points) == size:
            break
        counts = [dict.fromkeys(axis, 0) for axis in axes]
        for point in points:
            for place, value in enumerate(point):
                counts[place][value] += 1
        filled = [
            (counts[place][value] * len(axes[place]) / size, place, value)
            for place in range(len(axes))
            for value in axes[place]
        ]
        _, place, value = min(filled)
        axes[place].remove(value)
        points = {point: time for point, time in points.items() if point[place] != value}
    shape = tuple(len(axis) for axis in axes)
    values = np.array([points[point] for point in sorted(points)]).reshape(shape)
    return Grid(axes, values)


class MeasuredCost:
    """Times of steps from measured operators, on one stage (no pipeline) and one tensor-parallel group.

    `graph_sizes`: numbers of tokens for which steps were captured, decodes whole and others in pieces; a step is
    padded to the next.
    `between_us`: what a layer communicates, by tokens; `experts`: how a mixture's are shared.
    """

    def __init__(
        self,
        files: OperatorFiles,
        layers: int,
        *,
        max_tokens: int,
        max_sequences: int,
        graph_sizes: tuple[int, ...] = (),
        between_us: list[float] | None = None,
        experts: MeasuredExperts | None = None,
    ) -> None:
        dense = _by_layer(files.dense, "tokens")
        lacks = [name for name in NEEDED if name not in dense]
        if lacks:
            raise ConfigError(f"got no times of {', '.join(lacks)}", file=files.dense)
        per_layer = _sum(dense, PER_LAYER.items(), max_tokens)
        once = _sum(dense, [(name, 1) for name in ONCE], max_tokens)
        rows = _by_layer(files.per_sequence, "sequences")
        communicates = between_us or [0.0] * (max_tokens + 1)
        self._linear_us = [layers * per_layer[count] for count in range(max_tokens + 1)]
        self._between_us = [layers * communicates[count] for count in range(max_tokens + 1)]
        self._routed_us: list[float] = []
        self._exchanges_us: list[float] = []
        if experts is not None:
            if files.moe is None:
                raise ConfigError("got no times of a mixture's experts, expected the file `moe`", file=files.dense)
            routed = _experts_us(files.moe, experts, max_tokens * experts.data)
            self._routed_us = [layers * time for time in routed]
            self._exchanges_us = [layers * time for time in experts.exchanges_us]
        self._once_us = once
        self._rows_us = _sum(rows, [(name, 1) for name in rows], max_sequences)
        self._attention = _Attention(files.attention, files.skew)
        self._layers = layers
        self._padded = padded_to(graph_sizes, max_tokens)
        self._captured = max(graph_sizes, default=0)
        self._decoded = (Parts(), Parts())

    def at(self, now_ps: int) -> MeasuredCost:
        """Return itself: links run at the same rates all the time."""
        return self

    def stages_ps(self, shape: StepShape) -> tuple[int, ...]:
        """Return the time of the one stage, picoseconds."""
        tokens = self._padded[shape.tokens]
        return self._times((tokens, tokens), shape.samples, self._attention.layer_us(shape), [shape])

    def together_ps(self, shapes: Sequence[StepShape | None]) -> tuple[int, ...]:
        """Return the time of a step that data parallel ranks take together, picoseconds; None: without work."""
        busy = [shape for shape in shapes if shape is not None]
        most = max(shape.tokens for shape in busy)
        tokens = self._padded[most]
        total = sum(1 if shape is None else shape.tokens for shape in shapes)
        if most <= self._captured:
            total = tokens * len(shapes)
        samples = max(shape.samples for shape in busy)
        return self._times((tokens, total), samples, max(map(self._attention.layer_us, busy)), busy)

    def _times(
        self, counts: tuple[int, int], samples: int, attention_us: float, shapes: Sequence[StepShape]
    ) -> tuple[int, ...]:
        """Return the time of a step: tokens of a rank and of all, rows that are sampled, one layer's attention."""
        tokens, total = counts
        linear, between = self._linear_us[tokens], self._between_us[tokens]
        routed = self._routed_us[total] if self._routed_us else 0.0
        exchanges = self._exchanges_us[tokens] if self._exchanges_us else 0.0
        ends = self._once_us[tokens] + self._rows_us[samples]
        attention = self._layers * attention_us
        count = sum(shape.decodes for shape in shapes)
        if count:
            spent = self._decoded[any(shape.chunks for shape in shapes)]
            spent.linear += count * linear
            spent.experts += count * routed
            spent.tensor_parallel += count * between
            spent.expert_parallel += count * exchanges
            spent.ends += count * ends
            spent.attention += count * attention
        return (round((linear + routed + between + exchanges + ends + attention) * PS_PER_US),)

    def decode_parts(self, *, mixed: bool) -> Parts:
        """Return what decoded tokens spent in steps so far: in those with prompts (`mixed`), or in others."""
        return self._decoded[mixed]
