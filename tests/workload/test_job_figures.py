"""Figures that a job hands on: to the memory's items, to the layers, to the layouts that a search tries."""

from __future__ import annotations

from types import SimpleNamespace as Record

import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.workload_section import workload_schema
from fabrictwin.workload.layers.pass_script import Script
from fabrictwin.workload.layers.roofline import Cost
from fabrictwin.workload.layers.stage_segments import Segments, buckets
from fabrictwin.workload.memory.memory_inputs import Activations, Batches, Ranks, memory_inputs_of
from fabrictwin.workload.model.huggingface_families import read_model
from fabrictwin.workload.search.layout_search import LARGEST_MICRO_BATCH, Search, kept_of


def job(**more):
    training = Record(
        sharding=Record(strategy="none"), micro_batch_size=3, sequence=16, sequence_parallel=True,
        recompute="full", recompute_modules=("norms",), attention="flash", loss="compiled",
        parallel=Record(schedule="1f1b"), routing=Record(imbalance=0.0), lora=None, weights="master",
    )  # fmt: skip
    model = Record(experts=None, layers=8, sparse_before=(0, 0, 0, 1, 2, 3, 4, 5, 6))
    layout = Record(tp=2, cp=3, dp=4, pp=2, ep=5, expert_tp=6, width=7)
    made = Record(
        training=training, model=model, layout=layout, vocab=160, stage_layers=(4, 4), chunks=1, micro_batches=9,
        gradient_bytes=2, layer_counts=(2, 2, 2, 2), loads=tuple(1 + layer / 10 for layer in range(8)),
    )  # fmt: skip
    for name, value in more.items():
        home = next(one for one in (made, training, training.parallel, layout, model) if hasattr(one, name))
        setattr(home, name, value)
    return made


@pytest.mark.parametrize(
    ("strategy", "zero", "fsdp"),
    [("none", 0, False), ("zero-1", 1, False), ("zero-2", 2, False), ("zero-3", 3, False), ("fsdp", 0, True),
     ("fsdp-1", 0, True)],
)  # fmt: skip
def test_how_states_are_divided(strategy, zero, fsdp):
    found = memory_inputs_of(job(sharding=Record(strategy=strategy))).sharding
    assert (found.zero, found.fsdp) == (zero, fsdp)
    assert found.shards in (None, 7 * 3)


def test_figures_for_the_memory():
    found = memory_inputs_of(job())
    assert (found.vocab, found.stage_layers, found.sparse_layers, found.pp) == (160, (4, 4), None, 2)
    assert found.ranks == Ranks(tp=2, cp=3, dp=4, vp=1, ep=5, expert_tp=6, load=1.0)
    assert (found.batches, found.tokens) == (Batches(9, 3, 16, "1f1b"), 16)
    assert found.activations == Activations(True, "full", ("norms",), "flash")
    assert found.sharding.gradient_bytes == 2
    assert memory_inputs_of(job(chunks=2)).batches.schedule == "interleaved"
    assert memory_inputs_of(job(schedule="gpipe", chunks=2)).batches.schedule == "gpipe"
    sparse = memory_inputs_of(job(experts=True))
    # chunks of two layers: stages hold the first and third, the second and fourth
    assert sparse.sparse_layers == (0 + 2, 2 + 2)
    assert sparse.ranks.load == 1.0
    assert memory_inputs_of(job(experts=True, routing=Record(imbalance=0.1))).ranks.load == 1.7


@pytest.mark.parametrize(("first", "last", "wide"), [(0, 0, []), (2, 0, [0, 1]), (0, 1, [7]), (1, 2, [0, 6, 7])])
def test_layers_at_the_ends_may_stay_wide(first, last, wide):
    made = Record(job=Record(training=Record(wide_layers=Record(first=first, last=last)), model=Record(layers=8)))
    assert [n for n in range(8) if Segments.is_wide(made, n)] == wide


@pytest.mark.parametrize(
    ("sizes", "filled", "expected"),
    [
        ([1, 1, 1, 1], 8, [[0, 1], [2, 3]]),
        ([1, 1, 1], 9, [[0, 1, 2]]),
        ([3, 1, 1], 8, [[0], [1, 2]]),
        ([], 8, []),
        ([1, 5, 1], 12, [[0, 1], [2]]),
    ],
)
def test_neighbours_fill_buckets(sizes, filled, expected):
    assert buckets([Record(trained=size) for size in sizes], 4, filled) == expected


def sections(parallel, *, global_batch=8, given=False, raw=None):
    search = Record(
        global_batch=global_batch,
        given=Record(sequence_parallel=given),
        _kept=kept_of(raw or {}),
        _parallel=lambda: iter([{"tp": 1, "dp": 1, "pp": 1, "vp": 1} | parallel]),
    )
    search._section = lambda *rest: Search._section(search, *rest)
    return list(Search._sections(search))


def test_micro_batches_that_are_tried():
    assert [s["micro_batch_size"] for s in sections({})] == [1, 2, 4, 8]
    assert [s["micro_batch_size"] for s in sections({"dp": 2})] == [1, 2, 4]
    assert sections({"dp": 3}) == []
    assert [s["micro_batch_size"] for s in sections({}, global_batch=6)] == [1, 2]
    # interleaved stages take whole groups of as many micro-batches as there are stages
    assert [s["micro_batch_size"] for s in sections({"vp": 2, "pp": 4})] == [1, 2]
    assert [s["micro_batch_size"] for s in sections({"vp": 1, "pp": 4})] == [1, 2, 4, 8]
    assert max(s["micro_batch_size"] for s in sections({}, global_batch=1024)) == LARGEST_MICRO_BATCH == 8
    tried = [(s["sequence_parallel"], s["micro_batch_size"]) for s in sections({"tp": 2}, global_batch=2)]
    assert tried == [(True, 1), (True, 2), (False, 1), (False, 2)]
    assert {s["sequence_parallel"] for s in sections({"tp": 2}, given=True)} == {True}
    assert {s["sequence_parallel"] for s in sections({"tp": 1}, given=True)} == {False}
    (one,) = sections({}, global_batch=1, raw={"micro_batches": 9, "sequence": 77})
    assert one == {
        "sequence": 77, "parallel": {"tp": 1, "dp": 1, "pp": 1, "vp": 1}, "micro_batch_size": 1, "global_batch": 1,
        "sequence_parallel": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tp", "shared", "asked", "tried"),
    [(1, False, "full", "none"), (2, True, "full", "full"), (2, False, "full", "gradients"),
     (2, False, "gradients", "gradients"), (1, False, "gradients", "none")],
)  # fmt: skip
def test_overlap_is_as_far_as_a_layout_can(tp, shared, asked, tried):
    search = Record(global_batch=1, _kept={"overlap": {"tensor": asked, "other": 1}})
    section = Search._section(search, {"tp": tp}, 1, shared)
    assert section["overlap"] == {"tensor": tried, "other": 1}
    assert search._kept["overlap"]["tensor"] == asked


def test_the_schema_names_what_a_workload_has():
    schema = workload_schema()
    assert list(schema["properties"]) == ["training"]
    assert "micro_batch_size" in schema["$defs"]["Training"]["properties"]


def test_gpt_oss_activates_by_silu():
    given = {
        "model_type": "gpt_oss", "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "vocab_size": 160,
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "max_position_embeddings": 128,
    }  # fmt: skip
    assert read_model(given, name="small").hidden == 48
    with pytest.raises(ConfigError, match="hidden_act"):
        read_model(given | {"hidden_act": "gelu"}, name="small")


@pytest.mark.parametrize(("device_ps", "idle_ps"), [(10, 40), (50, 0), (90, 0)])
def test_a_pass_takes_no_less_than_its_host(device_ps, idle_ps):
    """Half of what the host does for two experts a rank at 50 ps each, less what the device is busy."""
    made = Record(
        job=Record(
            model=Record(experts=Record(count=8)),
            shape=Record(routing=Record(interleaved_ps=50), sharing=Record(ep=4)),
        ),
    )
    script = Script()
    script.compute(Cost(device_ps, 1), "backward")
    Segments._pace(made, script, 0.5)
    assert script.cost().ps == device_ps + idle_ps
    assert script.cost().kernels == 1
    assert {item.part for item in script.items} == {"backward"}


@pytest.mark.parametrize(
    ("pp", "tied", "own"), [(1, False, True), (1, True, False), (2, True, True), (2, False, True)]
)
def test_parameters_beside_the_layers(pp, tied, own):
    """The last stage has the output's own matrix, or where stages part a tied model's copy; and the predictors."""
    made = Job.__new__(Job)
    model = Record(
        hidden=64, positions=10, tied=tied, predictors=2, norm_parameters=64,
        predictor_on_rank=lambda tp: 1000 // tp,
    )  # fmt: skip
    for name, value in {"model": model, "vocab": 512, "layout": Record(tp=2, pp=pp)}.items():
        object.__setattr__(made, name, value)
    assert made.embedding_parameters() == 512 * 64 // 2
    assert made.first_parameters() == 512 * 64 // 2 + 10 * 64
    assert made.last_parameters() == 64 + (512 * 64 // 2 if own else 0) + 2 * 500
