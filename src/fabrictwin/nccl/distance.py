"""How far devices of one host are apart, by what is on the way between them.

The way is the fabric's own (`fabric.template`). NCCL's names: PIX is one PCIe switch, PXB several, PHB a
processor, SYS the link between processors, C2C the link of a superchip, P2C a superchip's link and PCIe behind
it.
"""

from __future__ import annotations

from fabrictwin.fabric.fabric import NONE, Fabric, LinkKind, NodeKind
from fabrictwin.fabric.template import HostTemplate
from fabrictwin.nccl.communicator import PathType


class Distances:
    """Distances of one fabric, remembered by template."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._known: dict[tuple[int, int, int], PathType] = {}

    def __call__(self, a: int, b: int) -> PathType:
        """From one fabric node to another; NET where they are on different hosts."""
        fabric = self.fabric
        host = int(fabric.node_host[a])
        if host == NONE or host != int(fabric.node_host[b]):
            return PathType.NET
        base, template = int(fabric.host_node_start[host]), int(fabric.host_template[host])
        key = (template, a - base, b - base)
        if key not in self._known:
            self._known[key] = distance(fabric.templates[template], a - base, b - base)
        return self._known[key]

    def cpu_of(self, node: int) -> int:
        """The processor whose memory is nearest to a node of its host."""
        fabric = self.fabric
        if fabric.node_kind[node] == NodeKind.CPU:
            return node
        host = int(fabric.node_host[node])
        first, last = int(fabric.host_node_start[host]), int(fabric.host_node_start[host + 1])
        cpus = [n for n in range(first, last) if fabric.node_kind[n] == NodeKind.CPU]
        return min(cpus, key=lambda cpu: (len(path(self._template(host), node - first, cpu - first)), cpu))

    def _template(self, host: int) -> HostTemplate:
        return self.fabric.templates[int(self.fabric.host_template[host])]


def path(template: HostTemplate, a: int, b: int) -> tuple[int, ...]:
    """Ports of the first way between two local nodes; nothing where there is none."""
    paths = template.paths
    first = int(paths.pair_start[a * len(template.node_kind) + b])
    if first == int(paths.pair_start[a * len(template.node_kind) + b + 1]):
        return ()
    return tuple(paths.ports[paths.hop_start[first] : paths.hop_start[first + 1]].tolist())


def distance(template: HostTemplate, a: int, b: int) -> PathType:
    """Between two local nodes."""
    if a == b:
        return PathType.LOC
    ports = path(template, a, b)
    if not ports:
        return PathType.DIS
    kinds = [LinkKind(int(template.port_kind[p])) for p in ports]
    if all(kind == LinkKind.NVLINK for kind in kinds):
        return PathType.NVL
    between = [NodeKind(int(template.node_kind[template.port_node[p]])) for p in ports[1:]]
    cpus, switches = between.count(NodeKind.CPU), between.count(NodeKind.PCIE_SWITCH)
    ends = [NodeKind(int(template.node_kind[end])) for end in (a, b)]
    chip = any(
        kind == LinkKind.CPU
        and {int(template.port_node[p]), int(template.port_node[template.port_peer[p]])} & set(_gpus(template))
        for kind, p in zip(kinds, ports, strict=True)
    )
    if NodeKind.CPU in ends:
        far = kinds.count(LinkKind.CPU) > (1 if chip else 0)
        return PathType.SYS if far else PathType.C2C if chip else PathType.PHB
    if cpus > 1:
        return PathType.SYS
    if cpus == 1:
        return PathType.P2C if chip else PathType.PHB
    return PathType.PXB if switches > 1 else PathType.PIX


def _gpus(template: HostTemplate) -> list[int]:
    found: list[int] = template.gpus.tolist()
    return found
