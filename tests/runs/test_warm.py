"""`fabrictwin warm` leaves nothing to compile for what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fabrictwin.runs.warm import small_jobs


def test_each_technology_is_played_at_each_fidelity_and_by_the_rules_of_nccl():
    jobs = list(small_jobs())
    assert {(job.cluster.network.technology, job.run.fidelity) for job in jobs} == {
        (technology, fidelity)
        for technology in ("infiniband", "ethernet")
        for fidelity in ("analytic", "flow", "packet")
    }
    assert {job.run.collectives for job in jobs} == {"nccl", "simple"}


@pytest.mark.second
def test_runs_after_it_compile_nothing(tmp_path: Path):
    """In an empty cache: whatever kernel such a run takes is there, and no file is written or renewed."""
    surroundings = {**os.environ, "FABRICTWIN_CACHE": str(tmp_path / "cache")}

    def said(*arguments: str) -> str:
        command = [sys.executable, "-m", "fabrictwin", *arguments]
        return subprocess.run(
            command, env=surroundings, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    folder = Path(said("warm").split()[-1])
    assert folder.is_relative_to(tmp_path / "cache")

    def kept() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.nb?")}

    before = kept()
    assert any("run" in name for name in before)
    for job in small_jobs():
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job.to_dict()))
        said("run", "job.yaml", "--out", "out")
        assert kept() == before, job.run.fidelity
