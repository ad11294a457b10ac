"""Looking for channels inside one host: a recursive search that books bandwidth on links as it goes.

A channel visits every GPU of the host once, along paths that still have the channel's speed left and are not
farther than allowed; between hosts it enters and leaves by adapters. When a channel is complete the search goes on
for the next one over what bandwidth is left, keeps the best set of channels that it has seen, and takes back what
it booked. It gives up after a number of steps, so the order in which it tries GPUs and adapters is part of the
answer. The search itself is compiled (`kernel.nccl.channel_search`); here the host is put into arrays for it.

Source: NCCL 2.30.7, 2.21.5 and 2.18.3, src/graph/search.cc.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.nccl.constants import INTEL_OVERHEAD, LOCAL_GBPS
from fabrictwin.nccl.topology.graph_types import PathType, Pattern
from fabrictwin.nccl.topology.system import Kind, LinkClass
from fabrictwin.nccl.topology.topology_paths import PathTable

FOUND_BEST = -1  # steps left once nothing better can be found


@record
class Channels:
    """Channels asked for, and those found. GPUs and adapters are device numbers of the system."""

    pattern: Pattern
    bw_intra: float
    bw_inter: float
    type_intra: PathType
    type_inter: PathType
    cross_nic: int
    same: bool  # every channel visits the GPUs in the same order
    least: int  # channels
    most: int
    collnet: bool = False
    intra: tuple[tuple[int, ...], ...] = ()  # heads only where the pattern is NVLS
    inter: tuple[tuple[int, int], ...] = ()
    hops: float = 0.0
    latency: float = 0.0

    @property
    def count(self) -> int:
        return len(self.intra)


class Search:
    """Searches one system. `inter` says whether channels leave the host."""

    def __init__(self, table: PathTable, *, inter: bool) -> None:
        self.table, self.inter = table, inter
        self.system, self.rules = table.system, table.rules
        self.gpus, self.nets, self.switches = table.gpus, table.nets, table.switches
        self._selected: dict[tuple[PathType, int], list[int]] = {}
        self.max_bw, self.total_bw = self._limits()

    def _limits(self) -> tuple[float, float]:
        """Widest path of a channel, and all that one GPU can carry, in GB/s."""
        if not self.inter and len(self.gpus) == 1:
            return LOCAL_GBPS, LOCAL_GBPS
        widest = total = 0.0
        for gpu in self.gpus:
            far = self.nets if self.inter else self.gpus
            widest = max([widest, *(self.table(gpu, other).bw for other in far if other != gpu)])
            links = [self.system.links[number] for number in self.system.out[gpu]]
            nvlink = sum(link.bw for link in links if link.kind == LinkClass.NVL)
            pcie = [link.bw for link in links if link.kind == LinkClass.PCI]
            total = max(total, nvlink, pcie[-1] if pcie else 0.0)
        return widest, total

    def run(self, asked: Channels, best: Channels, steps: int) -> tuple[Channels, int]:
        """Better channels than `best` of what is asked for, if there are; and how many steps are left."""
        from fabrictwin.kernel.nccl import channel_links as links
        from fabrictwin.kernel.nccl import channel_search as kernel

        gpus, nets = len(self.gpus), len(self.nets)
        rules = self.rules
        question = links.Asked(
            inter=self.inter,
            pattern=int(asked.pattern),
            bw_intra=float(asked.bw_intra),
            bw_inter=float(asked.bw_inter),
            type_intra=int(asked.type_intra),
            type_inter=int(asked.type_inter),
            cross_nic=asked.cross_nic,
            same=asked.same,
            least=asked.least,
            most=asked.most,
            collnet=asked.collnet,
            try_nets=self._try_nets(asked.type_inter),
            take_turns=rules.since(19),
            heads_once=rules.since(22),
            pairs_rings=rules.since(23),
            pairs=rules.since(19),
            local_first=rules.since(28),
        )
        devices = self.system.devices
        # what was found before has at most as many channels
        size = max(asked.most, best.count)
        work = links.Work(
            left=np.array([link.bw for link in self.system.links]),
            net_left=np.array([devices[net].net.bw for net in self.nets]),
            intra=np.full((size, gpus), NONE, np.int64),
            inter=np.full((size, 2), NONE, np.int64),
            used=np.zeros((size, gpus), np.bool_),
            next=np.zeros((size, gpus, gpus), np.int16),
            score=np.zeros((gpus, 6), np.int64),
            frame=np.zeros(((size + 1) * (gpus + 6), kernel.FRAME), np.int64),
            number=np.array([steps, 0], np.int64),
            hops=np.zeros(1),
            best_intra=np.full((size, gpus), NONE, np.int64),
            best_inter=np.full((size, 2), NONE, np.int64),
            best=np.array(
                [best.count, best.bw_intra, best.bw_inter, best.pattern, best.cross_nic, best.hops, 0.0, 0.0]
            ),
        )
        kernel.search(self._routes, question, work)
        left = int(work.number[0])
        if not work.best[7]:
            return best, left
        count = int(work.best[0])
        heads = asked.pattern == Pattern.NVLS
        gpu_of, net_of = np.array(self.gpus), np.array([*self.nets, NONE])
        found = replace(
            asked,
            intra=tuple(tuple(gpu_of[row[: 1 if heads else gpus]].tolist()) for row in work.best_intra[:count]),
            inter=tuple((int(a), int(b)) for a, b in net_of[work.best_inter[:count]])
            if nets
            else ((NONE, NONE),) * count,
            hops=float(work.best[5]),
            latency=float(work.best[6]),
        )
        return found, left

    def _try_nets(self, farthest: PathType) -> np.ndarray:
        """[GPUs + 1, adapters] what to try, as indices; the last row is for any GPU."""
        index = {net: i for i, net in enumerate(self.nets)}
        tries = np.full((len(self.gpus) + 1, max(len(self.nets), 1)), NONE, np.int64)
        if self.inter:
            for row, gpu in enumerate((*self.gpus, NONE)):
                chosen = [index[net] for net in self.select_nets(farthest, gpu)]
                tries[row, : len(chosen)] = chosen
        return tries

    def select_nets(self, farthest: PathType, gpu: int = NONE) -> list[int]:
        """Adapters to try, for one GPU or all: those that GPUs prefer, then all that are near enough."""
        known = self._selected.get((farthest, gpu))
        if known is not None:
            return known
        gpus = self.gpus if gpu == NONE else (gpu,)
        found: dict[int, None] = {}
        if self.rules.since(20):
            preferred = [self.table.preferred_nets(g) for g in gpus]
            if self.system.parts > 1 and self.rules.since(25):
                for turn in range(max(map(len, preferred), default=0)):
                    found |= dict.fromkeys(nets[turn] for nets in preferred if turn < len(nets))
            else:
                for nets in preferred:
                    found |= dict.fromkeys(nets)
        for kind in range(farthest + 1):
            for g in gpus:
                nets = [n for n in self.nets[: self.rules.max_channels] if self.table(g, n).type == kind]
                if nets and not self.rules.since(20):
                    turn = self.system.devices[g].index % len(nets)
                    nets = nets[turn:] + nets[:turn]
                found |= dict.fromkeys(nets)
        self._selected[farthest, gpu] = list(found)
        return self._selected[farthest, gpu]

    @cached_property
    def _routes(self) -> Any:
        """The host as arrays."""
        from fabrictwin.kernel.nccl import channel_links as links

        system, table = self.system, self.table
        ends = (*self.gpus, *self.nets, *self.switches[:1])
        nets = self.nets
        start, link, pcie, back = [0], [], [], []
        kind = np.full((len(ends), len(ends)), PathType.DIS, np.int64)
        width, overhead = np.zeros(kind.shape), np.ones(kind.shape)
        for i, a in enumerate(ends):
            from_gpu = system.devices[a].kind == Kind.GPU
            for j, b in enumerate(ends):
                path = table(a, b)
                kind[i, j], width[i, j] = path.type, path.bw
                passed = [system.devices[system.links[number].to] for number in path.links]
                if path.type == PathType.PHB and from_gpu and any(d.cpu.intel for d in passed):
                    overhead[i, j] = INTEL_OVERHEAD
                for number, far in zip(path.links, passed, strict=True):
                    link.append(number)
                    pcie.append(system.links[number].kind == LinkClass.PCI)
                    # a GPU before Ampere also answers what it receives
                    answers = far.kind == Kind.GPU and far.capability < 80 and not from_gpu
                    back.append(system.reverse[number] if answers else NONE)
                start.append(len(link))
        cards = [(system.devices[net].net.asic, system.devices[net].net.number) for net in nets]
        gpu_index = {gpu: i for i, gpu in enumerate(self.gpus)} | {NONE: NONE}
        near = np.full((max(len(nets), 1), len(self.gpus)), NONE, np.int64)
        nearest = np.zeros(near.shape, np.bool_)
        for n, net in enumerate(nets):
            close = [gpu_index[gpu] for gpu in table.nearest(net, self.gpus)]
            near[n, : len(close)] = close
            by = [(-table(net, gpu).bw, len(table(net, gpu).links)) for gpu in self.gpus]
            nearest[n] = [key == min(by) for key in by]
        return links.Routes(
            gpus=len(self.gpus),
            nets=len(nets),
            switches=min(1, len(self.switches)),
            start=np.array(start, np.int64),
            link=np.array(link, np.int64),
            pcie=np.array(pcie, np.bool_),
            back=np.array(back, np.int64),
            kind=kind,
            width=width,
            overhead=overhead,
            pcie_bw=np.array([system.pcie_bw(gpu) for gpu in self.gpus], np.int64),
            card=np.array([cards.index(card) for card in cards], np.int64),
            reduces=np.array([system.devices[net].net.coll for net in nets], np.bool_),
            latency=np.array([system.devices[net].net.latency for net in nets], np.float64),
            local=np.array([gpu_index[table.local_gpu[net]] for net in nets], np.int64),
            near=near,
            nearest=nearest,
        )
