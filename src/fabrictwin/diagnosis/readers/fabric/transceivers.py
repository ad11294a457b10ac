"""Optical modules: what they read of light, heat and current, and the bounds of their own that they give.

`ethtool -m` (SFF-8472, SFF-8636, CMIS), SONiC's `show interfaces transceiver eeprom --dom` and
`show interface transceiver details` of NX-OS, IOS and EOS print both.
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Place, Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^Ethernet\d+/\d[\d/]*\s*$|^\s*SFP Detail Diagnostics Information|^\s*Ch ?\d+ +Detail Diagnostics|"
    r"^\s*(?:Channel|Module)(?:Monitor|Threshold)Values:|^Ethernet\S+: SFP EEPROM (?:D|d)etected|"
    r"^\s*(?:\S+ +)?High Alarm +High Warn +Low (?:Warn +Low Alarm|Alarm)"
)
DARK = -30.0  # dBm: no light at all, which modules print as -30, -40 or -inf
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
# names of readings and of their bounds, by kind
_KINDS = (
    ("rx", re.compile(r"(?i)rx ?power|laser rx power|receiver signal|rcvr signal|RX\d+Power")),
    ("tx", re.compile(r"(?i)tx ?power|laser output power|transmit avg optical|TX\d+Power")),
    ("bias", re.compile(r"(?i)bias|^current\b")),
    ("temperature", re.compile(r"(?i)temp")),
    ("voltage", re.compile(r"(?i)voltage|vcc")),
)
_HEADS = re.compile(
    r"-+$|(?:SFP|Ch)|Current|Measurement|Note:|High|Low|transceiver|name|part number|revision|serial|"
    r"nominal|Link length|cisco|type |dom |\w+(?:Monitor|Threshold)Values:|[A-Z][\w ()/-]*:"
)
_NAMES = {"rx": "received light", "tx": "sent light", "bias": "laser current"}


def kind_of(name: str) -> str:
    """Return what a reading or a bound is of; empty where it is of nothing that has bounds."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "")


def value_of(text: str) -> float | None:
    """Return a reading: of light in dBm where these stand beside milliwatts, else in its own unit."""
    light = re.search(r"(-?\d+(?:\.\d+)?|-inf) ?dBm", text)
    if light is not None:
        return -40.0 if light[1] == "-inf" else float(light[1])
    found = _NUMBER.match(text.strip())
    return float(found[0]) if found else None


class Readings:
    """Readings of one module and the bounds at which it raises an alarm."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._seen: list[tuple[str, str, float, Place]] = []
        self._low: dict[str, float] = {}
        self._high: dict[str, float] = {}

    def bound(self, name: str, text: str, *, high: bool) -> None:
        """Take a bound."""
        value, kind = value_of(text), kind_of(name)
        if value is not None and kind:
            (self._high if high else self._low)[kind] = value

    def reading(self, name: str, text: str) -> None:
        """Take a reading."""
        value, kind = value_of(text), kind_of(name)
        if value is not None and kind:
            self._seen.append((kind, name, value, self._sink.here()))

    def end(self, device: str) -> None:
        """Keep what lies outside of its bounds, and forget the module."""
        about = Subject(device=device)
        if self._seen:
            self._sink.add("module.read", True, about)
        lit = {kind: any(v > DARK for k, _, v, _ in self._seen if k == kind) for kind in ("rx", "tx")}
        for kind, name, value, place in self._seen:
            low, high = self._low.get(kind, 0.0), self._high.get(kind, 0.0)
            # a module without bounds gives zeros; a lane that is not used is dark beside others
            unused = kind in lit and value <= DARK and lit[kind]
            if low < high and not low <= value <= high and not unused:
                said = _NAMES.get(kind, kind)
                self._sink.add("module.outside", (f"{said}, {name}", value, low, high), about, place=place)
        self._seen, self._low, self._high = [], {}, {}


class Transceivers(LineReader):
    """Reads tables of modules, of SONiC and of other switches' systems."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._readings = Readings(sink)
        self._device = ""
        self._columns: tuple[int, int] = (1, 2)  # of high and low alarm, behind the reading
        self._before = ""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tables'."""
        bare = text.strip()
        port = re.match(r"((?:Ethernet|Eth|Et|Te|Gi|Hu|Fo|Twe|ethernet)[\w/.-]*\d)(?:: .*)?$", bare)
        if port is not None:
            self._readings.end(self._device)
            self._device = port[1]
            return True
        named = re.match(r"([A-Za-z][\w ]*?)\s*: (-?[\d.]+ ?[A-Za-z]*|-inf ?dBm|N/A)$", bare)
        if named is not None:
            bound = re.search(r"(High|Low)(Alarm|Warning)", named[1])
            if bound is None:
                self._readings.reading(named[1], named[2])
            elif bound[2] == "Alarm":
                self._readings.bound(named[1], named[2], high=bound[1] == "High")
            return True
        row = re.match(r"(Temperature|Voltage|Current|Tx Power|Rx Power)\s+(.+)$", bare)
        cells = (
            re.findall(r"(-?\d+(?:\.\d+)?) ?(?:dBm|mA|C|V|Volts?)?(?:\s*(?:\+\+|--|\+|-(?!\d)))?(?=\s|$)", row[2])
            if row
            else []
        )
        if row is not None:
            if len(cells) >= 5:
                unit = "dBm" if "Power" in row[1] else ""
                self._readings.reading(row[1], f"{cells[0]} {unit}")
                self._readings.bound(row[1], f"{cells[1]} {unit}", high=True)
                self._readings.bound(row[1], f"{cells[2]} {unit}", high=False)
            return True
        return not bare or bool(_HEADS.match(bare))

    def close(self) -> None:
        """Keep the last module."""
        self._readings.end(self._device)
