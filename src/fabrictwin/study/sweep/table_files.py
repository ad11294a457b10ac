"""A sweep's table as CSV or Parquet, by the ending of its file. Units are in names, and in Parquet's metadata."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError, unwritten

ENDINGS = (".csv", ".parquet")
# the unit of a column, by the end of its name
UNITS = {
    "_s": "s",
    "_ms": "ms",
    "_us": "µs",
    "_ps": "ps",
    "_per_s": "1/s",
    "_per_s_per_gpu": "1/s",
    "_bytes": "B",
    "_gbps": "Gb/s",
    "_gbytes_per_s": "GB/s",
    "_tflops_per_gpu": "TFLOP/s",
    "_percent": "%",
}

Columns = Mapping[str, Sequence[Any]]


def check_ending(path: Path) -> None:
    """Raise ConfigError for a file that would be neither, or for Parquet where nothing writes it."""
    if path.suffix not in ENDINGS:
        raise ConfigError(f"got {str(path)!r}, expected a file that ends in .csv or .parquet", key="--out")
    if path.suffix == ".parquet":
        _pyarrow()


def unit_of(column: str) -> str:
    """The unit of a column's values; empty where they have none."""
    return next((UNITS[end] for end in sorted(UNITS, key=len, reverse=True) if column.endswith(end)), "")


def write_table(path: Path, columns: Columns) -> None:
    """Write columns of one length, in order; a file that was there is replaced whole. Raises ConfigError."""
    content = parquet(columns) if path.suffix == ".parquet" else csv_text(columns)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise unwritten(error, file=path, key="--out") from error


def csv_text(columns: Columns) -> bytes:
    """Columns of one length as CSV, empty where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow(["" if cell is None else _plain(cell) for cell in row])
    return text.getvalue().encode()


def _plain(cell: Any) -> Any:
    return str(cell).lower() if isinstance(cell, bool) else cell


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("Parquet needs pyarrow: pip install 'fabrictwin[parquet]'", key="--out") from None
    return pyarrow


def parquet(columns: Columns) -> bytes:
    """Columns of one length as a Parquet file, units in the metadata of its fields. Raises ConfigError."""
    pyarrow = _pyarrow()
    arrays = [pyarrow.array(_of_one_kind(values)) for values in columns.values()]
    fields = [
        pyarrow.field(name, array.type, metadata={"unit": unit} if (unit := unit_of(name)) else None)
        for name, array in zip(columns, arrays, strict=True)
    ]
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields)), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _of_one_kind(values: Sequence[Any]) -> list[Any]:
    """Values of a column as one type: text where some are text, decimals where some are."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1:
        return [None if value is None else str(value) for value in values]
    return list(values)
