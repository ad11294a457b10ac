"""nvidia-smi: `topo -m`, `nvlink --status` and `-e`, the fabric and ECC sections of `-q`, and the plain table.

`dcgmi nvlink --link-status` says the same of links, a letter for each.
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS_TOPOLOGY = r"^\s*GPU0\s+(?:GPU1|NIC0|mlx5_\d+|CPU Affinity)"
OPENS_NVLINK = r"^GPU \d+: .*\(UUID: |^\|\s+NvLink Link Status\s+\|"
OPENS_QUERY = (
    r"^Failed to initialize NVML|^NVIDIA-SMI has failed|"
    r"^=+NVSMI LOG=+|^\|\s*NVIDIA-SMI\s|^Attached GPUs\s+:|^GPU [0-9A-F]{8}:[0-9A-F:.]+\s*$|"
    r"^\s{4}(?:Fabric|Remapped Rows|Retired Pages)\s*$"
)
# a GPU's row of the plain table
_ROW = re.compile(r"\|\s+(\d+)\s+((?:NVIDIA|Tesla|GeForce|Quadro|GRID|TITAN)\b.{1,40}?)\s+(?:On|Off|N/A)\s*\|")
_LINKS = frozenset(("X", "SYS", "NODE", "PHB", "PXB", "PIX", "PSB"))


class TopologyMatrix(LineReader):
    """Reads `nvidia-smi topo -m`."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._heads: list[str] = []

    def line(self, text: str) -> bool:
        """Take a line; False after the matrix and its legend."""
        words = text.split()
        if not words:
            return True
        if words[0] == "GPU0" and not self._heads:
            self._heads = [word for word in words if re.match(r"GPU\d+$|NIC\d+$|mlx5_\w+$|ib\w+$", word)]
            return True
        if re.match(r"(?:GPU\d+|NIC\d+|mlx5_\w+)$", words[0]) and len(words) > 1:
            for head, cell in zip(self._heads, words[1:], strict=False):
                if (cell in _LINKS or re.fullmatch(r"NV\d+", cell)) and cell != "X":
                    self.sink.add("smi.path", (head, cell), Subject(device=words[0]))
            return True
        named = re.match(r"\s*(NIC\d+): (\S+)", text)
        if named is not None:
            self.sink.add("smi.nic", named[2], Subject(device=named[1]))
            return True
        return bool(re.match(r"\s*(?:Legend|X\s+=|SYS|NODE|PHB|PXB|PIX|NV#|NIC Legend)", text))


class NvlinkStatus(LineReader):
    """Reads `nvidia-smi nvlink --status` (and `-e`, its error counters)."""

    _gpu = ""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        gpu = re.match(r"GPU (\d+): (.+?) \(UUID", bare)
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
        about = Subject(device=self._gpu, port=link[1])
        rate = re.match(r"([\d.]+) GB/s", link[2])
        error = re.match(r"([\w ]+?)(?: Error)?s?(?: Count)?: (\d+)", link[2])
        if rate is not None and rate[1].count(".") < 2:
            self.sink.add("nvlink.rate", float(rate[1]), about)
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
            for number, letter in enumerate(bare.split()):
                if letter in "DX":
                    about = Subject(device=self._gpu, port=str(number))
                    self.sink.add("nvlink.inactive", "down" if letter == "D" else "disabled", about)
        else:
            return not bare or bare.startswith(("+--", "|", "GPUs:", "Key:", "physicalId", "No NvSwitches"))
        return True


class Query(LineReader):
    """Reads `nvidia-smi -q` and the plain table."""

    talks = True

    _gpu = _section = ""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        gpu = re.match(r"GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+)", bare)
        if gpu is not None:
            self._gpu = f"GPU {gpu[1]}"
            return True
        if bare.startswith(("Failed to initialize NVML", "NVIDIA-SMI has failed")):
            return True  # by its words: `mechanisms/data/gpu.yaml`
        if not bare or bare.startswith(("|", "+", "=")):
            version = re.search(r"Driver Version: ([\d.]+)", bare)
            row = _ROW.match(bare)
            if version is not None:
                self.sink.add("smi.driver", version[1])
            elif row is not None:
                self.sink.add("smi.gpu", row[2].rstrip(" ."), Subject(device=f"GPU {row[1]}"))
            return True
        name, colon, value = (part.strip() for part in bare.partition(" :"))
        if not colon:
            self._section = name
            return len(name) < 60
        about = Subject(device=self._gpu)
        if name == "Product Name":
            self.sink.add("smi.gpu", value, about)
        elif name == "Driver Version":
            self.sink.add("smi.driver", value)
        elif (name == "State" and self._section == "Fabric") or (
            name == "Status" and self._section == "Fabric" and value not in ("Success", "N/A")
        ):
            self.sink.add("smi.fabric", value, about)
        elif name in ("Pending", "Pending Page Blacklist") and value == "Yes":
            self.sink.add("smi.remap-pending", True, about)
        elif name == "Remapping Failure Occurred" and value == "Yes":
            self.sink.add("smi.remap-failed", True, about)
        return True
