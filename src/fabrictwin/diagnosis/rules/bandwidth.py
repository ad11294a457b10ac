"""Measured bandwidths against the twin's, by size; jobs that failed; health checks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.causes import cause
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.expectation.hardware import PART
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found, reported
from fabrictwin.diagnosis.mechanisms.table import mechanism_of

LOW, VERY_LOW = 0.8, 0.6  # of what the twin predicts; below, a note and a finding
LARGE = 64 << 20  # sizes below are ruled by latencies, which differ by host
SEEN = 0.6  # sure of the hardware where files show its fabric
ANY_FABRIC = 0.1  # of the catalog's: none that such hosts are sold with is as slow, but for sockets
COLLAPSE = 0.5
FALLEN = 0.6  # of the best, at two large sizes one after the other: no choice of an algorithm costs as much
_OF_A_CHECK = re.compile(r"\b(?:[Cc]heck(?:er|s)?|\w+ [Tt]est) (?:crashed|[Ff]ailed)|[Rr]equired dependencies")
NEAR_RATE = 0.9


def measured(case: Case) -> Iterator[Finding]:
    """Rows of nccl-tests: too slow for the hardware, or falling as sizes grow."""
    for rows in _runs(case.of("bench.row")):
        test = str(rows[0].parts[0])
        yield from _collapse(rows)
        expected = case.expected
        if expected is None or not test:
            continue
        large = [fact for fact in rows if int(fact.parts[2] or 0) >= LARGE]
        if not large:
            continue
        worst = min(large, key=lambda fact: _share(case, test, fact))
        share = _share(case, test, large[-1])
        if share >= LOW:
            continue
        at = int(large[-1].parts[2] or 0)
        wanted = expected.busbw(test, at)
        yield found(
            "bandwidth-low",
            [large[-1], worst],
            f"{test} busbw {float(large[-1].parts[5] or 0):.4g} GB/s at {at} bytes",
            f"{wanted:.4g} GB/s (tolerance 20%)",
            min(0.9, expected.confidence) if share < VERY_LOW else 0.5 * expected.confidence,
            # a table without a log tells neither the fabric nor the adapters
            severity=Severity.WARNING if _is_far(share, expected.confidence) else Severity.QUESTION,
            expected_from=expected.source,
            gain=f"{1 / max(share, 0.01):.3g} times the bandwidth",
            collect="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,TUNING of the run; lspci -vvv; topo -m",
        )


def _is_far(share: float, confidence: float) -> bool:
    """Return true where a run is too slow for the hardware, as sure as files show it."""
    return share < VERY_LOW and (confidence >= SEEN or (share < ANY_FABRIC and confidence > PART))


def _runs(facts: list[Fact]) -> list[list[Fact]]:
    """Rows of each run: of one test, number of ranks and file, with sizes that grow."""
    latest: dict[tuple[str, int, str], list[Fact]] = {}
    runs: list[list[Fact]] = []
    for fact in facts:
        key = str(fact.parts[0]), int(fact.parts[1] or 0), fact.place.file
        rows = latest.get(key)
        if rows is None or int(rows[-1].parts[2] or 0) >= int(fact.parts[2] or 0):
            rows = latest[key] = []
            runs.append(rows)
        rows.append(fact)
    return runs


def _share(case: Case, test: str, fact: Fact) -> float:
    assert case.expected is not None
    wanted = case.expected.busbw(test, int(fact.parts[2] or 0))
    return float(fact.parts[5] or 0) / wanted if wanted else 1.0


def _collapse(rows: list[Fact]) -> Iterator[Finding]:
    rates = [float(fact.parts[5] or 0) for fact in rows]
    sizes = [int(fact.parts[2] or 0) for fact in rows]
    best = max(rates[:-1], default=0.0)
    collapsed = sizes[-1] >= LARGE // 64 and rates[-1] < COLLAPSE * best
    fallen = len(rows) > 2 and sizes[-2] >= LARGE and max(rates[-2:]) < FALLEN * max(rates[:-2])
    if best > 1.0 and (collapsed or fallen):
        yield found(
            "bandwidth-collapse",
            rows[-1:],
            f"busbw {rates[-1]:.4g} GB/s at {sizes[-1]} bytes, {best:.4g} at smaller ones",
            "bandwidth that grows with size",
            0.75,
        )
    dips = [
        now
        for before, now, after in zip(rows, rows[1:], rows[2:], strict=False)
        if int(now.parts[2] or 0) >= LARGE // 64
        and float(now.parts[5] or 0) < COLLAPSE * min(float(before.parts[5] or 0), float(after.parts[5] or 0))
    ]
    if dips:
        yield found(
            "bandwidth-collapse",
            dips,
            f"busbw {float(dips[0].parts[5] or 0):.4g} GB/s at {dips[0].parts[2]} bytes, twice that around it",
            "bandwidth that grows with size",
            0.5,
            severity=Severity.QUESTION,
            collect="the same run again, alone: a dip that stays is a threshold, one that moves is other traffic",
        )


def perftest(case: Case) -> Iterator[Finding]:
    """Rates of perftest against the port's, where a file names it, and against those of its own other rows."""
    ports = {fact.subject.device: fact.number for fact in case.of("hca.rate-gbps") if fact.number}
    rows: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    for fact in case.of("perftest.rate"):
        rows[fact.subject.device, str(fact.parts[0])].append(fact)
    yield from _beside_peers(case.of("perftest.run"))
    yield from _later_than_peers(case.of("perftest.typical"))
    yield from _fallen_away(case.of("perftest.ran-on"))
    for (device, test), facts in rows.items():
        largest = max(facts, key=lambda fact: int(fact.parts[1] or 0))
        best = max(float(fact.parts[2] or 0) for fact in facts)
        at = float(largest.parts[2] or 0)
        if int(largest.parts[1] or 0) >= 1 << 16 and at < COLLAPSE * best:
            yield found(
                "bandwidth-collapse",
                [largest],
                f"{test} {at:.4g} Gb/s at {largest.parts[1]} bytes, {best:.4g} at best",
                "bandwidth that grows with size",
                0.7,
            )
        ways = int(largest.parts[3] or 1)
        rate = ports.get(device, 0.0) * ways
        if rate and int(largest.parts[1] or 0) >= 1 << 16 and best < 0.75 * rate:
            yield found(
                "bandwidth-low",
                [largest],
                f"{test} {best:.4g} Gb/s",
                f"{NEAR_RATE * rate:.4g} Gb/s",
                0.7,
                expected_from=f"the port's {rate / ways:g} Gb/s less headers"
                + (f", {ways} directions or ports summed" if ways > 1 else ""),
            )


def _fallen_away(runs: list[Fact]) -> Iterator[Finding]:
    """Tests that ran on at one size, and whose bandwidth was far below their own usual one at times."""
    for fact in runs:
        test, size, least, usual, samples = fact.parts
        if float(least or 0) < COLLAPSE * float(usual or 0):
            yield found(
                "bandwidth-collapse",
                [fact],
                f"{test} {float(least or 0):.4g} Gb/s at times, {float(usual or 0):.4g} mostly, of {samples}",
                "the same bandwidth throughout",
                0.6,
                expected_from=f"its own other samples at {size} bytes",
                collect="dmesg and ethtool -S of both hosts at that time, the switch's counters; what else ran",
            )


FEWEST_RUNS = 4  # that a median means something of
LATE = 2.0  # times the latency of the others: a processor's other socket, or more switches, cost less


def _beside_peers(runs: list[Fact]) -> Iterator[Finding]:
    """Runs of one test at one size whose adapter, alone or with few others, is far below what the others reach."""
    groups: dict[tuple[str, int, str], list[Fact]] = defaultdict(list)
    for fact in runs:
        groups[str(fact.parts[0]), int(fact.parts[1] or 0), str(fact.parts[3])].append(fact)
    for (test, size, _), facts in groups.items():
        usual = median(float(fact.parts[2] or 0) for fact in facts)
        slow = [fact for fact in facts if float(fact.parts[2] or 0) < LOW * usual]
        if len(facts) >= FEWEST_RUNS and size >= 1 << 15 and 0 < len(slow) <= len(facts) // 4:
            worst = min(slow, key=lambda fact: float(fact.parts[2] or 0))
            yield found(
                "bandwidth-low",
                [worst, *slow],
                f"{test} {float(worst.parts[2] or 0):.4g} Gb/s at {size} bytes",
                f"{usual:.4g} Gb/s, as the other adapters",
                0.75,
                severity=Severity.WARNING,
                expected_from="the median of the runs",
                collect="ibstat and lspci -vvv of that adapter, at both ends",
            )


def _later_than_peers(runs: list[Fact]) -> Iterator[Finding]:
    """Runs of one test at one size whose latency, alone or with few others, is far above what the others see."""
    groups: dict[tuple[str, int, str], list[Fact]] = defaultdict(list)
    for fact in runs:
        groups[str(fact.parts[0]), int(fact.parts[1] or 0), str(fact.parts[3])].append(fact)
    for (test, size, _), facts in groups.items():
        usual = median(float(fact.parts[2] or 0) for fact in facts)
        slow = [fact for fact in facts if float(fact.parts[2] or 0) > LATE * usual]
        if len(facts) >= FEWEST_RUNS and 0 < len(slow) <= len(facts) // 4:
            worst = max(slow, key=lambda fact: float(fact.parts[2] or 0))
            yield found(
                "slow-node",
                [worst, *slow],
                f"{test} {float(worst.parts[2] or 0):.4g} us at {size} bytes",
                f"{usual:.4g} us, as the other runs",
                0.5,
                severity=Severity.QUESTION,
                expected_from="the median of the runs",
                collect="lspci -vvv and numactl --hardware of that host; its governor; the same run alone",
            )


def outcome(case: Case) -> Iterator[Finding]:
    """Wrong data, failed jobs, health checks that could not run."""
    wrong = [fact for fact in case.of("bench.wrong") if fact.number > 0]
    yield from reported("data-wrong", wrong, "#wrong {text}", "0", 0.95)
    modules = case.of("check.no-module")
    in_check = case.of("check.ran", "check.failed", "check.average") or any(
        _OF_A_CHECK.search(fact.place.text) for fact in modules
    )
    if modules and in_check:
        about = cause("check-dependency")
        yield found(
            replace(about, fix=about.fix.replace("<module>", modules[0].text)),
            modules,
            f"No module named '{modules[0].text}'",
            "the check's modules installed",
            0.95,
        )
    firsts = case.of("bench.alone")
    if firsts:
        yield found("no-mpi", firsts, f"{firsts[0].count + 1} processes are each rank 0", "one rank 0", 0.9)
    elif single := case.of("bench.single"):
        yield found(
            "no-mpi",
            single,
            "one rank alone: nothing was sent",
            "the ranks that were started",
            0.45,
            severity=Severity.QUESTION,
            collect="the command that started the test; more than one GPU (-g) or process",
        )
    until = {fact.place.file: int(fact.number) for fact in case.of("job.worked")}
    for kind, name, confidence in (
        ("job.rendezvous", "rendezvous", 0.7),
        ("job.mismatch", "collective-mismatch", 0.9),
        ("job.nvlink", "nvlink-error", 0.9),
        ("job.ecc", "gpu-memory", 0.9),
        ("job.files", "open-files", 0.9),
        ("job.not-initialized", "cuda-not-initialized", 0.9),
        ("job.memory", "out-of-memory", 0.9),
        ("job.failed", "job-failed", 0.4),
        ("job.bus-error", "shared-memory", 0.7),
        ("job.killed", "rank-died", 0.6),
        ("job.custom-allreduce", "custom-allreduce-off", 0.5),
        ("check.failed", "bandwidth-low", 0.5),
    ):
        # what a job worked after did not end it
        facts = [fact for fact in case.of(kind) if fact.place.line >= until.get(fact.place.file, 0)]
        if kind == "check.failed":  # what the check itself says of its matter tells more
            facts = [fact for fact in facts if mechanism_of(fact.place.text) is None]
        if facts:
            ask = "the output with NCCL_DEBUG=INFO of all ranks" if kind == "job.failed" else ""
            yield found(
                name,
                facts,
                facts[0].text[:200],
                "none",
                confidence,
                severity=Severity.QUESTION if kind == "job.failed" else None,
                collect=ask,
            )


RULES: tuple[Rule, ...] = (measured, perftest, outcome)
