"""Faults in what ibnetdiscover printed: cables and switches that are gone, drawn by a seed."""

from __future__ import annotations

import random
import re

_HEAD = re.compile(r'^(?:Switch|Ca)\s+\d+\s+"([^"]+)"', re.MULTILINE)
_PORT = re.compile(r'^\[(\d+)\][^"\n]*"([^"]+)"\[(\d+)\]')
_HOSTLESS = re.compile(r"^\[.*Aggregation Node.*$", re.MULTILINE)  # SHARP's, on switches of every tier
_Cable = tuple[tuple[str, int], tuple[str, int]]


def damaged(text: str, *, seed: int, spines: int = 2) -> str:
    """The text without one in a hundred cables between switches, and without some of those farthest from hosts."""
    preamble, *records = text.split("\n\n")
    nodes = {match[1]: record for record in records if (match := _HEAD.search(record))}
    cables = _cables(nodes)
    level = _levels(nodes, cables)
    top = sorted(node for node, far in level.items() if far == max(level.values()) > 0)
    draw = random.Random(seed)
    off = set(draw.sample(top, min(spines, len(top) - 1)))
    cut = set(draw.sample(cables, max(1, len(cables) // 100)))
    gone = {end for cable in cut for end in cable}

    def stays(node: str, line: str) -> bool:
        match = _PORT.match(line)
        if match is None:
            return True
        return match[2] not in off and not {(node, int(match[1])), (match[2], int(match[3]))} & gone

    left = [
        "\n".join(line for line in record.splitlines() if stays(node, line))
        for node, record in nodes.items()
        if node not in off
    ]
    return "\n\n".join([preamble, *left]) + "\n"


def _ports(record: str) -> list[tuple[int, str, int]]:
    found = filter(None, map(_PORT.match, record.splitlines()))
    return [(int(match[1]), match[2], int(match[3])) for match in found]


def _cables(nodes: dict[str, str]) -> list[_Cable]:
    found = set()
    for node, record in nodes.items():
        for number, peer, peer_number in _ports(record):
            if node.startswith("S") and peer.startswith("S"):
                a, b = sorted([(node, number), (peer, peer_number)])
                found.add((a, b))
    return sorted(found)


def _levels(nodes: dict[str, str], cables: list[_Cable]) -> dict[str, int]:
    """Hops of each switch from the nearest one with hosts."""
    neighbours: dict[str, set[str]] = {}
    for (a, _), (b, _) in cables:
        neighbours.setdefault(a, set()).add(b)
        neighbours.setdefault(b, set()).add(a)
    level = {
        node: 0
        for node, record in nodes.items()
        if node.startswith("S") and any(peer.startswith("H") for _, peer, _ in _ports(_HOSTLESS.sub("", record)))
    }
    queue = list(level)
    for node in queue:
        for peer in sorted(neighbours.get(node, ())):
            if peer not in level:
                level[peer] = level[node] + 1
                queue.append(peer)
    return level
