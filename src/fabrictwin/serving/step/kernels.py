"""Times of the kernels that a server runs, by shape: products by tiles and waves, attention by pairs and bytes.

A matrix product: t = launch + cast + (compute³ + memory³)^⅓. Compute is the shortest, over tile sizes and
splits of k, of waves × (loop + tile); a loop's turn takes its operations on one SM, longer for narrow tiles, or
the latency of a turn. Waves lie between whole waves of all SMs and their plain share. Memory is operands and
result over the memory's rate. fp8 and fp4 add the kernel that casts what goes in. The constants were fitted to
300 shapes of each type on H100 and GB200, from NVIDIA's measurements in aiconfigurator's database (Apache-2.0);
other GPUs take those of the nearest generation with their own data sheet.

Attention of prompts is causal tiles of 128 × 128 spread over the SMs, no shorter than the longest row of them;
decodes read their KV, in waves of a sequence and KV head an SM. Constants from the same database. Small kernels
take at least what LLMServingSim's profiles show of norms and rotations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from fabrictwin import catalog
from fabrictwin.workload.layers.number_formats import Precision

SMALL_US = 2.4
"""Least time of a norm, a rotation or an activation (LLMServingSim's profiles: 1.9 to 2.9)."""

TILES = (
    (64, 32),
    (64, 64),
    (64, 128),
    (128, 32),
    (128, 64),
    (128, 128),
    (128, 256),
    (256, 64),
    (256, 128),
    (256, 256),
)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
LOOP_BYTES = 128

EXPERTS_US = 30.0
EXPERTS_MEMORY = 0.8
LARGE_US = 1000.0


@dataclass(frozen=True)
class Constants:
    """Constants of products of one type on one generation; times in microseconds.

    Attributes:
        launch: Of the kernel.
        peak: Share of the peak rate.
        tile: Prologue and epilogue of a tile.
        narrow: How much narrow tiles lose, in elements.
        memory: Share of the memory's rate.
        step: Latency of a turn of the loop.
        waves: Weight of whole waves.
        power: What long kernels lose to the clock.
        split: Of combining partial sums; 0 where the library does not split.
        cast: Launch of the cast before it.
        row: Of the cast, for each row.
        operand_bytes: Of an element.
    """

    launch: float
    peak: float
    tile: float
    narrow: float
    memory: float
    step: float
    waves: float
    power: float
    split: float
    cast: float
    row: float
    operand_bytes: float


HOPPER = {
    "bf16": Constants(2.48, 0.809, 0.20, 0.21, 0.870, 0.087, 0.42, 0.003, 2.5, 0.0, 0.0, 2.0),
    "fp8": Constants(2.78, 0.818, 0.11, 37.9, 0.824, 0.117, 0.55, 0.042, 0.0, 2.0, 0.0066, 1.0),
}
BLACKWELL = {
    "bf16": Constants(2.02, 0.738, 0.17, 0.53, 0.809, 0.072, 0.43, 0.148, 3.1, 0.0, 0.0, 2.0),
    "fp8": Constants(4.00, 1.086, 0.19, 96.7, 0.747, 0.099, 0.24, 0.034, 0.0, 1.4, 0.0064, 1.0),
    "fp4": Constants(4.01, 0.965, 1.91, 69.6, 0.768, 0.136, 0.41, 0.350, 0.0, 1.2, 0.0004, 0.5625),
}


@dataclass(frozen=True)
class AttentionConstants:
    """Constants of attention on one generation; times in microseconds.

    Attributes:
        prompt_us: Least time for prompts.
        peak: Share of the peak rate that its tiles reach.
        decode_us: Least time for decodes.
        wave_us: For each wave of a sequence and KV head an SM.
    """

    prompt_us: float
    peak: float
    decode_us: float
    wave_us: float


HOPPER_ATTENTION = AttentionConstants(12.0, 0.575, 10.1, 2.1)
BLACKWELL_ATTENTION = AttentionConstants(12.0, 0.5, 8.9, 0.37)
ATTENTION_TILE = 128
ATTENTION_MEMORY = 0.915


class Kernels:
    """Times of kernels on one GPU at one precision of its linear layers, microseconds."""

    def __init__(self, gpu: str, precision: Precision) -> None:
        entry = catalog.gpu(gpu)
        self.gpu = entry
        blackwell = int(entry.compute_capability.value) >= 100
        known = BLACKWELL if blackwell else HOPPER
        self._constants = known.get(precision, known["bf16"])
        self._plain = known["bf16"]
        self._attention = BLACKWELL_ATTENTION if blackwell else HOPPER_ATTENTION
        self._sms = int(entry.sm_count.value)
        peaks = {name: float(figure.value) for name, figure in entry.peak_flops.items()}
        self._peak = peaks.get(precision, peaks["bf16"]) / 1e6  # operations a microsecond
        self._plain_peak = peaks["bf16"] / 1e6
        self.bytes_per_us = float(entry.memory_bandwidth.value) / 8 / 1e6
        self._measured_rate = float(entry.memory_bandwidth_measured.value) / 8 / 1e6

    @property
    def weight_bytes(self) -> float:
        """Bytes of an element of a weight matrix."""
        return self._constants.operand_bytes

    def linear(self, m: int, n: int, k: int) -> float:
        """Return the time of a linear layer, its cast included."""
        constants = self._constants
        time = self._product(constants, self._peak, m, n, k)
        if constants.cast:
            moved = (2 + constants.operand_bytes) * m * k
            time += constants.cast + constants.row * m + moved / self.bytes_per_us
        return time

    def gemm(self, m: int, n: int, k: int) -> float:
        """Return the time of a product in 16 bits."""
        return self._product(self._plain, self._plain_peak, m, n, k)

    def _product(self, constants: Constants, peak: float, m: int, n: int, k: int) -> float:
        compute = _compute(constants, peak / self._sms, self._sms, m, n, k, self.bytes_per_us)
        moved = constants.operand_bytes * (m * k + k * n) + 2 * m * n
        memory = moved / (constants.memory * self.bytes_per_us)
        time = constants.launch + float((compute**3 + memory**3) ** (1 / 3))
        return time * (1 + constants.power * time / (time + LARGE_US))

    def small(self, moved_bytes: float) -> float:
        """Return the time of a kernel that reads and writes."""
        return max(SMALL_US, moved_bytes / self._measured_rate)

    def experts(self, rows: int, met: float, n: int, k: int) -> float:
        """Return the time of one product of fused experts: `rows` in all, weights of the `met` experts read.

        What it takes to sort tokens by expert and to launch all of it is `EXPERTS_US`, once a layer.
        """
        constants = self._constants
        each = max(1, round(rows / met))
        alone = _compute(constants, self._peak / self._sms, self._sms, each, n, k, self.bytes_per_us)
        tiles = max(1.0, -(-each // 64)) * -(-n // 128)
        compute = alone * max(1.0, met * tiles / self._sms)
        moved = met * n * k * constants.operand_bytes + 2.0 * rows * (n + k)
        memory = moved / (EXPERTS_MEMORY * self.bytes_per_us)
        return float((compute**3 + memory**3) ** (1 / 3))

    def prompt_attention(
        self, heads: int, chunks: Sequence[tuple[int, int]], width: int, kv_bytes_per_token: float
    ) -> float:
        """Return the time of one layer's attention of prompts: (tokens, tokens before them) of each.

        `heads` of queries on this rank, `width` of a key and a value together.
        """
        known = self._attention
        rate = known.peak * self._plain_peak / self._sms
        block = 2.0 * ATTENTION_TILE * ATTENTION_TILE * width / rate
        total = longest = 0
        moved = written = 0.0
        for tokens, before in chunks:
            rows, seen = -(-tokens // ATTENTION_TILE), -(-before // ATTENTION_TILE)
            total += rows * seen + rows * (rows + 1) // 2
            longest = max(longest, seen + rows)
            moved += (before + tokens) * kv_bytes_per_token
            written += tokens * kv_bytes_per_token
        compute = max(total * heads / self._sms, longest) * block
        memory = moved / (ATTENTION_MEMORY * self.bytes_per_us)
        return known.prompt_us + float((compute**3 + memory**3) ** (1 / 3)) + written / self._measured_rate

    def decode_attention(self, kv_bytes: float, rows: int) -> float:
        """Return the time of one layer's attention of decodes: bytes read, and sequences × KV heads."""
        known = self._attention
        waves = -(-rows // self._sms)
        return known.decode_us + waves * known.wave_us + kv_bytes / (ATTENTION_MEMORY * self.bytes_per_us)


@cache
def _compute(constants: Constants, sm_rate: float, sms: int, m: int, n: int, k: int, bytes_per_us: float) -> float:
    """Return the shortest time of a product's tiles over all SMs; `sm_rate` in operations a microsecond."""
    step = LOOP_BYTES / constants.operand_bytes
    turns = -(-k // step)
    best = float("inf")
    for (rows, columns), split in product(TILES, SPLITS if constants.split else (1,)):
        if split > turns:
            continue
        operations = 2.0 * rows * columns * step * (1 + constants.narrow * (1 / rows + 1 / columns))
        turn = max(operations / (constants.peak * sm_rate), constants.step)
        loop = -(-turns // split) * turn
        tiles = -(-m // rows) * -(-n // columns) * split
        waves = constants.waves * -(-tiles // sms) + (1 - constants.waves) * max(tiles / sms, 1.0)
        time = waves * (loop + constants.tile)
        if split > 1:
            time += constants.split + 4.0 * m * n * split / bytes_per_us
        best = min(best, time)
    return best
