"""Steps of rings that are skipped within an allowed error, held to playing them all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import boxes
from support.packet_runs import US, begins_after, played, two_hosts

from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.repetition.fast_forward import FastForward
from fabrictwin.fabric.fabric import NONE
from fabrictwin.program import collectives
from fabrictwin.program.program import Communication

KIB = 1 << 10


@pytest.fixture(autouse=True, scope="module")
def looks_often():
    """Let looks be worth it in what takes no time to play."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FastForward, "least_events", 1 << 11)
        patch.setattr(FastForward, "bytes_an_event", 1 << 30)
        yield


def ring(ranks: int, kib: int, channels: int = 1, begin: int = 0) -> Communication:
    """An all-reduce whose messages are so large."""
    of = np.roll(np.arange(ranks), begin)[None]
    return begins_after(collectives.all_reduce(of, kib * KIB * ranks * channels, channels=channels))


def compared(twin, program, communications, share, **given) -> tuple[PacketEngine, PacketEngine]:
    """(a run that may skip, one that plays everything); bytes and packets are the same, times within the share."""
    engine = played(twin, program, communications, skip_error=share, **given)
    whole = played(twin, program, communications, repeats=False, **given)
    for name in ("created", "delivered", "payload_delivered", "dropped", "open"):
        assert engine.network.machine.state.clock[0][name] == whole.network.machine.state.clock[0][name], name
    for name in ("una", "expected", "in_memory", "next_psn", "inflight"):
        mine, theirs = (each.network.machine.state.qp[name] for each in (engine, whole))
        assert mine.tolist() == theirs.tolist(), name
    ended, true = engine.ended_ps(), whole.ended_ps()
    assert (np.abs(ended - true) <= share * true).all(), (ended, true)
    return engine, whole


@st.composite
def programs(draw):
    """Rings one after the other and beside each other, and computing."""
    which, after, durations = [], [], []
    last: dict[int, int] = {}
    for i in range(draw(st.integers(1, 4))):
        stream = draw(st.integers(0, 1))
        which.append(draw(st.sampled_from([NONE, 0, 0, 1, 2])))
        durations.append(draw(st.sampled_from([1, 150 * US])) if which[-1] == NONE else 0)
        after.append([last[stream]] if stream in last else [])
        last[stream] = i
    return which, after, durations


def drawn(program, share, kib, channels, technology, control, hosts):
    communications = [ring(hosts, kib, channels), ring(hosts, 2 * kib, 1, 3), ring(hosts // 2, kib, channels)]
    given = {"control": control} if technology == "ethernet" else {}
    compared(boxes(hosts, technology), program, communications, share, **given)


DRAWN = st.tuples(
    programs(),
    st.sampled_from([0.001, 0.01, 0.02, 0.05]),
    st.sampled_from([16, 60, 100]),
    st.integers(1, 3),
    st.sampled_from(["infiniband", "ethernet"]),
    st.sampled_from(["none", "dcqcn"]),
    st.sampled_from([16, 24]),
)


@settings(max_examples=4)
@given(DRAWN)
def test_whatever_the_program_times_are_within_the_share(case):
    drawn(*case)


@pytest.mark.second
@settings(max_examples=100)
@given(DRAWN)
def test_times_of_a_hundred_programs_are_within_the_share(case):
    drawn(*case)


def test_most_of_a_long_ring_is_skipped():
    engine, _ = compared(boxes(20), ([0], [[]], [0]), [ring(20, 60, 2)], 0.02)
    skipped, error = engine.packets.forecast()
    assert skipped > 0.2
    assert 0 <= error <= 0.02


def test_nothing_is_skipped_where_no_error_is_allowed():
    engine = played(boxes(20), ([0], [[]], [0]), [ring(20, 60, 2)])
    assert engine.fast_forward.steps is None
    assert engine.packets.forecast() == (0, 0)


def test_counters_of_ports_are_in_proportion():
    engine, whole = compared(boxes(20), ([0], [[]], [0]), [ring(20, 60)], 0.02)
    assert engine.packets.forecast()[0] > 0.2
    mine, theirs = (each.network.machine.state.port.tx_bytes.astype(float) for each in (engine, whole))
    assert np.abs(mine - theirs).max() <= 0.02 * theirs.max()


def test_a_skip_that_does_not_hold_is_undone(monkeypatch):
    """Steps after it take twice as long as was seen: the run is as if there had been no skip."""
    from fabrictwin.engines.packet.repetition import step_skips

    held = step_skips._step_ps
    skips = []

    def spoiled(first, last):
        return held(first, last) * (2 if skips else 1)

    def noted(*given):
        skips.append(given[-1])
        return jump(*given)

    jump = step_skips.jump
    monkeypatch.setattr(step_skips, "jump", noted)
    whole = played(boxes(20), ([0], [[]], [0]), [ring(20, 60)], repeats=False)
    monkeypatch.setattr(step_skips, "_step_ps", spoiled)
    engine = played(boxes(20), ([0], [[]], [0]), [ring(20, 60)], skip_error=0.02)
    assert skips
    assert engine.packets.forecast()[0] == 0
    assert engine.ended_ps().tolist() == whole.ended_ps().tolist()


def test_rings_that_are_not_alone_are_played():
    twin = two_hosts("ethernet")
    communications = [
        ring(16, 32),
        begins_after(collectives.all_reduce(np.arange(16)[None], 512 * KIB, channels=2)),
    ]
    engine, _ = compared(twin, ([0, 1], [[], []], [0, 0]), communications, 0.01)
    assert engine.packets.forecast()[0] < 0.5
