"""Records whose fields are records: made from, and read by, the names of the fields at the ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

Record = TypeVar("Record")


def grouped(record: Record, values: Mapping[str, Any]) -> Record:
    """Return a frozen record with some values in the place of its own, by names that its groups hold once each.

    A group and a value in it of the same name: the type tells which is meant. Raises TypeError for a name that is
    in none.
    """
    left = dict(values)
    made: Record = _replaced(record, left)
    if left:
        raise TypeError(f"{type(record).__name__} has no {', '.join(sorted(left))}")
    return made


def _replaced(record: Any, left: dict[str, Any]) -> Any:
    """Return a record with the values that it holds, its own before its groups'; they are taken from `left`."""
    if not left:
        return record
    parts = {field.name: getattr(record, field.name) for field in fields(record)}
    groups = {name: part for name, part in parts.items() if is_dataclass(part) and not isinstance(part, type)}
    changed: dict[str, Any] = {name: left.pop(name) for name in parts if name in left and name not in groups}
    for name, group in groups.items():
        made = left.pop(name) if isinstance(left.get(name), type(group)) else _replaced(group, left)
        if made is not group:
            changed[name] = made
    return replace(record, **changed) if changed else record


def flat(record: Any) -> dict[str, Any]:
    """Return the values of a record and of its groups by name."""
    found: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        found |= flat(value) if is_dataclass(value) and not isinstance(value, type) else {field.name: value}
    return found
