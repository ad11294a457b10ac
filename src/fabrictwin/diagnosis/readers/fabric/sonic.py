"""SONiC: the `show` commands of counters, PFC, its watchdog and buffers (sonic-utilities), and config_db.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fabrictwin.diagnosis.evidence import Sink, Subject

OPENS = (
    r"^\s*Port (?:Rx|Tx)\s+PFC0|^\s*(?:admin@\S+\s*)?\$ show |^\s*Pool: \w+|^\s*Profile: \w+|"
    r"^\s*QUEUE\s+STATUS\s+STORM DETECTED|^\s*PORT\s+(?:ACTION|DETECTION)|^\s*IFACE\s+STATE\s+RX_OK|"
    r"\*\*show (?:pfc|pfcwd|buffer|interfaces|queue)|\$ show (?:pfc|pfcwd|buffer|interfaces|queue)"
)


class Sonic:
    """Reads tables of SONiC's `show`."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._table, self._heads = "", [""]
        self._block = ("", "")
        self._values: dict[str, str] = {}

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tables'."""
        bare = text.strip()
        if not bare or set(bare) <= set("- "):
            return True
        pfc = re.match(r"Port (Rx|Tx)\s+PFC0", bare)
        block = re.match(r"(Pool|Profile): (\w+)", bare)
        if pfc is not None:
            self._table = f"pfc-{pfc[1].lower()}"
        elif block is not None:
            self._end_block()
            self._table, self._block = "buffer", (block[1], block[2])
        elif bare.startswith("QUEUE") and "STORM" in bare:
            self._table = "pfcwd"
        elif re.match(r"IFACE\s+STATE\s+RX_OK", bare):
            self._table, self._heads = "counters", bare.split()
        elif "show " in bare:
            self.sink.add("sonic.shown", re.sub(r".*show ", "show ", bare)[:60])
        elif self._table:
            return self._row(bare)
        else:
            return bool(re.match(r"(```|\*|- |#|This command|Go Back)", bare))
        return True

    def _row(self, bare: str) -> bool:
        words = bare.split()
        if self._table.startswith("pfc-") and len(words) == 9:
            for priority, word in enumerate(words[1:]):
                count = word.replace(",", "")
                if count.isdigit() and int(count):
                    value = (f"{self._table[4:]}_prio{priority}_pause", int(count))
                    self.sink.add("port.counter", value, Subject(device=words[0]))
            self.sink.add("port.counter", ("Read", 0), Subject(device=words[0]))
        elif self._table == "buffer" and len(words) == 2:
            self._values[words[0]] = words[1]
        elif self._table == "pfcwd":
            storm = re.match(r"(Ethernet\d+:\d+)\s+(\S+)\s+(\d+)/(\d+)", bare)
            if storm is not None and int(storm[3]):
                self.sink.add("sonic.storm", (int(storm[3]), int(storm[4]), storm[2]), Subject(device=storm[1]))
        elif self._table == "counters" and words[0].startswith("Ethernet"):
            row = dict(zip(self._heads, words, strict=False))
            for name in ("RX_ERR", "RX_DRP", "RX_OVR", "TX_ERR", "TX_DRP", "TX_OVR"):
                count = row.get(name, "0").replace(",", "")
                if count.isdigit() and int(count):
                    self.sink.add("port.counter", (f"sonic_{name.lower()}", int(count)), Subject(device=words[0]))
        else:
            self._table = ""
            return False
        return True

    def _end_block(self) -> None:
        kind, name = self._block
        if kind == "Profile" and self._values:
            got = {key: int(value) for key, value in self._values.items() if re.fullmatch(r"\d{1,15}", value)}
            value = (got.get("size", -1), got.get("xon", -1), got.get("xoff", -1))
            self.sink.add("sonic.profile", value, Subject(device=name))
        elif kind == "Pool" and re.fullmatch(r"\d{1,15}", self._values.get("size", "")):
            self.sink.add("sonic.pool", int(self._values["size"]), Subject(device=name))
        self._values = {}

    def close(self) -> None:
        """Keep the last block."""
        self._end_block()


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
