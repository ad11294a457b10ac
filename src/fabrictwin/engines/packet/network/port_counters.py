"""Counters of ports and adapters, under the names that operators know, and queue depths over time.

Port counters as `perfquery` prints them (InfiniBand Architecture 16.1.3; data in words of four octets without the
VCRC, wait in ticks, here picoseconds) and as Ethernet adapters and switches expose them; adapter counters as Linux
lists them under `hw_counters` for mlx5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.records import record
from fabrictwin.engines.base.packet_level import PacketTotals
from fabrictwin.engines.packet.network.partitions import key_violations
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.congestion_tables import CongestionCounts, CongestionLog
from fabrictwin.trace.trace import Counters

if TYPE_CHECKING:
    from fabrictwin.engines.packet.network.packet_network import PacketNetwork


def counters(network: PacketNetwork) -> Counters:
    """Return what every engine's ports count, and what only packets show."""
    state, n = network.machine.state, network.fabric.ports
    wait = state.port.wait_ps[:n].copy()
    waiting = state.port.wait_since[:n]
    wait += np.where(waiting >= 0, network.machine.now - waiting, 0)
    ethernet = network.fabric.technology == "ethernet"
    marks = ethernet or network.machine.has_congestion_tables
    return Counters(
        tx_bytes=state.port.tx_payload[:n].copy(),
        wait_ps=wait,
        drops=state.count.discards[:n].copy(),
        ecn_marks=state.count.ecn_marks[:n].copy() if marks else None,
        pauses=state.count.pause_tx[:n].copy() if ethernet else None,
    )


def totals(network: PacketNetwork) -> PacketTotals:
    """Return packets of the whole run, wherever they were."""
    state = network.machine.state
    clock, queue_pairs = state.clock[0], state.qp[: network.machine.queue_pairs]
    return PacketTotals(
        created=int(clock.created),
        hops=int(clock.hops),
        retransmitted=int(queue_pairs.retransmitted.sum()),
        dropped=int(clock.dropped),
        trimmed=int(state.count.trims.sum()),
        ecn_marked=int(state.count.ecn_marks.sum()),
        out_of_sequence=int(queue_pairs.out_of_sequence.sum()),
        cnps=int(queue_pairs.cnps_handled.sum()),
        timeouts=int(queue_pairs.timeouts.sum()),
        pause_frames=int(state.count.pause_tx.sum()),
        pause_ps=int(state.hold.pause_ps.sum()),
    )


def port_counters(network: PacketNetwork) -> dict[str, I64]:
    """Return counters by name, each of shape [ports]."""
    from fabrictwin.kernel.packet import events
    from fabrictwin.kernel.packet import invariants as checks

    network.machine.join()
    state, n = network.machine.state, network.fabric.ports
    what = checks.pending(state)
    flying = what[(what >> events.KIND_SHIFT) == events.QueueEvent.ARRIVE]
    at = (flying >> events.PORT_SHIFT) & events.PORT_MASK
    wire = state.packet.wire[flying & events.VALUE_MASK]
    peer = network.fabric.port_peer
    plugged = peer != NONE
    from_peer = np.maximum(peer, 0)
    packets = np.where(plugged, state.port.tx_packets[from_peer], 0) - np.bincount(at, minlength=n)[:n]
    octets = np.where(plugged, state.port.tx_bytes[from_peer], 0)
    octets = octets - np.bincount(at, weights=wire, minlength=n)[:n].astype(np.int64)
    lanes = 1 << int(state.settings[0].vl_bits)
    sent = state.port.tx_packets[:n]
    uncounted = catalog.headers("infiniband").bytes_of("VCRC") * (network.fabric.technology == "infiniband")
    found: dict[str, I64] = {
        "PortXmitData": (state.port.tx_bytes[:n] - uncounted * sent) // 4,
        "PortRcvData": (octets - uncounted * packets) // 4,
        "PortXmitPkts": sent.copy(),
        "PortRcvPkts": packets - state.count.errors[:n],
        "PortXmitWait": np.asarray(counters(network).wait_ps),
        "PortXmitDiscards": state.count.discards[:n].copy(),
        "PortRcvErrors": state.count.errors[:n].copy(),
        "LocalLinkIntegrityErrors": state.count.replays[:n].copy(),
        "QueuePeakBytes": state.outlet.peak[: n * lanes].reshape(n, lanes).max(axis=1),
    }
    if network.machine.has_congestion_tables:
        counts = congestion_counts(network)
        found |= {
            "PortXmitTimeCong": counts.congested_ps.sum(axis=1),
            "PortPktRcvFECN": counts.fecns.sum(axis=1),
            "PortPktRcvBECN": counts.becns.sum(axis=1),
        }
    if network.fabric.technology == "ethernet":
        found |= {
            "tx_pause": state.count.pause_tx[:n].copy(),
            "rx_pause": state.count.pause_rx[:n].copy(),
            "rx_pause_duration_ps": state.hold.pause_ps[: n * lanes].reshape(n, lanes).sum(axis=1),
            "ecn_marked": state.count.ecn_marks[:n].copy(),
            "trimmed": state.count.trims[:n].copy(),
        }
    return found


def congestion_counts(network: PacketNetwork) -> CongestionCounts:
    """Return counters of InfiniBand's congestion control (annex A10) by service level and virtual lane."""
    from fabrictwin.kernel.packet.congestion.ibcc import LEVELS

    state, fabric, machine = network.machine.state, network.fabric, network.machine
    lanes, adapters = machine.config.lanes, len(fabric.nic_port)
    since = np.where(state.fecn.congested != 0, machine.now - state.fecn.since, 0)
    congested = np.zeros((fabric.ports, LEVELS), np.int64)
    held = (state.fecn.congested_ps + since)[: fabric.ports * lanes].reshape(fabric.ports, lanes)
    congested[:, :lanes] = held[:, :LEVELS]
    cabled = np.flatnonzero(fabric.nic_port != NONE)
    received = {}
    for column in ("fecns", "becns"):
        received[column] = np.zeros((fabric.ports, LEVELS), np.int64)
        of_adapters = state.ibcc_settings[column].reshape(-1, LEVELS)[:adapters]
        received[column][fabric.nic_port[cabled]] = of_adapters[cabled]
    return CongestionCounts(received["fecns"], received["becns"], congested)


def congestion_log(network: PacketNetwork) -> CongestionLog:
    """Return what the kernel noted, oldest first, as far as its ring reaches back."""
    from fabrictwin.kernel.packet.congestion.ibcc import SWITCH_EVENT

    state = network.machine.state
    rows, noted = len(state.congestion_log), int(state.clock[0].congestion_events)
    log = state.congestion_log[np.arange(max(noted - rows, 0), noted) % rows]
    time_ps, what, where, subject, source, destination, level = log[:, :7].T
    switch = what == SWITCH_EVENT
    adapter = network.fabric.nic_node[np.where(switch, 0, where)] if len(log) else where
    return CongestionLog(
        time_ps=time_ps,
        node=np.where(switch, where, adapter).astype(np.int64),
        port=np.where(switch, subject, NONE),
        queue_pair=np.where(switch, NONE, subject),
        source=source,
        destination=destination,
        level=level,
    )


def adapter_counters(network: PacketNetwork) -> dict[str, I64]:
    """Return counters by name, each of shape [adapters]; the requester's are the sender's adapter's."""
    qp = network.machine.state.qp[: network.machine.queue_pairs]
    remote = qp[qp.src != NONE]
    n = len(network.fabric.nic_node)

    def count(name: str, side: str) -> I64:
        total: I64 = np.bincount(remote[side], weights=remote[name], minlength=n).astype(np.int64)
        return total

    found = {
        "out_of_sequence": count("out_of_sequence", "dst"),
        "duplicate_request": count("duplicates", "dst"),
        "np_cnp_sent": count("cnps_sent", "dst"),
        "rp_cnp_handled": count("cnps_handled", "src"),
        "packet_seq_err": count("naks", "src"),
        "rnr_nak_retry_err": count("rnr_naks", "src"),
        "local_ack_timeout_err": count("timeouts", "src"),
        "retransmitted_packets": count("retransmitted", "src"),
    }
    if network.fabric.technology == "infiniband" and network.connections.keys is not None:
        found["P_KeyViolations"] = key_violations(network.machine, n)
    return found


@record
class QueueDepths:
    """Bytes that waited at ports (the packet on the wire included): [samples] and [samples, ports]."""

    time_ps: I64
    port: I32
    queued_bytes: I64


def watch(network: PacketNetwork, ports: I32, *, period_ps: int, until_ps: int) -> QueueDepths:
    """Run to `until_ps` or to the end and note queue depths every `period_ps`; changes no result."""
    from fabrictwin.kernel.packet.state.constants import OUT_OF_REACH

    machine = network.machine
    times, rows = [], []
    at = machine.now
    while at < until_ps and machine.state.clock[0].open > 0:
        at = min(at + period_ps, until_ps)
        network.run(at)
        times.append(at)
        # a port that is down has that much added
        rows.append(machine.state.queued[ports] % OUT_OF_REACH)
    return QueueDepths(np.array(times, np.int64), ports, np.array(rows, np.int64).reshape(len(times), len(ports)))
