"""The traffic and the network that htsim's figures are for: generated as its own scripts do, so nothing is copied.

The rules are those of `gen_permutation.py` and `gen_serialn_alltoall.py` beside htsim's connection matrices, with
random seed 42: `perm_1024.cm`, `a2a_128.cm` and `inc_128.cm` come out flow for flow.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from support.clusters import blueprint

from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.fabric.fabric import NETWORK, NodeKind
from fabrictwin.routing.engines.registry import route
from fabrictwin.tools.traffic.connection_matrix import Traffic, read_traffic
from fabrictwin.tools.traffic.play_traffic import play_traffic
from fabrictwin.twin import Twin

SEED = 42
PERMUTATION, INCAST, ALL_TO_ALL = "perm_1024.cm", "inc_128.cm", "a2a_128.cm"


def permutation(nodes: int) -> list[tuple[int, int]]:
    """(source, destination) of every flow; nobody sends to itself."""
    dice = random.Random(SEED)
    sources, destinations = list(range(nodes)), list(range(nodes))
    dice.shuffle(sources)
    dice.shuffle(destinations)
    for i in range(nodes):
        if sources[i] == destinations[i]:
            j = (i + 1) % nodes
            destinations[i], destinations[j] = destinations[j], destinations[i]
    return list(zip(sources, destinations, strict=True))


def all_to_all(nodes: int, *, parallel: int) -> list[tuple[int, int, int, int]]:
    """(source, destination, trigger that starts it or 0, trigger that it fires or 0): so many at a time a node."""
    order = list(range(nodes))
    random.Random(SEED).shuffle(order)
    rounds, rest = divmod(nodes - 1, parallel)
    flows, fired = [], 0
    for s in range(nodes):
        for r in range(rounds + (rest > 0)):
            steps = [r + 1 + c * rounds for c in range(parallel)]
            if r == rounds:
                steps = [parallel * rounds + 1 + c for c in range(rest)]
            last = r == rounds + (rest > 0) - 1
            started = fired if r else 0
            fired += not last
            fires = 0 if last else fired
            flows += [(order[s], order[(s + step) % nodes], started, fires) for step in steps]
    return flows


def text_of(name: str, size: int = 2_000_000) -> str:
    """One of the three as a connection matrix."""
    if name == ALL_TO_ALL:
        lines = []
        flows = all_to_all(128, parallel=4)
        for i, (a, b, started, fires) in enumerate(flows):
            begin = f"trigger {started}" if started else "start 0"
            end = f" send_done_trigger {fires}" if fires else ""
            lines.append(f"{a}->{b} id {i + 1} {begin} size 65536{end}")
        triggers = max(fires for *_, fires in flows)
        lines += [f"trigger id {i + 1} multishot" for i in range(triggers)]
        return "\n".join(["Nodes 128", f"Connections {len(flows)}", f"Triggers {triggers}", *lines, ""])
    nodes, pairs = (1024, permutation(1024)) if name == PERMUTATION else (128, [(64 + i, 0) for i in range(32)])
    lines = [f"{a}->{b} id {i + 1} start 0 size {size}" for i, (a, b) in enumerate(pairs)]
    return "\n".join([f"Nodes {nodes}", f"Connections {len(pairs)}", *lines, ""])


def traffic(name: str, folder: Path, size: int = 2_000_000) -> Traffic:
    """The same, written to a file and read as any is."""
    path = folder / name
    path.write_text(text_of(name, size))
    return read_traffic(path)


@cache
def network(radix: int, technology: str = "ethernet") -> tuple[Any, Any]:
    """(fabric, routes): three-tier fat-tree, 400 Gb/s, 1 us a link, no other latency."""
    shape = {"kind": "fat-tree", "tiers": 3, "radix": radix}
    switch = "qm9700" if technology == "infiniband" else "spectrum-4"
    plan = blueprint(radix**3 // 32, "dgx-h100", technology=technology, switch=switch, topology=shape)
    fabric = Twin(plan).fabric
    none = np.zeros_like(fabric.nic_post_ps)
    fabric = replace(
        fabric,
        port_latency_ps=np.where(np.isin(fabric.port_kind, NETWORK), 10**6, fabric.port_latency_ps),
        node_latency_ps=np.where(fabric.node_kind == NodeKind.SWITCH, 0, fabric.node_latency_ps),
        nic_post_ps=none,
        nic_deliver_ps=none,
        nic_message_ps=none,
        nic_qp_message_ps=none,
    )
    return fabric, route(fabric, hash_name="murmur3") if technology == "ethernet" else route(fabric)


def play(pattern: Traffic, fabric: Any, routes: Any, **options: Any) -> Any:
    """The pattern over that network; switches store and forward and have 32 MiB."""
    chosen = options_with(store_and_forward=True, buffer_bytes=32 << 20, **options)
    return play_traffic(pattern, fabric, routes, chosen, slowdown=False)
