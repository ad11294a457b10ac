"""Small rules of the manager, its console and its endpoint, one by one."""

from __future__ import annotations

from types import SimpleNamespace as Record

import numpy as np
import pytest
from support.sm_fabrics import Site, two_tiers

from fabrictwin.base.errors import ConfigError
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.manager.election import Election
from fabrictwin.subnet.manager.settings.partitions import _Definition, _merge
from fabrictwin.subnet.manager.sweep.light_sweep import Looked
from fabrictwin.subnet.serve.console import COMMANDS, obey


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

    assert administration._CAPABILITIES == 0x2202
    assert administration._CAPABILITIES2 == 0x2A0C8
    assert administration._QOS == 2
    assert administration.FOREVER_S == 2**32 - 1
