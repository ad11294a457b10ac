"""Faults at a time, late GPUs and noise, as lines of a spec."""

from __future__ import annotations

from functools import partial

import pytest
from support.disturbed import MS, disturbed_spec, end

from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.disturbances import find_disturbances
from fabrictwin.runs.execute import predict, prepare


@pytest.fixture
def spec(tmp_path):
    return partial(disturbed_spec, tmp_path)


LINK = "link: host-1/mlx5_0"


@pytest.mark.parametrize("fidelity", ["flow", "packet"])
def test_a_link_that_is_down_for_a_while_costs_about_as_long(spec, fidelity):
    plain = end(spec(fidelity=fidelity))
    half = f"{{{LINK}, rate: 0 Gb/s, at: {plain // 2} ps, until: {plain // 2 + 2 * MS} ps}}"
    slow = end(spec(half, fidelity=fidelity))
    assert plain + 0.5 * MS < slow < plain + 3.3 * MS
    assert slow == end(spec(half, fidelity=fidelity))
    late = f"{{{LINK}, rate: 0 Gb/s, at: 10 s, until: 11 s}}"
    assert end(spec(late, fidelity=fidelity)) == plain, "what happens after the end changes nothing"


@pytest.mark.parametrize("fidelity", ["flow", "packet"])
def test_a_link_that_is_slow_throughout_is_as_slow_as_one_that_was_from_the_start(spec, fidelity):
    plain = end(spec(fidelity=fidelity))
    timed = end(spec(f"{{{LINK}, rate: 10 Gb/s, at: 0 s}}", fidelity=fidelity))
    assert timed == pytest.approx(end(spec(f"{{{LINK}, rate: 10 Gb/s}}", fidelity=fidelity)), rel=1e-6)
    assert timed > 1.1 * plain


@pytest.mark.parametrize("fidelity", ["flow", "packet"])
def test_a_link_that_never_comes_back_says_so(spec, fidelity):
    with pytest.raises(SimulatedError, match=r"link down|gave up after 7 retries"):
        end(spec(f"{{{LINK}, rate: 0 Gb/s, at: 0 s}}", fidelity=fidelity))


def test_bit_errors_are_repeated_packets(spec):
    plain = predict(spec(fidelity="packet"))
    bad = predict(spec(f"{{{LINK}, error_rate: 1e-6}}", fidelity="packet"))
    assert bad.trace.end_ps > plain.trace.end_ps
    over = predict(spec(f"{{{LINK}, error_rate: 1e-6, until: 1 us}}", fidelity="packet"))
    assert over.trace.end_ps == plain.trace.end_ps, "errors end before anything is sent"


def test_flapping_is_as_many_times_down_with_seeded_jitter(spec):
    line = f"{{{LINK}, at: 1 ms, period: 1 ms, down: 100 us, count: 5, jitter: 300 us, seed: SEED}}"

    def changes(text):
        one = spec(text)
        return find_disturbances(build(one.cluster, spec=one), one).changes

    found = changes(line.replace("SEED", "3"))
    assert [c.rate_bps for c in found] == [0, None] * 5
    down, up = [c.time_ps for c in found[::2]], [c.time_ps for c in found[1::2]]
    assert [b - a for a, b in zip(down, up, strict=True)] == [MS // 10] * 5
    late = [t - (i + 1) * MS for i, t in enumerate(down)]
    assert all(0 <= x <= 300_000_000 for x in late)
    assert len(set(late)) == 5
    assert found == changes(line.replace("SEED", "3"))
    assert found != changes(line.replace("SEED", "4"))
    until = changes(f"{{{LINK}, period: 1 ms, down: 400 us, until: 2200 us}}")
    assert [c.time_ps for c in until] == [0, 4 * MS // 10, MS, 14 * MS // 10, 2 * MS, 22 * MS // 10]


@pytest.mark.parametrize("fidelity", ["flow", "packet"])
def test_a_flapping_link_costs_more_than_one_that_flaps_once(spec, fidelity):
    once, often = (f"{{{LINK}, period: 500 us, down: 300 us, count: {n}}}" for n in (1, 60))
    plain = end(spec(fidelity=fidelity))
    assert plain <= end(spec(once, fidelity=fidelity)) < end(spec(often, fidelity=fidelity))


@pytest.mark.parametrize(
    ("fault", "fidelity", "message"),
    [
        (
            f"{{{LINK}, rate: 1 Gb/s, at: 1 ms}}",
            "analytic",
            r"spec.yaml:15 faults\[0\].link: .*at fidelity analytic",
        ),
        (f"{{{LINK}, error_rate: 1e-9}}", "flow", "got bit errors at fidelity flow, expected fidelity packet"),
        (f"{{{LINK}}}", "flow", "nothing that is wrong with it"),
        (f"{{{LINK}, rate: 1 Gb/s, until: 1 ms}}", "flow", "got until without at"),
        (f"{{{LINK}, rate: 1 Gb/s, at: 2 ms, until: 1 ms}}", "flow", "got until that is not after at"),
        (f"{{{LINK}, rate: 900 Gb/s, at: 2 ms}}", "flow", "got a rate above the 200 Gb/s"),
        (f"{{{LINK}, period: 1 ms, down: 1 ms, count: 1}}", "flow", "less than its period"),
        (f"{{{LINK}, period: 1 ms, down: 1 us}}", "flow", "either count or until"),
        (f"{{{LINK}, at: 1 ms, rate: 0 Gb/s, jitter: 1 us}}", "flow", "got jitter without period"),
        (f"{{{LINK}, rate: 1 Gb/s}}, {{{LINK}, rate: 0 Gb/s, at: 1 s}}", "flow", "breaks from the start"),
        (
            f"{{{LINK}, rate: 1 Gb/s, at: 1 s}}, {{{LINK}, rate: 0 Gb/s, at: 2 s}}",
            "flow",
            r"faults\[1\].link: .*overlap",
        ),
        ("{link: host-9/mlx5_0, rate: 1 Gb/s, at: 1 ms}", "flow", "neither a switch nor a host"),
        ("{gpu: host-1/gpu1}", "flow", "expected slowdown or late"),
        ("{noise: {mean: 2 ms, period: 1 ms}}", "flow", "below its period"),
        ("{noise: {mean: 1 us, period: 1 ms}, hosts: [hots-*]}", "flow", "no host of the cluster matches"),
        ("{noise: {mean: 1 us, period: 1 ms, distribution: fxed}}", "flow", "did you mean 'fixed'"),
    ],
)
def test_what_makes_no_sense_is_one_line(spec, fault, fidelity, message):
    with pytest.raises(ConfigError, match=message) as caught:
        prepare(spec(fault, fidelity=fidelity))
    assert caught.value.line == 15
