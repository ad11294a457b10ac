"""Texts of `ibv_devinfo`, `ibstat`, `ibdev2netdev`, `show_gids` and `cma_roce_mode`, of a host of the twin.

Formats as of rdma-core 44 (ibv_devinfo), infiniband-diags (ibstat) and the scripts of NVIDIA's driver packages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.progress import Stage, silent
from fabrictwin.subnet.wire.link_encodings import link_of
from fabrictwin.tools.rdma import roce_mode
from fabrictwin.tools.rdma.devinfo import devinfo, short_list
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.gid import ROCE_V1, ROCE_V2
from fabrictwin.verbs.adapter.world import World
from fabrictwin.verbs.attributes.device_attributes import translate_link_layer
from fabrictwin.verbs.attributes.device_limits import firmware, part_id, port_attributes
from fabrictwin.verbs.pyverbs.utils import gid_text

_MODES = {ROCE_V1: "IB/RoCE v1", ROCE_V2: "RoCE v2"}


def open_world(cluster: str | Path, stage: Stage = silent) -> World:
    """The adapters of a cluster's file, for looking at, with its dead and slow links, and the GIDs that hosts have
    whose faults are of those. Raises ConfigError."""
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.faults import host_causes
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.engines.analytic.analytic_engine import AnalyticEngine
    from fabrictwin.twin.spec_twin import faulty_twin

    stage("building the cluster", 0.0)
    spec = load_cluster(cluster)
    blueprint = build(spec.cluster, spec=spec)
    twin = faulty_twin(blueprint, spec, stage)
    stage("naming adapters", 0.7)
    world = World(twin, engine=AnalyticEngine(twin.fabric, lambda: twin.routes))
    roce_mode.apply(world, cluster)
    for host, causes in host_causes(blueprint, spec).items():
        for wrong in causes:
            if wrong.kind == "wrong-gid":
                _keep_gids(world, host, routed=wrong.gid == "roce-v1")
    return world


def _keep_gids(world: World, host: int, *, routed: bool) -> None:
    """Leave a host's adapters link-local GIDs alone, or those of RoCE v1 (`routed`: the IP address's too)."""
    for adapter in world.adapters:
        if adapter.host == host and adapter.ethernet:
            adapter.gids = tuple(
                gid for gid in adapter.gids if (gid.kind == ROCE_V1 if routed else gid.raw.startswith(b"\xfe"))
            )


def pick(world: World, host: str | None, device: str | None) -> list[Adapter]:
    """A host's adapters (the first host's where none is named), or one of them. Raises ConfigError."""
    adapters = world.host(world.fabric.host_names[0] if host is None else host)
    if device is None:
        return adapters
    named = [adapter for adapter in adapters if adapter.name == device]
    if not named:
        known = [adapter.name for adapter in adapters]
        raise ConfigError(
            f"got device {device!r}, expected one of {', '.join(known)}{did_you_mean(device, known)}",
            key="--device",
        )
    return named


def _netdev(adapter: Adapter) -> str:
    """The network interface of an adapter: the host's n-th; `eth0` is a host's management network."""
    fabric = adapter.world.fabric
    index = adapter.index - int(np.argmax(fabric.node_host[fabric.nic_node] == adapter.host))
    return f"eth{index + 1}" if adapter.ethernet else f"ib{index}"


def ibv_devinfo(adapters: Sequence[Adapter], *, verbose: bool = False) -> str:
    return "\n".join(devinfo(adapter, verbose=verbose) for adapter in adapters)


def ibstat(adapters: Sequence[Adapter]) -> str:
    return "\n".join(_stat(adapter) for adapter in adapters)


def _stat(adapter: Adapter) -> str:
    port = port_attributes(adapter)
    up = adapter.active
    raw = adapter.gids[0].raw[8:] if adapter.ethernet else adapter.guid.to_bytes(8, "big")
    return "\n".join(
        (
            f"CA '{adapter.name}'",
            f"\tCA type: MT{part_id(adapter)}",
            "\tNumber of ports: 1",
            f"\tFirmware version: {firmware()}",
            "\tHardware version: 0",
            f"\tNode GUID: 0x{adapter.guid:016x}",
            f"\tSystem image GUID: 0x{adapter.guid:016x}",
            "\tPort 1:",
            f"\t\tState: {'Active' if up else 'Down'}",
            f"\t\tPhysical state: {'LinkUp' if up else 'Disabled'}",
            f"\t\tRate: {_rate(adapter)}",
            f"\t\tBase lid: {port.lid}",
            f"\t\tLMC: {port.lmc}",
            f"\t\tSM lid: {port.sm_lid}",
            f"\t\tCapability mask: 0x{port.port_cap_flags:08x}",
            f"\t\tPort GUID: 0x{raw.hex()}",
            f"\t\tLink layer: {translate_link_layer(port.link_layer)}",
        )
    )


_NAMED_GBPS = {"SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0}
_NAMED_GBPS |= {"NDR": 100.0, "XDR": 200.0}


def _rate(adapter: Adapter) -> str:
    """The rate as it is named: lanes times what a lane is called by, in Gb/s."""
    if not adapter.active:
        return "10"  # what a port shows that is down
    lanes, speed = link_of(adapter.rate_bps)
    return f"{lanes * _NAMED_GBPS[speed.name]:g}"


def ibdev2netdev(adapters: Sequence[Adapter]) -> str:
    return "\n".join(
        f"{adapter.name} port 1 ==> {_netdev(adapter)} ({'Up' if adapter.active else 'Down'})"
        for adapter in adapters
    )


def show_gids(adapters: Sequence[Adapter]) -> str:
    lines = [
        "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV",
        "---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---",
    ]
    for adapter in adapters:
        for index, gid in enumerate(adapter.gids):
            mapped = gid.raw.startswith(bytes(10) + b"\xff\xff")
            ipv4 = ".".join(str(byte) for byte in gid.raw[12:]) if mapped else ""
            kind = roce_mode.WORDS.get(gid.kind, "v1")
            lines.append(
                f"{adapter.name}\t1\t{index}\t{gid_text(gid.raw)}\t{ipv4:<12}  \t{kind}\t{_netdev(adapter)}"
            )
    lines.append(f"n_gids_found={len(lines) - 2}")
    return "\n".join(lines)


def cma_roce_mode(cluster: str | Path, adapter: Adapter, mode: int | None) -> str:
    """Return the RoCE that connections take; with `mode` 1 or 2 from now on v1 or v2. Raises ConfigError."""
    if not adapter.ethernet:
        raise ConfigError(
            f"got {adapter.host_name}/{adapter.name}, expected a device on Ethernet: it is InfiniBand"
        )
    if mode is not None:
        kind = {1: ROCE_V1, 2: ROCE_V2}.get(mode)
        if kind is None:
            raise ConfigError(f"got mode {mode}, expected 1 (RoCE v1) or 2 (RoCE v2)", key="--mode")
        modes = roce_mode.read(cluster)
        modes[adapter.host_name, adapter.name] = kind
        roce_mode.write(cluster, modes)
        adapter.roce_mode = kind
    return _MODES[adapter.roce_mode]


def by_address(world: World, address: str) -> Adapter:
    """The adapter with an IPv4 address (Ethernet). Raises ConfigError."""
    for adapter in world.adapters:
        if adapter.ethernet and ".".join(str(byte) for byte in adapter.ipv4) == address:
            return adapter
    raise ConfigError(f"got {address!r}, expected the address of an adapter, as show_gids lists them")


__all__ = [
    "by_address",
    "cma_roce_mode",
    "ibdev2netdev",
    "ibstat",
    "ibv_devinfo",
    "open_world",
    "pick",
    "short_list",
    "show_gids",
]
