"""The tuner of AWS's network plugin, which takes the choice from NCCL where it knows the instance.

aws-ofi-nccl brings a tuner with it: for some kinds of instance, and 8, 2 or 1 GPUs on each host, polygons over
bytes and ranks say which algorithm and protocol is fastest (`data/aws_tuner.yaml`). It leaves communicators of one
or two hosts to NCCL. NCCL finds the tuner in the network plugin itself, which holds it since 1.16 of June 2025,
beside NCCL 2.27; with earlier releases it runs where NCCL_TUNER_PLUGIN names its library, and nowhere where that
says `none`.

Source: aws-ofi-nccl v1.16.3 to v1.21.1, src/tuner; NCCL 2.30.7, src/plugin/tuner.cc. Left out: the plugin's model
by formula, which only OFI_NCCL_TUNER_TYPE asks for, and its chunk sizes for p5en.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import cache
from typing import Any

from fabrictwin.base.records import record
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.settings.variable_values import AWS_TUNERS
from fabrictwin.nccl.settings.version import version_of
from fabrictwin.nccl.topology.graph_types import Algorithm, Protocol

Point = tuple[float, float]  # bytes, ranks; or their logarithms
Way = tuple[Algorithm, Protocol]

_FIRST = version_of("2.22")  # whose interface hands a tuner the table of costs
_FOUND = version_of("2.27")  # from here on NCCL finds it in the network plugin
_MIB = 1 << 20
_ON_EDGE = 1e-10  # the plugin's own tolerance
_LEAST = 1e-6  # stands for 0 where logarithms are taken
# of LL128 with trees, as NCCL has them: bytes of a chunk before its flags, and of a warp's grain
_CHUNK, _GRAIN = 640 * 120 * 8, 1920


@record
class Region:
    """Where one algorithm and protocol is taken."""

    way: Way
    corners: tuple[Point, ...]

    def holds(self, at: Point) -> bool:
        """Return true for a point inside or on a side."""
        sides = list(zip(self.corners, (*self.corners[1:], self.corners[0]), strict=True))
        if any(_on(at, a, b) for a, b in sides):
            return True
        x, y = at
        inside = False
        for (ax, ay), (bx, by) in sides:
            if (ay > y) != (by > y) and x < ax + (y - ay) / (by - ay) * (bx - ax):
                inside = not inside
        return inside


@record
class RegionTuner:
    """The plugin's tuner as one communicator has it."""

    instance: str
    ranks: int
    nodes: int
    logarithmic: bool
    regions: dict[str, tuple[Region, ...]]  # by collective

    @property
    def platform(self) -> str:
        """Return the instance's type as AWS writes it: p5.48xlarge."""
        kind, _, size = self.instance.rpartition("-")
        return f"{kind}.{size}"

    def choose(self, collective: str, nbytes: int, ways: Collection[Way]) -> tuple[Way, int] | None:
        """(algorithm and protocol, channels or 0 for NCCL's number) of `ways`; None where NCCL is to choose."""
        at = float(nbytes), float(self.ranks)
        if self.logarithmic:
            at = _logarithms(at)
        for region in self.regions.get(collective, ()):
            if region.way in ways and region.holds(at):
                return region.way, self._channels(nbytes, region.way)
        return None

    def _channels(self, nbytes: int, way: Way) -> int:
        if self.instance != "p6-b200-48xlarge" or nbytes > 32 * _MIB:
            return 0
        if way == (Algorithm.TREE, Protocol.LL128) and self.ranks == 8 * self.nodes and nbytes >= 4 * _MIB:
            # the largest chunk, and of equals the most channels
            return max((16, 24, 32), key=lambda count: (_tree_payload(nbytes, count, self.nodes), count))
        if way == (Algorithm.PAT, Protocol.SIMPLE) and self.ranks == self.nodes:
            return next((count for count in (1, 2) if nbytes <= count * self.nodes * 65536), 0)
        return 0


def plugin_tuner(settings: Settings, instance: str, ranks: int, nodes: int) -> RegionTuner | None:
    """The tuner of a communicator on so many hosts of a kind, or None where NCCL chooses by itself."""
    named = settings.tuner_plugin
    wanted = settings.release >= _FOUND if named is None else named.rpartition("/")[2] in AWS_TUNERS
    if not wanted or settings.release < _FIRST or nodes <= 2 or ranks % nodes:
        return None
    found: tuple[bool, dict[str, tuple[Region, ...]]] | None = None
    for since, logarithmic, regions in _releases():
        if since <= settings.release:
            found = logarithmic, regions.get((instance, ranks // nodes), {})
    if found is None or not found[1]:
        return None
    return RegionTuner(instance, ranks, nodes, *found)


@cache
def _releases() -> tuple[tuple[Any, bool, dict[tuple[str, int], dict[str, tuple[Region, ...]]]], ...]:
    """(NCCL's release, whether by logarithms, regions by (instance, GPUs of a host) and collective) in order."""
    from fabrictwin.base.yamlfile import read_bundled

    result = []
    written: dict[str, Any] = {}
    for entry in read_bundled("fabrictwin.nccl", "aws_tuner.yaml"):
        written = {**written, **entry["regions"]}
        logarithmic = bool(entry["logarithmic"])
        regions = {
            (instance, int(per_host)): {
                collective: tuple(_region(row, logarithmic) for row in rows) for collective, rows in tables.items()
            }
            for instance, hosts in written.items()
            for per_host, tables in hosts.items()
        }
        result.append((version_of(entry["nccl"]), logarithmic, regions))
    return tuple(result)


def _region(row: list[Any], logarithmic: bool) -> Region:
    algorithm, protocol, corners = row
    points = [(float(x), float(y)) for x, y in corners]
    way = Algorithm[algorithm.upper()], Protocol[protocol.upper()]
    return Region(way, tuple(map(_logarithms, points)) if logarithmic else tuple(points))


def _logarithms(at: Point) -> Point:
    return math.log2(at[0] or _LEAST), math.log2(at[1] or _LEAST)


def _on(at: Point, a: Point, b: Point) -> bool:
    """Return true for a point on the side from a to b."""
    along = b[0] - a[0], b[1] - a[1]
    length = math.hypot(*along)
    if not length:
        return math.dist(at, a) < _ON_EDGE
    off = at[0] - a[0], at[1] - a[1]
    if abs(along[0] * off[1] - along[1] * off[0]) >= _ON_EDGE * length:
        return False
    return -_ON_EDGE <= (along[0] * off[0] + along[1] * off[1]) / length**2 <= 1 + _ON_EDGE


def _tree_payload(nbytes: int, channels: int, nodes: int) -> int:
    """Bytes of a tree's chunk with LL128, as the plugin reckons it for hosts of eight."""
    steps = 1 + (nodes.bit_length() - 1) + 0.1 * 8
    chunk = _CHUNK // 16 * 15
    for weight, least in ((64, 131072), (16, 32768)):
        while nbytes // (channels * chunk) < steps * weight / 8 and chunk > least:
            chunk //= 2
    return chunk // _GRAIN * _GRAIN
