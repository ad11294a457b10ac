"""What a manager does with datagrams that nobody asked for, and with settings that change while it works."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.sm_fabrics import Site, two_tiers

from fabrictwin.subnet.agents.mad_routing import Frame
from fabrictwin.subnet.manager.port_complaints import COMPLAINTS, KEY_TRAPS
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.operation.managed_fabric import ManagedFabric
from fabrictwin.subnet.wire.header import LidSmp, MadClass, Method, SaMad
from fabrictwin.subnet.wire.notice import Notice, Trap
from fabrictwin.subnet.wire.sa import RecordId
from fabrictwin.subnet.wire.smp import AttributeId, SmState


@pytest.fixture
def site():
    return Site(two_tiers(2, 1, 2))


def trap(site, number, issuer, details=b""):
    notice = Notice(is_generic=1, type=1, trap_number=number, issuer_lid=issuer, details=details.ljust(54, b"\0"))
    return LidSmp(method=Method.TRAP, tid=77, attribute=AttributeId.NOTICE, data=notice.encode()).encode()


def heard(site, mad):
    manager = site.hosted.manager
    manager.wants_sweep = False
    out = manager.receive(Frame(1, 9, 0, 0, bytes(mad)), site.now)
    return [one.mad[3] for one in out], manager.wants_sweep


@pytest.mark.parametrize("state", list(SmState))
def test_a_manager_that_is_not_master_answers_for_itself_alone(site, state):
    manager = site.hosted.manager
    manager.election.state = state
    master = state == SmState.MASTER
    query = SaMad(method=Method.GET, tid=5, attribute=RecordId.CLASS_PORT_INFO).encode()
    assert heard(site, query)[0] == ([0x81] if master else [])
    leaf = site.state.lid(site.slot("leaf-0", 0))
    assert heard(site, trap(site, Trap.LINK_STATE_CHANGE, leaf)) == (([7], True) if master else ([], False))
    asked = LidSmp(method=Method.GET, tid=5, attribute=AttributeId.SM_INFO).encode()
    assert heard(site, asked)[0] == [0x81]
    assert manager.malformed == 0


def test_what_is_none_of_its_own_or_malformed_is_dropped(site):
    manager = site.hosted.manager
    for kind, method, attribute in (
        (MadClass.PERF, Method.GET, 1),
        (MadClass.SUBN_LID, Method.GET, AttributeId.NODE_INFO),
        (MadClass.SUBN_LID, 0x81, AttributeId.SM_INFO),
        (MadClass.SUBN_LID, Method.TRAP_REPRESS, AttributeId.NOTICE),
    ):
        mad = bytearray(LidSmp(method=method, attribute=attribute).encode())
        mad[1] = kind
        assert heard(site, mad) == ([], False)
    assert manager.malformed == 0
    for size in (255, 0):
        assert heard(site, bytes(size)) == ([], False)
    assert manager.malformed == 2


@pytest.mark.parametrize(
    "number", sorted({*COMPLAINTS, *KEY_TRAPS, Trap.LINK_STATE_CHANGE, Trap.LOCAL_CHANGES, 64})
)
@pytest.mark.parametrize("known", [True, False])
def test_traps_are_repressed_and_some_call_for_a_sweep(site, number, known):
    manager = site.hosted.manager
    told = []
    manager.administration.reports.report = lambda notice, guid: told.append((notice.trap_number, guid))
    leaf = site.state.find("leaf-0")
    issuer = site.state.lid(site.state.end_slot(leaf)) if known else 0x1234
    manager._trap_issuers.clear()
    methods, sweeps = heard(site, trap(site, number, issuer))
    assert methods == [Method.TRAP_REPRESS]
    changed = number in (Trap.LINK_STATE_CHANGE, Trap.LOCAL_CHANGES)
    assert sweeps == (changed or (known and number in (*COMPLAINTS, *KEY_TRAPS)))
    assert manager._trap_issuers == ({site.state.guid[leaf]} if known and changed else set())
    assert told == [(number, site.state.port_guid[leaf] if known else 0)]


def test_settings_hold_from_the_next_sweep_on(site):
    manager = site.hosted.manager
    before, other = manager.settings, replace(manager.settings, m_key=0x77, subnet_timeout=9)
    manager.wants_sweep = manager.wants_heavy = False
    manager.reconfigure(other)
    assert (manager.wants_sweep, manager.wants_heavy, manager.settings) == (True, True, before)
    site.settle()
    parts = (manager, manager.database, manager.election, manager.programmer)
    assert all(part.settings is other for part in parts)
    assert (manager.transport.m_key, manager._next_settings) == (0x77, None)
    assert (manager.wants_sweep, manager.wants_heavy) == (False, False)
    assert [one.kind for one in site.hosted.reports] == ["heavy", "heavy"]
    manager.reconfigure(replace(other, m_key=0x78))
    forgotten = []
    manager.programmer.forget_lanes = lambda: forgotten.append(True)
    site.settle()
    assert forgotten == [True]
    manager.sweep()
    assert forgotten == [True]  # no settings wait any more


def test_settings_are_taken_when_they_are_planned(site):
    fabric = ManagedFabric(site.endpoint, site.managers)
    fabric.start()
    plane, manager = fabric.planes[0], site.hosted.manager
    assert fabric.managers == site.managers
    known = len(site.hosted.reports)
    other = Settings(subnet_timeout=9)
    at = plane.clock_ps + 10**12
    fabric.plan_settings(at, other)
    assert plane.next_ps() == at
    fabric.plan_settings(0, replace(other, subnet_timeout=10))  # of the past: at once
    assert plane.next_ps() == plane.clock_ps
    fabric.step()
    assert manager.settings.subnet_timeout == 10
    assert len(site.hosted.reports) == known + 1
    fabric.settle()
    assert manager.settings is other
    assert fabric.incidents == []
    assert fabric.now_ps == plane.clock_ps > at


def test_what_happens_is_noted_with_its_times(site):
    fabric = ManagedFabric(site.endpoint, site.managers)
    fabric.start()
    plane = fabric.planes[0]
    at = plane.clock_ps + 7_000_000
    fabric.plan(at, "cut leaf-0/3", site.state.find("leaf-0"))
    effects = fabric.settle()
    (one,) = fabric.incidents
    assert (one.happened, one.what, one.at_ps) == ([(at, "cut leaf-0/3")], "cut leaf-0/3", at)
    timing = site.hosted.transport.timing
    # the leaf's trap: an agent's time and one hop to host-0
    assert one.noticed_ps == at + timing.agent_ps + timing.hop_ps
    assert one.settled_ps == plane.clock_ps == fabric.now_ps
    assert one.sweeps == site.hosted.reports[-len(one.sweeps) :]
    ports = {(effect.port, effect.up) for effect in effects if hasattr(effect, "up")}
    ends = [site.slot("leaf-0", 3), site.state.cable[site.slot("leaf-0", 3)]]
    assert ports == {(int(site.state.fabric_port[slot]), False) for slot in ends}
    assert [effect.time_ps for effect in effects] == sorted(effect.time_ps for effect in effects)
    assert plane.open is None
