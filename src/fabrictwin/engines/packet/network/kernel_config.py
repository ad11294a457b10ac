"""Options of a run as the packet kernel's configuration: balance, congestion control, lanes, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin.base.grouped import grouped
from fabrictwin.engines.packet.network.model import NetworkModel
from fabrictwin.engines.packet.network.qos_rows import qos_config
from fabrictwin.engines.packet.network.virtual_lanes import lane_tables
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.fabric.fabric import NONE

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.machine import Machine
    from fabrictwin.kernel.packet.state.config import Config

CN_BYTES = 16  # reserved bytes of a congestion notification packet (annex A10)


def build_config(model: NetworkModel, work_ports: int) -> Config:
    """Return the kernel's configuration; `work_ports` stand behind the fabric's and know no service levels."""
    from fabrictwin.kernel.packet.state import constants as s
    from fabrictwin.kernel.packet.state.config import Config

    fabric, options = model.fabric, model.options
    balance = {"adaptive": s.ADAPTIVE, "spray": s.ECMP}.get(
        options.balance, s.LFT if fabric.technology == "infiniband" else s.ECMP
    )
    control = options.congestion.algorithm
    lanes = max(model.lanes, 2) if control.trims else model.lanes
    more: dict[str, Any] = {}
    for name in reversed(options.congestion.used):
        # the first goes over the others: lanes of those mark by their own thresholds (`set_control`)
        more |= options.congestion.named(name).switches(model.scale, lanes)
    frame = fabric.mtu_bytes + model.headers.data
    more |= lane_tables(
        fabric, model.routes, options, lanes=lanes, strict=more.get("strict", 0), frame_bytes=frame
    )
    if options.lanes.qos is not None:
        more |= qos_config(model, options.lanes.qos, work_ports)
    if work_ports:
        for name, otherwise in (("port_sl2vl", 0), ("sl2vl_by_input", 0), ("port_arbitration", NONE)):
            if len(more.get(name, ())):
                more[name] = np.concatenate([more[name], np.full(2 * work_ports, otherwise)])
    if fabric.technology == "infiniband":
        more["cnp_wire_bytes"] = model.headers.data + CN_BYTES
    more |= {
        "lanes": lanes,
        "mtu_bytes": fabric.mtu_bytes,
        "header_bytes": model.headers.data,
        "ack_bytes": model.headers.acknowledgement,
        "balance": balance,
        "lossless": _lossless(options),
        "credit_batch_bytes": options.switching.credit_batch_bytes,
        "hoq_ps": options.switching.hoq_ps,
        "alpha_q": options.switching.buffer_alpha_256,
        "window_packets": options.transport.window_packets,
        "seed": options.seed,
    }
    return grouped(Config(), more)


def _lossless(options: PacketOptions) -> int:
    """Return the priorities that are paused, a bit each."""
    if not options.switching.lossless or "lossless" in options.congestion.algorithm.decides:
        return 0
    return 0xFF & ~sum(1 << priority for priority in set(options.switching.lossy_priorities))


def set_endpoints(machine: Machine, model: NetworkModel) -> None:
    """Give adapters their times."""
    endpoint, fabric = machine.state.endpoint, model.fabric
    endpoint.message_ps[: len(fabric.nic_node)] = fabric.nic_message_ps
    endpoint.deliver_ps[: len(fabric.nic_node)] = fabric.nic_deliver_ps


def set_control(machine: Machine, model: NetworkModel) -> None:
    """Give congestion controls their parameters (`docs/packet.md` has NSCC's formulas), and their lanes marks."""
    congestion = model.options.congestion
    for name in congestion.used:
        for column, value in congestion.named(name).settings(model.scale).items():
            getattr(machine.state, f"{name}_settings")[column] = value
    if congestion.controls and model.options.lanes.qos is None:
        _mark_lanes(machine, model)


def _mark_lanes(machine: Machine, model: NetworkModel) -> None:
    """Let lanes that connections of one control alone use mark as that one asks; the rest mark as most ask."""
    from fabrictwin.kernel.packet.state import constants as s

    congestion, lanes, state = model.options.congestion, machine.config.lanes, machine.state
    own = dict(congestion.controls)
    rate = machine.wiring.port_bps.astype(np.float64)
    marks = (state.port.traits & (s.CREDIT | s.INTERNAL)) == 0
    for lane in range(lanes):
        # beside the lane's own number only levels that a control was named for are known to be used
        names = {own.get(lane, congestion.control)} | {own[level] for level in own if level % lanes == lane}
        if len(names) > 1:
            continue
        asked = congestion.named(names.pop()).switches(model.scale, lanes)
        for column in ("kmin", "kmax"):
            at, bps = asked.get(f"ecn_{column}_bytes", 0), asked.get("ecn_bps", 0)
            scaled = np.minimum(at * rate / bps if bps else np.full(len(rate), float(at)), 2**31 - 1)
            state.outlet[column][lane::lanes] = np.where(marks, scaled, 0).astype(np.int64)
