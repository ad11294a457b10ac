"""A served fabric has the links that its spec says are dead or slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.operation.cluster_endpoint import open_endpoint
from fabrictwin.subnet.wire.link_encodings import Speed
from fabrictwin.subnet.wire.smp import PhysState, PortState

SPEC = """\
schema: 1
cluster:
  hosts: {type: dgx-a100, count: 2}
  network: {technology: infiniband, topology: {kind: rail-optimised}, switch: qm8700}
faults: [{link: host-1/mlx5_0, rate: RATE}]
"""


def served(folder: Path, rate: str) -> SubnetState:
    file = folder / "spec.yaml"
    file.write_text(SPEC.replace("RATE", rate))
    return open_endpoint(file).state


def port(state: SubnetState) -> int:
    return state.end_slot(state.find("host-1 mlx5_0"))


def test_a_dead_link_is_down_at_both_ends_and_was_never_up(tmp_path: Path):
    state = served(tmp_path, "0 Gb/s")
    slot = port(state)
    for end in (slot, state.cable[slot]):
        assert state.link[end] == NONE
        assert (state.logical(end), state.physical(end)) == (PortState.DOWN, PhysState.POLLING)
        assert state.counters["link_downed"][end] == 0
    assert not state.bring_up(slot, 0)


@pytest.mark.parametrize(("rate", "speed"), [("100 Gb/s", Speed.EDR), ("32 Gb/s", Speed.QDR)])
def test_a_slow_link_trains_at_its_rate_and_could_do_better(tmp_path: Path, rate, speed):
    state = served(tmp_path, rate)
    slot = port(state)
    assert state.link[slot] != NONE
    assert {state.built[end] for end in (slot, state.cable[slot])} == {(4, speed)}
    others = {
        state.built[s]
        for s in range(len(state.link))
        if state.link[s] != NONE and s not in (slot, state.cable[slot])
    }
    assert others == {(4, Speed.HDR)}


def test_a_link_that_is_not_there_is_one_clear_error(tmp_path: Path):
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("RATE", "0 Gb/s").replace("mlx5_0", "mlx5_99"))
    with pytest.raises(ConfigError, match="mlx5_99"):
        open_endpoint(file)
