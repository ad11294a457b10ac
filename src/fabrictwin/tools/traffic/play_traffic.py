"""A traffic pattern played over the adapters of any fabric, packet by packet.

Node i of the file is adapter i of the fabric, in the fabric's order. Several flows between the same two nodes
have a queue pair each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.base.grouped import grouped
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.base.units import format_size
from fabrictwin.capture.recorder import CaptureRequest
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.engine import Engine
from fabrictwin.engines.base.transfers import Gate, Transfers
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.fabric.fabric import I64, NONE, Fabric
from fabrictwin.routing.tables import Routes
from fabrictwin.tools.traffic.connection_matrix import Traffic, Trigger


@record
class TrafficResult:
    """Times of F flows, and the engine that played them."""

    traffic: Traffic
    start_ps: I64
    received_ps: I64
    done_ps: I64
    unloaded_ps: I64  # the same flow with the network to itself
    engine: Engine

    @property
    def completion_ps(self) -> I64:
        """From start to the sender's last acknowledgement."""
        took: I64 = self.done_ps - self.start_ps
        return took

    def summary(self) -> dict[str, Any]:
        """Return the table as data; keys carry their units."""
        assert self.engine.packets is not None
        totals, level_of = self.engine.packets.totals(), self.traffic.levels
        levels = np.unique(level_of)
        return {
            **self._times(np.arange(len(self.traffic))),
            "priorities": {
                "rest" if level == NONE else str(level): self._times(np.flatnonzero(level_of == level))
                for level in (levels.tolist() if len(levels) > 1 else [])
            },
            "packets": {
                "sent": totals.created,
                "hops": totals.hops,
                "retransmitted": totals.retransmitted,
                "dropped": totals.dropped,
                "trimmed": totals.trimmed,
                "ecn_marked": totals.ecn_marked,
                "out_of_sequence": totals.out_of_sequence,
                "cnps": totals.cnps,
                "timeouts": totals.timeouts,
            },
            "pauses": {"frames": totals.pause_frames, "time_us": totals.pause_ps / 1e6},
            "wait_us": int(self.engine.counters().wait_ps.sum()) / 1e6,  # type: ignore[union-attr]
        }

    def _times(self, flows: I64) -> dict[str, Any]:
        """Return completion times and slowdowns of some flows as data."""
        took = np.sort(self.completion_ps[flows])
        slow = np.sort(self.completion_ps[flows] / np.maximum(self.unloaded_ps[flows], 1))
        n = len(flows)
        at99 = min(n - 1, -(-99 * n // 100) - 1)
        return {
            "flows": n,
            "bytes": int(self.traffic.size_bytes[flows].sum()),
            "end_us": int(self.done_ps[flows].max()) / 1e6,
            "completion_us": {
                "mean": round(float(took.sum()) / n / 1e6, 6),
                "p50": int(took[(n - 1) // 2]) / 1e6,
                "p99": int(took[at99]) / 1e6,
                "max": int(took[-1]) / 1e6,
            },
            "slowdown": {
                "mean": round(float(slow.mean()), 4),
                "p50": round(float(slow[(n - 1) // 2]), 4),
                "p99": round(float(slow[at99]), 4),
                "max": round(float(slow[-1]), 4),
            },
        }


def play_traffic(
    traffic: Traffic,
    fabric: Fabric,
    routes: Routes,
    options: PacketOptions | None = None,
    *,
    slowdown: bool = True,
    capture: CaptureRequest | None = None,
    changes: Sequence[TimedChange] = (),
    stage: Stage = silent,
) -> TrafficResult:
    """Play a pattern to its end, and capture it where that is wanted; `stage` is told how far it is.

    `changes` are what breaks and mends meanwhile; what flows take alone is without them.

    Raises ConfigError where it does not fit, SimulatedError where it fails.
    """
    if traffic.nodes > len(fabric.nic_node):
        raise ConfigError(
            f"got traffic for {traffic.nodes} nodes, "
            f"expected at most the {len(fabric.nic_node)} adapters of the cluster",
            key="Nodes",
        )
    engine = PacketEngine(fabric, routes, options)
    for change in changes:
        engine.change(change)
    recorder = capture.start(engine) if capture is not None else None
    try:
        ends = traffic.source, traffic.destination
        engine.transfer(Transfers(*ends, traffic.size_bytes, gates_of(traffic), traffic.levels))
        stage("simulating", lambda: engine.progress)
        engine.advance()
    finally:
        if recorder is not None:
            recorder.close()
    start_ps, received_ps, done_ps = engine.transfer_times()
    lost = int((done_ps == NONE).sum())
    if lost:
        raise SimulatedError("IBV_WC_RETRY_EXC_ERR", "traffic", f"{lost} of {len(traffic)} flows never completed")
    alone = _unloaded_ps(fabric, routes, engine.options, traffic, stage) if slowdown else done_ps - start_ps
    return TrafficResult(traffic, start_ps, received_ps, done_ps, alone, engine)


def gates_of(traffic: Traffic) -> tuple[Gate, ...]:
    """Return what starts the flows that do not start at 0. Raises ConfigError for triggers that cannot fire so."""
    starts = np.unique(traffic.start_ps[traffic.start_ps > 0]).tolist()
    gates = [Gate(tuple(np.flatnonzero(traffic.start_ps == at).tolist()), delay_ps=at) for at in starts]
    for key, trigger in traffic.triggers.items():
        waiting = np.flatnonzero(traffic.trigger == key).tolist()
        if not waiting:
            continue
        acknowledged = np.flatnonzero(traffic.send_done == key).tolist()
        received = np.flatnonzero(traffic.receive_done == key).tolist()
        _check_firing(key, trigger, len(waiting), len(acknowledged) + len(received))
        one_each = trigger.kind == "multishot"
        gates.append(Gate(tuple(waiting), tuple(received), tuple(acknowledged), one_each=one_each))
    return tuple(gates)


def _check_firing(key: int, trigger: Trigger, waiting: int, firing: int) -> None:
    """Refuse a trigger that fires too seldom or too often for what waits for it."""
    if trigger.kind == "multishot":
        if firing < waiting:
            raise ConfigError(f"got {waiting} flows for multishot trigger {key}, which {firing} flows fire")
        return
    needed = firing if trigger.kind == "oneshot" else trigger.count
    if not firing or needed > firing or (trigger.kind == "oneshot" and firing > 1):
        raise ConfigError(
            f"got {firing} flows that fire {trigger.kind} trigger {key}, "
            f"expected {'one' if trigger.kind == 'oneshot' else trigger.count}"
        )
    if needed < firing:
        raise ConfigError(f"got a barrier of {needed} fired by {firing} flows, expected as many as fire it")


def _unloaded_ps(fabric: Fabric, routes: Routes, options: PacketOptions, traffic: Traffic, stage: Stage) -> I64:
    """Return what each flow takes alone: simulated, once for each shape of path and size.

    Adapters under the same two switches have paths alike, so a few representatives stand for all.
    """
    row = np.full(len(fabric.nic_node), NONE, np.int64)
    row[fabric.node_nic[routes.switches.endpoint_node]] = routes.switches.endpoint_row
    column = routes.switches.edge_column[np.maximum(row[traffic.destination], 0)]
    distance = routes.groups.distance[np.maximum(column, 0), np.maximum(row[traffic.source], 0)]
    rates = fabric.port_rate_bps[fabric.nic_port]
    keys = np.stack(
        [
            distance.astype(np.int64),
            traffic.size_bytes,
            rates[traffic.source],
            rates[traffic.destination],
            fabric.port_latency_ps[fabric.nic_port[traffic.source]],
            fabric.port_latency_ps[fabric.nic_port[traffic.destination]],
            traffic.levels,
        ],
        axis=1,
    )
    _, lead, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    options = grouped(options, {"parts": 1})  # a flow alone is the same in any number of them
    alone = np.zeros(len(lead), np.int64)
    for i, flow in enumerate(lead.tolist()):
        stage("simulating flows by themselves", i / len(lead))
        engine = PacketEngine(fabric, routes, options)
        only = slice(flow, flow + 1)
        ends = traffic.source[only], traffic.destination[only]
        engine.transfer(Transfers(*ends, traffic.size_bytes[only], level=traffic.levels[only]))
        engine.advance()
        start_ps, _, done_ps = engine.transfer_times()
        alone[i] = int(done_ps[0] - start_ps[0])
    result: I64 = alone[which.reshape(-1)]
    return result


def table(result: TrafficResult) -> str:
    """Return the summary as people read it."""
    data = result.summary()
    lines = [
        f"{data['flows']} flows, {format_size(data['bytes'])}, done after {data['end_us']:.2f} us",
        "",
        f"{'':12}{'mean':>12}{'p50':>12}{'p99':>12}{'max':>12}",
    ]
    parts = [("", data), *((f"priority {level}", part) for level, part in data["priorities"].items())]
    for which, part in parts:
        lines += [f"{which}: {part['flows']} flows, {format_size(part['bytes'])}"] if which else []
        for name, key, digits in (("FCT (us)", "completion_us", 2), ("slowdown", "slowdown", 3)):
            row = part[key]
            lines.append(f"{name:12}" + "".join(f"{row[k]:12.{digits}f}" for k in ("mean", "p50", "p99", "max")))
    packets = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in data["packets"].items())
    lines += ["", f"packets: {packets}"]
    if result.engine.fabric.technology == "ethernet":
        pauses = data["pauses"]
        lines.append(f"pauses: {pauses['frames']} frames, {pauses['time_us']:.2f} us in all")
    lines.append(f"waiting for credits or leave: {data['wait_us']:.2f} us in all")
    return "\n".join(lines) + "\n"
