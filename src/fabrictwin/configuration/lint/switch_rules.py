"""Rules about a switch's classes, ports, watchdog and routing."""

from __future__ import annotations

from collections.abc import Iterator

from fabrictwin.configuration.lint.findings import Finding
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.model.switches import Port, Switch

SPEEDS_GBPS = (1, 2.5, 5, 10, 25, 40, 50, 100, 200, 400, 800, 1600)
ROCE_MTU = 4200  # 4096 of payload with the headers of RoCE v2
MOST_LOSSLESS = 2
CNP_DSCP = 48


def ports(configuration: Configuration) -> Iterator[Finding]:
    """Ports run at a speed that exists and carry whole frames."""
    for switch in configuration.switches.values():
        for port in switch.ports.values():
            where = f"{switch.name}/{port.name}"
            if port.link.speed_bps and port.link.speed_bps / 10**9 not in SPEEDS_GBPS:
                yield Finding(
                    "speed-unknown",
                    "error",
                    where,
                    f"speed {port.link.speed_bps // 10**6} Mb/s",
                    "a speed of Ethernet, such as 400000",
                    "the port does not come up",
                    switch.file,
                )
            if port.link.mtu_bytes is not None and port.link.mtu_bytes < ROCE_MTU:
                yield Finding(
                    "mtu-small",
                    "error",
                    where,
                    f"MTU {port.link.mtu_bytes}",
                    f"at least {ROCE_MTU} for 4096 bytes of RDMA",
                    "adapters fall back to smaller packets, or theirs are dropped",
                    switch.file,
                    f"set the MTU of {port.name} to 9100",
                )


def classes(configuration: Configuration) -> Iterator[Finding]:
    """Hold that the class of RoCE, and no other, is lossless all the way through the switch."""
    for switch in configuration.switches.values():
        seen: set[object] = set()
        for port in switch.ports.values():
            headrooms = frozenset(n for n, group in port.qos.groups.items() if group.lossless or group.derived)
            key = (port.qos.trust, port.qos.pfc, headrooms, id(port.qos.maps), port.qos.pfc_receives)
            if key in seen:
                continue
            seen.add(key)
            yield from _lossless(switch, port, headrooms)
            if port.qos.pfc:
                yield from _mapped(switch, port)
                yield from _trusted(switch, port)


def _makes_groups(switch: Switch, port: Port) -> bool:
    """Return true where the switch makes a port's lossless groups itself, or the file need not tell them.

    SONiC's buffer manager makes those of pfc_enable from the cable's length where a configuration gives none.
    """
    if switch.box.os == "nvue":
        return not port.qos.groups
    given = any(g.lossless or g.derived for each in switch.ports.values() for g in each.qos.groups.values())
    return switch.partial or (not given and port.link.cable_m is not None)


def _lossless(switch: Switch, port: Port, headrooms: frozenset[int]) -> Iterator[Finding]:
    where = f"{switch.name}/{port.name}"
    pfc = port.qos.pfc or frozenset()
    if port.qos.pfc is None and headrooms and any(each.qos.pfc is not None for each in switch.ports.values()):
        yield Finding(
            "qos-map-missing",
            "error",
            where,
            f"headroom for priorities {sorted(headrooms)} and no QoS map",
            "maps and PFC on the port",
            "packets are not classified: RoCE is in the lossy class and is dropped",
            switch.file,
        )
    said = frozenset(number for number in headrooms if port.qos.groups[number].lossless)
    for priority in sorted(said - pfc) if port.qos.pfc is not None else ():
        yield Finding(
            "pfc-missing",
            "error",
            f"{where} priority {priority}",
            "headroom without PFC",
            f"pfc_enable with {priority}",
            "no pause is sent: what comes after the threshold is dropped",
            switch.file,
            f"add {priority} to pfc_enable of {port.name}",
        )
    for priority in sorted(pfc - headrooms) if pfc - headrooms and not _makes_groups(switch, port) else ():
        yield Finding(
            "pfc-without-headroom",
            "error",
            f"{where} priority {priority}",
            "PFC without a lossless priority group",
            "a group with xoff",
            "packets are dropped while the pause is on its way",
            switch.file,
            f"give BUFFER_PG {port.name}|{priority} a profile with xoff",
        )
    if len(pfc) > MOST_LOSSLESS:
        yield Finding(
            "pfc-many",
            "warning",
            where,
            f"PFC on priorities {sorted(pfc)}",
            f"at most {MOST_LOSSLESS}",
            "each takes headroom of every port, and pauses spread to traffic that need not be lossless",
            switch.file,
        )
    if pfc and not port.qos.pfc_receives:
        yield Finding(
            "pfc-ignored",
            "error",
            where,
            "PFC receive off",
            "on",
            "the port goes on sending while its peer pauses it: the peer drops",
            switch.file,
        )


def _mapped(switch: Switch, port: Port) -> Iterator[Finding]:
    where = f"{switch.name}/{port.name}"
    maps = port.qos.maps
    for priority in sorted(port.qos.pfc or ()):
        carried = sorted(dscp for dscp, tc in maps.dscp_to_tc.items() if tc == priority)
        if not carried and port.qos.trust == "dscp" and (maps.dscp_to_tc or not switch.partial):
            yield Finding(
                "dscp-unmapped",
                "error",
                f"{where} priority {priority}",
                "no DSCP in this class",
                "the DSCP of RoCE",
                "RoCE travels in a lossy class while its own is empty",
                switch.file,
            )
        for name, numbers, what in (
            ("tc-to-group", maps.tc_to_group, "priority group"),
            ("tc-to-queue", maps.tc_to_queue, "queue"),
            ("pfc-to-queue", maps.pfc_to_queue, "queue that a pause stops"),
        ):
            if numbers and numbers.get(priority, 0) != priority:
                yield Finding(
                    name,
                    "error",
                    f"{where} class {priority}",
                    f"{what} {numbers.get(priority, 0)}",
                    f"{priority}",
                    "the class is not in the part of the buffer that has headroom, or a pause stops another one",
                    switch.file,
                )
    used = set(maps.dscp_to_tc.values())
    for tc, group in sorted(maps.tc_to_group.items()):
        if tc in used and tc not in (port.qos.pfc or ()) and group in (port.qos.pfc or ()):
            yield Finding(
                "lossy-in-group",
                "warning",
                f"{where} class {tc}",
                f"priority group {group}, which is lossless",
                "a lossy group",
                f"what is not paused fills the room of priority {group}: RoCE is paused for it",
                switch.file,
            )
    cnp = maps.dscp_to_tc.get(CNP_DSCP)
    if cnp is not None and cnp in (port.qos.pfc or ()):
        yield Finding(
            "cnp-lossless",
            "warning",
            where,
            f"CNPs (DSCP {CNP_DSCP}) in lossless class {cnp}",
            "a class of their own without PFC",
            "CNPs wait behind the packets that they are to slow down",
            switch.file,
        )
    yield from _served(switch, port)


def _served(switch: Switch, port: Port) -> Iterator[Finding]:
    """CNPs' queue is served first, RoCE's by weight, and not dropped from."""
    where, maps = f"{switch.name}/{port.name}", port.qos.maps
    queue = port.qos.queues.get(maps.queue_of(CNP_DSCP))
    if queue is not None and queue.scheduler != "strict":
        yield Finding(
            "cnp-not-strict",
            "warning",
            where,
            f"CNPs (DSCP {CNP_DSCP}) in a queue served by {queue.scheduler or 'nothing said'}",
            "strict priority",
            "CNPs come late, and congestion control overshoots",
            switch.file,
        )
    for priority in sorted(port.qos.pfc or ()):
        queue = port.qos.queues.get(maps.tc_to_queue.get(priority, priority))
        if queue is not None and queue.scheduler == "strict":
            yield Finding(
                "roce-strict",
                "warning",
                f"{where} priority {priority}",
                "strict priority for RoCE",
                "a weight",
                "all other traffic starves under load",
                switch.file,
            )
        if queue is not None and "lossy" in queue.profile:
            yield Finding(
                "egress-lossy",
                "error",
                f"{where} queue {priority}",
                f"egress profile {queue.profile}",
                "a profile of the lossless egress pool",
                "the queue drops at its egress threshold, however much headroom the ingress has",
                switch.file,
            )


def _trusted(switch: Switch, port: Port) -> Iterator[Finding]:
    if port.qos.trust == "dscp":
        return
    yield Finding(
        "trust-pcp",
        "error",
        f"{switch.name}/{port.name}",
        f"trust {port.qos.trust or 'nothing said'}",
        "trust dscp",
        "packets are untagged: all of them are taken for priority 0, which is lossy",
        switch.file,
        "use dscp_to_tc_map" if switch.box.os == "sonic" else "nv set qos mapping default-global trust l3",
    )


def watchdogs(configuration: Configuration) -> Iterator[Finding]:
    """A port that can be paused is watched."""
    for switch in configuration.switches.values():
        bare = [port.name for port in switch.ports.values() if port.qos.pfc and port.qos.watchdog is None]
        if bare and not switch.partial:
            yield Finding(
                "watchdog-missing",
                "warning",
                f"{switch.name}/{bare[0]}" + (f" and {len(bare) - 1} more ports" if len(bare) > 1 else ""),
                "PFC without a watchdog",
                "a watchdog",
                "one adapter that pauses without end stops the fabric behind it",
                switch.file,
            )
        for port in switch.ports.values():
            where = f"{switch.name}/{port.name}"
            poll = switch.watchdog_poll_ms
            if port.qos.watchdog is not None and poll is not None:
                times = port.qos.watchdog.detection_ms, port.qos.watchdog.restoration_ms
                if min(times) < poll:
                    yield Finding(
                        "watchdog-poll",
                        "error",
                        where,
                        f"detection {times[0]} ms, restoration {times[1]} ms",
                        f"at least the poll's {poll} ms",
                        "the switch refuses the watchdog",
                        switch.file,
                    )
            if port.qos.watchdog is not None and port.qos.watchdog.action == "alert":
                yield Finding(
                    "watchdog-alert",
                    "warning",
                    where,
                    "a watchdog that alerts",
                    "drop or forward",
                    "a storm is told of and goes on",
                    switch.file,
                )
            if port.qos.watchdog is not None and not port.qos.pfc:
                yield Finding(
                    "watchdog-without-pfc",
                    "warning",
                    where,
                    "a watchdog without PFC",
                    "PFC, or no watchdog",
                    "it watches nothing",
                    switch.file,
                )


def down(configuration: Configuration) -> Iterator[Finding]:
    """A port with a cable to a host is up."""
    for switch in configuration.switches.values():
        for port in switch.ports.values():
            if not port.up and port.link.peer.partition("/")[0] in configuration.hosts:
                yield Finding(
                    "port-down",
                    "error",
                    f"{switch.name}/{port.name}",
                    f"admin_status down, with a cable to {port.link.peer}",
                    "up",
                    "the host has a rail less: its jobs fall back to fewer adapters, or do not start",
                    switch.file,
                )


def routing(configuration: Configuration) -> Iterator[Finding]:
    """Addresses and AS numbers tell switches apart."""
    owners: dict[str, str] = {}
    macs: dict[str, str] = {}
    for switch in configuration.switches.values():
        if switch.box.mac and macs.setdefault(switch.box.mac.lower(), switch.name) != switch.name:
            yield Finding(
                "mac-twice",
                "error",
                switch.name,
                f"MAC {switch.box.mac[:20]}, which {macs[switch.box.mac.lower()]} has",
                "an address of its own",
                "both ends of a link have one link-local address: BGP without numbers does not come up",
                switch.file,
            )
        taken = [(f"{switch.name} loopback", f"{switch.bgp.loopback}/32")] if switch.bgp.loopback else []
        taken += [(f"{switch.name}/{port.name}", port.address) for port in switch.ports.values() if port.address]
        for where, address in taken:
            yield from _owned(owners, where, address, switch.file)
        if switch.lldp is False:
            yield Finding(
                "lldp-off", "warning", switch.name, "LLDP off", "on", "miscabled links are not seen", switch.file
            )
        for port in switch.ports.values():
            other = configuration.switches.get(port.link.peer.partition("/")[0])
            if port.bgp and other is not None and other.bgp.asn is not None and other.bgp.asn == switch.bgp.asn:
                yield Finding(
                    "asn-equal",
                    "error",
                    f"{switch.name}/{port.name}",
                    f"AS {switch.bgp.asn} on both ends, to {other.name}",
                    "different AS numbers for an external neighbour",
                    "the session does not come up",
                    switch.file,
                )
    for host in configuration.hosts.values():
        for adapter in host.adapters.values():
            if adapter.link.address:
                yield from _owned(
                    owners, f"{host.name}/{adapter.device or adapter.netdev}", adapter.link.address, host.file
                )


def _owned(owners: dict[str, str], where: str, address: str, file: str) -> Iterator[Finding]:
    address = address.partition("/")[0]
    if address in owners:
        yield Finding(
            "address-twice",
            "error",
            where,
            f"{address}, which {owners[address]} has",
            "an address of its own",
            "traffic goes to one of the two",
            file,
        )
    owners.setdefault(address, where)
