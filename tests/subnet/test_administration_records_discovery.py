"""Records of a subnet laid by hand, field by field; and sweeps over agents that are drawn, lie or fall silent."""

from __future__ import annotations

import random
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest

from fabrictwin.subnet.agents.mad_routing import Frame
from fabrictwin.subnet.manager.administration import administration as administration_
from fabrictwin.subnet.manager.administration.administration import Administration
from fabrictwin.subnet.manager.database import SubnetDatabase
from fabrictwin.subnet.manager.mad_transport import HERE
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.sweep.discovery import Discovery, Node, Port
from fabrictwin.subnet.wire import rmpp, sa
from fabrictwin.subnet.wire.header import Method, SaMad, SaStatus, Status
from fabrictwin.subnet.wire.pm import ClassPortInfo
from fabrictwin.subnet.wire.sa import RecordId, component_mask
from fabrictwin.subnet.wire.smp import (
    AttributeId,
    NodeInfo,
    NodeType,
    PhysState,
    PortInfo,
    PortState,
    SlToVl,
    SmInfo,
    SwitchInfo,
)

S = 10**12  # ps
SWITCH, OTHER, CA, TWO = 0x0100, 0x0301, 0x0200, 0x0300  # GUIDs; their bytes from the last: 0100, 0200, 0300, 0301


def node(guid, kind, ports, *, lids, entry=1, **more):
    made = Node(guid, NodeInfo(node_type=kind, num_ports=max(ports), node_guid=guid, port_guid=guid + 0x10,
                               local_port_num=entry, partition_cap=more.pop("cap", 32)), HERE)  # fmt: skip
    made.description = f"node {guid:x}".encode().ljust(64, b"\0")
    for number, lid in zip(ports, lids, strict=True):
        info = PortInfo(lid=lid, port_state=PortState.ACTIVE, port_physical_state=PhysState.LINK_UP,
                    operational_vls=3,
                        guid_cap=9, vl_arb_low_cap=8, vl_arb_high_cap=8, m_key=77,
                                    capability_mask=number + 1)  # fmt: skip
        made.ports[number] = Port(made, number, info)
    if kind == NodeType.SWITCH:
        made.switch = SwitchInfo(linear_fdb_cap=49152, partition_enforcement_cap=40, **more)
    return made


def join(a, b):
    a.peer, b.peer = b, a


class Hand:
    """Two switches, an adapter of one port on the first, one of two ports on both; ports 4 are not up."""

    def __init__(self, **settings):
        self.database = base = SubnetDatabase(Settings(sm_key=9, **settings))
        self.a = node(SWITCH, NodeType.SWITCH, range(5), lids=(5, 0, 0, 0, 0), entry=2)
        self.b = node(OTHER, NodeType.SWITCH, range(5), lids=(6, 0, 0, 0, 0), enhanced_port0=1)
        self.ca = node(CA, NodeType.CA, [1], lids=[7])
        self.two = node(TWO, NodeType.CA, [1, 2], lids=[8, 9])
        for one in (self.a, self.b):
            one.ports[4].info.port_state, one.ports[4].info.port_physical_state = PortState.DOWN, PhysState.POLLING
        join(self.a.ports[1], self.ca.ports[1])
        join(self.a.ports[2], self.b.ports[3])
        join(self.a.ports[3], self.two.ports[1])
        join(self.b.ports[1], self.two.ports[2])
        base.subnet.nodes = {one.guid: one for one in (self.ca, self.a, self.b, self.two)}
        base.subnet.own = self.ca.ports[1]
        base.assign_lids()
        base.lft = {SWITCH: np.arange(70, dtype=np.uint8), OTHER: np.arange(64, dtype=np.uint8)}
        self.election = SimpleNamespace(
            sm_info=lambda: SmInfo(guid=1, sm_key=9, priority=3), others={5: (8, SmInfo(guid=5, sm_key=4))}
        )
        self.told = Administration(base, self.election)
        self.order = [self.a, self.ca, self.two, self.b]
        self.tid = 0

    def table(self, kind, *names, sm_key=9, **fields):
        record = kind(**fields)
        mask = component_mask(kind, *(names or fields))
        mad = SaMad(
            method=Method.GET_TABLE, attribute=kind.ID, component_mask=mask, data=record.encode(), sm_key=sm_key
        )
        return list(self.told.query(mad))

    def receive(self, method, attribute, data=b"", now=0, **fields):
        self.tid += 1
        mad = SaMad(method=method, tid=self.tid, attribute=attribute, data=data, **fields)
        return self.told.receive(Frame(1, 7, 1, 44, mad.encode()), now)

    def status(self, *given, **fields):
        (answer,) = self.receive(*given, **fields)
        assert (answer.dlid, answer.slid, answer.dqp, answer.sqp) == (7, 1, 44, 1)
        mad = SaMad.decode(answer.mad)
        assert mad.method == given[0] | 0x80
        return mad.status


def lid_of(one, number=0):
    return one.ports[number if one.info.node_type != NodeType.SWITCH else 0].info.lid


def test_records_of_nodes_and_ports_come_in_the_order_of_guids_read_backwards():
    hand = Hand()
    nodes = hand.table(sa.NodeRecord)
    expected = [
        (5, SWITCH, 2, 0x110),
        (7, CA, 1, 0x210),
        (8, TWO, 1, 0x310),
        (9, TWO, 2, 0x302),
        (6, OTHER, 0, 0x311),
    ]
    found = [(one.lid, NodeInfo.decode(one.info)) for one in nodes]
    assert [(lid, info.node_guid, info.port_guid) for lid, info in found] == [(a, b, d) for a, b, _, d in expected]
    assert [info.local_port_num for _, info in found] == [0, 1, 1, 2, 0]
    assert [one.description.rstrip(b"\0") for one in nodes] == [f"node {e[1]:x}".encode() for e in expected]
    ports = hand.table(sa.PortInfoRecord)
    assert [(one.endport_lid, one.port_num) for one in ports] == [
        (lid_of(n, k), k) for n in hand.order for k in n.ports
    ]
    for one, port in zip(ports, [p for n in hand.order for p in n.ports.values()], strict=True):
        told = PortInfo.decode(one.info)
        if port.number == 4:  # down: all but its states is undefined
            assert told == PortInfo(port_state=PortState.DOWN, port_physical_state=PhysState.POLLING)
        else:
            assert told == port.info
    switches = hand.table(sa.SwitchInfoRecord)
    assert [(one.lid, SwitchInfo.decode(one.info)) for one in switches] == [(5, hand.a.switch), (6, hand.b.switch)]


def test_records_of_links_managers_and_forwarding_tables():
    hand = Hand()
    links = [(r.from_lid, r.from_port, r.to_port, r.to_lid) for r in hand.table(sa.LinkRecord)]
    assert links == [
        (5, 1, 1, 7), (5, 2, 3, 6), (5, 3, 1, 8), (7, 1, 1, 5), (8, 1, 3, 5), (9, 2, 1, 6), (6, 1, 2, 9),
        (6, 3, 2, 5),
    ]  # fmt: skip
    managers = [(r.lid, SmInfo.decode(r.info)) for r in hand.table(sa.SmInfoRecord)]
    assert managers == [(7, SmInfo(guid=1, priority=3)), (8, SmInfo(guid=5))]  # nobody's key is told
    blocks = hand.table(sa.LinearForwardingRecord)
    assert [(r.lid, r.block, r.ports) for r in blocks] == [
        (5, 0, bytes(range(64))), (5, 1, bytes(range(64, 70)) + b"\xff" * 58), (6, 0, bytes(range(64))),
    ]  # fmt: skip
    assert [r.block for r in hand.table(sa.LinearForwardingRecord, lid=5, block=1)] == [1]
    del hand.database.lft[SWITCH]
    assert {r.lid for r in hand.table(sa.LinearForwardingRecord)} == {6}


def test_records_of_lanes_are_those_of_ports_that_lead_somewhere():
    """Maps fold to four lanes (code 3); a port without a cable has none set, nor an unenhanced port 0."""
    hand = Hand()
    level = SlToVl(vls=(*(sl % 4 for sl in range(15)), 3)).encode()
    empty = bytes(len(level))
    maps = hand.table(sa.SlToVlRecord, into=3, out=4)
    assert [(r.lid, r.into, r.out) for r in maps if r.lid in (5, 6)] == [(5, 3, 4), (6, 3, 4)]
    every = {(r.lid, r.into, r.out): r.table for r in hand.table(sa.SlToVlRecord)}
    wired = {5: {1, 2, 3}, 6: {0, 1, 3}}
    assert every == {
        (lid, into, out): level if out in wired[lid] else empty
        for lid in (5, 6) for into in range(5) for out in range(5)
    } | {(lid, 0, 0): level for lid in (7, 8, 9)}  # fmt: skip
    # an adapter has one map, whatever ports are asked for
    assert [(r.lid, r.into, r.out) for r in hand.table(sa.SlToVlRecord, "lid", "into", lid=8, into=6, out=5)] == [
        (8, 0, 0)
    ]
    arbitration = {(r.lid, r.port_num, r.block): r.table for r in hand.table(sa.VlArbitrationRecord)}
    assert set(arbitration) == {(lid, n, b) for lid in (5, 6) for n in range(5) for b in range(1, 5)} | {
        (lid, n, b) for lid, n in ((7, 1), (8, 1), (9, 2)) for b in range(1, 5)
    }
    for (lid, number, block), table in arbitration.items():
        leads = number in wired[lid] if lid in wired else True
        assert any(table) == (leads and block in (1, 3)), (lid, number, block)
    assert Hand(qos=False).table(sa.SlToVlRecord) == Hand(qos=False).table(sa.VlArbitrationRecord) == []


def test_records_of_keys_and_guids_have_as_many_blocks_as_there_is_room():
    hand = Hand()
    keys = [(r.lid, r.port_num, r.block, r.table[:4].hex()) for r in hand.table(sa.PKeyTableRecord)]
    full, none = "7fff0000", "00000000"
    whole = "ffff0000"
    assert {entry[3] for entry in keys} <= {full, none, whole}
    assert [entry[:3] for entry in keys] == [
        (5, 0, 0), *[(5, n, b) for n in (1, 2, 3) for b in (0, 1)], (7, 1, 0), (8, 1, 0), (9, 2, 0),
        (6, 0, 0), *[(6, n, b) for n in (1, 3) for b in (0, 1)],
    ]  # fmt: skip
    assert all((entry[3] == none) == (entry[2] == 1) for entry in keys)
    guids = [(r.lid, r.block, r.table[:8].hex(), any(r.table[8:])) for r in hand.table(sa.GuidInfoRecord)]
    ends = [(5, 0x110), (7, 0x210), (8, 0x310), (9, 0x302), (6, 0x311)]
    assert guids == [
        (lid, block, f"{0 if block else guid:016x}", False) for lid, guid in ends for block in (0, 1)
    ]  # nine GUIDs are two blocks of eight


@pytest.mark.parametrize(
    ("method", "attribute", "key", "status"),
    [
        (Method.GET, RecordId.NODE, 0, SaStatus.TOO_MANY_RECORDS),
        (Method.SET, RecordId.NODE, 0, Status.BAD_METHOD),
        (Method.DELETE, RecordId.LINK, 0, Status.BAD_METHOD), (Method.GET, 0x99, 0, Status.BAD_ATTRIBUTE),
        (Method.GET, RecordId.NODE, 8, SaStatus.REQUEST_INVALID),
        (Method.GET, RecordId.NODE, 9, SaStatus.TOO_MANY_RECORDS),
        (Method.GET, RecordId.PKEY_TABLE, 0, SaStatus.REQUEST_INVALID),
        (Method.GET, RecordId.PKEY_TABLE, 9, SaStatus.TOO_MANY_RECORDS),
        (Method.GET, RecordId.SERVICE, 0, SaStatus.NO_RECORDS),
        (Method.DELETE, RecordId.SERVICE, 0, SaStatus.NO_RECORDS),
        (Method.GET, RecordId.INFORM_INFO, 0, Status.BAD_METHOD),
        (Method.SET, RecordId.CLASS_PORT_INFO, 0, Status.BAD_METHOD),
        (Method.GET_TABLE, RecordId.CLASS_PORT_INFO, 0, Status.BAD_METHOD),
        (Method.GET_MULTI, RecordId.MULTI_PATH, 0, SaStatus.REQUEST_INVALID),
    ],
)  # fmt: skip
def test_what_is_refused_has_its_status(method, attribute, key, status):
    hand = Hand()
    assert hand.status(method, attribute, sm_key=key) == status
    assert hand.told.queries == 1


def test_answers_and_reports_of_others_are_not_answered():
    hand = Hand()
    for method in (Method.GET_RESP, Method.GET_TABLE_RESP, Method.REPORT_RESP):
        assert hand.receive(method, RecordId.NODE) == []
    assert hand.told.queries == 0


@pytest.mark.parametrize("qos", [True, False])
def test_what_the_class_can_do(qos):
    (answer,) = Hand(qos=qos).receive(Method.GET, RecordId.CLASS_PORT_INFO)
    told = ClassPortInfo.decode(SaMad.decode(answer.mad).data)
    assert (told.class_version, told.resp_time_value, told.redirect_qp) == (2, 16, 1)
    assert (told.redirect_qkey, told.trap_qkey) == (0x80010000, 0x80010000)
    assert told.capability_mask == 0x2602
    assert told.capability_mask2 & 2 == (2 if qos else 0)


def test_a_table_is_sent_until_it_is_acknowledged_and_asked_twice_is_sent_once():
    hand = Hand()
    data = sa.LinearForwardingRecord().encode()
    ask = SaMad(method=Method.GET_TABLE, tid=3, attribute=RecordId.LINEAR_FORWARDING, data=data)
    frame = Frame(1, 7, 1, 44, ask.encode())
    first = hand.told.receive(frame, 0)
    assert [SaMad.decode(one.mad).tid for one in first] == [3]
    assert hand.told.receive(frame, 0) == []
    assert len(hand.told.receive(Frame(1, 8, 1, 44, ask.encode()), 0)) == 1  # another LID's
    receiver, pending = rmpp.Receiver(), first
    while pending and not receiver.done:
        acks = [ack for one in pending for ack in receiver.receive(SaMad.decode(one.mad))]
        pending = [out for ack in acks for out in hand.told.receive(Frame(1, 7, 1, 44, ack.encode()), 0)]
    assert receiver.done
    assert receiver.head.attribute_offset == len(data) // 8
    assert len(rmpp.records(receiver.table, receiver.head.attribute_offset)) == 3
    assert set(hand.told._senders) == {(8, 3)}
    repeats = 0
    for second in range(4000):
        repeats += len(hand.told.poll(second * S))
    assert repeats
    assert hand.told._senders == {}
    stray = SaMad(
        method=Method.GET_TABLE, tid=99, attribute=RecordId.NODE, rmpp_type=rmpp.Kind.ACK, rmpp_version=1
    )
    assert hand.told.receive(Frame(1, 7, 1, 44, stray.encode()), 0) == []


@pytest.mark.parametrize(("named", "lease", "ends"), [(True, 5, 5), (True, 0xFFFFFFFF, None), (False, 5, None)])
def test_a_service_lasts_as_long_as_its_lease(named, lease, ends):
    hand = Hand()
    record = sa.ServiceRecord(service_id=4, pkey=0xFFFF, lease_s=lease)
    mask = component_mask(sa.ServiceRecord, "service_id", *(["lease_s"] if named else []))
    (answer,) = hand.receive(Method.SET, RecordId.SERVICE, record.encode(), 2 * S, component_mask=mask)
    mad = SaMad.decode(answer.mad)
    assert (mad.status, mad.attribute_offset) == (0, 22)
    assert sa.ServiceRecord.decode(mad.data).lease_s == (lease if named else 0xFFFFFFFF)
    for after, there in ((2 * S, True), (7 * S - 1, True), (7 * S, ends is None), (10**6 * S, ends is None)):
        hand.told.poll(after)
        assert bool(hand.told.services) == there
        assert len(hand.table(sa.ServiceRecord, service_id=4)) == there
    if there:
        assert hand.status(Method.DELETE, RecordId.SERVICE, record.encode()) == 0
        assert hand.told.services == {}


def test_too_many_records_are_refused_and_not_cut(monkeypatch):
    hand = Hand()
    monkeypatch.setattr(administration_, "MOST_RECORDS", 4)
    assert hand.status(Method.GET_TABLE, RecordId.NODE) == SaStatus.NO_RESOURCES
    monkeypatch.setattr(administration_, "MOST_RECORDS", 5)
    assert hand.status(Method.GET_TABLE, RecordId.NODE) == 0


# --- sweeps --------------------------------------------------------------------------------------------------


class Agents:
    """Agents of a drawn fabric: what each answers may be taken over by `override`."""

    m_key = 0

    def __init__(self, seed=0, adapters=4, switches=4):
        draw = random.Random(seed)
        self.kind = {100 + n: NodeType.SWITCH for n in range(switches)} | {
            200 + n: NodeType.CA for n in range(adapters)
        }
        self.width = {guid: 8 if kind == NodeType.SWITCH else 1 for guid, kind in self.kind.items()}
        self.far: dict[tuple[int, int], tuple[int, int]] = {}
        self.free = {guid: list(range(1, width + 1)) for guid, width in self.width.items()}
        for n in range(1, switches):
            self.cable(100 + n, 100 + draw.randrange(n))
        for _ in range(3):
            self.cable(*draw.sample(range(100, 100 + switches), 2))
        for n in range(adapters):
            self.cable(200 + n, 100 + draw.randrange(switches))
        self.override: dict[tuple[int, int, int], tuple[int, bytes] | None] = {}
        self.asked = 0

    def cable(self, a, b):
        ends = [(guid, self.free[guid].pop()) for guid in (a, b)]
        self.far[ends[0]], self.far[ends[1]] = ends[1], ends[0]

    def info(self, guid, entry):
        return NodeInfo(node_type=self.kind[guid], num_ports=self.width[guid], node_guid=guid, port_guid=guid,
                        local_port_num=entry)  # fmt: skip

    def exchange(self, requests):
        return [self.answer(*request) for request in requests]

    def answer(self, path, method, attribute, modifier, data):
        assert method == Method.GET
        self.asked += 1
        guid, entry = 200, 1
        for hop in range(1, path.hops + 1):
            guid, entry = self.far[guid, path.ports[hop]]
        if (guid, attribute, modifier) in self.override:
            return self.override[guid, attribute, modifier]
        if attribute == AttributeId.NODE_INFO:
            return 0, self.info(guid, entry).encode().ljust(64, b"\0")
        if attribute == AttributeId.NODE_DESCRIPTION:
            return 0, f"n{guid}".encode().ljust(64, b"\0")
        if attribute == AttributeId.SWITCH_INFO:
            return 0, SwitchInfo(linear_fdb_cap=guid).encode().ljust(64, b"\0")
        number = modifier if self.kind[guid] == NodeType.SWITCH else entry
        up = number == 0 or (guid, number) in self.far
        return 0, PortInfo(lid=guid, port_physical_state=PhysState.LINK_UP if up else PhysState.POLLING).encode()

    def sweep(self):
        found = Discovery(self).run()
        return found, [(str(one.kind), one.where, one.text) for one in found.findings]

    def graph(self):
        made = nx.Graph()
        made.add_nodes_from(self.kind)
        made.add_edges_from((a, b) for (a, _), (b, _) in self.far.items())
        return made


def peers(found):
    return {
        (guid, number): (port.peer.node.guid, port.peer.number)
        for guid, one in found.nodes.items() for number, port in one.ports.items() if port.peer is not None
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_a_sweep_finds_every_node_once_and_both_ends_of_every_cable(seed):
    agents = Agents(seed, adapters=seed % 4 + 1)
    found, odd = agents.sweep()
    assert odd == []
    assert set(found.nodes) == set(nx.node_connected_component(agents.graph(), 200))
    assert peers(found) == agents.far
    hops = nx.single_source_shortest_path_length(agents.graph(), 200)
    assert {guid: one.path.hops for guid, one in found.nodes.items()} == hops
    assert (found.own.node.guid, found.own.number) == (200, 1)
    for guid, one in found.nodes.items():
        numbers = range(9) if guid < 200 else [1]
        assert sorted(one.ports) == list(numbers)
        assert one.name == f"n{guid}"
        assert (one.switch.linear_fdb_cap if one.switch else guid) == guid
    # each node, its name, its switch's and its ports' information once; behind each port that is up once
    switches = [guid for guid in found.nodes if guid < 200]
    behind = sum(guid < 200 for guid, _ in agents.far) + 1
    assert agents.asked == 1 + behind + len(found.nodes) + 10 * len(switches) + len(found.nodes) - len(switches)


def said(guid, entry=1, **fields):
    made = NodeInfo(**{"node_type": NodeType.CA, "num_ports": 1, "node_guid": guid, "port_guid": guid,
                       "local_port_num": entry, **fields})  # fmt: skip
    return 0, made.encode().ljust(64, b"\0")


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (None, "silent node", "the link is up, and what is there does not answer"),
        ((0x1C, bytes(64)), "silent node", "answers NodeInfo with status 0x001c"),
        (said(0), "lying node", "it has GUID 0"),
        (said(201, node_type=4), "lying node", "it is a node of type 4"),
        (said(201, node_type=0), "lying node", "it is a node of type 0"),
        (said(201, 2), "lying node", "it says that it has 1 ports, and answers from port 2"),
        (said(201, 0), "lying node", "it says that it has 1 ports, and answers from port 0"),
    ],
)  # fmt: skip
def test_who_is_silent_or_lies_is_named_and_left_out(answer, kind, words):
    agents = Agents(3)
    agents.override[201, int(AttributeId.NODE_INFO), 0] = answer
    found, odd = agents.sweep()
    ((told, where, text),) = odd
    near = agents.far[201, 1]
    assert (told, f"n{near[0]}/{near[1]}" in where, words in text) == (kind, True, True)
    assert 201 not in found.nodes
    assert set(found.nodes) == set(agents.kind) - {201}
    assert near not in peers(found)


def test_a_router_is_a_node_and_a_port_without_leave_none():
    agents = Agents(3)
    agents.override[201, int(AttributeId.NODE_INFO), 0] = said(201, node_type=NodeType.ROUTER)
    found, odd = agents.sweep()
    assert odd == []
    assert found.nodes[201].info.node_type == NodeType.ROUTER


@pytest.mark.parametrize(
    ("attribute", "modifier", "answer", "words", "gone"),
    [
        (AttributeId.NODE_DESCRIPTION, 0, None, "it answered at first, and stopped in mid-sweep", True),
        (AttributeId.SWITCH_INFO, 0, None, "it answered at first, and stopped in mid-sweep", True),
        (AttributeId.SWITCH_INFO, 0, (4, bytes(64)), "it says that it is a switch, and has no SwitchInfo", True),
        (AttributeId.PORT_INFO, 0, (28, bytes(64)), "it has 8 ports, and refuses PortInfo of port 0", True),
        (AttributeId.PORT_INFO, 1, (28, bytes(64)), "it has 8 ports, and refuses PortInfo of port 1", False),
    ],
)  # fmt: skip
def test_a_switch_that_stops_in_mid_sweep_is_no_part_of_the_subnet(attribute, modifier, answer, words, gone):
    agents = Agents(3)
    leaf = max(guid for guid in agents.kind if guid < 200 and guid != agents.far[200, 1][0])
    agents.override[leaf, int(attribute), modifier] = answer
    found, odd = agents.sweep()
    assert [text for _, _, text in odd if text == words] == [words]
    assert (leaf in found.nodes) == (not gone)
    if not gone:
        assert sorted(found.nodes[leaf].ports) == [0, *range(2, 9)]
    assert all(leaf not in (a[0], b[0]) for a, b in peers(found).items()) or not gone


def test_a_manager_whose_own_node_is_silent_has_no_subnet():
    agents = Agents(1)
    agents.override[200, int(AttributeId.NODE_INFO), 0] = None
    found, odd = agents.sweep()
    assert (found.own, found.nodes) == (None, {})
    assert odd == [("silent node", "the manager's own port", "it answers no NodeInfo")]
