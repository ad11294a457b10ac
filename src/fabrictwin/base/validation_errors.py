"""What pydantic found wrong in data that people wrote, as one line: `file:line key: got X, expected Y`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from fabrictwin.base.errors import ConfigError, did_you_mean, quoted
from fabrictwin.base.yamlfile import Path_, dotted, line_of

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


def config_errors(
    error: ValidationError,
    model: type[BaseModel],
    *,
    data: Any,
    file: str | Path | None = None,
    lines: Mapping[Path_, int] | None = None,
    path: Path_ = (),
) -> list[ConfigError]:
    """All that pydantic found wrong in `data` (which stood at `path`), a line each, unknown keys first."""
    # a misspelt key shows up as an unknown one and a missing one: the unknown one says more
    details = sorted(error.errors(include_url=False), key=lambda d: d["type"] != "extra_forbidden")
    found = []
    for detail in details:
        loc: Path_ = detail["loc"]
        where = (*path, *_key_path(data, loc, keep_last=detail["type"] == "missing"))
        message = _message(detail, model, loc)
        found.append(ConfigError(message, file=file, line=line_of(lines or {}, where), key=dotted(where) or None))
    return found


_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "keys with values",
    "model_type": "keys with values",
    "model_attributes_type": "keys with values",
    "greater_than_equal": "a number of at least {ge}",
    "greater_than": "a number above {gt}",
    "less_than_equal": "a number of at most {le}",
    "less_than": "a number below {lt}",
    "string_too_short": "text of at least {min_length} characters",
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length}",
}


def _message(detail: Mapping[str, Any], model: type[BaseModel], loc: Path_) -> str:
    kind = detail["type"]
    context = detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = _keys_beside(model, loc)
        hint = did_you_mean(str(loc[-1]), known)
        return f"got an unknown key, expected one of {', '.join(known)}{hint}"
    if kind == "missing":
        return f"missing, expected {_only_value(model, loc)}"
    if kind == "value_error":
        return str(detail["msg"]).removeprefix("Value error, ")
    got = _short(detail["input"])
    if kind == "literal_error":
        expected = str(context["expected"])
        known = re.findall(r"'([^']*)'", expected)
        hint = did_you_mean(detail["input"], known) if isinstance(detail["input"], str) else ""
        return f"got {got}, expected {expected}{hint}"
    if kind == "string_type" and isinstance(detail["input"], bool | int | float):
        read = "true or false" if isinstance(detail["input"], bool) else "a number"
        return f"got {got}, expected text in quotes: without them YAML reads {read}"
    if kind in _EXPECTED:
        return f"got {got}, expected {_EXPECTED[kind].format(**context)}"
    text = str(detail["msg"])
    return f"got {got}, {text[0].lower()}{text[1:]}"


def _only_value(model: type[BaseModel], loc: Path_) -> str:
    """The value of a key that can have one alone, such as a schema's number."""
    for name, info in model.model_fields.items() if len(loc) == 1 else ():
        if loc[0] == (info.alias or name) and get_origin(info.annotation) is Literal:
            return " or ".join(map(repr, get_args(info.annotation)))
    return "a value"


def _short(value: object) -> str:
    if isinstance(value, dict):
        return "keys with values"
    if isinstance(value, list | tuple):
        return "a list" if len(value) else "an empty list"
    return "nothing" if value is None else quoted(value)


def _key_path(data: Any, loc: Path_, *, keep_last: bool) -> Path_:
    """`loc` without what pydantic adds to it (the names of union members, of validators)."""
    found: list[str | int] = []
    current = data
    for i, part in enumerate(loc):
        in_list = isinstance(current, list | tuple) and isinstance(part, int) and part < len(current)
        if in_list or (isinstance(current, Mapping) and part in current):
            current = current[part]
            found.append(part)
        elif keep_last and i == len(loc) - 1:
            found.append(part)
    return tuple(found)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


def _keys_beside(model: type[BaseModel], loc: Path_) -> list[str]:
    """The keys that were allowed where an unknown one stood."""
    candidates = [model]
    for part in loc[:-1]:
        inside = [
            inner
            for candidate in candidates
            for name, info in candidate.model_fields.items()
            if part == (info.alias or name)
            for inner in _models_in(info.annotation)
        ]
        named = [candidate for candidate in candidates if candidate.__name__ == part]
        candidates = inside or named or candidates
    keys = [info.alias or name for c in candidates for name, info in c.model_fields.items()]
    return list(dict.fromkeys(keys))
