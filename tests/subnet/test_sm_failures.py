"""The manager when something breaks or comes back, and when there are several managers."""

from __future__ import annotations

import numpy as np
import pytest
from support.sm_fabrics import Site, two_tiers

from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.manager.mad_transport import MadTiming
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.operation.manager_host import first_adapter, settle
from fabrictwin.subnet.wire.smp import PortInfo, SmState


def entries(site: Site) -> dict[str, np.ndarray]:
    names = {row: site.state.description[m].decode() for m, row in site.state.row.items()}
    return {names[row]: site.state.lft[row].copy() for row in names}


def test_a_cut_cable_moves_only_what_went_over_it_and_the_outage_is_told():
    site = Site()
    before = entries(site)
    cut = site.slot("leaf-0", 5)
    lost_here = int((site.state.lft[site.state.row[site.state.find("leaf-0")]] == 5).sum())
    at = site.now
    site.state.cut_cable(cut, at)
    site.settle()
    after = entries(site)
    report = site.hosted.reports[-1]
    assert report.kind == "light"
    assert site.all_arrive()
    leaf = before["MF0;leaf-0:MQM8700/U1"], after["MF0;leaf-0:MQM8700/U1"]
    assert set(np.flatnonzero(leaf[0] != leaf[1])) == set(np.flatnonzero(leaf[0] == 5))
    # others change only what they sent to leaf-0's hosts, or to the spine, over the dead link
    concerned = {site.state.lid(site.state.end_slot(site.state.find(f"host-{i}/mlx5_0"))) for i in range(4)}
    concerned |= {site.state.lid(site.state.end_slot(site.state.find(n))) for n in ("leaf-0", "spine-0")}
    for name, old in before.items():
        if "leaf-0" not in name:
            assert set(np.flatnonzero(old != after[name])) <= concerned
    assert report.rerouting.broken_paths >= lost_here
    changed = sum(int((before[name] != after[name]).sum()) for name in before)
    assert report.rerouting.entries == changed
    assert at < report.rerouting.repaired_ps <= report.ended_ps
    assert site.hosted.reports[-1].gone == ()


def test_the_broken_paths_are_those_that_walking_the_old_tables_finds():
    site = Site()
    state = site.state
    state.cut_cable(site.slot("spine-1", 3), site.now)
    hosts = [state.find(f"host-{i}/mlx5_0") for i in range(16)]
    leaves = [state.find(f"leaf-{i}") for i in range(4)]
    everybody = hosts + leaves + [state.find(f"spine-{i}") for i in range(2)]
    broken = sum(
        site.endpoint.network.route(state.base[leaf], state.lid(state.end_slot(to)))[0] == NONE
        for leaf in leaves
        for to in everybody
    )
    site.settle()
    assert site.hosted.reports[-1].rerouting.broken_paths == broken > 0


def test_a_cable_that_comes_back_brings_the_tables_back():
    site = Site()
    before = entries(site)
    cut = site.slot("leaf-0", 5)
    site.state.cut_cable(cut, site.now)
    site.settle()
    assert any((before[n] != t).any() for n, t in entries(site).items())
    site.state.mend_cable(cut, site.now)
    site.settle()
    assert site.hosted.reports[-1].kind == "heavy"
    assert all((before[n] == t).all() for n, t in entries(site).items())
    assert site.all_arrive()


def test_a_dead_switch_is_gone_and_its_reboot_gives_it_its_lid_and_tables_again():
    site = Site()
    before = entries(site)
    spine = site.state.find("spine-1")
    lid = site.state.lid(site.state.end_slot(spine))
    site.state.power_off(spine, site.now)
    site.settle()
    report = site.hosted.reports[-1]
    assert report.gone == ("MF0;spine-1:MQM8700/U1/0",)
    assert site.all_arrive()
    site.state.power_cycle(spine, site.now)
    site.settle()
    assert site.state.lid(site.state.end_slot(spine)) == lid
    assert all((before[n] == t).all() for n, t in entries(site).items())
    assert site.hosted.reports[-1].arrived == ("MF0;spine-1:MQM8700/U1/0",)
    assert site.all_arrive()


def test_a_switch_whose_agent_hangs_is_lost_and_what_lies_behind_it_is_not():
    site = Site(two_tiers(4, 3, 4))
    site.state.silent.add(site.state.find("spine-0"))
    site.hosted.manager.light_sweep()
    assert [str(f) for f in site.hosted.manager.database.subnet.findings] == [
        "lost node: MF0;spine-0:MQM8700/U1: its links are up, and it does not answer any more"
    ]
    assert len(site.hosted.manager.database.subnet.switches) == 6
    hosts = [m for m, switch in enumerate(site.state.is_switch) if not switch]
    assert all(site.arrives(a, b) for a in hosts for b in hosts)
    dead = site.state.base[site.state.find("spine-0")]
    used = {site.state.link[dead + port] for port in range(1, 5)}
    for slot in used:
        row = site.state.row[site.state.node_of[slot]]
        assert not (site.state.lft[row] == site.state.number[slot]).any()


def test_the_outage_of_a_cut_is_that_of_a_few_datagrams():
    """The trap says where to look, so no time is lost with waiting for what cannot answer."""
    site = Site()
    at = site.now
    site.state.cut_cable(site.slot("leaf-0", 5), at)
    site.settle()
    timing = site.hosted.transport.timing
    assert site.hosted.reports[-1].rerouting.repaired_ps - at < timing.timeout_ps


def test_a_dead_leaf_takes_its_hosts_along_and_nobody_else():
    site = Site()
    site.state.power_off(site.state.find("leaf-2"), site.now)
    for i in range(8, 12):
        site.state.alive[site.state.find(f"host-{i}/mlx5_0")] = False
    site.settle()
    assert {name.split(" ")[0] for name in site.hosted.reports[-1].gone if "host" in name} == {
        f"host-{i}" for i in range(8, 12)
    }
    site.state.alive[site.state.find("leaf-2")] = False
    assert site.all_arrive()


def test_a_switch_that_reboots_between_sweeps_is_set_up_again():
    """Down and up before anybody looked: the tables are gone though the links are there."""
    site = Site()
    before = entries(site)
    spine = site.state.find("spine-0")
    site.state.power_off(spine, site.now)
    site.state.power_cycle(spine, site.now)
    site.settle()
    assert all((before[n] == t).all() for n, t in entries(site).items())
    assert site.all_arrive()


@pytest.mark.parametrize("engine", ["minhop", "updn", "ftree", "dfsssp", "auto"])
def test_every_engine_survives_a_cut(engine):
    site = Site(two_tiers(4, 3, 4), settings=Settings(engine=engine))
    site.state.cut_cable(site.slot("leaf-1", 6), site.now)
    site.settle()
    assert site.all_arrive()


def test_losses_on_the_way_are_repeated():
    site = Site(manage=False)
    site.manage(first_adapter(site.endpoint), loss=0.1, timing=MadTiming(retries=8))
    site.now = settle(site.managers, 0)
    assert site.hosted.reports[0].findings == ()
    assert site.hosted.transport.statistics.repeated > 0
    assert site.all_arrive()


# -- several managers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second", "master"), [(1, 5, 1), (5, 1, 0), (3, 3, 0)])
def test_two_managers_started_at_once_agree_on_one_master(first, second, master):
    site = Site(manage=False)
    site.manage(site.state.find("host-0/mlx5_0"), settings=Settings(priority=first))
    site.manage(site.state.find("host-9/mlx5_0"), settings=Settings(priority=second))
    site.now = settle(site.managers, 0)
    states = [one.manager.state for one in site.managers]
    assert states[master] == SmState.MASTER
    assert states[1 - master] == SmState.STANDBY
    assert site.all_arrive()
    sm_lid = site.state.lid(site.managers[master].slot)
    assert all(
        PortInfo.decode(site.state.get(site.state.end_slot(m))).master_sm_lid == sm_lid
        for m in range(len(site.state.guid))
    )


def test_a_standby_takes_over_when_the_master_is_gone_and_keeps_the_lids():
    site = Site(manage=False)
    site.manage(site.state.find("host-0/mlx5_0"), settings=Settings(priority=9))
    site.manage(site.state.find("host-9/mlx5_0"), settings=Settings(priority=1))
    site.now = settle(site.managers, 0)
    before = dict(site.managers[0].manager.database.lid)
    site.state.power_off(site.state.find("host-0/mlx5_0"), site.now)
    heir = site.managers[1]
    for _ in range(5):
        site.now += 2 * 10**12
        site.now = settle([heir], site.now)
    assert heir.manager.state == SmState.MASTER
    lids = heir.manager.database.lid
    assert {guid: lid for guid, lid in before.items() if guid in lids} == lids
    assert len(lids) == len(before) - 1


def test_a_master_hands_over_to_a_manager_of_higher_rank_that_comes_later():
    site = Site(settings=Settings(priority=1))
    late = site.manage(site.state.find("host-9/mlx5_0"), settings=Settings(priority=2))
    site.settle()
    site.hosted.manager.wants_sweep = True
    site.hosted.manager.sweep()
    site.settle()
    assert site.hosted.manager.state == SmState.STANDBY
    assert late.manager.state == SmState.MASTER
