"""Linux' network interfaces: `ip link` and `ip address`, and the kernel's file of a bond (/proc/net/bonding)."""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.host.interface_counters import keep
from fabrictwin.diagnosis.readers.host.kernel_log import LOCAL_INTERFACE
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS_LINK = r"^\d+: [\w.@-]+: <[A-Z_,0-9-]*> mtu \d+ "
# as the kernel's rtnl_link_stats64 names what `ip -s` heads in short
_COUNTS = {
    "missed": "missed_errors", "overrun": "over_errors", "crc": "crc_errors", "frame": "frame_errors",
    "fifo": "fifo_errors", "carrier": "carrier_errors", "length": "length_errors",
}  # fmt: skip
OPENS_BOND = r"^Ethernet Channel Bonding Driver: |^Slave Interface: \S+"


def keep_state(sink: Sink, interface: str, flags: list[str]) -> None:
    """Keep whether an interface that leads to other hosts is meant to be up, and has a carrier."""
    if not LOCAL_INTERFACE.match(interface) and "LOOPBACK" not in flags:
        up = "UP" in flags and "LOWER_UP" in flags
        gone = "NO-CARRIER" in flags and "UP" in flags
        state = "up" if up else "no carrier" if gone else "off"
        # a member of a bond is cabled
        bonded = {"up": "member", "no carrier": "member without carrier"} if "SLAVE" in flags else {}
        sink.add("link.state", bonded.get(state, state), Subject(device=interface))


class IpLink(LineReader):
    """Reads `ip link`: which interfaces are meant to be up and have no carrier, and what `-s` counts of them."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._interface = ""
        self._names: list[str] = []  # of the counts in the next line

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        found = re.match(r"\d+: ([\w.-]+)(?:@\S+)?: <([A-Z_,0-9-]*)> mtu (\d+)(.*)", text)
        counted = re.match(r"\s+(RX|TX)( errors)?:\s+([a-z_ ]+)$", text.rstrip())
        if counted is not None:
            self._names = [f"{counted[1].lower()}_{_COUNTS.get(one, one)}" for one in counted[3].split()]
            return True
        if self._names and re.fullmatch(r"(?:\s*\d+)+\s*", text):
            counts = dict(zip(self._names, (int(one[:20]) for one in text.split()), strict=False))
            keep(self.sink, self._interface, counts)
            self._names = []
            return True
        if found is not None:
            self._interface = found[1]
            keep_state(self.sink, found[1], found[2].split(","))
            return True
        return bool(
            re.match(r"\s+(?:link/|inet6? |valid_lft|altname|vf \d|(?:RX|TX): |RX errors|TX errors|\d)", text)
        )


class Bond(LineReader):
    """Reads a bond's members, which of them have a link, and how often each lost it."""

    _member = ""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the file's."""
        name, colon, value = (part.strip() for part in text.strip().partition(":"))
        about = Subject(device=self._member or "bond")
        if name == "Slave Interface":
            self._member = value
        elif name == "MII Status":
            self.sink.add("bond.member" if self._member else "bond.state", value, about)
        elif name == "Link Failure Count" and value.isdigit() and int(value[:9]):
            self.sink.add("port.counter", ("LinkDowned", int(value[:9])), about)
        elif name == "Ethernet Channel Bonding Driver":
            self._member = ""
        return bool(colon) or len(text.split()) < 2
