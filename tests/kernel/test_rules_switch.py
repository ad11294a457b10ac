"""Rules of a switch one by one, on state of a few lines: routes, arbitration, buffers."""

from __future__ import annotations

import random

import pytest
from support.plain_kernel import NONE, Record, plain

from fabrictwin.kernel.packet.events import KIND_SHIFT, PORT_SHIFT, VL_SHIFT, QueueEvent
from fabrictwin.kernel.packet.switch import arbitration, buffer, route


@plain
def test_a_switch_looks_packets_up():
    node = Record(row=1, port_start=40, seed=77)
    ends = {5: Record(edge_row=1, edge_port=44, lid=9, edge=2), 6: Record(edge_row=0, edge_port=3, lid=9, edge=2)}
    state = Record(
        endpoint=ends, settings=[Record(balance=0)], lft={(1, 9): 4}, group_of={(1, 2): 0},
        group_start=[0, 3], group_ports=[40, 41, 42], queued=dict.fromkeys(range(60), 0),
    )  # fmt: skip
    packet = Record(dst=6, hop=0, hop_end=0, entropy=1, psn=0)
    assert route.look_up(state, node, packet) == 43  # port 4 of the table, counted from 1
    for held in (0, 255):
        state.lft[1, 9] = held
        assert route.look_up(state, node, packet) == NONE
    assert route.look_up(state, node, Record(dst=5, entropy=0, psn=0)) == 44  # at its own switch
    assert route.look_up(state, node, Record(dst=-1)) == NONE
    assert route.look_up(state, Record(row=-1), packet) == NONE
    for balance in (1, 2):
        state.settings[0].balance = balance
        used = {route.look_up(state, node, Record(dst=6, entropy=e, psn=0)) for e in range(60)}
        assert used == {40, 41, 42}
        state.group_of[1, 2] = NONE
        assert route.look_up(state, node, packet) == NONE
        state.group_of[1, 2] = 0
    state.queued.update({40: 5, 41: 3, 42: 9})
    assert {route.look_up(state, node, Record(dst=6, entropy=e, psn=e)) for e in range(60)} == {41}


@plain
@pytest.mark.parametrize(
    ("queued", "at", "best"),
    [([5, 5, 5], 1, 1), ([5, 5, 5], 2, 2), ([5, 4, 5], 2, 1), ([0, 0, 9], 1, 1), ([3, 9, 3], 1, 2),
     ([3, 9, 2], 0, 2), ([1, 9, 9], 1, 0)],
)  # fmt: skip
def test_the_shortest_queue_is_taken_from_a_place_on(queued, at, best):
    state = Record(group_ports=[99, 7, 8, 9], queued={7: queued[0], 8: queued[1], 9: queued[2]})
    assert route.choose_shortest(state, 1, 3, at) == 7 + best


@plain
def test_named_hops_come_first():
    state = Record(hop=[11, 12, 13])
    packet = Record(hop=1, hop_end=3, dst=-1)
    assert [route.route(state, Record(row=0), packet) for _ in range(3)] == [12, 13, NONE]
    assert packet.hop == 3


# ---------------------------------------------------------------------- arbitration


@plain
@pytest.mark.parametrize(("lanes", "found"), [(1, 0), (2, 1), (3, 1), (0b10100, 4), (0x8000, 15)])
def test_the_highest_lane(lanes, found):
    assert arbitration.highest(lanes) == found


def tables(low, high, *, limit=4096, row=0):
    """A port with two tables of (lane, weight), 64 entries each."""
    entries = {}
    for table, listed in ((0, high), (1, low)):
        for at in range(64):
            lane, weight = listed[at] if at < len(listed) else (0, 0)
            entries[(row * 2 + table) * 64 + at, 0], entries[(row * 2 + table) * 64 + at, 1] = lane, weight
    arbiter = Record(row=row, low_at=0, low_left=0, high_at=0, high_left=0, budget=limit, pick=NONE, pick_table=1)
    return Record(arbitration=entries, arbiter=[arbiter], high_limit={row: limit}), arbiter


def served(state, eligible, wires):
    lanes = []
    for wire in wires:
        lanes.append(arbitration.from_tables(state, 0, eligible))
        arbitration.charge(state, 0, wire)
    return lanes


@plain
@pytest.mark.parametrize("row", [0, 2])
def test_entries_are_served_by_weight_in_a_circle(row):
    state, _ = tables([(1, 2), (2, 1), (3, 0), (1, 1)], [], row=row)
    # weights count 64 bytes; the first turn goes to the entry behind the present one
    assert served(state, 0b110, [64] * 9) == [2, 1, 1, 1, 2, 1, 1, 1, 2]
    state, _ = tables([(1, 2), (2, 1)], [])
    assert served(state, 0b110, [65] * 5) == [2, 1, 2, 1, 2]  # two blocks each, the last may go beyond
    assert served(state, 0b010, [64] * 3) == [1, 1, 1]


@plain
def test_the_high_table_has_its_limit():
    state, arbiter = tables([(0, 1)], [(5, 255)], limit=2 * 4096)
    assert served(state, 0b100001, [4096] * 6) == [5, 5, 0, 5, 5, 0]
    assert arbiter.budget == 2 * 4096
    state, _ = tables([(0, 1)], [(5, 255)], limit=1)
    assert served(state, 0b100001, [64] * 4) == [5, 0, 5, 0]
    state, _ = tables([(0, 1)], [(5, 255)], limit=1)
    assert served(state, 0b100000, [64] * 3) == [5, 5, 5]  # nothing low waits


@plain
def test_a_turn_is_taken_when_a_packet_leaves():
    state, arbiter = tables([(1, 1), (2, 1)], [])
    assert [arbitration.from_tables(state, 0, 0b110) for _ in range(3)] == [2, 2, 2]
    port = Record(traits=arbitration.ARBITRATED)
    arbiter.budget = 0
    assert arbitration.arbitrate(state, 0, port, 0b100) == 2  # alone: no table is asked
    assert arbiter.pick == NONE
    arbitration.charge(state, 0, 64)
    assert arbiter.budget == 4096
    assert arbitration.arbitrate(state, 0, port, 0b110) == 2


def lanes_of(weights, strict=0):
    port = Record(traits=0, strict=strict, wrr=0)
    state = Record(
        settings=[Record(vl_bits=2)], outlet=[Record(deficit=0) for _ in range(12)],
        hold=[Record(quantum=0) for _ in range(8)] + [Record(quantum=w) for w in weights],
    )  # fmt: skip
    return state, port


@plain
def test_ethernet_serves_strict_lanes_first_and_the_others_by_deficit():
    state, port = lanes_of([300, 100, 100, 100], strict=0b1000)
    assert arbitration.arbitrate(state, 2, port, 0b1011) == 3
    taken = []
    for _ in range(8):
        vl = arbitration.arbitrate(state, 2, port, 0b0011)
        state.outlet[8 + vl].deficit -= 100
        taken.append(vl)
    assert taken == [1, 0, 0, 0, 1, 0, 0, 0]
    assert arbitration.arbitrate(state, 2, port, 0b0100) == 2
    state, port = lanes_of([100] * 4)
    taken = []
    for _ in range(6):
        vl = arbitration.arbitrate(state, 2, port, 0b1101)
        state.outlet[8 + vl].deficit -= 100
        taken.append(vl)
    assert taken == [2, 3, 0, 2, 3, 0]
    state, port = lanes_of([100] * 4)
    state.outlet[9].deficit = 70  # an empty lane saves nothing up
    arbitration.arbitrate(state, 2, port, 0b0011)
    assert state.outlet[9].deficit == 100
    state.outlet[9].deficit = -30
    port.wrr = 0
    arbitration.arbitrate(state, 2, port, 0b0011)
    assert state.outlet[9].deficit == 70


# ---------------------------------------------------------------------- buffers


@plain
@pytest.mark.parametrize(("wire", "count"), [(1, 1), (64, 1), (65, 2), (128, 2), (4096, 64)])
def test_credits_are_blocks_of_64_bytes(wire, count):
    assert buffer.blocks(wire) == count


@plain
def test_a_pause_holds_for_65535_quanta():
    # 512 bit times each: at 100 Gb/s a byte takes 80 ps
    assert buffer.pause_ps(Record(ps_q=80 << 20)) == 65535 * 512 // 8 * 80


class Shared:
    """A shared buffer of one inlet: 1000 bytes of its own, a pool of 10,000 at alpha 1/2, 500 of headroom."""

    def __init__(self, monkeypatch, *, lossless=1):
        self.pauses: list[tuple[int, int]] = []
        monkeypatch.setattr(buffer, "send_pause", lambda state, slot, xoff: self.pauses.append((slot, xoff)))
        self.inlet = Record(
            held=0, headroom=0, headroom_limit=500, lossless=lossless, xoff=0, refresh=0, capacity=0
        )
        self.node = Record(
            reserve=1000, shared_limit=10_000, shared_used=0, shared_peak=0, alpha_q=128, resume=300, traits=4
        )
        self.state = Record(inlet={6: self.inlet}, settings=[Record(vl_bits=1)], port={3: Record(ps_q=80 << 20)})

    def admit(self, wire):
        return buffer.admit_shared(self.state, self.node, 6, wire, 50)

    def release(self, wire):
        buffer.release_shared(self.state, self.node, 6, wire)

    @property
    def sums(self):
        return self.inlet.held, self.node.shared_used, self.inlet.headroom


@plain
def test_a_shared_buffer_fills_from_its_reserve_to_its_headroom(monkeypatch, scheduled):
    shared = Shared(monkeypatch)
    assert shared.admit(1000)
    assert shared.sums == (1000, 0, 0)
    assert shared.admit(400)
    assert shared.sums == (1400, 400, 0)
    assert buffer.threshold(shared.node) == (10_000 - 400) // 2
    assert shared.admit(4400)  # as much over the reserve as the threshold allows
    assert shared.sums == (5800, 4800, 0)
    assert (shared.node.shared_peak, shared.pauses) == (4800, [])
    assert shared.admit(300)
    assert shared.sums == (5800, 4800, 300)
    assert (shared.pauses, shared.inlet.xoff) == ([(6, 1)], 1)
    assert scheduled == [(50 + buffer.pause_ps(Record(ps_q=80 << 20)) // 2, QueueEvent.PAUSE_REFRESH, 0, 6)]
    assert shared.admit(200)
    assert not shared.admit(1)
    assert shared.sums == (5800, 4800, 500)
    assert len(shared.pauses) == 1
    shared.release(400)
    assert shared.sums == (5800, 4800, 100)
    shared.release(200)
    assert shared.sums == (5700, 4700, 0)
    assert shared.inlet.xoff == 1
    shared.release(1000)
    # over by 3,700; with the 300 to resume at it must fit below (10,000 - 3,700) / 2
    assert (shared.sums, shared.inlet.xoff) == ((4700, 3700, 0), 1)
    shared.release(566)
    assert shared.inlet.xoff == 1
    shared.release(2)
    assert (shared.inlet.xoff, shared.pauses[-1]) == (0, (6, 0))
    shared.release(4132 - 900)
    assert shared.sums == (900, 0, 0)
    assert shared.node.shared_peak == 4800


@plain
def test_a_packet_across_the_reserve_takes_its_part_of_the_pool(monkeypatch):
    shared = Shared(monkeypatch)
    assert shared.admit(900)
    assert shared.admit(300)
    assert shared.sums == (1200, 200, 0)
    shared.release(300)
    assert shared.sums == (900, 0, 0)


@plain
def test_a_lossy_lane_has_no_headroom(monkeypatch):
    shared = Shared(monkeypatch, lossless=0)
    assert not shared.admit(6001)
    assert shared.admit(6000)
    assert shared.pauses == []


@plain
def test_pauses_are_renewed_while_they_last(monkeypatch, scheduled):
    shared = Shared(monkeypatch)
    buffer.set_xoff(shared.state, 6, 10)
    assert (shared.inlet.xoff, shared.inlet.refresh, shared.pauses) == (1, 1, [(6, 1)])
    buffer.set_xoff(shared.state, 6, 20)
    assert len(scheduled) == 1
    buffer.refresh_pause(shared.state, 6, 1000)
    half = buffer.pause_ps(Record(ps_q=80 << 20)) // 2
    assert [time for time, *_ in scheduled] == [10 + half, 1000 + half]
    assert len(shared.pauses) == 3
    shared.inlet.xoff = 0
    buffer.refresh_pause(shared.state, 6, 2000)
    assert (shared.inlet.refresh, len(scheduled), len(shared.pauses)) == (0, 2, 3)


@plain
def test_credits_are_returned_in_batches(monkeypatch):
    sent: list[tuple] = []
    monkeypatch.setattr(
        buffer, "push_to_peer", lambda state, port, lane, time, what: sent.append((lane, time, what))
    )
    inlet = Record(held=100, unreturned=0, batch=4)
    port = Record(lane_credit=8, credit_ps=30, peer=17, traits=0)
    state = Record(inlet={13: inlet}, settings=[Record(vl_bits=2)], port={3: port})
    buffer.return_credits(state, 13, 129, 1000)
    assert (inlet.held, inlet.unreturned, sent) == (97, 3, [])
    buffer.return_credits(state, 13, 64, 1001)
    assert (inlet.held, inlet.unreturned) == (96, 0)
    assert sent == [(8, 1031, QueueEvent.CREDITS << KIND_SHIFT | 17 << PORT_SHIFT | 1 << VL_SHIFT | 4)]


@plain
@pytest.mark.parametrize(
    ("length", "least", "most"), [(100, 0, 0), (150, 0.4, 0.6), (125, 0.17, 0.33), (200, 1, 1)]
)
def test_marks_are_drawn_between_two_lengths(monkeypatch, length, least, most):
    drawn = random.Random(3)
    monkeypatch.setattr(buffer, "draw", lambda clock: drawn.randrange(2**32))
    outlet, pmax_q = Record(queued=length, kmin=100, kmax=200), 2**32 - 1
    share = sum(bool(buffer.mark(None, None, outlet, pmax_q)) for _ in range(400)) / 400
    assert least <= share <= most


@plain
@pytest.mark.parametrize(
    ("length", "drawn", "marked"),
    [(100, 0, False), (101, 0, True), (150, 499, True), (150, 500, False), (199, 989, True), (199, 990, False),
     (200, 10**9, True), (201, 10**9, True)],
)  # fmt: skip
def test_the_chance_of_a_mark_rises_to_its_most_and_then_to_one(monkeypatch, length, drawn, marked):
    monkeypatch.setattr(buffer, "draw", lambda clock: drawn)
    assert bool(buffer.mark(None, None, Record(queued=length, kmin=100, kmax=200), 1000)) == marked
