"""Counters that one driver alone has, each with what its source says it counts: EFA, ENA, bnxt, irdma, ice, ionic.

EFA's and ENA's from amzn-drivers (efa_verbs.c, ena_ethtool.c, ena_admin_defs.h) and the provider's pages on them;
a counter counts since the driver was loaded, so that few events of a long time are asked about, not told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fabrictwin.base.records import record
from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import reported
from fabrictwin.diagnosis.rules.counters import by_port, packets

AGAIN = "the same counters of both ends twice, a minute apart, while the job runs"
MANY, FEW = 1000, 10
PART = 1e-3  # of packets, from which a shaper is what a job runs at
_QUEUES = re.compile(r"queue_\d+_[rt]x_cnt$")


@record
class Meaning:
    """A cause, and the counters that tell of it from `least` on, where they are no less than `part` of packets."""

    cause: str
    names: tuple[str, ...]
    least: int
    sure: float
    severity: Severity | None = Severity.QUESTION
    expected: str = "0"
    part: float = 0.0


_BURSTS = "few: short bursts are shaped, too"
_ENDED = "0, or a few of jobs that ended"
_ALLOWED = ("bw_in_allowance_exceeded", "bw_out_allowance_exceeded", "pps_allowance_exceeded")
_MEANINGS = (
    # ENA: packets that the instance's allowances held back or dropped, by what was exceeded
    Meaning("instance-limits", ("conntrack_allowance_exceeded",), MANY, 0.75, Severity.WARNING),
    Meaning("instance-limits", _ALLOWED, MANY, 0.75, Severity.WARNING, _BURSTS, PART),
    Meaning("instance-limits", (*_ALLOWED, "linklocal_allowance_exceeded"), MANY, 0.5, expected=_BURSTS),
    # ENA's and EFA's device: what it did not answer
    Meaning("adapter-error", ("reset_fail", "wd_expired", "admin_to", "no_completion_cmds"), 1, 0.5),
    # EFA: connections whose rate it limits, paths that it left after a time-out, peers that did not answer
    Meaning("efa-loss", ("impaired_remote_conn_events",), FEW, 0.65, Severity.WARNING),
    Meaning("efa-loss", ("retrans_timeout_events",), MANY, 0.5, part=1e-6),
    Meaning("efa-unreachable", ("unresponsive_remote_events",), FEW, 0.45, expected=_ENDED),
    Meaning("remote-access", ("rdma_read_wr_err", "rdma_write_wr_err"), FEW, 0.35, expected=_ENDED),
    # iWARP's retransmissions are TCP's
    Meaning("roce-loss", ("tcpRetransSegs",), MANY, 0.5, part=1e-4),
    Meaning("discards", ("rx_roce_discards", "ip4InDiscards", "ip6InDiscards"), MANY, 0.5, part=1e-7),
    Meaning("pci-errors", ("res_tx_pci_err", "res_rx_pci_err"), 1, 0.7, Severity.WARNING),
    Meaning("adapter-limits", ("res_irrq_oflow", "resp_rx_outof_atomic"), FEW, 0.4),
    Meaning(
        "pause-storm", ("continuous_roce_pause_events", "continuous_pause_events"), FEW, 0.6, Severity.WARNING
    ),
    Meaning(
        "link-flapping",
        ("mac_local_faults.nic", "mac_remote_faults.nic"),
        100,
        0.45,
        expected="a few of each time that the link came up",
    ),
    Meaning(
        "remote-access",
        ("req_remote_access_errors", "resp_remote_access_errors", "req_remote_invalid_request"),
        MANY,
        0.35,
        expected=_ENDED,
    ),
)


def driver_counters(case: Case) -> Iterator[Finding]:
    """Counters of single drivers that tell of loss, limits or errors."""
    told: set[str] = set()
    ports = by_port(case)
    for one in _MEANINGS:
        facts = [row[name] for row in ports.values() for name in one.names if _counts(row, name, one)]
        if facts and one.cause not in told:
            told.add(one.cause)
            worst = max(facts, key=_count)
            asks = one.severity is Severity.QUESTION
            yield from reported(
                one.cause,
                [worst, *facts],
                "{0} {1}",
                one.expected,
                one.sure,
                severity=one.severity,
                collect=AGAIN if asks else "",
            )


def _counts(row: dict[str, Fact], name: str, meaning: Meaning) -> bool:
    if name not in row or _count(row[name]) < meaning.least:
        return False
    moved = packets(row) or sum(_count(fact) for key, fact in row.items() if _QUEUES.match(key))
    # without a count of packets nothing says that it is a part of them
    return _count(row[name]) >= meaning.part * moved if moved else not meaning.part or meaning.sure <= 0.5


def _count(fact: Fact) -> int:
    return int(fact.parts[1] or 0)


RULES: tuple[Rule, ...] = (driver_counters,)
