"""Rows of a trace file, one at a time, and errors that name file, line and field."""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.textfile import open_bytes, reading
from fabrictwin.base.whole_numbers import whole_or_none

LONGEST_LINE = 8 * 2**20
MOST_TOKENS = 2**24
MOST_PS = 2**62


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of every line that is not blank; a file named .gz is unpacked.

    Raises:
        ConfigError: The file cannot be read, is not UTF-8, or has a line of more than 8 MiB.
    """
    number = 0
    try:
        with reading(path), open_bytes(path) as file, _unpacked(path, file) as stream:
            while raw := stream.readline(LONGEST_LINE + 1):
                number += 1
                if len(raw) > LONGEST_LINE:
                    raise ConfigError(f"got a line of more than {LONGEST_LINE >> 20} MiB", file=path, line=number)
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text:
                    yield number, text
    except UnicodeDecodeError:
        raise ConfigError("got bytes that are not UTF-8 text", file=path, line=number) from None
    except zlib.error as error:
        raise ConfigError(f"cannot be unpacked: {error}", file=path, line=number) from None


def _unpacked(path: Path, file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file


class Row:
    """One request of a trace, whose fields are asked for by name."""

    def __init__(self, fields: dict[str, Any], path: Path, line: int) -> None:
        self._fields = fields
        self._path = path
        self._line = line

    def error(self, key: str, got: object, expected: str) -> ConfigError:
        """Return the error of a field."""
        shown = repr(got)
        message = f"got {shown if len(shown) <= 60 else shown[:57] + '...'}, expected {expected}"
        return ConfigError(message, file=self._path, line=self._line, key=key)

    def field(self, key: str, expected: str) -> object:
        """Return what a field holds."""
        if key not in self._fields:
            raise self.error(key, "nothing", expected)
        return self._fields[key]

    def tokens(self, key: str, *, least: int = 1) -> int:
        """Return a count of tokens, a number or its digits."""
        expected = f"a count of tokens from {least} to {MOST_TOKENS}"
        got = self.field(key, expected)
        if isinstance(got, str):
            number = whole_or_none(got.strip(" "), least=least, most=MOST_TOKENS)
            if number is not None:
                return number
        if isinstance(got, bool) or not isinstance(got, int) or not least <= got <= MOST_TOKENS:
            raise self.error(key, got, expected)
        return got

    def time_ps(self, key: str, unit_ps: int) -> int:
        """Return a time from the start of the trace, picoseconds."""
        expected = "a time that is not negative"
        got = self.field(key, expected)
        try:
            value = got if isinstance(got, int) and not isinstance(got, bool) else float(cast(Any, got))
        except (TypeError, ValueError, OverflowError):
            raise self.error(key, got, expected) from None
        if isinstance(got, bool) or not (math.isfinite(value) and 0 <= value <= MOST_PS / unit_ps):
            raise self.error(key, got, expected)
        return round(value * unit_ps)

    def integers(self, key: str) -> list[int]:
        """Return a list of numbers that are not negative."""
        expected = "a list of integers from 0 to 2^53"
        got = self.field(key, expected)
        if not isinstance(got, list) or not all(type(one) is int and 0 <= one < 2**53 for one in got):
            raise self.error(key, got, expected)
        return got


def json_rows(path: Path) -> Iterator[Row]:
    """Yield the objects of a JSONL file."""
    for number, text in lines(path):
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError(
                "got a line that is not JSON, expected one object a line", file=path, line=number
            ) from None
        if not isinstance(fields, dict):
            raise ConfigError(f"got {type(fields).__name__}, expected an object", file=path, line=number)
        yield Row(fields, path, number)


def csv_rows(path: Path, *columns: str) -> Iterator[Row]:
    """Yield the rows of a CSV file whose header has these columns, among others."""
    names: list[str] | None = None
    for number, text in lines(path):
        try:
            (cells,) = csv.reader([text], strict=True)
        except (csv.Error, ValueError):
            raise ConfigError("got a line that is not CSV", file=path, line=number) from None
        if names is None:
            names = [cell.strip() for cell in cells]
            lacks = [column for column in columns if column not in names]
            if lacks:
                raise ConfigError(
                    f"got the columns {', '.join(names)[:120]}, expected {', '.join(columns)}",
                    file=path,
                    line=number,
                )
            continue
        if len(cells) != len(names):
            raise ConfigError(f"got {len(cells)} cells, expected {len(names)}", file=path, line=number)
        yield Row(dict(zip(names, cells, strict=True)), path, number)
