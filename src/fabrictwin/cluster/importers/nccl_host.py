"""From a machine's NCCL topology XML to a host of the catalog's kind.

The file says what hangs where on PCIe, how wide and fast; what a card is by its PCI class, as NCCL reads it.
What it does not say (which GPU, adapter and processor these are, how fast NVLink is) comes from the catalog, by
what the group of hosts names or by the nearest that fits: GPUs by their compute capability, adapters by their
speed, processors by CPUID. Broadcom switches that show themselves as two levels become one, as in NCCL. A card
with several ports is as many adapters.

Source: NCCL 2.30.7, src/graph/topo.cc and xml.cc.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.importers.nccl_xml import Element, read_topology
from fabrictwin.cluster.spec.cluster_section import NcclXml

_NVSWITCH_CLASS = "0x068000"
# lanes are counted at the slowest generation of the catalog, where a link is slower than that
_GENERATION = {"8": "gen3", "8.0": "gen3", "16": "gen4", "16.0": "gen4", "32": "gen5", "32.0": "gen5"}
_GENERATION |= {"64": "gen6", "64.0": "gen6"}
_SLOWER = {"2.5": 4, "5": 2, "5.0": 2}
_LANES = (16, 8, 4, 2, 1)
_CARDS = {"gpu": "0x03", "nic": "0x02"}
_SOURCE = {"source": "derived", "estimate": True, "note": "read from a topology file"}


@dataclass
class _Card:
    """A PCI device: what it is, where it hangs, and the link above it."""

    kind: str  # gpu, nic, pcie_switch
    busid: str
    element: Element
    above: str  # node name
    link: str
    name: str = ""
    net: Element | None = None


@dataclass
class _Machine:
    cpus: list[Element] = field(default_factory=list)
    cards: list[_Card] = field(default_factory=list)

    def of(self, kind: str) -> list[_Card]:
        return [card for card in self.cards if card.kind == kind]


def host_of_xml(group: NcclXml, folder: Path) -> str:
    """The name under which the catalog now has the file's machine. Raises ConfigError."""
    path = folder / group.file
    root = read_topology(path)
    machine = _read(root, group)
    gpus, nics = machine.of("gpu"), machine.of("nic")
    if not machine.cpus:
        root.refuse("", "got no <cpu>, expected the processors of a machine")
    if not nics:
        root.refuse("", "got no adapter, expected a pci device of class 0x02.. or one that nics names")
    gpu = _gpu(root, gpus, group)
    links: list[dict[str, object]] = []
    _cpu_links(machine, links)
    # a superchip's GPU right below its processor hangs on the chip's own link
    wired = [card for card in machine.cards if not (card.above.startswith("cpu") and _has_c2c(card))]
    links += [{"a": [card.above], "b": [card.name], "link": card.link} for card in wired]
    switches = _nvlinks(machine, gpu, group, links)
    _c2c(machine, links)
    nodes = {"cpu": len(machine.cpus), "pcie_switch": len(machine.of("pcie_switch")), "nvswitch": switches}
    chips = {"cpu": _cpu(machine.cpus[0], group), "pcie_switch": group.pcie_switch}
    if switches:
        chips["nvswitch"] = group.nvswitch or _like(gpu).chips["nvswitch"]
    data = {
        "title": f"Machine of {path.name}",
        **_SOURCE,
        "gpu": gpu,
        "chips": {kind: chip for kind, chip in chips.items() if nodes[kind]},
        "nodes": {**nodes, "gpu": len(gpus), "nic": len(nics)},
        "nics": [_nic(card, k, machine, group) for k, card in enumerate(nics)],
        "links": [{**link, **_SOURCE} for link in links],
    }
    data.pop("estimate")
    digest = hashlib.sha256(repr(data).encode()).hexdigest()[:8]
    name = f"{path.stem}-{digest}"
    try:
        catalog.define_host(name, data)
    except ValidationError as error:
        message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise ConfigError(message, file=path) from None
    return name


def _read(root: Element, group: NcclXml) -> _Machine:
    machine = _Machine()
    for cpu in root.all("cpu"):
        name = f"cpu{len(machine.cpus)}"
        machine.cpus.append(cpu)
        for pci in cpu.all("pci"):
            _pci(machine, pci, name, group)
    numbers = {"gpu": 0, "nic": 0, "pcie_switch": 0}
    prefix = {"gpu": "gpu", "nic": "nic", "pcie_switch": "pex"}
    ordered = sorted(machine.of("gpu"), key=lambda card: _number(card, "gpu", "dev"))
    for card in [*ordered, *(card for card in machine.cards if card.kind != "gpu")]:
        final = f"{prefix[card.kind]}{numbers[card.kind]}"
        numbers[card.kind] += 1
        for below in machine.cards:
            if below.above == card.name:
                below.above = final
        card.name = final
    return machine


def _number(card: _Card, child: str, key: str) -> int:
    element = next(card.element.all(child), None)
    return 0 if element is None else element.whole(key, 0)


def _pci(machine: _Machine, pci: Element, above: str, group: NcclXml) -> None:
    """One PCI device and all below it; `above` is a node's name, or a place holder that gets one later."""
    busid = pci.text("busid").lower()
    if any(card.busid == busid for card in machine.cards):
        pci.refuse("busid", f"got {busid[:40]!r}, which an earlier device has")
    kind = _kind(pci, busid, group)
    link = _link(pci)
    if kind == "pcie_switch":
        card = _Card(kind, busid, pci, above, link, name=f"#{busid}")
        machine.cards.append(card)
        for below in _below(pci):
            _pci(machine, below, card.name, group)
        return
    nets = [net for nic in pci.all("nic") for net in nic.all("net")] if kind == "nic" else []
    for k, net in enumerate(nets or [None]):
        machine.cards.append(
            _Card(kind, f"{busid}/{k}" if k else busid, pci, above, link, name=f"#{busid}/{k}", net=net)
        )


def _below(pci: Element) -> Iterator[Element]:
    """Yield what hangs below a switch; through a second level that is really the same switch."""
    generation = _broadcom(pci, 0)
    for child in pci.all("pci"):
        if generation and _broadcom(child, 1) == generation:
            yield from child.all("pci")
        else:
            yield child


def _broadcom(pci: Element, level: int) -> int:
    """The generation of a Broadcom switch in base mode at that level; 0 for any other."""
    ids = [pci.attributes.get(key, "") for key in ("vendor", "device", "subsystem_vendor", "subsystem_device")]
    vendor, device, sub_vendor, sub_device = (text.lower() for text in ids)
    if (vendor, device, sub_vendor) == ("0x1000", "0xc010", "0x1000") and sub_device.startswith("0xa0"):
        return 4
    if (vendor, device, sub_vendor) == ("0x1000", "0xc030", "0x1000") and sub_device.startswith(f"0x{level}0"):
        return 5
    return 0


def _kind(pci: Element, busid: str, group: NcclXml) -> str:
    for kind, named in (("gpu", group.gpus), ("nic", group.nics)):
        if busid in (name.lower() for name in named):
            return kind
    for kind in ("gpu", "nic"):
        if next(pci.all(kind), None) is not None:
            return kind
    what = pci.attributes.get("class", "").lower()
    return next((kind for kind, start in _CARDS.items() if what.startswith(start)), "pcie_switch")


def _link(pci: Element) -> str:
    width = pci.whole("link_width", 16, most=32) or 16
    speed = pci.text("link_speed", "8 GT/s").split()
    number = speed[0] if speed else "8"
    lanes = width // _SLOWER.get(number, 1)
    fitting = next((lane for lane in _LANES if lane <= lanes), 1)
    return f"pcie-{_GENERATION.get(number, 'gen3')}-x{fitting}"


def _gpu(root: Element, gpus: list[_Card], group: NcclXml) -> str:
    if group.gpu:
        return catalog.gpu(group.gpu).name
    if not gpus:
        return ""
    told = next(gpus[0].element.all("gpu"), None)
    if told is None:
        root.refuse(
            "", "says not which GPUs these are, expected the key gpu beside nccl_xml, such as gpu: a100-80"
        )
    capability = told.whole("sm", most=10_000)
    fitting = [n for n in catalog.names("gpu") if catalog.gpu(n).compute_capability.value == capability]
    if not fitting:
        told.refuse(
            "sm", f"got {capability}, of which the catalog has no GPU; expected the key gpu beside nccl_xml"
        )
    return fitting[0]


def _like(gpu: str) -> catalog.Host:
    """A host of the catalog with those GPUs (or such of the same NVLink) and NVSwitches."""
    nvlink = catalog.gpu(gpu).nvlink
    hosts = [catalog.host(name) for name in catalog.names("host")]
    fitting = [host for host in hosts if host.nodes.nvswitch and catalog.gpu(host.gpu).nvlink == nvlink]
    if not fitting:
        raise ConfigError(f"the catalog has no NVSwitch for {gpu}, expected the key nvswitch beside nccl_xml")
    return min(fitting, key=lambda host: host.gpu != gpu)


def _cpu(cpu: Element, group: NcclXml) -> str:
    """The catalog's processor that a processor is, or the nearest: of its family, not newer."""
    if group.cpu:
        return catalog.chip(group.cpu).name
    arch, vendor = cpu.attributes.get("arch", "x86_64"), cpu.attributes.get("vendor", "")
    family, model = cpu.whole("familyid", 0, most=4096), cpu.whole("modelid", 0, most=4096)
    chips = [catalog.chip(name) for name in catalog.names("chip")]
    known = [
        (chip, chip.processor) for chip in chips if chip.processor is not None and chip.processor.arch == arch
    ]
    same = [(chip, one) for chip, one in known if one.vendor == vendor] if arch == "x86_64" else known
    if not same:
        what = "does not say which processors these are"
        cpu.refuse("vendor", f"{what}, expected the key cpu beside nccl_xml, such as cpu: epyc-7742")
    ranked = sorted(same, key=lambda each: (each[1].family, each[1].model))
    older = [chip for chip, one in ranked if (one.family, one.model) <= (family, model)]
    return older[-1].name if older else ranked[0][0].name


def _cpu_links(machine: _Machine, links: list[dict[str, object]]) -> None:
    """Every pair of NUMA nodes of a machine is joined, as NCCL takes it."""
    told = machine.cpus[0].attributes
    name = "nvlink-c2c" if told.get("arch") == "arm64" else ("xgmi" if "AMD" in told.get("vendor", "") else "upi")
    for b, cpu in enumerate(machine.cpus):
        for a in range(b):
            if machine.cpus[a].attributes.get("host_hash") == cpu.attributes.get("host_hash"):
                links.append({"a": [f"cpu{a}"], "b": [f"cpu{b}"], "link": name})


def _nvlinks(machine: _Machine, gpu: str, group: NcclXml, links: list[dict[str, object]]) -> int:
    """Add NVLinks as the file has them, or through one NVSwitch where the group says so. Returns switches."""
    gpus = {card.busid: card for card in machine.of("gpu")}
    nvlink = catalog.gpu(gpu).nvlink if gpu else ""
    targets: dict[str, str] = {}
    joined: dict[tuple[str, str], int] = {}
    told = False
    for card in gpus.values():
        for element in (link for one in card.element.all("gpu") for link in one.all("nvlink")):
            told = True
            count, target = element.whole("count", most=64), element.text("target").lower()
            if not count or not nvlink:
                continue
            if element.text("tclass").lower().startswith(_NVSWITCH_CLASS):
                switch = targets.setdefault(target, f"nvs{len(targets)}")
                joined[card.name, switch] = joined.get((card.name, switch), 0) + count
            elif target in gpus:
                a, b = sorted((card.name, gpus[target].name))
                if a == b:
                    element.refuse("target", "got the GPU itself, expected another")
                joined[a, b] = max(joined.get((a, b), 0), count)
            else:
                element.refuse("target", f"got {target[:40]!r}, which is no GPU of the file")
    for (a, b), count in joined.items():
        links.append({"a": [a], "b": [b], "link": nvlink, "count": count})
    if told or not group.nvswitch or not nvlink:
        return len(targets)
    most = catalog.gpu(gpu).nvlink_links
    names = [card.name for card in gpus.values()]
    links.append({"a": names, "b": ["nvs0"], "link": nvlink, "count": most.value if most else 1})
    return 1


def _has_c2c(card: _Card) -> bool:
    return any(next(one.all("c2c"), None) is not None for one in card.element.all("gpu"))


def _c2c(machine: _Machine, links: list[dict[str, object]]) -> None:
    """A superchip's own link between GPU and processor."""
    above = {card.name: card.above for card in machine.cards}
    for card in machine.of("gpu"):
        if _has_c2c(card):
            cpu = card.above
            while not cpu.startswith("cpu"):
                cpu = above[cpu]
            links.append({"a": [cpu], "b": [card.name], "link": "nvlink-c2c"})


def _nic(card: _Card, k: int, machine: _Machine, group: NcclXml) -> dict[str, object]:
    gpus = machine.of("gpu")
    beside = [gpu for gpu in gpus if gpu.above == card.above]
    before = [nic for nic in machine.of("nic")[:k] if nic.above == card.above]
    rail = gpus.index(beside[len(before) % len(beside)]) if beside else (k % len(gpus) if gpus else 0)
    name = card.net.attributes.get("name", "") if card.net is not None else ""
    number = card.net.whole("speed", 0, most=10**7) if card.net is not None else 0
    return {"type": group.nic or _adapter(number), "hca": name or f"mlx5_{k}", "rail": rail, **_SOURCE}


def _adapter(mbps: int) -> str:
    """The slowest adapter of the catalog that runs at a speed; the usual one where none is told."""
    nics = sorted((catalog.nic(name) for name in catalog.names("nic")), key=lambda nic: nic.port_rate.value)
    return next((nic.name for nic in nics if nic.port_rate.value >= mbps * 10**6), nics[-1].name)
