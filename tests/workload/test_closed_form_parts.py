"""The closed form piece by piece on hand-made records: durations between powers of two, passes, the parts."""

from __future__ import annotations

from types import SimpleNamespace as Record

import numpy as np
import pytest

from fabrictwin.workload.layers.pass_script import Collective
from fabrictwin.workload.step import closed_form
from fabrictwin.workload.step.closed_form import ClosedForm, Estimate, Messages, PassTimes, Played, _ChunkKind
from fabrictwin.workload.step.communication_times import Asked, CommunicationTimes, TimedFactory
from fabrictwin.workload.step.pipeline_schedule import Pass
from fabrictwin.workload.step.timed_pass import PassTime


def times(hosts=(0, 0, 1, 1), first=(0, 10)):
    """Ranks on these hosts, each the next GPU of its host; durations grow as size to 1.5."""
    made = CommunicationTimes.__new__(CommunicationTimes)
    asked = []
    made._forms = Record(
        durations=lambda some, nodes: (
            asked.append([size for _, size in some]) or np.array([s**1.5 for _, s in some])
        )
    )
    made._rank_node = np.arange(len(hosts))
    made._host = np.array(hosts)
    made._local = np.arange(len(hosts)) % 2
    made._known, made._scale, made.passes, made.library, made.hosts_known = {}, {}, {"kept": 1}, None, {}
    made._rails, made._placed = None, {}
    return made, asked


def took(made, category, name, groups, size, step, make):
    groups = np.array(groups)
    return made.of(Asked(category, (name,), groups, made.place, size, step, make))


def one_each(groups, size):
    return ((len(groups), size),)


@pytest.mark.parametrize(
    ("size", "step", "low"),
    [(4096, 4, 1024), (4100, 4, 1024), (8188, 4, 1024), (6000, 1, 4096), (1, 4, 1), (24, 8, 2)],
)
def test_durations_lie_between_those_of_powers_of_two(size, step, low):
    made, asked = times()
    found = took(made, "tp", "x", [[0, 1]], size, step, one_each)
    ends = [(low * step) ** 1.5, (2 * low * step) ** 1.5]
    units = max(size / step, 1)
    assert found == pytest.approx(ends[0] + (ends[1] - ends[0]) * (units / low - 1))
    # a power of two asks for no other
    assert asked == [[low * step] if units == low else [low * step, 2 * low * step]]
    took(made, "dp", "x", [[0, 1]], size, step, one_each)
    assert len(asked) == 1  # known
    took(made, "dp", "y", [[0, 1]], size, step, one_each)
    took(made, "dp", "x", [[0, 2]], size, step, one_each)
    took(made, "dp", "x", [[2, 3]], size, step, one_each)  # as those of the first host
    assert len(asked) == 3
    both = took(made, "dp", "z", [[0, 1]], size, step, lambda some, n: ((1, n), (1, n)))
    assert both == pytest.approx(2 * found)


def test_groups_inside_hosts_stand_for_each_other():
    made, _ = times()
    inside, across = np.array([[0, 1], [2, 3]]), np.array([[0, 2], [1, 3]])
    mixed = np.array([[0, 1], [1, 2]])
    for groups, some in ((inside, [[0, 1]]), (inside[::-1], [[2, 3]]), (across, across), (mixed, mixed)):
        found, key = made.place(groups, False)
        assert found.tolist() == np.array(some).tolist()
        assert key == made.placement_key(found)
    keys = [
        made.placement_key(np.array(groups)) for groups in ([[0, 1]], [[2, 3]], [[0, 2]], [[1, 0]], [[0], [1]])
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("scale", "category", "groups", "share"),
    [
        ({"tp": 0.5}, "tp", [[0, 1]], 0.5), ({"tp": 0.5}, "dp", [[0, 1]], 1),
        ({"inside": 0.25}, "tp", [[0, 1]], 0.25),
        ({"inside": 0.25}, "tp", [[0, 2]], 1), ({"between": 0.25}, "tp", [[0, 2]], 0.25),
        ({"tp": 0.0}, "tp", [[0, 2]], 0),
        ({"tp": 0.5, "inside": 0.5}, "tp", [[0, 1], [2, 3]], 0.25),
        ({"between": 0.5}, "tp", [[0, 1], [1, 2]], 0.5),
    ],
)  # fmt: skip
def test_some_communication_takes_a_share_of_its_time(scale, category, groups, share):
    made, asked = times()
    whole = took(made, category, "x", groups, 4096, 4, one_each)
    other = made.scaled(scale)
    assert (other.passes, made.passes, made._scale) == ({}, {"kept": 1}, {})
    assert took(other, category, "x", groups, 4096, 4, one_each) == pytest.approx(share * whole)
    assert took(made.without_passes(), category, "x", groups, 4096, 4, one_each) == whole
    assert len(asked) == 1


@pytest.mark.parametrize("library", [None, "nccl"])
def test_each_kind_of_communication_is_timed_as_what_it_is(library):
    asked = []

    def of(one):
        asked.append((one.category, one.what, one.size_bytes, one.step))
        assert one.at == "the place of all"
        return one.make(one.groups, 96)

    def place(groups, trees):
        found.append(trees)
        return "the place of all"

    found = []
    made = TimedFactory.__new__(TimedFactory)
    made.times = Record(library=library, of=of, place=place)
    made._places = {}
    made._made = Record(
        ring=lambda kind, groups, size, name, element: ("ring", kind, size, element),
        exchange=lambda groups, size, name: ("exchange", size), send=lambda pairs, size, name: ("send", size),
        gradients=lambda groups, size, name: ("gradients", size, name),
        job=Record(training=Record(gradients=Record(algorithm="tree", channels=3)), gradient_bytes=4),
    )  # fmt: skip
    groups = np.arange(8).reshape(2, 4)
    scatter = "all_gather" if library is None else "reduce_scatter"
    assert made.collective(Collective("ep", "all_to_all", 800), groups, "") == (("exchange", 24),)
    assert made.collective(Collective("cp", "all_reduce", 800), groups, "") == (("ring", "all_reduce", 96, 2),)
    assert made.ring("reduce_scatter", groups, 800, "") == (("ring", scatter, 96, 2),)
    assert made.ring("all_gather", groups, 800, "", 1) == (("ring", "all_gather", 96, 1),)
    assert made.send(groups, 800, "x") == (("send", 96),)
    assert made.gradients(groups, 800, "g") == (("gradients", 96, "g"),)
    assert asked == [
        ("ep", ("all_to_all",), 800, 8), ("cp", ("all_reduce", 2), 800, 8), ("dp", (scatter, 2), 800, 8),
        ("dp", ("all_gather", 1), 800, 4), ("pp", ("send",), 800, 1), ("dp", ("gradients", "tree", 3, 4), 800, 16),
    ]  # fmt: skip
    # groups are placed once each way; trees are all-reduces'
    assert found == [False, True]


# ---------------------------------------------------------------------- the step


def passes(pp, chunks, seed=0):
    draw = np.random.default_rng(seed)
    took, computed, extra = (draw.integers(1, 50, (3, pp, chunks)).astype(float) for _ in range(3))
    return PassTimes(took + 60, computed, extra, {}, Messages(np.zeros((pp, 2)), np.zeros(pp)))


@pytest.mark.parametrize(("pp", "chunks", "m"), [(1, 1, 4), (3, 1, 5), (2, 2, 8)])
@pytest.mark.parametrize("shift", [0.0, 70.0])
@pytest.mark.parametrize("gathers", [False, True])
def test_the_parts_of_a_step_add_up_to_it(monkeypatch, pp, chunks, m, shift, gathers):
    """Parts of the stage that ends last: computing, what passes take beside, waiting, the end of the step."""
    draw = np.random.default_rng(7)
    end = draw.integers(100, 1000, (3, pp, chunks)).astype(float)
    begin, first, done = end - 5, draw.integers(0, 9, (pp, chunks)).astype(float), []
    played = Played(first, begin, end, end.max(axis=(0, 2)) + 3, shift)
    made = Record(
        micro_batches=m, context="context", last_stages=[0], passes=passes(pp, chunks),
        clock=Record(ends=[3.0, 4000.4]),
        training=Record(overlap=Record(parameters=gathers)),
        _first_forwards=lambda: first, played=lambda of, one: played,
        _end_passes=lambda *given: done.append(given),
        _gather_parameters=lambda optimizer: done.append("gathered"),
    )  # fmt: skip
    lowering = lambda context, stages: Record(lower=lambda: done.append((context, stages)))  # noqa: E731
    monkeypatch.setattr(closed_form, "OptimizerStep", lowering)
    found = ClosedForm.estimate(made)
    stage = max(range(pp), key=lambda s: end[:, s].max())
    each = [
        m * made.passes.took[:, s].sum() + made.passes.extra[:, s].sum() + first[s].sum() for s in range(pp)
    ]  # fmt: skip
    compute = round(m * made.passes.computed[:, stage].sum())
    exchange, waiting = round(each[stage] - compute), round(end.max() + 3 + shift - each[stage])
    finish = 4000 - compute - exchange - waiting
    assert found == Estimate(4000, compute, exchange, waiting, finish, round(max(each)) + finish)
    if gathers:
        assert done.pop(0) == "gathered"
    (starts, ends), lowered = done
    assert (starts == begin + shift).all()
    assert (ends == end + shift).all()
    assert lowered == ("context", [0])
    made.clock.ends = [3.0]
    done.clear()
    assert ClosedForm.estimate(made).step_ps == round(end.max() + shift)
    shares = {"compute": compute, "communication in passes": exchange, "pipeline": waiting, "end of step": finish}
    assert found.shares == {name: part / 4000 for name, part in shares.items()}
    assert sum(found.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("pp", "m", "played"),
    [
        (1, 5, 5),
        (1, 16, 16),
        (1, 90, 16),
        (4, 3, 3),
        (4, 90, 16),
        (5, 90, 20),
        (3, 90, 15),
        (32, 40, 40),
        (32, 300, 128),
    ],
)
def test_of_many_micro_batches_the_first_groups_are_played(pp, m, played):
    """Four groups of as many as there are stages, or sixteen; each group more takes as long as the one before."""
    asked = []

    def play(of, count, first, more=0):
        asked.append((count, more))
        ends = np.full((3, pp, 1), 7.0 * count + 100)
        return Played(0 * ends[0], ends - 1, ends, ends[0, :, 0], 7.0 * more)

    found = ClosedForm.played(Record(layout=Record(pp=pp), micro_batches=m, play=play), "passes", "first")
    assert asked == [(played, pp if m > played else 0)]
    assert (found.begin.max(), found.end.max()) == (7 * played + 99, 7 * played + 100)
    assert found.shift == pytest.approx(7.0 * (m - played))


def test_passes_are_played_once_for_what_they_depend_on(monkeypatch):
    """Asked for are micro-batches and how late first forwards are; the shift is what more put off the end by."""
    asked = []

    def play(ahead, late, took, send, slices, blocking, first, last, m, more, opens, begin, end, over):
        asked.append((ahead.tolist(), late.tolist(), m, more))
        over[:] = 40, 30
        return 40.0 + 10 * more

    monkeypatch.setattr("fabrictwin.kernel.schedule.pipeline_times.play", play)
    made = Record(
        layout=Record(pp=2), job=Record(chunks=1), training=Record(parallel=Record(schedule="zero-bubble")),
        context=Record(blocking=False),
    )  # fmt: skip
    of, first = passes(2, 1), np.zeros((2, 1))
    found = ClosedForm.play(made, of, 4, first, 2)
    assert (found.shift, found.over.tolist()) == (20, [40, 30])
    assert ClosedForm.play(made, of, 4, first.copy(), 2) is found
    assert ClosedForm.play(made, of, 4, first).shift == 0
    ClosedForm.play(made, of, 4, first + 1, 2)
    ClosedForm.play(made, passes(2, 1), 4, first, 2)
    assert asked == [([1, 0], [0, 1], 4, more) for more in (2, 0, 2, 2)]


@pytest.mark.parametrize("apart", [False, True])
def test_optimizers_run_behind_the_passes_of_stages_that_can_be_last(monkeypatch, apart):
    monkeypatch.setattr(
        closed_form, "OptimizerStep",
        lambda context, stages: Record(optimizer_ps=lambda dense, experts: 100 * dense + experts),
    )  # fmt: skip
    made = Record(
        layout=Record(pp=4), last_stages=[0, 1, 3], context=None, training=Record(overlap=Record(optimizer=apart)),
    )  # fmt: skip
    parameters = np.array([[[3, 2, 1, 0], [1, 1, 1, 1]], [[0, 1, 0, 1], [1, 0, 1, 0]]])
    assert ClosedForm.optimizers_ps(made, parameters).tolist() == ([0] * 4 if apart else [401, 301, 0, 101])


@pytest.mark.parametrize("loads", [None, "experts", "pattern", "first", "last"])
def test_a_chunk_is_known_by_its_ends_and_its_layers(loads):
    made = Record(
        job=Record(
            layers_of=lambda s, chunk: range(3 * s, 3 * s + 2), chunks=2, loads=tuple(n / 10 for n in range(20)),
            model=Record(experts=loads == "experts", pattern=loads == "pattern", kind=lambda n: f"k{n}"),
        ),
        training=Record(wide_layers=Record(first=int(loads == "first"), last=int(loads == "last"))),
        segments=Record(is_wide=lambda n: n == 4), layout=Record(pp=3),
    )  # fmt: skip
    for s in range(3):
        for chunk in range(2):
            told = tuple((n / 10, f"k{n}", n == 4) for n in (3 * s, 3 * s + 1)) if loads else ()
            expected = _ChunkKind(s == chunk == 0, (s, chunk) == (2, 1), 2, told)
            assert ClosedForm._chunk_kind(made, s, chunk) == expected


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 12])
def test_equal_layers_beyond_a_few_are_extrapolated(sharded, reduced, odd, count):
    """Two, or four and those that are gathered ahead where weights are sharded; odd layers are all timed."""
    timed = []

    def time(stage, kind, segments, *, mark=False):
        timed.append(len(segments))
        return PassTime(
            10.0 * len(segments) ** 2, 1.0 * len(segments), tuple(float(i) for i in range(len(segments)))
        )

    loads = tuple(range(count)) if odd else (1,) * count
    made = Record(
        _chunk_kind=lambda s, chunk: _ChunkKind(True, True, count, loads), layout_key=("key",), offsets=[0],
        times=Record(passes={}), context=Record(sharded=sharded, reduced=reduced), _timed=time,
        training=Record(sharding=Record(prefetch=2)), segments=Record(of=lambda s, chunk: list(range(count + 2))),
    )  # fmt: skip
    found = ClosedForm._pass(made, Record(number=0), 0, Pass.FORWARD)
    few = 6 if sharded else 2
    if count <= few or (odd and count > 1) or (reduced and not sharded):
        assert timed == [count + 2]
        assert found.took == 10.0 * (count + 2) ** 2
    else:
        assert timed == [few + 1, few + 2]
        more, fewer = (PassTime(10.0 * n**2, 1.0 * n, tuple(map(float, range(n)))) for n in (few + 2, few + 1))
        assert found == more.with_layers(fewer, count - few, 1)
        assert found.took == 10.0 * (few + 2) ** 2 + (count - few) * 10.0 * ((few + 2) ** 2 - (few + 1) ** 2)
    again = len(timed)
    ClosedForm._pass(made, Record(number=0), 0, Pass.FORWARD)
    assert len(timed) == again
    ClosedForm._pass(made, Record(number=0), 0, Pass.BACKWARD)
    assert len(timed) == 2 * again


@pytest.mark.parametrize("split", [False, True])
def test_passes_end_at_their_moments_and_orders_follow_them(split):
    pp, chunks = 3, 2
    kinds = [Pass.FORWARD, Pass.BACKWARD, *([Pass.WEIGHT] if split else [])]
    final = kinds[-1]
    draw = np.random.default_rng(1)
    end = draw.permutation(3 * pp * chunks).reshape(3, pp, chunks).astype(float)
    begin = end - 100
    stages = [Record(number=s, ends={}, ready={}) for s in range(pp)]
    made = Record(
        context=Record(orders=[], final=final), passes=Record(marks={(0, 1): (4.0, 5.0)}),
        clock=Record(at=lambda moment: int(1000 * moment)), stages=stages, kinds=kinds, job=Record(chunks=chunks),
        last_stages=[0, 1],
    )  # fmt: skip
    ClosedForm._end_passes(made, begin, end)
    assert (made.context.orders[2], stages[2].ends) == ([], {})  # nothing follows what cannot be last
    for s in range(2):
        expected = sorted((end[int(k), s, c], int(k), c) for k in kinds for c in range(chunks))
        order = made.context.orders[s]
        assert [(int(task.kind), task.micro_batch, task.chunk) for task in order] == [
            (k, 0, c) for _, k, c in expected
        ]
        for kind in kinds:
            for c in range(chunks):
                assert stages[s].ends[kind, c].tolist() == [[1000 * end[int(kind), s, c]]]
    start = begin[int(final), 0, 1]
    assert stages[0].ready == {1: [[[1000 * (start + 4)]], [[1000 * (start + 5)]]]}
    assert stages[1].ready == {}


@pytest.mark.parametrize(("counts", "stages"), [((3,), "last"), ((3, 4), "last"), ((3, 4, 4, 5), "last"),
                                                ((3, 4, 5, 5), range(4)), ((3, 4, 4, 4, 3), "last")])  # fmt: skip
def test_parameters_are_gathered_for_the_stages_that_differ(counts, stages):
    gathered = []
    pp = len(counts)
    gates = {}

    def gather(some):
        gathered.append(some)
        for s in [0, min(1, pp - 1), pp - 1] if some == "last" else some:
            gates.update({(s, chunk): f"gate {s} {chunk}" for chunk in range(2)})

    made = Record(
        layout=Record(pp=pp),
        job=Record(stage_layers=counts, chunks=2),
        context=Record(gates=gates),
        last_stages="last",
    )
    ClosedForm._gather_parameters(made, Record(gather_parameters=gather))
    assert gathered == [stages]
    for s in range(pp):
        own = s if stages != "last" or s in (0, pp - 1) else 1
        assert [gates[s, chunk] for chunk in range(2)] == [f"gate {own} {chunk}" for chunk in range(2)]


def test_first_forwards_take_what_their_parameters_need():
    pp, chunks = 2, 1
    opened = Record(opens=np.array([[100.0], [300.0]]))
    timed = []

    def time(stage, kind, segments, *, gates, opens):
        timed.append((stage.number, kind, segments, opens))
        return Record(took=500.0 if stage.number == 0 else 1.0)

    took = np.zeros((3, pp, chunks))
    took[0, :, 0] = 90, 80
    made = Record(
        layout=Record(pp=pp), job=Record(chunks=chunks), micro_batches=5, passes=Record(took=took), _timed=time,
        stages=[Record(number=s) for s in range(pp)], clock=Record(ends=[0.0, 150.0, 120.0, 310.0]),
        segments=Record(of=lambda s, chunk: f"segments {s}"),
        context=Record(gates={(0, 0): [np.array([1, 2]), np.array([-1])], (1, 0): [np.array([3])]}),
        play=lambda of, m, first: opened if m == 2 and not first.any() else None,
    )  # fmt: skip
    found = ClosedForm._first_forwards(made)
    assert found.tolist() == [[500 - 90], [0]]
    assert timed == [
        (0, Pass.FORWARD, "segments 0", [50.0, -100.0]), (1, Pass.FORWARD, "segments 1", [10.0]),
    ]  # fmt: skip
    made.clock.ends = [0.0, 90.0, 80.0, 300.0]
    timed.clear()
    assert not ClosedForm._first_forwards(made).any()
    assert timed == []  # all are there in time
    made.context.gates = {}
    assert ClosedForm._first_forwards(made).shape == (2, 1)


@pytest.mark.parametrize("slices", [False, True])
def test_middle_stages_on_hosts_of_their_own_send_as_the_second_does(slices):
    sent = []
    grid = np.arange(10).reshape(5, 2)
    made = Record(
        layout=Record(pp=5, grid=grid, tp=2), offsets=[0] * 5, stages=[Record(number=s) for s in range(5)],
        context=Record(message_bytes=4096, sends_slices=slices),
        factory=Record(asked_send=lambda pairs, size: pairs[0].tolist()),
        _within=lambda whole, stage: ["slices"] if (whole.kind, whole.size_bytes) == ("all_gather", 8192) else [],
    )  # fmt: skip

    def price(asked):
        if asked == "slices":
            return 33.0
        sent.append(asked)
        return float(len(sent))

    made._pairs = ClosedForm._pairs.func(made)
    made._sends = ClosedForm._sends.func(made)
    found = ClosedForm.messages(made, price)
    assert isinstance(found, Messages)
    assert ClosedForm.sends.fget(made) == sent
    assert sent == [[0, 2], [0, 8], [2, 4], [2, 0], [8, 0], [8, 6]]
    assert found.sends.tolist() == [[1, 2], [3, 4], [3, 4], [3, 4], [5, 6]]
    assert found.slices.tolist() == [33.0 if slices else 0.0] * 5
