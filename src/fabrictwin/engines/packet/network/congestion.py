"""InfiniBand congestion control for the packet kernel: what ports and adapters hold as thresholds and delays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.base.units import PS_PER_US
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.congestion_tables import CongestionTables

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.machine import Machine

TICK_PS = 1_024 * PS_PER_US // 1000  # of a CCTI timer
SHARES = 16  # a threshold of w is crossed with more than (16 - w)/16 of a lane's buffer waiting
LOG_EVENTS = 1 << 16
GOLDEN = 0x9E3779B1  # spreads numbers that follow each other over 32 bits


def set_congestion(machine: Machine, tables: CongestionTables) -> None:
    """Let ports and adapters act by these settings from now on; indices and counters stay."""
    machine.use_congestion_tables(LOG_EVENTS)
    _set_ports(machine, tables)
    _set_adapters(machine, tables)


def _set_ports(machine: Machine, tables: CongestionTables) -> None:
    from fabrictwin.kernel.packet.congestion.ibcc import DELAY_BITS
    from fabrictwin.kernel.packet.state import constants as s

    state, lanes = machine.state, machine.config.lanes
    state.port.traits &= ~np.int16(s.STARVES)
    state.outlet.kmax = 0
    used = np.flatnonzero(tables.marking_row != NONE)
    for port, row in zip(used.tolist(), tables.marking_row[used].tolist(), strict=True):
        rule, slots = tables.markings[row], slice(port * lanes, (port + 1) * lanes)
        outlet, lane = state.outlet[slots], state.fecn[slots]
        own = state.inlet.capacity[slots] << s.BLOCK_BITS
        lane.smallest, lane.rate, lane.victim = rule.packet_size << s.BLOCK_BITS, rule.marking_rate, rule.victim
        peer = int(state.port.peer[port])
        lane.buffer = state.inlet.capacity[peer * lanes : (peer + 1) * lanes] << s.BLOCK_BITS
        if rule.threshold:
            outlet.kmin = np.minimum(own * (SHARES - rule.threshold) // SHARES, 2**31 - 1)
            outlet.kmax = 1
        if rule.starvation:
            shift, multiplier = rule.return_delay
            state.port.traits[port] |= s.STARVES
            lane.fills = state.inlet.capacity[slots] * (SHARES - rule.starvation) // SHARES
            lane.delay_q = multiplier << (DELAY_BITS - shift)
    plugged = np.maximum(state.port.peer, 0)
    state.port.rx_traits = np.where(state.port.peer >= 0, state.port.traits[plugged], 0)


def _set_adapters(machine: Machine, tables: CongestionTables) -> None:
    from fabrictwin.kernel.packet.congestion.ibcc import DELAY_BITS, LEVELS, TABLE_ENTRIES

    delays = np.zeros((max(len(tables.controls), 1), TABLE_ENTRIES), np.int64)
    for row, control in enumerate(tables.controls):
        for i, (shift, multiplier) in enumerate(control.table):
            delays[row, i] = multiplier << (DELAY_BITS - shift)
    machine.state = machine.state._replace(delays=delays)
    settings = machine.state.ibcc_settings[: len(tables.control_row) * LEVELS].reshape(-1, LEVELS)
    settings.active = 0
    for row, control in enumerate(tables.controls):
        mine = np.flatnonzero(tables.control_row == row)
        phase = mine * GOLDEN & 0xFFFFFFFF  # timers of adapters started at times of their own
        for sl, level in enumerate(control.levels):
            if level is None:
                continue
            columns = {
                "active": 1,
                "by_level": control.by_level,
                "timer_ps": level.timer * TICK_PS,
                "phase_ps": phase % max(level.timer * TICK_PS, 1),
                "increase": level.increase,
                "trigger": level.trigger,
                "minimum": level.minimum,
                "limit": control.limit,
                "table": row,
            }
            for name, value in columns.items():
                settings[name][mine, sl] = value
