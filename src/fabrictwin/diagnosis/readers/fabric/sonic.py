"""SONiC: `show` of counters, PFC, its watchdog, buffers, interfaces, parts (sonic-utilities); config_db.json.

A table of `show` is a line of names, a ruler of dashes, and rows below the ruler's dashes: cells may hold spaces
("2000.00 MB/s"), so that columns are those of the ruler. Blocks of `show buffer` and `show ecn` have no names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.fabric.neighbours import OPENS_SUMMARY
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^\s*Port (?:Rx|Tx)\s+PFC0|^\s*(?:admin@\S+\s*)?\$ show |^\s*Pool: \w+\s*$|^\s*Profile: \w+\s*$|"
    r"^\s*Ethernet\w+:\d\s+(?:operational|stormed)\s+\d+/\d+\s|"
    r"^\s*QUEUE\s+STATUS\s+STORM DETECTED|^\s*PORT\s+ACTION\s+DETECTION|"
    r"^\s*(?:IFACE|Iface)\s+(?:STATE\s+(?:RX_OK|FEC_CORR|RX_ERR)|RX_OK)|"
    r"^\s*Interface\s+(?:Lanes\s+Speed|Lossless priorities|Oper\s+Admin|LT Oper|Flap Count|FEC Oper)|"
    r"^\s*Port\s+TxQ\s+Counter|"
    r"^Ingress PG dropped packets|"
    r"^(?:In|E)gress (?:headroom|shared pool occupancy) per |"
    r"^Shared pool maximum occupancy|^\s*Port\s+(?:Error Status|Presence)\s*$|^\s*No\.\s+Team Dev\s+Protocol|"
    r"^\s*PSU\s+Model\s+Serial|^\s*Drawer\s+LED\s+FAN|^\s*Sensor\s+\w+\s+High TH|"
    r"^\s*Name\s+Description\s+Physical-Slot|"
    r"^\s*Port\s+Priority\s+RX Pause|^\s*Time\s+Severity\s+Category\s+Description|"
    r"\*\*show (?:pfc|pfcwd|buffer|interfaces|queue)|\$ show (?:pfc|pfcwd|buffer|interfaces|queue)"
)
OPENS_LOG = r"#orchagent: |#(?:syncd|bgpcfgd|portsyncd|buffermgrd)\w*: "
_RULER = re.compile(r"\s*-{2,}(?:\s+-{2,})+\s*$")
_PORT = re.compile(r"(?:Ethernet|PortChannel)[\w-]*\d")
_WATCHED = re.compile(r"(Ethernet\w+:\d)\s+(operational|stormed)\s+(\d+/\d+)\s")
MOST_CELL = 60
_NO_FAULT = r"(?i)(?:ok|n/a|unplugged|not supported)?$"  # what a port's module says where it is well or absent
_COUNTED = ("RX_OK", "RX_ERR", "RX_DRP", "RX_DROPS", "RX_OVR", "TX_ERR", "TX_DRP", "TX_OVR", "FEC_UNCORR")
_PARTS = (
    "PSU",
    "DRAWER",
    "FAN",
    "SENSOR",
    "NAME",
    "TIME",
)  # first columns of `show platform` and of a chassis' modules


class Sonic(LineReader):
    """Reads tables of SONiC's `show`."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._before = ""  # the line above, which holds the names where a ruler follows
        self._columns: list[tuple[int, int]] = []
        self._names: list[str] = []
        self._title = ""
        self._block = ("", "")
        self._values: dict[str, str] = {}

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tables'."""
        bare = text.strip()
        if not bare:
            return True
        if re.match(OPENS_SUMMARY, bare):
            return False  # of the next reader
        if _RULER.match(text):
            self._rule(text)
            return True
        block = re.match(r"(Pool|Profile): (\w+)$", bare)
        if block is not None:
            self._end_block()
            self._names, self._block = [], (block[1], block[2])
        elif "show " in bare:
            self.sink.add("sonic.shown", re.sub(r".*show ", "show ", bare)[:60])
        elif self._block[0] and len(bare.split()) == 2 and not self._names:
            name, value = bare.split()
            self._values[name] = value
        elif (self._names and (_PORT.match(bare) or self._names[0] in (*_PARTS, "NO."))) or (
            _PORT.match(bare) and self._begins_without_ruler(bare)
        ):
            self._row(self._cells(text))
        elif (picked := _WATCHED.match(bare)) is not None:  # a row without its table
            self.sink.add("sonic.read", True)
            self._storm(picked[1], picked[2], picked[3])
        elif re.match(
            r"(?:In|E)gress (?:PG dropped|headroom|shared pool)|Shared pool|(?:For n|N)amespace|Changed polling",
            bare,
        ):
            self._title = bare
        elif len(re.split(r"\s{2,}", bare)) > 1 or re.match(r"(```|\*|- |#|This command|Go Back|\.\.\.)", bare):
            self._before = text
            return True
        else:
            self._names = []
            return False
        self._before = text
        return True

    def _rule(self, text: str) -> None:
        """Begin a table where names stand above the ruler; in a block the ruler is but a frame."""
        above = self._before
        if self._block[0] and (re.match(r"\s*(Pool|Profile):", above) or self._values):
            return
        self._end_block()
        self._columns = [found.span() for found in re.finditer(r"-+", text)]
        # the last column ends with the line
        self._names = [name.upper() for name in self._cut(above)]

    def _begins_without_ruler(self, row: str) -> bool:
        """Take names from the line above where a row follows at once: somebody left the ruler out."""
        heads = re.split(r"\s{2,}", self._before.strip())
        if not re.match(OPENS, self._before) or len(heads) != len(re.split(r"\s{2,}", row)):
            return False
        self._names, self._columns = [name.upper()[:MOST_CELL] for name in heads], []
        return True

    def _cut(self, text: str) -> list[str]:
        return [text[begin:end].strip()[:MOST_CELL] for begin, end in self._columns]

    def _cells(self, text: str) -> dict[str, str]:
        cells = self._cut(text)
        if len(cells) == len(self._names) and " ".join(cells).split() == text.split():
            return dict(zip(self._names, cells, strict=True))
        # rows that were moved by whoever passed them on: columns are then two spaces apart
        return dict(zip(self._names, re.split(r"\s{2,}", text.strip()), strict=False))

    def _row(self, row: Mapping[str, str]) -> None:
        first = next(iter(row.values()))
        about = Subject(device=first)
        self.sink.add("sonic.read", True)
        names = self._names
        if names[0] in _PARTS:
            self._part(row)
        elif names[0] in ("PORT RX", "PORT TX"):
            self._pauses(row, names[0][-2:].lower(), about)
        elif names[0] == "QUEUE":
            self._storm(first, row.get("STATUS", ""), row.get("STORM DETECTED/RESTORED", ""))
        elif names[0] == "PORT" and "ACTION" in names:
            self.sink.add("sonic.watchdog", True)
        elif names[0] == "PORT" and "TXQ" in names:
            dropped, passed = _count(row.get("DROP/PKTS", "")), _count(row.get("COUNTER/PKTS", ""))
            if dropped:
                self.sink.add("sonic.queue-drop", (row.get("TXQ", ""), dropped, passed), about)
        elif names[:2] == ["PORT", "PG0"] and "dropped" in self._title:
            for name, cell in row.items():
                if name.startswith("PG") and _count(cell):
                    self.sink.add("sonic.pg-drop", (int(name[2:]), _count(cell)), about)
        elif names[:2] == ["PORT", "PG0"] and "headroom" in self._title:
            for name, cell in row.items():
                if name.startswith("PG") and _count(cell):
                    self.sink.add("sonic.headroom-used", (int(name[2:]), _count(cell)), about)
        elif names[0] == "IFACE":
            self._counters(row, about)
        elif "LOSSLESS PRIORITIES" in names:
            on = re.findall(r"\d", row.get("LOSSLESS PRIORITIES", ""))
            self.sink.add("sonic.pfc", tuple(int(one) for one in on), about)
        elif names[:3] == ["INTERFACE", "LANES", "SPEED"]:
            value = tuple(row.get(name, "") for name in ("OPER", "ADMIN", "SPEED", "MTU", "FEC", "TYPE"))
            self.sink.add("sonic.interface", value, about)
        elif names[0] == "INTERFACE" and "DESCRIPTION" in names:
            value = tuple(row.get(name, "") for name in ("OPER", "ADMIN", "DESCRIPTION"))
            self.sink.add("sonic.described", value, about)
        elif names[0] == "INTERFACE" and "LT OPER" in names:
            value = tuple(row.get(name, "") for name in ("OPER", "ADMIN", "LT ADMIN", "LT OPER"))
            self.sink.add("sonic.training", value, about)
        elif names[:2] == ["INTERFACE", "FLAP COUNT"]:
            self.sink.add("port.counter", ("Read", 0), about)
            if _count(row["FLAP COUNT"]):
                self.sink.add("port.counter", ("LinkDowned", _count(row["FLAP COUNT"])), about)
        elif names[:3] == ["INTERFACE", "FEC OPER", "FEC ADMIN"]:
            self.sink.add("sonic.fec", (row.get("FEC OPER", ""), row.get("FEC ADMIN", "")), about)
        elif names == ["PORT", "ERROR STATUS"] and not re.match(_NO_FAULT, row["ERROR STATUS"]):
            self.sink.add("sonic.module", row["ERROR STATUS"], about)
        elif names[0] == "NO." and "(Dw)" in row.get("PROTOCOL", ""):
            value = (row.get("PROTOCOL", ""), row.get("PORTS", "")[:80])
            self.sink.add("sonic.bundle-down", value, Subject(device=row.get("TEAM DEV", "")))

    def _storm(self, queue: str, status: str, counts: str) -> None:
        storm = re.match(r"(\d{1,12})/(\d{1,12})$", counts)
        if storm is not None and int(storm[1]):
            self.sink.add("sonic.storm", (int(storm[1]), int(storm[2]), status), Subject(device=queue))

    def _part(self, row: Mapping[str, str]) -> None:
        """Keep a supply or a fan that is not well, a sensor that warns."""
        name, status = row.get("FAN") or next(iter(row.values())), row.get("STATUS", "")
        online, wanted = row.get("OPER-STATUS", ""), row.get("ADMIN-STATUS", "")
        category, told = row.get("CATEGORY", ""), f"{row.get('SEVERITY', '')}: {row.get('DESCRIPTION', '')}"
        if category and told.startswith(("fatal", "warning")):  # what the switch's chip and its SDK report
            kind = "switch.status" if category.endswith("_hw") else "switch.process"
            self.sink.add(kind, (category, told), Subject(device=category))
        elif online in ("Offline", "Fault") and wanted == "up":
            self.sink.add("switch.status", (name, online), Subject(device=name))
        elif re.match(r"(?i)not ok|fail|bad|warning", status):
            self.sink.add("switch.status", (name, status), Subject(device=name))
        elif row.get("WARNING", "").lower() == "true":
            self.sink.add(
                "switch.status", (name, f"{row.get('TEMPERATURE', '')} C, warning"), Subject(device=name)
            )

    def _pauses(self, row: Mapping[str, str], way: str, about: Subject) -> None:
        self.sink.add("port.counter", ("Read", 0), about)
        for name, cell in row.items():
            if name.startswith("PFC") and _count(cell):
                self.sink.add("port.counter", (f"{way}_prio{name[3:]}_pause", _count(cell)), about)

    def _counters(self, row: Mapping[str, str], about: Subject) -> None:
        self.sink.add("port.counter", ("Read", 0), about)
        for name in (
            "RX_OK",
            "RX_ERR",
            "RX_DRP",
            "RX_DROPS",
            "RX_OVR",
            "TX_OK",
            "TX_ERR",
            "TX_DRP",
            "TX_OVR",
            "FEC_UNCORR",
        ):
            count = _count(row.get(name, ""))
            if count:
                label = f"sonic_{name.lower().replace('drops', 'drp')}"
                self.sink.add("port.counter", (label, count), about)

    def _end_block(self) -> None:
        kind, name = self._block
        got = {key: int(value) for key, value in self._values.items() if re.fullmatch(r"\d{1,15}", value)}
        if kind == "Profile" and "ecn" in self._values:
            least, most = got.get("green_min_threshold", -1), got.get("green_max_threshold", -1)
            self.sink.add("sonic.wred", (least, most, self._values["ecn"][:20]), Subject(device=name))
        elif kind == "Profile" and self._values:
            value = (got.get("size", -1), got.get("xon", -1), got.get("xoff", -1))
            self.sink.add("sonic.profile", value, Subject(device=name))
        elif kind == "Pool" and "size" in got:
            self.sink.add("sonic.pool", got["size"], Subject(device=name))
        self._values, self._block = {}, ("", "")

    def close(self) -> None:
        """Keep the last block."""
        self._end_block()


class SonicLog(LineReader):
    """Reads what SONiC's orchestration agent writes to syslog of ports, pauses and their watchdog."""

    talks = True

    def line(self, text: str) -> bool:
        """Take a line; False where another program wrote it."""
        if not re.search(OPENS_LOG, text):
            return False
        self.sink.add("sonic.read", True)
        lossy = re.search(r"Got PFC (\d+) frame\(s\) on lossy queue (\d+) port (\S+)", text)
        storm = re.search(
            r"PFC [Ww]atchdog (detected PFC )?storm (?:(detected|restored) )?on (?:queue .* )?port (\w+)"
            r"(?:, queue index (\d+))?", text,
        )  # fmt: skip
        state = re.search(r"Port (\S+) oper state set from (up|down) to (up|down)", text)
        if state is not None:
            self.sink.add("link.event", state[3], Subject(device=state[1]))
        elif lossy is not None:
            self.sink.add("sonic.pause-lossy", (int(lossy[2]), int(lossy[1])), Subject(device=lossy[3]))
        elif storm is not None:
            name = f"{storm[3]}:{storm[4]}" if storm[4] else storm[3]
            over = storm[2] == "restored"
            value = (1, int(over), "operational" if over else "stormed")
            self.sink.add("sonic.storm", value, Subject(device=name))
        return True


def _count(text: str) -> int:
    """A count with commas between thousands; 0 for `N/A` and what is no count."""
    digits = text.replace(",", "")
    return int(digits) if re.fullmatch(r"\d{1,20}", digits) else 0


def read_config(data: Any, sink: Sink) -> bool:
    """Take a config_db that was parsed from JSON; False where it is none."""
    tables = ("DEVICE_METADATA", "PORT", "PORT_QOS_MAP", "BUFFER_PROFILE", "BUFFER_POOL")
    if not isinstance(data, Mapping) or not any(isinstance(data.get(name), Mapping) for name in tables):
        return False
    sink.add("sonic.config", len(data))
    for port, row in _rows(data, "PORT_QOS_MAP"):
        on = str(row.get("pfc_enable", ""))
        sink.add("sonic.pfc", tuple(int(one) for one in on.split(",") if one.isdigit()), Subject(device=port))
        sink.add("sonic.trust", "dscp" if row.get("dscp_to_tc_map") else "none", Subject(device=port))
    for name, row in _rows(data, "BUFFER_PROFILE"):
        got = {key: int(row[key]) for key in ("size", "xon", "xoff") if str(row.get(key, ""))[:16].isdigit()}
        sink.add(
            "sonic.profile", (got.get("size", -1), got.get("xon", -1), got.get("xoff", -1)), Subject(device=name)
        )
    for name, row in _rows(data, "WRED_PROFILE"):
        least, most = str(row.get("green_min_threshold", "")), str(row.get("green_max_threshold", ""))
        if least.isdigit() and most.isdigit():
            sink.add(
                "sonic.wred", (int(least[:15]), int(most[:15]), str(row.get("ecn", ""))), Subject(device=name)
            )
    watchdog = data.get("PFC_WD")
    sink.add("sonic.watchdog", bool(watchdog))
    return True


def _rows(data: Mapping[str, Any], table: str) -> list[tuple[str, Mapping[str, Any]]]:
    rows = data.get(table)
    if not isinstance(rows, Mapping):
        return []
    return [(str(name)[:80], row) for name, row in list(rows.items())[:10_000] if isinstance(row, Mapping)]
