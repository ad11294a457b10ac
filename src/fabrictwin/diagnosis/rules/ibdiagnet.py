"""What ibdiagnet found: rows of its error tables by their events, stages of its log that counted errors.

Events are those of ibutils2 (ibdiag_fabric_errs.h): a row of db_csv names one, and says more in its summary.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import reported
from fabrictwin.diagnosis.mechanisms.table import HARMLESS, mechanism_of
from fabrictwin.diagnosis.readers.fabric.counters import column_counter
from fabrictwin.diagnosis.rules.counters import BIT_ERRORS

# by words of an event's or a table's name; the first that is found holds
_EVENTS = (
    ("NOT_SUPPORT", ""),
    ("NO_THRESHOLD", ""),
    ("LESS_WARNING", ""),
    ("BER_NO_RCV_DATA", ""),
    ("BER_VALUE_ZERO", ""),
    ("SM_NOT_FOUND", "no-subnet-manager"),
    ("LOGICAL_STATE", "no-subnet-manager"),
    ("DIFFERENT_WIDTH", "link-narrow"),
    ("UNEXPECTED_WIDTH", "link-narrow"),
    ("SPEED", "link-slow"),
    ("AUTONEG", "link-slow"),
    ("BER_", "link-errors"),
    ("BAD_LINK", "link-errors"),
    ("PKEY", "partition-key"),
    ("TRANSCEIVER_FW", "firmware-old"),
    ("CABLE_FW", "firmware-old"),
    ("WRONG_FW", "firmware-old"),
    ("FW_VER", "firmware-old"),
    ("CABLE", "module-fault"),
    ("TRANSCEIVER", "module-fault"),
    ("PRTL", "module-fault"),
    ("TEMPERATURE", "switch-part"),
    ("POWER_SUPPL", "switch-part"),
    ("SHARP", "sharp-failed"),
    ("AM_", "sharp-failed"),
    ("TREE_", "sharp-failed"),
    ("QPN", "sharp-failed"),
    ("SM_", "subnet-manager-error"),
    ("LID", "subnet-manager-error"),
    ("GUID", "subnet-manager-error"),
    ("ROUTING", "subnet-manager-error"),
    ("DEAD_END", "subnet-manager-error"),
    ("SCOPE_BUILDER", "subnet-manager-error"),
    ("CREDIT", "subnet-manager-error"),
    ("NO_RESPONSE", "port-down"),
    ("PORT_INFO_FAILED", "port-down"),
)
# of counters that a row of PM_COUNTER_* names
_COUNTERS = {
    "LinkDowned": "link-flapping",
    "PortRcvErrors": "receive-errors",
    "PortXmitDiscards": "discards",
    "PortXmitWait": "",
    "VL15Dropped": "",
    "PortRcvSwitchRelayErrors": "",
    "PortRcvRemotePhysicalErrors": "",
} | dict.fromkeys(BIT_ERRORS, "link-errors")


def tables(case: Case) -> Iterator[Finding]:
    """Rows of ERRORS_ tables, a finding for each cause that their events name."""
    by_cause: dict[str, list[Fact]] = defaultdict(list)
    for fact in case.of("ibdiagnet.error"):
        cause = _cause(*(str(part) for part in fact.parts))
        if cause:
            by_cause[cause].append(fact)
    for cause, facts in by_cause.items():
        sure = 0.6 if cause == "ibdiagnet-error" else 0.85
        yield from reported(cause, facts, "{1}: {2}", "none", sure)


def _cause(table: str, event: str, summary: str) -> str:
    """Return the cause that a row names; empty where its event is no fault."""
    counter = next((known for word in summary.replace('"', " ").split() if (known := column_counter(word))), None)
    if counter in _COUNTERS and "COUNTER" in event.upper() + table:
        return _COUNTERS[counter]
    for name in (event.upper(), table):
        for word, cause in _EVENTS:
            if word in name:
                return cause
    told = mechanism_of(f"-E- {summary}")
    return "ibdiagnet-error" if told is None else "" if told.cause == HARMLESS else told.cause


# of lines of its log that name no counter; the first that is found holds
_SAID = (
    ("no-subnet-manager", re.compile(r"\bin INIT\b|\bstate is INIT\b|INIT state")),
    (
        "subnet-manager-error",
        re.compile(r"GUID .{0,60}duplicated|more than one port|(?i:\bzero lid\b)|lid=0x0000\b"),
    ),
    ("port-down", re.compile(r"(?i)no response\b")),
    ("switch-part", re.compile(r"(?i)temperature\b.{0,40}\b(?:above|exceed|high)")),
)


def lines(case: Case) -> Iterator[Finding]:
    """Lines of ibdiagnet's log that no mechanism knows: by the counter that they name, or by their words."""
    by_cause: dict[str, list[Fact]] = defaultdict(list)
    heard = {(fact.place.file, fact.place.line) for fact in case.of("line.known")}
    for fact in case.of("ibdiagnet.line"):
        text = str(fact.parts[1])
        told = mechanism_of(f"-{fact.parts[0]}- {text}")
        if (told is not None and told.cause == HARMLESS) or (fact.place.file, fact.place.line) in heard:
            continue
        counter = next((known for word in text.replace('"', " ").split() if (known := column_counter(word))), None)
        if counter in _COUNTERS:
            cause = _COUNTERS[counter]
        else:
            cause = next((cause for cause, pattern in _SAID if pattern.search(text)), "")
        if cause:
            by_cause[cause].append(fact)
    for cause, facts in by_cause.items():
        errors = any(fact.parts[0] == "E" for fact in facts)
        yield from reported(
            cause,
            facts,
            "{1}",
            "no such line",
            0.85 if errors else 0.75,
            severity=None if errors else Severity.WARNING,
        )


# what ibdiagnet's stages look at, by a word of their names
_STAGES = (
    ("speed", "link-slow"),
    ("port counters", "link-errors"),
    ("ber", "link-errors"),
    ("links", "link-errors"),
    ("subnet manager", "subnet-manager-error"),
    ("routing", "subnet-manager-error"),
    ("lids", "subnet-manager-error"),
    ("guid", "subnet-manager-error"),
    ("partition", "partition-key"),
    ("temperature", "switch-part"),
    ("fw", "firmware-old"),
    ("cable", "module-fault"),
)


def stages(case: Case) -> Iterator[Finding]:
    """Stages of ibdiagnet that counted errors, where no line of the log says which."""
    told = [
        *(fact.place for fact in case.of("line.known")),
        *(place for one in lines(case) for place in one.evidence),
    ]
    if any(place.text.lstrip().startswith("-E-") for place in told):
        return
    for fact in case.of("ibdiagnet.stage"):
        if int(fact.parts[2] or 0):
            name = str(fact.parts[0]).lower()
            cause = next((cause for word, cause in _STAGES if word in name), "ibdiagnet-error")
            yield from reported(
                cause,
                [fact],
                "{0}: {2} error(s)",
                "0",
                0.7,
                severity=Severity.WARNING,
                collect="the -E- lines of this stage in ibdiagnet2.log",
            )


RULES: tuple[Rule, ...] = (tables, lines, stages)
