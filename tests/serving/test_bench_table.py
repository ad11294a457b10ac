"""Latencies and tables against a computation request by request, as `vllm bench serve` does it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.serving.arrivals.demand import Demand, Unshared
from fabrictwin.serving.engine.bench import Served
from fabrictwin.serving.report.bench import BenchSettings, requests_csv, result, table

S = 10**12


def served(sent: list[int], tokens: list[list[tuple[int, int]]]) -> Served:
    """Deliveries of each request as (time, tokens)."""
    count = len(sent)
    flat = sorted((when, who, gained) for who, one in enumerate(tokens) for when, gained in one)
    outputs = np.array([sum(gained for _, gained in one) for one in tokens], np.int64)
    demand = Demand(np.array(sent, np.int64), np.full(count, 10, np.int64), outputs, Unshared())
    zeros = np.zeros(count, np.int64)
    when, who, gained = (np.array(column, np.int64) for column in zip(*flat, strict=True))
    return Served(demand, np.array(sent, np.int64), zeros, zeros, zeros, who, when, gained)


@st.composite
def runs(draw: st.DrawFn) -> Served:
    count = draw(st.integers(1, 6))
    sent = sorted(draw(st.lists(st.integers(0, 5 * S), min_size=count, max_size=count)))
    tokens = []
    for start in sent:
        gaps = draw(st.lists(st.tuples(st.integers(1, 2 * S), st.integers(1, 3)), min_size=1, max_size=6))
        times, now = [], start
        for gap, gained in gaps:
            now += gap
            times.append((now, gained))
        tokens.append(times)
    return served(sent, tokens)


@given(run=runs())
def test_fields_are_those_of_a_computation_by_request(run: Served) -> None:
    settings = BenchSettings(
        "m",
        float("inf"),
        percentile_metrics=("ttft", "tpot", "itl", "e2el"),
        goodput=(("ttft", 900.0), ("tpot", 400.0)),
    )
    fields = result(run, settings)
    ttfts, tpots, itls, e2els, good = [], [], [], [], 0
    for number in range(len(run.demand)):
        times = [when / S for who, when in zip(run.request, run.delivered_ps, strict=True) if who == number]
        output = int(run.demand.output[number])
        sent = run.sent_ps[number] / S
        ttfts.append(times[0] - sent)
        e2els.append(times[-1] - sent)
        itls += [later - earlier for earlier, later in pairwise(times)]
        tpot = (times[-1] - times[0]) / (output - 1) if output > 1 else 0.0
        tpots += [tpot] if output > 1 else []
        good += ttfts[-1] <= 0.9 and tpot <= 0.4
    for name, values in (("ttft", ttfts), ("tpot", tpots), ("itl", itls), ("e2el", e2els)):
        values = values or [0.0]
        assert fields[f"mean_{name}_ms"] == pytest.approx(np.mean(values) * 1000, abs=1e-6)
        assert fields[f"median_{name}_ms"] == pytest.approx(np.median(values) * 1000, abs=1e-6)
        assert fields[f"p99_{name}_ms"] == pytest.approx(np.percentile(values, 99) * 1000, abs=1e-6)
        assert fields[f"std_{name}_ms"] == pytest.approx(np.std(values) * 1000, abs=1e-6)
    assert fields["request_goodput"] == pytest.approx(good / fields["duration"])
    assert [len(one) for one in fields["itls"]] == [
        int((run.request == number).sum()) - 1 for number in range(len(run.demand))
    ]
    assert fields["output_throughput"] * fields["duration"] == pytest.approx(run.tokens.sum())


def test_the_table_has_vllms_lines_and_widths() -> None:
    run = served([0, S // 2], [[(S, 1), (2 * S, 1)], [(S, 1)]])
    settings = BenchSettings("m", 2.0, max_concurrency=4, percentiles=(50.0, 99.9))
    lines = table(result(run, settings), settings).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[1] == "Successful requests:                     2         "
    assert "Request rate configured (RPS):           2.00      " in lines
    assert "---------------Time to First Token----------------" in lines
    assert "Mean TTFT (ms):                          750.00    " in lines
    assert "P99.9 TTFT (ms):                         999.50    " in lines
    assert "Peak concurrent requests:                2.00      " in lines
    assert lines[-1] == "=" * 50


def test_one_line_a_request() -> None:
    lines = requests_csv(served([0, S // 2], [[(S, 1), (2 * S, 1)], [(S, 1)]])).splitlines()
    assert lines[1] == "0,0,0.000000000,10,2,0,0,1.000000000,1.000000000,2.000000000"
    assert len(lines) == 3
