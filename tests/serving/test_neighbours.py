"""Jobs and servers beside a server: who shares links with whom, and what it costs each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.spec.spec import load_spec
from fabrictwin.nccl.lowering.lower import Lowering, program
from fabrictwin.nccl.lowering.tasks import COLLECTIVE, Task
from fabrictwin.nccl.tuning.tuner import Call, tuner
from fabrictwin.serving.config.layout import machine
from fabrictwin.serving.config.neighbours import SLICES, job_beside
from fabrictwin.serving.config.server import serving_section
from fabrictwin.serving.network.link_load import FOREVER, LinkLoad, Neighbourhood, load_of
from fabrictwin.serving.predict import Prediction, predict
from fabrictwin.serving.report.server import headline

EXAMPLES = Path(__file__).parents[2] / "examples"
THIN = {"kind": "fat-tree", "oversubscription": 8, "leaf_down": 16}  # two hosts a leaf
RAILS = {"kind": "rail-optimised"}


def _write(folder: Path, topology: dict[str, Any], neighbours: list[str], **serving: Any) -> Path:
    """A server on hosts 0 and 5, a job on 1, 2, 4 and 7, another server on 3 and 6."""
    network = {"technology": "infiniband", "topology": topology, "switch": "qm9700"}
    (folder / "cluster.yaml").write_text(
        json.dumps({"hosts": {"type": "dgx-h100", "count": 8}, "network": network})
    )
    benchmark = {"num_prompts": 25, "request_rate": 8, "random_input_len": 1024, "random_output_len": 32}

    def spec(name: str, hosts: list[int], workload: dict[str, Any]) -> str:
        placed = {"hosts": [f"host-{host}" for host in hosts]}
        whole = {"schema": 1, "name": name, "cluster": "cluster.yaml", "placement": placed, "workload": workload}
        return json.dumps(whole)

    section = {"model": str(EXAMPLES / "models/llama-3-70b.json"), "release": "0.19", "max_model_len": 2048}
    section |= {"tensor_parallel_size": 16, "benchmark": benchmark}
    training = {
        "model": str(EXAMPLES / "models/llama-3-8b.json"), "parallel": {"tp": 1, "pp": 1}, "micro_batch_size": 1,
        "global_batch": 32, "sequence": 4096, "precision": "bf16", "recompute": "full",
    }  # fmt: skip
    (folder / "train.yaml").write_text(spec("training", [1, 2, 4, 7], {"training": training}))
    (folder / "other.yaml").write_text(spec("other", [3, 6], {"serving": section}))
    path = folder / "server.yaml"
    named = {"neighbours": neighbours} if neighbours else {}
    path.write_text(spec("server", [0, 5], {"serving": {**section, **named, **serving}}))
    return path


def _predicted(folder: Path, topology: dict[str, Any], *neighbours: str, **serving: Any) -> Prediction:
    return predict(load_spec(_write(folder, topology, list(neighbours), **serving)))


@pytest.mark.second
def test_a_job_and_a_server_slow_each_other_where_they_share_links(tmp_path: Path) -> None:
    alone, beside = _predicted(tmp_path, THIN), _predicted(tmp_path, THIN, "train.yaml")
    assert 1.03 < beside.fields["mean_tpot_ms"] / alone.fields["mean_tpot_ms"] < 2
    (job,) = beside.neighbours
    assert job.what == "step"
    assert 1.01 < job.beside_ms / job.alone_ms < 1.5
    assert any("beside it training: step" in line for line in headline(beside))
    again = _predicted(tmp_path, THIN, "train.yaml")
    assert json.dumps(again.fields) == json.dumps(beside.fields)


@pytest.mark.second
def test_on_rails_of_their_own_nobody_slows_anybody(tmp_path: Path) -> None:
    """Each rail is one leaf, whose ports to hosts are nobody else's."""
    alone, beside = _predicted(tmp_path, RAILS), _predicted(tmp_path, RAILS, "train.yaml", "other.yaml")
    assert beside.fields["mean_tpot_ms"] == alone.fields["mean_tpot_ms"]
    for one in beside.neighbours:
        assert one.beside_ms == pytest.approx(one.alone_ms, rel=1e-3)


@pytest.mark.second
def test_a_second_server_is_slowed_by_a_job_as_well(tmp_path: Path) -> None:
    found = _predicted(tmp_path, THIN, "train.yaml", "other.yaml")
    job, other = found.neighbours
    assert (job.name, other.name, other.what) == ("training", "other", "time per output token")
    assert other.beside_ms > 1.03 * other.alone_ms


@pytest.mark.second
def test_an_all_reduce_beside_a_job_takes_what_it_takes_played_with_it(tmp_path: Path) -> None:
    """The step and the collective on one flow engine, at five instants of each slice, are the oracle."""
    spec = load_spec(_write(tmp_path, THIN, []))
    job, found = job_beside(load_spec(tmp_path / "train.yaml")), machine(spec)
    nodes, size, neighbours = (
        found.place(serving_section(spec)).tensor_group(),
        1 << 24,
        Neighbourhood((job.load,)),
    )
    communicator = found.nccl(nodes)._communicator
    choice = tuner(communicator).choose(Call(COLLECTIVE["all_reduce"], size, "bfloat16"))
    lowered = program([Lowering(communicator)(Task("all_reduce", size, 2), choice)], 16)
    played, estimated = [], []
    for place in range(SLICES):
        there = machine(spec)
        there.twin.link_rate_bps.update(neighbours.rates(there.twin, (place,)))
        estimated.append(there.nccl(nodes).time_us("all_reduce", size))
        took = []
        for share in (0.1, 0.3, 0.5, 0.7, 0.9):
            engine = found.twin.start_engine("flow")
            engine.post(job.program.operations, job.program.communications, job.rank_node)
            engine.advance(until_ps=int((place + share) * job.load.period_ps / SLICES))
            first, began = engine.post(lowered.operations, lowered.communications, nodes), engine.now_ps
            engine.advance(until_ps=began + 10**10)
            took.append((int(engine.ended_ps()[first:].max()) - began) / 1e6)
        played.append(np.mean(took))
    assert max(played) > 1.5 * min(played)
    same = np.isclose(estimated, played, rtol=0.01)
    assert same.sum() >= SLICES - 2  # slices in which the job begins or ends to send are in between
    assert np.mean(estimated) == pytest.approx(np.mean(played), rel=0.05)


def test_slices_follow_the_clock() -> None:
    load = LinkLoad(1000, np.arange(4.0)[:, None])
    assert [load.slice_at(now) for now in (0, 249, 250, 999, 1000, 1250)] == [0, 0, 1, 3, 0, 1]
    assert [load.next_slice_ps(now) for now in (0, 249, 250, 999, 1000)] == [250, 250, 500, 1000, 1250]
    assert LinkLoad(1000, np.ones((1, 1))).next_slice_ps(5) == FOREVER
    assert load_of(10**12, np.array([[1e9], [0]])).bps.tolist() == [[16e9], [0]]  # in half a second
    third = LinkLoad(1001, np.zeros((3, 1)))
    for now in range(0, 2100, 7):
        ahead = third.next_slice_ps(now)
        assert third.slice_at(ahead - 1) == third.slice_at(now) != third.slice_at(ahead)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cluster": {"hosts": {"type": "dgx-h100", "count": 2}}}, "whose cluster is another"),
        ({"placement": {"hosts": ["host-0", "host-1", "host-2", "host-4"]}}, "expected GPUs of their own"),
    ],
)
def test_neighbours_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = _write(tmp_path, RAILS, ["train.yaml"])
    train = json.loads((tmp_path / "train.yaml").read_text())
    if "cluster" in change:
        network = json.loads((tmp_path / "cluster.yaml").read_text())["network"]
        change = {"cluster": {**change["cluster"], "network": network}, "placement": {}}
    (tmp_path / "train.yaml").write_text(json.dumps({**train, **change}))
    with pytest.raises(ConfigError, match=said) as refused:
        predict(load_spec(path))
    assert "neighbours" in str(refused.value.key)
