"""Scripts of layers and ends put together from blocks that say who they are, and how ranks and layers divide."""

from __future__ import annotations

from types import SimpleNamespace as Record

import numpy as np
import pytest

from fabrictwin.workload.job.rank_layout import Layout, split_layers
from fabrictwin.workload.layers import stage_segments
from fabrictwin.workload.layers.pass_script import Collective, Compute, Script, Start, Wait
from fabrictwin.workload.layers.roofline import Cost
from fabrictwin.workload.layers.stage_segments import Segments
from fabrictwin.workload.layers.transformer import ExpertRouting, Hiding, Sharing

GATHER, EMPTY = Collective("tp", "all_gather", 100), Collective("tp", "all_gather", 0)


def block(name, ps):
    """A block whose every pass is one item that says its name, its part and what it was given."""

    def made(part):
        def pass_(*given, **more):
            script = Script()
            script.items.append(Compute(Cost(ps, 1), (name, part, *given, *sorted(more.items()))))
            return script

        return pass_

    return Record(**{part: made(part) for part in (
        "forward", "backward", "embedding_forward", "embedding_backward", "output_forward", "output_backward",
        "join_forward", "join_backward",
    )})  # fmt: skip


def segments(
    monkeypatch, *, recompute="none", modules=(), hide=False, predictors=0, pattern=(), loads=(0.0, 0.0, 2.0)
):
    made = Segments.__new__(Segments)
    training = Record(
        recompute=recompute,
        recompute_modules=modules,
        recompute_ends_early=False,
        wide_layers=Record(first=1, last=1),
    )
    made.job = Record(
        training=training,
        shape=Record(
            hiding=Hiding(hide_experts=hide), routing=ExpertRouting(interleaved_ps=300), sharing=Sharing(ep=2)
        ),
        model=Record(experts=Record(count=8), layers=3, predictors=predictors, pattern=pattern,
        kind=lambda n: "", ),
        load=lambda number: loads[number], loads=loads, last_parameters=lambda: 70, last_experts=lambda: 7,
        first_parameters=lambda: 50,
        trained=lambda whole: whole, frozen=lambda whole: 0,
        layer_parameters=lambda number: (100 + number, 10, 0),
    )  # fmt: skip
    made.parts = Record(attention=block("attention", 1), mlp=block("mlp", 2), ends=block("ends", 4))
    made.roof, made._layer = "roof", made._make_layer
    monkeypatch.setattr(stage_segments, "MambaBlock", lambda roof, shape: block("mamba", 8))
    monkeypatch.setattr(made, "_every_second_product", lambda: block("again", 16).forward(), raising=False)
    wide = Record(_make_layer=lambda load, kind: ("wide", load, kind))
    monkeypatch.setattr(made, "_in_16_bits", lambda: wide, raising=False)
    return made


def names(script):
    return [item.part for item in script.items]


A, M, AB, MB = (
    ("attention", "forward"),
    ("mlp", "forward", 0.0),
    ("attention", "backward"),
    ("mlp", "backward", 0.0),
)
CORE = ("recompute_core", False)


@pytest.mark.parametrize(
    ("kind", "recompute", "forward", "backward"),
    [
        ("", "none", [A, M], [MB, (*AB, CORE)]),
        ("*", "none", [A], [(*AB, CORE)]),
        ("-", "none", [M], [MB]),
        ("E", "none", [M], [MB]),
        ("", "selective", [A, M], [MB, (*AB, ("recompute_core", True))]),
        ("", "full", [A, M], [(*A, "recompute"), (*M, "recompute"), MB, (*AB, CORE)]),
        ("*", "full", [A], [(*A, "recompute"), (*AB, CORE)]),
        ("-", "full", [M], [(*M, "recompute"), MB]),
        ("", "operations", [A, M], [("again", "forward"), MB, (*AB, CORE)]),
        ("M", "none", [("mamba", "forward")], [("mamba", "backward")]),
        ("M", "full", [("mamba", "forward")], [("mamba", "forward", "recompute"), ("mamba", "backward")]),
        ("M", "selective", [("mamba", "forward")], [("mamba", "backward")]),
    ],
)
def test_a_layer_is_its_blocks_in_order_and_what_is_computed_again(
    monkeypatch, kind, recompute, forward, backward
):
    found = segments(monkeypatch, recompute=recompute)._make_layer(0.0, kind)
    assert [names(script) for script in found] == [forward, backward]


@pytest.mark.parametrize(
    ("load", "modules", "again"), [(2.0, ("experts",), True), (2.0, (), False), (0.0, ("experts",), False)]
)
def test_experts_alone_are_computed_again_where_there_are_any(monkeypatch, load, modules, again):
    _, backward = segments(monkeypatch, modules=modules)._make_layer(load)
    assert (("mlp", "forward", load, "recompute") in names(backward)) == again


@pytest.mark.parametrize(("load", "hide"), [(2.0, True), (2.0, False), (0.0, True)])
def test_a_pass_takes_no_less_than_the_host_for_its_experts(monkeypatch, load, hide):
    """Four experts of a rank, 300 ps each: a third forward, two thirds backward; the blocks take 3."""
    forward, backward = segments(monkeypatch, hide=hide)._make_layer(load)
    paced = bool(load and hide)
    assert forward.cost().ps == pytest.approx(400 if paced else 3)
    assert backward.cost().ps == pytest.approx(800 if paced else 3)
    if paced:
        assert names(forward)[-1] == names(forward)[-2]
        assert forward.items[-1].cost.kernels == 0


def test_layers_at_the_ends_stay_wide(monkeypatch):
    made = segments(monkeypatch)
    assert [made.is_wide(number) for number in range(3)] == [True, False, True]
    assert made._make_layer(2.0, "E", True) == ("wide", 2.0, "E")


def test_a_predictor_adds_its_layers_and_another_output(monkeypatch):
    plain = segments(monkeypatch).last
    assert (names(plain.forward), names(plain.backward)) == (
        [("ends", "output_forward")],
        [("ends", "output_backward")],
    )
    assert (plain.dense, plain.experts, plain.parameters) == (70, 7, 77)
    made = segments(monkeypatch, predictors=2)
    monkeypatch.setattr(made, "is_wide", lambda number: False)
    out, back, join, part = (
        ("ends", x) for x in ("output_forward", "output_backward", "join_forward", "join_backward")
    )
    layer = [A, ("mlp", "forward", 2.0)]
    behind = [("mlp", "backward", 2.0), (*AB, CORE)]
    assert names(made.last.forward) == [out] + 2 * [join, *layer, out]
    assert names(made.last.backward) == 2 * [back, *behind, part] + [back]
    hybrid = segments(monkeypatch, predictors=1, pattern=("M",), loads=(0.0, 3.0, 1.0))
    monkeypatch.setattr(hybrid, "is_wide", lambda number: False)
    assert names(hybrid.last.forward) == [out, join, A, ("mlp", "forward", 3.0), out]
    assert names(hybrid.last.backward) == [back, ("mlp", "backward", 3.0), (*AB, CORE), part, back]
    empty = segments(monkeypatch, predictors=1, pattern=("M",), loads=(0.0, 0.0, 0.0))
    assert [(load, kind) for load, kind, _ in _asked(monkeypatch, empty)] == [(0.0, "*"), (0.0, "-")]


def _asked(monkeypatch, made):
    asked = []
    monkeypatch.setattr(made, "_layer", lambda *given: asked.append(given) or (Script(), Script()), raising=False)
    made._of_predictor()
    return asked


# ---------------------------------------------------------------------- scripts


def test_a_script_gives_out_keys_and_keeps_them_apart():
    one = Script()
    assert one.start(GATHER) == 0
    assert one.start(None) is None
    assert one.start(EMPTY) is None
    one.wait(None)
    one.wait(0)
    two = Script()
    two.overlap(GATHER, Cost(5, 1), "forward")
    two.overlap(None, Cost(6, 1), "weight")
    two.communicate(GATHER)
    one.extend(two)
    assert one.items == [
        Start(0, GATHER), Wait(0), Start(1, GATHER), Compute(Cost(5, 1), "forward"), Wait(1), Compute(Cost(6, 1),
        "weight"),
        Start(2, GATHER), Wait(2),
    ]  # fmt: skip
    assert (one.keys, one.cost(), one.last_part(), one.collectives()) == (3, Cost(11, 2), "weight", [GATHER] * 3)
    assert [i.cost for i in one.captured().items if isinstance(i, Compute)] == [Cost(5), Cost(6)]
    assert one.captured().keys == 3
    kept, rest = one.apart("weight")
    assert (kept.cost(), rest.cost(), kept.keys, len(kept.items), len(rest.items)) == (
        Cost(5, 1),
        Cost(6, 1),
        3,
        7,
        1,
    )
    nothing = Script()
    for cost in (Cost(), Cost(0, 1), Cost(1)):
        nothing.compute(cost, "forward")
    assert len(nothing.items) == 2


# ---------------------------------------------------------------------- layouts


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-cp-pp-dp"])
def test_the_grid_numbers_ranks_as_megatron_does(order):
    layout = Layout(tp=2, dp=6, pp=3, cp=2, ep=3, expert_tp=2, width=3, order=order)
    assert (layout.ranks, layout.units, layout.positions, layout.batch_ranks) == (72, 2, 12, 12)
    assert layout.expert_ranks == 6 * 2 * 2 // (3 * 2)
    place = {}
    outer = [(p, d) for p in range(3) for d in range(6)] if order == "tp-cp-dp-pp" else [
        (p, d) for d in range(6) for p in range(3)
    ]  # fmt: skip
    for rank, (p, d, c, t) in enumerate((p, d, c, t) for p, d in outer for c in range(2) for t in range(2)):
        place[rank] = (p, d // 3, (d % 3) * 4 + c * 2 + t)
    assert layout.grid.shape == (3, 2, 12)
    assert all(layout.grid[at] == rank for rank, at in place.items())


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("tp", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("cp", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("ep", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("expert_tp", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("shard", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("expert_shard", [[n] for n in range(8)]),
        ("copies", [[n] for n in range(8)]),
    ],
)
def test_positions_that_talk_to_each_other(kind, groups):
    layout = Layout(tp=2, dp=2, pp=1, cp=2, ep=4, expert_tp=2, width=2)
    assert layout.inside(kind).tolist() == groups
    two = Layout(tp=2, dp=2, pp=1, cp=2, ep=2, expert_tp=2, width=2)
    if kind == "expert_shard":
        assert two.inside(kind).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("layers", "stages", "ends", "given", "counts"),
    [
        (8, 4, False, None, [2, 2, 2, 2]),
        (8, 3, False, None, None),
        (6, 4, True, None, [1, 2, 2, 1]),
        (8, 4, True, None, None),
        (0, 2, True, None, [0, 0]),
        (0, 1, False, None, [0]),
        (8, 2, False, [5, 3], [5, 3]),
        (8, 2, True, [5, 3], [5, 3]),
        (8, 3, False, [5, 3], None),
        (9, 2, False, [5, 3], None),
        (6, 1, True, None, [6]),
    ],
)
def test_layers_divide_over_stages(layers, stages, ends, given, counts):
    assert split_layers(layers, stages, ends_as_layers=ends, given=given) == counts
    assert np.sum(counts or 0) in (0, layers)
