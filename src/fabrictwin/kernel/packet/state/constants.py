"""Codes of packets, nodes, ports, queue pairs and tasks; what a run answers; limits of the state's arrays."""

from __future__ import annotations

from fabrictwin.kernel.codes import NEVER as NEVER
from fabrictwin.kernel.codes import NONE as NONE

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
STARVES = 2048  # holds back the credits of what comes in by it: InfiniBand's credit starvation
ARBITRATED = 512  # its lanes take turns by InfiniBand's two tables
CROSSES = 4096  # its link leads into another part of the fabric
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
REPORT_BEGIN = 1  # hold its first packet at the receiving adapter until software has seen it
REPORT_ARRIVED = 2
REPORT_ENDED = 4
AT_ADAPTER = 8  # ends at the receiving adapter: a request that memory never sees
QUIET = 16  # its answer acknowledges it
TAKES_FIRST = 32  # takes a receive with its first packet ...
TAKES_LAST = 64  # ... or with its last
LATER_ARRIVED = 128  # a patient software may read of its arrival with what comes after ...
LATER_ENDED = 256  # ... and of its end

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
CALL = 3  # a delay after which whoever posted it adds what follows, before the next event

# Task status.
WAITING = 0
POSTED = 1
DONE = 2
FAILED = 3

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
MESSAGE_EVENT = 9  # software is to look at State.message_event before the next event
SLICED = 11  # as many events as were asked for have happened
CALLED = 12  # the delay of a CALL is over: clock.called
GROW_MAIL = 13

SLICE_EVENTS = 1 << 20  # about 0.1 s: between slices Python sees signals

OUT_OF_REACH = 1 << 60  # added to `queued` of a port that is down, so that no scan chooses it
HEAP_MARGIN = 4096
PACKET_MARGIN = 256

INBOX_COLUMNS = 11
TAP_COLUMNS = 16
