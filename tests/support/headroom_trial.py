"""A headroom put to the test: the packet kernel under the traffic that its formula assumes.

A sender floods a switch whose way out is paused. Where its priority group reaches the threshold, the switch pauses
the sender; what still comes goes into the headroom. The pause waits for a frame of the largest size that is just
on its way to the sender, crosses cable and gearbox, and is obeyed after the response time. All of these are the
formula's own: its speed of light, its response at the limit, its packets in its cells. The phase of the frame in
the way is tried in steps, the worst counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fabrictwin.base.units import PS_PER_S
from fabrictwin.configuration.headroom import broadcom, mlx5, spectrum
from fabrictwin.configuration.headroom.spectrum import Traffic

PHASES = 12
PRIORITY = 1
THRESHOLD_BYTES = 64 << 10
SENDER, IN_THE_WAY, SINK, SWITCH = range(4)
CONTROL_BYTES = 64
HEADER = 40  # of the kernel's packets, whose payload is the rest of a frame
GAP = 20


@dataclass(frozen=True)
class Assumptions:
    """What a formula assumes of a link, and its headroom."""

    name: str
    headroom_bytes: int
    speed_bps: int
    way_ps: int  # cable and gearbox, one way
    response_ps: int  # MAC, PHY and the peer's response
    frame_bytes: int  # of the traffic
    cell_bytes: int
    largest_bytes: int  # a frame that may be in the pause's way
    gap_bytes: int  # of preamble and gap, on the wire and not in the buffer


@dataclass(frozen=True)
class Outcome:
    """Bytes of headroom that were taken at most, and packets dropped, over all phases."""

    taken_bytes: int
    dropped: int


def of_spectrum(chip: str, gbps: int, metres: int, *, gearbox_ns: int = 0) -> Assumptions:
    """Return what SONiC's script assumes: back-to-back packets, its worst case of cells, without a gap."""
    kind, traffic = spectrum.CHIPS[chip], Traffic(gearbox_ns=gearbox_ns)
    found = spectrum.headroom(kind, gbps * 1000, metres, traffic)
    quanta = spectrum.PAUSE_QUANTA[gbps * 1000]
    tile = gbps * 120 / 8 if kind.generation in (4, 5) else 0.0
    late_bytes = kind.mac_phy_kb * spectrum.KB + quanta * 64 + tile
    factor = spectrum.worst_case_factor(kind.cell_bytes)
    # as many bytes as make the factor: a cell's share, or one byte more than a cell
    frame = kind.cell_bytes // factor if kind.cell_bytes > 2 * spectrum.SMALLEST_PACKET else kind.cell_bytes + 1
    gearbox_ps = gearbox_ns * 1000 * 1000 // 1024
    return Assumptions(
        f"{chip} {gbps}G {metres} m",
        found.xoff_bytes,
        gbps * 10**9,
        metres * PS_PER_S // spectrum.LIGHT_M_PER_S + gearbox_ps,
        round(late_bytes * 8000 / gbps),
        frame,
        kind.cell_bytes,
        traffic.port_mtu_bytes,
        0,
    )


def of_mlx5(gbps: int, metres: int, mtu_bytes: int) -> Assumptions:
    """Return what the driver assumes: frames of the MTU, 2.16 B a metre and 301 B for each Gb/s.

    Of its 2.72 frames one is in the pause's way and one that the peer has begun; the rest is taken for response.
    """
    speed = max(gbps, 40)
    rest_bytes = 72 * mtu_bytes // 100 - CONTROL_BYTES
    return Assumptions(
        f"mlx5 {gbps}G {metres} m",
        mlx5.headroom_bytes(gbps * 1000, metres, mtu_bytes),
        speed * 10**9,
        216 * metres // 100 * 4000,
        301 * 8000 + rest_bytes * 8000 // speed,
        mtu_bytes,
        1,
        mtu_bytes,
        0,
    )


def of_broadcom(chip: str, gbps: int, metres: int) -> Assumptions:
    """Return what the tables fit: small frames with their gap; the peer goes on for a largest frame's time."""
    largest = broadcom.LARGEST_FRAME + broadcom.WIRE_MORE
    return Assumptions(
        f"{chip} {gbps}G {metres} m",
        broadcom.headroom_bytes(gbps, metres, cell_bytes=broadcom.CELLS[chip]),
        gbps * 10**9,
        metres * broadcom.CABLE_NS_PER_M * 1000,
        broadcom.RESPONSE_NS * 1000 + largest * 8000 // gbps,
        64,
        broadcom.CELLS[chip],
        broadcom.LARGEST_FRAME,
        GAP,
    )


def with_frames(assumed: Assumptions, frame_bytes: int) -> Assumptions:
    """Return the same link under Ethernet's frames of another size, with preamble and gap."""
    return replace(assumed, frame_bytes=frame_bytes, gap_bytes=GAP)


def play(assumed: Assumptions, share: float = 1.0, *, phases: int = PHASES) -> Outcome:
    """Play the traffic with a `share` of the headroom; each phase is a run of its own."""
    largest_ps = (assumed.largest_bytes + assumed.gap_bytes) * 8 * PS_PER_S // assumed.speed_bps
    taken = dropped = 0
    for phase in range(phases):
        one = _play(assumed, round(assumed.headroom_bytes * share), phase * largest_ps // phases)
        taken, dropped = max(taken, one.taken_bytes), dropped + one.dropped
    return Outcome(taken, dropped)


def _play(assumed: Assumptions, headroom: int, late_ps: int) -> Outcome:
    from fabrictwin.kernel.packet.machine import Machine
    from fabrictwin.kernel.packet.state import constants as s

    machine = Machine(_wiring(assumed), _config(assumed, headroom))
    fills_ps = (THRESHOLD_BYTES + 2 * assumed.headroom_bytes) * 8 * PS_PER_S // assumed.speed_bps
    until = 2 * fills_ps + 4 * assumed.way_ps + 2 * assumed.response_ps + 4 * PS_PER_S // 10**6
    payload = assumed.frame_bytes - HEADER
    packets = until * assumed.speed_bps // (8 * PS_PER_S * (assumed.frame_bytes + assumed.gap_bytes)) + 64
    flood, against = _connections(assumed)
    machine.add_queue_pairs([flood, against])
    machine.storm(int(machine.wiring.endpoint_port[SINK]), PRIORITY, True)
    largest = assumed.largest_bytes - HEADER
    sizes = np.array([payload * packets, largest * (until * assumed.speed_bps // (8 * PS_PER_S * largest) + 4)])
    # the largest frames are on their way first; the flood begins at a phase of theirs
    delays = np.array([until // 4 + late_ps, 0])
    machine.add_tasks(np.full(2, s.MESSAGE), np.array([0, 1]), sizes, delays)
    machine.run(until, drain=False)
    slot = int(machine.wiring.port_peer[0]) * machine.config.lanes + PRIORITY
    return Outcome(int(machine.state.slot_qos[slot].most_headroom), int(machine.state.clock[0].dropped))


def _connections(assumed: Assumptions) -> tuple[Any, Any]:
    from fabrictwin.kernel.packet.connection import Connection, Framing, Reliability

    def sending(host: int, to: int, frame_bytes: int, sl: int) -> Connection:
        framing = Framing(
            header_bytes=HEADER + assumed.gap_bytes, ack_bytes=CONTROL_BYTES, mtu_bytes=frame_bytes - HEADER, sl=sl
        )
        return Connection(host, host, to, framing, Reliability(ack_every=1 << 20))

    return sending(0, 2, assumed.frame_bytes, PRIORITY), sending(1, 0, assumed.largest_bytes, 0)


def _wiring(assumed: Assumptions) -> Any:
    """Three hosts at one switch; the sender's cable is the one that is tried."""
    from fabrictwin.kernel.packet.state import constants as s
    from fabrictwin.kernel.packet.state.build import Wiring

    way = np.array([assumed.way_ps, 0, 0, assumed.way_ps, 0, 0], np.int64)
    return Wiring(
        port_node=np.array([0, 1, 2, 3, 3, 3], np.int32),
        port_peer=np.array([3, 4, 5, 0, 1, 2], np.int32),
        port_bps=np.full(6, assumed.speed_bps, np.int64),
        port_latency_ps=way,
        port_flags=np.full(6, s.PFC, np.int32),
        node_flags=np.array([s.ENDPOINT, s.ENDPOINT, s.ENDPOINT, s.SHARED], np.int32),
        node_latency_ps=np.zeros(4, np.int64),
        node_buffer_bytes=np.array([0, 0, 0, 1 << 30], np.int64),
        node_row=np.array([s.NONE, s.NONE, s.NONE, 0], np.int32),
        node_port_start=np.array([0, 1, 2, 3, 6], np.int32),
        endpoint_port=np.array([0, 1, 2], np.int32),
        endpoint_lid=np.array([1, 2, 3], np.int32),
        edge_column=np.zeros(1, np.int32),
        seeds=np.zeros(1, np.int64),
    )


def _config(assumed: Assumptions, headroom: int) -> Any:
    from fabrictwin.kernel.codes import NONE
    from fabrictwin.kernel.packet.state.config import Config, Endpoints, Frames
    from fabrictwin.kernel.packet.state.port_qos import PortQos

    ports, lanes = 6, 2
    receiver, sender = 3, 0

    def of_port(value: int = 0, *, at: int = receiver, otherwise: int = 0) -> Any:
        found = np.full(ports, otherwise, np.int64)
        found[at] = value
        return found

    def of_slot(value: int = NONE) -> Any:
        found = np.full((ports, lanes), NONE, np.int64)
        found[receiver, PRIORITY] = value
        return found

    ruled = np.zeros(ports, bool)
    ruled[[receiver, sender]] = True
    nothing = np.zeros(ports, np.int64)
    qos = PortQos(
        ruled=ruled,
        group_row=np.full(ports, NONE),
        queue_row=np.full(ports, NONE),
        sends=of_port(1 << PRIORITY),
        obeys=of_port(1 << PRIORITY, at=sender),
        frame=nothing,
        cell=of_port(assumed.cell_bytes),
        response_ps=of_port(assumed.response_ps, at=sender),
        detection_ps=nothing,
        restoration_ps=nothing,
        forwards=nothing,
        strict=nothing,
        headroom=of_slot(headroom),
        alpha_q=of_slot(),
        threshold=of_slot(THRESHOLD_BYTES),
        reserve=of_slot(0),
        resume=of_slot(0),
        kmin=of_slot(),
        kmax=of_slot(),
        pmax_q=of_slot(),
        weight=of_slot(),
        gap=assumed.gap_bytes,
    )
    frames = Frames(
        mtu_bytes=assumed.largest_bytes - HEADER,
        header_bytes=HEADER + assumed.gap_bytes,
        ack_bytes=CONTROL_BYTES,
        pause_wire_bytes=CONTROL_BYTES,
    )
    return Config(lanes, frames, endpoints=Endpoints(window_packets=64), qos=qos)
