"""What a manager is told while a fabric is at work: partitions, lanes, members of multicast groups."""

from __future__ import annotations

import pytest
from support.sm_fabrics import two_tiers

from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.operation.scenario import Scenario
from fabrictwin.subnet.operation.sweep_text import event_lines
from fabrictwin.subnet.serve.console import obey
from fabrictwin.subnet.serve.endpoint import Endpoint
from fabrictwin.subnet.wire.smp import PKeyTable

MGID = "ff12:401b:ffff::77"


@pytest.fixture
def scenario():
    made = Scenario(Endpoint(Network(SubnetState(two_tiers()))))
    made.start()
    return made


def reached(scenario, mlid):
    """Names of what a packet to a group reaches, by the masks that switches hold, from any of its members."""
    state = scenario.endpoint.state
    found = set()
    for (m, block, position), data in state.mft.items():
        first = 2 * (mlid - 0xC000 - 32 * block)
        if not 0 <= first < 64:
            continue
        mask = int.from_bytes(data[first : first + 2], "big")
        for bit in range(16):
            far = state.cable[state.base[m] + 16 * position + bit] if mask >> bit & 1 else NONE
            if far != NONE and not state.is_switch[state.node_of[far]]:
                found.add(state.fabric.node_name(int(state.fabric_node[state.node_of[far]])))
    return found


def test_nodes_join_and_leave_groups_over_the_fabric(scenario):
    hosts = ["host-1/mlx5_0", "host-2/mlx5_0", "host-3/mlx5_0"]
    first = scenario.do(f"join {hosts[0]} {MGID}")
    mlid = int(first.answers[0].split("0x")[1], 16)
    assert event_lines(first) == [f"join {hosts[0]} {MGID}:", f"  a member of MLID 0x{mlid:04x}"]
    assert first.noticed_ps - first.at_ps > 20_000_000  # an agent's time and its hops
    for host in hosts[1:]:
        assert scenario.do(f"join {host} {MGID}").answers == [f"a member of MLID 0x{mlid:04x}"]
    assert reached(scenario, mlid) == set(hosts)
    assert scenario.do(f"leave {hosts[1]} {MGID}").answers == [f"left MLID 0x{mlid:04x}"]
    assert reached(scenario, mlid) == {hosts[0], hosts[2]}
    assert scenario.do(f"leave {hosts[1]} {MGID}").answers == ["refused: request invalid"]
    assert not scenario.endpoint.awaited


def test_a_manager_takes_partitions_and_lanes_by_hand(scenario, tmp_path):
    state = scenario.endpoint.state
    guid = state.port_guid[state.find("host-1/mlx5_0")]
    slot = state.end_slot(state.find("host-1/mlx5_0"))
    (tmp_path / "p.conf").write_text(f"Default=0x7fff : ALL=full ;\na=0x5, indx0 : {guid:#x}=full ;\n")
    event = scenario.do(f"partitions {tmp_path / 'p.conf'}")
    assert event.sweeps[0].kind == "heavy"
    assert PKeyTable.decode(state.pkeys[slot, 0]).pkeys[:2] == (0x8005, 0xFFFF)
    (tmp_path / "qos.conf").write_text("qos_max_vls 2\nqos_sl2vl " + ",".join("01" * 8) + "\n")
    before = dict(state.sl_to_vl)
    scenario.do(f"qos {tmp_path / 'qos.conf'}")
    assert state.sl_to_vl != before
    assert PKeyTable.decode(state.pkeys[slot, 0]).pkeys[:2] == (0x8005, 0xFFFF)  # what it was told before holds


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("join host-1/mlx5_0", "expected 'join NODE MGID'"),
        ("join host-1/mlx5_0 fe80::1", "an MGID, which begins with ff"),
        ("leave host-1/mlx5_0 12", "expected an MGID such as"),
        ("join host-99/mlx5_0 ff12::1", "expected a node of the fabric"),
        ("partitions", "expected 'partitions FILE'"),
        ("qos /no/such/file", "/no/such/file"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_happens(scenario, line, says):
    with pytest.raises(ConfigError, match=says):
        scenario.target(line)


def test_a_fabric_without_a_manager_of_the_twins_refuses_settings(scenario):
    with pytest.raises(ConfigError, match="expected a manager of the twin's own"):
        obey(scenario.endpoint.state, "partitions p.conf", 0)
