"""Units that only the catalog uses: counts, ratios and line codes, watts, bits, messages per second.

A count carries its noun (`12 links`), so that no bare number stands in a data file.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, PlainValidator

from fabrictwin.base.errors import did_you_mean, quoted
from fabrictwin.base.units import Raw, parse_rate
from fabrictwin.base.whole_numbers import MOST_DIGITS, whole, whole_or_none

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(.*?)\s*\Z")
_NOUNS = (
    "links",
    "ports",
    "lanes",
    "SMs",
    "reads",
    "GPUs",
    "dimensions",
    "tokens",
    "objects",
    "entries",
    "paths",
    "cores",
    "packets",
)
# no exponents, which a Fraction would spell out in full
_RATIO = re.compile(r"[\d./*%\s]{1,80}", re.ASCII)
_PREFIX = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


def _split(value: object, what: str, example: str) -> tuple[str, str]:
    match = _NUMBER.match(value) if isinstance(value, str) and len(value) <= MOST_DIGITS + 20 else None
    if match is None:
        raise ValueError(f"got {quoted(value)}, expected a {what}, such as {example!r}")
    return match.group(1), match.group(2)


def parse_count(value: object) -> int:
    """`'12 links'` to 12. Raises ValueError."""
    number, noun = _split(value, "count with its noun", "12 links")
    if not (noun in _NOUNS or (number == "1" and f"{noun}s" in _NOUNS)) or "." in number:
        raise ValueError(
            f"got {value!r}, expected a whole number of {', '.join(_NOUNS)}{did_you_mean(noun, _NOUNS)}"
        )
    return whole(number)


def parse_identifier(value: object) -> int:
    """`'0x02c9'` to 713. Raises ValueError."""
    number = whole_or_none(value, base=16) if isinstance(value, str) and value.startswith("0x") else None
    if number is None:
        raise ValueError(f"got {quoted(value)}, expected an identifier, such as '0x02c9'")
    return number


def parse_ratio(value: object) -> Fraction:
    """`'64/66'`, `'256/257 * 514/544'` or `'92 %'` to an exact fraction. Raises ValueError."""
    if isinstance(value, str) and _RATIO.fullmatch(value):
        try:
            if value.rstrip().endswith("%"):
                return Fraction(value.rstrip()[:-1].strip()) / 100
            result = Fraction(1)
            for factor in value.split("*"):
                above, below = factor.split("/")
                result *= Fraction(above.strip()) / Fraction(below.strip())
            return result
        except (ValueError, ZeroDivisionError):
            pass
    raise ValueError(f"got {quoted(value)}, expected a ratio, such as '64/66' or '92 %'")


def parse_bits(value: object) -> int:
    """`'5440 bits'` to 5440. Raises ValueError."""
    number, unit = _split(value, "number of bits", "5440 bits")
    if unit != "bits" or "." in number:
        raise ValueError(f"got {value!r}, expected a number of bits, such as '5440 bits'")
    return whole(number)


def parse_power(value: object) -> int:
    """`'700 W'` to watts. Raises ValueError."""
    number, unit = _split(value, "power", "700 W")
    if unit != "W" or "." in number:
        raise ValueError(f"got {value!r}, expected a power, such as '700 W'")
    return whole(number)


def parse_year(value: object) -> int:
    """`'year 2001'` to 2001. Raises ValueError."""
    match = re.fullmatch(r"year (\d{4})", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"got {quoted(value)}, expected a year, such as 'year 2001'")
    return whole(match[1])


def parse_message_rate(value: object) -> float:
    """`'215 M msg/s'` to messages per second. Raises ValueError."""
    number, unit = _split(value, "message rate", "215 M msg/s")
    prefix, _, rest = unit.rpartition("msg/s")
    if rest or not unit.endswith("msg/s") or prefix.strip() not in _PREFIX:
        raise ValueError(f"got {value!r}, expected a message rate, such as '215 M msg/s'")
    return float(Fraction(number) * _PREFIX[prefix.strip()])


def parse_lane_rate(value: object) -> int:
    """`'16 GT/s'` or `'25.78125 Gb/s'` to bits per second: on a lane one transfer carries one bit."""
    if isinstance(value, str) and value.rstrip().endswith("T/s"):
        value = value.rstrip()[:-3] + "b/s"
    return parse_rate(value)


def parse_capability(value: object) -> int:
    """`'sm_90'` to 90, `'gfx942'` to 94: major and minor of what a GPU executes, as NCCL and RCCL compare it."""
    found = re.fullmatch(r"sm_(\d{2,3})|gfx(\d{2})[0-9a-f]", str(value).strip())
    if found is None:
        raise ValueError(f"got {value!r}, expected an architecture, such as 'sm_90' or 'gfx942'")
    return int(found[1] or found[2])


def format_message_rate(value: float) -> str:
    return f"{value / 1e6:g} M msg/s"


def _field(parse: object) -> BeforeValidator:
    return BeforeValidator(
        lambda v: v.value if isinstance(v, Raw) else parse(v),  # type: ignore[operator]
        json_schema_input_type=str,
    )


Count = Annotated[int, _field(parse_count)]
Capability = Annotated[int, _field(parse_capability)]
Identifier = Annotated[int, _field(parse_identifier)]
# plain, because pydantic knows Fraction itself only since 2.11
Ratio = Annotated[
    Fraction,
    PlainValidator(lambda v: v if isinstance(v, Fraction) else parse_ratio(v), json_schema_input_type=str),
    PlainSerializer(float, return_type=float),
]
Bits = Annotated[int, _field(parse_bits), PlainSerializer(lambda v: f"{v} bits", return_type=str)]
Watts = Annotated[int, _field(parse_power), PlainSerializer(lambda v: f"{v} W", return_type=str)]
Year = Annotated[int, _field(parse_year), PlainSerializer(lambda v: f"year {v}", return_type=str)]
MessageRate = Annotated[float, _field(parse_message_rate), PlainSerializer(format_message_rate, return_type=str)]
LaneRate = Annotated[int, _field(parse_lane_rate), PlainSerializer(lambda v: f"{v} b/s", return_type=str)]
