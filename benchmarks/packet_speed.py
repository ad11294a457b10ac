"""How fast the packet engine is: permutations of 2 MB over a three-tier fat-tree at 400 Gb/s.

    python benchmarks/packet_speed.py [--hosts 1024] [--hosts 8192] [--ack-every 4] [--parts 32] [--threads 2]
        [--compile]

CPU and wall time of the event loop alone, everything on that the case names, in as many parts as fabrics of that
size have (or `--parts`) and on one thread (or `--threads`); compile time with `--compile`,
in processes of their own with an empty and a filled cache. Next to each size the bare loop of `packet_bare.py`,
in the same run. The permutation of 1,024 hosts is htsim's `perm_1024.cm`, flow for flow; others follow its rule.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

from packet_bare import bare  # noqa: E402
from support import htsim_cases  # noqa: E402
from support.packet_wiring import GBPS, US, done_us, fat_tree, infiniband, machine, roce, set_dcqcn  # noqa: E402

from fabrictwin.kernel.packet.division import divide_ports, usual_parts  # noqa: E402
from fabrictwin.kernel.packet.state import constants as s  # noqa: E402
from fabrictwin.kernel.packet.state.state import nbytes  # noqa: E402

SIZE = 2_000_000
ARITY = {128: 8, 1024: 16, 8192: 32}


def permutation(hosts: int) -> list[tuple[int, int, int]]:
    """(source, destination, bytes) of every flow."""
    return [(a, b, SIZE) for a, b in htsim_cases.permutation(hosts)]


def play(hosts: int, kind: str, arguments: argparse.Namespace) -> None:
    """One case, printed as one line."""
    common = {"balance": s.ADAPTIVE, "window_packets": 1024}
    if kind == "ethernet":
        config = roce(
            ecn_kmin_bytes=100_000,
            ecn_kmax_bytes=400_000,
            ecn_bps=100 * GBPS,
            ecn_pmax_q=2**32 // 5,
            cnp_ps=50 * US,
            **common,
        )
        name = "RoCE: PFC, ECN, DCQCN, adaptive"
    else:
        config = infiniband(credit_batch_bytes=16 << 10, **common)
        name = "InfiniBand: credits, VOQ, adaptive"
    m = machine(
        fat_tree(ARITY[hosts], kind=kind, credit_bytes=256 << 10),
        config,
        permutation(hosts),
        mode=s.SELECTIVE,
        reorder=s.NEVER,
        window_bytes=700_000,
        control=1 if kind == "ethernet" else 0,
        ack_every=arguments.ack_every,
        rto_ps=67_108 * US,
    )
    set_dcqcn(m)
    parts = arguments.parts or usual_parts(hosts)
    if parts > 1:
        m.divide(divide_ports(m.wiring, parts))
    m.threads = arguments.threads
    begun, begun_wall = time.process_time(), time.perf_counter()
    m.run()
    cpu, wall = time.process_time() - begun, time.perf_counter() - begun_wall
    m.join()
    clock = m.state.clock[0]
    print(
        f"{hosts:6} {name:36} {int(clock.hops) / 1e6:8.2f} {int(clock.events) / 1e6:8.2f} {cpu:8.2f} "
        f"{wall:8.2f} {m.parts:5} {int(clock.hops) / cpu / 1e6:8.2f} {nbytes(m.state) / 1e6:8.0f} "
        f"{done_us(m).mean():9.2f} {done_us(m).max():9.2f} {int(clock.dropped):6}"
    )


def play_bare(hosts: int) -> None:
    """The same number of data packets over random shortest paths, without anything else."""
    k = ARITY[hosts]
    wiring = fat_tree(k)
    draw = np.random.default_rng(2)
    path, length = np.zeros((hosts, 8), np.int64), np.zeros(hosts, np.int64)
    edge = wiring.node_row[wiring.port_node[wiring.port_peer[wiring.endpoint_port]]]
    for f, (a, b, _) in enumerate(permutation(hosts)):
        at, n = int(wiring.endpoint_port[a]), 0
        while True:
            path[f, n] = at
            n += 1
            node = int(wiring.port_node[wiring.port_peer[at]])
            if node == b:
                break
            row = int(wiring.node_row[node])
            if row == edge[b]:
                at = int(wiring.port_peer[wiring.endpoint_port[b]])
                continue
            group = wiring.group_of[row, wiring.edge_column[edge[b]]]
            ports = wiring.group_ports[wiring.group_start[group] : wiring.group_start[group + 1]]
            at = int(ports[draw.integers(len(ports))])
        length[f] = n
    packets = -(-SIZE // 4096)
    arguments = (path, length, packets, 4178 * 20, US, len(wiring.port_node))
    bare(path[:1], length[:1], 1, 1, 1, len(wiring.port_node), 1024)
    begun = time.process_time()
    hops, events, end = bare(*arguments, 1 << (hosts * 512 - 1).bit_length())
    cpu = time.process_time() - begun
    print(
        f"{hosts:6} {'bare loop: FIFO ports, fixed paths':36} {hops / 1e6:8.2f} {events / 1e6:8.2f} {cpu:8.2f} "
        f"{'':8} {'':5} {hops / cpu / 1e6:8.2f} {'':8} {'':9} {end / US:9.2f}"
    )


_COMPILE = """
import sys, time
begun = time.process_time()
sys.path.insert(0, sys.argv[1])
from support.packet_wiring import machine, roce, star  # noqa: E402
m = machine(star(2), roce(), [(0, 1, 100_000)])
m.run()
print(f"{time.process_time() - begun:.1f}")
"""


def compile_time() -> None:
    """CPU seconds from a bare interpreter to the end of a first tiny run, cold and warm."""
    tests = str(Path(__file__).parents[1] / "tests")
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm"):
            found = subprocess.run(
                [sys.executable, "-c", _COMPILE, tests],
                env=os.environ | {"FABRICTWIN_CACHE": cache},
                capture_output=True,
                text=True,
                check=True,
            )
            print(f"compile {name}: {found.stdout.strip()} CPU-seconds, imports included")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, action="append", choices=sorted(ARITY))
    parser.add_argument("--ack-every", type=int, default=4)
    parser.add_argument("--parts", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    if arguments.compile:
        compile_time()
    play_quietly = machine(fat_tree(4), roce(), [(0, 1, 1000)])  # the compiler's time is not the loop's
    play_quietly.divide(divide_ports(play_quietly.wiring, 4))
    play_quietly.run()
    play_quietly = machine(fat_tree(4), roce(), [(0, 1, 1000)])
    play_quietly.run()
    print(
        f"{'hosts':>6} {'case':36} {'M hops':>8} {'M events':>8} {'CPU s':>8} {'wall s':>8} {'parts':>5} "
        f"{'M hops/s':>8} {'MB':>8} {'FCT mean':>9} {'max us':>9} {'drops':>6}"
    )
    for hosts in arguments.hosts or [1024]:
        play_bare(hosts)
        for kind in ("ethernet", "infiniband"):
            play(hosts, kind, arguments)


if __name__ == "__main__":
    main()
