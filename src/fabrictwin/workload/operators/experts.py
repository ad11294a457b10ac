"""The time of fused experts on one GPU: both products of a mixture's layer, grouped by expert.

t = launch + (compute³ + memory³)^⅓ + rows moved. A rank's tokens fall on the experts that it holds; each expert
that some token goes to reads its weights, and works on its tokens in blocks of 8 to 128. Rows of all tokens are
moved, whatever share of the experts a rank holds: sorted, activated and added up. Widths whose rows do not begin
on sectors of memory, as tensor parallelism leaves some, take longer. Where tokens fall unevenly, by a power law,
the rank that gets most of them sets the pace. Blocks are the best, but of Triton's
and Marlin's kernels, which choose theirs by a rule (`ExpertBlocks`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fabrictwin.base.arrays import F64
from fabrictwin.base.records import record
from fabrictwin.workload.operators.products import LARGE_US, LOOP_BYTES, Chip, Format


@record
class ExpertBlocks:
    """How kernels cut the products of experts.

    Attributes:
        rows: Of the blocks that there are.
        columns: Of a block.
        filled, over: A rule takes the first blocks of which this share is more rows than an expert of the rank
            would get, less `over`, if all choices fell on the rank. 0: blocks are those that take least time.
    """

    rows: tuple[int, ...]
    columns: int
    filled: float = 0.0
    over: float = 0.0

    def places(self, shapes: F64) -> NDArray[np.int64]:
        """Return the places in `rows` of the blocks that the rule takes."""
        tokens, _, _, top_k, count, ranks = shapes.T[:6]
        of_expert = tokens * top_k / np.maximum(np.round(count / ranks), 1)
        places: NDArray[np.int64] = np.searchsorted(self.rows, (of_expert - self.over) / self.filled, side="right")
        return np.minimum(places, len(self.rows) - 1)


BEST = ExpertBlocks((16, 32, 64, 128), 128)
TRITON = ExpertBlocks((16, 32, 64, 128), 256, filled=1.0, over=1.0)
MARLIN = ExpertBlocks((8, 16, 32, 48, 64), 128, filled=0.9)
TRITON_GENERATION = 9
"""Hopper, where Triton's kernels widen weights of 4 bits that Marlin does not. Rules: `opt_flags.py` of
triton_kernels, with `gpt_oss_triton_kernels_moe.py` of vLLM; vLLM's `fused_marlin_moe.py`."""
BOUNDS: Mapping[str, tuple[float, float, float]] = {
    "launch": (2.0, 30.0, 200.0),
    "peak": (0.05, 0.6, 1.1),
    "tile": (0.05, 2.0, 30.0),
    "narrow": (0.05, 30.0, 300.0),
    "memory": (0.05, 0.7, 1.1),
    "step": (0.005, 0.1, 2.0),
    "hidden": (0.05, 3.0, 30.0),
    "inner": (0.05, 3.0, 30.0),
    "expert": (0.002, 0.1, 80.0),
    "power": (0.001, 0.1, 1.0),
    "sectors": (0.001, 0.3, 4.0),
}
"""launch; peak, memory: shares of the data sheet's; tile, narrow, step: as of products; hidden, inner: times that
a row's hidden and inner values are moved; expert: for each expert that is met; power: what long kernels lose;
sectors: what products lose whose rows do not begin on sectors of memory."""
WIDENED_BOUNDS = {**BOUNDS, "sort": (0.0005, 0.01, 0.3)}
"""Those of Marlin: with the time that each expert of all costs when tokens are sorted by expert."""
SECTOR_BYTES = 32
MOST_PASSES = 8
DRAWS = 5  # as the measurements were: each is the mean of five


def experts_us(constants: Mapping[str, float], chip: Chip, form: Format, shapes: F64) -> F64:
    """Return times in microseconds.

    `shapes`: rows of (tokens, hidden, inner width on the rank, experts a token, experts in all, ranks that share
    them, matrices up: two of gated experts, else one, exponent of the power law by which tokens fall on experts, 0
    where all get as many).
    """
    tokens, hidden, inner, top_k, _, _, ups, _ = shapes.T
    operand_bytes = form.operand_bytes
    cut = blocks_of(chip, form)
    met, blocks = busiest_ranks(shapes, cut.rows)
    times_of = []
    for place, rows in enumerate(cut.rows):
        tile = (rows, cut.columns)
        time = _grouped(constants, chip, operand_bytes, tile, blocks[:, place], ups * inner, hidden)
        times_of.append(time + _grouped(constants, chip, operand_bytes, tile, blocks[:, place], hidden, inner))
    compute = np.choose(cut.places(shapes), times_of) if cut.filled else np.min(times_of, axis=0)
    rate = constants["memory"] * chip.bytes_per_us
    memory = met * (ups + 1) * inner * hidden * form.weight_bytes / rate
    body = (compute**3 + memory**3) ** (1 / 3)
    apart = (inner * operand_bytes) % SECTOR_BYTES > 0
    body = body * (1 + constants["sectors"] * apart)
    body = body * (1 + constants["power"] * body / (body + LARGE_US))
    moved = (
        2.0
        * tokens
        * top_k
        * (constants["hidden"] * hidden + constants["inner"] * ups / 2 * inner)
        / chip.bytes_per_us
    )
    sort = constants.get("sort", 0.0) * shapes[:, 4]
    times: F64 = constants["launch"] + sort + body + moved + constants["expert"] * met
    return times


def blocks_of(chip: Chip, form: Format) -> ExpertBlocks:
    """Return how the kernels for a type cut the products."""
    if form.marlin:
        return MARLIN
    return TRITON if form.stored_bytes and chip.generation == TRITON_GENERATION else BEST


def busiest_ranks(shapes: F64, rows: tuple[int, ...]) -> tuple[F64, F64]:
    """Return what the rank with most tokens has: [N] experts that are met, [N, M] blocks of M numbers of rows."""
    loads = np.array([_busiest(*row, rows) for row in shapes[:, [0, 3, 4, 5, 7]].tolist()])
    return loads[:, 0], loads[:, 1:]


@lru_cache(maxsize=1 << 16)
def _busiest(
    tokens: float, top_k: float, count: float, ranks: float, exponent: float, blocks: tuple[int, ...]
) -> tuple[float, ...]:
    """Return (experts met, blocks of each number of rows) of the busiest rank, the mean of several draws."""
    own = max(round(count / ranks), 1)
    if not exponent:
        rows = max(tokens * top_k / ranks, 1.0)
        met = min(max(count / ranks, 1.0), rows)
        return met, *(math.ceil(rows / met / block) * met for block in blocks)
    weights = _power_law(own * round(ranks), exponent, tokens, many=tokens * top_k > count)
    fallen = _whole_tokens(weights.reshape(DRAWS, -1, own), tokens, tokens * top_k)
    busiest = fallen[np.arange(DRAWS), fallen.sum(axis=2).argmax(axis=1)]
    met = np.maximum((busiest > 0).sum(axis=1), 1).mean()
    return float(met), *(float(np.maximum(np.ceil(busiest / block).sum(axis=1), 1).mean()) for block in blocks)


def _power_law(experts: int, exponent: float, tokens: float, *, many: bool) -> F64:
    """Return [draws, experts] weights by aiconfigurator's law (collector/helper.py), the same each time."""
    least, most = (1.0, max(0.8 * tokens, 1.0)) if many else (0.01, 2.0)
    drawn = np.random.default_rng(0).random((DRAWS, experts))
    power = 1 - exponent
    found: F64 = ((most**power - least**power) * drawn + least**power) ** (1 / power)
    return found


def _whole_tokens(weights: F64, tokens: float, rows: float) -> F64:
    """Return [draws, ranks, experts] whole tokens near the weights, `rows` in all and at most `tokens` an expert.

    What rounding and that limit leave over goes to each rank's least visited experts, what they make too much is
    taken from its most visited.
    """
    found: F64 = np.minimum(np.rint(weights / weights.sum(axis=(1, 2), keepdims=True) * rows), tokens)
    ranks, own = found.shape[1:]
    for _ in range(MOST_PASSES):
        left = rows - found.sum(axis=(1, 2))
        if not left.any():
            break
        by_rank = np.abs(left)[:, None] // ranks + (np.arange(ranks) < np.abs(left)[:, None] % ranks)
        by_expert = (by_rank // own)[..., None] + (np.arange(own) < (by_rank % own)[..., None])
        sign = np.sign(left)[:, None, None]
        change = np.zeros_like(found)
        np.put_along_axis(change, (sign * found).argsort(axis=2, kind="stable"), by_expert, axis=2)
        found = np.clip(found + sign * change, 0, tokens)
    return found


def _grouped(
    constants: Mapping[str, float],
    chip: Chip,
    operand_bytes: float,
    tile: tuple[int, int],
    blocks: F64,
    n: F64,
    k: F64,
) -> F64:
    rows, columns = tile
    turns = np.ceil(k / (LOOP_BYTES / operand_bytes))
    narrow = 1 + constants["narrow"] * (1 / rows + 1 / columns)
    operations = 2.0 * rows * columns * LOOP_BYTES / operand_bytes * narrow
    turn = max(operations / (constants["peak"] * chip.operations_per_us / chip.sms), constants["step"])
    waves = np.maximum(blocks * np.ceil(n / columns) / chip.sms, 1.0)
    times: F64 = waves * (turns * turn + constants["tile"])
    return times
