"""Rules of a node's buffers, of configured ports and of their watchdogs one by one, on state of a few lines."""

from __future__ import annotations

import pytest
from support.plain_kernel import NONE, Record, plain

from fabrictwin.kernel.packet.events import QueueEvent, pack
from fabrictwin.kernel.packet.state import constants as c
from fabrictwin.kernel.packet.switch import buffer, pauses

# ---------------------------------------------------------------------- buffers of a node


@plain
@pytest.mark.parametrize(
    ("limit", "kind", "trim", "room", "forwarded"),
    [
        (0, c.DATA, 150, True, (c.DATA, 4178, 1, 3)),
        (5000, c.DATA, 150, True, (c.DATA, 4178, 1, 3)),
        (4999, c.DATA, 150, True, (c.TRIM, 150, 2, 2)),
        (4999, c.ACK, 150, True, (c.ACK, 4178, 1, 3)),
        (4999, c.DATA, 0, True, None),
        (5000, c.DATA, 150, False, None),
    ],
)
def test_a_full_queue_trims_or_drops(monkeypatch, limit, kind, trim, room, forwarded):
    """822 bytes wait already."""
    seen = []
    for name in ("enqueue", "drop"):
        monkeypatch.setattr(buffer, name, lambda state, *given, name=name: seen.append((name, *given)))
    asked = []
    monkeypatch.setattr(
        buffer, "admit_shared", lambda state, node, slot, wire, now: asked.append((slot, wire, now)) or room
    )
    node = Record(traits=c.SHARED, port_start=4)
    packet = Record(kind=kind, wire=4178, payload=4096, sl=3, vl=0, slot=21)
    state = Record(
        packet={9: packet}, port={7: Record(sl2vl=0, traits=0), 5: Record(traits=0)}, sl2vl={(0, 3): 1},
        settings=[Record(vl_bits=2, trim_wire=trim, trim_vl=2)], count={7: Record(trims=0)},
        outlet={29: Record(limit=limit, queued=822)},
    )  # fmt: skip
    buffer.forward(state, 9, 7, node, 100)
    if forwarded is None:
        assert seen == [("drop", 9, 7, 100, False)]
        assert asked == ([] if not trim else [(21, 4178, 100)])
    else:
        assert seen == [("enqueue", 7, 9)]
        assert (packet.kind, packet.wire, packet.vl, packet.sl) == forwarded
        assert (state.count[7].trims, packet.payload) == ((1, 0) if forwarded[0] == c.TRIM else (0, 4096))
        assert asked == [(21, packet.wire, 100)]


@plain
def test_a_lane_is_chosen_by_level_and_where_told_by_input(monkeypatch):
    monkeypatch.setattr(buffer, "enqueue", lambda *given: None)
    for traits, slot, lane in ((0, 21, 1), (c.BY_INPUT, 16, 1), (c.BY_INPUT, 21, 2), (c.BY_INPUT, 27, 3)):
        packet = Record(kind=c.DATA, wire=10, sl=3, vl=0, slot=slot)
        state = Record(
            packet={9: packet}, port={7: Record(sl2vl=10, traits=traits)}, settings=[Record(vl_bits=2)],
            sl2vl={(10, 3): 1, (11, 3): 2, (12, 3): 3},
        )  # fmt: skip
        buffer.forward(state, 9, 7, Record(traits=0, port_start=4), 100)
        assert packet.vl == lane


@plain
def test_a_credit_link_s_packets_have_room_already(monkeypatch):
    seen = []
    monkeypatch.setattr(buffer, "enqueue", lambda state, at, p: seen.append(p))
    monkeypatch.setattr(buffer, "admit_shared", lambda *given: False)
    monkeypatch.setattr(buffer, "drop", lambda *given: seen.append("drop"))
    for traits in (c.CREDIT, 0):
        state = Record(
            packet={9: Record(kind=c.DATA, wire=10, sl=3, slot=21)}, sl2vl={(0, 3): 1},
            settings=[Record(vl_bits=2)],
            port={7: Record(sl2vl=0, traits=0), 5: Record(traits=traits)}, outlet={29: Record(limit=0)},
        )  # fmt: skip
        buffer.forward(state, 9, 7, Record(traits=c.SHARED, port_start=4), 100)
    assert seen == [9, "drop"]


@plain
@pytest.mark.parametrize(
    ("capacity", "traits", "name"),
    [(9, 0, "return_credits"), (9, c.SHARED, "return_credits"), (0, c.SHARED, "release_shared"),
     (0, c.SHARED | c.CONFIGURED, "release_configured"), (0, 0, None), (0, c.CONFIGURED, None)],
)  # fmt: skip
def test_a_buffer_is_released_as_it_was_taken(monkeypatch, capacity, traits, name):
    seen = []
    for one in ("return_credits", "release_shared", "release_configured"):
        monkeypatch.setattr(buffer, one, lambda *given, one=one: seen.append(one))
    buffer.release(Record(inlet={21: Record(capacity=capacity)}), Record(traits=traits), 21, 10, 100)
    assert seen == ([name] if name else [])
    seen.clear()
    for traits_ in (c.CREDIT, 0):
        buffer.consume(Record(port={5: Record(traits=traits_)}, settings=[Record(vl_bits=2)]), 21, 10, 100)
    assert seen == ["return_credits"]


@plain
@pytest.mark.parametrize("kind", [c.DATA, c.TRIM, c.ACK])
@pytest.mark.parametrize(("held", "slot"), [(True, 21), (True, NONE), (False, 21)])
def test_a_dropped_packet_is_counted_and_gives_back_what_it_held(monkeypatch, kind, held, slot):
    seen = []
    for name in ("release", "free_packet", "lose_message"):
        monkeypatch.setattr(buffer, name, lambda state, *given, name=name: seen.append((name, *given)))
    clock, count, node = Record(dropped=0, lost_control=0), Record(discards=0), Record()
    state = Record(
        packet={9: Record(kind=kind, qp=0, slot=slot, wire=10)}, clock=[clock], qp=[Record(noted=1)],
        count={7: count},
        node=[node], port={7: Record(node=0)},
    )  # fmt: skip
    buffer.drop(state, 9, 7, 100, held)
    data = kind != c.ACK
    assert (clock.dropped, clock.lost_control, count.discards) == (int(data), int(not data), 1)
    released = [("release", node, 21, 10, 100)] if held and slot != NONE else []
    assert seen == ([("lose_message", 9)] if data else []) + released + [("free_packet", 9)]


@plain
def test_queues_keep_their_order_and_their_peak(monkeypatch):
    kicked = []
    monkeypatch.setattr(buffer, "kick", lambda state, at: kicked.append(at))
    port = Record(queue_width=1, busy=0, backlog=0, node=0)
    outlet = Record(head=NONE, tail=NONE, queued=0, peak=250)
    rows = {p: Record(vl=1, wire=100 * p, next=5, slot=NONE) for p in (1, 2)}
    state = Record(
        port={7: port}, packet=rows, settings=[Record(vl_bits=1)], outlet={15: outlet}, queued={7: 1000}
    )
    buffer.enqueue(state, 7, 1)
    port.busy = 1
    buffer.enqueue(state, 7, 2)
    assert (outlet.head, outlet.tail, rows[1].next, rows[2].next) == (1, 2, 2, NONE)
    assert (outlet.queued, outlet.peak, state.queued[7], port.backlog, kicked) == (300, 300, 1300, 2, [7])


@plain
def test_inputs_of_a_node_have_queues_of_their_own(monkeypatch):
    monkeypatch.setattr(buffer, "kick", lambda state, at: None)
    port = Record(queue_width=3, queue_start=40, busy=0, backlog=0, node=0)
    outlet = Record(head=NONE, tail=NONE, queued=0, peak=0)
    slots = {1: 2 * 12 + 1, 2: 2 * 11, 3: 2 * 12, 4: NONE}  # by input: third, second, third port; from here
    rows = {p: Record(vl=1, wire=1, next=9, slot=slot) for p, slot in slots.items()}
    queue = {at: Record(head=NONE, tail=NONE, next=NONE) for at in range(40, 49)}
    state = Record(
        port={7: port}, packet=rows, settings=[Record(vl_bits=1)], outlet={15: outlet}, queued={7: 0}, queue=queue,
        node=[Record(port_start=10)],
    )  # fmt: skip
    for p in rows:
        buffer.enqueue(state, 7, p)
    held = {at: (one.head, one.tail) for at, one in queue.items() if one.head != NONE}
    assert held == {45: (1, 3), 44: (2, 2), 43: (4, 4)}
    assert (outlet.head, queue[45].next, queue[44].next, queue[43].next, outlet.tail) == (45, 44, 43, NONE, 43)


@plain
def test_a_pause_frame_stands_behind_other_pause_frames(monkeypatch):
    made = iter([4, 5, NONE])
    monkeypatch.setattr(buffer, "take_packet", lambda state: next(made))
    monkeypatch.setattr(buffer, "kick", lambda state, at: None)
    port, count = Record(control_head=NONE, control_tail=NONE), Record(pause_tx=0)
    rows = {4: Record(next=NONE), 5: Record(next=NONE)}
    state = Record(
        settings=[Record(vl_bits=2, pause_wire=84)],
        port={5: port},
        packet=rows,
        queued={5: 1000},
        count={5: count},
    )
    for xoff in (1, 0, 1):
        buffer.send_pause(state, 22, xoff)
    assert (port.control_head, port.control_tail, rows[4].next) == (4, 5, 5)
    assert [(one.kind, one.qp, one.dst, one.vl, one.psn, one.wire, one.payload) for one in rows.values()] == [
        (c.PAUSE, NONE, NONE, 2, 1, 84, 0), (c.PAUSE, NONE, NONE, 2, 0, 84, 0),
    ]  # fmt: skip
    assert (state.queued[5], count.pause_tx) == (1168, 1)


# ---------------------------------------------------------------------- configured ports


class Configured:
    """A configured inlet of 1,024 bytes of its own, a pool of 10,240 at alpha 1/2, cells of 256, headroom 512."""

    def __init__(self, monkeypatch, **more):
        self.pauses: list[tuple[int, int]] = []
        monkeypatch.setattr(buffer, "send_pause", lambda state, slot, xoff: self.pauses.append((slot, xoff)))
        monkeypatch.setattr(buffer, "push_heap", lambda *given: None)
        self.inlet = Record(held=0, headroom=0, headroom_limit=512, xoff=0, refresh=0)
        self.rule = Record(reserve=1024, sends=1, threshold=NONE, alpha_q=128, most_headroom=0, resume=256)
        self.node = Record(shared_limit=10_240, shared_used=0, shared_peak=0)
        for name, value in more.items():
            setattr(next(one for one in (self.rule, self.inlet) if hasattr(one, name)), name, value)
        ports = {5: Record(cell=256, frame=0, forwards=0), 7: Record(cell=1, frame=0, forwards=0)}
        self.queue = Record(storm=0, storm_drops=0)
        self.state = Record(
            settings=[Record(vl_bits=2, gap=20)], port_qos=ports, slot_qos={29: self.queue, 21: self.rule},
            inlet={21: self.inlet}, port={5: Record(ps_q=80 << 20)},
        )  # fmt: skip

    def admit(self, wire):
        return buffer.admit_configured(self.state, self.node, Record(slot=21, wire=wire), 7, 1, 50)

    @property
    def sums(self):
        return self.inlet.held, self.node.shared_used, self.inlet.headroom


@plain
@pytest.mark.parametrize(
    ("cell", "wire", "size"), [(256, 276, 256), (256, 277, 512), (1, 277, 257), (0, 277, 257), (2, 277, 258)]
)
def test_a_configured_buffer_counts_whole_cells_without_the_gap(cell, wire, size):
    state = Record(settings=[Record(gap=20, vl_bits=2)], port_qos={5: Record(cell=cell)})
    assert buffer.cell_bytes(state, 21, wire) == size


@plain
def test_a_configured_buffer_fills_from_its_reserve_to_its_headroom(monkeypatch):
    made = Configured(monkeypatch)
    assert made.admit(1024 + 20)
    assert made.sums == (1024, 0, 0)
    assert made.admit(3000)  # 3,072 in cells
    assert made.sums == (4096, 3072, 0)
    assert (made.pauses, made.node.shared_peak) == ([], 3072)
    assert made.admit(276)  # below (10,240 - 3,072) / 2 = 3,584 before, and after
    assert made.admit(300)  # crosses 3,456: the peer is told, the packet still goes there
    assert (made.sums, made.pauses) == ((4864, 3840, 0), [(21, 1)])
    assert made.admit(256)  # and then the headroom
    assert made.admit(276)
    assert not made.admit(30)
    assert (made.sums, made.rule.most_headroom, len(made.pauses)) == ((4864, 3840, 512), 512, 1)
    buffer.release_configured(made.state, made.node, 21, 276)
    assert made.sums == (4864, 3840, 256)
    buffer.release_configured(made.state, made.node, 21, 276)
    assert (made.sums, made.inlet.xoff) == ((4864, 3840, 0), 1)
    # over + 256 to resume at most (10,240 - used) / 2: 3,328 leaves 3,456, so that 3,072 fits
    buffer.release_configured(made.state, made.node, 21, 276 + 256)
    assert (made.sums, made.inlet.xoff) == ((4352, 3328, 0), 1)
    buffer.release_configured(made.state, made.node, 21, 276)
    assert (made.sums, made.inlet.xoff, made.pauses[-1]) == ((4096, 3072, 0), 0, (21, 0))


@plain
def test_a_static_threshold_and_a_priority_that_sends_no_pause(monkeypatch):
    made = Configured(monkeypatch, threshold=512, sends=0)
    assert buffer.configured_threshold(made.node, made.rule) == 512
    assert made.admit(1024 + 512 + 20)
    assert made.admit(276)
    assert (made.pauses, made.sums) == ([], (1536, 512, 256))
    made = Configured(monkeypatch, threshold=0)
    assert buffer.configured_threshold(made.node, made.rule) == 0
    assert made.admit(1024 + 20)
    assert made.admit(276)
    assert (made.sums, made.pauses) == ((1024, 0, 256), [(21, 1)])
    made = Configured(monkeypatch, threshold=NONE)
    made.node.shared_used = 10_240  # the pool is empty
    assert not made.admit(1024 + 256 + 20)  # more than the headroom
    assert made.admit(1024 + 20)
    assert made.admit(276)
    assert made.sums == (1024, 10_240, 256)


@plain
@pytest.mark.parametrize(("storm", "forwards", "taken"), [(0, 0, True), (1, 0, False), (1, 1, True)])
def test_a_queue_in_a_storm_takes_nothing_unless_its_watchdog_sends_on(monkeypatch, storm, forwards, taken):
    made = Configured(monkeypatch)
    made.queue.storm, made.state.port_qos[7].forwards = storm, forwards
    assert bool(made.admit(100)) == taken
    assert made.queue.storm_drops == (not taken)


@plain
@pytest.mark.parametrize(
    ("traits", "came", "own", "lane"),
    [(c.RULED, 2, 3, 6), (c.RULED, NONE, 3, 7), (c.RULED, NONE, NONE, 1), (0, 2, 3, 1)],
)
def test_a_configured_node_sends_by_the_map_of_the_port_that_a_packet_came_by(traits, came, own, lane):
    state = Record(
        settings=[Record(vl_bits=2)], port_qos={5: Record(queue_row=came), 7: Record(queue_row=own)},
        sl2vl={(2, 4): 6, (3, 4): 7},
    )  # fmt: skip
    found = buffer.configured_lane(state, Record(traits=traits), Record(slot=21, sl=4), 7, 1)
    assert found == lane


@plain
@pytest.mark.parametrize(("row", "slot"), [(2, 26), (0, 25), (NONE, 27)])
def test_a_configured_port_classifies_what_comes_in(row, slot):
    state = Record(settings=[Record(vl_bits=2)], port_qos={6: Record(group_row=row)}, sl2vl={(2, 4): 2, (0, 4): 1})
    assert pauses.classified(state, 6, Record(vl=3, sl=4)) == slot


@plain
@pytest.mark.parametrize(
    ("xoff", "obeys", "storm", "response", "effect"),
    [(1, 0b100, 0, 0, "now"), (1, 0b100, 0, 70, "later"), (1, 0b011, 0, 0, None), (1, 0b100, 1, 0, None),
     (0, 0b100, 0, 0, "now"), (0, 0b100, 0, 70, "later")],
)  # fmt: skip
def test_a_configured_port_obeys_its_priorities_after_its_response_time(
    monkeypatch, xoff, obeys, storm, response, effect
):
    seen = []
    monkeypatch.setattr(pauses, "push_heap", lambda state, time, what: seen.append((time, what)))
    monkeypatch.setattr(pauses, "take_pause", lambda state, *given: seen.append(given))
    monkeypatch.setattr(pauses, "free_packet", lambda state, p: None)
    queue = Record(storm=storm, last_pause=5)
    state = Record(
        packet={9: Record(vl=2, psn=xoff)}, settings=[Record(vl_bits=2)], count={6: Record(pause_rx=0)},
        port={6: Record(traits=c.RULED)}, port_qos={6: Record(obeys=obeys, response_ps=response)},
        slot_qos={26: queue},
    )  # fmt: skip
    pauses.on_pause(state, 6, 9, 100)
    expected = {
        "now": [(6, 26, xoff, 100)],
        "later": [(170, pack(QueueEvent.PAUSE_TAKES, 6, 52 | xoff))],
        None: [],
    }
    assert seen == expected[effect]
    assert (queue.last_pause, state.count[6].pause_rx) == ((100, 1) if xoff else (5, 0))


class Watched:
    """Lane 2 of port 6: paused since 100, a watchdog of 1,000 that restores after 300."""

    def __init__(self, monkeypatch, **more):
        self.events: list[int] = []
        self.kicked: list[int] = []
        self.dropped: list[int] = []
        monkeypatch.setattr(pauses, "push_heap", lambda state, time, what: self.events.append(time))
        monkeypatch.setattr(pauses, "kick", lambda state, at: self.kicked.append(at))
        monkeypatch.setattr(pauses, "drop", lambda state, p, at, now, held: self.dropped.append((p, held)))
        self.rule = Record(detection_ps=1000, restoration_ps=300, forwards=0)
        self.queue = Record(storm=0, watching=1, last_pause=100, storms=0, storm_drops=0)
        self.port = Record(paused=0b110, queue_width=1)
        self.outlet = Record(last_tx=0, queued=300, head=3, tail=4)
        self.hold = Record(paused_since=100, pause_ps=7)
        for name, value in more.items():
            homes = (self.rule, self.queue, self.port, self.outlet, self.hold)
            setattr(next(one for one in homes if hasattr(one, name)), name, value)
        self.state = Record(
            port_qos={6: self.rule}, slot_qos={26: self.queue}, port={6: self.port}, outlet={26: self.outlet},
            settings=[Record(vl_bits=2)], hold={26: self.hold}, queued={6: 900},
            packet={3: Record(next=4, wire=100), 4: Record(next=NONE, wire=200)},
        )  # fmt: skip

    def look(self, now):
        self.events.clear()
        pauses.on_watchdog(self.state, 6, 26, now)
        return self.events


@plain
@pytest.mark.parametrize("forwards", [0, 1])
def test_a_lane_paused_for_too_long_is_a_storm_until_no_pause_comes(monkeypatch, forwards):
    made = Watched(monkeypatch, forwards=forwards)
    assert made.look(1099) == [1100]
    assert made.queue.storm == 0
    assert made.look(1100) == [1400]
    assert (made.queue.storm, made.queue.storms, made.port.paused, made.hold.pause_ps) == (1, 1, 0b010, 1007)
    assert (made.dropped, made.queue.storm_drops) == (([], 0) if forwards else ([(3, True), (4, True)], 2))
    assert (made.outlet.queued, made.state.queued[6]) == ((300, 900) if forwards else (0, 600))
    assert made.kicked == [6]
    made.queue.last_pause = 1350
    assert made.look(1400) == [1650]
    assert made.look(1650) == []
    assert (made.queue.storm, made.queue.watching, made.kicked) == (0, 0, [6, 6])


@plain
def test_a_watchdog_counts_from_the_last_packet_and_needs_one_that_waits(monkeypatch):
    assert Watched(monkeypatch, last_tx=600).look(1100) == [1600]
    assert Watched(monkeypatch, queued=0).look(1100) == [2100]
    made = Watched(monkeypatch, paused=0b010)
    assert made.look(1100) == []
    assert (made.queue.watching, made.queue.storm) == (0, 0)


@plain
@pytest.mark.parametrize(("detection", "watching", "watches"), [(1000, 0, True), (0, 0, False), (1000, 1, False)])
def test_a_watchdog_starts_with_a_pause(monkeypatch, detection, watching, watches):
    made = Watched(monkeypatch, detection_ps=detection, watching=watching)
    pauses.watch(made.state, 6, 26, 500)
    assert made.events == ([1500] if watches else [])
    assert made.queue.watching == (watching or watches)


@plain
def test_an_adapter_that_is_stuck_pauses_without_end(monkeypatch):
    seen = []
    for name in ("set_xoff", "send_pause", "kick", "transmit_kicked"):
        monkeypatch.setattr(pauses, name, lambda state, *given, name=name: seen.append((name, *given)))
    inlet = Record(xoff=0)
    state = Record(inlet={26: inlet}, settings=[Record(vl_bits=2)])
    pauses.force_pause(state, 26, True, 100)
    assert (inlet.xoff, seen) == (c.STUCK, [("set_xoff", 26, 100), ("kick", 6), ("transmit_kicked", 100)])
    seen.clear()
    pauses.force_pause(state, 26, False, 200)
    assert (inlet.xoff, seen) == (0, [("send_pause", 26, 0), ("kick", 6), ("transmit_kicked", 200)])
