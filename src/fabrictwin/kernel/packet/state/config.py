"""Behaviour of links and switches, grouped by what each part decides.

Units are in the names; masks have a bit for each lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state.port_qos import PortQos


@dataclass(frozen=True)
class Arbitration:
    """A port's two tables of (lane, weight in 64 bytes), and Limit of High-Priority."""

    high: tuple[tuple[int, int], ...] = ()
    low: tuple[tuple[int, int], ...] = ()
    high_limit: int = 0  # 4,096 bytes each; 0: one packet, 255: no limit


@dataclass(frozen=True)
class Frames:
    """Sizes of packets, and of what control packets take on the wire."""

    mtu_bytes: int = 4096
    header_bytes: int = 82
    ack_bytes: int = 86
    credit_update_bytes: int = 8  # InfiniBand: a flow control packet
    pause_wire_bytes: int = 84
    trim_wire_bytes: int = 0
    cnp_wire_bytes: int = 0


@dataclass(frozen=True)
class VirtualLanes:
    """Lanes of service levels, and which lane of a port is served next."""

    strict: int = 0
    weights: tuple[int, ...] = ()  # bytes a turn, one a lane
    sl2vl: tuple[tuple[int, ...], ...] = ()  # rows of 16; the first row serves all ports unless `port_sl2vl`
    port_sl2vl: Any = ()  # [P] row of each port
    sl2vl_by_input: Any = ()  # [P] whether that row is for the node's first port, followed by its others'
    arbitrations: tuple[Arbitration, ...] = ()  # InfiniBand
    port_arbitration: Any = ()  # [P] which of them, NONE: strict and weighted lanes as above; empty: the first


@dataclass(frozen=True)
class Buffers:
    """Room for packets, and who is told about it."""

    lossless: int = 0xFF
    credit_batch_bytes: int = 0  # InfiniBand: freed room that goes into one update; 0: a packet's at once
    alpha_q: int = 32  # of 256: the dynamic threshold's alpha
    reserve_bytes: int = 4096
    resume_bytes: int = 3072
    queue_limit_bytes: int = 0


@dataclass(frozen=True)
class Marking:
    """Marks of congestion, and trimming of packets that find no room."""

    ecn_kmin_bytes: int = 0  # at `ecn_bps`, in proportion elsewhere
    ecn_kmax_bytes: int = 0
    ecn_bps: int = 100 * 10**9  # 0: the same at every rate
    ecn_pmax_q: int = 0
    trim_lane: int = 0


@dataclass(frozen=True)
class Forwarding:
    """Choice among equal ports, and how long a packet may stand first in a queue."""

    balance: int = s.ECMP
    seed: int = 1
    hoq_ps: int = 0


@dataclass(frozen=True)
class Endpoints:
    """Limits of all adapters."""

    window_packets: int = 512  # selective repeat: how far it sees, a power of two
    cnp_ps: int = 0


@dataclass(frozen=True)
class Config:
    """A fabric's lanes (a power of two), the parts above, and ports that are configured one by one."""

    lanes: int = 1  # virtual lanes or priorities
    frames: Frames = Frames()
    virtual_lanes: VirtualLanes = VirtualLanes()
    buffers: Buffers = Buffers()
    marking: Marking = Marking()
    forwarding: Forwarding = Forwarding()
    endpoints: Endpoints = Endpoints()
    qos: PortQos | None = None
