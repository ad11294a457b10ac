"""What perftest prints by the virtual clock, beside what `fabrictwin perftest` says of the same hosts.

    python benchmarks/live_virtual.py [--only WORD] [--iterations 200] [--runs 3] [--busy]

The eight programs, 2 B to 8 MiB, over RC between two hosts under one leaf. A row for each size: the printed
figure, the modelled one, how far they are apart, and the furthest that runs are apart from each other. --busy
keeps every processor busy during the last run. Exit code 1 where a figure is off by more than 1 % and one unit of
its last digit, or runs differ by more than 0.1 %.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.clusters import boxes
from support.live_pair import LiveTwin, free_port

from fabrictwin.tools.perftest.perftest_loops import Bandwidth, play
from fabrictwin.tools.perftest.perftest_options import TESTS, PerftestOptions

UNIT = 0.01  # of the last digit
MOST_OFF, MOST_APART = 0.01, 0.001
PATIENCE_S = 3600.0


def modelled(program: str, iterations: int) -> dict[int, float]:
    """Average bandwidth in MiB/s, or typical latency in microseconds, by size."""
    every = "atomic" not in program
    options = PerftestOptions(
        test=program, source="host-1", target="host-0", all_sizes=every, iterations=iterations
    )
    return {
        row.size: row.average_bps / 8 / (1 << 20) if isinstance(row, Bandwidth) else row.typical / 1e6
        for row in play(boxes(2), options).rows
    }


def printed(program: str, iterations: int) -> dict[int, float]:
    """Return the same from the program's own output."""
    port = free_port()
    command = [program, "-F", "-p", str(port), "-n", str(iterations), *([] if "atomic" in program else ["-a"])]
    with LiveTwin(boxes(2), engine="packet", clock="virtual") as live:
        _, client = live.pair(command, [*command, "localhost"], port=port, timeout_s=PATIENCE_S)
    at = 1 if program.endswith("_bw") else 2  # BW average; t_typical
    rows = re.findall(rf"^ (\d+) +{iterations} +(.*)$", client.output, re.M)
    return {int(size): float(rest.split()[at]) for size, rest in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="programs with this in their name")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    bad = 0
    print("| program | bytes | printed | modelled | off | runs apart |\n|---|---|---|---|---|---|")
    for program in (test for test in TESTS if options.only in test):
        expected = modelled(program, options.iterations)
        runs = []
        for run in range(options.runs):
            last = options.busy and run == options.runs - 1
            loops = [
                subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(os.cpu_count() or 1) if last
            ]
            try:
                runs.append(printed(program, options.iterations))
            finally:
                for loop in loops:
                    loop.kill()
                    loop.wait()
        for size, figure in expected.items():
            figures = [found.get(size, 0.0) for found in runs]
            off = max(abs(found - figure) for found in figures)
            apart = max(figures) - min(figures)
            wrong = off > max(MOST_OFF * figure, 1.01 * UNIT) or apart > MOST_APART * figure
            bad += wrong
            print(
                f"| {program} | {size} | {figures[0]:.2f} | {figure:.2f} | {off / figure:.2%} |"
                f" {apart / figure:.3%} |{' WRONG' if wrong else ''}",
                flush=True,
            )
    print(f"{bad} rows are off")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
