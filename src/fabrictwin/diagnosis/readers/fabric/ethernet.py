"""Ethernet ports of hosts: `ethtool -S` and link settings, mlnx_qos, `rdma link`, `rdma statistic`.

Counters are those of the mlx5 driver and of its RDMA device (the kernel's documentation of mlx5 counters;
NVIDIA, "Understanding mlx5 Linux counters").
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.fabric.driver_counters import driver_counter
from fabrictwin.diagnosis.readers.fabric.transceivers import Readings
from fabrictwin.diagnosis.readers.line_reader import LineReader

_TYPED = (
    r"(?:\S{1,60}[:~ ][^#$]{0,40}\]?)?[#$] ?(?:sudo )?ethtool (?:-[Sm] |--statistics )?([a-z][\w.-]+)(?: ?\||$)"
)
OPENS_ETHTOOL = (
    rf"^{_TYPED}|"
    r"^NIC [Ss]tatistics\b|^Settings for \S+:|^Statistics for \S+:|^\s*(?:[rt]x_[a-z0-9_]+|"
    r"out_of_(?:sequence|buffer)|packet_seq_err|local_ack_timeout_err|np_\w+|rp_\w+|rnr_nak_retry_err|"
    r"roce_\w+|link_down_events_phy): \d+\s*(?:[^\w\s].*)?$|^\s*Identifier\s+: 0x[0-9a-f]{2} \("
)
OPENS_QOS = r"^DCBX mode:|^Priority trust state:|^PFC configuration:"
OPENS_DCB = r"^pfc-cap \d+ |^prio-pfc (?:0:)|^dscp-prio \d+:"
OPENS_RDMA = r"^link \S+/\d+ (?:state|subnet|rx_|tx_|\w+ \d+|\s*$)|^\d+/\d+: \S+/\d+: (?:state|subnet_prefix)"

_KERNELS = re.compile(
    r"(?:\[ *\d+\.\d+\] )?\w+ [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d\b"
)  # a driver of the kernel speaks


class Ethtool(LineReader):
    """Reads `ethtool -S` and `ethtool`."""

    _interface = ""
    _able = 0  # Mb/s, of the fastest mode that the port itself advertises, or supports where it says no more
    _of_modes = ""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._module = Readings(sink)

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        if _KERNELS.match(bare):
            return False
        head = re.match(r"(?:Settings|Statistics) for (\S+?):", bare) or re.match(_TYPED, bare)
        if head is not None or bare.startswith("Identifier"):  # -m begins with it, module by module
            self._module.end(self._interface or "port")
            self._interface, self._able = head[1] if head else self._interface, 0
            return True
        modes = re.match(r"(Advertised|Supported) link modes:", bare)
        if modes is not None or (self._of_modes and ":" not in bare):
            speeds = [int(one) for one in re.findall(r"\b(\d{2,7})base", bare)]
            if modes is not None:
                self._of_modes = modes[1]
                self._able = 0 if speeds and modes[1] == "Advertised" else self._able
            self._able = max([self._able, *speeds])
            return True
        self._of_modes = ""
        if re.match(r"NIC [Ss]tatistics\b", bare):
            self.sink.add("port.counter", ("Read", 0), Subject(device=self._interface or "port"))
            return True
        found = re.match(
            r"(?:\[?\w*\d+\]?: )?([\w ./#(),-]+?)\s*:\s*(.*)$", bare
        )  # a queue's, with its name before
        if found is None or bare.startswith("/sys/"):
            return not bare
        name, value = found.groups()
        about = Subject(device=self._interface or "port")
        count = re.match(
            r"(\d{1,20}|\d{1,3}(?:,\d{3}){1,6})(?:\s+[^\w\s].*)?$", value
        )  # with what somebody noted behind it
        if count is not None:
            number = int(count[1].replace(",", ""))
            if number:
                self.sink.add("port.counter", (driver_counter(name), number), about)
        elif name == "Speed":
            rate = re.match(r"(\d+)Mb/s", value)
            if rate is not None:
                self.sink.add("hca.rate-gbps", int(rate[1]) / 1000, about)
                if self._able:
                    self.sink.add("port.able-gbps", (int(rate[1]) / 1000, self._able / 1000), about)
        elif name.startswith("Link detected"):
            self.sink.add("hca.state", "Active" if value.startswith("yes") else "Down", about)
        elif value == "On" and re.search(r"(?:low|high) alarm\b|Alarm$", name):  # -m: the module's own alarms
            self.sink.add("ethernet.alarm", name, about)
        elif (bound := re.search(r"(high|low) (alarm|warning) threshold$", name)) is not None:
            if bound[2] == "alarm":
                self._module.bound(name, value, high=bound[1] == "high")
        else:
            self._module.reading(name, value)
        return True

    def close(self) -> None:
        """Keep the last module's readings."""
        self._module.end(self._interface or "port")


class MlnxQos(LineReader):
    """Reads mlnx_qos' output."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._priorities: list[int] = []
        self._pfc = False

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        trust = re.match(r"Priority trust state:\s*(\w+)", bare)
        cable = re.match(r"Cable len:\s*(\d+)", bare)
        if trust is not None:
            self.sink.add("qos.trust", trust[1].lower())
        elif cable is not None:
            self.sink.add("qos.cable-m", int(cable[1]))
        elif bare.startswith("PFC configuration"):
            self._pfc = True
        elif bare.startswith("priority") and self._pfc:
            self._priorities = [int(word) for word in bare.split()[1:] if word.isdigit()]
        elif bare.startswith("enabled") and self._pfc:
            on = [word == "1" for word in bare.split()[1:]]
            lossless = tuple(p for p, yes in zip(self._priorities, on, strict=False) if yes)
            self.sink.add("qos.pfc", lossless)
            self._pfc = False
        else:
            dscp = re.match(r"prio:(\d+) dscp:([\d,]+)", bare)
            if dscp is not None:
                for each in dscp[2].split(","):
                    if each.isdigit():
                        self.sink.add("qos.dscp", (int(each), int(dscp[1])))
                return True
            return not bare or bool(
                re.match(
                    r"(DCBX|dscp2prio|default prio|Receive buffer|tc:|buffer|tsa:|ratelimit|priority|\d)", bare
                )
            )
        return True


class Dcb(LineReader):
    """Reads iproute2's `dcb pfc show` and `dcb app show`."""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        if bare.startswith("prio-pfc "):
            on = tuple(int(one) for one in re.findall(r"([0-7]):on\b", bare))
            self.sink.add("qos.pfc", on)
        elif bare.startswith("dscp-prio "):
            for dscp, priority in re.findall(r"(\d{1,2}):([0-7])\b", bare):
                self.sink.add("qos.dscp", (int(dscp), int(priority)))
        else:
            return not bare or bool(re.match(r"(pfc-cap|requests|indications|default-prio|[\w-]+-prio) ?", bare))
        return True


class Rdma(LineReader):
    """Reads `rdma link` and `rdma statistic`."""

    _about = Subject()

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        found = re.match(r"(?:\d+/\d+: |link )([\w.-]+)/(\d+):?(?: (.*))?$", bare)
        if found is not None and re.match(r"(?:lqpn|cqn|mrn|pdn|ctxn|srqn|qp auto|mode) ", found[3] or ""):
            return True  # of `rdma resource` and modes: states of queue pairs are none of ports
        if found is None:
            if not re.fullmatch(r"(?:\w+ \d{1,20}\s*)+", bare):
                return not bare
            self._count(bare)  # of a port above, as `rdma -p` has it
            return True
        about = self._about = Subject(device=found[1], port=found[2])
        state = re.search(r"state (\w+)", found[3] or "")
        physical = re.search(r"physical_state (\w+)", found[3] or "")
        if state is not None:
            self.sink.add("hca.state", state[1].capitalize(), about)
            if physical is not None:
                self.sink.add("hca.physical", physical[1], about)
            if "subnet_prefix" in bare:  # of InfiniBand alone
                self.sink.add("hca.layer", "InfiniBand", about)
            return True
        self.sink.add("port.counter", ("Read", 0), about)
        self._count(found[3] or "")
        return True

    def _count(self, text: str) -> None:
        for name, value in re.findall(r"(\w+) (\d{1,20})", text):
            if int(value):
                self.sink.add("port.counter", (driver_counter(name), int(value)), self._about)
