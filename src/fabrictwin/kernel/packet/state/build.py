"""From plain arrays to the kernel's state: sizes, thresholds, credits, event lanes.

`Wiring` says what is connected to what, `Config` how it behaves. Nothing here knows of fabrics or specs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.kernel.packet.congestion import ALGORITHMS, ibcc
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state import network_records as network
from fabrictwin.kernel.packet.state import transport_records as transport
from fabrictwin.kernel.packet.state.config import Config
from fabrictwin.kernel.packet.state.port_qos import buffers, set_port_qos
from fabrictwin.kernel.packet.state.records import plain_columns, records
from fabrictwin.kernel.packet.state.state import (
    State,
    chain_dtype,
    clock_dtype,
    event_dtype,
    heap_dtype,
    lane_dtype,
    mail_dtype,
    settings_dtype,
)
from fabrictwin.kernel.packet.switch.arbitration import ENTRIES, HIGH, LIMIT_UNIT, LOW, UNLIMITED

MOST_LANES = 16  # a scan of more costs more than the heap does
ARRIVALS = ("lane_arrive_full", "lane_arrive_ack", "lane_credit")  # of what comes from a port's peer
LOOK_AHEAD_PORTS = 20_000  # some 400 bytes each; fewer are in a cache near enough


def _empty(dtype: Any) -> Any:
    return np.zeros(0, dtype)


@dataclass(frozen=True)
class Wiring:
    """P ports, N nodes, E endpoints. A port transmits to `port_peer` and receives from it; NONE is -1."""

    port_node: Any  # [P]
    port_peer: Any  # [P]
    port_bps: Any  # [P] what serialization goes by; 0 where nothing is plugged in
    port_latency_ps: Any  # [P]
    port_flags: Any  # [P] CREDIT, PFC, INTERNAL, STORE, REPLAY
    node_flags: Any  # [N] ENDPOINT, INPUT_QUEUED, SHARED, CUT_THROUGH
    node_latency_ps: Any  # [N]
    node_buffer_bytes: Any  # [N] of a shared buffer, 0 elsewhere
    node_row: Any  # [N] row of the tables, NONE elsewhere
    node_port_start: Any  # [N + 1]
    endpoint_port: Any  # [E]
    arrive_ps: Any = field(default_factory=lambda: _empty(np.int64))  # [P] default: latency of wire and peer node
    credit_bytes: Any = field(default_factory=lambda: _empty(np.int64))  # [P] a lane's buffer at each input
    endpoint_lid: Any = field(default_factory=lambda: _empty(np.int32))
    lft: Any = field(default_factory=lambda: np.zeros((1, 1), np.uint8))
    group_of: Any = field(default_factory=lambda: np.full((1, 1), s.NONE, np.int32))
    group_start: Any = field(default_factory=lambda: np.zeros(2, np.int32))
    group_ports: Any = field(default_factory=lambda: np.zeros(1, np.int32))
    edge_column: Any = field(default_factory=lambda: _empty(np.int32))  # [rows] column of each edge switch
    seeds: Any = field(default_factory=lambda: _empty(np.int64))  # [rows]


def serialize_ps(size: Any, ps_q: Any) -> Any:
    """Time that so many bytes take on a link, rounded to the nearest picosecond as the kernel does."""
    return (np.asarray(size, np.int64) * ps_q + s.RATE_HALF) >> s.RATE_BITS


def rate_to_q(bps: Any) -> Any:
    """Picoseconds a byte in fixed point; 0 for no rate."""
    bps = np.asarray(bps, np.int64)
    unit = 8 * PS_PER_S << s.RATE_BITS
    return np.where(bps > 0, (unit + (bps >> 1)) // np.maximum(bps, 1), 0)


def headroom_bytes(wiring: Wiring, config: Config) -> Any:
    """[P] what can still arrive after XOFF: the frame in the pause frame's way, both flights, the one begun.

    IEEE 802.1Q annex O counts the same terms.
    """
    q = np.maximum(rate_to_q(wiring.port_bps), 1)
    full = config.frames.mtu_bytes + config.frames.header_bytes + 64
    peer = np.maximum(wiring.port_peer, 0)
    flight = wiring.port_latency_ps + wiring.port_latency_ps[peer] + wiring.node_latency_ps[wiring.port_node[peer]]
    flight = flight + wiring.node_latency_ps[wiring.port_node]
    return (flight << s.RATE_BITS) // q + 3 * full + 2 * config.frames.pause_wire_bytes


def common_delays(delays: dict[str, Any], most: int) -> Any:
    """Return the most common of the delays of all ports that have one, shorter ones first."""
    everything = np.concatenate(list(delays.values()))
    values, counts = np.unique(everything[everything >= 0], return_counts=True)
    if len(values) > most:
        values = np.sort(values[np.argsort(-counts, kind="stable")[:most]])
    return values


def join_lanes(port: Any, delays: dict[str, Any], values: Any, first: int = 0) -> None:
    """Give ports that have a delay the lane of it, counted from `first`, NONE where there is none."""
    for name, delay in delays.items():
        place = np.searchsorted(values, delay)
        known = place < len(values)
        if len(values):
            known = known & (values[np.minimum(place, len(values) - 1)] == delay)
        port[name][delay >= 0] = np.where(known, first + place, s.NONE)[delay >= 0]


def with_lanes(state: State, values: Any, rooms: Any) -> State:
    """A state with empty event lanes of these delays, each with room for so many events."""
    lane = records(len(values), lane_dtype)
    first = 0
    for i, (value, room) in enumerate(zip(values, rooms, strict=True)):
        size = 1 << (int(room) - 1).bit_length()
        lane[i].delay, lane[i].first, lane[i].mask = value, first, size - 1
        first += size
    state.clock[0].lanes = len(values)
    return state._replace(lane=lane, lane_time=lane_times(len(values)), event=records(first, event_dtype))


def lane_times(count: int) -> Any:
    """Times of empty lanes, on cache lines that no other array has anything on."""
    times = plain_columns(count, np.int64)
    times[:] = s.NEVER
    return times


def kick_room(ports: int) -> int:
    """Return how many of so many ports one event may ask to be tried."""
    return 4 * ports + 64


def lane_room(ports: int, arrivals: bool) -> int:
    """Return how many events of one delay so many ports have room for at first.

    A ring is gone round and round, so a larger one is more memory to touch: each port has one packet on its wire
    that leaves it, and of those that arrive as many as are on the way.
    """
    return (4 if arrivals else 1) * ports + 64


def arrival_lanes(port: Any, lanes: int) -> Any:
    """[lanes] whether a lane has events of more than the packet on a port's wire."""
    found = np.zeros(lanes, bool)
    for name in ARRIVALS:
        found[port[name][port[name] != s.NONE]] = True
    return found


def set_lanes(state: State, config: Config) -> State:
    """Give every port its event lanes; those of ports without a link stay unused."""
    delays = lane_delays(state, config)
    values = common_delays(delays, MOST_LANES)
    for name in delays:
        state.port[name] = s.NONE
    join_lanes(state.port, delays, values)
    ports, arrivals = len(state.port), arrival_lanes(state.port, len(values))
    return with_lanes(state, values, [lane_room(ports, each) for each in arrivals.tolist()])


def lane_delays(state: State, config: Config) -> dict[str, Any]:
    """Return for each of a port's event lanes its delay in ps, [P], -1 where it needs none."""
    frames = config.frames
    port = state.port
    internal = (port.traits & s.INTERNAL) != 0
    port.full_bytes[:] = np.where(internal, frames.mtu_bytes, frames.mtu_bytes + frames.header_bytes)
    port.ack_bytes[:] = np.where(internal, -1, frames.ack_bytes)
    plugged = port.peer != s.NONE
    full = serialize_ps(port.full_bytes, port.ps_q)
    ack = serialize_ps(port.ack_bytes, port.ps_q)
    stored = (port.traits & s.STORE) != 0
    credit = (port.traits & s.CREDIT) != 0
    return {
        "lane_tx_full": np.where(plugged, full, -1),
        "lane_tx_ack": np.where(plugged & ~internal, ack, -1),
        "lane_arrive_full": np.where(plugged, port.arrive_ps + stored * full, -1),
        "lane_arrive_ack": np.where(plugged & ~internal, port.arrive_ps + stored * ack, -1),
        "lane_credit": np.where(plugged & credit, port.credit_ps, -1),
    }


def build(wiring: Wiring, config: Config) -> State:
    """The state at time 0: everything empty, every credit there. Raises ValueError where a buffer is too small."""
    frames, forwarding, marking, room = config.frames, config.forwarding, config.marking, config.buffers
    ports = len(wiring.port_node)
    v = config.lanes
    bits = v.bit_length() - 1
    if not 1 <= v <= 8 or v != 1 << bits:
        raise ValueError(f"got {v} lanes, expected 1, 2, 4 or 8")
    clock, settings = records(1, clock_dtype), records(1, settings_dtype)
    clock[0].random = (forwarding.seed * 0x9E3779B1 & s.M32) or 1
    clock[0].unroutable = clock[0].tasks_head = clock[0].called = s.NONE
    one = settings[0]
    one.vl_bits, one.mtu, one.balance = bits, frames.mtu_bytes, forwarding.balance
    one.bitmap_mask = config.endpoints.window_packets - 1
    one.pause_wire, one.pmax_q, one.hoq_ps = frames.pause_wire_bytes, marking.ecn_pmax_q, forwarding.hoq_ps
    one.trim_wire, one.trim_vl = frames.trim_wire_bytes, marking.trim_lane
    one.cnp_wire = frames.cnp_wire_bytes or frames.ack_bytes
    one.cnp_ps = config.endpoints.cnp_ps
    one.cnp_sl = s.NONE
    one.look_ahead = ports >= LOOK_AHEAD_PORTS

    port = records(ports, network.port_dtype)
    port.peer, port.node = wiring.port_peer, wiring.port_node
    port.ps_q = rate_to_q(wiring.port_bps)
    peer = np.maximum(wiring.port_peer, 0)
    peer_node = wiring.port_node[peer]
    forwards = wiring.node_latency_ps[peer_node]
    port.arrive_ps = wiring.arrive_ps if len(wiring.arrive_ps) else wiring.port_latency_ps + forwards
    port.credit_ps = wiring.port_latency_ps + serialize_ps(frames.credit_update_bytes, port.ps_q)
    port.traits = wiring.port_flags
    cut = (wiring.node_flags[peer_node] & s.CUT_THROUGH) != 0
    port.traits |= np.where(cut, 0, s.STORE).astype(np.int32)
    port.rx_traits = np.where(wiring.port_peer >= 0, port.traits[peer], 0)
    port.control_head = port.control_tail = s.NONE
    port.tx_slot = s.NONE
    port.wait_since = s.NONE
    port.strict = config.virtual_lanes.strict
    input_queued = (wiring.node_flags[wiring.port_node] & s.INPUT_QUEUED) != 0
    width = np.where(input_queued, np.diff(wiring.node_port_start)[wiring.port_node], 1)
    port.queue_width = width
    queues = np.where(width > 1, width * v, 0)
    port.queue_start = np.concatenate([[0], np.cumsum(queues)])[:-1]
    port.sl2vl = np.array(config.virtual_lanes.port_sl2vl, np.int16) if len(config.virtual_lanes.port_sl2vl) else 0
    if len(config.virtual_lanes.sl2vl_by_input):
        port.traits |= np.where(config.virtual_lanes.sl2vl_by_input, s.BY_INPUT, 0).astype(np.int16)
    arbiter, arbitration, high_limit = arbitration_state(config, port, v)

    queue = records(int(queues.sum()), network.queue_dtype)
    queue.head = queue.tail = queue.next = s.NONE
    outlet, inlet = records(ports * v, network.outlet_dtype), records(ports * v, network.inlet_dtype)
    for name in ("head", "tail", "ready_head", "ready_tail"):
        outlet[name] = s.NONE
    weights = config.virtual_lanes.weights or (frames.mtu_bytes,) * v
    hold = records(ports * v, network.hold_dtype)
    hold.quantum = np.tile(np.array(weights, np.int32), ports)
    ethernet = (port.traits & (s.CREDIT | s.INTERNAL)) == 0
    if marking.ecn_kmax_bytes:
        rates, of = np.unique(wiring.port_bps, return_inverse=True)
        for name, at in (("kmin", marking.ecn_kmin_bytes), ("kmax", marking.ecn_kmax_bytes)):
            # Python's integers: a threshold that nothing reaches, times a rate, is more than 64 bits
            at_rate = [at * rate // marking.ecn_bps if marking.ecn_bps else at for rate in rates.tolist()]
            scaled = np.array([min(each, 2**31 - 1) for each in at_rate])[of]
            outlet[name] = np.repeat(np.where(ethernet, scaled, 0), v)
    on_switch = (wiring.node_flags[wiring.port_node] & s.ENDPOINT) == 0
    outlet.limit = np.repeat(np.where(on_switch & ethernet, room.queue_limit_bytes, 0), v)

    _set_credits(wiring, config, port, outlet, inlet, v)
    node = _nodes(wiring, config, inlet, v)
    node.queue_start = port.queue_start[np.minimum(node.port_start, ports - 1)]

    ends = len(wiring.endpoint_port)
    endpoint = records(ends, network.endpoint_dtype)
    if ends:
        endpoint.port = wiring.endpoint_port
        endpoint.node = wiring.port_node[wiring.endpoint_port]
        endpoint.lid = wiring.endpoint_lid if len(wiring.endpoint_lid) else 0
        down = wiring.port_peer[wiring.endpoint_port]
        row = np.where(down >= 0, wiring.node_row[wiring.port_node[np.maximum(down, 0)]], s.NONE)
        endpoint.edge_row, endpoint.edge_port = row, down
        column = wiring.edge_column
        endpoint.edge = np.where(row >= 0, column[np.maximum(row, 0)], s.NONE) if len(column) else s.NONE

    controls: dict[str, Any] = {}
    for control, algorithm in ALGORITHMS.items():
        controls[control.name.lower()] = records(0, algorithm.dtype)
        controls[f"{control.name.lower()}_settings"] = records(1, algorithm.settings_dtype)
    rows = config.virtual_lanes.sl2vl or (tuple(i % v for i in range(16)),)
    state = State(
        clock=clock,
        settings=settings,
        port=port,
        count=records(ports, network.count_dtype),
        outlet=outlet,
        inlet=inlet,
        hold=hold,
        queued=np.zeros(ports, np.int64),
        queue=queue,
        node=node,
        port_qos=records(1, network.port_qos_dtype),
        slot_qos=records(1, network.slot_qos_dtype),
        packet=records(0, network.packet_dtype),
        endpoint=endpoint,
        qp=records(0, transport.qp_dtype),
        task=records(0, transport.task_dtype),
        successor=np.zeros(1, np.int32),
        log=np.zeros(1, np.int32),
        hop=np.zeros(1, np.int32),
        received=np.zeros(1, np.uint8),
        sacked=np.zeros(1, np.uint8),
        lane=records(0, lane_dtype),
        lane_time=np.zeros(1, np.int64),
        event=records(0, event_dtype),
        heap=records(2 * s.HEAP_MARGIN, heap_dtype),
        kick=plain_columns(kick_room(ports), np.int32),
        lft=wiring.lft,
        group_of=wiring.group_of,
        group_start=wiring.group_start,
        group_ports=wiring.group_ports,
        sl2vl=np.array(rows, np.int16),
        arbiter=arbiter,
        arbitration=arbitration,
        high_limit=high_limit,
        **controls,
        delays=np.zeros((1, ibcc.TABLE_ENTRIES), np.int64),
        fecn=records(1, ibcc.lane_dtype),
        congestion_log=np.zeros((1, ibcc.LOG_COLUMNS), np.int64),
        note=records(0, transport.note_dtype),
        pool=np.zeros(1, np.int64),
        inbox=np.zeros((1, s.INBOX_COLUMNS), np.int64),
        message_event=np.zeros((1, 3), np.int64),
        tap=np.zeros((1, s.TAP_COLUMNS), np.int64),
        mail=records(1, mail_dtype),
        chain=records(1, chain_dtype),
        merge=np.zeros(1, np.int64),
    )
    if config.qos is not None:
        full = frames.mtu_bytes + frames.header_bytes
        state = set_port_qos(state, config.qos, alpha_q=room.alpha_q, resume=room.resume_bytes, quantum=full)
        state.slot_qos.reserve = _slot_reserve(config, ports, v)
    state = add_packets(state, max(1024, 4 * ports), fresh=True)
    return set_lanes(state, config)


def arbitration_state(config: Config, port: Any, v: int) -> tuple[Any, Any, Any]:
    """(arbiter, arbitration, high_limit) of the state; marks the ports that have tables.

    Raises ValueError where a table has an entry too many or a lane is in neither: it would wait for ever.
    """
    virtual_lanes = config.virtual_lanes
    tables = virtual_lanes.arbitrations if v > 1 else ()
    entries = np.zeros((max(len(tables), 1), 2, ENTRIES, 2), np.int16)
    limit = np.zeros(max(len(tables), 1), np.int64)
    for row, table in enumerate(tables):
        for which, given in ((HIGH, table.high), (LOW, table.low)):
            if len(given) > ENTRIES:
                raise ValueError(f"got {len(given)} entries of VL arbitration, expected at most {ENTRIES}")
            for i, (lane, weight) in enumerate(given):
                if not 0 <= lane < v or not 0 <= weight <= 255:
                    raise ValueError(
                        f"got {lane}:{weight} in VL arbitration, expected a lane below {v} and a weight up to 255"
                    )
                entries[row, which, i] = lane, weight
        served = {lane for lane, weight in (*table.high, *table.low) if weight > 0}
        if len(served) < v:
            missing = min(set(range(v)) - served)
            raise ValueError(f"got VL arbitration without lane {missing}, which would never be served")
        limit[row] = s.NEVER if table.high_limit == UNLIMITED else max(table.high_limit * LIMIT_UNIT, 1)
    flat = entries.reshape(-1, 2)
    if not tables:
        return records(1, network.arbiter_dtype), flat, limit
    of = virtual_lanes.port_arbitration
    of = np.array(of, np.int32) if len(of) else np.zeros(len(port), int)
    of = np.where((port.traits & s.CREDIT != 0) & (port.traits & s.INTERNAL == 0), of, s.NONE)
    arbiter = records(len(port), network.arbiter_dtype)
    arbiter.row, arbiter.pick = np.maximum(of, 0), s.NONE
    arbiter.budget = limit[np.maximum(of, 0)]
    arbiter.high_at = arbiter.low_at = ENTRIES - 1  # the first turn is the first entry's
    port.traits |= np.where(of >= 0, s.ARBITRATED, 0).astype(np.int16)
    return arbiter, flat, limit


def _set_credits(wiring: Wiring, config: Config, port: Any, outlet: Any, inlet: Any, v: int) -> None:
    """Input buffers of credit links, and the credits that their peers start with."""
    credit = (port.traits & s.CREDIT) != 0
    if not credit.any():
        return
    size = np.where(credit, wiring.credit_bytes >> s.BLOCK_BITS, 0)
    packet = (config.frames.mtu_bytes + config.frames.header_bytes + 64 + 63) >> s.BLOCK_BITS
    batch = np.minimum(config.buffers.credit_batch_bytes >> s.BLOCK_BITS, size // 4)
    small = credit & (port.peer != s.NONE) & (size - batch < packet)
    if small.any():
        at = int(np.flatnonzero(small)[0])
        raise ValueError(
            f"port {at}: got a buffer of {int(wiring.credit_bytes[at])} bytes a lane, "
            f"expected at least a packet ({packet << s.BLOCK_BITS} bytes) beside unreturned credits"
        )
    inlet.capacity = np.repeat(size, v)
    inlet.batch = np.repeat(np.maximum(batch, 1), v)
    peer = np.maximum(port.peer, 0)
    outlet.credit = np.repeat(np.where(credit & (port.peer != s.NONE), size[peer], 0), v)


def _nodes(wiring: Wiring, config: Config, inlet: Any, v: int) -> Any:
    """Node records; shared buffers lose reserve and headroom first."""
    nodes, ports = len(wiring.node_flags), len(wiring.port_node)
    node = records(nodes, network.node_dtype)
    node.port_start = wiring.node_port_start[:-1]
    node.ports = np.diff(wiring.node_port_start)
    node.row = wiring.node_row
    node.traits = wiring.node_flags
    seeded = (wiring.node_row >= 0) & (len(wiring.seeds) > 0)
    if len(wiring.seeds):
        node.seed = np.where(seeded, wiring.seeds[np.maximum(wiring.node_row, 0)], 0)
    lossless = np.array([(config.buffers.lossless >> i) & 1 for i in range(v)])
    headroom = headroom_bytes(wiring, config)
    ethernet = ((wiring.port_flags & (s.CREDIT | s.INTERNAL)) == 0) & (wiring.port_peer != s.NONE)
    inlet.lossless = np.tile(lossless, ports) * np.repeat(ethernet, v)
    inlet.headroom_limit = np.where(inlet.lossless > 0, np.repeat(headroom, v), 0)
    reserve = _slot_reserve(config, ports, v)
    if config.qos is not None:
        said, _ = buffers(config.qos, inlet.headroom_limit, reserve)
        inlet.headroom_limit = np.where(np.repeat(ethernet, v), said, 0)
    shared = (wiring.node_flags & s.SHARED) != 0
    if shared.any():
        slot_node = np.repeat(wiring.port_node, v)
        taken = np.bincount(slot_node, weights=inlet.headroom_limit, minlength=nodes).astype(np.int64)
        kept = np.bincount(slot_node, weights=np.repeat(ethernet, v) * reserve, minlength=nodes).astype(np.int64)
        left = wiring.node_buffer_bytes - taken - kept
        small = np.flatnonzero(shared & (left <= 0))
        if len(small):
            n = int(small[0])
            raise ValueError(
                f"node {n}: got a buffer of {int(wiring.node_buffer_bytes[n])} bytes, expected more than "
                f"the {int(taken[n])} of headroom and {int(kept[n])} of reserve"
            )
        node.shared_limit = np.where(shared, left, 0)
        node.reserve = config.buffers.reserve_bytes
        node.alpha_q = config.buffers.alpha_q
        node.resume = config.buffers.resume_bytes
    return node


def _slot_reserve(config: Config, ports: int, v: int) -> Any:
    """[P * V] bytes guaranteed to each port and priority."""
    reserve = np.full(ports * v, config.buffers.reserve_bytes, np.int64)
    return reserve if config.qos is None else buffers(config.qos, reserve, reserve)[1]


def add_packets(state: State, count: int, *, fresh: bool = False) -> State:
    """A larger pool of packets."""
    old = 0 if fresh else len(state.packet)
    packet = records(old + count, network.packet_dtype)
    if old:
        packet[:old] = state.packet
    packet.next[old:] = np.arange(old + 1, old + count + 1)
    packet.next[-1] = s.NONE if fresh else state.clock[0].free_head
    state.clock[0].free_head = old
    state.clock[0].free += count
    return state._replace(packet=packet)


def grow_heap(state: State) -> State:
    """A heap of twice the size."""
    heap = records(2 * len(state.heap), heap_dtype)
    heap[: len(state.heap)] = state.heap
    return state._replace(heap=heap)


def grow_mail(state: State) -> State:
    """Twice the room for mail."""
    mail = records(2 * len(state.mail), mail_dtype)
    mail[: len(state.mail)] = state.mail
    return state._replace(mail=mail)


def grow_lanes(state: State) -> State:
    """Twice the room in every lane; the order of events stays."""
    lane, event = state.lane.copy().view(np.recarray), records(2 * len(state.event), event_dtype)
    for i in range(len(lane)):
        head, tail, mask = int(lane[i].head), int(lane[i].tail), int(lane[i].mask)
        at = int(lane[i].first) + (np.arange(head, tail) & mask)
        lane[i].first = 2 * int(lane[i].first)
        lane[i].mask = 2 * mask + 1
        event[int(lane[i].first) + (np.arange(head, tail) & (2 * mask + 1))] = state.event[at]
    return state._replace(lane=lane, event=event)
