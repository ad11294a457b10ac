"""The time of fused attention on one GPU: prompts by causal tiles, decodes by the KV that they read.

Prompts: t = launch + (compute³ + memory³)^⅓ + KV written over the memory's rate. Compute is blocks of 128 queries
by 128 keys, spread over the SMs, no shorter than the longest row of them; every row of blocks has a prologue.
Queries that share a KV head may be packed into one block, which short prompts gain by.

Decodes: t = launch + KV over the memory's rate + waves of a sequence and KV head an SM. KV in 8 bits has constants
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fabrictwin.base.arrays import F64
from fabrictwin.base.records import record
from fabrictwin.workload.operators.products import LARGE_US, Chip

TILE = 128
WIDTH = 256.0
"""Elements of a key and a value in what was measured."""
PROMPT_BOUNDS: Mapping[str, tuple[float, float, float]] = {
    "launch": (1.0, 10.0, 40.0),
    "peak": (0.1, 0.6, 1.0),
    "row": (0.02, 1.0, 20.0),
    "waves": (0.01, 0.5, 0.99),
    "memory": (0.1, 0.8, 1.1),
    "write": (0.02, 0.5, 1.1),
    "power": (0.001, 0.05, 1.0),
}
"""launch; peak: share of the data sheet's rate; row: of a row of blocks; waves: weight of whole waves; memory and
write: shares of the memory's rate, read and written; power: what long kernels lose to the clock."""
DECODE_BOUNDS: Mapping[str, tuple[float, float, float]] = {
    "launch": (1.0, 8.0, 40.0),
    "wave": (0.02, 2.0, 20.0),
    "memory": (0.3, 0.9, 1.1),
    "cold": (0.05, 2.0, 40.0),
    "row": (0.0002, 0.02, 1.0),
}
"""launch; wave: of a sequence and KV head on every SM; memory: share of its rate; cold: what small reads wait,
reached at `COLD_BYTES` an SM; row: for each query head of each sequence on an SM."""
COLD_BYTES = 32768.0


@record
class Blocks:
    """What prompts come to: arrays of equal length, or one number each.

    Attributes:
        blocks: Blocks of queries by keys.
        ways: Rows of blocks, which an SM takes one at a time.
        longest: Blocks of the longest row.
        read, written: Elements of keys and values in the cache.
    """

    blocks: F64
    ways: F64
    longest: F64
    read: F64
    written: F64

    @classmethod
    def of(cls, sequences: F64, tokens: F64, heads: F64, kv_heads: F64, width: float) -> Blocks:
        """Return those of causal prompts of equal length, nothing before them; `width` of a key and a value."""
        rows = np.ceil(tokens / TILE)
        packed = np.ceil(tokens * heads / kv_heads / TILE)
        blocks = np.minimum(rows * (rows + 1) / 2 * heads, packed * (rows + 1) / 2 * kv_heads) * sequences
        ways = np.minimum(rows * heads, packed * kv_heads) * sequences
        cached = sequences * tokens * kv_heads * width
        return cls(blocks, ways, rows, cached, cached)


def prompt_us(constants: Mapping[str, float], chip: Chip, found: Blocks, width: float, kv_bytes: float) -> F64:
    """Return times of one layer's prompts in microseconds.

    `width`: elements of a key and a value together; `kv_bytes`: of an element in the cache.
    """
    block = 2.0 * TILE * TILE * width / (constants["peak"] * chip.operations_per_us / chip.sms)
    load = found.ways / chip.sms
    waves = constants["waves"] * np.ceil(load) + (1 - constants["waves"]) * np.maximum(load, 1.0)
    compute = np.maximum(found.blocks / found.ways * waves, found.longest) * block + waves * constants["row"]
    memory = found.read * kv_bytes / (constants["memory"] * chip.bytes_per_us)
    body = (compute**3 + memory**3) ** (1 / 3)
    body = body * (1 + constants["power"] * body / (body + LARGE_US))
    written = found.written * kv_bytes / (constants["write"] * chip.bytes_per_us)
    times: F64 = constants["launch"] + body + written
    return times


def decode_us(constants: Mapping[str, float], chip: Chip, kv_bytes: F64, rows: F64, queries: F64) -> F64:
    """Return times of one layer's decodes: bytes of KV read, sequences × KV heads, sequences × query heads."""
    load = rows / chip.sms
    each = kv_bytes / np.minimum(np.maximum(rows, 1.0), chip.sms)
    cold = constants["cold"] * np.minimum(1.0, each / COLD_BYTES)
    memory = kv_bytes / (constants["memory"] * chip.bytes_per_us)
    times: F64 = (
        constants["launch"]
        + constants["wave"] * np.ceil(load)
        + constants["row"] * queries / chip.sms
        + cold
        + memory
    )
    return times


def decode_line(
    constants: Mapping[str, float], chip: Chip, rows: float, queries: float
) -> Callable[[float], float]:
    """Return `decode_us` of so many rows and queries as a function of the bytes of KV, for one value at a time.

    It is a line beyond the bytes at which the start is paid in full, and a steeper one before.
    """
    empty, full = (
        float(decode_us(constants, chip, *(np.array([float(value)]) for value in (size, rows, queries)))[0])
        for size in (0.0, COLD_BYTES * min(max(rows, 1.0), chip.sms))
    )
    bound = COLD_BYTES * min(max(rows, 1.0), chip.sms)
    slope, beyond = (full - empty) / bound, 1 / (constants["memory"] * chip.bytes_per_us)
    return lambda size: empty + slope * size if size < bound else full + beyond * (size - bound)
