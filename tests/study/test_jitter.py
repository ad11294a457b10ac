"""Jitter: draws against exact order statistics, replayed steps against simulated ones, sources against reason."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.specs import SMALL_JOB as SPEC
from support.specs import small_job as spec

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import silent
from fabrictwin.cli import main
from fabrictwin.cluster.spec.spec import load_spec
from fabrictwin.report.page import Axis, Series, lines, page_environment, table
from fabrictwin.runs.execute import predict
from fabrictwin.study.jitter.distributions import Amount, expm1, log, normal_above, tail_of_greatest
from fabrictwin.study.jitter.jitter_sources import Jitter
from fabrictwin.study.jitter.jitter_study import Sampler, slowest_of, study
from fabrictwin.study.jitter.sampled_steps import Unit
from fabrictwin.workload.step.disturbed_program import uniform


def test_logarithms_and_exponentials_are_those_of_the_library():
    x = np.concatenate([np.geomspace(1e-300, 1e300, 4001), np.linspace(0.5, 2, 1001)])
    assert np.allclose(log(x), np.log(x), rtol=2e-15, atol=1e-16)
    y = -np.concatenate([np.geomspace(1e-18, 700, 4001), [0.0]])
    assert np.allclose(expm1(y), np.expm1(y), rtol=1e-12, atol=0)


@pytest.mark.parametrize("tail", [0.5, 0.1, 0.02, 1e-3, 1e-6, 1e-10, 1e-14, 0.9, 0.999])
def test_the_normal_quantile_leaves_its_tail_above_it(tail):
    x = float(normal_above(np.array([tail]))[0])
    assert 0.5 * math.erfc(x / math.sqrt(2)) == pytest.approx(tail, rel=1e-12)


def expected_greatest(shape: str, n: int) -> float:
    """Exact: harmonic numbers for the exponential, an integral over Phi^n for the Gaussian."""
    if shape == "exponential":
        return float(np.sum(1.0 / np.arange(1, n + 1)))
    x = np.linspace(-12, 12, 400_001)
    phi = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x[::10]])
    powered = phi**n
    grid = x[::10]
    above = np.where(grid > 0, 1 - powered, 0.0)
    below = np.where(grid <= 0, powered, 0.0)
    return float(np.trapezoid(above, grid) - np.trapezoid(below, grid))


@pytest.mark.parametrize("shape", ["exponential", "gaussian"])
@pytest.mark.parametrize("ranks", [8, 64, 1024, 10_000, 100_000])
def test_the_sampled_mean_maximum_is_the_exact_one_within_one_percent(shape, ranks):
    """Independent noise on every rank and a barrier: the step waits for the greatest."""
    drawn = Amount(shape, 1.0).greatest(uniform(7, np.arange(40_000)), ranks)
    assert drawn.mean() == pytest.approx(expected_greatest(shape, ranks), rel=0.01)


@settings(max_examples=60)
@given(st.integers(1, 10**6), st.floats(0.01, 1 - 1e-9))
def test_the_tail_of_the_greatest_inverts_the_power(n, u):
    tail = float(tail_of_greatest(np.array([u]), n)[0])
    assert n * math.log1p(-tail) == pytest.approx(math.log(u), rel=1e-9, abs=1e-9)


def test_the_slowest_of_units_drawn_from_one_is_that_of_all():
    unit = np.sort(np.rint(1e9 * (1 + uniform(3, np.arange(200_000)))).astype(np.int64))
    shuffled = unit[np.argsort(uniform(5, np.arange(len(unit))))]
    every = slowest_of(shuffled, 16, 12_000, 1)  # all sampled
    drawn = slowest_of(unit[::7], 16, 12_000, 1)  # from the distribution of one
    for q in (5, 50, 95):
        exact = 1e9 * (1 + (q / 100) ** (1 / 16))  # of 16 uniform draws; 12,000 of them are 0.1 % off at p5
        assert np.percentile(drawn, q) == pytest.approx(exact, rel=0.005)
        assert np.percentile(every, q) == pytest.approx(exact, rel=0.005)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return predict(spec(tmp_path_factory.mktemp("clean")))


def test_a_step_walked_without_noise_is_the_simulated_step(clean):
    unit = Unit(clean, 4, 4)
    assert unit.sample(Jitter(), 11, 1).tolist() == [clean.trace.end_ps] * 11


def test_a_step_under_noise_is_what_a_plain_walk_makes_of_the_same_durations(clean):
    """Compute slowed by a factor: an independent longest path in Python."""
    unit = Unit(clean, 4, 4)
    found = unit.sample(Jitter.model_validate({"slow": {"chance": 1.0, "slowdown": 1.5}}), 3, 1)
    ops, trace = clean.job.program.operations, clean.trace
    took = trace.end_op_ps - trace.start_ps
    end = np.zeros(len(ops), np.int64)
    for i in unit.order[unit.order < len(ops)].tolist():
        start = max((int(end[p]) for p in ops.after[ops.after_start[i] : ops.after_start[i + 1]]), default=0)
        end[i] = start + (int(np.rint(took[i] * 1.5)) if unit.actor[i] >= 0 else int(took[i]))
    assert found.tolist() == [int(end.max())] * 3


def test_everyone_late_by_the_same_is_late_by_that(clean):
    unit = Unit(clean, 4, 4)
    late = Jitter.model_validate({"late": {"chance": 1.0, "mean": "3 ms", "distribution": "fixed"}})
    assert unit.sample(late, 2, 1).tolist() == [clean.trace.end_ps + 3 * 10**9] * 2


def test_lateness_holds_up_a_step_that_begins_with_communication(tmp_path):
    """Sharded parameters are gathered before anything is computed."""
    path = tmp_path / "s.yaml"
    path.write_text(SPEC.format(more="").replace("    sequence: 1024", "    sequence: 1024\n    sharding: fsdp"))
    found = predict(load_spec(path))
    late = Jitter.model_validate({"late": {"chance": 1.0, "mean": "3 ms", "distribution": "fixed"}})
    layout = Sampler(load_spec(path), silent).job.layout
    unit = Unit(found, layout.units, layout.positions)
    assert unit.sample(Jitter(), 2, 1).tolist() == [found.trace.end_ps] * 2
    assert unit.sample(late, 2, 1).tolist() == [found.trace.end_ps + 3 * 10**9] * 2


def test_a_second_job_on_the_same_links_is_measured_and_costs_more_than_none(tmp_path):
    """At flow, over few uplinks: half of the rate of what is shared, and the factors go into the steps."""
    path = tmp_path / "s.yaml"
    shape = "{kind: fat-tree, leaf_down: 16, oversubscription: 4}"
    more = "jitter: {second_job: {fidelity: flow, traffic: ring, seeds: [1]}}\n"
    path.write_text(SPEC.format(more=more).replace("{kind: rail-optimised}", shape))
    found = study(load_spec(path), steps=20, levels=[1])
    measured = found.jitter.second_job
    assert measured is not None
    assert len(measured.factors) == len(measured.exchange) == 1
    assert max(measured.factors + measured.exchange) > 1.3
    assert found.here.mean > found.clean_ps
    assert [lost.source for lost in found.curves.sources] == ["second_job"]


def test_measured_sources_combine_and_scale():
    both = Jitter.model_validate(
        {
            "network": {"factors": [1.0, 1.2], "source": "a test"},
            "second_job": {"factors": [1.5], "exchange": [2.0]},
            "bit_errors": {"rate": 1e-9, "factors": [1.1]},
        }
    )
    network = both.communication()
    assert network is not None
    assert network.factors == pytest.approx((1.65, 1.98))
    assert network.exchange == pytest.approx((2.2, 2.64))
    half = both.scaled(0.5).second_job
    assert half is not None
    assert half.factors == (1.25,)
    spread = Jitter.model_validate({"network": {"mean": 0.1}, "second_job": {"factors": [2.0]}}).communication()
    assert spread is not None
    assert np.mean(spread.factors) == pytest.approx(2.2, rel=0.01)


def test_drift_moves_all_steps_alike_and_no_more_on_more_gpus(tmp_path):
    found = study(spec(tmp_path, "jitter: {drift: {share: 0.01}}\n"), steps=2000, levels=[1])
    for row in found.curves.by_size:
        assert row.steps.p95 / row.steps.p50 == pytest.approx(1.009, abs=0.0005)
    assert found.times.max() <= 1.01 * found.clean_ps
    assert found.times.min() >= 0.99 * found.clean_ps


def test_slower_communication_costs_at_most_its_share_and_no_less_than_what_is_exposed(clean):
    unit = Unit(clean, 4, 4)
    twice = Jitter.model_validate({"network": {"factors": [2.0], "source": "a test"}})
    found = int(unit.sample(twice, 1, 1)[0])
    assert clean.trace.end_ps < found < 2 * clean.trace.end_ps


def test_without_a_source_the_draws_of_the_others_stay(tmp_path):
    more = "jitter: {late: {chance: 0.5, mean: 1 ms}, slow: {chance: 0.01, slowdown: 1.2}}\n"
    both = study(spec(tmp_path, more), steps=50, levels=[1])
    alone = study(spec(tmp_path, more.replace(", slow: {chance: 0.01, slowdown: 1.2}", "")), steps=50, levels=[1])
    assert (both.times >= alone.times).all()
    assert (both.times == alone.times).any()


def test_more_gpus_never_shorten_the_step_and_more_jitter_never_helps(tmp_path):
    more = "jitter: {compute: {mean: 50 us, period: 2 ms}, network: {mean: 0.1}}\n"
    found = study(spec(tmp_path, more), steps=200, levels=[0, 0.5, 1, 2])
    means = [row.steps.mean for row in found.curves.by_size]
    assert means == sorted(means)
    assert found.curves.by_size[-1].steps.mean > found.curves.by_size[0].steps.mean
    by_level = {
        level: [r.steps.mean for r in found.curves.by_level if r.level == level] for level in (0, 0.5, 1, 2)
    }
    assert by_level[0] == [found.clean_ps] * len(by_level[0])
    for less, more_ in ((0, 0.5), (0.5, 1), (1, 2)):
        assert all(a < b for a, b in zip(by_level[less], by_level[more_], strict=True))
    assert {s.source for s in found.curves.sources} == {"compute", "network"}
    again = study(spec(tmp_path, more), steps=200, levels=[0, 0.5, 1, 2])
    assert (again.times == found.times).all()


def test_a_delay_of_the_network_in_time_is_added_to_what_crosses_it(tmp_path):
    """A fixed one lengthens every step alike, by at most a delay for each communication, at least by one."""
    fixed = study(
        spec(tmp_path, "jitter: {network: {mean: 100 us, distribution: fixed}}\n"), steps=20, levels=[1, 2]
    )
    (took,) = set(fixed.times.tolist())
    longer = took - fixed.clean_ps
    assert longer >= 100_000_000
    mean = {(at.gpus, at.level): at.steps.mean for at in fixed.curves.by_level}
    least = min(gpus for gpus, _ in mean)
    assert mean[least, 2] > mean[least, 1] > fixed.clean_ps
    drawn = study(spec(tmp_path, "jitter: {network: {mean: 100 us}}\n"), steps=200, levels=[1])
    assert len(set(drawn.times.tolist())) > 100
    assert drawn.here.mean > took  # the slowest of many groups waits for more than the mean


def test_a_link_that_breaks_in_every_step_costs_what_the_engine_says(tmp_path):
    more = "jitter: {link: {rate: 10 Gb/s, chance: 1.0}}\n"
    found = study(spec(tmp_path, more), steps=20, levels=[1])
    assert len(set(found.times.tolist())) == 1
    assert found.times[0] > found.clean_ps


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("jitter: {comptue: {mean: 1 us, period: 1 ms}}", "did you mean 'compute'"),
        ("jitter: {network: {}}", "expected either mean or factors"),
        ("jitter: {network: {factors: [1.1]}}", "without source"),
        ("jitter: {network: {mean: 0.1, distribution: fixed}}", "nothing without a time"),
        ("jitter: {network: {mean: 10 us}, second_job: {factors: [2.0]}}", "with a time beside second_job"),
        ("jitter: {late: {chance: 2, mean: 1 us}}", "at most 1"),
        ("jitter: {link: {chance: 0.1}}", "expected either rate"),
        ("jitter: {}", "got no source"),
        ("jitter: {late: {chance: 0.1, mean: 1 us}}\nfaults: [{gpu: host-0/gpu0, late: 1 us}]", "under jitter"),
        ("jitter: {late: {chance: 0.1, mean: 1 us}}\nrun: {fidelity: packet}", "expected flow or analytic"),
    ],
)
def test_what_is_wrong_is_one_clear_line(tmp_path, more, said, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(SPEC.format(more=more))
    assert main(["jitter", str(path)]) == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line
    assert said in line
    with pytest.raises(ConfigError):
        study(load_spec(path))


def test_sizes_are_whole_units(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(SPEC.format(more=""))
    assert main(["jitter", str(path), "--gpus", "12"]) == 2
    assert "expected a multiple of 8" in capsys.readouterr().err
    assert main(["jitter", str(path), "--gpus", "a,b"]) == 2
    assert "numbers with commas" in capsys.readouterr().err


def test_the_command_writes_a_page_and_the_same_as_json(tmp_path, capsys):
    path, page = tmp_path / "s.yaml", tmp_path / "p.html"
    path.write_text(SPEC.format(more=""))
    assert main(["jitter", str(path), "--steps", "40", "--json", "--out", str(page)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["assumed"] is True
    assert sum(data["histogram"]["steps"]) == 40
    assert data["step"]["p50_s"] >= data["clean_step_s"]
    text = page.read_text()
    assert text.count("<svg") == 3  # steps by time, by size, useful GPUs
    assert 'class="chart rows"' in text  # what each source costs
    assert "http" not in text.replace("http-equiv", "")


def test_charts_and_tables_escape_what_they_show():
    hostile = "<script>alert(1)</script>"
    drawn = lines(
        [Series(hostile, ((1.0, 2.0), (2.0, 3.0))), Series("b", ((1.0, 1.0),))],
        Axis(hostile),
        Axis("y"),
        label=hostile,
    )
    page = page_environment("fabrictwin.report").from_string(
        '{% import "charts.html.j2" as charts %}{% import "parts.html.j2" as parts %}'
        "{{ charts.lines(chart) }}{{ parts.table(rows) }}"
    )
    shown = page.render(chart=drawn, rows=table([hostile], [[hostile], [(hostile, 1.0)]]))
    assert shown.count("&lt;script&gt;") >= 5
    assert "<script>" not in shown
