"""Communications inside hosts that are taken as played: the same times, counters and bytes as playing them all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import packet_runs
from support.packet_runs import US, begins_after, results, two_hosts
from support.programs import operations

from fabrictwin.base.grouped import grouped
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.engines.packet.repetition.program_front import ProgramFront
from fabrictwin.fabric.fabric import NONE
from fabrictwin.program import collectives

KIB = 1 << 10


COMMUNICATIONS = [
    begins_after(collectives.all_reduce(np.arange(8)[None], 96 * KIB, channels=2)),
    begins_after(collectives.all_gather(np.arange(4)[None], 40 * KIB)),
    begins_after(collectives.all_reduce(np.arange(8, 16)[None], 64 * KIB)),
    begins_after(collectives.send(np.array([[0, 8]]), 200 * KIB)),
    begins_after(collectives.all_reduce(np.array([[4, 5, 12, 13]]), 64 * KIB)),
]


def played(twin, program, communications=COMMUNICATIONS, **options) -> PacketEngine:
    return packet_runs.played(twin, program, communications, **options)


@st.composite
def programs(draw):
    """Operations of several streams, each behind the one before in its stream, some behind another's."""
    which, after, durations = [], [], []
    last: dict[int, int] = {}
    pool = draw(st.sampled_from([[0, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]))  # the last leaves a host by shared ports
    for i in range(draw(st.integers(6, 24))):
        stream = draw(st.integers(0, 2))
        which.append(draw(st.sampled_from([NONE, NONE, *pool])))
        durations.append(draw(st.sampled_from([1, 20 * US, 60 * US, 200 * US])) if which[-1] == NONE else 0)
        before = {last[stream]} if stream in last else set()
        if i and draw(st.integers(0, 3)) == 0:
            before.add(draw(st.integers(0, i - 1)))
        after.append(sorted(before))
        last[stream] = i
    return which, after, durations


@pytest.mark.second
@settings(max_examples=12)
@given(programs(), st.sampled_from(["infiniband", "ethernet"]))
def test_whatever_the_program_nothing_differs_from_playing_all_of_it(program, technology):
    twin = two_hosts(technology)
    assert results(played(twin, program)) == results(played(twin, program, repeats=False))


@pytest.mark.second
@settings(max_examples=150)
@given(programs(), st.sampled_from(["infiniband", "ethernet"]))
def test_nothing_differs_over_many_programs(program, technology):
    twin = two_hosts(technology)
    assert results(played(twin, program)) == results(played(twin, program, repeats=False))


def chain(n: int, which: int = 0, compute_ps: int = 50 * US):
    """Computing and a communication in turns."""
    kinds = [which if i % 2 else NONE for i in range(2 * n)]
    return kinds, [[i - 1] if i else [] for i in range(2 * n)], [compute_ps if k == NONE else 0 for k in kinds]


def test_a_chain_of_the_same_is_played_until_the_credits_stand_as_before():
    twin = two_hosts("infiniband")
    once, many = played(twin, chain(1)), played(twin, chain(24))
    assert once.operations.repeated.hops == 0
    assert many.network.machine.state.clock[0].hops == 24 * once.network.machine.state.clock[0].hops
    assert many.operations.repeated.hops >= 12 * once.network.machine.state.clock[0].hops
    assert results(many) == results(played(twin, chain(24), repeats=False))
    assert many.packets.repeated() == pytest.approx(
        many.operations.repeated.hops / many.network.machine.state.clock[0].hops
    )


def test_what_leaves_a_host_is_played():
    twin = two_hosts("infiniband")
    assert played(twin, chain(12, 3)).operations.repeated.hops == 0


def test_two_streams_that_may_meet_on_the_same_ports_are_played():
    """Neither computes: the other's next communication is always about to come, until one stream is over."""
    twin = two_hosts("infiniband")
    after = [[i - 2] if i >= 2 else [] for i in range(24)]
    engine = played(twin, ([0, 1] * 12, after, [0] * 24))
    once = int(played(twin, chain(1)).network.machine.state.clock[0].hops)
    alone = int((engine.started_ps()[::2] >= engine.ended_ps()[1::2].max()).sum())
    assert 0 < alone < 12
    assert engine.operations.repeated.hops <= alone * once
    assert results(engine) == results(played(twin, ([0, 1] * 12, after, [0] * 24), repeats=False))


def test_what_shares_ports_and_leaves_the_host_lets_nothing_repeat_while_it_may_come():
    """A ring over both hosts uses NVLinks of one's; it comes once, behind half of the chain."""
    twin = two_hosts("infiniband")
    which, after, durations = chain(30)
    program = [*which, 4], [*after, [29]], [*durations, 0]
    engine = played(twin, program)
    assert engine.packets.repeated() > 0.3
    assert results(engine) == results(played(twin, program, repeats=False))
    # as a stream of its own that never computes, it is always about to come
    busy = [*which, *[4] * 60], [*after, *([59 + i] if i else [] for i in range(60))], [*durations, *[0] * 60]
    engine = played(twin, busy)
    alone = int((engine.started_ps()[1:60:2] >= engine.ended_ps()[60:].max()).sum())
    assert 0 < alone < 25
    assert engine.operations.repeated.hops <= alone * int(played(twin, chain(1)).packets.totals().hops)
    assert results(engine) == results(played(twin, busy, repeats=False))


def test_two_streams_on_different_hosts_do_not_hinder_each_other():
    twin = two_hosts("infiniband")
    which = [0, 2] * 16
    after = [[i - 2] if i >= 2 else [] for i in range(32)]
    program = which, after, [0] * 32
    engine = played(twin, program)
    assert engine.packets.repeated() > 0.3
    assert results(engine) == results(played(twin, program, repeats=False))


def test_a_communication_whose_first_byte_leaves_at_once_is_played():
    """Credits of the one before may still be on their way."""
    twin = two_hosts("infiniband")
    at_once = [grouped(each, {"base_ps": 0, "step_ps": 0}) for each in COMMUNICATIONS]
    assert played(twin, chain(12), at_once).operations.repeated.hops == 0


def test_all_is_played_where_something_could_happen_from_outside():
    twin = two_hosts("infiniband")
    options = options_with()
    program, nodes = operations(*chain(12)), twin.fabric.gpu_node
    whole = played(twin, chain(12))
    steps = PacketEngine(twin.fabric, twin.routes, options)
    steps.post(program, COMMUNICATIONS, nodes)
    while not steps.idle:
        steps.advance(steps.now_ps + 100 * US)
    changed = PacketEngine(twin.fabric, twin.routes, options)
    changed.post(program, COMMUNICATIONS, nodes)
    changed.change(TimedChange(10**12, int(twin.fabric.nic_port[0]), 0))
    changed.advance()
    watched = PacketEngine(twin.fabric, twin.routes, options)
    watched.network.machine.tap([0], lambda rows: None)
    watched.post(program, COMMUNICATIONS, nodes)
    watched.advance()
    for engine in (steps, changed, watched):
        assert engine.operations.repeated.hops == 0
        assert engine.ended_ps().tolist() == whole.ended_ps().tolist()


def test_a_second_program_repeats_its_own_where_the_first_is_done():
    twin = two_hosts("infiniband")
    first, second = operations(*chain(8)), operations(*chain(10))
    ends = []
    for repeats in (True, False):
        engine = PacketEngine(twin.fabric, twin.routes, options_with(repeats=repeats))
        engine.post(first, COMMUNICATIONS, twin.fabric.gpu_node)
        engine.advance()
        before = engine.operations.repeated.hops
        engine.post(second, COMMUNICATIONS, twin.fabric.gpu_node)
        engine.advance()
        assert (engine.operations.repeated.hops > before) == repeats
        ends.append(results(engine))
    assert ends[0] == ends[1]


def test_programs_posted_while_another_is_under_way_are_played():
    twin = two_hosts("infiniband")
    ends = []
    for repeats in (True, False):
        engine = PacketEngine(twin.fabric, twin.routes, options_with(repeats=repeats))
        for _ in range(2):
            engine.post(operations(*chain(8)), COMMUNICATIONS, twin.fabric.gpu_node)
        engine.advance()
        assert engine.operations.repeated.hops == 0
        ends.append(results(engine))
    assert ends[0] == ends[1]


def front(which, after, durations) -> ProgramFront:
    """Return the front of a program whose communications take at least 5."""
    bases = np.where(np.array(which) == NONE, durations, 5)
    return ProgramFront(operations(which, after, durations), bases, 100)


def test_what_may_start_is_told_by_dependencies_and_computing():
    # 0 is under way; 1 computes 30, 2 follows it; 3 follows 0
    ahead = front([0, NONE, 0, 0], [[], [], [1], [0]], [0, 30, 0, 0])
    assert not ahead.may_start({0, 2, 3}, 0, 100, 135)  # 2 starts at 135 at the earliest
    assert ahead.may_start({0, 2, 3}, 0, 100, 136)
    assert not ahead.may_start({0, 3}, 0, 100, 10**9)  # 3 only once 0 is over
    ahead.ended([(1, 130)])
    assert not ahead.may_start({0, 2}, 0, 130, 135)
    assert ahead.may_start({0, 2}, 0, 130, 136)


def test_what_is_known_to_take_longer_delays_what_follows():
    ahead = front([0, 1, 0], [[], [], [1]], [0, 0, 0])
    assert ahead.may_start({0, 2}, 0, 100, 120)  # 1 may end at once
    ahead.ends_ps[1] = 200
    assert not ahead.may_start({0, 2}, 0, 100, 205)
    assert ahead.may_start({0, 2}, 0, 100, 206)
