"""InfiniBand routers as OpenSM's ftree sees them: not at all, so that their LIDs get no way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.filling import Tables
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import Lids, Switches

Engine = Callable[[Switches, Lids, Options], Tables]


def without_routers(engine: Engine) -> Engine:
    """Wrap an engine of one lane so that it sees no routers."""

    def routed(switches: Switches, lids: Lids, options: Options) -> Tables:
        router = switches.endpoint_router
        if not router.any():
            return engine(switches, lids, options)
        seen = replace(
            switches,
            endpoint_row=np.where(router, NONE, switches.endpoint_row).astype(np.int32),
            endpoint_number=np.where(router, 0, switches.endpoint_number).astype(np.int32),
        )
        return engine(seen, replace(lids, endpoint=np.where(router, 0, lids.endpoint)), options)

    return routed
