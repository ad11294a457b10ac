"""A job through NCCL (`nccl:` of a spec): its own choice, connections right for every group, its errors."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from support.nccl_machines import twin_of
from support.specs import LLAMA_8B, spec_of

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.grouped import flat
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.nccl.communicator.communicator import initialise
from fabrictwin.nccl.lowering.lower import Lowering
from fabrictwin.nccl.lowering.tasks import Task
from fabrictwin.nccl.settings.settings import Settings, read_settings
from fabrictwin.nccl.settings.spec_section import section_settings, settings_here
from fabrictwin.nccl.tuning.tuner import Call, tuner
from fabrictwin.program import patterns
from fabrictwin.program.program import Connections
from fabrictwin.runs import execute
from fabrictwin.workload.job.nccl_communications import Hosts, Library

MIB = 1 << 20


job = spec_of(  # on two hosts of eight H100
    2,
    "dgx-h100",
    model={**LLAMA_8B, "num_hidden_layers": 4, "vocab_size": 32000},
    parallel={"tp": 2},
    global_batch=16,
    sequence=4096,
)


def spec(**sections: Any) -> Spec:
    """The job with `sections` beside its own."""
    return job(sections=sections)


SIMPLE = {"run": {"collectives": "simple"}}


def step_ps(**nccl: Any) -> int:
    return int(execute.predict(spec(nccl=nccl) if nccl else spec(**SIMPLE)).trace.end_op_ps.max())


def algorithms(**nccl: Any) -> dict[str, str]:
    program = execute.prepare(spec(nccl=nccl)).job.program
    return {c.name: c.algorithm for c in program.communications}


def test_the_tuner_chooses_by_size_and_variables_are_obeyed() -> None:
    by_itself, ring = algorithms(version="2.27.7"), algorithms(version="2.27.7", NCCL_ALGO="Ring")
    gradients = next(name for name in by_itself if "gradient all-reduce" in name)
    assert by_itself[gradients] != ring[gradients]
    assert ring[gradients].startswith("ring")
    assert {a.partition(" ")[0] for a in by_itself.values()} <= {"ring", "tree", "nvls", "nvls_tree", "sends"}


def test_a_job_feels_what_its_variables_do() -> None:
    usual = step_ps(version="2.27.7")
    assert step_ps() == pytest.approx(usual, rel=0.1)  # lowered by hand
    assert step_ps(NCCL_IB_DISABLE=1) > 1.2 * usual
    assert step_ps(NCCL_P2P_DISABLE=1) > 1.05 * usual


def libraries(hosts: int = 2, **nccl: Any) -> tuple[Library, Library]:
    """Two of the same, on DGX H100."""
    twin = twin_of("dgx-h100", hosts)
    given = Hosts(twin.fabric, {}), twin.fabric.gpu_node.astype(np.int32), read_settings(nccl)
    return Library(*given), Library(*given)


@pytest.mark.parametrize(
    "groups", [np.arange(16).reshape(2, 8).T, np.arange(16).reshape(2, 8)], ids=["rails", "hosts"]
)
def test_sizes_of_a_collective_and_its_opposite_share_connections_and_are_each_what_it_is_alone(
    groups: Any,
) -> None:
    library, _ = libraries()
    asked: list[tuple[Any, int]] = [
        ("all_gather", 64 * MIB), ("all_gather", 128 * MIB), ("reduce_scatter", 64 * MIB), ("all_reduce", 1024),
    ]  # fmt: skip
    found = [library.collective(kind, groups, size, element_bytes=2, name="x") for kind, size in asked]
    assert found[0].transport.connections is found[1].transport.connections is found[2].transport.connections
    assert found[3].transport.connections is not found[0].transport.connections
    for one, (kind, size) in zip(found, asked, strict=True):
        alone = libraries()[1].collective(kind, groups, size, element_bytes=2, name="x")
        mine, its = flat(one), flat(alone)
        assert mine.keys() == its.keys()
        for name, value in mine.items():
            np.testing.assert_array_equal(value, its[name], err_msg=name)


def test_queue_pairs_are_no_more_than_messages_where_these_go_in_turns() -> None:
    library, _ = libraries(NCCL_IB_QPS_PER_CONNECTION="4", NCCL_IB_SPLIT_DATA_ON_QPS="0")
    rails = np.arange(16).reshape(2, 8).T
    paths = []
    for size in (1024, 256 * MIB, 1024):
        connections = library.collective(
            "all_reduce", rails, size, element_bytes=2, name="x"
        ).transport.connections
        assert connections is not None
        paths.append(connections.paths.tolist())
    assert paths[0] == paths[2] != paths[1]
    assert max(paths[1]) == 4


def test_rails_alike_share_a_tuner() -> None:
    library, _ = libraries()
    library.collective("all_reduce", np.arange(16).reshape(2, 8).T, MIB, element_bytes=2, name="x")
    assert len({id(known.tuner) for known in library._known.values()}) == 1
    assert len(library._known) == 8
    library.collective("all_reduce", np.arange(16).reshape(2, 8), MIB, element_bytes=2, name="x")
    assert len(library._kept.tuners) == 2


@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all"])
def test_groups_that_lie_alike_are_each_what_nccl_makes_of_it(kind: Any) -> None:
    """Four groups over two hosts, each on GPUs of its own: every one as if it had been initialised by itself."""
    twin = twin_of("dgx-h100", 2)
    nodes = twin.fabric.gpu_node.astype(np.int32)
    groups = np.array([[0, 1, 8, 9], [2, 3, 10, 11], [8, 9, 0, 1], [4, 5, 12, 13]])
    settings = read_settings({}, release="2.27.7")
    library = Library(Hosts(twin.fabric, {}), nodes, settings)
    task = Task(kind, 4 * MIB, 4)
    whole = library.collective(kind, groups, task.size_bytes, element_bytes=4, name="test")
    assert whole.groups == len(groups)
    found = _rows(whole, nodes)
    expected = []
    for group in groups:
        comm = initialise(twin, nodes[group], settings=settings, version="2.27.7")
        choice = tuner(comm).choose(Call("AllReduce", task.size_bytes)) if kind == "all_reduce" else None
        expected += _rows(Lowering(comm)(task, choice), comm.placement.rank_node)
    assert sorted(found) == sorted(expected)


def _rows(communication: Any, nodes: np.ndarray) -> list[tuple[Any, ...]]:
    """Every edge with its GPUs, bytes and connection."""
    edges, how = patterns.edges(communication.channels), communication.transport.connections
    columns = [getattr(how, f.name).tolist() for f in fields(Connections)]
    ends = nodes[edges.source].tolist(), nodes[edges.target].tolist()
    seats = edges.source_seat.tolist(), edges.target_seat.tolist()
    return list(zip(*ends, *seats, edges.size_bytes.tolist(), *columns, strict=True))


def test_section_and_environment() -> None:
    one = spec(nccl={"version": "2.21.5", "NCCL_ALGO": "Ring", "NCCL_IB_QPS_PER_CONNECTION": 4})
    found = section_settings(one)
    assert isinstance(found, Settings)
    assert (str(found.release), found.ib_qps_per_connection) == ("2.21.5", 4)
    here = settings_here(one, {"NCCL_IB_QPS_PER_CONNECTION": "2", "HOME": "/"}, release="2.27.7")
    assert (str(here.release), here.ib_qps_per_connection, "NCCL_ALGO" in dict(here.given)) == ("2.27.7", 2, True)
    assert section_settings(spec()) is None


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"version": 2.27}, "nccl.version: got 2.27, expected text"),
        ({"version": "3.1"}, "nccl.version: got 3.1"),
        ({"NCCL_ALGOS": "Ring"}, "did you mean 'NCCL_ALGO'"),
        ({"NCCL_ALGO": 1.5}, "nccl.NCCL_ALGO: got 1.5"),
        ({"NCCL_ALGO": "Rings"}, "Ring"),
    ],
)
def test_a_wrong_section_is_one_clear_line(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        section_settings(spec(nccl=section))


def packets(**sections: Any) -> execute.Prepared:
    """A job whose gradients NCCL reduces in NVSwitches, at packet fidelity."""
    of = job(parallel={"tp": 1}, sections={"run": {"fidelity": "packet"}, **sections})
    return execute.prepare(of)


def test_packets_are_what_nccl_chooses_among_the_ways_that_the_engine_plays() -> None:
    flow = execute.prepare(job(parallel={"tp": 1}, sections={"run": {"fidelity": "flow"}}))
    played = packets()
    by_name = {c.name: c.algorithm for c in flow.job.program.communications}
    name = next(name for name, algorithm in by_name.items() if algorithm.startswith("nvls"))
    other = {c.name: c.algorithm for c in played.job.program.communications}[name]
    assert other.partition(" ")[0] in ("ring", "tree")
    assert any(f"so it is {other.partition(' ')[0].upper()} here" in note for note in played.job.notes)
    assert not any("this engine cannot" in note for note in flow.job.notes)
    assert execute.packets_needed(played) is not None


def test_an_algorithm_that_packets_cannot_play_is_refused() -> None:
    with pytest.raises(ConfigError, match="NVLS_TREE for AllReduce, which the engine cannot play"):
        packets(nccl={"NCCL_ALGO": "NVLSTree"})
