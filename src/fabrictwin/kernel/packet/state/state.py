"""What the packet simulation keeps: a few arrays of records, allocated once, modified in place by the kernel.

Sizes: P ports, V virtual lanes (InfiniBand) or priorities (Ethernet) a port, a power of two; N nodes, E
endpoints, Q queue pairs, T tasks. A port both transmits on its link and receives from its peer's. The *slot* of
a port and lane is `port * V + vl`; `outlet` holds the transmitting side of a slot, `inlet` the receiving side.

Small fields are 32 bit on purpose: with the JIT off, numpy scalars keep their width, and arithmetic on narrow
ones would overflow where compiled code widens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fabrictwin.kernel.jit.by_reference import by_reference
from fabrictwin.kernel.packet.state.records import layout

lane_dtype = layout(("delay", "i8"), ("first", "i8"), ("mask", "i8"), ("head", "i8"), ("tail", "i8"))
event_dtype = layout(("time", "i8"), ("what", "i8"))
heap_dtype = layout(("time", "i8"), ("sequence", "i8"), ("what", "i8"), ("pad", "i8"))
mail_dtype = layout(("time", "i8"), ("what", "i8"), ("sequence", "i8"), ("next", "i8"))
chain_dtype = layout(("head", "i8"), ("tail", "i8"), ("count", "i8"))

clock_dtype = layout(
    ("now", "i8"),
    ("sequence", "i8"),
    ("heap", "i8"),  # events in the heap
    ("lanes", "i8"),
    ("grow", "i8"),  # a status to return before the next event
    ("free_head", "i8"),
    ("free", "i8"),
    ("kicks", "i8"),
    ("random", "i8"),
    ("events", "i8"),
    ("hops", "i8"),
    ("open", "i8"),  # tasks not done
    ("logged", "i8"),
    ("called", "i8"),  # the task of a CALL that nobody answered yet, NONE
    ("stall_seen", "i8"),
    ("created", "i8"),  # data packets
    ("delivered", "i8"),
    ("refused", "i8"),  # arrived and not wanted: duplicates, after a gap
    ("dropped", "i8"),
    ("lost_control", "i8"),  # acknowledgements and the like dropped
    ("payload_delivered", "i8"),
    ("unroutable", "i8"),  # a destination without a way, NONE
    ("inbox", "i8"),  # rows filled
    ("message_events", "i8"),  # rows of State.message_event filled,
    ("patient", "i8"),  # software reads of some messages' events with what comes after
    ("tasks_head", "i8"),  # free tasks, NONE
    ("tasks_free", "i8"),
    ("tapped", "i8"),  # rows of State.tap filled
    ("congestion_events", "i8"),  # ever logged in State.congestion_log
    # of a part of the fabric: `mailbox`, `parts`
    ("part", "i8"),
    ("half", "i8"),  # of its mail that it fills in this window
    ("mail_blocks", "i8"),  # of that half in use
    ("mail_time", "i8"),  # the earliest of them, NEVER
    ("posted", "i8"),  # events for other parts, ever
    ("status", "i8"),  # at the end of the window
    ("pad", "i8", (5,)),  # to whole cache lines: parts' clocks stand next to each other
)

settings_dtype = layout(
    ("vl_bits", "i8"),  # V = 1 << vl_bits
    ("mtu", "i8"),
    ("balance", "i8"),  # LFT, ECMP, ADAPTIVE
    ("bitmap_mask", "i8"),  # selective: packets in the window, less one
    ("pause_wire", "i8"),
    ("pmax_q", "i8"),  # chance of a mark at kmax, of 2**32
    ("trim_wire", "i8"),  # 0: no trimming
    ("trim_vl", "i8"),
    ("hoq_ps", "i8"),  # head-of-queue lifetime, 0: for ever
    ("cnp_wire", "i8"),
    ("cnp_sl", "i8"),  # service level of CNPs; NONE: that of acknowledgements
    ("gap", "i8"),  # bytes of a frame on the wire that take no buffer: preamble and gap
    ("cnp_ps", "i8"),  # a queue pair's CNPs are at least this far apart
    ("inbound", "i8"),  # the first event lane of what comes from other parts
    ("look_ahead", "i8"),  # fetch the output of a packet before it arrives: pays where caches don't hold ports
)


@by_reference
class State(NamedTuple):
    """Everything. Settings are constant while the kernel runs; `queued` is apart because scans read it."""

    clock: Any  # [1]
    settings: Any  # [1]
    port: Any  # [P]
    count: Any  # [P]
    outlet: Any  # [P * V]
    inlet: Any  # [P * V]
    hold: Any  # [P * V]
    queued: Any  # int64 [P] bytes waiting and on the wire, for adaptive choice
    queue: Any
    node: Any  # [N]
    port_qos: Any  # [P] where ports are configured, else [1]
    slot_qos: Any  # [P * V] likewise
    packet: Any
    endpoint: Any  # [E]
    qp: Any  # [Q]
    task: Any  # [T]
    successor: Any  # int32 tasks
    log: Any  # int32 [T] tasks in the order in which they ended
    hop: Any  # int32 ports of source routes
    received: Any  # uint8 [Q * window] selective: arrived beyond `expected`
    sacked: Any  # uint8 [Q * window] selective: ACKED beyond `una`, or LOST and not sent again
    lane: Any
    lane_time: Any  # int64 [lanes] time of each lane's first event, NEVER where it is empty
    event: Any
    heap: Any
    kick: Any  # int32 [P] ports to try once the event is dealt with
    lft: Any  # uint8 [rows, lids]
    group_of: Any  # int32 [rows, edges]
    group_start: Any
    group_ports: Any
    sl2vl: Any  # int16 [rows, 16]; BY_INPUT: a port's row is that of input 0, the other inputs' follow
    arbiter: Any  # [P] where ports have arbitration tables, else [1]
    arbitration: Any  # int16 [rows * 2 * 64, 2] lane and weight of the high table's entries, then the low one's
    high_limit: Any  # int64 [rows] bytes
    dcqcn: Any
    dcqcn_settings: Any
    nscc: Any
    nscc_settings: Any
    swift: Any
    swift_settings: Any
    cubic: Any
    cubic_settings: Any
    dctcp: Any
    dctcp_settings: Any
    ibcc: Any
    ibcc_settings: Any  # [E * 16] a service level of each endpoint each
    delays: Any  # int64 [rows, 128] congestion control tables: a delay in eighths of a packet's time
    fecn: Any  # [P * V] where switches mark, else [1]
    congestion_log: Any  # int64 [rows, 8] time, what, node or endpoint, queue pair or port, src, dst, sl: a ring
    note: Any  # [T] of single messages, else [1]
    pool: Any  # int64 receives posted
    inbox: Any  # int64 [rows, 11] what software asks for: `messages.take_inbox`
    message_event: Any  # int64 [rows, 3] time, message, what happened
    tap: Any  # int64 [rows, 16] packets at tapped ports: `tap.record`
    mail: Any  # of a part: events for other parts, blocks of the halves in turn
    chain: Any  # of a part: mail by half, part and lane
    merge: Any  # int64 [parts] of a part: the next event that each other part sent


def nbytes(state: State) -> int:
    """Bytes of all arrays together."""
    return sum(array.nbytes for array in state)
