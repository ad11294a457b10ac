"""Which test of nccl-tests a table is of, where its output does not say: for years it printed no name.

The ratio of bus to algorithm bandwidth is the test's (doc/PERFORMANCE.md of nccl-tests), n ranks: 2 (n - 1) / n of
an all-reduce, (n - 1) / n of all-gather, reduce-scatter and all-to-all, 1 of the others. Rows of an all-gather and
an all-to-all are alike, but that in place an all-to-all is not checked (N/A). Nor is a send and receive, which
names an operation as a reduce does, and no root.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NAMES = {
    "all_?reduce": "all_reduce",
    "all_?gather": "all_gather",
    "reduce_?scatter": "reduce_scatter",
    "all_?to_?all|all2all": "alltoall",
    "broadcast": "broadcast",
    "send_?recv": "sendrecv",
    "reduce": "reduce",
}
_NAMED = re.compile("|".join(f"(?P<{name}>{pattern})" for pattern, name in _NAMES.items()), re.IGNORECASE)
NEAR, NEAR_ONE = 0.02, 0.01  # bandwidths are printed with two digits
LEAST_GBPS = 1.0  # below, they have too few, but for an all-reduce of many ranks, whose ratio is far from others
FEWEST_GBPS, NO_OTHER = 0.05, 1.25


class Row(NamedTuple):
    """A row of a table: bytes, elements, bandwidths in GB/s, whether an operation and which root stand in it."""

    size: int
    elements: int
    algorithm_gbps: float
    bus_gbps: float
    reduces: bool
    root: int | None = None  # -1 where the test has none; None where the table has no such column
    in_place_checked: bool = True


def named_in(line: str) -> str:
    """Return the test that a line names, as a command does that started it; empty where it names none."""
    found = re.search(r"\b(\w+)_perf\b", line)
    return named_by(found[1]) if found is not None else ""


def named_by(name: str) -> str:
    """Return the test that a file's name tells; empty where it tells none."""
    found = _NAMED.search(name)
    return f"{found.lastgroup}_perf" if found is not None else ""


def test_of(row: Row, ranks: int) -> str:
    """Return the test that a row's bandwidths belong to; empty where they do not tell."""
    if row.algorithm_gbps <= FEWEST_GBPS:
        return ""
    n, ratio = max(ranks, 2), row.bus_gbps / row.algorithm_gbps
    if row.algorithm_gbps <= LEAST_GBPS:
        near = NEAR + 0.01 / row.algorithm_gbps
        alone = row.reduces and ratio > NO_OTHER and abs(ratio - 2 * (n - 1) / n) < near
        return "all_reduce_perf" if alone else ""
    whole = row.elements * 4 >= row.size * 0.99
    sends = row.root == -1 and not row.in_place_checked
    if abs(ratio - 2 * (n - 1) / n) < NEAR and row.reduces and not sends and (n > 2 or row.root == -1):
        return "all_reduce_perf"
    if abs(ratio - 1) < NEAR_ONE:
        return "broadcast_perf" if not row.reduces else ("sendrecv_perf" if sends else "reduce_perf")
    if abs(ratio - (n - 1) / n) < NEAR:
        if row.reduces:
            return "reduce_scatter_perf"
        return "alltoall_perf" if whole or not row.in_place_checked else "all_gather_perf"
    return ""
