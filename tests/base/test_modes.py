"""Compiled, interpreted and bounds-checked kernels do the same (second tier: each mode is its own process)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

_DIGEST = """
import hashlib, sys
sys.path.insert(0, "tests")
import numpy as np
from support.clusters import boxes, dgx
from fabrictwin.program import collectives
from fabrictwin.engines.flow.flow_engine import FlowEngine
from support.programs import operations

digest = hashlib.sha256()
for twin in (dgx(2), boxes(8, "infiniband", 4), boxes(8, "ethernet")):
    fabric, routes = twin.fabric, twin.routes
    nics = np.arange(len(fabric.nic_node), dtype=np.int32)
    for array in (routes.lft, routes.groups.group_of, *routes.walk(nics, np.roll(nics, 3))):
        digest.update(np.ascontiguousarray(array).tobytes())
    engine = FlowEngine(fabric, routes)
    n = min(16, fabric.gpus)
    sends = [collectives.send(np.array([[i, (5 * i + 3) % n]]), 1 << 20 + i % 3) for i in range(n)
             if (5 * i + 3) % n != i]
    ring = collectives.all_reduce(np.arange(n)[None], 1 << 22, channels=2)
    every = [*sends, ring]
    engine.post(operations(list(range(len(every))), [[] for _ in every]), every, fabric.gpu_node)
    engine.advance()
    digest.update(engine.ended_ps().tobytes())
    digest.update(engine.counters().tx_bytes.tobytes())
print(digest.hexdigest())
"""


def run(code: list[str], **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.second
def test_compiled_and_interpreted_kernels_give_the_same_bytes():
    assert run(["-c", _DIGEST]) == run(["-c", _DIGEST], NUMBA_DISABLE_JIT="1")


@pytest.mark.second
def test_no_kernel_reads_or_writes_out_of_bounds():
    """numba's bounds checks are off in normal runs: here they are on."""
    out = run(
        ["-m", "pytest", "-x", "tests/engines/test_flow.py", "tests/fabric/test_fabric.py"], NUMBA_BOUNDSCHECK="1"
    )
    assert " passed" in out


@pytest.mark.second
def test_every_line_of_the_fluid_kernel_runs_in_some_test(tmp_path):
    """Line coverage counts only what the interpreter runs, so this is measured with the compiler off."""
    data = {"COVERAGE_FILE": str(tmp_path / "coverage"), "NUMBA_DISABLE_JIT": "1"}
    kernel = ",".join(f"*/fabrictwin/kernel/flow/{name}.py" for name in ("fluid", "max_min", "heaps"))
    run(
        [
            "-m",
            "coverage",
            "run",
            "--rcfile=/dev/null",
            f"--include={kernel}",
            "-m",
            "pytest",
            "tests/engines/test_flow.py",
        ],
        **data,
    )
    report = run(["-m", "coverage", "report", "--rcfile=/dev/null", "--fail-under=95", "-m"], **data)
    assert "TOTAL" in report


def test_help_does_not_import_the_compiler():
    out = run(
        [
            "-c",
            "import sys, fabrictwin.cli as c\n"
            "try: c.main(['--help'])\nexcept SystemExit: pass\nprint('numba' in sys.modules)",
        ]
    )
    assert out.strip().endswith("False")
