"""Settings of a framework's configuration: by name, each with its line, read with checks, and which were read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.records import record
from fabrictwin.base.whole_numbers import whole_or_none

LARGEST = 10**12
_WORDS = {"true": True, "false": False, "1": True, "0": False}


@record
class Setting:
    """A value as it was written."""

    value: Any
    key: str  # as its framework writes it
    line: int | None = None


@dataclass
class Settings:
    """All settings of one configuration. `used` gathers the keys that were read."""

    file: str | None
    found: dict[str, Setting]
    used: set[str] = field(default_factory=set)
    assumed: list[str] = field(default_factory=list)

    def error(self, name: str, message: str) -> ConfigError:
        """The error that names a setting's place."""
        one = self.found.get(name)
        return ConfigError(message, file=self.file, line=one.line if one else None, key=one.key if one else name)

    def get(self, name: str) -> Any:
        """The value as it was written, None where it is absent, null or `auto`."""
        one = self.found.get(name)
        if one is None:
            return None
        self.used.add(one.key)
        return None if one.value == "auto" else one.value

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number. Raises ConfigError where it is none, or absent without a default."""
        value = self.get(name)
        if value is None:
            if default is None:
                raise self.error(name, "got nothing, expected a whole number")
            return default
        number = _whole(value)
        if number is None or not least <= number <= LARGEST:
            raise self.error(name, f"got {quoted(value)}, expected a whole number from {least} upwards")
        return number

    def optional(self, name: str) -> int | None:
        """A whole number from 1, None where it is absent or 0."""
        return (self.count(name, 0, least=0) or None) if name in self.found else None

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false. Raises ConfigError."""
        value = self.get(name)
        if value is None:
            return default
        known = value if isinstance(value, bool) else _WORDS.get(str(value).lower())
        if known is None:
            raise self.error(name, f"got {quoted(value)}, expected true or false")
        return known

    def share(self, name: str, default: float) -> float:
        """A number from 0. Raises ConfigError."""
        value = self.get(name)
        if value is None:
            return default
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = -1.0
        if not 0 <= number < LARGEST:
            raise self.error(name, f"got {quoted(value)}, expected a number from 0 upwards")
        return number

    def word(self, name: str, known: Mapping[str, str], default: str) -> str:
        """Return what the twin calls a choice. Raises ConfigError for one that is not known."""
        value = self.get(name)
        if value is None:
            return default
        found = known.get(str(value).lower())
        if found is None:
            raise self.error(name, f"got {quoted(value)}, expected {' or '.join(known)}")
        return found

    def unused(self) -> list[Setting]:
        """Settings that nothing asked for, in the order of their lines."""
        left = {one.key: one for one in self.found.values() if one.key not in self.used}
        return sorted(left.values(), key=lambda one: (one.line or 0, one.key))


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return whole_or_none(value, most=LARGEST)
    return int(value) if isinstance(value, float) and value.is_integer() else None


def flattened(data: Mapping[Any, Any], lines: Mapping[tuple[str, ...], int]) -> dict[str, Setting]:
    """Settings of nested data by dotted name. Lists are values; empty sections vanish."""
    found: dict[str, Setting] = {}
    stack: list[tuple[tuple[str, ...], Any]] = [((), data)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, Mapping):
            stack += [((*path, str(name)), inner) for name, inner in value.items()]
        elif path:
            found[".".join(path)] = Setting(value, ".".join(path), lines.get(path))
    return found


def toml_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of each `key =` below its `[section]`: the standard library's reader does not keep them."""
    lines: dict[tuple[str, ...], int] = {}
    section: tuple[str, ...] = ()
    for number, row in enumerate(text.splitlines(), start=1):
        if head := re.match(r"\s*\[([\w.\- ]+)\]", row):
            section = _parts(head[1])
        elif key := re.match(r"\s*([\w.\-]+)\s*=", row):
            lines.setdefault((*section, *_parts(key[1])), number)
    return lines


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in name.split("."))


def json_lines(text: str, paths: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
    """The line of each key's name behind the names of what holds it."""
    lines: dict[tuple[str, ...], int] = {}
    for path in paths:
        at = 0
        for part in path:
            found = text.find(f'"{part}"', at)
            at = found if found >= 0 else at
        lines[path] = text.count("\n", 0, at) + 1
    return lines
