"""Calls of ranks while a program runs: each rank writes its own, and who started them compares.

Gloo, beneath, aborts or waits for ever where ranks disagree, and names nobody. A line a call, and two a wait, are
what it costs to say which rank called what, and who waits for whom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fabrictwin.base.records import record

ANY = "-"  # bytes that may differ among ranks
NAMED = 8  # ranks that an error names


class CallLog:
    """One rank's file, a line a call."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._counts: Counter[str] = Counter()

    def _write(self, *words: object) -> None:
        self._file.write(("\t".join(map(str, words)) + "\n").encode())

    def _numbered(self, what: str) -> str:
        self._counts[what] += 1
        return f"{what}\t{self._counts[what]}"

    def group(self, key: str, members: tuple[int, ...]) -> None:
        """Write which ranks a group has."""
        self._write("group", key, ",".join(map(str, members)))

    def call(self, key: str, kind: str, size_bytes: int | None, dtype: str, root: int) -> str:
        """Write a call, before it is made; what `waiting` is given for it."""
        self._write("call", key, kind, ANY if size_bytes is None else size_bytes, dtype, root)
        return self._numbered(f"call\t{key}")

    def message(self, peer: int, tag: int, *, sends: bool) -> str:
        """Write a send to, or a receive from, a rank of the world; what `waiting` is given for it."""
        what = f"{'send' if sends else 'receive'}\t{peer}\t{tag}"
        self._write(what)
        return self._numbered(what)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Write that this rank waits for a call or message of its own, and that it no longer does."""
        self._write("wait", what)
        try:
            yield
        finally:
            self._write("go", "")

    def end(self) -> None:
        """Write that this rank's program has ended."""
        self._write("end", "")


@record
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
        self._messages: Counter[tuple[str, ...]] = Counter()  # by rank, direction, peer and tag
        self._waits: dict[int, list[str] | None] = {}  # of each rank: what it waits for, if anything
        self._ended: set[int] = set()
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

    def hang(self) -> str | None:
        """Return who waits for whom where no rank can go on, of what `disagreement` has read."""
        ranks = {rank for _, members in self._groups for rank in members}
        running = ranks - self._ended
        if not running or any(self._waits.get(rank) is None for rank in running):
            return None
        blocked = [self._blocked(rank, self._waits[rank] or []) for rank in sorted(running)]
        if any(one is None for one in blocked):
            return None
        more = f"; and {len(blocked) - NAMED} more ranks" if len(blocked) > NAMED else ""
        return "; ".join(str(one) for one in blocked[:NAMED]) + more

    def _blocked(self, rank: int, what: list[str]) -> str | None:
        """Say for whom a rank waits; nothing where what it waits for has been called by all."""
        kind, *rest = what
        if kind != "call":
            peer, tag, number = rest
            other = "receive" if kind == "send" else "send"
            if int(peer) < 0 or self._messages[peer, other, str(rank), tag] >= int(number):
                return None
            verb = "to send to" if kind == "send" else "to receive from"
            return f"rank {rank} waits {verb} {self._who([int(peer)])} (message {number} with tag {tag})"
        key, number = rest
        group = self._named[rank, key]
        late = [one for one in group.members if len(group.calls.get(one, ())) < int(number)]
        if not late:
            return None
        call = group.calls[rank][int(number) - 1]
        name = f"group {key!r} of {len(group.members)} ranks"
        return f"rank {rank} waits in call {number} on {name}, {call}, for {self._who(late)}"

    def _who(self, ranks: list[int]) -> str:
        named = ", ".join(f"{one} (ended)" if one in self._ended else str(one) for one in ranks[:NAMED])
        return f"rank{'s' if len(ranks) > 1 else ''} {named}" + (" and others" if len(ranks) > NAMED else "")

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
            elif kind == "call":
                self._named[rank, key].calls.setdefault(rank, []).append(Call(*rest))
            elif kind in ("send", "receive"):
                self._messages[str(rank), kind, key, rest[0]] += 1
            elif kind == "end":
                self._ended.add(rank)
            else:
                self._waits[rank] = [key, *rest] if kind == "wait" else None
