"""Records of ports, nodes and packets: links, buffers, arbitration, adapters."""

from __future__ import annotations

from fabrictwin.kernel.packet.state.records import layout

# Fields are ordered by cache line: what most events touch is in the first.
port_dtype = layout(
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
    ("peer_part", "i4"),
    ("wait_since", "i8"),  # NONE, or since when there is something to send and no leave to send it
    ("tx_bytes", "i8"),
    ("tx_payload", "i8"),
    ("tx_packets", "i8"),
    ("wait_ps", "i8"),
    ("credit_ps", "i8"),  # until a credit returned here takes effect at the peer
    # third
    ("error_q", "i8"),  # chance that a byte is hit, as a fraction of 2**48
    ("pad", "i8", (7,)),
)

outlet_dtype = layout(
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
)

# What an outlet needs rarely.
hold_dtype = layout(
    ("quantum", "i4"),  # bytes a turn of the weighted arbiter
    ("hoq_pending", "i4"),
    ("paused_until", "i8"),
    ("paused_since", "i8"),
    ("pause_ps", "i8"),
)

inlet_dtype = layout(
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
)

# Packets of one lane by the input that they came by, where a node queues at its inputs.
queue_dtype = layout(("head", "i4"), ("tail", "i4"), ("next", "i4"), ("pad", "i4"))

node_dtype = layout(
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
)

# What a configured port does, beside what each of its priorities does.
port_qos_dtype = layout(
    ("response_ps", "i8"),  # from a pause frame's arrival to its effect
    ("detection_ps", "i8"),  # of the watchdog; 0: there is none
    ("restoration_ps", "i8"),
    ("group_row", "i4"),  # row of State.sl2vl: the priority of what comes in, by service level
    ("queue_row", "i4"),  # and the lane that it leaves by
    ("obeys", "i4"),  # priorities that a pause stops, a bit each
    ("frame", "i4"),  # larger ones are dropped; 0: none is
    ("cell", "i4"),  # of the buffer: a packet takes whole ones
    ("forwards", "i4"),  # what the watchdog does: 1 sends on, 0 drops
)

# What a configured port does with a priority: coming in, then going out.
slot_qos_dtype = layout(
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
)

# Where a port stands in its tables of virtual lane arbitration.
arbiter_dtype = layout(
    ("budget", "i8"),  # bytes that the high table may send before the low one has a turn
    ("row", "i4"),
    ("high_at", "i4"),
    ("high_left", "i4"),  # of the entry's weight, in blocks
    ("low_at", "i4"),
    ("low_left", "i4"),
    ("pick_table", "i4"),
    ("pick", "i4"),  # NONE: there was no choice
)

# What operators read, beside the bytes and waits in `port`.
count_dtype = layout(
    ("discards", "i8"),  # PortXmitDiscards: taken in and not sent on
    ("errors", "i8"),  # SymbolErrorCounter / rx_crc_errors: hit on the wire to this port
    ("hoq_drops", "i8"),
    ("ecn_marks", "i8"),
    ("trims", "i8"),
    ("pause_tx", "i8"),
    ("pause_rx", "i8"),
    ("replays", "i8"),
)

packet_dtype = layout(
    ("next", "i4"),
    ("qp", "i4"),
    ("psn", "i8"),
    ("sent_ps", "i8"),  # DATA on its way to memory: its task
    ("extra", "i8"),  # ACK: a packet received out of order, NONE; DATA: its task, once taken what it completes
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
)

endpoint_dtype = layout(
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
)
