"""Write a system as NCCL's topology XML, as NCCL_TOPO_DUMP_FILE would.

Bus ids are the twin's own: the machine as domain, then a bus for every PCI device in order. Links are written as
their classes and counts; an NVSwitch is one target for all GPUs, as NCCL sees it.

Source: NCCL 2.30.7, src/graph/xml.cc and topo.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import quoteattr

from fabrictwin.fabric.fabric import NONE
from fabrictwin.nccl.topology.system import Device, Kind, LinkClass, System

_CLASS = {Kind.GPU: "0x030200", Kind.PCI: "0x060400", Kind.NIC: "0x020700"}
_NVSWITCH_CLASS = "0x068000"
_NVSWITCH_BUS = "ffff:ff:ff.0"
# GB/s of a lane as NCCL counts it, and how the kernel writes the generation's speed
_SPEEDS = ((0.75, "8.0 GT/s PCIe"), (1.5, "16.0 GT/s PCIe"), (3.0, "32.0 GT/s PCIe"), (6.0, "64.0 GT/s PCIe"))


def bus_ids(system: System) -> dict[int, str]:
    """A bus id for every PCI device."""
    found: dict[int, str] = {}
    used: dict[int, int] = {}
    for number, device in enumerate(system.devices):
        if device.kind in _CLASS:
            bus = used[device.part] = used.get(device.part, 0) + 1
            found[number] = f"{device.part:04x}:{bus:02x}:00.0"
    return found


def to_xml(system: System, *, link_gbps: float) -> str:
    """The file's text. `link_gbps` is what NCCL reckons of one NVLink of these GPUs."""
    writer = _Writer(system, bus_ids(system), link_gbps)
    lines = ['<system version="1">']
    for cpu in system.of(Kind.CPU):
        lines += writer.cpu(cpu)
    return "\n".join([*lines, "</system>", ""])


class _Writer:
    def __init__(self, system: System, buses: dict[int, str], link_gbps: float) -> None:
        self.system, self.buses, self.link_gbps = system, buses, link_gbps

    def cpu(self, number: int) -> Iterator[str]:
        device = self.system.devices[number]
        attributes: dict[str, object] = {"numaid": device.index, "affinity": "ffffffff", "arch": device.cpu.arch}
        if device.cpu.arch == "x86_64":
            known = device.cpu
            attributes |= {"vendor": known.vendor, "familyid": known.family, "modelid": known.model}
        if self.system.parts > 1:
            attributes["host_hash"] = f"0x{device.part + 1:x}"
        yield from self._element(1, "cpu", attributes, self._below(number, NONE, 2))

    def _below(self, number: int, above: int, depth: int) -> Iterator[str]:
        """PCI devices below a processor or switch, in their order."""
        links = [self.system.links[n] for n in self.system.out[number]]
        below = sorted(link.to for link in links if link.kind == LinkClass.PCI and link.to != above)
        for far in below:
            yield from self._pci(far, number, depth)
        for link in links:
            if link.kind == LinkClass.C2C and self.system.devices[number].kind == Kind.CPU:
                hangs_on_it = not any(self.system.links[n].kind == LinkClass.PCI for n in self.system.out[link.to])
                if hangs_on_it:
                    yield from self._pci(link.to, number, depth)

    def _pci(self, number: int, above: int, depth: int) -> Iterator[str]:
        device = self.system.devices[number]
        up = [
            self.system.links[n].bw
            for n in self.system.out[number]
            if self.system.links[n].to == above and self.system.links[n].kind == LinkClass.PCI
        ]
        speed, width = _speed(up[0] if up else 48.0)
        attributes: dict[str, object] = {
            "busid": self.buses[number],
            "class": _CLASS[device.kind],
            "link_speed": speed,
            "link_width": width,
        }
        if device.kind == Kind.PCI:
            inside = self._below(number, above, depth + 1)
        elif device.kind == Kind.GPU:
            inside = self._gpu(number, device, depth + 1)
        else:
            inside = self._nic(number, depth + 1)
        yield from self._element(depth, "pci", attributes, inside)

    def _gpu(self, number: int, device: Device, depth: int) -> Iterator[str]:
        attributes: dict[str, object] = {
            "dev": device.index,
            "sm": device.capability,
            "rank": device.index,
            "gdr": int(device.gdr),
        }
        yield from self._element(depth, "gpu", attributes, self._gpu_links(number, depth + 1))

    def _gpu_links(self, number: int, depth: int) -> Iterator[str]:
        for link in (self.system.links[n] for n in self.system.out[number]):
            if link.kind == LinkClass.NVL:
                switch = self.system.devices[link.to].kind == Kind.NVS
                attributes: dict[str, object] = {
                    "target": _NVSWITCH_BUS if switch else self.buses[link.to],
                    "count": round(link.bw / self.link_gbps),
                    "tclass": _NVSWITCH_CLASS if switch else _CLASS[Kind.GPU],
                }
                yield from self._element(depth, "nvlink", attributes, iter(()))
            elif link.kind == LinkClass.C2C:
                yield from self._element(depth, "c2c", {"bw": round(link.bw * 1000), "count": 1}, iter(()))

    def _nic(self, number: int, depth: int) -> Iterator[str]:
        nets = [self.system.links[n].to for n in self.system.out[number]]
        yield from self._element(
            depth,
            "nic",
            {},
            (
                line
                for net in nets
                if self.system.devices[net].kind == Kind.NET
                for line in self._net(self.system.devices[net], depth + 1)
            ),
        )

    def _net(self, device: Device, depth: int) -> Iterator[str]:
        attributes: dict[str, object] = {
            "name": device.name,
            "dev": device.index,
            "latency": f"{device.net.latency:.6f}",
            "speed": round(device.net.bw * 8000),
            "port": device.net.number,
            "guid": f"0x{device.net.asic:x}",
            "maxconn": 131072,
            "gdr": int(device.gdr),
        }
        if device.net.coll:
            attributes["coll"] = 1
        yield from self._element(depth, "net", attributes, iter(()))

    def _element(
        self, depth: int, name: str, attributes: dict[str, object], inside: Iterator[str]
    ) -> Iterator[str]:
        start = "  " * depth + "<" + " ".join([name, *(f"{k}={quoteattr(str(v))}" for k, v in attributes.items())])
        body = list(inside)
        if not body:
            yield start + "/>"
            return
        yield start + ">"
        yield from body
        yield "  " * depth + f"</{name}>"


def _speed(gbps: float) -> tuple[str, int]:
    """A generation and width that NCCL counts as a bandwidth: sixteen lanes where they fit, else the fewest."""
    fitting = [
        (text, round(gbps / lane)) for lane, text in _SPEEDS if abs(round(gbps / lane) * lane - gbps) < 0.01
    ]
    wide = [each for each in fitting if each[1] in (1, 2, 4, 8, 16)]
    return next((each for each in wide if each[1] == 16), wide[-1] if wide else (_SPEEDS[0][1], 16))
