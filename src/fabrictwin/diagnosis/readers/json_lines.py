"""Lines that a container's runtime, a journal or a logger packs into an object each: what the program printed.

Docker's json-file driver has the line as `log`, journalctl's `-o json` as `MESSAGE`, structured loggers as
`message` or `msg` beside a level. The line is read as it was printed, a logger's level before it.
"""

from __future__ import annotations

import json
from typing import Any

_SAID = ("log", "message", "msg", "MESSAGE", "event")
_LEVELS = ("level", "levelname", "severity", "lvl")
FEWEST = 2  # objects, one a line, that are no document


def _object(raw: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _message(packed: dict[str, Any]) -> str:
    return next((said for name in _SAID if isinstance(said := packed.get(name), str)), "")


def recognises(head: bytes) -> bool:
    """Return true for a beginning whose first lines are objects with a line in each."""
    lines = [line for line in head.split(b"\n", FEWEST + 1)[: FEWEST + 1] if line.strip()]
    whole = lines[:FEWEST] if len(lines) > FEWEST or head.endswith(b"\n") else lines[:-1]
    return len(lines) >= FEWEST and bool(whole) and all(_message(_object(line)) for line in whole)


def unpacked(raw: bytes) -> bytes:
    """The line in an object, with its logger's level; as it stands where it holds none."""
    packed = _object(raw)
    said = _message(packed)
    if not said:
        return raw
    level = next((found for name in _LEVELS if isinstance(found := packed.get(name), str)), "")
    head = f"{level.upper()[:12]}: " if level.isalpha() and level.upper() not in said[:80].upper() else ""
    return f"{head}{said}".encode("utf-8", "replace")
