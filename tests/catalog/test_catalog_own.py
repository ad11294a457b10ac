"""Hardware that a user adds: YAML files in a folder of their own, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.clusters import blueprint
from support.edits import each
from support.own_catalog import own_catalog

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.catalog import answers
from fabrictwin.nccl.communicator.communicator import initialise
from fabrictwin.nccl.lowering.task_times import measure
from fabrictwin.nccl.lowering.tasks import Task
from fabrictwin.nccl.topology.graph_types import Algorithm, PathType
from fabrictwin.nccl.tuning.tuner import Call, tuner
from fabrictwin.twin import Twin

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "catalog"


@pytest.fixture
def use() -> Iterator[Callable[[Path], None]]:
    with ExitStack() as folders:
        yield lambda folder: folders.enter_context(own_catalog(folder))


def test_a_machine_of_another_maker_is_four_files(use: Callable[[Path], None]) -> None:
    """GPU, link between GPUs, host and source of an MI350X: searched, tuned and timed like any other."""
    use(EXAMPLE)
    assert "mi350x-8" in catalog.names("host")
    comm = initialise(Twin(blueprint(2, "mi350x-8", switch="qm9700")))
    assert comm.compute_capability == 95
    assert all(comm.path(a, b).type == PathType.NVL for a in range(8) for b in range(8) if a != b)
    assert Algorithm.NVLS not in comm.graphs
    one = initialise(comm.twin, 8)
    ring = one.graphs[Algorithm.RING]
    assert 0 < ring.channels * ring.bw_intra <= 7 * 57.6
    size = 1 << 30
    (time_ps,) = measure(one, [(Task("all_reduce", size), tuner(one).choose(Call("AllReduce", size)))])
    # no faster than seven links take what a ring sends
    assert 0.2 * 7 * 57.6 < size * 2 * 7 / 8 * 1e3 / time_ps <= 7 * 57.6


@each("file content words", "catalog/wrong_files")
def test_a_bad_file_is_one_clear_line(
    file: str, content: str, words: str, tmp_path: Path, use: Callable[[Path], None]
) -> None:
    (tmp_path / file).write_text(content)
    use(tmp_path)
    with pytest.raises(ConfigError, match=words):
        list(answers.entries())  # which asks for every source too


def test_a_folder_that_is_none(tmp_path: Path, use: Callable[[Path], None]) -> None:
    use(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="FABRICTWIN_CATALOG"):
        catalog.names("gpu")


def test_names_are_used_once(tmp_path: Path, use: Callable[[Path], None]) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "own")
    text = (EXAMPLE / "nvlink.yaml").read_text()
    (tmp_path / "own" / "nvlink.yaml").write_text(text.replace("xgmi-mi350x:", "nvlink4:"))
    use(tmp_path / "own")
    with pytest.raises(ConfigError, match=r"nvlink.yaml:2 nvlink4: the catalog has an entry of that name"):
        catalog.names("nvlink")
