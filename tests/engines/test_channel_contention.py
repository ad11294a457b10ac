"""Pieces that take turns on links: against closed forms and a loop that moves one burst after the other."""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictwin.engines.channels.channel_contention import Meeting, Stretch

BURST = 1000


def chain(channels: int, edges: int, latency: int) -> Meeting:
    """Channels side by side over the same edges, a picosecond for a byte."""
    count = channels * edges
    own, hop = np.divmod(np.arange(count), edges)
    later = np.flatnonzero(hop > 0)
    return Meeting(
        channels=channels,
        on=Stretch(
            channel=own,
            latency_ps=np.full(count, latency),
            byte_ps=np.ones(count),
            wire=np.ones(count),
            edge=np.arange(count),
            link=hop,
            need=np.ones(count),
        ),
        before_start=np.concatenate([[0], np.cumsum(hop > 0)]),
        before_edge=later - 1,
        mtu_bytes=BURST,
    )


def ends(meeting: Meeting, piece: int, count: int) -> list[float]:
    c = meeting.channels
    return meeting.ends(np.full(c, piece), np.full(c, count)).end_ps.tolist()


def test_pieces_of_one_burst_go_one_after_the_other():
    for channels in (2, 3, 8):
        assert ends(chain(channels, 1, 0), BURST, 1) == [BURST * (c + 1) for c in range(channels)]
        # on every later edge each finds the link free
        last = ends(chain(channels, 5, 300), BURST, 1)[-1]
        assert last == channels * BURST + 4 * BURST + 5 * 300


def test_one_channel_is_its_closed_form():
    """The first chunk's way and a period for each that follows; also of more chunks than are played."""
    for count in (1, 2, 16, 1000):
        assert ends(chain(1, 4, 70), 10 * BURST, count) == [4 * (10 * BURST + 70) + (count - 1) * 10 * BURST]


def test_of_two_side_by_side_one_comes_a_burst_further_ahead_on_every_edge():
    """A remainder of a burst keeps them from coming to a link at the same time."""
    piece, edges, latency = 10 * BURST + 300, 6, 500
    expected = 2 * piece + latency
    for edge in range(1, edges):
        lead = min(edge * BURST + 300, piece)
        expected += latency + 2 * piece - lead
    assert max(ends(chain(2, edges, latency), piece, 1)) == expected


@pytest.mark.parametrize("channels", [2, 4])
def test_a_busy_link_is_never_idle(channels):
    """Long ago whoever went first is away; what is left is the link's whole work and one way."""
    piece, count, edges = 4 * BURST, 12, 3
    last = max(ends(chain(channels, edges, 0), piece, count))
    least = channels * count * piece + (edges - 1) * piece
    assert least <= last <= least + (edges - 1) * (channels - 1) * piece


def brute(meeting: Meeting, piece: int, counts: list[int]) -> list[float]:
    """The same scene with a line of bursts at every link, in Python."""
    on, bursts = meeting.on, -(-piece // BURST)
    uses = [np.flatnonzero(on.edge == e).tolist() for e in range(len(on.channel))]
    before = [meeting.before_edge[a:b].tolist() for a, b in zip(*_cuts(meeting.before_start), strict=True)]
    line: dict[int, deque[int]] = {int(link): deque() for link in on.link}
    held, sent = [0] * len(on.edge), [0] * len(on.edge)
    busy = dict.fromkeys(line, False)
    given, brought, through = ([0] * len(uses) for _ in range(3))
    end = [0.0] * meeting.channels
    events: list[tuple[int, int, str, int]] = []

    def at(time: int, what: str, which: int) -> None:
        heapq.heappush(events, (time, at.number, what, which))
        at.number += 1

    at.number = 0

    def serve(link: int, now: int) -> None:
        busy[link] = bool(line[link])
        if not line[link]:
            return
        use = line[link].popleft()
        held[use] -= 1
        if held[use]:
            line[link].append(use)
        e = int(on.edge[use])
        sent[use] = (sent[use] + 1) % bursts
        at(now + (BURST if sent[use] else piece - (bursts - 1) * BURST), "free", use)
        if use != uses[e][-1]:
            at(now, "comes", use + 1)

    def hand(use: int, more: int, now: int) -> None:
        link = int(on.link[use])
        held[use] += more
        if use not in line[link]:
            line[link].append(use)
        if not busy[link]:
            serve(link, now)

    def give(e: int, now: int) -> None:
        ready = min([counts[int(on.channel[e])], *(brought[b] for b in before[e])])
        if ready > given[e]:
            more, given[e] = ready - given[e], ready
            hand(uses[e][0], more * bursts, now)

    for e in range(len(uses)):
        give(e, 0)
    while events:
        now, _, what, which = heapq.heappop(events)
        if what == "comes":
            hand(which, 1, now)
        elif what == "free":
            e = int(on.edge[which])
            if which == uses[e][-1]:
                through[e] += 1
                if through[e] % bursts == 0:
                    at(now + int(on.latency_ps[e]), "there", e)
            serve(int(on.link[which]), now)
        else:
            brought[which] += 1
            end[int(on.channel[which])] = max(end[int(on.channel[which])], now)
            for e, needs in enumerate(before):
                if which in needs:
                    give(e, now)
    return end


def _cuts(start: np.ndarray) -> tuple[list[int], list[int]]:
    return start[:-1].tolist(), start[1:].tolist()


@settings(max_examples=60)
@given(st.data())
def test_random_scenes_end_when_a_plain_loop_says(data):
    """Channels of a few edges over one or two of four links, each edge after any earlier ones of its channel."""
    channels = data.draw(st.integers(1, 4))
    own: list[int] = []
    edge, link, before = [], [], []
    for c in range(channels):
        first = len(own)
        for _ in range(data.draw(st.integers(1, 4))):
            e = len(own)
            earlier = st.lists(st.integers(first, e - 1), max_size=2, unique=True) if e > first else st.just([])
            before.append(sorted(data.draw(earlier)))
            over = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True))
            edge += [e] * len(over)
            link += over
            own.append(c)
    count = len(own)
    meeting = Meeting(
        channels=channels,
        on=Stretch(
            channel=np.array(own),
            latency_ps=np.array([data.draw(st.integers(0, 3000)) for _ in own]),
            byte_ps=np.ones(count),
            wire=np.ones(count),
            edge=np.array(edge),
            link=np.array(link),
            need=np.ones(len(edge)),
        ),
        before_start=np.concatenate([[0], np.cumsum([len(b) for b in before])]).astype(np.int64),
        before_edge=np.array([b for some in before for b in some], np.int64),
        mtu_bytes=BURST,
    )
    piece = data.draw(st.integers(1, 6000))
    counts = [data.draw(st.integers(1, 4)) for _ in range(channels)]
    played = meeting.ends(np.full(channels, piece), np.array(counts)).end_ps
    assert played.tolist() == brute(meeting, piece, counts)


def test_the_same_pieces_on_the_same_links_are_played_once(monkeypatch):
    from fabrictwin.engines.channels import channel_contention
    from fabrictwin.kernel.flow import contention

    played = []
    monkeypatch.setattr(channel_contention, "_played", {})
    play = contention.play
    monkeypatch.setattr(contention, "play", lambda *state: (played.append(state), play(*state)))
    for _ in range(2):
        found = [ends(chain(3, 4, latency), 2 * BURST, 8) for latency in (70, 80)]
        assert found[0] != found[1]
    assert len(played) == 2
    monkeypatch.setattr(channel_contention, "_PLAYED", 1)
    channel_contention._played.clear()
    for _ in range(2):
        assert [ends(chain(3, 4, latency), 2 * BURST, 8) for latency in (70, 80)] == found
    assert len(played) == 6
    assert len(channel_contention._played) == 1
