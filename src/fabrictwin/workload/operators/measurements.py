"""Measured kernels in the columns of NVIDIA's aiconfigurator database, as CSV (packed or not) or Parquet.

Products have `gemm_dtype, m, n, k, latency_ms`; attention `batch_size, isl, num_heads, num_key_value_heads,
kv_cache_dtype, step, latency_ms` (`step` is what is cached before, and `isl` 1, of decodes); fused experts
`moe_dtype, num_tokens, hidden_size, inter_size, topk, num_experts, moe_tp_size, moe_ep_size, distribution,
latency_ms`. In Parquet the last column is `latency`. Rows measured without a CUDA graph show the host and are to
be left out by whoever gives them: vLLM's `fp8_block` products are such.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fabrictwin.base.arrays import F64
from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.records import record
from fabrictwin.base.textfile import MAX_BYTES, read_bytes

TYPES = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8-block",
    "nvfp4": "fp4",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
}
US_PER_MS = 1000.0
UNGATED = ((2688, 1856, 6, 128), (1024, 2688, 22, 512), (2048, 5120, 22, 512))
"""Hidden, inner, experts a token and in all of Nemotron 3, whose experts have one matrix up and squared ReLU; the
tables do not tell (https://huggingface.co/nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16, `mlp_hidden_act: relu2`)."""
POWER_LAW = "power_law"
LONGEST_FIELD = 200
LEAST_SIDE = 256
"""n and k of products below which launch is all there is to see."""

Columns = Mapping[str, NDArray[np.str_]]
Mask = NDArray[np.bool_]


@record
class Measured:
    """Kernels of one family and type: rows of shapes, and their times in microseconds."""

    family: str
    type: str
    shapes: F64
    times_us: F64


def read_columns(path: Path) -> Columns:
    """Return the columns of a CSV or Parquet file, as text. Raises ConfigError."""
    try:
        raw = read_bytes(path)
        if raw[:4] == b"PAR1":
            return _parquet(path)
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.GzipFile(fileobj=io.BytesIO(raw)).read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigError(f"is larger than {MAX_BYTES >> 20} MiB unpacked", file=path)
        rows = list(csv.reader(io.StringIO(raw.decode())))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        raise ConfigError(f"expected a CSV or Parquet file: {error}", file=path) from None
    if len(rows) < 2:
        raise ConfigError("got no rows of measurements", file=path)
    width = len(rows[0])
    for number, row in enumerate(rows[1:], 2):
        if len(row) != width:
            raise ConfigError(f"got {len(row)} columns, expected {width}", file=path, line=number)
        if any(len(field) > LONGEST_FIELD for field in row):  # every field of a table takes as much as its longest
            message = f"got a field of more than {LONGEST_FIELD} characters"
            raise ConfigError(message, file=path, line=number)
    table = np.array(rows[1:])
    return {name.strip(): table[:, place] for place, name in enumerate(rows[0])}


def _parquet(path: Path) -> Columns:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ConfigError("Parquet needs pyarrow (pip install 'fabrictwin[data]')", file=path) from None
    try:
        table = parquet.read_table(path)
        return {name: np.array(table[name].to_pylist()).astype(str) for name in table.column_names}
    except (ArrowException, OSError, ValueError, KeyError) as error:
        raise ConfigError(f"is no Parquet file: {quoted(str(error), 160)}", file=path) from None


def _need(columns: Columns, path: Path, *names: str) -> None:
    missing = [name for name in names if name not in columns]
    if missing:
        raise ConfigError(f"got no column {missing[0]!r}, expected {', '.join(names)}", file=path)


MOST = 1e18  # of a size or a time; what is no number is neither


def _numbers(columns: Columns, path: Path, *names: str) -> F64:
    _need(columns, path, *names)
    try:
        values = np.stack([columns[name].astype(float) for name in names], axis=1)
    except ValueError as error:
        raise ConfigError(quoted(str(error), 160), file=path) from None
    if not ((values >= 0) & (values <= MOST)).all():
        raise ConfigError("got a number below 0 or without end, expected sizes and times", file=path)
    return values


def read_measured(path: Path) -> list[Measured]:
    """Return what a file measured, by family and type. Raises ConfigError."""
    columns = read_columns(path)
    latency = "latency_ms" if "latency_ms" in columns else "latency"
    times = _numbers(columns, path, latency)[:, 0] * US_PER_MS
    if "gemm_dtype" in columns:
        shapes = _numbers(columns, path, "m", "n", "k")
        large: Mask = (shapes[:, 0] >= 1) & (shapes[:, 1:] >= LEAST_SIDE).all(axis=1)
        return _by_type("products", columns["gemm_dtype"], shapes, times, large)
    if "moe_dtype" in columns:
        shapes = _numbers(
            columns, path, "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_ep_size"
        )
        _need(columns, path, "distribution")
        exponents = [exponent_of(name) for name in columns["distribution"].tolist()]
        shapes = np.column_stack([shapes, np.where(_ungated(shapes), 1.0, 2.0), exponents])
        parts = _numbers(columns, path, "moe_tp_size")[:, 0]
        if (parts < 1).any():
            raise ConfigError("got a size below 1, expected a count of GPUs", file=path, key="moe_tp_size")
        shapes[:, 2] /= parts
        kinds = np.char.add(np.char.add(_types(columns["moe_dtype"]), "/"), columns["distribution"])
        whole: Mask = np.asarray((shapes[:, :-1] >= 1).all(axis=1))
        return _by_type("experts", kinds, shapes, times, whole)
    if "kv_cache_dtype" in columns:
        shapes = _numbers(columns, path, "batch_size", "isl", "num_heads", "num_key_value_heads")
        before = _numbers(columns, path, "step")[:, 0]
        decodes = before > 0
        shapes[:, 1] += before
        kept: Mask = np.asarray((shapes >= 1).all(axis=1))
        kinds = columns["kv_cache_dtype"]
        found = _by_type("prompts", kinds, shapes, times, kept & ~decodes)
        return found + _by_type("decodes", kinds, shapes, times, kept & decodes)
    raise ConfigError("got none of the columns gemm_dtype, moe_dtype, kv_cache_dtype", file=path)


def exponent_of(distribution: str) -> float:
    """Return the exponent of `power_law_1.01`; 0 of `balanced` and what is not known."""
    name, _, text = distribution.rpartition("_")
    try:
        return float(text) if name == POWER_LAW else 0.0
    except ValueError:
        return 0.0


def _ungated(shapes: F64) -> Mask:
    known: Mask = (shapes[:, None, 1:5] == np.array(UNGATED, float)).all(axis=2).any(axis=1)
    return known


def _types(names: NDArray[np.str_]) -> NDArray[np.str_]:
    return np.array([TYPES.get(name, name) for name in names.tolist()])


def _by_type(family: str, kinds: NDArray[np.str_], shapes: F64, times: F64, kept: Mask) -> list[Measured]:
    kept = kept & (times > 0)
    return [
        Measured(family, TYPES.get(str(kind), str(kind)), shapes[rows], times[rows])
        for kind in np.unique(kinds[kept])
        for rows in [kept & (kinds == kind)]
    ]
