"""Rules about a switch's buffers: headroom, pools, thresholds, marks before pauses."""

from __future__ import annotations

from collections.abc import Iterator

from fabrictwin import catalog
from fabrictwin.configuration.headroom.spectrum import LIGHT_M_PER_S, Traffic
from fabrictwin.configuration.lint.findings import Finding
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.model.switches import Group, Port, Switch
from fabrictwin.configuration.policy.chips import BUFFER_OF_BOX, headroom_of
from fabrictwin.configuration.policy.switch_policy import pause_threshold, reserved_bytes

LARGEST_ALPHA = 3
LOSSLESS_MTU = 1024  # SONiC's, where a configuration says none
TIGHT = "small packets, or those of a peer as slow as the standard allows, are dropped after the pause was sent"


def buffer_bytes(switch: Switch) -> int | None:
    """Return the buffer of a switch's chip; None for a box that the catalog has not."""
    model = BUFFER_OF_BOX.get(switch.box.platform)
    return None if model is None else int(catalog.switch(model).buffer.value)


def needed_headroom(switch: Switch, port: Port) -> int | None:
    """Return the headroom that a port's rate and cable need; None for a chip without a formula."""
    if not port.link.speed_bps or port.link.cable_m is None:
        return None
    traffic = Traffic(
        lossless_mtu_bytes=switch.buffers.lossless_mtu_bytes or LOSSLESS_MTU,
        small_packet_percent=100
        if switch.buffers.small_packet_percent is None
        else switch.buffers.small_packet_percent,
        port_mtu_bytes=port.link.mtu_bytes or 9100,
    )
    room = headroom_of(switch.box.chip, port.link.speed_bps, port.link.cable_m, traffic, lanes=port.link.lanes)
    return None if room is None else room.xoff_bytes


def least_headroom(port: Port) -> int:
    """Return what comes after a pause even if the peer obeys at once.

    That is what the cable holds, a frame of the port's in the pause's way, and one of the peer's lossless frames.
    """
    on_cable = 2 * (port.link.cable_m or 0) * port.link.speed_bps // (8 * LIGHT_M_PER_S)
    return on_cable + (port.link.mtu_bytes or 9100) + LOSSLESS_MTU


def headroom(configuration: Configuration) -> Iterator[Finding]:
    """Headroom holds what still comes after a pause.

    Less than the formula's worst case, smallest packets from the slowest peer, is an error where a configuration
    says which packets it was reckoned for. Tables that vendors ship assume less: there it is a warning.
    """
    for switch in configuration.switches.values():
        declared = switch.buffers.small_packet_percent is not None
        seen: set[object] = set()
        for port in switch.ports.values():
            needed = needed_headroom(switch, port)
            for number, group in port.qos.groups.items():
                key = (group.profile, group.xoff_bytes, needed)
                if not group.lossless or needed is None or (group.xoff_bytes or 0) >= needed or key in seen:
                    continue
                seen.add(key)
                surely = declared or (group.xoff_bytes or 0) < least_headroom(port)
                yield Finding(
                    "headroom-too-small",
                    "error" if surely else "warning",
                    f"{switch.name}/{port.name} priority {number}",
                    f"xoff {group.xoff_bytes}",
                    f"at least {needed} for {port.link.speed_bps // 10**9} Gb/s and {port.link.cable_m} m",
                    "packets are dropped after the pause was sent" if surely else TIGHT,
                    switch.file,
                    f"set xoff of {group.profile} to {needed}",
                )


def groups(configuration: Configuration) -> Iterator[Finding]:
    """A lossless group can pause and go on."""
    for switch in configuration.switches.values():
        seen: set[str] = set()
        for port in switch.ports.values():
            for number, group in port.qos.groups.items():
                if not group.lossless or group.profile in seen:
                    continue
                seen.add(group.profile)
                yield from _group(switch, port, number, group)


def _group(switch: Switch, port: Port, number: int, group: Group) -> Iterator[Finding]:
    where = f"{switch.name}/{port.name} priority {number} ({group.profile})"
    if not group.xon_bytes and not group.xon_offset_bytes:
        yield Finding(
            "xon-missing",
            "error",
            where,
            "neither xon nor xon_offset",
            "one of the two above 0",
            "the peer is let go on only when nothing is left: throughput falls after each pause",
            switch.file,
            f"set xon of {group.profile}",
        )
    if switch.box.os == "sonic" and group.dynamic_th is None and group.static_th is None:
        yield Finding(
            "threshold-missing",
            "error",
            where,
            "neither dynamic_th nor static_th",
            "one of the two",
            "the group has no share of the pool: it pauses at once",
            switch.file,
            f"set dynamic_th of {group.profile} to 0",
        )
    # a chip of Broadcom takes headroom beyond a group's size, and its profiles tell by xon_offset
    inside = switch.box.chip.startswith("spectrum") or (not switch.box.chip and group.xon_offset_bytes is None)
    if group.xon_bytes is not None and group.xon_bytes > group.size_bytes and inside:
        yield Finding(
            "xon-large",
            "error",
            where,
            f"xon {group.xon_bytes} in a group of {group.size_bytes}",
            "less than the group",
            "the peer is let go on before anything is drained: pauses do nothing",
            switch.file,
        )
    pool = switch.buffers.pools.get(group.pool)
    if pool is not None and (group.dynamic_th if pool.mode == "static" else group.static_th) is not None:
        yield Finding(
            "pool-mode",
            "error",
            where,
            f"{'dynamic' if pool.mode == 'static' else 'static'}_th in the {pool.mode} pool {group.pool}",
            f"{pool.mode}_th",
            "the switch refuses the profile",
            switch.file,
        )
    if group.dynamic_th is not None and group.dynamic_th > LARGEST_ALPHA:
        yield Finding(
            "alpha-large",
            "warning",
            where,
            f"dynamic_th {group.dynamic_th}",
            f"at most {LARGEST_ALPHA}",
            "one port takes nearly the whole pool before it pauses",
            switch.file,
        )
    if inside and group.size_bytes < (group.xoff_bytes or 0) and not _pool_xoff(switch, group):
        yield Finding(
            "headroom-outside-group",
            "error",
            where,
            f"size {group.size_bytes} with xoff {group.xoff_bytes}",
            "a size that holds xon and xoff, or a shared headroom pool",
            "the headroom does not exist: packets are dropped after the pause was sent",
            switch.file,
        )


def _pool_xoff(switch: Switch, group: Group) -> int:
    pool = switch.buffers.pools.get(group.pool)
    return 0 if pool is None else pool.xoff_bytes


def pools(configuration: Configuration) -> Iterator[Finding]:
    """Headroom and pools are within the chip's buffer."""
    for switch in configuration.switches.values():
        lossless = [g for port in switch.ports.values() for g in port.qos.groups.values() if g.lossless]
        buffer = buffer_bytes(switch)
        reserved = sum(reserved_bytes(group) for group in lossless)
        if buffer is not None and reserved >= buffer:
            yield Finding(
                "headroom-beyond-buffer",
                "error",
                switch.name,
                f"{reserved} bytes reserved by {len(lossless)} groups",
                f"less than the chip's {buffer}",
                "the switch refuses the profiles or drops what the pool cannot hold",
                switch.file,
            )
        for name in switch.buffers.pools:
            yield from _one_pool(switch, name, lossless, buffer, reserved)


def _groups_of(switch: Switch, pool: str) -> Iterator[Group]:
    for port in switch.ports.values():
        yield from (group for group in port.qos.groups.values() if group.pool == pool)


def _one_pool(
    switch: Switch, name: str, lossless: list[Group], buffer: int | None, reserved: int
) -> Iterator[Finding]:
    pool = switch.buffers.pools[name]
    asked = sum(group.xoff_bytes or 0 for group in lossless if group.pool == name)
    ratio = max(switch.buffers.over_subscribe or 0, 1)
    if pool.xoff_bytes and asked > pool.xoff_bytes * ratio:
        yield Finding(
            "headroom-beyond-pool",
            "warning" if switch.buffers.over_subscribe is None else "error",
            f"{switch.name} {name}",
            f"{asked} bytes of xoff in all groups",
            f"at most {pool.xoff_bytes * ratio} (the pool's xoff, {ratio} times)",
            "ports that pause together have no headroom left",
            switch.file,
        )
    if buffer is not None and pool.size_bytes is not None and pool.kind == "ingress":
        most = buffer - reserved
        if pool.size_bytes > max(most, 0):
            yield Finding(
                "pool-beyond-buffer",
                "error",
                f"{switch.name} {name}",
                f"size {pool.size_bytes}",
                f"at most {max(most, 0)}: the chip's {buffer} less {reserved} reserved",
                "thresholds are reckoned with room that does not exist: pauses come too late",
                switch.file,
            )
    used = any(g.lossless or g.dynamic_th is not None for g in _groups_of(switch, name))
    if pool.size_bytes == 0 and used:  # profiles of ports that are not in use have pools of nothing
        yield Finding(
            "pool-empty",
            "error",
            f"{switch.name} {name}",
            "size 0",
            "some bytes",
            "nothing is shared",
            switch.file,
        )


def marks(configuration: Configuration) -> Iterator[Finding]:
    """ECN marks, and does so before PFC pauses."""
    for switch in configuration.switches.values():
        seen: set[object] = set()
        for port in switch.ports.values():
            for priority in sorted(port.qos.pfc or ()):
                queue = port.qos.queues.get(port.qos.maps.tc_to_queue.get(priority, priority))
                key = (priority, queue, port.qos.groups.get(priority))
                if queue is not None and key not in seen:
                    seen.add(key)
                    yield from _marks(switch, port, priority)


def _marks(switch: Switch, port: Port, priority: int) -> Iterator[Finding]:
    queue = port.qos.queues[port.qos.maps.tc_to_queue.get(priority, priority)]
    where = f"{switch.name}/{port.name} priority {priority}"
    if queue.ecn is None:
        yield Finding(
            "ecn-missing",
            "warning",
            where,
            "no ECN on the queue",
            "marking, or congestion control elsewhere",
            "senders learn of congestion only by pauses, which spread",
            switch.file,
        )
        return
    if queue.ecn.min_bytes >= queue.ecn.max_bytes:
        yield Finding(
            "ecn-order",
            "error",
            where,
            f"ECN from {queue.ecn.min_bytes} to {queue.ecn.max_bytes}",
            "a minimum below the maximum",
            "the switch refuses the profile",
            switch.file,
        )
    if queue.ecn.max_bytes < 2 * (port.link.mtu_bytes or 9100):
        yield Finding(
            "ecn-early",
            "warning",
            where,
            f"all marked from {queue.ecn.max_bytes} bytes",
            "more than some frames",
            "two packets in a queue are congestion already: senders never reach the link's rate",
            switch.file,
        )
    if queue.ecn.probability < 1:
        yield Finding("ecn-never", "error", where, "probability 0", "1 to 100", "nothing is marked", switch.file)
    group = port.qos.groups.get(priority)
    pool = switch.buffers.pools.get(group.pool) if group is not None else None
    if group is None or pool is None or pool.size_bytes is None:
        return
    yield from _before_pause(switch, where, group, queue.ecn.min_bytes, queue.ecn.max_bytes, pool.size_bytes)


def _before_pause(switch: Switch, where: str, group: Group, low: int, high: int, free: int) -> Iterator[Finding]:
    if group.static_th is not None and group.dynamic_th is None:
        alone = crowded = group.static_th
    elif group.dynamic_th is not None:
        alone = pause_threshold(free, group.dynamic_th, 1)
        crowded = pause_threshold(free, group.dynamic_th, max(len(switch.ports), 1))
    else:
        return
    if low >= alone:
        yield Finding(
            "ecn-above-xoff",
            "error",
            where,
            f"marks from {low} bytes",
            f"below {alone}, where one congested port pauses",
            "pauses come before any mark: congestion control never acts",
            switch.file,
            "lower the thresholds of the WRED profile, or raise dynamic_th",
        )
    elif high > crowded:
        yield Finding(
            "ecn-above-crowded-xoff",
            "warning",
            where,
            f"marks up to {high} bytes",
            f"at most {crowded}, where all ports pause",
            "with all ports congested pauses come before marks are certain",
            switch.file,
        )
