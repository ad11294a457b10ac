"""Files and folders to evidence: opened, recognised, read line by line, never whole where they may be large.

A file may hold several formats one after the other, or mixed (NCCL's log, the rows of a test, a kernel's message).
Lines of NCCL go to its reader; every other line goes to the reader that took the last one, and where that does not
know it, to the family whose beginning it is. What no reader knows is named and left alone.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.textfile import open_bytes, read_so_far
from fabrictwin.diagnosis.evidence import Evidence, Sink
from fabrictwin.diagnosis.readers.decisive_lines import LEVELS, DecisiveLines
from fabrictwin.diagnosis.readers.fabric import sonic
from fabrictwin.diagnosis.readers.host.kernel_log import KernelLog
from fabrictwin.diagnosis.readers.job import flight_recorder, ras
from fabrictwin.diagnosis.readers.job.benchmarks import ROW_BEGINS, NcclTests
from fabrictwin.diagnosis.readers.job.launchers import Launchers
from fabrictwin.diagnosis.readers.job.nccl_log import NcclLog
from fabrictwin.diagnosis.readers.job.verbs_programs import VerbsPrograms
from fabrictwin.diagnosis.readers.line_prefixes import Prefixes
from fabrictwin.diagnosis.readers.line_reader import LineReader
from fabrictwin.diagnosis.readers.line_shapes import LineShapes, pattern_sources
from fabrictwin.diagnosis.readers.registry import Family, family_of

HEAD_BYTES = 64 << 10
LONGEST_LINE = 64 << 10
MAX_WHOLE = 256 << 20  # of a file that is read whole: a dump, JSON
_JSON = re.compile(rb"\s*(?:\{\s*[\"}]|\[\s*[\[{])")  # a line of mpirun or of a kernel begins with a bracket, too
MOST_FILES = 100_000
MOST_SHAPES = 50_000


def read_paths(paths: Iterable[str | Path], stage: Stage = silent) -> Evidence:
    """Evidence of files, of all files below folders, of archives. Raises ConfigError where one is not there."""
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
    name = str(path)
    try:
        with open_bytes(path) as stream:
            watch(stream)
            if name.endswith((".tar", ".tar.gz", ".tgz")):
                _read_tar(stream, name, evidence)
            else:
                _read_stream(stream, Sink(evidence, name, host=host))
    except FileNotFoundError:
        raise ConfigError("no such file", file=path) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=path) from None


def _read_tar(stream: IO[bytes], name: str, evidence: Evidence) -> None:
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as archive:
            for member in archive:
                inside = archive.extractfile(member) if member.isfile() else None
                if inside is None:
                    continue
                parts = [part for part in Path(member.name).parts if part not in (".", "..", "/")]
                host = parts[-2] if len(parts) > 1 else ""
                buffered = BufferedReader(inside)  # type: ignore[type-var]
                _read_stream(buffered, Sink(evidence, f"{name}:{member.name[:200]}", host=host))
    except (tarfile.TarError, EOFError, OSError) as error:
        evidence.unread.append((name, f"is no tar archive, or is cut off: {error}"))


def _read_stream(stream: IO[bytes], sink: Sink) -> None:
    peek = getattr(stream, "peek", None)
    head = bytes(peek(HEAD_BYTES)[:HEAD_BYTES]) if peek is not None else b""
    evidence, name = sink.evidence, sink.file
    if not head:
        evidence.unread.append((name, "is empty"))
        return
    if flight_recorder.recognises(head) or _JSON.match(head):
        _read_whole(stream, sink)
        return
    if head.count(b"\0") > len(head) // 100:
        evidence.unread.append((name, "holds binary data of no format that is known"))
        return
    beginning = head.decode("utf-8", "replace").split("\n")
    families = _read_lines(_lines(stream), beginning[:400], sink)
    if families:
        evidence.read.append((name, families))
    else:
        evidence.unread.append((name, "holds no format that is known"))


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: stream.readline(LONGEST_LINE), b"")


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
    family = _read_json(data, sink)
    if family:
        evidence.read.append((name, (family,)))
        return
    text = data.decode("utf-8", "replace").split("\n")
    families = _read_lines((line.encode("utf-8", "replace") for line in text), text[:400], sink)
    if families:
        evidence.read.append((name, families))
    else:
        evidence.unread.append((name, "holds JSON, or what looks like it, of no format that is known"))


def _read_json(data: bytes, sink: Sink) -> str:
    """The family of a JSON document, taken; empty where it is none that is known."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    sink.number = 1
    if ras.read_json(parsed, sink):
        return "nccl-ras"
    if sonic.read_config(parsed, sink):
        return "config_db"
    return ""


class _Router:
    """Gives each line to the reader that knows it."""

    def __init__(self, sink: Sink, shapes: LineShapes) -> None:
        self.sink = sink
        self.nccl = NcclLog(sink)
        self.shapes = shapes
        self.known: dict[str, LineReader] = {}
        self.active: LineReader | None = None
        self.has_nccl = False
        self._unknown: set[str] = set()  # shapes of lines that begin no format

    def route(self, text: str) -> bool:
        """Give the line to the reader at hand, or to the one that it begins; true where a table has it."""
        active = self.active
        family = None
        if active is not None and not _is_weak(active):
            if active.line(text):
                return not active.talks
            family = self._family(text)
        else:
            family = self._family(text)
            if family is None:
                if active is not None and not active.line(text):
                    self.active = None
                return False
        if family is None:
            if text.strip():
                self.active = None
            return False
        if family.name not in self.known:
            self.known[family.name] = family.make(self.sink)
        self.active = self.known[family.name]
        return self.active.line(text) and not _is_weak(self.active) and not self.active.talks

    def _family(self, text: str) -> Family | None:
        """The family whose beginning a line is; asked once for lines that differ in numbers and names alone."""
        shape = self.shapes.of(text)
        if shape in self._unknown:
            return None
        family = family_of(text)
        if family is None and len(self._unknown) < MOST_SHAPES:
            self._unknown.add(shape)
        return family

    @property
    def in_kernel_log(self) -> bool:
        """Return true where the last line was of a kernel's log."""
        return isinstance(self.active, KernelLog)

    def close(self) -> tuple[str, ...]:
        """End all readers; the families that were found."""
        if self.has_nccl:
            self.nccl.close()
        for reader in self.known.values():
            reader.close()
        return (("nccl-log",) if self.has_nccl else ()) + tuple(self.known)


def _is_weak(reader: LineReader) -> bool:
    """Return true for readers that take any line: another family's beginning goes before them."""
    return isinstance(reader, KernelLog | Launchers | VerbsPrograms)


def _read_lines(lines: Iterable[bytes], head: list[str], sink: Sink) -> tuple[str, ...]:
    """Read lines; the families found."""
    shapes = LineShapes((*pattern_sources(), *LEVELS))
    prefixes, router, decisive = Prefixes(head), _Router(sink, shapes), DecisiveLines(sink, shapes)
    nccl, tests = router.nccl, router.known
    for number, raw in enumerate(lines, 1):
        sink.number = number
        if b" NCCL " in raw or raw.startswith(b"NCCL ") or b"NCCL version" in raw:
            text = raw.decode("utf-8", "replace")
            sink.text = text
            if nccl.line(text):
                router.has_nccl = True
                broken = ROW_BEGINS.match(text)
                table = tests.get("nccl-tests")
                if broken is not None and isinstance(table, NcclTests):
                    table.half(broken[0])
                continue
        text = prefixes.strip(raw.decode("utf-8", "replace").rstrip("\r\n"))
        if not text.strip():
            continue
        sink.text = text
        taken = router.route(text)
        if not taken:
            decisive.line(raw, text, kernel=router.in_kernel_log)
    families = router.close()
    return (*families, "messages") if decisive.close() else families
