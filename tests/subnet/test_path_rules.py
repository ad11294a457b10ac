"""Rules of path records one by one: which ports are meant, which LIDs are paired, what a way is, what is demanded.

A database by hand: adapters a and b on switch x, c on switch y; two links between the switches, LMC 1.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace as Record

import numpy as np
import pytest

from fabrictwin.subnet.manager.administration import path_records
from fabrictwin.subnet.manager.administration.matching import Matcher, Refusal, adjusted, satisfies, subscribed
from fabrictwin.subnet.manager.administration.path_records import Paths
from fabrictwin.subnet.wire import sa
from fabrictwin.subnet.wire.header import SaStatus
from fabrictwin.subnet.wire.notice import InformInfo, Notice
from fabrictwin.subnet.wire.sa import Selector, component_mask

NONE, PREFIX = -1, 0xFE80 << 48
HDR_4X, FDR_4X = 17, 12  # codes of 200 and 56 Gb/s
GREATER, LESS, EXACTLY, LARGEST = Selector.GREATER, Selector.LESS, Selector.EXACTLY, Selector.LARGEST


def port(node, number, lid, *, mtu=5, speed="hdr", lmc=1):
    # 4X; FDR is the extended speed 1, HDR 4
    info = Record(
        lid=lid, lmc=lmc, mtu_cap=mtu, neighbor_mtu=mtu, link_width_active=2, link_speed_active=4,
        link_speed_ext_active={"fdr": 1, "hdr": 4}[speed], link_speed_ext2_active=0,
    )  # fmt: skip
    made = Record(node=node, number=number, info=info, peer=None, __hash__=None)
    node.ports[number] = made
    return made


class Fabric:
    """The database, with LIDs a: 4-5, b: 8-9, c: 16-17, and switches of GUIDs 100 and 200."""

    def __init__(self, *, lmc=1):
        def node(guid, kind):
            return Record(guid=guid, is_switch=kind, ports={}, info=Record(port_guid=guid, local_port_num=1))

        self.x, self.y = node(100, True), node(200, True)
        ends = {name: node(guid, False) for name, guid in (("a", 0x11), ("b", 0x0122), ("c", 0x33))}
        self.a, self.b, self.c = (
            port(ends[name], 1, lid, lmc=lmc) for name, lid in (("a", 4), ("b", 8), ("c", 16))
        )
        self.join(self.a, port(self.x, 1, 0))
        self.join(self.b, port(self.x, 2, 0))
        self.join(port(self.x, 3, 0, speed="fdr"), port(self.y, 3, 0, speed="fdr"))
        self.join(port(self.x, 4, 0, mtu=4), port(self.y, 4, 0, mtu=4))
        self.join(self.c, port(self.y, 1, 0))
        lft = {guid: np.full(20, 255, np.uint8) for guid in (100, 200)}
        for at in (0, 1):
            lft[100][[4 + at, 8 + at, 16 + at]] = 1, 2, 3 + at
            lft[200][[4 + at, 8 + at, 16 + at]] = 3 + at, 3 + at, 1
        by_lid = {one.info.lid + at: one for one in (self.a, self.b, self.c) for at in range(1 << lmc)}
        self.database = Record(
            settings=Record(lmc=lmc, gid_prefix=PREFIX, mtu_code=5), by_guid={0x11: self.a, 0x0122: self.b,
            0x33: self.c},
            lft=lft, by_lid=by_lid.get, common_pkey=lambda a, b: 0xFFFF, shares_pkey=lambda a, b,
            key: key == 0x8001,
            service_level=lambda source, lid: lid % 4, levels_are_given=True,
        )  # fmt: skip
        self.paths = Paths(self.database)

    @staticmethod
    def join(one, other):
        one.peer, other.peer = other, one

    def query(self, *names, single=False, **fields):
        asked = sa.PathRecord(**fields)
        return self.paths.query(asked, component_mask(sa.PathRecord, *(names or fields)), single=single)

    def several(self, sources, targets, **fields):
        gids = [gid(guid) for guid in (*sources, *targets)]
        asked = sa.MultiPathRecord(sgid_count=len(sources), dgid_count=len(targets), **fields)
        asked.gids = (*gids, *asked.gids[len(gids) :])
        names = {"sgid_count", "dgid_count", *fields} - {"gids"}
        return self.paths.several(asked, component_mask(sa.MultiPathRecord, *names))


def lids(records):
    return [(one.slid, one.dlid, one.preference) for one in records]


def gid(guid):
    return PREFIX << 64 | guid


# ---------------------------------------------------------------------- pairs of LIDs


def pair(lmc, only=NONE):
    return Record(info=Record(lmc=lmc)), only


@pytest.mark.parametrize(("one", "other"), [(0, 0), (1, 1), (0, 2), (2, 1), (3, 3)])
def test_equal_lids_are_paired_first_then_all_others(one, other):
    found = list(path_records._lid_pairs(pair(one), pair(other)))
    equal = min(1 << one, 1 << other)
    assert found[:equal] == [(k, k, 0) for k in range(equal)]
    others = [(i, j, 2) for i, j in product(range(1 << one), range(1 << other)) if i != j]
    assert found[equal:] == others


def test_a_lid_that_is_asked_for_is_the_only_one():
    assert list(path_records._lid_pairs(pair(2, 3), pair(1))) == [(3, 0, 0), (3, 1, 2)]
    assert list(path_records._lid_pairs(pair(2, 3), pair(2, 1))) == [(3, 1, 0)]
    assert list(path_records._lid_pairs(pair(2, 0), pair(0))) == [(0, 0, 0)]


# ---------------------------------------------------------------------- ways


def test_a_way_is_as_slow_and_small_as_its_narrowest_link():
    f = Fabric()
    walk = f.paths._walk
    assert walk(f.a, f.b, 0) == (5, 200_000_000_000, 2)
    mtu, rate, hops = walk(f.a, f.c, 0)  # by the FDR link
    assert (mtu, hops) == (5, 3)
    assert rate == pytest.approx(56.25e9 * 64 / 66, rel=0.04)
    assert walk(f.a, f.c, 1) == (4, 200_000_000_000, 3)  # by the one of 2,048 bytes
    assert walk(f.a, f.a, 0) == (5, 200_000_000_000, 0)
    f.database.settings.mtu_code = 3
    assert walk(f.a, f.b, 0)[0] == 3
    f.a.info.mtu_cap = 2
    assert walk(f.a, f.b, 0)[0] == 2


@pytest.mark.parametrize("entry", [0, 255, 9, 254])
def test_a_way_that_leads_nowhere_is_none(entry):
    f = Fabric()
    f.database.lft[100][16] = entry
    assert f.paths._walk(f.a, f.c, 0) is None
    assert f.paths._walk(f.a, f.c, 1) is not None


def test_a_way_ends_without_a_table_without_a_peer_and_in_a_circle():
    f = Fabric()
    f.database.lft[200] = f.database.lft[200][:16]
    assert f.paths._walk(f.a, f.c, 0) is None
    del f.database.lft[200]
    assert f.paths._walk(f.a, f.c, 0) is None
    f = Fabric()
    f.y.ports[1].peer = None
    assert f.paths._walk(f.a, f.c, 0) is None
    f = Fabric()
    f.database.lft[200][16] = 3
    assert f.paths._walk(f.a, f.c, 0) is None


# ---------------------------------------------------------------------- who is meant


def test_ends_are_named_by_gid_by_lid_or_both():
    f = Fabric()
    ends = f.paths._ends
    assert ends(gid(0x33), 0) == [(f.c, NONE)]
    assert ends(gid(0x33), 17) == [(f.c, 1)]
    assert ends(gid(0x33), 8) == []  # another's LID
    assert ends(gid(0x99), 0) == []
    assert ends(0, 9) == [(f.b, 1)]
    assert ends(0, 99) == []
    assert ends(0, 0) == [(f.a, NONE), (f.b, NONE), (f.c, NONE)]
    with pytest.raises(Refusal) as refused:
        ends(0x1234 << 64 | 0x33, 0)
    assert refused.value.status == SaStatus.INVALID_GID
    f.database.settings.gid_prefix = 0x1234
    assert ends(0x1234 << 64 | 0x33, 0) == ends(gid(0x33), 0) == [(f.c, NONE)]


def test_paths_between_two_ports_share_no_lid_first():
    f = Fabric()
    found = f.query(sgid=gid(0x11), dgid=gid(0x33))
    assert lids(found) == [(4, 16, 0), (5, 17, 0), (4, 17, 2), (5, 16, 2)]
    one = found[0]
    assert (one.sgid, one.dgid, one.reversible, one.pkey, one.sl) == (gid(0x11), gid(0x33), 1, 0xFFFF, 0)
    assert (one.mtu, one.rate, one.packet_life_time) == (5, FDR_4X, 18)
    assert (one.mtu_selector, one.rate_selector, one.packet_life_time_selector) == (EXACTLY,) * 3
    assert (one.hop_limit, one.num_path) == (0, 0)
    assert (found[1].mtu, found[1].rate, found[1].sl) == (4, HDR_4X, 1)
    assert lids(f.query(sgid=gid(0x11), dgid=gid(0x33), num_path=2)) == [(4, 16, 0), (5, 17, 0)]
    assert lids(f.query(sgid=gid(0x11), dgid=gid(0x33), single=True)) == [(4, 16, 0)]
    assert lids(f.query(slid=5, dlid=16)) == [(5, 16, 0)]
    assert len(f.query(sgid=gid(0x11), num_path=1)) == 3
    assert f.query(slid=4, dlid=4)[0].packet_life_time == 0
    # what is said and not asked for is not looked at
    assert len(f.query("sgid", sgid=gid(0x11), dgid=gid(0x33))) == 12


def test_too_many_paths_are_refused(monkeypatch):
    f = Fabric()
    monkeypatch.setattr(path_records, "MOST_RECORDS", 6)
    assert f.query(sgid=gid(0x11))
    monkeypatch.setattr(path_records, "MOST_RECORDS", 5)
    with pytest.raises(Refusal) as refused:
        f.query(sgid=gid(0x11))
    assert refused.value.status == SaStatus.NO_RESOURCES


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"pkey": 0x8001}, 4), ({"pkey": 0x8002}, 0),
        ({"sl": 0}, 2), ({"sl": 1}, 2), ({"sl": 2}, 0),
        ({"rate_selector": EXACTLY, "rate": HDR_4X}, 2), ({"rate_selector": GREATER, "rate": FDR_4X}, 2),
        ({"mtu_selector": GREATER, "mtu": 4}, 2), ({"mtu_selector": EXACTLY, "mtu": 5}, 2),
        ({"mtu": 5}, 4), ({"reversible": 1}, 4),
    ],
)  # fmt: skip
def test_demands_leave_out_what_does_not_meet_them(fields, count):
    assert len(Fabric().query(sgid=gid(0x11), dgid=gid(0x33), **fields)) == count


def test_a_path_takes_the_key_the_level_and_the_ways_that_are_asked_for():
    f = Fabric()
    between = {"sgid": gid(0x11), "dgid": gid(0x33)}
    assert {one.pkey for one in f.query(**between, pkey=0x8001)} == {0x8001}
    assert {one.pkey for one in f.query(**between, raw_traffic=1)} == {0}
    assert {one.pkey for one in f.query(**between, raw_traffic=0)} == {0xFFFF}
    f.database.levels_are_given = False
    assert {one.sl for one in f.query(**between, sl=7)} == {7}
    f.database.common_pkey = lambda a, b: 0
    assert f.query(**between) == []
    f = Fabric()
    f.database.lft[200][4] = 255  # no way back to the first LID
    assert [one.reversible for one in f.query(**between)] == [0, 1, 0, 1]
    assert [one.reversible for one in f.query(**between, reversible=1)] == [1, 1]
    assert [one.reversible for one in f.query(**between, reversible=0)] == [0, 1, 0, 1]


# ---------------------------------------------------------------------- several at once


def test_several_paths_go_from_each_to_each():
    f = Fabric()
    found = f.several([0x11, 0x0122], [0x33])
    assert lids(found[:4]) == [(4, 16, 0), (5, 17, 0), (4, 17, 2), (5, 16, 2)]
    assert len(found) == 8
    assert {one.sl for one in found} == {0}  # OpenSM leaves engines out of these
    assert {one.sl for one in f.several([0x11], [0x33], sl=3)} == {3}
    assert lids(f.several([0x11, 0x0122], [0x33], num_path=5))[3:] == [(5, 16, 2), (8, 16, 0)]
    assert len(f.several([0x11], [0x33], num_path=1)) == 1


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"names": {"sgid_count"}}, SaStatus.INSUFFICIENT_COMPONENTS),
        ({"names": {"dgid_count"}}, SaStatus.INSUFFICIENT_COMPONENTS),
        ({"names": {"sgid_count", "dgid_count", "service_id_high"}}, SaStatus.INSUFFICIENT_COMPONENTS),
        ({"names": {"sgid_count", "dgid_count", "service_id_low"}}, SaStatus.INSUFFICIENT_COMPONENTS),
        ({"rate": 1}, SaStatus.REQUEST_INVALID),
        ({"mtu": 0}, SaStatus.REQUEST_INVALID),
        ({"mtu": 6}, SaStatus.REQUEST_INVALID),
        ({"sgid_count": 0}, SaStatus.REQUEST_INVALID),
        ({"dgid_count": 0}, SaStatus.REQUEST_INVALID),
        ({"gids": [0x99, 0x33]}, SaStatus.INVALID_GID),
        ({"prefix": 0x77}, SaStatus.INVALID_GID),
        ({}, None),
        ({"mtu": 1}, None),
        ({"mtu": 5}, None),
        ({"rate": HDR_4X}, None),
        ({"names": {"sgid_count", "dgid_count", "rate"}, "rate": 1}, None),  # no selector: not asked for
        ({"names": {"sgid_count", "dgid_count", "service_id_high", "service_id_low"}}, None),
    ],
)
def test_what_several_paths_lack(change, status):
    f = Fabric()
    names = {"sgid_count", "dgid_count"}
    for demand in {"rate", "mtu"} & set(change):
        names |= {demand, f"{demand}_selector"}
    names = change.get("names", names)
    asked = sa.MultiPathRecord(
        sgid_count=change.get("sgid_count", 1), dgid_count=change.get("dgid_count", 1), rate=change.get("rate",
        HDR_4X),
        mtu=change.get("mtu", 4), mtu_selector=LESS, rate_selector=LESS,
    )  # fmt: skip
    gids = [change.get("prefix", PREFIX) << 64 | guid for guid in change.get("gids", [0x11, 0x33])]
    asked.gids = (*gids, *asked.gids[2:])
    mask = component_mask(sa.MultiPathRecord, *names)
    if status is None:
        f.paths.several(asked, mask)
        return
    with pytest.raises(Refusal) as refused:
        f.paths.several(asked, mask)
    assert refused.value.status == status


@pytest.mark.parametrize("lmc", [0, 1])
@pytest.mark.parametrize(
    ("sources", "targets"), [((0x11, 0x0122), (0x33, 0x0122)), ((0x0122, 0x33), (0x11, 0x33))]
)
def test_two_paths_for_migration_have_no_end_in_common(lmc, sources, targets):
    """From LIDs that a hash of the first ports' names, OpenSM's: (low >> lmc) << 4 | high >> lmc, modulo 103."""
    f = Fabric(lmc=lmc)
    found = f.several(sources, targets, num_path=2)

    def wire(guid):
        return int.from_bytes(guid.to_bytes(8, "big"), "little")

    a, b = sorted(sources, key=wire), sorted(targets, key=wire)
    lid = {0x11: 4, 0x0122: 8, 0x33: 16}
    first = sorted(lid[ports[0]] << 8 for ports in (a, b))  # two bytes, read the other way
    offset = ((first[0] >> lmc) << 4 | first[1] >> lmc) % 103
    hops = {(s, t): 0 if s == t else 2 if 0x33 not in (s, t) else 3 for s in a for t in b}
    falling, rising = [(a[0], b[0]), (a[1], b[1])], [(a[0], b[1]), (a[1], b[0])]
    chosen = falling if min(map(hops.get, falling)) <= min(map(hops.get, rising)) else rising
    each = 1 << lmc
    expected = [(lid[s] + (offset + a.index(s)) % each, lid[t] + (offset + a.index(s)) % each) for s, t in chosen]
    assert [(one.slid, one.dlid) for one in found] == expected


# ---------------------------------------------------------------------- demands


@pytest.mark.parametrize(
    ("name", "has", "selector", "wanted", "answer"),
    [
        ("mtu", 4, GREATER, 3, 4), ("mtu", 4, GREATER, 4, None), ("mtu", 4, LESS, 5, 4), ("mtu", 4, LESS, 4, 3),
        ("mtu", 4, LESS, 3, 2), ("mtu", 4, LESS, 1, None), ("mtu", 4, EXACTLY, 4, 4), ("mtu", 4, EXACTLY, 3, 3),
        ("mtu", 4, EXACTLY, 5, None), ("mtu", 4, LARGEST, 1, 4),
        # rates in order: ... 12 (56), 9, 10, 16 (100) ...
        ("rate", 16, GREATER, 12, 16), ("rate", 16, GREATER, 16, None), ("rate", 12, GREATER, 16, None),
        ("rate", 12, LESS, 16, 12), ("rate", 16, LESS, 16, 10), ("rate", 16, LESS, 2, None), ("rate", 16, LESS,
        5, 2),
        ("rate", 16, EXACTLY, 16, 16), ("rate", 16, EXACTLY, 12, None), ("rate", 16, LARGEST, 2, 16),
        ("rate", 16, LESS, 1, None),
    ],
)  # fmt: skip
def test_what_a_path_has_is_answered_as_its_selector_says(name, has, selector, wanted, answer):
    asked = sa.PathRecord(**{name: wanted, f"{name}_selector": selector})
    assert adjusted(asked, name, has) == answer


@pytest.mark.parametrize("name", ["mtu", "packet_life_time", "rate"])
def test_a_group_satisfies_a_selector(name):
    low, same, high = (2, 5, 3) if name == "rate" else (2, 3, 4)  # codes of 2.5, 5 and 10 Gb/s
    for selector, which in ((GREATER, {high}), (LESS, {low}), (EXACTLY, {same}), (LARGEST, {low, same, high})):
        asked = Record(**{name: same, f"{name}_selector": selector})
        assert {has for has in (low, same, high) if satisfies(asked, Record(**{name: has}), name)} == which


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({}, True),
        ({"is_generic": 0}, False),
        ({"trap_number": 128}, True),
        ({"trap_number": 64}, False),
        ({"type": 1}, True),
        ({"type": 2}, False),
        ({"producer_type": 2}, True),
        ({"producer_type": 1}, False),
        ({"lid_range_begin": 0}, True),
        ({"lid_range_begin": 9, "lid_range_end": 9}, True),
        ({"lid_range_begin": 9, "lid_range_end": 0}, True),
        ({"lid_range_begin": 7, "lid_range_end": 10}, True),
        ({"lid_range_begin": 10, "lid_range_end": 12}, False),
        ({"lid_range_begin": 7, "lid_range_end": 8}, False),
    ],
)
def test_subscribers_are_told_of_what_they_asked_for(said, told):
    plain = {
        "is_generic": 1, "trap_number": 0xFFFF, "type": 0xFFFF, "producer_type": 0xFFFFFF,
        "lid_range_begin": 0xFFFF,
        "lid_range_end": 0,
    }  # fmt: skip
    reported = Notice(is_generic=1, type=1, producer_type=2, trap_number=128, issuer_lid=9)
    assert subscribed(InformInfo(**(plain | said)), reported) == told


def test_components_of_a_query_are_held_against_records():
    from fabrictwin.subnet.wire.smp import PortInfo

    def matches(kind, asked, record, *names):
        return Matcher(kind, asked, component_mask(kind, *names)).matches(record)

    node = sa.NodeRecord(lid=4, description=b"leaf-0".ljust(64, b"\0"))
    assert matches(sa.NodeRecord, sa.NodeRecord(lid=4), node, "lid")
    assert not matches(sa.NodeRecord, sa.NodeRecord(lid=5), node, "lid")
    assert matches(sa.NodeRecord, sa.NodeRecord(lid=5), node)
    for text, same in ((b"leaf-0", True), (b"leaf-1", False), (b"leaf", False), (b"", True)):
        asked = sa.NodeRecord(description=text.ljust(64, b"\0"))
        assert matches(sa.NodeRecord, asked, node, "description") == same
    info = PortInfo(lid=4, capability_mask=0b1110)
    held = sa.PortInfoRecord(info=info.encode())
    for mask, same in ((0b0010, True), (0b1110, True), (0b0001, False), (0b1111, False), (0, True)):
        asked = sa.PortInfoRecord(info=PortInfo(capability_mask=mask).encode())
        assert matches(sa.PortInfoRecord, asked, held, "info.capability_mask") == same
    for lid, same in ((4, True), (6, False), (0, False)):
        asked = sa.PortInfoRecord(info=PortInfo(lid=lid).encode())
        assert matches(sa.PortInfoRecord, asked, held, "info.lid") == same
