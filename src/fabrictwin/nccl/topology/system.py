"""A host as NCCL sees it: GPUs, PCI switches, NVLink switches, processors, adapters, and links between them.

NCCL's graph is not the fabric's: all NVSwitches are one node, every pair of processors of a machine has one
link, links carry the bandwidth that NCCL reckons with, and an adapter is a PCI device with a network port
behind it. An NVLink domain of several machines (a rack) is one such system, its machines told apart by
`Device.part`.

Source: NCCL 2.30.7, src/graph/topo.cc and topo.h.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property

from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE


class Kind(IntEnum):
    GPU = 0
    PCI = 1
    NVS = 2
    CPU = 3
    NIC = 4
    NET = 5


class LinkClass(IntEnum):
    """Kinds of links; values are those of the paths that consist of them."""

    LOC = 0
    NVL = 1
    C2C = 3
    PCI = 4
    SYS = 9
    NET = 10


@record
class Processor:
    """A processor as CPUID names it; NCCL has rules for some."""

    arch: str = ""
    vendor: str = ""
    family: int = 0
    model: int = 0

    @property
    def intel(self) -> bool:
        return self.arch == "x86_64" and self.vendor == "GenuineIntel"

    @property
    def amd(self) -> bool:
        return self.arch == "x86_64" and self.vendor == "AuthenticAMD"


@record
class NetPort:
    """A network port of an adapter, as its driver reports it."""

    asic: int = 0  # adapters of one card share it
    number: int = 1
    bw: float = 0.0  # GB/s
    latency: float = 0.0  # us
    coll: bool = False  # can take part in reductions of switches


@record
class Device:
    """One node of the graph."""

    kind: Kind
    name: str
    part: int = 0  # machine of an NVLink domain
    index: int = NONE  # GPU: of the host's; CPU: NUMA node; NET: the host's adapter
    capability: int = 0  # of a GPU
    gdr: bool = True  # GPU or NET: can take part in GPUDirect RDMA
    cpu: Processor = Processor()
    net: NetPort = NetPort()


@record
class Link:
    """One direction of a link. Parallel links are one, their bandwidth added."""

    source: int
    to: int
    kind: LinkClass
    bw: float  # GB/s


@record
class System:
    """Devices and links; a device's own links are in the order in which NCCL looks at them."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    out: tuple[tuple[int, ...], ...]  # of each device: links

    @cached_property
    def _by_kind(self) -> dict[Kind, tuple[int, ...]]:
        return {kind: tuple(i for i, d in enumerate(self.devices) if d.kind == kind) for kind in Kind}

    def of(self, kind: Kind) -> tuple[int, ...]:
        """Devices of a kind, in order."""
        return self._by_kind[kind]

    @cached_property
    def reverse(self) -> tuple[int, ...]:
        """The link that leads back, of each link."""
        there = {(link.source, link.to, link.kind): i for i, link in enumerate(self.links)}
        return tuple(there[link.to, link.source, link.kind] for link in self.links)

    def pcie_bw(self, device: int) -> int:
        """Bandwidth of a device's PCIe link in its slower direction; -1 where it has none."""
        for number in self.out[device]:
            if self.links[number].kind == LinkClass.PCI:
                return int(min(self.links[number].bw, self.links[self.reverse[number]].bw))
        return -1

    @cached_property
    def capability(self) -> int:
        """The lowest compute capability of its GPUs."""
        return min((self.devices[g].capability for g in self.of(Kind.GPU)), default=0)

    @cached_property
    def parts(self) -> int:
        """Number of machines it spans."""
        return len({self.devices[cpu].part for cpu in self.of(Kind.CPU)})


@dataclass
class _Edge:
    to: int
    kind: LinkClass
    bw: float


@dataclass
class SystemBuilder:
    """Puts a system together as NCCL does, so that links come in its order."""

    devices: list[Device] = field(default_factory=list)
    _out: list[list[_Edge]] = field(default_factory=list)

    def add(self, device: Device) -> int:
        self.devices.append(device)
        self._out.append([])
        return len(self.devices) - 1

    def connect(self, a: int, b: int, kind: LinkClass, bw: float) -> None:
        """Join two devices in both directions; more of the same kind adds up."""
        self.direct(a, b, kind, bw)
        self.direct(b, a, kind, bw)

    def direct(self, a: int, b: int, kind: LinkClass, bw: float) -> None:
        """One direction of a link; a device's links stay sorted by bandwidth, the first of equals first."""
        out = self._out[a]
        edge = next((e for e in out if e.to == b and e.kind == kind), None)
        if edge is None:
            edge = _Edge(b, kind, 0.0)
            out.append(edge)
        edge.bw = round(edge.bw + bw, 3)
        at = out.index(edge)
        while at and out[at - 1].bw < edge.bw:
            out[at], out[at - 1] = out[at - 1], out[at]
            at -= 1

    def neighbours(self, device: int) -> list[tuple[int, LinkClass]]:
        return [(edge.to, edge.kind) for edge in self._out[device]]

    def local_cpu(self, device: int, before: int = NONE) -> int:
        """The processor above a PCI device; NONE where there is none."""
        if self.devices[device].kind == Kind.CPU:
            return device
        for to, kind in self.neighbours(device):
            if kind == LinkClass.PCI and to != before and self.devices[to].kind in (Kind.PCI, Kind.CPU):
                found = self.local_cpu(to, device)
                if found != NONE:
                    return found
        return NONE

    def connect_cpus(self, bw: dict[int, float]) -> None:
        """Every pair of processors of a machine; `bw` is what each reckons to another."""
        cpus = [i for i, device in enumerate(self.devices) if device.kind == Kind.CPU]
        for a in cpus:
            for b in cpus:
                if a != b and self.devices[a].part == self.devices[b].part:
                    self.direct(a, b, LinkClass.SYS, bw[a])

    def build(self) -> System:
        """The system; the link up the PCI tree is every device's last."""
        for cpu in [i for i, device in enumerate(self.devices) if device.kind == Kind.CPU]:
            self._up_last(cpu, NONE)
        links: list[Link] = []
        out: list[tuple[int, ...]] = []
        for source, edges in enumerate(self._out):
            out.append(tuple(range(len(links), len(links) + len(edges))))
            links += [Link(source, edge.to, edge.kind, edge.bw) for edge in edges]
        return System(tuple(self.devices), tuple(links), tuple(out))

    def _up_last(self, device: int, above: int) -> None:
        out = self._out[device]
        if above != NONE:
            up = next(edge for edge in out if edge.to == above)
            out.remove(up)
            out.append(up)
        for edge in list(out):
            if edge.kind == LinkClass.PCI and edge.to != above:
                self._up_last(edge.to, device)


def restricted(system: System, *, gpus: frozenset[int], gdr: bool) -> System:
    """The system with only some of its GPUs (by index), and GPUDirect RDMA only where the host has it."""
    keep = [i for i, device in enumerate(system.devices) if device.kind != Kind.GPU or device.index in gpus]
    if not gdr:
        devices = tuple(
            replace(device, gdr=False) if device.kind in (Kind.GPU, Kind.NET) else device
            for device in system.devices
        )
        system = System(devices, system.links, system.out)
    return _part_of(system, keep)


def machine_with(system: System, gpus: frozenset[int]) -> System:
    """The machine of an NVLink domain that GPUs (by index) are in, with the domain's switch."""
    parts = {d.part for d in system.devices if d.kind == Kind.GPU and d.index in gpus}
    keep = [i for i, d in enumerate(system.devices) if d.kind == Kind.NVS or d.part in parts]
    return _part_of(system, keep)


def _part_of(system: System, keep: list[int]) -> System:
    """Some of a system's devices and the links between them."""
    number = {old: new for new, old in enumerate(keep)}
    links: list[Link] = []
    out = []
    for i in keep:
        mine = [system.links[k] for k in system.out[i] if system.links[k].to in number]
        out.append(tuple(range(len(links), len(links) + len(mine))))
        links += [Link(number[i], number[link.to], link.kind, link.bw) for link in mine]
    return System(tuple(system.devices[i] for i in keep), tuple(links), tuple(out))


def by_itself(system: System) -> tuple[System, int, int]:
    """A machine of an NVLink domain numbered as a host of its own: (system, first GPU, first adapter).

    Machines alike become equal, so that they are searched once.
    """
    first = {
        kind: min((system.devices[i].index for i in system.of(kind)), default=0)
        for kind in (Kind.CPU, Kind.GPU, Kind.NET)
    }
    devices = []
    for device in system.devices:
        number = max(device.index - first.get(device.kind, 0), NONE)
        asic = device.net.asic - (first[Kind.NET] if device.kind == Kind.NET else 0)
        name = f"{device.kind.name.lower()}{number}" if number != NONE else device.kind.name.lower()
        devices.append(replace(device, index=number, net=replace(device.net, asic=asic), part=0, name=name))
    return System(tuple(devices), system.links, system.out), first[Kind.GPU], first[Kind.NET]
