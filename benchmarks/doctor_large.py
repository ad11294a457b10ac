"""Diagnose a log of a given size: time, processor time and memory.

    python benchmarks/doctor_large.py [--megabytes 1000] [--folder DIR]

The log is the twin's own of nccl-tests on two hosts with a fault, its lines repeated as a long job's are (the same
ranks, other numbers), below the prefixes of mpirun. Timings are of this machine and its load, which is printed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCES = str(Path(__file__).parents[1] / "src")
sys.path.insert(0, SOURCES)

MEGABYTE = 10**6
# the reader says what it held itself: of children the kernel tells the greatest of all
MEASURED = """
import resource, sys
from fabrictwin.cli import main
main()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def lines_of_a_job() -> list[str]:
    """The log of a run whose second host lacks the peer memory module."""
    import fabrictwin as ft

    out = io.StringIO()
    spec = {
        "schema": 1,
        "cluster": {
            "hosts": {"type": "dgx-h100", "count": 2},
            "network": {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"},
        },
        "faults": [{"host": "host-1", "cause": "no-gpudirect-module"}],
    }
    asked = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,GRAPH,BOOTSTRAP,TUNING,P2P,SHM,COLL"}
    ft.nccl_tests("all_reduce_perf", spec, minbytes="64M", maxbytes="1G", check=0, environment=asked, out=out)
    return out.getvalue().splitlines()


def main() -> int:
    """Write the log, read it, and say what that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    path = arguments.folder / f"doctor-large-{os.getpid()}.log"
    # in a process of its own: what it holds would count as the reader's, which is started by this one
    own = [sys.executable, "-c", "import doctor_large; print('\\n'.join(doctor_large.lines_of_a_job()))"]
    told = subprocess.run(own, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    lines, size, number = told.stdout.splitlines(), 0, 0
    try:
        with path.open("w", encoding="utf-8") as stream:
            while size < arguments.megabytes * MEGABYTE:
                text = "".join(f"[1,{(number + i) % 16}]<stdout>:{line}\n" for i, line in enumerate(lines))
                number += 1
                size += stream.write(text.replace("opCount 0", f"opCount {number:x}"))
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, "doctor", str(path), "--no-twin", "--json"],
            env=os.environ | {"PYTHONPATH": SOURCES}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        wall = time.perf_counter() - began
    finally:
        path.unlink(missing_ok=True)
    found = json.loads(done.stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{size / MEGABYTE:.0f} MB: {wall:.1f} s, {cpu:.1f} s of processor time at load {os.getloadavg()[0]:.1f}"
    )
    print(f"memory {int(done.stderr.split()[-1]) / 1024:.0f} MiB at most")
    print(f"{found['verdict']}: {[one['id'] for one in found['findings'][:3]]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
