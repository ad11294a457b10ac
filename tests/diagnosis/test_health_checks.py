"""Health checks that failed, told by what they look at where no message of theirs is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictwin.diagnosis.diagnose import CLEAN, diagnose

NHC = "ERROR:  nhc:  Health check failed:  "
SCRIPT = "2026-01-16 15:40:46,024 - ERROR - gpu-3505 - "
LINES = {
    NHC + "check_ib_bw_gdr: mlx5_ib3 , 192.3 < 380": "bandwidth-low",
    NHC + "check_nccl_allreduce: 210.1 < 460": "bandwidth-low",
    NHC + "check_nvlink_status: GPU 3": "nvlink-inactive",
    NHC + "check_pcie: GPU 3 has x8": "pci-narrow",
    NHC + "check_hw_eth: eth0": "port-down",
    NHC + "check_hw_physmem: 1.5 TB, 1.9 TB expected": "host-hardware",
    NHC + "check_gpu_clock_throttling: GPU 3": "gpu-power",
    SCRIPT + "GPU Count Test Failed: Expected 8, found 7": "no-gpu",
    SCRIPT + "ECC Test Failed: GPU 3 - 5": "gpu-memory",
    SCRIPT + "RDMA Link Test Failed: mlx5_3": "port-down",
    SCRIPT + "Fabric Manager Check: Failed": "fabric-manager",
    NHC + "check_app_gpu_clocks: GPU 3 at 1200 MHz": "gpu-slow",
    NHC + "check_nvsmi: nvidia-smi exited with code 9": "driver-mismatch",
    NHC + "check_nvsmi: nvidia-smi returned 15": "gpu-lost",
    "Infiniband controller link width [0000:18:00.0][x16]......... Unhealthy": "pci-narrow",
    "Power supplies [PSU3]........................................ Unhealthy": "host-hardware",
}


@pytest.mark.parametrize("line", LINES)
def test_a_check_that_failed_names_what_it_looked_at(tmp_path: Path, line: str) -> None:
    file = tmp_path / "checks.log"
    file.write_text(line + "\n")
    assert diagnose([file], twin=False).findings[0].id == LINES[line]


@pytest.mark.parametrize(
    "line",
    [
        "SUCCESS:  nhc:  Health check passed:  check_gpu_bw",
        "SUCCESS:  nhc:  Health check passed:  check_gpu_count: Expected 8 and found 8",
        "Power supplies [PSU3]........................................ Healthy\nOverall system status is healthy",
        "2026-01-16 15:40:46,024 - INFO - gpu-3505 - ECC Test: Passed",
    ],
)
def test_checks_that_passed_are_clean(tmp_path: Path, line: str) -> None:
    file = tmp_path / "checks.log"
    file.write_text(f"{line}\n" * 3)
    found = diagnose([file], twin=False)
    assert found.verdict == CLEAN
    assert found.findings == ()


def test_a_check_that_could_not_run_tells_nothing_of_its_matter(tmp_path: Path) -> None:
    file = tmp_path / "checks.log"
    file.write_text(SCRIPT + "ECC Test Failed: test crashed: No module named 'numpy'\n")
    assert diagnose([file], twin=False).findings[0].id == "check-dependency"
