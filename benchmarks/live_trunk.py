"""Two pairs of ib_write_bw over one trunk by the virtual clock, beside what `traffic` says of the same flows.

    python benchmarks/live_trunk.py [--size 65536] [--iterations 4000]

Four hosts of one adapter on two leaves that one trunk joins: each pair crosses it. InfiniBand, RoCE with PFC
alone, RoCE with PFC and DCQCN. A row for each: what the programs print, what one of them prints alone, and
the rates that `traffic` makes of two flows of as many bytes, in MiB/s. Exit code 1 where the two pairs together
are 2 % or more from `traffic`, or, without control, one is 2 % or more from half.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = Path(sys.executable).parent / "fabrictwin"
FABRICS = {
    "InfiniBand": ("infiniband", "qm8700", "none"),
    "RoCE, PFC alone": ("ethernet", "spectrum-4", "none"),
    "RoCE, PFC and DCQCN": ("ethernet", "spectrum-4", "dcqcn"),
}
PAIRS = (("host-0", "host-2"), ("host-1", "host-3"))
MOST_OFF = 0.02
MIB = 1 << 20


def write_spec(folder: Path, technology: str, switch: str, control: str) -> Path:
    """Write a spec of four hosts on two leaves, joined by one trunk as fast as an adapter."""
    packet = "" if technology == "infiniband" else f"  packet: {{control: {control}}}\n"
    spec = folder / "cluster.yaml"
    spec.write_text(
        "schema: 1\nname: trunk\ncluster:\n  hosts: {type: pcie-box, count: 4}\n"
        f"  network: {{technology: {technology}, switch: {switch},"
        " topology: {kind: fat-tree, tiers: 2, leaf_down: 2, oversubscription: 2}}\n"
        f"run:\n  fidelity: packet\n{packet}"
    )
    return spec


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def printed(folder: Path, spec: Path, size: int, iterations: int, pairs: int) -> list[float]:
    """Return the average bandwidth that each pair's client prints, both begun at one instant."""
    lines = []
    for number, ((client, server), port) in enumerate(zip(PAIRS[:pairs], free_ports(pairs), strict=True)):
        command = f"ib_write_bw -F -p {port} -s {size} -n {iterations}"
        lines.append(f"{server}: {command}")
        lines.append(f'{client}: sh -c "sleep 1; {command} localhost > {folder}/client-{number}"')
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    command = [
        str(PROGRAM),
        "exec",
        "--cluster",
        str(spec),
        "--hosts",
        str(folder / "hosts"),
        "--clock",
        "virtual",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=1800)
    found = []
    for number in range(pairs):
        text = (folder / f"client-{number}").read_text()
        (row,) = re.findall(rf"^ {size} +{iterations} +\S+ +(\S+)", text, re.M)
        found.append(float(row))
    return found


def modelled(folder: Path, spec: Path, total: int) -> list[float]:
    """Return the rates of two flows of so many bytes over the trunk, as `traffic` has them."""
    flows = folder / "pairs.cm"
    flows.write_text(f"Nodes 4\nConnections 2\n0->2 id 1 start 0 size {total}\n1->3 id 2 start 0 size {total}\n")
    command = [str(PROGRAM), "traffic", str(flows), "--cluster", str(spec), "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    times = told["completion_us"]
    return [total / MIB / (times[key] / 1e6) for key in ("p50", "max")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=65536)
    parser.add_argument("--iterations", type=int, default=4000)
    options = parser.parse_args()
    wrong = 0
    print("| fabric | one pair | two pairs | `traffic` | off |\n|---|---|---|---|---|")
    for name, (technology, switch, control) in FABRICS.items():
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            spec = write_spec(folder, technology, switch, control)
            (alone,) = printed(folder, spec, options.size, options.iterations, 1)
            both = printed(folder, spec, options.size, options.iterations, 2)
            ours = modelled(folder, spec, options.size * options.iterations)
        off = sum(both) / sum(ours) - 1
        uneven = control == "none" and max(abs(2 * each / sum(both) - 1) for each in both) >= MOST_OFF
        wrong += abs(off) >= MOST_OFF or uneven
        rates = " and ".join(f"{each:,.1f}" for each in both)
        theirs = " and ".join(f"{each:,.1f}" for each in ours)
        print(f"| {name} | {alone:,.1f} | {rates} | {theirs} | {off:+.1%} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
