"""`lspci -vvv` and `lspci -nn`: links, access control, requests, flags of errors (pciutils, ls-caps.c).

Flags of errors stay set until somebody clears them. Requests for registers that a device has not (UnsupReq), and
advisory errors for the same, come from enumerating it; receiver errors and damaged packets of the link's own kind
come with its training. What a device in use does not get by itself: time-outs of completions, malformed or
poisoned packets, overflows and errors of the protocol, replays that had to be given up (PCI Express Base
Specification, 6.2 and 7.8.4).
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [A-Z0-9][\w/ -]*(?: \[[0-9a-f]{4}\])?: |"
    r"^\s*ACSCtl:\s|^\s*LnkSta:\s+Speed"  # what grep let through, or an excerpt about one device
)
_DEVICE = re.compile(r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([^:]+?)(?: \[[0-9a-f]{4}\])?: (.*)")
_LINK = re.compile(r"Speed ([\d.]+|unknown)(?:GT/s)?(?: \((\w+)\))?, Width x(\d+)(?: \((\w+)\))?")
_TARGET = re.compile(r"LnkCtl2: Target Link Speed: (\d+(?:\.\d+)?)GT/s")
_CAPABILITY = re.compile(r"(?:LnkSta|LnkCap|LnkCtl|ACS|DevSta|DevCtl|DevCap|Capabilities)\w*:")
# by PCI class and maker: what RDMA between GPUs goes through
_ADAPTER = re.compile(
    r"(?i)infiniband controller|ethernet controller.*(?:mellanox|connectx|bluefield)|network controller.*mellanox|"
    r"^0207: |^0200: 15b3:"  # -n: numbers alone
)
_GPU = re.compile(r"(?i)(?:3D|VGA|Display)[\w ]* controller.*nvidia|3D controller.*nvidia|^030[0-9a-f]: 10de:")
# NVSwitches of A100 and H100 baseboards, by their numbers, or by what the database calls them
_NVSWITCH = re.compile(r"10de:(?:1af1|22a3)\b|NVIDIA Corporation (?:Device (?:1af1|22a3)\b|.*NVSwitch)")
_NAMED = re.compile(r"\[(?![0-9a-f]{4}(?::[0-9a-f]{4})?\])([^\]]+)\]")  # as sold, not a number of class or device


# uncorrectable errors: of the link's protocol and flow control, of packets, of the device itself
FATAL = frozenset(("DLP", "FCP", "RxOF", "MalfTLP", "ECRC", "TLP", "UncorrIntErr", "PoisonTLPBlocked"))
SERIOUS = FATAL | {"CmpltTO"}
REPLAYED = frozenset(
    ("Rollover", "Timeout")
)  # corrected, but for a packet that was sent again four times, or late
_ON = re.compile(r"(\w+)\+")
_STATUS = ("UESta", "CESta", "DevSta", "DpcSta", "SltSta")


def _flags(text: str, name: str) -> frozenset[str] | None:
    """Names of the flags that are set in a row of this name; None where it is another row."""
    return frozenset(_ON.findall(text)) if text.startswith(f"{name}:") else None


def _status(text: str) -> tuple[str, str] | None:
    """Return the kind of a row of status and the flags that count; None where it tells nothing."""
    for name in _STATUS:
        on = _flags(text, name)
        if on is None:
            continue
        counts = {
            "UESta": on & SERIOUS,
            "CESta": on if on & REPLAYED else frozenset(),
            "DevSta": on & {"FatalErr"},
            "DpcSta": on & {"Trigger"},
            "SltSta": on & {"PowerFlt"},
        }[name]
        return (name, " ".join(sorted(counts))) if counts else None
    return None


class Lspci(LineReader):
    """Reads lspci's output."""

    _device = _kind = ""
    _able: tuple[float, int] = (0.0, 0)
    _bridge = False
    _driver = ""  # that has the device
    _section = ""  # the row that a row without a name of its own goes on with
    _virtual = False  # a virtual function, whose control registers read as nothing
    _payload, _tags = 0, False  # what the device can: bytes of a packet, more than 32 reads at a time
    _nameless = True  # capabilities of a device that the file does not name

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        if text[:1] not in (" ", "\t", ""):
            found = _DEVICE.match(text)
            if found is None:
                is_capability = self._nameless and bool(_CAPABILITY.match(text))
                if is_capability:
                    self._attribute(text.strip())
                return is_capability
            self._nameless = False
            self._device = found[1] if found[1].count(":") == 2 else f"0000:{found[1]}"
            whole = f"{found[2]}: {found[3]}"
            self._kind = "gpu" if _GPU.search(whole) else "nic" if _ADAPTER.search(whole) else ""
            self._bridge, self._able = "bridge" in found[2].lower(), (0.0, 0)
            self._driver, self._section, self._payload, self._tags = "", "", 0, False
            self._virtual = "Virtual Function" in whole
            if self._bridge and _NVSWITCH.search(whole):
                self.sink.add("pci.nvswitch", True, self._about())
            if self._kind:
                named = _NAMED.search(found[3])
                self.sink.add(f"pci.{self._kind}", named[1] if named else found[3][:80], self._about())
                if "(rev ff)" in whole:
                    self.sink.add("pci.gone", self._kind, self._about())
            self.sink.add("pci.read", True)
            return True
        self._attribute(text.strip())
        return True

    def _about(self) -> Subject:
        return Subject(device=self._device)

    def _attribute(self, bare: str) -> None:
        link = _LINK.search(bare) if bare.startswith(("LnkCap:", "LnkSta:")) else None
        if link is not None:
            speed = 0.0 if link[1] == "unknown" or link[1].count(".") > 1 else float(link[1].strip(".") or 0)
            if bare.startswith("LnkCap:"):
                self._able = (speed, int(link[3]))
            elif self._kind and self._able[1] and (speed < self._able[0] or int(link[3]) < self._able[1]):
                value = (self._kind, speed, int(link[3]), *self._able)
                self.sink.add("pci.downgraded", value, self._about())
            elif self._nameless and link[4] == "ok" and link[2] == "ok":
                self.sink.add("pci.read", True)
            elif (self._nameless or (self._kind and not self._able[1])) and (
                link[4] == "downgraded" or int(link[3]) < self._able[1]
            ):  # also where only the states of a device's link were passed on
                self.sink.add("pci.narrow-somewhere", (int(link[3]), self._able[1]), self._about())
            return
        target = _TARGET.match(bare)
        if target is not None and self._kind and float(target[1]) < self._able[0]:
            self.sink.add("pci.target", (self._kind, float(target[1]), self._able[0]), self._about())
            return
        if bare.startswith("ACSCtl:"):
            on = frozenset(re.findall(r"(\w+)\+", bare))
            if (self._bridge or self._nameless) and ("ReqRedir" in on or "CmpltRedir" in on):
                self.sink.add("pci.acs", " ".join(sorted(on)), self._about())
            else:
                self.sink.add("pci.acs-harmless", " ".join(sorted(on)), self._about())
            return
        self._kept(bare)
        named = re.match(r"(\w+):\s", bare)
        self._section = named[1] if named else self._section
        if self._section in ("DevCap", "DevCtl") and not self._virtual:
            self._requests(bare)

    def _kept(self, bare: str) -> None:
        """Take flags that stay set, and the driver."""
        found = _status(bare)
        driver = re.match(r"Kernel (driver in use|modules): (.*)$", bare)
        if found is not None and (self._kind or self._bridge or self._nameless):
            self.sink.add("pci.status", (*found, self._kind), self._about())
        elif driver is not None and self._kind:
            if driver[1] != "modules":
                self._driver = driver[2]
                self.sink.add("pci.driver", (self._kind, driver[2][:40]), self._about())
            elif not self._driver:
                self.sink.add("pci.undriven", (self._kind, driver[2][:80]), self._about())

    def _requests(self, bare: str) -> None:
        """Take what the device can have in flight, and what it is allowed to."""
        payload = re.search(r"MaxPayload (\d+) bytes", bare)
        tags = re.search(r"\bExtTag([+-])", bare)
        requests = re.search(r"MaxReadReq (\d+) bytes", bare)
        if self._section == "DevCap":
            self._payload = int(payload[1][:6]) if payload else self._payload
            self._tags = tags[1] == "+" if tags else self._tags
            return
        if payload is not None and self._kind:
            self.sink.add("pci.payload", (self._kind, int(payload[1][:6]), self._payload), self._about())
        if tags is not None and tags[1] == "-" and self._tags and self._kind == "nic":
            self.sink.add("pci.few-tags", self._kind, self._about())
        if requests is not None and self._kind == "nic":
            self.sink.add("pci.read-request", int(requests[1]), self._about())
