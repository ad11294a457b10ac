"""Hold `fabrictwin expect` against published bandwidths of nccl-tests.

    python benchmarks/doctor_expect.py

Only hardware that the catalog has; where a source gives a range, its middle. Floors of health checks are no
measurements and are left out.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from fabrictwin.diagnosis.expectation.expected import expected_of
from fabrictwin.diagnosis.expectation.hardware import Hardware

GIB = 1 << 30
CLOSE = 0.10


@dataclass(frozen=True)
class Published:
    """One published figure: GB/s of bus bandwidth."""

    host: str
    hosts: int
    fabric: str
    test: str
    size_bytes: int
    busbw: float
    source: str
    release: str = ""
    settings: tuple[tuple[str, str], ...] = ()


ROWS = (
    Published("dgx-h100", 1, "infiniband", "all_reduce_perf", 8 * GIB, 480, "NVIDIA/nccl-tests issue 212"),
    Published("dgx-h100", 1, "infiniband", "all_gather_perf", 8 * GIB, 370, "NVIDIA/nccl-tests issue 212"),
    Published("dgx-h100", 2, "ethernet", "all_reduce_perf", GIB, 450, "oci-hpc, troubleshooting", "2.23.4"),
    Published("dgx-h100", 2, "ethernet", "all_reduce_perf", 4 * GIB, 467, "oci-hpc, troubleshooting", "2.23.4"),
    Published("dgx-h100", 2, "ethernet", "all_reduce_perf", 16 * GIB, 471, "oci-hpc, troubleshooting", "2.23.4"),
    Published("p5-48xlarge", 2, "ethernet", "all_reduce_perf", 2 * GIB, 438, "awsome-distributed-training"),
    Published("p5-48xlarge", 2, "ethernet", "all_reduce_perf", 16 * GIB, 485, "awsome-distributed-training"),
    Published("dgx-h100", 8, "infiniband", "all_reduce_perf", 8 * GIB, 386, "coreweave/nccl-tests"),
    # one and two racks were published first with a job of 2.25.1 and NVLS (coreweave/nccl-tests pull request 43)
    Published("gb200-nvl72", 1, "infiniband", "all_reduce_perf", 8 * GIB, 841, "coreweave/nccl-tests", "2.25.1"),
    Published("gb200-nvl72", 2, "infiniband", "all_reduce_perf", 16 * GIB, 820, "coreweave/nccl-tests", "2.25.1"),
    Published(
        "gb200-nvl72",
        20,
        "infiniband",
        "all_reduce_perf",
        16 * GIB,
        405,
        "coreweave/nccl-tests",
        "2.26.2",
        (("NCCL_NET_GDR_C2C", "1"), ("NCCL_NVLS_ENABLE", "0")),
    ),
    Published(
        "dgx-a100",
        2,
        "infiniband",
        "all_reduce_perf",
        8 * GIB,
        96,
        "NVIDIA/nccl-tests issue 119",
        "2.18",
        (("NCCL_IB_HCA", "=mlx5_0,mlx5_2,mlx5_6,mlx5_8"),),
    ),
)


def main() -> int:
    """Print each figure beside the twin's, and how many are close."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    close = 0
    for row in ROWS:
        expected = expected_of(Hardware(row.host, row.hosts, row.fabric, release=row.release))
        changed, environment = " ".join("=".join(one) for one in row.settings), dict(row.settings)
        value = expected.measured(row.test, row.size_bytes, changed, environment=environment)[0]
        off = value / row.busbw - 1
        close += abs(off) <= CLOSE
        print(f"{row.hosts:3} x {row.host:12} {row.fabric:10} {row.test:16} {row.size_bytes // GIB:3} GiB "
              f"published {row.busbw:6.1f}, twin {value:6.1f} ({off:+.1%})  {row.source}", flush=True)  # fmt: skip
    print(f"within {CLOSE:.0%}: {close} of {len(ROWS)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
