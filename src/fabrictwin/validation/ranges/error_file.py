"""The file of ranges, `catalog/data/error_ranges.yaml`, made from rows that were held out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fabrictwin import catalog
from fabrictwin.base.progress import Stage
from fabrictwin.catalog.error_ranges import QUANTILES, Spread
from fabrictwin.validation.collective_series import TABLE, Published, read_published
from fabrictwin.validation.held_out import HeldOut
from fabrictwin.validation.published_data import Measurements, find_data
from fabrictwin.validation.ranges.error_cells import Held, cells, coverage
from fabrictwin.validation.ranges.error_rows import collective_rows, served_rows, step_rows, step_spreads
from fabrictwin.validation.served_models import TABLE as SERVED
from fabrictwin.validation.served_models import Measured, answers, read_measured

ANSWERS = ("step", "collective", "served")
# rows, what was compared at all, and how they are spread
Parts = tuple[Iterable[Held], Mapping[str, Any]] | tuple[Iterable[Held], Mapping[str, Any], Mapping[str, Spread]]
HEAD = """\
# Ranges around predictions, from errors of like cases that were held out. Made, not written:
# fabrictwin validate accuracy --write-ranges src/fabrictwin/catalog/data/error_ranges.yaml
# A cell: quantiles {quantiles} of measured over predicted time, rows, groups.
# spread: standard deviations of ln(measured / predicted time) between groups, jobs of a group, rows of a job.
# coverage: rows judged by ranges that were made without their group, share of them in the half, in nine tenths.
"""


def compared_steps(measurements: Measurements) -> dict[str, Any]:
    """Return what published steps there are at all."""
    rows = measurements.rows
    hosts = {measurements.texts.hardware[row.hardware].host for row in rows}
    return {
        "gpus": sorted({catalog.host(host).gpu for host in hosts}),
        "least_gpus": min(row.gpus for row in rows),
        "most_gpus": max(row.gpus for row in rows),
        "longest_sequence": max(row.sequence for row in rows),
    }


def compared_collectives(published: Published) -> dict[str, Any]:
    """Return what published series there are at all."""
    return {
        "gpus": sorted({catalog.host(series.host).gpu for series in published.series.values()}),
        "most_gpus": max(point.gpus for point in published.points),
        "largest_bytes": max(point.size_bytes for point in published.points),
    }


def compared_servers(measured: Measured) -> dict[str, Any]:
    """Return what measured servers there are at all."""
    hosts = {measured.texts.hosts[row.hardware] for row in measured.rows}
    return {
        "gpus": sorted({catalog.host(host).gpu for host in hosts}),
        "most_gpus": max(row.tp for row in measured.rows),
        "most_concurrency": max(row.concurrency for row in measured.rows),
        "longest_input": max(row.input for row in measured.rows),
    }


def section(
    rows: Iterable[Held], compared: Mapping[str, Any], spread: Mapping[str, Spread] | None = None
) -> list[str]:
    """Return the lines of one kind of answer; rows with a spread are of jobs of their own."""
    rows, nested = list(rows), bool(spread)
    lines = ["  spread:"] if spread else []
    for first, of in (spread or {}).items():
        lines.append(f'    "{first}": [{of.group:.3f}, {of.job:.3f}, {of.row:.3f}]')
    lines.append("  coverage:")
    for first in dict.fromkeys(row.features[0] for row in rows):
        one = coverage((row for row in rows if row.features[0] == first), nested=nested)
        lines.append(f'    "{first}": [{one.rows}, {one.half:.3f}, {one.nine_tenths:.3f}]')
    lines.append("  compared:")
    lines += [f"    {key}: {json.dumps(value)}" for key, value in compared.items()]
    lines.append("  cells:")
    for key, cell in cells(rows, nested=nested).items():
        figures = ", ".join(f"{one:g}" for one in (*cell.factors, cell.rows, cell.groups))
        lines.append(f'    "{", ".join(key)}": [{figures}]')
    return lines


def ranges_file(parts: Mapping[str, Parts], kept: Mapping[str, list[str]] | None = None) -> str:
    """Return the file of all kinds of answers: those of `parts` made, the others as they are kept."""
    lines = [HEAD.format(quantiles=", ".join(f"{one:.0%}" for one in QUANTILES)).rstrip("\n")]
    made = {name: [f"{name}:", *section(*part)] for name, part in parts.items()}
    sections = {**(kept or {}), **made}
    for name in sorted(sections, key=ANSWERS.index):
        lines += sections[name]
    return "\n".join(lines) + "\n"


def sections_of(text: str) -> dict[str, list[str]]:
    """Return the lines of a file's sections, by name."""
    sections: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith((" ", "#")):
            sections[line[:-1]] = own = []
        if sections:
            own.append(line)
    return sections


def all_ranges(
    measurements: Measurements,
    found: Iterable[HeldOut],
    stage: Stage,
    *,
    workers: int | None = 1,
    only: Iterable[str] = (),
    kept: str = "",
) -> str:
    """Return the file: of steps that were held out, collectives fitted again, and servers. Raises ConfigError.

    With `only` no others are made, and those of the text `kept` stay.
    """
    published = read_published(find_data(measurements.folder, TABLE))
    measured = read_measured(find_data(measurements.folder, SERVED))
    makers: dict[str, Callable[[], Parts]] = {
        "step": lambda: (
            step_rows(measurements, found),
            compared_steps(measurements),
            step_spreads(measurements, found),
        ),
        "collective": lambda: (collective_rows(published, stage), compared_collectives(published)),
        "served": lambda: (served_rows(answers(measured, stage, workers=workers)), compared_servers(measured)),
    }
    found = list(found)
    asked = set(only) or set(ANSWERS)
    return ranges_file({name: makers[name]() for name in ANSWERS if name in asked}, sections_of(kept))
