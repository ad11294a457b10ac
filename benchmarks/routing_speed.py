"""How long forwarding tables take, how much memory, and how good they are; with `--opensm` beside the real OpenSM.

    python benchmarks/routing_speed.py [--hosts 648] [--hosts 11664] [--selene FILE] [--engine auto] [--opensm]

Fat-trees of radix 36 with 18 hosts a leaf at full bisection, as in OpenSM's own timings: 648 hosts on two tiers;
1,944, 5,832 and 11,664 on three, in 6, 18 and 36 pods. Times are CPU seconds of one thread for the tables
(switch graph and LIDs, which OpenSM has by then, are told apart), after one run on a small fabric that loads the
compiled code; every case is a process of its own, so that its peak memory is its own. Tables are judged by
`routing.check.judge`: worst congestion over shift permutations and its mean over paths, all-to-all over an
adapter's own link, random permutations.

`--opensm` needs opensm, ibsim-utils, infiniband-diags and libumad2sim0, and runs OpenSM against ibsim over the
same fabric: the CPU time of its thread between its log lines "building routing with" and "tables configured",
tables read back by dump_lfts. A dump tells no service levels, so the tables of its dfsssp are judged as if they
used one virtual lane.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import real_opensm

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.export import to_ibnetdiscover
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.routing.check.dump import bind, read_dump
from fabrictwin.routing.check.judge import judge
from fabrictwin.routing.engines.filling import Tables
from fabrictwin.routing.engines.registry import compute
from fabrictwin.routing.graph.switches import Lids, Switches, assign_lids, switch_graph

SHAPES = {648: {"tiers": 2}, **{hosts: {"tiers": 3, "pods": hosts // 324} for hosts in (1944, 5832, 11664)}}
ENGINES = ("minhop", "updn", "dnup", "ftree", "sssp", "dfsssp", "auto", "dmodk")


def tree(hosts: int) -> Blueprint:
    topology = {"kind": "fat-tree", "radix": 36, **SHAPES[hosts]}
    network = {"technology": "infiniband", "switch": "qm8700", "topology": topology}
    spec = read_spec({"schema": 1, "cluster": {"hosts": {"type": "pcie-box", "count": hosts}, "network": network}})
    return build(spec.cluster, spec=spec)


def discovered(path: Path) -> Fabric:
    spec = read_spec({"schema": 1, "cluster": {"ibnetdiscover": str(path)}})
    return compile_fabric(build(spec.cluster, spec=spec))


def route(fabric: Fabric, engine: str) -> tuple[Switches, Lids, Tables, float, float]:
    """Tables, and CPU seconds: for the switch graph and LIDs (which OpenSM has by then), and for the tables."""
    begin = time.process_time()
    switches = switch_graph(fabric)
    lid = assign_lids(fabric)
    lids = Lids(lid[switches.row_node], lid[switches.endpoint_node])
    ready = time.process_time()
    tables = compute(switches, lids, engine=engine)
    return switches, lids, tables, ready - begin, time.process_time() - ready


def quality(switches: Switches, lids: Lids, tables: Tables) -> str:
    found = judge(switches, lids, tables, shifts=512 if len(switches.endpoint_row) > 5000 else None, random=8)
    return (
        f"shifts worst {found.shifts.worst:3g} mean {found.shifts.mean:6.3f}  "
        f"all-to-all {found.all_to_all.relative:5.2f}  random mean {found.random.mean:5.2f}  "
        f"lanes {tables.lanes}  {'reached' if not found.unreached else f'{found.unreached} NOT REACHED'}, "
        f"{'no deadlock' if found.deadlock_adapters.free else 'CAN DEADLOCK'}"
    )


def ours(name: str, engine: str, fabric: Fabric, compiled_s: float) -> None:
    """One case, in a process of its own: time, judge, print."""
    try:
        # a first run loads the compiled code; on a fabric that is no plain tree more of it
        route(fabric if name == "Selene" else compile_fabric(tree(648)), engine)
        switches, lids, tables, graph_s, seconds = route(fabric, engine)
    except ConfigError as error:
        print(f"{name:>9}  {engine:8} refuses: {error.message}", flush=True)
        return
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    before = f"{compiled_s:5.2f} s for the fabric, {graph_s:6.4f} s for graph and LIDs"
    cost = f"{seconds:8.4f} s CPU after {before} {peak:6.0f} MiB"
    print(f"{name:>9}  {engine:8} {cost}  {quality(switches, lids, tables)}", flush=True)


def opensm(name: str, engine: str, net: Path, fabric: Fabric) -> None:
    """One run of OpenSM against ibsim, printed as one line."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = real_opensm.route(net, engine, Path(folder))
        except subprocess.TimeoutExpired:
            made = None
        if made is None:
            print(f"{name:>9}  OpenSM {engine}: no tables", flush=True)
            return
        switches = switch_graph(fabric)
        lids, tables = bind(read_dump(made.dump), fabric, switches)
    cost = f"{made.wall_s:7.3f} s wall" if made.cpu_s is None else f"{made.cpu_s:8.4f} s CPU"
    print(f"{name:>9}  OpenSM {engine:7} {cost}   {quality(switches, lids, tables)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, action="append", choices=SHAPES, help="sizes; otherwise all")
    parser.add_argument("--selene", type=Path, help="the discovered fabric, as ibnetdiscover printed it")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="engines; otherwise all")
    parser.add_argument("--opensm", action="store_true", help="OpenSM too")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        kind, name, engine = given.case
        net = Path(name)
        if kind == "opensm":
            opensm("Selene" if given.selene else net.stem, engine, net, discovered(net))
        else:
            begin = time.process_time()
            fabric = discovered(net) if given.selene else compile_fabric(tree(int(name)))
            ours("Selene" if given.selene else name, engine, fabric, time.process_time() - begin)
        return
    if given.opensm and real_opensm.missing():
        parser.error(f"--opensm needs {real_opensm.missing()}, which is not installed")
    sizes = given.hosts or ([] if given.selene else list(SHAPES))
    with tempfile.TemporaryDirectory() as folder:
        for hosts in sizes:
            for engine in given.engine or ENGINES:
                _case("ours", str(hosts), engine)
            if given.opensm:
                net = Path(folder) / str(hosts)
                net.write_text(to_ibnetdiscover(tree(hosts)))
                for engine in (e for e in given.engine or ENGINES if e not in ("auto", "dmodk")):
                    _case("opensm", str(net), engine)
        if given.selene:
            for engine in given.engine or ENGINES:
                _case("ours", str(given.selene), engine, "--selene", "x")
            if given.opensm:
                for engine in (e for e in given.engine or ENGINES if e in ("minhop", "dfsssp")):
                    _case("opensm", str(given.selene.resolve()), engine, "--selene", "x")


def _case(kind: str, name: str, engine: str, *more: str) -> None:
    subprocess.run([sys.executable, __file__, "--case", kind, name, engine, *more], check=True)


if __name__ == "__main__":
    main()
