"""links.csv and flows.csv: what the links did, and what each communication took."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from fabrictwin.base.units import PS_PER_US
from fabrictwin.fabric.fabric import NONE, LinkKind
from fabrictwin.program.program import Communication, OpKind
from fabrictwin.report.link_usage import KIND_NAMES, carrying, utilisation
from fabrictwin.report.result import RunResult
from fabrictwin.trace.trace import OPTIONAL_COUNTERS

NOT_MODELLED = "not modelled"


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def links_csv(result: RunResult) -> str:
    """One row a directed link that carried anything, in order of port."""
    fabric, counters = result.fabric, result.trace.counters
    used = utilisation(fabric, result.trace)
    header = ["port", "link", "kind", "rate_gbps", "payload_gbps", "tx_bytes", "utilisation"]
    ports = carrying(fabric, result.trace)
    kinds = {kind: KIND_NAMES[LinkKind(kind)] for kind in np.unique(fabric.port_kind).tolist()}
    extra = [getattr(counters, name) for name in OPTIONAL_COUNTERS]
    columns = (
        ports.tolist(),
        fabric.link_names(ports),
        [kinds[kind] for kind in fabric.port_kind[ports].tolist()],
        _formatted(fabric.port_rate_bps[ports] / 1e9, "%.6g"),
        _formatted(fabric.port_payload_bps[ports] / 1e9, "%.6g"),
        counters.tx_bytes[ports].tolist(),
        _formatted(used[ports], "%.6f"),
        *(itertools.repeat(NOT_MODELLED) if column is None else column[ports].tolist() for column in extra),
    )
    return _csv([*header, *OPTIONAL_COUNTERS], zip(*columns, strict=False))


def _formatted(values: npt.NDArray[np.float64], form: str) -> list[str]:
    """Return values as text; many are alike."""
    found, which = np.unique(values, return_inverse=True)
    texts = [form % value for value in found.tolist()]
    return [texts[at] for at in which.tolist()]


def ranks_per_group(communication: Communication) -> int:
    """Ranks that take part in each group."""
    return len(np.unique(communication.channels.ranks)) // communication.groups


def bus_factor(kind: str, ranks: int) -> float:
    """Factor from algorithm to bus bandwidth, as nccl-tests defines it (its PERFORMANCE.md)."""
    if ranks < 2:
        return 1.0
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def flows_csv(result: RunResult) -> str:
    """One row a communication and label that ran, in order of the program's communications."""
    program, trace = result.job.program, result.trace
    ops = program.operations
    ran = np.flatnonzero((ops.kind == OpKind.COMMUNICATE) & (trace.start_ps >= 0) & (trace.end_op_ps >= 0))
    key = ops.communication[ran].astype(np.int64) * (len(program.labels) + 1) + ops.label[ran]
    found, which, counts = np.unique(key, return_inverse=True, return_counts=True)
    duration = trace.end_op_ps[ran] - trace.start_ps[ran]
    total = np.zeros(len(found), np.int64)
    longest = np.zeros(len(found), np.int64)
    np.add.at(total, which, duration)
    np.maximum.at(longest, which, duration)
    first = np.full(len(found), NONE, np.int64)
    first[which[::-1]] = ran[::-1]

    def row(i: int) -> list[object]:
        communication = program.communications[int(ops.communication[first[i]])]
        label = program.labels[int(ops.label[first[i]])]
        ranks = ranks_per_group(communication)
        mean_ps = int(total[i]) / int(counts[i])
        algbw = communication.size_bytes * 1_000 / mean_ps if mean_ps else 0.0  # bytes per ps are TB/s
        return [
            communication.name,
            label.name,
            label.category,
            communication.kind,
            communication.algorithm,
            communication.groups,
            ranks,
            len(communication.channels),
            communication.size_bytes,
            int(counts[i]),
            f"{mean_ps / PS_PER_US:.6f}",
            f"{int(longest[i]) / PS_PER_US:.6f}",
            f"{algbw:.6g}",
            f"{algbw * bus_factor(communication.kind, ranks):.6g}",
        ]

    header = [
        "communication",
        "label",
        "category",
        "kind",
        "algorithm",
        "groups",
        "ranks_per_group",
        "channels",
        "size_bytes",
        "count",
        "mean_us",
        "max_us",
        "algbw_gbytes_per_s",
        "busbw_gbytes_per_s",
    ]
    return _csv(header, (row(i) for i in range(len(found))))
