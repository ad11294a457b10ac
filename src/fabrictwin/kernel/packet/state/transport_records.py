"""Records of queue pairs, single messages and tasks."""

from __future__ import annotations

from fabrictwin.kernel.packet.state.records import layout

# The receiver's side comes first, two cache lines, then the sender's, then what is rare.
qp_dtype = layout(
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
    ("ack_every", "i4"),  # negative: the receiver's partition keys let nothing in
    ("unacked", "i4"),
    ("nak_sent", "i2"),
    ("noted", "i2"),  # its tasks are single messages, with State.note
    ("echo", "i4"),  # a mark to be echoed
    ("hop_middle", "i4"),
    ("hop_end", "i4"),  # from the receiving adapter to memory
    ("receiving", "i4"),  # of single messages: the first task that is not wholly in memory
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
    ("key_violations", "i8"),  # packets that partition keys kept out ...
    ("key_violation_ps", "i8"),  # ... and when the first came since they began to
    ("pad", "i8", (6,)),  # to whole cache lines
)

# What a single message has beside its task.
note_dtype = layout(
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
)

task_dtype = layout(
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
    ("pad", "i8", (3,)),
)
