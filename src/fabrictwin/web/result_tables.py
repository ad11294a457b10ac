"""Tables of finished runs: columns with their units, as JSON, CSV or Parquet."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, Literal

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage
from fabrictwin.base.units import PS_PER_S
from fabrictwin.report.csv_tables import NOT_MODELLED
from fabrictwin.study.sweep.table_files import Columns, csv_text, parquet, unit_of

Format = Literal["json", "csv", "parquet"]


def table(stage: Stage, folder: str, name: str, form: Format) -> bytes:
    """A table of a run's folder. Raises ConfigError where the run has none of that name."""
    columns = _columns(Path(folder), name)
    if form == "parquet":
        return parquet(columns)
    if form == "csv":
        return csv_text(columns)
    fields = [{"name": key, "unit": unit_of(key) or None} for key in columns]
    return json.dumps({"fields": fields, "columns": columns}, ensure_ascii=False).encode()


def _columns(folder: Path, name: str) -> Columns:
    try:
        if name == "breakdown":
            said = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            return {
                "part": [part["name"] for part in said["breakdown"]],
                "time_s": [part["time_ps"] / PS_PER_S for part in said["breakdown"]],
                "share_percent": [part["percent"] for part in said["breakdown"]],
                "hidden_s": [part["hidden_ps"] / PS_PER_S for part in said["breakdown"]],
            }
        rows = list(csv.reader(io.StringIO((folder / f"{name}.csv").read_text(encoding="utf-8"))))
    except FileNotFoundError:
        raise ConfigError(f"this run has no table of {name}", key="table") from None
    head, *body = rows
    return {key: _typed([row[i] for row in body]) for i, key in enumerate(head)}


def _typed(values: list[str]) -> list[Any]:
    """Whole numbers, decimals or text; what was not modelled is no value."""
    known = [value for value in values if value != NOT_MODELLED]
    for kind in (int, float):
        try:
            read = iter([kind(value) for value in known])
        except ValueError:
            continue
        return [None if value == NOT_MODELLED else next(read) for value in values]
    return [None if value == NOT_MODELLED else value for value in values]


def cell_links(stage: Stage, folder: str, matrix: int, row: int, column: int) -> list[dict[str, Any]]:
    """The directed links of a matrix's cell that carried anything, busiest first. Raises ConfigError."""
    try:
        found = json.loads((Path(folder) / "matrix-links.json").read_text(encoding="utf-8"))
        places = found[matrix]
    except (FileNotFoundError, IndexError):
        raise ConfigError("this run has no such matrix", key="matrix") from None
    here = {
        port
        for port, r, c in zip(places["port"], places["row"], places["column"], strict=True)
        if (r, c) == (row, column)
    }
    links = _columns(Path(folder), "links")
    rows = [
        {name: links[name][i] for name in ("link", "kind", "rate_gbps", "tx_bytes", "utilisation")}
        for i, port in enumerate(links["port"])
        if port in here
    ]
    return sorted(rows, key=lambda one: (-one["utilisation"], one["link"]))
