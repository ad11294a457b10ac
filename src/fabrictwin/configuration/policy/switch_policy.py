"""What an Ethernet switch of a cluster is to be configured to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.configuration.headroom.spectrum import Traffic
from fabrictwin.configuration.model import switches as model
from fabrictwin.configuration.model.cluster import Intent
from fabrictwin.configuration.policy import addresses
from fabrictwin.configuration.policy.chips import Box, headroom_of
from fabrictwin.configuration.policy.wiring import End

MTU = 9100  # SONiC's default: an IP packet of RoCE with 4096 bytes of payload needs 4,200
ECN_MIN, ECN_MAX, ECN_PERCENT = 1 << 20, 1 << 21, 5  # SONiC's template
WATCHDOG = model.Watchdog(200, 200, "drop")
POLL_MS = 200
LOSSY_RESERVE = 0
QUEUE_WEIGHT = 50
KIB = 1024
LOSSLESS_POOL, LOSSY_EGRESS, LOSSLESS_EGRESS = "ingress_lossless_pool", "egress_lossy_pool", "egress_lossless_pool"


@record
class Site:
    """A switch of a blueprint and what is plugged into it."""

    blueprint: Blueprint
    number: int
    all_ends: Mapping[int, Sequence[End]]  # by node
    boxes: Sequence[Box]  # of all switches
    names: Sequence[str]  # of adapters, `host-0/mlx5_0`, by node less switches

    @property
    def box(self) -> Box:
        return self.boxes[self.number]

    @property
    def ends(self) -> Sequence[End]:
        return self.all_ends.get(self.number, ())


def port_name(os: str, box: Box, ends: Sequence[End], number: int, speed_bps: int) -> str:
    """Return the name of a switch's port. SONiC counts lanes from 0.

    NVUE counts cages from 1, and the parts of a cage where a switch has more ports than cages. Raises ConfigError
    for a port that the box has not.
    """
    lanes = box.lanes(speed_bps)
    parts = split_of(os, box, ends, lanes)
    within = number * lanes <= box.cages * box.cage_lanes if os == "sonic" else number <= box.cages * parts
    if not within:
        raise ConfigError(
            f"got port {number} of {speed_bps // 10**9} Gb/s on {box.platform}, expected at most "
            f"{box.cages} cages of {box.cage_lanes} lanes"
        )
    if os == "sonic":
        return f"Ethernet{(number - 1) * lanes}"
    return f"swp{number}" if parts == 1 else f"swp{box.cage(number, lanes)}s{(number - 1) % parts}"


def split_of(os: str, box: Box, ends: Sequence[End], lanes: int) -> int:
    """Return into how many ports a cage is split; 1 where the box has a cage for each port."""
    if os == "sonic" or max((end.port for end in ends), default=0) <= box.cages:
        return 1
    return max(1, box.cage_lanes // lanes)


def cable_metres(length_mm: int) -> int:
    """Return whole metres, up, at least one: what headroom is reckoned with."""
    return max(1, math.ceil(length_mm / 1000))


def maps(intent: Intent) -> model.Maps:
    """Return the maps of all ports: RoCE and CNPs to their classes, the rest to 0."""
    classes = dict.fromkeys(range(64), 0) | {
        intent.dscp: intent.priority,
        intent.cnp_dscp: intent.cnp_priority,
    }
    groups = {tc: intent.priority if tc == intent.priority else 0 for tc in range(8)}
    if not intent.lossless:
        groups = dict.fromkeys(range(8), 0)
    same = {number: number for number in range(8)}
    return model.Maps(classes, groups, same, same)


def pause_threshold(free_bytes: int, dynamic_th: int, congested: int) -> int:
    """Return where a priority group is paused once so many groups are there: alpha B / (1 + n alpha)."""
    alpha = 2.0**dynamic_th
    return int(alpha * free_bytes / (1 + congested * alpha))


def switch(site: Site, intent: Intent, os: str) -> model.Switch:
    """Return a switch's configuration. Raises ConfigError where its buffer cannot hold the headroom."""
    blueprint, sites = site.blueprint, site.blueprint.switches
    kind = sites[site.number].type
    traffic = Traffic(port_mtu_bytes=MTU)
    groups: dict[int, model.Group | None] = {}
    for end in site.ends:
        groups[end.port] = _lossless_group(site, end, traffic) if intent.lossless else None
    buffer = catalog.switch(kind).buffer.value if kind else 64 << 20
    taken = sum(reserved_bytes(group) for group in groups.values() if group is not None)
    apart = sum(headroom_pool_bytes(group) for group in groups.values() if group is not None)
    free = int(buffer) - taken
    if free <= 0:
        raise ConfigError(
            f"{sites[site.number].name}: got {taken} bytes of headroom on {len(site.ends)} ports, expected less "
            f"than the {int(buffer)} of the chip's buffer: fewer or shorter cables, or a shared headroom pool"
        )
    ecn = _ecn(free, len(site.ends))
    ports = {}
    for end in site.ends:
        port = _port(site, end, intent, os=os, group=groups[end.port], ecn=ecn)
        ports[port.name] = port
    found = model.Switch(
        name=sites[site.number].name,
        box=model.SwitchBox(
            os="sonic" if os == "sonic" else "nvue",
            chip=site.box.chip,
            platform=site.box.platform,
            mac=addresses.mac(site.number) if os == "sonic" else "",
        ),
        ports=ports,
        buffers=model.Buffers(
            pools={
                LOSSLESS_POOL: model.Pool("ingress", "dynamic", free, apart),
                LOSSLESS_EGRESS: model.Pool("egress", "dynamic", int(buffer)),
                LOSSY_EGRESS: model.Pool("egress", "dynamic", free),
            },
            over_subscribe=0,
            small_packet_percent=traffic.small_packet_percent,
            lossless_mtu_bytes=traffic.lossless_mtu_bytes,
        ),
        watchdog_poll_ms=POLL_MS if intent.lossless else None,
        lldp=True,
        bgp=model.Bgp(asn=addresses.as_number(blueprint, site.number), loopback=addresses.loopback(site.number)),
    )
    return _in_nvue(found) if os == "nvue" else found


def _in_nvue(switch: model.Switch) -> model.Switch:
    """Return what of a switch NVUE has words for: RoCE mode makes the rest, pools and lossy groups."""
    ports = {}
    for name, port in switch.ports.items():
        lossless = {
            number: _static_group(group, nvue_profile(port))
            for number, group in port.qos.groups.items()
            if group.lossless
        }
        queues = {number: replace(queue, profile="") for number, queue in port.qos.queues.items()}
        maps = replace(port.qos.maps, tc_to_group={}, pfc_to_queue={})
        cable = port.link.cable_m if port.qos.pfc else None
        qos = replace(port.qos, groups=lossless, queues=queues, maps=maps)
        ports[name] = replace(port, link=replace(port.link, lanes=0, cable_m=cable), qos=qos)
    return replace(switch, ports=ports, buffers=model.Buffers())


def _static_group(group: model.Group, profile: str) -> model.Group:
    """Return a group as a PFC profile has it: it resumes a frame below the threshold, which has no pool."""
    below = min(MTU, (group.size_bytes - (group.xoff_bytes or 0)) // 2)
    return replace(
        group, profile=profile, pool="", dynamic_th=None, xon_bytes=None, xon_offset_bytes=max(below, 1)
    )


def nvue_profile(port: model.Port) -> str:
    """Return the name of a port's PFC profile, '' where it pauses nothing: one for each rate and length."""
    return f"pfc-{port.link.speed_bps // 10**9}g-{port.link.cable_m}m" if port.qos.pfc else ""


def _ecn(free: int, ports: int) -> model.Ecn:
    """Thresholds of SONiC's template, less where all ports together would be paused before they mark."""
    least = pause_threshold(free, 0, ports)
    most = min(ECN_MAX, least // KIB * KIB)
    return model.Ecn(min(ECN_MIN, most // 2), most, ECN_PERCENT)


def headroom_pool_bytes(group: model.Group) -> int:
    """Return the headroom that a group takes of the pool's, where it is beyond the group's own size."""
    headroom = group.xoff_bytes or 0
    return 0 if group.size_bytes >= headroom else headroom


def reserved_bytes(group: model.Group) -> int:
    """Return what a group takes of the chip's buffer, whether it is used or not."""
    return group.size_bytes + headroom_pool_bytes(group)


def _lossless_group(site: Site, end: End, traffic: Traffic) -> model.Group:
    metres = cable_metres(end.length_mm)
    lanes = site.box.lanes(end.rate_bps)
    room = headroom_of(site.box.chip, end.rate_bps, metres, traffic, lanes=lanes)
    assert room is not None, "every box here has a chip with a formula"
    return model.Group(
        profile=f"pg_lossless_{end.rate_bps // 10**6}_{metres}m_profile",
        pool=LOSSLESS_POOL,
        size_bytes=room.size_bytes,
        xoff_bytes=room.xoff_bytes,
        xon_bytes=room.xon_bytes,
        xon_offset_bytes=None if room.xon_bytes else room.size_bytes,
        dynamic_th=0,
    )


def _port(
    site: Site, end: End, intent: Intent, *, os: str, group: model.Group | None, ecn: model.Ecn
) -> model.Port:
    blueprint = site.blueprint
    lanes = site.box.lanes(end.rate_bps)
    lossy = model.Group("ingress_lossy_profile", LOSSLESS_POOL, LOSSY_RESERVE, dynamic_th=3)
    groups = {0: lossy}
    if group is not None:
        groups[intent.priority] = group
    queues = {
        0: model.Queue("dwrr", QUEUE_WEIGHT, None, "egress_lossy_profile"),
        intent.priority: model.Queue(
            "dwrr", QUEUE_WEIGHT, ecn, "egress_lossless_profile" if intent.lossless else "egress_lossy_profile"
        ),
        intent.cnp_priority: model.Queue("strict", None, None, "egress_lossy_profile"),
    }
    upward = end.peer < len(blueprint.switches)
    if upward:
        other = blueprint.switches[end.peer]
        box, ends = site.boxes[end.peer], site.all_ends.get(end.peer, ())
        peer = f"{other.name}/{port_name(os, box, ends, end.peer_port, end.rate_bps)}"
    else:
        peer = site.names[end.peer - len(blueprint.switches)]
    return model.Port(
        name=port_name(os, site.box, site.ends, end.port, end.rate_bps),
        link=model.PortLink(
            jack=end.port,
            split=split_of(os, site.box, site.ends, lanes),
            speed_bps=end.rate_bps,
            lanes=lanes,
            mtu_bytes=MTU,
            fec="rs",
            cable_m=cable_metres(end.length_mm),
            peer=peer,
        ),
        qos=model.PortQos(
            trust="dscp",
            maps=maps(intent),
            pfc=frozenset({intent.priority}) if intent.lossless else frozenset(),
            groups=groups,
            queues=queues,
            watchdog=WATCHDOG if intent.lossless else None,
        ),
        address="" if upward else f"{addresses.link(end.peer - len(blueprint.switches))[0]}/31",
        bgp=upward,
    )
