"""Work that takes longer: runs, comparisons, searches, diagnoses, each with its answer in a folder.

Every function here runs in a worker process and takes a stage and the folder first. A run's folder is what
`fabrictwin run` writes, with what the page draws beside it; `answer.json` is the answer in short.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage
from fabrictwin.base.units import PS_PER_NS
from fabrictwin.cluster.spec.spec import move_paths
from fabrictwin.report.breakdown import NAMES
from fabrictwin.report.link_usage import utilisation
from fabrictwin.report.result import RunResult
from fabrictwin.report.summary import summary, what_limits
from fabrictwin.report.timeline.timeline_data import overview
from fabrictwin.report.timeline.timeline_data import stage as stage_slices
from fabrictwin.report.utilisation_matrix import Matrix, matrices
from fabrictwin.runs.execute import predict, with_overrides
from fabrictwin.runs.folder import FILES
from fabrictwin.web.fabric_map import fabric_map
from fabrictwin.web.sources import Source, spec_of
from fabrictwin.web.spec_answers import in_folder_of

ANSWER = "answer.json"


def _write(folder: Path, name: str, data: Any) -> None:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    (folder / name).write_text(text, encoding="utf-8")


def run(stage: Stage, folder: str, source: Source, fidelity: str, seed: int | None) -> None:
    """Run a spec: a training step, or a server."""
    target = Path(folder)
    with in_folder_of(source) as beside:
        spec = with_overrides(spec_of(source, beside), fidelity=fidelity, seed=seed)
        if "serving" in spec.workload:
            from fabrictwin.serving.predict import predict as serve
            from fabrictwin.serving.report.server import headline, without_details

            stage("serving")
            served = serve(spec)
            fields = {key: value for key, value in without_details(dict(served.fields)).items() if _plain(value)}
            _write(target, ANSWER, {"serving": fields, "headline": headline(served)})
            return
        result = predict(spec, stage, what_if=True)
        # of the folder that is gone afterwards, only names remain
        move_paths(result.asked.resolved["cluster"], lambda file: os.path.relpath(file, beside.resolve()))
        stage("writing")
        _write_run(target, result)


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str | bool)


def _write_run(target: Path, result: RunResult) -> None:
    for name, make in FILES.items():
        content = make(result)
        path = target / name
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content, encoding="utf-8")
    found = matrices(result.fabric, result.trace)
    _write(target, "matrices.json", [_matrix_data(one) for one in found])
    _write(target, "matrix-links.json", [_matrix_links(one) for one in found])
    _write(target, "map.json", fabric_map(result.fabric, utilisation(result.fabric, result.trace)))
    _write(target, "timeline.json", timeline_data(result))
    _write(target, ANSWER, {**summary(result), "limits": what_limits(result)})


def timeline_data(result: RunResult) -> dict[str, Any]:
    """Data that the timelines draw: every stage over the step, and the slices of one."""
    return {
        "step_ns": result.trace.end_ps / PS_PER_NS,
        "names": {share.key: share.name for share in result.breakdown.shares} | {"bubble": NAMES["bubble"]},
        "overview": overview(result.job.program, result.breakdown),
        "stage": stage_slices(result.job.program, result.trace),
    }


def _matrix_data(one: Matrix) -> dict[str, Any]:
    return {
        "title": one.title,
        "rows": list(one.rows),
        "columns": list(one.columns),
        "greatest": one.greatest.round(4).tolist(),
        "mean": one.mean.round(4).tolist(),
        "links": one.links.tolist(),
    }


def _matrix_links(one: Matrix) -> dict[str, Any]:
    return {"port": one.port.tolist(), "row": one.row.tolist(), "column": one.column.tolist()}


def compare(
    stage: Stage, folder: str, source: Source, fabrics: list[str], seeds: list[int], fidelity: str | None
) -> None:
    """The job of a spec on several fabrics."""
    from fabrictwin.catalog.price_book import price_book
    from fabrictwin.study.compare.compare_page import page
    from fabrictwin.study.compare.compare_text import data
    from fabrictwin.study.compare.comparison import compare as side_by_side

    with in_folder_of(source) as beside:
        spec = with_overrides(spec_of(source, beside), fidelity=fidelity)
        found = side_by_side(spec, fabrics, book=price_book(None), seeds=seeds, stage=stage)
    (Path(folder) / "compare.html").write_text(page(found), encoding="utf-8")
    _write(Path(folder), ANSWER, data(found))


def plan(stage: Stage, folder: str, source: Source, top: int, fidelity: str, headroom: float) -> None:
    """Search the layout of a spec's job."""
    from fabrictwin.runs.layout_plan import plan as search
    from fabrictwin.runs.layout_plan import plan_data

    with in_folder_of(source) as beside:
        found = search(spec_of(source, beside), top=top, fidelity=fidelity, stage=stage, headroom=headroom)
    _write(Path(folder), ANSWER, plan_data(found))


def diff(stage: Stage, folder: str, before: str, after: str, names: tuple[str, str]) -> None:
    """Hold two run folders against each other."""
    from dataclasses import replace

    from fabrictwin.study.difference.compared_run import load_side
    from fabrictwin.study.difference.difference import data, difference
    from fabrictwin.study.difference.difference_text import page, verdict

    sides = [replace(load_side(one, stage), label=name) for one, name in zip((before, after), names, strict=True)]
    found = difference(*sides)
    (Path(folder) / "diff.html").write_text(page(found), encoding="utf-8")
    _write(Path(folder), ANSWER, {**data(found), "verdict": verdict(found)})


def doctor(
    stage: Stage, folder: str, files: Mapping[str, str], hardware: str, hosts: int, fabric: str, twin: bool
) -> None:
    """Say what is wrong with a cluster, by what it printed."""
    from fabrictwin.diagnosis.diagnose import diagnose
    from fabrictwin.diagnosis.diagnosis_page import page
    from fabrictwin.diagnosis.expectation.hardware import Hardware

    given = Hardware(hardware, hosts, fabric, confidence=1.0) if hardware else None
    if not files:
        raise ConfigError("got no file, expected what a cluster printed", key="files")
    stage("reading")
    with in_folder_of(Source(files=files)) as beside:
        found = diagnose([beside / name for name in files], hardware=given, twin=twin)
        shown = found.as_data()
        written = page(found)
    text = json.dumps(shown, ensure_ascii=False).replace(f"{beside}/", "")
    (Path(folder) / "doctor.html").write_text(written.replace(f"{beside}/", ""), encoding="utf-8")
    (Path(folder) / ANSWER).write_text(text, encoding="utf-8")
