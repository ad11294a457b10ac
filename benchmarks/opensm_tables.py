"""Our tables beside the real OpenSM's over ibsim, entry for entry, on large fabrics; goes on where it was left.

Each case is a fabric (generated, or a discovered file; `damaged` lacks a cable in a hundred and two top switches)
and an engine. A line of JSON a case goes to `--out`: entries compared, how many differ, CPU seconds of both; what
has a line is not run again. Tables are those that OpenSM itself wrote down (`opensm-lfts.dump`); with `--read`
they are read back from the switches by dump_lfts, which takes as long again, and where they differ then from ours
both are compared, so that a block which the tool missed is told from one that is different.

    python benchmarks/opensm_tables.py --out LINES [--selene FILE] [--only NAME]... [--engine NAME]...
    python benchmarks/opensm_tables.py --out LINES --summary
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from routing_speed import tree
from support import real_opensm
from support.damage import damaged
from support.routing_fabrics import differing, lids_given, number_lids, try_compute

from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.export import to_ibnetdiscover
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.routing.check.dump import bind, read_dump
from fabrictwin.routing.engines.registry import OPENSM
from fabrictwin.routing.graph.switches import switch_graph

SIZES = ("648", "1944", "5832", "11664")
NAMES = tuple(f"{name}{damage}" for name in (*SIZES, "selene") for damage in ("", " damaged"))
DAMAGE_SEED = 7
Line = dict[str, object]


def text_of(name: str, selene: Path | None) -> str:
    """A fabric as ibnetdiscover prints it."""
    size, _, damage = name.partition(" ")
    if size == "selene":
        assert selene is not None
        text = selene.read_text()
    else:
        text = to_ibnetdiscover(tree(int(size)))
    return damaged(text, seed=DAMAGE_SEED) if damage else text


def case(name: str, engine: str, selene: Path | None, folder: Path, *, read: bool) -> Line:
    """Compare one engine's tables on one fabric."""
    path = folder / "net"
    path.write_text(text_of(name, selene))
    spec = read_spec({"schema": 1, "cluster": {"ibnetdiscover": str(path)}})
    fabric = compile_fabric(build(spec.cluster, spec=spec))
    switches = switch_graph(fabric)
    line: Line = {"fabric": name, "engine": engine, "date": time.strftime("%Y-%m-%d")}
    try:
        made = real_opensm.route(path, engine, folder, "-D", "0x47", read=read)
    except subprocess.TimeoutExpired:
        made = None
        line["patience_s"] = real_opensm.PATIENCE_S
    if made is None:
        try:
            lids = lids_given(folder, switches)
        except KeyError:  # OpenSM has not seen what no cable joins to the rest; LIDs turn dfsssp alone
            lids = number_lids(switches)
        refused = try_compute(switches, lids, engine)
        return line | {"opensm": "no tables", "ours": refused if isinstance(refused, str) else "tables"}
    lids, theirs = bind(read_dump(made.dump), fabric, switches)
    try_compute(switches, lids, engine)  # loads the compiled code
    began = time.process_time()
    ours = try_compute(switches, lids, engine)
    line |= {"cpu_s": round(time.process_time() - began, 2), "opensm_cpu_s": made.cpu_s}
    if isinstance(ours, str):
        return line | {"opensm": "tables", "ours": ours}
    line |= {"entries": int(theirs.lft.size), "differ": differing(ours.lft, theirs.lft)}
    if line["differ"] and read:
        _, written = bind(read_dump(folder / "opensm-lfts.dump"), fabric, switches)
        line["differ_from_what_opensm_wrote_down"] = differing(ours.lft, written.lft)
    return line


def summary(lines: list[Line]) -> list[str]:
    """Say of each fabric how each engine compares."""
    cells = {(line["fabric"], line["engine"]): _cell(line) for line in lines}
    rows = [f"| fabric | {' | '.join(OPENSM)} |", "|---" * (1 + len(OPENSM)) + "|"]
    for name in NAMES:
        found = [cells.get((name, engine), "–") for engine in OPENSM]
        if any(cell != "–" for cell in found):
            rows.append(f"| {name} | {' | '.join(found)} |")
    return rows


def _cell(line: Line) -> str:
    if line.get("opensm") == "no tables":
        waited = f"OpenSM has none in {line['patience_s']} s" if "patience_s" in line else "OpenSM refuses"
        return f"{waited}, ours {'has tables' if line['ours'] == 'tables' else 'refuses'}"
    if line.get("opensm") == "tables":
        return "ours alone refuses"
    return f"{line['differ']:,} of {line['entries']:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--selene", type=Path, help="a discovered fabric, beside the generated ones")
    parser.add_argument("--only", action="append", choices=NAMES, help="fabrics; otherwise all")
    parser.add_argument("--engine", action="append", choices=OPENSM, help="engines; otherwise all")
    parser.add_argument("--patience", type=int, default=1800, help="seconds that OpenSM has for a case")
    parser.add_argument("--read", action="store_true", help="read tables back from the switches")
    parser.add_argument("--summary", action="store_true")
    asked = parser.parse_args()
    real_opensm.PATIENCE_S = asked.patience
    lines = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    known = {(line["fabric"], line["engine"]) for line in lines}
    if not asked.summary:
        names = [name for name in asked.only or NAMES if asked.selene or not name.startswith("selene")]
        for name, engine in [(name, engine) for name in names for engine in asked.engine or OPENSM]:
            if (name, engine) in known:
                continue
            with tempfile.TemporaryDirectory() as folder:
                lines.append(case(name, engine, asked.selene, Path(folder), read=asked.read))
            with asked.out.open("a") as out:
                out.write(json.dumps(lines[-1]) + "\n")
            print(json.dumps(lines[-1]), flush=True)
    print("\n".join(summary(lines)))


if __name__ == "__main__":
    main()
