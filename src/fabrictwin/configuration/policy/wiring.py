"""Who is at the other end of each cable, by node and port."""

from __future__ import annotations

from fabrictwin.base.records import record
from fabrictwin.cluster.blueprint import Blueprint


@record
class End:
    """One end of a cable, and what it leads to."""

    port: int  # number on the node, from 1
    peer: int  # node
    peer_port: int
    rate_bps: int
    length_mm: int


def ends(blueprint: Blueprint) -> dict[int, list[End]]:
    """Return the cables of every node, in order of its ports."""
    found: dict[int, list[End]] = {}
    c = blueprint.cables
    rows = zip(
        c.a_node.tolist(),
        c.a_port.tolist(),
        c.b_node.tolist(),
        c.b_port.tolist(),
        c.rate_bps.tolist(),
        c.length_mm.tolist(),
        strict=True,
    )
    for a, a_port, b, b_port, rate, length in rows:
        found.setdefault(a, []).append(End(a_port, b, b_port, rate, length))
        found.setdefault(b, []).append(End(b_port, a, a_port, rate, length))
    for of in found.values():
        of.sort(key=lambda end: end.port)
    return found
