"""What a capture says: its flows, what they carried, what was missing or came twice, who was told to slow down.

A flow is what one address sends to one queue pair of another, as one interface saw it in one direction. PSNs count
modulo 2**24. A request or datagram whose PSN lies ahead of the next one leaves a gap; one that lies behind and
that came before is a retransmission. A READ takes as many PSNs as its response will have packets, which the
largest response seen tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fabrictwin.capture import transport_headers as transport
from fabrictwin.capture.dissection import Pause, Seen, dissect
from fabrictwin.capture.reader import CaptureFile, Packet
from fabrictwin.capture.transport_headers import Op, op_name

PSN_MASK = 0xFFFFFF
HALF = 1 << 23
REMEMBERED = 1 << 16  # PSNs of a flow that a gap or a retransmission may still be of
CE = 3


# counts of a flow, before its opcodes and after them
VOLUMES = ("packets", "messages", "payload_bytes", "wire_bytes")
TROUBLES = (
    "gaps",  # packets that are missing
    "retransmissions",
    "naks",
    "refusals",
    "not_ready",
    "cnps",
    "ecn_marked",
    "icrc_errors",
    "icrc_unchecked",
)


class Ends(NamedTuple):
    """One direction between an address and a queue pair, as an interface saw it."""

    interface: int
    outbound: bool | None
    source: str
    target: str
    target_qpn: int


@dataclass
class Flow:
    """Packets of one direction: their counts by name (`VOLUMES`, `TROUBLES`), their opcodes, their times."""

    ends: Ends
    counts: Counter[str] = field(default_factory=Counter)
    opcodes: Counter[str] = field(default_factory=Counter)
    first_ps: int = 0
    last_ps: int = 0
    _next: int | None = None
    _missing: set[int] = field(default_factory=set)
    _read_mtu: int = 0

    def add(self, packet: Packet, seen: Seen) -> None:
        """One more packet of the flow."""
        opcode = seen.bth.opcode
        if not self.counts["packets"]:
            self.first_ps = packet.time_ps
        self.first_ps, self.last_ps = min(self.first_ps, packet.time_ps), max(self.last_ps, packet.time_ps)
        self.counts["packets"] += 1
        self.counts["wire_bytes"] += packet.wire_bytes
        self.opcodes[op_name(opcode)] += 1
        self.counts["ecn_marked"] += seen.ecn == CE
        self.counts["icrc_errors"] += seen.icrc_good is False
        self.counts["icrc_unchecked"] += seen.icrc_good is None
        if seen.icrc_good is False:
            return  # nothing in it is to be believed
        if opcode == transport.CNP:
            self.counts["cnps"] += 1
            return
        op = opcode & 0x1F
        if op == Op.ACKNOWLEDGE:
            kind = (seen.syndrome or 0) >> 5 & 3
            self.counts["not_ready"] += kind == transport.NOT_READY
            if kind == transport.REFUSED:
                self.counts["naks"] += 1
                self.counts["refusals"] += (seen.syndrome or 0) & 0x1F != 0
            return
        if self._again(seen, op):
            self.counts["retransmissions"] += 1
            return
        self.counts["payload_bytes"] += seen.payload_bytes
        self.counts["messages"] += op in transport.ENDS

    def _again(self, seen: Seen, op: int) -> bool:
        """Return True for a packet that came before, and keep account of what is missing."""
        psn, takes = seen.bth.psn, 1
        if op in transport.ANSWERS:
            # responses have the PSNs of their requests, between which others lie
            ahead = 0 if self._next is None else (psn - self._next) & PSN_MASK
            again = self._next is not None and ahead >= HALF
            middle = op in (Op.READ_RESPONSE_MIDDLE, Op.READ_RESPONSE_LAST)
            if middle and not again and self._next is not None:
                self.counts["gaps"] += ahead
            if not again:
                self._next = (psn + 1) & PSN_MASK
            return again
        if op == Op.READ_REQUEST and seen.length and self._read_mtu:
            takes = max(-(-seen.length // self._read_mtu), 1)
        if self._next is None:
            self._next = (psn + takes) & PSN_MASK
            return False
        ahead = (psn - self._next) & PSN_MASK
        if ahead >= HALF:
            if psn in self._missing:
                self._missing.discard(psn)
                self.counts["gaps"] -= 1
                return False
            return True
        if ahead and not (op != Op.READ_REQUEST and self._after_read):
            self.counts["gaps"] += ahead
            if ahead <= REMEMBERED:
                self._missing.update((self._next + i) & PSN_MASK for i in range(ahead))
            if len(self._missing) > REMEMBERED:
                self._missing.clear()
        self._next = (psn + takes) & PSN_MASK
        return False

    @property
    def _after_read(self) -> bool:
        """A READ of unknown length went before: PSNs that are skipped are its response's."""
        return bool(self.opcodes["RC READ_REQUEST"]) and not self._read_mtu

    @property
    def throughput_gbps(self) -> float:
        """Payload over the time from its first packet to its last."""
        span = self.last_ps - self.first_ps
        return self.counts["payload_bytes"] * 8 / span * 1000 if span > 0 else 0.0

    def as_json(self, names: dict[int, str]) -> dict[str, Any]:
        return {
            **self.ends._asdict(),
            "interface": names.get(self.ends.interface) or self.ends.interface,
            **{name: self.counts[name] for name in VOLUMES},
            "first_ps": self.first_ps,
            "last_ps": self.last_ps,
            "opcodes": dict(sorted(self.opcodes.items())),
            **{name: self.counts[name] for name in TROUBLES},
            "throughput_gbps": round(self.throughput_gbps, 3),
        }


@dataclass
class Summary:
    """A whole capture."""

    kind: str
    cut: bool
    counts: Counter[str]  # packets, pauses (XOFF), resumes, and other: not RDMA, or cut too short
    first_ps: int
    last_ps: int
    flows: list[Flow]
    names: dict[int, str]

    def total(self, name: str) -> int:
        """Return a count of all flows together."""
        return sum(flow.counts[name] for flow in self.flows)

    def as_json(self) -> dict[str, Any]:
        return {
            "format": self.kind,
            "packets": self.counts["packets"],
            "other_packets": self.counts["other"],
            "cut_short": self.cut,
            "first_ps": self.first_ps,
            "last_ps": self.last_ps,
            "pause_frames": self.counts["pauses"],
            "resume_frames": self.counts["resumes"],
            **{name: self.total(name) for name in ("messages", "payload_bytes", *TROUBLES)},
            "flows": [flow.as_json(self.names) for flow in self.flows],
        }


def summarise(file: CaptureFile) -> Summary:
    """Read a capture from its start to its end. Raises ConfigError."""
    flows: dict[Ends, Flow] = {}
    counts: Counter[str] = Counter()
    first = last = 0
    sizes: dict[tuple[str, str], int] = {}  # largest READ response, by who asked whom
    for packet in _counted(file, counts):
        if counts["packets"] == 1:
            first = last = packet.time_ps
        first, last = min(first, packet.time_ps), max(last, packet.time_ps)
        seen = dissect(packet)
        if seen is None:
            counts["other"] += 1
        elif isinstance(seen, Pause):
            held = [q for i, q in enumerate(seen.quanta) if seen.enabled >> i & 1]
            counts["pauses" if any(held) else "resumes"] += 1
        else:
            ends = Ends(packet.interface, packet.outbound, seen.source, seen.target, seen.bth.target_qpn)
            flow = flows.get(ends)
            if flow is None:
                flow = flows[ends] = Flow(ends)
            op = seen.bth.opcode & 0x1F
            if op == Op.READ_RESPONSE_FIRST:
                sizes[seen.target, seen.source] = max(sizes.get((seen.target, seen.source), 0), seen.payload_bytes)
            flow._read_mtu = sizes.get((seen.source, seen.target), 0)
            flow.add(packet, seen)
    return Summary(file.kind, file.cut, counts, first, last, list(flows.values()), file.names)


def _counted(file: CaptureFile, counts: Counter[str]) -> Iterable[Packet]:
    for packet in file:
        counts["packets"] += 1
        yield packet


def text(summary: Summary, *, most: int = 40) -> str:
    """The summary for people."""
    span = summary.last_ps - summary.first_ps
    lines = [
        f"{summary.kind}, {summary.counts['packets']} packets in {span / 1e6:.3f} us"
        + (", cut short" if summary.cut else "")
        + (f", {summary.counts['other']} not RDMA" if summary.counts["other"] else "")
    ]
    if summary.counts["pauses"] or summary.counts["resumes"]:
        lines.append(f"pause frames: {summary.counts['pauses']} XOFF, {summary.counts['resumes']} XON")
    words = {
        "gaps": "packets missing",
        "retransmissions": "retransmissions",
        "naks": "NAKs",
        "not_ready": "RNR NAKs",
        "cnps": "CNPs",
        "ecn_marked": "ECN marks",
        "icrc_errors": "ICRC errors",
    }
    seen = [f"{summary.total(name)} {word}" for name, word in words.items() if summary.total(name)]
    unchecked = summary.total("icrc_unchecked")
    if unchecked:
        seen.append(f"{unchecked} packets cut, their ICRC unchecked")
    lines.append(", ".join(seen) if seen else "nothing missing, nothing twice, every ICRC good")
    if not summary.flows:
        return "\n".join(lines) + "\n"
    head = ("flow", "packets", "messages", "payload", "Gb/s", "gaps", "again", "NAK", "RNR", "CNP", "ECN")
    shown = ("gaps", "retransmissions", "naks", "not_ready", "cnps", "ecn_marked")
    rows: list[tuple[str, ...]] = [head]
    for flow in summary.flows[:most]:
        ends = flow.ends
        name = summary.names.get(ends.interface) or str(ends.interface)
        way = {True: " out", False: " in"}.get(ends.outbound, "") if ends.outbound is not None else ""
        rows.append(
            (
                f"{name}{way}  {ends.source} > {ends.target} QP {ends.target_qpn:#x}",
                *(str(flow.counts[name]) for name in ("packets", "messages", "payload_bytes")),
                f"{flow.throughput_gbps:.2f}",
                *(str(flow.counts[name]) for name in shown),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    if len(summary.flows) > most:
        lines.append(f"... and {len(summary.flows) - most} flows more; --json has them all")
    ops: Counter[str] = Counter()
    for flow in summary.flows:
        ops.update(flow.opcodes)
    lines.append("opcodes: " + ", ".join(f"{name} {n}" for name, n in sorted(ops.items())))
    return "\n".join(lines) + "\n"
