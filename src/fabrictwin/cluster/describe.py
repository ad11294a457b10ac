"""What a blueprint amounts to: hosts, switches and links counted by kind, ports used, oversubscription."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.units import format_length, format_rate, format_size
from fabrictwin.cluster.blueprint import Blueprint, Int
from fabrictwin.cluster.connectivity import first_adapter, islands, node_count
from fabrictwin.kernel.codes import NONE

_HOST, _AGGREGATION = 0, 99  # levels of adapters and aggregation nodes beside the switches' tiers


def describe(blueprint: Blueprint) -> dict[str, Any]:
    """Plain data; rates in bits per second, lengths in millimetres."""
    cables = blueprint.cables
    level = _levels(blueprint)
    plugged = np.concatenate([cables.a_node, cables.b_node])
    adapters = int(first_adapter(blueprint)[-1]) - len(blueprint.switches)
    roots = islands(blueprint)
    with_cable = np.unique(plugged)
    return {
        "technology": blueprint.technology,
        "mtu_bytes": blueprint.mtu_bytes,
        "gpus": sum(catalog.host(host.type).nodes.gpu for host in blueprint.hosts if host.type),
        "hosts": [
            {"type": kind or None, "adapters": nics, "count": count}
            for (kind, nics), count in sorted(
                Counter((host.type, len(host.nics)) for host in blueprint.hosts).items(),
                key=lambda item: (not item[0][0], item[0]),
            )
        ],
        "adapters": adapters,
        "adapters_with_cable": int((level[with_cable] == _HOST).sum()),
        "aggregation_nodes": len(blueprint.aggregations),
        "pods": len({switch.pod for switch in blueprint.switches if switch.pod != NONE}),
        "islands": len(np.unique(roots[with_cable])),
        "tiers": [_tier(blueprint, level, plugged, tier) for tier in sorted({s.tier for s in blueprint.switches})],
        "links": _links(blueprint, level),
        "notes": list(blueprint.notes),
    }


def _levels(blueprint: Blueprint) -> Int:
    """[nodes] tier of a switch, _HOST of an adapter, _AGGREGATION."""
    level = np.full(node_count(blueprint), _AGGREGATION)
    first = len(blueprint.switches)
    level[:first] = [switch.tier for switch in blueprint.switches]
    level[first : first_adapter(blueprint)[-1]] = _HOST
    return level


def _tier(blueprint: Blueprint, level: Int, plugged: Int, tier: int) -> dict[str, Any]:
    cables = blueprint.cables
    members = [switch for switch in blueprint.switches if switch.tier == tier]
    mine, far = np.concatenate([level[cables.a_node], level[cables.b_node]]), np.concatenate(
        [level[cables.b_node], level[cables.a_node]]
    )  # fmt: skip
    rate = np.concatenate([cables.rate_bps, cables.rate_bps])
    is_switch = plugged < len(blueprint.switches)
    here = is_switch & (mine == tier)
    known = tier != NONE
    down = here & (far < tier) & (far != NONE) & known
    up = here & (far > tier) & (far != _AGGREGATION) & known
    down_bps, up_bps = int(rate[down].sum()), int(rate[up].sum())
    return {
        "tier": tier if known else None,
        "switches": len(members),
        "types": {kind or "unknown": n for kind, n in sorted(Counter(s.type for s in members).items())},
        "ports": sum(switch.ports for switch in members),
        "ports_used": int(here.sum()),
        "ports_down": int(down.sum()),
        "ports_up": int(up.sum()),
        "oversubscription": down_bps / up_bps if up_bps and down_bps else None,
    }


def _links(blueprint: Blueprint, level: Int) -> list[dict[str, Any]]:
    cables = blueprint.cables
    low = np.minimum(level[cables.a_node], level[cables.b_node])
    high = np.maximum(level[cables.a_node], level[cables.b_node])
    counts = Counter(
        zip(low.tolist(), high.tolist(), cables.rate_bps.tolist(), cables.length_mm.tolist(), strict=True)
    )
    return [
        {"between": [_level_name(a), _level_name(b)], "rate_bps": rate, "length_mm": length, "count": count}
        for (a, b, rate, length), count in sorted(counts.items())
    ]


def _level_name(level: int) -> str:
    if level == _HOST:
        return "hosts"
    if level == _AGGREGATION:
        return "aggregation nodes"
    return "no tier" if level == NONE else f"tier {level}"


def summary_lines(facts: dict[str, Any]) -> list[str]:
    """`describe`'s data as lines to read."""
    lines = [f"{facts['technology']}, MTU {format_size(facts['mtu_bytes'])}, {facts['gpus']:,} GPUs", "hosts"]
    for row in facts["hosts"]:
        kind = row["type"] or "bound to no catalog host"
        lines.append(f"  {row['count']:>7,}  {kind}, {_plural(row['adapters'], 'adapter')} each")
    unplugged = facts["adapters"] - facts["adapters_with_cable"]
    lines.append(
        f"  {facts['adapters']:>7,}  adapters" + (f", {unplugged:,} of them without a cable" if unplugged else "")
    )
    if facts["aggregation_nodes"]:
        lines.append(f"  {facts['aggregation_nodes']:>7,}  SHARP aggregation nodes")
    lines.append("switches" + (f", in {facts['pods']} pods" if facts["pods"] > 1 else ""))
    for row in facts["tiers"]:
        tier = "no tier" if row["tier"] is None else f"tier {row['tier']}"
        types = ", ".join(row["types"])
        line = f"  {row['switches']:>7,}  {tier}, {types}: {row['ports_used']:,} of {row['ports']:,} ports used"
        if row["tier"] is not None:
            line += f", {row['ports_down']:,} down and {row['ports_up']:,} up"
        if row["oversubscription"] is not None:
            line += f", oversubscription {row['oversubscription']:.4g}:1"
        lines.append(line)
    lines.append("links")
    for row in facts["links"]:
        lines.append(
            f"  {row['count']:>7,}  {' - '.join(row['between'])}, {format_rate(row['rate_bps'])}, "
            f"{format_length(row['length_mm']) if row['length_mm'] else 'inside the switch'}"
        )
    if facts["islands"] > 1:
        lines.append(f"islands\n  {facts['islands']:>7,}  parts that no cable joins")
    if facts["notes"]:
        lines += ["notes", *(f"  {note}" for note in facts["notes"])]
    return lines


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
