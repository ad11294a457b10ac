"""Quality of service and congestion control in OpenSM's words: its `qos_`, `cc_` and `congestion_control` options,
as a file of them (opensm.conf) or, the first, one by one.

Options for single kinds of ports (`qos_ca_`, `qos_sw0_`, `qos_swe_`, `qos_rtr_`) are left out: they must be unset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError, did_you_mean, quoted
from fabrictwin.base.textfile import read_text
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.cluster.spec.congestion_section import CongestionControl
from fabrictwin.subnet.manager.settings.manager_settings import DROP_VL

_CODES = {1: 1, 2: 2, 4: 3, 8: 4, 15: 5}  # OperationalVLs by the number of lanes
_UNSET = ("(null)", "-1", "0")
_KINDS = ("qos_ca_", "qos_sw0_", "qos_swe_", "qos_rtr_")
_ENTRIES = 64


def _number(text: str, *, most: int, least: int = 0) -> int:
    number = whole_or_none(text, least=least, most=most)
    if number is None:
        raise ValueError(f"got {quoted(text)}, expected {least} to {most}")
    return number


def _max_vls(text: str) -> dict[str, Any]:
    lanes = _number(text, least=1, most=15)
    if lanes not in _CODES:
        raise ValueError(f"got {lanes}, expected one of {', '.join(map(str, _CODES))}")
    return {"max_vls": _CODES[lanes]}


def _high_limit(text: str) -> dict[str, Any]:
    return {"vl_high_limit": _number(text, most=255)}


def _arbitration(text: str) -> tuple[tuple[int, int], ...]:
    entries = []
    for entry in text.split(","):
        vl, colon, weight = entry.strip().partition(":")
        if not colon:
            raise ValueError(f"got {entry.strip()!r}, expected VL:WEIGHT")
        entries.append((_number(vl, most=14), _number(weight, most=255)))
    if len(entries) > _ENTRIES:
        raise ValueError(f"got {len(entries)} entries, expected at most {_ENTRIES}")
    return tuple(entries)


def _sl2vl(text: str) -> dict[str, Any]:
    lanes = tuple(_number(vl.strip(), most=DROP_VL) for vl in text.split(","))
    if len(lanes) != 16:
        raise ValueError(f"got {len(lanes)} lanes, expected 16, one for each service level")
    return {"sl_to_vl": lanes}


OPTIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "qos_max_vls": _max_vls,
    "qos_high_limit": _high_limit,
    "qos_vlarb_high": lambda text: {"vl_high": _arbitration(text)},
    "qos_vlarb_low": lambda text: {"vl_low": _arbitration(text)},
    "qos_sl2vl": _sl2vl,
}


def qos_settings(given: Mapping[str, str]) -> dict[str, Any]:
    """Fields of `Settings` from options by name. Raises ConfigError with the option as its key."""
    fields: dict[str, Any] = {}
    for key, text in given.items():
        try:
            fields |= OPTIONS[key](text)
        except ValueError as error:
            raise ConfigError(str(error), key=key) from None
    return fields


def read_qos(path: Path) -> dict[str, Any]:
    """Fields of `Settings` from a file with an option and its value a line, as opensm.conf has them.

    Raises ConfigError with file and line.
    """
    fields: dict[str, Any] = {}
    congestion = _Congestion()
    for number, line in enumerate(read_text(path, errors="replace").splitlines(), 1):
        key, _, value = line.partition("#")[0].strip().partition(" ")
        value = value.strip()
        if not key:
            continue
        if key.startswith(_KINDS) and value in _UNSET:
            continue
        if key not in OPTIONS and key not in _CONGESTION_KEYS:
            known = (*OPTIONS, *_CONGESTION_KEYS)
            hint = did_you_mean(key, known)
            raise ConfigError(f"got {key}, expected one of {', '.join(known)}{hint}", file=path, line=number)
        try:
            if key in OPTIONS:
                fields |= OPTIONS[key](value)
            else:
                congestion.take(key, value)
        except ValueError as error:
            raise ConfigError(str(error), file=path, line=number, key=key) from None
    try:
        section = congestion.section()
    except ValueError as error:
        raise ConfigError(str(error), file=path) from None
    return fields if section is None else {**fields, "congestion": section}


_SWITCH_KEY, _ENABLED, _MADS = "congestion_control", ("TRUE", "YES", "1"), "cc_max_outstanding_mads"
_CONGESTION_KEYS = (_SWITCH_KEY, _MADS, *CongestionControl.model_fields)
_BY_LEVEL = ("ccti_timer", "ccti_increase", "trigger_threshold", "ccti_min")
_OFF = {"cc_sw_cong_setting_control_map": 0, "cc_ca_cong_setting_control_map": 0}  # where the file says nothing


class _Congestion:
    """Options of congestion control as a file gives them, line by line."""

    def __init__(self) -> None:
        self.enabled = False
        self.given: dict[str, Any] = dict(_OFF)

    def take(self, key: str, value: str) -> None:
        """Take an option. Raises ValueError for a value that it cannot have."""
        if key == _SWITCH_KEY:
            if value.upper() not in (*_ENABLED, "FALSE", "NO", "0"):
                raise ValueError(f"got {quoted(value)}, expected TRUE or FALSE")
            self.enabled = value.upper() in _ENABLED
        elif key == _MADS:
            _number(value, most=2**31 - 1)  # the twin's window is its own
        elif key.endswith(_BY_LEVEL):
            level, _, number = value.partition(" ")
            values = self.given.setdefault(key, {})
            values[_number(level, most=15)] = _whole(number)
        elif key == "cc_cct":
            if value not in _UNSET:
                self.given[key] = value
        elif key.endswith("return_delay"):
            self.given[key] = value
        else:
            self.given[key] = _whole(value)

    def section(self) -> CongestionControl | None:
        """Return the settings, None where the file does not turn them on. Raises ValueError."""
        found = CongestionControl.model_validate(self.given)
        return found if self.enabled else None


def _whole(text: str) -> int:
    number = whole_or_none(text.strip(), most=2**256 - 1, base=0)
    if number is None:
        raise ValueError(f"got {quoted(text)}, expected a whole number")
    return number
