"""Hosts that the catalog lacks have nothing held against them; half of a known GPU's NVLinks do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fabrictwin.diagnosis.diagnose import judged
from fabrictwin.diagnosis.readers.reading import read_text

Cell = Callable[[int, int], str]
# of a DGX-1's and a p3dn's hybrid cube mesh: links of each pair
_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def cube(a: int, b: int) -> str:
    links = _MESH.get((min(a, b), max(a, b)), 0)
    return f"NV{links}" if links else "SYS"


def sockets(a: int, b: int) -> str:
    return "NODE" if (a < 4) == (b < 4) else "SYS"


def pairs(a: int, b: int) -> str:
    return "NV12" if a // 2 == b // 2 else sockets(a, b)


def matrix(gpus: int, between: Cell, nics: int = 0, near: Cell = sockets, *, numa: bool = False) -> str:
    heads = [f"GPU{n}" for n in range(gpus)] + [f"NIC{n}" for n in range(nics)]
    text = "\t" + "\t".join(heads) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    for gpu in range(gpus):
        cells = [" X " if gpu == other else between(gpu, other) for other in range(gpus)]
        cells += [near(gpu, nic) for nic in range(nics)]
        text += f"GPU{gpu}\t" + "\t".join(cells) + f"\t0-63\t0\t\t{gpu + 2 if numa else 'N/A'}\n"
    for nic in range(nics):
        cells = [near(gpu, nic) for gpu in range(gpus)] + [" X " if nic == o else "SYS" for o in range(nics)]
        text += f"NIC{nic}\t" + "\t".join(cells) + "\n"
    return text + "\nLegend:\n\n  X    = Self\n\n"


def table(name: str, gpus: int) -> str:
    rows = "".join(
        f"|   {n:<2} {name:<26} On  |   00000000:{0x1B + n:02X}:00.0 Off |                    0 |\n"
        for n in range(gpus)
    )
    return f"| NVIDIA-SMI 570.86.15      Driver Version: 570.86.15      CUDA Version: 12.8     |\n{rows}\n"


def links(name: str, gpus: int, count: int, rate: str) -> str:
    one = "".join(f"\t Link {n}: {rate} GB/s\n" for n in range(count))
    return "".join(f"GPU {n}: {name} (UUID: GPU-{n:08x})\n{one}" for n in range(gpus))


def all_over(links_of_a_gpu: int) -> Cell:
    return lambda a, b: f"NV{links_of_a_gpu}"


def beside(gpu: int, nic: int) -> str:
    return "PIX" if gpu // 2 == nic else sockets(gpu, nic * 2)


HOSTS = {
    "GH200": table("NVIDIA GH200 480GB", 1) + matrix(1, sockets, 2, numa=True),
    "GH200 NVL2": table("NVIDIA GH200 144G HBM3e", 2)
    + matrix(2, all_over(18), 4, numa=True)
    + links("NVIDIA GH200 144G HBM3e", 2, 18, "26.562"),
    "DGX-1": table("Tesla V100-SXM2-32GB", 8) + matrix(8, cube, 4, beside) + links("Tesla V100-SXM2-32GB", 8, 6, "25.781"),
    "DGX-2": table("Tesla V100-SXM3-32GB", 16)
    + matrix(16, all_over(6), 8, beside)
    + links("Tesla V100-SXM3-32GB", 16, 6, "25.781"),
    "p3dn": table("Tesla V100-SXM2-32GB", 8) + matrix(8, cube),
    "eight L40S": table("NVIDIA L40S", 8) + matrix(8, sockets, 2),
    "four L40S": table("NVIDIA L40S", 4) + matrix(4, lambda a, b: "PHB", 1),
    "A100 PCIe": table("NVIDIA A100-PCIE-40GB", 8) + matrix(8, pairs, 2) + links("NVIDIA A100-PCIE-40GB", 8, 12, "25"),
    "A100 PCIe, no bridges": table("NVIDIA A100 80GB PCIe", 4) + matrix(4, sockets, 1),
    "A800": table("NVIDIA A800-SXM4-80GB", 8) + matrix(8, all_over(8), 4, beside) + links("NVIDIA A800-SXM4-80GB", 8, 8, "25"),
    "H800": table("NVIDIA H800", 8) + matrix(8, all_over(8), 4, beside) + links("NVIDIA H800", 8, 8, "26.562"),
    "H20": table("NVIDIA H20", 8) + matrix(8, all_over(18), 4, beside) + links("NVIDIA H20", 8, 18, "26.562"),
    "H200 NVL": table("NVIDIA H200 NVL", 4) + matrix(4, all_over(6), 2) + links("NVIDIA H200 NVL", 4, 18, "26.562"),
    "RTX 6000 Ada": table("NVIDIA RTX 6000 Ada Generation", 8) + matrix(8, sockets, 1),
    "four A100 without switches": table("NVIDIA A100-SXM4-40GB", 4)
    + matrix(4, all_over(4), 4, beside)
    + links("NVIDIA A100-SXM4-40GB", 4, 12, "25"),
    "two of eight H100": table("NVIDIA H100 80GB HBM3", 2) + matrix(2, all_over(18), 1, beside),
    "a tray of an NVL72": table("NVIDIA GB200", 4) + matrix(4, all_over(18), 4, numa=True) + links("NVIDIA GB200", 4, 18, "50"),
}  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_nothing_is_held_against_a_host_that_is_as_it_should_be(host: str) -> None:
    found = judged(read_text(HOSTS[host]), twin=False)
    assert (found.verdict, [one.id for one in found.roots if one.severity.name != "NOTE"]) == ("clean", [])


def log(total: float) -> str:
    head = "a:10:{0} [{0}] NCCL INFO "
    return "".join(
        head.format(gpu) + f"=== System : maxBw {total} totalBw {total} ===\n"
        + head.format(gpu) + f"+ PCI[48.0] - GPU/0-{gpu + 1}000 ({gpu})\n"
        + head.format(gpu) + f"            + NVL[{total}] - NVS/0\n"
        for gpu in range(8)
    )  # fmt: skip


def xml(count: int) -> str:
    """A topology of eight GPUs with as many links to each of three NVSwitches."""
    links = "".join(f'<nvlink target="0000:c{n}:00.0" count="{count}" tclass="0x068000"/>' for n in range(3))
    gpus = "".join(
        f'<pci busid="0000:{n + 1}b:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">\n'
        f'<gpu dev="{n}" sm="90" rank="{n}" gdr="1">{links}</gpu>\n</pci>\n'
        for n in range(8)
    )
    return f'<system version="1">\n<cpu numaid="0" arch="x86_64">\n{gpus}</cpu>\n</system>\n'


def test_links_in_topology_xml_are_those_of_whole_gpus_or_told():
    assert [one.id for one in judged(read_text(xml(6)), twin=False).roots] == []
    assert [one.id for one in judged(read_text(xml(3)), twin=False).roots] == ["nvlink-degraded"]


@pytest.mark.parametrize("total", [240.0, 370.8, 164.8, 160.0, 721.8, 120.0])
def test_what_nccl_reckons_of_whole_gpus_is_no_fault(total: float) -> None:
    assert [one.id for one in judged(read_text(log(total)), twin=False).roots] == []


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (matrix(4, all_over(9), 4, numa=True), "nvlink-degraded"),
        (links("NVIDIA GB200", 4, 9, "50"), "nvlink-inactive"),
        (links("NVIDIA GB200", 4, 18, "25"), "nvlink-degraded"),
        (table("NVIDIA H100 80GB HBM3", 8) + matrix(8, all_over(9), 4, beside), "nvlink-degraded"),
        (matrix(16, all_over(3), 8, beside), "nvlink-degraded"),
        (table("NVIDIA GB200", 2) + matrix(2, all_over(9), 2, numa=True), "nvlink-degraded"),
        (log(360.9), "nvlink-degraded"),
        (log(185.4), "nvlink-degraded"),
        (table("NVIDIA A100-SXM4-80GB", 8) + log(120.0), "nvlink-degraded"),
    ],
)
def test_half_of_the_links_of_all_gpus_is_told(text: str, cause: str) -> None:
    found = judged(read_text(text), twin=False)
    assert (found.verdict, [one.id for one in found.roots]) == ("faults", [cause])
