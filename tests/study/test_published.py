"""Published spreads and stragglers: tables read, noise as logs show it, causes that cost what they must."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import silent
from fabrictwin.study.jitter import stragglers
from fabrictwin.study.jitter.distributions import Amount
from fabrictwin.study.jitter.published_jitter import read_published
from fabrictwin.validation.published_data import find_data
from fabrictwin.workload.step.disturbed_program import uniform


def test_every_published_row_is_read_and_its_spread_lies_among_its_runs():
    rows = read_published(find_data(None))
    assert len(rows) == 14
    for row in rows:
        assert row.p50_s <= row.p95_s <= row.p99_s
        assert 0.99 * min(row.runs) < row.p95_s / row.p50_s < 1.01 * max(row.runs)


def test_the_slowest_of_many_exponential_delays_spreads_as_much_on_few_gpus_as_on_many():
    """The logs show Gumbel's distribution beside the drift: its width is its scale's alone."""
    width = []
    for gpus in (512, 8192):
        drawn = Amount("exponential", 1.0).greatest(uniform(3, np.arange(40_000)), gpus)
        p50, p95 = np.percentile(drawn, [50, 95])
        width.append(p95 - p50)
    gumbel = -np.log(-np.log(0.95)) + np.log(-np.log(0.5))
    assert width == pytest.approx([gumbel, gumbel], rel=0.02)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("key,value,unit,what\na,x,share,y\n", "expected a number"),
        ("key,value,unit,what\na,1,percent,y\n", "expected a share or times"),
    ],
)
def test_a_statistic_that_is_none_is_one_clear_line(tmp_path, text, said):
    (tmp_path / stragglers.TABLE).write_text(text)
    with pytest.raises(ConfigError, match=said):
        stragglers.read_statistics(tmp_path)


def test_documents_fill_their_micro_batch():
    shares = stragglers.documents(50, 1)
    assert ((shares > 0) & (shares <= 1)).all()
    assert (shares == stragglers.documents(50, 1)).all()


@pytest.mark.second
def test_causes_cost_what_they_must():
    statistics = stragglers.read_statistics(find_data(None))
    found = {cause.what: cause for cause in stragglers.causes(statistics, silent)}
    assert all(cause.slowdown >= 1.0 for cause in found.values())
    beside = {key: value for cause in found.values() for key, value in cause.beside}
    # the projection to 128,256 words beside eight layers: in parameters, which products follow
    layer = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    extra = 128256 * 4096 / layer
    assert beside["last_stage_forward"] == pytest.approx((8 + extra) / (8 + extra / 4), rel=0.05)
    assert 1 < beside["slowdown_single_worker"] < 3.04  # bubbles hide a part
