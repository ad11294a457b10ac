"""Counters of InfiniBand ports: perfquery, ibqueryerrors, ibdiagnet's db_csv, in one vocabulary.

Names are those of the port counters' attributes (IBTA vol. 1, chapter 16), which perfquery prints and
ibqueryerrors shortens.
"""

from __future__ import annotations

import csv
import re

from fabrictwin.diagnosis.evidence import Place, Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS_PERFQUERY = (
    r"^#? ?Port (?:extended )?counters: Lid \d+ port|^#? ?PortRcvErrorDetails|"
    r"^#? ?Port\w*(?:Details|Discards?)\w*: Lid|"
    r"^# [A-Z][\w ]*: Lid \d+ port \d+|^PortSelect:\.+|"
    # rows that somebody picked out
    r"^(?:SymbolErrorCounter|LinkErrorRecoveryCounter|LinkDownedCounter|Port(?:Rcv|Xmit)[A-Z]\w+|"
    r"LocalLinkIntegrityErrors|ExcessiveBufferOverrunErrors|VL15Dropped):\.+\d"
)
OPENS_ERRORS = (
    r"^\s*Errors for (?:0x[0-9a-f]+ )?\"|^\s*GUID 0x[0-9a-f]+ port (?:ALL|\d+): \[|^## Summary: \d+ nodes checked|"
    r"\b[Pp]ort \d+: \[\w+ == \d+"
)
OPENS_CSV = r"^START_[A-Z0-9_]+\s*$"
_SHORT = {
    "LinkDownedCounter": "LinkDowned",
    "LinkErrorRecoveryCounter": "LinkErrorRecovery",
    "SymbolErrorCounter": "SymbolError",
    "SymbolErrors": "SymbolError",
    "LinkRecovers": "LinkErrorRecovery",
    "RcvErrors": "PortRcvErrors",
    "RcvRemotePhysErrors": "PortRcvRemotePhysicalErrors",
    "RcvSwRelayErrors": "PortRcvSwitchRelayErrors",
    "XmtDiscards": "PortXmitDiscards",
    "XmtConstraintErrors": "PortXmitConstraintErrors",
    "RcvConstraintErrors": "PortRcvConstraintErrors",
    "LinkIntegrityErrors": "LocalLinkIntegrityErrors",
    "ExcBufOverrunErrors": "ExcessiveBufferOverrunErrors",
    "XmtWait": "PortXmitWait",
}
# as the kernel's files and ibdiagnet's columns have them
_SYSFS = {
    "symbol_error": "SymbolError",
    "link_downed": "LinkDowned",
    "link_error_recovery": "LinkErrorRecovery",
    "port_rcv_errors": "PortRcvErrors",
    "port_rcv_remote_physical_errors": "PortRcvRemotePhysicalErrors",
    "port_rcv_switch_relay_errors": "PortRcvSwitchRelayErrors",
    "port_xmit_discards": "PortXmitDiscards",
    "port_xmit_wait": "PortXmitWait",
    "local_link_integrity_errors": "LocalLinkIntegrityErrors",
    "excessive_buffer_overrun_errors": "ExcessiveBufferOverrunErrors",
    "vl15_dropped": "VL15Dropped",
    "port_xmit_constraint_errors": "PortXmitConstraintErrors",
    "port_rcv_constraint_errors": "PortRcvConstraintErrors",
    "port_xmit_data": "PortXmitData",
    "port_rcv_data": "PortRcvData",
}
_CSV = {f"{name.lower()}": known for name, known in _SYSFS.items()} | {
    "symbol_error_counter": "SymbolError",
    "link_downed_counter": "LinkDowned",
    "link_error_recovery_counter": "LinkErrorRecovery",
    "port_rcv_remote_physical_errors": "PortRcvRemotePhysicalErrors",
    "link_down_counter": "LinkDowned",
    "port_xmit_discard": "PortXmitDiscards",
    "excessive_buffer_errors": "ExcessiveBufferOverrunErrors",
}


def counter_name(name: str) -> str:
    """The one name of a counter, whatever tool printed it."""
    return _SHORT.get(name) or _SYSFS.get(name.lower()) or name


def column_counter(name: str) -> str | None:
    """The counter of a column of ibdiagnet: `link_downed_counter_extended`, `LinkDownedCounterExt`."""
    words = name.lower() if "_" in name else re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    return _CSV.get(re.sub(r"_ext(?:ended)?$", "", words))


class Perfquery(LineReader):
    """Reads perfquery's output."""

    _about = Subject()

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        head = re.search(r"Lid (\d+) port (\d+|ALL)", bare)
        if head is not None:
            self._about = Subject(device=f"Lid {head[1]}", port=head[2])
            self.sink.add("port.counter", ("Read", 0), self._about)
            return True
        found = re.match(r"(\w+):\.*(-?\d+|0x[0-9A-Fa-f]+)\s*$", bare)
        if found is None:
            return not bare
        value = int(found[2], 0) if found[2].startswith("0x") else int(found[2])
        if value:
            self.sink.add("port.counter", (counter_name(found[1]), value), self._about)
        return True


class QueryErrors(LineReader):
    """Reads ibqueryerrors' output."""

    _node = ""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._sums: dict[str, tuple[Subject, Place, list[tuple[str, int]]]] = {}
        self._told: dict[str, set[str]] = {}  # counters of ports that stand by themselves, by GUID

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        node = re.match(r"Errors for (?:(0x[0-9a-f]+) )?\"(.*)\"", bare)
        if node is not None:
            self._node = node[2] or node[1] or ""
            return True
        # monitors pass rows on, with the switch's name before the port
        port = re.match(r"GUID (0x[0-9a-f]+) port (ALL|\d+):", bare) or re.search(
            r"(\S+) [Pp]ort (\d+):(?= \[\w+ == \d)", bare
        )
        if port is not None:
            named = port[1] if port.re.pattern.startswith("(") else self._node or port[1]
            about = Subject(device=named, port=port[2])
            values = re.findall(r"\[(\w+) == (\d+)(?: \([\d.]+ ?[KMGT]?B?\))?\]", bare)
            counted = [(counter_name(name), int(value)) for name, value in values]
            if port[2] == "ALL":
                self._sums[port[1]] = (about, self.sink.here(), counted)
                return True
            self._told.setdefault(port[1], set()).update(name for name, _ in counted)
            for each in counted:
                self.sink.add("port.counter", each, about)
            return True
        summary = re.match(r"## Summary: (\d+) nodes checked, (\d+) bad nodes found", bare)
        if summary is not None:
            self.sink.add("port.counter", ("Read", 0), Subject(device="fabric"))
            return True
        return not bare or bare.startswith(("##", "Link info:", "Thresholds", "Suppressing"))

    def close(self) -> None:
        """Take the sums over a node's ports of what does not stand by port."""
        for guid, (about, place, counted) in self._sums.items():
            for each in counted:
                if each[0] not in self._told.get(guid, ()):
                    self.sink.add("port.counter", each, about, place=place)


class DiagnetCsv(LineReader):
    """Reads ibdiagnet's db_csv: tables between START_x and END_x, with the names of their columns on top."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._table, self._columns = "", [""]
        self._names: dict[str, str] = {}

    def line(self, text: str) -> bool:
        """Take a line; False outside of tables."""
        bare = text.strip()
        begins = re.match(r"START_(\w+)$", bare)
        if begins is not None:
            self._table, self._columns = begins[1], []
            return True
        if bare.startswith("END_"):
            self._table = ""
            return True
        if not self._table:
            return not bare
        if len(bare) > 20_000:
            return True
        try:
            row = next(csv.reader([bare]), [])
        except csv.Error:  # an old end of line within it
            return True
        if not self._columns:
            self._columns = [name.strip() for name in row]
        else:
            self._row(dict(zip(self._columns, (cell.strip() for cell in row), strict=False)))
        return True

    def _row(self, row: dict[str, str]) -> None:
        guid = row.get("NodeGUID") or row.get("NodeGuid") or ""
        port = row.get("PortNumber") or row.get("PortNum") or ""
        about = Subject(device=self._names.get(guid, guid), port=port)
        if self._table == "NODES" and guid:
            self._names[guid] = row.get("NodeDesc", guid).strip('"')
        elif self._table == "PM_INFO":
            self.sink.add("port.counter", ("Read", 0), about)
            for column, text in row.items():
                name = column_counter(column)
                if name is not None and re.fullmatch(r"0x[0-9a-fA-F]{1,16}|\d{1,20}", text) and int(text, 0):
                    self.sink.add("port.counter", (name, int(text, 0)), about)
        elif self._table == "PORTS":
            self._port(row, about)
        elif self._table.startswith(("ERRORS_", "WARNINGS_")):
            event = row.get("EventName") or row.get("Event") or ""
            kind = "ibdiagnet.error" if self._table.startswith("ERRORS_") else "ibdiagnet.warning"
            self.sink.add(kind, (self._table, event[:80], row.get("Summary", "")[:200]), about)

    def _port(self, row: dict[str, str], about: Subject) -> None:
        width, speed = row.get("LinkWidthActv", ""), row.get("LinkSpeedActv", "")
        widths = {"1": 1, "2": 4, "4": 8, "8": 12, "16": 2}
        speeds = {"1": "SDR", "2": "DDR", "4": "QDR", "256": "FDR", "512": "EDR", "1024": "HDR", "2048": "NDR"}
        state = {"1": "Down", "2": "Init", "3": "Armed", "4": "Active"}.get(row.get("PortState", ""), "")
        if state == "Active" and width in widths and speed in speeds:
            self.sink.add("fabric.link", (widths[width], speeds[speed], "", state), about)
        elif state in ("Init", "Armed"):
            self.sink.add("port.state", (state, ""), about)

    def close(self) -> None:
        """End; a table without END was cut."""
        if self._table:
            self.sink.add("file.truncated", f"table {self._table} has no end")
