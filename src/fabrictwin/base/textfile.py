"""Files that people name on the command line or in a spec: read and written whole, or one clear error."""

from __future__ import annotations

import csv
import errno
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, TextIO

from fabrictwin.base.errors import ConfigError, unwritten

MAX_BYTES = 64 * 2**20
PART_BYTES = 2**20
STDIN = "<stdin>"
OTHER_END_S = 2.0  # so long a named pipe may be without a writer, or without a reader


def name_of(path: str | Path, stdin: TextIO | None = None) -> str:
    """Return what an error calls the file that is read: `-` with a `stdin` is that stream."""
    return STDIN if stdin is not None and str(path) == "-" else str(path)


def open_bytes(path: str | Path) -> BinaryIO:
    """Open a file to be read. Raises OSError or ValueError as `open` does.

    A named pipe that nobody writes to is refused (OSError) and not waited for; one with a writer, such as a
    shell's `<(...)`, is read like a file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISFIFO(os.fstat(handle).st_mode):
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            if not poll.poll(OTHER_END_S * 1000):
                raise OSError(0, "a pipe that nobody writes to", str(path))
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_so_far(file: IO[bytes]) -> int:
    """Return how many bytes of a file were taken, as another thread may ask; 0 of a pipe or a closed file."""
    try:
        return os.lseek(file.fileno(), 0, os.SEEK_CUR)
    except (OSError, ValueError):
        return 0


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Raise ConfigError, which names the file, for what goes wrong inside while it is opened and read."""
    try:
        yield
    except UnicodeDecodeError:
        raise  # whoever decodes knows the line
    except FileNotFoundError:
        raise ConfigError("no such file", file=path) from None
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=path) from None


def read_bytes(path: str | Path, most: int = MAX_BYTES) -> bytes:
    """Return a file's content. Raises ConfigError where it cannot be read or is larger than `most`."""

    def read() -> bytes:
        with open_bytes(path) as stream:
            return _at_most(stream, most + 1)

    return _read(read, path, most)


def _at_most(stream: BinaryIO, most: int) -> bytes:
    """Read so many bytes in parts: a single read takes room for all of them, however small the file is."""
    parts: list[bytes] = []
    while most > 0 and (part := stream.read(min(most, PART_BYTES))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def read_text(path: str | Path, stdin: TextIO | None = None, *, errors: str = "strict") -> str:
    """Return a file as it stands, or what `stdin` holds where the path is `-`; `errors` as in `bytes.decode`.

    Raises ConfigError where it cannot be read, is too large or is not UTF-8.
    """
    name = name_of(path, stdin)
    if stdin is not None and name == STDIN:
        raw = _read(lambda: stdin.read(MAX_BYTES + 1).encode("utf-8", "replace"), name, MAX_BYTES)
    else:
        raw = read_bytes(path)
    try:
        return raw.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError("got bytes that are not UTF-8 text", file=name, line=line) from None


def _read(read: Callable[[], bytes], name: str | Path, most: int) -> bytes:
    try:
        with reading(name):
            raw = read()
    except UnicodeDecodeError:  # of a stream that is text already
        raise ConfigError("got bytes that are not UTF-8 text", file=name) from None
    if len(raw) > most:
        raise ConfigError(f"is larger than {most >> 20} MiB", file=name)
    return raw


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Raise ConfigError, which names the file, for what goes wrong inside while it is opened and written."""
    try:
        yield
    except OSError as error:
        raise unwritten(error, file=path) from None


def write_text(path: str | Path, text: str) -> None:
    """Write a file. Raises ConfigError where it cannot be written."""
    with writing(path), open_to_write(path) as file:
        file.write(text.encode("utf-8"))


def open_to_write(path: str | Path) -> BinaryIO:
    """Open a file to be written anew. Raises OSError as `open` does, and for a named pipe that nobody reads."""
    until = time.monotonic() + OTHER_END_S
    while _is_pipe(path):
        try:
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > until:
                raise OSError(0, "a pipe that nobody reads", str(path)) from None
            time.sleep(0.05)
        else:
            os.set_blocking(handle, True)
            return os.fdopen(handle, "wb")
    return Path(path).open("wb")


def _is_pipe(path: str | Path) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def check_can_be_written(path: Path) -> None:
    """Look before anything is computed whether a file may be made, and make none. Raises ConfigError."""
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        try:
            path.stat()
            known = path
        except FileNotFoundError:
            path.absolute().parent.stat()
            known = path.absolute().parent
        if not os.access(known, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def make_folder(path: Path) -> None:
    """Make a folder to write to, there afterwards. Raises ConfigError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = "is a file" if isinstance(error, FileExistsError | NotADirectoryError) else f"{error.strerror}"
        raise ConfigError(f"{what}, expected a folder to write to", file=path) from None


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file by its columns, without the lines that begin with `#`. Raises ConfigError."""
    rows = csv.DictReader(line for line in read_text(path).splitlines() if not line.startswith("#"))
    try:
        return list(rows)
    except csv.Error as error:  # a cell that is longer than a reader takes
        raise ConfigError(f"is no CSV: {error}", file=path, line=rows.line_num) from None
