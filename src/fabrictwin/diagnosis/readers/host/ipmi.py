"""A host's management controller: its event log and sensors (ipmitool's sel, sdr, sensor; ipmi-sensors).

Events and states are those of IPMI 2.0, tables 42-2 and 42-3.
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^ID\s+\| (?:Date\s+\| Time|Name)\s+\| |"
    r"^\s*[0-9a-f]{1,4} \| (?:\d\d/\d\d/\d{2,4}|Pre-Init) +\| |"
    r"^\d{1,5},[\w .#/-]+,(?:Fan|Power Supply|Temperature|Voltage|Memory|Processor|Critical Interrupt),|"
    r"^[\w .#/+-]{2,24}\s*\| (?:\s*-?[\d.]+|na|0x[0-9a-f]+|no reading)[\w ]*\s*\|\s*(?:[\w %]+\s*\| )?"
    r"(?:ok|cr|nc|nr|ns)\b"
)
# by words of a sensor's name and its event; the first that is found holds
_EVENTS = (
    (r"memory.*\b(uncorrect|parity|rank spar|configuration error)", "host-hardware", 0.92),
    (r"correctable (ecc|memory)", "host-hardware", 0.6),
    (r"bus (fatal|uncorrectable|degraded)|pci (serr|perr)|pcie? .*error|critical interrupt", "pci-errors", 0.9),
    (r"\bierr\b|machine check|processor.*(thermal trip|configuration error|frb|throttl)", "host-hardware", 0.92),
    (r"power supply.*(fail|lost|predictive|critical)|redundancy (lost|degraded)", "host-hardware", 0.88),
    (r"fan.*(lower (critical|non-recoverable)|fail|redundancy lost)", "host-hardware", 0.85),
    (r"temp.*upper (critical|non-recoverable)", "host-hardware", 0.85),
    (r"drive (slot|bay|fault).*(fault|fail)|drive fault", "storage-error", 0.85),
    (r"(lower|upper) (critical|non-recoverable)", "host-hardware", 0.75),
)


class Ipmi(LineReader):
    """Reads rows of the event log and of tables of sensors."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._names: list[str] = []

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tools'."""
        bare = text.strip()
        if not bare:
            return True
        cells = [cell.strip() for cell in bare.split("|")]
        if cells[0] == "ID":
            self._names = cells
            return True
        if self._names and len(cells) == len(self._names):
            row = dict(zip(self._names, cells, strict=True))
            if row.get("State") in ("Critical", "Warning"):
                said = f"{row.get('Type', '')} {row.get('Name', '')}: {row.get('Event', '')}"
                self._event(said, row.get("Name", ""), least=0.8 if row["State"] == "Critical" else 0.6)
            self.sink.add("ipmi.read", True)
            return True
        if len(cells) >= 5 and re.fullmatch(r"[0-9a-f]{1,4}", cells[0]):
            if "deassert" not in cells[-1].lower():
                self._event(f"{cells[3]}: {' '.join(cells[4:])}", cells[3].partition(" #")[0])
            self.sink.add("ipmi.read", True)
            return True
        if re.match(r"\d{1,5},[^,]+,[^,]+,", bare):
            name, kind, *_, states = bare.split(",")[1:]
            for state in re.findall(r"'([^']*)'", states):
                self._event(f"{kind} {name}: {state}", name)
            self.sink.add("ipmi.read", True)
            return True
        if len(cells) >= 3 and cells[0]:
            state = next((cell for cell in cells[2:4] if cell in ("cr", "nr")), "")
            if state:
                said = "lower critical" if "fan" in cells[0].lower() else "upper critical"
                self._event(f"{cells[0]}: {said} ({cells[1]})", cells[0])
            self.sink.add("ipmi.read", True)
            return True
        return False

    def _event(self, said: str, name: str, least: float = 0.0) -> None:
        """Keep an event by its words; one that these do not tell of, where the controller calls it bad."""
        for pattern, cause, sure in _EVENTS:
            if re.search(pattern, said, re.IGNORECASE):
                self.sink.add("ipmi.event", (cause, said[:160], sure), Subject(device=name[:60]))
                return
        if least:
            self.sink.add("ipmi.event", ("host-hardware", said[:160], least), Subject(device=name[:60]))
