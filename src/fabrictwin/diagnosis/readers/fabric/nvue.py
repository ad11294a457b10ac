"""Cumulus Linux: tables of NVUE's `nv show` (NVIDIA, Cumulus Linux user guide, NVUE reference).

Values of one thing stand in columns `operational` and `applied`, a name a row; lists are tables below a ruler of
dashes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^\S*\$ nv show |^\s*priority-group\s+rx-frames|^\s*traffic-class\s+tx-frames|^\s*switch-priority\s+rx-pause|"
    r"^\s+operational\s+applied\b|^Interface\s+(?:Admin Status|MTU\s+Speed)\s"
)
_RULER = re.compile(r"\s*-{2,}(?:\s+-{2,})+\s*$")
_SIZE = re.compile(r"([\d.]{1,15})(?: ?(Bytes|B|KB|MB|GB))?$")
_FACTORS = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
# of parts of the switch: what is no fault
_WELL = re.compile(r"(?i)(?:ok|good|present|n/a|up|yes)?$")


class Nvue(LineReader):
    """Reads what NVUE shows."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._above = ""
        self._columns: list[tuple[int, int]] = []
        self._names: list[str] = []
        self._interface = ""

    def line(self, text: str) -> bool:
        """Take a line; False after a table."""
        bare = text.strip()
        command = re.search(r"\$ nv show (?:interface (\S+))?", bare)
        if command is not None:
            self._interface, self._names = command[1] or "", []
        elif not bare:
            self._names = []
        elif _RULER.match(text):
            self._columns = [found.span() for found in re.finditer(r"-+", text)]
            self._names = [name.lower() for name in self._cut(self._above)]
            if not self._names[0]:
                self._names[0] = "name"
            self.sink.add("switch.read", True, Subject(device=self._interface or "switch"))
        elif set(bare) <= set("=-"):
            pass  # below a title
        elif self._names:
            self._row(dict(zip(self._names, self._cut(text), strict=False)))
        elif not re.match(r"[A-Za-z][\w >/-]*(?::|$)|\.\.\.|" + OPENS.replace("^", ""), bare):
            return False
        self._above = text
        return True

    def _cut(self, text: str) -> list[str]:
        edges = [begin for begin, _ in self._columns] + [len(text) + 200]
        return [text[begin:end].strip()[:80] for begin, end in pairwise(edges)]

    def _row(self, row: Mapping[str, str]) -> None:
        about = Subject(device=self._interface or "switch")
        first, number = self._names[0], next(iter(row.values()))
        if first == "priority-group":
            self._dropped("sonic.pg-drop", row.get("rx-buffer-discards", ""), number, about)
        elif first == "traffic-class":
            self._dropped("sonic.queue-drop", row.get("tx-uc-buffer-discards", ""), f"UC{number}", about)
        elif first == "switch-priority":
            for way in ("rx", "tx"):
                count = _number(row.get(f"{way}-pause-frames", ""))
                if count:
                    self.sink.add("port.counter", (f"{way}_prio{number}_pause", count), about)
        elif "operational" in row:
            self._value(number.strip(), row["operational"], row.get("applied", ""), about)
        else:
            state = next((row[name] for name in row if name.endswith(("state", "status")) and row[name]), "")
            if first in ("name", "component") and state and not _WELL.match(state) and state.lower() != "absent":
                self.sink.add("switch.status", (number, state[:40]), Subject(device=number[:60]))

    def _value(self, name: str, value: str, wanted: str, about: Subject) -> None:
        """Take a value of one interface."""
        if name in ("state", "oper-status") and value == "down" and wanted != "down" and self._interface:
            self.sink.add("nvue.down", (name, wanted), about)
        elif name == "carrier-transitions" and value.isdigit():
            # each time that a link is lost counts twice: down, and up again
            self.sink.add("port.counter", ("LinkDowned", int(value[:9]) // 2), about)
        elif name in ("in-errors", "out-errors") and value.isdigit() and int(value[:18]):
            label = "sonic_rx_err" if name.startswith("in") else "nvue_tx_err"
            self.sink.add("port.counter", (label, int(value[:18])), about)
        elif name == "status" and value and not _WELL.match(value) and not self._interface:
            self.sink.add("switch.status", (name, value[:40]), about)

    def _dropped(self, kind: str, cell: str, which: str, about: Subject) -> None:
        count = _number(cell)
        if count:
            number: str | int = int(which) if which.isdigit() else which
            self.sink.add(kind, (number, count), about)


def _number(cell: str) -> int:
    """A count, or a size in bytes; 0 for what is neither."""
    found = _SIZE.match(cell.replace(",", ""))
    if found is None or found[1].count(".") > 1:
        return 0
    return int(float(found[1].strip(".") or 0) * _FACTORS.get(found[2] or "", 1))
