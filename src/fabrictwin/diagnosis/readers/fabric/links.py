"""Links of an InfiniBand fabric: ibnetdiscover (with and without -p), iblinkinfo, ibportstate (infiniband-diags).

Each link becomes a fact of its port: far end, width, speed by name, state.
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^(?:Switch|Ca|Rt)\s+\d+ \"[SHR]-[0-9a-f]+\"|^switchguid=0x|^caguid=0x|"
    r"^(?:SW|CA|RT)\s+\d+\s+\d+ 0x[0-9a-f]+ \d+x |^Switch: 0x[0-9a-f]+ |^CA: .*:\s*$|"
    r"^\s+\d+\s+\d+\[\s*\]\s*==\(|^0x[0-9a-f]+ \".*\"\s+\d+\s+\d+\[\s*\]\s*==\("
)
OPENS_MANAGER = r"^sminfo: "
OPENS_PORT = r"^# Port info: (?:Lid|DR path) "
_NODE = re.compile(r"(Switch|Ca|Rt)\s+(\d+) \"([SHR]-[0-9a-f]+)\"\s*(?:#\s*\"(.*)\")?")
_PORT = re.compile(
    r"\[(\d+)\](?:\([0-9a-f]+\))?\s+\"([SHR]-[0-9a-f]+)\"\[(\d+)\](?:\([0-9a-f]+\))?\s*#(.*?)\s(\d+)x([A-Z]+\d*)"
)
_PLAIN = re.compile(
    r"(SW|CA|RT)\s+(\d+)\s+(\d+) (0x[0-9a-f]+) (\d+)x (\S+)\s*(?:- (SW|CA|RT)\s+(\d+)\s+(\d+) (0x[0-9a-f]+) )?(.*)"
)
_LINKINFO = re.compile(
    r"(?:(0x[0-9a-f]+)(?: \"\s*(.*?)\")?\s+)?(\d+)\s+(\d+)\[\s*\]\s*==\(\s*(.*?)\s*\)==>\s*"
    r"(?:(?:0x[0-9a-f]+\s+)?(\S+)\s+(\d+)\[\s*\] \"(.*?)\"|\[\s*\] \"\")?\s*(\(.*)?$"
)
_RATE = re.compile(r"(\d+)X\s+([\d.]+) Gbps\s+(\S+)/\s*(\S+)")

# Gb/s of a lane, by the names that the tools print and the speeds in iblinkinfo (IBTA vol. 1, 14.2.5.6)
LANE_GBPS = {
    "SDR": 2.5,
    "DDR": 5.0,
    "QDR": 10.0,
    "FDR10": 10.3125,
    "FDR": 14.0625,
    "EDR": 25.78125,
    "HDR": 53.125,
    "NDR": 106.25,
    "XDR": 200.0,
}


class Links(LineReader):
    """Reads lists of links."""

    _node = _name = ""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tools'."""
        bare = text.strip()
        if not bare or bare.startswith("#"):
            return True
        node = _NODE.match(bare)
        if node is not None:
            self._node, self._name = node[3], (node[4] or node[3]).strip()
            self.sink.add("fabric.node", (node[1].upper()[:2], int(node[2])), Subject(device=self._name))
            return True
        port = _PORT.match(bare)
        if port is not None and self._node:
            self._link(port[1], int(port[5]), port[6], f"{port[2]}[{port[3]}]")
            return True
        plain = _PLAIN.match(bare)
        if plain is not None:
            self._plain(plain)
            return True
        if re.match(r"(?:Switch|CA): ", bare):
            self._name = re.sub(r"^0x[0-9a-f]+ (?=\S)", "", bare.split(" ", 1)[1].rstrip(":"))
            return True
        info = _LINKINFO.match(bare)
        if info is not None:
            self._linkinfo(info)
            return True
        return bool(re.match(r"(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=|DR path|Warning:", bare))

    def _link(self, port: str, width: int, speed: str, far: str) -> None:
        self.sink.add("fabric.link", (width, speed, far, "Active"), Subject(device=self._name, port=port))

    def _plain(self, found: re.Match[str]) -> None:
        kind, _, port, guid, width, speed, other, *_, rest = found.groups()
        names = re.search(r"\( '(.*?)' - '(.*?)' \)", rest)
        name = names[1] if names else rest.strip().strip("'")
        self.sink.add("fabric.node", (kind, 0), Subject(device=name or guid))
        about = Subject(device=name or guid, port=port)
        if other is None:
            self.sink.add("fabric.no-link", (int(width), speed), about)
        else:
            self.sink.add("fabric.link", (int(width), speed, names[2] if names else "", "Active"), about)

    def _linkinfo(self, found: re.Match[str]) -> None:
        _, name, _, port, middle, _, far_port, far, remark = found.groups()
        about = Subject(device=(name or self._name).strip(), port=port)
        rate = _RATE.search(middle)
        if rate is not None:
            width, lane = int(rate[1]), float(rate[2])
            speed = min(LANE_GBPS, key=lambda known: abs(LANE_GBPS[known] - lane))
            self.sink.add("fabric.link", (width, speed, f"{far or ''}[{far_port or ''}]", rate[3]), about)
            if rate[3] not in ("Active",):
                self.sink.add("port.state", (rate[3], rate[4]), about)
        else:
            self.sink.add("fabric.no-link", (0, middle), about)
            states = re.fullmatch(r"(\S+?)\s*/\s*(\S+)", middle)
            if states is not None:
                self.sink.add("port.state", (states[1], states[2]), about)
        could = re.search(r"Could be ([^)]*)", remark or "")
        if could is not None and could[1].strip():
            self.sink.add("fabric.could-be", could[1].strip(), about)


class ManagerInfo(LineReader):
    """Reads sminfo: who manages the subnet, or that nobody answers."""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        found = re.match(r"sminfo: sm lid (\d+) sm guid (\S+), activity count \d+ priority \d+ state (\d)", bare)
        if found is not None:
            self.sink.add("sm.state", (int(found[1]), found[2], int(found[3])))
        elif re.match(r"sminfo: (?:iberror|iberr|.*failed)", bare):
            self.sink.add("sm.missing", bare[:160])
        return found is not None or not bare or bare.startswith(("sminfo", "ibwarn", "ibpanic"))


class PortInfo(LineReader):
    """Reads a port's PortInfo as ibportstate and smpquery print it: the state of its link."""

    _KINDS = {"LinkState": "hca.state", "PhysLinkState": "hca.physical"}  # noqa: RUF012
    _about = Subject()

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tools'."""
        bare = text.strip()
        head = re.match(r"# Port info: (.*?) port (\d+)", bare)
        if head is not None:
            self._about = Subject(device=head[1], port=head[2])
            self.sink.add("hca.layer", "InfiniBand", self._about)
            return True
        field = re.match(r"(\w+):\.+\s*(.*)$", bare)
        if field is not None and field[1] in self._KINDS:
            self.sink.add(self._KINDS[field[1]], field[2], self._about)
        return field is not None or not bare or bool(re.match(r"#|(?:CA |Switch )?PortInfo", bare))
