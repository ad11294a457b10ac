"""Random faults on a discovered fabric under load, packet by packet: losses, time to repair, paths moved, loops.

Each fault is an episode of its own: the twin's manager has brought the fabric up, reliable connections send at
full rate (some of them over what will break), a cable between switches or a switch without the manager goes,
traps travel, the manager mends the tables, and what was lost is sent again until all has arrived. Then the fault
is mended. After each table entry that is set the path from that switch is followed: it must not circle.

A line of JSON an episode goes to `--out`; a run that is broken off goes on behind its last line. `--summary`
prints what the lines say.

    python benchmarks/subnet_faults.py FILE --faults 100 --out faults.jsonl
    python benchmarks/subnet_faults.py FILE --out faults.jsonl --summary
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np

from fabrictwin.cluster.importers.bindings import import_ibnetdiscover
from fabrictwin.engines.base.transfers import Transfers
from fabrictwin.fabric.fabric import NONE, NodeKind
from fabrictwin.routing.graph.switches import Switches, switch_graph
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.twin.managed_run import ManagedRun
from fabrictwin.twin.twin import Twin

SWITCH_SHARE = 0.2  # of the faults; the others are cables
AT_PS = 100_000_000  # when the fault happens, after the load began
MOST_HOPS = 64


class LoopWatch:
    """Follows the path from each switch whose entry was set, at once."""

    def __init__(self, state: SubnetState, switches: Switches) -> None:
        self.state = state
        self.next = {m: self._ports(m) for m in state.row}
        self.followed = self.circling = 0
        state.on_table.append(self._look)

    def _ports(self, m: int) -> dict[int, int]:
        """The switch behind each port of a switch, as built."""
        state = self.state
        found = {}
        for port in range(1, state.ports[m] + 1):
            far = state.cable[state.base[m] + port]
            if far != NONE and state.is_switch[state.node_of[far]]:
                found[port] = state.node_of[far]
        return found

    def _look(self, m: int, first: int, before: np.ndarray, now_ps: int) -> None:
        state = self.state
        held = state.lft[state.row[m], first : first + len(before)]
        for lid in (first + np.flatnonzero(held != before)).tolist():
            at: int | None = m
            for _ in range(MOST_HOPS):
                if at is None:
                    break
                at = self.next[at].get(int(state.lft[state.row[at], lid]))
            self.followed += 1
            self.circling += at is not None


def draw_fault(draw: random.Random, twin: Twin, switches: Switches, manager: int) -> tuple[str, int, list[int]]:
    """(what happens, the managed node, ports of the fabric that go) of a random fault."""
    assert twin.management is not None
    fabric, state = twin.fabric, twin.management.state
    keeps = int(fabric.port_node[fabric.port_peer[fabric.nic_port[manager]]])
    if draw.random() < SWITCH_SHARE:
        node = draw.choice([int(n) for n in fabric.switch_nodes if n != keeps])
        ports = list(range(*fabric.node_port_start[node : node + 2]))
        return f"off {fabric.node_name(node)}", int(state.managed[node]), ports
    edge = draw.randrange(len(switches.adjacent_row))
    port = int(switches.adjacent_port[edge])
    node = int(fabric.port_node[port])
    name = f"{fabric.node_name(node)}/{int(fabric.port_number[port])}"
    return f"cut {name}", int(state.managed[node]), [port, int(fabric.port_peer[port])]


def draw_load(draw: random.Random, twin: Twin, ports: list[int], pairs: int, size: int) -> tuple[Transfers, int]:
    """Transfers between random adapters, half of them over ports that will go if any are; how many that is."""
    fabric = twin.fabric
    cabled = [a for a in range(len(fabric.nic_node)) if fabric.nic_port[a] != NONE]
    drawn = np.array([draw.sample(cabled, 2) for _ in range(40 * pairs)], np.int32)
    path, start = twin.routes.walk(drawn[:, 0], drawn[:, 1])
    gone = np.isin(path, ports)
    over = np.add.reduceat(gone, start[:-1]) > 0
    dead = np.isin(fabric.port_peer[fabric.nic_port[drawn]], ports).any(axis=1)  # an end's own switch goes
    chosen = np.concatenate([np.flatnonzero(over & ~dead)[: pairs // 2], np.flatnonzero(~over & ~dead)])[:pairs]
    return Transfers(drawn[chosen, 0], drawn[chosen, 1], np.full(len(chosen), size, np.int64)), int(
        over[chosen].sum()
    )


def episode(
    number: int, seed: int, twin: Twin, watch: LoopWatch, arguments: argparse.Namespace
) -> dict[str, object]:
    """One fault under load, and its end."""
    assert twin.management is not None
    managed, fabric = twin.management, twin.fabric
    draw = random.Random(f"{seed} {number}")
    manager = next(a for a in range(len(fabric.nic_node)) if fabric.nic_port[a] != NONE)
    event, node, ports = draw_fault(draw, twin, watch_switches(twin), manager)
    load, crossing = draw_load(draw, twin, ports, arguments.pairs, arguments.mebibytes << 20)
    followed, circling, began = watch.followed, watch.circling, time.process_time()
    engine = twin.start_engine("packet")
    run = ManagedRun(managed, fabric)
    run.plan(AT_PS, event, node)
    engine.transfer(load)
    run.drive(engine, engine.now_ps, NONE)
    done = engine.transfer_times().done_ps
    managed.settle()
    (incident, *_) = managed.incidents[-1:]
    assert engine.packets is not None
    lost, again = engine.packets.losses()
    moved = [path for path in incident.paths if path.adapter]
    broken = [path for path in moved if path.broken_ps != NONE]
    outage = [path.outage_ps for path in broken if path.outage_ps != NONE]
    kept = all(sweep.remark.startswith("after a change") for sweep in incident.sweeps)
    line: dict[str, object] = {
        "fault": number,
        "event": event,
        "connections": len(load),
        "over_the_fault": crossing,
        "unfinished": int((done < 0).sum()),
        "lost_packets": lost,
        "sent_again": again,
        "noticed_us": (incident.noticed_ps - incident.at_ps) / 1e6,
        "repaired_us": max(outage, default=0) / 1e6,
        "pairs_moved": sum(path.pairs for path in moved),
        "pairs_broken": sum(path.pairs for path in broken),
        "entries": len(incident.entries),
        "kept_what_was_whole": kept,
        "followed": watch.followed - followed,
        "circling": watch.circling - circling,
    }
    verb, _, name = event.partition(" ")
    managed.plan(managed.now_ps, f"{'mend' if verb == 'cut' else 'on'} {name}", node)
    managed.settle()
    managed.incidents.clear()
    return line | {"cpu_s": round(time.process_time() - began, 1)}


def watch_switches(twin: Twin) -> Switches:
    """The switch graph of a twin's fabric, made once."""
    if "_switches" not in vars(twin):
        vars(twin)["_switches"] = switch_graph(twin.fabric)
    made: Switches = vars(twin)["_switches"]
    return made


def summary(lines: list[dict[str, object]]) -> list[str]:
    """Summarise the episodes for people."""

    def of(key: str) -> list[float]:
        return sorted(float(str(line[key])) for line in lines)

    def spread(key: str, unit: str = "") -> str:
        values = of(key)
        return f"{values[len(values) // 2]:,.0f} (median), {values[-1]:,.0f} (most){unit}"

    cables = sum(str(line["event"]).startswith("cut") for line in lines)
    return [
        f"{len(lines)} faults: {cables} cables, {len(lines) - cables} switches",
        f"connections {sum(of('connections')):,.0f}, over the fault {sum(of('over_the_fault')):,.0f}, "
        f"unfinished {sum(of('unfinished')):,.0f}",
        f"lost packets {spread('lost_packets')}; sent again {spread('sent_again')}",
        f"noticed after {spread('noticed_us', ' us')}; repaired after {spread('repaired_us', ' us')}",
        f"pairs of adapters whose path moved {spread('pairs_moved')}, broken {spread('pairs_broken')}",
        f"table entries changed {spread('entries')}",
        f"faults after which every whole path stayed: {sum(bool(line['kept_what_was_whole']) for line in lines)}",
        f"paths followed after entries were set {sum(of('followed')):,.0f}, circling {sum(of('circling')):,.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, help="what ibnetdiscover printed")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=64, help="connections that send")
    parser.add_argument("--mebibytes", type=int, default=8, help="that each sends")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    known = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    if not arguments.summary and len(known) < arguments.faults:
        twin = Twin(import_ibnetdiscover(arguments.file))
        managed = twin.manage()
        assert (twin.fabric.node_kind[twin.fabric.switch_nodes] == NodeKind.SWITCH).all()
        watch = LoopWatch(managed.state, watch_switches(twin))
        for number in range(len(known), arguments.faults):
            known.append(episode(number, arguments.seed, twin, watch, arguments))
            with arguments.out.open("a") as out:
                out.write(json.dumps(known[-1]) + "\n")
    print("\n".join(summary(known)))


if __name__ == "__main__":
    main()
