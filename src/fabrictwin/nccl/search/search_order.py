"""Which searches are made, in which order, until channels are found: fast and near first.

The first pass lowers its demands step by step: other GPUs in every channel, a simpler tree, farther paths
inside and to adapters, leaving by another adapter than the channel came in by, then the next lower speed. What
it finds is duplicated where one channel is faster than one thread block can drive. The second pass sees whether
the same number of channels can run faster.

Source: NCCL 2.30.7, 2.21.5 and 2.18.3, src/graph/search.cc (`ncclTopoCompute`).
"""

from __future__ import annotations

from dataclasses import replace

from fabrictwin.fabric.fabric import NONE
from fabrictwin.nccl.constants import (
    DIRECT_HEADS,
    NVLS_HEADS,
    SEARCH_STEPS,
    SEARCH_STEPS_ALL,
    SEARCH_STEPS_ALL_218,
    SEARCH_STEPS_SAME,
)
from fabrictwin.nccl.search.graph_search import FOUND_BEST, Channels, Search
from fabrictwin.nccl.topology.graph_types import PathType, Pattern
from fabrictwin.nccl.topology.system import Kind


class Relaxation:
    """The order of searches for one pattern of one system."""

    def __init__(self, search: Search, pattern: Pattern, *, least: int, most: int, cross_nic: int, collnet: bool):
        self.search, self.rules, self.system = search, search.rules, search.system
        self.gpus, self.inter = search.gpus, search.inter
        self.capability = self.system.capability
        may_cross = len(search.nets) > 1 and pattern in (Pattern.RING, Pattern.BALANCED_TREE, Pattern.SPLIT_TREE)
        self.cross_nic = cross_nic if may_cross else 0
        if pattern == Pattern.NVLS and self.rules.since(21):
            most = min(NVLS_HEADS, len(self.gpus)) if self.rules.since(25) else len(self.gpus)
        if pattern == Pattern.COLLNET_DIRECT and self.rules.since(22):
            most = min(DIRECT_HEADS, len(self.gpus))
        if len(self.gpus) == 1 and pattern != Pattern.RING:
            pattern = Pattern.TREE
        if not self.inter and pattern == Pattern.NVLS:
            most = min(most, len(self.gpus))
            least = most
        if pattern == Pattern.RING and most >= 2 and least == 1 and self.rules.since(26) and self._two_domains():
            least = 2  # trees do better between them, and need two channels
        self._types()
        self.found = Channels(
            pattern=pattern,
            bw_intra=0.0,
            bw_inter=0.0,
            type_intra=self.nearest_intra,
            type_inter=self.nearest_inter,
            cross_nic=1 if self.cross_nic == 1 else 0,
            same=pattern != Pattern.NVLS,
            least=least,
            most=most,
            collnet=collnet,
        )

    def _two_domains(self) -> bool:
        """Return true if NVLink joins the GPUs into two groups, with something slower in between."""
        domain = {gpu: gpu for gpu in self.gpus}
        for i, gpu in enumerate(self.gpus):
            for other in self.gpus[i + 1 :]:
                if self.search.table(gpu, other).type == PathType.NVL:
                    domain[other] = domain[gpu]
        sizes = [list(domain.values()).count(gpu) for gpu in self.gpus]
        return sum(size > 1 for size in sizes) == 2

    def _types(self) -> None:
        """Nearest and farthest paths worth asking for."""
        table = self.search.table
        self.nearest_intra = PathType.LOC if len(self.gpus) == 1 else PathType.NVL
        self.nearest_inter = PathType.PIX
        self.farthest_intra = self.farthest_inter = PathType.SYS
        if not self.rules.since(25):
            return
        inside = [table(a, b).type for a in self.gpus for b in self.gpus if a != b]
        self.nearest_intra = PathType.LOC
        if inside:
            self.nearest_intra, self.farthest_intra = min(PathType.SYS, *inside, PathType.SYS), max(inside)
        if self.inter:
            outside = [table(g, n).type for g in self.gpus for n in self.search.nets]
            if outside:
                self.nearest_inter, self.farthest_inter = min(PathType.SYS, *outside, PathType.SYS), max(outside)
        if self.capability < 90 and self.rules.since(29):
            self.farthest_inter = PathType.SYS

    def run(self) -> Channels:
        """The channels; a simple order at a hopeless speed where there are none (none at all for switches)."""
        found = self.found
        if found.pattern == Pattern.NVLS and (not self.search.switches or self.capability < 90):
            return found
        self.speeds = self.rules.speeds(self.capability, inter=self.inter)
        self.first = self._first_speed(found.least)
        found = self._first_pass(found)
        if self.rules.since(19):
            found = self._duplicated(found)
        found = self._second_pass(found)
        if not found.count and not found.collnet and found.pattern != Pattern.NVLS:
            found = self._simple(found)
        return found if self.rules.since(19) else self._duplicated(found)

    def _first_speed(self, least: int) -> int:
        total, gpus = self.search.total_bw, len(self.gpus)
        if gpus > 1 and self.found.pattern != Pattern.RING:
            total *= gpus / (gpus - 1)  # a chain does not come back
        at = 0
        while at < len(self.speeds) - 1 and (
            self.speeds[at] > self.search.max_bw or self.speeds[at] * least > total
        ):
            at += 1
        return at

    def _first_pass(self, found: Channels) -> Channels:
        wanted_same, at = found.same, self.first
        try_ = replace(found, bw_intra=self.speeds[at], bw_inter=self.speeds[at])
        budget = SEARCH_STEPS_ALL if self.rules.since(19) else SEARCH_STEPS_ALL_218
        amd = any(self.system.devices[c].cpu.amd for c in self.system.of(Kind.CPU)[:1])
        while True:
            steps = SEARCH_STEPS_SAME if try_.same else SEARCH_STEPS
            budget -= steps
            found, left = self.search.run(try_, found, steps)
            if left == FOUND_BEST or found.count * found.bw_inter >= self.search.total_bw:
                return found
            if try_.same and not (amd and try_.type_intra == PathType.SYS and self.rules.since(19)):
                try_ = replace(try_, same=False)
                continue
            try_ = replace(try_, same=wanted_same)
            budget += left
            if budget < 0 and found.count:
                return found
            if self.capability >= 90 and try_.pattern == Pattern.BALANCED_TREE:
                try_ = replace(try_, pattern=Pattern.TREE)
                continue
            try_ = replace(try_, pattern=found.pattern)  # of trees, perhaps the simpler one by now
            farthest = try_.type_inter if self.inter else self.farthest_intra
            if try_.type_intra < farthest and (not found.count or try_.type_intra < found.type_intra):
                try_ = replace(try_, type_intra=PathType(try_.type_intra + 1))
                continue
            try_ = replace(try_, type_intra=self.nearest_intra)
            if (
                self.inter
                and try_.type_inter < self.farthest_inter
                and (not found.count or try_.type_inter < max(found.type_inter, PathType.PXN))
            ):
                try_ = replace(try_, type_inter=PathType(try_.type_inter + 1))
                continue
            try_ = replace(try_, type_inter=self.nearest_inter)
            crossing = self._crossing(found.pattern)
            if crossing and try_.cross_nic == 0:
                try_ = replace(try_, cross_nic=crossing)
                continue
            try_ = replace(try_, cross_nic=1 if self.cross_nic == 1 else 0)
            slower = at + 1 < len(self.speeds)
            if slower and (not found.count or self.speeds[at + 1] / found.bw_inter > 0.49):
                at += 1
                try_ = replace(try_, bw_intra=self.speeds[at], bw_inter=self.speeds[at])
                continue
            return found

    def _crossing(self, pattern: Pattern) -> int:
        """NCCL's crossNic of the search: how a channel may leave by another adapter; 0 where it may not."""
        if not self.rules.since(19):
            return 1 if self.cross_nic else 0
        if self.cross_nic != 2:
            return 0
        if not self.rules.since(23):
            return 1
        return 2 if pattern in (Pattern.RING, Pattern.BALANCED_TREE) else 0

    def _duplicated(self, found: Channels) -> Channels:
        """Twice the channels at half the speed, where one is faster than a thread block drives well."""
        if not found.count or found.pattern == Pattern.NVLS or found.bw_intra < 25.0:
            return found
        if self.capability > 80 and found.bw_intra < 50.0 and found.count > 4:
            return found
        count = min(2 * found.count, found.most)
        parts = -(-count // found.count)
        return replace(
            found,
            intra=(found.intra * 2)[:count],
            inter=(found.inter * 2)[:count],
            bw_intra=found.bw_intra / parts,
            bw_inter=found.bw_inter / parts,
        )

    def _second_pass(self, found: Channels) -> Channels:
        """The same channels, faster."""
        at = next((i for i, speed in enumerate(self.speeds) if speed <= found.bw_inter), len(self.speeds) - 1)
        try_ = replace(found, bw_intra=self.speeds[at], bw_inter=self.speeds[at], least=found.count)
        left = FOUND_BEST
        while left != 0 and at > 0:
            if found.pattern == Pattern.RING and self.rules.since(19):
                at -= 1
                try_ = replace(try_, bw_intra=self.speeds[at], bw_inter=self.speeds[at])
            elif (
                found.pattern == Pattern.NVLS
                and self.rules.since(19)
                and try_.bw_inter == found.bw_inter
                and try_.bw_inter < try_.bw_intra * 2
            ):
                at -= 1
                try_ = replace(try_, least=found.count, most=found.count, bw_inter=self.speeds[at])
            elif (
                found.pattern != Pattern.RING
                and try_.bw_intra == found.bw_intra
                and try_.bw_intra < try_.bw_inter * 2
            ):
                at -= 1
                try_ = replace(try_, bw_intra=self.speeds[at])
            else:
                break
            steps = SEARCH_STEPS_SAME if try_.same else SEARCH_STEPS
            found, left = self.search.run(try_, found, steps)
        return found

    def _simple(self, found: Channels) -> Channels:
        """One channel through the GPUs as they are numbered."""
        nets = self.search.nets
        ends = (NONE, NONE)
        if self.inter and nets:
            first = self.search.table.preferred_nets(self.gpus[0]) or [nets[0]]
            last = self.search.table.preferred_nets(self.gpus[-1]) or [nets[0]]
            ends = first[0], last[0]
        return replace(
            found,
            intra=(self.gpus,),
            inter=(ends,),
            bw_intra=0.1,
            bw_inter=0.1,
            type_intra=PathType.SYS,
            type_inter=PathType.SYS,
        )
