"""What changes would gain, beside the same change made to the spec and run; exposed communication by name."""

from __future__ import annotations

import json
from types import SimpleNamespace as Record

import pytest
from support.specs import LLAMA_8B, spec_of

from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.report.report import report_html
from fabrictwin.report.summary import summary
from fabrictwin.report.terminal import block
from fabrictwin.runs.execute import predict
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.workload.job.job import check
from fabrictwin.workload.job.nccl_communications import library_of
from fabrictwin.workload.job.workload_section import Training
from fabrictwin.workload.search.gains import Gain, _changed, gains
from fabrictwin.workload.step.closed_form import ClosedForm
from fabrictwin.workload.step.communication_times import CommunicationTimes

DENSE = {**LLAMA_8B, "num_hidden_layers": 16}
SPARSE = {**DENSE, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


spec = spec_of(2, "dgx-h100", model=DENSE, micro_batches=8, sequence=4096)


def found(of: Spec) -> dict[str, Gain]:
    blueprint = build(of.cluster, spec=of)
    twin = make_twin(of, blueprint)
    return {gain.key: gain for gain in gains(of, blueprint, twin.fabric)}


PARALLEL = {"tp": 2, "pp": 2}


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("overlap_gradients", {"overlap": {"gradients": True}}),
        ("sequence_parallel", {"sequence_parallel": True}),
        ("overlap_tensor", {"overlap": {"tensor": "gradients"}}),
        ("fp8", {"precision": "fp8"}),
        ("vp_2", {"parallel": {**PARALLEL, "vp": 2}}),
        ("micro_batch_2", {"micro_batches": 4, "micro_batch_size": 2}),
        ("recompute_none", {"recompute": "none"}),
    ],
)
def test_a_setting_gains_what_the_run_with_it_gains(key, change):
    base = {"parallel": PARALLEL, "recompute": "full"}
    gain = found(spec(**base))[key]
    assert gain.kind == "setting"
    assert gain.step_ps == pytest.approx(predict(spec(**{**base, **change})).trace.end_ps, rel=0.01)
    assert gain.step_ps + gain.gained_ps == pytest.approx(predict(spec(**base)).trace.end_ps, rel=0.01)


def test_what_is_removed_is_what_its_communications_took():
    """One stage, no overlap: exposed communication is all that there is beside compute."""
    of = spec(parallel={"tp": 4})
    made = found(of)
    run = predict(of)
    exposed = {share.key: share.time_ps for share in run.breakdown.shares}
    for category in ("tp", "dp"):
        assert made[f"no_{category}"].gained_ps == pytest.approx(exposed[f"exposed_{category}"], rel=0.02)
    assert {"no_cp", "no_ep", "no_pp", "no_bubble"}.isdisjoint(made)
    # tensor parallel groups lie inside hosts, the rings of four replicas cross them
    assert made["faster_inside"].gained_ps == pytest.approx(made["no_tp"].gained_ps / 2, rel=0.02)
    assert made["faster_between"].gained_ps == pytest.approx(made["no_dp"].gained_ps / 2, rel=0.02)


def test_without_waiting_a_step_takes_what_its_busiest_stage_does():
    of = spec(parallel={"pp": 4}, micro_batches=4)
    blueprint = build(of.cluster, spec=of)
    twin = make_twin(of, blueprint)
    job, nodes = check(of, blueprint, twin.fabric)
    library = library_of(of, blueprint, twin.fabric, nodes)
    closed = ClosedForm(job, CommunicationTimes(twin.fabric, nodes, library))
    estimate = closed.estimate()
    busiest = 4 * closed.passes.took.sum(axis=(0, 2)).max()
    assert estimate.balanced_ps == pytest.approx(busiest + estimate.finish_ps, rel=1e-6)
    assert found(of)["no_bubble"].step_ps == estimate.balanced_ps


def test_kernels_a_tenth_faster_gain_an_eleventh_of_compute():
    of = spec(parallel={"tp": 1}, micro_batches=64)
    gain = found(of)["faster_compute"]
    assert gain.share == pytest.approx(1 - 1 / 1.1, abs=0.01)


def test_what_may_not_be_is_left_out():
    made = found(spec(parallel={"pp": 2, "vp": 8}, micro_batches=2))
    # 16 layers over 2 stages have 8 chunks at most; a micro-batch of two leaves one, which vp does not divide
    assert "vp_4" in made
    assert "vp_16" not in made
    assert "micro_batch_2" not in made
    experts = found(spec(model=SPARSE, parallel={"ep": 8}, routing={"imbalance": 0.5}))
    assert experts["balance"].gained_ps > 0
    assert experts["no_ep"].gained_ps > 0


def test_a_change_that_does_not_fit_is_left_out():
    large = {**DENSE, "num_hidden_layers": 32}
    tight = spec(model=large, parallel={"tp": 4}, sequence=65536, micro_batches=8, recompute="full")
    assert "recompute_none" not in found(tight)
    assert "micro_batch_2" in found(spec(parallel={"tp": 4}))


def test_gains_come_in_order_and_with_faults_none_do():
    of = spec(parallel=PARALLEL)
    blueprint = build(of.cluster, spec=of)
    twin = make_twin(of, blueprint)
    made = gains(of, blueprint, twin.fabric)
    assert [g.gained_ps for g in made] == sorted((g.gained_ps for g in made), reverse=True)
    broken = of.model_copy(update={"faults": ({"gpu": "host-0/gpu0", "slowdown": 2.0},)})
    assert gains(broken, blueprint, twin.fabric) == ()


@pytest.mark.parametrize("fold", [True, False])
def test_exposed_communication_by_name_adds_up_to_the_breakdown(fold):
    of = spec(parallel={"tp": 2, "pp": 2}, sequence_parallel=True, sharding="zero-1", overlap=True)
    of = of.model_copy(update={"run": of.run.model_copy(update={"fold": fold})})
    run = predict(of)
    exposed = {s.state.category: s.time_ps for s in run.breakdown.shares if s.state.kind == "communication"}
    sums: dict[str, int] = {}
    for item in run.collectives:
        sums[item.category] = sums.get(item.category, 0) + item.time_ps
        assert 0 <= item.time_ps <= item.busy_ps
        assert item.operations > 0
    assert sums == exposed
    names = {item.name for item in run.collectives}
    assert {"tensor-parallel all-gather", "tensor-parallel reduce-scatter", "parameter all-gather"} <= names


def test_every_view_says_what_would_gain_most():
    run = predict(spec(parallel=PARALLEL), what_if=True)
    data = summary(run)
    assert json.loads(json.dumps(data["what_if"])) == data["what_if"]
    best = data["what_if"][0]
    assert best["name"] in block(run, None)
    page = report_html(run)
    assert "What would gain most" in page
    assert best["name"] in page
    assert "tensor-parallel all-reduce" in page
    quiet = predict(spec(parallel=PARALLEL))
    assert summary(quiet)["what_if"] == []
    assert "What would gain most" not in report_html(quiet)


def settings_tried(gpu="h100-sxm", **given):
    """Keys of the settings that are worth a try."""
    section = {"model": {"hidden_size": 64}, "sequence": 128, "micro_batches": 4, **given}
    training = Training.model_validate(section)
    job = Record(training=training, hardware=Record(gpu=gpu), model=Record(layers=8))
    return [key for key, *_ in _changed(job)]


@pytest.mark.parametrize(
    ("key", "with_", "without"),
    [
        ("overlap_gradients", {}, {"overlap": {"gradients": True}}),
        ("overlap_parameters", {}, {"overlap": {"parameters": True}}),
        ("overlap_pipeline", {"overlap": {"pipeline": False}}, {}),
        ("overlap_tensor", {"parallel": {"tp": 2}}, {}),
        ("overlap_tensor", {"parallel": {"tp": 2}}, {"parallel": {"tp": 2}, "overlap": {"tensor": "gradients"}}),
        ("sequence_parallel", {"parallel": {"tp": 2}}, {"parallel": {"tp": 2}, "sequence_parallel": True}),
        ("sequence_parallel", {"parallel": {"tp": 2}}, {}),
        ("recompute_none", {"recompute": "full"}, {}),
        ("recompute_operations", {"recompute": "full"}, {"recompute": "operations"}),
        ("recompute_selective", {"recompute": "full", "attention": "materialised"}, {"recompute": "full"}),
        ("fp8", {"precision": "bf16"}, {"precision": "fp8"}),
        ("fp8", {"precision": "fp16"}, {"gpu": "a100-80"}),
        ("graphs", {}, {"host": {"graphs": True}}),
        ("fused", {"kernels": "eager"}, {"kernels": "fused"}),
        ("vp_2", {"parallel": {"pp": 2}}, {}),
        ("vp_2", {"parallel": {"pp": 2}}, {"parallel": {"pp": 2, "schedule": "gpipe"}}),
        ("micro_batch_1", {"micro_batch_size": 2}, {}),
        ("micro_batch_4", {"micro_batch_size": 2}, {"micro_batch_size": 1}),
    ],
)
def test_a_setting_is_tried_where_it_is_another(key, with_, without):
    assert key in settings_tried(**with_)
    assert key not in settings_tried(**without)
