"""Performance counters as their attributes show and clear them, and ranges of a manager's settings."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.sm_fabrics import two_tiers

from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.pma import EngineCounters, PerformanceAgent
from fabrictwin.subnet.agents.port_states import COUNTERS
from fabrictwin.subnet.manager.settings.manager_settings import Broadcast, Settings
from fabrictwin.subnet.wire import pm
from fabrictwin.subnet.wire.header import Method, Status
from fabrictwin.trace.trace import Counters

# IBTA volume 1, 16.1.3.5: widths of PortCounters in bits, in the order of CounterSelect's bits
WIDTHS = {
    "symbol_errors": 16, "link_error_recovery": 8, "link_downed": 8, "rcv_errors": 16,
    "rcv_remote_physical_errors": 16,
    "rcv_switch_relay_errors": 16, "xmit_discards": 16, "xmit_constraint_errors": 8, "rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4, "excessive_buffer_overrun_errors": 4, "vl15_dropped": 16, "xmit_data": 32,
    "rcv_data": 32, "xmit_packets": 32, "rcv_packets": 32,
}  # fmt: skip


class Node:
    """The performance agent of one node, with counters drawn for all of its ports."""

    def __init__(self, name="leaf-1", most=1 << 40):
        self.state = SubnetState(two_tiers())
        self.m, self.agent = self.state.find(name), PerformanceAgent(self.state)
        draw = random.Random(5)
        self.base, self.ports = self.state.base[self.m], self.state.ports[self.m]
        for name in COUNTERS:
            values = [
                draw.choice([draw.randrange(3), draw.randrange(300), draw.randrange(most)])
                for _ in range(self.ports + 1)
            ]
            self.state.counters[name][self.base : self.base + self.ports + 1] = values

        for way in ("xmit", "rcv"):  # multicast packets are some of all
            self.state.counters[f"multicast_{way}_packets"][:] = self.state.counters[f"{way}_packets"] // 3

    def ask(self, attribute, port=1, method=Method.GET, **fields):
        mad = bytearray(256)
        mad[:4] = 1, 4, 1, method
        mad[8:18] = (77).to_bytes(8, "big") + int(attribute).to_bytes(2, "big")
        kind = {one.ID: one for one in (pm.PortCounters, pm.PortCountersExtended)}.get(int(attribute))
        if kind is not None:
            data = kind(port_select=port, **fields).encode()
            mad[64 : 64 + len(data)] = data
        mad[65] = port
        back = self.agent.answer(self.m, bytes(mad))
        assert (len(back), back[:4], back[6:64]) == (256, bytes((1, 4, 1, 0x81)), bytes(mad[6:64]))
        return int.from_bytes(back[4:6], "big"), back[64:]

    def held(self, name, port):
        column = self.state.counters[name]
        first = 0 if self.state.is_switch[self.m] else 1
        ports = range(first, self.ports + 1) if port == 255 else [port]
        return sum(int(column[self.base + number]) for number in ports)


@pytest.mark.parametrize("name", ["leaf-1", "host-3/mlx5_0"])
def test_counters_saturate_at_their_width_and_extended_ones_are_whole(name):
    node = Node(name)
    for port in [1, 255] + ([0, 3] if name == "leaf-1" else []):
        status, data = node.ask(pm.PerfId.PORT_COUNTERS, port)
        told = pm.PortCounters.decode(data)
        assert (status, told.port_select) == (0, port)
        for counter, width in [*WIDTHS.items(), ("xmit_wait", 32)]:
            if counter in COUNTERS:
                assert getattr(told, counter) == min(node.held(counter, port), 2**width - 1), counter
        status, data = node.ask(pm.PerfId.PORT_COUNTERS_EXTENDED, port)
        whole = pm.PortCountersExtended.decode(data)
        assert (status, whole.port_select) == (0, port)
        assert {one: getattr(whole, one) for one in COUNTERS if hasattr(whole, one)} == {
            one: node.held(one, port) for one in COUNTERS if hasattr(whole, one)
        }
        for way in ("xmit", "rcv"):
            unicast = node.held(f"{way}_packets", port) - node.held(f"multicast_{way}_packets", port)
            assert getattr(whole, f"unicast_{way}_packets") == unicast
        for attribute, kind, field, counter, most in (
            (pm.PerfId.RCV_ERROR_DETAILS, pm.RcvErrorDetails, "local_physical_errors", "rcv_errors", 0xFFFF),
            (pm.PerfId.XMIT_DISCARD_DETAILS, pm.XmitDiscardDetails, "inactive_discards", "xmit_discards", 0xFFFF),
        ):
            assert getattr(kind.decode(node.ask(attribute, port)[1]), field) == min(node.held(counter, port), most)
        for attribute, kind, field, counter, most in (
            (pm.PerfId.VL_OP_PACKETS, pm.VlOpPackets, "packets", "xmit_packets", 0xFFFF),
            (pm.PerfId.VL_OP_DATA, pm.VlOpData, "data", "xmit_data", 0xFFFFFFFF),
            (pm.PerfId.VL_XMIT_WAIT, pm.VlXmitWait, "ticks", "xmit_wait", 0xFFFF),
        ):
            told = getattr(kind.decode(node.ask(attribute, port)[1]), field)
            assert told == (min(node.held(counter, port), most), *[0] * 15)


@pytest.mark.parametrize("port", [2, 255])
def test_a_set_clears_what_its_bits_select_and_no_more(port):
    for bit, counter in enumerate([*WIDTHS, "xmit_wait"]):
        node = Node(most=400)
        before = {name: node.state.counters[name].copy() for name in COUNTERS}
        select = {"counter_select2": 1} if counter == "xmit_wait" else {"counter_select": 1 << bit}
        assert node.ask(pm.PerfId.PORT_COUNTERS, port, Method.SET, **select)[0] == 0
        for name in COUNTERS:
            changed = node.state.counters[name] != before[name]
            slots = range(node.base, node.base + node.ports + 1) if port == 255 else [node.base + port]
            expected = {slot for slot in slots if before[name][slot]} if name == counter else set()
            assert set(np.flatnonzero(changed).tolist()) == expected, (counter, name)


CONGESTION = {
    pm.PerfId.SL_RCV_FECN: (pm.SlRcvFecn, "packets", "fecns"),
    pm.PerfId.SL_RCV_BECN: (pm.SlRcvBecn, "packets", "becns"),
    pm.PerfId.VL_XMIT_TIME_CONGESTED: (pm.VlXmitTimeCongested, "ticks", "congested_ticks"),
}


def congested():
    """A node whose congestion counters are drawn, some beyond 32 bits."""
    node, draw = Node(), random.Random(7)
    for name in ("fecns", "becns", "congested_ticks"):
        held = node.state.lane_counter(name)
        held[:] = [[draw.choice([0, draw.randrange(300), 1 << 33]) for _ in range(16)] for _ in range(len(held))]
    return node


@pytest.mark.parametrize("port", [2, 255])
def test_what_congestion_control_counted_is_told_by_level_and_lane(port):
    node, quiet = congested(), Node()
    at = slice(node.base + port, node.base + port + 1)
    if port == 255:
        at = slice(node.base, node.base + node.ports + 1)
    summed = {name: held[at].sum(axis=0).tolist() for name, held in node.state.lane_counters.items()}
    for attribute, (kind, field, name) in CONGESTION.items():
        count = 15 if kind is pm.VlXmitTimeCongested else 16
        expected = tuple(min(each, 0xFFFFFFFF) for each in summed[name])[:count]
        assert getattr(kind.decode(node.ask(attribute, port)[1]), field) == expected
        assert getattr(kind.decode(quiet.ask(attribute, port)[1]), field) == (0,) * count
    rcv = pm.RcvCongestionControl.decode(node.ask(pm.PerfId.RCV_CONGESTION_CONTROL, port)[1])
    limit = {
        name: min(sum(min(each, 0xFFFFFFFF) for each in levels), 0xFFFFFFFF) for name, levels in summed.items()
    }
    assert (rcv.fecns, rcv.becns) == (limit["fecns"], limit["becns"])
    xmit = pm.XmitCongestionControl.decode(node.ask(pm.PerfId.XMIT_CONGESTION_CONTROL, port)[1])
    assert xmit.ticks == limit["congested_ticks"]


@pytest.mark.parametrize(
    ("attribute", "select", "cleared"),
    [
        (0x31, 1, {"fecns": range(16)}), (0x31, 2, {"becns": range(16)}),
        (0x34, 1, {"congested_ticks": range(16)}),
        (0x32, 0x8001, {"fecns": (0, 15)}), (0x33, 4, {"becns": (2,)}), (0x35, 2, {"congested_ticks": (1,)}),
        (0x31, 0, {}),
    ],
)  # fmt: skip
def test_a_set_clears_the_congestion_counters_that_its_bits_select(attribute, select, cleared):
    node = congested()
    for held in node.state.lane_counters.values():
        held[:] = 5
    mad = bytearray(256)
    mad[:4] = 1, 4, 1, Method.SET
    mad[16:18], mad[65], mad[66:68] = attribute.to_bytes(2, "big"), 2, select.to_bytes(2, "big")
    assert node.agent.answer(node.m, bytes(mad))[4:6] == bytes(2)
    for name, held in node.state.lane_counters.items():
        expected = np.full_like(held, 5)
        expected[node.base + 2, list(cleared.get(name, ()))] = 0
        assert np.array_equal(held, expected), name


# CounterSelect of PortCountersExtended (16.1.4.11): unicast packets are what multicast ones leave
EXTENDED = [
    ["xmit_data"], ["rcv_data"], ["xmit_packets"], ["rcv_packets"], ["xmit_packets", "multicast_xmit_packets"],
    ["rcv_packets", "multicast_rcv_packets"], ["multicast_xmit_packets"], ["multicast_rcv_packets"],
]  # fmt: skip
ERRORS = [
    "symbol_errors", "link_error_recovery", "link_downed", "rcv_errors", "rcv_remote_physical_errors",
    "rcv_switch_relay_errors", "xmit_discards", "xmit_constraint_errors", "rcv_constraint_errors",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors", "vl15_dropped", "xmit_wait", "qp1_dropped",
]  # fmt: skip


@pytest.mark.parametrize("port", [2, 255])
def test_a_set_of_whole_counters_clears_by_two_selections(port):
    rows = [("counter_select", bit, names) for bit, names in enumerate(EXTENDED)]
    rows += [("counter_select2", bit, [name]) for bit, name in enumerate(ERRORS)]
    for select, bit, names in rows:
        node = Node(most=400)
        before = {name: node.state.counters[name].copy() for name in COUNTERS}
        status, data = node.ask(pm.PerfId.PORT_COUNTERS_EXTENDED, port, Method.SET, **{select: 1 << bit})
        assert (status, pm.PortCountersExtended.decode(data).port_select) == (0, port)
        slots = range(node.base, node.base + node.ports + 1) if port == 255 else [node.base + port]
        for name in COUNTERS:
            changed = np.flatnonzero(node.state.counters[name] != before[name]).tolist()
            assert changed == [slot for slot in slots if before[name][slot] and name in names], (select, bit, name)


@pytest.mark.parametrize(
    ("method", "attribute", "port", "status"),
    [
        (Method.GET, 0x12, 6, 0), (Method.GET, 0x12, 7, Status.BAD_FIELD),
        (Method.GET, 0x99, 1, Status.BAD_ATTRIBUTE),
        (Method.SEND, 0x12, 1, Status.BAD_METHOD), (Method.SET, 0x01, 1, Status.BAD_ATTRIBUTE),
        (Method.GET, 0x01, 9, 0),
        (Method.GET, 0x12, 0, 0), (Method.GET, 0x12, 255, 0), (Method.GET, 0x12, 254, Status.BAD_FIELD),
    ],
)  # fmt: skip
def test_what_an_agent_refuses(method, attribute, port, status):
    assert Node().ask(attribute, port, method)[0] == status


def test_a_port_of_an_adapter_begins_at_one():
    node = Node("host-3/mlx5_0")
    assert [node.ask(0x12, port)[0] for port in (0, 1, 2)] == [Status.BAD_FIELD, 0, Status.BAD_FIELD]


def test_an_engines_bytes_become_words_and_packets_at_both_ends_and_waits_ticks():
    """Packets are full but the last; each has LRH, BTH and ICRC: 8, 12 and 4 bytes. A tick sends four bytes."""
    state = SubnetState(two_tiers())
    fabric = state.fabric
    slots = [s for s in range(len(state.cable)) if state.fabric_port[s] != NONE and state.cable[s] != NONE]
    draw = random.Random(2)
    sent = np.zeros(fabric.ports, np.int64)
    waited, drops = sent.copy(), sent.copy()
    load = EngineCounters(state)
    for _ in range(2):
        for slot in slots:
            port = state.fabric_port[slot]
            sent[port] += draw.choice([0, 1, fabric.mtu_bytes, 10 * fabric.mtu_bytes])
            waited[port] += 1000 * draw.randrange(1000)
            drops[port] += draw.randrange(3)
        before = {name: state.counters[name].copy() for name in COUNTERS}
        old = (load._before.tx_bytes.copy(), load._before.wait_ps, load._before.drops)
        load.load(Counters(sent.copy(), wait_ps=waited.copy(), drops=drops.copy()))
        for slot in slots:
            port, far = int(state.fabric_port[slot]), state.cable[slot]
            payload = int(sent[port] - old[0][port])
            packets = -(-payload // fabric.mtu_bytes)
            words = (payload + packets * 24 + 3) // 4
            after = {name: int(state.counters[name][slot] - before[name][slot]) for name in COUNTERS}
            assert (after["xmit_data"], after["xmit_packets"]) == (words, packets)
            assert int(state.counters["rcv_data"][far] - before["rcv_data"][far]) == words
            assert int(state.counters["rcv_packets"][far] - before["rcv_packets"][far]) == packets
            late = int(waited[port] - (0 if old[1] is None else old[1][port]))
            assert after["xmit_wait"] == round(late * int(fabric.port_rate_bps[port]) / 32e12)
            assert after["xmit_discards"] == int(drops[port] - (0 if old[2] is None else old[2][port]))


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("priority", 15), ("max_vls", 5), ("vl_high_limit", 255), ("mtu_code", 5), ("babbling_traps", 1_000_000),
        ("packet_life_time", 20), ("head_of_queue", 20), ("leaf_head_of_queue", 20), ("stall_count", 7),
        ("m_key_protect", 3), ("m_key_lease", 0xFFFF),
    ],
)  # fmt: skip
def test_settings_have_ends(key, most):
    assert [getattr(Settings(**{key: value}), key) for value in (0, most)] == [0, most]
    for value in (-1, most + 1):
        with pytest.raises(ConfigError, match=f"got {value}, expected 0 to {most}"):
            Settings(**{key: value})


def test_settings_that_are_not_given_are_opensms():
    """opensm.conf's defaults: priority 0, keys 0 and 1, lease 0, life time 0x12, limits, VLs of qos_sl2vl."""
    made = Settings()
    numbers = {name: value for name, value in vars(made).items() if type(value) is int}
    assert numbers == {
        "priority": 0, "sm_key": 1, "m_key": 0, "m_key_protect": 0, "m_key_lease": 0, "gid_prefix": 0xFE80 << 48,
        "max_vls": 4, "mtu_code": 5, "subnet_timeout": 18, "vl_high_limit": 0, "packet_life_time": 18,
        "head_of_queue": 18, "leaf_head_of_queue": 16, "stall_count": 7, "babbling_traps": 0, "take_over_after": 3,
    }  # fmt: skip
    assert made.sl_to_vl == (0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7)
    assert made.vl_low == ((0, 0), (1, 4), (2, 4), (3, 4), (4, 4), (5, 4), (6, 4), (7, 4))
    assert made.vl_high == ((0, 4), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0))
    group = Broadcast()
    numbers = {name: value for name, value in vars(group).items() if type(value) is int}
    assert {name: value for name, value in numbers.items() if value} == {
        "rate": 3,
        "mtu": 4,
        "scope": 2,
        "qkey": 0xB1B,
    }
