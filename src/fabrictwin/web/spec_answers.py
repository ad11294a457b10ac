"""Answers about a spec that come at once: its errors, its text, the step in closed form, the fabric, a path.

Every function here runs in a worker process, takes a stage first, and returns plain data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fabrictwin.base.errors import ConfigError, SimulatedError, quoted
from fabrictwin.base.progress import Stage
from fabrictwin.base.validation_errors import config_errors
from fabrictwin.base.yamlfile import undotted
from fabrictwin.cluster.spec.spec import Spec, read_spec
from fabrictwin.report.resolved_config import spec_yaml
from fabrictwin.report.summary import summary
from fabrictwin.runs.execute import predict, spec_schema, with_overrides
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.twin.twin import Twin
from fabrictwin.web.fabric_map import fabric_map
from fabrictwin.web.sources import FILE, Read, Source, confine, folder_of, read_source, spec_of


@contextmanager
def in_folder_of(source: Source) -> Iterator[Path]:
    """The folder of a source, made the current one: whatever is named relative to either is in it."""
    with folder_of(source) as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def warm(stage: Stage, source: Source) -> None:
    """Import and compile what a first answer needs."""
    with in_folder_of(source) as folder:
        for fidelity in ("analytic", "flow"):
            predict(with_overrides(spec_of(source, folder), fidelity=fidelity), stage)


def schema(stage: Stage) -> dict[str, Any]:
    """The JSON schema of a spec."""
    return spec_schema()


def error_data(error: ConfigError) -> dict[str, Any]:
    """An error as the interface has it; files by their names, since the request's folder goes with the answer."""
    file = None if error.file is None else Path(error.file).name
    return {"message": error.message, "key": error.key, "line": error.line, "file": file}


def closed_form(stage: Stage, source: Source) -> dict[str, Any]:
    """The spec as text and data, all that is wrong with it, and where nothing is, its step in closed form."""
    found: dict[str, Any] = {
        "text": source.text,
        "data": None,
        "errors": [],
        "summary": None,
        "serving": False,
        "adapters": [],
    }
    with in_folder_of(source) as folder:
        try:
            read = read_source(source, folder)
            found["data"] = _in_json(read.data)
            if read.edited or source.data is not None:
                found["text"] = spec_yaml(read.data)
            found["errors"] = spec_errors(read)
            if found["errors"]:
                return found
            spec = read_spec(read.data, read.origin)
            confine(spec.to_dict(), source, folder)
            found["serving"] = "serving" in spec.workload
            found["adapters"] = _adapters(spec)
            if spec.workload and not found["serving"]:
                asked = with_overrides(spec, fidelity="analytic")
                found["summary"] = summary(predict(asked, stage, what_if=False))
        except ConfigError as error:
            found["errors"] = [error_data(error)]
        except SimulatedError as error:
            found["errors"] = [{"message": str(error), "key": None, "line": None, "file": FILE}]
    return found


def _in_json(data: Any) -> Any:
    """Plain data of a spec with what JSON has no number for as YAML writes it: `.inf`, `.nan`."""
    if isinstance(data, dict):
        return {key: _in_json(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_in_json(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return ".nan" if math.isnan(data) else ".inf" if data > 0 else "-.inf"
    return data


def _adapters(spec: Spec) -> list[str]:
    """Names of the adapters of the first catalog host that a generated cluster has."""
    from fabrictwin import catalog
    from fabrictwin.cluster.spec.cluster_section import GeneratedCluster

    if not isinstance(spec.cluster, GeneratedCluster) or not spec.cluster.hosts[0].type:
        return []
    return [nic.hca for nic in catalog.host(spec.cluster.hosts[0].type).nics]


def spec_errors(read: Read) -> list[dict[str, Any]]:
    """All that is wrong with a spec by its declarations, each at its key."""
    from fabrictwin.cluster.spec.spec import Spec
    from fabrictwin.serving.config.section import ServingWorkload
    from fabrictwin.workload.captured.captured_section import CapturedWorkload
    from fabrictwin.workload.job.workload_section import Workload

    found = _section_errors(read, Spec, ())
    workload = read.data.get("workload")
    if isinstance(workload, dict) and workload:
        kinds: dict[str, type[BaseModel]] = {"serving": ServingWorkload, "captured": CapturedWorkload}
        kind = next((kinds[name] for name in kinds if name in workload), Workload)
        found += _section_errors(read, kind, ("workload",))
    return found


def _section_errors(read: Read, model: type[BaseModel], path: tuple[str, ...]) -> list[dict[str, Any]]:
    data = read.data
    for part in path:
        data = data[part]
    try:
        model.model_validate(data, context={"origin": read.origin})
    except ValidationError as error:
        found = config_errors(error, model, data=data, path=path)
    except ConfigError as error:
        found = [error]
    else:
        return []
    placed = []
    for one in found:
        file, line = read.origin.locate(undotted(one.key or ""))
        placed.append(error_data(one.within(file=file, line=line)))
    return placed


_remembered: dict[str, Twin] = {}  # the last twin that was asked about: a click follows a click


def twin_of(spec: Spec, key: str) -> Twin:
    """The twin of a spec; one that was asked for just before is not built again."""
    if key not in _remembered:
        from fabrictwin.cluster.build_blueprint import build

        _remembered.clear()
        _remembered[key] = make_twin(spec, build(spec.cluster, spec=spec))
    return _remembered[key]


def _twin_key(spec: Spec, source: Source) -> str:
    asked = spec.to_dict()
    return repr((asked["cluster"], asked.get("faults"), sorted(source.files.items()), source.base))


def map_of(stage: Stage, source: Source) -> dict[str, Any]:
    """Hosts, switches and what joins them, for a map."""
    with in_folder_of(source) as folder:
        spec = spec_of(source, folder)
        stage("building the cluster")
        return fabric_map(twin_of(spec, _twin_key(spec, source)).as_it_runs)


def path_of(stage: Stage, source: Source, origin: str, destination: str) -> dict[str, Any]:
    """Every hop from one GPU to another."""
    with in_folder_of(source) as folder:
        spec = spec_of(source, folder)
        stage("routing")
        twin = twin_of(spec, _twin_key(spec, source))
        hops, latency_ps = twin.path(origin, destination)
    return {
        "from": origin,
        "to": destination,
        "latency_ps": latency_ps,
        "hops": [
            {
                "link": hop.link,
                "kind": hop.kind,
                "rate_gbps": hop.rate_bps / 1e9,
                "latency_ps": hop.latency_ps,
                "share": hop.share,
            }
            for hop in hops
        ],
    }


def catalog_list(stage: Stage) -> list[dict[str, str]]:
    """Kinds, names and titles of the catalog's entries."""
    from fabrictwin import catalog

    return [{"kind": kind, "name": name, "title": entry.title} for kind, name, entry in catalog.entries()]


def catalog_entry(stage: Stage, name: str, kind: str) -> dict[str, Any]:
    """An entry with every figure and its source. Raises ConfigError."""
    from fabrictwin import catalog
    from fabrictwin.catalog.entry_rows import entry_notes, entry_rows

    found = [entry for its, entry in catalog.find(name) if its == kind]
    if not found:
        raise ConfigError(f"got {quoted(name)}, expected an entry of kind {quoted(kind)}", key="name")
    rows = entry_rows(found[0])
    return {
        "kind": kind,
        "name": name,
        "title": found[0].title,
        "note": found[0].note,
        "figures": [
            {
                "figure": row.key,
                "value": row.value,
                "estimate": row.estimate,
                "source": row.source,
                "url": row.url or None,
            }
            for row in rows
        ],
        "notes": [f"{keys}: {note}" for keys, note in entry_notes(found[0])],
    }
