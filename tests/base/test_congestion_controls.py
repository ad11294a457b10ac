"""Parameters of congestion control by name: sets of a rate, what grows with it and what does not."""

from __future__ import annotations

import pytest

from fabrictwin.base.congestion_controls import CONTROLS, DCQCN, DcqcnByRate, Scale, congestion_control

GBPS = 10**9


def scale(gbps: int) -> Scale:
    return Scale(4096, 82, gbps * GBPS, gbps * GBPS // 8 * 10 // 10**6, 10_000_000)


@pytest.mark.parametrize(
    ("gbps", "name"),
    [(25, "100g"), (100, "100g"), (101, "200g"), (200, "200g"), (400, "400g"), (800, "800g"), (1600, "800g")],
)
def test_by_rate_takes_the_set_of_the_lowest_rate_that_is_enough(gbps, name):
    by_rate = congestion_control("dcqcn", "by-rate")
    named = congestion_control("dcqcn", name)
    assert isinstance(by_rate, DcqcnByRate)
    assert by_rate.settings(scale(gbps)) == named.settings(scale(gbps))
    assert by_rate.switches(scale(gbps), 1) == named.switches(scale(gbps), 1)


def test_increases_of_a_rate_are_in_proportion_to_it_and_an_adapters_own_are_not():
    steps = {
        g: congestion_control("dcqcn", "by-rate").settings(scale(g))["additive"] for g in (100, 200, 400, 800)
    }
    assert steps == {100: 20_000, 200: 40_000, 400: 80_000, 800: 160_000}  # kb/s: 5 Mb/s at 25 Gb/s
    adapter = congestion_control("dcqcn", "adapter")
    assert {adapter.settings(scale(g))["additive"] for g in (25, 100, 400)} == {5_000}
    assert adapter.switches(scale(400), 1)["ecn_bps"] == 0  # the same thresholds at every rate


def test_every_set_marks_before_it_is_sure_and_only_the_papers_clamps_at_every_cut():
    for name, found in DCQCN.items():
        marks = found.switches(scale(400), 1)
        assert 0 < marks["ecn_kmin_bytes"] < marks["ecn_kmax_bytes"], name
        assert 0 < marks["ecn_pmax_q"] < 2**32, name
        assert found.settings(scale(400))["clamp"] == int(name == "sigcomm15"), name


def test_swift_aims_at_the_empty_network_and_some_queue_at_any_rate():
    swift = CONTROLS["swift"][""]
    for gbps in (100, 400):
        settings = swift.settings(scale(gbps))
        assert settings["target_ps"] == 30_000_000
        assert settings["maximum"] == gbps * GBPS * 30 // 10**6 // 8
        assert swift.window_bytes(scale(gbps), 1 << 60) == scale(gbps).bdp_bytes
        assert swift.window_bytes(scale(gbps), 5000) == 5000
