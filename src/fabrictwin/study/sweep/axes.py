"""Which values a key takes: lists, progressions and ranges, as `--vary` gives them.

    cluster.hosts.count=8,16,32        a list
    hosts=8,16,...,128                 a progression: by a factor where that ends at the last value, else in steps
    link_rate=100 Gb/s..800 Gb/s       a range, for samples; `log:` before it draws evenly over its logarithm
    tp+pp=1:4,2:2,4:1                  keys that change together

A key may be given by its end (`tp`, `link_rate`) where a spec has only one that ends so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fabrictwin.base.errors import ConfigError, did_you_mean, quoted
from fabrictwin.base.records import record

OPTION = "--vary"
SHORT = {
    "link_rate": "cluster.network.link_rate",
    "hosts": "cluster.hosts.count",
    "seed": "run.seed",
    "fidelity": "run.fidelity",
}
DEPTH = 12  # of keys in a schema that refers to itself

_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(\D*)")
_GAP = ("...", "…")


@record
class Range:
    """Values from `low` to `high` with a unit; whole numbers where both ends are."""

    low: float
    high: float
    unit: str
    whole: bool
    logarithmic: bool

    def at(self, share: float) -> str:
        """The value at a share (0 to 1) of the way from one end to the other, as text with its unit."""
        if self.logarithmic:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        if self.whole:
            # each whole number has an equal part of a range that is not logarithmic
            value = (
                math.floor(value)
                if self.logarithmic
                else self.low + math.floor(share * (self.high - self.low + 1))
            )
            return f"{min(int(value), int(self.high))}{self.unit}"
        return f"{value:.6g}{self.unit}"


@record
class Axis:
    """A key (or several joined by `+`) and the values that it takes."""

    key: str
    values: tuple[str, ...] | Range


def parse_axis(given: str, keys: Iterable[str]) -> Axis:
    """Read `KEY=VALUES`; `keys` are all that a spec may have. Raises ConfigError."""
    key, equals, values = given.partition("=")
    if not equals or not key.strip() or not values.replace(",", "").strip():
        raise ConfigError(
            f"got {quoted(given)}, expected a key of the spec and its values, such as hosts=8,16,32", key=OPTION
        )
    known = tuple(keys)
    full = "+".join(resolve(part.strip(), known) for part in key.split("+"))
    found = _range(values) or _list(values)
    return Axis(full, found)


def _range(text: str) -> Range | None:
    logarithmic = text.strip().startswith("log:")
    body = text.strip().removeprefix("log:")
    if ".." not in body.replace("...", "") or "," in body:
        if logarithmic:
            raise ConfigError(f"got {quoted(text)}, expected a range after log:, such as log:1..64", key=OPTION)
        return None
    ends = [_QUANTITY.fullmatch(part.strip()) for part in body.split("..", 1)]
    if ends[0] is None or ends[1] is None:
        raise ConfigError(f"got {quoted(text)}, expected a range such as 100 Gb/s..800 Gb/s", key=OPTION)
    low, high = float(ends[0][1]), float(ends[1][1])
    units = {end[2].strip() for end in ends if end is not None and end[2].strip()}
    if len(units) > 1 or not math.isfinite(low) or not math.isfinite(high) or low >= high:
        raise ConfigError(f"got {quoted(text)}, expected a smaller and a greater value of one unit", key=OPTION)
    if logarithmic and low <= 0:
        raise ConfigError(f"got {quoted(text)}, expected ends above zero after log:", key=OPTION)
    unit = next(iter(units), "")
    whole = not unit and all(end is not None and re.fullmatch(r"[+-]?\d+", end[1]) for end in ends)
    return Range(low, high, f" {unit}" if unit else "", whole, logarithmic)


def _list(text: str) -> tuple[str, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not any(gap in parts for gap in _GAP):
        return tuple(dict.fromkeys(parts))
    place = next(i for i, part in enumerate(parts) if part in _GAP)
    if place < 2 or place != len(parts) - 2:
        raise ConfigError(
            f"got {quoted(text)}, expected two values or more before the dots and one after, such as 8,16,...,128",
            key=OPTION,
        )
    return _progression(text, parts[:place], parts[-1])


def _progression(text: str, first: list[str], last: str) -> tuple[str, ...]:
    found = [_QUANTITY.fullmatch(part) for part in (*first, last)]
    if any(one is None for one in found):
        raise ConfigError(f"got {quoted(text)}, expected numbers around the dots", key=OPTION)
    numbers = [float(one[1]) for one in found if one is not None]
    unit = next((one[2].strip() for one in reversed(found) if one is not None and one[2].strip()), "")
    *given, end = numbers
    for following in (_ratio, _difference):
        values = following(given, end)
        if values is not None:
            return tuple(f"{value:.12g}" + (f" {unit}" if unit else "") for value in values)
    raise ConfigError(
        f"got {quoted(text)}, expected a progression that ends at the last value, by a factor or in equal steps",
        key=OPTION,
    )


MOST = 100_000  # values of an axis


def _ratio(given: list[float], end: float) -> list[float] | None:
    if given[0] == 0 or given[1] / given[0] <= 1:
        return None
    ratio = given[1] / given[0]
    return _continued(given, end, lambda value: value * ratio)


def _difference(given: list[float], end: float) -> list[float] | None:
    step = given[1] - given[0]
    if step == 0 or (end - given[0]) / step < 0 or (end - given[0]) / step > MOST:
        return None
    return _continued(given, end, lambda value: value + step)


def _continued(given: list[float], end: float, following: Any) -> list[float] | None:
    """Return the progression up to `end`; None where what is given does not follow it, or it misses the end."""
    values = [given[0]]
    while not math.isclose(values[-1], end, rel_tol=1e-9) and len(values) <= MOST:
        values.append(following(values[-1]))
        if (values[-1] > end) == (values[0] < end) and not math.isclose(values[-1], end, rel_tol=1e-9):
            return None
    near = zip(given, values, strict=False)
    return values if len(values) >= len(given) and all(math.isclose(a, b, rel_tol=1e-9) for a, b in near) else None


def resolve(key: str, keys: tuple[str, ...]) -> str:
    """The whole of a key that is given by its end. Raises ConfigError where several end so."""
    if key in SHORT:
        return SHORT[key]
    if key in keys:
        return key
    if "." in key or "[" in key:
        sections = sorted({one.partition(".")[0] for one in keys})
        first = re.split(r"[.\[]", key, maxsplit=1)[0]
        if first not in sections:
            raise ConfigError(
                f"got {quoted(key)}, expected a key that begins with {', '.join(sections)}"
                f"{did_you_mean(key, keys)}",
                key=OPTION,
            )
        return key
    found = [one for one in keys if one.endswith(f".{key}")]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")
        raise ConfigError(f"got {quoted(key)}, which may be any of {shown}", key=OPTION)
    ends = sorted({one.rpartition(".")[2] for one in keys})
    raise ConfigError(f"got {quoted(key)}, expected a key of the spec{did_you_mean(key, ends)}", key=OPTION)


def schema_keys(schema: Mapping[str, Any]) -> set[str]:
    """Keys below which a spec has values, from its JSON schema; groups of a list are left out."""
    definitions = schema.get("$defs", {})

    def walk(node: Any, prefix: str, depth: int) -> Iterator[str]:
        if not isinstance(node, Mapping) or depth > DEPTH:
            return
        if "$ref" in node:
            yield from walk(definitions.get(node["$ref"].rpartition("/")[2]), prefix, depth + 1)
        for several in ("anyOf", "oneOf", "allOf"):
            for one in node.get(several, ()):
                yield from walk(one, prefix, depth + 1)
        properties = node.get("properties", {})
        if not properties and prefix and "$ref" not in node:
            yield prefix
        for name, one in properties.items():
            yield from walk(one, f"{prefix}.{name}" if prefix else name, depth + 1)

    return set(walk(schema, "", 0))


def leaves(data: Any, prefix: str = "") -> Iterator[str]:
    """Keys of a spec's plain data that hold values."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from leaves(value, f"{prefix}.{name}" if prefix else name)
    elif prefix:
        yield prefix
