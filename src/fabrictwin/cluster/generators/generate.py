"""From a generated cluster's section to a blueprint: hosts by name, the switch's mode, rates, cables."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.units import format_rate
from fabrictwin.cluster.blueprint import Blueprint, Cables, HostSite, Int, SwitchSite, Technology
from fabrictwin.cluster.generators.topologies import wire
from fabrictwin.cluster.spec.cluster_section import GeneratedCluster, Network

MAX_PORTS = 254  # a port's number is a byte in forwarding tables, and 255 means none


def generate(cluster: GeneratedCluster, folder: Path = Path()) -> Blueprint:
    """The blueprint of a generated cluster. `folder` is what paths in it are relative to.

    Raises ConfigError with a key below the section.
    """
    cluster = _read_machines(cluster, folder)
    network = cluster.network
    nics = _adapters(cluster, by_tray=network.topology.kind == "rail-optimised")
    nic_rate = _nic_rate(cluster, network.technology)
    ports, port_rate = _switch_mode(network, nic_rate)
    link_rate = min(nic_rate, port_rate) if network.link_rate is None else network.link_rate
    if link_rate > nic_rate:
        raise ConfigError(
            f"got {format_rate(link_rate)}, expected at most {format_rate(nic_rate)}: what the adapters can",
            key="network.link_rate",
        )
    trunk_rate = link_rate if network.trunk_rate is None else network.trunk_rate
    try:
        wiring = wire(network.topology, nics=nics, radix=ports)
    except ConfigError as error:
        raise ConfigError(error.message, key=f"network.topology.{error.key}") from None
    for key, length, rate in (
        ("host_cable", network.host_cable, link_rate),
        ("trunk_cable", network.trunk_cable, trunk_rate),
    ):
        if key == "host_cable" or len(wiring.lower):
            check_cable(length, rate, key=f"network.{key}")
    adapters, trunks = len(wiring.adapter_switch), len(wiring.lower)
    kind = catalog.switch(network.switch).name  # which may be written by a name that it is sold by
    switches = tuple(
        SwitchSite(name=name, type=kind, ports=ports, tier=tier, pod=pod)
        for name, tier, pod in zip(wiring.names, wiring.tier.tolist(), wiring.pod.tolist(), strict=True)
    )
    return Blueprint(
        technology=network.technology,
        hosts=_hosts(cluster),
        switches=switches,
        cables=Cables(
            a_node=np.concatenate([wiring.adapter_switch, wiring.lower]),
            a_port=np.concatenate([wiring.adapter_port, wiring.lower_port]),
            b_node=np.concatenate([len(switches) + np.arange(adapters), wiring.upper]),
            b_port=np.concatenate([np.ones(adapters, np.int64), wiring.upper_port]),
            rate_bps=np.repeat([link_rate, trunk_rate], [adapters, trunks]),
            length_mm=np.repeat([network.host_cable, network.trunk_cable], [adapters, trunks]),
        ),
        mtu_bytes=network.mtu,
    )


def _read_machines(cluster: GeneratedCluster, folder: Path) -> GeneratedCluster:
    """The cluster with machines of topology files as types of hosts."""
    groups = []
    for index, group in enumerate(cluster.hosts):
        if group.nccl_xml is not None:
            from fabrictwin.cluster.importers.nccl_host import host_of_xml

            try:
                name = host_of_xml(group.nccl_xml, folder)
            except ConfigError as error:
                if error.file is not None:
                    raise
                raise ConfigError(error.message, key=f"hosts[{index}].nccl_xml") from None
            group = group.model_copy(update={"type": name, "nccl_xml": None})
        groups.append(group)
    return cluster.model_copy(update={"hosts": tuple(groups)})


def check_cable(length_mm: int, rate_bps: int, *, key: str) -> None:
    """Raises ConfigError where no cable of the catalog reaches that far at that rate."""
    try:
        catalog.medium(length_mm, rate_bps)
    except ConfigError as error:
        raise ConfigError(error.message, key=key) from None


def _adapters(cluster: GeneratedCluster, *, by_tray: bool) -> Int:
    """Return how many adapters each host has, or each tray of each host, in host order.

    Rails are a tray's: those of a rack with 18 trays of 4 adapters are 4, not 72.
    """
    counts, times = [], []
    for index, group in enumerate(cluster.hosts):
        try:
            host = catalog.host(group.type)
        except ConfigError as error:
            raise ConfigError(error.message, key=f"hosts[{index}].type") from None
        trays = host.trays if by_tray else 1
        counts.append(len(host.nics) // trays)
        times.append(group.count * trays)
    return np.repeat(counts, times)


def _hosts(cluster: GeneratedCluster) -> tuple[HostSite, ...]:
    hosts: list[HostSite] = []
    numbers: dict[str, int] = {}
    for group in cluster.hosts:
        nics = tuple(nic.hca for nic in catalog.host(group.type).nics)
        first = numbers.get(group.prefix, 0)
        numbers[group.prefix] = first + group.count
        hosts += [
            HostSite(name=f"{group.prefix}-{number}", type=group.type, nics=nics)
            for number in range(first, first + group.count)
        ]
    return tuple(hosts)


def adapter_rate(nic: str, technology: Technology) -> int:
    """Data rate of a catalog adapter's port, in bits per second."""
    entry = catalog.nic(nic)
    if technology == "infiniband":
        if not entry.infiniband:
            raise ConfigError(
                f"got infiniband with {nic}, which speaks Ethernet alone, expected ethernet",
                key="cluster.network.technology",
            )
        return catalog.infiniband_rate(entry.infiniband, 4)
    return catalog.ethernet_rate(entry.ethernet)


def _nic_rate(cluster: GeneratedCluster, technology: Technology) -> int:
    """The rate of the slowest adapter: one rate holds for all links."""
    return min(
        adapter_rate(nic.type, technology) for group in cluster.hosts for nic in catalog.host(group.type).nics
    )


def mode_rate(mode: catalog.PortMode) -> int:
    """Data rate of a switch's port in one of its modes, in bits per second."""
    if mode.technology == "infiniband":
        return catalog.infiniband_rate(mode.speed, mode.width)
    return catalog.ethernet_rate(mode.speed)


def _switch_mode(network: Network, nic_rate: int) -> tuple[int, int]:
    """(ports, their rate) of the mode that is fast enough and has the most ports."""
    try:
        switch = catalog.switch(network.switch)
    except ConfigError as error:
        raise ConfigError(error.message, key="network.switch") from None
    modes = [
        mode for mode in switch.modes if mode.technology == network.technology and mode.ports.value <= MAX_PORTS
    ]
    if not modes:
        others = sorted({mode.technology for mode in switch.modes})
        raise ConfigError(
            f"got {network.switch!r}, which is a switch for {' and '.join(others)}, "
            f"expected one for {network.technology}",
            key="network.switch",
        )
    needed = {"link_rate": network.link_rate or 0, "trunk_rate": network.trunk_rate or 0}
    fast = max(mode_rate(mode) for mode in modes)
    for key, rate in needed.items():
        if rate > fast:
            raise ConfigError(
                f"got {format_rate(rate)}, expected at most {format_rate(fast)}: what a port of "
                f"{network.switch} can",
                key=f"network.{key}",
            )
    at_least = max(needed.values()) or min(nic_rate, fast)
    # the tightest fit: 400 Gb/s adapters are cabled to 800 Gb/s ports split in two
    mode = min((m for m in modes if mode_rate(m) >= at_least), key=mode_rate)
    radix = network.topology.radix
    if radix is not None and radix > mode.ports.value:
        raise ConfigError(
            f"got {radix}, expected at most {mode.ports.value}: the ports of {network.switch} at "
            f"{format_rate(at_least)}",
            key="network.topology.radix",
        )
    return mode.ports.value, mode_rate(mode)
