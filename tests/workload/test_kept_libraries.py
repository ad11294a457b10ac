"""Libraries kept for jobs on the same ranks: the same answers as new ones, communicators initialised once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.specs import LLAMA_8B, spec_of

from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.runs import execute
from fabrictwin.workload.job import nccl_communications
from fabrictwin.workload.job.nccl_communications import KeptLibraries

_job = spec_of(
    2,
    "dgx-h100",
    model={**LLAMA_8B, "num_hidden_layers": 4, "vocab_size": 32000},
    global_batch=16,
    sequence=2048,
)


def job(share: float = 1.0, tp: int = 2, **sections: Any) -> Spec:
    return _job(sections=sections, parallel={"tp": tp}, compute_share=share)


@pytest.fixture
def initialised(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Ranks of every communicator that is initialised."""
    found: list[np.ndarray] = []
    real = nccl_communications.initialise

    def noted(hosts: Any, nodes: np.ndarray, **options: Any) -> Any:
        found.append(nodes)
        return real(hosts, nodes, **options)

    monkeypatch.setattr(nccl_communications, "initialise", noted)
    return found


def same(one: execute.RunResult, other: execute.RunResult) -> bool:
    times = [(found.trace.start_ps.tolist(), found.trace.end_op_ps.tolist()) for found in (one, other)]
    return times[0] == times[1] and one.job.notes == other.job.notes


def test_other_constants_find_the_communicators_initialised(initialised) -> None:
    kept = KeptLibraries(4)
    first = execute.predict(job(0.9), make_library=kept)
    count = len(initialised)
    assert count
    again = execute.predict(job(0.7), make_library=kept)
    assert len(initialised) == count
    assert again.trace.end_ps > first.trace.end_ps
    assert same(again, execute.predict(job(0.7)))
    assert len(initialised) > count


def test_another_layout_on_the_same_ranks_is_as_with_a_library_of_its_own() -> None:
    kept = KeptLibraries(4)
    execute.predict(job(tp=8), make_library=kept)
    assert same(execute.predict(job(tp=4), make_library=kept), execute.predict(job(tp=4)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nccl", {"NCCL_ALGO": "Ring"}),
        ("faults", [{"link": "host-0/mlx5_3", "rate": "100 Gb/s"}]),
        ("cluster.hosts.count", 4),
    ],
)
def test_what_changes_communicators_has_a_library_of_its_own(initialised, key, value) -> None:
    kept = KeptLibraries(4)
    execute.predict(job(0.9), make_library=kept)
    count = len(initialised)
    changed = job(0.9).with_({key: value})
    answer = execute.predict(changed, make_library=kept)
    assert len(initialised) > count
    assert same(answer, execute.predict(changed))


def test_algorithms_that_an_engine_cannot_play_are_noted_each_time() -> None:
    packets = {"run": {"fidelity": "packet"}}
    kept = KeptLibraries(4)
    plain = execute.prepare(job(tp=1, **packets))
    for _ in range(2):
        assert execute.prepare(job(tp=1, **packets), make_library=kept).job.notes == plain.job.notes
    assert any("this engine cannot" in note for note in plain.job.notes)
    # those of another job on the same ranks are no notes of this one
    other = execute.prepare(job(tp=8, **packets), make_library=kept)
    assert other.job.notes == execute.prepare(job(tp=8, **packets)).job.notes


def test_the_library_that_was_not_used_for_longest_goes(initialised) -> None:
    kept = KeptLibraries(1)
    execute.predict(job(0.9), make_library=kept)
    execute.predict(job(0.9, nccl={"NCCL_ALGO": "Ring"}), make_library=kept)
    count = len(initialised)
    execute.predict(job(0.8), make_library=kept)
    assert len(initialised) > count
