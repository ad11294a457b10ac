"""Folded, a step takes what it takes unfolded, whatever it is parallel in; overlap hides, and takes its toll."""

from __future__ import annotations

from typing import Any

import pytest
from support.programs import longest_path, lowered
from support.specs import DEEPSEEK, MIXTRAL, TINY
from support.specs import tiny_job as spec

from fabrictwin.runs.execute import predict

SHORT = {"bucket": "20 MB"}
JOBS: dict[str, dict[str, Any]] = {
    "sequence": {"parallel": {"tp": 4, "pp": 2}, "sequence_parallel": True},
    "tensor overlap": {
        "parallel": {"tp": 4, "pp": 2},
        "sequence_parallel": True,
        "overlap": {"tensor": "full"},
        "precision": "bf16",
    },
    "interleaved": {"parallel": {"tp": 2, "pp": 4, "vp": 2}, "overlap": {"pipeline": False}},
    "gpipe": {"parallel": {"tp": 2, "pp": 4, "schedule": "gpipe"}},
    "zero bubble": {
        "parallel": {"tp": 2, "pp": 4, "schedule": "zero-bubble"},
        "overlap": {"gradients": True, **SHORT},
    },
    "ring attention": {"parallel": {"tp": 2, "pp": 2, "cp": 2}, "recompute": "selective"},
    "gathered attention": {"parallel": {"tp": 2, "pp": 2, "cp": 4, "context": "all-gather"}},
    "uneven": {"parallel": {"tp": 2, "pp": 2, "layers": [3, 5]}, "recompute": "full"},
    "buckets": {"parallel": {"tp": 2, "pp": 1}, "overlap": {"gradients": True, "optimizer": True, **SHORT}},
    "zero-1": {
        "parallel": {"tp": 2, "pp": 2, "vp": 2},
        "sharding": "zero-1",
        "overlap": {"gradients": True, "parameters": True, **SHORT},
    },
    "zero-2": {"parallel": {"tp": 2, "pp": 1}, "sharding": "zero-2", "overlap": {"parameters": False, **SHORT}},
    "fsdp": {"parallel": {"tp": 2, "pp": 1}, "sharding": {"strategy": "fsdp", "prefetch": 2}},
    "hybrid": {
        "parallel": {"tp": 1, "pp": 1},
        "sharding": {"strategy": "fsdp", "ranks": 8},
        "overlap": {"gradients": True},
    },
    "fsdp beside others": {"parallel": {"tp": 2, "pp": 2, "cp": 2}, "sharding": "zero-3"},
    "experts": {"model": MIXTRAL, "parallel": {"tp": 1, "pp": 2, "ep": 4}, "routing": {"imbalance": 0.3}},
    "expert tensor": {"model": MIXTRAL, "parallel": {"tp": 2, "pp": 2, "ep": 4}, "sequence_parallel": True},
    "experts over tensor ranks": {
        "model": MIXTRAL,
        "parallel": {"tp": 2, "pp": 2, "ep": 8, "expert_tp": 1},
        "sequence_parallel": True,
        "sharding": "zero-1",
    },
    "latent": {"model": DEEPSEEK, "parallel": {"tp": 2, "pp": 2, "ep": 2}, "sequence_parallel": True},
    "offload": {"sharding": "zero-1", "offload": {"optimizer": True, "memory_rate": "400 GB/s"}},
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.second
def test_folded_and_unfolded_agree(name):
    folded, apart = predict(spec(2, **JOBS[name])), predict(spec(2, fold=False, **JOBS[name]))
    assert len(apart.job.program.actors) == 16 > len(folded.job.program.actors)
    assert folded.trace.end_ps == pytest.approx(apart.trace.end_ps, rel=0.02)
    assert folded.trace.counters.tx_bytes.sum() == apart.trace.counters.tx_bytes.sum()
    flow, analytic = (
        predict(spec(2, fidelity=fidelity, **JOBS[name]).with_(run__collectives="simple"))
        for fidelity in ("flow", "analytic")
    )
    assert flow.trace.end_ps == pytest.approx(analytic.trace.end_ps, rel=0.06)


@pytest.mark.parametrize("name", ["sequence", "interleaved", "zero-1", "fsdp", "experts", "zero bubble"])
def test_folding_keeps_the_longest_path_exactly_with_a_slow_gpu(name):
    changes = {**JOBS[name], "faults": [{"gpu": "host-1/gpu3", "slowdown": 1.5}]}
    _, folded = lowered(spec(2, **changes))
    _, apart = lowered(spec(2, fold=False, **changes))
    for communication_ps in (0, 20_000_000, 1_000_000_000):
        assert longest_path(folded, communication_ps) == longest_path(apart, communication_ps)


def test_recomputing_every_second_product_runs_those_three_again():
    base = {"parallel": {"tp": 1, "pp": 1}, "sharding": "fsdp"}
    plain, again = predict(spec(2, **base)), predict(spec(2, recompute="operations", **base))
    keys, output, up = 1024 * 512, 1024 * 1024, 1024 * 4096
    extra = 2 * plain.job.work.tokens * 8 * (keys + output + up)
    assert again.job.work.hardware_flops - plain.job.work.hardware_flops == extra
    assert plain.trace.end_ps < again.trace.end_ps < predict(spec(2, recompute="full", **base)).trace.end_ps


def took(**changes: Any) -> int:
    return predict(spec(2, **changes)).trace.end_ps


def exposed(key: str, **changes: Any) -> int:
    shares = predict(spec(2, **changes)).breakdown.shares
    return sum(share.time_ps for share in shares if share.key == key)


@pytest.mark.parametrize(
    ("key", "base", "switch"),
    [
        ("exposed_dp", {"parallel": {"tp": 2, "pp": 1}}, {"overlap": {"gradients": True, **SHORT}}),
        (
            "exposed_dp",
            {"parallel": {"tp": 2, "pp": 2}, "sharding": "zero-1"},
            {"overlap": {"parameters": True}},
        ),
        ("exposed_tp", {"parallel": {"tp": 4, "pp": 1}}, {"overlap": {"tensor": "gradients"}}),
        (
            "exposed_tp",
            {"parallel": {"tp": 4, "pp": 1}, "sequence_parallel": True},
            {"overlap": {"tensor": "full"}},
        ),
        (
            "exposed_cp",
            {"parallel": {"tp": 2, "cp": 2, "context": "all-gather"}},
            {"parallel": {"tp": 2, "cp": 2}},
        ),
        (
            "exposed_dp",
            {"parallel": {"tp": 1}, "sharding": {"strategy": "fsdp", "prefetch": 0}},
            {"sharding": {"strategy": "fsdp", "prefetch": 1}},
        ),
    ],
)
def test_overlap_hides_communication(key, base, switch):
    assert exposed(key, **{**base, **switch}) < exposed(key, **base)
    assert took(**{**base, **switch}) < took(**base)


def test_blocking_exchanges_cost_more_than_overlapped_ones():
    assert took(parallel={"tp": 1, "pp": 4}, overlap={"pipeline": False}) > took(parallel={"tp": 1, "pp": 4})


def test_the_piece_that_cannot_hide_is_one_of_tp():
    """Behind an all-gather in pieces: the last of tp pieces of the product waits for all of it."""
    job, program = lowered(
        spec(2, parallel={"tp": 4, "pp": 1}, sequence_parallel=True, overlap={"tensor": "full"}, micro_batches=1)
    )
    slow = 10**12  # communication dwarfs compute: a layer's exposed compute is what no piece can hide
    whole = longest_path(program, slow)
    serial = lowered(spec(2, parallel={"tp": 4, "pp": 1}, sequence_parallel=True, micro_batches=1))[1]
    collectives = (6 + 4) * TINY["num_hidden_layers"] + 5
    # backward's second gather runs beside nothing that waits for the first; all others follow each other
    assert collectives * slow < longest_path(serial, slow) < (collectives + 4) * slow
    assert whole < longest_path(serial, slow)
    assert job.shape.hiding.overlap == "full"


@pytest.mark.parametrize(
    "job",
    [
        {"parallel": {"tp": 2, "cp": 2}},
        {"parallel": {"tp": 1}, "sharding": "fsdp"},
        {"parallel": {"tp": 2}, "overlap": {"gradients": True, **SHORT}},
        {"parallel": {"tp": 4}, "overlap": {"tensor": "gradients"}},
    ],
)
def test_communication_beside_compute_takes_its_multiprocessors(job):
    """More of them, and what runs beside computes longer; none, and it costs nothing."""

    def compute(sms: int) -> int:
        overlap = {**job.get("overlap", {}), "collective_sms": sms}
        program = lowered(spec(2, **{**job, "overlap": overlap}))[1]
        return int(program.operations.duration_ps.sum())

    assert compute(0) < compute(16) < compute(54)


def test_launches_of_a_slow_host_show_until_passes_are_captured():
    fast, slow = took(host={"launch": "0 us"}), took(host={"launch": "400 us"})
    assert slow > 2 * fast
    assert took(host={"launch": "400 us", "graphs": True}) == fast
    assert took(host={"launch": "0 us", "step": "3 ms"}) == fast + 3_000_000_000


def test_uneven_loads_cost_time_and_capacity_bounds_them():
    base = {"model": MIXTRAL, "parallel": {"tp": 1, "pp": 2, "ep": 4}}
    even = took(**base)
    assert took(**base, routing={"imbalance": 0.3}) > even
    assert took(**base, routing={"imbalance": 0.3, "capacity_factor": 1.0}) == even
    assert took(**base, routing={"capacity_factor": 1.25}) > even


def test_an_offloaded_optimizer_takes_what_pcie_and_the_hosts_memory_give():
    plain = exposed("optimizer", sharding="zero-1")
    slow = exposed("optimizer", sharding="zero-1", offload={"optimizer": True, "memory_rate": "100 GB/s"})
    fast = exposed("optimizer", sharding="zero-1", offload={"optimizer": True, "memory_rate": "400 GB/s"})
    assert slow > fast > plain
