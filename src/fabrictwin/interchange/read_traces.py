"""Files of any known trace format to a captured job: one file a rank, or one for all; archives are unpacked."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_bytes
from fabrictwin.interchange import astra_layers, chakra, execution_trace, flight_recorder_trace, goal, kineto
from fabrictwin.interchange.rank_traces import RankTrace, together
from fabrictwin.workload.captured.captured_file import MOST_RANKS, decompressed, plain_json, read_ranks
from fabrictwin.workload.captured.captured_job import CapturedJob, Sends

FORMATS = ("kineto", "chakra", "execution-trace", "flight-recorder", "goal", "astra-layers")
MAX_BYTES = 1 << 30
MOST_MEMBERS = 100_000
_EAGER = ("chakra", "flight-recorder", "goal")


@record
class Given:
    """What is known beside the files: ranks in all, of groups, ranks that hold a model, passes of layers."""

    world: int | None = None
    groups: Mapping[str, tuple[int, ...]] | None = None
    model_ranks: int | None = None
    passes: int = 1


def read_groups(path: Path) -> dict[str, tuple[int, ...]]:
    """Ranks of groups by name, of JSON such as ASTRA-sim's `{"1": [0, 1]}`. Raises ConfigError."""
    data = plain_json(read_bytes(path), str(path))
    if not isinstance(data, Mapping):
        raise ConfigError("expected names of groups with their ranks", file=path)
    return {
        str(key): read_ranks(
            value, MOST_RANKS, lambda message, key=key: ConfigError(message, file=path, key=str(key))
        )
        for key, value in data.items()
    }


def _files(paths: Sequence[Path]) -> list[tuple[str, bytes]]:
    """(name, bytes) of all files, of those in folders and in archives. Raises ConfigError."""
    found: list[tuple[str, bytes]] = []
    for path in paths:
        inside = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        if not inside:
            raise ConfigError("is a folder without files", file=path)
        for one in inside:
            raw = read_bytes(one, MAX_BYTES)
            if raw[:2] == b"\x1f\x8b":
                raw = decompressed(raw, str(one), MAX_BYTES)
            if raw[257:262] == b"ustar":
                found += _members(raw, str(one))
            else:
                found.append((str(one), raw))
            if len(found) > MOST_MEMBERS:
                raise ConfigError(f"got more than {MOST_MEMBERS:,} files", file=path)
    return found


def _members(raw: bytes, file: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            for member in archive:
                base = Path(member.name).name
                stream = archive.extractfile(member) if member.isfile() and not base.startswith("._") else None
                if stream is None:
                    continue
                total += member.size
                if total > MAX_BYTES or len(found) >= MOST_MEMBERS:
                    raise ConfigError(f"holds more than {MAX_BYTES >> 20} MiB", file=file)
                found.append((f"{file}/{member.name}"[:400], stream.read()))
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise ConfigError(f"is a broken archive: {error}", file=file) from None
    if not found:
        raise ConfigError("is an archive without files", file=file)
    return found


def _format(raw: bytes, file: str) -> tuple[str, Any]:
    """(format, the data as it reads). Raises ConfigError where no reader knows the file."""
    if re.match(rb"\x80[\x02-\x05]", raw):
        data = flight_recorder_trace.plain_data(raw, file)
        if flight_recorder_trace.recognises(data):
            return "flight-recorder", data
    elif raw[:1000].lstrip()[:1] in (b"{", b"["):
        data = plain_json(raw, file)
        for name, module in (
            ("kineto", kineto),
            ("execution-trace", execution_trace),
            ("flight-recorder", flight_recorder_trace),
        ):
            if module.recognises(data):
                return name, data
        if chakra.recognises_json(data):
            return "chakra", data
    elif chakra.recognises(raw):
        return "chakra", raw
    else:
        text = raw.decode("utf-8", "replace")
        for name, known in (("goal", goal.recognises), ("astra-layers", astra_layers.recognises)):
            if known(text):
                return name, text
    raise ConfigError(f"is none of the traces that are read: {', '.join(FORMATS)}", file=file)


def read_traces(
    paths: Sequence[Path], given: Given | None = None, *, name: str | None = None, stage: Stage = silent
) -> CapturedJob:
    """The job of files of one format. Raises ConfigError."""
    given = given or Given()
    files = _files(paths)
    form = ""
    recognised: list[tuple[str, Any]] = []
    passed: list[tuple[str, str]] = []
    asked = {str(path) for path in paths}
    for number, (file, raw) in enumerate(files):
        stage(f"reading {Path(file).name}", number / len(files))
        try:
            found, data = _format(raw, file)
        except ConfigError:
            if file in asked:
                raise
            # beside traces, folders and archives hold other things
            passed.append((file, "it is none of the traces that are read"))
            continue
        if form and found != form:
            raise ConfigError(f"is {found}, expected {form} as in {recognised[0][0]}", file=file)
        form = found
        recognised.append((file, data))
    recognised, others = _one_job(recognised, asked, dict(files)) if form == "chakra" else (recognised, [])
    passed += [
        (file, "its name is that of another job, which this archive or folder holds as well") for file in others
    ]
    traces = [one for file, data in recognised for one in _read(form, data, file, len(recognised), given)]
    if not traces:
        raise ConfigError(f"holds none of the traces that are read: {', '.join(FORMATS)}", file=paths[0])
    for file, why in passed:
        traces[0].miss(file, why)
    sends: Sends = "eager" if form in _EAGER else "rendezvous"
    title = name or Path(files[0][0]).name.partition(".")[0] or form
    try:
        return together(traces, name=title, source=form, world=given.world, sends=sends)
    except ConfigError as error:
        raise error.within(file=files[0][0]) from None


def _one_job(
    recognised: list[tuple[str, Any]], asked: set[str], raw: Mapping[str, bytes]
) -> tuple[list[tuple[str, Any]], list[str]]:
    """(traces of one job, files of others) where an archive or folder holds several traces of a rank.

    Jobs are told apart by what their files' names have around the rank; the one of most ranks, and then of most
    bytes, is taken. Files that somebody named stay, and so do all where no rank has two.
    """
    jobs: dict[str, dict[int, tuple[str, Any]]] = {}
    for file, data in recognised:
        rank = chakra.rank_of(Path(file))
        if file in asked or rank is None:
            return recognised, []
        job = chakra.name_of_job(Path(file))
        if rank in jobs.setdefault(job, {}):
            return recognised, []  # which is then refused by both names
        jobs[job][rank] = file, data
    ranks = [rank for job in jobs.values() for rank in job]
    if len(ranks) == len(set(ranks)):
        return recognised, []
    most = max(jobs.values(), key=lambda job: (len(job), sum(len(raw[file]) for file, _ in job.values())))
    kept = list(most.values())
    return kept, sorted(file for job in jobs.values() if job is not most for file, _ in job.values())


def _read(form: str, data: Any, file: str, files: int, given: Given) -> list[RankTrace]:
    rank = chakra.rank_of(Path(file))
    if form == "kineto":
        return [kineto.read(data, file)]
    if form == "goal":
        return goal.read(data, file)
    if form == "astra-layers":
        if given.world is None:
            raise ConfigError("says of no rank, expected --world", file=file)
        return [
            astra_layers.read(data, file, world=given.world, model_ranks=given.model_ranks, passes=given.passes)
        ]
    if form == "execution-trace":
        return [execution_trace.read(data, file, rank=rank if files > 1 else None, world=given.world or files)]
    if form == "flight-recorder":
        said = data.get("rank")
        said = int(said) if isinstance(said, str) and said.isascii() and said.isdigit() and len(said) < 8 else said
        return [
            flight_recorder_trace.read(
                data, file, rank=said if type(said) is int and 0 <= said < MOST_RANKS else rank or 0
            )
        ]
    if rank is None and files > 1:
        raise ConfigError("has no rank in its name, expected one such as trace.3.et", file=file)
    ranks = max(given.world or files, (rank or 0) + 1 if files > 1 else 1)
    return [
        chakra.read(
            data, file, rank=rank if files > 1 and rank is not None else 0, world=ranks, groups=given.groups
        )
    ]
