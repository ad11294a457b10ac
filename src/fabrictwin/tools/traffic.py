"""Traffic patterns in htsim's connection-matrix format, played over the adapters of any fabric.

    Nodes 128
    Connections 2
    Triggers 1
    9->92 id 1 start 0 size 65536 send_done_trigger 1
    9->49 id 2 trigger 1 size 65536
    trigger id 1 oneshot

Sizes are bytes, starts are picoseconds. A flow names the trigger that starts it and the one that fires when its
last acknowledgement is in. A oneshot trigger starts all its flows at once; a multishot one starts one more, in
the file's order, each time that a flow fires it; a barrier starts all when so many have fired it (facts of the
format, from csg-htsim's `connection_matrix.cpp` and `trigger.cpp`).

Node i of the file is adapter i of the fabric, in the fabric's order. Several flows between the same two nodes
have a queue pair each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fabrictwin.base.errors import ConfigError, SimulatedError, did_you_mean, quoted
from fabrictwin.base.textfile import read_text
from fabrictwin.base.units import format_size
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.capture.recorder import CaptureRequest
from fabrictwin.engines.packet.packet_network import PacketNetwork
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.engines.packet.run_estimate import PacketSize, check_size
from fabrictwin.fabric.fabric import I32, I64, NONE, Fabric
from fabrictwin.routing.tables import Routes

_KEYS = ("id", "start", "trigger", "size", "send_done_trigger", "recv_done_trigger", "prio")
_TRIGGERS = ("oneshot", "multishot", "barrier")
_LARGEST = 1 << 40


@dataclass(frozen=True)
class Trigger:
    """What starts flows: `kind` oneshot, multishot or barrier (of `count`)."""

    kind: str
    count: int = 0


@dataclass(frozen=True)
class Traffic:
    """F flows as columns."""

    nodes: int
    source: I32
    destination: I32
    size_bytes: I64
    start_ps: I64  # NONE where a trigger starts it
    trigger: I32  # NONE where none does
    send_done: I32  # trigger fired by the sender's last acknowledgement, NONE
    receive_done: I32  # trigger fired by the receiver's last byte, NONE
    triggers: dict[int, Trigger]

    def __len__(self) -> int:
        return len(self.source)


def _number(text: str, what: str, path: Path, line: int, largest: int = _LARGEST) -> int:
    number = whole_or_none(text, most=largest)
    if number is None:
        raise ConfigError(
            f"got {quoted(text)}, expected a whole number up to {largest}", file=path, line=line, key=what
        )
    return number


def read_traffic(path: str | Path) -> Traffic:
    """Read a connection matrix. Raises ConfigError with file, line and key."""
    path = Path(path)
    head: dict[str, int] = {}
    rows: list[tuple[int, dict[str, int]]] = []
    triggers: dict[int, Trigger] = {}
    for number, text in enumerate(read_text(path).splitlines(), 1):
        words = text.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] in ("Nodes", "Connections", "Triggers", "Failures"):
            if len(words) != 2:
                raise ConfigError(f"got {text!r}, expected '{words[0]} N'", file=path, line=number)
            head[words[0]] = _number(words[1], words[0], path, number)
        elif words[0] == "trigger":
            key, trigger = _trigger(words, path, number)
            if key in triggers:
                raise ConfigError(f"got trigger {key} twice", file=path, line=number)
            triggers[key] = trigger
        else:
            rows.append((number, _flow(words, path, number)))
    for name in ("Nodes", "Connections"):
        if name not in head:
            raise ConfigError(f"got no line '{name} N', expected one at the top", file=path, line=1, key=name)
    if len(rows) != head["Connections"]:
        raise ConfigError(f"got {len(rows)} flows, expected {head['Connections']}", file=path, key="Connections")
    if not rows:
        raise ConfigError("got no flows: a run that moves nothing answers nothing", file=path)
    for number, row in rows:
        for end in ("source", "destination"):
            if row[end] >= head["Nodes"]:
                raise ConfigError(
                    f"got node {row[end]}, expected one of the {head['Nodes']} nodes from 0",
                    file=path,
                    line=number,
                )
        for use in ("trigger", "send_done_trigger", "recv_done_trigger"):
            if use in row and row[use] not in triggers:
                raise ConfigError(
                    f"got trigger {row[use]}, which no line defines", file=path, line=number, key=use
                )

    def column(key: str, kind: Any) -> Any:
        return np.array([row.get(key, NONE) for _, row in rows], kind)

    return Traffic(
        nodes=head["Nodes"],
        source=column("source", np.int32),
        destination=column("destination", np.int32),
        size_bytes=column("size", np.int64),
        start_ps=column("start", np.int64),
        trigger=column("trigger", np.int32),
        send_done=column("send_done_trigger", np.int32),
        receive_done=column("recv_done_trigger", np.int32),
        triggers=triggers,
    )


def _trigger(words: list[str], path: Path, line: int) -> tuple[int, Trigger]:
    if len(words) < 4 or words[1] != "id":
        raise ConfigError(f"got {' '.join(words)!r}, expected 'trigger id N oneshot'", file=path, line=line)
    key = _number(words[2], "id", path, line, 2**31 - 1)
    kind = words[3]
    if kind not in _TRIGGERS:
        raise ConfigError(
            f"got {kind!r}, expected one of {', '.join(_TRIGGERS)}{did_you_mean(kind, _TRIGGERS)}",
            file=path,
            line=line,
            key="trigger",
        )
    count = 0
    if kind == "barrier":
        if len(words) < 5:
            raise ConfigError("got a barrier without a count, expected 'barrier N'", file=path, line=line)
        count = _number(words[-1], "barrier", path, line)
    return key, Trigger(kind, count)


def _flow(words: list[str], path: Path, line: int) -> dict[str, int]:
    ends = re.fullmatch(r"(\d+)->(\d+)", words[0])
    if ends is None:
        raise ConfigError(
            f"got {words[0]!r}, expected a flow such as '3->7', or trigger, Nodes, Connections, Triggers",
            file=path,
            line=line,
        )
    row = {
        "source": _number(ends[1], "source", path, line, 2**31 - 1),
        "destination": _number(ends[2], "destination", path, line, 2**31 - 1),
    }
    if row["source"] == row["destination"]:
        raise ConfigError(f"got a flow from node {row['source']} to itself", file=path, line=line)
    if len(words) % 2 == 0:
        raise ConfigError(f"got {words[-1]!r} without a value", file=path, line=line, key=words[-1])
    for key, value in zip(words[1::2], words[2::2], strict=True):
        if key not in _KEYS:
            raise ConfigError(
                f"got {key!r}, expected one of {', '.join(_KEYS)}{did_you_mean(key, _KEYS)}", file=path, line=line
            )
        row[key] = _number(value, key, path, line, 2**31 - 1 if "trigger" in key else _LARGEST)
    if "size" not in row:
        raise ConfigError("got a flow without a size", file=path, line=line, key="size")
    if ("start" in row) == ("trigger" in row):
        raise ConfigError("got a flow with neither or both of start and trigger", file=path, line=line)
    return row


@dataclass(frozen=True)
class TrafficResult:
    """What became of F flows."""

    traffic: Traffic
    start_ps: I64
    received_ps: I64
    done_ps: I64
    unloaded_ps: I64  # the same flow with the network to itself
    options: PacketOptions
    network: PacketNetwork

    @property
    def completion_ps(self) -> I64:
        """From start to the sender's last acknowledgement."""
        took: I64 = self.done_ps - self.start_ps
        return took

    def summary(self) -> dict[str, Any]:
        """The table as data; keys carry their units."""
        took = np.sort(self.completion_ps)
        slow = np.sort(self.completion_ps / np.maximum(self.unloaded_ps, 1))
        state = self.network.machine.state
        clock = state.clock[0]
        n = len(took)
        at99 = min(n - 1, -(-99 * n // 100) - 1)
        queue_pairs = state.qp[: self.network.machine.queue_pairs]
        return {
            "flows": n,
            "bytes": int(self.traffic.size_bytes.sum()),
            "end_us": int(self.done_ps.max()) / 1e6,
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
            "packets": {
                "sent": int(clock.created),
                "hops": int(clock.hops),
                "retransmitted": int(queue_pairs.retransmitted.sum()),
                "dropped": int(clock.dropped),
                "trimmed": int(state.count.trims.sum()),
                "ecn_marked": int(state.count.ecn_marks.sum()),
                "out_of_sequence": int(queue_pairs.out_of_sequence.sum()),
                "cnps": int(queue_pairs.cnps_handled.sum()),
                "timeouts": int(queue_pairs.timeouts.sum()),
            },
            "pauses": {
                "frames": int(state.count.pause_tx.sum()),
                "time_us": int(state.hold.pause_ps.sum()) / 1e6,
            },
            "wait_us": int(self.network.counters().wait_ps.sum()) / 1e6,  # type: ignore[union-attr]
        }


def _unloaded_ps(network: PacketNetwork, traffic: Traffic) -> I64:
    """What each flow takes alone: simulated, once for each shape of path and size.

    Adapters under the same two switches have paths alike, so a few representatives stand for all.
    """
    fabric, routes = network.fabric, network.routes
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
        ],
        axis=1,
    )
    _, lead, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    alone = np.zeros(len(lead), np.int64)
    for i, flow in enumerate(lead.tolist()):
        lone = PacketNetwork(fabric, routes, network.options)
        q = lone.connect([lone.remote(int(traffic.source[flow]), int(traffic.destination[flow]))])
        t = lone.machine.add_tasks([1], [q], [int(traffic.size_bytes[flow])], [_post_ps(fabric, traffic, flow)])
        lone.run()
        task = lone.machine.state.task[t]
        alone[i] = int(task.done_ps - task.start_ps)
    result: I64 = alone[which.reshape(-1)]
    return result


def _memory_bytes(network: PacketNetwork, traffic: Traffic) -> int:
    """What the engine's arrays will hold: a queue pair and a task a flow, and packets, of which there are at most
    as many as fit into the buffers or as all flows have.
    """
    from fabrictwin.kernel.packet.state import state as s

    options, state, flows = network.options, network.machine.state, len(traffic)
    reach = 2 * options.window_packets if options.selective else 0
    control = {"dcqcn": s.dcqcn_dtype.itemsize, "nscc": s.nscc_dtype.itemsize}.get(options.control, 0)
    packets = int(np.maximum(-(-traffic.size_bytes // network.fabric.mtu_bytes), 1).sum())
    room = int(state.port.peer.size) * 2 * (options.credit_bytes or 1 << 20) // network.fabric.mtu_bytes
    links = 2 * int(network.fabric.node_tier.max(initial=1)) + 2
    task = s.task_dtype.itemsize + s.heap_dtype.itemsize + 12
    queue_pair = s.qp_dtype.itemsize + reach + control + 8 * links
    return s.nbytes(state) + flows * (task + queue_pair) + min(packets, room) * s.packet_dtype.itemsize


def _post_ps(fabric: Fabric, traffic: Traffic, flow: int) -> int:
    return int(fabric.nic_post_ps[traffic.source[flow]])


def play_traffic(
    traffic: Traffic,
    fabric: Fabric,
    routes: Routes,
    options: PacketOptions | None = None,
    *,
    slowdown: bool = True,
    capture: CaptureRequest | None = None,
) -> TrafficResult:
    """Play a pattern to its end, and capture it where that is wanted.

    Raises ConfigError where it does not fit, SimulatedError where it fails.
    """
    from fabrictwin.kernel.packet.state import state as s

    options = options or PacketOptions()
    if traffic.nodes > len(fabric.nic_node):
        raise ConfigError(
            f"got traffic for {traffic.nodes} nodes, "
            f"expected at most the {len(fabric.nic_node)} adapters of the cluster",
            key="Nodes",
        )
    network = PacketNetwork(fabric, routes, options)
    pairs = np.stack([traffic.source, traffic.destination], axis=1)
    hops = network.hop_estimate(pairs.tolist(), traffic.size_bytes)
    machine = network.machine
    memory = _memory_bytes(network, traffic)
    check_size(PacketSize(hops, len(traffic), memory), options, "this traffic")
    recorder = capture.start(network) if capture is not None else None
    network.connect(
        [network.remote(int(a), int(b)) for a, b in zip(traffic.source, traffic.destination, strict=True)]
    )
    n = len(traffic)
    kind, queue_pair = [s.MESSAGE] * n, list(range(n))
    size = traffic.size_bytes.tolist()
    post = fabric.nic_post_ps[traffic.source]
    # a flow's clock starts when it is posted, not at 0: a task of its own waits for the start
    delay = post.tolist()
    after: list[tuple[int, int]] = []
    after_done: list[tuple[int, int]] = []
    for start in np.unique(traffic.start_ps[traffic.start_ps > 0]).tolist():
        clock = _join(kind, queue_pair, size, delay, start)
        after += [(int(f), clock) for f in np.flatnonzero(traffic.start_ps == start)]
    for key, trigger in traffic.triggers.items():
        waiting = np.flatnonzero(traffic.trigger == key).tolist()
        sent = np.flatnonzero(traffic.send_done == key).tolist()
        got = np.flatnonzero(traffic.receive_done == key).tolist()
        if not waiting:
            continue
        firing = [(f, True) for f in sent] + [(f, False) for f in got]
        if trigger.kind == "multishot":
            if len(firing) < len(waiting):
                raise ConfigError(
                    f"got {len(waiting)} flows for multishot trigger {key}, which {len(firing)} flows fire"
                )
            gate = _join(kind, queue_pair, size, delay, 0)
            kind[gate] = s.TURNSTILE
            for cause, by_sender in firing:
                (after_done if by_sender else after).append((gate, cause))
            after += [(f, gate) for f in waiting]
            continue
        needed = len(firing) if trigger.kind == "oneshot" else trigger.count
        if not firing or needed > len(firing) or (trigger.kind == "oneshot" and len(firing) > 1):
            raise ConfigError(
                f"got {len(firing)} flows that fire {trigger.kind} trigger {key}, "
                f"expected {'one' if trigger.kind == 'oneshot' else trigger.count}"
            )
        if needed < len(firing):
            raise ConfigError(
                f"got a barrier of {needed} fired by {len(firing)} flows, expected as many as fire it"
            )
        gate = _join(kind, queue_pair, size, delay, 0)
        for cause, by_sender in firing:
            (after_done if by_sender else after).append((gate, cause))
        after += [(f, gate) for f in waiting]
    machine.add_tasks(kind, queue_pair, size, delay, after=_columns(after), after_done=_columns(after_done))
    try:
        network.run()
    finally:
        if recorder is not None:
            recorder.close()
    task = machine.state.task[:n]
    if (task.status != s.DONE).any():
        lost = int((task.status != s.DONE).sum())
        raise SimulatedError("IBV_WC_RETRY_EXC_ERR", "traffic", f"{lost} of {n} flows never completed")
    done, start_ps = task.done_ps.astype(np.int64), task.start_ps.astype(np.int64)
    alone = _unloaded_ps(network, traffic) if slowdown else done - start_ps
    return TrafficResult(traffic, start_ps, task.received_ps.astype(np.int64), done, alone, options, network)


def _join(kind: list[int], queue_pair: list[int], size: list[int], delay: list[int], after_ps: int) -> int:
    from fabrictwin.kernel.packet.state import state as s

    kind.append(s.DELAY)
    queue_pair.append(0)
    size.append(0)
    delay.append(after_ps)
    return len(kind) - 1


def _columns(pairs: list[tuple[int, int]]) -> tuple[I64, I64]:
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def table(result: TrafficResult) -> str:
    """The summary as people read it."""
    data = result.summary()
    lines = [
        f"{data['flows']} flows, {format_size(data['bytes'])}, done after {data['end_us']:.2f} us",
        "",
        f"{'':12}{'mean':>12}{'p50':>12}{'p99':>12}{'max':>12}",
    ]
    for name, key, digits in (("FCT (us)", "completion_us", 2), ("slowdown", "slowdown", 3)):
        row = data[key]
        lines.append(f"{name:12}" + "".join(f"{row[k]:12.{digits}f}" for k in ("mean", "p50", "p99", "max")))
    packets = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in data["packets"].items())
    lines += ["", f"packets: {packets}"]
    if result.network.fabric.technology == "ethernet":
        pauses = data["pauses"]
        lines.append(f"pauses: {pauses['frames']} frames, {pauses['time_us']:.2f} us in all")
    lines.append(f"waiting for credits or leave: {data['wait_us']:.2f} us in all")
    return "\n".join(lines) + "\n"
