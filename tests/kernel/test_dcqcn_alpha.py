"""DCQCN's alpha: how it decays, grows and where it settles, by the recurrence of the paper (section 3)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from support.packet_wiring import GBPS, US, machine, roce, set_dcqcn, star

from fabrictwin.kernel.packet.congestion.dcqcn import ALPHA_ONE

G_SHIFT = 4
ALPHA_US, CNP_US = 50, 20
MARKING = {"ecn_kmin_bytes": 1, "ecn_kmax_bytes": 2, "ecn_bps": 400 * GBPS, "ecn_pmax_q": 2**32 - 1}


def congested(senders: int, size: int = 8 << 20):
    """Senders into one port whose every packet is marked beyond one byte of queue."""
    flows = [(sender, senders, size) for sender in range(senders)]
    m = machine(star(senders + 1), roce(cnp_ps=CNP_US * US, **MARKING), flows, control=1, window_bytes=1 << 20)
    set_dcqcn(m, alpha_ps=ALPHA_US * US, decrease_ps=ALPHA_US * US, g=1024 >> G_SHIFT)
    return m


def test_alpha_grows_to_one_where_every_period_has_a_notification():
    """From next to nothing it follows 1 - (1 - g)^n, n periods with a CNP each: the fixed point is one."""
    m = congested(8, 64 << 20)
    m.state.dcqcn.alpha[:] = 0
    seen = [0.0]
    for period in range(1, 60):
        m.run(until=period * ALPHA_US * US)
        seen.append(float(m.state.dcqcn.alpha[0]) / ALPHA_ONE)
    assert seen[-1] == pytest.approx(1.0, abs=0.08)
    assert np.diff(seen).max() <= 2.0**-G_SHIFT + 1e-9
    # what a period adds is a sixteenth of what is missing, once notifications come in every one
    grown = [(before, after) for before, after in pairwise(seen) if 0.05 < before < 0.9]
    assert len(grown) >= 10
    for before, after in grown:
        assert after == pytest.approx(before + (1.0 - before) / 2**G_SHIFT, abs=1e-6)


def test_alpha_decays_by_its_share_where_no_notification_comes():
    m = congested(2, 256 << 20)
    # nothing raises the rate again meanwhile, which would end it all
    m.state.dcqcn_settings.increase_ps = 10**6 * US
    m.state.dcqcn_settings.byte_counter = 1 << 40
    m.run(until=200 * US)
    m.state.outlet.kmax[:] = 0  # nothing is marked from here on
    m.run(until=400 * US)
    seen = [int(m.state.dcqcn.alpha[0])]
    for _ in range(30):
        m.run(until=m.now + ALPHA_US * US)
        seen.append(int(m.state.dcqcn.alpha[0]))
    assert m.state.dcqcn[0].active
    assert seen[0] > ALPHA_ONE // 4
    assert seen[-1] < ALPHA_ONE // 4
    assert all(after == before - (before >> G_SHIFT) for before, after in pairwise(seen))


def test_a_cut_takes_half_of_alpha():
    """The first cut, at alpha one, halves the rate; the target is what the rate was."""
    m = congested(4)
    while m.state.dcqcn[0].rate in (0, m.state.dcqcn[0].line):
        m.run(until=m.now + US)
    d = m.state.dcqcn[0]
    assert d.alpha == ALPHA_ONE
    assert d.rate == d.line // 2
    assert d.target == d.line
