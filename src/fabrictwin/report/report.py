"""report.html: the answer on one page that needs nothing else: no network, no fonts, no scripts from elsewhere."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

from fabrictwin.base.units import PS_PER_NS
from fabrictwin.report.breakdown import NAMES
from fabrictwin.report.matrix_chart import matrix_chart
from fabrictwin.report.outages import outage_table
from fabrictwin.report.page import Tile, page_environment, page_time, render, tile
from fabrictwin.report.resolved_config import config_yaml
from fabrictwin.report.result import RunResult
from fabrictwin.report.summary import summary, what_limits
from fabrictwin.report.terminal import FIGURE_NAMES
from fabrictwin.report.timeline.timeline_data import overview, stage
from fabrictwin.report.utilisation_matrix import matrices


def report_html(result: RunResult) -> str:
    """The page as text."""
    data = summary(result)
    rows = overview(result.job.program, result.breakdown)
    drawn = stage(result.job.program, result.trace)
    found = matrices(result.fabric, result.trace)
    exposed = [item for item in data["exposed_communication"] if item["under_way_ps"]]
    gains = [abs(change["gained_percent"]) for change in data["what_if"]]
    return render(
        page_environment("fabrictwin.report"),
        "report.html.j2",
        title=result.asked.name,
        footer=f"{data['fidelity']} · seed {data['seed']}",
        styles=["report.css"],
        scripts=["report.js"],
        data=data,
        tiles=_tiles(data),
        limits=what_limits(result),
        published=[] if data["reference"] is None else _published(data["reference"]),
        exposed=sorted(exposed, key=lambda item: -item["time_ps"]),
        greatest_gain=max(gains, default=0.0) or 1.0,
        shares=result.breakdown.shares,
        overview=rows,
        stretch=result.trace.end_ps / rows["stretches"],
        drawn=drawn,
        matrices=[matrix_chart(matrix) for matrix in found if matrix.greatest.any()],
        idle=[matrix.title for matrix in found if not matrix.greatest.any()],
        outages=outage_table(data["subnet_manager"]),
        notes=[*data["notes"], *(f"Not modelled at this fidelity: {what}." for what in data["not_modelled"])],
        configuration=config_yaml(result),
        drawing=_drawing(result, rows, drawn),
    )


def _drawing(result: RunResult, rows: dict[str, Any], drawn: dict[str, Any]) -> Markup:
    """Return as JSON what the scripts draw. `</script>` may be part of a name, so no `<` is left as it is."""
    data = {
        "step_ns": result.trace.end_ps / PS_PER_NS,
        "names": {share.key: share.name for share in result.breakdown.shares} | {"bubble": NAMES["bubble"]},
        "overview": rows,
        "stage": drawn,
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return Markup(text)


def _figure(value: float) -> str:
    """One digit after the point where it means something."""
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _tiles(data: dict[str, Any]) -> list[Tile]:
    tiles = [tile("Step time", page_time(data["step_time_ps"]))]
    if data["mfu"] is not None:
        peak = f"of {data['peak_tflops_per_gpu']:g} TFLOP/s, {data['precision']}"
        model = f"{data['model_tflops_per_gpu']:.1f} counting the model alone"
        tiles += [
            ("Hardware throughput", f"{data['hardware_tflops_per_gpu']:.1f}", "TFLOP/s/GPU", model),
            ("MFU", f"{100 * data['mfu']:.1f}", "%", peak),
            ("Throughput", _figure(data["tokens_per_s_per_gpu"]), "tokens/s/GPU", ""),
        ]
    return tiles


def _published(reference: dict[str, Any]) -> list[str]:
    lines = []
    for key, figure in reference["figures"].items():
        name = FIGURE_NAMES.get(key, key)
        if figure["predicted"] is None:
            lines.append(f"{name}: published {figure['published']:g}, not predicted by this run")
        else:
            lines.append(
                f"Published: {figure['published']:g} {name}. Predicted: {figure['predicted']:.4g} "
                f"({figure['difference_percent']:+.1f}%)."
            )
    return lines
