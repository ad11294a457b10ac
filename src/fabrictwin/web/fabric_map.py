"""A fabric as a map draws it: hosts in racks under their leaf switches, switches in tiers, what joins them.

Hosts that hang on the same switches are one rack, which is what a rail-optimised unit or a rack of a fat tree is.
Cables between two switches are one link of the map, with their number. Names that count (`host-0`, `host-1`, ...)
are sent as their stem.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fabrictwin.base.arrays import F64, I64
from fabrictwin.fabric.fabric import NONE, Fabric, NodeKind


def _names(names: list[str]) -> dict[str, Any]:
    """Names as their stem where they count from 0, else as they are."""
    if names:
        stem = names[0].removesuffix("0")
        if stem != names[0] and names == [f"{stem}{i}" for i in range(len(names))]:
            return {"stem": stem, "count": len(names)}
    return {"names": names, "count": len(names)}


def _racks(first: I64, host: I64, switch: I64, hosts: int) -> tuple[I64, list[list[int]]]:
    """The rack of each host (in order of their first host), and the switches of each rack."""
    under: list[list[int]] = [[] for _ in range(hosts)]
    for h, s in sorted(set(zip(host.tolist(), switch.tolist(), strict=True))):
        under[h].append(s)
    numbers: dict[tuple[int, ...], int] = {}
    rack = np.array([numbers.setdefault(tuple(each), len(numbers)) for each in under], np.int64)
    return rack, [list(each) for each in numbers]


def fabric_map(fabric: Fabric, used: F64 | None = None) -> dict[str, Any]:
    """Plain data of a map; with the utilisation (0 to 1) of ports, that of its links."""
    switches = np.asarray(fabric.switch_nodes, np.int64)
    place = np.full(fabric.nodes, NONE, np.int64)
    place[switches] = np.arange(len(switches))
    ports = np.flatnonzero(fabric.port_peer != NONE)
    near = fabric.port_node[ports].astype(np.int64)
    far = fabric.port_node[fabric.port_peer[ports]].astype(np.int64)

    up = np.flatnonzero((fabric.node_kind[near] == NodeKind.NIC) & (place[far] != NONE))
    host = fabric.node_host[near[up]].astype(np.int64)
    hung = host != NONE
    up, host = up[hung], host[hung]
    leaf = place[far[up]]
    rack, rack_switches = _racks(ports[up], host, leaf, fabric.hosts)

    trunk = np.flatnonzero((place[near] != NONE) & (place[far] != NONE) & (place[near] < place[far]))
    pair = place[near[trunk]] * len(switches) + place[far[trunk]]
    pairs, which, cables = np.unique(pair, return_inverse=True, return_counts=True)

    data: dict[str, Any] = {
        "technology": fabric.technology,
        "gpus": fabric.gpus,
        "hosts": {
            **_names(list(fabric.host_names)),
            "rack": rack.tolist(),
            "gpus": np.bincount(fabric.node_host[fabric.gpu_node], minlength=fabric.hosts).tolist(),
        },
        "racks": {"switches": rack_switches},
        "switches": {
            **_names([fabric.node_name(int(node)) for node in switches]),
            "tier": fabric.node_tier[switches].tolist(),
            "pod": fabric.node_pod[switches].tolist(),
        },
        "adapters": {
            "host": host.tolist(),
            "switch": leaf.tolist(),
            "rate_gbps": sorted({int(r) / 1e9 for r in np.unique(fabric.port_rate_bps[ports[up]]).tolist()}),
        },
        "trunks": {
            "a": (pairs // max(len(switches), 1)).tolist(),
            "b": (pairs % max(len(switches), 1)).tolist(),
            "cables": cables.tolist(),
        },
    }
    if used is not None:
        both = np.maximum(used[ports], used[fabric.port_peer[ports]])
        data["adapters"]["use"] = np.round(both[up], 4).tolist()
        trunk_use = np.zeros(len(pairs))
        np.maximum.at(trunk_use, which, both[trunk])
        data["trunks"]["use"] = np.round(trunk_use, 4).tolist()
    return data
