"""What people have measured: nccl-tests' and perftest's output, a torch profile of some steps, tables of products.

The kind of a file is told by what stands in it. nccl-tests and perftest print tables; a profile is Chrome JSON
with events `ProfilerStep#N` (torch.profiler with a schedule); products are CSV or Parquet with `gemm_dtype, m, n,
k` and `latency_ms`.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.textfile import MAX_BYTES, read_bytes
from fabrictwin.calibration.perftest_tables import OPENS, PerftestRows, read_json, read_text
from fabrictwin.tools.nccl_tests.unnamed_tests import Row, named_by, named_in, test_of
from fabrictwin.workload.operators.measurements import Measured, read_measured

LEAST_STEPS = 1
_TEST = re.compile(r"# Collective test starting: (\w+)")
_RANK = re.compile(r"#\s+Rank\s+(\d{1,9})\s.*?\bon\s+(\S+)\s")
_MORE = re.compile(r"#\s+\.\.\. and (\d{1,9}) more")
_ROW = re.compile(r"\s*(\d{1,15})\s+(\d{1,15})\s+([a-z]\w*)\s+(?:([a-z]\w*)\s+)?(?:(-?\d{1,9})\s+)?([\d.e+]+)\s+")
_STEP = re.compile(r"ProfilerStep#\d+")


@record
class CollectiveRows:
    """A table of nccl-tests: program, ranks, their hosts, and (bytes, time out of place in us) of each row."""

    program: str
    ranks: int
    hosts: int
    rows: tuple[tuple[int, float], ...]


@record
class Inputs:
    """All that files hold."""

    collectives: tuple[CollectiveRows, ...] = ()
    steps_s: tuple[float, ...] = ()
    products: tuple[Measured, ...] = ()
    perftest: tuple[PerftestRows, ...] = ()


def read_inputs(paths: list[Path]) -> Inputs:
    """Return what files measured. Raises ConfigError for a file of no kind that is read."""
    collectives: list[CollectiveRows] = []
    steps: list[float] = []
    products: list[Measured] = []
    perftest: list[PerftestRows] = []
    for path in paths:
        raw = read_bytes(path)
        if raw[:2] == b"\x1f\x8b" and path.name.endswith(".json.gz"):
            raw = _unpacked(path)
        if raw.lstrip()[:1] in (b"{", b"["):
            data = _json(raw, path)
            if isinstance(data, dict) and "test_info" in data:
                perftest += read_json(data, path)
            else:
                steps += _profile(data, path)
        elif raw[:4] == b"PAR1" or raw[:2] == b"\x1f\x8b" or b"gemm_dtype" in raw[:2000]:
            products += [one for one in read_measured(path) if one.family == "products"]
        elif OPENS.search(raw):
            perftest += read_text(raw, path)
        else:
            collectives.append(_nccl_tests(raw, path))
    return Inputs(tuple(collectives), tuple(steps), tuple(products), tuple(perftest))


def _unpacked(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, EOFError) as error:
        raise ConfigError(f"cannot be unpacked: {error}", file=path) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES >> 20} MiB unpacked", file=path)
    return raw


def _nccl_tests(raw: bytes, path: Path) -> CollectiveRows:
    program, ranks = "", 0
    hosts: dict[str, None] = {}
    rows: list[tuple[int, float]] = []
    likely: dict[str, int] = {}  # what a command names counts for more than bandwidths
    for number, line in enumerate(raw.decode(errors="replace").splitlines(), 1):
        if line.lstrip().startswith("#"):
            if (found := _TEST.search(line)) is not None:
                program = found[1]
            elif (found := _RANK.match(line.strip())) is not None:
                ranks = max(ranks, int(found[1]) + 1)
                hosts[found[2]] = None
            elif (found := _MORE.match(line.strip())) is not None:
                ranks += int(found[1])
            else:
                likely[named_in(line)] = len(raw)
        elif (found := _ROW.match(line)) is not None:
            try:
                time_us = float(found[6])
            except ValueError:
                raise ConfigError(f"got {found[6]!r}, expected a time in us", file=path, line=number) from None
            if int(found[1]) and 0 < time_us < 1e12:
                rows.append((int(found[1]), time_us))
                name = test_of(_row(found, line), ranks)
                likely[name] = likely.get(name, 0) + 1
        elif name := named_in(line):
            likely[name] = len(raw)
    if not rows:
        raise ConfigError(
            "expected a table of nccl-tests or perftest, a torch profile (JSON), or products "
            "(gemm_dtype, m, n, k, latency_ms)",
            file=path,
        )
    likely.pop("", None)
    named = max(likely, key=likely.__getitem__, default="")
    if likely.get(named, 0) < len(raw):  # no command among them
        named = named_by(path.name) or named
    return CollectiveRows(program or named, ranks, len(hosts), tuple(rows))


def _row(found: re.Match[str], line: str) -> Row:
    """Return a row as far as it tells which test it is of."""
    bandwidths = line[found.end() :].split()
    try:
        algorithm, bus = float(bandwidths[0]), float(bandwidths[1])
    except (IndexError, ValueError):
        algorithm = bus = 0.0
    root = None if found[5] is None else int(found[5])
    reduces, checked = found[4] not in (None, "none"), bandwidths[-1:] != ["N/A"]
    return Row(int(found[1]), int(found[2]), algorithm, bus, reduces, root, checked)


def _json(raw: bytes, path: Path) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is no JSON: {error}", file=path) from None


def _profile(data: Any, path: Path) -> list[float]:
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise ConfigError("got no traceEvents, expected a torch profile", file=path)
    found: dict[str, float] = {}
    for event in events:
        if isinstance(event, dict) and _STEP.fullmatch(str(event.get("name", ""))[:40]):
            length = event.get("dur")
            if isinstance(length, int | float) and 0 < length < 1e12:
                # once on the host's track, once on the device's: the longer one holds the whole step
                found[event["name"]] = max(found.get(event["name"], 0.0), float(length))
    if not found:
        raise ConfigError("got no ProfilerStep#N, expected a profile made with a schedule and step()", file=path)
    return [median(found.values()) / 1e6]
