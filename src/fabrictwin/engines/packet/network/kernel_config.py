"""Options of a run as the packet kernel's configuration: balance, congestion control, lanes, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.packet.congestion_parameters import NSCC, dcqcn_parameters
from fabrictwin.engines.packet.network.model import NetworkModel
from fabrictwin.engines.packet.network.qos_rows import qos_config
from fabrictwin.engines.packet.network.virtual_lanes import lane_tables
from fabrictwin.fabric.fabric import NONE

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.machine import Machine
    from fabrictwin.kernel.packet.state.build import Config


def build_config(model: NetworkModel, work_ports: int) -> Config:
    """Return the kernel's configuration; `work_ports` stand behind the fabric's and know no service levels."""
    from fabrictwin.kernel.packet.state import state as s
    from fabrictwin.kernel.packet.state.build import Config

    fabric, options = model.fabric, model.options
    balance = {"adaptive": s.ADAPTIVE, "spray": s.ECMP}.get(
        options.balance, s.LFT if fabric.technology == "infiniband" else s.ECMP
    )
    lanes, more = _control(model)
    frame = fabric.mtu_bytes + model.headers.data
    more |= lane_tables(
        fabric, model.routes, options, lanes=lanes, strict=more.get("strict", 0), frame_bytes=frame
    )
    if options.qos is not None:
        more |= qos_config(model, options.qos, work_ports)
    if work_ports:
        for name, otherwise in (("port_sl2vl", 0), ("sl2vl_by_input", 0), ("port_arbitration", NONE)):
            if len(more.get(name, ())):
                more[name] = np.concatenate([more[name], np.full(2 * work_ports, otherwise)])
    return Config(
        lanes=lanes,
        mtu_bytes=fabric.mtu_bytes,
        header_bytes=model.headers.data,
        ack_bytes=model.headers.acknowledgement,
        balance=balance,
        lossless=0xFF if options.lossless and options.control != "nscc" else 0,
        credit_batch_bytes=options.credit_batch_bytes,
        hoq_ps=options.hoq_ps,
        alpha_q=options.buffer_alpha_256,
        window_packets=options.window_packets,
        seed=options.seed,
        **more,
    )


def _control(model: NetworkModel) -> tuple[int, dict[str, Any]]:
    """Lanes, and the marking and trimming that congestion control asks of switches."""
    options, lanes = model.options, model.lanes
    if options.control == "dcqcn":
        parameters = dcqcn_parameters(options.dcqcn)
        return lanes, {
            "ecn_kmin_bytes": parameters.ecn.kmin_bytes,
            "ecn_kmax_bytes": parameters.ecn.kmax_bytes,
            "ecn_bps": parameters.ecn.rate_bps,
            "ecn_pmax_q": round(parameters.ecn.pmax * 2**32),
            "cnp_ps": parameters.cnp_ps,
        }
    if options.control == "nscc":
        lanes = max(lanes, 2)  # trimmed headers and acknowledgements go first
        return lanes, {
            "ecn_kmin_bytes": NSCC.kmin_bytes,
            "ecn_kmax_bytes": NSCC.kmax_bytes,
            "ecn_bps": 400 * 10**9,
            "ecn_pmax_q": 2**32 - 1,
            "strict": 1 << (lanes - 1),
            "trim_wire_bytes": model.headers.data,
            "trim_lane": lanes - 1,
            "queue_limit_bytes": model.bdp_bytes,
        }
    return lanes, {}


def set_endpoints(machine: Machine, model: NetworkModel) -> None:
    """Give adapters their times."""
    endpoint, fabric = machine.state.endpoint, model.fabric
    endpoint.message_ps[: len(fabric.nic_node)] = fabric.nic_message_ps
    endpoint.deliver_ps[: len(fabric.nic_node)] = fabric.nic_deliver_ps


def set_control(machine: Machine, model: NetworkModel) -> None:
    """Give congestion control its parameters (`docs/packet.md` has NSCC's formulas)."""
    options, state = model.options, machine.state
    if options.control == "dcqcn":
        named, into = dcqcn_parameters(options.dcqcn), state.dcqcn_settings
        for name in ("alpha_ps", "decrease_ps", "increase_ps", "byte_counter", "g_shift", "fast"):
            into[name] = getattr(named, name)
        into.additive = named.scaled_kbps(named.additive_mbps, model.nic_bps)
        into.hyper = named.scaled_kbps(named.hyper_mbps, model.nic_bps)
        into.minimum = named.minimum_mbps * 1000
    elif options.control == "nscc":
        n, mtu, rtt = state.nscc_settings, model.fabric.mtu_bytes, model.round_trip_ps
        target = rtt * NSCC.target_of_rtt[0] // NSCC.target_of_rtt[1]
        reference = NSCC.reference_bps * NSCC.reference_ps // (8 * PS_PER_S)
        a, b = model.bdp_bytes / reference, target / NSCC.reference_ps
        n.target_ps, n.adjust_ps, n.adjust_bytes = target, rtt, 8 * mtu
        n.gamma_q, n.fair, n.eta = round(NSCC.gamma * 65536), round(5 * mtu * a), round(0.15 * mtu * a)
        n.alpha_q, n.fast_q = round(4 * mtu * a * b / target * 2**24), round(0.25 * a * 65536)
        n.fast_ps, n.gate_shift, n.minimum = 1_000_000, 3, mtu
