"""Counters of ports: which values mean a fault, which mean congestion, which mean nothing.

A value that all ports of a host share is no fault of one of them: counters are held against their peers. Field
widths are those of the IBTA's PortCounters (vol. 1, 16.1.3): LinkDowned 8 bits, PortXmitDiscards 16.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact, Subject
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found, reported

SATURATED_8, SATURATED_16 = 255, 65535
MANY_DOWNS = 10  # since counters were cleared; a few come from boots
MANY_ERRORS = 100
MANY_DISCARDS = 100

Ports = dict[Subject, dict[str, Fact]]


def by_port(case: Case) -> Ports:
    """Counters by port and name; of one that was read again the highest value."""
    ports: Ports = defaultdict(dict)
    for fact in case.of("port.counter"):
        name = str(fact.parts[0])
        known = ports[fact.subject].get(name)
        if known is None or int(known.parts[1] or 0) < int(fact.parts[1] or 0):
            ports[fact.subject][name] = fact
    return ports


def _worst(facts: list[Fact]) -> list[Fact]:
    """Return the fact with the highest count, where there are any."""
    return [max(facts, key=lambda fact: int(fact.parts[1] or 0))] if facts else []


def _above(ports: Ports, least: int, *names: str) -> list[Fact]:
    """Return the counters of these names that reach a value which not all ports share."""
    return [
        row[name]
        for name in names
        if _shared(ports, name) is None
        for row in ports.values()
        if _value(row, name) >= least
    ]


def _value(row: dict[str, Fact], *names: str) -> int:
    return sum(int(row[name].parts[1] or 0) for name in names if name in row)


def _shared(ports: Ports, name: str) -> int | None:
    """The value of a counter where three ports or more have the very same, not nothing."""
    values = [_value(row, name) for row in ports.values()]
    return values[0] if len(values) > 2 and len(set(values)) == 1 and values[0] else None


def infiniband(case: Case) -> Iterator[Finding]:
    """Flaps, bit errors, discards of InfiniBand ports."""
    ports = by_port(case)
    yield from _downs(ports)
    yield from _errors(ports)
    discards = [
        row["PortXmitDiscards"] for row in ports.values() if _value(row, "PortXmitDiscards") >= MANY_DISCARDS
    ]
    if discards and _shared(ports, "PortXmitDiscards") is None:
        worst = max(discards, key=lambda fact: int(fact.parts[1] or 0))
        full = int(worst.parts[1] or 0) == SATURATED_16
        yield found(
            "discards",
            sorted(discards, key=lambda f: -int(f.parts[1] or 0)),
            f"PortXmitDiscards {worst.parts[1]}" + (" (saturated)" if full else ""),
            "0",
            0.85,
        )
    waits = [row["PortXmitWait"] for row in ports.values() if "PortXmitWait" in row]
    yield from reported("congestion", _worst(waits), "PortXmitWait {1}", "any: it counts waiting", 0.5)
    remote = [
        row["PortRcvRemotePhysicalErrors"]
        for row in ports.values()
        if _value(row, "PortRcvRemotePhysicalErrors") >= MANY_ERRORS
    ]
    yield from reported("errors-elsewhere", remote, "PortRcvRemotePhysicalErrors {1}", "0", 0.6)


def _downs(ports: Ports) -> Iterator[Finding]:
    name = "LinkDowned"
    also = [row["link_down_events_phy"] for row in ports.values() if "link_down_events_phy" in row]
    downs = [row[name] for row in ports.values() if name in row] + also
    if _shared(ports, name) is not None and not also:
        many: list[Fact] = []
    else:
        many = [fact for fact in downs if int(fact.parts[1] or 0) >= MANY_DOWNS]
    if many:
        worst = max(many, key=lambda fact: int(fact.parts[1] or 0))
        full = int(worst.parts[1] or 0) == SATURATED_8
        summed = worst.subject.port == "ALL"  # over all ports of a node: each may have been down but at boots
        yield found(
            "link-flapping",
            many,
            f"{worst.parts[0]} {worst.parts[1]}" + (" (the 8-bit counter is full)" if full else ""),
            "0, or a few from boots",
            0.6 if summed else 0.95 if full or len(downs) > len(many) else 0.85,
            severity=Severity.QUESTION if summed else None,
            expected_from="other ports" if len(ports) > len(many) else "IBTA vol. 1, 16.1.3",
            collect="ibqueryerrors --details, which counts each port by itself" if summed else "",
        )
    else:
        yield from reported("link-downed", downs, "LinkDowned {1}", "0, or a few from boots", 0.5)


BIT_ERRORS = ("SymbolError", "LinkErrorRecovery", "LocalLinkIntegrityErrors")
# of Ethernet ports, by driver: after correction, so that each is a lost packet
_BAD_FRAMES = (
    "rx_pcs_symbol_err_phy",
    "rx_symbol_err_phy",
    "rx_crc_errors_phy",
    "rx_crc_errors",
    "rx_crc_errors.nic",
    "port.rx_crc_errors",
    "rx_fcs_err_frames",
    "rx_fcs_errors",
    "rx_fec_uncorrectable_blocks",  # bnxt_en: each loses the frames in it
    "rx_icrc_encapsulated",  # mlx5: of RoCE packets, spoilt where no link saw it
)
FEW_ERRORS = 10  # from which infiniband-diags' file of thresholds would have a port told of
_DETAILS = (
    "PortLocalPhysicalErrors",
    "PortMalformedPktErrors",
    "PortMalformedPacketErrors",
    "PortBufferOverrunErrors",
    "PortDLIDMappingErrors",
    "PortVLMappingErrors",
    "PortLoopingErrors",
)


def _errors(ports: Ports) -> Iterator[Finding]:
    bad: list[Fact] = []
    for row in ports.values():
        for name in BIT_ERRORS:
            # LocalLinkIntegrity has four bits: 15 is full; recoveries are rare on a good link
            limit = {"LinkErrorRecovery": 5, "LocalLinkIntegrityErrors": 4}.get(name, MANY_ERRORS)
            if name in row and _value(row, name) >= limit and _shared(ports, name) is None:
                bad.append(row[name])
        frames = [row[name] for name in _BAD_FRAMES if _value(row, name) >= MANY_ERRORS]
        bad += [fact for fact in frames if not _is_rare(row, fact)]
    full = any(int(fact.parts[1] or 0) >= SATURATED_16 for fact in bad)  # counted to their end
    yield from reported("link-errors", [*_worst(bad), *bad], "{0} {1}", "0", 0.9 if full else 0.85)
    received = [row["PortRcvErrors"] for row in ports.values() if _value(row, "PortRcvErrors") >= MANY_ERRORS]
    if _shared(ports, "PortRcvErrors") is not None:
        received = []
    details = [row[name] for row in ports.values() for name in _DETAILS if _value(row, name) >= MANY_ERRORS]
    worst = _worst([*received, *details])
    yield from reported("receive-errors", [*worst, *details, *received], "{0} {1}", "0", 0.8)
    if not worst:
        few = _above(ports, FEW_ERRORS, "PortRcvErrors")
        yield from reported(
            "receive-errors",
            [*_worst(few), *few],
            "{0} {1}",
            "fewer than 10: from there on infiniband-diags' thresholds have a port told of",
            0.5,
            severity=Severity.QUESTION,
            collect="perfquery -x <lid> <port> --rcverr twice, some minutes apart: does it still count?",
        )
        overrun = _above(ports, FEW_ERRORS, "ExcessiveBufferOverrunErrors")
        yield from reported(
            "receive-errors",
            [*_worst(overrun), *overrun],
            "{0} {1}",
            "0; the counter has four bits, and keeps what it once counted",
            0.5,
            severity=Severity.QUESTION,
            collect="perfquery -R of the port, and perfquery an hour later: does it count again?",
        )
    refused = _above(ports, MANY_ERRORS, "PortRcvConstraintErrors", "PortXmitConstraintErrors")
    yield from reported(
        "partition-key",
        [*_worst(refused), *refused],
        "{0} {1}",
        "0: no packet of a foreign partition",
        0.6,
        severity=Severity.WARNING,
    )
    dropped = _above(ports, MANY_ERRORS, "VL15Dropped", "QP1Dropped")
    yield from reported("congestion", [*_worst(dropped), *dropped], "{0} {1}", "few: management packets", 0.4)
    some = [
        row[name]
        for row in ports.values()
        for name in ("SymbolError", "LinkErrorRecovery")
        if _value(row, name) >= FEW_ERRORS and _shared(ports, name) is None
    ]
    if some and not bad:
        yield from reported(
            "link-errors",
            [*_worst(some), *some],
            "{0} {1}",
            "0, or a few from when the cable was plugged",
            0.45,
            severity=Severity.QUESTION,
            collect="perfquery -x of the port twice, some minutes apart: does it still count?",
        )


_LOST = (
    "local_ack_timeout_err",
    "packet_seq_err",
    "out_of_sequence",
    "roce_adp_retrans_to",
    "implied_nak_seq_err",
    "req_transport_retries_exceeded",
)


# packets that a port moved, by the tool
_PACKETS = (
    "port_rcv_packets",
    "port_xmit_packets",
    "PortRcvPkts",
    "PortXmitPkts",
    "rx_packets_phy",
    "tx_packets_phy",
    "rx_packets",
    "rx_vport_rdma_unicast_packets",
    "tx_vport_rdma_unicast_packets",
    # efa and bnxt_re, ionic, irdma
    "rx_pkts",
    "tx_pkts",
    "rx_rdma_ucast_pkts",
    "tx_rdma_ucast_pkts",
    "ip4InPkts",
    "ip4OutPkts",
    "ip6InPkts",
    "ip6OutPkts",
    "tcpOutSegs",
)
RARE = 1e-7  # of packets: at 100 Gb/s and 4 KiB one in three seconds, since counters began


def _is_rare(row: dict[str, Fact], fact: Fact) -> bool:
    """Return true for losses that the port's packets since the same start make nothing of."""
    return int(fact.parts[1] or 0) < RARE * packets(row)


def packets(row: dict[str, Fact]) -> int:
    """Return how many packets a port moved, in its busier direction; 0 where it does not say."""
    return max(_value(row, name) for name in _PACKETS)


def roce(case: Case) -> Iterator[Finding]:
    """Loss, pauses, marks and priorities of RoCE ports."""
    ports = by_port(case)
    lossy: list[Fact] = []
    for row in ports.values():
        many = [row[name] for name in _LOST if _value(row, name) >= MANY_ERRORS and _shared(ports, name) is None]
        lossy += [fact for fact in many if not _is_rare(row, fact)]
    timeouts = [fact for fact in lossy if fact.parts[0] != "out_of_sequence"]
    if timeouts:
        facts = [*_worst(timeouts), *lossy]
        yield from reported("roce-loss", facts, "{0} {1}", "0", 0.85)
    else:
        yield from reported(
            "roce-loss",
            lossy,
            "out_of_sequence {1}",
            "0, except with adaptive routing",
            0.4,
            severity=Severity.QUESTION,
            collect="ethtool -S and hw_counters of both ends twice, a minute apart; is adaptive routing on?",
        )
    unready = [
        row[name]
        for row in ports.values()
        for name, least in (("rnr_nak_retry_err", MANY_ERRORS), ("req_rnr_retries_exceeded", 1))
        if _value(row, name) >= least and not _is_rare(row, row[name])
    ]
    yield from reported(
        "receiver-not-ready",
        unready,
        "{0} {1}",
        "0: a receiver posts buffers before its sender sends",
        0.35,
        severity=Severity.QUESTION,
        collect="hw_counters of both ends twice, a minute apart, while the job runs",
    )
    for row in ports.values():
        yield from _buffers(row)
        yield from _control(row, ports)
        yield from _priority(row)
        yield from _notifications(row, ports)


# packets without a buffer posted for them, by driver: mlx5, be2net, igb and ixgbe, mlx4, virtio_net, efa and ena,
# bnxt_en, ice
_NO_BUFFER = (
    "rx_out_of_buffer", "out_of_buffer", "rx_drops_no_frags", "rx_drops_no_skbs", "rx_no_buffer_count",
    "rx_no_dma_resources", "rx_missed_errors", "rx_drops", "rx_total_ring_discards", "rx_dropped.nic",
)  # fmt: skip
MANY_UNPOSTED = 10_000
# of mlx5: events of a port's cage, and the part of the last second in which PCIe had no room for the adapter
_MODULE = ("module_bus_stuck", "module_high_temp", "module_bad_shorted")
_STALLS = ("outbound_pci_stalled_rd", "outbound_pci_stalled_wr")
MANY_STALLS = 30  # per cent, from which the adapter counts an event of it


def _buffers(row: dict[str, Fact]) -> Iterator[Finding]:
    pauses = [fact for name, fact in row.items() if name.startswith("tx_prio") and name.endswith("_pause")]
    drops = [
        fact
        for name, fact in row.items()
        if name == "rx_discards_phy"
        or (name.startswith("rx_prio") and name.endswith(("_discards", "_discard")))
        or name.startswith("tc_no_buffer_discard")  # of switches that run Linux
    ]
    if not pauses and "tx_global_pause" in row:
        pauses = [row["tx_global_pause"]]
    dropped = [fact for fact in drops if int(fact.parts[1] or 0) >= MANY_DISCARDS]
    sent = [row["tx_discards_phy"]] if _value(row, "tx_discards_phy") >= MANY_DISCARDS else []
    yield from reported("discards", sent, "{0} {1}", "0", 0.7)
    if dropped:
        cause_id = "headroom" if pauses else "roce-loss"
        yield found(
            cause_id,
            [*dropped, *pauses],
            f"{dropped[0].parts[0]} {dropped[0].parts[1]}",
            "0 on lossless priorities",
            0.8,
        )
    modules = [row[name] for name in _MODULE if name in row]
    yield from reported("module-fault", modules, "{0} {1}", "0", 0.75, severity=Severity.WARNING)
    stalls = [row[name] for name in _STALLS if _value(row, name) >= MANY_STALLS]
    yield from reported("host-drains-slowly", stalls, "{0} {1}% of the last second", "0", 0.7)
    storm = [row[name] for name in ("tx_pause_storm_error_events", "tx_pause_storm_warning_events") if name in row]
    yield from reported("pause-storm", storm, "{0} {1}", "0", 0.9)
    empty = [row[name] for name in _NO_BUFFER if _value(row, name) >= MANY_UNPOSTED]
    empty = [fact for fact in empty if not _is_rare(row, fact)]
    yield from reported("receive-queue-empty", empty, "{0} {1}", "0", 0.5)


def _control(row: dict[str, Fact], ports: Ports) -> Iterator[Finding]:
    sent = sum(_value(row, name) for name in row if name.startswith("tx_prio") and name.endswith("_pause"))
    received = [fact for name, fact in row.items() if name.startswith("rx_prio") and name.endswith("_pause")]
    paused = sum(int(fact.parts[1] or 0) for fact in received)
    # a NIC reports both kinds of counters in different tools: marks count for all of a host's ports
    marks = sum(
        _value(other, "np_ecn_marked_roce_packets", "rx_ecn_mark", "rx_roce_ecn", "np_cnp_sent")
        for other in ports.values()
    )
    nic = (
        any(name.startswith(("rx_prio", "tx_prio", "rx_vport")) for name in row)
        and "Ethernet" not in next(iter(row.values())).subject.device
    )
    counts_marks = not any(name.startswith("rx_priority") for name in row)  # drivers but mlx5's do not here
    if nic and counts_marks and paused >= 100_000 and not marks and paused > sent:
        yield found(
            "ecn-off",
            received,
            f"{paused} pause frames received, no packet marked",
            "marks (ECN) before pauses",
            0.7,
        )
    facts = [fact for name, fact in row.items() if name.startswith("tx_prio") and name.endswith("_pause")]
    if not facts and "tx_global_pause" in row:  # pauses of whole links
        nic, facts = True, [row["tx_global_pause"]]
        sent, paused = _value(row, "tx_global_pause"), _value(row, "rx_global_pause")
    if nic and sent >= 100_000 and sent > 10 * max(paused, 1):
        yield found("host-drains-slowly", facts, f"{sent} pause frames sent, {paused} received", "few", 0.7)


# of Linux' interfaces, by what they mean
_INTERFACE = (
    ("link-errors", ("rx_crc_errors", "rx_frame_errors"), 0.8, None),
    ("link-errors", ("rx_errors",), 0.6, None),
    ("link-flapping", ("tx_carrier_errors",), 0.6, None),
    ("receive-queue-empty", ("rx_missed_errors", "rx_over_errors", "rx_fifo_errors"), 0.6, None),
    ("discards", ("tx_dropped", "tx_fifo_errors"), 0.4, Severity.QUESTION),
)
PART_LOST = 1e-6  # of packets, which more than stray ones are


def interfaces(case: Case) -> Iterator[Finding]:
    """Errors and losses of Linux' interfaces, held against the packets that they took or sent."""
    rows = {about: row for about, row in by_port(case).items() if {"rx_packets", "tx_packets"} & set(row)}
    told: set[str] = set()
    for cause, names, sure, severity in _INTERFACE:
        facts = [
            row[name]
            for row in rows.values()
            for name in names
            if _value(row, name) >= MANY_ERRORS
            and _value(row, name) > PART_LOST * _value(row, f"{name[:2]}_packets")
        ]
        if facts and cause not in told:
            told.add(cause)
            yield from reported(
                cause,
                [*_worst(facts), *facts],
                "{0} {1}",
                "0",
                sure,
                severity=severity,
                collect="ip -s -s link; tc -s qdisc; twice, a minute apart" if severity else "",
            )


def _priority(row: dict[str, Fact]) -> Iterator[Finding]:
    """RDMA on priority 0."""
    carried = {name: _value(row, name) for name in row if name.startswith("rx_prio") and name.endswith("_bytes")}
    whole, first = sum(carried.values()), carried.get("rx_prio0_bytes", 0)
    rdma = _value(row, "rx_vport_rdma_unicast_bytes")
    if whole > 10**12 and first > 0.95 * whole and rdma > 0.5 * whole:
        yield found(
            "wrong-priority",
            [row["rx_prio0_bytes"]],
            f"priority 0 carries {first} bytes of {whole}",
            "RDMA on the lossless priority",
            0.8,
        )


def _notifications(row: dict[str, Fact], ports: Ports) -> Iterator[Finding]:
    """Congestion notifications that are sent and reach nobody."""
    if "np_cnp_sent" not in row:
        return
    senders = sum(_value(other, "np_cnp_sent") for other in ports.values())
    handled = sum(_value(other, "rp_cnp_handled") for other in ports.values())
    if senders > 100_000 and handled == 0 and len(ports) > 1:
        yield found(
            "cnp-lost",
            [row[n] for n in ("np_cnp_sent",) if n in row],
            f"{senders} sent, none handled",
            "handled at the senders",
            0.5,
        )


RULES: tuple[Rule, ...] = (infiniband, roce, interfaces)
