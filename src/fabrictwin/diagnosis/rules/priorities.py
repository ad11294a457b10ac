"""Priorities: what adapters and SONiC's switches trust, pause and drop, and where NCCL's traffic class leads.

An adapter that trusts DSCP and has no map of its own takes the upper three bits of the DSCP (the kernel's
net/dcb/dcbnl.c, mlx5). NCCL_IB_TC is the traffic class: the DSCP above the two bits of ECN (NCCL user guide).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found, reported

MANY_DROPS = 100
PART_DROPPED = 0.01  # of what a port took: more than stray packets
USUAL_LOSSLESS = (3, 4)  # SONiC's qos_config.j2, where no configuration is at hand


def priorities(case: Case) -> Iterator[Finding]:
    """Trust and lossless priorities of adapters and of SONiC's ports."""
    trust = [fact for fact in case.of("qos.trust") if fact.value == "pcp"]
    none = [fact for fact in case.of("qos.pfc") if not fact.parts]
    unset = len(none) == len(case.of("qos.pfc")) > 0  # nobody has set anything: trust leads nowhere yet
    # as adapters are when nobody has set anything: it is open whether they are to carry RoCE
    as_made = Severity.QUESTION if unset and trust else None
    yield from reported(
        "trust-pcp", trust, "Priority trust state: pcp", "dscp", 0.6 if unset else 0.85, severity=as_made
    )
    yield from reported(
        "no-pfc",
        none,
        "no priority enabled",
        "the RoCE priority, such as 3",
        0.7,
        severity=as_made,
        collect="the switch's PFC configuration, where lossy RoCE is on purpose",
    )
    yield from _storms(case.of("sonic.storm"))
    maps = case.of("sonic.pfc")
    empty = [fact for fact in maps if not fact.parts]
    if empty and len(empty) < len(maps):
        yield found("pfc-uneven", empty, "no pfc_enable", "as the other ports", 0.7)
    flat = [
        fact
        for fact in case.of("sonic.profile")
        if "lossless" in fact.subject.device and fact.subject.device.startswith("pg_") and fact.parts[2] == 0
    ]
    yield from reported("buffer-profile", flat, "xoff 0", "headroom for rate, cable and MTU", 0.7)


def _storms(storms: list[Fact]) -> Iterator[Finding]:
    """Storms that last are errors; those that are over, or of queues that nobody watches now, warnings."""
    lasting = [fact for fact in storms if fact.parts[2] not in ("operational", "N/A")]
    severity = None if lasting else Severity.WARNING
    seen = "{0} storm(s) detected, {1} restored"
    yield from reported("pause-storm", lasting or storms, seen, "0", 0.9, severity=severity)


def traffic_class(case: Case) -> Iterator[Finding]:
    """NCCL's traffic class against the map and the lossless priorities of the adapter."""
    facts = case.settings.get("NCCL_IB_TC", [])
    lossless = {int(p or 0) for fact in case.of("qos.pfc") for p in fact.parts if p is not None}
    if not facts or not lossless or not facts[0].text:
        return
    value = str(facts[0].parts[1])
    if not value.isdigit() or int(value) > 255:
        return
    dscp = int(value) >> 2
    table = {int(fact.parts[0] or 0): int(fact.parts[1] or 0) for fact in case.of("qos.dscp")}
    priority = table.get(dscp, dscp >> 3)
    if priority not in lossless:
        wanted = sorted(lossless)[0]
        fits = next((code for code, to in sorted(table.items()) if to == wanted), wanted << 3)
        yield found(
            "wrong-priority",
            [*facts, *case.of("qos.pfc")],
            f"NCCL_IB_TC={value}: DSCP {dscp}, priority {priority}",
            f"priority {wanted}, which is lossless: NCCL_IB_TC={fits << 2}",
            0.85,
        )


def switch_drops(case: Case) -> Iterator[Finding]:
    """Drops at SONiC's ports: in lossless groups and queues, beside pauses, and after correction."""
    lossless = {int(p or 0) for fact in case.of("sonic.pfc") for p in fact.parts} or set(USUAL_LOSSLESS)
    groups = [fact for fact in case.of("sonic.pg-drop") if int(fact.parts[0] or 0) in lossless]
    yield from reported(
        "headroom", groups, "priority group {0} dropped {1} packets", "0 in a lossless group", 0.85
    )
    yield from reported(
        "pfc-one-side",
        case.of("sonic.pause-lossy"),
        "{1} pause frame(s) on priority {0}, which is lossy",
        "the same lossless priorities on both ends",
        0.85,
    )
    queues = [
        fact for fact in case.of("sonic.queue-drop") if str(fact.parts[0]) in {f"UC{one}" for one in lossless}
    ]
    yield from reported("discards", queues, "queue {0} dropped {1} packets", "0 in a lossless queue", 0.8)
    full = [
        fact
        for fact in case.of("sonic.queue-drop")
        if int(fact.parts[1] or 0) >= max(MANY_DROPS, PART_DROPPED * int(fact.parts[2] or 0)) and fact.parts[2]
    ]
    if not queues:
        yield from reported(
            "discards",
            full,
            "queue {0} dropped {1} packets and sent {2}",
            "few: the port has no room for what comes",
            0.65,
        )
    yield from reported(
        "congestion",
        case.of("sonic.headroom-used"),
        "priority group {0} held {1} bytes beyond its pause threshold",
        "any: headroom is there to be used while a pause takes effect",
        0.5,
        severity=Severity.NOTE,
    )
    off = [fact for fact in case.of("sonic.wred") if str(fact.parts[2]) in ("ecn_none", "off", "")]
    yield from reported("ecn-off", off, "ecn {2}", "ecn_all: packets are marked before they are paused", 0.8)
    ports: dict[str, dict[str, Fact]] = defaultdict(dict)
    for fact in case.of("port.counter"):
        ports[fact.subject.device][str(fact.parts[0])] = fact
    for row in ports.values():
        yield from _port_drops(row)


def _port_drops(row: dict[str, Fact]) -> Iterator[Finding]:
    dropped = row.get("sonic_rx_drp")
    pauses = [fact for name, fact in row.items() if name.startswith("tx_prio") and name.endswith("_pause")]
    if dropped is not None and int(dropped.parts[1] or 0) >= MANY_DROPS:
        taken = row.get("sonic_rx_ok")
        many = taken is not None and int(dropped.parts[1] or 0) > PART_DROPPED * int(taken.parts[1] or 0)
        yield found(
            "headroom" if pauses else "discards",
            [dropped, *pauses],
            f"RX_DRP {dropped.parts[1]}" + (" although the port sends pause frames" if pauses else ""),
            "0 on a lossless port",
            0.8 if pauses else 0.45 if many else 0.4,
            severity=None if pauses else Severity.QUESTION if many else Severity.NOTE,
            collect="show interfaces counters rif, show dropcounters, twice" if many and not pauses else "",
        )
    lost, sent = row.get("sonic_tx_drp"), row.get("sonic_tx_ok")
    if lost is not None and int(lost.parts[1] or 0) >= MANY_DROPS:
        many = sent is not None and int(lost.parts[1] or 0) > PART_DROPPED * int(sent.parts[1] or 0)
        yield found(
            "discards",
            [lost],
            f"TX_DRP {lost.parts[1]}",
            "0 on a lossless port",
            0.5 if many else 0.4,
            severity=Severity.QUESTION if many else Severity.NOTE,
            collect="show queue counters: which queue drops, and whether it is a lossless one" if many else "",
        )
    for name, least in (("sonic_fec_uncorr", 1_000), ("sonic_rx_err", MANY_DROPS)):
        bad = row.get(name)
        if bad is not None and int(bad.parts[1] or 0) >= least:
            yield found("link-errors", [bad], f"{name[6:].upper()} {bad.parts[1]}", "0", 0.7)


RULES: tuple[Rule, ...] = (priorities, traffic_class, switch_drops)
