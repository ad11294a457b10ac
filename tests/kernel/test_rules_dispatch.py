"""Congestion control: which algorithm is asked what, and when others of a port are."""

from __future__ import annotations

import pytest
from support.plain_kernel import Record, plain

from fabrictwin.kernel.packet import congestion
from fabrictwin.kernel.packet.congestion import Control
from fabrictwin.kernel.packet.state import constants as s

ASKED = ("on_sent", "not_before", "on_ack", "on_becn", "on_marked", "on_cnp", "on_loss", "on_silence", "on_timer")


@pytest.fixture
def heard(monkeypatch):
    """Note what each algorithm was asked, with its arguments."""
    told = []
    for control, algorithm in congestion.ALGORITHMS.items():
        for name in ASKED:
            if hasattr(algorithm, name):
                monkeypatch.setattr(
                    algorithm, name, lambda *given, what=(control, name): told.append((*what, given[1:])) or 70
                )
    return told


@plain
@pytest.mark.parametrize("control", list(Control))
@pytest.mark.parametrize("counts", [0, 1])
def test_each_algorithm_hears_what_concerns_it(heard, control, counts):
    state = Record(settings=[Record(mtu=1000)])
    qp = Record(control=control, counts=counts, service=s.RC)

    def after(name, *given):
        heard.clear()
        found = getattr(congestion, name)(state, *given)
        return found, [(int(one), what, more) for one, what, more in heard]

    ibcc = control == Control.IBCC
    counting = Control.IBCC if ibcc else Control.DCQCN
    sent = [(counting, "on_sent", (3, qp, 90, 5))] if counts else []
    assert after("on_sent", 3, qp, 90, 5)[1] == sent
    for time, later in ((60, 70), (80, 80)):
        assert after("not_before", qp, time)[0] == (later if ibcc and counts else time)
    for echo in (False, True):
        acked = {
            Control.NSCC: [(Control.NSCC, "on_ack", (3, qp, 2000, echo, 5))],
            Control.SWIFT: [(Control.SWIFT, "on_ack", (3, qp, 2000, 5))],
            Control.CUBIC: [(Control.CUBIC, "on_ack", (3, qp, 2000, 5))],
            Control.DCTCP: [(Control.DCTCP, "on_ack", (3, qp, 2000, echo, 5))],
            Control.IBCC: [(Control.IBCC, "on_becn", (3, qp, 5))] if echo else [],
        }
        assert after("on_ack", 3, qp, 2, echo, 5)[1] == acked.get(control, [])
    assert after("on_marked", qp)[1] == ([(Control.IBCC, "on_marked", (qp,))] if ibcc else [])
    cnp = {Control.DCQCN: "on_cnp", Control.IBCC: "on_becn"}
    assert after("on_cnp", 3, qp, 5)[1] == ([(control, cnp[control], (3, qp, 5))] if control in cnp else [])
    tcp = control in (Control.CUBIC, Control.DCTCP)
    lost = [(control, "on_loss", (3, qp, 5))] if tcp or control in (Control.NSCC, Control.SWIFT) else []
    assert after("on_loss", 3, qp, 5)[1] == lost
    assert after("on_silence", 3, qp, 5)[1] == ([(control, "on_silence", (3, qp, 5))] if tcp else lost)
    for service in (s.RC, s.UC, s.UD):
        qp.service = service
        assert congestion.wants_cnps(qp) == (control == Control.DCQCN or (ibcc and service != s.RC))
    timed = [(control, "on_timer", (3, qp, 1, 5))] if control == Control.DCQCN else []
    assert after("on_timer", 3, qp, 1, 5)[1] == timed


def test_algorithms_have_the_numbers_that_queue_pairs_hold():
    assert [int(one) for one in Control] == list(range(len(Control)))
    assert set(congestion.ALGORITHMS) == set(Control) - {Control.NONE}
    assert all(found.__name__.endswith(f".{one.name.lower()}") for one, found in congestion.ALGORITHMS.items())
