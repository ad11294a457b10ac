"""mlxlink: a port's state, its bit error rates, its module's light, and what the adapter's firmware recommends."""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = r"^\s*\"?(?:Operational|Module|Physical Counters and BER) Info\"?\s*(?::\s*\{\s*)?$|\bmlxlink -d \S+"
_HEADS = re.compile(r"-+$|[A-Z][\w &/()-]{2,60} (?:Info|Counters|Status|Errors|Settings|Data)$")
_COUNTS = {
    "Symbol Errors": "SymbolError",
    "Link Down Counter": "LinkDowned",
    "Link Down Events": "LinkDowned",
    "Link Error Recovery": "LinkErrorRecovery",
    "Link Error Recovery Counter": "LinkErrorRecovery",
}
_RATE = re.compile(r"\d{1,3}E-\d{1,3}")
# what each lane reads, and between which bounds the module calls it good
_LANES = re.compile(r"([-\d.,NAa/ ]+?)\s*\[(-?[\d.]+) ?\.\. ?(-?[\d.]+)\]$")


class Mlxlink(LineReader):
    """Reads mlxlink's output on one port after the other."""

    _device = ""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        if bare.startswith('"') or re.fullmatch(r"[\]\[{},\s]*", bare):  # --json
            bare = re.sub(r"[\"\[\]{},]+\s*$", "", bare).replace('"', "").lstrip("[{ ")
        command = re.search(r"\bmlxlink -d (\S+)", bare)
        if command is not None:
            self._device = command[1]
            return True
        row = re.match(r"([A-Z][\w .\[\]()/%-]*?)\s*:\s*(.*)$", bare)
        if row is None:
            return not bare or bool(_HEADS.match(bare)) or text.lstrip().startswith('"')
        name, value = row.groups()
        about = Subject(device=self._device)
        if name in ("State", "Physical state"):
            self.sink.add("mlxlink.state", (name, value), about)
        elif name == "Recommendation":
            self.sink.add("mlxlink.advice", value[:160], about)
        elif name in _COUNTS and value.isdigit() and int(value):
            self.sink.add("port.counter", (_COUNTS[name], int(value[:12])), about)
        elif name == "Effective Physical BER" and _RATE.fullmatch(value):
            self.sink.add("mlxlink.errors", float(value), about)
        elif name.startswith(("Rx Power", "Tx Power", "Temperature", "Voltage", "Bias")):
            self._module(name, value, about)
        return True

    def _module(self, name: str, value: str, about: Subject) -> None:
        """Keep a reading of the module that lies outside of its bounds."""
        lanes = _LANES.match(value)
        if lanes is None:
            return
        low, high = float(lanes[2]), float(lanes[3])
        for lane in lanes[1].split(","):
            if re.fullmatch(r"-?\d+(?:\.\d+)?", lane.strip()) and not low <= float(lane) <= high:
                self.sink.add("mlxlink.module", (name, float(lane), low, high), about)
