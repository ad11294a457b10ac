"""Slurm's topology.conf, gres.conf and the lines of slurm.conf that turn them on."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fabrictwin.configuration.model.cluster import Slurm
from fabrictwin.configuration.writers.files import Commented, WrittenFile


def files(slurm: Slurm) -> list[WrittenFile]:
    """Return the three files."""
    lines = Commented(beside=False)
    lines.add(f"TopologyPlugin={slurm.plugin}", "slurm_plugin")
    lines.add("GresTypes=gpu", "slurm_gres")
    return [
        WrittenFile("slurm/topology.conf", topology(slurm)),
        WrittenFile("slurm/gres.conf", gres(slurm)),
        WrittenFile("slurm/slurm-fabric.conf", lines.text),
    ]


def hostlist(names: Iterable[str]) -> str:
    """Return names as Slurm lists them: `host-[0-3,7]`; what has no number at its end stands by itself."""
    groups: dict[tuple[str, int], list[int]] = {}
    alone = []
    for name in names:
        found = re.fullmatch(r"(.*?)(\d{1,9})", name)
        if found is None or (len(found[2]) > 1 and found[2][0] == "0"):
            alone.append(name)
        else:
            groups.setdefault((found[1], 0), []).append(int(found[2]))
    parts = []
    for (prefix, _), numbers in groups.items():
        spans: list[list[int]] = []
        for n in sorted(numbers):
            if spans and n == spans[-1][1] + 1:
                spans[-1][1] = n
            else:
                spans.append([n, n])
        texts = [str(a) if a == b else f"{a}-{b}" for a, b in spans]
        parts.append(
            f"{prefix}{texts[0]}" if len(texts) == 1 and "-" not in texts[0] else f"{prefix}[{','.join(texts)}]"
        )
    return ",".join([*parts, *alone])


def topology(slurm: Slurm) -> str:
    """Return topology.conf."""
    out = Commented(beside=False)
    for row in slurm.switches:
        if row.nodes:
            out.add(f"SwitchName={row.name} Nodes={hostlist(row.nodes)}", "slurm_leaf")
        else:
            out.add(f"SwitchName={row.name} Switches={hostlist(row.switches)}", "slurm_spine")
    return out.text


def gres(slurm: Slurm) -> str:
    """Return gres.conf."""
    out = Commented(beside=False)
    for row in slurm.gres:
        line = f"NodeName={hostlist(row.nodes)} Name={row.name} Type={row.gpu_type} File={row.files}"
        out.add(line, "slurm_gres")
    return out.text
