"""Linux' network interfaces: `ip link` and `ip address`, and the kernel's file of a bond (/proc/net/bonding)."""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Subject
from fabrictwin.diagnosis.readers.host.kernel_log import LOCAL_INTERFACE
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS_LINK = r"^\d+: [\w.@-]+: <[A-Z_,0-9-]*> mtu \d+ "
OPENS_BOND = r"^Ethernet Channel Bonding Driver: |^Slave Interface: \S+"


class IpLink(LineReader):
    """Reads `ip link`: which interfaces are meant to be up and have no carrier."""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        found = re.match(r"\d+: ([\w.-]+)(?:@\S+)?: <([A-Z_,0-9-]*)> mtu (\d+)(.*)", text)
        if found is not None:
            flags = found[2].split(",")
            if not LOCAL_INTERFACE.match(found[1]) and "LOOPBACK" not in flags:
                up = "UP" in flags and "LOWER_UP" in flags
                gone = "NO-CARRIER" in flags and "UP" in flags
                state = "up" if up else "no carrier" if gone else "off"
                self.sink.add("link.state", state, Subject(device=found[1]))
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
