"""Campaigns: against Daly's exact formula, the RSC paper's estimate, and by accounts that must close."""

from __future__ import annotations

import json
from contextlib import suppress
from math import exp, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.specs import SMALL, SMALL_JOB, spec_of

from fabrictwin.base.errors import ConfigError
from fabrictwin.catalog.failures import parse_failure_rate
from fabrictwin.cli import main
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.study.campaign.campaign_run import (
    PARTS,
    Ledger,
    Policy,
    Saving,
    drawn_s,
    mean_goodput,
    mean_wall_s,
    play_campaign,
)
from fabrictwin.study.campaign.campaign_section import Campaign, Spell, parse_tokens
from fabrictwin.study.campaign.campaign_study import daly_s, study, young_s
from fabrictwin.study.campaign.failure_rates import Component, Failure, FailureStream, components_of

HOUR = 3600.0
# four hosts, all of which train
small = spec_of(4, "dgx-h100", model=SMALL, parallel={"tp": 4, "pp": 2}, micro_batches=4, sequence=1024)


def spec(campaign: dict[str, object], **sections: object) -> Spec:
    return small(hosts=4, sections={"campaign": campaign, **sections})


def component(per_s: float, shows: str = "error", *, replaces: bool = False, name: str = "x") -> Component:
    return Component(name, name, per_s, shows, replaces, "")  # type: ignore[arg-type]


def section(**keys: object) -> Campaign:
    return Campaign.model_validate({"steps": 1, "manual": {"chance": 0}, **keys})


def policy(components: list[Component], campaign: Campaign, saving: Saving, **others: float) -> Policy:
    given = {"hosts": 16, "work_s": 1000 * HOUR, "step_s": 10.0, **others}
    return Policy(tuple(components), campaign, saving, **given)  # type: ignore[arg-type]


def play(asked: Policy, interval_s: float, runs: int = 60) -> list[Ledger]:
    return [play_campaign(asked, interval_s, iter(FailureStream(asked.components, 1, run))) for run in range(runs)]


def failures(*times: tuple[float, int]) -> object:
    """These failures, and then none for ever: `normal` draws are medians."""
    yield from (Failure(time, which, 0.0, 1.0, 0.0, 0.0) for time, which in times)
    while True:
        yield Failure(inf, 0, 0.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize(("interval_s", "save_s"), [(600, 60), (3600, 60), (1200, 300), (7200, 600)])
def test_the_time_is_dalys_where_all_he_assumes_holds(interval_s, save_s):
    """Daly 2006, equation 20: M e^(R/M) (e^((tau + delta)/M) - 1) Ts/tau, restarts that fail included."""
    between_s, restart_s = 3 * HOUR, 300.0
    campaign = section(detection={"error": "1 s"}, restart="299 s")
    asked = policy([component(1 / between_s)], campaign, Saving(save_s, 0, 0), work_s=2000.0 * interval_s)
    exact = between_s * exp(restart_s / between_s) * (exp((interval_s + save_s) / between_s) - 1) * 2000
    assert mean_wall_s(play(asked, interval_s, 60)) == pytest.approx(exact, rel=0.005)


@pytest.mark.second
@pytest.mark.parametrize("nodes", [16, 128, 256, 512, 2048])
def test_goodput_by_size_is_what_the_rsc_paper_estimates(nodes):
    """E[ETTR] = 1 - N r (u0 + dt/2) for long runs without queues (arXiv 2410.21680): first order in N r."""
    rate = 6.5 / 1000 / 86400
    restart_s, interval_s = 300.0, 3600.0
    campaign = section(detection={"error": "1 s"}, restart="299 s")
    asked = policy([component(nodes * rate)], campaign, Saving(0, 0, 0), work_s=3000 * HOUR, hosts=nodes)
    expected = 1 - nodes * rate * (restart_s + interval_s / 2)
    share = nodes * rate * interval_s  # what the estimate leaves out is of second order
    assert mean_goodput(play(asked, interval_s)) == pytest.approx(expected, rel=0.005 + share * share)


def test_the_best_interval_lies_at_youngs_and_dalys():
    between_s, save_s = 6 * HOUR, 60.0
    asked = policy([component(1 / between_s)], section(restart="5 min"), Saving(save_s, 0, 0))
    best = daly_s(save_s, between_s)
    assert young_s(save_s, between_s) == pytest.approx((2 * save_s * between_s) ** 0.5)
    at = {scale: mean_goodput(play(asked, best * scale)) for scale in (0.25, 0.5, 1.0, 2.0, 4.0)}
    assert max(at, key=at.__getitem__) == 1.0
    assert at[0.25] < at[0.5] < at[1.0] > at[2.0] > at[4.0]


shows = st.sampled_from(["error", "hang", "silent", "planned"])
kinds = st.builds(component, st.floats(1e-6, 1e-3), shows, replaces=st.booleans(), name=st.sampled_from("abcdef"))


@settings(max_examples=50)
@given(
    st.lists(kinds, min_size=1, max_size=5),
    st.tuples(st.floats(0, 600), st.floats(0, 900), st.floats(0, 300)),
    st.sampled_from([None, 0, 1, 5]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_every_second_is_accounted_for_once(components, times, spares, peer, run):
    stall_s, write_s, read_s = times
    saving = Saving(stall_s, write_s, read_s, 400.0, 20_000.0 if peer else inf)
    campaign = section(restart={"mean": "10 min", "median": "4 min"}, spares=spares, manual={"chance": 0.1})
    asked = policy(components, campaign, saving, work_s=40 * HOUR, hosts=4, limit_s=400 * HOUR)
    found = play_campaign(asked, 1000.0, iter(FailureStream(asked.components, 3, run)))
    assert found.work_s == pytest.approx(40 * HOUR) if found.finished else found.wall_s >= 400 * HOUR
    assert found.wall_s == pytest.approx(found.work_s + sum(found.of_part(part) for part in PARTS))
    assert all(seconds >= -1e-6 for by in found.spent.values() for seconds in by.values())
    if spares is None:
        assert found.of_part("waiting") == 0


@given(st.lists(kinds, min_size=1, max_size=3), st.integers(0, 100))
def test_a_run_of_so_many_days_ends_with_them(components, run):
    asked = policy(components, section(restart="4 min"), Saving(5, 60, 30), limit_s=30 * HOUR, work_s=1e9)
    found = play_campaign(asked, 900.0, iter(FailureStream(asked.components, 5, run)))
    assert found.wall_s >= 30 * HOUR
    assert found.wall_s == pytest.approx(found.work_s + sum(found.of_part(part) for part in PARTS))


def test_one_failure_costs_its_lost_work_its_detection_and_its_restart():
    """A checkpoint every 100 s of work waits 10 s and is safe 30 s later; an error strikes at 265 s."""
    campaign = section(detection={"error": "7 s"}, restart="50 s")
    asked = policy([component(1.0)], campaign, Saving(10, 30, 5), work_s=400.0)
    found = play_campaign(asked, 100.0, failures((265.0, 0)))
    # two checkpoints are behind it, at 110 and 220 s, and safe at 140 and 250: of 245 s of work 200 are kept
    assert found.of_part("replayed") == pytest.approx(45)
    assert found.of_part("detection") == pytest.approx(7)
    assert found.of_part("restarts") == pytest.approx(50 + 5)
    # two waits before it; then two more, and the last checkpoint's way to storage
    assert found.of_part("checkpoints") == pytest.approx(2 * 10 + 2 * 10 + 30)


def test_a_checkpoint_that_storage_has_not_yet_does_not_count():
    campaign = section(detection={"error": "0 s"}, restart="0 s")
    asked = policy([component(1.0)], campaign, Saving(10, 30, 0), work_s=400.0)
    early, late = (play_campaign(asked, 100.0, failures((time, 0))) for time in (139.0, 141.0))
    assert early.of_part("replayed") == pytest.approx(100 + 29)
    assert late.of_part("replayed") == pytest.approx(31)


def test_corruption_is_trained_on_until_it_is_found_and_costs_all_since():
    campaign = section(detection={"silent": "250 s"}, restart="50 s")
    asked = policy([component(1.0, "silent")], campaign, Saving(0, 0, 0), work_s=1000.0)
    found = play_campaign(asked, 100.0, failures((330.0, 0)))
    # found at 580 s; the last checkpoint before the corruption was at 300
    assert found.of_part("replayed") == pytest.approx(280)
    assert found.wall_s == pytest.approx(1000 + 280 + 50)


def test_a_failure_that_goes_back_before_a_corruption_removes_it():
    campaign = section(detection={"silent": "250 s", "error": "0 s"}, restart="50 s")
    asked = policy([component(1.0, "silent"), component(1.0)], campaign, Saving(0, 0, 0), work_s=1000.0)
    found = play_campaign(asked, 100.0, failures((330.0, 0), (370.0, 1)))
    assert found.of_part("replayed") == pytest.approx(70)


def test_without_spares_a_job_waits_for_the_repair():
    campaign = section(detection={"error": "0 s"}, restart="0 s", spares=1, repair="1 h")
    asked = policy([component(1.0, replaces=True)], campaign, Saving(0, 0, 0), work_s=10 * HOUR)
    found = play_campaign(asked, 100.0, failures((1000.0, 0), (2000.0, 0), (9000.0, 0)))
    # the first takes the spare; the second waits until the first host is back, at 1000 + 3600 s; then one is there
    assert found.of_part("waiting") == pytest.approx(4600 - 2000)


def test_a_failed_restart_begins_again():
    campaign = section(detection={"error": "10 s"}, restart="100 s")
    asked = policy([component(1.0)], campaign, Saving(0, 0, 0), work_s=1000.0)
    found = play_campaign(asked, 100.0, failures((500.0, 0), (550.0, 0)))
    assert found.of_part("detection") == pytest.approx(20)
    assert found.of_part("restarts") == pytest.approx(40 + 100)


def test_peers_that_fail_together_go_back_to_storage():
    campaign = section(detection={"error": "0 s"}, restart="0 s")
    asked = policy([component(1.0, replaces=True)], campaign, Saving(0, 50, 5, 60, 1000.0), work_s=2000.0, hosts=2)
    strikes = iter([Failure(1460.0, 0, 0.1, 1, 0, 0), Failure(1480.0, 0, 0.9, 1, 0, 0)])

    def both():
        yield from strikes
        yield from failures()

    found = play_campaign(asked, 100.0, both())
    # host 0 goes back to its peer's copy of 1,400; host 1 held it, so that only storage has anything: 1,000
    assert found.of_part("replayed") == pytest.approx(60 + 15 + 400)
    assert found.of_part("restarts") == pytest.approx(5 + 60)  # from the peer, then from storage


def test_corruption_outlives_what_a_peer_keeps():
    """A peer has the last checkpoint alone: the one before the corruption is storage's."""
    campaign = section(detection={"silent": "250 s"}, restart="0 s")
    saving = Saving(0, 0, 5, 60, 200.0)
    asked = policy([component(1.0, "silent")], campaign, saving, work_s=1000.0)
    found = play_campaign(asked, 100.0, failures((330.0, 0)))
    # found at 580 s; storage had 200 before 330
    assert found.of_part("replayed") == pytest.approx(380)
    assert found.of_part("restarts") == pytest.approx(60)


def test_what_is_assumed_is_told_key_by_key():
    given = {"days": 1, "runs": 1, "detection": {"hang": "5 min"}, "checkpoint": {"every": "1 h"}}
    assumed = study(spec(given)).assumed
    assert "checkpoint storage" in assumed
    assert "detection of errors" in assumed
    assert not any("hangs" in one for one in assumed)


def test_failures_are_a_poisson_process_of_their_rates():
    parts = (component(2e-5, name="a"), component(6e-5, name="b"))
    stream = iter(FailureStream(parts, 9, 0))
    drawn = [next(stream) for _ in range(20_000)]
    assert drawn[-1].time_s == pytest.approx(20_000 / 8e-5, rel=0.03)
    assert sum(one.component for one in drawn) / len(drawn) == pytest.approx(0.75, abs=0.01)
    times = [one.time_s for one in drawn]
    assert times == sorted(times)
    again = iter(FailureStream(parts, 9, 0))
    assert [next(again) for _ in range(300)] == drawn[:300]
    other = iter(FailureStream(parts, 9, 1))
    assert next(other) != drawn[0]


def test_a_spell_with_a_median_keeps_its_mean():
    spell = Spell.model_validate({"mean": "2334 s", "median": "222 s"})
    grid = [(i + 0.5) / 200_000 for i in range(200_000)]
    from statistics import NormalDist

    normal = NormalDist()
    assert drawn_s(spell, 0.0) == pytest.approx(222)
    mean = sum(drawn_s(spell, normal.inv_cdf(u)) for u in grid) / len(grid)
    assert mean == pytest.approx(2334, rel=0.02)


@pytest.mark.parametrize(
    ("text", "a_day"),
    [("148 / 884736 GPU-days", 148 / 884736), ("6.5 / 1,000 host-days", 0.0065), ("1 / cable-hours", 24.0)],
)
def test_rates_are_events_over_exposure(text, a_day):
    assert parse_failure_rate(text).a_day(1) == pytest.approx(a_day)


@pytest.mark.parametrize(
    "text", ["", "7", "1 / 0 GPU-days", "1 / 2 gpu-days", "1 / 2 GPU-weeks", "-1 / 2 GPU-days", "1" * 5000, None]
)
def test_other_texts_are_no_rates(text):
    with pytest.raises(ValueError, match="expected"):
        parse_failure_rate(text)


@given(st.text(max_size=40))
def test_no_text_makes_the_parsers_fail_otherwise(text):
    for parse in (parse_failure_rate, parse_tokens):
        with suppress(ValueError):
            parse(text)


def test_tokens_are_read_with_their_letter():
    assert parse_tokens("15.6T") == 15_600_000_000_000
    assert parse_tokens(1000) == 1000


def test_own_rates_lie_over_the_logs():
    asked = spec({"days": 1, "rates": {"gpu": "1 / 100 GPU-days", "fan": "2 / host-days"}, "scale": 2})
    campaign = asked.validate_section("campaign", Campaign)
    devices = {"GPU": 16.0, "host": 2.0, "adapter": 16.0, "cable": 20.0, "switch": 2.0, "job": 1.0}
    found = {one.name: one for one in components_of(asked, campaign, devices)}
    assert found["gpu"].per_s * 86400 == pytest.approx(2 * 16 / 100)
    assert found["gpu"].replaces
    assert found["fan"].per_s * 86400 == pytest.approx(2 * 2 * 2)
    assert found["hbm"].per_s * 86400 == pytest.approx(2 * 16 * 72 / 884736)


@pytest.mark.second
def test_the_study_says_the_same_again_and_its_parts_add_up():
    asked = spec({"tokens": "1G", "runs": 8, "scale": 500, "failures": "opt-175b"})
    found, again = study(asked), study(asked)
    assert [one.wall_s for one in found.ledgers] == [one.wall_s for one in again.ledgers]
    assert found.intervals == again.intervals
    shared = study(asked, workers=2)
    assert [one.spent for one in shared.ledgers] == [one.spent for one in found.ledgers]
    assert (shared.intervals, shared.turned) == (found.intervals, found.turned)
    assert found.tokens == pytest.approx(1e9, rel=0.01)
    assert max(found.intervals, key=lambda one: one.goodput).seconds == found.interval_s
    rates = next(one for one in found.turned if one.name == "failure rates")
    assert rates.half > found.mean_goodput > rates.twice


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({}, "expected how much is trained"),
        ({"tokens": "1T", "days": 3}, "expected one of tokens, steps and days"),
        ({"days": 1, "failures": "llama3"}, "did you mean 'llama3-405b'"),
        ({"steps": 9, "rates": {"x": "9999999 / GPU-hours"}}, "expected such that a run ends"),
        ({"days": 1, "rates": {"x": "1 / 3 rack-days"}}, "expected one of GPU, host"),
        ({"days": 1, "restart": {"mean": "1 min", "median": "2 min"}}, "median that is not below the mean"),
        ({"days": 1, "checkpoint": {"storage": {"write": "1 GB/s", "hosts": ["store-*"]}}}, "expected a host"),
        ({"days": 1, "checkpoint": {"storage": {"write": "1 GB/s", "hosts": ["host-0"]}}}, "which trains"),
    ],
)
def test_what_is_wrong_in_the_section_is_said(section, said):
    with pytest.raises(ConfigError, match=said):
        study(spec(section))


def test_the_command_prints_and_writes_a_page(tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(SMALL_JOB.format(more=""))
    asked = [str(path), "--days", "30", "--runs", "5", "--out", str(tmp_path / "p.html")]
    assert main(["campaign", *asked]) == 0
    printed = capsys.readouterr().out
    assert "goodput" in printed
    assert "what fails" in printed
    assert "USD" in printed
    assert "<svg" in (tmp_path / "p.html").read_text()
    assert main(["campaign", *asked, "--json", "--tokens", "1G"]) == 2
    capsys.readouterr()
    assert main(["campaign", str(path), "--days", "30", "--runs", "5", "--json", "--every", "10 min"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert sum(one["share"] for one in data["parts"]) == pytest.approx(1)
    assert data["checkpoint"]["interval_s"] == pytest.approx(600, rel=0.05)


def test_bytes_to_storage_hosts_go_over_the_fabric():
    """Two hosts train; the third takes all: what its adapters carry is the time, beside what the network adds."""
    storage = {"write": "100 TB/s", "hosts": ["host-3"]}
    section = {
        "checkpoint": {"kind": "blocking", "storage": storage, "bytes_per_parameter": 64},
        "days": 1,
        "runs": 1,
    }
    found = study(spec(section, placement={"hosts": ["host-0", "host-1"]}))
    assert found.times.network_s > found.times.storage_write_s
    assert found.policy.saving.stall_s == pytest.approx(found.times.copy_s + found.times.network_s)
    # 16 GPUs send to two processors behind eight adapters of 400 Gb/s
    assert found.times.network_s >= 16 * found.times.gpu_bytes * 8 / (8 * 400e9)
    assert found.times.drag_s == 0  # steps wait until it is over
    meanwhile = {**section, "checkpoint": {**section["checkpoint"], "kind": "asynchronous"}}
    slowed = study(spec(meanwhile, placement={"hosts": ["host-0", "host-1"]}))
    assert 0 < slowed.times.drag_s <= slowed.times.network_s  # no step waits longer than for all of that traffic
    assert slowed.policy.saving.stall_s == pytest.approx(slowed.times.copy_s + slowed.times.drag_s)
    peer = study(spec({"days": 1, "runs": 1, "checkpoint": {"kind": "peer"}}))
    assert peer.times.peer_s > 0
    assert peer.policy.saving.peer


def test_hosts_without_a_price_have_no_cost(capsys):
    import fabrictwin as ft

    found = ft.campaign(small(hosts=4, kind="grand-teton-hbm2e", sections={"campaign": {"days": 1, "runs": 2}}))
    assert found.gpu_hour is None
    assert "no cost" in str(found)
    assert found.parts["cost"] == [None] * len(found.parts)


def test_other_fabrics_have_other_steps():
    import fabrictwin as ft

    found = ft.campaign(spec({"days": 1, "runs": 2}), fabrics=["infiniband-ndr", "tcp-100g"])
    steps = found.fabrics["step_s"]
    assert steps[1] > steps[0] == pytest.approx(found.detail.step_s, rel=0.05)
    assert "on other fabrics" in str(found)
    with pytest.raises(ConfigError, match="did you mean 'roce-400g'"):
        ft.campaign(spec({"days": 1}), fabrics=["roce-400"])
