"""A fabric, its tables and the options of a run taken together: headers, lanes, the longest round trip."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.congestion_controls import Scale
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.cluster.blueprint import Technology
from fabrictwin.engines.packet.network.virtual_lanes import lanes_needed
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.fabric.compile import packet_overhead
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric, NodeKind
from fabrictwin.routing.tables import Routes

SHORTEST_FRAME = 84  # of Ethernet, with preamble and gap
AETH_BYTES = 4


@record
class HeaderBytes:
    """Bytes on the wire beside payload."""

    data: int  # around a data packet
    first: int  # more on the first packet of a message
    acknowledgement: int


def _headers(technology: Technology) -> HeaderBytes:
    around, fields = packet_overhead(technology), catalog.headers("infiniband")
    ack = around + fields.bytes_of("AETH")
    return HeaderBytes(
        around, fields.bytes_of("RETH"), ack if technology == "infiniband" else max(ack, SHORTEST_FRAME)
    )


@record
class NetworkModel:
    """A network for the packet kernel to play. Raises ConfigError for options that the technology has not."""

    fabric: Fabric
    routes: Routes
    options: PacketOptions

    def __post_init__(self) -> None:
        if self.options.lanes.qos is not None and self.options.congestion.control == "nscc":
            message = "got control: nscc with network.qos, which says of each port what nscc sets itself"
            raise ConfigError(message, key="control")
        if self.fabric.technology != "infiniband":
            return
        used = [name for name in self.options.congestion.used if name != "none"]
        if used:
            message = f"got {used[0]!r}, which is for Ethernet; InfiniBand takes none"
            raise ConfigError(message, key="control")
        if not self.options.switching.lossless:
            raise ConfigError("InfiniBand is lossless by its credits: only Ethernet can be lossy", key="lossless")

    @cached_property
    def headers(self) -> HeaderBytes:
        return _headers(self.fabric.technology)

    @cached_property
    def lanes(self) -> int:
        return lanes_needed(self.routes, self.options)

    @cached_property
    def nic_bps(self) -> int:
        """The highest rate of an adapter; 0 where none has a cable."""
        fabric = self.fabric
        rates = fabric.port_rate_bps[fabric.nic_port[fabric.nic_port != NONE]]
        return int(rates.max()) if len(rates) else 0

    @cached_property
    def round_trip_ps(self) -> int:
        """The longest round trip between adapters with nothing in the way, packets serialized at every hop."""
        fabric, groups = self.fabric, self.routes.groups
        switch = fabric.node_kind == NodeKind.SWITCH
        network = np.isin(fabric.port_kind, NETWORK) & (fabric.port_peer != NONE)
        if not network.any() or not groups.distance.size:
            return 0
        wire = int(fabric.port_latency_ps[network].max())
        node = int(fabric.node_latency_ps[switch].max()) if switch.any() else 0
        reach = groups.distance[groups.distance < 255]
        links = int(reach.max()) + 2
        packet = fabric.mtu_bytes + self.headers.data + self.headers.acknowledgement
        size = packet * 8 * PS_PER_S // max(self.nic_bps, 1)
        return 2 * (links * wire + (links - 1) * node) + links * size

    @property
    def scale(self) -> Scale:
        """Sizes that parameters of congestion control grow with."""
        return Scale(self.fabric.mtu_bytes, self.headers.data, self.nic_bps, self.bdp_bytes, self.round_trip_ps)

    @property
    def bdp_bytes(self) -> int:
        """Bytes that fit into the longest round trip at an adapter's rate."""
        return self.nic_bps * self.round_trip_ps // (8 * PS_PER_S)
