"""What a run prints: a short block of aligned plain text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fabrictwin.base.units import format_size, format_time
from fabrictwin.report.error_range import range_lines, run_range
from fabrictwin.report.outages import outage_lines
from fabrictwin.report.result import RunResult
from fabrictwin.report.summary import summary, what_limits

BAR = 24
NOTES = 8
GAINS, LEAST_GAIN = 5, 0.1  # changes to print, percent of the step
# key of summary.json, name for people, unit, digits after the point
FIGURES = [
    ("tokens_per_s_per_gpu", "throughput", "tokens/s/GPU", 1),
    ("model_tflops_per_gpu", "model", "TFLOP/s/GPU", 1),
    ("hardware_tflops_per_gpu", "hardware", "TFLOP/s/GPU", 1),
]
FIGURE_NAMES = {
    "hardware_tflops_per_gpu": "hardware TFLOP/s/GPU",
    "model_tflops_per_gpu": "model TFLOP/s/GPU",
    "tokens_per_s_per_gpu": "tokens/s/GPU",
    "step_time_s": "step time (s)",
    "mfu": "MFU",
}


def bar(permille: int, width: int = BAR) -> str:
    """A bar of eighths of a block: `permille` 1000 fills `width`, and anything above 0 shows."""
    eighths = max(round(permille * width * 8 / 1000), 1 if permille else 0)
    full, rest = divmod(eighths, 8)
    return "█" * full + ("" if rest == 0 else " ▏▎▍▌▋▊▉"[rest])


def block(result: RunResult, folder: Path | None) -> str:
    """The printed result. `folder` is where the rest of it lies."""
    data = summary(result)
    lines = [data["name"], f"  cluster     {data['cluster']['description']}"]
    lines.append(f"  job         {data['job']['description']}")
    lines.append(f"  fidelity    {data['fidelity']}, seed {data['seed']}")
    lines += ["", f"  step time   {format_time(data['step_time_ps'])}"]
    for key, name, unit, digits in FIGURES:
        if data[key] is not None:
            lines.append(f"  {name:<11} {data[key]:,.{digits}f} {unit}")
    lines += [f"  {line}" for line in _range(result, data)]
    if data["mfu"] is not None:
        peak = f"{data['peak_tflops_per_gpu']:g} TFLOP/s, {data['precision']}"
        lines.append(f"  MFU         {data['mfu']:.1%} of the GPU's peak ({peak})")
    if result.job.memory is not None:
        lines.append(f"  memory      {result.job.memory.line}")
    lines += ["", "  where the step goes", *_breakdown(data), *_what_if(data), "", *_links(data)]
    if data["subnet_manager"] is not None:
        lines += ["", *outage_lines(data["subnet_manager"])]
    if data["reference"] is not None:
        lines += ["", *_reference(data["reference"])]
    if data["notes"]:
        lines += ["", "  notes", *(f"    {note}" for note in data["notes"][:NOTES])]
        if len(data["notes"]) > NOTES:
            lines.append(f"    … and {len(data['notes']) - NOTES:,} more in summary.json")
    lines += ["", f"  {what_limits(result)}"]
    if folder is not None:
        lines.append(f"  report      {folder / 'report.html'}")
    return "\n".join(lines) + "\n"


def _range(result: RunResult, data: dict[str, Any]) -> list[str]:
    found = run_range(result)
    if found is None:
        return ["range       unknown: nothing like a captured job was compared with measurements"]
    lines = range_lines(found, data["step_time_ps"], data["tokens_per_s_per_gpu"], "tokens/s/GPU")
    return [f"{'range' if i == 0 else '':<11} {line}" for i, line in enumerate(lines)]


def _breakdown(data: dict[str, Any]) -> list[str]:
    width = max(len(share["name"]) for share in data["breakdown"])
    return [
        f"    {share['name']:<{width}}  {share['percent']:5.1f}%  {format_time(share['time_ps']):>9}  "
        f"{bar(round(share['percent'] * 10))}".rstrip()
        for share in data["breakdown"]
    ]


def _what_if(data: dict[str, Any]) -> list[str]:
    """The changes that gain most."""
    best = [change for change in data["what_if"] if change["gained_percent"] >= LEAST_GAIN][:GAINS]
    if not best:
        return []
    width = max(len(change["name"]) for change in best)
    return [
        "",
        "  what would gain most, each alone, in closed form",
        *(
            f"    {change['name']:<{width}}  {change['gained_percent']:5.1f}%  "
            f"{format_time(change['gained_ps']):>9}"
            for change in best
        ),
    ]


def _links(data: dict[str, Any]) -> list[str]:
    links = data["busiest_links"]
    if not links:
        return ["  no link carried anything"]
    width = max(len(link["link"]) for link in links)
    rows = [
        f"    {link['link']:<{width}}  {link['utilisation']:6.1%}  {format_size(link['tx_bytes']):>9}"
        f"  of {link['payload_gbps']:g} Gb/s"
        for link in links
    ]
    return ["  busiest links", *rows]


def _reference(reference: dict[str, Any]) -> list[str]:
    lines = [f"  published   {reference['source']}"]
    for key, figure in reference["figures"].items():
        if figure["predicted"] is None:
            lines.append(
                f"    {FIGURE_NAMES.get(key, key)}: published {figure['published']:g}, not predicted by this run"
            )
        else:
            lines.append(
                f"    {FIGURE_NAMES.get(key, key)}: published {figure['published']:g}, "
                f"predicted {figure['predicted']:.4g} ({figure['difference_percent']:+.1f}%)"
            )
    return lines
