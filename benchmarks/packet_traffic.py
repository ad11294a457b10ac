"""Every traffic figure of the packet engine beside its reference: htsim's, or the floor of the links.

    python benchmarks/packet_traffic.py [--line NAME ...]

Three-tier fat-tree of full bisection, 400 Gb/s, 1 us a link, no switch latency, store and forward, MTU 4096, all
flows at t = 0; completion is the sender's last acknowledgement. Times are the network's, so they do not depend on
the machine; the last column is what the line took here, in CPU-seconds, without compiling.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from support import htsim_cases as cases  # noqa: E402

from fabrictwin.routing.engines.registry import hash_seeds  # noqa: E402

Row = tuple[str, str, str]  # what, here, reference

FLOOR_MS = 32 * 20_000_000 * 8 / 400e9 * 1e3


def _us(values: Any) -> Any:
    return np.asarray(values) / 1e6


def permutation(folder: Path) -> Iterator[Row]:
    pattern = cases.traffic(cases.PERMUTATION, folder)
    took = _us(cases.play(pattern, *cases.network(16), balance="spray", control="nscc").completion_ps)
    yield "perm_1024, spraying, NSCC: mean", f"{took.mean():.1f} us", "htsim 60.1 (at most 63.1), floor 52.5"
    yield "perm_1024, spraying, NSCC: max", f"{took.max():.1f} us", "htsim 65.5 (at most 68.8)"


def ecmp(folder: Path) -> Iterator[Row]:
    pattern = cases.traffic(cases.PERMUTATION, folder)
    fabric, routes = cases.network(16)
    longest, drops = [], 0
    for seed in range(10):
        result = cases.play(pattern, fabric, replace(routes, hash_seeds=hash_seeds(fabric, seed)))
        longest.append(float(_us(result.completion_ps).max()))
        drops += result.summary()["packets"]["dropped"]
    spread = ", ".join(f"{value:.0f}" for value in longest)
    yield "perm_1024, lossless RoCE, ECMP: median of the max", f"{np.median(longest):.0f} us", "htsim 177 to 255"
    yield "  by seed; dropped", f"{spread}; {drops}", "0 dropped"


def incast(folder: Path) -> Iterator[Row]:
    pattern = cases.traffic(cases.INCAST, folder)
    for technology, name in (("infiniband", "InfiniBand credits"), ("ethernet", "RoCE with PFC")):
        result = cases.play(pattern, *cases.network(8, technology))
        summary = result.summary()
        here = f"{_us(result.done_ps).max():.0f} us, {summary['packets']['dropped']} dropped"
        if technology == "ethernet":
            here += f", {summary['pauses']['frames']} pauses"
        yield f"inc_128, {name}", here, "1,280 to 1,340 us, 0 dropped"


def collapse(folder: Path) -> Iterator[Row]:
    pattern = cases.traffic(cases.INCAST, folder, 20_000_000)
    lossy = cases.play(pattern, *cases.network(8), lossless=False)
    packets, end = lossy.summary()["packets"], _us(lossy.done_ps).max() / 1e3
    what = f"{packets['dropped']} dropped, {packets['retransmitted']} sent again"
    yield (
        "32 x 20 MB, drop-tail, go-back-N",
        f"{end:.1f} ms, {what}",
        f"at least {1.5 * FLOOR_MS:.1f} ms (1.5 floors)",
    )
    paused = {}
    for name, control in (("PFC alone", {}), ("PFC and DCQCN", {"control": "dcqcn", "dcqcn": "sigcomm15"})):
        result = cases.play(pattern, *cases.network(8), **control)
        paused[name] = result.summary()["pauses"]["time_us"] / 1e3
        here = f"{_us(result.done_ps).max() / 1e3:.2f} ms, paused {paused[name]:.1f} ms"
        yield f"32 x 20 MB, {name}", here, f"floor {FLOOR_MS:.1f} ms"
    fall = paused["PFC alone"] / max(paused["PFC and DCQCN"], 1e-9)
    yield "32 x 20 MB, pause time falls by", f"{fall:.1f} times", "at least 2 times"


def all_to_all(folder: Path) -> Iterator[Row]:
    pattern = cases.traffic(cases.ALL_TO_ALL, folder)
    end = _us(cases.play(pattern, *cases.network(8), balance="spray", control="nscc").done_ps).max()
    yield "a2a_128, spraying, NSCC", f"{end:.1f} us", "htsim 502 (477 to 527), floor 166"


LINES: dict[str, Callable[[Path], Iterator[Row]]] = {
    "permutation": permutation,
    "ecmp": ecmp,
    "incast": incast,
    "collapse": collapse,
    "all-to-all": all_to_all,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--line", action="append", choices=sorted(LINES))
    chosen = parser.parse_args().line or list(LINES)
    with tempfile.TemporaryDirectory() as folder:
        list(incast(Path(folder)))  # the compiler's time is not the lines'
        for name in chosen:
            begun = time.process_time()
            rows = list(LINES[name](Path(folder)))
            cpu = time.process_time() - begun
            for i, (what, here, reference) in enumerate(rows):
                took = f"{cpu:6.1f} s" if i == len(rows) - 1 else ""
                print(f"{what:50} {here:44} {reference:42} {took}", flush=True)


if __name__ == "__main__":
    main()
