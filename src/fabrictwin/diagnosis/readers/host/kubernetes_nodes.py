"""Devices that nodes of Kubernetes have and may give out: `kubectl describe node`, `kubectl get node -o yaml`."""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = r"^\s*\"?(?:[Cc]apacity|[Aa]llocatable)\"?:(?: \{)?$|^\s+Hostname: +\S+$|^\s*- address: \S+$"
_PART = re.compile(r"\s*\"?(capacity|allocatable)\"?:(?: \{)?$", re.IGNORECASE)
# resources of device plugins are named by a domain: nvidia.com/gpu, rdma/hca
_ROW = re.compile(r"\s+\"?([\w.-]+(?:/[\w.-]+)?)\"?: +\"?([\w.]+)\"?,?$")
_NAME = re.compile(r"\s+Hostname: +(\S+)$|\s*- address: ([\w.-]+)$")


class KubernetesNodes(LineReader):
    """Reads one node after the other."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._name, self._part = "", ""
        self._parts: dict[str, dict[str, int]] = {}

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of a node's."""
        name, part, row = _NAME.match(text), _PART.match(text), _ROW.match(text)
        if name is not None:
            self._name = name[1] or name[2]
            self._part, self._parts = "", {}
        elif part is not None:
            self._part = part[1].lower()
            self._parts[self._part] = {}
        elif row is not None and self._part and "/" in row[1] and row[2].isdecimal():
            self._parts[self._part][row[1]] = int(row[2][:9])
            self._compare(row[1])
        return bool(name or part or row) or text.strip() in ("}", "},")

    def _compare(self, device: str) -> None:
        had, free = (self._parts.get(part, {}).get(device) for part in ("capacity", "allocatable"))
        if had is not None and free is not None:
            self.sink.add("node.devices", (device, had, free), Subject(host=self._name))
