"""Which GPU and host of the catalog a log's names mean."""

from __future__ import annotations

import pytest

from fabrictwin import catalog
from fabrictwin.diagnosis.expectation.hardware import gpu_of, host_of


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100", "a100-80"),
        ("NVIDIA A100-PCIE-40GB", ""),
        ("NVIDIA A100 80GB PCIe", ""),
        ("NVIDIA A800-SXM4-80GB", ""),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", ""),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA H800 PCIe", ""),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", ""),
        ("NVIDIA GH200 480GB", ""),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA L40S", ""),
        ("NVIDIA RTX A6000", ""),
        ("NVIDIA GeForce RTX 4090", ""),
        ("Tesla V100-SXM2-32GB", ""),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Instinct MI355X", "mi355x"),
        ("Tesla T4", ""),
    ],
)
def test_a_name_means_the_gpu_that_matches_most_of_it(name: str, gpu: str) -> None:
    assert gpu_of(name) == gpu


@pytest.mark.parametrize("gpu", [name for name in catalog.names("gpu") if catalog.gpu(name).product_names])
def test_a_gpus_title_and_the_names_of_its_pci_devices_mean_that_gpu(gpu: str) -> None:
    entry = catalog.gpu(gpu)
    assert {gpu_of(name) for name in (entry.title, *entry.pci_devices.values())} == {gpu}


@pytest.mark.parametrize(
    ("gpu", "efa", "host"),
    [
        ("a100-80", False, "dgx-a100"),
        ("a100-80", True, "p4de-24xlarge"),
        ("h100-sxm", True, "p5-48xlarge"),
        ("h200-sxm", True, "dgx-h200"),  # no cloud's host of the catalog has it
        ("a40", False, "a40-8"),
        ("", False, None),
    ],
)
def test_the_first_host_with_a_gpu_is_expected(gpu: str, efa: bool, host: str | None) -> None:
    assert host_of(gpu, efa=efa) == host
