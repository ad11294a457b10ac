"""SONiC's config_db.json of a switch, and beside it the reason of every value.

Tables and fields as in SONiC's YANG models (sonic-net/sonic-buildimage, src/sonic-yang-models). Values are
strings, as in the database.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fabrictwin.configuration.model.switches import Group, Port, Switch
from fabrictwin.configuration.policy.chips import BOX_OF_PLATFORM, Box
from fabrictwin.configuration.policy.reasons import reason
from fabrictwin.configuration.writers.files import WrittenFile

Rows = dict[str, dict[str, Any]]
Tables = dict[str, Rows]
MAP, RED, CNP, BULK = "AZURE", "AZURE_LOSSLESS", "scheduler.strict", "scheduler.dwrr"


def files(switch: Switch) -> list[WrittenFile]:
    """Return config_db.json and its reasons."""
    tables = config_db(switch)
    folder = f"sonic/{switch.name}"
    return [
        WrittenFile(f"{folder}/config_db.json", json.dumps(tables, indent=4) + "\n"),
        WrittenFile(f"{folder}/config_db.reasons.json", json.dumps(reasons(tables), indent=1) + "\n"),
    ]


def config_db(switch: Switch) -> Tables:
    """Return the tables of a switch."""
    tables: Tables = {"DEVICE_METADATA": {"localhost": _metadata(switch)}}
    lossless = {p.name: p for p in switch.ports.values() if p.qos.pfc}
    box = BOX_OF_PLATFORM.get(switch.box.platform)
    tables["PORT"] = {port.name: _port(port, box) for port in switch.ports.values()}
    lengths = {
        port.name: f"{port.link.cable_m}m" for port in switch.ports.values() if port.link.cable_m is not None
    }
    if lengths:
        tables["CABLE_LENGTH"] = {MAP: lengths}
    if switch.buffers.lossless_mtu_bytes is not None:
        tables["LOSSLESS_TRAFFIC_PATTERN"] = {
            MAP: {
                "mtu": str(switch.buffers.lossless_mtu_bytes),
                "small_packet_percentage": str(switch.buffers.small_packet_percent),
            }
        }
    if switch.buffers.over_subscribe is not None:
        tables["DEFAULT_LOSSLESS_BUFFER_PARAMETER"] = {
            MAP: {"default_dynamic_th": "0", "over_subscribe_ratio": str(switch.buffers.over_subscribe)}
        }
    tables |= _buffers(switch)
    tables |= _maps(switch)
    tables |= _queues(switch)
    if lossless:
        tables |= _watchdogs(switch)
    tables |= _neighbours(switch)
    return {table: rows for table, rows in tables.items() if rows}


def _metadata(switch: Switch) -> dict[str, str]:
    box = BOX_OF_PLATFORM.get(switch.box.platform)
    lanes = Counter(port.link.lanes for port in switch.ports.values())
    upward = any(not port.bgp and port.address for port in switch.ports.values())
    found = {
        "hostname": switch.name,
        "platform": switch.box.platform,
        "hwsku": box.sku(lanes.most_common(1)[0][0]) if box and lanes else switch.box.platform,
        "mac": switch.box.mac,
        "type": "ToRRouter" if upward else "LeafRouter",
        "buffer_model": "traditional",
        "docker_routing_config_mode": "unified",
        "frr_mgmt_framework_config": "true",
    }
    if switch.bgp.asn is not None:
        found["bgp_asn"] = str(switch.bgp.asn)
    return found


def _port(port: Port, box: Box | None) -> dict[str, str]:
    first = (port.link.jack - 1) * port.link.lanes
    found = {
        "index": str(port.link.jack if box is None else box.cage(port.link.jack, port.link.lanes)),
        "lanes": ",".join(str(first + lane) for lane in range(max(port.link.lanes, 1))),
        "speed": str(port.link.speed_bps // 10**6),
        "admin_status": "up",
    }
    if port.link.fec:
        found["fec"] = port.link.fec
    if port.link.mtu_bytes is not None:
        found["mtu"] = str(port.link.mtu_bytes)
    if port.link.peer:
        found["description"] = port.link.peer
    return found


def _profile(group: Group) -> dict[str, str]:
    found = {"pool": group.pool, "size": str(group.size_bytes)}
    for name, value in (
        ("xon", group.xon_bytes),
        ("xon_offset", group.xon_offset_bytes),
        ("xoff", group.xoff_bytes),
        ("dynamic_th", group.dynamic_th),
        ("static_th", group.static_th),
    ):
        if value is not None:
            found[name] = str(value)
    return found


def _buffers(switch: Switch) -> Tables:
    pools: Rows = {}
    profiles: Rows = {}
    groups: Rows = {}
    queues: Rows = {}
    lists: Rows = {}
    for name, pool in switch.buffers.pools.items():
        pools[name] = {"type": pool.kind, "mode": pool.mode}
        if pool.size_bytes is not None:
            pools[name]["size"] = str(pool.size_bytes)
        if pool.xoff_bytes:
            pools[name]["xoff"] = str(pool.xoff_bytes)
    for port in switch.ports.values():
        used = []
        for number, group in sorted(port.qos.groups.items()):
            profiles[group.profile] = _profile(group)
            groups[f"{port.name}|{number}"] = {"profile": group.profile}
            used.append(group.profile)
        for number, queue in sorted(port.qos.queues.items()):
            if queue.profile:
                egress = "egress_lossless_pool" if "lossless" in queue.profile else "egress_lossy_pool"
                threshold = "7" if "lossless" in queue.profile else "3"
                profiles[queue.profile] = {"pool": egress, "size": "0", "dynamic_th": threshold}
                queues[f"{port.name}|{number}"] = {"profile": queue.profile}
        if "ingress_lossy_profile" in used:
            lists[port.name] = {"profile_list": ["ingress_lossy_profile"]}
    return {
        "BUFFER_POOL": pools,
        "BUFFER_PROFILE": profiles,
        "BUFFER_PG": groups,
        "BUFFER_QUEUE": queues,
        "BUFFER_PORT_INGRESS_PROFILE_LIST": lists,
    }


def _of(numbers: Mapping[int, int]) -> dict[str, str]:
    return {str(key): str(value) for key, value in sorted(numbers.items())}


def _maps(switch: Switch) -> Tables:
    """Maps by name: ports with the same maps share them."""
    tables: Tables = {
        name: {}
        for name in (
            "DSCP_TO_TC_MAP",
            "DOT1P_TO_TC_MAP",
            "TC_TO_PRIORITY_GROUP_MAP",
            "TC_TO_QUEUE_MAP",
            "MAP_PFC_PRIORITY_TO_QUEUE",
            "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP",
            "PORT_QOS_MAP",
        )
    }
    named: list[Any] = []
    for port in switch.ports.values():
        if port.qos.trust is None:
            continue
        key = (port.qos.maps, port.qos.trust)
        if key not in named:
            named.append(key)
        number = named.index(key)
        name = MAP if number == 0 else f"{MAP}_{number}"
        classes = "DOT1P_TO_TC_MAP" if port.qos.trust == "pcp" else "DSCP_TO_TC_MAP"
        said = {"tc_to_pg_map": name, "tc_to_queue_map": name, "pfc_to_queue_map": name, "pfc_to_pg_map": name}
        if port.qos.trust != "none":
            tables[classes][name] = _of(port.qos.maps.dscp_to_tc)
            said["dot1p_to_tc_map" if port.qos.trust == "pcp" else "dscp_to_tc_map"] = name
        tables["TC_TO_PRIORITY_GROUP_MAP"][name] = _of(port.qos.maps.tc_to_group)
        tables["TC_TO_QUEUE_MAP"][name] = _of(port.qos.maps.tc_to_queue)
        tables["MAP_PFC_PRIORITY_TO_QUEUE"][name] = _of(port.qos.maps.pfc_to_queue)
        tables["PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"][name] = _of({priority: priority for priority in range(8)})
        if port.qos.pfc:
            listed = ",".join(str(priority) for priority in sorted(port.qos.pfc))
            said |= {"pfc_enable": listed}
            if port.qos.watchdog is not None:
                said["pfcwd_sw_enable"] = listed
        tables["PORT_QOS_MAP"][port.name] = said
    return tables


def _queues(switch: Switch) -> Tables:
    red: Rows = {}
    schedulers: Rows = {}
    queues: Rows = {}
    for port in switch.ports.values():
        for number, queue in sorted(port.qos.queues.items()):
            row: dict[str, str] = {}
            if queue.scheduler == "strict":
                schedulers[CNP] = {"type": "STRICT"}
                row["scheduler"] = CNP
            elif queue.scheduler == "dwrr":
                name = f"{BULK}.{queue.weight}"
                schedulers[name] = {"type": "DWRR", "weight": str(queue.weight)}
                row["scheduler"] = name
            if queue.ecn is not None:
                name = RED if not red or red[RED] == _red(queue.ecn) else f"{RED}_{port.name}_{number}"
                red[name] = _red(queue.ecn)
                row["wred_profile"] = name
            if row:
                queues[f"{port.name}|{number}"] = row
    return {"WRED_PROFILE": red, "SCHEDULER": schedulers, "QUEUE": queues}


def _red(ecn: Any) -> dict[str, str]:
    found = {"ecn": "ecn_all"}
    for colour in ("green", "yellow", "red"):
        found |= {
            f"wred_{colour}_enable": "true",
            f"{colour}_min_threshold": str(ecn.min_bytes),
            f"{colour}_max_threshold": str(ecn.max_bytes),
            f"{colour}_drop_probability": str(ecn.probability),
        }
    return found


def _watchdogs(switch: Switch) -> Tables:
    rows: dict[str, dict[str, str]] = {}
    if switch.watchdog_poll_ms is not None:
        rows["GLOBAL"] = {"POLL_INTERVAL": str(switch.watchdog_poll_ms)}
    for port in switch.ports.values():
        if port.qos.watchdog is not None:
            rows[port.name] = {
                "action": port.qos.watchdog.action,
                "detection_time": str(port.qos.watchdog.detection_ms),
                "restoration_time": str(port.qos.watchdog.restoration_ms),
            }
    return {"PFC_WD": rows}


def _neighbours(switch: Switch) -> Tables:
    tables: Tables = {"DEVICE_NEIGHBOR": {}, "INTERFACE": {}, "BGP_NEIGHBOR": {}, "BGP_NEIGHBOR_AF": {}}
    for port in switch.ports.values():
        if port.link.peer:
            name, _, far = port.link.peer.partition("/")
            tables["DEVICE_NEIGHBOR"][port.name] = {"name": name, "port": far}
        if port.bgp:
            tables["INTERFACE"][port.name] = {"ipv6_use_link_local_only": "enable"}
            tables["BGP_NEIGHBOR"][f"default|{port.name}"] = {"peer_type": "external"}
            tables["BGP_NEIGHBOR_AF"][f"default|{port.name}|ipv4_unicast"] = {"admin_status": "up"}
        elif port.address:
            tables["INTERFACE"] |= {port.name: {}, f"{port.name}|{port.address}": {}}
    if switch.bgp.loopback:
        tables["LOOPBACK_INTERFACE"] = {"Loopback0": {}, f"Loopback0|{switch.bgp.loopback}/32": {}}
    if switch.bgp.asn is not None:
        tables["BGP_GLOBALS"] = {
            "default": {
                "local_asn": str(switch.bgp.asn),
                "router_id": switch.bgp.loopback,
                "load_balance_mp_relax": "true",
                "default_ipv4_unicast": "true",
            }
        }
        tables["BGP_GLOBALS_AF"] = {"default|ipv4_unicast": {"max_ebgp_paths": "128"}}
        tables["ROUTE_REDISTRIBUTE"] = {"default|connected|bgp|ipv4": {}}
    if switch.lldp is not None:
        tables["LLDP_PORT"] = {name: {"enabled": "true" if switch.lldp else "false"} for name in switch.ports}
    return tables


_TABLE = {
    "PORT": "port",
    "CABLE_LENGTH": "cable",
    "LOSSLESS_TRAFFIC_PATTERN": "traffic_pattern",
    "DEFAULT_LOSSLESS_BUFFER_PARAMETER": "over_subscribe",
    "BUFFER_POOL": "pool",
    "BUFFER_PG": "group_size",
    "BUFFER_QUEUE": "queue_buffer",
    "BUFFER_PORT_INGRESS_PROFILE_LIST": "ingress_profiles",
    "DSCP_TO_TC_MAP": "dscp_map",
    "DOT1P_TO_TC_MAP": "dscp_map",
    "TC_TO_PRIORITY_GROUP_MAP": "tc_group",
    "TC_TO_QUEUE_MAP": "tc_queue",
    "MAP_PFC_PRIORITY_TO_QUEUE": "pfc_queue",
    "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP": "pfc_group",
    "PORT_QOS_MAP": "qos_map",
    "WRED_PROFILE": "ecn",
    "QUEUE": "scheduler_roce",
    "PFC_WD": "watchdog",
    "DEVICE_NEIGHBOR": "peer",
    "INTERFACE": "address",
    "LOOPBACK_INTERFACE": "loopback",
    "BGP_NEIGHBOR": "bgp",
    "BGP_NEIGHBOR_AF": "bgp",
    "BGP_GLOBALS": "asn",
    "BGP_GLOBALS_AF": "multipath",
    "ROUTE_REDISTRIBUTE": "redistribute",
    "LLDP_PORT": "lldp",
    "DEVICE_METADATA": "hostname",
}
_FIELD = {
    "platform": "platform",
    "hwsku": "platform",
    "mac": "mac",
    "docker_routing_config_mode": "frr_management",
    "frr_mgmt_framework_config": "frr_management",
    "buffer_model": "buffer_model",
    "bgp_asn": "asn",
    "fec": "fec",
    "mtu": "mtu",
    "description": "peer",
    "xon": "xon",
    "xon_offset": "xon",
    "dynamic_th": "alpha",
    "pfc_enable": "pfc_enable",
    "pfcwd_sw_enable": "watchdog",
    "dscp_to_tc_map": "trust",
    "dot1p_to_tc_map": "trust",
    "POLL_INTERVAL": "watchdog_poll",
    "router_id": "loopback",
    "load_balance_mp_relax": "multipath",
    "default_ipv4_unicast": "redistribute",
    "ipv6_use_link_local_only": "bgp",
}


def reasons(tables: Tables) -> dict[str, str]:
    """Return the reason of every value, by `TABLE|key|field`; where a row has no field, by `TABLE|key`."""
    found = {}
    for table, rows in tables.items():
        for key, row in rows.items():
            for name, value in row.items():
                found[f"{table}|{key}|{name}"] = str(reason(_reason_of(table, key, name, value)))
            if not row:
                found[f"{table}|{key}"] = str(reason(_TABLE[table]))
    return found


def _reason_of(table: str, key: str, name: str, value: Any) -> str:
    if table == "BUFFER_PROFILE":
        if "lossless" in key and key.startswith("pg_"):
            return {"size": "group_size", "xoff": "xoff", "pool": "pool"}.get(name, _FIELD.get(name, "alpha"))
        return "lossy_group" if key.startswith("ingress") else "queue_buffer"
    if table == "BUFFER_POOL" and key.startswith("egress"):
        return "egress_pool"
    if table == "SCHEDULER" or (table == "QUEUE" and name == "scheduler"):
        return "scheduler_cnp" if "strict" in f"{key}{value}" else "scheduler_roce"
    if table == "QUEUE":
        return "ecn"
    if table == "DEVICE_METADATA" and name == "type":
        return "role"
    if table == "LOSSLESS_TRAFFIC_PATTERN":
        return _TABLE[table]
    return _FIELD.get(name, _TABLE[table])
