"""Requester and responder against a word of memory and a few flags worked out by hand: atomics, order, answers."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace as Record

import pytest
from support.verbs_ends import ALL, End, pair

from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.adapter import qp_checks, qp_transitions
from fabrictwin.verbs.adapter.qp_checks import Attributes, valid
from fabrictwin.verbs.adapter.work_requests import AddressVector
from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.qp import QPAttr

WORD = 1 << 64
READ, CAS, FAA = e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD


def word(end: End, at: int) -> int:
    return struct.unpack("<Q", end.mr.read(8, at))[0]


@pytest.mark.parametrize("seed", range(4))
def test_atomics_are_those_of_a_word_done_in_order(twin, seed):
    """Both give back what stood there; a swap where it equals the first operand, a sum modulo 2^64."""
    draw = random.Random(seed)
    one, other = pair(twin)
    values = [draw.randrange(WORD) for _ in range(4)]
    for at, value in enumerate(values):
        other.mr.write(struct.pack("<Q", value), 8, 8 * at)
    before, kinds = [], []
    for n in range(24):
        at = draw.randrange(4)
        first = draw.choice([values[at], draw.randrange(WORD), 1])
        second = draw.randrange(WORD)
        opcode = draw.choice([CAS, FAA])
        before.append(values[at])
        kinds.append(3 if opcode == CAS else 4)
        if opcode == CAS:
            values[at] = second if values[at] == first else values[at]
        else:
            values[at] = (values[at] + first) % WORD
        one.send(opcode, offset=8 * n, length=8, remote=other, at=8 * at, operands=(first, second))
    done = one.done(24)
    # IBV_WC_COMP_SWAP is 3, IBV_WC_FETCH_ADD 4
    assert [(wc.status, wc.opcode, wc.byte_len) for wc in done] == [(0, kind, 8) for kind in kinds]
    assert [word(one, 8 * n) for n in range(24)] == before
    assert [word(other, 8 * at) for at in range(4)] == values
    assert other.mr.read(8, 32) == bytes(8)
    assert one.qp.qp.reads == other.qp.qp.inbound_reads == 0


@pytest.mark.parametrize(
    ("opcode", "at", "access", "status"),
    [
        (CAS, 8, ALL, 0), (FAA, 8, ALL, 0), (READ, 3, ALL, 0),
        (CAS, 4, ALL, 9), (FAA, 1, ALL, 9),
        (CAS, 8, ALL & ~e.IBV_ACCESS_REMOTE_ATOMIC, 9), (FAA, 8, ALL & ~e.IBV_ACCESS_REMOTE_ATOMIC, 9),
        (CAS, 8, ALL & ~e.IBV_ACCESS_REMOTE_READ, 0), (READ, 8, ALL & ~e.IBV_ACCESS_REMOTE_READ, 9),
        (READ, 8, ALL & ~e.IBV_ACCESS_REMOTE_ATOMIC, 0), (CAS, 4096, ALL, 10), (READ, 4089, ALL, 10),
        (READ, 4088, ALL, 0),
    ],
)  # fmt: skip
def test_what_an_answer_needs(twin, opcode, at, access, status):
    """9: remote invalid request; 10: remote access error (ibv_wc_status)."""
    one, other = pair(twin, qp_access=access)
    one.mr.write(bytes(range(8)), 8)
    operands = None if opcode == READ else (5, 6)
    one.send(opcode, length=8, remote=other, at=at, operands=operands)
    assert one.statuses() == [status]
    place.world().settle()
    assert one.qp.qp.state == (qp_transitions.ERR if status else qp_transitions.RTS)
    assert other.qp.qp.state == (qp_transitions.ERR if status else qp_transitions.RTS)
    assert (one.mr.read(8, 0) == bytes(range(8))) == (status != 0)


@pytest.mark.parametrize("lengths", [(0,), (1,), (1023,), (1024,), (1025,), (4096, 1, 2048)])
@pytest.mark.parametrize("opcode", [e.IBV_WR_RDMA_WRITE, READ, e.IBV_WR_SEND])
def test_packet_numbers_go_on_by_packets_of_the_mtu(twin, lengths, opcode):
    """A message takes a number for each 1,024 bytes that it begins, and one where it has none; modulo 2^24."""
    one, other = pair(twin, path_mtu=3, sq_psn=(1 << 24) - 2, rq_psn=(1 << 24) - 2)
    for length in lengths:
        other.receive()
        one.send(opcode, length=length, remote=None if opcode == e.IBV_WR_SEND else other)
    assert one.statuses(len(lengths)) == [0] * len(lengths)
    place.world().settle()
    packets = sum(max(1, (length + 1023) // 1024) for length in lengths)
    expected = ((1 << 24) - 2 + packets) % (1 << 24)
    assert one.qp.qp.next_psn == other.qp.qp.expected_psn == expected


@pytest.mark.parametrize(("depth", "posted"), [(1, 1), (4, 4), (16, 12)])
def test_no_more_reads_are_under_way_than_both_ends_have_resources_for(twin, depth, posted):
    one, other = pair(twin, max_rd_atomic=depth, max_dest_rd_atomic=depth)
    most = 0
    for n in range(12):
        one.send(READ, wr_id=n, offset=8 * n, length=8, remote=other)
        most = max(most, one.qp.qp.reads)
    assert (most, one.qp.qp.reads, len(one.qp.qp.pending)) == (posted, posted, 12 - posted)
    assert [wc.wr_id for wc in one.done(12)] == list(range(12))
    assert one.qp.qp.reads == len(one.qp.qp.pending) == 0


@pytest.mark.parametrize(
    ("fence", "held"), [(0, False), (e.IBV_SEND_FENCE, True)]
)  # a fence waits for reads before it
def test_a_write_behind_a_read_waits_where_it_is_fenced(twin, fence, held):
    one, other = pair(twin)
    one.send(READ, length=8, remote=other)
    one.send(e.IBV_WR_RDMA_WRITE, offset=64, length=8, remote=other, at=64, flags=2 | fence)
    assert bool(one.qp.qp.pending) == held
    assert one.statuses(2) == [0, 0]


def test_a_read_of_nothing_and_a_long_one_bring_their_bytes(twin):
    one, other = pair(twin, size=20_000)
    data = random.Random(1).randbytes(20_000)
    other.mr.write(data, 20_000)
    one.send(READ, length=0, remote=other, rkey=1)
    one.send(READ, length=20_000, remote=other)
    assert [(wc.status, wc.byte_len) for wc in one.done(2)] == [(0, 0), (0, 20_000)]
    assert one.mr.read(20_000, 0) == data


# --- attributes ----------------------------------------------------------------------------------------------

INFINIBAND = Record(pkeys=[0xFFFF, 0x8001], mtu_bytes=2048, ethernet=False, gids=[b"", b""])


def vector(**fields: object) -> AddressVector:
    made = AddressVector()
    for name, value in {"port_num": 1, **fields}.items():
        object.__setattr__(made, name, value)
    return made


RANGES = (
    ("port_num", e.IBV_QP_PORT, 1, 1), ("pkey_index", e.IBV_QP_PKEY_INDEX, 0, 1),
    ("path_mtu", e.IBV_QP_PATH_MTU, 1, 4), ("timeout", e.IBV_QP_TIMEOUT, 0, 31),
    ("retry_cnt", e.IBV_QP_RETRY_CNT, 0, 7), ("rnr_retry", e.IBV_QP_RNR_RETRY, 0, 7),
    ("min_rnr_timer", e.IBV_QP_MIN_RNR_TIMER, 0, 31), ("max_rd_atomic", e.IBV_QP_MAX_QP_RD_ATOMIC, 0, 16),
    ("max_dest_rd_atomic", e.IBV_QP_MAX_DEST_RD_ATOMIC, 0, 16),
    ("dest_qp_num", e.IBV_QP_DEST_QPN, 0, (1 << 24) - 1),
)  # fmt: skip


@pytest.mark.parametrize(("name", "bit", "least", "most"), RANGES)
def test_attributes_count_by_their_bit_and_have_ends(name, bit, least, most):
    made = Attributes()
    for value, good in ((least, True), (most, True), (least - 1, False), (most + 1, False)):
        setattr(made, name, value)
        assert valid(made, int(bit), INFINIBAND) == good  # type: ignore[arg-type]
        others = 0
        for other, another, _, _ in RANGES:
            others |= 0 if other == name or other == "path_mtu" else int(another)
        assert valid(made, others, INFINIBAND)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ethernet", "fields", "good"),
    [
        (False, {}, True), (False, {"port_num": 2}, False), (False, {"port_num": 0}, False),
        (False, {"sl": 15}, True), (False, {"sl": 16}, False), (False, {"sl": -1}, False),
        (True, {"is_global": 0}, False), (True, {"is_global": 1}, True),
        (False, {"is_global": 1, "sgid_index": 1}, True), (False, {"is_global": 1, "sgid_index": 2}, False),
        (False, {"is_global": 1, "sgid_index": -1}, False), (False, {"is_global": 0, "sgid_index": 9}, True),
    ],
)  # fmt: skip
def test_addresses_name_a_port_a_level_and_a_source(ethernet, fields, good):
    made = Attributes()
    made.ah_attr = vector(**fields)
    adapter = Record(**{**vars(INFINIBAND), "ethernet": ethernet})
    assert valid(made, int(e.IBV_QP_AV), adapter) == good  # type: ignore[arg-type]


def test_codes_are_those_of_the_standard():
    """Volume 1: 9.7.5.1.3 (4.096 us times 2 to the code), table 45 (0.01 to 655.36 ms), ibv_mtu, ibv_rate."""
    assert [qp_checks.timeout_ps(code) for code in (0, 1, 14, 31)] == [
        0,
        8_192_000,
        67_108_864_000,
        4_096_000 << 31,
    ]
    assert (qp_checks.PSN_BITS, qp_checks.PSN_MASK, qp_checks.MAX_READS) == (24, 0xFFFFFF, 16)
    assert qp_checks.MTU_BYTES == {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
    assert qp_checks.MTU_CODES == {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
    ms = "655.36 .01 .02 .03 .04 .06 .08 .12 .16 .24 .32 .48 .64 .96 1.28 1.92 2.56 3.84 5.12 7.68 10.24 15.36 " \
        "20.48 30.72 40.96 61.44 81.92 122.88 163.84 245.76 327.68 491.52"  # fmt: skip
    assert [round(float(one) * 1e9) for one in ms.split()] == list(qp_checks.RNR_TIMER_PS)
    # IBV_RATE_2_5_GBPS = 2 and on, in the order of verbs.h
    gbps = {2: 2.5, 3: 10, 4: 30, 5: 5, 6: 20, 7: 40, 8: 60, 9: 80, 10: 120, 11: 14, 12: 56, 13: 112, 14: 168,
            15: 25, 16: 100, 17: 200, 18: 300, 19: 28, 20: 50, 21: 400, 22: 600, 23: 800, 24: 1200}  # fmt: skip
    assert {code: 1000 * rate for code, rate in gbps.items()} == qp_checks.STATIC_RATE_MBPS


def test_attributes_go_to_the_adapter_and_back_each_by_its_name():
    """Each number is another; what was not said is 0, but for the port."""
    plain = Attributes()
    numbers = [n for n in Attributes.__slots__ if n not in ("ah_attr", "alt_ah_attr")]
    assert {name: getattr(plain, name) for name in numbers if getattr(plain, name)} == {"port_num": 1}
    said = QPAttr()
    usual = {name: value for name, value in vars(said).items() if isinstance(value, int) and value}
    # IBV_QPS_INIT and IBV_MTU_1024
    assert usual == {"qp_state": 1, "port_num": 1, "path_mtu": 3}
    for at, name in enumerate(numbers):
        setattr(said, name, 100 + at)
    said.ah_attr.dlid, said.alt_ah_attr.dlid = 7, 9
    kept = said.plain()
    assert {name: getattr(kept, name) for name in numbers} == {name: 100 + at for at, name in enumerate(numbers)}
    assert (kept.ah_attr.dlid, kept.alt_ah_attr.dlid) == (7, 9)
    back = QPAttr.of(kept, state=3, cap=said.cap)
    assert {name: getattr(back, name) for name in numbers} == {
        name: 3 if name in ("qp_state", "cur_qp_state") else 100 + at for at, name in enumerate(numbers)
    }
    assert (back.ah_attr.dlid, back.alt_ah_attr.dlid, back.cap) == (7, 9, said.cap)
