"""Files of captured jobs: JSON, packed by gzip where the name ends in .gz. docs/torch.md describes every key.

A file is made by fabrictwin or by whoever has a trace, so that nothing in it is believed before it is checked.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError, did_you_mean, quoted
from fabrictwin.base.textfile import read_bytes, writing
from fabrictwin.workload.captured.captured_job import (
    CATEGORIES,
    COLLECTIVES,
    SENDS,
    CapturedJob,
    Collective,
    Compute,
    Group,
    Message,
    Operation,
    RankClass,
    Unplaced,
    Work,
)

FORMAT, VERSION = "fabrictwin captured job", 1
MAX_BYTES = 512 << 20  # unpacked
MOST_RANKS = 1 << 17
MOST_BYTES = 1 << 50
MOST_PS = 10**18
DTYPES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
_COMPUTE_CATEGORIES = ("compute", "optimizer", "recompute", "other")


def unpacked(path: str | Path, most: int = MAX_BYTES) -> bytes:
    """A file's bytes, unpacked where they are packed by gzip. Raises ConfigError."""
    raw = read_bytes(path, most)
    return decompressed(raw, str(path), most) if raw[:2] == b"\x1f\x8b" else raw


def decompressed(raw: bytes, file: str, most: int = MAX_BYTES) -> bytes:
    """Bytes that gzip packed, no more than `most` of them. Raises ConfigError."""
    packer = zlib.decompressobj(wbits=31)
    try:
        found = packer.decompress(raw, most + 1)
    except zlib.error as error:
        raise ConfigError(f"is packed and broken: {error}", file=file) from None
    if len(found) > most:
        raise ConfigError(f"is larger than {most >> 20} MiB unpacked", file=file)
    if not packer.eof:
        raise ConfigError("is packed and ends early", file=file)
    return found


def plain_json(raw: bytes, file: str) -> Any:
    """Read what JSON holds. Raises ConfigError."""
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"is no JSON: {error.msg}", file=file, line=error.lineno) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"is no JSON: {type(error).__name__}: {error}", file=file) from None


class _Keys:
    """Takes values out of plain data, each checked; says where it stands in what is wrong."""

    def __init__(self, data: Any, key: str, file: str, known: Sequence[str]) -> None:
        self.key, self.file = key, file
        if not isinstance(data, Mapping):
            raise self.wrong("", f"got {quoted(data)}, expected keys and values")
        self.data = data
        for name in data:
            if name not in known:
                raise self.wrong("", f"got key {quoted(name)}, which is not known{did_you_mean(str(name), known)}")

    def wrong(self, name: str, message: str) -> ConfigError:
        key = ".".join(part for part in (self.key, name) if part)
        return ConfigError(message, file=self.file, key=key or None)

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int:
        value = self.data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(name, f"got {quoted(value)}, expected a whole number from {least} to {most}")
        return value

    def text(self, name: str, default: str | None = None, known: Sequence[str] | None = None) -> str:
        value = self.data.get(name, default)
        if not isinstance(value, str) or (known is not None and value not in known):
            expected = "text" if known is None else f"one of {', '.join(known)}"
            hint = did_you_mean(value, known) if known is not None and isinstance(value, str) else ""
            raise self.wrong(name, f"got {quoted(value)}, expected {expected}{hint}")
        return value[:500]

    def rows(self, name: str, *, needed: bool = True) -> list[Any]:
        value = self.data.get(name, None if needed else [])
        if not isinstance(value, list):
            raise self.wrong(name, f"got {quoted(value)}, expected a list")
        return value

    def wholes(self, name: str, least: int, most: int, length: int | None = None) -> tuple[int, ...]:
        value = self.rows(name)
        if length is not None and len(value) != length:
            raise self.wrong(name, f"got {len(value)} numbers, expected {length}")
        for one in value:
            if isinstance(one, bool) or not isinstance(one, int) or not least <= one <= most:
                raise self.wrong(name, f"got {quoted(one)}, expected whole numbers from {least} to {most}")
        return tuple(value)


def ranks_text(ranks: Iterable[int]) -> str:
    """Write ranks as text: `0-7,16`, in the order that they have."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in parts)


def read_ranks(value: Any, world: int, wrong: Any) -> tuple[int, ...]:
    """Ranks of `0-7,16` or of a list; `wrong` makes the error. Each must be there once."""
    found: list[int] = []
    if isinstance(value, str) and len(value) <= 20 * world + 20:
        for part in value.split(","):
            first, dash, last = part.strip().partition("-")
            ends = (first, last if dash else first)
            if not all(end.isascii() and end.isdigit() and len(end) < 9 for end in ends):
                raise wrong(f"got {quoted(value)}, expected ranks such as 0-7,16")
            low, high = int(ends[0]), int(ends[1])
            if not low <= high < world:
                raise wrong(f"got {quoted(part)}, expected ranks from 0 to {world - 1}")
            found += range(low, high + 1)
            if len(found) > world:
                break
    elif isinstance(value, list) and all(type(one) is int and 0 <= one < world for one in value):
        found = value
    else:
        raise wrong(f"got {quoted(value)}, expected ranks from 0 to {world - 1}, such as 0-7,16")
    if not found or len(set(found)) != len(found):
        raise wrong(f"got {quoted(value)}, expected each rank once")
    return tuple(found)


def read_captured(path: str | Path) -> CapturedJob:
    """The captured job of a file. Raises ConfigError."""
    return from_data(plain_json(unpacked(path), str(path)), str(path))


def from_data(data: Any, file: str) -> CapturedJob:
    """The captured job of plain data. Raises ConfigError."""
    known = ("format", "version", "name", "world", "source", "sends", "groups", "classes", "unplaced", "notes")
    top = _Keys(data, "", file, known)
    top.text("format", known=(FORMAT,))
    top.whole("version", VERSION, VERSION)
    world = top.whole("world", 1, MOST_RANKS)
    groups: list[Group] = []
    for i, one in enumerate(top.rows("groups", needed=False)):
        keys = _Keys(one, f"groups[{i}]", file, ("name", "members", "category"))
        members = tuple(
            read_ranks(each, world, lambda message, keys=keys: keys.wrong("members", message))
            for each in keys.rows("members")
        )
        if sum(map(len, members)) != len({rank for each in members for rank in each}):
            raise keys.wrong("members", "got a rank in two groups, expected it in one")
        groups.append(Group(keys.text("name"), members, keys.text("category", "other", CATEGORIES)))
    names = [group.name for group in groups]
    if len(set(names)) < len(names):
        raise top.wrong("groups", "got a name twice, expected each once")
    classes: list[RankClass] = []
    seen: set[int] = set()
    for i, one in enumerate(top.rows("classes")):
        keys = _Keys(one, f"classes[{i}]", file, ("name", "ranks", "operations"))
        ranks = read_ranks(keys.data.get("ranks"), world, lambda message, keys=keys: keys.wrong("ranks", message))
        if seen & set(ranks):
            raise keys.wrong("ranks", f"got rank {min(seen & set(ranks))} again, expected each rank in one class")
        seen |= set(ranks)
        rows = keys.rows("operations")
        where = f"classes[{i}].operations"
        found = tuple(_operation(row, n, f"{where}[{n}]", file, names, ranks) for n, row in enumerate(rows))
        classes.append(RankClass(keys.text("name", f"class {i}"), ranks, found))
    if not any(one.operations for one in classes):
        raise top.wrong("classes", "got no operations, expected a job that does something")
    if len(seen) < world:
        missing = next(rank for rank in range(world) if rank not in seen)
        raise top.wrong("classes", f"got no class with rank {missing}, expected all {world} ranks")
    missed = top.rows("unplaced", needed=False)
    return CapturedJob(
        name=top.text("name", "captured job"),
        world=world,
        classes=tuple(classes),
        groups=tuple(groups),
        source=top.text("source", ""),
        sends=top.text("sends", "rendezvous", SENDS),  # type: ignore[arg-type]
        unplaced=tuple(_unplaced(one, f"unplaced[{i}]", file) for i, one in enumerate(missed)),
        notes=tuple(str(note)[:500] for note in top.rows("notes", needed=False)),
    )  # fmt: skip


def _unplaced(row: Any, key: str, file: str) -> Unplaced:
    keys = _Keys(row, key, file, ("what", "count", "why"))
    return Unplaced(keys.text("what"), keys.whole("count", 0, MOST_PS), keys.text("why"))


def _after(keys: _Keys, number: int) -> tuple[int, ...]:
    if "after" in keys.data:
        return keys.wholes("after", 0, number - 1) if keys.data["after"] else ()
    return (number - 1,) if number else ()


def _operation(
    row: Any, number: int, key: str, file: str, groups: Sequence[str], ranks: tuple[int, ...]
) -> Operation:
    kind = next(
        (one for one in ("compute", "collective", "send", "receive") if isinstance(row, dict) and one in row), ""
    )
    if kind == "compute":
        known = ("compute", "after", "ps", "gemm", "attention", "backward", "bytes", "dtype", "category")
        return _compute(_Keys(row, key, file, known), number)
    if kind == "collective":
        keys = _Keys(row, key, file, ("collective", "group", "bytes", "element", "root", "name", "after"))
        element = keys.whole("element", 1, 64, 1)
        size = keys.whole("bytes", 0, MOST_BYTES)
        if size % element:
            raise keys.wrong("bytes", f"got {size}, expected a multiple of the element's {element} bytes")
        return Collective(
            kind=keys.text("collective", known=COLLECTIVES),  # type: ignore[arg-type]
            group=keys.text("group", known=groups),
            size_bytes=size,
            after=_after(keys, number),
            element_bytes=element,
            root=keys.whole("root", 0, MOST_RANKS, 0),
            name=keys.text("name", ""),
        )
    if kind:
        keys = _Keys(row, key, file, (kind, "bytes", "tag", "name", "after"))
        peers: int | tuple[int, ...]
        if isinstance(row[kind], list):
            peers = keys.wholes(kind, 0, MOST_RANKS, len(ranks))
        else:
            peers = keys.whole(kind, -MOST_RANKS, MOST_RANKS)
        size = keys.whole("bytes", 0, MOST_BYTES)
        tag = keys.whole("tag", -(2**62), 2**62, 0)
        return Message(kind == "send", peers, size, _after(keys, number), tag, keys.text("name", ""))
    raise ConfigError(
        f"got {quoted(row)}, expected an operation: compute, collective, send or receive", file=file, key=key
    )  # fmt: skip


def _compute(keys: _Keys, number: int) -> Compute:
    name, category = keys.text("compute"), keys.text("category", "compute", _COMPUTE_CATEGORIES)
    after = _after(keys, number)
    if "ps" in keys.data:
        return Compute(name, after, keys.whole("ps", 0, MOST_PS), None, category)
    dtype = keys.text("dtype", "bf16", tuple(DTYPES))
    gemm = keys.wholes("gemm", 1, 1 << 40, 4) if "gemm" in keys.data else None
    attention = keys.wholes("attention", 1, 1 << 40, 4) if "attention" in keys.data else None
    moved = keys.whole("bytes", 0, MOST_BYTES, 0)
    if gemm is None and attention is None and not moved:
        raise keys.wrong("", "got compute without ps, gemm, attention or bytes, expected one of them")
    backward = keys.data.get("backward", False)
    if not isinstance(backward, bool):
        raise keys.wrong("backward", f"got {quoted(backward)}, expected true or false")
    work = Work(gemm, attention, backward, moved, dtype)  # type: ignore[arg-type]
    return Compute(name, after, None, work, category)


# ------------------------------------------------------------------ writing


def to_data(job: CapturedJob) -> dict[str, Any]:
    """The job as plain data; `from_data` reads it back."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": job.name,
        "world": job.world,
        "source": job.source,
        "sends": job.sends,
        "groups": [
            {"name": one.name, "category": one.category, "members": [ranks_text(each) for each in one.members]}
            for one in job.groups
        ],
        "classes": [
            {
                "name": one.name,
                "ranks": ranks_text(one.ranks),
                "operations": [_row(operation, n) for n, operation in enumerate(one.operations)],
            }
            for one in job.classes
        ],
        "unplaced": [{"what": one.what, "count": one.count, "why": one.why} for one in job.unplaced],
        "notes": list(job.notes),
    }


def _row(one: Operation, number: int) -> dict[str, Any]:
    row: dict[str, Any]
    if isinstance(one, Compute):
        row = {"compute": one.name}
        if one.category != "compute":
            row["category"] = one.category
        if one.work is None:
            row["ps"] = one.time_ps or 0
        else:
            work = one.work
            row |= {"gemm": list(work.gemm)} if work.gemm else {}
            row |= {"attention": list(work.attention)} if work.attention else {}
            row |= {"backward": True} if work.backward else {}
            row |= {"bytes": work.moved_bytes} if work.moved_bytes else {}
            row |= {"dtype": work.dtype} if work.dtype != "bf16" else {}
    elif isinstance(one, Collective):
        row = {"collective": one.kind, "group": one.group, "bytes": one.size_bytes}
        row |= {"element": one.element_bytes} if one.element_bytes != 1 else {}
        row |= {"root": one.root} if one.root else {}
        row |= {"name": one.name} if one.name else {}
    else:
        peers = one.peers if isinstance(one.peers, int) else list(one.peers)
        row = {"send" if one.sends else "receive": peers, "bytes": one.size_bytes}
        row |= {"tag": one.tag} if one.tag else {}
        row |= {"name": one.name} if one.name else {}
    if one.after != ((number - 1,) if number else ()):
        row["after"] = list(one.after)
    return row


def write_captured(job: CapturedJob, path: Path) -> None:
    """Write a job to a file, packed where its name ends in .gz. Raises ConfigError."""
    text = _text(to_data(job)).encode()
    with writing(path):
        path.write_bytes(gzip.compress(text, 6, mtime=0) if path.suffix == ".gz" else text)


def _text(data: Mapping[str, Any]) -> str:
    """JSON with an operation a line, for who reads it."""
    classes = []
    for one in data["classes"]:
        rows = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in one["operations"])
        head = json.dumps({"name": one["name"], "ranks": one["ranks"]}, ensure_ascii=False)[:-1]
        classes.append(f'{head}, "operations": [\n    {rows}\n  ]}}')
    keys = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in data.items() if key != "classes"]
    return "{\n" + ",\n".join(keys) + ',\n"classes": [\n  ' + ",\n  ".join(classes) + "\n]\n}\n"
