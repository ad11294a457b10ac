"""Adapters and switches one at a time: ibstat, ibv_devinfo, show_gids, ibdev2netdev, ibswinfo, and sysfs trees.

sysfs is read as `path:value` lines (grep's way of printing a tree) or `path value`.
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Place, Sink, Subject
from fabrictwin.diagnosis.readers.fabric.counters import counter_name
from fabrictwin.diagnosis.readers.fabric.driver_counters import driver_counter
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS_IBSTAT = (
    r"^CA '[\w.:-]+'\s*$|^Port \d+:\s*$|"  # an excerpt may begin at a port
    r"^\s*(?:State: (?:Active|Down|Initializing|Armed)|"  # or hold the states alone
    r"Physical state: (?:Link(?:Up|Down|ErrorRecovery)|Polling|Disabled|Sleep|(?:PortConfiguration)?Training|"
    r"Phy ?Test))\s*$"
)
OPENS_IBSTATUS = r"^Infiniband device '\S+' port \d+ status:|\w+ port \d+(?: \(\w+\))? ==> \S+ \("
OPENS_DEVINFO = r"^hca_id:\s+\S+"
OPENS_DEVICES = r"^\s*device\s+node GUID\s*$"
OPENS_GIDS = r"^DEV\s+PORT\s+INDEX\s+GID\s+IPv4|^[\w.]+\s+\d+\s+\d+\s+[0-9a-f]{4}:[0-9a-f:]{34}\s"
OPENS_SWITCH = (
    r"^(?:Switch-?IB|Quantum|[\w-]+) .*Mellanox Technologies|^part number\s+\||"
    r"^psu\d\.(?:status|dc|fan|power|temp)\b[^:|]{0,12}:|^fans\s*: \w+\s*$"  # -o status
)
OPENS_SYSFS = (
    r"^\S*/sys/\S+/(?:infiniband|net)/\S+|^==> \S*/infiniband/\S+ <==$|"
    r"^(?:\./)?(?:infiniband/)?(?:mlx|ib|roce|rdmap|hfi|irdma|bnxt)[\w.]*/ports/\d+/"
)
HOT_ASIC = (
    100  # degrees, where switches warn of their chip (NVIDIA, thermal threshold definitions of SB7xx0 to SN5000)
)


class Ibstat(LineReader):
    """Reads ibstat's output."""

    _device = _port = ""
    _said: frozenset[str] = frozenset()  # of a port that no line names
    _nameless = 0  # such ports

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        device = re.match(r"CA '([\w.:-]+)'", bare)
        port = re.match(r"Port (\d+):\s*", bare)
        if device is not None:
            self._device, self._port = device[1], ""
            return True
        if port is not None:
            self._port = port[1]
            self.sink.add("hca.port", True, Subject(device=self._device, port=port[1]))
            bare = bare[port.end() :]  # some put the state behind it
            if not bare:
                return True
        name, colon, value = bare.partition(":")
        value = value.strip()
        if not colon:
            return not bare
        if not self._device and not self._port and name in ("State", "Physical state"):
            self._nameless += not self._said or name in self._said
            self._said = (self._said if name not in self._said else frozenset()) | {name}
        about = Subject(device=self._device, port=self._port)
        if not self._device and not self._port and self._nameless:
            about = Subject(device=f"port {self._nameless} of the list")
        if name == "State":
            self.sink.add("hca.state", value, about)
        elif name == "Physical state":
            self.sink.add("hca.physical", value, about)
        elif name == "Rate" and re.fullmatch(r"[\d.]{1,9}", value):
            self.sink.add("hca.rate-gbps", float(value) if value.count(".") < 2 else 0.0, about)
        elif name == "Link layer":
            self.sink.add("hca.layer", value, about)
        elif name in ("SM lid", "Base lid") and value.isdigit():
            self.sink.add(f"hca.{name.split()[0].lower()}-lid", int(value), about)
        elif name == "Firmware version":
            self.sink.add("hca.firmware", value, Subject(device=self._device))
        elif name == "CA type":
            self.sink.add("hca.type", value, Subject(device=self._device))
        elif name == "System image GUID":
            self.sink.add("hca.card", value, Subject(device=self._device))
        return bool(re.match(r"[A-Z#][\w ]{0,40}$", name))


_STATUS_KINDS = {"state": "hca.state", "phys state": "hca.physical", "link_layer": "hca.layer"}


class Ibstatus(LineReader):
    """Reads ibstatus, and ibdev2netdev's list of which network interface is whose."""

    _about = Subject()

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tools'."""
        bare = text.strip()
        head = re.match(r"Infiniband device '([\w.:-]+)' port (\d+) status:", bare)
        netdev = re.match(
            r"(?:[0-9a-f:.]+ )?(\w+) (?:\(.*\) .*)?port (\d+)(?: \(\w+\))? ==> (\S+) \((\w+)\)", bare
        )
        if head is not None:
            self._about = Subject(device=head[1], port=head[2])
            return True
        if netdev is not None:
            # the interface of an InfiniBand adapter is down where nobody gave it an address
            self.sink.add("hca.netdev", (netdev[3], netdev[4]), Subject(device=netdev[1], port=netdev[2]))
            return True
        name, colon, value = (part.strip() for part in bare.partition(":"))
        if not colon:
            return not bare
        if name == "rate":
            rate = re.match(r"([\d.]+) Gb/sec", value)
            if rate is not None and rate[1].count(".") < 2:
                self.sink.add("hca.rate-gbps", float(rate[1]), self._about)
        elif name in _STATUS_KINDS:
            said = value.split(": ")[-1]
            self.sink.add(_STATUS_KINDS[name], said.capitalize() if name == "state" else said, self._about)
        return name in ("default gid", "base lid", "sm lid", "rate", *_STATUS_KINDS)


class Devinfo(LineReader):
    """Reads ibv_devinfo's output."""

    _device = _port = ""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        found = re.match(r"\s*([\w.]+)(?:\[\s*\d+\])?:\s*(.*?)\s*$", text)
        if found is None:
            return not text.strip()
        name, value = found.groups()
        about = Subject(device=self._device, port=self._port)
        if name == "hca_id":
            self._device, self._port = value, ""
        elif name == "port":
            self._port = value
            self.sink.add("hca.port", True, Subject(device=self._device, port=value))
        elif name == "state":
            self.sink.add("hca.state", _state(value), about)
        elif name == "link_layer":
            self.sink.add("hca.layer", value, about)
        elif name in ("active_mtu", "max_mtu"):
            self.sink.add(f"hca.{name.replace('_', '-')}", int(re.match(r"\d*", value)[0] or 0), about)  # type: ignore[index]
        elif name == "sm_lid" and value.isdigit():
            self.sink.add("hca.sm-lid", int(value), about)
        elif name == "fw_ver":
            self.sink.add("hca.firmware", value, Subject(device=self._device))
        elif name == "node_guid":
            self.sink.add("hca.guid", value, Subject(device=self._device))
        elif name == "sys_image_guid":
            self.sink.add("hca.card", value, Subject(device=self._device))
        elif name == "phys_state":
            self.sink.add("hca.physical", value.split(" (")[0], about)
        elif name == "active_width":
            lanes = re.match(r"(\d{1,2})X", value)
            self.sink.add("hca.width", int(lanes[1]) if lanes else 0, about)
        elif name == "active_speed":
            self.sink.add("hca.speed", value, about)
        elif name == "GID":
            self.sink.add("hca.gid", value, about)
        return True


class Devices(LineReader):
    """Reads ibv_devices: the names of a host's adapters, or that it lists none."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._head: Place | None = None  # of a table that no row has followed

    def line(self, text: str) -> bool:
        """Take a line; False after the table."""
        row = re.match(r"\s*([A-Za-z][\w.-]*)\s+([0-9a-f]{16})\s*$", text)
        if row is not None:
            self.sink.add("hca.guid", row[2], Subject(device=row[1]))
            self._head = None
        elif re.match(OPENS_DEVICES, text):
            self._head = self.sink.here()
        return row is not None or bool(re.match(OPENS_DEVICES, text)) or set(text) <= set("- \t")

    def close(self) -> None:
        """Keep a table without a row."""
        if self._head is not None:
            self.sink.add("hca.none", True, place=self._head)


def _state(text: str) -> str:
    named = re.search(r"PORT_(\w+)", text)
    return {"ACTIVE": "Active", "DOWN": "Down", "INIT": "Initializing", "ARMED": "Armed"}.get(
        named[1] if named else "", text
    )


class Gids(LineReader):
    """Reads show_gids' table."""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the table's."""
        words = text.split()
        if not words or words[0] == "DEV" or set(text.strip()) <= set("- \t") or text.startswith("n_gids"):
            return True
        if len(words) < 5 or not re.fullmatch(r"[0-9a-f:]{15,39}", words[3]):
            return False
        version = next((word for word in words[4:] if re.fullmatch(r"v[12]", word)), "")
        address = next((word for word in words[4:] if re.fullmatch(r"\d+\.\d+\.\d+\.\d+", word)), "")
        if words[2].isdigit():
            value = (int(words[2]), words[3], address, version)
            self.sink.add("gid", value, Subject(device=words[0], port=words[1]))
        return True


class SwitchInfo(LineReader):
    """Reads ibswinfo's output: what a switch says of itself, its supplies, fans and temperatures."""

    _NUMBERS = re.compile(r"power \(W\)|temperature|temp \(C\)|\(rpm\)|^ports$")
    _ASIC = re.compile(r"(?:temperature|max temp) \(C\)$")

    _part = _name = ""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        if not bare or set(bare) <= set("=-"):
            self._part = ""
            return True
        name, bar, value = (part.strip() for part in bare.partition("|"))
        if not bar and re.match(r"psu\d|fan|temp|uptime", bare):  # as `-o status` and `-o vitals` have it
            name, bar, value = (part.strip() for part in bare.partition(":"))
            name += " status" if re.search(r"\.(?:dc|fan)$|^fans$", name) else ""
        if not bar:
            failed = re.search(r"(?i)\b(error|failed|cannot|unable)\b", bare)
            if failed is not None:
                self.sink.add("switch.unreadable", bare[:160], Subject(device=self._name))
            return "Mellanox" in bare or "NVIDIA" in bare or failed is not None
        unit = re.match(r"(PSU\d+|QSFP\S*|module\S*)", name)
        self._part = unit[1] if unit else self._part
        about = Subject(device=self._name or "switch", port=self._part)
        if name in ("serial number", "GUID"):
            self._name = self._name or value
        elif self._NUMBERS.search(name):
            if not re.fullmatch(r"-?\d+(?:\.\d*)?", value):
                self.sink.add("switch.unreadable", f"{name}: {value[:60]}", about)
            elif (self._ASIC.match(name) and float(value) >= HOT_ASIC) or ("(rpm)" in name and float(value) == 0):
                self.sink.add("switch.status", (name, value), about)
            self.sink.add("switch.read", True, Subject(device=self._name or "switch"))
        elif name.endswith("status") or name == "DC power":
            self.sink.add("switch.read", True, Subject(device=self._name or "switch"))
            if value.upper() not in ("OK", "PRESENT", "ACTIVE"):
                self.sink.add("switch.status", (name, value[:60]), about)
        return True


class SysfsTree(LineReader):
    """Reads files of /sys/class/infiniband as `path:value`, or each below its path as head and tail print them."""

    _PATH = re.compile(
        r"\S*?([\w.-]+)/ports/(\d+)/"
        r"(?:(counters|hw_counters)/(\w+)|(state|phys_state|rate|link_layer))\s*[:= ]\s*(.*)$"
    )
    _OF_DEVICE = re.compile(r"\S*/infiniband/([\w.-]+)/(hca_type|sys_image_guid|fw_ver)\s*[:= ]\s*(\S+)$")
    _KINDS = {"hca_type": "hca.type", "sys_image_guid": "hca.card", "fw_ver": "hca.firmware"}  # noqa: RUF012
    _headed = ""  # the path whose value the next line is

    def line(self, text: str) -> bool:
        """Take a line; False where it is no file of such a tree."""
        bare = text.strip()
        head = re.fullmatch(r"==> (\S+) <==", bare)
        if head is not None or not bare:
            self._headed = head[1] if head else ""
            return True
        if self._headed:
            bare, self._headed = f"{self._headed}:{bare}", ""
        of_device = self._OF_DEVICE.match(bare)
        if of_device is not None:
            self.sink.add(self._KINDS[of_device[2]], of_device[3], Subject(device=of_device[1]))
            return True
        found = self._PATH.match(bare)
        running = re.match(r"\S*/net/([\w.-]+)/operstate\s*[: ]\s*(up|down)$", bare)
        if running is not None:
            self.sink.add("link.state", "up" if running[2] == "up" else "off", Subject(device=running[1]))
            return True
        if found is None:
            return not bare or "/infiniband/" in bare[:200] or bare.startswith("/sys/")
        device, port, kind, counter, name, value = found.groups()
        about = Subject(device=device, port=port)
        value = value.strip()
        if kind is not None:
            if re.fullmatch(r"\d{1,20}", value):
                label = counter_name(counter) if kind == "counters" else driver_counter(counter)
                self.sink.add("port.counter", ("Read", 0), about)
                if int(value):
                    self.sink.add("port.counter", (label, int(value)), about)
        elif name == "state":
            self.sink.add("hca.state", value.split(": ")[-1].capitalize(), about)
        elif name == "phys_state":
            self.sink.add("hca.physical", value.split(": ")[-1], about)
        elif name == "rate":
            rate = re.match(r"([\d.]+) Gb/sec \((\d+)X(?: (\w+))?", value)
            if rate is not None and rate[1].count(".") < 2:
                self.sink.add("hca.rate-gbps", float(rate[1]), about)
                self.sink.add("hca.width", int(rate[2][:3]), about)
        elif name == "link_layer":
            self.sink.add("hca.layer", value, about)
        return True
