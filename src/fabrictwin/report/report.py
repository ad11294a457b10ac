"""report.html: the answer on one page that needs nothing else: no network, no fonts, no scripts from elsewhere."""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from typing import Any

from fabrictwin.base.units import PS_PER_NS, format_rate, format_size, format_time
from fabrictwin.report.breakdown import NAMES
from fabrictwin.report.outages import outage_section
from fabrictwin.report.resolved_config import config_yaml
from fabrictwin.report.result import RunResult
from fabrictwin.report.summary import summary, what_limits
from fabrictwin.report.svg_matrix import matrix_svg
from fabrictwin.report.terminal import FIGURE_NAMES
from fabrictwin.report.timeline.timeline_data import overview, stage
from fabrictwin.report.utilisation_matrix import matrices

# nothing may be loaded, whatever the browser is asked for
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def _asset(name: str) -> str:
    return resources.files("fabrictwin.report").joinpath("assets", name).read_text(encoding="utf-8")


def report_html(result: RunResult) -> str:
    """The page as text."""
    data = summary(result)
    rows = overview(result.program, result.breakdown)
    drawn = stage(result.program, result.trace)
    body = "\n".join(
        [
            _header(result, data),
            _breakdown(data),
            _exposed(data),
            _what_if(data),
            _memory(data),
            _timeline(result, rows, drawn),
            _matrices(result),
            _links(data),
            _traffic(data),
            outage_section(data["subnet_manager"]),
            _notes(data),
            _configuration(result),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(result.name)} · fabrictwin</title>\n<style>\n{_asset('report.css')}</style>\n"
        f"</head>\n<body>\n<main>\n{body}\n"
        f"<footer>fabrictwin · {escape(data['fidelity'])} · seed {data['seed']}</footer>\n</main>\n"
        '<div id="tip" role="status"></div>\n'
        f'<script type="application/json" id="data">{_data(result, rows, drawn)}</script>\n'
        f"<script>\n{_asset('report.js')}</script>\n</body>\n</html>\n"
    )


def _data(result: RunResult, rows: dict[str, Any], drawn: dict[str, Any]) -> str:
    """What the scripts draw. `</script>` may be part of a name, so no `<` is left as it is."""
    data = {
        "step_ns": result.trace.end_ps / PS_PER_NS,
        "names": {share.key: share.name for share in result.breakdown.shares} | {"bubble": NAMES["bubble"]},
        "overview": rows,
        "stage": drawn,
    }
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _time(time_ps: int) -> str:
    return "0" if time_ps == 0 else format_time(time_ps).replace(" us", " µs")


def _figure(value: float) -> str:
    """One digit after the point where it means something."""
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _tile(name: str, value: str, unit: str, under: str = "") -> str:
    below = f'<div class="under">{escape(under)}</div>' if under else ""
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)} <span>{escape(unit)}</span>{below}</dd></div>"


def _header(result: RunResult, data: dict[str, Any]) -> str:
    value, _, unit = _time(data["step_time_ps"]).partition(" ")
    tiles = [_tile("Step time", value, unit)]
    if data["mfu"] is not None:
        tiles += [
            _tile(
                "Hardware throughput",
                f"{data['hardware_tflops_per_gpu']:.1f}",
                "TFLOP/s/GPU",
                f"{data['model_tflops_per_gpu']:.1f} counting the model alone",
            ),
            _tile(
                "MFU",
                f"{100 * data['mfu']:.1f}",
                "%",
                f"of {data['peak_tflops_per_gpu']:g} TFLOP/s, {data['precision']}",
            ),
            _tile("Throughput", _figure(data["tokens_per_s_per_gpu"]), "tokens/s/GPU"),
        ]
    lines = [
        f"<h1>{escape(data['name'])}</h1>",
        f'<p class="what">{escape(data["cluster"]["description"])}</p>',
        f'<p class="what">{escape(data["job"]["description"])}</p>',
        f'<dl class="answer">{"".join(tiles)}</dl>',
        f"<p>{escape(what_limits(result))}</p>",
    ]
    if data["reference"] is not None:
        lines.append(_reference(data["reference"]))
    return "<header>\n" + "\n".join(lines) + "\n</header>"


def _reference(reference: dict[str, Any]) -> str:
    lines = []
    for key, figure in reference["figures"].items():
        name = escape(FIGURE_NAMES.get(key, key))
        if figure["predicted"] is None:
            lines.append(f"{name}: published {figure['published']:g}, not predicted by this run")
        else:
            lines.append(
                f"Published: {figure['published']:g} {name}. Predicted: {figure['predicted']:.4g} "
                f"({figure['difference_percent']:+.1f}%)."
            )
    source = f'<span class="soft small">{escape(reference["source"])}</span>'
    return f'<div class="published">{"<br>".join(lines)}<br>{source}</div>'


def _color(share: dict[str, Any]) -> str:
    """The share's colour: one of the named ones, or the one for others."""
    return f"var(--{share['key'].removeprefix('exposed_')}, var(--other))"


def _breakdown(data: dict[str, Any]) -> str:
    bars = "".join(
        f'<i style="width:{share["percent"]:.1f}%;background:{escape(_color(share))}" '
        f'title="{escape(share["name"])} {share["percent"]:.1f}%"></i>'
        for share in data["breakdown"]
    )
    rows = "".join(
        f'<tr><td><span class="key" style="background:{escape(_color(share))}"></span>{escape(share["name"])}</td>'
        f'<td class="n">{share["percent"]:.1f}%</td><td class="n">{_time(share["time_ps"])}</td>'
        f'<td class="n wide">{_time(share["hidden_ps"]) if share["kind"] == "communication" else ""}</td></tr>'
        for share in data["breakdown"]
    )
    return (
        "<section>\n<h2>Where the step goes</h2>\n"
        '<p class="soft small">Mean over ranks. Communication counts where it is exposed: under way with no '
        "compute on the same rank. Bubble is waiting with nothing under way.</p>\n"
        f'<div class="stack" role="img" aria-label="breakdown of the step">{bars}</div>\n'
        '<div class="scroll"><table><thead><tr><th>Part</th><th class="n">Share</th><th class="n">Time</th>'
        '<th class="n wide">Hidden</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>\n</section>"
    )


def _exposed(data: dict[str, Any]) -> str:
    """Where exposed communication comes from, by collective."""
    found = [item for item in data["exposed_communication"] if item["under_way_ps"]]
    if not found:
        return ""
    step = data["step_time_ps"]
    rows = "".join(
        f'<tr><td><span class="key" style="background:var(--{escape(item["category"])}, var(--other))"></span>'
        f"{escape(item['name'])}</td>"
        f'<td class="n">{100 * item["time_ps"] / step:.1f}%</td><td class="n">{_time(item["time_ps"])}</td>'
        f'<td class="n wide">{_time(item["hidden_ps"])}</td><td class="n wide">{item["operations"]:,}</td></tr>'
        for item in sorted(found, key=lambda item: -item["time_ps"])
    )
    return (
        "<section>\n<h2>Exposed communication</h2>\n"
        '<p class="soft small">By what it is called; those of a kind add up to its share above.</p>\n'
        '<div class="scroll"><table><thead><tr><th>Communication</th><th class="n">Share</th>'
        '<th class="n">Exposed</th><th class="n wide">Hidden</th><th class="n wide">Operations</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>\n</section>"
    )


def _what_if(data: dict[str, Any]) -> str:
    found = data["what_if"]
    if not found:
        return ""
    greatest = max(abs(change["gained_percent"]) for change in found) or 1.0
    rows = "".join(
        f"<tr><td>{escape(change['name'])}</td>"
        f'<td class="n">{_metered(change["gained_percent"] / greatest, _percent(change["gained_percent"]))}</td>'
        f'<td class="n">{_signed(change["gained_ps"])}</td>'
        f'<td class="n wide">{_time(change["step_time_ps"])}</td></tr>'
        for change in found
    )
    return (
        "<section>\n<h2>What would gain most</h2>\n"
        '<p class="soft small">Each change alone, in closed form; gains do not add up. What is removed or faster '
        "says what it costs; settings are those that the job may have and that fit in memory.</p>\n"
        '<div class="scroll"><table><thead><tr><th>Change</th><th class="n">Gained</th><th class="n">Time</th>'
        '<th class="n wide">Step then</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>\n</section>"
    )


def _signed(time_ps: int) -> str:
    return f"−{_time(-time_ps)}" if time_ps < 0 else _time(time_ps)


def _percent(value: float) -> str:
    return f"−{-value:.1f}%" if round(value, 1) < 0 else f"{abs(value):.1f}%"


def _timeline(result: RunResult, rows: dict[str, Any], drawn: dict[str, Any]) -> str:
    actors = result.program.actors
    chosen = actors[len(actors) // 2]
    coarse, close = "", ""
    if rows["aggregated"]:
        stretch = format_time(result.trace.end_ps / rows["stretches"]).replace(" us", " µs")
        coarse = (
            f'<p class="soft small">Drawn in stretches of {stretch}, so that each part keeps its share of the '
            "time; the stage below is exact.</p>\n"
        )
    if "close_up" in drawn:
        close = (
            f'<div class="bar"><span class="soft small grow">{drawn["slices"]:,} operations; neighbours are drawn '
            'as one, except around the middle of the step.</span><button id="zoom-close">Close-up</button></div>\n'
        )
    legend = "".join(
        f'<span><span class="key" style="background:var(--{escape(share.state.category)}, var(--other))"></span>'
        f"{escape(share.name)}</span>"
        for share in result.breakdown.shares
    )
    return (
        "<section>\n<h2>Timeline</h2>\n"
        '<div class="bar"><span class="soft small grow">One row a stage, what it does at each moment. Wheel, '
        "pinch or + and − zoom; drag moves; double-click shows the whole step.</span>"
        '<button id="zoom-in" aria-label="zoom in">+</button>'
        '<button id="zoom-out" aria-label="zoom out">−</button>'
        '<button id="zoom-reset">Whole step</button></div>\n'
        '<div class="plot"><canvas id="overview" tabindex="0" role="img" '
        'aria-label="what every stage does over the step"></canvas></div>\n'
        f'<div class="legend">{legend}</div>\n{coarse}'
        f"<h3>{escape(chosen.name)}, operation by operation</h3>\n{close}"
        '<div class="plot"><canvas id="stage" tabindex="0" role="img" '
        f'aria-label="operations of {escape(chosen.name)}"></canvas></div>\n'
        "</section>"
    )


def _memory(data: dict[str, Any]) -> str:
    held = data["memory"]
    if held is None:
        return ""
    rows = "".join(
        f"<tr><td>{escape(item['name'])}{' (estimate)' if item['estimate'] else ''}</td>"
        f'<td class="n">{_metered(item["bytes"] / held["capacity_bytes"], format_size(item["bytes"]))}</td></tr>'
        for item in held["items"]
    )
    verdict = (
        f"{format_size(held['total_bytes'])} of {format_size(held['capacity_bytes'])} on a rank of stage "
        f"{held['stage']}, the fullest."
    )
    if not held["fits"]:
        verdict += f" It does not fit: {format_size(held['over_bytes'])} too much."
    return (
        f'<section>\n<h2>Memory of a GPU</h2>\n<p class="soft small">{escape(verdict)}</p>\n'
        '<div class="scroll"><table><thead><tr><th>What</th><th class="n">Takes</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>\n</section>"
    )


def _matrices(result: RunResult) -> str:
    found = matrices(result.fabric, result.trace)
    if not found:
        return ""
    drawn = "\n".join(matrix_svg(matrix) for matrix in found if matrix.greatest.any())
    idle = [matrix.title for matrix in found if not matrix.greatest.any()]
    if idle:
        drawn += f'\n<p class="soft small">Carried nothing: {escape("; ".join(idle))}.</p>'
    return (
        "<section>\n<h2>Use of the fabric</h2>\n"
        '<p class="soft small">The greatest utilisation among the links between a row and a column, either '
        "direction, over the whole step. Point at a cell for the mean and the number of links.</p>\n"
        f"{drawn}\n</section>"
    )


def _metered(share: float, text: str) -> str:
    """A cell's bar and its figure; figures take the same room, so that bars of a column begin at one place."""
    bar = f'<span class="meter wide"><i style="width:{100 * min(1.0, max(0.0, share)):.1f}%"></i></span>'
    return f'{bar}<span class="figure">{text}</span>'


def _links(data: dict[str, Any]) -> str:
    if not data["busiest_links"]:
        return "<section>\n<h2>Busiest links</h2>\n<p>No link carried anything.</p>\n</section>"
    rows = "".join(
        f'<tr><td class="name">{escape(link["link"])}</td>'
        f'<td class="n">{_metered(link["utilisation"], _percent(100 * link["utilisation"]))}</td>'
        f'<td class="n">{format_size(link["tx_bytes"])}</td>'
        f'<td class="n">{format_rate(link["payload_gbps"] * 1e9)}</td></tr>'
        for link in data["busiest_links"]
    )
    return (
        "<section>\n<h2>Busiest links</h2>\n"
        '<div class="scroll"><table><thead><tr><th>Link</th><th class="n">Utilisation</th>'
        '<th class="n">Carried</th><th class="n">Payload rate</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>\n</section>"
    )


def _traffic(data: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(kind['kind'])}</td>"
        f'<td class="n">{format_size(kind["tx_bytes"])}</td>'
        f'<td class="n">{kind["links_used"]:,} of {kind["links"]:,}</td>'
        f'<td class="n">{100 * kind["mean_utilisation_of_used"]:.1f}%</td>'
        f'<td class="n">{100 * kind["max_utilisation"]:.1f}%</td></tr>'
        for kind in data["traffic_by_link_kind"]
    )
    return (
        "<section>\n<h2>Traffic by kind of link</h2>\n"
        '<div class="scroll"><table><thead><tr><th>Kind</th><th class="n">Carried</th>'
        '<th class="n">Links used</th><th class="n">Mean of used</th><th class="n">Greatest</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>\n</section>"
    )


def _notes(data: dict[str, Any]) -> str:
    notes = [*data["notes"], *(f"Not modelled at this fidelity: {what}." for what in data["not_modelled"])]
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<section>\n<h2>Notes</h2>\n<ul>{items}</ul>\n</section>"


def _configuration(result: RunResult) -> str:
    text = config_yaml(result)
    return (
        "<section>\n<h2>Configuration</h2>\n<details><summary>Everything that was set, defaults included</summary>"
        f"<pre>{escape(text)}</pre></details>\n</section>"
    )
