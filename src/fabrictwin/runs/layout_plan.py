"""From a search in closed form to an answer: the best layouts simulated, in order, with what holds each back."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage
from fabrictwin.base.records import record
from fabrictwin.base.textfile import write_text
from fabrictwin.base.units import PS_PER_S, format_size, format_time
from fabrictwin.catalog.error_ranges import ErrorRange
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.engines.base.play import play
from fabrictwin.report.error_range import range_lines, step_case, step_range
from fabrictwin.report.resolved_config import moved, spec_yaml
from fabrictwin.runs.execute import cluster_line
from fabrictwin.runs.workers import in_order
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.twin.twin import Twin
from fabrictwin.workload.job.workload_section import Workload
from fabrictwin.workload.search.layout_search import HEADROOM, Candidate, Found, Search, layout_line
from fabrictwin.workload.step.training_step import lower


@record
class Ranked:
    """A layout and its simulated step."""

    candidate: Candidate
    step_ps: int
    tokens_per_s_per_gpu: float
    mfu: float


@record
class Plan:
    """The best layouts, fastest first."""

    name: str
    cluster_line: str
    model: str
    gpus: int
    fidelity: str
    found: Found
    ranked: tuple[Ranked, ...]
    range: ErrorRange  # of the layouts' steps


def plan(
    spec: Spec,
    *,
    top: int,
    fidelity: str,
    stage: Stage,
    headroom: float = HEADROOM,
    workers: int | str | None = 1,
) -> Plan:
    """Search, simulate the best by workers, rank them by that. Raises ConfigError where nothing fits."""
    stage("building the cluster")
    blueprint = build(spec.cluster, spec=spec)
    twin = make_twin(spec, blueprint)
    search = Search(spec, blueprint, twin.fabric, headroom=headroom)
    found = search.run(stage, keep=top)
    if not found.candidates:
        raise spec.error(
            "workload.training.parallel",
            f"none of {found.considered:,} layouts fits in a GPU's memory, {headroom:.0%} of it kept free"
            if found.considered
            else f"found no way to divide the job over {search.gpus} GPUs",
        )
    names = [
        f"simulating {i + 1} of {len(found.candidates)}: {layout_line(candidate.job)}"
        for i, candidate in enumerate(found.candidates)
    ]
    specs = [with_layout(spec, candidate) for candidate in found.candidates]
    # here the twin is at hand; other processes build their own
    work = partial(_step_on, blueprint, twin, fidelity) if workers == 1 else partial(_step, fidelity)
    steps = in_order(work, specs, workers, stage, names)
    ranked = [Ranked(one, *step) for one, step in zip(found.candidates, steps, strict=True) if step is not None]
    ranked.sort(key=lambda item: (item.step_ps, repr(item.candidate.section)))
    return Plan(
        name=spec.name,
        cluster_line=cluster_line(blueprint, twin.fabric),
        model=search.model.name,
        gpus=search.gpus,
        fidelity=fidelity,
        found=found,
        ranked=tuple(ranked),
        range=_range(spec, twin, found.candidates[0]),
    )


def _range(spec: Spec, twin: Twin, candidate: Candidate) -> ErrorRange:
    """Return what steps on this many GPUs are off by; layouts of one job share it."""
    hosts = candidate.job.placement.host_of_rank
    training = with_layout(spec, candidate).validate_section("workload", Workload).training
    known = spec.calibration
    keys = {**training.model_dump(mode="json"), "calibration": None if known is None else known.model_dump()}
    case = step_case(twin.fabric, len(hosts), len(np.unique(hosts)), keys, training.read_model(spec.folder))
    return step_range(case)


def _step(fidelity: str, spec: Spec) -> tuple[int, float, float] | None:
    blueprint = build(spec.cluster, spec=spec)
    return _step_on(blueprint, make_twin(spec, blueprint), fidelity, spec)


def _step_on(blueprint: Blueprint, twin: Twin, fidelity: str, spec: Spec) -> tuple[int, float, float] | None:
    """The step in ps, tokens a second and GPU, and MFU; None where only lowering finds some rule broken."""
    try:
        lowered = lower(spec, blueprint, twin.fabric)
    except ConfigError:
        return None
    trace = play(
        lowered.program, lowered.rank_node, twin.start_engine("analytic" if fidelity == "analytic" else "flow")
    )
    seconds = trace.end_ps / PS_PER_S
    work, gpus = lowered.work, lowered.program.ranks
    assert work is not None
    mfu = work.model_flops / seconds / gpus / work.peak_flops_per_gpu
    return trace.end_ps, work.tokens / seconds / gpus, mfu


def with_layout(spec: Spec, candidate: Candidate) -> Spec:
    """The spec with a layout that was found."""
    return spec.model_copy(update={"workload": {"training": candidate.section}})


def write_best(found: Plan, spec: Spec, path: Path) -> None:
    """The spec with the best layout as a file, ready to be run. Raises ConfigError."""
    write_text(path, spec_yaml(moved(with_layout(spec, found.ranked[0].candidate), path.parent)))


def why(item: Ranked, best: Ranked) -> str:
    """Say what holds a layout back: where its time goes, or what it loses to the best."""
    shares = item.candidate.estimate.shares
    lost = {key: value for key, value in shares.items() if key != "compute"}
    if item is best:
        parts = [f"{key} {value:.1%}" for key, value in lost.items() if value >= 0.0005]
        return f"compute {shares['compute']:.1%}" + (f", {', '.join(parts)}" if parts else "")
    theirs = best.candidate.estimate
    gains = {
        key: share * item.candidate.estimate.step_ps - theirs.shares[key] * theirs.step_ps
        for key, share in shares.items()
    }
    key, most = max(gains.items(), key=lambda pair: pair[1])
    slower = item.step_ps / best.step_ps - 1
    if most <= 0 or slower < 0.0005:
        return "as fast as the best"
    return f"{slower:.1%} slower: {format_time(round(most))} more {key}"


def plan_data(found: Plan) -> dict[str, Any]:
    """The plan as plain data."""
    best = found.ranked[0] if found.ranked else None
    return {
        "schema": 1,
        "name": found.name,
        "cluster": found.cluster_line,
        "model": found.model,
        "gpus": found.gpus,
        "fidelity": found.fidelity,
        "layouts_considered": found.found.considered,
        "layouts_too_large": found.found.too_large,
        "error_range": found.range.data(),
        "layouts": [
            {
                "layout": layout_line(item.candidate.job),
                "parallel": item.candidate.section["parallel"],
                "micro_batch_size": item.candidate.section["micro_batch_size"],
                "sequence_parallel": item.candidate.section["sequence_parallel"],
                "recompute": item.candidate.section["recompute"],
                "step_time_ps": item.step_ps,
                "closed_form_ps": item.candidate.estimate.step_ps,
                "tokens_per_s_per_gpu": round(item.tokens_per_s_per_gpu, 1),
                "mfu": round(item.mfu, 4),
                "memory_bytes": item.candidate.memory.total_bytes,
                "memory_capacity_bytes": item.candidate.memory.capacity_bytes,
                "shares": {key: round(value, 4) for key, value in item.candidate.estimate.shares.items()},
                "why": "" if best is None else why(item, best),
            }
            for item in found.ranked
        ],
    }


def plan_json(found: Plan) -> str:
    return json.dumps(plan_data(found), indent=2, ensure_ascii=False) + "\n"


def plan_text(found: Plan) -> str:
    """The best layouts as a table, each with why it stands where it does."""
    lines = [
        found.name,
        f"  cluster     {found.cluster_line}",
        f"  job         {found.model} on {found.gpus:,} GPUs",
        f"  searched    {found.found.considered:,} layouts, {found.found.too_large:,} of them do not fit; "
        f"the best {len(found.ranked)} simulated at {found.fidelity}",
        "",
    ]
    rows = [("", "layout", "micro-batch", "recompute", "memory", "step", "tokens/s/GPU", "MFU")]
    for i, item in enumerate(found.ranked):
        section = item.candidate.section
        rows.append(
            (
                f"{i + 1}",
                layout_line(item.candidate.job),
                f"{section['micro_batch_size']}",
                section["recompute"],
                format_size(item.candidate.memory.total_bytes),
                format_time(item.step_ps),
                f"{item.tokens_per_s_per_gpu:,.0f}",
                f"{item.mfu:.1%}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for i, row in enumerate(rows):
        cells = [
            cell.ljust(width) if k in (1, 3) else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells))
        if i:
            lines.append(f"  {'':>{widths[0]}}  {why(found.ranked[i - 1], found.ranked[0])}")
    if found.ranked:
        best = found.ranked[0]
        lines += ["", "  range of the best step; layouts of one job are mostly off the same way"]
        lines += [
            f"    {line}"
            for line in range_lines(found.range, best.step_ps, best.tokens_per_s_per_gpu, "tokens/s/GPU")
        ]
    return "\n".join(lines) + "\n"
