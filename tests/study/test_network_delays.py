"""Delays that a network makes by itself: samples beside another job, quantiles, what a step takes from them."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from support.specs import small_job as spec

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import silent
from fabrictwin.cli import main
from fabrictwin.study.jitter.network_delays import DOWN_PS, FLAP, PROBES, RING, Delay, data, measure, text


def test_quantiles_are_times_that_were_measured_and_factors_never_below_one():
    delay = Delay(np.arange(90, 190, dtype=np.int64), alone_ps=100)
    assert (delay.at(0.5), delay.at(0.99), delay.at(0.999), delay.at(0.0)) == (139, 188, 189, 90)
    assert delay.factors.min() == 1.0
    assert delay.factors.max() == 1.89


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    return spec(tmp_path_factory.mktemp("delays"))


@pytest.fixture(scope="module")
def found(there):
    return there, measure(there, ["infiniband-ndr", "roce-400g"], (1,), silent)


@pytest.mark.second
def test_every_probe_is_played_on_every_fabric(found):
    _, fabrics = found
    for one in fabrics:
        assert set(one.delays) == set(PROBES)
        assert one.seeds == (1,)
        for probe, delay in one.delays.items():
            assert 0 < len(delay.times_ps) <= PROBES[probe][1]
            assert delay.at(0.5) <= delay.at(0.99) <= delay.at(0.999) == delay.times_ps[-1]
            # bytes over the adapter's rate are a floor that no round beats
            floor = (PROBES[probe][0] // 2) * 8 / 400e9 * 1e12
            assert delay.times_ps[0] > floor
        flap, ring = one.delays[FLAP], one.delays[RING]
        assert (
            flap.times_ps[-1] > ring.times_ps[-1] + DOWN_PS // 2
        )  # the cable's return, or a time-out, is waited for
        assert flap.at(0.2) < DOWN_PS // 2  # and only by the round that it hits
        for steps in one.steps.values():
            assert steps.p99 >= steps.p50 >= one.clean_ps


@pytest.mark.second
def test_seeds_are_pooled_and_each_gives_the_same_delays_again(found):
    there, fabrics = found
    (both,) = measure(there, ["roce-400g"], (1, 2), silent)
    for probe, delay in both.delays.items():
        one, times = fabrics[1].delays[probe].times_ps.tolist(), delay.times_ps.tolist()
        assert len(times) > len(one)
        assert not Counter(one) - Counter(times)


@pytest.mark.second
def test_text_and_data_have_every_fabric_and_probe(found):
    _, fabrics = found
    shown, plain = text(fabrics), data(fabrics)
    for one in fabrics:
        assert shown.count(one.fabric) == len(PROBES) + len(one.steps)
    assert [one["fabric"] for one in plain["fabrics"]] == ["infiniband-ndr", "roce-400g"]
    json.dumps(plain, allow_nan=False)


def test_what_cannot_be_measured_is_refused(there, capsys):
    with pytest.raises(ConfigError, match="expected fabrics with RDMA"):
        measure(there, ["tcp-100g"], (1,), silent)
    with pytest.raises(ConfigError, match="got no fabric"):
        measure(there, [], (1,), silent)
    assert main(["jitter", "examples/laptop.yaml", "--seeds", "3"]) == 2
    assert "means nothing without --fabrics" in capsys.readouterr().err
