"""A served fabric has the links that its spec says are dead or slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.specs import SMALL, boxes_job, write_spec

from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.runs.served_run import ServedRun
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.manager.mad_transport import TwinTransport
from fabrictwin.subnet.manager.manager import SubnetManager
from fabrictwin.subnet.operation.cluster_endpoint import open_endpoint
from fabrictwin.subnet.wire.link_encodings import Speed
from fabrictwin.subnet.wire.smp import PhysState, PortState

RAILS = """\
    technology: infiniband
    switch: qm8700
    topology: {kind: rail-optimised}"""
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


def test_a_job_runs_inside_a_fabric_whose_dead_and_slow_links_show(tmp_path: Path):
    faults = "faults: [{link: host-1/mlx5_0, rate: 0 Gb/s}, {link: host-0/mlx5_1, rate: 100 Gb/s}]\n"
    job = boxes_job(f"run: {{fidelity: flow}}\n{faults}", count=2, network=RAILS)
    served = ServedRun(write_spec(tmp_path, job.replace("pcie-box", "dgx-a100"), SMALL))
    state = served.endpoint.state
    dead, slow = (state.end_slot(state.find(name)) for name in ("host-1 mlx5_0", "host-0 mlx5_1"))
    assert (state.logical(dead), state.physical(dead)) == (PortState.DOWN, PhysState.POLLING)
    assert state.built[slow] != state.built[state.end_slot(state.find("host-1 mlx5_1"))]
    network = served.endpoint.network
    manager = SubnetManager(TwinTransport(network, state.end_slot(state.find("host-0 mlx5_0"))))
    manager.sweep()
    trace = served.run([manager])
    assert trace.end_ps > 0
    assert trace.counters.tx_bytes[state.fabric_port[dead]] == 0
    assert trace.counters.tx_bytes[state.fabric_port[slow]] > 0


def test_a_link_that_is_not_there_is_one_clear_error(tmp_path: Path):
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("RATE", "0 Gb/s").replace("mlx5_0", "mlx5_99"))
    with pytest.raises(ConfigError, match="mlx5_99"):
        open_endpoint(file)
