"""The time of a matrix product by its tiles and waves on one GPU, in one type, from one library.

t = launch + cast + (compute³ + memory³)^⅓, longer by what the power limit leaves of the clock. Compute is the
shortest, over tile sizes and splits of k, of waves × (loop + tile). A loop's turn takes 128 bytes of k: its
operations on one SM, longer for narrow tiles, or the latency of a turn. Waves lie between whole waves of all SMs
and their plain share. Splits add partial sums, which go through memory, and a reduction. Memory is operands and
result over the data sheet's rate. Linear layers in fp8 and fp4 cast their input before, a kernel of its own.

The constants are those of a library on a GPU in a type; peak, SMs and memory are the data sheet's, so that they
carry to a GPU of which nothing was measured. Misaligned shapes are not modelled: all n and k of the measurements
are multiples of 32 (training has what they lose, `layers/roofline.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fabrictwin.base.arrays import F64
from fabrictwin.base.records import record

TILES = (
    (64, 32),
    (64, 64),
    (64, 128),
    (128, 32),
    (128, 64),
    (64, 256),
    (128, 128),
    (128, 192),
    (128, 256),
    (256, 128),
    (256, 256),
)
SPLITS = (1, 2, 4, 8, 16)
LOOP_BYTES = 128
_ROWS, _COLUMNS, _SPLIT = np.array(
    [(*tile, split) for split in SPLITS for tile in TILES], float
).T  # of every way to cut a product
LARGE_US = 1000.0
SUM_BYTES = 4
RESULT_BYTES = 2

BOUNDS: Mapping[str, tuple[float, float, float]] = {
    "launch": (0.8, 3.0, 40.0),
    "peak": (0.35, 0.85, 1.15),
    "tile": (0.05, 0.6, 8.0),
    "narrow": (0.05, 10.0, 150.0),
    "memory": (0.4, 0.85, 1.1),
    "step": (0.005, 0.08, 0.6),
    "waves": (0.01, 0.5, 0.99),
    "power": (0.001, 0.1, 1.0),
    "split": (0.1, 2.5, 40.0),
    "cast": (0.2, 1.5, 12.0),
    "row": (0.00002, 0.002, 0.02),
    "single": (0.01, 5.0, 60.0),
}
"""Constants with the least, a first guess, and the most; times in microseconds.

launch: of the kernel; peak: share of the data sheet's rate; tile: prologue and epilogue of a tile; narrow: loss of
narrow tiles, in elements; memory: share of the data sheet's rate; step: latency of a turn; waves: weight of whole
waves; power: what long kernels lose to the clock; split: of combining partial sums; cast: launch of the cast; row:
of the cast, for each row; single: what a layer of one row takes longer.
"""
NAMES = tuple(BOUNDS)
WITHOUT_CAST, WITHOUT_SINGLE = NAMES[:9], NAMES[:11]
SINGLE_GENERATION, SINGLE_BYTES = 10, 1.0
"""Blackwell in fp8, where layers of one row were measured to take 13 to 15 us longer at every n and k, of two rows
not. vLLM has PyTorch compile the cast by itself (`QuantFP8`), which compiles sizes of 1 apart from others."""


@record
class Chip:
    """What a data sheet says of a GPU: SMs, operations a microsecond in one type, bytes a microsecond, generation.

    The generation is the first digits of the compute capability; 0 is none whose kernels are known.
    """

    sms: int
    operations_per_us: float
    bytes_per_us: float
    generation: int = 0


@record
class Format:
    """Type of operands.

    Attributes:
        operand_bytes: Of an element that is multiplied.
        cast: A linear layer casts its input.
        stored_bytes: Of an element of the weights in memory, if they are widened while they are read; else 0.
        marlin: It is Marlin that widens them.
    """

    operand_bytes: float
    cast: bool
    stored_bytes: float = 0.0
    marlin: bool = False

    @property
    def weight_bytes(self) -> float:
        """Bytes of an element of the weights in memory."""
        return self.stored_bytes or self.operand_bytes


def product_us(constants: Mapping[str, float], chip: Chip, form: Format, shapes: F64) -> F64:
    """Return times of products of `shapes` (rows of m, n, k), their cast left out, in microseconds.

    A fourth column, if any, is how many such products a kernel computes.
    """
    m, n, k = shapes.T[:3]
    batch = shapes.T[3] if shapes.shape[1] > 3 else 1.0
    best = _tiled_us(constants, chip, form, shapes)
    moved = batch * (form.operand_bytes * m * k + form.weight_bytes * k * n + RESULT_BYTES * m * n)
    memory = moved / (constants["memory"] * chip.bytes_per_us)
    body = (best**3 + memory**3) ** (1 / 3)
    body = body * (1 + constants["power"] * body / (body + LARGE_US))
    times: F64 = constants["launch"] + body
    return times


def _tiled_us(constants: Mapping[str, float], chip: Chip, form: Format, shapes: F64) -> F64:
    """Return the shortest times of the tiles over all SMs, by tile and split."""
    m, n, k = shapes.T[:3, :, None]
    batch = shapes.T[3, :, None] if shapes.shape[1] > 3 else 1.0
    step = LOOP_BYTES / form.operand_bytes
    turns = np.ceil(k / step)
    tiles = batch * np.ceil(m / _ROWS) * np.ceil(n / _COLUMNS)
    narrow = 1 + constants["narrow"] * (1 / _ROWS + 1 / _COLUMNS)
    sm_rate = constants["peak"] * chip.operations_per_us / chip.sms
    turn = np.maximum(2.0 * step * _ROWS * _COLUMNS * narrow / sm_rate, constants["step"])
    load = tiles * _SPLIT / chip.sms
    waves = constants["waves"] * np.ceil(load) + (1 - constants["waves"]) * np.maximum(load, 1.0)
    time = waves * (np.ceil(turns / _SPLIT) * turn + constants["tile"])
    partial = 2.0 * SUM_BYTES * _SPLIT * tiles * _ROWS * _COLUMNS / (constants["memory"] * chip.bytes_per_us)
    time = time + np.where(_SPLIT > 1, constants["split"] + partial, 0.0)
    best: F64 = np.where(turns >= _SPLIT, time, np.inf).min(axis=1)
    return best


def cast_us(constants: Mapping[str, float], chip: Chip, form: Format, shapes: F64) -> F64:
    """Return times of the kernel that casts m × k values of two bytes; 0 in 16 bits."""
    m, _, k = shapes.T
    if not form.cast:
        return np.zeros(len(m))
    moved = (RESULT_BYTES + form.operand_bytes) * m * k
    single = constants.get("single", 0.0) * (m == 1)
    times: F64 = (
        constants["cast"] + single + constants["row"] * m + moved / (constants["memory"] * chip.bytes_per_us)
    )
    return times


def constants_of(chip: Chip, form: Format) -> tuple[str, ...]:
    """Return the names of the constants that linear layers have."""
    if not form.cast:
        return WITHOUT_CAST
    single = chip.generation == SINGLE_GENERATION and form.operand_bytes == SINGLE_BYTES
    return NAMES if single else WITHOUT_SINGLE


def linear_us(constants: Mapping[str, float], chip: Chip, form: Format, shapes: F64) -> F64:
    """Return times of linear layers: the cast of the input, and the product."""
    times: F64 = cast_us(constants, chip, form, shapes) + product_us(constants, chip, form, shapes)
    return times
