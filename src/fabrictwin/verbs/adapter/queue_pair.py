"""A queue pair: its state, its two queues, and the flows that carry what it sends.

InfiniBand Architecture, volume 1, 10.3 (states) and 10.8 (work requests). In the error state a queue
pair begins nothing more; what it has on the wire still arrives, and its answers do. With RESET that is lost.
"""

from __future__ import annotations

import errno
from collections import deque
from typing import Any, Protocol

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.engines.base.messages import FlowOptions, GidType, GlobalAddress, Numbers, Retries, Service
from fabrictwin.verbs.abi.completion_codes import ibv_wc_opcode
from fabrictwin.verbs.abi.device_codes import ibv_event_type as event
from fabrictwin.verbs.abi.queue_codes import ibv_qp_attr_mask as mask
from fabrictwin.verbs.adapter import qp_transitions as t
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.completions import WC, WR_FLUSH_ERR, CompletionQueue
from fabrictwin.verbs.adapter.gid import IB_GID, ROCE_V1, ROCE_V2
from fabrictwin.verbs.adapter.memory_regions import Domain, Region, Window
from fabrictwin.verbs.adapter.message_layer import MessageLayer
from fabrictwin.verbs.adapter.qp_checks import (
    MTU_BYTES,
    OPERATIONS,
    PSN_MASK,
    RNR_TIMER_PS,
    STATIC_RATE_MBPS,
    Attributes,
    valid,
)
from fabrictwin.verbs.adapter.receive_queues import ReceiveQueue, SharedReceiveQueue
from fabrictwin.verbs.adapter.transport.request_states import Input, RequestState
from fabrictwin.verbs.adapter.work_requests import (
    ANSWERED,
    COMPLETION,
    AddressVector,
    Response,
    Work,
)

SQ_DRAINED, LAST_WQE = int(event.IBV_EVENT_SQ_DRAINED), int(event.IBV_EVENT_QP_LAST_WQE_REACHED)
QP_FATAL = int(event.IBV_EVENT_QP_FATAL)

_WC_RECV = int(ibv_wc_opcode.IBV_WC_RECV)

_GID_TYPES = {IB_GID: GidType.INFINIBAND, ROCE_V1: GidType.ROCE_V1, ROCE_V2: GidType.ROCE_V2}
_SERVICE = {
    t.UC: Service.UNRELIABLE_CONNECTION,
    t.UD: Service.UNRELIABLE_DATAGRAM,
    t.RAW: Service.UNRELIABLE_DATAGRAM,
}
_FLOW_ATTRIBUTES = int(
    mask.IBV_QP_AV | mask.IBV_QP_TIMEOUT | mask.IBV_QP_RETRY_CNT | mask.IBV_QP_RNR_RETRY | mask.IBV_QP_RATE_LIMIT
)


class PeerFlow:
    """A flow of a queue pair toward another; what is under way on it keeps its order."""

    __slots__ = ("busy", "copied_ps", "flow", "in_step", "keys", "pool", "receiver", "standing", "target")

    def __init__(self, flow: int, target: Adapter) -> None:
        self.flow = flow
        self.target = target
        self.pool = 0  # that its messages take receives from
        self.busy = 0  # messages under way
        self.copied_ps = 0  # until when what has come is copied to where it belongs
        # what was found at the receiver when the world was at `standing`: see `remote_access.certain_place`
        self.standing = -1
        self.receiver: QueuePair | None = None
        self.in_step = False  # its next number is that of the next request
        self.keys: dict[int, Region | Window] = {}  # that let it write


class Simulation(MessageLayer, Protocol):
    """The part of the world that queue pairs and their two sides stand on."""

    records: dict[int, Work | Response]  # messages that an event is due for
    plain: dict[int, Work]  # writes that can only be taken, as everything stands
    standing: int  # counts changes of what requests are checked against

    def watch_all(self) -> None:
        """Let no request under way be a plain one any more."""
        ...

    def resolve(self, adapter: Adapter, vector: AddressVector) -> Adapter | None:
        """Return the adapter that packets with an address vector reach; None: nobody has that address."""
        ...

    def progress(self, qp: QueuePair) -> None:
        """Begin the requests of a queue pair that may begin."""
        ...

    def forget(self, qp: QueuePair) -> None:
        """Drop what a queue pair has on the wire."""
        ...

    def deafen(self, qp: QueuePair) -> None:
        """Drop what waits for a queue pair to have a receive."""
        ...


@record
class QueuePairObjects:
    """The objects that a queue pair is created with, as `ibv_qp_init_attr_ex` names them."""

    domain: Domain | None
    sends: CompletionQueue | None
    receive_completions: CompletionQueue | None
    receives: ReceiveQueue | None
    extended: object = None  # the XRC domain of a receiving one


@record
class SendQueueLimits:
    """The send queue's part of `ibv_qp_cap`, and whether every request completes with a signal."""

    max_wr: int
    max_sge: int
    max_inline: int
    signal_all: bool


class QueuePair:
    """A queue pair of any type. `sink` takes its asynchronous events."""

    def __init__(
        self,
        world: Simulation,
        adapter: Adapter,
        kind: int,
        objects: QueuePairObjects,
        limits: SendQueueLimits,
        *,
        sink: Any = None,
    ) -> None:
        self.world = world
        self.adapter = adapter
        self.memory = adapter.memory
        self.kind = kind
        self.number = adapter.new_number()
        self.domain = objects.domain
        self.sends = objects.sends
        self.receive_completions = objects.receive_completions
        self.receives = objects.receives
        self.shared = isinstance(objects.receives, SharedReceiveQueue)
        self.extended = objects.extended
        self.max_send_wr, self.max_send_sge = limits.max_wr, limits.max_sge
        self.max_inline = limits.max_inline
        self.signal_all = limits.signal_all
        self.sink = sink

        self.attributes = Attributes()
        self.state = t.RESET
        self.reliable = kind in (t.RC, t.XRC_SEND, t.XRC_RECV)
        self.allowed = OPERATIONS[kind]
        self.pending: deque[Work] = deque()  # posted, not begun
        self.outstanding: deque[Work] = deque()  # begun, not completed
        self.occupied = 0  # slots of the send queue that software has not seen to complete
        self.unreported = 0  # completed since the last completion that software gets
        self.peer_flows: dict[Any, PeerFlow] = {}
        self.last_flow: PeerFlow | None = None
        self._clear_counts()
        adapter.queue_pairs[self.number] = self

    def _clear_counts(self) -> None:
        self.reads = 0  # reads and atomics that wait for their answer
        self.copied_ps = 0  # until when answers are copied to where they belong
        self.inbound_reads = 0
        self.next_psn = 0
        self.expected_psn = 0
        self.halted = False  # a request failed before it left: nothing more is begun
        self.mtu = 256
        self.max_reads = 0
        self.first_arrival = True

    # ------------------------------------------------------------------ states

    def modify(self, attributes: Attributes, given: int) -> int:
        """Change the state, or attributes in it. Returns an errno, 0 where it was done."""
        target = int(attributes.qp_state) if given & t.STATE else self.state
        if given & t.CURRENT and int(attributes.cur_qp_state) != self.state:
            return errno.EINVAL
        if not t.allowed(self.kind, self.state, target, given) or not valid(attributes, given, self.adapter):
            return errno.EINVAL
        self.world.note_change()
        mine = self.attributes
        for bit, names in t.FIELDS.items():
            if given & bit:
                for name in names:
                    setattr(mine, name, getattr(attributes, name))
        before, self.state = self.state, target
        if given & mask.IBV_QP_PATH_MTU:
            self.mtu = MTU_BYTES[mine.path_mtu]
        if given & mask.IBV_QP_RQ_PSN:
            self.expected_psn = mine.rq_psn & PSN_MASK
        if given & mask.IBV_QP_SQ_PSN:
            self.next_psn = mine.sq_psn & PSN_MASK
        if given & mask.IBV_QP_MAX_QP_RD_ATOMIC:
            self.max_reads = mine.max_rd_atomic
        if given & _FLOW_ATTRIBUTES and before != t.INIT:
            self._reopen_idle()
        if target == t.RESET:
            self._reset()
        elif target == t.ERR:
            self.enter_error()
        elif target == t.RTS:
            self.halted = False
            self.world.progress(self)
        elif target == t.SQD and before == t.RTS:
            self.note_drained()
        return 0

    def hold(self, work: Work) -> None:
        """Let a request wait behind what is under way."""
        self.world.watch_all()  # the end of any may let it begin
        self.pending.append(work)

    def note_drained(self) -> None:
        """Say so when a send queue that is to drain has nothing under way any more."""
        draining = bool(self.outstanding)
        if self.attributes.sq_draining or not draining:
            self.attributes.sq_draining = int(draining)
            if not draining and self.attributes.en_sqd_async_notify:
                self.raise_event(SQ_DRAINED)
        else:
            self.attributes.sq_draining = 1

    def _reset(self) -> None:
        self.world.note_change()
        self._close_flows()
        self.world.deafen(self)
        for work in (*self.outstanding, *self.pending):
            work.enter(Input.FLUSH)
        self.outstanding.clear()
        self.pending.clear()
        self.occupied = self.unreported = 0
        for queue in {self.sends, self.receive_completions}:
            if queue is not None:
                queue.forget(self.number)
        if self.receives is not None and not self.shared:
            self.receives.clear()
            self.receives.posted = 0
            self.receives.pool = self.world.new_pool()
        self._clear_counts()
        self.attributes = Attributes()

    def enter_error(self) -> None:
        """The error state: everything that is posted completes as flushed."""
        self.world.note_change()
        self.state = t.ERR
        self.world.deafen(self)
        self.flush_sends()
        if self.receives is None:
            return
        if self.shared:
            self.raise_event(LAST_WQE)
            return
        self.flush_receives()
        self.receives.pool = self.world.new_pool()

    def flush_receives(self) -> None:
        """Complete the receives that are posted as flushed."""
        if self.receives is not None:
            for wr_id, _, _ in self.receives.clear():
                self.complete_receive(WC(wr_id, WR_FLUSH_ERR, _WC_RECV, 0, 0, self.number))

    def flush_sends(self) -> None:
        """Complete what is posted to the send queue as flushed."""
        flushed = (*self.outstanding, *self.pending)
        self.outstanding.clear()
        self.pending.clear()
        self.reads = 0
        for work in flushed:
            work.enter(Input.FLUSH)
            self.unreported += 1
            self.complete_send(work, WR_FLUSH_ERR)

    def destroy(self) -> None:
        self._reset()
        self.adapter.queue_pairs.pop(self.number, None)

    # ------------------------------------------------------------------ completions and events

    def release(self, slots: int) -> None:
        """Software has seen completions of so many send slots."""
        self.occupied -= slots

    def complete_send(self, work: Work, status: int) -> None:
        queue = self.sends
        if queue is None:
            return
        opcode = work.opcode
        placed = work.length if opcode in ANSWERED and not status else 0  # here
        completion = WC.of(work.wr_id, status, COMPLETION[opcode], placed, self.number)
        completion.queue = self
        completion.slots = self.unreported
        self.unreported = 0
        if not queue.push(completion):
            self.overrun()

    def complete_receive(self, completion: WC, solicited: bool = False) -> None:
        receives = self.receives
        queue = self.receive_completions
        if queue is None:
            return
        completion.queue = receives
        completion.slots = 1
        if not queue.push(completion, solicited):
            self.overrun()

    def overrun(self) -> None:
        if self.state != t.ERR:
            self.state = t.ERR  # what is flushed now is lost with the queue
            self.raise_event(QP_FATAL)
            self.enter_error()

    def raise_event(self, kind: int) -> None:
        if self.sink is not None:
            self.sink.raise_event(kind, self)

    # ------------------------------------------------------------------ ways

    def peer_flow(self, work: Work) -> PeerFlow | None:
        """The flow that a request takes; None: no way leads there."""
        key: Any = work.srqn
        if work.vector is not None:
            key = work.vector, work.remote_qpn
        peer_flow = self.peer_flows.get(key)
        if peer_flow is None:
            vector = self.attributes.ah_attr if work.vector is None else work.vector
            number = self.attributes.dest_qp_num if work.vector is None else work.remote_qpn
            peer_flow = self.open_flow(vector, number, work.remote_qkey)
            if peer_flow is not None:
                self.peer_flows[key] = peer_flow
        return peer_flow

    def answer_flow(self) -> PeerFlow | None:
        """The flow that answers take."""
        peer_flow = self.peer_flows.get(0)
        if peer_flow is None:
            peer_flow = self.open_flow(self.attributes.ah_attr, self.attributes.dest_qp_num, 0)
            if peer_flow is not None:
                self.peer_flows[0] = peer_flow
        return peer_flow

    def open_flow(self, vector: AddressVector, number: int, queue_key: int) -> PeerFlow | None:
        adapter, a = self.adapter, self.attributes
        target = self.world.resolve(adapter, vector)
        if target is None or not adapter.active or not target.active:
            return None
        peer = target.queue_pairs.get(number)
        gid = adapter.gids[vector.sgid_index] if vector.is_global else None
        rate = STATIC_RATE_MBPS.get(vector.static_rate, 0) * 1_000_000 or a.rate_limit * 1000 or None
        # the receiver says how long to wait
        wait_ps = RNR_TIMER_PS[peer.attributes.min_rnr_timer if peer is not None else 0]
        options = FlowOptions(
            service=_SERVICE.get(self.kind, Service.RELIABLE_CONNECTION),
            mtu_bytes=adapter.mtu_bytes if self.kind in (t.UD, t.RAW) else self.mtu,
            service_level=vector.sl or None,
            rate_bps=rate,
            retries=Retries(a.timeout, a.retry_cnt, a.rnr_retry, wait_ps),
            numbers=Numbers(self.number, number, self.next_psn, adapter.pkeys[a.pkey_index], queue_key),
            address=GlobalAddress(
                source_gid=gid.raw if gid is not None else None,
                target_gid=vector.dgid if gid is not None else None,
                gid_type=_GID_TYPES[gid.kind] if gid is not None else None,
                global_route=vector.is_global and not adapter.ethernet,
                hop_limit=vector.hop_limit,
                traffic_class=vector.traffic_class,
                udp_source_port=_udp_source_port(vector.flow_label),
            ),
        )
        try:
            flow = self.world.engine.open(adapter.index, target.index, options=options)
        except ConfigError:
            return None
        return PeerFlow(flow, target)

    def _close_flows(self) -> None:
        if not self.peer_flows:
            return
        for peer_flow in self.peer_flows.values():
            self.world.engine.close(peer_flow.flow)
        self.world.forget(self)
        self.peer_flows.clear()
        self.last_flow = None

    def _reopen_idle(self) -> None:
        """Attributes of the flow have changed: open it anew, unless something is under way (then it is kept)."""
        if (
            self.peer_flows
            and not self.outstanding
            and not any(peer_flow.busy for peer_flow in self.peer_flows.values())
        ):
            self._close_flows()

    # ------------------------------------------------------------------ words

    def why_waiting(self) -> str:
        """Return in words what the queue pair waits for; empty where for nothing."""
        if self.state not in (t.RTS, t.SQD):
            return ""
        if self.outstanding:
            first = self.outstanding[0]
            if first.state is RequestState.UNANSWERED or not first.message:
                return "sent what nobody answers, and its timeout is never"
            return "waits for the receiver, which has no receive posted"
        if self.pending:
            return (
                "holds its send queue (it is to drain)" if self.state == t.SQD else "has sends that cannot begin"
            )
        if self.receives is not None and self.receives.queue and not self.shared:
            return f"has {len(self.receives.queue)} receives posted, but nobody sends to it"
        return ""


def _udp_source_port(flow_label: int) -> int | None:
    """Fold a flow label as `rdma_flow_label_to_udp_sport` does; None: from the queue pair numbers."""
    if not flow_label:
        return None
    return (flow_label & 0x3FFF) ^ ((flow_label & 0xFC000) >> 14) | 0xC000
