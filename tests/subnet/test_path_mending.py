"""Rerouting after faults changes what broke, keeps loads even, and nothing circles or deadlocks at any step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.clusters import blueprint as generated
from support.routing_fabrics import follow
from support.sm_fabrics import blueprint, two_tiers

from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.routing.check.judge import deadlock, judge
from fabrictwin.routing.engines.filling import Tables
from fabrictwin.routing.engines.registry import compute
from fabrictwin.routing.graph.switches import Lids, switch_graph
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.sweep import path_mending
from fabrictwin.subnet.operation.scenario import Scenario
from fabrictwin.subnet.operation.tables_in_force import routes_of
from fabrictwin.subnet.serve.endpoint import Endpoint


@dataclass
class Watched:
    """A managed fabric whose tables are looked at whenever an entry of them was set."""

    fabric: Fabric
    engine: str = "auto"
    steps: int = 0
    circling: list[tuple[int, int]] = field(default_factory=list)  # (switch, LID)
    deadlocks: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = SubnetState(self.fabric)
        self.scenario = Scenario(Endpoint(Network(self.state)), settings=Settings(engine=self.engine))
        self.scenario.start()
        self.switches = switch_graph(self.fabric)
        self.state.on_table.append(self._look)

    def _look(self, m: int, first: int, before: np.ndarray, now_ps: int) -> None:
        """After each datagram: follow every path to the LIDs of its block; look for a cycle among all paths."""
        self.steps += 1
        routes = routes_of(self.state)
        top = min(first + len(before), routes.lft.shape[1])
        for lid in range(max(first, 1), top):
            for row in range(self.switches.rows):
                at = row
                for _ in range(self.switches.rows + 1):
                    edge = int(self.switches.port_edge[at, routes.lft[at, lid]])
                    if edge < 0:
                        break
                    at = int(self.switches.adjacent_row[edge])
                else:
                    self.circling.append((row, lid))
        lid = routes.lid[self.switches.endpoint_node]
        used = lid[lid > 0].astype(
            np.int32
        )  # of adapters: switches' own have lanes to themselves where they need it
        sources = np.flatnonzero(self.switches.row_adapters).astype(np.int32)
        found = deadlock(self.switches, Tables("", routes.lft), used, sources)
        if not found.free:
            self.deadlocks.append(found.cycle)

    def paths(self) -> dict[tuple[int, int], tuple[int, ...] | None]:
        """Edges from every switch with adapters to every adapter's LID; None where nobody is reached."""
        routes = routes_of(self.state)
        lid, switches = routes.lid[self.switches.endpoint_node], self.switches
        found = {}
        for x in np.flatnonzero(lid > 0).tolist():
            end = int(switches.endpoint_row[x]), int(switches.endpoint_number[x])
            for row in np.flatnonzero(switches.row_adapters).tolist():
                way = follow(switches, routes.lft, row, int(lid[x]), *end)
                found[row, int(lid[x])] = None if way is None else tuple(way)
        return found

    def reaches(self, row: int, lid: int) -> bool:
        """Return whether the manager still reaches a switch and the owner of a LID."""
        (manager,) = (one.manager for one in self.scenario.managers)
        owner = manager.database.by_lid(lid)
        found = manager.database.subnet.nodes
        return int(self.switches.row_guid[row]) in found and owner is not None and owner.node.guid in found

    def alive(self, edge: int) -> bool:
        """Return whether the link of an edge is up."""
        node = int(self.switches.row_node[self.switches.adjacent_from[edge]])
        m = int(self.state.managed[node])
        return self.state.link[self.state.base[m] + int(self.switches.adjacent_number[edge])] >= 0


def trunks(watched: Watched) -> list[str]:
    switches = watched.switches
    return [
        f"{switches.row_name[int(switches.adjacent_from[e])]}/{int(switches.adjacent_number[e])}"
        for e in range(len(switches.adjacent_row))
        if e < switches.adjacent_back[e]
    ]


def with_one_more_cable() -> Fabric:
    """Two tiers whose first leaf has two cables to its first spine, and a host on a spine."""
    leaves, spines, down = 4, 3, 2
    switches = [(f"leaf-{i}", 8) for i in range(leaves)] + [(f"spine-{i}", 8) for i in range(spines)]
    hosts = [f"host-{i}" for i in range(leaves * down + 1)]
    cables = [(f"leaf-{i // down}", i % down + 1, f"host-{i}", 1) for i in range(leaves * down)]
    cables += [(f"leaf-{i}", down + 1 + j, f"spine-{j}", i + 1) for i in range(leaves) for j in range(spines)]
    cables += [("leaf-0", 8, "spine-0", 7), ("spine-1", 8, hosts[-1], 1)]
    return compile_fabric(blueprint(switches, hosts, cables))


FABRICS = {
    "two tiers": lambda: two_tiers(4, 3, 3),
    "three tiers": lambda: compile_fabric(
        generated(16, "pcie-box", topology={"kind": "fat-tree", "tiers": 3, "radix": 4})
    ),
    "uneven": with_one_more_cable,
}


@pytest.mark.parametrize("name", FABRICS)
@settings(max_examples=4, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(data=st.data())
@pytest.mark.second
def test_what_is_whole_stays_and_nothing_circles_or_deadlocks_on_the_way(name, data):
    watched = Watched(FABRICS[name]())
    cables = trunks(watched)
    cut: set[str] = set()
    for _ in range(4):
        choices = [f"cut {c}" for c in cables if c not in cut and not c.startswith("leaf-0/")]
        choices += [f"mend {c}" for c in sorted(cut)]  # the first leaf has the manager's host
        event = data.draw(st.sampled_from(choices))
        before = watched.paths()
        incident = watched.scenario.do(event)
        (cut.add if event.startswith("cut") else cut.discard)(event.split()[1])
        after = watched.paths()
        (manager,) = (one.manager for one in watched.scenario.managers)
        graph, tables = manager.database.graph, manager.database.tables
        # each of them: a sweep that finds no more to do mends nothing, even what an engine routed anew just before
        kept = all(sweep.remark.startswith("after a change") for sweep in incident.sweeps)
        if kept and event.startswith("cut"):
            moved = {key for key, way in before.items() if way is not None and after[key] != way}
            broken = {key for key, way in before.items() if way is not None and not all(map(watched.alive, way))}
            assert {key for key in broken if watched.reaches(*key)} <= moved <= broken
        if not kept or path_mending._astray(graph, tables):
            # adapters have no way up and then down, whoever routes: they need lanes of their own, which come later
            watched.deadlocks.clear()
            assert not kept or judge(graph.switches, graph.lids, tables).deadlock_all.free
        assert not watched.circling
        assert not watched.deadlocks
    for cable in sorted(cut):
        watched.scenario.do(f"mend {cable}")
    assert watched.paths() == Watched(FABRICS[name]()).paths()


def test_nothing_circles_on_the_way_where_no_tree_is_left():
    """Old and new shortest ways, mixed, could lead back and forth; so they change next hop first too."""
    watched = Watched(with_one_more_cable())
    for event in ("cut leaf-3/4", "cut leaf-2/5"):
        watched.scenario.do(event)
    (manager,) = (one.manager for one in watched.scenario.managers)
    assert manager.database.tables.remark.startswith("after a failure")
    assert not watched.circling


def test_a_switch_that_goes_takes_no_whole_path_along():
    watched = Watched(
        compile_fabric(generated(54, "pcie-box", topology={"kind": "fat-tree", "tiers": 3, "radix": 6}))
    )
    spine = next(str(name) for name in watched.switches.row_name if str(name).startswith("spine"))
    before = watched.paths()
    watched.scenario.do(f"off {spine}")
    after = watched.paths()
    broken = {key for key, way in before.items() if way is not None and not all(map(watched.alive, way))}
    assert {key for key, way in before.items() if after[key] != way} == broken
    assert len(broken) < len(before) / 4
    assert not watched.circling
    assert not watched.deadlocks


@pytest.mark.parametrize(("anew", "stays"), [(9, True), (12, True), (8, False)])
def test_whole_paths_stay_unless_new_tables_leave_fewer_pairs_without_a_way_up_and_down(monkeypatch, anew, stays):
    """Nine pairs are astray after mending, where four were: what the engine would leave decides."""
    watched = Watched(two_tiers())
    before = watched.paths()
    left = iter([9, anew, 0, 0])
    monkeypatch.setattr(path_mending, "_astray", lambda graph, tables: next(left))
    (manager,) = (one.manager for one in watched.scenario.managers)
    manager.database.routed = replace(manager.database.routed, astray=4)
    incident = watched.scenario.do("off spine-0")
    after = watched.paths()
    assert incident.sweeps[0].remark.startswith("after a change") == stays
    if stays:
        broken = {key for key, way in before.items() if way is not None and not all(map(watched.alive, way))}
        assert {key for key, way in before.items() if after[key] != way} == broken


@pytest.mark.parametrize("event", ["off spine-0", "cut leaf-0/13", "off spine-3"])
def test_loads_are_within_a_tenth_of_an_engines_new_tables(event):
    watched = Watched(two_tiers(8, 6, 12))
    watched.state.on_table.remove(watched._look)
    watched.scenario.do(event)
    (manager,) = (one.manager for one in watched.scenario.managers)
    graph = manager.database.graph
    assert graph is not None
    ours = judge(graph.switches, graph.lids, manager.database.tables)
    fresh = judge(graph.switches, graph.lids, compute(graph.switches, graph.lids, engine="auto"))
    assert manager.database.tables.remark.startswith("after a change")
    assert ours.unreached == 0
    assert ours.all_to_all.worst <= 1.1 * fresh.all_to_all.worst
    assert ours.deadlock_all.free


def test_an_engine_of_opensms_name_routes_anew_as_opensm_does():
    watched = Watched(two_tiers(4, 3, 3), "minhop")
    watched.scenario.do("off spine-1")
    (manager,) = (one.manager for one in watched.scenario.managers)
    graph = manager.database.graph
    assert graph is not None
    expected = compute(graph.switches, Lids(graph.lids.row, graph.lids.endpoint), engine="minhop")
    assert np.array_equal(manager.database.tables.lft, expected.lft)


@pytest.mark.parametrize("engine", ["auto", "minhop", "updn"])
def test_a_rehearsal_of_rerouting_runs_what_a_change_runs_and_sends_nothing(monkeypatch, engine):
    """Whatever a change needs is compiled then: no client waits for it later."""
    from fabrictwin.kernel.routing import path_mending as kernel

    watched = Watched(two_tiers(), engine=engine)
    (manager,) = (one.manager for one in watched.scenario.managers)
    called = []

    def noting(name):
        kept = getattr(kernel, name)
        return lambda *given: (called.append(name), kept(*given))[1]

    for name in ("mend_paths", "whole_paths", "order_entries"):
        monkeypatch.setattr(kernel, name, noting(name))
    before = manager.database.tables, manager.transport.statistics.requests, watched.steps
    manager.rehearse_rerouting()
    rehearsed = set(called)
    assert (manager.database.tables, manager.transport.statistics.requests, watched.steps) == before
    watched.scenario.do("off spine-0")
    watched.scenario.do("on spine-0")
    assert rehearsed >= set(called)
    assert rehearsed or engine != "auto"
