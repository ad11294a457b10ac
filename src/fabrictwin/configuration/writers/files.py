"""What writers yield: text files by path below the folder that is written to."""

from __future__ import annotations

from pathlib import Path

from fabrictwin.base.records import record
from fabrictwin.base.textfile import make_folder, write_text
from fabrictwin.configuration.policy.reasons import reason


@record
class WrittenFile:
    """A file: its path below the folder, its text, whether it is a program."""

    path: str
    text: str
    executable: bool = False


def write_files(files: list[WrittenFile], folder: Path) -> list[Path]:
    """Write files below a folder and return their paths. Raises ConfigError."""
    paths = []
    for file in files:
        path = folder / file.path
        make_folder(path.parent)
        write_text(path, file.text)
        if file.executable:
            path.chmod(0o755)
        paths.append(path)
    return paths


class Commented:
    """Lines of a file, each with its reason in a comment."""

    def __init__(self, *, mark: str = "#", beside: bool = True, width: int = 0) -> None:
        self.mark, self.beside, self.width = mark, beside, width
        self.lines: list[str] = []
        self._last = ""

    def add(self, line: str, key: str) -> None:
        """Add a line; `key` names its reason. Above it where the format knows no comment beside a value.

        A reason that the line before had already stands once.
        """
        note = f"{self.mark} {reason(key)}"
        if self.beside:
            self.lines.append(f"{line:<{self.width}}  {note}")
        else:
            if key != self._last:
                self.lines.append(note)
            self.lines.append(line)
        self._last = key

    def plain(self, *lines: str) -> None:
        """Add lines that need no reason: a heading, a bracket."""
        self.lines.extend(lines)
        self._last = ""

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"
