"""Keep many programs at once on one twin for minutes, and count what is left: memory, descriptors, objects.

    python benchmarks/live_soak.py [--processes 64] [--minutes 10] [--seconds 20] [--technology ethernet]

Laps of so many programs (servers and clients of eight kinds, both ways) run one after another to their end. A row
for each: the server's memory, its descriptors, objects that it still holds, programs that failed. It exits with 1
where an object or descriptor is left, a program failed, or memory grew by more than 5 % after the second lap.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.clusters import boxes
from support.live_laps import lap
from support.live_pair import LiveTwin

MOST_GROWN = 1.05
_MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=int, default=20, help="of a lap's programs")
    parser.add_argument("--count", type=int, default=500, help="rounds of a lap's ping-pongs")
    parser.add_argument("--technology", default="infiniband", choices=("infiniband", "ethernet"))
    options = parser.parse_args()
    began, laps = time.monotonic(), []
    with LiveTwin(boxes(2, technology=options.technology), engine="packet") as live:
        print(
            "| lap | minutes | load | clients at once | MiB | descriptors | held | failed |\n"
            "|---|---|---|---|---|---|---|---|"
        )
        while not laps or time.monotonic() < began + 60 * options.minutes:
            done = lap(live, options.processes // 2, seconds=options.seconds, count=options.count)
            laps.append(done)
            print(
                f"| {len(laps)} | {(time.monotonic() - began) / 60:.1f} | {os.getloadavg()[0]:.0f} |"
                f" {done.most_clients} | {done.resident_bytes / _MIB:.1f} | {done.descriptors} |"
                f" {'; '.join(done.held) or 'nothing'} | {'; '.join(done.failed) or 'none'} |",
                flush=True,
            )
        messages = live.server.statistics.messages
    first, last = laps[min(1, len(laps) - 1)], laps[-1]
    grown = last.resident_bytes / first.resident_bytes
    print(
        f"{len(laps) * options.processes} programs, {messages:,} messages;"
        f" memory {grown - 1:+.1%} since the second lap"
    )
    wrong = any(each.held or each.failed or each.descriptors > first.descriptors for each in laps[1:])
    return int(wrong or grown > MOST_GROWN)


if __name__ == "__main__":
    sys.exit(main())
