"""Which all-reduce vLLM takes at which size, and how long it takes against NVIDIA's measurements."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fabrictwin.serving.step.all_reduce import MIB, TensorGroup

GROUPS = {
    "a100_sxm": ("nvlink3", 80),
    "h100_sxm": ("nvlink4", 90),
    "b200_sxm": ("nvlink5", 100),
    "b300_sxm": ("nvlink5", 103),
}


def group(size: int, links: str = "nvlink4", capability: int = 90, per_node: int = 8) -> TensorGroup:
    return TensorGroup(size, min(size, per_node), links, capability)


@pytest.mark.parametrize(
    ("size", "capability", "bound", "beyond"),
    [
        (2, 90, 8 * MIB, "symmetric memory"),
        (4, 90, 8 * MIB, "symmetric memory"),
        (8, 90, MIB // 4, "symmetric memory"),
        (8, 100, MIB, "symmetric memory"),
        (8, 103, 4 * MIB, "symmetric memory"),
        (8, 80, 8 * MIB, "nccl"),
    ],
)
def test_the_custom_kernel_ends_at_the_exact_size(size: int, capability: int, bound: int, beyond: str) -> None:
    one = group(size, capability=capability)
    assert one.way(bound - 16) == "custom"
    assert one.way(bound) == beyond


def test_symmetric_memory_ends_too() -> None:
    assert group(8).way(64 * MIB - 16) == "symmetric memory"
    assert group(8).way(64 * MIB) == "nccl"


def test_sizes_that_the_custom_kernel_does_not_take() -> None:
    assert group(8).way(8) == "symmetric memory"  # no multiple of 16 bytes
    assert group(16, per_node=8).way(1024) == "nccl"
    assert group(5).way(1024) == "nccl"
    assert group(4, links="").way(1024) == "nccl"
    assert group(2, links="").way(1024) == "custom"
    assert group(1).way(1024) == "none"
    assert group(1).time_us(1024) == 0


def test_two_nodes_cost_more_than_one() -> None:
    assert group(16, per_node=8).time_us(MIB) > 1.5 * group(8).time_us(MIB)


def measured(shared: Path, system: str) -> Iterator[tuple[int, int, float]]:
    with open(shared / "validation/serving/aic_collectives.csv") as stream:
        for row in csv.DictReader(stream):
            if row["system"] == system and row["kernel_source"] == "vLLM_custom_graph":
                size = int(row["message_size"]) * 2  # of elements of two bytes
                yield int(row["num_gpus"]), size, float(row["latency_ms_raw"]) * 1000


@pytest.mark.parametrize("system", sorted(GROUPS))
def test_custom_all_reduces_are_as_long_as_measured(shared: Path, system: str) -> None:
    """1 KiB to 4 MiB. The kernel goes on where vLLM itself would leave it: the table is of the kernel alone."""
    errors = []
    for gpus, size, microseconds in measured(shared, system):
        one = group(gpus, *GROUPS[system])
        if 1024 <= size <= 4 * MIB and one.way(size) == "custom":
            errors.append(abs(one.time_us(size) / microseconds - 1))
    assert len(errors) > 20
    assert np.median(errors) < 0.06
    assert np.quantile(errors, 0.9) < 0.15
