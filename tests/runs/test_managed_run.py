"""Things break while data moves: the manager hears of it over the fabric, routes anew, and traffic goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from support.clusters import blueprint
from support.programs import operations

from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.engines.base.changes import TableEntries, TimedChange
from fabrictwin.engines.packet.network.port_counters import port_counters
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import PacketOptions, options_with
from fabrictwin.fabric.fabric import NONE
from fabrictwin.program import collectives
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.operation.managed_fabric import Effect, Incident, LinkEffect, TableEffect
from fabrictwin.subnet.operation.tables_in_force import routes_of
from fabrictwin.twin import Twin
from fabrictwin.twin.managed_run import ManagedRun

US, MS, MIB = 10**6, 10**9, 1 << 20
TREE = {"kind": "fat-tree", "tiers": 2, "leaf_down": 4, "spines": 4}


@dataclass
class Run:
    """16 hosts on four leaves and four spines, one message from host-1 to host-13, and what happens meanwhile."""

    happens: tuple[tuple[int, str], ...] = ()
    fidelity: str = "packet"
    size: int = 96 * MIB
    engine: str = "auto"
    managed: bool = True
    samples: list[tuple[int, int]] = field(default_factory=list)  # (time, bytes received)

    def __post_init__(self) -> None:
        self.twin = Twin(blueprint(16, "pcie-box", topology=TREE))
        self.twin.manage(host="host-0/mlx5_0", settings=Settings(engine=self.engine))
        self.management = self.twin.management
        self.before = self.twin.routes
        self.effects: list[Effect] = []
        step = self.management.step
        self.management.step = lambda: self._kept(step())
        self.run = ManagedRun(self.management, self.twin.fabric)
        for time_ps, line in self.happens:
            node = line.split(" ")[1]
            state = self.management.state
            m = state.find(node.rpartition("/")[0] if line.startswith(("cut", "mend")) else node)
            self.run.plan(time_ps, line, m)
        options = options_with(timeout=6) if self.fidelity == "packet" else None
        self.simulation = self.twin.start_engine(self.fidelity, options)
        gpu = self.twin.fabric.gpu_node
        _, first = np.unique(self.twin.fabric.node_host[gpu], return_index=True)
        ops = operations([0], [[]])
        self.simulation.post(ops, [collectives.send(np.array([[1, 13]]), self.size)], gpu[first])

    def _kept(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        return effects

    def go(self) -> Run:
        self.run.drive(self.simulation, 0, 1)
        return self

    @property
    def end_ps(self) -> int:
        return int(self.simulation.ended_ps()[0])

    @property
    def path(self) -> list[int]:
        """Ports that carry the message by the tables at the start."""
        ports, _ = self.before.walk(np.array([1], np.int32), np.array([13], np.int32))
        return ports.tolist()

    @property
    def trunk(self) -> str:
        """The leaf's port that the message leaves by, as `NODE/PORT`."""
        return self.twin.fabric.port_name(self.path[1])

    @property
    def incidents(self) -> list[Incident]:
        return self.management.incidents


@pytest.fixture(scope="module")
def calm() -> Run:
    return Run().go()


@pytest.fixture(scope="module")
def cut(calm: Run) -> Run:
    return Run(((500 * US, f"cut {calm.trunk}"),)).go()


def carried(run: Run) -> np.ndarray:
    return run.simulation.counters().tx_bytes


def test_without_anything_happening_management_changes_nothing(calm):
    """The same simulation without managers beside it takes as long and sends the same, to the byte."""
    alone = Run()
    alone.simulation.advance()
    assert alone.end_ps == calm.end_ps
    assert (carried(alone) == carried(calm)).all()
    assert calm.run.outages == ()


def test_the_packets_follow_the_tables_that_the_manager_programmed(calm):
    network = np.isin(calm.twin.fabric.port_kind, (3, 4))
    assert np.flatnonzero((carried(calm) > 0) & network).tolist() == sorted(calm.path)


def test_a_cut_cable_stops_traffic_until_the_tables_change_and_then_it_goes_on_elsewhere(calm, cut):
    fabric = cut.twin.fabric
    (outage,) = cut.run.outages
    incident = outage.incident
    assert incident.at_ps == cut.run.origin_ps + 500 * US
    # noticed by a trap: an agent's time and at least a hop later, and no later than the longest way
    assert 20 * US < incident.noticed_ps - incident.at_ps < 22 * US
    assert incident.noticed_ps - incident.at_ps < incident.outage_ps < 3 * MS
    # over the old trunk nothing but what was sent before the cut
    old = cut.path[1]
    assert 0 < carried(cut)[old] < 500 * US / 8e12 * fabric.port_rate_bps[old]
    # and the rest over another, by the tables that the switches hold now
    now = routes_of(cut.management.state)
    ports, _ = now.walk(np.array([1], np.int32), np.array([13], np.int32))
    assert old not in ports
    assert all(carried(cut)[port] > 0 for port in ports)
    # the message is late by the outage, by how long what was lost takes again, and no more than a timeout
    late = cut.end_ps - calm.end_ps
    assert incident.outage_ps * 0.9 < late < incident.outage_ps + 2 * MS
    assert outage.lost > 0
    assert outage.retransmitted >= outage.lost
    state = cut.simulation.network.machine.state
    assert outage.lost == state.clock[0].dropped
    assert outage.retransmitted == state.qp.retransmitted[: cut.simulation.network.machine.queue_pairs].sum()


@pytest.mark.second
def test_nothing_arrives_during_the_outage(calm):
    run = Run(((500 * US, f"cut {calm.trunk}"),))
    last = run.path[-1]
    seen: list[tuple[int, int]] = []
    advance = run.simulation.advance

    def sampled(until_ps: int = 2**62):
        while until_ps < 2**62 and run.simulation.now_ps + 20 * US < until_ps:
            advance(run.simulation.now_ps + 20 * US)
            seen.append((run.simulation.now_ps, int(carried(run)[last])))
        return advance(until_ps)

    run.simulation.advance = sampled
    run.run.drive(run.simulation, 0, 1)
    incident = run.incidents[0]
    began, ended = 500 * US, 500 * US + incident.outage_ps
    grown = [(b[0], b[1] - a[1]) for a, b in pairwise(seen)]
    assert all(more > 0 for at, more in grown if at < began)
    assert all(more == 0 for at, more in grown if began + 40 * US < at < ended - 40 * US)
    assert sum(more == 0 for at, more in grown if began < at < ended) > 3


def links_and_tables(run: Run) -> tuple[set[int], np.ndarray]:
    """Links that are down, and the tables, at the start."""
    return set(), run.before.lft.copy()


def broken_pairs(run: Run, down: set[int], lft: np.ndarray) -> int:
    """(leaf, adapter) whose packets go nowhere, by walking."""
    fabric, lid, switches = run.twin.fabric, run.before.lid, run.before.switches
    broken = 0
    for row in switches.edge_row:
        for nic in range(len(fabric.nic_node)):
            node, hops = int(switches.row_node[row]), 0
            target = int(fabric.nic_node[nic])
            while node != target and hops < 10:
                number = int(lft[switches.node_row[node], lid[target]]) if switches.node_row[node] != NONE else 255
                port = int(fabric.node_port_start[node]) + number - 1
                if number in (0, 255) or port in down:
                    break
                node, hops = int(fabric.port_node[fabric.port_peer[port]]), hops + 1
            broken += node != target
    return broken


@pytest.mark.parametrize("what", ["cut", "off"])
def test_the_outage_that_is_told_is_the_one_that_walking_finds(calm, what):
    """Every effect replayed by itself: paths are broken from the event until the told end, not longer."""
    spine = calm.twin.fabric.port_name(calm.twin.fabric.port_peer[calm.path[1]]).partition("/")[0]
    run = Run(((500 * US, f"cut {calm.trunk}" if what == "cut" else f"off {spine}"),)).go()
    incident = run.incidents[0]
    down, lft = links_and_tables(run)
    assert broken_pairs(run, down, lft) == 0
    mended = 0
    for effect in run.effects:
        if isinstance(effect, LinkEffect):
            (down.discard if effect.up else down.add)(effect.port)
        else:
            known = effect.lid < lft.shape[1]
            row = run.before.switches.node_row[effect.node]
            lft[row, effect.lid[known]] = effect.port[known]
        if broken_pairs(run, down, lft):
            mended = 0
        elif not mended:
            mended = effect.time_ps
    assert mended
    # the manager knows it when the answer is back, and counts no entries but those of the broken paths' new ways
    assert 0 <= incident.at_ps + incident.outage_ps - mended < 2 * US


def test_a_cable_that_comes_back_carries_again_and_loses_nothing(calm):
    run = Run(((200 * US, f"cut {calm.trunk}"), (3 * MS, f"mend {calm.trunk}")), size=160 * MIB).go()
    cut, mend = run.run.outages
    assert (cut.incident.what, mend.incident.what) == (f"cut {calm.trunk}", f"mend {calm.trunk}")
    assert cut.lost > 0
    assert (mend.lost, mend.incident.broken_paths, mend.incident.outage_ps) == (0, 0, NONE)
    assert (routes_of(run.management.state).lft == run.before.lft).all()
    assert run.end_ps > mend.incident.settled_ps - run.run.origin_ps, "the message outlives the mending"
    assert carried(run)[run.path[1]] > 200 * US * 198e9 / 8e12 + 10 * MIB


def test_a_switch_reboots_and_takes_its_part_again(calm):
    spine = calm.twin.fabric.port_name(calm.twin.fabric.port_peer[calm.path[1]]).partition("/")[0]
    run = Run(((300 * US, f"off {spine}"), (4 * MS, f"on {spine}")), size=200 * MIB).go()
    off, on = run.run.outages
    state = run.management.state
    assert off.incident.outage_ps > 0
    assert off.lost > 0
    assert any(spine in name for sweep in off.incident.sweeps for name in sweep.gone)
    assert any(spine in name for sweep in on.incident.sweeps for name in sweep.arrived)
    assert on.lost == 0
    assert (routes_of(state).lft == run.before.lft).all()
    m = state.find(spine)
    ends = [
        slot for slot in range(state.base[m] + 1, state.base[m] + state.ports[m] + 1) if state.link[slot] != NONE
    ]
    assert all(state.logical(slot) == 4 for slot in ends)
    # its links carry nothing from the cut until they are active again
    up = [e for e in run.effects if isinstance(e, LinkEffect) and e.up]
    assert {e.port for e in up} >= {int(state.fabric_port[slot]) for slot in ends}
    assert min(e.time_ps for e in up) > run.run.origin_ps + 4 * MS


def test_a_port_that_came_back_is_not_used_before_it_is_active(calm):
    run = Run(((200 * US, f"cut {calm.trunk}"), (3 * MS, f"mend {calm.trunk}"))).go()
    port = run.path[1]
    ups = [e.time_ps for e in run.effects if isinstance(e, LinkEffect) and e.port == port and e.up]
    tables = [
        e.time_ps
        for e in run.effects
        if isinstance(e, TableEffect)
        and e.time_ps > run.run.origin_ps + 3 * MS
        and e.node == run.twin.fabric.port_node[port]
    ]
    assert ups[-1] <= min(tables)


@pytest.mark.parametrize("engine", ["minhop", "updn", "ftree", "dfsssp"])
def test_every_engine_mends(calm, engine):
    quiet = Run(engine=engine)
    run = Run(((300 * US, f"cut {quiet.trunk}"),), engine=engine, size=64 * MIB).go()
    assert run.run.outages[0].incident.outage_ps > 0
    assert run.end_ps > 0


def test_flows_stop_and_go_on_too(calm):
    quiet = Run(fidelity="flow").go()
    run = Run(((500 * US, f"cut {calm.trunk}"),), fidelity="flow").go()
    (outage,) = run.run.outages
    assert (outage.lost, outage.retransmitted) == (None, None)
    # tables of a sweep change together at its last entry, so at most the whole sweep is lost
    late = run.end_ps - quiet.end_ps
    assert late == pytest.approx(outage.incident.outage_ps, abs=60 * US)
    # bytes are counted where they went: the old trunk until the cut, another afterwards
    fabric = run.twin.fabric
    old = run.path[1]
    assert carried(run)[old] == pytest.approx(500 * US / 8e12 * fabric.port_payload_bps[old], rel=0.01)
    leaf = np.arange(*fabric.node_port_start[fabric.port_node[old] :][:2])
    trunks = leaf[fabric.node_host[fabric.port_node[fabric.port_peer[leaf]]] == NONE]
    assert carried(run)[trunks[fabric.port_peer[trunks] != NONE]].sum() == pytest.approx(run.size, abs=2)


def test_a_destination_that_is_cut_off_for_good_is_an_error_by_name():
    for fidelity in ("packet", "flow"):
        run = Run(((300 * US, "cut host-13/mlx5_0/1"),), fidelity=fidelity)
        with pytest.raises(SimulatedError, match=r"gave up after 7 retries|host-13.*link down"):
            run.go()


def test_a_trap_that_cannot_reach_the_manager_is_made_up_for_by_its_sweep():
    """Only leaf-3 notices that its whole subtree loses the way to the manager; the far ends tell."""
    run = Run()
    leaf = run.management.state.find("leaf-3")
    lines = tuple((300 * US, f"cut leaf-3/{port}") for port in (5, 6, 7, 8))
    run = Run(lines, size=8 * MIB)
    state = run.management.state
    run.management.settle()
    assert state.notices.pending, "nobody heard leaf-3"
    assert {state.node_of[trap.slot] for trap in state.notices.pending} == {leaf}
    (incident,) = run.incidents
    assert len(incident.happened) == 4
    assert any("leaf-3" in name for sweep in incident.sweeps for name in sweep.gone)


def test_the_managers_own_cable_silences_it_until_it_is_back():
    run = Run(((300 * US, "cut leaf-0/1"), (4 * MS, "mend leaf-0/1")), size=8 * MIB)
    run.management.settle()
    (incident,) = run.incidents
    assert incident.what == "cut leaf-0/1, mend leaf-0/1"
    assert incident.noticed_ps - run.run.origin_ps >= 4 * MS
    assert incident.sweeps[0].kind == "heavy"
    assert (routes_of(run.management.state).lft == run.before.lft).all()


def test_what_happens_in_the_middle_of_a_sweep_happens_at_its_time():
    first = Run(((300 * US, "cut leaf-1/5"),), size=8 * MIB)
    first.management.settle()
    sweep = first.incidents[0].sweeps[0]
    middle = (sweep.started_ps + sweep.ended_ps) // 2 - first.run.origin_ps
    run = Run(((300 * US, "cut leaf-1/5"), (middle, "cut leaf-2/6")), size=8 * MIB)
    run.management.settle()
    assert [at - run.run.origin_ps for at, _ in run.incidents[0].happened] == [300 * US, middle]
    down, lft = links_and_tables(run)
    for effect in run.effects:
        if isinstance(effect, LinkEffect):
            down.add(effect.port)
        else:
            row = run.before.switches.node_row[effect.node]
            lft[row, effect.lid] = effect.port
    assert broken_pairs(run, down, lft) == 0


def test_a_run_tells_only_of_what_it_lived_to_see(calm):
    """The manager works ahead: its sweep after a cut ends after the run, and so does what breaks meanwhile."""
    early = calm.end_ps - 100 * US
    run = Run(((early, "cut leaf-1/5"), (early + 300 * US, "off spine-3"))).go()
    (incident,) = run.incidents
    assert incident.what == "cut leaf-1/5, off spine-3"
    assert incident.broken_paths > 0
    assert incident.entries
    (outage,) = run.run.outages
    assert (outage.what, outage.at_ps) == ("cut leaf-1/5", early)
    assert 0 < outage.noticed_ps - early < 22 * US
    assert (outage.settled_ps, outage.outage_ps, outage.broken_paths, outage.entries) == (NONE, NONE, 0, ())


def test_the_entries_that_a_run_tells_of_are_those_between_its_tables(cut):
    (outage,) = cut.run.outages
    now, before = routes_of(cut.management.state), cut.before
    rows, lids = np.nonzero(now.lft != before.lft)
    assert len(outage.entries) == len(rows) > 0
    fabric = cut.twin.fabric
    told = {(e.switch, e.before, e.after) for e in outage.entries}
    assert told == {
        (
            fabric.node_name(int(before.switches.row_node[row])),
            int(before.lft[row, lid]),
            int(now.lft[row, lid]),
        )
        for row, lid in zip(rows, lids, strict=True)
    }


def test_the_same_run_twice_is_the_same():
    lines = ((200 * US, "cut leaf-0/5"), (900 * US, "off spine-2"), (3 * MS, "on spine-2"))
    one, two = (Run(lines, size=64 * MIB).go() for _ in range(2))
    assert one.end_ps == two.end_ps
    assert one.incidents == two.incidents
    assert (carried(one) == carried(two)).all()


def test_tables_change_in_a_session_without_any_manager():
    """Entries are written in place, and what the simulation was built from stays as it is."""
    twin = Twin(blueprint(16, "pcie-box", topology=TREE))
    held = twin.routes.lft.copy()
    simulation = PacketEngine(twin.fabric, twin.routes, PacketOptions())
    gpu = twin.fabric.gpu_node
    _, first = np.unique(twin.fabric.node_host[gpu], return_index=True)
    simulation.post(operations([0], [[]]), [collectives.send(np.array([[1, 13]]), 32 * MIB)], gpu[first])
    ports, _ = twin.routes.walk(np.array([1], np.int32), np.array([13], np.int32))
    old = int(ports[1])
    row = int(twin.routes.switches.node_row[twin.fabric.port_node[old]])
    lid = int(twin.routes.lid[twin.fabric.nic_node[13]])
    number = int(twin.fabric.port_number[old])
    other = 5 + (number - 5 + 1) % 4
    simulation.advance(400 * US)
    simulation.change(
        TimedChange(
            simulation.now_ps,
            tables=TableEntries(np.array([row, row]), np.array([lid, 40_000]), np.array([other, 7], np.uint8)),
        )
    )
    simulation.advance()
    new = old - number + other
    sent = port_counters(simulation.network)["PortXmitPkts"]
    assert sent[old] > 1000
    assert sent[new] > 1000
    assert sent[old] + sent[new] == sent[ports[0]]
    assert (twin.routes.lft == held).all()


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_ethernet_has_no_tables_to_change(fidelity):
    twin = Twin(
        blueprint(8, "pcie-box", technology="ethernet", switch="spectrum-4", topology={"kind": "single-switch"})
    )
    change = TimedChange(0, tables=TableEntries(np.array([0]), np.array([1]), np.array([1], np.uint8)))
    with pytest.raises(ConfigError, match="change of forwarding tables"):
        twin.start_engine(fidelity).change(change)
    with pytest.raises(ConfigError, match="expected infiniband"):
        twin.manage()


def test_a_link_that_is_slow_and_cut_is_slow_again_when_it_is_back(calm):
    """A cable's rate is not the manager's business; a cut in between does not heal it."""
    run = Run(((400 * US, f"cut {calm.trunk}"), (2 * MS, f"mend {calm.trunk}")), size=8 * MIB)
    port = run.path[1]
    run.run._rate[port] = 50 * 10**9
    seen = []
    change = run.simulation.change
    run.simulation.change = lambda what: (seen.append(what), change(what))
    run.simulation.advance(1)
    run.run._advance(run.simulation, 0, 2)  # one operation more than there are: until nothing is due
    rates = [c.rate_bps for c in seen if c.port == port]
    assert rates == [0, 50 * 10**9]
