"""Efficiency of a sweep's workers: processor time and clock of the same points by one worker and by several.

    python benchmarks/sweep_workers.py [--workers 2] [--points 1000]

Efficiency is the clock of one worker over that of `--workers` times their number. On a busy machine the clock says
little; `work` does not depend on it: processor time of one over that of all, children included, which is what
several workers could reach where nobody else runs. The first sweeps of a process, which import and load kernels
for one worker and for several, are not counted. The tables must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fabrictwin as ft

LAPTOP = Path(__file__).resolve().parents[1] / "examples" / "laptop.yaml"


def processor_s() -> float:
    """Seconds of processor time of this process, of its children, and of their children that ended."""
    used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    ticks = sum(sum(map(int, fields[11:15])) for fields in _children())
    return sum(one.ru_utime + one.ru_stime for one in used) + ticks / os.sysconf("SC_CLK_TCK")


def _children() -> Iterator[list[str]]:
    """Yield the fields of /proc/PID/stat after the name, of children that live: workers are forked by one."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                yield fields


def swept(points: int, workers: int) -> tuple[dict[str, Any], float, float]:
    """The table, its clock and its processor time in seconds. Every point has an answer: others are no work."""
    spec = ft.load(LAPTOP).with_({"run.fidelity": "analytic"})
    batches = ",".join(str(256 * (i + 1)) for i in range(-(-points // 100)))
    vary = [
        "hosts=2,4,8,16",
        "tp+pp=1:2,2:2,4:2,2:4,1:4",
        "sequence=2048,3072,4096,6144,8192",
        f"global_batch={batches}",
    ]
    begun, used = time.perf_counter(), processor_s()
    found = ft.sweep(spec, vary, workers=workers)
    assert not found.failures, found.table["reason"]
    return found.table.to_dict(), time.perf_counter() - begun, processor_s() - used


def main() -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--points", type=int, default=1000)
    given = parser.parse_args()
    for workers in (1, given.workers):
        swept(4, workers)  # imports, compiles, and starts what workers are forked from
    load = os.getloadavg()[0]
    alone, clock, work = swept(given.points, 1)
    together, clocks, works = swept(given.points, given.workers)
    report = {
        "points": len(alone["reason"]),
        "one": {"clock_s": round(clock, 1), "processor_s": round(work, 1)},
        "several": {"workers": given.workers, "clock_s": round(clocks, 1), "processor_s": round(works, 1)},
        "efficiency": round(clock / (given.workers * clocks), 3),
        "work": round(work / works, 3),
        "same_table": alone == together,
        "load_average": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    print(json.dumps(report, indent=2))
    return int(alone != together)


if __name__ == "__main__":
    raise SystemExit(main())
