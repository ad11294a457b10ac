"""Every transition of a queue pair's state, legal and not, with the attributes that it must and may come with."""

from __future__ import annotations

import errno
from itertools import product

import pytest
from support.clusters import boxes
from support.verbs_ends import End, attributes

from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.abi.queue_codes import ibv_qp_attr_mask as mask
from fabrictwin.verbs.abi.queue_codes import ibv_qp_state as state
from fabrictwin.verbs.abi.queue_codes import ibv_qp_type as kind
from fabrictwin.verbs.adapter import qp_transitions as t
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError

NAMES = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"]
# IBA volume 1, figure 124, as Linux lets software walk it: rows are where from, columns where
# to, in the order above.
# `a` is always, `u` unreliable services only, `c` all but raw packets
GRAPH = """
a a - - - - -
a a a - - - a
a - - a - - a
a - - a a - a
a - - c c - a
a - - u - - a
a - - - - - a
"""
WALKED = {"RC": kind.IBV_QPT_RC, "UC": kind.IBV_QPT_UC, "UD": kind.IBV_QPT_UD}


def test_the_graph_of_states():
    rows = [line.split() for line in GRAPH.strip().splitlines()]
    for (i, j), qp_kind in product(product(range(7), range(7)), t.KINDS):
        word = rows[i][j]
        expected = {"a": True, "-": False, "u": qp_kind in (t.UC, t.UD), "c": qp_kind != t.RAW}[word]
        assert (qp_kind in t.TRANSITIONS.get((i, j), {})) == expected, (NAMES[i], NAMES[j], kind(qp_kind).name)


def test_every_attribute_that_is_left_out_or_too_much_is_refused():
    every = [int(bit) for bit in mask if bit not in (mask.IBV_QP_STATE,)]
    for (now, target), rules in t.TRANSITIONS.items():
        for qp_kind, (required, optional) in rules.items():
            assert not required & optional
            assert t.allowed(qp_kind, now, target, required | t.STATE)
            assert t.allowed(qp_kind, now, target, required | optional | t.STATE)
            for bit in every:
                given = required | t.STATE
                if required & bit:
                    assert not t.allowed(qp_kind, now, target, given & ~bit)
                elif not optional & bit:
                    assert not t.allowed(qp_kind, now, target, given | bit)


@pytest.mark.parametrize("name", WALKED)
def test_a_queue_pair_does_what_the_table_says(name):
    """From every state that software can reach, every other is asked for, with all attributes the table allows."""
    place.use(boxes(8), engine="analytic")
    peer = End("host-1", kind=WALKED[name])
    peer_flow = {1: [], 2: [2], 3: [2, 3], 4: [2, 3, 4], 6: [6], 0: [0]}
    for start, target in product(peer_flow, range(7)):
        end = End("host-0", kind=WALKED[name])  # which is made in INIT, a datagram's in RTS
        engine = end.qp.qp
        attr = attributes(end, peer)
        steps = [0, 1, *peer_flow[start]] if start not in (0, 6) else peer_flow[start]
        if WALKED[name] != kind.IBV_QPT_UD and start not in (0, 6):
            steps = peer_flow[start]
        for step in steps:
            attr.qp_state = step
            end.qp.modify(attr, t.TRANSITIONS[engine.state, step][engine.kind][0] | t.STATE)
        assert engine.state == start
        rule = t.TRANSITIONS.get((start, target), {}).get(engine.kind)
        attr.qp_state, attr.cur_qp_state = target, start
        if rule is None:
            with pytest.raises(PyverbsRDMAError) as error:
                end.qp.modify(attr, t.STATE)
            assert error.value.error_code == errno.EINVAL
            assert engine.state == start
        else:
            end.qp.modify(attr, rule[0] | t.STATE)
            assert engine.state == target
        end.qp.close()


def test_the_current_state_must_be_right():
    place.use(boxes(8), engine="analytic")
    one, other = End("host-0"), End("host-1")
    one.qp.to_rts(attributes(one, other))
    attr = attributes(one, other)
    attr.qp_state, attr.cur_qp_state = state.IBV_QPS_RTS, state.IBV_QPS_SQD
    with pytest.raises(PyverbsRDMAError):
        one.qp.modify(attr, mask.IBV_QP_STATE | mask.IBV_QP_CUR_STATE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port_num", 2),
        ("pkey_index", 128),
        ("path_mtu", 6),
        ("timeout", 32),
        ("retry_cnt", 8),
        ("rnr_retry", 8),
        ("min_rnr_timer", 32),
        ("max_rd_atomic", 17),
        ("max_dest_rd_atomic", 17),
    ],
)
def test_values_out_of_range_are_refused(field, value):
    place.use(boxes(8), engine="analytic")
    one, other = End("host-0"), End("host-1")
    attr = attributes(one, other, **{field: value})
    one.qp.modify(attributes(one, other, qp_state=state.IBV_QPS_RESET), mask.IBV_QP_STATE)
    with pytest.raises(PyverbsRDMAError) as error:
        one.qp.to_rts(attr)
    assert error.value.error_code == errno.EINVAL


def test_a_send_queue_drains():
    place.use(boxes(8), engine="analytic")
    one, other = End("host-0"), End("host-1")
    for own, far in ((one, other), (other, one)):
        own.qp.to_rts(attributes(own, far))
    other.receive()
    one.send()
    drain = attributes(one, other, qp_state=state.IBV_QPS_SQD, en_sqd_async_notify=1)
    one.qp.modify(drain, mask.IBV_QP_STATE | mask.IBV_QP_EN_SQD_ASYNC_NOTIFY)
    one.send(wr_id=2)
    other.receive()
    assert one.qp.query(0)[0].sq_draining == 1
    assert one.ctx.get_async_event().event_type == 5  # IBV_EVENT_SQ_DRAINED
    assert [wc.wr_id for wc in one.done()] == [0]
    place.world().settle()
    assert one.cq.poll()[0] == 0
    one.qp.modify(attributes(one, other, qp_state=state.IBV_QPS_RTS), mask.IBV_QP_STATE)
    assert [wc.wr_id for wc in one.done()] == [2]
