"""Rules about both ends of a link: what they must agree on."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_interface

from fabrictwin.configuration.headroom import mlx5
from fabrictwin.configuration.lint.findings import Finding
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.model.hosts import Adapter, AdapterQos, Host
from fabrictwin.configuration.model.switches import Port, Switch
from fabrictwin.configuration.policy.host_policy import FRAME_MORE


def _adapter(configuration: Configuration, port: Port) -> tuple[Host, Adapter] | None:
    name, _, device = port.link.peer.partition("/")
    host = configuration.hosts.get(name)
    if host is None:
        return None
    found = host.adapters.get(device) or next((a for a in host.adapters.values() if a.netdev == device), None)
    return None if found is None else (host, found)


def to_hosts(configuration: Configuration) -> Iterator[Finding]:
    """A switch's port and the adapter behind it agree."""
    for switch in configuration.switches.values():
        for port in switch.ports.values():
            found = _adapter(configuration, port)
            if found is not None and found[1].link.technology == "ethernet":
                yield from _agree(switch, port, *found)


def _differ(one: object, other: object) -> bool:
    """Return true if both ends of a link say what they have, and have not the same."""
    return one is not None and other is not None and one != other


def _one_subnet(one: str, other: str) -> bool:
    """Return true for addresses of one subnet, and for what is no address, which other rules are about."""
    try:
        return ip_interface(one).network == ip_interface(other).network
    except ValueError:
        return True


def _agree(switch: Switch, port: Port, host: Host, adapter: Adapter) -> Iterator[Finding]:
    where = f"{host.name}/{adapter.device or adapter.netdev} and {switch.name}/{port.name}"

    def finding(rule: str, got: str, expected: str, effect: str, fix: str = "") -> Finding:
        return Finding(rule, "error", where, got, expected, effect, host.file or switch.file, fix)

    # a script that sets some of the classes leaves the rest as ConnectX has it: no PFC, trust in PCP
    set_up = adapter.qos != AdapterQos()
    pfc = frozenset() if adapter.qos.pfc is None and set_up else adapter.qos.pfc
    trust = "pcp" if adapter.qos.trust is None and set_up else adapter.qos.trust
    if pfc is not None and port.qos.pfc is not None and _differ(pfc, port.qos.pfc):
        yield finding(
            "pfc-one-side",
            f"PFC on {sorted(pfc)} at the adapter and {sorted(port.qos.pfc)} at the switch",
            "the same priorities",
            "the side without PFC goes on sending while it is paused: the other drops",
            f"mlnx_qos -i {adapter.netdev} --pfc " + ",".join("1" if p in port.qos.pfc else "0" for p in range(8)),
        )
    if _differ(trust, port.qos.trust):
        yield finding(
            "trust-differs",
            f"trust {trust} at the adapter and {port.qos.trust} at the switch",
            "dscp on both",
            "they take packets for different priorities",
        )
    if _differ(adapter.link.mtu_bytes, port.link.mtu_bytes):
        yield finding(
            "mtu-differs",
            f"MTU {adapter.link.mtu_bytes} at the adapter and {port.link.mtu_bytes} at the switch",
            "the same",
            "larger packets of one side are dropped by the other",
            f"set both to {max(adapter.link.mtu_bytes or 0, port.link.mtu_bytes or 0)}",
        )
    if port.qos.trust == "dscp":
        for dscp, priority in sorted(adapter.qos.dscp_to_priority.items()):
            theirs = port.qos.maps.dscp_to_tc.get(dscp, 0)
            if theirs != priority and (priority in (adapter.qos.pfc or ()) or theirs in (port.qos.pfc or ())):
                yield finding(
                    "priority-differs",
                    f"DSCP {dscp} in priority {priority} at the adapter and {theirs} at the switch",
                    "the same priority",
                    "the switch pauses a priority that does not carry the traffic, and drops the traffic",
                    f"mlnx_qos -i {adapter.netdev} --dscp2prio set,{dscp},{theirs}",
                )
    if adapter.link.address and port.address and not _one_subnet(adapter.link.address, port.address):
        yield finding(
            "subnet-differs",
            f"{adapter.link.address} at the adapter and {port.address} at the switch",
            "two addresses of one subnet, with prefixes of one length",
            "the gateway is not reached: nothing leaves by this rail",
        )
    if _differ(adapter.link.cable_m, port.link.cable_m):
        yield finding(
            "cable-differs",
            f"{adapter.link.cable_m} m at the adapter and {port.link.cable_m} m at the switch",
            "the same length",
            "the headroom of one side is reckoned for another cable",
        )
    if adapter.roce.cnp_dscp is not None and port.qos.queues:
        queue = port.qos.queues.get(port.qos.maps.queue_of(adapter.roce.cnp_dscp))
        if queue is not None and queue.scheduler != "strict":
            yield finding(
                "cnp-class-differs",
                f"CNPs of DSCP {adapter.roce.cnp_dscp}, which the switch serves by {queue.scheduler or 'nothing'}",
                "the DSCP that it serves strictly",
                "CNPs wait behind data",
            )
    yield from _receive_buffer(where, port, host, adapter)


def _receive_buffer(where: str, port: Port, host: Host, adapter: Adapter) -> Iterator[Finding]:
    if not adapter.qos.buffer_bytes or not adapter.qos.priority_to_buffer or not port.link.speed_bps:
        return
    metres = adapter.link.cable_m if adapter.link.cable_m is not None else port.link.cable_m
    least = mlx5.least_buffer(
        port.link.speed_bps // 10**6, metres or 0, (adapter.link.mtu_bytes or 1500) + FRAME_MORE
    )
    for priority in sorted(adapter.qos.pfc or ()):
        size = adapter.qos.buffer_bytes[adapter.qos.priority_to_buffer[priority]]
        if size < least:
            yield Finding(
                "adapter-buffer-small",
                "error",
                where,
                f"{size} bytes for priority {priority}",
                f"at least {least} at {port.link.speed_bps // 10**9} Gb/s and {metres or 0} m",
                "the driver refuses the buffer, or packets are dropped after its pause",
                host.file,
                "mlnx_qos --buffer_size",
            )


def between_switches(configuration: Configuration) -> Iterator[Finding]:
    """Both ends of a trunk agree, and know each other."""
    for switch in configuration.switches.values():
        for port in switch.ports.values():
            name, _, far_name = port.link.peer.partition("/")
            other = configuration.switches.get(name)
            if other is None:
                continue
            far = other.ports.get(far_name)
            if far is None:
                yield Finding(
                    "peer-unknown",
                    "error",
                    f"{switch.name}/{port.name}",
                    f"a cable to {port.link.peer}",
                    f"a port of {name}",
                    "the cable leads elsewhere, or the port is not configured",
                    switch.file,
                )
            elif far.link.peer != f"{switch.name}/{port.name}":
                if far.link.peer:
                    yield Finding(
                        "peer-differs",
                        "error",
                        f"{switch.name}/{port.name}",
                        f"a cable to {port.link.peer}, which names {far.link.peer}",
                        "that each names the other",
                        "the cables are not where the files say",
                        switch.file,
                    )
            elif (switch.name, port.name) < (other.name, far.name):
                yield from _trunk(switch, port, other, far)


def _trunk(switch: Switch, port: Port, other: Switch, far: Port) -> Iterator[Finding]:
    where = f"{switch.name}/{port.name} and {other.name}/{far.name}"
    pairs: list[tuple[str, object, object, str]] = [
        ("mtu-differs", port.link.mtu_bytes, far.link.mtu_bytes, "larger packets are dropped at the smaller end"),
        ("speed-differs", port.link.speed_bps or None, far.link.speed_bps or None, "the link does not come up"),
        ("fec-differs", port.link.fec or None, far.link.fec or None, "the link does not come up"),
        ("cable-differs", port.link.cable_m, far.link.cable_m, "one side's headroom is for another cable"),
        ("trust-differs", port.qos.trust, far.qos.trust, "they take packets for different priorities"),
        (
            "pfc-one-side",
            None if port.qos.pfc is None else sorted(port.qos.pfc),
            None if far.qos.pfc is None else sorted(far.qos.pfc),
            "one side pauses and the other drops",
        ),
    ]
    lossless = (port.qos.pfc or frozenset()) | (far.qos.pfc or frozenset())
    carried = {
        dscp
        for of in (port.qos.maps.dscp_to_tc, far.qos.maps.dscp_to_tc)
        for dscp, tc in of.items()
        if tc in lossless
    }
    if port.qos.trust == far.qos.trust == "dscp":
        classes = [{d: of.qos.maps.dscp_to_tc.get(d, 0) for d in sorted(carried)} for of in (port, far)]
        pairs.append(
            ("priority-differs", classes[0], classes[1], "one switch pauses what the other carries elsewhere")
        )
    if switch.bgp.asn is not None and other.bgp.asn is not None:
        pairs.append(("bgp-one-side", port.bgp, far.bgp, "no session comes up: the link carries nothing"))
    pairs.append(("port-down", port.up, far.up, "the link is down: one path less"))
    for rule, here, there, effect in pairs:
        if here is not None and there is not None and here != there:
            yield Finding(rule, "error", where, f"{here} and {there}", "the same", effect, switch.file)
