"""How far the three engines agree where nothing else is congested: each collective alone on its hosts.

    python benchmarks/engines_agree.py [--what NAME ...] [--hosts 1 2 4] [--sizes 64KiB 1MiB 8MiB]
                                       [--channels 1 2 8] [--host dgx-a100] [--technology infiniband]

Prints packet over flow and analytic over flow, rows that differ by more than 5 % marked. Times are the model's, so
they do not depend on the machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from support.clusters import blueprint  # noqa: E402
from support.programs import times  # noqa: E402

from fabrictwin.base.units import parse_size  # noqa: E402
from fabrictwin.engines.analytic.analytic_engine import AnalyticEngine  # noqa: E402
from fabrictwin.engines.flow.flow_engine import FlowEngine  # noqa: E402
from fabrictwin.engines.packet.packet_engine import PacketEngine  # noqa: E402
from fabrictwin.program import collectives  # noqa: E402
from fabrictwin.program.program import Communication  # noqa: E402
from fabrictwin.twin import Twin  # noqa: E402

WITHIN = 0.05
SWITCH = {"infiniband": "qm9700", "ethernet": "spectrum-4"}
Lowering = Callable[[np.ndarray, int, int, np.ndarray], Communication]


def _rails(ranks: np.ndarray, hosts: np.ndarray) -> np.ndarray:
    """[groups, hosts] ranks at the same place of every host; inside one host everybody."""
    return ranks[None] if hosts.max() == 0 else ranks.reshape(int(hosts.max()) + 1, -1).T


LOWERINGS: dict[str, Lowering] = {
    "ring": lambda ranks, size, channels, hosts: collectives.all_reduce(
        ranks[None], size, channels=channels, host_of_rank=hosts
    ),
    "all-gather": lambda ranks, size, channels, hosts: collectives.all_gather(
        ranks[None], size, channels=channels, host_of_rank=hosts
    ),
    "rails": lambda ranks, size, channels, hosts: collectives.reduce_scatter(
        _rails(ranks, hosts), size, channels=channels
    ),
    "tree": lambda ranks, size, channels, hosts: collectives.all_reduce(
        ranks[None], size, algorithm="tree", channels=2 * -(-channels // 2), host_of_rank=hosts
    ),
    "chain": lambda ranks, size, channels, hosts: collectives.broadcast(
        ranks[None], size, channels=channels, host_of_rank=hosts
    ),
    "shift": lambda ranks, size, channels, hosts: collectives.all_to_all(ranks[None], size, channels=channels)[
        len(ranks) // 2 - 1
    ],
    "send": lambda ranks, size, channels, hosts: collectives.send(ranks[None, [0, -1]], size, channels=channels),
}


def rows(arguments: argparse.Namespace) -> Iterator[tuple[str, float, float, float, float]]:
    """(case, flow in us, packet over flow, analytic over flow, CPU-seconds of the packets)."""
    for hosts in arguments.hosts:
        twin = Twin(
            blueprint(hosts, arguments.host, technology=arguments.technology, switch=SWITCH[arguments.technology])
        )
        nodes = twin.fabric.gpu_node
        ranks = np.arange(len(nodes))
        host_of_rank = twin.fabric.node_host[nodes]
        for name in arguments.what:
            for size in arguments.sizes:
                for channels in arguments.channels:
                    communication = [LOWERINGS[name](ranks, size, channels, host_of_rank)]
                    (flow,) = times(FlowEngine(twin.fabric, twin.routes), communication, nodes)
                    (closed,) = times(AnalyticEngine(twin.fabric), communication, nodes)
                    before = time.process_time()
                    (packets,) = times(PacketEngine(twin.fabric, twin.routes), communication, nodes)
                    case = f"{name:10} {hosts:2} hosts {size / 2**20:8.3f} MiB {channels:2} channels"
                    yield case, flow / 1e6, packets / flow, closed / flow, time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--what", nargs="+", choices=list(LOWERINGS), default=list(LOWERINGS))
    parser.add_argument("--hosts", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[1 << 16, 1 << 20, 1 << 23])
    parser.add_argument("--channels", nargs="+", type=int, default=[1, 2, 8])
    parser.add_argument("--host", default="dgx-a100")
    parser.add_argument("--technology", choices=list(SWITCH), default="infiniband")
    arguments = parser.parse_args()
    print(f"{'':44} {'flow us':>10} {'packet/flow':>12} {'analytic/flow':>14} {'CPU-s':>6}")
    off = 0
    total = 0
    for case, flow, packets, closed, took in rows(arguments):
        far = max(abs(packets - 1), abs(closed - 1)) > WITHIN
        off, total = off + far, total + 1
        print(
            f"{case:44} {flow:10.2f} {packets:12.3f} {closed:14.3f} {took:6.2f}{'  <' if far else ''}", flush=True
        )
    print(f"{off} of {total} differ by more than {WITHIN:.0%}")


if __name__ == "__main__":
    main()
