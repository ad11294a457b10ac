"""SONiC's own view of its health: `show system-health` and `show system-health sysready-status`.

Services that do not run, parts that are not well, each with SONiC's words (sonic-utilities,
show/system_health.py and scripts/sysreadyshow; sonic-buildimage, system-health).
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^System status summary\s*$|^System services and devices (?:monitor|ignore) list\s*$|"
    r"^Name\s+Status\s+Type\s*$|^Service-Name\s+Service-Status"
)
_ROW = re.compile(r"(\S.*?)\s{2,}(OK|Not OK|Ignored)\s{2,}(\w[\w ]*)$")
_READY = re.compile(r"(\S+)\s{2,}(OK|Down|Failed|Not OK)\s{2,}(OK|Down|Not OK|\S+)(?:\s{2,}(.*))?$")
_SOFTWARE = ("Process", "Program", "Service", "System", "UserDefine", "Container")


class SystemHealth(LineReader):
    """Reads the summary, the list of what is watched, and which services are ready."""

    _in_reasons = False

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        field = re.match(r"(Not Running|Not Accessible|Reasons):\s*(.*)$", bare)
        row, ready = _ROW.match(bare), _READY.match(bare)
        if field is not None:
            self._in_reasons = field[1] == "Reasons"
            kind = {"Not Running": "switch.process", "Not Accessible": "switch.process"}.get(
                field[1], "switch.status"
            )
            for each in [field[2]] if self._in_reasons else field[2].split(", "):
                self._keep(kind, each, field[1].lower() if kind == "switch.process" else "hardware")
        elif self._in_reasons and text[:1] == "\t":
            self._keep("switch.status", bare, "hardware")
        elif row is not None:
            self._in_reasons = False
            if row[2] == "Not OK":
                kind = "switch.process" if row[3].strip() in _SOFTWARE else "switch.status"
                self._keep(kind, row[1], f"{row[3].strip()}: Not OK")
        elif ready is not None and "Down" in (ready[2], ready[3]):
            self._keep("switch.process", ready[1], ready[4] or f"app ready: {ready[3]}")
        else:
            self._in_reasons = False
            return not bare or bool(ready or re.match(_PLAIN, bare)) or set(bare) <= set("- ")
        return True

    def _keep(self, kind: str, name: str, said: str) -> None:
        if name.strip():
            self.sink.add(kind, (name.strip()[:120], said[:80]), Subject(device=name.strip()[:60]))

    def close(self) -> None:
        """Say that a switch was looked at: one without trouble is evidence too."""
        self.sink.add("sonic.read", True)


OPENS_CHANNELS = r"^\s*(?:Group\s+)?Port-[Cc]hannel\s+Protocol\s+Ports|^\s*Group\s+Port-\s+Type\s+Protocol"
_MEMBER = re.compile(r"\b(?:Et|Gi|Te|Tw|Hu|Fo)\w*\d\S*\(")
_CHANNEL = re.compile(r"\s*(?:\d+\s+)?(Po\d+)\((\w+)\)\s+(.*)$")


class PortChannels(LineReader):
    """Reads bundles of ports of EOS, NX-OS and IOS (`show port-channel summary`): `D` among the flags is down."""

    def line(self, text: str) -> bool:
        """Take a line; False after the table."""
        row = _CHANNEL.match(text)
        if row is None:
            return not text.strip() or bool(re.match(r"\s|-+", text)) or bool(re.match(OPENS_CHANNELS, text))
        self.sink.add("sonic.read", True)
        if "D" in row[2] and _MEMBER.search(row[3]):  # one without ports is not used
            self.sink.add(
                "sonic.bundle-down", (f"{row[1]}({row[2]})", row[3].strip()[:80]), Subject(device=row[1])
            )
        return True


_PLAIN = r"System (?:is|status|services)|Services:|Hardware:|Status:|Name\s+Status|Service-Name"
