"""From a host of the fabric to the system that NCCL detects on it.

The catalog's host says what hangs where; a link counts what NCCL reckons for its kind (NVLink by generation,
PCIe by generation and width, processors by who they are), all of it data. An adapter without a cable is a port
that is down, which NCCL skips. Processors that no link joins are different machines, so that a rack whose GPUs
share NVLink switches is one system of several machines.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.units import PS_PER_US
from fabrictwin.catalog import hosts
from fabrictwin.fabric.fabric import NONE, Fabric, LinkKind
from fabrictwin.nccl.topology.system import Device, Kind, LinkClass, NetPort, Processor, System, SystemBuilder

_BPS_PER_GBPS = 8e9


def adapter_gbps(fabric: Fabric, adapter: int) -> float:
    """GB/s of an adapter's port as its driver tells NCCL: the nominal rate; 0 where no cable is plugged in."""
    port = int(fabric.nic_port[adapter])
    if port == NONE:
        return 0.0
    rate = int(fabric.port_rate_bps[port])
    if fabric.port_kind[port] == LinkKind.INFINIBAND:
        rate = _nominal(rate)
    return rate / _BPS_PER_GBPS


# what the driver calls a lane of a speed; below HDR that is the signalling rate, not the data rate
_LANE_GBPS = {
    "SDR": 2.5,
    "DDR": 5,
    "QDR": 10,
    "FDR10": 10,
    "FDR": 14,
    "EDR": 25,
    "HDR": 50,
    "NDR": 100,
    "XDR": 200,
}


@cache
def _nominal(rate_bps: int) -> int:
    for width in (4, 2, 1, 8, 12):
        for name in catalog.names("infiniband"):
            speed = catalog.infiniband(name)
            if width in speed.widths and speed.rate_bps(width) == rate_bps and name in _LANE_GBPS:
                return round(_LANE_GBPS[name] * width * 1e9)
    return rate_bps


def machine_of(fabric: Fabric, node: int) -> int:
    """Return the machine of its NVLink domain that a fabric node is in; 0 where its host is one machine."""
    host = int(fabric.node_host[node])
    template = fabric.templates[fabric.host_template[host]]
    return machines_of(template.type).get(template.node_names[node - int(fabric.host_node_start[host])], 0)


@cache
def machines_of(host_type: str) -> dict[str, int]:
    """The machine of each GPU of a catalog host, by name."""
    count = len(catalog.host(host_type).nics)
    system = system_of(host_type, (NetPort(bw=1.0),) * count)
    return {system.devices[g].name: system.devices[g].part for g in system.of(Kind.GPU)}


def described(fabric: Fabric, host: int, file: str) -> str:
    """The type of host that NCCL_TOPO_FILE describes, in place of what a host is. Raises ConfigError."""
    from fabrictwin.cluster.importers.nccl_host import host_of_xml
    from fabrictwin.cluster.spec.cluster_section import NcclXml

    real = catalog.host(fabric.templates[fabric.host_template[host]].type)
    nvswitch = real.chips.get("nvswitch", "")
    hints = NcclXml(file=file, gpu=real.gpu, nic=real.nics[0].type, cpu=real.chips["cpu"], nvswitch=nvswitch)
    name = host_of_xml(hints, Path())
    got, expected = catalog.host(name).nodes, real.nodes
    if (got.gpu, got.nic) != (expected.gpu, expected.nic):
        raise ConfigError(
            f"got {got.gpu} GPUs and {got.nic} adapters, expected {expected.gpu} and {expected.nic}: what "
            f"{fabric.host_names[host]} has",
            file=file,
            key="NCCL_TOPO_FILE",
        )
    return name


def detect(
    fabric: Fabric,
    host: int,
    *,
    adapters: Collection[int] | None = None,
    sharp: Collection[int] = (),
    sockets: bool = False,
    host_type: str = "",
) -> System:
    """The system of one host, with those of its adapters (by number there) that NCCL takes, or all.

    `sharp` are adapters (of the fabric) that reach switches which reduce; with `sockets` no driver
    is asked; `host_type` is what to take the host for, where not for what it is. Raises ConfigError.
    """
    template = fabric.templates[fabric.host_template[host]]
    first = int(np.searchsorted(fabric.nic_node, fabric.host_node_start[host]))
    count = len(template.nics)
    taken = range(count) if adapters is None else adapters
    ports = tuple(
        NetPort(
            bw=adapter_gbps(fabric, first + k) if k in taken else 0.0,
            latency=0.0 if sockets else _reported_us(template.nic_types[k]),
            coll=first + k in sharp,
        )
        for k in range(count)
    )
    return system_of(host_type or template.type, ports)


def _reported_us(nic_type: str) -> float:
    """Latency in µs that an adapter's driver tells of its network; 0 where it tells none."""
    reported = catalog.nic(nic_type).reported_latency if nic_type else None
    return 0.0 if reported is None else reported.value / PS_PER_US


@cache
def system_of(host_type: str, ports: tuple[NetPort, ...]) -> System:
    """The system of a catalog host whose adapters have those ports (0 GB/s is down), numbered here."""
    host = catalog.host(host_type)
    builder = SystemBuilder()
    part = _machines(host)
    numbers: dict[str, int] = {}
    reckoned: dict[int, float] = {}
    for cpu in host.nodes.names("cpu"):
        chip = catalog.chip(host.chips["cpu"]).processor
        numbers[cpu] = builder.add(Device(Kind.CPU, cpu, part[cpu], int(cpu[3:]), cpu=_processor(chip)))
        reckoned[numbers[cpu]] = chip.reckoned_rate.value / _BPS_PER_GBPS if chip else 0.0
        _descend(builder, host, cpu, numbers=numbers, ports=ports, part=part[cpu])
    _join_gpus(builder, host, numbers)
    builder.connect_cpus(reckoned)
    return builder.build()


def _processor(chip: hosts.Processor | None) -> Processor:
    """Return how a processor of the catalog names itself; without an entry it is x86 of no known vendor."""
    if chip is None:
        return Processor("x86_64")
    return Processor(chip.arch, chip.vendor, chip.family, chip.model)


def _machines(host: catalog.Host) -> dict[str, int]:
    """Number of the machine that each processor is in, by links between processors."""
    cpus = host.nodes.names("cpu")
    label = {cpu: i for i, cpu in enumerate(cpus)}
    pairs = [(e.a, e.b) for e in host.edges if e.a in label and e.b in label]
    for _ in cpus:
        for a, b in pairs:
            label[a] = label[b] = min(label[a], label[b])
    order = sorted(set(label.values()))
    return {cpu: order.index(at) for cpu, at in label.items()}


def _gbps(edge: catalog.HostEdge) -> float:
    return catalog.reckoned_rate(edge.link) * edge.count / _BPS_PER_GBPS


def _descend(
    builder: SystemBuilder,
    host: catalog.Host,
    above: str,
    *,
    numbers: dict[str, int],
    ports: tuple[NetPort, ...],
    part: int,
) -> None:
    """Add what hangs below a processor or PCI switch, in the order of the host's nodes; links come afterwards."""
    below = []
    for edge in host.edges:
        if above in (edge.a, edge.b):
            far = edge.b if edge.a == above else edge.a
            kind = host.kind_of(far)
            if kind in ("pcie_switch", "gpu", "nic") and far not in numbers:
                below.append((host.node_names.index(far), far, edge))
    for _, far, edge in sorted(below, key=lambda item: item[0]):
        kind = host.kind_of(far)
        if far in numbers:
            continue
        wire = catalog.link(edge.link).kind
        if kind == "pcie_switch":
            numbers[far] = builder.add(Device(Kind.PCI, far, part))
            _descend(builder, host, far, numbers=numbers, ports=ports, part=part)
        elif kind == "gpu":
            capability = catalog.gpu(host.gpu).compute_capability.value
            numbers[far] = builder.add(Device(Kind.GPU, far, part, int(far[3:]), capability=capability))
        else:
            k = int(far[3:])
            if not ports[k].bw:
                continue
            nic = host.nics[k]
            numbers[far] = builder.add(Device(Kind.NIC, nic.hca, part))
            port = replace(ports[k], asic=k + 1)
            net = builder.add(Device(Kind.NET, nic.hca, part, k, net=port))
            builder.connect(numbers[far], net, LinkClass.NET, port.bw)
        if wire == "pcie":
            builder.connect(numbers[far], numbers[above], LinkClass.PCI, _gbps(edge))


def _join_gpus(builder: SystemBuilder, host: catalog.Host, numbers: dict[str, int]) -> None:
    """NVLink (or what the GPUs have instead) between GPUs and to switches; a processor's own link to a GPU."""
    switch = NONE
    for edge in host.edges:
        kinds = {host.kind_of(edge.a): edge.a, host.kind_of(edge.b): edge.b}
        wire = catalog.link(edge.link).kind
        if "nvswitch" in kinds and "gpu" in kinds:
            if switch == NONE:
                switch = builder.add(Device(Kind.NVS, "nvs"))
            builder.connect(numbers[kinds["gpu"]], switch, LinkClass.NVL, _gbps(edge))
        elif set(kinds) == {"gpu"} and wire == "nvlink":
            builder.connect(numbers[edge.a], numbers[edge.b], LinkClass.NVL, _gbps(edge))
        elif set(kinds) == {"gpu", "cpu"} and wire == "cpu":
            ends = numbers[kinds["gpu"]], numbers[kinds["cpu"]]
            beside = catalog.cpu_link(edge.link).pcie_rate
            on_pcie = any(
                kinds["gpu"] in (other.a, other.b) and catalog.link(other.link).kind == "pcie"
                for other in host.edges
            )
            if beside is not None and not on_pcie:
                # searches take the rate of the GPU's own PCI link for the least that is worth looking for
                builder.connect(*ends, LinkClass.PCI, beside.value / _BPS_PER_GBPS)
            builder.connect(*ends, LinkClass.C2C, _gbps(edge))
