"""Small rules of the manager, its console and its endpoint, one by one."""

from __future__ import annotations

from types import SimpleNamespace as Record

import numpy as np
import pytest
from support.sm_fabrics import Site, two_tiers

from fabrictwin.base.errors import ConfigError
from fabrictwin.routing.engines.filling import NO_PORT
from fabrictwin.routing.graph.switches import switch_graph
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.flow_control import WATCHDOG
from fabrictwin.subnet.agents.mad_routing import Fate, Frame, Network
from fabrictwin.subnet.manager.administration.matching import Matcher
from fabrictwin.subnet.manager.election import Election
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.settings.partitions import _Definition, _merge
from fabrictwin.subnet.manager.sweep.lids import Wish, assign
from fabrictwin.subnet.manager.sweep.light_sweep import Looked
from fabrictwin.subnet.operation.cluster_endpoint import partitioned
from fabrictwin.subnet.operation.managed_fabric import Incident
from fabrictwin.subnet.operation.tables_in_force import routes_of
from fabrictwin.subnet.serve.answer_order import STALL_PS
from fabrictwin.subnet.serve.console import COMMANDS, obey
from fabrictwin.subnet.serve.endpoint import Endpoint, pack_frame
from fabrictwin.subnet.wire import sa
from fabrictwin.subnet.wire.header import Method, SaMad


def test_definitions_of_one_partition_are_put_together():
    for one in (False, True):
        for other in (False, True):
            into, more = (_Definition("a", 1, 1) for _ in range(2))
            for name in ("all_full", "all_limited", "first", "ipoib"):
                setattr(into, name, one)
                setattr(more, name, other)
            into.full, more.full, into.limited, more.limited = {1}, {2}, {3}, {4}
            _merge(into, more)
            for name in ("all_full", "all_limited", "first", "ipoib"):
                assert getattr(into, name) == (one or other), name
            assert (into.full, into.limited) == ({1, 2}, {3, 4})


def test_a_manager_begins_without_sweeps_or_others():
    found = Election(Record(), Record())
    assert (found.activity, found.guid, found.others, found.wants_sweep) == (0, 0, {}, True)


def test_a_look_says_whether_anything_changed():
    assert len({Looked.NOTHING, Looked.LESS, Looked.MORE}) == 3


def test_the_console_takes_a_word_or_two():
    state = SubnetState(two_tiers())
    assert obey(state, "", 0) == obey(state, "   ", 0) == ""
    assert obey(state, "help", 0).splitlines() == [f"{name} {what}" for name, what in COMMANDS.items()]
    assert obey(state, "links leaf-0", 0).count("\n") == 5
    for wrong in ("links", "nothing", "links nobody"):
        with pytest.raises(ConfigError):
            obey(state, wrong, 0)


def test_packets_go_as_far_as_a_switch_s_table_and_top():
    site = Site()
    state, network = site.state, site.endpoint.network
    assert isinstance(network, Network)
    a, b = state.find("host-0/mlx5_0"), state.find("host-15/mlx5_0")
    lid = state.lid(state.end_slot(b))
    assert network.route(state.end_slot(a), lid)[0] == state.end_slot(b)
    leaf = state.find("leaf-0")
    top = int.from_bytes(state.switch_info[leaf][6:8], "big")
    for limit, arrives in ((lid, True), (lid - 1, False)):
        state.switch_info[leaf][6:8] = limit.to_bytes(2, "big")
        assert (network.route(state.end_slot(a), lid)[0] == state.end_slot(b)) == arrives
    state.switch_info[leaf][6:8] = (0xBFFF).to_bytes(2, "big")
    beyond = state.lft.shape[1]
    assert network.route(state.end_slot(a), beyond)[0] < 0  # one past the table
    assert network.route(state.end_slot(a), beyond - 1)[0] < 0
    state.switch_info[leaf][6:8] = top.to_bytes(2, "big")
    for port in (0, state.ports[leaf] + 1):
        state.lft[state.row[leaf], lid] = port
        assert network.route(state.end_slot(a), lid)[0] < 0
    state.lft[state.row[leaf], lid] = state.ports[leaf]
    assert network.route(state.end_slot(a), lid)[0] == state.end_slot(b)  # by the other spine


def test_ports_without_a_cable_have_no_link_built():
    state = SubnetState(two_tiers())
    for slot, built in enumerate(state.built):
        assert (built is None) == (state.cable[slot] < 0)
    assert np.count_nonzero([built is not None for built in state.built]) == sum(far >= 0 for far in state.cable)


@pytest.mark.parametrize("body", [b"\0" * 64, b"x" * 64])
def test_what_an_endpoint_refuses_is_counted(body):
    from fabrictwin.subnet.serve.endpoint import _CONTROL, MAGIC, Message

    site = Site(manage=False)
    before = site.endpoint.counts.refused
    kind = next(kind for kind in Message if kind not in (Message.CONNECT, Message.ERROR))
    asked = _CONTROL.pack(MAGIC, 3, kind, 0, body)  # of a client that has not connected
    answer = site.endpoint.control(asked, 0)
    assert _CONTROL.unpack(answer)[2] == Message.ERROR
    assert site.endpoint.counts.refused == before + 1


def test_what_subnet_administration_can_do_beyond_what_it_must():
    """OpenSM's osm_base.h numbers the bits of ClassPortInfo's masks; one more is there with quality of service."""
    from fabrictwin.subnet.manager.administration import administration

    assert administration._CAPABILITIES == 0x2602
    assert administration._CAPABILITIES2 == 0x2A0C8
    assert administration._QOS == 2
    assert administration.FOREVER_S == 2**32 - 1


def test_arbitration_tables_are_opensms_defaults():
    """Defaults of qos_vlarb_high and qos_vlarb_low, for VL 0 to 7, are those that opensm(8) lists."""
    settings = Settings()
    assert settings.vl_high == ((0, 4), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0))
    assert settings.vl_low == ((0, 0), (1, 4), (2, 4), (3, 4), (4, 4), (5, 4), (6, 4), (7, 4))


@pytest.mark.parametrize("name", ["data8", "data16", "data32", "data64"])
def test_a_query_asks_for_single_items_of_a_service_record(name):
    """IBTA volume 1, section 15.2.5.14: each item of a service's data is a component of its own."""
    count = len(getattr(sa.ServiceRecord(), name))
    items = tuple(range(1, count + 1))
    asked = sa.ServiceRecord(**{name: items})
    for i in range(count):
        matcher = Matcher(sa.ServiceRecord, asked, sa.component_mask(sa.ServiceRecord, f"{name}[{i}]"))
        same = sa.ServiceRecord(**{name: tuple(v if j == i else 0 for j, v in enumerate(items))})
        other = sa.ServiceRecord(**{name: tuple(0 if j == i else v for j, v in enumerate(items))})
        assert matcher.matches(same)
        assert not matcher.matches(other)
    both = sa.component_mask(sa.ServiceRecord, f"{name}[0]", f"{name}[1]", "lease_s")
    matcher = Matcher(sa.ServiceRecord, sa.ServiceRecord(**{name: items}, lease_s=5), both)
    assert matcher.matches(sa.ServiceRecord(**{name: items}, lease_s=5))
    assert not matcher.matches(sa.ServiceRecord(**{name: items}, lease_s=6))


def test_lids_of_ports_that_are_gone_are_given_away_last():
    gone = {0x100 + i: lid for i, lid in enumerate((1, 2, 5))}
    found = assign([Wish(0xA, 0, 0), Wish(0xB, 2, 0), Wish(0xC, 0, 0), Wish(0xD, 9, 0)], gone | {0xA: 3})
    assert found == {0xA: 3, 0xB: 2, 0xC: 4, 0xD: 9}
    again = assign([Wish(0xA, 0, 0), Wish(0xE, 0, 1)], {0x100: 3, 0xA: 4})
    assert again == {0xA: 4, 0xE: 6}, "a range of two begins at an even LID, beside what is another's"
    everybody = {1000 + lid: lid for lid in range(1, 0xC000)}  # all unicast LIDs
    assert assign([Wish(1, 0, 0)], everybody) == {1: 1}, "there is no other left"


def test_a_faulty_port_is_waited_for_as_often_as_is_asked():
    state = SubnetState(two_tiers())
    slot = state.end_slot(state.find("host-1/mlx5_0"))
    faults = state.flow_control
    faults.misbehave(slot, WATCHDOG, 0)
    plane = state.plane_of(state.node_of[slot])
    period = faults.period_ps(state.link[slot], WATCHDOG)
    for awaited in (1, 2, 3):
        faults.awaited_events = awaited
        assert faults.next_ps(plane) == awaited * period
        faults.advance(awaited * period)
        assert faults.next_ps(plane) is None
    assert faults.next_ps(plane + 1) is None


def test_entries_above_a_switchs_top_lead_nowhere():
    site = Site()
    state = site.state
    before = routes_of(state)
    m = state.find("leaf-0")
    row = int(
        np.flatnonzero(np.asarray([int(state.managed[n]) == m for n in switch_graph(state.fabric).row_node]))[0]
    )
    for top in (before.lft.shape[1] - 1, 7, 1):
        state.switch_info[m][6:8] = top.to_bytes(2, "big")
        after = routes_of(state)
        assert after.lft[row, : top + 1].tolist() == before.lft[row, : top + 1].tolist()
        assert set(after.lft[row, top + 1 :].tolist()) <= {NO_PORT}
    assert (before.lft[row, 1:] != NO_PORT).any()


def test_partitions_are_the_settings_own_without_a_file():
    settings = Settings(priority=3)
    assert partitioned(settings, None, Record(), "") is settings


def test_what_happened_is_put_side_by_side():
    assert Incident([(0, "cut leaf-0/1"), (5, "off spine-0")]).what == "cut leaf-0/1, off spine-0"


@pytest.mark.parametrize(("length", "counted"), [(24, 24), (120, 120), (184, 184), (185, 184), (6000, 184)])
def test_a_table_that_is_handed_over_whole_ends_with_its_last_whole_record(length, counted):
    """OpenSM hands tables over uncut, with the length of all; records of 64 bytes follow 56 bytes of headers."""
    mad = SaMad(method=Method.GET_TABLE_RESP, attribute=0x35, attribute_offset=8).encode()
    packed = pack_frame(Frame(1, 2, 1, 1, mad, length))
    assert int.from_bytes(packed[24:32], "big") == counted
    assert packed[32:] == mad


def test_an_answer_that_is_held_goes_once_the_client_has_waited_long_enough():
    forwarded = Record(slot=3, frame="trap")
    made = Record(
        clients=[
            None,
            Record(order=None, last_ps=0),
            Record(order=Record(stalled=lambda: [b"a", b"b"]), last_ps=70),
        ],
        network=Record(traps=lambda now: [forwarded, Record(slot=4, frame=None)]),
        forward=lambda slot, frame, now: [(slot, frame, now)],
    )
    for now in (70, 69 + STALL_PS):
        assert Endpoint.poll(made, now) == [(3, "trap", now)]
    assert Endpoint.poll(made, 70 + STALL_PS) == [(2, b"a"), (2, b"b"), (3, "trap", 70 + STALL_PS)]


def test_what_software_sends_goes_on_its_way_or_is_answered():
    fates = {"lost": (Fate.FORWARDED, None), "far": (Fate.FORWARDED, "there"), "own": (Fate.ANSWERED, "back")}

    def send(slot, frame, now):
        fate, reached = fates[frame]
        return Record(fate=fate, frame=reached, slot=slot + 10)

    made = Record(
        network=Record(send=send),
        forward=lambda *given: [("forward", *given)],
        answer=lambda *given: [("answer", *given)],
    )
    assert Endpoint.send(made, 5, ["lost", "far", "own"], 9) == [
        ("forward", 15, "there", 9),
        ("answer", 5, "back", 9),
    ]
