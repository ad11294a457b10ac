"""A switch's configuration: ports, what each priority gets of the buffer, queues, maps, routing.

Values that a file did not say are None, so that a rule tells what is wrong from what is unknown. Numbers of the
maps are the standards': DSCP 0 to 63, traffic classes, priority groups, queues and priorities 0 to 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from fabrictwin.base.records import record

Trust = Literal["dscp", "pcp", "none"]
DERIVED = "NULL"  # the profile of groups that SONiC's dynamic buffer manager reckons


@record
class Watchdog:
    """The watchdog of PFC on a port: after `detection_ms` of pause a queue is handled by `action`."""

    detection_ms: int
    restoration_ms: int
    action: str = "drop"


@record
class Ecn:
    """RED at egress that marks: nothing below `min_bytes`, everything above `max_bytes`."""

    min_bytes: int
    max_bytes: int
    probability: int  # percent at the maximum


@record
class Group:
    """A priority group: its share of the ingress buffer.

    `size_bytes` is reserved, `xoff_bytes` the headroom beyond the threshold, XON comes `xon_offset_bytes` below
    it. The threshold is 2**`dynamic_th` times what the pool has free, or `static_th` bytes.
    """

    profile: str
    pool: str
    size_bytes: int
    xoff_bytes: int | None = None  # None: the profile has no headroom, the group is lossy
    xon_bytes: int | None = None
    xon_offset_bytes: int | None = None
    dynamic_th: int | None = None
    static_th: int | None = None

    @property
    def lossless(self) -> bool:
        return self.xoff_bytes is not None

    @property
    def derived(self) -> bool:
        """True where the switch reckons the headroom itself: it is lossless, by numbers that are not said."""
        return self.profile == DERIVED


@record
class Queue:
    """An egress queue: how it is served, and what marks or drops in it."""

    scheduler: Literal["strict", "dwrr"] | None = None
    weight: int | None = None
    ecn: Ecn | None = None
    profile: str = ""


@record
class Pool:
    """A buffer pool of the chip; `xoff_bytes` is the headroom that its ports share, 0 where each has its own."""

    kind: Literal["ingress", "egress"]
    mode: Literal["dynamic", "static"]
    size_bytes: int | None
    xoff_bytes: int = 0


@record
class Maps:
    """How a packet that comes in finds its class, its group and its queue, and which queue a pause is for."""

    dscp_to_tc: Mapping[int, int] = field(default_factory=dict)
    tc_to_group: Mapping[int, int] = field(default_factory=dict)
    tc_to_queue: Mapping[int, int] = field(default_factory=dict)
    pfc_to_queue: Mapping[int, int] = field(default_factory=dict)

    def group_of(self, dscp: int) -> int:
        """Return the priority group that a packet of this DSCP goes into."""
        tc = self.dscp_to_tc.get(dscp, 0)
        return self.tc_to_group.get(tc, tc)

    def queue_of(self, dscp: int) -> int:
        """Return the queue that a packet of this DSCP waits in."""
        tc = self.dscp_to_tc.get(dscp, 0)
        return self.tc_to_queue.get(tc, tc)


@record
class PortLink:
    """A port's link. `jack` is its number on the box, 0 where the file does not tell.

    `split`: into how many ports its cage is split, where a file has to say so.
    """

    jack: int = 0
    split: int = 1
    speed_bps: int = 0
    lanes: int = 0
    mtu_bytes: int | None = None  # of Ethernet payload: an IP packet
    fec: str = ""
    cable_m: int | None = None
    peer: str = ""  # `host-0/mlx5_0` or `spine-0/Ethernet8`


@record
class PortQos:
    """What a port does for each class of traffic."""

    trust: Trust | None = None
    maps: Maps = Maps()
    pfc: frozenset[int] | None = None  # priorities that it sends pauses for
    pfc_receives: bool = True  # it obeys pauses
    groups: Mapping[int, Group] = field(default_factory=dict)
    queues: Mapping[int, Queue] = field(default_factory=dict)
    watchdog: Watchdog | None = None


@record
class Port:
    """A port of a switch."""

    name: str
    link: PortLink = PortLink()
    qos: PortQos = PortQos()
    address: str = ""  # of layer 3; '' with BGP unnumbered
    bgp: bool = False  # a neighbour by interface, which needs a link-local address
    up: bool = True


@record
class SwitchBox:
    """The kind of a switch. `chip` names the family that buffer formulas go by, `platform` the box."""

    os: Literal["sonic", "nvue"]
    chip: str = ""
    platform: str = ""
    mac: str = ""


@record
class Buffers:
    """A switch's pools, and what headroom was reckoned with."""

    pools: Mapping[str, Pool] = field(default_factory=dict)
    over_subscribe: int | None = None
    small_packet_percent: int | None = None
    lossless_mtu_bytes: int | None = None


@record
class Bgp:
    """A switch among those that route."""

    asn: int | None = None
    loopback: str = ""


@record
class Switch:
    """A switch."""

    name: str
    box: SwitchBox
    ports: Mapping[str, Port] = field(default_factory=dict)
    buffers: Buffers = Buffers()
    watchdog_poll_ms: int | None = None
    lldp: bool | None = None
    bgp: Bgp = Bgp()
    file: str = ""

    @property
    def partial(self) -> bool:
        """True of some tables of a database, without its ports: what others would say is not known."""
        return self.box.os == "sonic" and not any(port.link.speed_bps for port in self.ports.values())
