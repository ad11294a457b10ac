"""Packets, errors and drops of Linux' interfaces: `netstat -i`, `ifconfig`, /proc/net/dev, and `ip -s link`."""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.host.kernel_log import LOCAL_INTERFACE
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^(?:Kernel Interface table|Iface\s+MTU\s)|^Inter-\|\s+Receive|"
    r"^[\w.:@-]+: flags=\d+<|^[\w.:-]+\s+Link encap:"
)
# columns of netstat and of /proc/net/dev, by the names of the kernel's rtnl_link_stats64
_NETSTAT = {
    "RX-OK": "rx_packets", "RX-ERR": "rx_errors", "RX-DRP": "rx_dropped", "RX-OVR": "rx_over_errors",
    "TX-OK": "tx_packets", "TX-ERR": "tx_errors", "TX-DRP": "tx_dropped", "TX-OVR": "tx_fifo_errors",
}  # fmt: skip
_PROC = (
    "", "rx_packets", "rx_errors", "rx_dropped", "rx_fifo_errors", "rx_frame_errors", "", "",
    "", "tx_packets", "tx_errors", "tx_dropped", "tx_fifo_errors", "", "tx_carrier_errors", "",
)  # fmt: skip
_IFCONFIG = {
    "errors": "errors", "dropped": "dropped", "overruns": "over_errors", "frame": "frame_errors",
    "carrier": "carrier_errors", "packets": "packets",
}  # fmt: skip


def keep(sink: Sink, interface: str, counts: dict[str, int]) -> None:
    """Keep the counts of an interface that leads to other hosts."""
    if interface and not LOCAL_INTERFACE.match(interface):
        about = Subject(device=interface)
        sink.add("port.counter", ("Read", 0), about)
        for name, value in counts.items():
            if name and value:
                sink.add("port.counter", (name, value), about)


class InterfaceCounters(LineReader):
    """Reads tables and lists of interfaces."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._names: list[str] = []
        self._interface = ""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tools'."""
        bare = text.strip()
        words = bare.split()
        if not words or bare == "Kernel Interface table":
            return True
        if words[:2] == ["Iface", "MTU"]:
            self._names = words
            return True
        if self._names and len(words) >= len(self._names) - 1 and words[1].isdigit():
            return self._netstat(words)
        proc = re.match(r"([\w.@-]+):\s*((?:\d+\s+){15}\d+)$", bare)
        if proc is not None:
            keep(self.sink, proc[1], dict(zip(_PROC, map(_number, proc[2].split()), strict=True)))
            return True
        head = re.match(r"([\w.:@-]+?)(?:: flags=\d+<([A-Z,_]*)>|\s+Link encap:(\w+))", text)
        if head is not None:
            self._interface = head[1]
            return True
        found = re.match(r"(RX|TX):? (packets|errors)", bare)
        if found is not None and self._interface:
            way = found[1].lower()
            pairs = re.findall(r"(\w+)[: ](\d{1,20})\b", bare)
            counts = {f"{way}_{_IFCONFIG[n]}": _number(v) for n, v in pairs if n in _IFCONFIG}
            keep(self.sink, self._interface, counts)
            return True
        return bool(re.match(r"(?:Inter-\||face \||\w[\w ]*\|)", bare)) or (
            bool(self._interface) and text[:1] in " \t"
        )

    def _netstat(self, words: list[str]) -> bool:
        if not all(word.isdigit() for word in words[1:-1]):
            return False
        counts = {_NETSTAT[n]: _number(v) for n, v in zip(self._names, words, strict=False) if n in _NETSTAT}
        keep(self.sink, words[0], counts)
        return True


def _number(text: str) -> int:
    return int(text[:20]) if text.isascii() and text.isdigit() else 0
