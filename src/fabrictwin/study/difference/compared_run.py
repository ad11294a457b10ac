"""One side of a comparison of two runs: a run folder as it was written, or a spec, which is run.

A spec is a training job or a server; a server has neither parts of a step nor links.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_text
from fabrictwin.base.units import PS_PER_S
from fabrictwin.base.whole_numbers import read_json, whole
from fabrictwin.base.yamlfile import read_yaml
from fabrictwin.cluster.spec.spec import Spec, load_spec
from fabrictwin.report.csv_tables import links_csv
from fabrictwin.report.resolved_config import config_yaml
from fabrictwin.report.summary import STEP_FIGURES, summary_json
from fabrictwin.runs.execute import predict
from fabrictwin.serving.predict import predict as serve
from fabrictwin.serving.report.server import server_figures


@record
class LinkUse:
    """A directed link over the whole step."""

    utilisation: float  # 0 to 1
    tx_bytes: int


@record
class Side:
    """What a run was asked and what it answered."""

    label: str
    name: str
    asked: Mapping[str, Any]  # values of the resolved spec by key
    answer: Mapping[str, float]
    parts: Mapping[str, float]  # seconds of each part of the step, by its name
    links: Mapping[str, LinkUse]  # those that carried anything


def load_side(given: str | Path | Spec, stage: Stage) -> Side:
    """Read a run folder, or run a spec. Raises ConfigError, SimulatedError."""
    if not isinstance(given, Spec) and os.path.isdir(given):
        folder = Path(given)
        texts = [read_text(folder / name) for name in ("summary.json", "config.resolved.yaml", "links.csv")]
        return _side(str(given).rstrip("/"), folder, *texts)
    spec = given if isinstance(given, Spec) else load_spec(given)
    label = str(given) if not isinstance(given, Spec) else str(spec.path or spec.name)
    stage(f"running {label}")
    if "serving" in spec.workload:
        figures = server_figures(serve(spec).fields)
        return Side(
            label=label,
            name=spec.name,
            asked=dict(_leaves(spec.to_dict())),
            answer={key: float(value) for key, value in figures.items()},
            parts={},
            links={},
        )
    detail = predict(spec, stage)
    return _side(label, Path(), summary_json(detail), config_yaml(detail), links_csv(detail))


def _side(label: str, folder: Path, summary: str, config: str, links: str) -> Side:
    try:
        said = read_json(summary)
        memory = said.get("memory") or {}
        answer = {key: float(said[key]) for key in STEP_FIGURES if said.get(key) is not None}
        if memory:
            answer["memory_bytes"] = float(memory["total_bytes"])
        parts = {str(part["name"]): float(part["time_ps"]) / PS_PER_S for part in said["breakdown"]}
        name = str(said["name"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"expected the summary of a run: {error}", file=folder / "summary.json") from None
    return Side(
        label=label,
        name=name,
        asked=dict(_leaves(read_yaml(config, folder / "config.resolved.yaml")[0])),
        answer=answer,
        parts=parts,
        links=_links(links, folder / "links.csv"),
    )


def _links(text: str, file: Path) -> dict[str, LinkUse]:
    found = {}
    rows = csv.DictReader(io.StringIO(text))
    try:
        for row in rows:
            found[row["link"]] = LinkUse(float(row["utilisation"]), whole(row["tx_bytes"]))
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise ConfigError(f"expected the links of a run: {error}", file=file, line=rows.line_num) from None
    return found


def _leaves(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by key; lists are told by place, and an empty mapping or list is a value."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(data, list) and data:
        for place, value in enumerate(data):
            yield from _leaves(value, f"{prefix}[{place}]")
    else:
        yield prefix, data
