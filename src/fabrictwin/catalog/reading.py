"""Read YAML and keep where everything stood, so that an error can say `file:line key`.

Stricter than PyYAML: a key given twice is an error, and so is anything that is not plain data.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from fabrictwin.errors import ConfigError, did_you_mean

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Lines = dict[tuple[str | int, ...], int]


def read_yaml(text: str, file: str | Path) -> tuple[Any, Lines]:
    """Plain data and the line of every key path, counted from 1. Raises ConfigError."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines: Lines = {}
        data = None if node is None else _build(loader, node, (), lines, file)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise ConfigError(f"not YAML: {error.problem}", file=file, line=line) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {str(error).splitlines()[0]}", file=file) from None
    finally:
        loader.dispose()
    return data, lines


def _build(
    loader: Any,
    node: yaml.Node,
    path: tuple[str | int, ...],
    lines: Lines,
    file: str | Path,
    inside: frozenset[int] = frozenset(),
) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if id(node) in inside:
        raise ConfigError("an alias of what it stands in", file=file, line=lines[path], key=dotted(path))
    inside |= {id(node)}
    if isinstance(node, yaml.SequenceNode):
        return [_build(loader, child, (*path, i), lines, file, inside) for i, child in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, child in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            line = key_node.start_mark.line + 1
            if key is None or key == "<<":
                raise ConfigError("expected a plain key", file=file, line=line, key=dotted(path))
            if key in result:
                first = lines[(*path, key)]
                message = f"key given twice, first on line {first}"
                raise ConfigError(message, file=file, line=line, key=dotted((*path, key)))
            lines[(*path, key)] = line
            result[key] = _build(loader, child, (*path, key), lines, file, inside)
        return result
    return loader.construct_object(node, deep=True)


def dotted(path: Iterable[str | int]) -> str:
    """`('h100', 'nics', 0)` as people write it: `h100.nics[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def config_error(
    error: ValidationError,
    model: type[BaseModel],
    *,
    file: str | Path,
    lines: Lines,
    path: tuple[str | int, ...] = (),
) -> ConfigError:
    """The first thing that pydantic found wrong, as one line with its place."""
    # a misspelt key shows up as an unknown one and a missing one: the unknown one says more
    details = sorted(error.errors(), key=lambda d: d["type"] != "extra_forbidden")
    detail = details[0]
    where = (*path, *detail["loc"])
    key = str(where[-1]) if where else ""
    if detail["type"] == "extra_forbidden":
        known = _keys_beside(model, detail["loc"])
        message = f"got an unknown key, expected one of {', '.join(known)}{did_you_mean(key, known)}"
    elif detail["type"] == "missing":
        message = "missing"
    elif detail["type"] == "value_error":
        message = detail["msg"].removeprefix("Value error, ")
    else:
        message = f"got {detail['input']!r}, {detail['msg'][0].lower()}{detail['msg'][1:]}"
    place = where
    while place and place not in lines:
        place = place[:-1]
    return ConfigError(message, file=file, line=lines.get(place), key=dotted(where))


def _keys_beside(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """The keys that were allowed where an unknown one stood, as far as the models tell."""
    current: Any = model
    for part in loc[:-1]:
        if isinstance(current, type) and issubclass(current, BaseModel) and part in current.model_fields:
            current = current.model_fields[str(part)].annotation
        # step through containers and unions to the model that they hold
        for _ in range(4):
            if isinstance(current, type) and issubclass(current, BaseModel):
                break
            current = next((a for a in getattr(current, "__args__", ())[::-1] if a is not type(None)), None)
    if isinstance(current, type) and issubclass(current, BaseModel):
        return [field for field in current.model_fields if field not in ("name", "text")]
    return []
