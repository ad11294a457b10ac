"""Rules about both ends of a link: what they must agree on."""

from __future__ import annotations

from collections.abc import Iterator

from fabrictwin.configuration.headroom import mlx5
from fabrictwin.configuration.lint.findings import Finding
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.model.hosts import Adapter, Host
from fabrictwin.configuration.model.switches import Port, Switch
from fabrictwin.configuration.policy.host_policy import FRAME_MORE


def _adapter(configuration: Configuration, port: Port) -> tuple[Host, Adapter] | None:
    name, _, device = port.peer.partition("/")
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
            if found is not None and found[1].technology == "ethernet":
                yield from _agree(switch, port, *found)


def _agree(switch: Switch, port: Port, host: Host, adapter: Adapter) -> Iterator[Finding]:
    where = f"{host.name}/{adapter.device or adapter.netdev} and {switch.name}/{port.name}"

    def finding(rule: str, got: str, expected: str, effect: str, fix: str = "") -> Finding:
        return Finding(rule, "error", where, got, expected, effect, host.file or switch.file, fix)

    if adapter.pfc is not None and port.pfc is not None and adapter.pfc != port.pfc:
        yield finding(
            "pfc-one-side",
            f"PFC on {sorted(adapter.pfc)} at the adapter and {sorted(port.pfc)} at the switch",
            "the same priorities",
            "the side without PFC goes on sending while it is paused: the other drops",
            f"mlnx_qos -i {adapter.netdev} --pfc " + ",".join("1" if p in port.pfc else "0" for p in range(8)),
        )
    if adapter.trust is not None and port.trust is not None and adapter.trust != port.trust:
        yield finding(
            "trust-differs",
            f"trust {adapter.trust} at the adapter and {port.trust} at the switch",
            "dscp on both",
            "they take packets for different priorities",
        )
    if adapter.mtu_bytes is not None and port.mtu_bytes is not None and adapter.mtu_bytes != port.mtu_bytes:
        yield finding(
            "mtu-differs",
            f"MTU {adapter.mtu_bytes} at the adapter and {port.mtu_bytes} at the switch",
            "the same",
            "larger packets of one side are dropped by the other",
            f"set both to {max(adapter.mtu_bytes, port.mtu_bytes)}",
        )
    if port.trust == "dscp":
        for dscp, priority in sorted(adapter.dscp_to_priority.items()):
            theirs = port.maps.dscp_to_tc.get(dscp, 0)
            if theirs != priority and (priority in (adapter.pfc or ()) or theirs in (port.pfc or ())):
                yield finding(
                    "priority-differs",
                    f"DSCP {dscp} in priority {priority} at the adapter and {theirs} at the switch",
                    "the same priority",
                    "the switch pauses a priority that does not carry the traffic, and drops the traffic",
                    f"mlnx_qos -i {adapter.netdev} --dscp2prio set,{dscp},{theirs}",
                )
    if adapter.cable_m is not None and port.cable_m is not None and adapter.cable_m != port.cable_m:
        yield finding(
            "cable-differs",
            f"{adapter.cable_m} m at the adapter and {port.cable_m} m at the switch",
            "the same length",
            "the headroom of one side is reckoned for another cable",
        )
    if adapter.cnp_dscp is not None and port.queues:
        queue = port.queues.get(port.maps.queue_of(adapter.cnp_dscp))
        if queue is not None and queue.scheduler != "strict":
            yield finding(
                "cnp-class-differs",
                f"CNPs of DSCP {adapter.cnp_dscp}, which the switch serves by {queue.scheduler or 'nothing'}",
                "the DSCP that it serves strictly",
                "CNPs wait behind data",
            )
    yield from _receive_buffer(where, port, host, adapter)


def _receive_buffer(where: str, port: Port, host: Host, adapter: Adapter) -> Iterator[Finding]:
    if not adapter.buffer_bytes or not adapter.priority_to_buffer or not port.speed_bps:
        return
    metres = adapter.cable_m if adapter.cable_m is not None else port.cable_m
    least = mlx5.least_buffer(port.speed_bps // 10**6, metres or 0, (adapter.mtu_bytes or 1500) + FRAME_MORE)
    for priority in sorted(adapter.pfc or ()):
        size = adapter.buffer_bytes[adapter.priority_to_buffer[priority]]
        if size < least:
            yield Finding(
                "adapter-buffer-small",
                "error",
                where,
                f"{size} bytes for priority {priority}",
                f"at least {least} at {port.speed_bps // 10**9} Gb/s and {metres or 0} m",
                "the driver refuses the buffer, or packets are dropped after its pause",
                host.file,
                "mlnx_qos --buffer_size",
            )


def between_switches(configuration: Configuration) -> Iterator[Finding]:
    """Both ends of a trunk agree, and know each other."""
    for switch in configuration.switches.values():
        for port in switch.ports.values():
            name, _, far_name = port.peer.partition("/")
            other = configuration.switches.get(name)
            if other is None:
                continue
            far = other.ports.get(far_name)
            if far is None:
                yield Finding(
                    "peer-unknown",
                    "error",
                    f"{switch.name}/{port.name}",
                    f"a cable to {port.peer}",
                    f"a port of {name}",
                    "the cable leads elsewhere, or the port is not configured",
                    switch.file,
                )
            elif far.peer != f"{switch.name}/{port.name}":
                if far.peer:
                    yield Finding(
                        "peer-differs",
                        "error",
                        f"{switch.name}/{port.name}",
                        f"a cable to {port.peer}, which names {far.peer}",
                        "that each names the other",
                        "the cables are not where the files say",
                        switch.file,
                    )
            elif (switch.name, port.name) < (other.name, far.name):
                yield from _trunk(switch, port, other, far)


def _trunk(switch: Switch, port: Port, other: Switch, far: Port) -> Iterator[Finding]:
    where = f"{switch.name}/{port.name} and {other.name}/{far.name}"
    pairs: list[tuple[str, object, object, str]] = [
        ("mtu-differs", port.mtu_bytes, far.mtu_bytes, "larger packets are dropped at the smaller end"),
        ("speed-differs", port.speed_bps or None, far.speed_bps or None, "the link does not come up"),
        ("fec-differs", port.fec or None, far.fec or None, "the link does not come up"),
        ("cable-differs", port.cable_m, far.cable_m, "one side's headroom is for another cable"),
        ("trust-differs", port.trust, far.trust, "they take packets for different priorities"),
        (
            "pfc-one-side",
            None if port.pfc is None else sorted(port.pfc),
            None if far.pfc is None else sorted(far.pfc),
            "one side pauses and the other drops",
        ),
    ]
    lossless = (port.pfc or frozenset()) | (far.pfc or frozenset())
    carried = {
        dscp for of in (port.maps.dscp_to_tc, far.maps.dscp_to_tc) for dscp, tc in of.items() if tc in lossless
    }
    if port.trust == far.trust == "dscp":
        classes = [{d: of.maps.dscp_to_tc.get(d, 0) for d in sorted(carried)} for of in (port, far)]
        pairs.append(
            ("priority-differs", classes[0], classes[1], "one switch pauses what the other carries elsewhere")
        )
    for rule, here, there, effect in pairs:
        if here is not None and there is not None and here != there:
            yield Finding(rule, "error", where, f"{here} and {there}", "the same", effect, switch.file)
