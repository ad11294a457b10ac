"""Files and folders to evidence: opened, recognised, read line by line, never whole where they may be large.

A file may hold several formats one after the other, or mixed (NCCL's log, the rows of a test, a kernel's message).
Lines of NCCL go to its reader; every other line goes to the reader that took the last one, and where that does not
know it, to the family whose beginning it is. What no reader knows is named and left alone.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, BinaryIO

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.textfile import STDIN, open_bytes, read_so_far
from fabrictwin.diagnosis.evidence import Evidence, Place, Sink
from fabrictwin.diagnosis.readers import json_documents, json_lines
from fabrictwin.diagnosis.readers.job import flight_recorder
from fabrictwin.diagnosis.readers.line_router import FileLines
from fabrictwin.diagnosis.readers.packed_files import filled, unpacked

HEAD_BYTES = 64 << 10
MAX_WHOLE = 256 << 20  # of a file that is read whole: a dump, JSON
_JSON = re.compile(
    rb"\s*(?:\{\s*[\"}]|\[\s*(?:\{|\[\s*[\d\"{\[-]))"
)  # a line of mpirun or of a kernel begins with a bracket, too
MOST_FILES = 100_000
EMPTY = "is empty"
STANDARD_INPUT = "-"


def read_paths(paths: Iterable[str | Path], stage: Stage = silent) -> Evidence:
    """Evidence of files (`-` is the standard input), of all files below folders, of archives.

    Raises ConfigError where one is not there.
    """
    evidence = Evidence()
    found = [one for path in paths for one in _files(Path(path))]
    sizes = [os.path.getsize(path) if os.path.isfile(path) else 0 for path, _ in found]
    done, whole = 0, max(sum(sizes), 1)
    for (path, host), size in zip(found, sizes, strict=True):
        _read_file(path, evidence, host=host, watch=_watch(stage, path.name, done, whole))
        done += size
    return evidence


def _watch(stage: Stage, name: str, done: int, whole: int) -> Callable[[IO[bytes]], None]:
    """Return what tells `stage` that a file is read, and how far all files are, in bytes."""
    return lambda stream: stage(f"reading {name}", lambda: (done + read_so_far(stream)) / whole)


def read_text(text: str, *, name: str = "text", host: str = "") -> Evidence:
    """Evidence of one text."""
    evidence = Evidence()
    lines = (line.encode("utf-8", "surrogateescape") for line in text.split("\n"))
    families = _read_lines(lines, text[:HEAD_BYTES].split("\n"), Sink(evidence, name, host=host))
    evidence.read.append((name, families))
    return evidence


def _files(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file, or those below a folder in order, each with the host whose folder it lies in."""
    if not os.path.isdir(path):
        yield path, ""
        return
    for found in sorted(found for found in path.rglob("*") if found.is_file())[:MOST_FILES]:
        inside = found.relative_to(path)
        # a folder for each host, as `fabrictwin collect` makes them
        yield found, inside.parts[0] if len(inside.parts) > 1 else ""


def _read_file(path: Path, evidence: Evidence, *, host: str, watch: Callable[[IO[bytes]], None]) -> None:
    name = STDIN if str(path) == STANDARD_INPUT else str(path)
    try:
        with _opened(path) as stream:
            watch(stream)
            for inside in unpacked(stream, name, host):
                if inside.stream is not None:
                    _read_stream(inside.stream, Sink(evidence, inside.name, host=inside.host))
                if inside.problem():
                    if evidence.unread[-1:] == [(inside.name, EMPTY)]:
                        evidence.unread.pop()
                    evidence.unread.append((inside.name, inside.problem()))
    except FileNotFoundError:
        raise ConfigError("no such file", file=path) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=path) from None


def _opened(path: Path) -> BinaryIO:
    """Return a file, or the standard input, so that its beginning can be looked at."""
    if str(path) == STANDARD_INPUT:
        return filled(os.fdopen(os.dup(sys.stdin.fileno()), "rb"))
    stream = open_bytes(path)
    return stream if os.path.isfile(path) else filled(stream)


def _read_stream(stream: IO[bytes], sink: Sink) -> None:
    peek = getattr(stream, "peek", None)
    head = bytes(peek(HEAD_BYTES)[:HEAD_BYTES]) if peek is not None else b""
    evidence, name = sink.evidence, sink.file
    if not head:
        evidence.unread.append((name, EMPTY))
        return
    packed = json_lines.recognises(head)
    whole = _JSON.match(head) or json_documents.OPENS_YAML.match(head)
    if flight_recorder.recognises(head) or (whole and not packed):
        _read_whole(stream, sink)
        return
    if head.count(b"\0") > len(head) // 100:
        evidence.unread.append((name, "holds binary data of no format that is known"))
        return
    _read_as_text(stream, head, sink, "holds no format that is known")


def _read_as_text(stream: IO[bytes], head: bytes, sink: Sink, otherwise: str) -> None:
    """Read lines, and say what the file is where no reader knows any."""
    file = FileLines(head.decode("utf-8", "replace").split("\n")[:400], sink)
    file.take_stream(stream)
    families = file.close()
    if families or not otherwise:
        sink.evidence.read.append((sink.file, families or ("document",)))
    else:
        sink.evidence.unread.append((sink.file, otherwise))


def _read_whole(stream: IO[bytes], sink: Sink) -> None:
    data, evidence, name = stream.read(MAX_WHOLE + 1), sink.evidence, sink.file
    if len(data) > MAX_WHOLE:
        evidence.unread.append((name, f"is larger than {MAX_WHOLE >> 20} MiB"))
        return
    if flight_recorder.recognises(data[:HEAD_BYTES]):
        try:
            known = flight_recorder.read(data, sink)
        except ConfigError as error:
            evidence.unread.append((name, f"is a flight recorder's dump that {error.message}"))
            return
        if known:
            evidence.read.append((name, ("flight-recorder",)))
            return
    family = json_documents.read(data, sink)
    if family:
        evidence.read.append((name, (family,)))
        return
    lines = json_documents.printed_lines(data)
    text = "\n".join(lines).encode("utf-8", "replace") if lines else json_documents.spread(data)
    if lines:
        sink.add("document.read", len(lines), place=Place(name, 0))
    otherwise = "holds JSON, or what looks like it, of no format that is known"
    _read_as_text(BytesIO(text), text[:HEAD_BYTES], sink, "" if lines else otherwise)


def _read_lines(lines: Iterable[bytes], head: list[str], sink: Sink) -> tuple[str, ...]:
    """Read lines; the families found."""
    file = FileLines(head, sink)
    file.take_all(lines)
    return file.close()
