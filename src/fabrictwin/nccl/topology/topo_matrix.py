"""The matrix that `nvidia-smi topo -m` prints: how GPUs and adapters of a host are joined.

It names physical connections, not what NCCL makes of them: NV# for so many NVLinks, and over PCIe PIX, PXB, PHB,
NODE or SYS. Each of a processor's links is taken to be a root port behind a host bridge of its own, as those of 16
lanes are on servers: what meets only in the processor reads NODE, and PHB does not come up. Source: NVIDIA,
nvidia-smi manual page (topo).
"""

from __future__ import annotations

from fabrictwin.nccl.settings.release_rules import Rules
from fabrictwin.nccl.topology.graph_types import PathType
from fabrictwin.nccl.topology.system import Device, Kind, LinkClass, System
from fabrictwin.nccl.topology.topology_paths import PathTable, Policy

_LEGEND = (
    ("X", "Self"),
    ("SYS", "PCIe, and the link between processors"),
    ("NODE", "PCIe, and the link between host bridges of a processor"),
    ("PXB", "several PCIe switches, no host bridge"),
    ("PIX", "one PCIe switch at most"),
    ("C2C", "a superchip's link and PCIe behind it"),
    ("NV#", "so many NVLinks, directly or through switches"),
    ("XGMI#", "so many Infinity Fabric links"),
    ("-", "no way inside the host"),
)


def topology_matrix(system: System, *, link_gbps: float, link_name: str = "NV") -> str:
    """The matrix as text. `link_gbps` is what one link between GPUs counts, `link_name` how it is called."""
    # the newest rule classes paths by how far they are; detours are what a library makes of them
    table = PathTable(system, Rules((2, 30)), Policy(pxn=False, p2p_level=PathType.SYS, gdr_level=PathType.SYS))
    gpus, nics = system.of(Kind.GPU), system.of(Kind.NET)
    ends = (*gpus, *nics)
    names = [f"GPU{system.devices[g].index}" for g in gpus] + [f"NIC{i}" for i in range(len(nics))]
    cpus = [system.devices[table.nearest_cpu(gpu)].index for gpu in gpus]
    rows = [["", *names, "NUMA"]]
    for i, a in enumerate(ends):
        cells = [_cell(system, table, a, b, link_gbps, link_name) for b in ends]
        rows.append([names[i], *cells, str(cpus[i]) if i < len(gpus) else ""])
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    used = {cell.rstrip("0123456789") for row in rows[1:] for cell in row[1:-1]}
    lines += ["", "Legend:", *(f"  {word:<6}{what}" for word, what in _LEGEND if word.rstrip("#") in used)]
    lines += ["", *(f"  NIC{i}: {system.devices[net].name}" for i, net in enumerate(nics))]
    return "\n".join(lines)


def _cell(system: System, table: PathTable, a: int, b: int, link_gbps: float, link_name: str) -> str:
    if a == b:
        return "X"
    near, far = system.devices[a], system.devices[b]
    path = table(a, b)
    if path.type == PathType.NVL:
        return f"{link_name}{_links(system, a, b, link_gbps)}"
    if path.type == PathType.DIS:
        return "-"
    if path.type in (PathType.C2C, PathType.P2C) or _superchip(system, near, far, path.links):
        return "C2C"
    if {near.kind, far.kind} == {Kind.NET} and path.type == PathType.LOC:
        return "PIX"
    if path.type == PathType.PHB:
        return "NODE"
    return path.type.name


def _superchip(system: System, near: Device, far: Device, links: tuple[int, ...]) -> bool:
    used = {system.links[number].kind for number in links}
    return Kind.GPU in (near.kind, far.kind) and LinkClass.C2C in used and LinkClass.SYS not in used


def _links(system: System, a: int, b: int, link_gbps: float) -> int:
    """Number of links two GPUs share: what the narrower of both has towards the other."""
    first = next((system.links[n] for n in system.out[a] if system.links[n].to == b), None)
    if first is not None:
        return round(first.bw / link_gbps)
    own = (sum(system.links[n].bw for n in system.out[g] if system.links[n].kind == LinkClass.NVL) for g in (a, b))
    return round(min(own) / link_gbps)
