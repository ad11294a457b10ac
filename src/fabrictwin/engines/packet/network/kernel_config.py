"""Options of a run as the packet kernel's configuration: balance, congestion control, lanes, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin.base.grouped import grouped
from fabrictwin.engines.packet.network.model import NetworkModel
from fabrictwin.engines.packet.network.qos_rows import qos_config
from fabrictwin.engines.packet.network.virtual_lanes import lane_tables
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
    more: dict[str, Any] = dict(control.switches(model.scale, lanes))
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
        "lossless": 0xFF if options.switching.lossless and "lossless" not in control.decides else 0,
        "credit_batch_bytes": options.switching.credit_batch_bytes,
        "hoq_ps": options.switching.hoq_ps,
        "alpha_q": options.switching.buffer_alpha_256,
        "window_packets": options.transport.window_packets,
        "seed": options.seed,
    }
    return grouped(Config(), more)


def set_endpoints(machine: Machine, model: NetworkModel) -> None:
    """Give adapters their times."""
    endpoint, fabric = machine.state.endpoint, model.fabric
    endpoint.message_ps[: len(fabric.nic_node)] = fabric.nic_message_ps
    endpoint.deliver_ps[: len(fabric.nic_node)] = fabric.nic_deliver_ps


def set_control(machine: Machine, model: NetworkModel) -> None:
    """Give congestion control its parameters (`docs/packet.md` has NSCC's formulas)."""
    for column, value in model.options.congestion.algorithm.settings(model.scale).items():
        getattr(machine.state, f"{model.options.congestion.control}_settings")[column] = value
