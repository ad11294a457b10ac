"""Programs of disturbed clusters: how noise is drawn and added, whose first operations wait."""

from __future__ import annotations

from functools import partial
from math import exp, factorial
from types import SimpleNamespace as Record

import numpy as np
import pytest
from support.disturbed import MS, disturbed_spec, end
from support.programs import operations

from fabrictwin.program.program import NONE, Label, OpKind, Program
from fabrictwin.runs.execute import prepare, with_overrides
from fabrictwin.workload.step import disturbed_program
from fabrictwin.workload.step.disturbed_program import (
    GRID,
    add_noise,
    begin_late,
    first_operations,
    greatest,
    greatest_table,
    power,
    sums,
    uniform,
)


@pytest.fixture
def spec(tmp_path):
    return partial(disturbed_spec, tmp_path)


@pytest.mark.parametrize("fidelity", ["analytic", "flow", "packet"])
def test_a_late_gpu_holds_everybody_up_by_as_much(spec, fidelity):
    plain = end(spec(fidelity=fidelity, pp=1))
    for fold in ("true", "false"):
        late = end(spec("{gpu: host-1/gpu1, late: 3 ms}", fidelity=fidelity, pp=1, fold=fold))
        assert late == pytest.approx(plain + 3 * MS, rel=0.02)
    assert end(spec("{gpu: host-1/gpu1, late: 0 s}", fidelity=fidelity, pp=1)) == plain


def test_a_late_gpu_is_a_class_of_its_own(spec):
    program = prepare(spec("{gpu: host-1/gpu1, late: 3 ms}")).job.program
    waits = [i for i, op in enumerate(program.operations.label) if program.labels[op].name == "late start"]
    assert len(waits) == 1
    actor = program.actors[program.operations.actor[waits[0]]]
    assert len(actor.ranks) == 1
    assert len(program.actors) == len(prepare(spec()).job.program.actors) + 2


NOISE = "{noise: {mean: 50 us, period: 500 us, distribution: KIND}}"


@pytest.mark.parametrize("kind", ["fixed", "exponential"])
def test_noise_adds_to_compute_and_is_drawn_from_its_seed(spec, kind):
    line = NOISE.replace("KIND", kind)
    plain = prepare(spec()).job.program.operations
    one = prepare(spec(line)).job.program.operations
    extra = one.duration_ps - plain.duration_ps
    assert (extra >= 0).all()
    assert (extra[plain.duration_ps == 0] == 0).all()
    assert extra.sum() > 0.1 * plain.duration_ps.sum(), "the slowest of several ranks suffers more than one"
    assert (one.duration_ps == prepare(spec(line)).job.program.operations.duration_ps).all()
    other = prepare(with_overrides(spec(line), seed=7)).job.program.operations
    assert (one.duration_ps != other.duration_ps).any()
    assert end(spec(line)) > end(spec())


def test_noise_of_one_rank_is_its_share_on_average(spec):
    line = NOISE.replace("KIND", "exponential").replace("50 us", "200 us")
    plain = prepare(spec(fold="false")).job.program.operations.duration_ps.sum()
    noisy = prepare(spec(line, fold="false")).job.program.operations.duration_ps.sum()
    assert noisy / plain == pytest.approx(1.4, rel=0.1)


def test_noise_on_some_hosts_leaves_the_others_alone(spec):
    line = "{noise: {mean: 200 us, period: 300 us}, hosts: [host-2]}"
    quiet = prepare(spec(fold="false"))
    noisy = prepare(spec(line, fold="false"))
    program = noisy.job.program
    changed = np.flatnonzero(program.operations.duration_ps != quiet.job.program.operations.duration_ps)
    ranks = {int(r) for a in program.operations.actor[changed] for r in program.actors[a].ranks}
    hosts = {int(noisy.twin.fabric.node_host[noisy.job.rank_node[r]]) for r in ranks}
    assert hosts == {2}


def test_folded_noise_bounds_the_unfolded_run(spec):
    line = NOISE.replace("KIND", "exponential")
    unfolded = [end(with_overrides(spec(line, fold="false"), seed=s)) for s in range(1, 6)]
    folded = [end(with_overrides(spec(line), seed=s)) for s in range(1, 6)]
    assert np.mean(unfolded) <= 1.02 * np.mean(folded)


def test_draws_follow_their_distribution():
    u = uniform(5, np.arange(200_000))
    assert u.mean() == pytest.approx(0.5, abs=0.002)
    assert u.min() > 0
    assert u.max() < 1
    # the greatest of n exponentials has the mean 1 + 1/2 + ... + 1/n
    for n in (1, 4, 64):
        expected = sum(1 / i for i in range(1, n + 1))
        assert greatest(1.0, n, u, fixed=False).mean() == pytest.approx(expected, rel=0.01, abs=0.01)
    assert greatest(0.25, 1, u, fixed=False).mean() == pytest.approx(0.25, abs=0.01)
    assert greatest(10.0, 1, u, fixed=False).std() == pytest.approx(10**0.5, rel=0.01)
    assert greatest(1000.0, 1, u, fixed=False).mean() == pytest.approx(1000, rel=0.002)
    assert greatest(1000.0, 1, u, fixed=False).std() == pytest.approx(1000**0.5, rel=0.02)
    assert greatest(2.25, 1, u, fixed=True).mean() == pytest.approx(2.25, abs=0.01)
    assert greatest(0.25, 8, u, fixed=True).mean() == pytest.approx(1 - 0.75**8, abs=0.01)
    assert sums(3)[-1] == pytest.approx(1)


# ---------------------------------------------------------------------- draws


def test_uniform_numbers_are_splitmix64_s():
    """Steele, Lea and Flood 2014: the finaliser, over a seed and an odd multiple of the number."""
    mask = 2**64 - 1
    for seed, number in ((0, 0), (5, 1), (2**40 + 3, 77), (1, 10**9)):
        x = (number * 0xD1B54A32D192ED03 + seed) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        x ^= x >> 31
        assert uniform(seed, np.array([number])).tolist() == [((x >> 12) + 0.5) / 2**52]


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, 8, 64, 1000])
def test_powers(exponent):
    base = np.array([0.0, 0.5, 0.999, 1.0])
    assert power(base, exponent) == pytest.approx([x**exponent for x in base.tolist()], rel=1e-12)


@pytest.mark.parametrize("hits", [1, 2, 5, 12])
def test_sums_of_exponentials_are_poisson_tails(hits):
    """Fewer than `hits` events of a Poisson process in x: Erlang's distribution."""
    cdf = sums(hits)
    assert len(cdf) >= GRID * (hits + 8 * hits**0.5 + 40)
    for at in (0, 1, GRID // 2, GRID, 3 * GRID, 20 * GRID):
        x = at / GRID
        erlang = 1 - sum(exp(-x) * x**j / factorial(j) for j in range(hits))
        assert cdf[at] == pytest.approx(erlang, abs=1e-12)
    assert set(sums(0).tolist()) == {1.0}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("periods", [0.0, 0.25, 2.0, 2.75])
def test_the_greatest_of_several_ranks_is_a_power_of_a_mixture(periods, ranks):
    whole, chance = int(periods), periods - int(periods)
    cdf, values = greatest_table(periods, ranks, fixed=False)
    for at in (0, GRID, 4 * GRID, 10 * GRID):
        less, more = sums(whole)[at], sums(whole + 1)[at]
        assert cdf[at] == pytest.approx(((1 - chance) * less + chance * more) ** ranks)
        assert values[at] == at / GRID
    cdf, values = greatest_table(periods, ranks, fixed=True)
    assert cdf.tolist() == pytest.approx([(1 - chance) ** ranks, 1])
    assert values.tolist() == [whole, whole + 1]


def test_above_the_most_hits_the_deviation_grows_as_a_root(monkeypatch):
    monkeypatch.setattr(disturbed_program, "MOST_HITS", 4)
    few, many = greatest_table(4.0, 1, fixed=False), greatest_table(16.0, 1, fixed=False)
    assert few[0].tolist() == many[0].tolist()
    assert many[1] == pytest.approx(16 + (few[1] - 4) * 2)


def test_a_draw_is_the_first_value_that_its_chance_reaches(monkeypatch):
    table = np.array([0.25, 0.5, 0.5, 0.9]), np.array([0.0, 1.0, 2.0, 3.0])
    monkeypatch.setattr(disturbed_program, "greatest_table", lambda periods, ranks, fixed: table)
    u = np.array([0.1, 0.25, 0.3, 0.5, 0.6, 0.95])
    assert greatest(1, 1, u, fixed=False).tolist() == [0, 0, 1, 1, 3, 3]
    assert greatest(1, 1, u, fixed=True).tolist() == [0, 1, 1, 3, 3, 3]


# ---------------------------------------------------------------------- programs


def program(actor, after, *, communication=None, duration=None, ranks=((0,), (1, 2), (3,)), participants=()):
    """Compute of actors on ranks, in a graph; communications with their participants."""
    ops = operations(communication or [NONE] * len(actor), after, duration)
    ops.actor[:] = actor
    return Program(
        name="x",
        ranks=4,
        actors=tuple(Record(name=str(i), ranks=np.array(r)) for i, r in enumerate(ranks)),
        operations=ops,
        communications=tuple(Record() for _ in participants),
        participants=np.array([p for row in participants for p in row], np.int32),
        participants_start=np.concatenate([[0], np.cumsum([len(row) for row in participants])]).astype(np.int32),
        labels=(Label("a", "compute"),),
    )


FABRIC = Record(  # four GPUs on two hosts
    node_host=np.array([7, 7, 8, 8]),
    node_gpu=np.arange(4),
    gpu_local=np.array([0, 1, 0, 1]),
    gpu_node=np.arange(4),
)
NODES = np.arange(4, dtype=np.int32)


def test_noise_is_added_to_compute_of_the_ranks_that_it_hits(monkeypatch):
    asked = []

    def drawn(periods, ranks, u, *, fixed):
        asked.append((periods, ranks, len(u), fixed))
        return u * ranks

    monkeypatch.setattr(disturbed_program, "greatest", drawn)
    monkeypatch.setattr(disturbed_program, "uniform", lambda seed, rows: seed + rows.astype(float))
    made = program(
        [0, 1, 1, 2, 1, 0], [[], [], [], [], [], []], duration=[100, 200, 200, 300, 0, 50],
        communication=[NONE] * 5 + [0], participants=[(0,)],
    )  # fmt: skip
    noise = Record(seed=1, hosts=[8], noise=Record(period=400, mean=10, distribution="fixed"))
    found = add_noise(made, FABRIC, NODES, [noise])
    # actor 1 has ranks 1 and 2, of which 2 is on the host; rank 3 is alone; nothing else is compute there
    assert found.operations.duration_ps.tolist() == [100, 200 + 20, 200 + 30, 300 + 40, 0, 50]
    assert asked == [(0.5, 1, 2, True), (0.75, 1, 1, True)]
    assert made.operations.duration_ps.tolist() == [100, 200, 200, 300, 0, 50]
    asked.clear()
    both = Record(seed=0, hosts=[7, 8], noise=Record(period=400, mean=10, distribution="exponential"))
    found = add_noise(made, FABRIC, NODES, [both, noise])
    # row times ranks times the mean; then what the host's own adds
    assert found.operations.duration_ps.tolist() == [100, 200 + 20 + 20, 200 + 40 + 30, 300 + 30 + 40, 0, 50]
    assert asked[:3] == [(0.25, 1, 1, False), (0.5, 2, 2, False), (0.75, 1, 1, False)]


def test_the_first_operations_of_an_actor_wait_for_none_of_its_own():
    made = program(
        [0, 1, 0, 1, 2, 0], [[], [0], [1], [1], [], [4]], communication=[NONE, NONE, NONE, NONE, 0, NONE],
        participants=[(2, 1)],
    )  # fmt: skip
    found = first_operations(made, np.arange(3))
    # actor 1 takes part in the communication of row 4; row 2 and 5 of actor 0 wait for others' only
    assert [rows.tolist() for rows in found] == [[0, 2, 5], [1, 4], [4]]


def test_a_late_gpu_s_first_operations_wait_for_it():
    made = program([0, 1, 1, 2], [[], [0], [1], []], duration=[1, 2, 3, 4])
    late = [
        Record(host=7, gpu=1, late_ps=500),
        Record(host=8, gpu=0, late_ps=300),  # of the same actor: the later counts
        Record(host=8, gpu=1, late_ps=0),
        Record(host=9, gpu=1, late_ps=900),
    ]
    found = begin_late(made, FABRIC, NODES, late)
    ops = found.operations
    assert ops.duration_ps.tolist() == [1, 2, 3, 4, 500]
    assert (ops.kind[-1], ops.actor[-1], ops.communication[-1]) == (OpKind.COMPUTE, 1, NONE)
    assert (ops.label[-1], ops.micro_batch[-1]) == (1, NONE)
    assert found.labels[1:] == (Label("late start", "other"),)
    waits = [
        sorted(ops.after[a:b].tolist()) for a, b in zip(ops.after_start[:-1], ops.after_start[1:], strict=True)
    ]
    assert waits == [[], [0, 4], [1], [], []]
    assert begin_late(made, FABRIC, NODES, late[2:]) is made
