"""The time of fused experts on one GPU: both products of a mixture's layer, grouped by expert.

t = launch + (compute³ + memory³)^⅓ + rows moved. A rank's tokens fall on the experts that it holds; each expert
that some token goes to reads its weights, and works on its tokens in blocks of 16 to 128. Rows of all tokens are
moved, whatever share of the experts a rank holds: sorted, activated and added up. Widths whose rows do not begin
on sectors of memory, as tensor parallelism leaves some, take longer. How unevenly tokens fall is a distribution of
its own, whose measured residuals say what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fabrictwin.base.arrays import F64
from fabrictwin.workload.operators.products import LARGE_US, LOOP_BYTES, Chip

BLOCKS = (16, 32, 64, 128)
COLUMNS = 128
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
SECTOR_BYTES = 32


def experts_us(constants: Mapping[str, float], chip: Chip, operand_bytes: float, shapes: F64) -> F64:
    """Return times in microseconds.

    `shapes`: rows of (tokens, hidden, inner width on the rank, experts a token, experts in all, ranks that share
    them, matrices up: two of gated experts, else one).
    """
    tokens, hidden, inner, top_k, count, ranks, ups = shapes.T
    own = np.maximum(count / ranks, 1.0)
    rows = np.maximum(tokens * top_k / ranks, 1.0)
    met = np.minimum(own, rows)
    each = rows / met
    compute = np.full(len(tokens), np.inf)
    for block in BLOCKS:
        blocks = np.ceil(each / block) * met
        time = _grouped(constants, chip, operand_bytes, block, blocks, ups * inner, hidden)
        time = time + _grouped(constants, chip, operand_bytes, block, blocks, hidden, inner)
        compute = np.minimum(compute, time)
    rate = constants["memory"] * chip.bytes_per_us
    memory = met * (ups + 1) * inner * hidden * operand_bytes / rate
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
    times: F64 = constants["launch"] + body + moved + constants["expert"] * met
    return times


def _grouped(
    constants: Mapping[str, float], chip: Chip, operand_bytes: float, block: int, blocks: F64, n: F64, k: F64
) -> F64:
    turns = np.ceil(k / (LOOP_BYTES / operand_bytes))
    narrow = 1 + constants["narrow"] * (1 / block + 1 / COLUMNS)
    operations = 2.0 * block * COLUMNS * LOOP_BYTES / operand_bytes * narrow
    turn = max(operations / (constants["peak"] * chip.operations_per_us / chip.sms), constants["step"])
    waves = np.maximum(blocks * np.ceil(n / COLUMNS) / chip.sms, 1.0)
    times: F64 = waves * (turns * turn + constants["tile"])
    return times
