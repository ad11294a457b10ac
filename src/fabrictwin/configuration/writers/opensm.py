"""OpenSM's files: opensm.conf, partitions.conf, GUIDs, the QoS policy (opensm(8), QoS management in OpenSM).

Files name each other by absolute path, as the manager needs it: `folder` is where they will lie.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from fabrictwin.configuration.model.subnet import PartitionLine, Subnet
from fabrictwin.configuration.writers.files import Commented, WrittenFile

FOLDER = "/etc/opensm"
_OPTION = {
    "subnet_prefix": "osm_prefix",
    "sm_priority": "osm_priority",
    "routing_engine": "osm_engine",
    "lmc": "osm_lmc",
    "partition_config_file": "osm_partitions",
    "root_guid_file": "osm_roots",
    "cn_guid_file": "osm_cn",
    "io_guid_file": "osm_cn",
    "qos": "osm_qos",
    "qos_policy_file": "osm_qos",
    "qos_max_vls": "osm_vls",
    "qos_high_limit": "osm_vlarb",
    "qos_vlarb_high": "osm_vlarb",
    "qos_vlarb_low": "osm_vlarb",
    "qos_sl2vl": "osm_sl2vl",
    "subnet_timeout": "osm_timeout",
    "head_of_queue_lifetime": "osm_hoq",
    "leaf_head_of_queue_lifetime": "osm_hoq",
    "sweep_interval": "osm_sweep",
}


def files(subnet: Subnet, folder: str = FOLDER) -> list[WrittenFile]:
    """Return all files of a manager."""
    texts = {
        "opensm.conf": options(subnet, folder),
        "partitions.conf": partitions(subnet),
        "qos-policy.conf": policy(subnet),
    }
    for name, guids, key in (
        ("root_guids.conf", subnet.roots, "osm_roots"),
        ("cn_guids.conf", subnet.compute_nodes, "osm_cn"),
        ("io_guids.conf", subnet.io_nodes, "osm_cn"),
    ):
        if guids:
            texts[name] = guid_file(guids, key)
    return [WrittenFile(f"opensm/{name}", text) for name, text in texts.items()]


def options(subnet: Subnet, folder: str = FOLDER) -> str:
    """Return opensm.conf."""
    out = Commented(beside=False)
    for name, value in subnet.options.items():
        if name.endswith("_file") and value and "/" not in value:
            value = str(PurePosixPath(folder) / value)
        out.add(f"{name} {value}", _OPTION.get(name, "osm_log"))
    return out.text


def _flags(partition: PartitionLine) -> str:
    parts = [f"{partition.name}={partition.pkey:#06x}"]
    if partition.ipoib:
        parts.append("ipoib")
    for name in ("rate", "mtu", "sl"):
        value = getattr(partition, name)
        if value is not None:
            parts.append(f"{name}={value}")
    if partition.defmember != "limited":
        parts.append(f"defmember={partition.defmember}")
    return ", ".join(parts)


def partitions(subnet: Subnet) -> str:
    """Return partitions.conf."""
    out = Commented(beside=False)
    for one in subnet.partitions:
        members = [who if how == one.defmember else f"{who}={how}" for who, how in one.members.items()]
        key = "partition_default" if one.name == "Default" else "partition_compute"
        out.add(f"{_flags(one)} :", key)
        for at, member in enumerate(members):
            out.plain(f"    {member}{' ;' if at == len(members) - 1 else ','}")
        if not members:
            out.plain("    ;")
    return out.text


def guid_file(guids: tuple[int, ...], key: str) -> str:
    """Return GUIDs, one a line."""
    out = Commented(beside=False)
    for guid in guids:
        out.add(f"{guid:#018x}", key)
    return out.text


def policy(subnet: Subnet) -> str:
    """Return the QoS policy: port groups, levels, rules."""
    out = Commented(beside=False)
    if subnet.qos.groups:
        out.plain("port-groups")
        for name, guids in subnet.qos.groups.items():
            out.plain("    port-group")
            out.add(f"        name: {name}", "qos_group")
            out.plain(*(f"        port-guid: {guid.strip()}" for guid in guids.split(",")), "    end-port-group")
        out.plain("end-port-groups", "")
    out.plain("qos-levels")
    for level in subnet.qos.levels:
        out.plain("    qos-level")
        out.add(f"        name: {level.name}", "qos_level")
        out.plain(f"        sl: {level.sl}", "    end-qos-level")
    out.plain("end-qos-levels")
    if subnet.qos.rules:
        out.plain("", "qos-match-rules")
        for matched, level_name in subnet.qos.rules:
            side, _, group = matched.partition(" ")
            out.plain("    qos-match-rule")
            out.add(f"        {side}: {group}", "qos_match")
            out.plain(f"        qos-level-name: {level_name}", "    end-qos-match-rule")
        out.plain("end-qos-match-rules")
    return out.text
