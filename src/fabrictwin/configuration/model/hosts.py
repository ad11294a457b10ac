"""A host's configuration: adapters, kernel, limits, services, containers, NCCL's environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fabrictwin.configuration.model.switches import Trust


@dataclass(frozen=True)
class Adapter:
    """A port of an adapter, as `mlnx_qos`, `cma_roce_mode`, `mlxconfig`, `ethtool` and netplan set it."""

    device: str
    netdev: str = ""
    technology: Literal["ethernet", "infiniband"] = "ethernet"
    address: str = ""  # with the length of its prefix
    mtu_bytes: int | None = None
    peer: str = ""  # `leaf-0/Ethernet8`
    pci: str = ""  # where a script names it by its bus address
    guid: str = ""
    # Ethernet
    trust: Trust | None = None
    pfc: frozenset[int] | None = None
    dscp_to_priority: Mapping[int, int] = field(default_factory=dict)
    buffer_bytes: tuple[int, ...] = ()
    priority_to_buffer: tuple[int, ...] = ()
    cable_m: int | None = None
    scheduler: tuple[str, ...] = ()  # of each traffic class: strict or ets
    weights: tuple[int, ...] = ()
    priority_to_tc: tuple[int, ...] = ()
    global_pause: bool | None = None
    roce_mode: int | None = None  # 1 or 2, of connections of rdma_cm
    traffic_class: int | None = None  # of those connections: DSCP in its upper six bits
    tos: int | None = None  # of rdma_cm by default
    cnp_dscp: int | None = None
    cnp_priority: int | None = None
    ecn_notification: frozenset[int] | None = None  # priorities on which it sends CNPs
    ecn_reaction: frozenset[int] | None = None  # priorities on which it slows down for them
    ring_rx: int | None = None
    ring_tx: int | None = None
    # InfiniBand
    ipoib_mode: Literal["datagram", "connected"] | None = None
    # firmware and PCI Express
    firmware: Mapping[str, str] = field(default_factory=dict)
    max_read_request: int | None = None
    acs_disabled: bool | None = None


@dataclass(frozen=True)
class Host:
    """A host. Mappings hold what files set, by the names that they use."""

    name: str
    adapters: Mapping[str, Adapter] = field(default_factory=dict)  # by device, netdev where that is all there is
    management: str = ""
    sysctl: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)  # `* soft memlock`: unlimited
    modules: tuple[str, ...] = ()
    module_options: Mapping[str, str] = field(default_factory=dict)
    services: Mapping[str, bool] = field(default_factory=dict)  # on or off
    kernel_arguments: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    nccl: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
