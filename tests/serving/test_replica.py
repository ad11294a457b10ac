"""The engine's loop under a clock: who waits for what, and servers of several replicas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictwin.base.errors import SimulatedError
from fabrictwin.serving.arrivals.demand import Conversations, Demand, Unshared
from fabrictwin.serving.cache.manager import CacheLayout, KvCache
from fabrictwin.serving.engine.bench import TURNAROUND_PS, Served, serve
from fabrictwin.serving.engine.replica import NEVER, HostTimes, Replica
from fabrictwin.serving.engine.router import Policy, router
from fabrictwin.serving.report.bench import latencies
from fabrictwin.serving.scheduler.config import SchedulerConfig
from fabrictwin.serving.scheduler.release import release
from fabrictwin.serving.scheduler.request import Request
from fabrictwin.serving.scheduler.scheduler import Scheduler
from fabrictwin.serving.step.shape import StepShape

MS = 10**9


class Constant:
    """Each stage takes as long, whatever is in a step."""

    def __init__(self, *stages_ms: int) -> None:
        self._stages = tuple(stage * MS for stage in stages_ms)

    def at(self, now_ps: int) -> Constant:
        return self

    def stages_ps(self, shape: StepShape) -> tuple[int, ...]:
        return self._stages


def replica(
    *stages_ms: int,
    ahead: bool = False,
    blocks: int = 1000,
    host: HostTimes = HostTimes(),
    name: str = "0.19",
) -> Replica:
    chosen = release(name)
    config = SchedulerConfig(
        256, 16, 4096, async_scheduling=ahead, pipeline_parallel_size=len(stages_ms), v2_runner=name == "0.33"
    )
    cache = KvCache(CacheLayout(blocks, 4096, in_flight_tokens=512), chosen)
    return Replica(Scheduler(config, cache, chosen), Constant(*stages_ms), host)


def demand(arrivals_ms: list[int], prompt: int = 100, output: int = 5) -> Demand:
    count = len(arrivals_ms)
    times = np.array(arrivals_ms, np.int64) * MS
    return Demand(times, np.full(count, prompt, np.int64), np.full(count, output, np.int64), Unshared())


def run(
    asked: Demand,
    *replicas: Replica,
    policy: Policy = "round_robin",
    concurrency: int | None = None,
    token_ps: int = 0,
) -> Served:
    return serve(asked, list(replicas), router(policy), concurrency=concurrency, token_ps=token_ps)


def test_one_request_alone_takes_a_step_a_token() -> None:
    times = latencies(run(demand([3]), replica(10)))
    assert times.ttft[0] == pytest.approx(0.010)
    assert times.e2el[0] == pytest.approx(0.050)


def test_a_prompts_text_is_read_before_the_scheduler_has_it() -> None:
    """A short prompt that comes 10 ms after a long one is read before it."""
    asked = demand([0, 10])
    asked.prompt[:] = [400, 100]
    times = latencies(run(asked, replica(10), token_ps=MS // 10))
    assert times.ttft == pytest.approx([0.060, 0.020])
    assert latencies(run(demand([3]), replica(10), token_ps=MS // 10)).e2el[0] == pytest.approx(0.060)
    assert latencies(run(demand([3, 4]), replica(10), token_ps=MS // 10, concurrency=1)).ttft[1] == pytest.approx(
        0.020, abs=1e-6
    )


def test_a_prompt_longer_than_a_step_takes_several() -> None:
    assert latencies(run(demand([0], prompt=600), replica(10))).ttft[0] == pytest.approx(0.030)


@pytest.mark.parametrize(("ahead", "step"), [(False, 12), (True, 10)])
def test_scheduling_ahead_hides_the_host(ahead: bool, step: int) -> None:
    host = HostTimes(schedule_ps=2 * MS)
    times = latencies(run(demand([0], output=50), replica(10, ahead=ahead, host=host)))
    assert times.tpot[0] == pytest.approx(step / 1000)


def test_scheduling_ahead_makes_a_newcomer_wait_a_step_more() -> None:
    """It arrives in step 1, when step 2 is already scheduled."""
    late = [latencies(run(demand([0, 15]), replica(10, ahead=ahead))).ttft[1] for ahead in (False, True)]
    assert late == pytest.approx([0.015, 0.025])


def test_two_stages_take_two_batches_at_once() -> None:
    """Requests that come while the first is in the second stage run beside it."""
    alone = latencies(run(demand([0]), replica(10, 10)))
    both = run(demand([0, 1]), replica(10, 10))
    assert alone.tpot[0] == pytest.approx(0.020)
    assert latencies(both).tpot.max() <= 0.0301


def test_the_clock_of_a_closed_loop() -> None:
    """With one request in flight at most, each is sent when the one before it has ended."""
    seen = run(demand([0, 0, 0]), replica(10), concurrency=1)
    assert seen.sent_ps.tolist() == [0, 50 * MS + TURNAROUND_PS, 100 * MS + 2 * TURNAROUND_PS]
    assert latencies(seen).e2el == pytest.approx([0.05] * 3)


@pytest.mark.parametrize(("output", "wait_ms"), [(5, 20), (9, 20)])
def test_what_follows_a_request_misses_the_step_that_begins_as_it_ends(output: int, wait_ms: int) -> None:
    """The second request runs on: the third waits for its step, then for its own."""
    seen = run(demand([0, 5, 6], output=output), replica(10), concurrency=2)
    assert latencies(seen).ttft[2] == pytest.approx(wait_ms / 1000)


@given(
    arrivals=st.lists(st.integers(0, 300), min_size=1, max_size=25),
    replicas=st.integers(1, 3),
    policy=st.sampled_from(["round_robin", "least_loaded", "prefix_aware"]),
    ahead=st.booleans(),
    concurrency=st.none() | st.integers(1, 4),
    name=st.sampled_from(["0.12", "0.15", "0.19", "0.33"]),
)
@settings(max_examples=60)
def test_every_request_gets_its_tokens_in_order(
    arrivals: list[int], replicas: int, policy: Policy, ahead: bool, concurrency: int | None, name: str
) -> None:
    asked = demand(sorted(arrivals), prompt=90, output=20)
    servers = [replica(7, ahead=ahead, blocks=40, name=name) for _ in range(replicas)]
    seen = run(asked, *servers, policy=policy, concurrency=concurrency)
    assert np.bincount(seen.request, weights=seen.tokens).tolist() == [20.0] * len(asked)
    assert (np.diff(seen.delivered_ps) >= 0).all()
    assert (seen.sent_ps >= asked.arrival_ps).all()
    assert (latencies(seen).ttft >= 0.007).all()
    for one in servers:
        assert one.scheduler.cache.pool.free_blocks == 39
        assert one.in_flight == 0
    if concurrency:
        ends = seen.sent_ps + np.rint(latencies(seen).e2el * 1e12).astype(np.int64)
        for at in seen.sent_ps:
            assert ((seen.sent_ps <= at) & (ends > at)).sum() <= concurrency


def test_a_router_that_knows_prefixes_keeps_conversations_together() -> None:
    turns = np.array([0, 1, 2, 3], np.int64)
    contents = Conversations(turns * 0, turns * 0, np.array([0, 1, 0, 1], np.int64))
    asked = Demand(turns * 500 * MS, np.array([64, 64, 160, 160], np.int64), np.full(4, 5, np.int64), contents)
    together = run(asked, replica(10), replica(10), policy="prefix_aware")
    assert together.replica.tolist()[2:] == together.replica.tolist()[:2]
    assert together.hits.tolist() == [0, 0, 64, 64]
    # the third in turn goes to the replica that has not seen its conversation
    apart = run(asked, replica(10), replica(10), replica(10))
    assert apart.hits.tolist() == [0, 0, 0, 0]


def test_a_request_that_fits_no_replica_is_named() -> None:
    with pytest.raises(SimulatedError, match="1 requests can never be scheduled"):
        run(demand([0], prompt=200), replica(10, blocks=5))
    with pytest.raises(SimulatedError, match=r"request 0.*got a prompt of 5000 tokens"):
        run(demand([0], prompt=5000), replica(10))


class ByContext:
    """A step takes longer the more its requests remember, and in every second 7 ms."""

    def at(self, now_ps: int) -> ByContext:
        self._slow = now_ps // (7 * MS) % 2
        return self

    def stages_ps(self, shape: StepShape) -> tuple[int, ...]:
        chunks = sum(tokens * (before + tokens) for tokens, before in shape.chunks)
        return (
            3 * MS
            + shape.tokens * 70_001
            + shape.decode_context * 1_013
            + shape.longest_decode * 77
            + shape.decode_squares * 3
            + self._slow * MS
            + chunks * 11,
        )


@pytest.mark.second
@given(
    arrivals=st.lists(st.integers(0, 3000), min_size=1, max_size=20),
    replicas=st.integers(1, 3),
    ahead=st.booleans(),
    host_ms=st.sampled_from([0, 1, 5]),
    concurrency=st.none() | st.integers(1, 4),
    blocks=st.sampled_from([30, 200]),
    name=st.sampled_from(["0.12", "0.15", "0.19", "0.33"]),
    talks=st.none() | st.integers(1, 3),
    prompt=st.sampled_from([90, 257]),  # a step takes 256
)
def test_merged_decodes_change_nothing(
    arrivals: list[int],
    replicas: int,
    ahead: bool,
    host_ms: int,
    concurrency: int | None,
    blocks: int,
    name: str,
    talks: int | None,
    prompt: int,
) -> None:
    asked = demand(sorted(arrivals), prompt=prompt, output=70)
    if talks:  # several hold the same blocks, and which of them is found depends on who had them cached first
        number = np.arange(len(arrivals)) % talks
        asked = replace(asked, contents=Conversations(number, np.zeros_like(number), number))
    seen, found = [], []
    for merges in (False, True):
        servers = [replica(1, ahead=ahead, blocks=blocks, name=name) for _ in range(replicas)]
        servers = [
            Replica(one.scheduler, ByContext(), HostTimes(host_ms * MS, 1000, 5000), merges_decodes=merges)
            for one in servers
        ]
        out = run(asked, *servers, policy="least_loaded", concurrency=concurrency)
        seen.append((out, [one.steps.tolist() for one in servers]))
        keys = [asked.contents.keys(number, prompt, 16, 0)(0, 20) for number in range(len(arrivals))]
        found.append([[one.scheduler.cache.pool.find_run(chain) for chain in keys] for one in servers])
    assert found[0] == found[1]
    (one, steps), (two, merged) = seen
    assert one.delivered_ps.tolist() == two.delivered_ps.tolist()
    assert sorted(zip(one.delivered_ps, one.request, strict=True)) == sorted(
        zip(two.delivered_ps, two.request, strict=True)
    )
    assert one.hits.tolist() == two.hits.tolist()
    assert steps == merged


@pytest.mark.parametrize("ahead", [False, True])
def test_one_turn_runs_decodes_across_the_blocks_that_they_fill(ahead: bool) -> None:
    server = replica(10, ahead=ahead)
    asked = demand([0], output=500)
    server.send(Request(0, 100, 500, key_source=asked.contents.keys(0, 100, 16, 0)), 0)
    turns = 0
    while server.next_ps < NEVER:
        server.act(NEVER)
        turns += 1
    assert len(server.deliveries.tokens) == 500
    assert turns < 15
