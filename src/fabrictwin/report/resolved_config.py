"""A spec as a file that runs again: config.resolved.yaml with every default spelled out, `plan`'s best layout."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from fabrictwin.cluster.spec.spec import Spec, move_paths
from fabrictwin.report.result import RunResult
from fabrictwin.workload.captured.captured_section import CapturedWorkload, captured_path, is_captured
from fabrictwin.workload.job.workload_section import Workload
from fabrictwin.workload.model.huggingface_cache import config_of


class _Dumper(yaml.SafeDumper):
    """Quotes words that our reader takes for numbers and PyYAML does not, such as 1e9."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    try:
        float(value)
        style = "'"
    except ValueError:
        style = None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(str, _text)


def spec_yaml(data: dict[str, Any]) -> str:
    """A spec's plain data as the text of a file."""
    text: Any = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return str(text)


def config_yaml(result: RunResult) -> str:
    """config.resolved.yaml of a run."""
    return spec_yaml(result.asked.resolved)


def resolved(spec: Spec, ranks: int) -> dict[str, Any]:
    """The spec as plain data with every default spelled out, and what was derived: the model's keys, dp."""
    if is_captured(spec):
        return _resolved_captured(spec)
    workload = spec.validate_section("workload", Workload)
    section = workload.model_dump(mode="json", exclude_none=True)
    training = section["training"]
    parallel = training["parallel"]
    parallel["dp"] = ranks // (parallel["tp"] * parallel["pp"] * parallel["cp"])
    model = workload.training.model
    if isinstance(model, str):
        # spelled out, the model no longer depends on where its file lies
        keys = json.loads(config_of(model, spec.folder).read_text(encoding="utf-8"))
        training["model"] = {**keys, "_name": workload.training.read_model(spec.folder).name}
    data = spec.to_dict()
    # found again from wherever the resolved spec lies
    move_paths(data["cluster"], lambda file: str((spec.folder / file).resolve()))
    return {**data, "workload": section}


def _resolved_captured(spec: Spec) -> dict[str, Any]:
    section = spec.validate_section("workload", CapturedWorkload).model_dump(mode="json")
    section["captured"] = str(captured_path(spec).resolve())
    data = spec.to_dict()
    move_paths(data["cluster"], lambda file: str((spec.folder / file).resolve()))
    return {**data, "workload": section}


def moved(spec: Spec, folder: Path) -> dict[str, Any]:
    """The spec as plain data for a file in that folder: paths lead from there to where they lead now."""

    def place(file: str) -> str:
        return file if folder.resolve() == spec.folder.resolve() else os.path.relpath(spec.folder / file, folder)

    data = spec.to_dict()
    move_paths(data["cluster"], place)
    if is_captured(spec):
        data["workload"] = {**data["workload"], "captured": place(data["workload"]["captured"])}
    training = data.get("workload", {}).get("training", {})
    if isinstance(training.get("model"), str):
        data["workload"] = {"training": {**training, "model": _placed(training["model"], spec.folder, place)}}
    return data


def _placed(model: str, folder: Path, place: Callable[[str], str]) -> str:
    """Return where a model's file lies from elsewhere; a name on the Hub is the same everywhere."""
    return place(model) if config_of(model, folder) == folder / model else model
