"""Parse and print rates, sizes, times, lengths and arithmetic throughput.

Internally a rate is an int in bits per second, a size an int in bytes, a time an int in picoseconds, a length
an int in millimetres, a floating-point throughput a float in FLOP/s. A number without a unit is an error.
Decimal prefixes are powers of ten, binary ones (`MiB`) powers of two; `b` is bits, `B` bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from fabrictwin.base.errors import LONGEST_TOKEN, did_you_mean, quoted
from fabrictwin.kernel.codes import PS_PER_S as PS_PER_S

PS_PER_NS = 1_000
PS_PER_US = 1_000_000
PS_PER_MS = 1_000_000_000

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}

_SIZE = {p + "B": f for p, f in (_DECIMAL | _BINARY).items()} | {"bytes": 1, "byte": 1}
_RATE = {p + "b/s": f for p, f in _DECIMAL.items()}
_RATE |= {p + "bps": f for p, f in _DECIMAL.items()} | {p + "bit/s": f for p, f in _DECIMAL.items()}
_RATE |= {p + "B/s": 8 * f for p, f in (_DECIMAL | _BINARY).items()}
_TIME = {
    "ps": 1,
    "ns": PS_PER_NS,
    "us": PS_PER_US,
    "µs": PS_PER_US,
    "ms": PS_PER_MS,
    "s": PS_PER_S,
    "min": 60 * PS_PER_S,
    "h": 3600 * PS_PER_S,
}
_LENGTH = {"mm": 1, "cm": 10, "m": 1000, "km": 1_000_000}
_FLOPS = {p + "FLOP/s": f for p, f in _DECIMAL.items()} | {p + "FLOPS": f for p, f in _DECIMAL.items()}

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*\Z")
_MAX = 2**62


def _quantity(value: object, units: dict[str, int], what: str, example: str) -> Decimal:
    expected = f"expected a {what} with a unit, such as {example!r}"
    if isinstance(value, bool) or value is None or not isinstance(value, str | int | float):
        raise ValueError(f"got {quoted(value)}, {expected}")
    # a longer one is no quantity, and would take the pattern long
    match = _QUANTITY.match(str(value)) if not isinstance(value, str) or len(value) <= LONGEST_TOKEN else None
    if match is None:
        raise ValueError(f"got {quoted(value)}, {expected}")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"got {quoted(value)} without a unit, {expected}")
    if unit not in units:
        raise ValueError(f"got {quoted(value)} with unknown unit {unit!r}, {expected}{did_you_mean(unit, units)}")
    try:
        exact = Decimal(number.replace("_", ""))
    except InvalidOperation:  # an exponent beyond what Decimal has
        exact = Decimal("1e999")
    if len(number) > 40 or abs(exact.adjusted()) > 60:
        raise ValueError(f"got {quoted(value)}, which is beyond what the twin can count")
    result = exact * units[unit]
    if 0 < result < Decimal("0.5"):
        raise ValueError(f"got {quoted(value)}, which is less than the twin can tell from nothing")
    if result < 0:
        raise ValueError(f"got {quoted(value)}, expected a {what} that is not negative")
    if result > _MAX:
        raise ValueError(f"got {quoted(value)}, which is larger than the twin can count")
    return result


def parse_rate(value: object) -> int:
    """`'400 Gb/s'` or `'50 GB/s'` to bits per second. Raises ValueError."""
    return round(_quantity(value, _RATE, "rate", "400 Gb/s"))


def parse_size(value: object) -> int:
    """`'2 MiB'` to bytes. Raises ValueError."""
    return round(_quantity(value, _SIZE, "size", "2 MiB"))


def parse_time(value: object) -> int:
    """`'1.3 us'` to picoseconds. Raises ValueError."""
    return round(_quantity(value, _TIME, "time", "1.3 us"))


def parse_length(value: object) -> int:
    """`'5 m'` to millimetres. Raises ValueError."""
    return round(_quantity(value, _LENGTH, "length", "5 m"))


def parse_flops(value: object) -> float:
    """`'989.4 TFLOP/s'` to FLOP/s. Raises ValueError."""
    return float(_quantity(value, _FLOPS, "throughput", "989.4 TFLOP/s"))


def _significant(value: float, digits: int = 4) -> str:
    """`value` with at most `digits` significant digits and no trailing zeros or exponent."""
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    if "e" in text:
        text = f"{float(text):.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, steps: list[tuple[float, str]], digits: int = 4) -> str:
    for factor, unit in steps:
        # 0.99995 of a unit would print as 1000 of the unit below it
        if abs(value) >= factor * 0.99995:
            return f"{_significant(value / factor, digits)} {unit}"
    factor, unit = steps[-1]
    return f"{_significant(value / factor, digits)} {unit}"


_RATE_STEPS = [(1e12, "Tb/s"), (1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s"), (1.0, "b/s")]
_SIZE_STEPS = [(2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")]
_TIME_STEPS = [(1e12, "s"), (1e9, "ms"), (1e6, "us"), (1e3, "ns"), (1.0, "ps")]
_LENGTH_STEPS = [(1e6, "km"), (1e3, "m"), (1.0, "mm")]
_FLOPS_STEPS = [(1e18, "EFLOP/s"), (1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1.0, "FLOP/s")]


def format_rate(bits_per_s: float) -> str:
    """Bits per second as people write them: `400 Gb/s`."""
    return _scaled(bits_per_s, _RATE_STEPS)


def format_size(size_bytes: float) -> str:
    """Bytes as people write them: `2 MiB`."""
    return _scaled(size_bytes, _SIZE_STEPS)


def format_time(time_ps: float) -> str:
    """Picoseconds as people write them: `1.3 us`."""
    return _scaled(time_ps, _TIME_STEPS)


def format_length(length_mm: float) -> str:
    """Millimetres as people write them: `5 m`."""
    return _scaled(length_mm, _LENGTH_STEPS)


def format_flops(flops_per_s: float) -> str:
    """FLOP/s as people write them: `312 TFLOP/s`."""
    return _scaled(flops_per_s, _FLOPS_STEPS)


def _exact(steps: list[tuple[float, str]], parse: Callable[[object], int]) -> Callable[[int], str]:
    """A printer whose output parses back to the same integer."""

    def show(value: int) -> str:
        for factor, unit in steps:
            text = _scaled(value, [(factor, unit)], 15)
            if value >= factor and parse(text) == value:
                return text
        return f"{value} {steps[-1][1]}"

    return show


exact_rate = _exact(_RATE_STEPS, parse_rate)
exact_size = _exact(_SIZE_STEPS, parse_size)
exact_time = _exact(_TIME_STEPS, parse_time)
exact_length = _exact(_LENGTH_STEPS, parse_length)


class Raw:
    """An internal number handed to a unit field from Python: `Raw(400_000_000_000)`."""

    def __init__(self, value: float) -> None:
        self.value = value


def _reader(parse: Callable[[object], Any]) -> BeforeValidator:
    """A field reads a string with its unit, or `Raw` from Python; a bare number is an error."""
    return BeforeValidator(lambda v: v.value if isinstance(v, Raw) else parse(v), json_schema_input_type=str)


# Fields of pydantic models: a string with its unit in files, the internal number in Python.
Rate = Annotated[int, _reader(parse_rate), PlainSerializer(exact_rate, return_type=str)]
Size = Annotated[int, _reader(parse_size), PlainSerializer(exact_size, return_type=str)]
Duration = Annotated[int, _reader(parse_time), PlainSerializer(exact_time, return_type=str)]
Length = Annotated[int, _reader(parse_length), PlainSerializer(exact_length, return_type=str)]
Flops = Annotated[float, _reader(parse_flops), PlainSerializer(format_flops, return_type=str)]


def format_money(amount: float, currency: str) -> str:
    """`1,234,000` and `USD` to `1.234 M USD`; below a million in full."""
    for factor, letter in ((1e9, "G"), (1e6, "M")):
        if abs(amount) >= factor * 0.99995:
            return f"{_significant(amount / factor)} {letter} {currency}".replace(f" {letter} ", f" {letter}")
    return f"{amount:,.0f} {currency}"


def format_power(watts: float) -> str:
    """`12500` to `12.5 kW`."""
    return _scaled(watts, [(1e9, "GW"), (1e6, "MW"), (1e3, "kW"), (1.0, "W")])
