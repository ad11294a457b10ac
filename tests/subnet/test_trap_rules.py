"""Rules of traps one by one: when they come, when they are repeated, and what ends them.

InfiniBand Architecture, volume 1, chapter 13.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.agent_requests import Agent

from fabrictwin.subnet.agents import flow_control
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.flow_control import OVERRUN, WATCHDOG, FlowControl
from fabrictwin.subnet.wire.header import Status
from fabrictwin.subnet.wire.notice import LocalChangesDetails, Notice, Trap
from fabrictwin.subnet.wire.smp import AttributeId, PortInfo

BAD = Status.BAD_FIELD
MS = 10**9


def managed(state: SubnetState, name: str) -> int:
    m = state.find(name)
    slot = state.end_slot(m)
    state.put(slot, replace(PortInfo.decode(state.get(slot)), lid=40 + m, master_sm_lid=1, subnet_timeout=10))
    return m


@pytest.mark.parametrize("changes", range(8))
def test_changes_are_told_bit_by_bit(state, changes):
    m = managed(state, "host-0/mlx5_0")
    state.notices.raise_trap(m, Trap.LOCAL_CHANGES, 0, changes=changes)
    (trap,) = state.notices.due(0)
    details = LocalChangesDetails.decode(trap.notice.details)
    bits = (details.node_description_change, details.link_width_enabled_change, details.link_speed_enabled_change)
    assert bits == (changes & 1, changes >> 1 & 1, changes >> 2 & 1)
    assert (details.other_local_changes, details.lid) == (int(changes > 0), 40 + m)
    assert details.capability_mask == PortInfo.decode(state.get(state.end_slot(m))).capability_mask
    assert (trap.notice.type, trap.notice.producer_type, trap.notice.trap_number) == (4, 1, 144)


def test_traps_are_repeated_until_they_are_repressed(state):
    m = managed(state, "leaf-0")
    notices = state.notices
    for trap, port in ((Trap.LINK_STATE_CHANGE, 0), (Trap.BUFFER_OVERRUN, 3)):
        notices.raise_trap(m, trap, 100, port=port)
        notices.raise_trap(m, trap, 50, port=port)  # the same: due earlier
    assert len(notices.pending) == 2
    assert notices.next_ps(0) == 50
    assert notices.due(49) == []
    first = notices.due(50)
    assert [t.tid for t in first] == [0x7A70_0000_0000_0001, 0x7A70_0000_0000_0002]
    assert [(t.notice.type, t.notice.producer_type, t.notice.issuer_lid) for t in first] == [(1, 2, 40 + m)] * 2
    assert first[0].notice.details[:2] == first[1].notice.details[2:4] == (40 + m).to_bytes(2, "big")
    assert first[1].notice.details[4] == 3
    again = 50 + (4_096_000 << 10)
    assert notices.next_ps(0) == again
    assert notices.due(again - 1) == []
    assert len(notices.due(again)) == 2
    notices.repress(m, Notice(trap_number=Trap.BUFFER_OVERRUN, details=first[0].notice.details))
    assert len(notices.pending) == 2
    notices.repress(m, first[0].notice)
    assert [t.notice.trap_number for t in notices.pending] == [130]
    assert notices.next_ps(1) is None
    notices.due(again, plane=1)
    assert len(notices.pending) == 1
    state.alive[m] = False
    assert notices.next_ps(0) is None
    notices.due(again)
    assert notices.pending == []
    other = state.find("leaf-1")  # knows no manager
    notices.raise_trap(other, Trap.LINK_STATE_CHANGE, 0)
    assert notices.next_ps(0) is None
    assert notices.due(0) == []
    assert notices.pending == []


def test_a_manager_shows_in_its_port(state):
    agent = Agent(state, "host-0/mlx5_0")
    managed(state, "host-0/mlx5_0")
    before = PortInfo.decode(state.get(agent.entry)).capability_mask
    agent.agent.set_is_sm(agent.m, True, 0)
    assert PortInfo.decode(state.get(agent.entry)).capability_mask == before | 2
    agent.agent.set_is_sm(agent.m, True, 0)
    assert len(state.notices.pending) == 1
    agent.agent.set_is_sm(agent.m, False, 0)
    assert PortInfo.decode(state.get(agent.entry)).capability_mask == before
    assert len(state.notices.pending) == 2
    agent.agent.describe(agent.m, b"x" * 70, 0)
    assert agent.get(AttributeId.NODE_DESCRIPTION) == (0, b"x" * 64)
    assert LocalChangesDetails.decode(state.notices.pending[-1].notice.details).node_description_change == 1


def test_ports_that_break_flow_control_are_complained_of(state):
    leaf = managed(state, "leaf-0")
    host = state.find("host-0/mlx5_0")
    control = FlowControl(state, state.notices)
    slot, far = state.end_slot(host), state.base[leaf] + 1
    state.put(far, replace(PortInfo.decode(state.get(far)), overrun_errors=4))
    # HDR: a lane of 50 Gb/s carries a byte in 160 ps
    assert control.period_ps(far, OVERRUN) == 4 * 65_536 * 160
    assert control.period_ps(far, WATCHDOG) == 400_000 * 160
    state.put(far, replace(PortInfo.decode(state.get(far)), overrun_errors=0))
    period = control.period_ps(far, OVERRUN)
    assert period == 65_536 * 160
    assert not control.heal(slot, 0)
    control.misbehave(slot, OVERRUN, 1000)
    assert control.next_ps(0) == 1000 + period
    assert control.next_ps(1) is None
    control.advance(1000 + period - 1)
    assert state.counters["excessive_buffer_overrun_errors"][far] == 0
    control.advance(1000 + 3 * period)
    assert state.counters["excessive_buffer_overrun_errors"][far] == 3
    assert control.next_ps(0) is None  # one event is enough to wait for
    (trap,) = state.notices.due(1000 + 3 * period)
    assert (trap.notice.trap_number, trap.notice.details[4], trap.slot) == (130, 1, state.base[leaf])
    control.awaited_events = 9
    assert control.next_ps(0) == 1000 + 4 * period
    state.take_down(slot, 10**9)
    control.advance(10**9)
    assert control.next_ps(0) is None
    state.bring_up(slot, 2 * 10**9)
    control.advance(2 * 10**9)
    assert control.next_ps(0) == 2 * 10**9 + period
    assert control.heal(slot, 2 * 10**9)
    assert control.next_ps(0) is None
    control.misbehave(slot, WATCHDOG, 0)
    control.advance(400_000 * 160)
    assert state.counters["link_error_recovery"][far] == 1
    assert (flow_control.UPDATE_SYMBOLS, flow_control.WATCHDOG_SYMBOLS, MS) == (65_536, 400_000, 10**9)
