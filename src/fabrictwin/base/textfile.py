"""Text files that people name on the command line or in a spec: read and written whole, or one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from fabrictwin.base.errors import ConfigError

MAX_BYTES = 64 * 2**20
STDIN = "<stdin>"


def name_of(path: str | Path, stdin: TextIO | None = None) -> str:
    """What an error calls the file that is read: `-` with a `stdin` is that stream."""
    return STDIN if stdin is not None and str(path) == "-" else str(path)


def read_text(path: str | Path, stdin: TextIO | None = None, *, errors: str = "strict") -> str:
    """A file as it stands, or what `stdin` holds where the path is `-`; `errors` as `bytes.decode` has it.

    Raises ConfigError where it cannot be read, is too large or is not UTF-8.
    """
    name = name_of(path, stdin)
    try:
        if stdin is not None and name == STDIN:
            text = stdin.read(MAX_BYTES + 1)
            raw = text.encode("utf-8", "replace")
        else:
            with open(path, "rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError("no such file", file=name) from None
    except UnicodeDecodeError:
        raise ConfigError("got bytes that are not UTF-8 text", file=name) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=name) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES >> 20} MiB", file=name)
    try:
        return raw.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError("got bytes that are not UTF-8 text", file=name, line=line) from None


def write_text(path: str | Path, text: str) -> None:
    """Raises ConfigError where it cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=path) from None


def make_folder(path: Path) -> None:
    """A folder to write to, there afterwards. Raises ConfigError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = "is a file" if isinstance(error, FileExistsError | NotADirectoryError) else f"{error.strerror}"
        raise ConfigError(f"{what}, expected a folder to write to", file=path) from None
