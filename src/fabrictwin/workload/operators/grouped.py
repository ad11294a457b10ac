"""The time of DeepGEMM's grouped products in fp8 on Hopper, of rows that lie group by group in blocks of 128.

t = launch + (compute³ + memory³)^⅓. Every block of 128 rows is worked on, whether rows of it are real or pad it,
tile by tile in waves over the SMs: a tile of 128 columns takes `LOOP_OPERATIONS` for each 128 of k at a share of
the peak, and an epilogue. Constants are those at which the form meets what DeepSeek publishes of the contiguous
layout (README of DeepGEMM, MIT, H800 with NVCC 12.8: 1,297 and 1,099 TFLOP/s of 32,768 rows for k of 7,168 and
2,048), and the memory's share is what it publishes of 64 rows (2,668 of 3,350 GB/s). Its masked products of 1,024
rows, which nothing was taken from, are met within 11%, 3% in the median.
"""

from __future__ import annotations

from fabrictwin.workload.operators.products import Chip

BLOCK = 128
LOOP_OPERATIONS = 2.0 * BLOCK**3
PEAK_SHARE = 0.705
MEMORY_SHARE = 0.796
EPILOGUE_US = 1.715
LAUNCH_US = 2.4
OUT_BYTES = 2.0


def grouped_us(chip: Chip, rows: int, n: int, k: int, groups_met: float) -> float:
    """Return the time of `rows` (a multiple of 128) by n by k, weights of so many groups read, microseconds."""
    tiles = rows / BLOCK * -(-n // BLOCK)
    loop = LOOP_OPERATIONS / (PEAK_SHARE * chip.operations_per_us / chip.sms)
    compute = max(tiles / chip.sms, 1.0) * (-(-k // BLOCK) * loop + EPILOGUE_US)
    moved = groups_met * n * k + rows * k + OUT_BYTES * rows * n
    memory = moved / (MEMORY_SHARE * chip.bytes_per_us)
    return float(LAUNCH_US + (compute**3 + memory**3) ** (1 / 3))
