"""The time of fused attention on one GPU: prompts by causal tiles, decodes by the KV that they read.

Prompts: t = launch + (compute³ + memory³)^⅓ + KV written. Compute is blocks of queries by 128 keys, spread over
the SMs, no shorter than the longest row of them; every row of blocks has a prologue. The kernel of a generation
says what a block takes (`PROMPT_KERNELS`). Memory is KV and queries read and results written. New keys and values
go to the cache by another kernel, which gives each token a block of up to 512 threads (vLLM's
`reshape_and_cache_flash`).

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
WIDE_BYTES = 2
PROMPT_BOUNDS: Mapping[str, tuple[float, float, float]] = {
    "launch": (1.0, 10.0, 40.0),
    "peak": (0.1, 0.6, 1.0),
    "row": (0.02, 3.0, 20.0),
    "waves": (0.01, 0.5, 0.99),
    "moved": (1000.0, 15000.0, 60000.0),
    "write": (0.02, 0.5, 1.1),
    "token": (0.0001, 0.003, 0.02),
    "power": (0.001, 0.05, 1.0),
    "split": (0.1, 3.0, 20.0),
}
"""launch; peak: share of the data sheet's rate; row: of a row of blocks; waves: weight of whole waves;
moved: bytes that an SM reads and writes a microsecond, if memory gives so many; write: share of the memory's rate,
of what is written to the cache; token: of each block that writes a token there; power: what long kernels lose to
the clock; split: of combining the parts of rows."""
WITHOUT_SPLIT = tuple(name for name in PROMPT_BOUNDS if name != "split")
FULL, FILLED, SHORT = 0.8, 0.85, 4
"""FlashAttention 3 splits keys where rows of blocks take less than `FULL` of the SMs and have more than `SHORT`
blocks, until `FILLED` of the SMs are at work (`num_splits_heuristic` of its `hopper/heuristics.h`)."""
WRITE_THREADS, WRITE_POWER = 512, 1.25
"""Threads of the largest block that writes a token, one for each value (vLLM's `csrc/cache_kernels.cu`); power of
their number by which a block takes longer, as an SM holds fewer: 128, 256, 512 take 0.6, 1.1, 4 ns a token on H100
in 16 bits, 0.7, 1.4, 5 on B200 in 8."""
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
class PromptKernel:
    """How the attention kernel of a generation cuts prompts.

    Attributes:
        queries: Of a block, a multiple of `TILE`.
        packs: Queries of several heads that share a KV head fill blocks together.
        splits: Several SMs share the keys of a row of blocks where there are few rows.
    """

    queries: int
    packs: bool
    splits: bool


PROMPT_KERNELS = {
    9: PromptKernel(TILE, packs=True, splits=True),
    10: PromptKernel(2 * TILE, packs=False, splits=False),
}
"""By generation: FlashAttention 3 on Hopper (its `pack_gqa` and `num_splits`); on Blackwell the kernels that vLLM
takes through FlashInfer, whose blocks are two tiles of 128 queries of one head."""
OTHER_KERNEL = PromptKernel(TILE, packs=False, splits=False)
"""FlashAttention 2, which puts heads together of single queries alone (`seqlenq_ngroups_swapped`)."""


def prompt_kernel(chip: Chip) -> PromptKernel:
    """Return the kernel that prompts run on."""
    return PROMPT_KERNELS.get(chip.generation, OTHER_KERNEL)


@record
class Blocks:
    """What prompts come to: arrays of equal length, or one number each.

    Attributes:
        blocks: Tiles of queries by keys.
        ways: Rows of blocks, which an SM takes one at a time.
        longest: Tiles of the longest row.
        read, queries, written: Elements of keys and values in the cache that are read, of queries, and of keys and
            values that are written.
        writers: Tokens that are written to the cache, each as a share of the largest block's time.
    """

    blocks: F64
    ways: F64
    longest: F64
    read: F64
    queries: F64
    written: F64
    writers: F64

    @classmethod
    def of(
        cls,
        kernel: PromptKernel,
        sequences: F64,
        tokens: F64,
        before: F64,
        heads: F64,
        kv_heads: F64,
        width: float,
    ) -> Blocks:
        """Return those of equal chunks of prompts with as much before them; `width` of a key and a value."""
        tiles, seen, together = -(-tokens // TILE), -(-before // TILE), kernel.queries // TILE
        whole, rows = tiles // together, -(-tiles // together)
        of_head = tiles * seen + together**2 * whole * (whole + 1) / 2 + (tiles - together * whole) * tiles
        packed = -(-tokens * heads // (TILE * kv_heads)) * kv_heads
        # a single query is a decode, whose kernels pack on every generation
        packs = (tokens == 1) | kernel.packs
        ways = np.where(packs, np.minimum(rows * heads, packed), rows * heads) * sequences
        new = sequences * tokens
        threads = np.minimum(kv_heads * width / 2, WRITE_THREADS)
        return cls(
            of_head / rows * ways,
            ways,
            (seen + tiles) * np.minimum(tiles, together),
            sequences * (before + tokens) * kv_heads * width,
            new * heads * width / 2,
            new * kv_heads * width,
            new * (threads / WRITE_THREADS) ** WRITE_POWER,
        )

    def together(self) -> Blocks:
        """Return these chunks as what one kernel has, one number each."""
        parts = (self.blocks, self.ways, self.read, self.queries, self.written, self.writers)
        blocks, ways, *moved = (part.sum() for part in parts)
        return Blocks(blocks, ways, self.longest.max(), *moved)


def prompt_us(constants: Mapping[str, float], chip: Chip, found: Blocks, width: float, kv_bytes: float) -> F64:
    """Return times of one layer's prompts in microseconds.

    `width`: elements of a key and a value together; `kv_bytes`: of an element in the cache, and of a query.
    """
    block = 2.0 * TILE * TILE * width / (constants["peak"] * chip.operations_per_us / chip.sms)
    parts = _parts(chip, found)
    load = found.ways * parts / chip.sms
    waves = constants["waves"] * np.ceil(load) + (1 - constants["waves"]) * np.maximum(load, 1.0)
    mean = found.blocks / (found.ways * parts)
    compute = np.maximum(mean * waves, found.longest / parts) * block + waves * constants["row"]
    compute = compute + constants.get("split", 0.0) * (parts > 1)
    moved = found.read * kv_bytes + found.queries * (kv_bytes + WIDE_BYTES)
    memory = moved / min(constants["moved"] * chip.sms, chip.bytes_per_us)
    body = (compute**3 + memory**3) ** (1 / 3)
    body = body * (1 + constants["power"] * body / (body + LARGE_US))
    written = found.written * (WIDE_BYTES + kv_bytes) / (constants["write"] * chip.bytes_per_us)
    times: F64 = constants["launch"] + body + written + found.writers * constants["token"]
    return times


def _parts(chip: Chip, found: Blocks) -> F64 | float:
    """Return into how many parts a row of blocks is split."""
    if not prompt_kernel(chip).splits:
        return 1.0
    few = (found.ways < FULL * chip.sms) & (found.longest > SHORT)
    parts: F64 = np.where(few, np.minimum(np.ceil(FILLED * chip.sms / found.ways), found.longest), 1.0)
    return parts


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
