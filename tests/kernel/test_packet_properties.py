"""Random small fabrics and traffic: laws that always hold, whatever the configuration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.packet_cases import SAMPLE, assert_every_byte_arrived, cases, run_case
from support.packet_wiring import digest
from support.processes import answers_of

from fabrictwin.kernel.packet.state import build
from fabrictwin.kernel.packet.state import constants as s

RELAXED = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@RELAXED
@given(cases())
def test_every_byte_arrives_and_every_law_holds(case):
    m = run_case(case)
    assert_every_byte_arrived(m)
    assert (m.state.inlet.held == 0).all()
    assert (m.state.node.shared_used == 0).all()
    assert (m.state.queued == 0).all()


@RELAXED
@given(cases())
def test_messages_of_a_queue_pair_complete_in_order(case):
    m = run_case(case, check=False)
    for q in range(m.queue_pairs):
        mine = m.state.task[m.state.task.qp == q]
        order = np.argsort(mine.psn_start)
        assert (np.diff(mine.received_ps[order]) >= 0).all()
        assert (np.diff(mine.done_ps[order]) >= 0).all()
        assert (mine.received_ps <= mine.done_ps).all()


@RELAXED
@given(cases(lossy=(False,)).filter(lambda c: not c["errors"]))
def test_a_lossless_fabric_never_drops(case):
    m = run_case(case, check=False)
    assert m.state.clock[0].dropped == 0
    assert m.state.clock[0].lost_control == 0
    assert m.state.qp.retransmitted.sum() == 0


@RELAXED
@given(cases())
def test_the_same_seed_gives_the_same_digest(case):
    assert digest(run_case(case, check=False)) == digest(run_case(case, check=False))


_SCRIPT = """
from fabrictwin.kernel.packet.state import build
from support.packet_cases import run_case
from support.packet_wiring import digest
build.LOOK_AHEAD_PORTS = 0  # nor does looking ahead change anything
print(json.dumps([digest(run_case(case, check=False)) for case in cases]))
"""

FEW = [
    SAMPLE
    | {
        "shape": shape,
        "kind": kind,
        "lossy": lossy,
        "cut": cut,
        "balance": balance,
        "selective": selective,
        "errors": errors,
        "flows": [(0, 1, 30_000), (2, 1, 30_000), (3, 4, 9_000), (4, 0, 1)],
    }
    for shape, kind, lossy, cut, balance, selective, errors in [
        ("star", "ethernet", True, False, s.ECMP, False, 10**9),
        ("dumbbell", "infiniband", False, True, s.ECMP, True, 0),
        ("tree", "ethernet", False, False, s.ADAPTIVE, True, 0),
        ("tree", "infiniband", False, True, s.ADAPTIVE, True, 10**8),
    ]
]


def test_looking_ahead_changes_nothing(monkeypatch):
    plain = [digest(run_case(case, check=False)) for case in FEW]
    monkeypatch.setattr(build, "LOOK_AHEAD_PORTS", 0)
    assert [digest(run_case(case, check=False)) for case in FEW] == plain


def digests_under(script: str = _SCRIPT, **environment: str) -> list[str]:
    """Digests of a few cases in a process with those variables set."""
    return answers_of(script, FEW, **environment)


@pytest.mark.second
def test_compiled_and_interpreted_runs_are_equal():
    assert digests_under(NUMBA_DISABLE_JIT="1") == [digest(run_case(case, check=False)) for case in FEW]


@pytest.mark.second
def test_no_access_is_out_of_bounds():
    assert digests_under(NUMBA_BOUNDSCHECK="1") == [digest(run_case(case, check=False)) for case in FEW]


@pytest.mark.slow  # compiles everything anew, for minutes
def test_the_kernel_agrees_where_numba_no_longer_knows_its_private_switch(tmp_path):
    """`_nrt` saves time and is semi-private: without it everything compiles, and gives the same."""
    without = (
        "import numba, sys\n"
        "njit = numba.njit\n"
        "taken = []\n"
        "def public(*a, **k):\n"
        "    taken.append(k.pop('_nrt', None))\n"
        "    return njit(*a, **k)\n"
        "numba.njit = public\n"
    )
    check = "\nassert False in taken, 'the switch is not used any more: this test is of no use'\n"
    found = digests_under(without + _SCRIPT + check, FABRICTWIN_CACHE=str(tmp_path))
    assert found == [digest(run_case(case, check=False)) for case in FEW]


@pytest.mark.slow  # compiles everything anew, for many minutes
def test_the_kernel_agrees_without_anything_that_numba_does_not_document(tmp_path):
    """`FABRICTWIN_PLAIN_NUMBA=1`: `numba.njit` alone, the same digests."""
    found = digests_under(FABRICTWIN_CACHE=str(tmp_path), FABRICTWIN_PLAIN_NUMBA="1")
    assert found == [digest(run_case(case, check=False)) for case in FEW]
