"""A state that was just built, field by field, and the numbers that it rests on."""

from __future__ import annotations

import numpy as np
import pytest
from support.packet_wiring import infiniband, roce, star

from fabrictwin.fabric.fabric import NONE
from fabrictwin.kernel.packet.congestion import ALGORITHMS
from fabrictwin.kernel.packet.state import build
from fabrictwin.kernel.packet.state import constants as s

# 400 Gb/s: 20 ps a byte; packets of 4,096 + 82 or 26 bytes, acknowledgements of 86 or 30; links of 1 us
PORTS = {
    "ps_q": [20 << 20] * 4, "arrive_ps": [10**6] * 4, "peer": [2, 3, 0, 1], "node": [0, 1, 2, 2],
    "tx_slot": [NONE] * 4, "control_head": [NONE] * 4, "control_tail": [NONE] * 4, "wait_since": [NONE] * 4,
    "credit_ps": [10**6 + 8 * 20] * 4,
}  # fmt: skip
BOTH = {
    "clock": {"free": [1024], "random": [2654435761], "unroutable": [NONE], "tasks_head": [NONE],
              "called": [NONE]},
    "settings": {"vl_bits": [1], "mtu": [4096], "balance": [1], "bitmap_mask": [511], "pause_wire": [84],
    "cnp_sl": [NONE]},
    "outlet": {name: [NONE] * 8 for name in ("head", "tail", "ready_head", "ready_tail")},
    "hold": {"quantum": [4096] * 8}, "packet": {"next": [*range(1, 1024), NONE]},
    "endpoint": {"node": [0, 1], "port": [0, 1], "lid": [1, 2], "edge_port": [2, 3]},
}  # fmt: skip
ETHERNET = {
    "clock": {"lanes": [4]}, "settings": {"cnp_wire": [86]},
    "port": {
        **PORTS, "traits": [6] * 4, "rx_traits": [6] * 4, "queue_width": [1] * 4, "full_bytes": [4178] * 4,
        "ack_bytes": [86] * 4, "lane_tx_full": [1] * 4, "lane_arrive_full": [3] * 4, "lane_arrive_ack": [2] * 4,
        "lane_credit": [NONE] * 4,
    },
    "inlet": {"headroom_limit": None, "lossless": [1] * 8},
    "queue": {"head": [NONE], "tail": [NONE], "next": [NONE]},
    "node": {
        "port_start": [0, 1, 2], "row": [NONE, NONE, 0], "traits": [1, 1, 4], "resume": [3072] * 3, "seed": None,
        "shared_limit": None, "reserve": [4096] * 3, "alpha_q": [32] * 3, "ports": [1, 1, 2],
    },
    "lane": {"delay": [1720, 83560, 1001720, 1083560], "first": [0, 128, 256, 384], "mask": [127] * 4},
}  # fmt: skip
INFINIBAND = {
    "clock": {"lanes": [5]}, "settings": {"cnp_wire": [30]}, "outlet": {"credit": [2048] * 8},
    "port": {
        **PORTS, "traits": [5] * 4, "rx_traits": [5] * 4, "queue_width": [1, 1, 2, 2], "queue_start": [0, 0, 0, 4],
        "full_bytes": [4122] * 4, "ack_bytes": [30] * 4, "lane_tx_full": [1] * 4, "lane_arrive_full": [4] * 4,
        "lane_arrive_ack": [3] * 4, "lane_credit": [2] * 4,
    },
    "inlet": {"capacity": [2048] * 8, "batch": [1] * 8},
    "queue": {name: [NONE] * 8 for name in ("head", "tail", "next")},
    "node": {"port_start": [0, 1, 2], "row": [NONE, NONE, 0], "traits": [1, 1, 2], "seed": None, "ports": [1,
    1, 2]},
    "lane": {"delay": [600, 82440, 1000160, 1000600, 1082440], "first": [0, 128, 256, 384, 512],
    "mask": [127] * 5},
}  # fmt: skip
# of what nothing is kept yet there is one row, so that no array is empty
ONE_ROW = {
    "port_qos", "slot_qos", "qp", "task", "successor", "log", "hop", "received", "sacked", "arbiter", "high_limit",
    "delays", "fecn",
    *(name for each in ALGORITHMS for name in (each.name.lower(), f"{each.name.lower()}_settings")),
    "congestion_log", "note", "pool", "inbox", "message_event", "tap",
}  # fmt: skip


@pytest.mark.parametrize(
    ("wiring", "given", "expected"),
    [(star(2), roce(lanes=2), ETHERNET), (star(2, kind="infiniband"), infiniband(lanes=2), INFINIBAND)],
)
def test_a_state_as_built_is_zero_but_for_these(wiring, given, expected):
    state = build.build(wiring, given)
    for name, array in zip(state._fields, state, strict=True):
        if name in ONE_ROW:
            assert len(array) == 1, name
        if not array.dtype.names:
            continue
        known = {**BOTH.get(name, {}), **expected.get(name, {})}
        found = {field for field in array.dtype.names if np.asarray(array[field]).any()}
        assert found == set(known), name
        for field, values in known.items():
            assert values is None or array[field].tolist() == values, (name, field)
    lanes = len(state.lane)
    assert state.lane_time.tolist() == [s.NEVER] * lanes
    assert (len(state.event), len(state.heap), len(state.kick)) == (128 * lanes, 8192, 80)
    assert state.queued.tolist() == [0] * 4
    assert state.lft.tolist() == [[0]]
    assert state.sl2vl.tolist() == [[0, 1] * 8]
    assert state.arbitration.shape == (128, 2)
    assert not state.arbitration.any()


def test_numbers_that_a_state_rests_on():
    """A port that is down is out of any scan's reach, and marks,
    kinds and traits do not share a bit or a number."""
    assert s.OUT_OF_REACH > 1 << 55  # more than all bytes that could be queued
    assert s.OUT_OF_REACH + (1 << 50) < 2**63
    kinds = [s.DATA, s.ACK, s.NAK, s.RNR, s.CNP, s.REFUSED, s.TRIM, s.PAUSE]
    assert sorted(kinds) == list(range(8))
    groups = (
        (s.ECN, s.FIRST, s.LAST, s.ARRIVED, s.RETRY, s.REQUEST),
        (s.ENDPOINT, s.INPUT_QUEUED, s.SHARED, s.CUT_THROUGH, s.CONFIGURED),
        (s.FAULTY, s.CREDIT, s.PFC, s.STORE, s.INTERNAL, s.DOWN, s.TAPPED, s.BY_INPUT, s.RULED, s.STARVES,
        s.ARBITRATED,
         s.REPLAY),
        (s.REPORT_BEGIN, s.REPORT_ARRIVED, s.REPORT_ENDED, s.AT_ADAPTER, s.QUIET, s.TAKES_FIRST, s.TAKES_LAST),
    )  # fmt: skip
    for bits in groups:
        assert sum(bits) == (1 << len(bits)) - 1
        assert all(bit.bit_count() == 1 for bit in bits)
    numbers = (
        (s.LFT, s.ECMP, s.ADAPTIVE), (s.GO_BACK_N, s.SELECTIVE, s.LOCAL, s.CHANNEL), (s.RC, s.UC, s.UD,
        s.RESPONSES)
    )  # fmt: skip
    for given in numbers:
        assert list(given) == list(range(len(given)))
    assert (s.M31, s.M32) == (2**31 - 1, 2**32 - 1)
    assert (s.RATE_HALF, 1 << s.RATE_BITS, 1 << s.BLOCK_BITS) == (2**19, 2**20, 64)
    assert (s.LINE_QUANTUM_BITS, s.PAUSE_QUANTA) == (512, 0xFFFF)  # IEEE 802.1Qbb
    assert s.SLICE_EVENTS == 2**20
