"""Files that hold others: compressed ones (gzip, bzip2, xz), archives (tar, zip), and text in UTF-16.

All are told by their first bytes, whatever they are called, and read as streams: nothing is written anywhere. How
much is expanded of one file is bounded, so that a small one cannot fill days.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import PurePosixPath
from typing import IO, Any, BinaryIO

from fabrictwin.base.records import record

MOST_EXPANDED = 32 << 30  # bytes of one file that was named
MOST_WITHIN = 256 << 20  # of a zip archive within another, which is read whole
MOST_MEMBERS = 100_000
DEEPEST = 3  # packed files within packed files
PIECE, BUFFER = 64 << 10, 1 << 20  # what is asked for at once, and kept
_BROKEN = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)
_EXPAND: dict[bytes, Callable[[Any], gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile]] = {
    b"\x1f\x8b\x08": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
ENCRYPTED = 1  # of a zip member's flags
_ZIP, _ZSTD = b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
_TAR_AT, _TAR = 257, b"ustar"
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@record
class Inside:
    """A file that needs no more unpacking. `problem`: why the rest of it, or all, is not read."""

    name: str
    stream: IO[bytes] | None
    host: str = ""
    problem: Callable[[], str] = str


class _Budget:
    """How many bytes may still be expanded of a file that was named."""

    left = MOST_EXPANDED


class _Expanded(RawIOBase):
    """Bytes that come out of packed ones; they end where those are broken, or are too many."""

    def __init__(self, read: Callable[[int], bytes], budget: _Budget) -> None:
        self._read, self._budget = read, budget
        self.problem = ""

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; return how many bytes came."""
        size, done = len(buffer), 0
        while done < size and not self.problem:
            try:
                data = self._read(min(size - done, PIECE))
            except _BROKEN as error:
                self.problem = f"is broken or cut off: {error}"
                break
            if not data:
                break
            buffer[done : done + len(data)] = data
            done += len(data)
            self._budget.left -= len(data)
            if self._budget.left <= 0:
                self.problem = f"expands to more than {MOST_EXPANDED >> 30} GiB, of which the rest is left"
        return done


class _Filled(RawIOBase):
    """A pipe whose every reading waits until there is as much as was asked for."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; return how many bytes came."""
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the pipe."""
        self._stream.close()
        super().close()


def filled(stream: BinaryIO) -> BinaryIO:
    """Return a pipe of which as much can be looked at ahead as of a file, however little is written at once."""
    return BufferedReader(_Filled(stream), BUFFER)


def unpacked(stream: IO[bytes], name: str, host: str = "") -> Iterator[Inside]:
    """Yield what is in a file, or the file itself, each to be read before the next is asked for."""
    yield from _unpacked(stream, Inside(name, None, host), _Budget(), 0)


def _unpacked(stream: IO[bytes], of: Inside, budget: _Budget, depth: int) -> Iterator[Inside]:
    peek = getattr(stream, "peek", None)
    head = bytes(peek(_TAR_AT + len(_TAR))) if peek is not None else b""
    expand = next((one for magic, one in _EXPAND.items() if head.startswith(magic)), None)
    is_tar = head[_TAR_AT:].startswith(_TAR)
    if depth > DEEPEST and (expand is not None or is_tar or head.startswith(_ZIP)):
        yield Inside(of.name, None, of.host, lambda: f"is packed more than {DEEPEST} times")
    elif expand is not None:
        yield from _through(expand(stream), of, budget, depth)
    elif head.startswith(_WIDE):
        yield from _through(_Utf8(stream), of, budget, depth)
    elif is_tar:
        yield from _tar(stream, of, budget, depth)
    elif head.startswith(_ZIP):
        yield from _zip(stream, of, budget, depth)
    elif head.startswith(_ZSTD):
        yield Inside(of.name, None, of.host, lambda: "is compressed by zstd: unzstd it first")
    else:
        yield Inside(of.name, stream, of.host, of.problem)


def _through(packed: Any, of: Inside, budget: _Budget, depth: int) -> Iterator[Inside]:
    raw = _Expanded(packed.read1, budget)
    whole = Inside(of.name, None, of.host, lambda: raw.problem or of.problem())
    yield from _unpacked(BufferedReader(raw, BUFFER), whole, budget, depth + 1)


class _Utf8:
    """Text in UTF-16 as bytes of UTF-8."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._left = b""

    def read1(self, size: int) -> bytes:
        """Return at most so many bytes; none at the end."""
        while len(self._left) < size:
            data = self._stream.read(size)
            self._left += self._decoder.decode(data, final=not data).encode("utf-8", "replace")
            if not data:
                break
        data, self._left = self._left[:size], self._left[size:]
        return data


def _tar(stream: IO[bytes], of: Inside, budget: _Budget, depth: int) -> Iterator[Inside]:
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for number, member in enumerate(archive):
                if number == MOST_MEMBERS:
                    yield Inside(of.name, None, of.host, _too_many)
                    break
                inside = archive.extractfile(member) if member.isfile() else None
                if inside is not None:
                    yield from _through(inside, _member(member.name, of), budget, depth)
        if of.problem():
            yield Inside(of.name, None, of.host, of.problem)
    except _BROKEN as error:
        problem = f"is no tar archive, or is cut off: {error}"
        yield Inside(of.name, None, of.host, lambda: problem)


def _zip(stream: IO[bytes], of: Inside, budget: _Budget, depth: int) -> Iterator[Inside]:
    try:
        if not stream.seekable():
            data = stream.read(MOST_WITHIN + 1)
            if len(data) > MOST_WITHIN:
                raise ValueError(f"is larger than {MOST_WITHIN >> 20} MiB within another archive")
            stream = BytesIO(data)
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            if len(members) > MOST_MEMBERS:
                yield Inside(of.name, None, of.host, _too_many)
            for member in members[:MOST_MEMBERS]:
                if member.is_dir():
                    continue
                if member.flag_bits & ENCRYPTED:
                    yield replace(_member(member.filename, of), problem=lambda: "is encrypted")
                    continue
                with archive.open(member) as inside:
                    yield from _through(inside, _member(member.filename, of), budget, depth)
    except (*_BROKEN, NotImplementedError, RuntimeError) as error:
        problem = f"is no zip archive, or is cut off: {error}"
        yield Inside(of.name, None, of.host, lambda: problem)


def _too_many() -> str:
    return f"holds more than {MOST_MEMBERS} files, of which the rest is left"


def _member(name: str, of: Inside) -> Inside:
    """Return a member of an archive, whose folder is named as its host."""
    parts = [part for part in PurePosixPath(name).parts if part not in (".", "..", "/")]
    return Inside(f"{of.name}:{name[:200]}", None, parts[-2] if len(parts) > 1 else of.host)
