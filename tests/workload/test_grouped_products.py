"""DeepGEMM's grouped products against what DeepSeek publishes of them (README of DeepGEMM, H800)."""

from __future__ import annotations

from statistics import median

import pytest

from fabrictwin.workload.operators.grouped import grouped_us
from fabrictwin.workload.operators.products import Chip

H800 = Chip(132, 1979e6, 3.35e6)
CONTIGUOUS = [
    (32768, 4, 4096, 7168, 1297), (32768, 4, 7168, 2048, 1099), (32768, 8, 4096, 7168, 1288),
    (32768, 8, 7168, 2048, 1093),
]  # fmt: skip
MASKED = [
    (1024, 1, 4096, 7168, 1233), (1024, 1, 7168, 2048, 925), (1024, 2, 4096, 7168, 1040),
    (1024, 2, 7168, 2048, 916), (1024, 4, 4096, 7168, 932), (1024, 4, 7168, 2048, 815),
]  # fmt: skip


def _error(rows: int, groups: int, n: int, k: int, tflops: float) -> float:
    return grouped_us(H800, rows, n, k, groups) / (2 * rows * n * k / tflops / 1e6) - 1


@pytest.mark.parametrize("case", CONTIGUOUS)
def test_products_of_the_contiguous_layout(case: tuple[int, int, int, int, int]) -> None:
    assert abs(_error(*case)) < 0.02


def test_masked_products_that_no_constant_was_taken_from() -> None:
    errors = [abs(_error(*case)) for case in MASKED]
    assert max(errors) < 0.11
    assert median(errors) < 0.03


def test_rows_that_pad_are_worked_on() -> None:
    """Twice the rows take twice the time, whatever weights they meet."""
    few, many = (grouped_us(H800, rows, 1536, 4096, 1) for rows in (16384, 32768))
    assert many == pytest.approx(2 * few, rel=0.02)
