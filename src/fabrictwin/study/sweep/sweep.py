"""A sweep: every point asked once, by workers, kept in a journal, and put into one table in the points' order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage
from fabrictwin.base.records import record
from fabrictwin.base.yamlfile import read_yaml
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.runs.execute import spec_schema
from fabrictwin.runs.workers import Lost, answers
from fabrictwin.study.sweep.axes import OPTION, Axis, leaves, parse_axis, schema_keys
from fabrictwin.study.sweep.journal import Journal, journal
from fabrictwin.study.sweep.point import FAILED, Question, Row, answer
from fabrictwin.study.sweep.samples import Point, Sampling, grid, samples

SAID = {"cluster.hosts.count": "host count"}
SHOWN = (
    "step_time_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "memory_fits",
    "request_throughput",
    "output_throughput",
    "mean_ttft_ms",
    "mean_tpot_ms",
    FAILED,
)


@record
class Drawn:
    """Samples in place of every combination."""

    count: int
    how: Sampling = "latin"
    seed: int = 1


@record
class Plan:
    """What is asked, at which points."""

    name: str
    axes: tuple[Axis, ...]
    question: Question
    points: tuple[Point, ...]
    complete: bool  # every combination, not samples


@record
class Swept:
    """All rows of a sweep, in the order of its points."""

    plan: Plan
    rows: tuple[Row, ...]

    @property
    def failures(self) -> list[tuple[Point, str]]:
        """Points without figures, and why."""
        return [
            (point, row[FAILED])
            for point, row in zip(self.plan.points, self.rows, strict=True)
            if row.get(FAILED) is not None
        ]

    @property
    def names(self) -> dict[str, str]:
        """The last part of each key by its whole, where the parts differ; otherwise the keys themselves."""
        keys = [one for key in self.plan.question.keys for one in key.split("+")]
        ends = [SAID.get(key, key.rpartition(".")[2]) for key in keys]
        return dict(zip(keys, ends if len(set(ends)) == len(ends) else keys, strict=True))

    def shown(self) -> dict[str, list[Any]]:
        """The columns that people look at first, under short names."""
        columns = self.columns()
        known = [name for name in SHOWN if name in columns and any(one is not None for one in columns[name])]
        return {short: columns[key] for key, short in self.names.items()} | {name: columns[name] for name in known}

    def columns(self) -> dict[str, list[Any]]:
        """The values of each key, the figures that any point has, and the reason of those that have none."""
        keys = [*self.names]
        found: dict[str, list[Any]] = {key: [] for key in keys}
        for point in self.plan.points:
            values = [
                one
                for key, value in zip(self.plan.question.keys, point, strict=True)
                for one in value.split(":", key.count("+"))
            ]
            for key, value in zip(keys, values, strict=True):
                found[key].append(_typed(value))
        names = dict.fromkeys(name for row in self.rows for name in row if name != FAILED)
        for name in (*names, FAILED):
            found[name] = [row.get(name) for row in self.rows]
        return found


def _typed(value: str) -> Any:
    read = read_yaml(value.strip(), OPTION)[0]
    return read if isinstance(read, int | float | bool | str) else json.dumps(read)


def plan(spec: Spec, vary: Sequence[str], drawn: Drawn | None = None) -> Plan:
    """Read the axes and lay out the points. Raises ConfigError."""
    if not vary:
        raise ConfigError("expected at least one key to vary, such as hosts=8,16,32", key=OPTION)
    data = spec.to_dict()
    keys = sorted(schema_keys(spec_schema()) | set(leaves(data)))
    axes = tuple(parse_axis(one, keys) for one in vary)
    names = [one for axis in axes for one in axis.key.split("+")]
    if len(set(names)) < len(names):
        raise ConfigError("got a key twice, expected each once", key=OPTION)
    for axis in axes:  # what no spec can hold is refused now, and not as a row
        for value in axis.values if isinstance(axis.values, tuple) else ():
            _typed(value)
    points = grid(axes) if drawn is None else samples(axes, drawn.count, drawn.how, drawn.seed)
    question = Question(data, str(spec.folder), tuple(axis.key for axis in axes))
    return Plan(spec.name, axes, question, tuple(points), drawn is None)


def sweep(asked: Plan, stage: Stage, *, workers: int | str | None = None, kept: Path | None = None) -> Swept:
    """Ask every point that `kept`, the file of the journal, does not have yet. Raises ConfigError."""
    if kept is None:
        rows: dict[int, Row] = {}
        _ask(asked, rows, None, stage, workers)
    else:
        with journal(kept, asked.question, asked.points) as book:
            rows = book.rows
            _ask(asked, rows, book, stage, workers)
    return Swept(asked, tuple(rows[place] for place in range(len(asked.points))))


def _ask(
    asked: Plan,
    rows: dict[int, Row],
    book: Journal | None,
    stage: Stage,
    workers: int | str | None,
) -> None:
    """Add the rows of all points that have none, modified in place, and in the journal."""
    total = len(asked.points)
    left = [place for place in range(total) if place not in rows]
    stage(f"{len(rows):,} of {total:,} points", len(rows) / max(1, total))
    found = answers(partial(answer, asked.question), [asked.points[place] for place in left], workers)
    for index, got in found:
        row = {FAILED: got.why} if isinstance(got, Lost) else got
        if book is None:
            rows[left[index]] = row
        else:
            book.add(left[index], row)
        stage(f"{len(rows):,} of {total:,} points", len(rows) / total)
