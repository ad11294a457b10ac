"""Balance after faults: the fullest link under mended tables, beside a fresh computation for what is left.

Faults are drawn and add up: cables between switches, now and then a switch. After each the manager mends its
tables; both are judged by `routing.check.judge` with every adapter sending to every other.

    python benchmarks/reroute_balance.py FILE [--faults 10] [--seed 1]     FILE: what ibnetdiscover printed
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from fabrictwin.cluster.importers.bindings import import_ibnetdiscover
from fabrictwin.routing.check.judge import judge
from fabrictwin.routing.engines.registry import compute
from fabrictwin.routing.graph.switches import switch_graph
from fabrictwin.twin.twin import Twin

SWITCH_SHARE = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    twin, draw = Twin(import_ibnetdiscover(asked.file)), random.Random(asked.seed)
    managed, fabric = twin.manage(), twin.fabric
    switches, state = switch_graph(fabric), managed.state
    own = int(fabric.port_node[fabric.port_peer[fabric.nic_port[0]]])
    worst = 0.0
    for _ in range(asked.faults):
        if draw.random() < SWITCH_SHARE:
            node = draw.choice([int(n) for n in fabric.switch_nodes if n != own])
            event = f"off {fabric.node_name(node)}"
        else:
            port = int(switches.adjacent_port[draw.randrange(len(switches.adjacent_row))])
            node = int(fabric.port_node[port])
            event = f"cut {fabric.node_name(node)}/{int(fabric.port_number[port])}"
        managed.plan(managed.now_ps, event, int(state.managed[node]))
        managed.settle()
        database = managed.managers[0].manager.database
        graph, mended = database.graph, database.tables
        assert graph is not None
        assert mended is not None
        fresh = compute(graph.switches, graph.lids, engine="auto")
        ours, anew = (
            judge(graph.switches, graph.lids, tables, shifts=16, random=1).all_to_all.worst
            for tables in (mended, fresh)
        )
        worst = max(worst, ours / anew)
        print(
            f"{event:28} {mended.engine:8} mended {ours:8,.0f}  anew {anew:8,.0f}  {ours / anew:.3f}", flush=True
        )
    print(f"most: {worst:.3f} of a fresh computation's fullest link")


if __name__ == "__main__":
    main()
