"""Quality of service: OpenSM's options, what ports hold then, and what packets make of it."""

from __future__ import annotations

import re
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import boxes

from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.packet.network.packet_network import PacketNetwork
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.settings.qos import OPTIONS, qos_settings, read_qos
from fabrictwin.subnet.wire import smp

OPENSM = """\
# QoS default options
qos_max_vls 4
qos_high_limit 7
qos_vlarb_high 0:0,1:64
qos_vlarb_low 0:65,1:195,2:4,3:4
qos_sl2vl 0,1,2,3,0,1,2,1,0,1,2,3,0,1,2,15

# QoS CA options
qos_ca_max_vls 0
qos_ca_high_limit -1
qos_ca_vlarb_high (null)
"""


@pytest.fixture
def conf(tmp_path):
    def write(text: str):
        path = tmp_path / "opensm.conf"
        path.write_text(text)
        return path

    return write


def test_opensms_lines_are_the_managers_settings(conf):
    assert read_qos(conf(OPENSM)) == {
        "max_vls": 3,
        "vl_high_limit": 7,
        "vl_high": ((0, 0), (1, 64)),
        "vl_low": ((0, 65), (1, 195), (2, 4), (3, 4)),
        "sl_to_vl": (0, 1, 2, 3, 0, 1, 2, 1, 0, 1, 2, 3, 0, 1, 2, 15),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("qos_max_vls 3", "conf:1 qos_max_vls: got 3, expected one of 1, 2, 4, 8, 15"),
        ("\nqos_sl2vl 0,1", "conf:2 qos_sl2vl: got 2 lanes, expected 16, one for each service level"),
        ("qos_vlarb_high 0;4", "conf:1 qos_vlarb_high: got '0;4', expected VL:WEIGHT"),
        ("qos_vlarb_low 0:256", "conf:1 qos_vlarb_low: got '256', expected 0 to 255"),
        ("qos_high_limits 3", "conf:1: got qos_high_limits, expected one of .* did you mean"),
        ("qos_ca_max_vls 4", "conf:1: got qos_ca_max_vls"),
        ("max_wire_smps 4", "conf:1: got max_wire_smps"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(conf, text, said):
    with pytest.raises(ConfigError, match=said):
        read_qos(conf(text))


@given(st.sampled_from(sorted(OPTIONS)), st.text(string.digits + ":,-x ", max_size=40))
def test_no_value_raises_anything_else(key, text):
    """Nothing but a ConfigError; what is taken are the numbers that stand there, in their order."""
    try:
        (value,) = qos_settings({key: text}).values()
    except ConfigError:
        return
    written = [int(number) for number in re.findall(r"\d+", text)]
    if key == "qos_max_vls":
        assert {1: 1, 2: 2, 3: 4, 4: 8, 5: 15}[value] == written[0]
    else:
        assert np.ravel(value).tolist() == written


def managed(settings: Settings):
    """Three hosts at a switch, brought up by a manager."""
    twin = boxes.__wrapped__(3, "infiniband")  # its own: it is changed
    twin.manage(settings=settings)
    return twin


def test_the_engine_is_given_what_the_agents_answer(conf):
    twin = managed(Settings(**read_qos(conf(OPENSM))))
    state, tables = twin.management.state, twin.routes.lane_tables
    agent = twin.management.endpoint.network.sma
    for slot in range(state.slots):
        port, m = int(state.fabric_port[slot]), state.node_of[slot]
        if port < 0 or state.link[slot] < 0:
            continue
        held = smp.SlToVl.decode(agent._get_sl_to_vl(m, slot, state.number[slot])[1])
        assert tuple(tables.sl_to_vl[tables.sl_to_vl_row[port]]) == held.vls
        assert not tables.by_input[port]
        turns = tables.arbitrations[tables.arbitration_row[port]]
        assert (turns.high_limit, turns.high, turns.low) == (
            7,
            ((0, 0), (1, 64)) + ((0, 0),) * 6,
            ((0, 65), (1, 195), (2, 4), (3, 4)) + ((0, 0),) * 4,
        )


def test_nobody_programmed_anything():
    assert managed(Settings(qos=False)).routes.lane_tables is None


@pytest.mark.parametrize(("low", "ratio"), [("0:65,1:195", 3.0), ("0:100,1:50", 0.5)])
def test_flows_share_a_link_by_the_weights_that_the_manager_programmed(low, ratio):
    """Service levels 4 and 7 are lanes 0 and 1 by the manager's map; both flows meet at the third host's link."""
    maps = ",".join(["0,0,0,0,0,1,0,1"] * 2)
    quality = qos_settings({"qos_vlarb_high": "0:0,1:0", "qos_vlarb_low": low, "qos_sl2vl": maps})
    twin = managed(Settings(**quality))
    network = PacketNetwork(twin.fabric, twin.routes, options_with(service_levels=(("a", 4), ("b", 7))))
    to = network.connections
    first = to.connect([to.remote(i, 2, sl=level) for i, level in enumerate((4, 7))])
    network.machine.add_tasks(np.ones(2, int), first + np.arange(2), np.full(2, 50_000_000), np.zeros(2, int))
    network.machine.run(400 * 10**6)
    light, heavy = (int(qp.expected) for qp in network.machine.state.qp[:2])
    assert heavy / light == pytest.approx(ratio, rel=0.05)
