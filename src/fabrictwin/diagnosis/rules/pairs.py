"""The same test on many hosts or pairs of hosts: which host, or which path between two good ones, is slow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found

SLOW = 0.8  # of the median of all pairs
FEWEST = 3  # runs that a median means something of
MANY = 16  # runs of which a quarter means something
MOST_PATHS = 3  # that are told one by one


def compared(case: Case) -> Iterator[Finding]:
    """Runs of one test at one size, each on one host or on two: those well below the others."""
    runs: dict[tuple[str, int, int, int], list[Fact]] = defaultdict(list)
    for fact in case.of("bench.run"):
        hosts = _hosts(fact)
        runs[str(fact.parts[1]), int(fact.parts[2] or 0), int(fact.parts[4] or 0), len(hosts)].append(fact)
    for (test, _, _, width), facts in runs.items():
        if len({_hosts(fact) for fact in facts}) < FEWEST or width > 2 or not test:
            continue
        usual = _usual([_rate(fact) for fact in facts])
        slow = [fact for fact in facts if _rate(fact) < SLOW * usual]
        if slow and len(slow) <= len(facts) * 2 / 3:
            yield from _alone(slow, usual) if width == 1 else _pairs(facts, slow, usual)


def _hosts(fact: Fact) -> tuple[str, ...]:
    return tuple(str(host) for host in fact.parts[5:])


def _usual(rates: list[float]) -> float:
    """Return what runs reach: their median, or the upper quartile where half of many are far below it."""
    if len(rates) < MANY:
        return median(rates)
    upper = sorted(rates)[len(rates) * 3 // 4]
    return upper if median(rates) < SLOW * upper else median(rates)


def _rate(fact: Fact) -> float:
    return float(fact.parts[3] or 0)


def _alone(slow: list[Fact], usual: float) -> Iterator[Finding]:
    worst = min(slow, key=_rate)
    yield found(
        "slow-node",
        slow,
        f"{worst.parts[1]} busbw {_rate(worst):.4g} GB/s",
        f"{usual:.4g} GB/s, as other hosts alone",
        0.85,
        object=", ".join(sorted({_hosts(fact)[0] for fact in slow})),
        expected_from="the median of the hosts",
    )


def _pairs(facts: list[Fact], slow: list[Fact], usual: float) -> Iterator[Finding]:
    """Sort slow pairs: all of a host's pairs are slow, or one path between two hosts that are good with others."""
    of_host: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        for host in _hosts(fact):
            of_host[host].append(fact)
    good = {host for host, mine in of_host.items() if any(fact not in slow for fact in mine)}
    # a host is to blame where the other end of each of its pairs is good elsewhere
    blamed = {
        host
        for host, mine in of_host.items()
        if host not in good and all(_other(fact, host) in good for fact in mine)
    }
    for host in sorted(blamed):
        mine = of_host[host]
        yield found(
            "slow-node",
            mine,
            f"{len(mine)} of its {len(mine)} pairs are slow: {min(map(_rate, mine)):.4g} GB/s",
            f"{usual:.4g} GB/s, as other pairs",
            0.9 if len(mine) > 1 else 0.6,
            object=host,
            expected_from="the median of the pairs",
        )
    paths = [fact for fact in slow if blamed.isdisjoint(_hosts(fact))]
    clear = [fact for fact in paths if good.issuperset(_hosts(fact))]
    if len(clear) > MOST_PATHS:
        worst = sorted(clear, key=_rate)
        yield found(
            "path-slow",
            worst,
            f"{len(clear)} of {len(facts)} pairs: {_rate(worst[0]):.4g} to {_rate(worst[-1]):.4g} GB/s; "
            "their hosts are good with others",
            f"{usual:.4g} GB/s, as other pairs",
            0.8,
            object=", ".join(" - ".join(_hosts(fact)) for fact in worst[:MOST_PATHS]) + " and more",
            expected_from="the median of the pairs",
        )
        paths = [fact for fact in paths if fact not in clear]
    for fact in paths:
        a, b = _hosts(fact)
        is_clear = fact in clear
        yield found(
            "path-slow" if is_clear else "slow-node",
            [fact],
            f"{_rate(fact):.4g} GB/s"
            + (", and both are good with others" if is_clear else ", and neither ran with another host"),
            f"{usual:.4g} GB/s, as other pairs",
            0.8 if is_clear else 0.4,
            object=f"{a} - {b}",
            severity=None if is_clear else Severity.QUESTION,
            expected_from="the median of the pairs",
            collect="" if is_clear else f"the same test of {a} and of {b} with a host that is good",
        )


def _other(fact: Fact, host: str) -> str:
    return next(one for one in _hosts(fact) if one != host)


RULES: tuple[Rule, ...] = (compared,)
