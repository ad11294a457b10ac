"""Studies answer the same by several processes as in this one."""

from __future__ import annotations

import pytest

import fabrictwin as ft
from fabrictwin.base.progress import silent
from fabrictwin.study.claims.claim_book import judge_all

SPEC = {
    "schema": 1,
    "name": "small",
    "cluster": {
        "hosts": {"type": "dgx-h100", "count": 2},
        "network": {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"},
    },
    "workload": {
        "training": {
            "model": "models/llama-3-8b.json",
            "parallel": {"tp": 2, "pp": 2},
            "micro_batch_size": 1,
            "global_batch": 16,
            "sequence": 4096,
            "precision": "bf16",
        }
    },
    "run": {"fidelity": "analytic"},
}


@pytest.fixture
def spec():
    return ft.load(SPEC, folder="examples")


@pytest.mark.second
def test_a_plan(spec):
    alone, together = (ft.plan(spec, top=3, fidelity="analytic", workers=n).json() for n in (1, 2))
    assert alone == together


def test_jitter(spec):
    alone, together = (ft.jitter(spec, steps=40, levels=(1, 2), workers=n).json() for n in (1, 2))
    assert alone == together


def test_a_comparison(spec):
    alone, together = (
        ft.compare(spec, ["infiniband-ndr", "roce-400g"], seeds=(), workers=n).json() for n in (1, 2)
    )
    assert alone == together


def test_claims_come_in_their_order():
    found = judge_all(("generations", "a100"), silent, workers=2)
    assert [claim.key for claim in found] == ["generations", "a100"]
    assert found == judge_all(("generations", "a100"))
