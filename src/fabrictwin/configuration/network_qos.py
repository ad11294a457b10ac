"""A configuration as `network.qos` of a spec: what each port does with each priority, for the packet engine.

Ports that are configured alike share a row. Ports of the cluster that no file is about keep the engine's defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.configuration.headroom import mlx5
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.model.hosts import Adapter
from fabrictwin.configuration.model.switches import Group, Port, Queue, Switch
from fabrictwin.configuration.policy.chips import CELL_BYTES
from fabrictwin.configuration.policy.cluster_policy import qos_of
from fabrictwin.configuration.policy.host_policy import FRAME_MORE
from fabrictwin.configuration.policy.wiring import End, ends

ETHERNET_BYTES = 18  # header and check sequence: a frame is so much more than its IP packet
Row = dict[str, Any]


def with_network_qos(spec: Spec, configuration: Configuration) -> Spec:
    """Return the spec with `network.qos` as the configuration has it.

    Raises ConfigError where the cluster is no Ethernet, or has none of the configured ports.
    """
    blueprint = build(spec.cluster, spec=spec)
    if blueprint.technology != "ethernet":
        raise ConfigError(
            "got a configuration for InfiniBand, expected Ethernet: credits need no qos", key="--onto"
        )
    rows = port_rows(blueprint, configuration)
    if not rows:
        raise ConfigError(
            "got no port of this cluster in the configuration, expected the same names of switches and hosts",
            key="--onto",
        )
    where = "cluster.network.qos" if hasattr(spec.cluster, "network") else "cluster.qos"
    base = qos_of(spec).model_dump(mode="json", exclude_none=True, exclude={"ports"})
    dscp = _dscp(configuration)
    if dscp is not None:
        base["dscp"] = dscp
    return spec.with_({where: base | {"ports": rows}})


def _dscp(configuration: Configuration) -> int | None:
    """The DSCP that hosts give to RDMA, as NCCL or the adapter is told; None where none says."""
    for host in configuration.hosts.values():
        text = host.nccl.get("NCCL_IB_TC", "")
        if text.isdecimal() and len(text) < 4:
            return int(text) >> 2
        for adapter in host.adapters.values():
            if adapter.roce.traffic_class is not None:
                return adapter.roce.traffic_class >> 2
    return None


def port_rows(blueprint: Blueprint, configuration: Configuration) -> list[Row]:
    """Return rows of `network.qos.ports`, ports that are alike in one."""
    alike: dict[str, tuple[list[str], Row]] = {}
    known = {site.name: site for site in blueprint.switches}
    for switch in configuration.switches.values():
        if switch.name not in known:
            continue
        for port in switch.ports.values():
            if 1 <= port.link.jack <= known[switch.name].ports:
                _keep(alike, f"{switch.name}/{port.link.jack}", _switch_row(switch, port))
    plugged = ends(blueprint)
    node = len(blueprint.switches)
    for site in blueprint.hosts:
        host = configuration.hosts.get(site.name)
        for k, device in enumerate(site.nics):
            adapter = None if host is None else host.adapters.get(device)
            cables = plugged.get(node + k)
            if adapter is not None and cables and adapter.link.technology == "ethernet":
                _keep(alike, f"{site.name}/{device}", _adapter_row(adapter, cables[0]))
        node += len(site.nics)
    return [{"ports": names, **row} for names, row in alike.values()]


def _keep(alike: dict[str, tuple[list[str], Row]], name: str, row: Row) -> None:
    key = json.dumps(row, sort_keys=True)
    alike.setdefault(key, ([], row))[0].append(name)


def _mapped(numbers: Mapping[int, int]) -> dict[int, int]:
    return {dscp: priority for dscp, priority in sorted(numbers.items()) if priority}


def _switch_row(switch: Switch, port: Port) -> Row:
    pfc = sorted(port.qos.pfc or ())
    by_dscp = port.qos.maps.dscp_to_tc if port.qos.trust == "dscp" else {}
    row: Row = {
        "pauses": pfc,
        "obeys": pfc if port.qos.pfc_receives else [],
        "groups": _mapped(
            {dscp: port.qos.maps.group_of(dscp) for dscp in by_dscp} if port.qos.maps.tc_to_group else by_dscp
        ),
        "queues": _mapped({dscp: port.qos.maps.queue_of(dscp) for dscp in by_dscp}),
    }
    priorities: dict[int, Row] = {}
    for number, group in port.qos.groups.items():
        priorities.setdefault(number, {}).update(_group_row(group))
    for number, queue in port.qos.queues.items():
        if number < 8:
            priorities.setdefault(number, {}).update(_queue_row(queue))
    row["priorities"] = {number: said for number, said in sorted(priorities.items()) if said}
    if port.link.mtu_bytes is not None:
        row["frame"] = f"{port.link.mtu_bytes + ETHERNET_BYTES} B"
    if switch.box.chip in CELL_BYTES:
        row["cell"] = f"{CELL_BYTES[switch.box.chip]} B"
    if (
        port.qos.watchdog is not None
        and port.qos.watchdog.action in ("drop", "forward")
        and port.qos.watchdog.detection_ms
    ):
        row["watchdog"] = {
            "detection": f"{port.qos.watchdog.detection_ms} ms",
            "restoration": f"{max(port.qos.watchdog.restoration_ms, 1)} ms",
            "action": port.qos.watchdog.action,
        }
    return row


def _group_row(group: Group) -> Row:
    row: Row = {"headroom": f"{group.xoff_bytes or 0} B"}
    if group.lossless:
        own = group.size_bytes - (group.xoff_bytes or 0)
        row["reserve"] = f"{max(own, 0)} B"
        row["resume"] = f"{group.xon_offset_bytes or group.xon_bytes or 0} B"
    if group.dynamic_th is not None:
        row["alpha"] = 2.0**group.dynamic_th
    elif group.static_th is not None:
        row["threshold"] = f"{group.static_th} B"
    return row


def _queue_row(queue: Queue) -> Row:
    row: Row = {}
    if queue.scheduler == "strict":
        row["strict"] = True
    elif queue.weight is not None:
        row["weight"] = queue.weight
    if queue.ecn is not None and queue.ecn.min_bytes < queue.ecn.max_bytes and queue.ecn.probability:
        row["ecn"] = {
            "min": f"{queue.ecn.min_bytes} B",
            "max": f"{queue.ecn.max_bytes} B",
            "probability": queue.ecn.probability / 100,
        }
    return row


def _adapter_row(adapter: Adapter, end: End) -> Row:
    pfc = sorted(adapter.qos.pfc or ())
    # by trust in DSCP an unmapped one has the priority of its upper three bits (linux mlx5, dcbnl)
    trusted = adapter.qos.trust == "dscp"
    by_dscp = {dscp: dscp >> 3 for dscp in range(64)} | dict(adapter.qos.dscp_to_priority) if trusted else {}
    row: Row = {
        "pauses": pfc,
        "obeys": pfc,
        "groups": _mapped(by_dscp),
        "queues": _mapped(by_dscp),
    }
    if adapter.qos.buffer_bytes and adapter.qos.priority_to_buffer:
        metres = adapter.link.cable_m if adapter.link.cable_m is not None else -(-end.length_mm // 1000)
        headroom = mlx5.headroom_bytes(
            end.rate_bps // 10**6, metres, (adapter.link.mtu_bytes or 1500) + FRAME_MORE
        )
        priorities = {}
        for priority in pfc:
            size = adapter.qos.buffer_bytes[adapter.qos.priority_to_buffer[priority]]
            kept = min(headroom, size)
            priorities[priority] = {"headroom": f"{kept} B", "threshold": f"{size - kept} B", "reserve": "0 B"}
        row["priorities"] = priorities
    if adapter.link.mtu_bytes is not None:
        row["frame"] = f"{adapter.link.mtu_bytes + ETHERNET_BYTES} B"
    return row
