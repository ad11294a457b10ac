"""Whole numbers and ranges that people and files write: read once, within limits that every caller states.

Python's `int` accepts signs, underscores and digits of other scripts, and refuses more than 4,300 digits with an
error of its own; none of that is meant in a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fabrictwin.base.errors import quoted

MOST_DIGITS = 40  # more than any number of the twin has
LARGEST = 2**63 - 1

_HEX = frozenset("0123456789abcdefABCDEF")


def whole(text: str, *, least: int = 0, most: int = LARGEST, base: int = 10) -> int:
    """Return the number of `text`: digits of base 10, of 16 (with or without 0x), or for 0 whichever 0x says.

    Raises ValueError, ready to be shown, for anything else and for what is not from `least` to `most`.
    """
    digits, hexadecimal = text, base == 16
    if base != 10 and text[:2] in ("0x", "0X"):
        digits, hexadecimal = text[2:], True
    if 0 < len(digits) <= MOST_DIGITS and digits.isascii():
        value = None
        if hexadecimal and _HEX.issuperset(digits):
            value = int(digits, 16)
        elif not hexadecimal and digits.isdigit():
            value = int(digits)
        if value is not None and least <= value <= most:
            return value
    limits = (f"{least:#x}", f"{most:#x}") if base == 16 else (least, most)
    raise ValueError(f"got {quoted(text)}, expected a whole number from {limits[0]} to {limits[1]}")


def whole_or_none(text: str, *, least: int = 0, most: int = LARGEST, base: int = 10) -> int | None:
    """Return the number as `whole` reads it, None where that refuses it."""
    try:
        return whole(text, least=least, most=most, base=base)
    except ValueError:
        return None


def numbered(prefix: str, first: int, last: int, *, most: int) -> Iterator[str]:
    """Yield `prefix` with every number from `first` to `last`. Raises ValueError where there are over `most`."""
    count = last - first + 1
    if not 0 < count <= most:
        raise ValueError(f"got {prefix}{first}..{prefix}{last}, expected a range of 1 to {most}")
    return (f"{prefix}{i}" for i in range(first, last + 1))


def read_json(text: str) -> Any:
    """Return what JSON says, numbers of more than MOST_DIGITS digits refused.

    Raises json.JSONDecodeError, or ValueError, ready to be shown, for such a number and for nesting too deep.
    """

    def integer(digits: str) -> int:
        if len(digits) > MOST_DIGITS:
            raise ValueError(f"got {quoted(digits)}, expected a number of at most {MOST_DIGITS} digits")
        return int(digits)

    try:
        return json.loads(text, parse_int=integer)
    except RecursionError:
        raise ValueError("got JSON nested too deep") from None
