"""Places of runs: parallel runs take different ones, what killed runs left is removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support import processes
from support.specs import TWO_BOXES

from fabrictwin.runs.folder import run_folder

SPEC = f"""{TWO_BOXES}
workload:
  training:
    model:
      hidden_size: 1024
      num_hidden_layers: 4
      num_attention_heads: 16
      intermediate_size: 4096
      vocab_size: 32000
    sequence: 1024
    global_batch: 16
    parallel: {{tp: 8, pp: 1, dp: 2}}
run: {{fidelity: analytic, check_memory: note}}
"""

HOLD = """
import sys, time
from pathlib import Path
from fabrictwin.runs.folder import run_folder
with run_folder("held"):
    print("taken", flush=True)
    time.sleep(60)
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return processes.start(folder, *arguments, stdout=subprocess.PIPE)


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that has taken a place and writes nothing."""
    process = start(folder, "-c", HOLD)
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    return process


@pytest.mark.second
def test_runs_started_at_once_keep_all_their_results(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    at_once = [start(tmp_path, "-m", "fabrictwin", "run", "spec.yaml", "--seed", str(seed)) for seed in range(3)]
    ends = [process.communicate(timeout=120) for process in at_once]
    assert [process.returncode for process in at_once] == [0, 0, 0], ends
    names = ("two-boxes", "two-boxes-2", "two-boxes-3")
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == list(names)
    told = {name: [out for out, _ in ends if f"runs/{name}/report.html" in out] for name in names}
    for name in names:
        seed = json.loads((tmp_path / "runs" / name / "summary.json").read_text())["seed"]
        assert told[name] == [ends[seed][0]], "each printed the place of its own results"


@pytest.mark.second
def test_runs_that_replace_one_another_leave_one_whole(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    command = ("-m", "fabrictwin", "run", "spec.yaml", "--out", "here", "--seed")
    at_once = [start(tmp_path, *command, str(seed)) for seed in range(3)]
    ends = [process.communicate(timeout=120) for process in at_once]
    assert [process.returncode for process in at_once] == [0, 0, 0], ends
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here", "spec.yaml"]
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["seed"] in range(3)


def test_what_a_killed_run_left_is_removed_and_what_another_writes_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    killed, alive = holder(tmp_path), holder(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    left = {p.name for p in (tmp_path / "runs").iterdir()}
    assert left == {f".held.partial-{killed.pid}", f".held.partial-{alive.pid}"}
    with run_folder("other"):
        there = {p.name for p in (tmp_path / "runs").iterdir()}
        assert there == {f".held.partial-{alive.pid}", f".other.partial-{os.getpid()}"}
    alive.kill()
    alive.wait(10)


def test_a_run_that_was_being_replaced_when_its_successor_was_killed_is_put_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    killed = holder(tmp_path)
    killed.kill()
    killed.wait(10)
    aside = tmp_path / "runs" / f".kept.replaced-{killed.pid}"
    aside.mkdir()
    (aside / "summary.json").write_text("{}")
    with run_folder("other"):
        assert (tmp_path / "runs" / "kept" / "summary.json").read_text() == "{}"
        assert not aside.exists()


def test_an_interrupted_run_leaves_nothing(tmp_path):
    process = holder(tmp_path)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(10)
    assert time.monotonic() - began < 10
    assert list(tmp_path.iterdir()) == []


def test_a_failing_run_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZeroDivisionError), run_folder("broken", Path("deep/down")):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
