"""rdma-core's own Python tests, as Debian's python3-pyverbs installs them, pass on the twin unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.verbs.rdma_core_tests import MODULES, Outcome, report, share, unpack

DEBIAN = Path("/usr/share/doc/rdma-core/tests")


@pytest.mark.second
@pytest.mark.skipif(not DEBIAN.is_dir(), reason="rdma-core's tests are not here (apt: python3-pyverbs rdma-core)")
@pytest.mark.parametrize("engine", ["analytic", "packet"])
@pytest.mark.parametrize("technology", ["ethernet", "infiniband"])
def test_rdma_core_s_tests(technology, engine):
    command = [sys.executable, "-m", "fabrictwin.verbs.rdma_core_tests", str(DEBIAN)]
    done = subprocess.run(
        [*command, "--technology", technology, "--engine", engine],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed, counted = map(int, re.search(r"(\d+) of (\d+) tests that need", done.stdout).groups())
    assert counted > 90
    if technology == "ethernet":
        assert passed >= 0.95 * counted, done.stdout
    # what does not pass asks for the other kind of link
    skipped = [line for line in done.stdout.splitlines() if line.startswith("skipped ")]
    assert len(skipped) == counted - passed
    assert all("Ethernet" in line or "RoCE" in line for line in skipped), skipped


def test_a_folder_that_holds_no_tests_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected rdma-core's folder"):
        unpack(tmp_path / "nowhere", tmp_path)


def test_tests_without_device_memory_are_not_counted():
    outcome = Outcome(
        MODULES[0],
        passed=["a", "b"],
        skipped=[("c", "Device memory is not supported"), ("d", "Must be run on Ethernet link layer")],
        failed=[("e", "AssertionError: no")],
    )
    assert share([outcome]) == (2, 4, 1)
    text = report([outcome])
    assert "2 of 4" in text
    assert "skipped test_device d: Must be run on Ethernet" in text
    assert "failed test_device e: AssertionError: no" in text
