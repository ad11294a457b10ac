"""NVUE commands for a switch with Cumulus Linux 5.

NVUE's own parser and schema are not public: commands are those of NVIDIA's NVUE command reference, page by page
(`nvue_pages`), and are read back by `readers.nvue` alone.
"""

from __future__ import annotations

from fabrictwin.configuration.model.switches import Group, Port, Switch
from fabrictwin.configuration.policy.switch_policy import nvue_profile
from fabrictwin.configuration.writers.files import Commented, WrittenFile
from fabrictwin.configuration.writers.nvue_pages import RELEASES, page_of

GLOBAL = "default-global"
ROCE, CNP = 3, 6  # classes of the RoCE mode


def files(switch: Switch) -> list[WrittenFile]:
    """Return the script of a switch."""
    return [WrittenFile(f"nvue/{switch.name}/startup.sh", script(switch), executable=True)]


def script(switch: Switch) -> str:
    """Return `nv set` commands, each with its reason."""
    out = Commented(width=92)
    out.plain("#!/bin/sh", f"# For {RELEASES}. Checked by no parser of NVUE's: none is public.", "set -e")
    out.add(f"nv set system hostname {switch.name}", "hostname")
    if switch.box.platform:
        out.add(f"# platform {switch.box.platform}", "platform")
    lossless = any(port.qos.pfc for port in switch.ports.values())
    if _as_roce_has_it(switch):
        out.add("nv set qos roce enable on", "roce")
        out.add(
            f"nv set qos roce mode {'lossless' if lossless else 'lossy'}", "roce" if lossless else "roce_lossy"
        )
    _maps(out, switch)
    _profiles(out, switch)
    split = {
        port.name.rpartition("s")[0]: port.link.split for port in switch.ports.values() if port.link.split > 1
    }
    for cage, parts in split.items():
        out.add(f"nv set interface {cage} link breakout {parts}x", "breakout")
    for port in switch.ports.values():
        _interface(out, port)
    _routing(out, switch)
    out.add("nv config apply -y", "nvue_apply")
    pages = dict.fromkeys(page_of(line) for line in out.text.splitlines() if line.startswith("nv "))
    out.plain("# Commands are documented at:", *(f"#   {page}" for page in pages))
    return out.text


def _as_roce_has_it(switch: Switch) -> bool:
    """Return true for the classes that the RoCE mode is made for: others would stand beside its own."""
    queues = [(n, queue) for port in switch.ports.values() for n, queue in port.qos.queues.items()]
    marked = {n for n, queue in queues if queue.ecn is not None}
    return marked <= {ROCE} and {n for n, queue in queues if queue.scheduler == "strict"} <= {CNP}


def _maps(out: Commented, switch: Switch) -> None:
    port = next((port for port in switch.ports.values() if port.qos.trust is not None), None)
    if port is None:
        return
    trust = {"dscp": "l3", "pcp": "l2", "none": "port"}[port.qos.trust or "none"]
    out.add(f"nv set qos mapping {GLOBAL} trust {trust}", "trust")
    kind = "pcp" if port.qos.trust == "pcp" else "dscp"
    if port.qos.trust != "none":
        for value, priority in sorted(port.qos.maps.dscp_to_tc.items()):
            out.add(f"nv set qos mapping {GLOBAL} {kind} {value} switch-priority {priority}", "dscp_map")
    for priority, queue in sorted(port.qos.maps.tc_to_queue.items()):
        line = f"nv set qos egress-queue-mapping {GLOBAL} switch-priority {priority} traffic-class {queue}"
        out.add(line, "tc_queue")


def _profiles(out: Commented, switch: Switch) -> None:
    done: set[str] = set()
    for port in switch.ports.values():
        name = nvue_profile(port)
        if name and name not in done:
            done.add(name)
            _pfc_profile(out, name, port)
    marked = next((port for port in switch.ports.values() if port.qos.queues), None)
    if marked is None:
        return
    for number, queue in sorted(marked.qos.queues.items()):
        base = f"nv set qos egress-scheduler {GLOBAL} traffic-class {number}"
        if queue.scheduler == "strict":
            out.add(f"{base} mode strict", "scheduler_cnp")
        elif queue.scheduler == "dwrr":
            out.add(f"{base} mode dwrr", "scheduler_roce")
            out.add(f"{base} bw-percent {queue.weight}", "scheduler_roce")
        if queue.ecn is not None:
            base = f"nv set qos congestion-control {GLOBAL} traffic-class {number}"
            out.add(f"{base} ecn enable", "ecn")
            out.add(f"{base} min-threshold {queue.ecn.min_bytes}", "ecn")
            out.add(f"{base} max-threshold {queue.ecn.max_bytes}", "ecn")
            out.add(f"{base} probability {queue.ecn.probability}", "ecn")


def _pfc_profile(out: Commented, name: str, port: Port) -> None:
    base = f"nv set qos pfc {name}"
    group: Group | None = next(
        (port.qos.groups[p] for p in sorted(port.qos.pfc or ()) if p in port.qos.groups), None
    )
    for priority in sorted(port.qos.pfc or ()):
        out.add(f"{base} switch-priority {priority}", "pfc_profile")
    out.add(f"{base} tx enable", "pfc_enable")
    out.add(f"{base} rx {'enable' if port.qos.pfc_receives else 'disable'}", "pfc_enable")
    if port.link.cable_m is not None:
        out.add(f"{base} cable-length {port.link.cable_m}", "cable")
    if group is not None and group.lossless:
        out.add(f"{base} port-buffer {group.size_bytes}", "group_size")
        out.add(f"{base} xoff-threshold {group.size_bytes - (group.xoff_bytes or 0)}", "xoff_threshold")
        out.add(f"{base} xon-threshold {group.xon_offset_bytes}", "xon_offset")


def _interface(out: Commented, port: Port) -> None:
    base = f"nv set interface {port.name}"
    out.add(f"{base} link state up", "port")
    if port.link.speed_bps:
        out.add(f"{base} link speed {port.link.speed_bps // 10**9}G", "port")
    if port.link.mtu_bytes is not None:
        out.add(f"{base} link mtu {port.link.mtu_bytes}", "mtu")
    if port.link.fec:
        out.add(f"{base} link fec {port.link.fec}", "fec")
    if port.link.peer:
        out.add(f"{base} description '{port.link.peer}'", "peer")
    if port.address:
        out.add(f"{base} ip address {port.address}", "address")
    if port.qos.pfc:
        out.add(f"{base} qos pfc profile {nvue_profile(port)}", "pfc_interface")
    if port.qos.watchdog is not None:
        out.add(f"{base} qos pfc-watchdog state enable", "watchdog")


def _routing(out: Commented, switch: Switch) -> None:
    watched = next((port.qos.watchdog for port in switch.ports.values() if port.qos.watchdog is not None), None)
    if watched is not None and switch.watchdog_poll_ms is not None:
        out.add(f"nv set qos pfc-watchdog polling-interval {switch.watchdog_poll_ms}", "watchdog_poll")
        times = max(1, watched.detection_ms // switch.watchdog_poll_ms)
        out.add(f"nv set qos pfc-watchdog robustness {times}", "watchdog_poll")
    if switch.bgp.loopback:
        out.add(f"nv set interface lo ip address {switch.bgp.loopback}/32", "loopback")
        out.add(f"nv set router bgp router-id {switch.bgp.loopback}", "loopback")
    if switch.bgp.asn is not None:
        out.add("nv set router bgp enable on", "bgp")
        out.add(f"nv set router bgp autonomous-system {switch.bgp.asn}", "asn")
        out.add("nv set vrf default router bgp path-selection multipath aspath-ignore on", "multipath")
        for port in switch.ports.values():
            if port.bgp:
                base = f"nv set vrf default router bgp neighbor {port.name}"
                out.add(f"{base} remote-as external", "bgp")
                out.add(f"{base} type unnumbered", "bgp")
        family = "nv set vrf default router bgp address-family ipv4-unicast"
        out.add(f"{family} redistribute connected enable on", "redistribute")
    if switch.lldp:
        out.add("nv set service lldp tx-interval 30", "lldp")
