"""What the packet simulation keeps: a few arrays of records, allocated once, modified in place by the kernel.

Sizes: P ports, V virtual lanes (InfiniBand) or priorities (Ethernet) a port, a power of two; N nodes, E
endpoints, Q queue pairs, T tasks. A port both transmits on its link and receives from its peer's. The *slot* of
a port and lane is `port * V + vl`; `outlet` holds the transmitting side of a slot, `inlet` the receiving side.

Small fields are 32 bit on purpose: with the JIT off, numpy scalars keep their width, and arithmetic on narrow
ones would overflow where compiled code widens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fabrictwin.kernel.codes import NEVER as NEVER
from fabrictwin.kernel.codes import NONE as NONE
from fabrictwin.kernel.jit.by_reference import by_reference

M31 = 0x7FFFFFFF
M32 = 0xFFFFFFFF
RATE_BITS = 20  # fixed point of picoseconds a byte
RATE_HALF = 1 << (RATE_BITS - 1)
BLOCK_BITS = 6  # credits count blocks of 64 bytes (InfiniBand Architecture 7.9)
ALPHA_BITS = 8  # fixed point of a dynamic threshold's alpha
LINE_QUANTUM_BITS = 512  # a pause quantum, in bit times (IEEE 802.1Qbb)
PAUSE_QUANTA = 65535

# What a packet is.
DATA = 0
ACK = 1
NAK = 2  # sequence error: `psn` is what the receiver misses
RNR = 3  # receiver not ready
CNP = 4  # congestion notification (RoCEv2 annex)
REFUSED = 7  # NAK that ends the connection; `psn` is the first packet of the message that is refused
TRIM = 5  # a data packet whose payload a switch cut off
PAUSE = 6  # priority flow control frame: `psn` 1 is XOFF, 0 is XON

# Packet marks.
ECN = 1
FIRST = 2  # of its message
LAST = 4
ARRIVED = 8  # past the receiving adapter, on its way to memory
RETRY = 16
REQUEST = 32  # acknowledge at once: the window is closed behind it

# How a node passes packets on.
ENDPOINT = 1  # terminates packets that are not source-routed further
INPUT_QUEUED = 2  # virtual output queues, one a (output, lane, input)
SHARED = 4  # shared buffer with dynamic thresholds, tail drop, PFC on lossless priorities
CUT_THROUGH = 8
CONFIGURED = 16  # its ports have records of their own (State.port_qos, State.slot_qos)

# Flow control of a link and other properties of a port.
FAULTY = 128  # its link makes bit errors
CREDIT = 1
PFC = 2
STORE = 4  # its peer takes a packet only when the last bit is in
INTERNAL = 8  # NVLink, PCIe: the rate is that of payload, headers are in it
DOWN = 16
TAPPED = 64  # packets that leave or come in are recorded
BY_INPUT = 256  # what leaves by it takes its lane by service level and input port
RULED = 1024  # configured by priority: State.port_qos, State.slot_qos
ARBITRATED = 512  # its lanes take turns by InfiniBand's two tables
REPLAY = 32  # bit errors are repaired by the link itself, which costs time, not packets

# How switches choose among equal-cost ports.
LFT = 0
ECMP = 1
ADAPTIVE = 2

# Reliability of a queue pair.
GO_BACK_N = 0
SELECTIVE = 1  # also accepts packets out of order: adaptive routing and spraying
LOCAL = 2  # inside a host: links lose nothing, the last byte in memory completes both sides
CHANNEL = 3  # single messages of the verbs, in order: `messages` has the receiver's side

# Services of a channel.
RC = 0
UC = 1
UD = 2
RESPONSES = 3  # of a connection's READs and atomics: asked for, never acknowledged

# Traits of a single message.
TELL_BEGIN = 1  # hold its first packet at the receiving adapter until software has seen it
TELL_ARRIVED = 2
TELL_ENDED = 4
AT_ADAPTER = 8  # ends at the receiving adapter: a request that memory never sees
QUIET = 16  # its answer acknowledges it
TAKES_FIRST = 32  # takes a receive with its first packet ...
TAKES_LAST = 64  # ... or with its last

# What software asks for between runs: rows of State.inbox.
POST = 0
REFUSE = 1
CLOSE = 2

STUCK = 2  # of inlet.xoff: an adapter pauses without end, whatever room it has

# What a selective sender knows of a packet.
ACKED = 1
LOST = 2

# Task kinds.
DELAY = 0
MESSAGE = 1
TURNSTILE = 2  # every predecessor that ends starts one successor, in order

# Task status.
WAITING = 0
POSTED = 1
RECEIVED = 2
DONE = 3
FAILED = 4

# What `run` says.
IDLE = 0
REACHED = 1
FINISHED = 2
STALLED = 3
GROW_LANES = 4
GROW_HEAP = 5
GROW_PACKETS = 6
OVERFLOW = 7  # more was scheduled in one event than any margin allows
UNROUTABLE = 8
TAP_FULL = 10
TOLD = 9  # software is to look at State.told before the next event
SLICED = 11  # as many events as were asked for have happened

SLICE_EVENTS = 1 << 20  # about 0.1 s: between slices Python sees signals

CACHE_LINE = 64
OUT_OF_REACH = 1 << 60  # added to `queued` of a port that is down, so that no scan chooses it
HEAP_MARGIN = 4096
PACKET_MARGIN = 256

INBOX_COLUMNS = 11
TAP_COLUMNS = 16

# Fields are ordered by cache line: what most events touch is in the first.
port_dtype = np.dtype(
    [
        ("ps_q", "i8"),  # picoseconds a byte, fixed point
        ("arrive_ps", "i8"),  # propagation, and the latency of the peer's node
        ("peer", "i4"),
        ("node", "i4"),
        ("queue_start", "i4"),
        ("tx_slot", "i4"),  # inlet slot that the packet on the wire came in by, NONE where it starts here
        ("tx_wire", "i4"),  # its bytes
        ("control_head", "i4"),  # pause frames, before everything else
        ("traits", "i2"),
        ("rx_traits", "i2"),  # of the link that comes in here, as its sender has them
        ("backlog", "i2"),  # lanes with something to send, a bit each
        ("paused", "i2"),  # lanes under XOFF
        ("starved", "i2"),  # lanes whose next packet lacks credits
        ("strict", "i2"),  # lanes with strict priority, highest first
        ("queue_width", "i2"),  # 1, or queues a lane: the node's ports where it queues at its inputs
        ("sl2vl", "i2"),  # row of State.sl2vl for what leaves by this port
        ("busy", "i1"),
        ("kicked", "i1"),
        ("wrr", "i1"),  # lane that the weighted arbiter serves
        ("lane_tx_full", "i1"),
        ("lane_tx_ack", "i1"),
        ("lane_arrive_full", "i1"),
        ("lane_arrive_ack", "i1"),
        ("lane_credit", "i1"),
        # second line
        ("full_bytes", "i4"),  # sizes that have event lanes of their own
        ("ack_bytes", "i4"),
        ("control_tail", "i4"),
        ("wait_since", "i8"),  # NONE, or since when there is something to send and no leave to send it
        ("tx_bytes", "i8"),
        ("tx_payload", "i8"),
        ("tx_packets", "i8"),
        ("wait_ps", "i8"),
        ("credit_ps", "i8"),  # until a credit returned here takes effect at the peer
        # third
        ("error_q", "i8"),  # chance that a byte is hit, as a fraction of 2**48
        ("pad", "i8", (7,)),
    ],
    align=True,
)

outlet_dtype = np.dtype(
    [
        ("credit", "i8"),  # blocks that the peer has room for
        ("queued", "i8"),  # bytes waiting
        ("last_tx", "i8"),
        ("head", "i4"),  # packets; input-queued nodes: queues with packets, served in a ring
        ("tail", "i4"),
        ("ready_head", "i4"),  # queue pairs that may send, served in a ring
        ("ready_tail", "i4"),
        ("deficit", "i4"),
        ("kmin", "i4"),  # ECN marks between these queue lengths; kmax 0: never
        ("kmax", "i4"),
        ("limit", "i4"),  # bytes beyond which packets are trimmed or dropped; 0: none
        ("peak", "i8"),  # most bytes that ever waited
    ],
    align=True,
)

# What an outlet needs rarely.
hold_dtype = np.dtype(
    [
        ("quantum", "i4"),  # bytes a turn of the weighted arbiter
        ("hoq_pending", "i4"),
        ("paused_until", "i8"),
        ("paused_since", "i8"),
        ("pause_ps", "i8"),
    ],
    align=True,
)

inlet_dtype = np.dtype(
    [
        ("held", "i8"),  # bytes (credit links: blocks) that occupy this node's buffer
        ("headroom", "i8"),  # bytes held beyond the threshold, on lossless priorities
        ("headroom_limit", "i8"),
        ("capacity", "i8"),  # credit links: blocks
        ("unreturned", "i4"),  # blocks freed and not yet told to the peer
        ("batch", "i4"),  # blocks that are told together
        ("lossless", "i4"),
        ("xoff", "i4"),
        ("refresh", "i4"),  # a refresh of the pause is scheduled
        ("pad", "i8"),
    ],
    align=True,
)

# Packets of one lane by the input that they came by, where a node queues at its inputs.
queue_dtype = np.dtype([("head", "i4"), ("tail", "i4"), ("next", "i4"), ("pad", "i4")], align=True)

node_dtype = np.dtype(
    [
        ("port_start", "i4"),
        ("row", "i4"),  # row of the routing tables
        ("traits", "i4"),
        ("resume", "i4"),  # XON when this much below the threshold
        ("seed", "i8"),
        ("shared_limit", "i8"),
        ("shared_used", "i8"),
        ("reserve", "i4"),  # guaranteed a (port, priority)
        ("alpha_q", "i4"),
        ("queue_start", "i4"),  # input-queued: the first of its queues
        ("ports", "i4"),
        ("shared_peak", "i8"),
    ],
    align=True,
)

# What a configured port does, beside what each of its priorities does.
port_qos_dtype = np.dtype(
    [
        ("response_ps", "i8"),  # from a pause frame's arrival to its effect
        ("detection_ps", "i8"),  # of the watchdog; 0: there is none
        ("restoration_ps", "i8"),
        ("group_row", "i4"),  # row of State.sl2vl: the priority of what comes in, by service level
        ("queue_row", "i4"),  # and the lane that it leaves by
        ("obeys", "i4"),  # priorities that a pause stops, a bit each
        ("frame", "i4"),  # larger ones are dropped; 0: none is
        ("cell", "i4"),  # of the buffer: a packet takes whole ones
        ("forwards", "i4"),  # what the watchdog does: 1 sends on, 0 drops
    ],
    align=True,
)

# What a configured port does with a priority: coming in, then going out.
slot_qos_dtype = np.dtype(
    [
        ("alpha_q", "i8"),  # of the dynamic threshold
        ("threshold", "i8"),  # a static one, NONE: dynamic
        ("reserve", "i8"),
        ("resume", "i8"),
        ("sends", "i8"),  # pauses, where it is too full
        ("most_headroom", "i8"),  # that was ever taken
        ("pmax_q", "i8"),  # chance of a mark at kmax, of 2**32
        ("storm", "i8"),  # the watchdog saw a pause without end
        ("watching", "i8"),  # an event of the watchdog is scheduled
        ("last_pause", "i8"),
        ("storms", "i8"),
        ("storm_drops", "i8"),
    ],
    align=True,
)

# Where a port stands in its tables of virtual lane arbitration.
arbiter_dtype = np.dtype(
    [
        ("budget", "i8"),  # bytes that the high table may send before the low one has a turn
        ("row", "i4"),
        ("high_at", "i4"),
        ("high_left", "i4"),  # of the entry's weight, in blocks
        ("low_at", "i4"),
        ("low_left", "i4"),
        ("pick_table", "i4"),
        ("pick", "i4"),  # NONE: there was no choice
    ],
    align=True,
)

# What operators read, beside the bytes and waits in `port`.
count_dtype = np.dtype(
    [
        ("discards", "i8"),  # PortXmitDiscards: taken in and not sent on
        ("errors", "i8"),  # SymbolErrorCounter / rx_crc_errors: hit on the wire to this port
        ("hoq_drops", "i8"),
        ("ecn_marks", "i8"),
        ("trims", "i8"),
        ("pause_tx", "i8"),
        ("pause_rx", "i8"),
        ("replays", "i8"),
    ],
    align=True,
)

packet_dtype = np.dtype(
    [
        ("next", "i4"),
        ("qp", "i4"),
        ("psn", "i8"),
        ("sent_ps", "i8"),
        ("extra", "i8"),  # ACK: a packet received out of order, NONE; DATA on its way to memory: what it completes
        ("dst", "i4"),  # endpoint
        ("slot", "i4"),  # inlet slot, NONE where it starts
        ("wire", "i4"),
        ("payload", "i4"),
        ("entropy", "i4"),
        ("kind", "i1"),
        ("vl", "i1"),
        ("sl", "i1"),
        ("marks", "i1"),
        ("hop", "i4"),  # next of State.hop; at `hop_end` tables take over
        ("hop_end", "i4"),
    ],
    align=True,
)

endpoint_dtype = np.dtype(
    [
        ("node", "i4"),
        ("port", "i4"),  # network port
        ("lid", "i4"),
        ("edge", "i4"),  # column of group_of
        ("edge_row", "i4"),
        ("edge_port", "i4"),  # the edge switch's port toward it
        ("message_ps", "i8"),
        ("next_message", "i8"),
        ("deliver_ps", "i8"),
        ("pad", "i8", (2,)),
    ],
    align=True,
)

# The receiver's side comes first, two cache lines, then the sender's, then what is rare.
qp_dtype = np.dtype(
    [
        ("expected", "i8"),
        ("in_memory", "i8"),
        ("next_cnp", "i8"),
        ("receives", "i8"),  # posted receives, NONE: not needed
        ("reorder", "i8"),  # selective: packets after which a gap is a loss; NEVER: only timeouts tell
        ("last_end", "i8"),  # selective: the latest end of a message that came early
        ("src", "i4"),  # endpoints; NONE inside a host
        ("dst", "i4"),
        ("mode", "i4"),
        ("control", "i4"),  # which congestion control
        ("ack_every", "i4"),
        ("unacked", "i4"),
        ("nak_sent", "i2"),
        ("noted", "i2"),  # its tasks are single messages, with State.note
        ("echo", "i4"),  # a mark to be echoed
        ("hop_middle", "i4"),
        ("hop_end", "i4"),  # from the receiving adapter to memory
        ("receiving", "i4"),
        ("ack_bytes", "i4"),
        ("ack_vl", "i4"),
        ("ack_sl", "i4"),
        ("ack_hop", "i4"),  # source-routed hops of acknowledgements, where routes are fixed; else equal
        ("ack_hop_end", "i4"),
        ("ack_entropy", "i8"),
        ("out_of_sequence", "i8"),
        # sender
        ("next_psn", "i8"),
        ("una", "i8"),  # oldest not acknowledged
        ("posted_psn", "i8"),  # end of what is posted
        ("highest_psn", "i8"),  # end of what was ever sent
        ("inflight", "i8"),  # packets
        ("window", "i8"),  # bytes
        ("retransmit", "i8"),  # selective: packets declared lost and not sent again
        ("next_send", "i8"),  # pacing
        ("gap_q", "i8"),  # picoseconds a byte, fixed point; 0: as fast as the port
        ("next_message", "i8"),
        ("message_ps", "i8"),
        ("progress_ps", "i8"),
        ("rto_ps", "i8"),  # 0: never
        ("rtt_ps", "i8"),  # last measured
        ("entropy", "i8"),
        ("head", "i4"),  # tasks: oldest not acknowledged, the one being sent, the last
        ("sending", "i4"),
        ("tail", "i4"),
        ("port", "i4"),  # where its packets enter the fabric
        ("sl", "i4"),
        ("vl", "i4"),
        ("hop_start", "i4"),  # source-routed hops after `port`, up to the network
        ("header", "i4"),
        ("first_header", "i4"),  # more on the first packet of a message
        ("in_ring", "i4"),
        ("ring_next", "i4"),
        ("waking", "i4"),  # a wake-up is scheduled
        ("spray", "i2"),  # every packet its own entropy
        ("extras", "i2"),  # messages have headers of their own: as `noted`, for the sender
        ("rto_pending", "i2"),
        ("counts", "i2"),  # the congestion control wants to know of bytes sent
        ("retries", "i4"),
        ("rnr_retries", "i4"),
        ("failed", "i4"),
        ("mtu", "i4"),
        # rare
        ("retry_limit", "i2"),
        ("rnr_limit", "i2"),  # 7: for ever
        ("live", "i4"),  # tasks that still exist
        ("rnr_ps", "i8"),
        ("examined", "i8"),  # selective: losses below are asked for already
        ("started", "i8"),  # messages that took a receive
        ("retransmitted", "i8"),
        ("duplicates", "i8"),
        ("timeouts", "i8"),
        ("naks", "i8"),
        ("cnps_sent", "i8"),
        ("cnps_handled", "i8"),
        ("rnr_naks", "i8"),
        # of a channel
        ("service", "i2"),
        ("closed", "i2"),
        ("pool", "i4"),  # of State.pool, NONE: its messages take no receives
        ("accepting", "i4"),  # task that the next packet belongs to
        ("refused", "i4"),  # nothing more is taken; the NAK's syndrome, negative once the message was taken
        ("refused_psn", "i8"),  # end of the message that was refused
        ("begin_ps", "i8"),  # messages begin in the order in which they were posted
        ("late_ps", "i8"),  # from the adapter to the sender's memory: its completion
    ],
    align=True,
)

# What a single message has beside its task.
note_dtype = np.dtype(
    [
        ("message", "i8"),  # its number, as software has it
        ("answers", "i8"),  # the request that it answers, NONE
        ("partner", "i4"),  # queue pair of that request
        ("first_extra", "i4"),  # bytes more on its first packet ...
        ("last_extra", "i4"),  # ... and on its last
        ("traits", "i4"),
        ("holds", "i4"),  # sender, receiver and what is to be told still need the task
        ("lost", "i2"),
        ("accepted", "i2"),  # a request that is at the adapter
        ("end_ps", "i8"),  # acknowledged before it was in memory: told of then; NONE
        ("pad", "i8"),
    ],
    align=True,
)

task_dtype = np.dtype(
    [
        ("kind", "i4"),
        ("status", "i4"),
        ("qp", "i4"),
        ("next", "i4"),  # of the queue pair
        ("waits", "i4"),  # what must end before it starts
        ("place", "i4"),  # of a turnstile: how many it let in
        ("size_bytes", "i8"),
        ("delay_ps", "i8"),  # between that and its start; of a DELAY task: how long it takes
        ("psn_start", "i8"),
        ("psn_end", "i8"),
        ("start_ps", "i8"),
        ("received_ps", "i8"),
        ("done_ps", "i8"),
        ("next_start", "i8"),  # successors once the receiver has it ...
        ("next_middle", "i8"),  # ... and once the sender knows
        ("next_end", "i8"),
    ],
    align=True,
)

lane_dtype = np.dtype(
    [("delay", "i8"), ("first", "i8"), ("mask", "i8"), ("head", "i8"), ("tail", "i8")], align=True
)
event_dtype = np.dtype([("time", "i8"), ("what", "i8")], align=True)
heap_dtype = np.dtype([("time", "i8"), ("sequence", "i8"), ("what", "i8"), ("pad", "i8")], align=True)

clock_dtype = np.dtype(
    [
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
        ("stall_seen", "i8"),
        ("created", "i8"),  # data packets
        ("delivered", "i8"),
        ("refused", "i8"),  # arrived and not wanted: duplicates, after a gap
        ("dropped", "i8"),
        ("lost_control", "i8"),  # acknowledgements and the like dropped
        ("payload_delivered", "i8"),
        ("unroutable", "i8"),  # a destination without a way, NONE
        ("heap_events", "i8"),
        ("inbox", "i8"),  # rows filled
        ("told", "i8"),
        ("tasks_head", "i8"),  # free tasks, NONE
        ("tasks_free", "i8"),
        ("tapped", "i8"),  # rows of State.tap filled
    ],
    align=True,
)

settings_dtype = np.dtype(
    [
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
        ("look_ahead", "i8"),  # fetch the output of a packet before it arrives: pays where caches don't hold ports
    ],
    align=True,
)

dcqcn_settings_dtype = np.dtype(
    [
        ("line", "i8"),  # kb/s, as all rates here
        ("minimum", "i8"),
        ("alpha_ps", "i8"),
        ("decrease_ps", "i8"),
        ("increase_ps", "i8"),
        ("byte_counter", "i8"),
        ("g_shift", "i8"),
        ("fast", "i8"),  # stages of fast recovery
        ("additive", "i8"),
        ("hyper", "i8"),
    ],
    align=True,
)

dcqcn_dtype = np.dtype(
    [
        ("rate", "i8"),
        ("target", "i8"),
        ("alpha", "i8"),  # of 2**30
        ("line", "i8"),  # this queue pair's port
        ("active", "i8"),
        ("marked", "i8"),  # a CNP since the last alpha update
        ("alpha_due", "i8"),
        ("increase_due", "i8"),
        ("last_decrease", "i8"),
        ("time_stage", "i8"),
        ("byte_stage", "i8"),
        ("bytes", "i8"),
    ],
    align=True,
)

nscc_settings_dtype = np.dtype(
    [
        ("target_ps", "i8"),  # queueing delay aimed at
        ("adjust_bytes", "i8"),  # what was gained is applied after this many bytes ...
        ("adjust_ps", "i8"),  # ... or after this long
        ("gamma_q", "i8"),  # of 2**16
        ("fair", "i8"),  # bytes squared an acknowledged byte
        ("alpha_q", "i8"),  # of 2**24: bytes squared an acknowledged byte and picosecond below the target
        ("eta", "i8"),  # bytes gained every adjust_ps
        ("fast_q", "i8"),  # of 2**16: growth while there is no queue at all
        ("fast_ps", "i8"),  # "no queue": less delay than this
        ("gate_shift", "i8"),  # quick adapt only where less than maximum >> gate_shift came through
        ("minimum", "i8"),
    ],
    align=True,
)

nscc_dtype = np.dtype(
    [
        ("base_ps", "i8"),  # round trip without queues; 0: the smallest seen
        ("maximum", "i8"),  # of the window
        ("gained", "i8"),
        ("acked", "i8"),  # bytes since the last adjustment
        ("adjusted_ps", "i8"),
        ("growing", "i8"),  # by a share of every byte, until there is a queue
        ("delay_ps", "i8"),  # moving average
        ("decreased_ps", "i8"),
        ("fast", "i8"),  # bytes acknowledged in a row without queueing
        ("quick_end", "i8"),
        ("quick_bytes", "i8"),
        ("quick_wanted", "i8"),
        ("ignore", "i8"),  # bytes in flight when the window was adapted: their echoes are old news
    ],
    align=True,
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
    note: Any  # [T] of single messages, else [1]
    pool: Any  # int64 receives posted
    inbox: Any  # int64 [rows, 11] what software asks for: `messages.take_inbox`
    told: Any  # int64 [rows, 3] time, message, what happened
    tap: Any  # int64 [rows, 16] packets at tapped ports: `tap.record`


def records(count: int, dtype: np.dtype) -> Any:
    """Zeroed records that read as attributes, compiled or not, from the start of a cache line."""
    size = max(count, 1) * dtype.itemsize
    room = np.zeros(size + CACHE_LINE, np.uint8)
    skip = -room.ctypes.data % CACHE_LINE
    return room[skip : skip + size].view(dtype).view(np.recarray)


def nbytes(state: State) -> int:
    """Bytes of all arrays together."""
    return sum(array.nbytes for array in state)
