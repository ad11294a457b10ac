"""Small rules of a step's lowering, one by one: stages, names, what FSDP copies, layers that stay in 16 bits."""

from __future__ import annotations

from types import SimpleNamespace as Record

import numpy as np
import pytest
from support.programs import lowered
from support.specs import TINY, spec_of

from fabrictwin.workload.layers.pass_script import Collective
from fabrictwin.workload.layers.roofline import Cost
from fabrictwin.workload.layers.stage_segments import Segments
from fabrictwin.workload.step.closed_form import ClosedForm
from fabrictwin.workload.step.communication_times import TimedFactory
from fabrictwin.workload.step.pass_lowering import PassLowering


def on_h100(hosts=1, **training):
    """A job of a small model on DGX H100."""
    parallel = training.pop("parallel", {"tp": 2, "pp": 2})
    return spec_of(
        hosts, "dgx-h100", fidelity="flow", model=TINY, parallel=parallel, micro_batches=8, sequence=2048
    )(**training)


@pytest.mark.parametrize(
    ("pp", "offsets", "last"),
    [
        (1, (0,), [0]),
        (2, (0, 0), [0, 1]),
        (4, (0, 0, 0, 0), [0, 1, 3]),
        (4, (0, 4, 0, 4), [0, 1, 2, 3]),
    ],
)
def test_stages_that_can_be_last(pp, offsets, last):
    """A middle stage does as the second does, if stages lie alike on their hosts."""
    made = Record(layout=Record(pp=pp), offsets=offsets)
    assert ClosedForm.last_stages.func(made) == last


@pytest.mark.parametrize("pp", [2, 3, 5])
def test_activations_go_to_the_next_stage_and_gradients_to_the_one_before(pp):
    sent = []

    def price(asked):
        sent.append(asked)
        return 10.0 * len(sent)

    grid = np.arange(2 * pp).reshape(pp, 2)
    made = Record(
        layout=Record(pp=pp, grid=grid), offsets=range(pp), stages=[Record(number=s) for s in range(pp)],
        factory=Record(asked_send=lambda pairs, size: (pairs.tolist(), size)),
        context=Record(message_bytes=4096, sends_slices=False),
    )  # fmt: skip
    made._pairs = ClosedForm._pairs.func(made)
    made._sends = ClosedForm._sends.func(made)
    found = ClosedForm.messages(made, price)
    expected = []
    for s in range(pp):
        for to in ((s + 1) % pp, (s - 1) % pp):
            expected.append(([[2 * s, 2 * to], [2 * s + 1, 2 * to + 1]], 4096))
    assert sent == expected
    assert found.sends.tolist() == [[20.0 * s + 10, 20.0 * s + 20] for s in range(pp)]
    assert found.slices.tolist() == [0.0] * pp


@pytest.mark.parametrize(("size", "element"), [(4096, 2), (4095, 1)])
def test_a_collective_of_a_pass_is_cut_between_elements(size, element):
    """Rings send whole elements: of 16 bits, and of 8 where the bytes are odd."""
    asked = []
    made = Record(_ring=lambda *given: asked.append(given) or 5.0)
    groups = np.arange(8).reshape(2, 4)
    assert TimedFactory.asked_collective(made, Collective("tp", "all_gather", size), groups) == 5.0
    assert asked[0][1:4:2] == ("all_gather", size)
    assert asked[0][4] == element


@pytest.mark.parametrize(
    ("strategy", "weights", "gradient_bytes", "streamed"),
    [
        ("fsdp", "master", 4, [2 * 2 * 1000, (2 + 4) * 1500]),
        ("fsdp", "autocast", 4, [2 * 2 * 1000, (4 + 4) * 1500]),
        ("fsdp-1", "master", 4, [(2 * 2 + (2 + 4) + 2 * 4) * 1500]),  # joined, cast, divided
        ("fsdp-1", "master", 2, [(2 * 2 + 2 * 2) * 1500]),
        ("fsdp-1", "autocast", 4, [(2 * 4 + 2 * 4) * 1500]),
        ("zero-3", "master", 4, []),
    ],
)
def test_what_fsdp_copies(strategy, weights, gradient_bytes, streamed):
    seen = []

    def stream(size):
        seen.append(size)
        return Cost(1.0)

    made = Record(
        training=Record(sharding=Record(strategy=strategy), weights=weights),
        job=Record(parameter_bytes=2, gradient_bytes=gradient_bytes),
        context=Record(segments=Record(roof=Record(stream=stream))),
    )
    PassLowering._copied_out(made, Record(parameters=1000))
    PassLowering._copied_in(made, [Record(trained=1000), Record(trained=500)])
    assert seen == streamed


def test_a_layer_that_stays_wide_is_that_of_a_job_in_16_bits():
    job, _ = lowered(on_h100(precision="fp8", wide_layers={"first": 1, "last": 1}))
    other, _ = lowered(on_h100(precision="bf16"))
    made, plain = Segments(job), Segments(other)
    for kind in ("", "*", "-"):
        wide, narrow = made._make_layer(0.0, kind, True), made._make_layer(0.0, kind)
        assert [one.items for one in wide] == [one.items for one in plain._make_layer(0.0, kind)]
        assert [one.items for one in wide] != [one.items for one in narrow]
    assert made._in_16_bits() is made._in_16_bits()


@pytest.mark.parametrize(
    ("hosts", "parallel", "names"),
    [
        (1, {"tp": 1, "pp": 8}, [f"rank {s} (stage {s})" for s in range(8)]),
        (1, {"tp": 2, "pp": 4}, [f"stage {s}" for s in range(4)]),
    ],
)
def test_actors_are_named_after_their_rank_or_their_stage(hosts, parallel, names):
    _, program = lowered(on_h100(hosts, parallel=parallel))
    assert [actor.name for actor in program.actors] == names
