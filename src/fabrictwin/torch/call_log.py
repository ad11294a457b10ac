"""Calls of ranks while a program runs: each rank writes its own, and who started them compares.

Gloo, beneath, aborts or waits for ever where ranks disagree, and names nobody. A line a call is what it costs to
say which rank called what.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

ANY = "-"  # bytes that may differ among ranks


class CallLog:
    """One rank's file, a line a call."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def group(self, key: str, members: tuple[int, ...]) -> None:
        """Write which ranks a group has."""
        self._file.write(f"group\t{key}\t{','.join(map(str, members))}\n".encode())

    def call(self, key: str, kind: str, size_bytes: int | None, dtype: str, root: int) -> None:
        """Write a call, before it is made."""
        size = ANY if size_bytes is None else size_bytes
        self._file.write(f"call\t{key}\t{kind}\t{size}\t{dtype}\t{root}\n".encode())


@dataclass(frozen=True)
class Call:
    """What a rank called."""

    kind: str
    size: str
    dtype: str
    root: str

    def __str__(self) -> str:
        size = "" if self.size == ANY else f" of {int(self.size):,} B"
        root = f", root {self.root}" if self.kind in ("broadcast", "reduce", "gather", "scatter") else ""
        return f"{self.kind}{size} {self.dtype}{root}"


@dataclass
class _GroupCalls:
    members: tuple[int, ...]
    calls: dict[int, list[Call]] = field(default_factory=dict)  # of each rank
    agreed: int = 0

    def disagreement(self, name: str) -> str | None:
        """Compare calls that all ranks have made, each once."""
        while all(len(self.calls.get(rank, ())) > self.agreed for rank in self.members):
            first = self.calls[self.members[0]][self.agreed]
            for rank in self.members[1:]:
                other = self.calls[rank][self.agreed]
                if other != first:
                    return (
                        f"call {self.agreed + 1} on {name}: rank {self.members[0]} called {first}, "
                        f"rank {rank} {other}"
                    )
            self.agreed += 1
        return None

    def missing(self, name: str) -> str | None:
        """Return who made a call that another did not, at the end."""
        counts = {rank: len(self.calls.get(rank, ())) for rank in self.members}
        most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
        if counts[most] == counts[least]:
            return None
        call = self.calls[most][counts[least]]
        return f"call {counts[least] + 1} on {name}: rank {most} called {call}, rank {least} never did"


class CallLogs:
    """All ranks' files, read as they grow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, int] = {}
        self._named: dict[tuple[int, str], _GroupCalls] = {}  # by rank and its name: names may be a rank's own
        self._groups: dict[tuple[str, tuple[int, ...]], _GroupCalls] = {}

    def disagreement(self) -> str | None:
        """Return the first call in which ranks differ, of what has been written so far."""
        for path in sorted(self.folder.glob("calls.*")):
            self._take(path, int(path.suffix[1:]))
        for (key, members), group in self._groups.items():
            if found := group.disagreement(f"group {key!r} of {len(members)} ranks"):
                return found
        return None

    def missing(self) -> str | None:
        """Return a call that not all of its ranks made, once the program has ended."""
        self.disagreement()
        for (key, members), group in self._groups.items():
            if found := group.missing(f"group {key!r} of {len(members)} ranks"):
                return found
        return None

    def _take(self, path: Path, rank: int) -> None:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        for row in whole.decode().splitlines():
            kind, key, *rest = row.split("\t")
            if kind == "group":
                members = tuple(map(int, rest[0].split(",")))
                self._named[rank, key] = self._groups.setdefault((key, members), _GroupCalls(members))
            else:
                self._named[rank, key].calls.setdefault(rank, []).append(Call(*rest))
