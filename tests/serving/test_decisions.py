"""The scheduler decides as vLLM's does: against records of the real one, and against it where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.vllm_sources import real_vllms
from support.vllm_twin import twin_log
from support.vllm_workloads import WORKLOADS, Log, drawn, sections, workload

RECORDS = Path(__file__).parent / "decisions"
SUPPORT = Path(__file__).parents[1] / "support"

CASES = [(name, one) for name, workload in WORKLOADS.items() for one in workload.releases]
OLD = ("0.12", "0.15", "0.19")
DRAWN = [f"drawn-{seed}" for seed in os.environ.get("VLLM_DRAWN", "101,102,103").split(",")]


def log_of(name: str, release: str) -> Log:
    settings = workload(name).settings
    return twin_log(settings, workload(name).traffic.queries(settings), release)


@pytest.mark.parametrize(
    ("name", "release"),
    [pytest.param(*case, marks=pytest.mark.second if case[1] in OLD else ()) for case in CASES],
)
def test_every_step_is_the_recorded_one(name: str, release: str) -> None:
    recorded = sections((RECORDS / f"{release}.txt").read_text())[name]
    assert log_of(name, release).recorded() == recorded


@pytest.mark.parametrize("release", ["0.12", "0.15", "0.19", "0.33"])
def test_records_are_of_long_mixed_workloads(release: str) -> None:
    steps = {}
    preempted = {}
    for name, lines in sections((RECORDS / f"{release}.txt").read_text()).items():
        steps[name], preempted[name] = (int(part.split()[0]) for part in lines[0].split(", "))
    assert sum(count >= 3000 for count in steps.values()) >= 10
    assert sum(count > 10 for count in preempted.values()) >= 8
    assert set(steps) == {name for name, workload in WORKLOADS.items() if release in workload.releases}


@pytest.mark.second
def test_releases_differ_where_they_are_said_to() -> None:
    """Otherwise one release's scheduler would pass for another's."""
    logs = {release: log_of("shared", release).recorded() for release in ("0.12", "0.19", "0.33")}
    assert logs["0.19"] != logs["0.33"]
    tight = {release: log_of("priority", release).recorded() for release in ("0.15", "0.19")}
    assert tight["0.15"] != tight["0.19"]


def test_workloads_are_drawn_alike_from_a_seed_and_cover_what_there_is() -> None:
    assert drawn(101) == drawn(101) != drawn(102)
    settings = [drawn(seed).settings for seed in range(60)]
    for name in ("policy", "async_scheduling", "pipeline_parallel_size", "drafter", "windows", "block_size"):
        assert len({getattr(one, name) for one in settings}) > 1, name


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(WORKLOADS), *DRAWN])
def test_every_step_is_the_real_schedulers(name: str) -> None:
    """`VLLM_PYTHON`: an interpreter with vLLM's dependencies; `VLLM_SOURCES`: folders of unpacked wheels, by
    `:`; `VLLM_DRAWN`: seeds of workloads to draw beside the named ones, by commas.
    """
    for python, source, release in real_vllms():
        if release not in workload(name).releases:
            continue
        command = [python, "vllm_real.py", source, "lines", name]
        printed = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True, check=True).stdout
        assert sections(printed)[name] == log_of(name, release).lines(), f"{name} on {release}"


def test_the_player_needs_nothing_of_the_project() -> None:
    """The workloads run in vLLM's environment, which has no fabrictwin."""
    code = "import sys; sys.modules['fabrictwin'] = None; import vllm_workloads"
    subprocess.run([sys.executable, "-c", code], cwd=SUPPORT, check=True)
