"""What is different between two tables of the same fabric: entries, and the paths that packets take.

LIDs may differ: destinations are compared by who they are. Of an adapter with several LIDs (LMC) the base LID is
compared.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.filling import Tables
from fabrictwin.routing.graph.switch_tiers import planes
from fabrictwin.routing.graph.switches import Lids, Switches

EXAMPLES = 10


@record
class Difference:
    """Paths lead from a switch with endpoints to an endpoint's base LID."""

    lids_moved: int  # endpoints and switches whose base LID differs
    entries: int  # that both tables have, of switches toward endpoints
    entries_changed: int
    switches_changed: int
    paths: int
    paths_changed: int
    paths_lost: int  # that arrive in the first tables only
    paths_gained: int
    paths_broken: int  # that arrive in neither
    shorter: int
    longer: int
    examples: tuple[str, ...]  # the first changed entries


def difference(switches: Switches, left: tuple[Lids, Tables], right: tuple[Lids, Tables]) -> Difference:
    """Compare two tables."""
    from fabrictwin.kernel.routing import path_loads as kernel

    (a_lids, a), (b_lids, b) = left, right
    both = np.flatnonzero((switches.endpoint_row != NONE) & (a_lids.endpoint > 0) & (b_lids.endpoint > 0))
    a_lid, b_lid = a_lids.endpoint[both], b_lids.endpoint[both]
    ours, theirs = a.lft[:, a_lid], b.lft[:, b_lid]
    differs = ours != theirs
    changed = np.zeros((len(both), len(switches.edge_row)), np.uint8)
    longer = np.zeros(3, np.int64)
    kernel.same_paths(
        np.ascontiguousarray(a.lft.T),
        np.ascontiguousarray(b.lft.T),
        a_lid,
        b_lid,
        switches.endpoint_row[both],
        switches.endpoint_number[both],
        switches.edge_row,
        switches.port_edge,
        switches.adjacent_row,
        changed,
        longer,
    )
    label = planes(switches)
    same = label[switches.endpoint_row[both]][:, None] == label[switches.edge_row]
    kinds = np.bincount(changed[same], minlength=5)
    moved = int((a_lids.row != b_lids.row).sum() + (a_lids.endpoint != b_lids.endpoint).sum())
    examples = [
        f"{switches.row_name[int(r)]}: LID {a_lid[k]} by port {ours[r, k]}, then {theirs[r, k]}"
        for r, k in np.argwhere(differs)[:EXAMPLES]
    ]
    return Difference(
        lids_moved=moved,
        entries=int(differs.size),
        entries_changed=int(differs.sum()),
        switches_changed=int(differs.any(axis=1).sum()),
        paths=int(same.sum()),
        paths_changed=int(kinds[1]),
        paths_lost=int(kinds[2]),
        paths_gained=int(kinds[3]),
        paths_broken=int(kinds[4]),
        shorter=int(longer[0]),
        longer=int(longer[2]),
        examples=tuple(examples),
    )
