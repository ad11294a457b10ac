"""Membership of multicast groups and of partitions, from a database of a few lines (IBTA volume 1, 15.2.5.17)."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace as Record

import numpy as np
import pytest

from fabrictwin.subnet.manager.administration import multicast_trees as trees
from fabrictwin.subnet.manager.administration.group_membership import Groups
from fabrictwin.subnet.manager.administration.matching import Refusal
from fabrictwin.subnet.manager.database import SubnetDatabase
from fabrictwin.subnet.wire import sa
from fabrictwin.subnet.wire.header import SaMad, SaStatus

PREFIX = 0xFE80 << 112
A, B = PREFIX | 0xA, PREFIX | 0xB
GROUP = 0xFF12_401B << 96 | 7
NEEDS = {"qkey": 5, "pkey": 0x8001, "sl": 3, "flow_label": 9, "tclass": 8}


class Site:
    """Groups of a subnet with the ports A and B, and what was reported of them."""

    def __init__(self):
        self.told = []
        reports = Record(report_gid=lambda trap, gid: self.told.append((int(trap), gid)))
        self.groups = Groups(Record(by_guid={0xA: "a", 0xB: "b"}, settings=Record(partitions=())), reports)

    def ask(self, way, port=A, state=1, mgid=GROUP, *, without=(), **more):
        fields = {"port_gid": port, "join_state": state, "mgid": mgid, **more}
        names = [name for name in fields if name not in without]
        data = sa.McMemberRecord(**fields).encode()
        mad = SaMad(component_mask=sa.component_mask(sa.McMemberRecord, *names), data=data)
        try:
            found = getattr(self.groups, way)(mad)
        except Refusal as refusal:
            return refusal.status
        return found

    def members(self):
        return {mgid: group.members for mgid, group in self.groups.known.items()}


def test_a_group_is_made_by_its_first_full_member_with_what_it_says():
    site = Site()
    made = site.ask("join", **NEEDS)
    assert made == sa.McMemberRecord(
        mgid=GROUP, port_gid=A, mlid=0xC000, mtu_selector=2, mtu=4, rate_selector=2, rate=3,
        packet_life_time_selector=2, packet_life_time=made.packet_life_time, join_state=1, **NEEDS,
    )  # fmt: skip
    assert site.told == [(66, GROUP)]
    assert site.members() == {GROUP: {A: 1}}
    assert site.groups.tree_changed
    other = site.ask("join", mgid=GROUP + 1, mtu=5, mtu_selector=2, rate=7, rate_selector=2, **NEEDS)
    assert (other.mlid, other.mtu, other.rate) == (0xC001, 5, 7)
    own = site.ask("join", mgid=0, **NEEDS)
    assert (own.mlid, own.mgid) == (0xC002, 0xFF12_A01B_FE80 << 80 | 0xC002)
    assert site.ask("join", without=("mgid",), **NEEDS).mgid == 0xFF12_A01B_FE80 << 80 | 0xC003
    assert [trap for trap, _ in site.told] == [66] * 4


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"state": 4}, SaStatus.REQUEST_INVALID), ({"state": 2}, SaStatus.REQUEST_INVALID),
        ({"state": 0}, SaStatus.INSUFFICIENT_COMPONENTS),
        ({"without": ("port_gid",)}, SaStatus.INSUFFICIENT_COMPONENTS),
        ({"without": ("join_state",)}, SaStatus.INSUFFICIENT_COMPONENTS),
        ({"port": PREFIX | 0xC}, SaStatus.INVALID_GID),
        ({"mgid": PREFIX | 7}, SaStatus.REQUEST_INVALID), ({"mgid": 0xFE << 120}, SaStatus.REQUEST_INVALID),
        *[({"without": (name,)}, SaStatus.INSUFFICIENT_COMPONENTS) for name in NEEDS],
    ],
)  # fmt: skip
def test_what_makes_no_group(more, status):
    site = Site()
    assert site.ask("join", **NEEDS, **more) == status
    assert (site.members(), site.told, site.groups.tree_changed) == ({}, [], False)


def test_no_more_groups_than_there_are_lids(monkeypatch):
    site = Site()
    monkeypatch.setattr(trees, "LAST_MLID", 0xC002)
    for n in range(2):
        assert site.ask("join", mgid=GROUP + n, **NEEDS).mlid == 0xC000 + n
    assert site.ask("join", mgid=GROUP + 2, **NEEDS) == SaStatus.NO_RESOURCES
    assert site.ask("leave").join_state == 0
    assert site.ask("join", mgid=GROUP + 2, **NEEDS).mlid == 0xC000


@pytest.mark.parametrize(
    ("more", "good"),
    [
        ({}, True), ({"pkey": 0x8001}, True), ({"pkey": 1}, False), ({"qkey": 5}, True), ({"qkey": 6}, False),
        ({"mlid": 0xC000}, True), ({"mlid": 0xC001}, False), ({"mtu": 4, "mtu_selector": 2}, True),
        ({"mtu": 3, "mtu_selector": 2}, False), ({"mtu": 3, "mtu_selector": 0}, True),
        ({"mtu": 4, "mtu_selector": 0}, False), ({"rate": 3, "rate_selector": 2}, True),
        ({"rate": 2, "rate_selector": 2}, False), ({"rate": 2, "rate_selector": 0}, True),
    ],
)  # fmt: skip
def test_who_joins_fits_the_group(more, good):
    site = Site()
    site.ask("join", **NEEDS)
    site.groups.tree_changed = False
    found = site.ask("join", port=B, state=4, **more)
    if not good:
        assert found == SaStatus.REQUEST_INVALID
        assert (site.members(), site.groups.tree_changed) == ({GROUP: {A: 1}}, False)
        return
    assert (found.port_gid, found.join_state, found.qkey, found.sl) == (B, 4, 5, 3)
    assert (site.members(), site.groups.tree_changed) == ({GROUP: {A: 1, B: 4}}, True)
    assert site.ask("join", port=B, state=2).join_state == 6
    assert site.told == [(66, GROUP)]


def test_a_group_goes_with_its_last_full_member():
    site = Site()
    site.ask("join", state=5, **NEEDS)
    site.ask("join", port=B, state=4)
    for port, state, mgid in ((A, 2, GROUP), (B, 1, GROUP), (A, 1, GROUP + 1), (PREFIX, 1, GROUP)):
        assert site.ask("leave", port, state, mgid) == SaStatus.REQUEST_INVALID
    site.groups.tree_changed = False
    left = site.ask("leave", state=4)
    assert (left.port_gid, left.join_state) == (A, 1)
    assert (site.members(), site.groups.tree_changed) == ({GROUP: {A: 1, B: 4}}, False)
    assert site.ask("leave", state=1).join_state == 0
    assert (site.members(), site.groups.tree_changed) == ({}, True)
    assert site.told == [(66, GROUP), (67, GROUP)]
    # a permanent one stays; ports that are gone leave all of theirs
    site.ask("join", **NEEDS)
    site.ask("join", mgid=GROUP + 1, **NEEDS)
    site.ask("join", port=B, mgid=GROUP + 1)
    site.groups.known[GROUP].permanent = True
    site.told.clear()
    site.groups.drop(0xA)
    assert site.members() == {GROUP: {}, GROUP + 1: {B: 1}}
    assert site.told == []
    site.groups.drop(0xB)
    assert (site.members(), site.told) == ({GROUP: {}}, [(67, GROUP + 1)])


def test_summaries_name_a_port_where_it_is_asked_for():
    site = Site()
    site.ask("join", state=5, **NEEDS)
    site.ask("join", port=B, mgid=GROUP + 1, **NEEDS)

    def found(mask, port):
        rows = site.groups.summaries(sa.McMemberRecord(port_gid=port), mask)
        return [(one.mgid, one.port_gid, one.join_state) for one in rows]

    mask = sa.component_mask(sa.McMemberRecord, "port_gid")
    assert found(0, A) == [(GROUP, 0, 0), (GROUP + 1, 0, 0)]
    assert found(mask, A) == [(GROUP, A, 5)]
    assert found(mask, B) == [(GROUP + 1, B, 1)]
    assert found(mask, PREFIX) == []
    rows = [(one.mgid, one.port_gid, one.join_state) for one in site.groups.records(sa.McMemberRecord())]
    assert rows == [(GROUP, A, 5), (GROUP + 1, B, 1)]


def test_broadcast_groups_are_those_of_partitions_that_carry_ip():
    one = Record(
        pkey=1,
        ipoib=True,
        broadcast=Record(scope=2, qkey=0xB1B, mtu=4, rate=3, sl=2, traffic_class=6, flow_label=7),
    )
    two = Record(pkey=2, ipoib=False, broadcast=replace_scope(one, 5))
    three = Record(pkey=0x7FFF, ipoib=True, broadcast=replace_scope(one, 14))
    site = Site()
    site.groups.database.settings.partitions = (one, two, three)
    for _ in range(2):
        site.groups.add_broadcast()
    # RFC 4391, section 4: ff1S:401b:PKEY::ffff:ffff
    gids = [0xFF12_401B_8001 << 80 | 0xFFFFFFFF, 0xFF1E_401B_FFFF << 80 | 0xFFFFFFFF]
    assert list(site.groups.known) == gids
    made = [group.record for group in site.groups.known.values()]
    assert made[0] == sa.McMemberRecord(
        mgid=gids[0], qkey=0xB1B, mlid=0xC000, mtu_selector=2, mtu=4, tclass=6, pkey=0x8001, rate_selector=2,
         rate=3,
        packet_life_time_selector=2, packet_life_time=made[0].packet_life_time, sl=2, flow_label=7, scope=2,
        join_state=1,
    )  # fmt: skip
    assert (made[1].mlid, made[1].pkey, made[1].scope) == (0xC001, 0xFFFF, 14)
    assert all(group.permanent for group in site.groups.known.values())
    assert site.told == []


def replace_scope(of, scope):
    return Record(**{**vars(of.broadcast), "scope": scope})


# ---------------------------------------------------------------------- partitions and levels


def database(held=None, **more):
    made = SubnetDatabase.__new__(SubnetDatabase)
    made.settings = Record(pkeys_of=lambda port: (held or {}).get(port, ()))
    for name, value in {"tables": None, "graph": None, **more}.items():
        setattr(made, name, value)
    return made


KEYS = (0x0001, 0x8001, 0x0002, 0x8002, 0x7FFF, 0xFFFF)


@pytest.mark.parametrize("own", [(), (0x0001,), (0x8001,), (0x0002, 0x8001), (0x8002, 0x0001), (0xFFFF, 0x8002)])
def test_two_ports_talk_over_a_key_that_one_holds_in_full(own):
    for other in ((), (0x0001,), (0x8001,), (0x8001, 0x8002), (0x7FFF,), (0x0002,)):
        made = database({1: own, 2: other})
        shared = [
            key & 0x7FFF for key, a in product(other, own) if a & 0x7FFF == key & 0x7FFF and (a | key) & 0x8000
        ]
        found = made.common_pkey(1, 2)
        assert (found & 0x7FFF) == (shared[0] if shared else 0)
        assert (found != 0) == bool(shared)
        for key in KEYS:
            assert made.shares_pkey(1, 2, key) == (key & 0x7FFF in shared)


def test_levels_are_those_that_tables_want_from_a_switch():
    switch, host = (Record(guid=guid, is_switch=is_switch) for guid, is_switch in ((7, True), (9, False)))
    lane = np.arange(12, dtype=np.uint8).reshape(6, 2)
    graph = Record(row={7: 1, 8: 0}, switches=Record(edge_column=np.array([-1, 1])))
    on_switch = Record(node=switch, peer=Record(node=Record(guid=8, is_switch=True)))
    on_host = Record(node=host, peer=Record(node=switch))
    made = database(tables=Record(lane=lane), graph=graph)
    assert made.levels_are_given
    for lid in range(6):
        assert made.service_level(on_switch, lid) == made.service_level(on_host, lid) == lane[lid, 1]
    away = Record(node=host, peer=Record(node=Record(guid=99, is_switch=True)))
    spine = Record(node=host, peer=Record(node=Record(guid=8, is_switch=True)))
    assert [made.service_level(port, 3) for port in (away, spine, Record(node=host, peer=None))] == [0, 0, 0]
    for one in (database(graph=graph), database(tables=Record(lane=lane)),
                database(tables=Record(lane=lane[:0]), graph=graph)):  # fmt: skip
        assert one.service_level(on_host, 3) == 0
    assert not database(graph=graph).levels_are_given
    assert not database(tables=Record(lane=lane[:0])).levels_are_given
