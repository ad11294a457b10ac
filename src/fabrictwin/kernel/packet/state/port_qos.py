"""Ports that are configured one by one: plain arrays, and how the state is set by them.

What is not said of a port or priority keeps what `Config` gives to all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state import network_records as network
from fabrictwin.kernel.packet.state.records import records
from fabrictwin.kernel.packet.state.state import State


@dataclass(frozen=True)
class PortQos:
    """P ports, V priorities. NONE where nothing is said of a priority; `ruled` marks the configured ports."""

    ruled: Any  # bool [P]
    group_row: Any  # [P] rows of Config.sl2vl
    queue_row: Any  # [P]
    sends: Any  # [P] priorities that it sends pauses for, a bit each
    obeys: Any  # [P]
    frame: Any  # [P]
    cell: Any  # [P]
    response_ps: Any  # [P]
    detection_ps: Any  # [P]
    restoration_ps: Any  # [P]
    forwards: Any  # [P]
    strict: Any  # [P]
    headroom: Any  # [P, V]
    alpha_q: Any  # [P, V]
    threshold: Any  # [P, V]
    reserve: Any  # [P, V]
    resume: Any  # [P, V]
    kmin: Any  # [P, V]
    kmax: Any  # [P, V]
    pmax_q: Any  # [P, V]
    weight: Any  # [P, V]
    cnp_sl: int = s.NONE
    gap: int = 20


def _said(given: Any, otherwise: Any) -> Any:
    return np.where(given != s.NONE, given, otherwise)


def buffers(qos: PortQos, headroom: Any, reserve: Any) -> tuple[Any, Any]:
    """Return (headroom, reserve) of each slot, [P * V]: what is said, else what all have."""
    return _said(qos.headroom.ravel(), headroom), _said(qos.reserve.ravel(), reserve)


def set_port_qos(state: State, qos: PortQos, *, alpha_q: int, resume: int, quantum: int) -> State:
    """Return the state with configured ports; its arrays of ports are modified in place."""
    ports, lanes = qos.headroom.shape
    port_qos, slot_qos = records(ports, network.port_qos_dtype), records(ports * lanes, network.slot_qos_dtype)
    for name in ("response_ps", "detection_ps", "restoration_ps", "group_row", "queue_row", "frame", "cell"):
        port_qos[name] = getattr(qos, name)
    port_qos.obeys, port_qos.forwards = qos.obeys, qos.forwards
    slot_qos.alpha_q = _said(qos.alpha_q.ravel(), alpha_q)
    slot_qos.threshold = qos.threshold.ravel()
    slot_qos.resume = _said(qos.resume.ravel(), resume)
    bits = (qos.sends[:, None] >> np.arange(lanes)[None]) & 1
    slot_qos.sends = bits.ravel()
    port, ruled = state.port, np.asarray(qos.ruled)
    port.traits[ruled] |= s.RULED
    peer = np.maximum(port.peer, 0)
    port.rx_traits[:] = np.where(port.peer >= 0, port.traits[peer], 0)
    port.strict[ruled] = qos.strict[ruled]
    # what leaves an adapter goes by its own map
    adapter = ruled & (qos.queue_row != s.NONE) & ((state.node.traits[port.node] & s.ENDPOINT) != 0)
    port.sl2vl[adapter] = qos.queue_row[adapter]
    nodes = np.unique(port.node[ruled])
    nodes = nodes[(state.node.traits[nodes] & s.SHARED) != 0]
    state.node.traits[nodes] |= s.CONFIGURED
    slots = np.repeat(ruled, lanes)
    marked = slots & (qos.kmax.ravel() != s.NONE)
    unmarked = slots & (qos.kmax.ravel() == s.NONE)
    state.outlet.kmin[marked], state.outlet.kmax[marked] = qos.kmin.ravel()[marked], qos.kmax.ravel()[marked]
    state.outlet.kmax[unmarked] = 0
    slot_qos.pmax_q = np.where(marked, qos.pmax_q.ravel(), 0)
    weighted = slots & (qos.weight.ravel() != s.NONE)
    least = int(qos.weight[qos.weight != s.NONE].min(initial=1 << 30))
    state.hold.quantum[weighted] = qos.weight.ravel()[weighted] * quantum // max(least, 1)
    state.settings[0].cnp_sl, state.settings[0].gap = qos.cnp_sl, qos.gap
    return state._replace(port_qos=port_qos, slot_qos=slot_qos)
