"""InfiniBand congestion control (InfiniBand Architecture volume 1, annex A10): FECN, BECN, and a table of delays.

*Switch.* An output lane is congested while more waits for it than its threshold and it is the root: it has
credits. A lane that ran out of credits within the last buffer's worth of bytes is a victim and marks only where
the victim mask says so. Of the packets of a congested lane that are no smaller than the least size, one in
`rate` + 1 has its FECN bit set.

*Receiver.* Sends the mark back as BECN: in the next acknowledgement of a reliable connection, in a congestion
notification packet (CN) of its own for every marked packet of other services.

*Sender.* A BECN raises the congestion control table index (CCTI) by the increase of its service level, up to the
table's limit; a cyclic timer lowers it by one, down to the minimum. The entry at the index delays the next packet:
(time of the packet on the link) * multiplier >> shift, after the packet. The index belongs to a queue pair, or to
all of a service level at the port (`by_level`).

*Credit starvation.* Adapters that know none of this are slowed by the switch port that they are plugged into:
while more of its buffer is taken than the threshold, credits go back no faster than the return delay allows.

Timers are not events: whoever asks for an index counts the ticks since it was last asked for. Each adapter's
timers have a phase of their own. A change of settings shows in the next packet.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.state.constants import BLOCK_BITS, RATE_BITS, RATE_HALF
from fabrictwin.kernel.packet.state.records import layout

LEVELS = 16
TABLE_ENTRIES = 128
DELAY_BITS = 3  # a delay's multiplier in eighths: the shift has two bits
LOG_COLUMNS = 8
SWITCH_EVENT = 1  # of the log: a lane became congested ...
ADAPTER_EVENT = 2  # ... or an index reached the trigger threshold

# One a service level of each endpoint.
settings_dtype = layout(
    ("active", "i8"),  # this level has settings
    ("by_level", "i8"),
    ("timer_ps", "i8"),  # 0: the index never falls
    ("phase_ps", "i8"),
    ("increase", "i8"),
    ("trigger", "i8"),  # an event is logged where the index reaches it; 0: never
    ("minimum", "i8"),
    ("limit", "i8"),
    ("table", "i8"),  # row of State.delays
    ("ccti", "i8"),  # by level: the index ...
    ("since", "i8"),  # ... and when that was
    ("next", "i8"),  # by level: no packet before
    ("fecns", "i8"),  # received
    ("becns", "i8"),
    ("pad", "i8", (2,)),
)

dtype = layout(("ccti", "i8"), ("since", "i8"))

# One a lane of each port.
lane_dtype = layout(
    ("smallest", "i4"),  # bytes on the wire
    ("rate", "i4"),  # packets between two marks
    ("victim", "i4"),  # marks although it has no credits
    ("congested", "i4"),
    ("passed", "i8"),  # packets since the last mark
    ("unblocked", "i8"),  # bytes since credits last ran out
    ("buffer", "i8"),  # bytes of a lane's buffer at the other end
    ("since", "i8"),  # congested since then
    ("congested_ps", "i8"),
    ("fills", "i8"),  # credit starvation of what comes in by it: blocks of its buffer; 0: none
    ("delay_q", "i8"),
    ("next_return", "i8"),
)


def start(d, line_kbps, connection):
    """A queue pair's first state: no notification yet."""
    d.ccti = 0


@helper
def delay_after(ps_q, delay_q, wire):
    """Time of a packet on the adapter's link, and of the delay behind it."""
    time = (wire * ps_q + RATE_HALF) >> RATE_BITS
    return time + (time * delay_q >> DELAY_BITS)


@helper
def fallen(setting, ccti, since, now):
    """An index that was `ccti` then, now."""
    if setting.timer_ps > 0:
        ticks = (now + setting.phase_ps) // setting.timer_ps - (since + setting.phase_ps) // setting.timer_ps
        ccti -= ticks
    return max(ccti, setting.minimum)


@outlined
def index(state, q, qp, now):
    """The present index of a queue pair whose service level has settings."""
    setting = state.ibcc_settings[qp.src * LEVELS + qp.sl]
    if setting.by_level:
        setting.ccti = fallen(setting, setting.ccti, setting.since, now)
        setting.since = now
        return setting.ccti
    d = state.ibcc[q]
    d.ccti = fallen(setting, d.ccti, d.since, now)
    d.since = now
    return d.ccti


@outlined
def log_event(state, what, node, q, src, dst, sl, now):
    """Note an event; the oldest give way."""
    clock = state.clock[0]
    row = clock.congestion_events % len(state.congestion_log)
    clock.congestion_events += 1
    state.congestion_log[row, 0] = now
    state.congestion_log[row, 1] = what
    state.congestion_log[row, 2] = node
    state.congestion_log[row, 3] = q
    state.congestion_log[row, 4] = src
    state.congestion_log[row, 5] = dst
    state.congestion_log[row, 6] = sl


@outlined
def on_becn(state, q, qp, now):
    """A notification came: the index rises."""
    setting = state.ibcc_settings[qp.src * LEVELS + qp.sl]
    setting.becns += 1
    if setting.active == 0:
        return
    before = index(state, q, qp, now)
    risen = min(before + setting.increase, setting.limit)
    if setting.by_level:
        setting.ccti = risen
    else:
        state.ibcc[q].ccti = risen
    if setting.trigger > 0 and before < setting.trigger and risen >= setting.trigger:
        log_event(state, ADAPTER_EVENT, qp.src, q, qp.src, qp.dst, qp.sl, now)


@outlined
def on_marked(state, qp):
    """A packet with FECN came in: count it."""
    state.ibcc_settings[qp.dst * LEVELS + qp.sl].fecns += 1


@outlined
def on_sent(state, q, qp, wire, now):
    """A data packet left: the next waits as long as the index says."""
    setting = state.ibcc_settings[qp.src * LEVELS + qp.sl]
    if setting.active == 0:
        return
    at = index(state, q, qp, now)
    delay_q = state.delays[setting.table, at]
    if delay_q == 0:
        return
    due = now + delay_after(state.port[state.endpoint[qp.src].port].ps_q, delay_q, wire)
    if setting.by_level:
        setting.next = due
    else:
        qp.next_send = max(qp.next_send, due)


@outlined
def not_before(state, qp):
    """The time before which the queue pair's service level sends nothing."""
    return state.ibcc_settings[qp.src * LEVELS + qp.sl].next


@outlined
def marks(state, at, slot, outlet, packet, now):
    """Decide on FECN as a data packet leaves an output lane that has a threshold."""
    lane = state.fecn[slot]
    lane.unblocked += packet.wire
    root = lane.unblocked > lane.buffer or lane.victim != 0
    if outlet.queued <= outlet.kmin or not root:
        if lane.congested:
            lane.congested = 0
            lane.congested_ps += now - lane.since
        return False
    if lane.congested == 0:
        lane.congested = 1
        lane.since = now
        lane.passed = lane.rate
        qp = state.qp[packet.qp]
        log_event(state, SWITCH_EVENT, state.port[at].node, at, qp.src, packet.dst, packet.sl, now)
    if packet.wire < lane.smallest:
        return False
    if lane.passed < lane.rate:
        lane.passed += 1
        return False
    lane.passed = 0
    return True


@outlined
def ran_dry(state, slot):
    """An output lane has something to send and no credits for it."""
    state.fecn[slot].unblocked = 0


@outlined
def return_time(state, slot, blocks_back, now):
    """Time at which credits of a buffer under credit starvation go back: packet by packet, with delays."""
    lane = state.fecn[slot]
    if state.inlet[slot].held <= lane.fills:
        return now
    at = slot >> state.settings[0].vl_bits
    feeder = state.port[at].peer
    time = ((blocks_back << BLOCK_BITS) * state.port[feeder].ps_q) >> RATE_BITS
    due = max(now, lane.next_return)
    lane.next_return = due + time + (time * lane.delay_q >> DELAY_BITS)
    return due
