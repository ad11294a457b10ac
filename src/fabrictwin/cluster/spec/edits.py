"""Edits of a spec's plain data by keys such as `cluster.network.topology.oversubscription`."""

from __future__ import annotations

from typing import Any

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.nested import laid_over
from fabrictwin.base.yamlfile import Path_, read_yaml, undotted


def set_key(data: Any, key: str, value: Any, *, option: str | None = None) -> None:
    """Put `value` at a key of a spec's plain data, modified in place; a mapping is laid over what stands there.

    One group of hosts may be written without its number. Raises ConfigError for a key that cannot be, at `option`
    where one on a command line gave it.
    """
    path = undotted(key)
    if not path:
        raise ConfigError(f"got {quoted(key)}, expected a key of the spec", key=option)
    section = _section(data, path[:-1], key, option)
    last = path[-1]
    if isinstance(section, list) and isinstance(last, int) and 0 <= last < len(section):
        section[last] = laid_over(section[last], value)
        return
    section = _only(section, last, key, option)
    if not isinstance(section, dict):
        raise ConfigError(f"got {quoted(key)}, expected a key of the spec", key=option)
    section[last] = laid_over(section.get(last), value)


def set_text(data: Any, key: str, value: str, *, option: str) -> None:
    """Put a value as YAML writes it at a key, modified in place; `a:b` at keys that are joined as `x+y`.

    Raises ConfigError at `option`, where a command line gave both.
    """
    keys = key.split("+")
    values = value.split(":", len(keys) - 1)
    if len(values) != len(keys):
        raise ConfigError(f"got {quoted(value)}, expected {len(keys)} values, such as a:b", key=option)
    for one, its in zip(keys, values, strict=True):
        set_key(data, one.strip(), read_yaml(its.strip(), option)[0], option=option)


def _section(data: Any, path: Path_, key: str, option: str | None) -> Any:
    current: Any = data
    for part in path:
        current = _only(current, part, key, option)
        try:
            current = current[int(part)] if isinstance(current, list) else current.setdefault(part, {})
        except (IndexError, TypeError, AttributeError):
            raise ConfigError(f"got {quoted(key)}, expected a key of the spec", key=option) from None
    return current


def _only(section: Any, part: int | str, key: str, option: str | None) -> Any:
    """The only group of a list that is asked for something by name."""
    if not isinstance(section, list) or isinstance(part, int):
        return section
    if len(section) != 1:
        raise ConfigError(f"got {quoted(key)}, expected which of {len(section)}, such as hosts[0]", key=option)
    return section[0]
