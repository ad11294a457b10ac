"""Work requests of a send queue, and the answers that come back for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fabrictwin.verbs.abi.completion_codes import ibv_wc_opcode as wc
from fabrictwin.verbs.abi.queue_codes import ibv_send_flags as flag
from fabrictwin.verbs.abi.queue_codes import ibv_wr_opcode as wr
from fabrictwin.verbs.adapter.memory_regions import Segments
from fabrictwin.verbs.adapter.transport.request_states import STATE_AFTER, Input, RequestState, after

WRITE, WRITE_IMM = int(wr.IBV_WR_RDMA_WRITE), int(wr.IBV_WR_RDMA_WRITE_WITH_IMM)
SEND, SEND_IMM, SEND_INV = int(wr.IBV_WR_SEND), int(wr.IBV_WR_SEND_WITH_IMM), int(wr.IBV_WR_SEND_WITH_INV)
READ = int(wr.IBV_WR_RDMA_READ)
COMPARE_SWAP, FETCH_ADD = int(wr.IBV_WR_ATOMIC_CMP_AND_SWP), int(wr.IBV_WR_ATOMIC_FETCH_AND_ADD)
LOCAL_INV, BIND = int(wr.IBV_WR_LOCAL_INV), int(wr.IBV_WR_BIND_MW)
FLUSH, ATOMIC_WRITE = int(wr.IBV_WR_FLUSH), int(wr.IBV_WR_ATOMIC_WRITE)

FENCE, SIGNALED = int(flag.IBV_SEND_FENCE), int(flag.IBV_SEND_SIGNALED)
SOLICITED, INLINE = int(flag.IBV_SEND_SOLICITED), int(flag.IBV_SEND_INLINE)

COMPLETION: dict[int, int] = {
    WRITE: int(wc.IBV_WC_RDMA_WRITE),
    WRITE_IMM: int(wc.IBV_WC_RDMA_WRITE),
    SEND: int(wc.IBV_WC_SEND),
    SEND_IMM: int(wc.IBV_WC_SEND),
    SEND_INV: int(wc.IBV_WC_SEND),
    READ: int(wc.IBV_WC_RDMA_READ),
    COMPARE_SWAP: int(wc.IBV_WC_COMP_SWAP),
    FETCH_ADD: int(wc.IBV_WC_FETCH_ADD),
    LOCAL_INV: int(wc.IBV_WC_LOCAL_INV),
    BIND: int(wc.IBV_WC_BIND_MW),
    FLUSH: int(wc.IBV_WC_FLUSH),
    ATOMIC_WRITE: int(wc.IBV_WC_ATOMIC_WRITE),
}

ANSWERED = frozenset((READ, COMPARE_SWAP, FETCH_ADD))  # complete with an answer; count as outstanding reads
LOCAL = frozenset((LOCAL_INV, BIND))
ON_WIRE = frozenset(COMPLETION) - LOCAL
TAKES_RECEIVE = frozenset((SEND, SEND_IMM, SEND_INV, WRITE_IMM))
NAMES_ADDRESS = frozenset((WRITE, WRITE_IMM, READ, COMPARE_SWAP, FETCH_ADD, FLUSH, ATOMIC_WRITE))


@dataclass(frozen=True, slots=True)
class AddressVector:
    """Destination of packets: the content of an address handle."""

    dlid: int = 0
    sl: int = 0
    src_path_bits: int = 0
    static_rate: int = 0
    is_global: bool = False
    port_num: int = 1
    dgid: bytes = bytes(16)
    flow_label: int = 0
    sgid_index: int = 0
    hop_limit: int = 1
    traffic_class: int = 0


class Work:
    """A work request on its way: from the send queue to its completion.

    A program makes one for every message: what most have no need of stays the class's. `qp` is the queue pair that
    it was posted to (`queue_pair.QueuePair`, which stands above this file).
    """

    state = RequestState.POSTED
    address = 0
    rkey = 0
    compare = 0
    swap = 0
    remote_qpn = 0
    remote_qkey = 0
    srqn = 0
    vector: AddressVector | None = None
    counted = False  # the engine counts a receive for it
    info: Any = None  # of a bind: (window, region, key, address, length, access)
    data: bytes | None = None  # inline data, or what an unreliable message carries
    places: Segments = ()
    place = 0  # of a plain write: the real address at its receiver
    epoch = 0
    message = 0
    peer_flow: Any = None
    psn = 0
    packets = 1
    status = 0
    refusal = 0  # what the receiver answers instead of an acknowledgement
    chained = False  # posted with others

    def __init__(
        self,
        qp: Any,
        wr_id: int,
        opcode: int,
        flags: int,
        segments: tuple[tuple[int, int, int], ...],
        immediate: int = 0,
    ) -> None:
        self.qp = qp
        self.wr_id = wr_id
        self.opcode = opcode
        self.flags = flags
        self.segments = segments
        self.immediate = immediate  # or the key to invalidate
        length = 0
        for segment in segments:
            length += segment[1]
        self.length = length

    def enter(self, happened: Input) -> RequestState:
        """Go to the state that follows on something. Raises InvariantError where that cannot happen."""
        state = STATE_AFTER[self.state][happened]
        if state is None:
            return after(self.state, happened)  # raises
        self.state = state
        return state


class Response:
    """A READ's bytes or an atomic's former value, on their way back from the queue pair `responder`."""

    __slots__ = ("data", "responder", "value", "work")

    def __init__(self, work: Work, responder: Any, data: bytes | None, value: int) -> None:
        self.work = work
        self.responder = responder
        self.data = data
        self.value = value
