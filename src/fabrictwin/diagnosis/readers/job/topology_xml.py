"""NCCL's topology and graph XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE, NCCL_GRAPH_DUMP_FILE; src/graph/xml.cc).

The text is taken apart tag by tag without an XML parser: entities are never resolved, and a file that is cut off
yields what stands before the cut.
"""

from __future__ import annotations

import re
from functools import cache

from fabrictwin import catalog
from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = r"<system version=|<graphs version="
_TAG = re.compile(r"<(/?)(\w+)((?:\s+[\w:.-]+=\"[^\"<>]{0,400}\")*)\s*(/?)>")
_ATTRIBUTE = re.compile(r"([\w:.-]+)=\"([^\"]*)\"")
GPU_CLASS = "0x0302"
# GPUs that the catalog does not have
_OTHERS = {
    "0x20b5": "NVIDIA A100 80GB PCIe",
    "0x20f1": "NVIDIA A100-PCIE-40GB",
}


@cache
def _models() -> dict[str, str]:
    """Return what the driver calls NVIDIA's GPUs, by PCI device."""
    return _OTHERS | {
        device: name for gpu in catalog.names("gpu") for device, name in catalog.gpu(gpu).pci_devices.items()
    }


class TopologyXml(LineReader):
    """Reads a topology, tag by tag."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._above: list[tuple[str, dict[str, str]]] = []
        self.host = ""

    def line(self, text: str) -> bool:
        """Take a line; False after the end of the document."""
        tags = list(_TAG.finditer(text))
        for closing, name, rest, alone in (tag.groups() for tag in tags):
            if closing:
                while self._above and self._above.pop()[0] != name:
                    pass
                continue
            attributes = dict(_ATTRIBUTE.findall(rest))
            self._element(name, attributes)
            if not alone and len(self._above) < 64:
                self._above.append((name, attributes))
        return bool(tags) or not text.strip() or bool(self._above)

    def _model(self, port: str) -> str:
        """Return the PCI device above, its board, and the port of it; empty where not all are known."""
        above = next((a for name, a in reversed(self._above) if name == "pci"), {})
        board = [above.get(key, "") for key in ("vendor", "device", "subsystem_device")]
        return ":".join([*board, port]) if all(board) else ""

    def _bus(self) -> str:
        return next((a.get("busid", "") for name, a in reversed(self._above) if name == "pci"), "")

    def _element(self, name: str, got: dict[str, str]) -> None:
        add, bus = self.sink.add, self._bus()
        if name == "cpu":
            add("topo.cpu", (got.get("arch", ""), got.get("vendor", "")))
            if "arch" not in got:
                add("topo.malformed", "arch of cpu missing")
        elif name == "pci":
            self._pci(got)
        elif name == "gpu":
            add(
                "topo.gpu",
                (int(got["dev"]) if got.get("dev", "").isdigit() else -1, got.get("sm", "")),
                Subject(device=bus),
            )
            add("topo.gpu-gdr", got.get("gdr", ""), Subject(device=bus))
        elif name == "nvlink":
            count = got.get("count", "0")
            add(
                "topo.nvlink",
                (got.get("target", ""), int(count) if count.isdigit() else 0, got.get("tclass", "")),
                Subject(device=bus),
            )
        elif name == "net":
            speed = got.get("speed", "0")
            add(
                "topo.net",
                (int(speed) if speed.isdigit() else 0, got.get("gdr", ""), self._model(got.get("port", ""))),
                Subject(device=got.get("name", "")),
            )

    def _pci(self, got: dict[str, str]) -> None:
        kind, bus = got.get("class", ""), got.get("busid", "")
        speed = re.match(r"[\d.]+", got.get("link_speed", ""))
        width = got.get("link_width", "")
        value = (
            float(speed[0].rstrip(".")) if speed and speed[0].count(".") < 2 else 0.0,
            int(width) if width.isdigit() else 0,
        )
        if kind.startswith(GPU_CLASS):
            self.sink.add("topo.gpu-link", value, Subject(device=bus))
            model = _models().get(got.get("device", "")) if got.get("vendor") == "0x10de" else None
            if model is not None:
                self.sink.add("topo.gpu-model", model, Subject(device=bus))
        elif kind.startswith("0x02"):
            self.sink.add("topo.nic-link", value, Subject(device=bus))

    def close(self) -> None:
        """End; an element that was never closed is a file that was cut."""
        if self._above:
            self.sink.add("file.truncated", "XML ends inside an element")
