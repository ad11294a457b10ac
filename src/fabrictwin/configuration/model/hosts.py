"""A host's configuration: adapters, kernel, limits, services, containers, NCCL's environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from fabrictwin.base.records import record
from fabrictwin.configuration.model.switches import Trust


@record
class AdapterLink:
    """What a port of an adapter is plugged into, and its address as a network interface."""

    technology: Literal["ethernet", "infiniband"] = "ethernet"
    address: str = ""  # with the length of its prefix
    mtu_bytes: int | None = None
    peer: str = ""  # `leaf-0/Ethernet8`
    cable_m: int | None = None
    ipoib_mode: Literal["datagram", "connected"] | None = None


@record
class AdapterQos:
    """What it does for each priority of Ethernet: pauses, receive buffers, traffic classes."""

    trust: Trust | None = None
    pfc: frozenset[int] | None = None
    dscp_to_priority: Mapping[int, int] = field(default_factory=dict)
    buffer_bytes: tuple[int, ...] = ()
    priority_to_buffer: tuple[int, ...] = ()
    scheduler: tuple[str, ...] = ()  # of each traffic class: strict or ets
    weights: tuple[int, ...] = ()
    priority_to_tc: tuple[int, ...] = ()


@record
class Roce:
    """How its connections mark their packets, and on which priorities they heed congestion."""

    roce_mode: int | None = None  # 1 or 2, of connections of rdma_cm
    traffic_class: int | None = None  # of those connections: DSCP in its upper six bits
    tos: int | None = None  # of rdma_cm by default
    cnp_dscp: int | None = None
    cnp_priority: int | None = None
    ecn_notification: frozenset[int] | None = None  # priorities on which it sends CNPs
    ecn_reaction: frozenset[int] | None = None  # priorities on which it slows down for them


@record
class Driver:
    """What the driver of an Ethernet interface is told."""

    global_pause: bool | None = None
    ring_rx: int | None = None
    ring_tx: int | None = None


@record
class Card:
    """The card: its firmware and its place on PCI Express."""

    pci: str = ""  # where a script names it by its bus address
    guid: str = ""
    firmware: Mapping[str, str] = field(default_factory=dict)
    max_read_request: int | None = None
    acs_disabled: bool | None = None


@record
class Adapter:
    """A port of an adapter, as `mlnx_qos`, `cma_roce_mode`, `mlxconfig`, `ethtool` and netplan set it."""

    device: str
    netdev: str = ""
    link: AdapterLink = AdapterLink()
    qos: AdapterQos = AdapterQos()
    roce: Roce = Roce()
    driver: Driver = Driver()
    card: Card = Card()


@record
class Kernel:
    """What the kernel is told, when it starts and later."""

    sysctl: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)  # `* soft memlock`: unlimited
    modules: tuple[str, ...] = ()
    module_options: Mapping[str, str] = field(default_factory=dict)
    kernel_arguments: tuple[str, ...] = ()


@record
class Host:
    """A host. Mappings hold what files set, by the names that they use."""

    name: str
    adapters: Mapping[str, Adapter] = field(default_factory=dict)  # by device, netdev where that is all there is
    management: str = ""
    kernel: Kernel = Kernel()
    services: Mapping[str, bool] = field(default_factory=dict)  # on or off
    container: tuple[str, ...] = ()
    nccl: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
