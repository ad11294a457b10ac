"""The search for channels as a recursive function, slow, for tests to hold the compiled one to."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from fabrictwin.fabric.fabric import NONE
from fabrictwin.nccl.search.graph_search import Channels, Search
from fabrictwin.nccl.topology.graph_types import PathType, Pattern
from fabrictwin.nccl.topology.system import Kind, LinkClass
from fabrictwin.nccl.topology.topology_paths import Path, PathTable

FOUND_BEST = -1
_PCI_ORDER_STEPS = 1 << 10
_INTEL_OVERHEAD = 6 / 5


class Order(Enum):
    """Which GPU comes next."""

    SEARCHED = 0
    PCI = 1  # as they are numbered
    REPLAYED = 2  # as in the channel before


@dataclass
class _Work:
    """The channels that are being put together."""

    intra: list[list[int]] = field(default_factory=list)
    inter: list[list[int]] = field(default_factory=list)
    hops: int = 0  # a whole number, parts of hops are cut off each time
    latency: float = 0.0


Hop = tuple[int, bool, int]  # link, whether PCIe, the link back if it is loaded too


class RecursiveSearch(Search):
    """Searches one system. `inter` says whether channels leave the host."""

    def __init__(self, table: PathTable, *, inter: bool) -> None:
        super().__init__(table, inter=inter)
        devices = self.system.devices
        self.left = [link.bw for link in self.system.links]
        self.net_left = {net: devices[net].net.bw for net in self.nets}
        self.card = {net: (devices[net].net.asic, devices[net].net.number) for net in self.nets}
        self.used: set[int] = set()  # GPUs of the channel under way
        self._hops: dict[tuple[int, int], tuple[Path, tuple[Hop, ...], float]] = {}

    def _way(self, a: int, b: int) -> tuple[Path, tuple[Hop, ...], float]:
        """A path, its hops, and how much more than the channel's speed it takes of PCIe links."""
        known = self._hops.get((a, b))
        if known is not None:
            return known
        devices, links = self.system.devices, self.system.links
        path = self.table(a, b)
        overhead = 1.0
        from_gpu = devices[a].kind == Kind.GPU
        if path.type == PathType.PHB and from_gpu:
            passed = (devices[links[number].to] for number in path.links)
            chips = [d.cpu for d in passed if d.kind == Kind.CPU]
            if any((chip.arch, chip.vendor) == ("x86_64", "GenuineIntel") for chip in chips):
                overhead = _INTEL_OVERHEAD
        hops = []
        for number in path.links:
            link = links[number]
            far = devices[link.to]
            # a GPU before Ampere also answers what it receives
            answered = far.kind == Kind.GPU and far.capability < 80 and not from_gpu
            back = self.system.reverse[number] if answered else NONE
            hops.append((number, link.kind == LinkClass.PCI, back))
        self._hops[a, b] = path, tuple(hops), overhead
        return self._hops[a, b]

    def _book(self, hops: tuple[Hop, ...], bw: float, overhead: float) -> bool:
        """Take `bw` from every link of a path, or nothing where one has not enough left."""
        left = self.left
        for taken, (link, pcie, back) in enumerate(hops):
            need = bw * overhead if pcie else bw
            if left[link] < need or (back != NONE and left[back] < need / 8):
                self._unbook(hops[:taken], bw, overhead)
                return False
            left[link] = round(left[link] - need, 3)
            if back != NONE:
                left[back] = round(left[back] - need / 8, 3)
        return True

    def _unbook(self, hops: tuple[Hop, ...], bw: float, overhead: float) -> None:
        left = self.left
        for link, pcie, back in hops:
            need = bw * overhead if pcie else bw
            left[link] = round(left[link] + need, 3)
            if back != NONE:
                left[back] = round(left[back] + need / 8, 3)

    @contextmanager
    def _along(self, a: int, b: int, multiple: float = 1.0, *, halved: bool = False) -> Iterator[bool]:
        """Book the path from `a` to `b` while the block runs; yields whether there was room on it."""
        asked = self.asked
        path, hops, overhead = self._way(a, b)
        kinds = {self.system.devices[a].kind, self.system.devices[b].kind}
        inside = kinds <= {Kind.GPU, Kind.NVS}
        allowed = asked.type_intra if inside else asked.type_inter
        both = asked.pattern in (Pattern.BALANCED_TREE, Pattern.TREE, Pattern.SPLIT_TREE)
        far = path.type > allowed or (both and self.table(b, a).type > allowed)
        if path.type >= PathType.DIS or (multiple == 1 and far):
            yield False
            return
        bw = (asked.bw_intra if inside else asked.bw_inter) * multiple * (0.5 if halved else 1.0)
        if not self._book(hops, bw, overhead):
            yield False
            return
        added = np.float32(multiple) * np.float32(len(hops))
        self.work.hops = int(np.float32(self.work.hops) + added)
        yield True
        self.work.hops = int(np.float32(self.work.hops) - added)
        self._unbook(hops, bw, overhead)

    def run(self, asked: Channels, best: Channels, steps: int) -> tuple[Channels, int]:
        """Better channels than `best` of what is asked for, if there are; and how many steps are left."""
        self.asked, self.best, self.steps = asked, best, steps
        self.work = _Work()
        limit = sys.getrecursionlimit()
        # a step nests up to five calls, and channels nest in channels
        sys.setrecursionlimit(max(limit, 1000 + 8 * (len(self.gpus) + 4) * (asked.most + 1)))
        try:
            self._next_channel()
        finally:
            sys.setrecursionlimit(limit)
        return self.best, self.steps

    def _ends(self) -> tuple[int, int]:
        """At which GPU of a channel it goes back to the adapter, and from which to the first GPU."""
        last = len(self.gpus) - 1
        ring = self.asked.pattern == Pattern.RING
        if self.inter:
            if ring:
                return last, NONE
            return (1 if self.asked.pattern == Pattern.SPLIT_TREE else 0), NONE
        return NONE, (last if ring else NONE)

    def _next_channel(self) -> None:
        if self.inter:
            self._from_net()
            return
        number = len(self.work.intra)
        if self.asked.pattern == Pattern.NVLS:
            self._start(self.gpus[number], Order.SEARCHED)
            return
        if number == 0:
            self._start(self.gpus[0], Order.PCI)
        else:
            self._start(self.work.intra[-1][0], Order.REPLAYED)
        if number == 0 or not self.asked.same:
            for gpu in self.gpus:
                self._start(gpu, Order.SEARCHED)

    def _start(self, gpu: int, order: Order, net: int = NONE) -> None:
        """Begin a channel at a GPU, coming from an adapter where it comes from one."""
        to_net, to_first = self._ends()
        used, self.used = self.used, {gpu}
        self.work.intra.append([])
        self.work.inter.append([net, NONE])
        if net == NONE:
            self._at(gpu, 0, to_net, to_first, order)
        else:
            with self._along(net, gpu) as room:
                if room:
                    self._at(gpu, 0, to_net, to_first, order)
        self.work.intra.pop()
        self.work.inter.pop()
        self.used = used

    def _from_net(self) -> None:
        """Begin a channel at every adapter that has the speed left."""
        asked, work = self.asked, self.work
        whole = int(asked.bw_inter)  # adapters are counted in whole GB/s
        nets = self.select_nets(asked.type_inter)
        number = len(work.intra)
        heads = asked.pattern == Pattern.NVLS or (asked.pattern == Pattern.COLLNET_DIRECT and self.rules.since(22))
        turn = number if self.rules.since(19) else 0
        head_found = False
        for i in range(len(nets)):
            if heads and (head_found if self.rules.since(22) else i > 0):
                break
            net = nets[(turn + i) % len(nets)]
            device = self.system.devices[net]
            if (asked.collnet and not device.net.coll) or self.net_left[net] < whole:
                continue
            if self._paired() and number & 1 and net != work.inter[-1][1]:
                continue
            latency, work.latency = work.latency, device.net.latency
            same_card = [other for other in self.nets if self.card[other] == self.card[net]]
            for other in same_card:
                self.net_left[other] -= whole
            if heads:
                gpu = self.table.local_gpu[net]
                taken = {channel[0] for channel in work.intra}
                if number < len(nets) and gpu != NONE and gpu not in taken:
                    self._start(gpu, Order.SEARCHED, net)
                    head_found = True
            else:
                self._first_gpus(net, number)
            for other in same_card:
                self.net_left[other] += whole
            work.latency = latency

    def _first_gpus(self, net: int, number: int) -> None:
        """Begin at the GPUs that are worth trying for an adapter."""
        repeated = number > 0 and (self.asked.same or not self.rules.since(28))
        if repeated:
            self._start(self.work.intra[-1][0], Order.REPLAYED, net)
            if self.asked.same:
                return
        if number == 0 and not (self.switches and self.rules.since(19)):
            # as a reference; it does not count, nor does it run for long
            steps, self.steps = self.steps, _PCI_ORDER_STEPS
            self._start(self.gpus[0], Order.PCI, net)
            self.steps = FOUND_BEST if self.steps == FOUND_BEST else steps
        if self.rules.since(28):
            local = self.table.local_gpu[net]
            if local != NONE:
                self._start(local, Order.SEARCHED, net)
            near = self.table.nearest(net, self.gpus)
            if self.table(net, near[0]).type != PathType.DIS:
                for gpu in near:
                    if gpu != local:
                        self._start(gpu, Order.SEARCHED, net)
            return
        near_by = min((-self.table(net, g).bw, len(self.table(net, g).links)) for g in self.gpus)
        if -near_by[0] >= int(self.asked.bw_inter):
            turn = number if self.rules.since(19) else 0
            for i in range(len(self.gpus)):
                gpu = self.gpus[(turn + i) % len(self.gpus)]
                path = self.table(net, gpu)
                if (-path.bw, len(path.links)) == near_by:
                    self._start(gpu, Order.SEARCHED, net)

    def _paired(self) -> bool:
        """Return True where every second channel goes back the way that the one before came."""
        asked = self.asked
        if self.rules.since(23):
            return asked.pattern == Pattern.RING and asked.cross_nic == 2
        return bool(asked.cross_nic) and self.rules.since(19)

    def _at(self, gpu: int, step: int, to_net: int, to_first: int, order: Order) -> None:
        """Arrived at a GPU as the channel's `step`-th."""
        if self.steps <= 0:
            return
        self.steps -= 1
        asked, work = self.asked, self.work
        channel = work.intra[-1]
        channel.append(gpu)
        if step == to_net:
            self._to_net(gpu, step, to_first, order)
        elif asked.pattern == Pattern.NVLS:
            self._nvls_head(gpu)
        elif asked.pattern == Pattern.COLLNET_DIRECT:
            self._collnet_head(gpu)
        elif step < len(self.gpus) - 1:
            if order == Order.PCI:
                following = [self.gpus[step + 1]]
            elif order == Order.REPLAYED:
                following = [work.intra[-2][step + 1]]
            else:
                following = self._following(gpu, step, to_net)
            for other in following:
                with self._along(gpu, other) as room:
                    if room:
                        self.used.add(other)
                        self._at(other, step + 1, to_net, to_first, order)
                        self.used.discard(other)
        elif step == to_first:
            with self._along(gpu, channel[0]) as room:
                if room:
                    self._complete()
        else:
            self._complete()
        channel.pop()

    def _to_net(self, gpu: int, step: int, to_first: int, order: Order) -> None:
        """Leave the host by an adapter, then go on inside it if GPUs are left."""
        asked, work = self.asked, self.work
        balanced = asked.pattern == Pattern.BALANCED_TREE
        before = work.inter[-1][1]
        channel = work.intra[-1]
        for net in self.select_nets(asked.type_inter, gpu):
            if not self._may_leave(net, step):
                continue
            # the first two GPUs of a balanced tree share the adapter's traffic
            with self._along(gpu, net, halved=balanced) as room:
                if room:
                    work.inter[-1][1] = net
                    channel.pop()
                    self._at(gpu, step, 1 if balanced and step == 0 else NONE, to_first, order)
                    channel.append(gpu)
        work.inter[-1][1] = before

    def _may_leave(self, net: int, step: int) -> bool:
        asked, inter = self.asked, self.work.inter
        entered = inter[-1][0]
        if asked.pattern == Pattern.TREE and net != entered:
            return False
        if self.rules.since(23):
            if asked.pattern == Pattern.RING and asked.cross_nic == 2:
                if len(inter) % 2 == 0 and net != inter[-2][0]:
                    return False
            elif asked.cross_nic == 0 and self.card[net] != self.card[entered]:
                return False
        else:
            if asked.cross_nic != 1 and self.card[net] != self.card[entered]:
                return False
            if self._paired() and len(inter) % 2 == 0 and net != inter[-2][0]:
                return False
        return not (asked.pattern == Pattern.BALANCED_TREE and step and net != inter[-1][1])

    def _following(self, gpu: int, step: int, to_net: int) -> list[int]:
        """GPUs to try next, best first."""
        table, count = self.table, len(self.gpus)
        sort_net = 0 if to_net == NONE else (1 if to_net == step + 1 else -1)
        start = self.gpus.index(gpu)
        scores = []
        for i in range(1, count):
            other = self.gpus[(start + i) % count]
            path = table(gpu, other)
            if not path.links or other in self.used:
                continue
            inside = (-int(path.bw), len(path.links))
            outside = (0, 0, 0)
            if sort_net:
                out = table(self.work.inter[-1][0], other)
                outside = (-int(out.bw), -self.system.pcie_bw(other), len(out.links))
            scores.append(((*outside, *inside, i), inside, other))
        scores.sort()
        following = [other for _, _, other in scores]
        if sort_net == -1 and len({inside for _, inside, _ in scores}) <= 1:
            following.reverse()
        if not self.switches:
            return following
        # through NVSwitches few partners are better than many: neighbours by number only
        ahead, behind = self.gpus[(start + 1) % count], self.gpus[(start - 1) % count]
        pattern = self.asked.pattern
        if pattern == Pattern.RING:
            preferred = [ahead, behind]
        elif pattern in (Pattern.SPLIT_TREE, Pattern.BALANCED_TREE):
            preferred = [behind, ahead]
        else:
            preferred = [ahead]
        chosen: list[int] = []
        for other in dict.fromkeys(preferred):
            if other in following:
                chosen.insert(0, other)
        return chosen

    def _nvls_head(self, head: int) -> None:
        """A GPU that pulls and pushes for all through the NVLink switch: every GPU once, itself twice."""
        switch = self.switches[0]
        legs = [(switch, gpu) for gpu in self.gpus] + [(gpu, switch) for gpu in self.gpus]
        self._legs(legs, [2.0 if head in leg else 1.0 for leg in legs])

    def _collnet_head(self, head: int) -> None:
        """A GPU that gathers from all others directly and hands them the result."""
        share = 1.0 / (len(self.gpus) - 1)
        legs = [(head, gpu) for gpu in self.gpus if gpu != head] + [
            (gpu, head) for gpu in self.gpus if gpu != head
        ]
        channel = self.work.intra[-1]
        others = [gpu for gpu in self.gpus if gpu != head]
        channel.extend(others)
        self._legs(legs, [share] * len(legs))
        del channel[1:]

    def _legs(self, legs: list[tuple[int, int]], shares: list[float]) -> None:
        if not legs:
            self._complete()
            return
        with self._along(*legs[0], shares[0]) as room:
            if room:
                self._legs(legs[1:], shares[1:])

    def _complete(self) -> None:
        """All GPUs are visited: is this the best so far? Then look for one more channel."""
        if self.steps <= 0:
            return
        self.steps -= 1
        asked, work = self.asked, self.work
        count = len(work.intra)
        if self._improves(count):
            self.best = replace(
                asked,
                intra=tuple(tuple(channel) for channel in work.intra),
                inter=tuple((a, b) for a, b in work.inter),
                hops=work.hops,
                latency=work.latency,
            )
            if count == asked.most:
                self.steps = FOUND_BEST
        if count < asked.most:
            self._next_channel()

    def _improves(self, count: int) -> bool:
        asked, best = self.asked, self.best
        if count < asked.least:
            return False
        if asked.pattern == Pattern.NVLS:
            more = count > best.count and count <= len(self.gpus)
            return more or count * asked.bw_inter > best.count * best.bw_inter
        mine, other = count * asked.bw_intra, best.count * best.bw_intra
        if not math.isclose(mine, other, rel_tol=1e-6):
            return mine > other
        alike = asked.pattern == best.pattern and asked.cross_nic == best.cross_nic
        return alike and self.work.hops < best.hops
