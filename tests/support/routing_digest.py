"""A digest of tables and verdicts of small fabrics by every engine; runs as a script too."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.routing_fabrics import graph, number_lids, torus, tree, try_compute

from fabrictwin.routing.check.difference import difference
from fabrictwin.routing.check.judge import judge
from fabrictwin.routing.engines.registry import ENGINES
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import switch_graph


def digest_of_everything() -> str:
    total = hashlib.sha256()
    with_aggregation = graph(
        [(0, 2), (0, 3), (1, 2), (1, 3), (2, 4), (3, 5)], [2, 2, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1]
    )
    for switches in (switch_graph(tree(16, 8, tiers=2)), torus(3, 3), with_aggregation):
        for lmc in (0, 1):
            lids = number_lids(switches, lmc)
            made = [try_compute(switches, lids, engine, Options(lmc=lmc)) for engine in ENGINES]
            for tables in made:
                if isinstance(tables, str):
                    total.update(tables.encode())
                    continue
                total.update(tables.lft.tobytes() + tables.lane.tobytes())
                total.update(repr(judge(switches, lids, tables, random=2)).encode())
                total.update(repr(difference(switches, (lids, made[0]), (lids, tables))).encode())
    return total.hexdigest()


if __name__ == "__main__":
    print(digest_of_everything())
