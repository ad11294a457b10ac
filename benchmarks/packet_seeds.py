"""Traffic figures of docs/packet.md over ten seeds, of one checkout or several, as a table.

    PYTHONPATH=CHECKOUT/src python benchmarks/packet_seeds.py KEPT --label NAME [--line NAME ...] [--parts N]
    python benchmarks/packet_seeds.py KEPT --table

A seed gives the hosts of a pattern other places in the fabric, switches other hashes and the engine other random
numbers; the same seed gives the same traffic in every checkout. Each result is kept in the file KEPT as it comes,
a line of JSON, and is not played again. The table has mean and standard deviation of each label, and the mean and
standard deviation of what a seed's results differ by from the first label's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from support import htsim_cases as cases  # noqa: E402
from support.clusters import boxes  # noqa: E402

from fabrictwin.base.errors import SimulatedError  # noqa: E402
from fabrictwin.routing.engines.registry import hash_seeds  # noqa: E402

SEEDS = range(1, 11)
MIB = 1 << 20
Figures = dict[str, float]


def _moved(pattern: Any, seed: int) -> Any:
    """The pattern with its hosts in other places."""
    place = np.random.default_rng(seed).permutation(pattern.nodes).astype(pattern.source.dtype)
    return replace(pattern, source=place[pattern.source], destination=place[pattern.destination])


def _play(pattern: Any, network: tuple[Any, Any], seed: int, **options: Any) -> Any:
    fabric, routes = network
    if routes.lft is None or not len(routes.lft):
        routes = replace(routes, hash_seeds=hash_seeds(fabric, seed))
    return cases.play(_moved(pattern, seed), fabric, routes, seed=seed, **options)


def _traffic(name: str, size: int = 2_000_000) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return cases.traffic(name, Path(folder), size)


def permutation_spray(seed: int, more: dict[str, int]) -> Figures:
    result = _play(_traffic(cases.PERMUTATION), cases.network(16), seed, balance="spray", control="nscc", **more)
    took = result.completion_ps / 1e6
    return {"mean, us": took.mean(), "max, us": took.max()}


def permutation_ecmp(seed: int, more: dict[str, int]) -> Figures:
    took = _play(_traffic(cases.PERMUTATION), cases.network(16), seed, **more).completion_ps / 1e6
    return {"mean, us": took.mean(), "max, us": took.max()}


def incast_credits(seed: int, more: dict[str, int]) -> Figures:
    result = _play(_traffic(cases.INCAST), cases.network(8, "infiniband"), seed, **more)
    return {"end, us": result.done_ps.max() / 1e6}


def incast_pauses(seed: int, more: dict[str, int]) -> Figures:
    result = _play(_traffic(cases.INCAST), cases.network(8), seed, **more)
    return {"end, us": result.done_ps.max() / 1e6, "pauses": result.summary()["pauses"]["frames"]}


def _long_incast(seed: int, **options: Any) -> Figures:
    result = _play(_traffic(cases.INCAST, 20_000_000), cases.network(8), seed, **options)
    summary = result.summary()
    return {
        "end, ms": result.done_ps.max() / 1e9,
        "paused, ms": summary["pauses"]["time_us"] / 1e3,
        "drops": summary["packets"]["dropped"],
    }


def long_incast_pauses(seed: int, more: dict[str, int]) -> Figures:
    return _long_incast(seed, **more)


def long_incast_dcqcn(seed: int, more: dict[str, int]) -> Figures:
    return _long_incast(seed, control="dcqcn", dcqcn="sigcomm15", **more)


def long_incast_lossy(seed: int, more: dict[str, int]) -> Figures:
    return _long_incast(seed, lossless=False, **more)


def all_to_all(seed: int, more: dict[str, int]) -> Figures:
    pattern = _traffic(cases.ALL_TO_ALL)
    result = _play(pattern, cases.network(8), seed, balance="spray", control="nscc", **more)
    return {"end, us": result.done_ps.max() / 1e6}


def _flows(nodes: int, flows: list[tuple[int, int, int]], levels: list[int] | None = None) -> Any:
    """The pattern of (source, destination, bytes), all from the start, at a service level each."""
    rows = [f"{a}->{b} id {i} start 0 size {size}" for i, (a, b, size) in enumerate(flows, 1)]
    if levels:
        rows = [f"{row} prio {level}" for row, level in zip(rows, levels, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flows.cm"
        path.write_text("\n".join([f"Nodes {nodes}", f"Connections {len(flows)}", *rows, ""]))
        return cases.read_traffic(path)


def hot_all_to_all(seed: int, more: dict[str, int]) -> Figures:
    """64 of 128 hosts; four of them get four times what others get."""
    flows = [(a, b, (1 << 18) if b < 4 else 1 << 16) for a in range(64) for b in range(64) if a != b]
    result = _play(_flows(128, flows), cases.network(8), seed, control="dcqcn", dcqcn="by-rate", **more)
    return {"end, us": result.done_ps.max() / 1e6, "pauses": result.summary()["pauses"]["frames"]}


def tcp_beside_rdma(seed: int, more: dict[str, int]) -> Figures:
    """Two flows of DCQCN and four of CUBIC into one adapter, in one lane."""
    flows = [(a, 100, 20_000_000) for a in (0, 20, 40, 60, 80, 120)]
    levels = [0, 0, 1, 1, 1, 1]
    result = _play(
        *(_flows(128, flows, levels), cases.network(8), seed),
        **({"control": "dcqcn", "controls": ((1, "cubic"),)} | more),
    )
    took = result.done_ps / 1e9
    return {"RDMA's end, ms": took[:2].max(), "TCP's end, ms": took[2:].max()}


def infiniband_congestion(seed: int, more: dict[str, int]) -> Figures:
    """Five crowd a port, and a victim that goes elsewhere shares a trunk with two of them: no host moves."""
    from support.clusters import blueprint

    from fabrictwin.cluster.spec.congestion_section import CongestionControl
    from fabrictwin.engines.packet.packet_options import options_with
    from fabrictwin.tools.traffic.play_traffic import play_traffic
    from fabrictwin.twin import Twin

    shape = {"kind": "fat-tree", "tiers": 2, "leaf_down": 4, "oversubscription": 4}
    twin = Twin(blueprint(8, "pcie-box", technology="infiniband", switch="qm8700", topology=shape))
    twin.congestion = CongestionControl.model_validate(
        {
            "cc_sw_cong_setting_threshold": 15,
            "cc_sw_cong_setting_marking_rate": 7,
            "cc_ca_cong_setting_ccti_timer": 20,
            "cc_ca_cong_setting_ccti_increase": 1,
            "cc_cct": ",".join(f"2:{i}" for i in range(128)),
        }
    )
    pattern = _flows(8, [(a, 0, 16_000_000) for a in (4, 5, 1, 2, 3)] + [(6, 3, 16_000_000)])
    result = play_traffic(pattern, twin.fabric, twin.routes, options_with(seed=seed, **more), slowdown=False)
    took = result.completion_ps / 1e9
    return {"those that crowd, end, ms": took[:5].max(), "victim's end, ms": took[5]}


def _seven(seed: int, control: str, more: dict[str, int]) -> Figures:
    from fabrictwin.engines.packet.packet_options import options_with
    from fabrictwin.tools.traffic.play_traffic import play_traffic

    pattern = _flows(8, [(i, 7, 8 * MIB) for i in range(7)])
    twin = boxes(8, "ethernet")
    options = options_with(control=control, lossless=False, buffer_bytes=4 * MIB, seed=seed, **more)
    result = play_traffic(_moved(pattern, seed), twin.fabric, twin.routes, options, slowdown=False)
    return {"end, ms": result.done_ps.max() / 1e9, "drops": result.summary()["packets"]["dropped"]}


def seven_cubic(seed: int, more: dict[str, int]) -> Figures:
    return _seven(seed, "cubic", more)


def seven_dctcp(seed: int, more: dict[str, int]) -> Figures:
    return _seven(seed, "dctcp", more)


LINES: dict[str, Callable[[int, dict[str, int]], Figures]] = {
    "incast of 32 x 2 MB, InfiniBand credits": incast_credits,
    "incast of 32 x 2 MB, RoCE with PFC": incast_pauses,
    "7 x 8 MiB at 200 Gb/s, CUBIC": seven_cubic,
    "7 x 8 MiB at 200 Gb/s, DCTCP": seven_dctcp,
    "incast of 32 x 20 MB, PFC": long_incast_pauses,
    "incast of 32 x 20 MB, PFC and DCQCN": long_incast_dcqcn,
    "permutation of 1,024 x 2 MB, ECMP": permutation_ecmp,
    "permutation of 1,024 x 2 MB, spraying, NSCC": permutation_spray,
    "all-to-all of 128 x 64 KiB, spraying, NSCC": all_to_all,
    "incast of 32 x 20 MB, drop-tail": long_incast_lossy,
    "all-to-all of 64 with four hot receivers, DCQCN": hot_all_to_all,
    "2 of DCQCN and 4 of CUBIC x 20 MB in one lane": tcp_beside_rdma,
    "5 that crowd a port and a victim, InfiniBand's control": infiniband_congestion,
}
# triggers and InfiniBand's control belong to no part
WHOLE = (
    "all-to-all of 128 x 64 KiB, spraying, NSCC",
    "5 that crowd a port and a victim, InfiniBand's control",
)


def play(kept: Path, label: str, lines: list[str], parts: int) -> None:
    """Play what is not kept yet."""
    known = {(row["label"], row["line"], row["seed"]) for row in _rows(kept)}
    for line in lines:
        for seed in SEEDS:
            if (label, line, seed) in known or (parts and line in WHOLE):
                continue
            try:
                found = LINES[line](seed, {"parts": parts} if parts else {})
            except SimulatedError:
                found = {}  # retries were used up
            row = {"label": label, "line": line, "seed": seed, **{k: float(v) for k, v in found.items()}}
            with kept.open("a") as file:
                file.write(json.dumps(row) + "\n")


def _rows(kept: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def table(kept: Path) -> None:
    """Print what is kept."""
    rows = _rows(kept)
    labels = list(dict.fromkeys(row["label"] for row in rows))
    print(
        "| | figure | " + " | ".join([labels[0], *(f"{each} | a seed's difference" for each in labels[1:])]) + " |"
    )
    print("|---|---|" + "---|" * (2 * len(labels) - 1))
    for line in LINES:
        of = {
            label: {r["seed"]: r for r in rows if (r["label"], r["line"]) == (label, line) and len(r) > 3}
            for label in labels
        }  # without seeds whose retries were used up
        seeds = sorted(set.intersection(*(set(each) for each in of.values() if each)) if any(of.values()) else ())
        if not seeds:
            continue
        for name in [key for key in of[labels[0]][seeds[0]] if key not in ("label", "line", "seed")]:
            first = np.array([of[labels[0]][seed][name] for seed in seeds])
            cells = [_spread(first)]
            for label in labels[1:]:
                if not of[label]:
                    cells += ["", ""]
                    continue
                values = np.array([of[label][seed][name] for seed in seeds])
                cells += [_spread(values), "none" if (values == first).all() else _spread(values - first)]
            if np.abs(first).max() > 0:
                what = line if len(seeds) == len(SEEDS) else f"{line} ({len(seeds)} seeds)"
                print(f"| {what} | {name} | " + " | ".join(cells) + " |")


def _spread(values: Any) -> str:
    mean, deviation = values.mean(), values.std(ddof=1)
    return f"{mean:,.4g} ± {deviation:,.2g}" if abs(mean) < 1e4 else f"{mean:,.0f} ± {deviation:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kept", type=Path)
    parser.add_argument("--label")
    parser.add_argument("--line", action="append", choices=sorted(LINES))
    parser.add_argument("--parts", type=int, default=0, help="0: as many as the fabric has by its size")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.label:
        play(arguments.kept, arguments.label, arguments.line or list(LINES), arguments.parts)
    if arguments.table:
        table(arguments.kept)


if __name__ == "__main__":
    main()
