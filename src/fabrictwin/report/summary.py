"""summary.json: the answer in figures. Every key is described in docs/run.md; units are in the keys."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fabrictwin.base.units import PS_PER_S
from fabrictwin.program.program import OpKind
from fabrictwin.report.breakdown import Collective, Share
from fabrictwin.report.error_range import run_range
from fabrictwin.report.link_usage import busiest, by_kind, not_modelled, utilisation
from fabrictwin.report.result import RunResult

SCHEMA = 1

# keys of what a step takes, in the order of tables; what a job does not have is left out
STEP_FIGURES = (
    "step_time_s",
    *("tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "hardware_tflops_per_gpu", "mfu", "hfu"),
)


def _round(value: float, digits: int = 6) -> float:
    """Six significant digits: more would suggest a precision that no model has."""
    return float(f"{value:.{digits}g}")


def summary(result: RunResult) -> dict[str, Any]:
    """The figures of a run as plain data, the same for the same spec and seed."""
    fabric, trace, program = result.fabric, result.trace, result.job.program
    gpus = program.ranks
    return {
        "schema": SCHEMA,
        "name": result.asked.name,
        "fidelity": trace.fidelity,
        "seed": result.asked.seed,
        "cluster": {
            "description": result.asked.cluster_line,
            "technology": fabric.technology,
            "hosts": fabric.hosts,
            "gpus": fabric.gpus,
            "switches": len(fabric.switch_nodes),
        },
        "job": {
            "description": result.job.layout_line,
            "program": program.name,
            "ranks": gpus,
            "hosts": len(np.unique(fabric.node_host[result.job.rank_node])),
            "actors": len(program.actors),
            "operations": len(program.operations),
        },
        **step_figures(result),
        "error_range": _error_range(result),
        "memory": _memory(result),
        "breakdown": _breakdown(result),
        "exposed_communication": _exposed(result),
        "what_if": _what_if(result),
        "busiest_links": _busiest(result),
        "traffic_by_link_kind": by_kind(fabric, trace),
        "subnet_manager": None if result.management is None else result.management.data(),
        "not_modelled": not_modelled(trace),
        "reference": _reference(result),
        "notes": [*result.job.notes, *_remarks(result)],
    }


def step_figures(result: RunResult) -> dict[str, Any]:
    """Return the step's time and throughput, without what ports and operations did."""
    end_ps = result.trace.end_ps
    return {"step_time_s": _round(end_ps / PS_PER_S, 9), "step_time_ps": end_ps, **_throughput(result)}


def summary_json(result: RunResult) -> str:
    """summary.json as text."""
    return json.dumps(summary(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _throughput(result: RunResult) -> dict[str, Any]:
    work, seconds, gpus = result.job.work, result.trace.end_ps / PS_PER_S, result.job.program.ranks
    if work is None or seconds == 0:
        return dict.fromkeys(
            [
                "tokens_per_step",
                "tokens_per_s",
                "tokens_per_s_per_gpu",
                "parameters",
                "model_tflops_per_gpu",
                "hardware_tflops_per_gpu",
                "peak_tflops_per_gpu",
                "precision",
                "mfu",
                "hfu",
            ]
        )
    model = work.model_flops / seconds / gpus
    hardware = work.hardware_flops / seconds / gpus
    return {
        "tokens_per_step": work.tokens,
        "tokens_per_s": _round(work.tokens / seconds),
        "tokens_per_s_per_gpu": _round(work.tokens / seconds / gpus),
        "parameters": work.parameters,
        "model_tflops_per_gpu": _round(model / 1e12),
        "hardware_tflops_per_gpu": _round(hardware / 1e12),
        "peak_tflops_per_gpu": _round(work.peak_flops_per_gpu / 1e12),
        "precision": work.precision,
        "mfu": _round(model / work.peak_flops_per_gpu),
        "hfu": _round(hardware / work.peak_flops_per_gpu),
    }


def _error_range(result: RunResult) -> dict[str, Any] | None:
    found = run_range(result)
    if found is None:
        return None
    half, nine_tenths = found.of_time(result.trace.end_ps / PS_PER_S)
    return {
        "step_time_s_50_percent": [_round(one) for one in half],
        "step_time_s_90_percent": [_round(one) for one in nine_tenths],
        **found.data(),
    }


def _breakdown(result: RunResult) -> list[dict[str, Any]]:
    parts = result.breakdown
    return [
        {
            "key": share.key,
            "name": share.name,
            "kind": share.state.kind,
            "time_ps": share.time_ps,
            "percent": permille / 10,
            "under_way_ps": share.busy_ps,
            "hidden_ps": share.busy_ps - share.time_ps,
        }
        for share, permille in zip(parts.shares, parts.permille, strict=True)
    ]


def _exposed(result: RunResult) -> list[dict[str, Any]]:
    """Each kind of communication: what of it no compute hides."""
    return [
        {"category": item.category, "name": item.name, "operations": item.operations, **_times(item)}
        for item in result.collectives
    ]


def _times(item: Share | Collective) -> dict[str, int]:
    return {"time_ps": item.time_ps, "under_way_ps": item.busy_ps, "hidden_ps": item.busy_ps - item.time_ps}


def _what_if(result: RunResult) -> list[dict[str, Any]]:
    return [
        {
            "key": gain.key,
            "name": gain.name,
            "kind": gain.kind,
            "step_time_ps": gain.step_ps,
            "gained_ps": gain.gained_ps,
            "gained_percent": round(100 * gain.share, 2),
        }
        for gain in result.gains
    ]


def _memory(result: RunResult) -> dict[str, Any] | None:
    """Memory of the fullest GPU at its fullest, as plain data."""
    held = result.job.memory
    if held is None:
        return None
    return {
        "stage": held.stage,
        "total_bytes": held.total_bytes,
        "capacity_bytes": held.capacity_bytes,
        "fits": held.fits,
        "over_bytes": held.over_bytes,
        "items": [
            {"key": item.key, "name": item.name, "bytes": item.bytes, "estimate": item.estimate}
            for item in held.items
        ],
    }


def _busiest(result: RunResult) -> list[dict[str, Any]]:
    fabric, trace = result.fabric, result.trace
    used = utilisation(fabric, trace)
    return [
        {
            "link": fabric.link_name(port),
            "utilisation": round(float(used[port]), 6),
            "tx_bytes": int(trace.counters.tx_bytes[port]),
            "rate_gbps": _round(int(fabric.port_rate_bps[port]) / 1e9),
            "payload_gbps": _round(int(fabric.port_payload_bps[port]) / 1e9),
        }
        for port in busiest(fabric, trace).tolist()
    ]


def _reference(result: RunResult) -> dict[str, Any] | None:
    """Each published figure with the prediction of the same quantity and how far it is off, in percent."""
    reference = result.reference
    if reference is None:
        return None
    predicted = _throughput(result) | {"step_time_s": result.trace.end_ps / PS_PER_S}
    figures = {}
    for key, published in reference.figures.items():
        mine = predicted[key]
        figures[key] = {
            "published": published,
            "predicted": None if mine is None else _round(mine),
            "difference_percent": None if mine is None else _round(100 * (mine / published - 1), 4),
        }
    return {"source": reference.source, "figures": figures}


def _remarks(result: RunResult) -> list[str]:
    """Remarks for who reads the figures, found in the run itself."""
    ops, trace = result.job.program.operations, result.trace
    remarks = []
    if (ops.kind == OpKind.COMMUNICATE).any() and not trace.counters.tx_bytes.any():
        remarks.append("this run communicated, but no link carried a byte")
    work = result.job.work
    if work is not None and work.hardware_flops * PS_PER_S > work.peak_flops_per_gpu * trace.end_ps * (
        result.job.program.ranks
    ):
        remarks.append("this run computes faster than the GPUs' peak: the times of its compute cannot be right")
    if trace.end_ps == 0:
        remarks.append("this run took no time: there was nothing to do")
    return remarks


def what_limits(result: RunResult) -> str:
    """One sentence: where most of the step goes that is not the model's own arithmetic."""
    parts = result.breakdown
    lost = [
        (permille, share)
        for permille, share in zip(parts.permille, parts.shares, strict=True)
        if share.key != "compute" and permille > 0
    ]
    if not lost:
        return "All of the step is compute."
    permille, share = max(lost, key=lambda pair: (pair[0], -parts.shares.index(pair[1])))
    compute = sum(p for p, s in zip(parts.permille, parts.shares, strict=True) if s.key == "compute")
    return (
        f"Compute takes {compute / 10:.1f}% of the step; "
        f"the largest of the rest is {share.name} with {permille / 10:.1f}%."
    )
