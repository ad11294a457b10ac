"""Subnet administration: queries, RMPP, multicast trees, services, subscriptions and reports."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sm_fabrics import Site, two_tiers

from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.subnet.agents.mad_routing import Frame
from fabrictwin.subnet.agents.port_as_built import GID_PREFIX
from fabrictwin.subnet.manager.administration import multicast_trees as multicast
from fabrictwin.subnet.manager.settings.manager_settings import Partition, Settings
from fabrictwin.subnet.wire import notice, rmpp, sa
from fabrictwin.subnet.wire.header import Method, SaMad, SaStatus, Status
from fabrictwin.subnet.wire.sa import RecordId, component_mask
from fabrictwin.subnet.wire.smp import AttributeId, NodeInfo, NodeType, PKeyTable, PortInfo

FRESH_PKEYS = PKeyTable(pkeys=(0xFFFF, *[0] * 31)).encode()  # as a port comes


class Asker:
    """Software on a host that queries the manager."""

    def __init__(self, site: Site, name: str = "host-7/mlx5_0") -> None:
        self.site = site
        self.m = site.state.find(name)
        self.lid = site.state.lid(site.state.end_slot(self.m))
        self.tid = 0
        self.inbox: list[SaMad] = []

    def send(self, mad: SaMad) -> list[SaMad]:
        manager = self.site.hosted.manager
        frame = Frame(manager.database.lid[manager.election.guid], self.lid, 1, 77, mad.encode())
        out = []
        for answer in manager.receive(frame, self.site.now):
            assert answer.dlid == self.lid or SaMad.decode(answer.mad).method == Method.REPORT
            out.append(SaMad.decode(answer.mad))
        self.inbox += [mad for mad in out if mad.method == Method.REPORT]
        return [mad for mad in out if mad.method != Method.REPORT]

    def ask(self, attribute: int, record: sa.Attribute, mask: int = 0, method: int = Method.GET) -> SaMad:
        self.tid += 1
        mad = SaMad(method=method, tid=self.tid, attribute=attribute, component_mask=mask, data=record.encode())
        (answer,) = self.send(mad)
        assert answer.tid == self.tid
        return answer

    def table(self, record: sa.Attribute, *components: str) -> list:
        """GetTable with RMPP, to the end."""
        self.tid += 1
        kind = type(record)
        mask = component_mask(kind, *components)
        mad = SaMad(
            method=Method.GET_TABLE,
            tid=self.tid,
            sm_key=1,
            attribute=kind.ID,
            component_mask=mask,
            data=record.encode(),
        )
        receiver = rmpp.Receiver()
        pending = self.send(mad)
        while pending and not receiver.done:
            acks = [ack for part in pending for ack in receiver.receive(part)]
            pending = [part for ack in acks for part in self.send(ack)]
        assert receiver.done
        assert receiver.failed is None
        if receiver.head.status:
            return [receiver.head.status]
        return [kind.decode(data) for data in rmpp.records(receiver.table, receiver.head.attribute_offset)]

    def gid(self, name: str) -> int:
        return GID_PREFIX << 64 | self.site.state.port_guid[self.site.state.find(name)]


@pytest.fixture
def asker() -> Asker:
    return Asker(Site())


def test_node_records_are_the_nodes_and_come_in_many_segments(asker):
    records = asker.table(sa.NodeRecord())
    state = asker.site.state
    assert {NodeInfo.decode(r.info).node_guid for r in records} == set(state.guid)
    assert {r.description.rstrip(b"\0") for r in records} == set(state.description)
    switches = asker.table(sa.NodeRecord(info=NodeInfo(node_type=NodeType.SWITCH).encode()), "info.node_type")
    assert len(switches) == 6
    one = asker.table(sa.NodeRecord(description=b"host-3 mlx5_0"), "description")
    assert [r.lid for r in one] == [state.lid(state.end_slot(state.find("host-3/mlx5_0")))]


def test_port_link_switch_and_table_records(asker):
    state = asker.site.state
    ports = asker.table(sa.PortInfoRecord())
    assert len(ports) == 16 + 4 * 7 + 2 * 5
    links = asker.table(sa.LinkRecord())
    assert len(links) == 2 * (16 + 8)
    leaf = state.lid(state.end_slot(state.find("leaf-1")))
    mine = asker.table(sa.LinkRecord(from_lid=leaf, from_port=5), "from_lid", "from_port")
    assert [r.to_lid for r in mine] == [state.lid(state.end_slot(state.find("spine-0")))]
    assert mine[0].to_port == 2
    blocks = asker.table(sa.LinearForwardingRecord(lid=leaf), "lid")
    row = state.lft[state.row[state.find("leaf-1")]]
    assert b"".join(r.ports for r in blocks) == row[: 64 * len(blocks)].tobytes()
    assert len(asker.table(sa.SwitchInfoRecord())) == 6
    managers = asker.table(sa.PortInfoRecord(info=PortInfo(capability_mask=2).encode()), "info.capability_mask")
    assert len(managers) == 1


def test_a_path_record_says_what_the_tables_do(asker):
    query = sa.PathRecord(sgid=asker.gid("host-7/mlx5_0"), dgid=asker.gid("host-12/mlx5_0"))
    answer = asker.ask(RecordId.PATH, query, component_mask(sa.PathRecord, "sgid", "dgid"))
    path = sa.PathRecord.decode(answer.data)
    state = asker.site.state
    assert answer.status == 0
    assert path.slid == asker.lid
    assert path.dlid == state.lid(state.end_slot(state.find("host-12/mlx5_0")))
    assert (path.mtu, path.rate, path.pkey, path.reversible) == (5, 17, 0xFFFF, 1)
    by_lid = asker.table(sa.PathRecord(slid=path.slid, dlid=path.dlid), "slid", "dlid")
    assert by_lid == [path]
    faster = sa.PathRecord(slid=path.slid, dlid=path.dlid, rate=17, rate_selector=sa.Selector.GREATER)
    assert asker.table(faster, "slid", "dlid", "rate_selector", "rate") == []
    assert len(asker.table(sa.PathRecord(slid=path.slid), "slid")) == 22


def test_lmc_gives_as_many_paths(asker):
    asker = Asker(Site(settings=Settings(routing=Options(lmc=2))))
    query = sa.PathRecord(sgid=asker.gid("host-7/mlx5_0"), dgid=asker.gid("host-12/mlx5_0"))
    paths = asker.table(query, "sgid", "dgid")
    assert len({p.dlid for p in paths}) == 4
    query.num_path = 2
    assert len(asker.table(query, "sgid", "dgid", "num_path")) == 2


def test_no_path_between_limited_members():
    state = Site(manage=False).state
    guids = [state.port_guid[state.find(f"host-{i}/mlx5_0")] for i in range(16)]
    site = Site(settings=Settings(partitions=(Partition(0x7FFF, full=frozenset(guids[:1]), limited=None),)))
    asker = Asker(site)
    query = sa.PathRecord(sgid=asker.gid("host-7/mlx5_0"), dgid=asker.gid("host-12/mlx5_0"))
    assert asker.table(query, "sgid", "dgid") == []
    query.dgid = asker.gid("host-0/mlx5_0")
    assert [p.pkey for p in asker.table(query, "sgid", "dgid")] == [0xFFFF]


@pytest.mark.parametrize(
    ("attribute", "record", "mask", "method", "status"),
    [
        (0x77, sa.NodeRecord(), 0, Method.GET, Status.BAD_ATTRIBUTE),
        (RecordId.NODE, sa.NodeRecord(lid=4242), 1, Method.GET, SaStatus.NO_RECORDS),
        (RecordId.NODE, sa.NodeRecord(), 0, Method.GET, SaStatus.TOO_MANY_RECORDS),
        (RecordId.NODE, sa.NodeRecord(), 0, Method.SET, Status.BAD_METHOD),
        (RecordId.PATH, sa.PathRecord(sgid=5), 1 << 3, Method.GET, SaStatus.INVALID_GID),
        (RecordId.MC_MEMBER, sa.McMemberRecord(), 0, Method.SET, SaStatus.INSUFFICIENT_COMPONENTS),
        (RecordId.MC_MEMBER, sa.McMemberRecord(), 0, Method.DELETE, SaStatus.REQUEST_INVALID),
        (RecordId.SERVICE, sa.ServiceRecord(service_id=1), 0, Method.DELETE, SaStatus.NO_RECORDS),
        (RecordId.INFORM_INFO, notice.InformInfo(), 0, Method.SET, SaStatus.REQUEST_INVALID),
    ],
)
def test_what_cannot_be_answered_says_why(asker, attribute, record, mask, method, status):
    assert asker.ask(attribute, record, mask, method).status == status


@settings(max_examples=60)
@given(
    st.binary(min_size=200, max_size=200), st.integers(0, 2**64 - 1), st.sampled_from(list(RecordId)), st.data()
)
def test_no_query_breaks_the_manager(data, mask, attribute, draw):
    asker = Asker(_shared_site(), "host-3/mlx5_0")
    method = draw.draw(
        st.sampled_from(
            [Method.GET, Method.SET, Method.GET_TABLE, Method.GET_MULTI, Method.DELETE, Method.REPORT_RESP]
        )
    )
    kind = draw.draw(st.integers(0, 4))
    mad = SaMad(
        method=method,
        attribute=attribute,
        component_mask=mask,
        data=data,
        rmpp_type=kind,
        rmpp_flags=kind,
        tid=mask >> 3,
    )
    for answer in asker.send(mad):
        assert SaMad.decode(answer.encode()) == answer
        said = RecordId.PATH if attribute == RecordId.MULTI_PATH else attribute
        assert (answer.tid, answer.attribute, answer.method) == (mad.tid, said, method | 0x80)


@cache
def _shared_site() -> Site:
    return Site(two_tiers(2, 1, 2))


# -- multicast -------------------------------------------------------------------------------------------------


def join(asker: Asker, name: str, mgid: int, state: int = 1, **more: int) -> SaMad:
    record = sa.McMemberRecord(mgid=mgid, port_gid=asker.gid(name), join_state=state, **more)
    mask = component_mask(sa.McMemberRecord, "mgid", "port_gid", "join_state", *more)
    return asker.ask(RecordId.MC_MEMBER, record, mask, Method.SET)


def delivered(site: Site, source: str, mlid: int) -> dict[str, int]:
    """Send a packet to a group from a host by what the switches hold: how often each node gets it."""
    state = site.state
    block, place = divmod(mlid - 0xC000, 32)
    got: dict[str, int] = {}
    todo = [(state.end_slot(state.find(source)), 0)]
    while todo:
        out, hops = todo.pop()
        assert hops < 20, "it goes round in circles"
        into = state.link[out]
        m = state.node_of[into]
        if not state.is_switch[m]:
            name = state.fabric.node_name(int(state.fabric_node[m]))
            got[name] = got.get(name, 0) + 1
            continue
        for position in range(3):
            table = state.mft.get((m, block, position), bytes(64))
            bits = int.from_bytes(table[2 * place : 2 * place + 2], "big")
            for bit in range(16):
                port = state.base[m] + 16 * position + bit
                if bits >> bit & 1 and port != into:
                    todo.append((port, hops + 1))
    return got


BROADCAST = multicast.broadcast_gid(0x7FFF)


def test_the_broadcast_group_has_the_gid_of_rfc_4391():
    assert f"{BROADCAST:032x}" == "ff12401bffff000000000000ffffffff"


def test_members_of_the_broadcast_group_each_get_a_packet_once(asker):
    site = asker.site
    members = [f"host-{i}/mlx5_0" for i in (0, 3, 5, 6, 14)]
    for name in members:
        answer = join(asker, name, BROADCAST)
        assert answer.status == 0
    mlid = sa.McMemberRecord.decode(answer.data).mlid
    for name in members:
        assert delivered(site, name, mlid) == dict.fromkeys(set(members) - {name}, 1)
    leaving = sa.McMemberRecord(mgid=BROADCAST, port_gid=asker.gid(members[1]), join_state=1)
    mask = component_mask(sa.McMemberRecord, "mgid", "port_gid", "join_state")
    assert asker.ask(RecordId.MC_MEMBER, leaving, mask, Method.DELETE).status == 0
    rest = {*members} - {members[1]}
    assert delivered(site, members[0], mlid) == dict.fromkeys(rest - {members[0]}, 1)


def test_the_tree_heals_after_a_dead_switch_and_dead_members_leave(asker):
    site = asker.site
    for i in range(16):
        mlid = sa.McMemberRecord.decode(join(asker, f"host-{i}/mlx5_0", BROADCAST).data).mlid
    used = {m for (m, _, _) in site.state.mft}
    spine = next(site.state.find(f"spine-{i}") for i in range(2) if site.state.find(f"spine-{i}") in used)
    site.state.power_off(spine, site.now)
    site.settle()
    everybody = {f"host-{i}/mlx5_0" for i in range(16)}
    assert delivered(site, "host-1/mlx5_0", mlid) == dict.fromkeys(everybody - {"host-1/mlx5_0"}, 1)
    site.state.power_off(site.state.find("host-9/mlx5_0"), site.now)
    site.settle()
    group = site.hosted.manager.administration.groups.known[BROADCAST]
    assert asker.gid("host-9/mlx5_0") not in group.members
    assert delivered(site, "host-1/mlx5_0", mlid) == dict.fromkeys(
        everybody - {"host-1/mlx5_0", "host-9/mlx5_0"}, 1
    )


@settings(max_examples=20)
@given(st.sets(st.integers(0, 15), min_size=2))
def test_every_set_of_members_is_reached_once(members):
    asker = Asker(Site(two_tiers(4, 3, 4)), "host-7/mlx5_0")
    names = [f"host-{i}/mlx5_0" for i in sorted(members)]
    for name in names:
        mlid = sa.McMemberRecord.decode(join(asker, name, BROADCAST).data).mlid
    assert delivered(asker.site, names[0], mlid) == dict.fromkeys(names[1:], 1)


def switch_links(site: Site, mlid: int) -> set[tuple[str, str]]:
    """Pairs of switches that a group's packets may pass between."""
    state = site.state
    block, place = divmod(mlid - 0xC000, 32)
    found = set()
    for (m, b, position), table in state.mft.items():
        bits = int.from_bytes(table[2 * place : 2 * place + 2], "big") if b == block else 0
        for bit in range(16):
            number = 16 * position + bit
            far = state.link[state.base[m] + number] if bits >> bit & 1 and number else NONE
            if far != NONE and state.is_switch[state.node_of[far]]:
                ends = sorted(state.fabric.node_name(int(state.fabric_node[n])) for n in (m, state.node_of[far]))
                found.add(tuple(ends))
    return found


def test_each_group_has_a_tree_of_its_own():
    """Two members on two leaves: two links, over a spine that depends on the group; on one leaf: none."""
    asker = Asker(Site(two_tiers(4, 3, 4)), "host-7/mlx5_0")
    needs = {"qkey": 5, "pkey": 0xFFFF, "sl": 0, "flow_label": 0, "tclass": 0}
    spines = set()
    for k in range(6):
        mgid = (0xFF12 << 112) + 0x100 + k
        mlid = sa.McMemberRecord.decode(join(asker, "host-1/mlx5_0", mgid, **needs).data).mlid
        assert switch_links(asker.site, mlid) == set()
        join(asker, "host-2/mlx5_0", mgid)
        assert switch_links(asker.site, mlid) == set(), "both hang on one leaf"
        join(asker, "host-13/mlx5_0", mgid)
        links = switch_links(asker.site, mlid)
        assert {leaf for leaf, _ in links} == {"leaf-0", "leaf-3"}
        assert len(links) == 2
        (spine,) = {spine for _, spine in links}
        spines.add(spine)
        assert delivered(asker.site, "host-1/mlx5_0", mlid) == {"host-2/mlx5_0": 1, "host-13/mlx5_0": 1}
    assert spines == {"spine-0", "spine-1", "spine-2"}


def test_a_group_is_made_by_a_full_member_that_says_what_it_needs(asker):
    mgid = 0xFF12_0000_0000_0000_0000_0000_0000_0042
    assert join(asker, "host-1/mlx5_0", mgid).status == SaStatus.INSUFFICIENT_COMPONENTS
    needs = {"qkey": 5, "pkey": 0xFFFF, "sl": 0, "flow_label": 0, "tclass": 0}
    assert join(asker, "host-1/mlx5_0", mgid, 4, **needs).status == SaStatus.REQUEST_INVALID
    made = sa.McMemberRecord.decode(join(asker, "host-1/mlx5_0", mgid, **needs).data)
    assert made.mlid == 0xC001
    assert join(asker, "host-2/mlx5_0", mgid, qkey=6).status == SaStatus.REQUEST_INVALID
    assert join(asker, "host-2/mlx5_0", mgid, 4).status == 0
    leaving = sa.McMemberRecord(mgid=mgid, port_gid=asker.gid("host-1/mlx5_0"), join_state=1)
    mask = component_mask(sa.McMemberRecord, "mgid", "port_gid", "join_state")
    asker.ask(RecordId.MC_MEMBER, leaving, mask, Method.DELETE)
    # without a full member it is gone, and its MLID free
    assert mgid not in asker.site.hosted.manager.administration.groups.known


# -- services, subscriptions -----------------------------------------------------------------------------------


def test_services_are_found_until_their_lease_ends(asker):
    record = sa.ServiceRecord(service_id=7, service_gid=asker.gid("host-2/mlx5_0"), pkey=0xFFFF, lease_s=10)
    record.name = b"storage".ljust(64, b"\0")
    mask = component_mask(sa.ServiceRecord, "service_id", "lease_s", "name")
    assert asker.ask(RecordId.SERVICE, record, mask, Method.SET).status == 0
    found = asker.table(sa.ServiceRecord(name=record.name), "name")
    assert [r.service_id for r in found] == [7]
    asker.site.hosted.manager.poll(asker.site.now + 11 * 10**12)
    assert asker.table(sa.ServiceRecord(name=record.name), "name") == []


def subscribe(asker: Asker, trap: int = 0xFFFF, subscribe: int = 1) -> SaMad:
    info = notice.InformInfo(
        lid_range_begin=0xFFFF, is_generic=1, subscribe=subscribe, type=0xFFFF, trap_number=trap, qpn=1,
        producer_type=0xFFFFFF,
    )  # fmt: skip
    return asker.ask(RecordId.INFORM_INFO, info, 0, Method.SET)


def reports(site: Site) -> list[notice.NoticeReport]:
    frames = site.hosted.manager.poll(site.now)
    mads = [SaMad.decode(frame.mad) for frame in frames]
    return [notice.NoticeReport.decode(mad.data) for mad in mads if mad.method == Method.REPORT]


def test_reports_64_to_67_tell_subscribers_of_ports_and_groups(asker):
    site = asker.site
    assert subscribe(asker).status == 0
    manager = site.hosted.manager
    site.state.power_off(site.state.find("host-9/mlx5_0"), site.now)
    manager.sweep()
    told = reports(site)
    assert [r.trap_number for r in told] == [notice.Trap.GID_OUT_OF_SERVICE]
    assert notice.GidDetails.decode(told[0].details).gid == asker.gid("host-9/mlx5_0")
    manager.administration.reports.pending.clear()
    site.state.power_cycle(site.state.find("host-9/mlx5_0"), site.now)
    manager.sweep()
    assert [r.trap_number for r in reports(site)] == [notice.Trap.GID_IN_SERVICE]
    manager.administration.reports.pending.clear()
    needs = {"qkey": 5, "pkey": 0xFFFF, "sl": 0, "flow_label": 0, "tclass": 0}
    mgid = 0xFF12_0000_0000_0000_0000_0000_0000_0042
    join(asker, "host-1/mlx5_0", mgid, **needs)
    assert [mad.attribute for mad in asker.inbox] == [AttributeId.NOTICE]
    asker.inbox.clear()
    mask = component_mask(sa.McMemberRecord, "mgid", "port_gid", "join_state")
    leaving = sa.McMemberRecord(mgid=mgid, port_gid=asker.gid("host-1/mlx5_0"), join_state=1)
    asker.ask(RecordId.MC_MEMBER, leaving, mask, Method.DELETE)
    deleted = notice.NoticeReport.decode(asker.inbox[0].data)
    assert deleted.trap_number == notice.Trap.MULTICAST_GROUP_DELETED


def test_reports_are_repeated_until_they_are_confirmed(asker):
    site, manager = asker.site, asker.site.hosted.manager
    subscribe(asker, 128)
    site.state.cut_cable(site.slot("leaf-0", 5), site.now)
    site.endpoint.poll(site.now)
    pending = manager.administration.reports.pending
    # leaf-0 told; the trap of spine-0 takes the way that was cut
    assert [r.tries for r in pending.values()] == [1]
    frames = manager.poll(site.now + 2 * 10**12)
    assert len(frames) == 1
    for frame in frames:
        mad = SaMad.decode(frame.mad)
        asker.send(SaMad(method=Method.REPORT_RESP, tid=mad.tid, attribute=mad.attribute))
    assert manager.poll(site.now + 10**14) == []


def test_who_unsubscribes_hears_nothing(asker):
    subscribe(asker, 65)
    assert subscribe(asker, 65, 0).status == 0
    asker.site.state.power_off(asker.site.state.find("host-9/mlx5_0"), asker.site.now)
    asker.site.hosted.manager.sweep()
    assert reports(asker.site) == []


def test_only_what_was_subscribed_to_is_told(asker):
    subscribe(asker, 66)
    asker.site.state.power_off(asker.site.state.find("host-9/mlx5_0"), asker.site.now)
    asker.site.hosted.manager.sweep()
    assert reports(asker.site) == []


# -- tables of ports, held against what the agents hold -------------------------------------------------------


def test_records_of_lanes_arbitration_keys_and_guids_are_what_ports_hold(asker):
    state = asker.site.state
    leaf = state.find("leaf-0")
    lid = state.lid(state.end_slot(leaf))
    maps = asker.table(sa.SlToVlRecord(lid=lid), "lid")
    linked = [port for port in range(1, state.ports[leaf] + 1) if state.link[state.base[leaf] + port] != NONE]
    every = range(state.ports[leaf] + 1)
    assert {(r.into, r.out) for r in maps} == {(i, o) for o in every for i in every}
    for record in maps:
        if record.out not in (0, *linked):
            continue
        held = state.sl_to_vl.get((leaf, record.into, record.out)) or state.sl_to_vl[leaf, NONE, NONE]
        assert record.table == held[:8]
    for record in asker.table(sa.VlArbitrationRecord(lid=lid), "lid"):
        assert record.table == state.vl_arbitration.get(
            (state.base[leaf] + record.port_num, record.block), bytes(64)
        )
    keys, *others = asker.table(sa.PKeyTableRecord(lid=asker.lid), "lid")
    assert keys.table == state.pkeys.get((state.end_slot(asker.m), 0), FRESH_PKEYS)
    assert [record.table for record in others] == [bytes(64)] * 3
    (guids,) = asker.table(sa.GuidInfoRecord(lid=asker.lid), "lid")
    assert guids.table[:8] == state.port_guid[asker.m].to_bytes(8, "big")
    assert not any(guids.table[8:])


def test_records_of_multicast_tables_are_what_switches_hold(asker):
    for name in ("host-0/mlx5_0", "host-3/mlx5_0", "host-7/mlx5_0"):
        join(asker, name, BROADCAST)
    state = asker.site.state
    told = {(r.lid, r.block, r.position): r.table for r in asker.table(sa.MulticastForwardingRecord())}
    held = {
        (state.lid(state.base[m]), block, position): table
        for (m, block, position), table in state.mft.items()
        if any(table)
    }
    assert told == held != {}


def test_subscriptions_are_told(asker):
    assert asker.table(sa.InformInfoRecord()) == []
    subscribe(asker, trap=64)
    (record,) = asker.table(sa.InformInfoRecord())
    assert record.subscriber_gid == asker.gid("host-7/mlx5_0")
    assert notice.InformInfo.decode(record.inform_info).trap_number == 64
