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
    "[[ REMAPPED ROWS ]] FAIL": "gpu-memory",
    "[FAIL] RDMA device mlx5_3: link speed 200 Gb/s": "link-slow",
    "gpu-3 | CHECK ib_ports | CRITICAL | mlx5_7": "port-down",
    "ib_write_bw: mlx5_2: 97.3 Gb/s FAIL (threshold 380)": "bandwidth-low",
    "Checking memlock: FAIL (65536 kB)": "limit-locked",
    "Checking nvidia_peermem: FAIL (module not loaded)": "peermem-missing",
    '{"check": "nvlink", "node": "gpu-3", "status": "FAIL", "details": "GPU 5"}': "nvlink-inactive",
    "gpu-3: nvidia-smi reports 7 GPUs, expected 8": "no-gpu",
    "only 7 port(s) are active and >=400 Gb/s, expect >=8": "port-down",
    "check infiniband (1 port(s) are down: mlx5_2)": "port-down",
    'node gpu-12 state=drain reason="IB port mlx5_2 down"': "port-down",
    "nv-fabricmanager found but fabric manager service is not active": "fabric-manager",
    "  NVLinkStatusInactive  True  Mon, 03 Jun 2024 10:11:12 +0000  Inactive  GPU 3 nvlink is inactive": "nvlink-inactive",
    "  GPU 2: DBE count 3": "gpu-memory",
    "WARN: mlx5_4 firmware 28.36.1010 differs from expected 28.39.1002": "firmware-old",
    "gpu_burn on gpu-9: GPU 3 FAULTY": "gpu-computes-wrong",
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
        "  IBLinkFlapping  False  Mon, 03 Jun 2024 10:11:12 +0000  NoIBLinkFlapping  stable\nHealth check passed",
        '{"check": "nvlink", "status": "PASS", "details": "no errors"}',
        "gpu-3: nvidia-smi reports 8 GPUs, expected 8\nHealth check passed",
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


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (NHC + "Check check_nv_gpu_count 8 returned 1", "no-gpu"),
        (NHC + "check_nvlink_status: GPU 3 has inactive nvlink", "nvlink-inactive"),
        (NHC + "check_hw_physmem_free:  Free RAM (1234 kB) less than minimum allowed", "host-memory"),
        (NHC + "Script timed out.", "check-dependency"),
        ("Found XID errors: 63", "gpu-memory"),
        ("Found XID errors: 79", "gpu-lost"),
        ("[[ PCIEBW ]] FAIL", "pci-narrow"),
        ("CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink", "nvlink-error"),
    ],
)
def test_words_of_other_checks_are_known(tmp_path: Path, line: str, cause: str) -> None:
    file = tmp_path / "checks.log"
    file.write_text(line + "\n")
    assert diagnose([file], twin=False).findings[0].id == cause


@pytest.mark.parametrize("passed", ["SUCCESS:  nhc:  Health check passed:  ", "[PASS] ", "PASSED: "])
def test_what_a_check_that_passed_looked_for_is_not_there(tmp_path: Path, passed: str) -> None:
    said = (
        "check_gpu_count: Expected 8 and found 8", "check_ecc: no uncorrectable errors", "check_gpu_xid: no Xid 79",
        "check_nvlink_status: no GPU has inactive links", "check_ib_link_flapping: no link flapped",
    )  # fmt: skip
    file = tmp_path / "checks.log"
    file.write_text("".join(f"{passed}{one}\n" for one in said))
    assert diagnose([file], twin=False).findings == ()
    file.write_text("".join(f"FAILED: {one}\n" for one in said[:1]))
    assert diagnose([file], twin=False).findings


def test_gpus_that_fail_a_test_of_dcgm_stand_below_those_that_pass(tmp_path: Path) -> None:
    rows = (
        "+-----  Stress  ------------+------------------------------------------------+",
        "| Targeted Power            | Pass - GPUs: 0, 2, 3                           |",
        "|                           | Fail - GPU: 1                                  |",
        "| Warning                   | GPU 1 Max power of 224.1 did not reach desire  |",
        "|                           | d power minimum target_power_min_ratio of 224  |",
        "|                           | .2 for GPU 1 Verify that the clock speeds are  |",
    )
    for count, cause in ((3, "gpu-power"), (6, "gpu-power")):  # without a word of its own, and with one
        file = tmp_path / "diag.txt"
        file.write_text("\n".join(rows[:count]) + "\n")
        (first, *_) = diagnose([file], twin=False).findings
        assert (first.id, first.object) == (cause, "GPU 1")
