"""Every headroom formula under the traffic that it assumes, over chips, rates and cables of 5 to 300 m.

    python benchmarks/headroom_sweep.py

Prints each link on which a packet is dropped at the formula's value, or none at 80 % of it, and the counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import headroom_trial as trial

from fabrictwin.configuration.headroom import broadcom, spectrum

METRES = (5, 10, 20, 30, 40, 60, 80, 100, 150, 200, 300)
GBPS = (10, 25, 40, 50, 100, 200, 400, 800)
MTUS = (1522, 4222, 9122)


def links(metres: int) -> Iterator[trial.Assumptions]:
    for gbps in GBPS:
        for chip in spectrum.CHIPS:
            yield trial.of_spectrum(chip, gbps, metres)
        for chip in broadcom.CELLS:
            yield trial.of_broadcom(chip, gbps, metres)
        if gbps <= 400:
            for mtu in MTUS:
                yield trial.of_mlx5(gbps, metres, mtu)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    tried = dropping = idle = 0
    for metres in METRES:
        for assumed in links(metres):
            at_value, at_less = trial.play(assumed).dropped, trial.play(assumed, 0.8).dropped
            tried, dropping, idle = tried + 1, dropping + (at_value > 0), idle + (at_less == 0)
            if at_value or not at_less:
                drops = f"{at_value} dropped, at 80 % {at_less}"
                print(f"{assumed.name}: {assumed.headroom_bytes} B: {drops}", flush=True)
    print(f"{tried} links: {dropping} drop at the value, {idle} drop nothing at 80 %")


if __name__ == "__main__":
    main()
