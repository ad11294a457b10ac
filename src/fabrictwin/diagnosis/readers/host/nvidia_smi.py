"""nvidia-smi: `topo -m`, `topo -p2p`, `nvlink`, the fabric and ECC sections of `-q`, and the plain table.

`dcgmi nvlink --link-status` says the same of links, a letter for each.
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.host.gpu_readings import GpuReadings, plain_name
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS_TOPOLOGY = r"^\s*GPU0\s+(?:GPU1|NIC0|mlx5_\d+|CPU Affinity)"
OPENS_NVLINK = (
    r"^GPU \d+: .*\(UUID: |^GPU \d+: NVIDIA [\w -]+$|"
    r"^\s*Link \d+: (?:[\d.]+ GB/s|<inactive>|(?:Replay|Recovery|CRC)\b)|"
    r"^\|\s+NvLink Link Status\s+\||^\s*gpuId \d+:\s*$"
)
OPENS_QUERY = (
    r"^Failed to initialize NVML|^NVIDIA-SMI has failed|"
    r"^=+NVSMI LOG=+|^\|\s*NVIDIA-SMI\s|^Attached GPUs\s+:|^GPU [0-9A-F]{8}:[0-9A-F:.]+\s*$|"
    r"^\s{4}(?:Fabric|Remapped Rows|Retired Pages)\s*$|^\s*Fabric\s*$|^<nvidia_smi_log>"
)
# a GPU's row of the plain table
_ROW = re.compile(r"\|\s+(\d+)\s+((?:NVIDIA|Tesla|GeForce|Quadro|GRID|TITAN)\b.{1,40}?)\s+(?:On|Off|N/A)\s*\|")
# of that row: the bus, and how many errors of memory were not corrected
_ERRORS = re.compile(r"\|\s*[0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+\s+(?:On|Off|N/A)\s*\|\s*(\d{1,9})\s*\|")
# names of values as `-q -x` tags them, where these are not the words of `-q` with lines between
_TAGS = {
    "remapped_row_pending": "Pending",
    "remapped_row_failure": "Remapping Failure Occurred",
    "pending_retirement": "Pending Page Blacklist",
    "pending_blacklist": "Pending Page Blacklist",
    "current_link_width": "Width Current",
    "max_link_width": "Width Max",
    "gpu_recovery_action": "GPU Recovery Action",
    "product_name": "Product Name",
    "driver_version": "Driver Version",
}
# clocks that are held down, and what holds them: the card's own protection, not its power limit under load
_THROTTLES = {
    "hw slowdown": ("HW Slowdown", "hot"),
    "hw thermal slowdown": ("HW Thermal Slowdown", "hot"),
    "sw thermal slowdown": ("SW Thermal Slowdown", "hot"),
    "hw power brake slowdown": ("HW Power Brake Slowdown", "power"),
}
# whether GPUs reach each other's memory: well, or not for the chipset, the GPU, the topology, a driver that is off
_PEERS = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR"))
_LINKS = frozenset(("X", "SYS", "NODE", "PHB", "PXB", "PIX", "PSB"))


class TopologyMatrix(LineReader):
    """Reads `nvidia-smi topo -m`, and `-p2p`."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._heads: list[str] = []
        self._numbered = False  # a GPU's own NUMA node stands last in its row

    def line(self, text: str) -> bool:
        """Take a line; False after the matrix and its legend."""
        words = text.split()
        if not words:
            return True
        if words[0] == "GPU0" and not self._heads:
            self._heads = [word for word in words if re.match(r"GPU\d+$|NIC\d+$|mlx5_\w+$|ib\w+$", word)]
            self._numbered = bool(re.search(r"GPU NUMA ID\s*$", text))
            return True
        if re.match(r"(?:GPU\d+|NIC\d+|mlx5_\w+)$", words[0]) and len(words) > 1:
            if self._numbered and words[0].startswith("GPU") and words[-1].isdigit():
                self.sink.add("smi.coherent", words[-1], Subject(device=words[0]))
            for head, cell in zip(self._heads, words[1:], strict=False):
                if cell in _PEERS and head.startswith("GPU"):  # topo -p2p
                    self.sink.add("smi.peer", (head, cell), Subject(device=words[0]))
                elif (cell in _LINKS or re.fullmatch(r"NV\d+", cell)) and cell != "X":
                    self.sink.add("smi.path", (head, cell), Subject(device=words[0]))
            return True
        named = re.match(r"\s*(NIC\d+): (\S+)", text)
        if named is not None:
            self.sink.add("smi.nic", named[2], Subject(device=named[1]))
            return True
        return bool(
            re.match(
                r"\s*(?:Legend|X\s+=|SYS|NODE|PHB|PXB|PIX|NV#|NIC Legend|(?:OK|CNS|GNS|TNS|NS|DR|U)\s+=)", text
            )
        )


class NvlinkStatus(LineReader):
    """Reads `nvidia-smi nvlink --status` (and `-e`, its error counters)."""

    _gpu = ""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        gpu = re.match(r"GPU (\d+): (.+?)(?: \(UUID.*)?$", bare)
        link = re.match(r"Link (\d+): (.+)$", bare)
        if gpu is not None:
            self._gpu = f"GPU {gpu[1]}"
            self.sink.add("smi.gpu", gpu[2], Subject(device=self._gpu))
            return True
        if "all links are inactive" in bare.lower():
            self.sink.add("nvlink.inactive", "all links", Subject(device=self._gpu, port="all"))
            return True
        if link is None:
            return self._letters(bare)
        about = Subject(device=self._gpu or "a GPU", port=link[1])
        rate = re.match(r"([\d.]+) GB/s", link[2])
        error = re.match(r"([\w ]+?)(?: Error)?s?(?: Count)?: (\d+)", link[2])
        if rate is not None and rate[1].count(".") < 2:
            if float(rate[1].strip(".") or 0):
                self.sink.add("nvlink.rate", float(rate[1]), about)
            else:
                self.sink.add("nvlink.inactive", link[2][:40], about)
        elif "inactive" in link[2].lower() or "disabled" in link[2].lower():
            self.sink.add("nvlink.inactive", link[2][:40], about)
        elif error is not None and int(error[2]):
            self.sink.add("nvlink.errors", (error[1], int(error[2])), about)
        return True

    def _letters(self, bare: str) -> bool:
        """Take a row of `dcgmi nvlink --link-status`: up, down, disabled or not there, link by link."""
        gpu = re.match(r"gpuId (\d+):$", bare)
        if gpu is not None:
            self._gpu = f"GPU {gpu[1]}"
        elif bare.startswith("NvSwitches"):
            self._gpu = ""
        elif re.fullmatch(r"[UDX_](?: [UDX_])*", bare) and self._gpu:
            self.sink.add("nvlink.read", True, Subject(device=self._gpu))
            for number, letter in enumerate(bare.split()):
                if letter in "DX":
                    about = Subject(device=self._gpu, port=str(number))
                    self.sink.add("nvlink.inactive", "down" if letter == "D" else "disabled", about)
        else:
            return not bare or bare.startswith(("+--", "|", "GPUs:", "Key:", "physicalId", "No NvSwitches"))
        return True


class Query(LineReader):
    """Reads `nvidia-smi -q`, as text and as XML, and the plain table."""

    _gpu = _section = _part = ""
    _row_of = ""  # the GPU whose row of the plain table was the last
    _width = 0  # lanes that the GPU has at most

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._readings = GpuReadings(sink)

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        if re.match(OPENS_TOPOLOGY, text):
            return False  # of few GPUs its heads are as short as a section's title
        # values, and titles of sections, are no messages
        self.talks = text[:1] not in (" ", "\t", "<") and not re.match(r"[A-Z][\w ()./-]{0,60}?\s:\s", bare)
        gpu = re.match(r"(?:GPU |<gpu id=\")([0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+)", bare)
        if gpu is not None:
            self._readings.end(self._gpu)
            self._gpu, self._width = f"GPU {gpu[1]}", 0
            return True
        if bare.startswith(("Failed to initialize NVML", "NVIDIA-SMI has failed")):
            return True  # by its words: `mechanisms/data/gpu.yaml`
        if bare.startswith("<"):
            return self._tagged(bare)
        if not bare or bare.startswith(("|", "+", "=")):
            self._plain(bare)
            return True
        name, colon, value = (part.strip() for part in bare.partition(" :"))
        if not colon:
            name, colon, value = (part.strip() for part in bare.partition(":"))
        if not colon or not value:
            if len(text) - len(text.lstrip()) <= 4:
                self._section = name
            self._part = name
            return len(name) < 60
        self._value(name, value)
        return True

    def _plain(self, bare: str) -> None:
        version, row = re.search(r"Driver Version: ([\d.]+)", bare), _ROW.match(bare)
        if version is not None:
            self.sink.add("smi.driver", version[1])
        elif row is not None:
            self._row_of = f"GPU {row[1]}"
            self.sink.add("smi.gpu", row[2].rstrip(" ."), Subject(device=self._row_of))
            errors = _ERRORS.search(bare)
            if errors is not None and int(errors[1]):
                self.sink.add("smi.uncorrected", ("volatile", int(errors[1])), Subject(device=self._row_of))
        elif "ERR!" in bare and self._row_of:
            self.sink.add("smi.unreadable", "ERR!", Subject(device=self._row_of))

    def _tagged(self, bare: str) -> bool:
        found = re.match(r"<(/?)(\w+)>(?:(.*?)</\w+>)?$", bare)
        if found is None:
            return bool(re.match(r"<[?!/\w]", bare))
        if found[3] is None:
            name = found[2].replace("_", " ").title()
            self._section = self._part = "Fabric" if name == "Fabric" else name
        else:
            self._value(_TAGS.get(found[2], found[2].replace("_", " ").capitalize()), found[3].strip())
        return True

    def _value(self, name: str, value: str) -> None:
        about = Subject(device=self._gpu)
        self._readings.value(name, value, self._gpu)
        if value in ("GPU is lost", "[GPU is lost]"):
            self.sink.add("smi.lost", value, about)
        elif name == "Product Name":
            self.sink.add("smi.gpu", value, about)
        elif name == "Driver Version":
            self.sink.add("smi.driver", value)
        elif (name == "State" and self._section == "Fabric") or (
            name == "Status" and self._section == "Fabric" and value not in ("Success", "N/A")
        ):
            self.sink.add("smi.fabric", value, about)
        elif name == "Summary" and value == "Unhealthy":
            self.sink.add("smi.fabric", "health: Unhealthy", about)
        elif name in ("Pending", "Pending Page Blacklist") and value == "Yes":
            self.sink.add("smi.remap-pending", True, about)
        elif name == "Remapping Failure Occurred" and value == "Yes":
            self.sink.add("smi.remap-failed", True, about)
        elif value == "Active" and (held := _THROTTLES.get(plain_name(name))):
            self.sink.add(f"smi.{held[1]}", held[0], about)
        elif name == "GPU Recovery Action" and value not in ("None", "N/A"):
            self.sink.add("smi.recovery", value[:40], about)
        elif name == "Reset Required" and value == "Yes":
            self.sink.add("smi.recovery", "Reset", about)
        else:
            self._counted(name, value, about)

    def _counted(self, name: str, value: str, about: Subject) -> None:
        """Take widths of the link, and errors of memory since the driver was loaded."""
        lanes = re.fullmatch(r"(\d{1,2})x", value)
        if lanes is not None and name in ("Max", "Width Max"):
            self._width = int(lanes[1])
            self.sink.add("smi.lanes", self._width, about)
        elif name == "Replays Since Reset" and value.isdigit():
            self.sink.add("smi.replays", int(value[:12]), about)
        elif lanes is not None and name in ("Current", "Width Current") and int(lanes[1]) < self._width:
            self.sink.add("smi.narrow", (int(lanes[1]), self._width), about)
        elif (
            re.fullmatch(r"(?:SRAM|DRAM) Uncorrectable.*|Double Bit ECC", name, re.IGNORECASE)
            and re.fullmatch(r"\d{1,9}", value)
            and int(value)
        ):
            when = (
                "aggregate" if self._part in ("Aggregate", "Aggregate Uncorrectable SRAM Sources") else "volatile"
            )
            kind = "retired" if name.startswith("Double") else when
            self.sink.add("smi.uncorrected", (kind, int(value)), about)

    def close(self) -> None:
        """Compare the values of the last GPU."""
        self._readings.end(self._gpu)
