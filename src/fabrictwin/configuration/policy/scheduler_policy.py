"""Slurm's topology.conf and gres.conf of a cluster.

Slurm's tree has each node under one switch. In a rail-optimised fabric a host hangs on a leaf for every rail:
hosts of the same leaves are one group, named by the first of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fabrictwin import catalog
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.configuration.model.cluster import Slurm, SlurmNode, SlurmSwitch
from fabrictwin.configuration.policy.wiring import End

PLUGIN = "topology/tree"


def slurm(blueprint: Blueprint, ends: Mapping[int, Sequence[End]]) -> Slurm:
    """Return switches from the leaves up, and the GPUs of hosts."""
    under: dict[int, list[str]] = {}
    node = len(blueprint.switches)
    for host in blueprint.hosts:
        leaves = [end.peer for n in range(node, node + len(host.nics)) for end in ends.get(n, ())]
        node += len(host.nics)
        if leaves and host.type:
            under.setdefault(min(leaves), []).append(host.name)
    rows = [SlurmSwitch(blueprint.switches[leaf].name, tuple(names)) for leaf, names in sorted(under.items())]
    pods: dict[int, list[str]] = {}
    for leaf in sorted(under):
        pods.setdefault(blueprint.switches[leaf].pod, []).append(blueprint.switches[leaf].name)
    tops = [names[0] if len(names) == 1 else f"pod-{pod}" for pod, names in pods.items()]
    if len(pods) > 1:
        rows += [SlurmSwitch(f"pod-{pod}", switches=tuple(names)) for pod, names in pods.items() if len(names) > 1]
        rows.append(SlurmSwitch("fabric", switches=tuple(tops)))
    elif len(under) > 1:
        rows.append(SlurmSwitch("fabric", switches=tuple(next(iter(pods.values())))))
    return Slurm(tuple(rows), _gres(blueprint), PLUGIN)


def _gres(blueprint: Blueprint) -> tuple[SlurmNode, ...]:
    by_type: dict[str, list[str]] = {}
    for host in blueprint.hosts:
        if host.type and catalog.host(host.type).nodes.gpu:
            by_type.setdefault(host.type, []).append(host.name)
    rows = []
    for kind, names in by_type.items():
        count = catalog.host(kind).nodes.gpu
        files = "/dev/nvidia0" if count == 1 else f"/dev/nvidia[0-{count - 1}]"
        gpu = re.sub(r"[^a-z0-9_]", "_", catalog.host(kind).gpu)
        rows.append(SlurmNode(tuple(names), "gpu", gpu, files))
    return tuple(rows)
