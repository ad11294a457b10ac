"""Routing engines by name. An engine is one file with one function: (fabric, switches, groups, lid) to an LFT."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fabrictwin.errors import ConfigError, did_you_mean
from fabrictwin.fabric.fabric import I32, I64, NONE, Fabric
from fabrictwin.routing.dmodk import dmodk, dmodk_fits
from fabrictwin.routing.minhop import minhop
from fabrictwin.routing.tables import (
    HASHES,
    U8,
    U32,
    Groups,
    Routes,
    Switches,
    assign_lids,
    equal_cost,
    switch_graph,
)

Engine = Callable[[Fabric, Switches, Groups, I32], U8]

ENGINES: dict[str, Engine] = {"dmodk": dmodk, "minhop": minhop}
ECMP = "ecmp"  # Ethernet: the groups themselves are the tables


def engine_names(technology: str) -> tuple[str, ...]:
    """What `routing.engine` may say for a technology; `auto` chooses among them."""
    return ("auto", *ENGINES) if technology == "infiniband" else ("auto", ECMP)


def hash_seeds(fabric: Fabric, seed: int) -> U32:
    """[S] one hash seed a switch, from the run's seed and the switch's place."""
    generator = np.random.Generator(np.random.PCG64(seed))
    seeds: U32 = generator.integers(0, 2**32, len(fabric.switch_nodes), dtype=np.uint32)
    return seeds


def route(fabric: Fabric, *, engine: str = "auto", hash_name: str = "crc32", seed: int = 0) -> Routes:
    """Tables for every switch of the fabric. Raises ConfigError for an engine or hash that does not exist."""
    known = engine_names(fabric.technology)
    if engine not in known:
        hint = did_you_mean(engine, known)
        raise ConfigError(
            f"got {engine!r}, expected one of {', '.join(known)} on {fabric.technology}{hint}",
            key="cluster.network.routing.engine",
        )
    if hash_name not in HASHES:
        raise ConfigError(
            f"got {hash_name!r}, expected one of {', '.join(HASHES)}{did_you_mean(hash_name, HASHES)}",
            key="cluster.network.routing.hash",
        )
    switches = switch_graph(fabric)
    groups = equal_cost(switches)
    seeds = hash_seeds(fabric, seed)
    if fabric.technology == "ethernet":
        nothing = np.zeros((len(switches.row_node), 0), np.uint8)
        return Routes(fabric, ECMP, switches, groups, np.zeros(fabric.nodes, np.int32), nothing, hash_name, seeds)
    lid = assign_lids(fabric)
    if engine == "auto":
        engine = "dmodk" if dmodk_fits(fabric, switches, groups) else "minhop"
    lft = ENGINES[engine](fabric, switches, groups, lid)
    return Routes(fabric, engine, switches, groups, lid, lft, hash_name, seeds)


def unreachable(routes: Routes, adapters: I64) -> int:
    """The first of `adapters` that the first of them cannot reach, or NONE: same subnet and cabled."""
    fabric = routes.fabric
    if not len(adapters):
        return NONE
    plane = np.where(fabric.nic_port[adapters] == NONE, NONE, fabric.node_plane[fabric.nic_node[adapters]])
    wrong = np.flatnonzero((plane == NONE) | (plane != plane[0]))
    return int(adapters[wrong[0]]) if len(wrong) else NONE
