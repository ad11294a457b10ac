"""Slow hosts and slow paths, out of runs on many pairs of hosts."""

from __future__ import annotations

from itertools import combinations

import pytest

from fabrictwin.diagnosis.diagnose import judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text

HOSTS = ("n0", "n1", "n2", "n3", "n4")


def run(hosts: tuple[str, ...], busbw: float) -> str:
    """Output of nccl-tests on hosts of one GPU each."""
    ranks = "".join(
        f"#  Rank  {r} Group  0 Pid    {100 + r} on {host:>10} device  0 [0000:1b:00] NVIDIA H100 80GB HBM3\n"
        for r, host in enumerate(hosts)
    )
    return (
        "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 1 minBytes 1073741824\n# Using devices\n"
        + ranks
        + "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        + f"  1073741824     268435456     float     sum      -1    90000   {busbw:.2f}   {busbw:.2f}      0\n"
    )


def verdict(rates: dict[tuple[str, ...], float]) -> list[tuple[str, str]]:
    text = "".join(run(hosts, rate) for hosts, rate in rates.items())
    found = judged(read_text(text), twin=False)
    return [(one.id, one.object) for one in found.findings if one.severity >= Severity.WARNING]


PAIRS = list(combinations(HOSTS, 2))


@pytest.mark.parametrize("slow", HOSTS)
def test_a_host_whose_pairs_are_all_slow_is_slow(slow):
    assert verdict({pair: 20.0 if slow in pair else 45.0 for pair in PAIRS}) == [("slow-node", slow)]


@pytest.mark.parametrize("slow", PAIRS)
def test_two_hosts_that_are_slow_with_each_other_alone_have_a_slow_path(slow):
    assert verdict({pair: 20.0 if pair == slow else 45.0 for pair in PAIRS}) == [("path-slow", " - ".join(slow))]


def test_hosts_that_are_slow_alone_are_named_among_their_peers():
    assert verdict({(host,): 300.0 if host == "n2" else 460.0 for host in HOSTS}) == [("slow-node", "n2")]


def test_a_slow_pair_that_ran_with_nobody_else_is_a_question():
    rates = {("n0", "n1"): 45.0, ("n2", "n3"): 20.0, ("n4", "n5"): 45.0, ("n6", "n7"): 45.0}
    assert verdict(rates) == []
    text = "".join(run(hosts, rate) for hosts, rate in rates.items())
    found = judged(read_text(text), twin=False)
    assert [one.severity for one in found.findings] == [Severity.QUESTION]
    assert "n2" in found.to_collect[0]


def test_equal_pairs_raise_nothing():
    assert verdict({pair: 45.0 - i * 0.5 for i, pair in enumerate(PAIRS)}) == []


def test_many_slow_paths_are_told_at_once():
    slow = PAIRS[1:9:2]
    found = verdict({pair: 20.0 if pair in slow else 45.0 for pair in PAIRS})
    assert [name for name, _ in found] == ["path-slow"]
    assert found[0][1].endswith("and more")


def test_runs_with_other_numbers_of_ranks_are_other_runs():
    few = "".join(run(pair, 14.0) for pair in PAIRS)
    more = "".join(run((*pair, pair[0]), 45.0) for pair in PAIRS)
    found = judged(read_text(few + more), twin=False)
    assert [one.id for one in found.findings if one.severity >= Severity.WARNING] == []


def test_where_half_of_many_pairs_are_slow_the_others_are_what_pairs_reach():
    hosts = tuple(f"m{n}" for n in range(8))
    pairs = list(combinations(hosts, 2))
    # behind one switch all is well, across switches it is not
    found = verdict({(a, b): 45.0 if (int(a[1]) < 4) == (int(b[1]) < 4) else 12.0 for a, b in pairs})
    assert [name for name, _ in found] == ["path-slow"]
