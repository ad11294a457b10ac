"""Names of hosts, switches and ports as people write them, and the order people expect them in.

A jack, the end of a cable, is written `leaf-0/3` (a switch and its port number) or `host-0/mlx5_0` (a host and
its adapter). So a name holds neither white space nor `/` nor `;`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_DIGITS = re.compile(r"(\d+)")
_NAME = re.compile(r"[^\s/;]+\Z")


def natural_key(name: str) -> tuple[tuple[int, int, str, str], ...]:
    """Return a key that sorts `host-2` before `host-10`; numbers may be of any length."""
    parts = []
    for part in _DIGITS.split(name):
        digits = part.lstrip("0")
        parts.append((0, len(digits), digits, part) if part.isdecimal() else (1, 0, part, ""))
    return tuple(parts)


def parse_name(value: object) -> str:
    """A name that may stand in a jack. Raises ValueError."""
    if not isinstance(value, str) or not _NAME.match(value):
        raise ValueError(f"got {value!r}, expected a name without white space, '/' or ';', such as 'host-0'")
    return value


def clean_name(text: str) -> str:
    """The nearest name that may stand in a jack; '' where nothing of it may."""
    return re.sub(r"[\s/;]+", "-", text.strip()).strip("-")


def split_jack(jack: str) -> tuple[str, str]:
    """`'leaf-0/3'` to `('leaf-0', '3')`. Raises ValueError."""
    node, slash, port = jack.strip().partition("/")
    if not slash or not _NAME.match(node) or not _NAME.match(port):
        raise ValueError(f"got {jack!r}, expected a node and its port, such as 'leaf-0/3' or 'host-0/mlx5_0'")
    return node, port


def listed(names: Iterable[str], most: int = 4) -> str:
    """`a, b, c, d and 7 more`."""
    every = list(names)
    if len(every) <= most:
        return ", ".join(every)
    return f"{', '.join(every[:most])} and {len(every) - most} more"
