"""Read YAML that people wrote, and say where something in it is wrong.

Data comes back with the line of every key, so that an error is one line: `file:line key: got X, expected Y,
did you mean Z`. YAML 1.1's traps are defused: only `true` and `false` are booleans (`on`, `no` stay
words), `1:30` stays text, `1e9` is a number, a key given twice is an error, aliases cannot blow up memory.
Tags, merge keys (`<<`) and several documents in a file are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any, TextIO

import yaml

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.textfile import name_of, read_text
from fabrictwin.base.whole_numbers import MOST_DIGITS, whole, whole_or_none
from fabrictwin.kernel.jit.cache_folder import UntrustedFolderError, cache_base, own_folder

MAX_ALIASED = 100_000  # values that aliases stand for, all together
MAX_DEPTH = 60

Path_ = tuple[str | int, ...]
Lines = dict[Path_, int]

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"


class _Loader(_SafeLoader):  # type: ignore[misc]
    """The YAML 1.2 core words for booleans, numbers and null; everything else is text."""

    yaml_implicit_resolvers: Any = {}  # noqa: RUF012 (PyYAML's own name, read on the class)


for _name, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), list(_first))


def read_yaml_file(path: str | Path, stdin: TextIO | None = None) -> tuple[Any, Lines]:
    """Plain data and the line of every key path, counted from 1. Raises ConfigError."""
    return read_yaml(read_text(path, stdin), name_of(path, stdin))


def read_yaml(text: str, file: str | Path) -> tuple[Any, Lines]:
    """Plain data and the line of every key path, counted from 1. Raises ConfigError."""
    _limit_nesting(text, file)
    try:
        # the constructor already reads the first bytes and can find a character that YAML forbids
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        reader = _Reader(file)
        data = None if node is None else reader.build(node, (), 0)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise ConfigError(f"not YAML: {error.problem}", file=file, line=line) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {str(error).splitlines()[0]}", file=file) from None
    except (RecursionError, UnicodeEncodeError):
        raise ConfigError("not YAML that can be read: nested too deeply or not text", file=file) from None
    return data, reader.lines


def read_bundled(package: str, file: str) -> Any:
    """Plain data of a YAML file in a package's folder `data`. Raises ConfigError.

    Between runs it is kept as JSON, which is read in a twentieth of the time, by a digest of file and reader.
    """
    content = resources.files(package).joinpath("data", file).read_bytes()
    kept = _kept(file, content)
    if kept is not None:
        with suppress(OSError, ValueError):
            return json.loads(kept.read_bytes())
    data, _ = read_yaml(content.decode("utf-8"), file)
    if kept is not None:
        with suppress(OSError):
            new = kept.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(data), encoding="utf-8")
            new.replace(kept)
    return data


def _kept(file: str, content: bytes) -> Path | None:
    """Path that the data of a bundled file is kept at; None where nothing can be kept."""
    base = cache_base()
    if base is None:
        return None
    digest = hashlib.sha256(Path(__file__).read_bytes() + content)
    with suppress(UntrustedFolderError):
        return own_folder(base / "data") / f"{Path(file).stem}-{digest.hexdigest()[:16]}.json"
    return None


def _limit_nesting(text: str, file: str | Path) -> None:
    """The C parser recurses without a limit of its own: refuse what would exhaust its stack."""
    depth = 0
    for line, row in enumerate(text.splitlines(), start=1):
        # counts brackets inside strings as well: no file for people comes near the limit
        opened = row.count("[") + row.count("{")
        depth = max(0, depth - row.count("]") - row.count("}")) + opened
        dashes = 0
        for token in row.split(" "):
            if token in ("-", "?"):
                dashes += 1
            elif token:
                break
        if depth > 20 * MAX_DEPTH or dashes > MAX_DEPTH:
            raise ConfigError(f"nested deeper than {MAX_DEPTH} levels", file=file, line=line)


class _Reader:
    def __init__(self, file: str | Path) -> None:
        self.file = file
        self.lines: Lines = {}
        self.seen: set[int] = set()
        self.aliased = 0

    def build(self, node: yaml.Node, path: Path_, depth: int) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self.aliased += id(node) in self.seen
        self.seen.add(id(node))
        if self.aliased > MAX_ALIASED or depth > MAX_DEPTH:
            what = f"nested deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else "too many values by alias"
            raise ConfigError(what, file=self.file, line=line, key=dotted(path[:4]))
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, i), depth + 1) for i, child in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        return self._scalar(node, path, line)

    def _mapping(self, node: yaml.MappingNode, path: Path_, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, child in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                raise ConfigError("expected a plain key", file=self.file, line=line, key=dotted(path))
            key = str(key_node.value)
            here = (*path, key)
            if key in result:
                raise ConfigError(
                    f"key given twice, first on line {self.lines[here]}",
                    file=self.file,
                    line=line,
                    key=dotted(here),
                )
            self.lines[here] = line
            result[key] = self.build(child, here, depth + 1)
        return result

    def _scalar(self, node: yaml.Node, path: Path_, line: int) -> Any:
        kind = node.tag.removeprefix(_TAG)
        text = str(node.value)
        try:
            if kind == "str":
                return text
            if kind == "bool":
                return text.lower() == "true"
            if kind == "null":
                return None
            if kind == "int":
                digits = text.replace("_", "").lstrip("+-")
                value = whole(digits, most=10**MOST_DIGITS, base=0)
                return -value if text.startswith("-") else value
            if kind == "float":
                return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
        except ValueError:  # an explicit tag on something else (!!int x), or more digits than int() takes
            pass
        raise ConfigError(f"got {quoted(text)}, expected plain text or a number", file=self.file, line=line,
                          key=dotted(path))  # fmt: skip


def dotted(path: Iterable[str | int]) -> str:
    """`('hosts', 0, 'type')` as people write it: `hosts[0].type`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def undotted(key: str) -> Path_:
    """`'hosts[0].type'` to `('hosts', 0, 'type')`."""
    parts: list[str | int] = []
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", key):
        number = None if name else whole_or_none(index)
        parts.append((name or index) if number is None else number)
    return tuple(parts)


def line_of(lines: Mapping[Path_, int], path: Path_) -> int | None:
    """The line of a key path, or of the nearest thing that holds it.

    An index may be left out in the file: one thing may stand where a list of such may.
    """
    found: Path_ = ()
    for part in path:
        if (*found, part) in lines:
            found = (*found, part)
        elif not isinstance(part, int):
            break
    return lines.get(found)
