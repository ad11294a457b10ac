"""After a failure the fewest changes could close a circle of waiting: then the manager routes anew as a whole."""

from __future__ import annotations

import networkx as nx
import pytest
from support.sm_fabrics import blueprint

from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.manager.manager import SubnetManager
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.sweep.table_computation import carry_over, reroute
from fabrictwin.subnet.operation.scenario import Scenario
from fabrictwin.subnet.serve.endpoint import Endpoint

RING = 5


def wheel(engine: str) -> Scenario:
    """A ring of switches with a host each, around a hub that makes most paths short."""
    switches = [(f"s{i}", 4) for i in range(RING)] + [("hub", RING)]
    cables = [(f"s{i}", 1, f"h{i}", 1) for i in range(RING)]
    cables += [(f"s{i}", 2, f"s{(i + 1) % RING}", 3) for i in range(RING)]
    cables += [(f"s{i}", 4, "hub", i + 1) for i in range(RING)]
    fabric = compile_fabric(blueprint(switches, [f"h{i}" for i in range(RING)], cables))
    scenario = Scenario(Endpoint(Network(SubnetState(fabric))), settings=Settings(engine=engine))
    scenario.start()
    return scenario


def circles(manager: SubnetManager, lft) -> list:
    """Circles of (lane, link) that wait for each other, as networkx finds them on walked paths."""
    graph, lids = manager.database.graph, manager.database.graph.lids
    switches = graph.switches
    waits = nx.DiGraph()
    for source in switches.endpoint_row.tolist():
        for lid in lids.endpoint.tolist():
            lane = manager.database.tables.lane
            vl = int(lane[lid, switches.edge_column[source]]) if lane.size else 0
            at, before = source, None
            for _ in range(2 * RING):
                edge = int(switches.port_edge[at, lft[at, lid]])
                if edge < 0:
                    break
                if before is not None:
                    waits.add_edge((vl, before), (vl, edge))
                before, at = edge, int(switches.adjacent_row[edge])
    return list(nx.simple_cycles(waits))


@pytest.mark.parametrize("engine", ["updown", "balanced"])
def test_a_rerouting_that_could_deadlock_is_replaced_by_all_new_tables(engine):
    scenario = wheel(engine)
    manager = scenario.managers[0].manager
    assert circles(manager, manager.database.tables.lft) == []
    held, tables = dict(manager.programmer.lft), manager.database.tables
    incident = scenario.do("off hub")
    # had it kept what still leads along a shortest path
    new, manager.database.tables = manager.database.tables, tables
    least = reroute(manager.database.graph, carry_over(manager.database.graph, held))
    assert circles(manager, least)
    manager.database.tables = new
    assert circles(manager, manager.database.tables.lft) == []
    state = scenario.endpoint.state
    for row, node in enumerate(manager.database.graph.nodes):
        programmed = state.lft[state.row[state.guid.index(node.guid)]]
        assert (programmed[: manager.database.tables.lft.shape[1]] == manager.database.tables.lft[row]).all()
    ends = [state.end_slot(state.find(f"h{i}/mlx5_0")) for i in range(RING)]
    assert all(scenario.endpoint.network.route(a, state.lid(b))[0] == b for a in ends for b in ends)
    assert incident.outage_ps > 0


def test_a_rerouting_that_cannot_deadlock_is_kept():
    scenario = wheel("balanced")
    scenario.do("cut s0/4")
    assert scenario.managers[0].manager.database.tables.remark == "after a failure, as few entries as possible"
    assert circles(scenario.managers[0].manager, scenario.managers[0].manager.database.tables.lft) == []
