"""Requests that set a subnet up, one by one, on a transport that answers what it is told.

IBTA volume 1, 14.2.5 (attributes and their modifiers), 14.3 (states of ports).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.sm_fabrics import Site, two_tiers

from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.manager.sweep import programming
from fabrictwin.subnet.manager.sweep.discovery import Kind
from fabrictwin.subnet.manager.sweep.programming import Programmer
from fabrictwin.subnet.wire.smp import MulticastForwarding, PhysState, PKeyTable, PortInfo, PortState, SwitchInfo

GET, PUT = 1, 2
PKEYS, PORT, LFT, MFT, SWITCH, LANES, ARBITRATION = 0x16, 0x15, 0x19, 0x1B, 0x12, 0x17, 0x18
FULL = PKeyTable(pkeys=(0xFFFF, *[0] * 31)).encode()


class Told:
    """A transport: what it was asked, and answers by a rule."""

    def __init__(self, rule=lambda request: (0, request[4])):
        self.asked, self.rule, self.batches = [], rule, []

    def exchange(self, requests):
        self.batches.append(list(requests))
        self.asked += requests
        return [self.rule(request) for request in requests]

    def answered_ps(self):
        return [100 + 10 * n for n in range(len(self.batches[-1]))]


@pytest.fixture
def site():
    """Two leaves of two hosts, and a spine, just discovered and routed."""
    return Site(two_tiers(2, 1, 2))


def programmer(site, rule=lambda request: (0, request[4]), *, lft=None, mft=None, **settings):
    made = Programmer(Told(rule), replace(site.hosted.manager.settings, **settings), lft or {}, mft or {})
    return made, made.transport.asked


def parts(site):
    database = site.hosted.manager.database
    return database.subnet, database.graph


def told(asked, attribute):
    """(path, method, modifier, data) of the requests for an attribute."""
    return [
        (str(path), method, modifier, data) for path, method, which, modifier, data in asked if which == attribute
    ]


# ---------------------------------------------------------------------- unicast tables


@pytest.mark.parametrize("tops", ["held", "other top", "other life time", "changed port"])
def test_tables_go_block_by_block_behind_the_tops(site, tops):
    _, graph = parts(site)
    rows, lids = len(graph.nodes), 130
    lft = np.arange(rows * lids, dtype=np.int64).reshape(rows, lids).astype(np.uint8) % 5
    for node in graph.nodes:
        node.switch.linear_fdb_top = 129 + (tops == "other top")
        node.switch.life_time_value = 18 + (tops == "other life time")
        node.switch.port_state_change = int(tops == "changed port")
    made, asked = programmer(site, packet_life_time=18)
    assert made.forwarding(graph, lft) == NONE  # nothing is waited for
    heads = told(asked, SWITCH)
    if tops == "held":
        assert heads == []
    else:
        assert [(path, method, modifier) for path, method, modifier, _ in heads] == [
            (str(node.path), PUT, 0) for node in graph.nodes
        ]
        for *_, data in heads:
            info = SwitchInfo.decode(data)
            assert (info.linear_fdb_top, info.life_time_value, info.port_state_change) == (129, 18, 1)
        assert [request[2] for request in asked[:rows]] == [SWITCH] * rows
        assert all(node.switch.port_state_change == 0 for node in graph.nodes)
    blocks = told(asked, LFT)
    expected = []
    for row, node in enumerate(graph.nodes):
        wide = bytes(lft[row]).ljust(192, b"\xff")
        expected += [(str(node.path), PUT, block, wide[64 * block : 64 * block + 64]) for block in range(3)]
    assert blocks == expected
    assert {guid: table.tolist() for guid, table in made.lft.items()} == {
        node.guid: lft[row].tolist() for row, node in enumerate(graph.nodes)
    }
    asked.clear()
    assert made.forwarding(graph, lft) == NONE
    assert asked == []
    # one entry of one switch: its block alone; of others nothing is asked
    other = lft.copy()
    other[1, 127] = 9
    other[2, 0] = 9
    made.forwarding(graph, other, only=frozenset({graph.nodes[1].guid}))
    assert [(path, modifier) for path, _, modifier, _ in told(asked, LFT)] == [(str(graph.nodes[1].path), 1)]
    assert made.lft[graph.nodes[2].guid].tolist() == lft[2].tolist()


def test_the_last_needed_entry_that_changed_says_when(site):
    _, graph = parts(site)
    rows = len(graph.nodes)
    old, new = (np.full((rows, 130), port, np.uint8) for port in (1, 1))
    new[0, 5], new[0, 70], new[1, 129], new[2, 3] = 2, 2, 2, 2

    def when(*entries):
        made, _ = programmer(site, lft={node.guid: old[row].copy() for row, node in enumerate(graph.nodes)})
        needed = np.zeros((rows, 130), bool)
        for entry in entries:
            needed[entry] = True
        return made.forwarding(graph, new, needed=needed)

    # blocks in order: (0, 0) at 100, (0, 1) at 110, (1, 2) at 120, (2, 0) at 130
    assert when((0, 5)) == 100
    assert when((0, 6)) == NONE  # in a block that is sent, but as it was
    assert when((0, 70), (0, 5)) == 110
    assert when((1, 129), (0, 5)) == 120
    assert when((2, 3)) == when((2, 3), (1, 129)) == 130
    assert when() == when((1, 0), (2, 129)) == NONE


@pytest.mark.parametrize("answer", [None, (0x1C, b"")])
def test_a_switch_that_does_not_take_its_table_gets_it_anew(site, answer):
    _, graph = parts(site)
    bad = graph.nodes[1]
    lft = np.ones((len(graph.nodes), 10), np.uint8)

    def rule(request):
        return answer if request[0] == bad.path and request[2] == LFT else (0, request[4])

    made, asked = programmer(site, rule)
    made.forwarding(graph, lft)
    assert set(made.lft) == {node.guid for node in graph.nodes} - {bad.guid}
    silent = answer is None
    text = "no answer when LinearForwardingTable was set" if silent else "LinearForwardingTable: status 0x001c"
    assert made.findings == [(Kind.SILENT if silent else Kind.REFUSED, bad.name, text)]
    made.transport.rule = lambda request: (0, request[4])
    asked.clear()
    made.forwarding(graph, lft)
    assert [path for path, *_ in told(asked, LFT)] == [str(bad.path)]
    assert set(made.lft) == {node.guid for node in graph.nodes}


def test_what_came_back_from_the_dead_is_forgotten(site):
    _, graph = parts(site)
    node, other = graph.nodes[0], graph.nodes[1]
    keys = [(one.guid, number) for one in (node, other) for number in (NONE, *one.ports)]
    held = {(node.guid, 0, 0): b"", (node.guid, 1, 3): b"", (other.guid, 0, 0): b""}
    made, _ = programmer(site, lft={node.guid: 1, other.guid: 2}, mft=held)
    made._set_up, made._keys = dict.fromkeys(keys, ()), dict.fromkeys(keys, b"")
    made.forget(node)
    left = [key for key in keys if key[0] == other.guid]
    assert (made.lft, list(made.mft)) == ({other.guid: 2}, [(other.guid, 0, 0)])
    assert (list(made._set_up), list(made._keys)) == (left, left)
    made.forget_lanes()
    assert (made._set_up, list(made._keys)) == ({}, left)


# ---------------------------------------------------------------------- partitions


@pytest.mark.parametrize("enforced", [False, True])
def test_keys_go_to_ends_that_hold_others_and_to_the_ports_that_face_them(site, enforced):
    subnet, _ = parts(site)
    ends = [port for node in subnet.nodes.values() for port in node.ends()]
    stale, silent = str(ends[1].node.path), str(ends[2].node.path)

    def rule(request):
        if request[1] == GET:
            return None if str(request[0]) == silent else (0, bytes(64) if str(request[0]) == stale else FULL)
        return 0, request[4]

    made, asked = programmer(site, rule, enforce_partitions=enforced)
    made.partitions(subnet)
    keys = told(asked, PKEYS)
    assert [(path, method, modifier) for path, method, modifier, _ in keys[: len(ends)]] == [
        (str(port.node.path), GET, 0) for port in ends
    ]
    assert keys[len(ends) : len(ends) + 2] == [(stale, PUT, 0, FULL), (silent, PUT, 0, FULL)]
    facing = [port.peer for port in ends if port.number and port.peer.node.is_switch]
    expected = [(str(port.node.path), PUT, port.number << 16, FULL) for port in facing]
    assert len(expected) == 4
    assert keys[len(ends) + 2 :] == (expected if enforced else [])
    asked.clear()
    made.partitions(subnet)
    assert not any(modifier for _, _, modifier, _ in told(asked, PKEYS))  # they hold them
    made._keys.clear()
    made.transport.rule = lambda request: (0x1C, b"") if request[3] else rule(request)
    made.partitions(subnet)
    assert made._keys == {}


# ---------------------------------------------------------------------- multicast


def test_groups_are_bits_of_ports_by_block_and_position(site):
    subnet, graph = parts(site)
    one, two = graph.nodes[0], graph.nodes[1]
    for node in graph.nodes:
        node.switch.multicast_fdb_top = 0xBFFF
    made, asked = programmer(site)
    masks = {0xC000: {one.guid: 0b110}, 0xC021: {one.guid: 1 << 16 | 1 << 35, two.guid: 1}, 0xC05F: {}}
    made.multicast(subnet, masks)

    def table(place, bits):
        return MulticastForwarding(masks=tuple(bits if at == place else 0 for at in range(32))).encode()

    sent = [
        (one, 0, 0, table(0, 0b110)), (one, 1, 1, table(1, 1)), (one, 1, 2, table(1, 8)), (two, 1, 0, table(1, 1))
    ]  # fmt: skip
    expected = sorted((node.guid, block, position, str(node.path), data) for node, block, position, data in sent)
    assert told(asked, MFT) == [
        (path, PUT, block | position << 28, data) for _, block, position, path, data in expected
    ]
    assert made.mft == {(guid, block, position): data for guid, block, position, _, data in expected}
    # the highest group that has a tree
    assert [SwitchInfo.decode(data).multicast_fdb_top for *_, data in told(asked, SWITCH)] == [0xC021] * len(
        graph.nodes
    )
    asked.clear()
    made.multicast(subnet, masks)
    assert asked == []
    made.transport.rule = lambda request: (0x1C, b"") if request[2] == MFT else (0, request[4])
    made.multicast(subnet, {0xC000: {one.guid: 0b110}})  # what is gone is cleared; refused it is held as it was
    assert len(told(asked, MFT)) == 3
    assert all(not any(data) for *_, data in told(asked, MFT))
    assert len(made.mft) == 4
    asked.clear()
    made.transport.rule = lambda request: (0, request[4])
    made.multicast(subnet, {})
    assert [SwitchInfo.decode(data).multicast_fdb_top for *_, data in told(asked, SWITCH)] == [0xBFFF] * len(
        graph.nodes
    )
    assert all(not any(data) for data in made.mft.values())


# ---------------------------------------------------------------------- lanes


@pytest.mark.parametrize("optimized", [0, 1])
def test_maps_and_arbitration_of_ports_with_a_link(site, optimized):
    subnet, graph = parts(site)
    for node in graph.nodes:
        node.switch.optimized_sl_to_vl, node.switch.enhanced_port0 = optimized, 0
    made, asked = programmer(site)
    made.lanes(subnet)
    table = made.settings.sl_to_vl_bytes(4)
    expected = []
    for node in subnet.nodes.values():
        linked = [number for number, port in node.ports.items() if port.peer is not None]
        path = str(node.path)
        if not node.is_switch:
            expected.append((path, PUT, 0, table.ljust(64, b"\0")))
        elif optimized:
            expected.append((path, PUT, 0x30000, table.ljust(64, b"\0")))
        else:
            expected += [
                (path, PUT, into << 8 | out, table.ljust(64, b"\0"))
                for out in linked for into in (0, *(n for n in linked if n != out))
            ]  # fmt: skip
    assert told(asked, LANES) == expected
    turns = []
    for node in subnet.nodes.values():
        for number, port in node.ports.items():
            if port.peer is not None:
                for part, high, entries in (
                    (1, False, port.info.vl_arb_low_cap),
                    (3, True, port.info.vl_arb_high_cap),
                ):
                    data = made.settings.arbitration_bytes(high=high, entries=entries, operational_vls=4)
                    turns.append((str(node.path), PUT, number | part << 16, data.ljust(64, b"\0")))
    assert told(asked, ARBITRATION) == turns
    asked.clear()
    made.lanes(subnet)
    assert asked == []


@pytest.mark.parametrize(("own", "far", "most", "lanes"), [(4, 4, 5, 4), (4, 2, 5, 2), (2, 4, 5, 2), (4, 4, 3, 3),
                                                           (0, 4, 5, 1), (4, None, 5, 4)])  # fmt: skip
def test_lanes_are_those_that_both_ends_have(site, own, far, most, lanes):
    _, graph = parts(site)
    made, _ = programmer(site, max_vls=most)
    port = next(port for port in graph.nodes[0].ports.values() if port.peer is not None)
    port.info.vl_cap = own
    if far is None:
        port.peer = None
    else:
        port.peer.info.vl_cap = far
    assert made.operational_vls(port) == lanes


# ---------------------------------------------------------------------- ports


def test_ports_step_to_armed_and_then_to_active(site):
    subnet, _ = parts(site)
    ports = [port for node in subnet.nodes.values() for port in node.ports.values() if port.number and port.peer]
    for port in ports:
        port.info.port_state = PortState.INIT

    def rule(request):
        info = PortInfo.decode(request[4])
        info.port_physical_state = PhysState.LINK_UP
        return 0, info.encode()

    made, asked = programmer(site, rule)
    lids = {guid: lid + 40 for guid, lid in site.hosted.manager.database.lid.items()}
    made.ports(subnet, lids, sm_lid=77)
    first, second = made.transport.batches
    linked = {(str(port.node.path), port.number if port.node.is_switch else 0) for port in ports}
    states = {(str(path), modifier): data for path, _, _, modifier, data in first}
    assert {place for place, data in states.items() if data[32] & 15 == PortState.ARMED} == linked
    assert all(data[33] >> 4 == 0 for data in states.values())  # no change of the physical state
    ends = [port for node in subnet.nodes.values() for port in node.ends()]
    for port in ends:
        info = PortInfo.decode(states[str(port.node.path), port.number if port.node.is_switch else 0])
        guid = port.node.info.port_guid
        assert (info.lid, info.lmc, info.master_sm_lid, info.master_sm_sl) == (lids[guid], 0, 77, 0)
        assert info.subnet_timeout == made.settings.subnet_timeout
    for port in ports:
        info = PortInfo.decode(states[str(port.node.path), port.number if port.node.is_switch else 0])
        assert (info.neighbor_mtu, info.operational_vls) == (5, 4)
        if port.node.is_switch:
            far = port.peer.node.is_switch
            assert info.hoq_life == (made.settings.head_of_queue if far else made.settings.leaf_head_of_queue)
            assert info.vl_stall_count == made.settings.stall_count
            assert info.lid == 0
    assert {(str(path), modifier) for path, _, _, modifier, _ in second} == linked
    assert {data[32] & 15 for *_, data in second} == {PortState.ACTIVE}
    asked.clear()
    made.ports(subnet, lids, sm_lid=77)
    assert asked == []


@pytest.mark.parametrize("changes", ["lid", "manager", "mtu", "enforced", "lmc", "down"])
def test_a_port_is_told_where_something_is_other(site, changes):
    subnet, _ = parts(site)
    settings = {"enforced": {"enforce_partitions": True}, "lmc": {"lmc": 2}, "mtu": {"mtu_code": 3}}.get(
        changes, {}
    )
    host = next(node for node in subnet.nodes.values() if not node.is_switch)
    port = host.ports[1]
    leaf = port.peer
    made, _ = programmer(site)
    lids = dict(site.hosted.manager.database.lid)
    own = lids[host.info.port_guid]
    manager = port.info.master_sm_lid
    assert made._wanted(port, lids, manager) is None
    assert made._wanted(leaf, lids, manager) is None
    settings = made.settings
    given = {"lmc": {"routing": replace(settings.routing, lmc=2)}, "mtu": {"mtu_code": 3}}
    made.settings = replace(settings, **given.get(changes, {}))
    if changes == "enforced":
        leaf.info.partition_enforcement_inbound = leaf.info.partition_enforcement_outbound = 0
    if changes == "lid":
        lids[host.info.port_guid] = own + 1
    manager += changes == "manager"
    if changes == "down":
        port.peer, port.info.port_state = None, PortState.DOWN
        port.info.neighbor_mtu = 1  # of a port without a link nothing is asked but what ends are told
        assert made._wanted(port, lids, manager) is None
        return
    data, other = made._wanted(port, lids, manager), made._wanted(leaf, lids, manager)
    assert (data is not None) == (changes != "enforced")
    assert (other is not None) == (changes in ("mtu", "enforced"))
    if data is not None:
        info = PortInfo.decode(data)
        assert (data[32] & 15, data[33] >> 4) == (0, 0)  # no change of either state
        assert (info.lid, info.master_sm_lid) == (own + (changes == "lid"), manager)
        assert (info.lmc, info.neighbor_mtu) == (2 if changes == "lmc" else 0, 3 if changes == "mtu" else 5)
    if changes == "enforced":
        info = PortInfo.decode(other)
        assert (info.partition_enforcement_inbound, info.partition_enforcement_outbound) == (1, 1)


def test_a_port_is_disabled_and_its_logical_state_left():
    data = bytearray(PortInfo(port_state=4, port_physical_state=5, link_down_default_state=2).encode())
    programming.disable(data)
    info = PortInfo.decode(bytes(data))
    assert (info.port_state, info.port_physical_state, info.link_down_default_state) == (0, 3, 2)
    assert programming._step(info, 3)[32:34] == bytes([data[32] | 3, data[33] & 15])
