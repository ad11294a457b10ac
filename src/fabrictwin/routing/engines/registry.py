"""Routing engines by name.

An engine is one function `(switches, lids, options) -> Tables`: it sees nothing but the switch
graph, so a Fabric and what a subnet manager discovered serve alike. To add one (lash, nue, torus,
dragonfly): write its file, name it in OWN or OPENSM and in docs/routing.md; `tests/test_routing_engines.py` holds
every name in OWN to what its row there promises.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import U32
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.routing.engines.auto import auto
from fabrictwin.routing.engines.balanced import balanced
from fabrictwin.routing.engines.dmodk import dmodk
from fabrictwin.routing.engines.fattree import fattree
from fabrictwin.routing.engines.filling import Engine, Tables
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.engines.shortest import shortest
from fabrictwin.routing.engines.updown import updown
from fabrictwin.routing.graph.switches import Lids, Switches, assign_lids, switch_graph
from fabrictwin.routing.opensm.ftree import ftree
from fabrictwin.routing.opensm.minhop_updn import dnup, minhop, updn
from fabrictwin.routing.opensm.routers import without_routers
from fabrictwin.routing.opensm.sssp import dfsssp, sssp
from fabrictwin.routing.tables import DEFAULT_HASH, HASHES, Routes

OPENSM: dict[str, Engine] = {  # OpenSM's tables entry for entry
    "dfsssp": dfsssp,
    "dnup": dnup,
    "ftree": without_routers(ftree),
    "minhop": minhop,
    "sssp": sssp,
    "updn": updn,
}
OWN: dict[str, Engine] = {
    "auto": auto,
    "balanced": balanced,
    "dmodk": dmodk,
    "fattree": fattree,
    "shortest": shortest,
    "updown": updown,
}
ENGINES: dict[str, Engine] = {**OWN, **OPENSM}
DEADLOCK_ALLOWED = ("minhop", "shortest", "sssp")  # promise no freedom from deadlock
ECMP = "ecmp"  # Ethernet: the groups themselves are the tables


def engine_names(technology: str) -> tuple[str, ...]:
    """Names that `routing.engine` may hold for a technology."""
    return tuple(ENGINES) if technology == "infiniband" else ("auto", ECMP)


def hash_seeds(fabric: Fabric, seed: int) -> U32:
    """[S] one hash seed a switch, from the run's seed and the switch's place."""
    generator = np.random.Generator(np.random.PCG64(seed))
    seeds: U32 = generator.integers(0, 2**32, len(fabric.switch_nodes), dtype=np.uint32)
    return seeds


def compute(switches: Switches, lids: Lids, *, engine: str = "auto", options: Options | None = None) -> Tables:
    """Tables by the named engine. Raises ConfigError for a name that is not there, or as the engine says."""
    if engine not in ENGINES:
        raise ConfigError(
            f"got {engine!r}, expected one of {', '.join(ENGINES)}{did_you_mean(engine, ENGINES)}", key="engine"
        )
    return ENGINES[engine](switches, lids, options or Options())


def route(
    fabric: Fabric,
    *,
    engine: str = "auto",
    hash_name: str = DEFAULT_HASH,
    seed: int = 0,
    options: Options | None = None,
) -> Routes:
    """Tables for every switch of the fabric. Raises ConfigError for an engine or hash that does not exist.

    `options` are for InfiniBand; Ethernet's groups take none.
    """
    options = options or Options()
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
    seeds = hash_seeds(fabric, seed)
    if fabric.technology == "ethernet":
        if options != Options():
            raise ConfigError("got options of InfiniBand routing, expected none on ethernet", key="routing")
        nothing = np.zeros((switches.rows, 0), np.uint8)
        return Routes(fabric, ECMP, switches, np.zeros(fabric.nodes, np.int32), nothing, hash_name, seeds)
    lid = assign_lids(fabric, lmc=options.lmc)
    lids = Lids(lid[switches.row_node], lid[switches.endpoint_node], options.lmc)
    tables = compute(switches, lids, engine=engine, options=options)
    return Routes(
        fabric,
        tables.engine,
        switches,
        lid,
        tables.lft,
        hash_name,
        seeds,
        lmc=options.lmc,
        lane=tables.lane,
        lanes=tables.lanes,
        remark=tables.remark,
    )
