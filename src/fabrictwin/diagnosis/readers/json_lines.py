"""Lines that a container's runtime, a journal or a logger packs into an object each: what the program printed.

Docker's json-file driver has the line as `log`, journalctl's `-o json` as `MESSAGE`, structured loggers as
`message` or `msg` beside a level. The line is read as it was printed, a logger's level before it, with the reason
and the output that stand beside it. A health event of a cluster's monitor (NVSentinel: `checkName`, `isFatal`,
`errorCode`) is a line of the check's own.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SAID = ("log", "message", "msg", "MESSAGE", "event")
_WHY = ("error", "err", "exception", "reason", "detail")  # beside what is said
_PRINTED = ("stdout", "stderr", "output", "stack", "stacktrace", "traceback", "exc_info")  # lines of their own
_LEVELS = ("level", "levelname", "severity", "lvl")
FEWEST = 2  # objects, one a line, that are no document
LONGEST = 400  # letters of what a check says
DEEPEST, MOST_NODES = 6, 1_000  # of an object, in which health events are
# a check of any program's, its state, and what it says
_CHECK = ("check", "check_name", "checkname", "test", "test_name", "name")
_STATE = ("status", "result", "state", "health", "verdict", "outcome")
_FOUND = ("message", "details", "detail", "description", "reason", "output", "error", "summary")
_GOOD = re.compile(r"(?i)pass(ed)?|ok|success|healthy|good|skip(ped)?")
_WARNED = re.compile(r"(?i)warn(ing)?|degraded")
_BAD = re.compile(r"(?i)fail(ed|ure)?|crit(ical)?|unhealthy|bad|error|fatal")


def _object(raw: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def health_events(packed: Any) -> list[str]:
    """A line for each health event within: the check, what it says, and numbers and names of its error."""
    lines, left, seen = [], [(packed, 0)], 0
    while left and seen < MOST_NODES:
        node, depth = left.pop()
        seen += 1
        if isinstance(node, dict) and isinstance(node.get("checkName"), str):
            lines.append(_as_a_line(node))
            continue
        if isinstance(node, dict) and (line := _of_a_check(node)):
            lines.append(line)
            continue
        inside = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        if depth < DEEPEST:
            left += [(one, depth + 1) for one in inside]
    return lines


def _as_a_line(event: dict[str, Any]) -> str:
    check, said = event["checkName"][:80], str(event.get("message") or "")[:400]
    if event.get("isHealthy"):
        return f"INFO: {check}: healthy"
    given = event.get("errorCode")
    codes = [str(one)[:60] for one in given] if isinstance(given, list) else []
    numbers = [one for one in codes if one.isdigit()]
    if re.search(r"(?<!S)XID|Xid", check) and numbers and "xid" not in said.lower():
        said = f"XID errors: {', '.join(numbers)} {said}".strip()
    named = ", ".join(one for one in codes if not one.isdigit())
    return f"{'ERROR' if event.get('isFatal') else 'WARNING'}: {check}: {said}{f' ({named})' if named else ''}"


def _of_a_check(node: dict[str, Any]) -> str:
    """Return the line of an object that names a check and its state; empty for any other, such as a logger's."""
    texts = {key.lower(): value for key, value in node.items() if isinstance(value, str) and len(value) < LONGEST}
    name = next((texts[key] for key in _CHECK if texts.get(key)), "")
    state = next((texts[key] for key in _STATE if key in texts), "")
    if not name or not state or any(key in texts for key in _LEVELS):
        return ""
    if _GOOD.fullmatch(state):
        return f"INFO: health check passed: {name}"
    kind = "WARNING" if _WARNED.fullmatch(state) else "ERROR" if _BAD.fullmatch(state) else ""
    said = next((texts[key] for key in _FOUND if texts.get(key)), "")
    return f"{kind}: check failed: {name}: FAILED: {said}".rstrip(": ") if kind else ""


def _is_of_ras(packed: dict[str, Any]) -> bool:
    """Return true for an event of NCCL's RAS, whose reader knows it whole."""
    return isinstance(packed.get("peer"), dict)


def _events(packed: dict[str, Any]) -> list[str]:
    return [] if _is_of_ras(packed) else health_events(packed)


def _said(packed: dict[str, Any]) -> str:
    if _is_of_ras(packed):
        return ""
    return next((said for name in _SAID if isinstance(said := packed.get(name), str)), "")


def recognises(head: bytes) -> bool:
    """Return true for a beginning whose first lines are objects with a line in each."""
    lines = [line for line in head.split(b"\n", FEWEST + 1)[: FEWEST + 1] if line.strip()]
    if lines and health_events(_object(lines[0])):
        return True
    whole = lines[:FEWEST] if len(lines) > FEWEST or head.endswith(b"\n") else lines[:-1]
    return len(lines) >= FEWEST and bool(whole) and all(_events(one) or _said(one) for one in map(_object, whole))


def unpacked(raw: bytes) -> bytes:
    """The line in an object, with its logger's level; as it stands where it holds none."""
    packed = _object(raw)
    events = _events(packed)
    if events:
        return "\n".join(events).encode("utf-8", "replace")  # whatever the level at which it was handed on
    said = _said(packed)
    if not said:
        return raw
    level = next((found for name in _LEVELS if isinstance(found := packed.get(name), str)), "")
    head = f"{level.upper()[:12]}: " if level.isalpha() and level.upper() not in said[:80].upper() else ""
    why = "".join(f": {one}" for name in _WHY if isinstance(one := packed.get(name), str) and one not in said)
    printed = "".join(f"\n{one}" for name in _PRINTED if isinstance(one := packed.get(name), str))
    return f"{head}{said}{why}{printed}".encode("utf-8", "replace")
