"""Ports that break flow control: what the other end counts and tells, and what the manager makes of it."""

from __future__ import annotations

import pytest
from support.sm_fabrics import two_tiers

from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.flow_control import OVERRUN, WATCHDOG
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.operation.scenario import Scenario
from fabrictwin.subnet.serve.console import obey
from fabrictwin.subnet.serve.endpoint import Endpoint
from fabrictwin.subnet.wire.notice import Notice, PortDetails
from fabrictwin.subnet.wire.smp import PhysState, PortInfo

# a byte on a lane of HDR, 50 Gb/s: 160 ps; OverrunErrors is 8
PERIOD_PS = {OVERRUN: 8 * 65_536 * 160, WATCHDOG: 400_000 * 160}
COUNTER = {OVERRUN: "excessive_buffer_overrun_errors", WATCHDOG: "link_error_recovery"}


def scenario_of(**settings) -> Scenario:
    scenario = Scenario(Endpoint(Network(SubnetState(two_tiers()))), settings=Settings(**settings))
    scenario.start()
    return scenario


@pytest.mark.parametrize(("word", "trap"), [("overrun", OVERRUN), ("mute", WATCHDOG)])
def test_the_other_end_counts_by_time_and_tells_each_time(word, trap):
    endpoint = scenario_of().endpoint
    state, network = endpoint.state, endpoint.network
    slot, far = state.base[state.find("leaf-0")] + 5, state.base[state.find("spine-0")] + 1
    start = 10**12
    obey(state, f"{word} leaf-0/5", start)

    def told(now_ps: int) -> list[Notice]:
        notices = [Notice.decode(outcome.frame.mad, 64) for outcome in network.traps(now_ps)]
        state.notices.pending.clear()
        return notices

    period = PERIOD_PS[trap]
    assert state.flow_control.next_ps(0) == start + period
    assert told(start + period - 1) == []
    (notice,) = told(start + period)
    assert (notice.trap_number, PortDetails.decode(notice.details).port) == (trap, 1)
    assert notice.issuer_lid == state.lid(state.end_slot(state.find("spine-0")))
    assert len(told(start + 4 * period)) == 1
    assert (state.counters[COUNTER[trap]][far], state.counters[COUNTER[trap]][slot]) == (4, 0)
    state.cut_cable(slot, start + 5 * period)
    state.notices.pending.clear()
    assert told(start + 50 * period) == []
    state.mend_cable(slot, start + 50 * period)
    state.notices.pending.clear()
    told(start + 51 * period)
    assert state.counters[COUNTER[trap]][far] == 4, "it begins anew when the link is back"
    told(start + 52 * period)
    assert state.counters[COUNTER[trap]][far] == 5
    assert obey(state, "heal leaf-0/5", start + 52 * period) == "leaf-0/5: heal"
    assert told(start + 99 * period) == []
    assert obey(state, "heal leaf-0/5", start + 99 * period) == "leaf-0/5 was well"


@pytest.mark.parametrize(("word", "trap"), [("overrun", OVERRUN), ("mute", WATCHDOG)])
def test_the_manager_names_the_port_and_changes_nothing(word, trap):
    scenario = scenario_of()
    before = scenario.endpoint.state.lft.copy()
    incident = scenario.do(f"{word} leaf-0/5")
    assert PERIOD_PS[trap] < incident.noticed_ps - incident.at_ps < PERIOD_PS[trap] + 10**9
    (finding,) = incident.sweeps[-1].findings
    assert (finding.kind, finding.where) == ("port in trouble", "MF0;spine-0:MQM8700/U1/1")
    assert f"trap {int(trap)}" in finding.text
    assert "leaf-0" in finding.text
    assert (scenario.endpoint.state.lft == before).all()
    assert incident.paths == []


def test_a_babbling_port_is_disabled_and_routed_around():
    scenario = scenario_of(babbling_traps=3)
    state = scenario.endpoint.state
    incident = scenario.do("overrun leaf-0/5")
    far = state.base[state.find("spine-0")] + 1
    assert PortInfo.decode(state.get(far)).port_physical_state == PhysState.DISABLED
    assert any("disabled after 3 traps" in str(finding) for finding in incident.sweeps[-1].findings)
    assert state.counters["excessive_buffer_overrun_errors"][far] == 3
    ends = [state.end_slot(state.find(f"host-{i}/mlx5_0")) for i in range(16)]
    route = scenario.endpoint.network.route
    assert all(route(a, state.lid(b))[0] == b for a in ends for b in ends)
    assert incident.paths
    assert all(path.outage_ps > 0 for path in incident.paths if path.adapter)
    assert scenario.fabric.next_ps() >= 2**62
