"""`nvidia-smi --query-gpu=... --format=csv`: a column for each field, and bits of why clocks are low.

Fields are those of `nvidia-smi --help-query-gpu`, reasons the bits of nvml.h (nvmlClocksEventReason*).
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

_REASONS = r"clocks_(?:throttle|event)_reasons"
OPENS = (
    rf"^(?=[^,]+,)(?:[\w.%/\[\]-][\w. %/\[\]-]*, ?)*(?:pcie\.link\.\w+\.\w+|ecc\.errors\.\w+[\w.]*|"
    rf"{_REASONS}\.\w+|retired_pages\.[\w.]+|remapped_rows\.\w+|temperature\.gpu|fabric\.\w+|gpu_recovery_action|pstate)"
    r"[\w. %/\[\],-]*$|^(?:NVIDIA|Tesla|Quadro|GeForce) [\w .-]+, ?0x[0-9a-f]{16}\s*$"
)
# reasons that are no wish of the user's, by their bits
_BITS = ((0x8, "hot", "HW slowdown"), (0x20, "hot", "SW thermal slowdown"), (0x40, "hot", "HW thermal slowdown"),
         (0x80, "power", "HW power brake slowdown"))  # fmt: skip
_SLOW = {
    "hw_slowdown": "hot", "hw_thermal_slowdown": "hot", "sw_thermal_slowdown": "hot",
    "hw_power_brake_slowdown": "power",
}  # fmt: skip


OPENS_HELP = r"^List of valid properties to query for the switch|^NVIDIA System Management Interface -- v"


class Help(LineReader):
    """Passes over what nvidia-smi says of its options and fields: words of trouble there are no trouble."""

    def line(self, text: str) -> bool:
        """Take a line; False at the next heading or prompt."""
        return not text.startswith(("#", "=", "$"))


class QueryCsv(LineReader):
    """Reads the rows below the names of fields."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._names: list[str] = []

    def line(self, text: str) -> bool:
        """Take a line; False after the table."""
        cells = [cell.strip() for cell in text.split(",")]
        if len(cells) < 2:
            return not text.strip()
        if re.match(OPENS, text.strip()) and not re.search(r"0x[0-9a-f]{16}", text):
            self._names = [cell.partition(" [")[0].lower() for cell in cells]
            return True
        if not self._names:
            reasons = re.fullmatch(r"0x([0-9a-f]{16})", cells[-1])
            if reasons is not None:
                self._reasons(int(reasons[1], 16), Subject(device=cells[0]))
            return reasons is not None
        if len(cells) != len(self._names):
            return False
        self._row(dict(zip(self._names, cells, strict=True)))
        return True

    def _row(self, row: dict[str, str]) -> None:
        index = next((row[key] for key in ("index", "pci.bus_id", "gpu_bus_id", "uuid") if row.get(key)), "")
        about = Subject(device=f"GPU {index}" if index else "a GPU")
        name = row.get("name") or row.get("gpu_name")
        if name:
            self.sink.add("smi.gpu", name, about)
        widest = _number(row.get("pcie.link.width.max", ""))
        lanes = _number(row.get("pcie.link.width.current", ""))
        if widest:
            self.sink.add("smi.lanes", widest, about)
            if 0 < lanes < widest:
                self.sink.add("smi.narrow", (lanes, widest), about)
        for field, value in row.items():
            self._field(field, value, about)

    def _field(self, field: str, value: str, about: Subject) -> None:
        slow = _SLOW.get(re.sub(rf"^{_REASONS}\.", "", field))
        if slow is not None and value == "Active":
            self.sink.add(f"smi.{slow}", field, about)
        elif re.fullmatch(rf"{_REASONS}\.active", field) and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", value):
            self._reasons(int(value, 16), about)
        elif re.match(r"ecc\.errors\.uncorrected\.volatile", field) and _number(value):
            self.sink.add("smi.uncorrected", ("volatile", _number(value)), about)
        elif re.match(r"ecc\.errors\.uncorrected\.aggregate|retired_pages\.double_bit", field) and _number(value):
            self.sink.add("smi.uncorrected", ("aggregate", _number(value)), about)
        elif field in ("remapped_rows.pending", "retired_pages.pending") and value in ("1", "Yes"):
            self.sink.add("smi.remap-pending", True, about)
        elif field == "remapped_rows.failure" and value in ("1", "Yes"):
            self.sink.add("smi.remap-failed", True, about)
        elif field == "fabric.state":
            self.sink.add("smi.fabric", value, about)
        elif field == "gpu_recovery_action" and value not in ("None", "N/A"):
            self.sink.add("smi.recovery", value[:40], about)
        elif re.search(r"(?i)GPU is lost|ERR!|Unknown Error", value):
            self.sink.add("smi.unreadable", value[:40], about)

    def _reasons(self, bits: int, about: Subject) -> None:
        for bit, kind, name in _BITS:
            if bits & bit:
                self.sink.add(f"smi.{kind}", name, about)

    def close(self) -> None:
        """Say that GPUs were looked at."""
        self.sink.add("smi.read", True)


def _number(text: str) -> int:
    found = re.match(r"\d{1,9}", text)
    return int(found[0]) if found else 0
