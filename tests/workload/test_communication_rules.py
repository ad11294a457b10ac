"""Rules of a job's communications one by one: how groups lie on hosts, what a step costs, what is shared."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace as Record

import numpy as np
import pytest
from support.specs import LLAMA_8B, spec_of

from fabrictwin.cluster.build_blueprint import build
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.workload.job import job_communications
from fabrictwin.workload.job.job import Hardware
from fabrictwin.workload.job.job_communications import CommunicationFactory, Groups, slowed_ps
from fabrictwin.workload.job.rank_layout import Cells, Layout
from fabrictwin.workload.layers.pass_script import Collective, Compute, Script, Start, Wait
from fabrictwin.workload.layers.roofline import Cost
from fabrictwin.workload.search import lower_bound
from fabrictwin.workload.search.exchange_bounds import ExchangeBounds, StepExchanges, asked_byte_ps
from fabrictwin.workload.search.layout_search import Search
from fabrictwin.workload.step.closed_form import Played
from fabrictwin.workload.step.communication_times import Asked, CommunicationTimes
from fabrictwin.workload.step.training_step import check

HOSTS = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
FAST, SLOW = 400e9, 100e9


def factory(**more):
    made = Record(
        placement=Record(host_of_rank=HOSTS),
        hardware=Hardware("h100-sxm", FAST, SLOW, 4 * SLOW),
        gradient_bytes=4,
        **more,
    )
    return CommunicationFactory(made)


@pytest.mark.parametrize(
    ("groups", "alone", "most"),
    [
        ([[0, 1, 2, 3]], True, 4),
        ([[0, 1], [4, 5]], True, 2),
        ([[0, 4]], False, 1),
        ([[0, 4, 1, 5]], False, 2),  # however they are ordered
        ([[0, 1], [2, 4]], False, 2),
        ([[0, 1, 4, 5, 6]], False, 3),
        ([[8, 0, 4], [1, 5, 9]], False, 1),
    ],
)
def test_groups_lie_on_hosts(groups, alone, most):
    made = factory()
    for _ in range(2):  # the second time it is known
        assert made.hosts(np.array(groups)) == (alone, most)
    assert made.channels(np.array(groups)) == (1 if alone else most)
    assert len(made._hosts_known) == 1
    # groups of other hosts that lie alike are the same, those of another shape are not
    made.hosts(11 - np.array(groups) if alone and len(groups) == 1 else np.array(groups))
    assert len(made._hosts_known) == 1
    made.hosts(np.array(groups).reshape(-1, 1))
    assert len(made._hosts_known) == 2


# NCCL 2.30's rings: µs once, a hop inside, a hop between, share of the rate; the wire's own is counted elsewhere
PROTOCOLS = {"LL128": (14.0, 1.9, 4.0, 0.92), "Simple": (8.4, 3.4, 14.0, 1.0)}


def step_us(steps, between, bps, bytes_a_step, protocols):
    """(µs beside the wire a step, the protocol): the faster with its wire time, less the wires' own."""
    found = []
    for name in protocols:
        once, near, far, share = PROTOCOLS[name]
        latency = once + (steps - between) * near + between * far
        found.append((latency + bytes_a_step * steps * 8e6 / bps / share, latency, name))
    _, latency, name = min(found)
    return (latency - (steps - between) * 0.6 - between * 1.9) / steps, name


@pytest.mark.parametrize("size", [1 << 10, 1 << 30])
@pytest.mark.parametrize(
    ("kind", "group", "steps", "between"),
    [
        ("all_reduce", [0, 1, 2, 3], 6, 0),
        ("all_gather", [0, 1, 2, 3], 3, 0),
        ("reduce_scatter", [0, 4], 1, 1),
        ("all_reduce", [0, 4], 2, 2),
        ("all_reduce", [0, 1, 4, 5], 6, 2),  # one hop of three leads to another host
        ("all_gather", [0, 1, 4, 5, 8, 9], 5, 2),
        ("all_to_all", [0, 1, 2, 3], 1, 0),
        ("send", [0, 4], 1, 1),
        ("send", [0, 1], 1, 0),
    ],
)
def test_a_step_costs_what_its_hops_do(size, kind, group, steps, between):
    bps = SLOW if between else FAST
    protocols = ("LL128", "Simple") if steps > 1 else ("Simple",)
    expected, name = step_us(steps, between, bps, size / len(group), protocols)
    assert factory().step_cost(kind, np.array([group]), size) == round(expected * 10**6)
    if size == 1 << 30:
        assert name == "Simple"


@pytest.mark.parametrize(("size", "element"), [(4096, 2), (4097, 1), (2, 2)])
def test_a_collective_is_cut_between_elements(monkeypatch, size, element):
    made, seen = factory(), []
    monkeypatch.setattr(made, "ring", lambda *given: seen.append(given))
    monkeypatch.setattr(made, "exchange", lambda *given: seen.append(given))
    groups = np.arange(4).reshape(1, 4)
    made.collective(Collective("tp", "all_gather", size), groups, "x")
    assert seen[-1][2:] == (size, "x", element)
    made.collective(Collective("ep", "all_to_all", 4 * size + 3), groups, "y")
    assert seen[-1][1:] == (size, "y")


def test_a_library_is_asked_where_there_is_one():
    seen = []
    library = Record(
        collective=lambda kind, groups, size, **more: seen.append((kind, size, more["element_bytes"])) or "made",
        send=lambda pairs, size, name: seen.append(("send", size)) or "sent",
    )
    made = factory(training=Record(gradients=Record(algorithm=None, channels=None)))
    made.library = library
    groups = np.arange(4).reshape(1, 4)
    assert made.exchange(groups, 100, "x") == "made"
    assert made.ring("all_gather", groups, 77, "x", 1) == "made"
    assert made.send(groups[:, :2], 5, "x") == "sent"
    assert made.gradients(groups, 64, "x") == ("made",)
    assert seen == [("all_to_all", 400, 1), ("all_gather", 77, 1), ("send", 5), ("all_reduce", 64, 4)]
    made.job.training.gradients = Record(algorithm=None, channels=3)
    chosen = made.gradients(groups, 1 << 20, "x")
    assert len(seen) == 4  # chosen in the spec
    assert len(set(chosen[0].channels.parent.tolist())) or chosen


@pytest.mark.parametrize(
    ("algorithm", "channels", "rings"), [("ring", None, 2), ("ring", 5, 5), ("tree", None, 4)]
)
def test_gradients_have_a_ring_for_each_of_a_host_s_ranks(monkeypatch, algorithm, channels, rings):
    seen = []
    monkeypatch.setattr(job_communications.collectives, "all_reduce", lambda *given, **more: seen.append(more))
    made = factory(training=Record(gradients=Record(algorithm=algorithm, channels=channels)))
    made.gradients(np.array([[0, 1, 4, 5]]), 1 << 20, "x")
    assert (seen[0]["channels"], seen[0]["element_bytes"], seen[0]["algorithm"]) == (rings, 4, algorithm)
    monkeypatch.setattr(
        job_communications.collectives, "hierarchical_all_reduce", lambda *given, **more: seen.append(more) or ()
    )
    made.job.training.gradients = Record(algorithm="hierarchical", channels=channels)
    made.gradients(np.array([[0, 1, 4, 5]]), 1 << 20, "x")
    assert seen[1]["channels"] == (channels or 1)


# ---------------------------------------------------------------------- groups of a job


def groups_of(layout, *, made=factory):
    posted = []

    class Target:
        def communication(self, communication, participants):
            posted.append((communication, list(participants)))
            return len(posted) - 1

    job = made(layout=layout).job
    cells = Cells.of(layout, np.zeros(layout.ranks, bool), fold=False)
    each = Record(
        collective=lambda collective, groups, name: (groups.tolist(), name), hosts=made(layout=layout).hosts
    )
    return Groups(job, cells, Target(), each), posted


def test_a_pass_s_communication_is_made_once_for_each_group():
    layout = Layout(tp=2, dp=3, pp=2)
    groups, posted = groups_of(layout)
    actors = [40, 41]
    found = groups.within(Collective("tp", "all_reduce", 100), 1, np.array([0, 2]), 0, actors)
    # stage 1 begins at rank 6; units 0 and 2 are its first and its third pair
    assert posted == [(([[6, 7], [10, 11]], "tensor-parallel all-reduce, stage 1"), [40, 41])]
    assert found == [(0, [0, 1])]
    assert groups.within(Collective("tp", "all_reduce", 100), 1, np.array([0, 2]), 0, actors) is found
    groups.within(Collective("tp", "all_reduce", 100), 1, np.array([1]), 1, actors)
    assert posted[1][0][0] == [[8, 9]]
    for changed in (("tp", "all_gather", 100), ("tp", "all_reduce", 101)):
        groups.within(Collective(*changed), 1, np.array([0, 2]), 0, actors)
    assert len(posted) == 4
    alone, none = groups_of(Layout(tp=1, dp=3, pp=2))
    assert alone.within(Collective("tp", "all_reduce", 100), 0, np.array([0]), 0, [5]) == []
    assert none == []


def test_what_crosses_units_has_the_same_parameters():
    groups, _ = groups_of(Layout(tp=2, dp=2, pp=2, cp=2, width=1))
    found = [(ranks.tolist(), classes) for ranks, classes in groups.across("shard", 1)]
    # positions of a unit: 2 of context times 2 of tensor; those of one tensor rank share what they hold
    assert found == [([[8, 10, 12, 14]], [0, 2]), ([[9, 11, 13, 15]], [1, 3])]
    assert groups.positions("slices")[0][0].tolist() == groups.positions("tp")[0][0].tolist()


@pytest.mark.parametrize(
    ("kind", "group", "expected"),
    [
        ("all_reduce", [0, 1, 2, 3], 2 * 1000 * 3 / 4 * 8e12 / FAST),
        ("all_gather", [0, 4], 1000 / 2 * 8e12 / SLOW),
        ("reduce_scatter", [0, 1, 4, 5], 1000 * 3 / 4 * 8e12 / SLOW),
        ("all_to_all", [0, 1], 500 * 8e12 / FAST),
    ],
)
def test_roughly_a_communication_takes_its_bytes_at_the_way_out(kind, group, expected):
    groups, _ = groups_of(Layout(tp=4, dp=3, pp=1))
    assert groups.roughly_ps(kind, np.array([group]), 1000) == pytest.approx(expected)


def test_roughly_a_pass_s_communication_is_that_of_its_stage():
    groups, _ = groups_of(Layout(tp=2, dp=3, pp=2))
    for _ in range(2):
        found = groups.roughly_within_ps(Collective("tp", "all_gather", 1000), 1)
        assert found == pytest.approx(1000 / 2 * 8e12 / FAST)
    across, _ = groups_of(Layout(tp=6, dp=1, pp=2))
    assert across.roughly_within_ps(Collective("tp", "all_gather", 1000), 0) == pytest.approx(
        1000 * 5 / 6 * 8e12 / SLOW
    )


@pytest.mark.parametrize(
    ("compute", "beside", "sms", "count", "lost"),
    [
        (100, 60, 33, 132, 20),
        (60, 100, 33, 132, 20),
        (100, 100, 0, 132, 0),
        (50, 50, 4, 4, 200),
        (50, 50, 3, 4, 150),
    ],
)
def test_compute_loses_the_multiprocessors_that_a_communication_takes(compute, beside, sms, count, lost):
    assert slowed_ps(compute, beside, sms, count) == pytest.approx(lost)


# ---------------------------------------------------------------------- times that are kept


@pytest.fixture(scope="module")
def job_of_two_hosts():
    of = spec_of(2, "dgx-h100", model=LLAMA_8B, global_batch=32, sequence=4096)(parallel={"tp": 2, "pp": 2})
    blueprint = build(of.cluster, spec=of)
    twin = make_twin(of, blueprint)
    job, nodes = check(of, blueprint, twin.fabric)
    return of, blueprint, twin, job, nodes


def test_times_are_interpolated_between_powers_of_two(job_of_two_hosts):
    *_, twin, job, nodes = job_of_two_hosts
    times, made = CommunicationTimes(twin.fabric, nodes), CommunicationFactory(job)
    asked = []

    def make(groups, size):
        asked.append((groups.tolist(), size))
        return (made.send(groups, size, "x"),)

    pairs = np.array([[0, 1], [2, 3], [8, 9]])

    def took(groups, size):
        return times.of(Asked("pp", ("send",), groups, times.place, size, 1000, make))

    ends = {size: took(pairs, size) for size in (64_000, 128_000)}
    # on all hosts alike: the first host's stand for all
    assert asked == [([[0, 1], [2, 3]], 64_000), ([[0, 1], [2, 3]], 128_000)]  # powers of two times the step
    found = took(pairs, 80_000)
    assert found == pytest.approx(ends[64_000] + (ends[128_000] - ends[64_000]) / 4)
    assert len(asked) == 2
    direct = twin.closed_forms().durations([made.send(pairs[:2], 64_000, "x")], nodes)
    assert ends[64_000] == float(direct[0])
    assert took(pairs, 10) == took(pairs, 1000)
    across = took(np.array([[0, 8], [1, 9]]), 64_000)
    assert asked[-1][0] == [[0, 8], [1, 9]]
    assert across > ends[64_000]


@pytest.mark.parametrize(
    ("scale", "inside", "between"),
    [
        ({}, 1, 1),
        ({"pp": 0.5}, 0.5, 0.5),
        ({"inside": 0.25}, 0.25, 1),
        ({"between": 0.0, "pp": 0.5}, 0.5, 0),
        ({"tp": 0.0}, 1, 1),
    ],
)
def test_shares_of_times(job_of_two_hosts, scale, inside, between):
    *_, twin, job, nodes = job_of_two_hosts
    plain, made = CommunicationTimes(twin.fabric, nodes), CommunicationFactory(job)

    def make(groups, size):
        return (made.send(groups, size, "x"),)

    plain.passes["kept"] = None
    scaled = plain.scaled(scale)
    assert scaled.passes == {}
    assert plain.passes == {"kept": None}
    assert scaled._known is plain._known
    for ends, share in (([[0, 1]], inside), ([[0, 8]], between)):
        pairs = np.array(ends)
        expected, found = (
            times.of(Asked("pp", ("send",), pairs, times.place, 64_000, 1000, make)) for times in (plain, scaled)
        )
        assert found == pytest.approx(share * expected)


def test_what_is_prepared_together_takes_as_long_as_what_is_asked_for_by_itself(job_of_two_hosts):
    """Also where two that lie alike are asked for at once: the first stands for both."""
    *_, twin, job, nodes = job_of_two_hosts
    made, bound = CommunicationFactory(job), []
    together, apart = (CommunicationTimes(twin.fabric, nodes) for _ in range(2))

    def asked(groups, size, what="send"):
        def make(some, size):
            bound.append((what, some.tolist(), size))
            if what == "send":
                return (made.send(some, size, ""),)
            return (made.ring("all_gather", some, size, ""),)

        groups = np.array(groups)
        return Asked("pp", (what,), groups, apart.place, size, 1000, make)

    each = [asked([[0, 8]], 80_000), asked([[8, 0]], 64_000), asked([[0, 1, 8, 9]], 96_000, "all_gather")]
    each += [asked([[0, 8], [1, 9]], 5_000), asked([[0, 8]], 64_000)]
    together.prepare(each)
    assert len(bound) == len(set(map(str, bound))) == 7
    assert [together.of(one) for one in each] == [apart.of(one) for one in each]
    assert len(bound) == 14
    together.prepare(each)
    assert len(bound) == 14


# ---------------------------------------------------------------------- lower bounds


def bounded(**more):
    layout = {"tp": 4, "cp": 1, "ep": 2, "expert_tp": 1}
    return Record(layout=Record(**layout), hardware=Hardware("h100-sxm", 8e12, 2e12, 8e12), **more)


STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@pytest.mark.parametrize(
    ("collective", "price"),
    [
        (Collective("tp", "all_gather", 1000), 750),  # a byte a ps inside
        (Collective("tp", "all_reduce", 1000), 1500),
        (Collective("cp", "all_gather", 1000), 0),
        (Collective("shard", "all_gather", 1000), 0),
        (Collective("ep", "all_to_all", 1000), 400),  # by both ways
    ],
)
def test_a_communication_takes_at_least_its_bytes_by_the_ways_out(collective, price):
    assert lower_bound._price_ps(collective, bounded(), STEPS) == pytest.approx(price)


def script(*items):
    made = Script()
    made.items.extend(items)
    return made


def compute(ps, kernels=1):
    return Compute(Cost(ps, kernels), "forward")


GATHER = Collective("tp", "all_gather", 1000)  # 750


@pytest.mark.parametrize(
    ("items", "least"),
    [
        ([compute(100), compute(200)], 300),
        ([compute(100, 5), compute(20, 5)], 500),  # ten launches of 50
        ([compute(100), Start(0, GATHER), Wait(0), compute(10)], 860),
        ([compute(100), Start(0, GATHER), compute(900), Wait(0), compute(10)], 1010),
        ([compute(100), Start(0, GATHER), compute(200, 10), Wait(0), compute(10)], 860),
        ([compute(100), Start(0, GATHER), compute(200, 18), Wait(0), compute(10)], 1010),  # 18 launches between
        ([compute(100), Start(0, GATHER), Start(1, GATHER), Wait(1), compute(10)], 1610),  # one stream
        ([compute(100), Start(0, GATHER), Start(1, Collective("ep", "all_to_all", 1000)), Wait(1), Wait(0)], 850),
        ([Start(0, GATHER), compute(60), Wait(7)], 60),
        ([compute(10, 100), Start(0, GATHER), Wait(0), compute(10, 100)], 10_000),  # the host's time as a whole
    ],
)
def test_a_script_takes_at_least_its_longest_chain(items, least):
    price = partial(lower_bound._price_ps, job=bounded(), steps=STEPS)
    assert lower_bound._least_ps(script(*items), 50, price) == pytest.approx(least)


@pytest.mark.parametrize("most", [1, 4, 8])
def test_loads_stand_for_those_of_layers_that_have_no_less(most):
    loads = (0.0, 1.5, 1.25, 1.75, *(2 + i / 8 for i in range(16)))
    chosen, layers = lower_bound._layers(loads, (1,) * 20, 20, most)
    assert chosen[:2] == (0.0, 1.25)
    assert len(chosen) == 1 + most
    assert layers.shape == (1 + most, 1, 20)
    assert (layers.sum(axis=0) == 1).all()
    own = np.array(chosen)[layers[:, 0].argmax(axis=0)]
    assert (own <= loads).all()
    assert own[1] == 1.25
    # the highest of those that are no more
    assert all(mine == max(load for load in chosen if load <= its) for mine, its in zip(own, loads, strict=True))


def test_layers_without_experts_have_one_load_and_are_counted_by_chunk_and_stage():
    chosen, layers = lower_bound._layers((0.0,) * 6, (1, 2, 0, 3), 2, 8)
    assert chosen == (0.0,)
    assert layers.tolist() == [[[1, 2], [0, 3]]]
    chosen, layers = lower_bound._layers((1.0,) * 6, (1, 2, 0, 3), 2, 8)
    assert chosen == (1.0,)
    assert layers.tolist() == [[[1, 2], [0, 3]]]


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_a_step_takes_at_least_its_busiest_stage_and_the_way_there(monkeypatch, schedule):
    """Two stages of two chunks: layers 1, 3 and 2, 4, of which those from the third on have experts."""
    passes = lower_bound._Passes
    made = Record(
        layout=Record(pp=2), micro_batches=3, layer_counts=(1, 3, 2, 4), loads=(0.0, 0.0, *(1.0,) * 8),
        training=Record(parallel=Record(schedule=schedule)),
    )  # fmt: skip
    monkeypatch.setattr(
        lower_bound.LowerBounds, "_passes",
        lambda self, job, loads: (passes(10, 20), passes(100, 200), passes(1, 2), passes(3, 4)),
    )  # fmt: skip
    # chunks by stage: (1 dense, 3: one dense and two sparse), then (2 sparse, 4 sparse)
    first = (10 + 20 + 1 + 2) + 2 * 300
    second = (10 + 20 + 2 * 300) + 4 * 300 + 3 + 4
    before = 10 + 1 + (0 if schedule == "zero-bubble" else 20 + 2)
    assert lower_bound.LowerBounds().of(made) == max(3 * first, 3 * second + before)


def stage_exchanges(gathered, reduced, between, behind):
    """Make those of one stage of two chunks: [2 streams][2 chunks] ahead of and beside passes."""
    columns = (np.array(part, float).reshape(2, 2, 1) for part in (gathered, reduced))
    return StepExchanges(*columns, np.array([between]), np.array([behind]), np.any([gathered, reduced]))


NONE_MOVED = [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("exchanges", "least"),
    [
        ((NONE_MOVED, NONE_MOVED, 0, 0), 4 * 330),
        ((NONE_MOVED, NONE_MOVED, 7, 9), 4 * 330 + 16),
        # four forwards and three backwards of both chunks are over before the last backward begins
        ((NONE_MOVED, [[300, 200], [0, 100]], 0, 9), 4 * 110 + 3 * 220 + 500 + 9),
        ((NONE_MOVED, [[0, 0], [300, 0]], 0, 0), 4 * 110 + 3 * 220 + 300),
        ((NONE_MOVED, [[0, 0], [200, 0]], 0, 0), 4 * 330),  # beside the backward
        # the first forward ends with what is gathered; all else follows
        (([[100, 300], [0, 0]], NONE_MOVED, 7, 9), 400 + 4 * 330 - 110 + 16),
        (([[100, 300], [0, 900]], NONE_MOVED, 0, 0), 900 + 4 * 330 - 110),
        (([[10, 0], [0, 0]], NONE_MOVED, 0, 0), 4 * 330),
        (([[400, 0], [0, 0]], [[500, 0], [0, 0]], 0, 9), 400 + 4 * 110 + 3 * 220 - 110 + 500 + 9),
    ],
)
def test_a_step_waits_for_parameters_and_gradients_on_their_way(exchanges, least):
    """Two chunks of a stage, forward 10 and 100, backward 20 and 200, four micro-batches."""
    made = Record(
        layout=Record(pp=1), micro_batches=4, training=Record(parallel=Record(schedule="1f1b")),
    )  # fmt: skip
    forward, backward = np.array([[10.0], [100.0]]), np.array([[20.0], [200.0]])
    assert lower_bound._bound_ps(made, forward, backward, stage_exchanges(*exchanges)) == least


def test_gradients_of_other_schedules_may_be_reduced_once_all_forwards_are_over():
    made = Record(
        layout=Record(pp=1), micro_batches=4, training=Record(parallel=Record(schedule="gpipe")),
    )  # fmt: skip
    forward, backward = np.array([[10.0], [100.0]]), np.array([[20.0], [200.0]])
    moved = stage_exchanges(NONE_MOVED, [[3000, 0], [0, 0]], 0, 0)
    assert lower_bound._bound_ps(made, forward, backward, moved) == 4 * 110 + 3000


@pytest.mark.parametrize(
    ("exchanges", "first", "least"),
    [
        ((NONE_MOVED, NONE_MOVED, 0, 0), [0, 0], 50 + 400 + 7),
        ((NONE_MOVED, NONE_MOVED, 30, 2), [0, 0], 50 + 400 + 39),
        # first forwards begin at 100 and 300, and take 10 and 20
        (([[90, 100], [0, 0]], NONE_MOVED, 0, 0), [0, 0], 50 + 400 + 7),
        (([[190, 150], [0, 400]], NONE_MOVED, 0, 0), [80, 80], 50 + 400 + 7),
        # of two streams each for itself; gradients are there at 205 (of the last chunk) and at 306
        ((NONE_MOVED, [[90, 200], [0, 40]], 0, 2), [0, 0], 50 + 205 + 200 + 90 + 9),
        ((NONE_MOVED, [[90, 20], [120, 0]], 0, 0), [0, 0], 50 + 306 + 120 + 7),
        ((NONE_MOVED, [[10, 20], [12, 0]], 0, 0), [0, 0], 50 + 400 + 7),
    ],
)
def test_a_schedule_waits_for_parameters_and_gradients_on_their_way(monkeypatch, exchanges, first, least):
    begin = np.zeros((3, 1, 2))
    begin[1, 0] = 300, 200
    found = Played(np.array([[100.0, 300.0]]), begin, begin + 5, np.array([400.0]), 50.0)
    asked = []

    def played(passes, given):
        asked.append(given)
        return found

    closed = Record(
        last_stages=[0], optimizers_ps=lambda parameters: np.array([float(parameters)]),
        context=Record(final=1), played=played,
        play=lambda passes, m, given: found if m == 1 and not given.any() else None,
        passes=Record(took=np.array([[[10.0, 20.0]]] * 3), marks={(0, 0): (9.0, 6.0), (0, 1): (8.0, 5.0)}),
    )  # fmt: skip
    bounds = lower_bound.LowerBounds()
    monkeypatch.setattr(bounds._exchanges, "of", lambda job: stage_exchanges(*exchanges))
    monkeypatch.setattr(bounds._exchanges, "parameters", lambda job: 7)
    assert bounds.played(Record(layout=Record(pp=1), micro_batches=4, chunks=2), closed) == least
    assert asked[0].tolist() == [first]


def test_the_least_passes_are_slowed_by_messages_and_the_last_by_gradients(monkeypatch):
    """132 multiprocessors: 12 for messages take a tenth of compute beside them, 22 for gradients a fifth."""
    stages = [Record(number=s) for s in range(3)]
    closed = Record(
        groups=Record(sm_count=132), stages=stages, offsets=[0, 4, 0], places=(0, 4),
        lowering=Record(messages_ps=50.0, reduction_ps=lambda stage, dense: dense * (2 + stage.number)),
    )  # fmt: skip
    job = Record(
        layout=Record(pp=3), chunks=1, training=Record(overlap=Record(send_sms=12, collective_sms=22)),
    )  # fmt: skip
    bounds = lower_bound.LowerBounds()
    monkeypatch.setattr(
        bounds._exchanges, "parameters", lambda job: np.array([[[10.0, 20.0, 1000.0]], [[7.0] * 3]])
    )
    forward, backward, own = (
        np.array([[100.0, 30.0, 80.0]]),
        np.array([[200.0, 60.0, 160.0]]),
        np.array([[90.0, 20, 70]]),
    )
    found = bounds._pass_times(job, closed, (forward, backward), (own, 2 * own), "between")
    assert found.messages == "between"
    assert found.took[:, :, 0].tolist() == [[105, 32, 85], [205, 64, 165], [0, 0, 0]]
    # gradients take 10 x 2, 20 x 3 (more than compute) and 1000 x 2: the first and the last stage begin alike
    assert found.extra[1, :, 0].tolist() == [4, 8, 28]
    assert not found.extra[[0, 2]].any()


@pytest.mark.parametrize(
    ("ranks", "apart", "ps_a_byte"),
    [
        (8, 1, 4 / 8 / 1),  # one group of eight on two hosts: half of the bytes come in by a byte a ps
        (8, 4, 4 * 1 / 2),  # four of two, one a host
        (8, 2, 2 * 2 / 4),
        (4, 1, 3 / 4),  # inside a host, a byte a ps
        (4, 4, 0),
        (6, 2, 2 * 1 / 3),  # four on one host: of three ranks two are there
    ],
)
def test_a_byte_of_groups_takes_at_least_the_ways_out_of_their_busiest_host(ranks, apart, ps_a_byte):
    job = Record(
        layout=Record(pp=1, order="tp-cp-dp-pp", grid=np.arange(ranks).reshape(1, 1, -1)),
        placement=Record(host_of_rank=HOSTS), hardware=Hardware("h100-sxm", 8e12, 2e12, 8e12),
    )  # fmt: skip
    assert ExchangeBounds(in_switch=False)._byte_time(job, 0, apart) == pytest.approx(ps_a_byte)


@pytest.mark.parametrize(
    ("kind", "groups", "ps_a_byte"),
    [
        ("all_gather", [[0, 1, 2, 3]], 3 / 4),  # inside a host, a byte a ps
        ("all_gather", [[0, 1, 4, 5]], 2 / 4),  # half of it comes into each host by a byte a ps
        ("all_gather", [[0, 1, 4, 5], [2, 3, 6, 7]], 2 * 2 / 4),
        ("reduce_scatter", [[0, 4], [1, 5], [2, 6], [3, 7]], 4 * 1 / 2),
        ("all_reduce", [[0, 1, 4, 5]], 2 * 2 / 4),
        ("all_to_all", [[0, 1, 4, 5]], 2 * 2 / 4),  # of two ranks half of what each has
        ("send", [[0, 1], [2, 3]], 1),
        ("send", [[0, 1], [2, 6], [3, 7]], 2),
    ],
)
def test_a_communication_takes_at_least_the_ways_of_its_bytes(kind, groups, ps_a_byte):
    job = Record(placement=Record(host_of_rank=HOSTS), hardware=Hardware("h100-sxm", 8e12, 2e12, 8e12))
    asked = Record(what=(kind,), groups=np.array(groups))

    def hosts(groups):
        return False, int(max(np.bincount(row).max() for row in HOSTS[groups]))

    took, switches = (asked_byte_ps(asked, job, hosts, in_switch=way) for way in (False, True))
    assert took == pytest.approx(ps_a_byte)
    assert switches == pytest.approx(took / (2 if kind == "all_reduce" else 1))


# ---------------------------------------------------------------------- what a search tries


def test_sections_that_are_tried_are_all_that_divide(job_of_two_hosts):
    of, blueprint, twin, *_ = job_of_two_hosts
    search = Search(of, blueprint, twin.fabric)
    assert (search.per_host, search.gpus, search.global_batch) == (8, 16, 32)
    assert search.room == pytest.approx(0.95 * 80 * 2**30, rel=0.1)
    expected = {
        (tp, cp, pp, 16 // (tp * cp * pp))
        for tp in (1, 2, 4, 8) for cp in (1, 2, 4, 8, 16) for pp in (1, 2, 4, 8, 16) if 16 % (tp * cp * pp) == 0
    }  # fmt: skip
    assert set(search._sizes()) == expected
    tried = {(p["tp"], p["cp"], p["pp"], p["dp"], p["vp"], p["ends_as_layers"]) for p in search._parallel()}
    every = {
        (tp, cp, pp, dp, vp, False)
        for tp, cp, pp, dp in expected for vp in range(1, 33) if 32 % (pp * vp) == 0 and (vp == 1 or pp > 1)
    }  # fmt: skip
    assert tried == every
    sections = list(search._sections())
    found = {
        (
            *(s["parallel"][k] for k in ("tp", "cp", "pp", "dp", "vp")),
            s["micro_batch_size"],
            s["sequence_parallel"],
        )
        for s in sections
    }
    assert len(found) == len(sections)
    assert found == {
        (tp, cp, pp, dp, vp, size, divided)
        for tp, cp, pp, dp, vp, _ in every for size in (1, 2, 4, 8) for divided in ((True,
        False) if tp > 1 else (False,))
        if 32 % dp == 0 and 32 // dp % size == 0 and (vp == 1 or 32 // dp // size % pp == 0)
    }  # fmt: skip


def test_a_section_is_the_spec_s_own_with_its_layout(job_of_two_hosts):
    of, blueprint, twin, *_ = job_of_two_hosts
    search = Search(of, blueprint, twin.fabric)
    for section in list(search._sections())[::40]:
        job, par = search._job({**section, "recompute": "none"}), section["parallel"]
        if job is None:
            continue
        layout = job.layout
        assert (layout.tp, layout.dp, layout.pp, layout.cp, layout.ep) == (
            par["tp"],
            par["dp"],
            par["pp"],
            par["cp"],
            1,
        )
        assert job.micro_batches == 32 // (par["dp"] * section["micro_batch_size"])
        assert job.training.parallel.vp == par["vp"]
        assert job.training.micro_batch_size == section["micro_batch_size"]
        assert job.training.sequence_parallel == section["sequence_parallel"]
        assert sum(job.layer_counts) == 32
        assert len(job.layer_counts) == par["pp"] * par["vp"]
        assert job.vocab % (128 * par["tp"]) == 0
        assert 0 <= job.vocab - 128256 < 128 * par["tp"]
