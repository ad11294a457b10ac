"""Objects of the verbs just as they were made, what making them is refused for, and posting chains.

IBTA volume 1, 10.2.4 (creation), 10.8 (work requests); verbs.h.
"""

from __future__ import annotations

import ctypes
import errno
from types import SimpleNamespace as Record

import pytest
from support.verbs_ends import End, pair

from fabrictwin.verbs.adapter import qp_transitions as t
from fabrictwin.verbs.adapter.completions import WC, Channel, CompletionQueue
from fabrictwin.verbs.adapter.memory_regions import Domain, Memory
from fabrictwin.verbs.adapter.qp_checks import Attributes
from fabrictwin.verbs.adapter.queue_pair import PeerFlow
from fabrictwin.verbs.adapter.receive_queues import ReceiveQueue, SharedReceiveQueue
from fabrictwin.verbs.adapter.work_requests import AddressVector, Response, Work
from fabrictwin.verbs.attributes.device_limits import limits
from fabrictwin.verbs.attributes.qp_attributes import QPCap, QPInitAttr, QPInitAttrEx, QPRateLimitAttr
from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from fabrictwin.verbs.pyverbs.qp import QP
from fabrictwin.verbs.pyverbs.wr import SGE, RecvWR, SendWR


def slots(one) -> dict:
    """Every field of an object, those of its bases too."""
    names = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(one, name) for name in names}


def test_objects_are_made_with_nothing_but_what_they_are_given():
    world = Record(new_pool=lambda: 4)
    domain = Domain(3)
    assert slots(domain) == {"handle": 3}
    memory = Memory()
    assert (memory.epoch, memory.local, memory.remote) == (0, {}, {})
    key = (0x11 << 8) | (0x11 * 0x3B & 0xFF)
    region = memory.register(domain, 4096, 100, access=7, node=5)
    assert slots(region) == {
        "access": 7, "domain": domain, "end": 4196, "handle": 0x11, "key": key, "node": 5, "shift": 0,
        "staging": None, "start": 4096, "windows": 0,
    }  # fmt: skip
    window = memory.window(domain, 2)
    assert slots(window) == {
        "access": 0, "domain": domain, "end": 0, "handle": 0x12, "key": 0x12 << 8 | (0x12 * 0x3B & 0xFF),
        "kind": 2,
        "queue_pair": 0, "region": None, "shift": 0, "start": 0,
    }  # fmt: skip
    assert slots(PeerFlow(3, "target")) == {
        "busy": 0, "copied_ps": 0, "flow": 3, "in_step": False, "keys": {}, "pool": 0, "receiver": None,
        "standing": -1, "target": "target",
    }  # fmt: skip
    queue = {"capacity": 5, "domain": domain, "max_sge": 2, "pool": 4, "posted": 0, "world": world}
    made = slots(ReceiveQueue(world, domain, 5, 2))
    assert list(made.pop("queue")) == []
    assert made == queue
    made = slots(SharedReceiveQueue(world, domain, 5, 2, number=9))
    assert list(made.pop("queue")) == []
    assert made == {**queue, "completions": None, "extended": None, "limit": 0, "number": 9, "sink": None}
    made = slots(CompletionQueue(world, 6, 7, channel=None))
    assert list(made.pop("entries")) == []
    assert made == {
        "armed": 0, "capacity": 7, "channel": None, "ignore_overrun": False, "number": 6, "overrun": False,
        "sink": None, "world": world,
    }  # fmt: skip
    channel = slots(Channel())
    assert (list(channel["events"]), channel["on_event"]) == ([], None)
    assert slots(Response("work", "qp", b"x", 3)) == {"data": b"x", "responder": "qp", "value": 3, "work": "work"}
    work = Work("qp", 5, 2, 3, ((1, 10, 4), (2, 20, 4)), 6)
    assert vars(work) == {
        "qp": "qp", "wr_id": 5, "opcode": 2, "flags": 3, "segments": ((1, 10, 4), (2, 20, 4)), "immediate": 6,
        "length": 30,
    }  # fmt: skip
    zero = ("address", "rkey", "compare", "swap", "remote_qpn", "remote_qkey", "srqn", "epoch", "message", "psn",
            "status", "refusal")  # fmt: skip
    assert [getattr(work, name) for name in zero] == [0] * len(zero)
    assert (work.vector, work.counted, work.info, work.data, work.places) == (None, False, None, None, ())
    assert (work.peer_flow, work.packets, work.chained, int(work.state)) == (None, 1, False, 1)
    assert {name: value for name, value in slots(AddressVector()).items() if value} == {
        "port_num": 1, "dgid": bytes(16), "hop_limit": 1,
    }  # fmt: skip
    assert not any(value for value in vars(WC()).values())


def test_requests_are_made_with_nothing_but_what_they_are_given():
    buffer = ctypes.create_string_buffer(b"0123456789")
    at = ctypes.addressof(buffer)
    one, two = SGE(at, 4, 7), SGE(at + 4, 6, 8)
    assert (one.read(4, 0), one.read(3, 2)) == (b"0123", b"234")
    assert slots(RecvWR()) == {"next_wr": None, "num_sge": 0, "segments": (), "wr_id": 0}
    receive = RecvWR(3, 2, [one, two])
    assert receive.segments == ((at, 4, 7), (at + 4, 6, 8))
    assert [slots(piece) for piece in receive.sg_list] == [slots(one), slots(two)]
    assert RecvWR(3, 1, [one, two]).segments == ((at, 4, 7),)
    assert RecvWR(3, 0, [one]).segments == RecvWR(3, 2, None).segments == ()
    with pytest.raises(PyverbsUserError, match="num_sge is 3, but sg has 2 elements"):
        RecvWR(3, 3, [one, two])
    request = SendWR(num_sge=1, sg=[one])
    fresh = slots(request)
    assert {name: value for name, value in fresh.items() if value} == {
        "opcode": 2, "num_sge": 1, "segments": ((at, 4, 7),), "send_flags": 2,
    }  # fmt: skip
    assert [name for name, value in fresh.items() if value is None] == ["_ah", "_info", "next_wr"]
    request.set_wr_ud("ah", 5, 6)
    request.set_wr_atomic(7, 8, 9, 10)
    request.set_qp_type_xrc(11)
    names = ("_ah", "_qpn", "_qkey", "rdma_rkey", "rdma_remote_addr", "_compare", "_swap", "_srqn", "rkey")
    assert [getattr(request, name) for name in names] == ["ah", 5, 6, 7, 8, 9, 10, 11, 0]
    request.set_wr_rdma(12, 13)
    assert (request.rdma_rkey, request.rdma_remote_addr) == (12, 13)
    request.set_wr_atomic(1, 2, 3)
    assert request._swap == 0
    request.sg_list = two
    assert [slots(piece) for piece in request.sg_list] == [slots(two)]
    for opcode, needs in ((e.IBV_WR_SEND, True), (e.IBV_WR_RDMA_READ, True), (e.IBV_WR_BIND_MW, False),
                          (e.IBV_WR_LOCAL_INV, False), (e.IBV_WR_SEND_WITH_INV, False)):  # fmt: skip
        for count, pieces in ((0, [one]), (1, None)):
            if needs:
                with pytest.raises(PyverbsUserError, match="at least one SGE"):
                    SendWR(0, opcode, count, sg=pieces)
            else:
                assert SendWR(0, opcode, count, sg=pieces).segments == ()


# ---------------------------------------------------------------------- creating


def creating(kind=e.IBV_QPT_RC, *, cap=None, pd=True, ethernet=False, sends=True, receives=True, **extended):
    """The errno that creating a queue pair fails with."""
    sizes = QPCap(**{"max_send_wr": 1, "max_recv_wr": 1, "max_send_sge": 1, "max_recv_sge": 1, **(cap or {})})
    attr = Record(qp_type=kind, cap=sizes, send_cq=sends or None, recv_cq=receives or None)
    more = Record(**{"create_flags": 0, "comp_mask": 0, "send_ops_flags": 0, "xrcd": None, **extended})
    owner = Record(adapter=Record(ethernet=ethernet)) if pd else None
    return QP._refused(attr, more if extended else None, owner)


FLAGS, OPS = int(e.IBV_QP_INIT_ATTR_CREATE_FLAGS), int(e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
UNDONE = (e.IBV_QP_INIT_ATTR_IND_TABLE, e.IBV_QP_INIT_ATTR_RX_HASH, e.IBV_QP_INIT_ATTR_MAX_TSO_HEADER)
UD, RAW, UC, XRC_SEND, XRC_RECV = (
    e.IBV_QPT_UD, e.IBV_QPT_RAW_PACKET, e.IBV_QPT_UC, e.IBV_QPT_XRC_SEND, e.IBV_QPT_XRC_RECV
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, 0), ({"kind": 77}, errno.EOPNOTSUPP), ({"pd": False}, errno.EINVAL), ({"sends": False}, errno.EINVAL),
        ({"receives": False}, errno.EINVAL), ({"kind": XRC_SEND, "receives": False}, 0),
        ({"kind": XRC_SEND, "sends": False}, errno.EINVAL), ({"kind": RAW}, errno.EINVAL),
        ({"kind": RAW, "ethernet": True}, 0), ({"kind": XRC_RECV}, errno.EINVAL),
        ({"kind": XRC_RECV, "xrcd": 1}, 0),
        ({"kind": XRC_RECV, "create_flags": 0}, errno.EINVAL), ({"kind": XRC_RECV, "xrcd": 1, "pd": False}, 0),
        *[({"comp_mask": int(one)}, errno.EOPNOTSUPP) for one in UNDONE],
        # of creation flags, blocking one's own multicast alone, where there could be some
        ({"comp_mask": FLAGS, "create_flags": 2}, errno.EOPNOTSUPP), ({"create_flags": 2}, 0),
        ({"kind": UD, "comp_mask": FLAGS, "create_flags": 2}, 0),
        ({"kind": RAW, "ethernet": True, "comp_mask": FLAGS, "create_flags": 2}, 0),
        ({"kind": UD, "comp_mask": FLAGS, "create_flags": 6}, errno.EOPNOTSUPP),
        # operations of extended queue pairs (verbs.h): 10 is TSO, 11 flush, 12 atomic write
        ({"comp_mask": OPS, "send_ops_flags": 0x3FF}, 0),
        ({"comp_mask": OPS, "send_ops_flags": 1 << 10}, errno.EOPNOTSUPP),
        ({"comp_mask": OPS, "send_ops_flags": 3 << 11}, 0), ({"send_ops_flags": 1 << 10}, 0),
        ({"kind": UC, "comp_mask": OPS, "send_ops_flags": 0x18F}, 0),
        ({"kind": UC, "comp_mask": OPS, "send_ops_flags": 0x10}, errno.EOPNOTSUPP),
        ({"kind": UC, "comp_mask": OPS, "send_ops_flags": 0x40}, errno.EOPNOTSUPP),
        ({"kind": UD, "comp_mask": OPS, "send_ops_flags": 0x0C}, 0),
        ({"kind": UD, "comp_mask": OPS, "send_ops_flags": 0x02}, errno.EOPNOTSUPP),
        ({"kind": XRC_SEND, "comp_mask": OPS, "send_ops_flags": 0x3FF}, 0),
        ({"kind": XRC_SEND, "comp_mask": OPS, "send_ops_flags": 1 << 11}, errno.EOPNOTSUPP),
    ],
)  # fmt: skip
def test_what_a_queue_pair_can_be_made_as(given, code):
    assert creating(**given) == code


@pytest.mark.parametrize(
    ("name", "limit"),
    [("max_send_wr", "max_qp_wr"), ("max_recv_wr", "max_qp_wr"), ("max_send_sge", "max_sge"),
     ("max_recv_sge", "max_sge"), ("max_inline_data", "max_inline")],
)  # fmt: skip
def test_sizes_of_a_queue_pair_have_ends(name, limit):
    most = getattr(limits(), limit).value
    codes = [creating(cap={name: size}) for size in (-1, 0, most, most + 1)]
    assert codes == [errno.EINVAL, 0, 0, errno.EINVAL]


def test_a_queue_pair_is_made_of_what_it_was_given(twin):
    one, _ = pair(twin)
    init = QPInitAttr(e.IBV_QPT_RC, None, one.cq, one.cq, None, QPCap(3, 4, 2, 1, 17), sq_sig_all=1)
    made = QP(one.pd, init)
    qp = made.qp
    assert (qp.max_send_wr, qp.max_send_sge, qp.max_inline, qp.signal_all) == (3, 2, 17, True)
    assert (qp.receives.capacity, qp.receives.max_sge, qp.receives.domain) == (4, 1, one.pd.pd)
    assert (qp.kind, qp.state, qp.shared, qp.occupied, qp.unreported) == (t.RC, t.RESET, False, 0, 0)
    fresh = {"reads": 0, "copied_ps": 0, "inbound_reads": 0, "next_psn": 0, "expected_psn": 0, "halted": False,
             "mtu": 256, "max_reads": 0, "first_arrival": True}  # fmt: skip
    assert {name: getattr(qp, name) for name in fresh} == fresh
    _, back = made.query(0)
    assert vars(back.cap) == {"max_send_wr": 3, "max_recv_wr": 4, "max_send_sge": 2, "max_recv_sge": 1,
                              "max_inline_data": 17}  # fmt: skip
    assert (back.sq_sig_all, back.send_cq, back.recv_cq, back.srq) == (1, one.cq, one.cq, None)
    assert qp.number in qp.adapter.queue_pairs
    made.close()
    assert qp.number not in qp.adapter.queue_pairs
    assert (made.engine, made.pd, made.context, made.scq, made.rcq, made.srq) == (None,) * 6
    made.close()
    other = QP(one.ctx, QPInitAttrEx(e.IBV_QPT_RC, None, one.cq, one.cq, None, QPCap(1, 1, 1, 1), pd=one.pd))
    assert other.qp.domain is one.pd.pd
    with pytest.raises(PyverbsUserError, match="Cannot create QP from int"):
        QP(5, init)


def test_attributes_change_as_their_mask_says_and_the_state_only_with_its_bit(twin):
    one, _ = pair(twin)
    qp, bit = one.qp.qp, e
    wanted = Attributes()
    wanted.qp_state, wanted.cur_qp_state, wanted.min_rnr_timer, wanted.path_mtu = t.ERR, t.RTS, 7, 1
    assert qp.modify(wanted, int(bit.IBV_QP_MIN_RNR_TIMER)) == 0
    assert (qp.state, qp.attributes.min_rnr_timer, qp.mtu) == (t.RTS, 7, 1024)
    wanted.cur_qp_state = t.SQD
    assert qp.modify(wanted, int(bit.IBV_QP_MIN_RNR_TIMER | bit.IBV_QP_CUR_STATE)) == errno.EINVAL
    wanted.cur_qp_state, wanted.min_rnr_timer = t.RTS, 32
    assert qp.modify(wanted, int(bit.IBV_QP_MIN_RNR_TIMER | bit.IBV_QP_CUR_STATE)) == errno.EINVAL
    wanted.min_rnr_timer = 8
    assert qp.modify(wanted, int(bit.IBV_QP_MIN_RNR_TIMER | bit.IBV_QP_CUR_STATE)) == 0
    assert (qp.state, qp.attributes.min_rnr_timer) == (t.RTS, 8)
    assert qp.modify(wanted, int(bit.IBV_QP_STATE)) == 0
    assert qp.state == t.ERR
    wanted.qp_state = t.RESET
    assert qp.modify(wanted, int(bit.IBV_QP_STATE)) == 0
    fresh = Attributes()
    assert {name: getattr(qp.attributes, name) for name in Attributes.__slots__} == {
        name: getattr(fresh, name) for name in Attributes.__slots__
    }
    assert (qp.state, qp.next_psn, qp.expected_psn, qp.max_reads, qp.first_arrival) == (t.RESET, 0, 0, 0, True)


# ---------------------------------------------------------------------- posting


def code_of(act) -> int:
    with pytest.raises(PyverbsRDMAError) as refused:
        act()
    return refused.value.error_code


def test_receives_are_posted_one_after_the_other_as_far_as_there_is_room(twin):
    one, _ = pair(twin)
    made = QP(one.pd, QPInitAttr(e.IBV_QPT_RC, None, one.cq, one.cq, None, QPCap(4, 3, 2, 2, 0)))
    assert code_of(lambda: made.post_recv(RecvWR(1, 1, [one.sge()]))) == errno.EINVAL  # in RESET
    made.qp.state = t.INIT
    chain = RecvWR(
        1, 1, [one.sge(0, 10)], RecvWR(2, 2, [one.sge(0, 20), one.sge(64, 30)], RecvWR(3, 3, [one.sge()] * 3))
    )
    assert code_of(lambda: made.post_recv(chain)) == errno.EINVAL
    queue = made.qp.receives
    assert [(wr_id, len(pieces), room) for wr_id, pieces, room in queue.queue] == [(1, 1, 10), (2, 2, 50)]
    made.post_recv(RecvWR(4))
    assert code_of(lambda: made.post_recv(RecvWR(5))) == errno.ENOMEM
    assert [wr_id for wr_id, *_ in queue.queue] == [1, 2, 4]
    made.qp.enter_error()
    assert [(wc.wr_id, wc.status) for wc in one.cq.poll(9)[1]] == [(1, 5), (2, 5), (4, 5)]
    made.post_recv(RecvWR(6))  # flushed at once
    assert [(wc.wr_id, wc.status, wc.opcode) for wc in one.cq.poll(9)[1]] == [(6, 5, 128)]
    made.close()
    assert code_of(lambda: made.post_recv(RecvWR(7))) == errno.EINVAL


def test_requests_of_a_chain_go_as_far_as_the_first_that_is_refused(twin):
    one, other = pair(twin)
    other.receive()
    bad = SendWR(3, e.IBV_WR_SEND, 1, sg=[one.sge()], send_flags=e.IBV_SEND_INLINE)
    bad.segments = ((one.mr.buf, 4096, one.mr.lkey),)  # more than may go inline
    chain = SendWR(
        1, e.IBV_WR_SEND, 1, sg=[one.sge()], next_wr=SendWR(2, e.IBV_WR_SEND, 1, sg=[one.sge()], next_wr=bad)
    )
    assert code_of(lambda: one.qp.post_send(chain)) == errno.ENOMEM
    assert one.qp.qp.occupied == 2
    assert [work.chained for work in one.qp.qp.outstanding] == [True, True]
    one.qp.post_send(SendWR(4, e.IBV_WR_SEND, 1, sg=[one.sge()]))
    assert not one.qp.qp.outstanding[-1].chained
    closed = End(twin.fabric.host_names[0], kind=e.IBV_QPT_UD)
    assert code_of(lambda: closed.qp.post_send(SendWR(4, e.IBV_WR_SEND, 1, sg=[closed.sge()]))) == errno.EINVAL
    closed.qp.close()
    with pytest.raises(PyverbsUserError, match="The QP is closed"):
        closed.qp.post_send(SendWR(4, e.IBV_WR_SEND, 1, sg=[closed.sge()]))


@pytest.mark.parametrize(
    ("given", "state", "code"),
    [({}, t.RTS, errno.EOPNOTSUPP), ({}, t.SQD, errno.EINVAL), ({"max_burst_sz": 1}, t.RTS, errno.EINVAL),
     ({"typical_pkt_sz": 1}, t.RTS, errno.EINVAL), ({"comp_mask": 1}, t.RTS, errno.EINVAL)],
)  # fmt: skip
def test_a_rate_is_limited_while_sending(twin, given, state, code):
    one, _ = pair(twin)
    attr = QPRateLimitAttr()
    attr.rate_limit = 1000
    for name, value in given.items():
        setattr(attr, name, value)
    one.qp.qp.state = state
    assert code_of(lambda: one.qp.modify_rate_limit(attr)) == code


# ---------------------------------------------------------------------- completions


@pytest.mark.parametrize(
    ("armed", "solicited", "status", "told"),
    [(0, True, 5, False), (1, False, 0, True), (1, True, 0, True), (2, False, 0, False), (2, True, 0, True),
     (2, False, 5, True)],
)  # fmt: skip
def test_a_channel_is_told_of_what_it_was_armed_for(armed, solicited, status, told):
    """Armed for any (1), or for what is solicited or failed (2); once."""
    from fabrictwin.verbs.adapter import completions

    assert (completions.UNARMED, completions.ANY) == (0, 1)
    channel, called = Channel(), []
    channel.on_event = lambda: called.append(len(channel.events))
    queue = CompletionQueue(Record(instant_ps=77), 1, 5, channel=channel)
    queue.armed = armed
    for n in range(2):
        completion = WC(wr_id=n, status=status)
        assert queue.push(completion, solicited)
        assert completion.timestamp_ps == 77
    assert (list(channel.events), called) == (([queue], [1]) if told else ([], []))
    assert queue.armed == (0 if told else armed)
    queue.channel, queue.armed = None, 1
    assert queue.push(WC())
    assert queue.armed == 0


@pytest.mark.parametrize("ignores", [False, True])
def test_a_queue_that_overruns_says_so_once(ignores):
    told = []
    queue = CompletionQueue(Record(instant_ps=0), 1, 2, channel=None, ignore_overrun=ignores)
    pushed = [queue.push(WC(wr_id=n)) for n in range(3)]
    queue.sink = Record(raise_event=lambda kind, of: told.append(kind))
    queue.overrun = False
    pushed += [queue.push(WC(wr_id=n)) for n in range(3, 5)]
    assert pushed == [True] * 5 if ignores else [True, True, False, False, False]
    assert told == ([] if ignores else [0])  # IBV_EVENT_CQ_ERR
    assert queue.overrun != ignores
    released = []
    owner = Record(release=released.append)
    for entry, count in zip(queue.entries, (3, 4), strict=False):
        entry.queue, entry.slots = owner, count
    first = queue.take(1)
    assert ([one.wr_id for one in first], released, first[0].queue) == ([0], [3], None)
    assert [one.wr_id for one in queue.take(0)] == []
    assert len(queue.take(99)) == (4 if ignores else 1)
    assert released == [3, 4]


def test_completions_of_a_queue_pair_that_goes_are_dropped():
    queue = CompletionQueue(Record(instant_ps=0), 1, 9, channel=None)
    for n in range(6):
        queue.push(WC(wr_id=n, qp_num=n % 2))
    queue.forget(5)
    assert [one.wr_id for one in queue.entries] == [0, 1, 2, 3, 4, 5]
    queue.forget(1)
    assert [one.wr_id for one in queue.entries] == [0, 2, 4]
