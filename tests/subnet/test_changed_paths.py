"""Which paths an incident changed and for how long they were broken, against a replay of all that happened."""

from __future__ import annotations

import numpy as np
import pytest
from support.sm_fabrics import two_tiers

from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.operation.managed_fabric import LinkEffect, TableEffect
from fabrictwin.subnet.operation.scenario import Scenario
from fabrictwin.subnet.operation.sweep_text import event_lines, path_data
from fabrictwin.subnet.serve.endpoint import Endpoint


class Replay:
    """Tables and links as effects leave them, by name; walks a path entry by entry."""

    def __init__(self, scenario: Scenario) -> None:
        self.state = state = scenario.endpoint.state
        self.held = {m: state.lft[row].copy() for m, row in state.row.items()}
        self.down: set[int] = set()

    def apply(self, effect: LinkEffect | TableEffect) -> None:
        if isinstance(effect, LinkEffect):
            (self.down.discard if effect.up else self.down.add)(effect.port)
        else:
            self.held[int(self.state.managed[effect.node])][effect.lid] = effect.port

    def way(self, switch: str, destination: str) -> tuple[list[str], bool]:
        """The switch ports on the way, and whether it arrives."""
        state = self.state
        at, to = state.find(switch), state.find(destination)
        lid, ports, whole = state.lid(state.end_slot(to)), [], True
        while state.is_switch[at] and at != to and len(ports) < 20:
            out = int(self.held[at][lid])
            if out in (0, 255):
                return ports, False
            ports.append(f"{state.fabric.node_name(int(state.fabric_node[at]))}/{out}")
            slot = state.base[at] + out
            whole &= int(state.fabric_port[slot]) not in self.down
            at = state.node_of[state.cable[slot]]
        return ports, whole and at == to


@pytest.mark.parametrize(
    "events",
    [("cut leaf-0/5",), ("off spine-1", "on spine-1"), ("cut leaf-2/1", "mend leaf-2/1"), ("off leaf-3",)],
    ids=" then ".join,
)
def test_changed_paths_and_their_outages_are_what_a_replay_finds(events):
    scenario = Scenario(Endpoint(Network(SubnetState(two_tiers()))))
    scenario.start()
    replay = Replay(scenario)
    leaves = [f"leaf-{i}" for i in range(4)]
    hosts = {f"host-{i}/mlx5_0": f"leaf-{i // 4}" for i in range(16)}
    pairs = [(leaf, host) for leaf in leaves for host in hosts if hosts[host] != leaf]
    pairs += [(leaf, host) for host, leaf in hosts.items()]
    for event in events:
        before = {pair: replay.way(*pair) for pair in pairs}
        state_of = {pair: before[pair][1] for pair in pairs}
        lost, whole = {}, {}
        fabric = scenario.fabric
        fabric.plan(fabric.now_ps, event, 0)
        effects = fabric.settle()
        assert [e.time_ps for e in effects] == sorted(e.time_ps for e in effects)
        for effect in effects:
            replay.apply(effect)
            for pair in pairs:
                arrives = replay.way(*pair)[1]
                if arrives != state_of[pair]:
                    state_of[pair] = arrives
                    (whole if arrives else lost).setdefault(pair, effect.time_ps)
        told = {(p.switch, p.destination): p for p in fabric.incidents[-1].paths if p.adapter}
        assert len(told) == sum(p.adapter for p in fabric.incidents[-1].paths)
        after = {pair: replay.way(*pair) for pair in pairs}
        assert told
        assert set(told) == {p for p in pairs if before[p][0] != after[p][0] or p in lost}
        for pair, path in told.items():
            assert (list(path.before), list(path.after)) == (before[pair][0], after[pair][0])
            assert (path.whole_ps != NONE) == after[pair][1]
            assert path.broken_ps == lost.get(pair, NONE)
            if pair in lost and after[pair][1]:
                assert path.outage_ps == whole[pair] - lost[pair] > 0
            mine = {host for host, leaf in hosts.items() if leaf == pair[0]}
            assert set(path.sources) == mine - {pair[1]}


def test_an_incident_tells_pairs_in_words_and_whole_as_data():
    scenario = Scenario(Endpoint(Network(SubnetState(two_tiers()))))
    scenario.start()
    incident = scenario.do("cut leaf-0/5")
    text = "\n".join(event_lines(incident))
    pairs = sum(path.pairs for path in incident.paths)
    assert f"paths of {pairs} pairs of adapters changed; {pairs} were broken, for" in text
    assert "leaf-0 (4 adapters) to host-" in text
    data = [path_data(path) for path in incident.paths]
    assert len(data) == len(incident.paths)
    assert all(len(path["before"]) == len(path["after"]) == 3 for path in data if path["adapter"])
    assert np.all([path["outage_ps"] > 0 for path in data])
