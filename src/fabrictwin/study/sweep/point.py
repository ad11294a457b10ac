"""One point of a sweep: the spec with other values at some keys, run, and its answer as one row of figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.cluster.spec.edits import set_text
from fabrictwin.cluster.spec.spec import Origin, Spec, read_spec, without_figures
from fabrictwin.report.summary import STEP_FIGURES, summary
from fabrictwin.runs.execute import predict
from fabrictwin.study.sweep.axes import OPTION

FAILED = "reason"  # the column that says why a point has no figures

Row = dict[str, Any]


@record
class Question:
    """What every point of a sweep is asked: a spec, and the keys whose values change."""

    data: Mapping[str, Any]  # the spec as plain data
    folder: str  # that paths in it are relative to
    keys: tuple[str, ...]


def spec_at(question: Question, values: tuple[str, ...]) -> Spec:
    """The spec of a point. Raises ConfigError."""
    origin = Origin(Path(question.folder), None)
    data = read_spec(dict(question.data), origin).to_dict()  # a copy of its own
    for key, value in zip(question.keys, values, strict=True):
        set_text(data, key, value, option=OPTION)
    without_figures(data)
    return read_spec(data, origin)


def answer(question: Question, values: tuple[str, ...]) -> Row:
    """Figures of a point, or the reason why it has none."""
    try:
        spec = spec_at(question, values)
        if "serving" in spec.workload:
            return _served(spec)
        return figures(summary(predict(spec)))
    except (ConfigError, SimulatedError) as error:
        return {FAILED: " ".join(str(error).split())}


def _served(spec: Spec) -> Row:
    from fabrictwin.serving.predict import predict as serve
    from fabrictwin.serving.report.server import server_figures

    return server_figures(serve(spec).fields)


def figures(said: Mapping[str, Any]) -> Row:
    """A run's summary as one row: sizes, the step, memory, the busiest link, the parts of the step."""
    row: Row = {key: said["cluster"][key] for key in ("hosts", "gpus", "switches")}
    row["job"] = said["job"]["description"]
    row |= {key: said[key] for key in STEP_FIGURES if said.get(key) is not None}
    if said.get("memory"):
        row["memory_bytes"] = said["memory"]["total_bytes"]
        row["memory_fits"] = said["memory"]["fits"]
    if said["busiest_links"]:
        busiest = said["busiest_links"][0]
        row["busiest_link"] = busiest["link"]
        row["busiest_link_utilisation"] = busiest["utilisation"]
    row |= {f"{part['key']}_s": part["time_ps"] / PS_PER_S for part in said["breakdown"]}
    return row
