"""Paths between devices as NCCL computes them: how wide, how far, over which links.

Each round of the breadth-first search offers every neighbour of what changed a path; a device takes it where
the release's rule calls it better. A GPU passes traffic on only once, between GPUs that NVLink joins to it.
Afterwards come the detours: GPUs that must not reach each other directly go through a processor, GPUs far from
an adapter through one that is near it (PXN), and adapters without GPUDirect RDMA through the processor.

Source: NCCL 2.30.7 and 2.18.3, src/graph/paths.cc and topo.cc (`ncclTopoGetLocal...`).
"""

from __future__ import annotations

from typing import NamedTuple

from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.nccl.constants import LOCAL_GBPS
from fabrictwin.nccl.settings.release_rules import Rules
from fabrictwin.nccl.topology.graph_types import PathType
from fabrictwin.nccl.topology.system import Kind, LinkClass, System


class Path(NamedTuple):
    """From one device to another."""

    type: PathType
    bw: float  # GB/s of its narrowest link
    links: tuple[int, ...]


NO_PATH = Path(PathType.DIS, 0.0, ())


class _Step(NamedTuple):
    """A link, followed from a device."""

    to: int
    type: PathType
    bw: float
    back: int  # the link that leads back
    passes: bool  # whether a path that goes through a GPU may take it


@record
class Policy:
    """The rules for detours, from settings and the state of the host."""

    p2p_level: PathType | None = None  # farthest that GPUs reach each other directly; None is NCCL's own choice
    gdr_level: PathType | None = None  # farthest that adapter and GPU do; None likewise
    gdr_read: bool | None = None  # whether adapters read GPU memory (sends); None likewise
    gdr_c2c: bool = True
    pxn: bool = True
    pxn_c2c: bool = True
    nvb: bool = True


class PathTable:
    """All paths of a system that detection and search ask for. Device numbers are the system's."""

    def __init__(self, system: System, rules: Rules, policy: Policy) -> None:
        self.system, self.rules, self.policy = system, rules, policy
        self._by_type = rules.since(30)
        self._paths: dict[tuple[int, int], Path] = {}
        self._nearest_gpu: dict[int, int] = {}  # of each adapter, until a path changes
        self._nearest: dict[
            int, dict[tuple[int, ...], tuple[int, ...]]
        ] = {}  # likewise, until one of its own does
        self.cpus, self.gpus = system.of(Kind.CPU), system.of(Kind.GPU)
        self.nets, self.switches = system.of(Kind.NET), system.of(Kind.NVS)
        self._steps = [[self._step(number) for number in out] for out in system.out]
        for base in (*self.cpus, *self.gpus, *self.nets, *self.switches):
            self._spread(base)
        self._avoid_direct_gpus()
        self._prefer_c2c()
        self.local_gpu: dict[int, int] = {}
        self._detour_adapters()
        self.local_gpu = {net: self.nearest_gpu(net) for net in self.nets}

    def __call__(self, a: int, b: int) -> Path:
        """The path from `a` to `b`."""
        return self._paths.get((a, b), NO_PATH)

    def _spread(self, base: int) -> None:
        """Paths from every device to `base`."""
        paths, steps, devices = self._paths, self._steps, self.system.devices
        paths[base, base] = Path(PathType.LOC, LOCAL_GBPS, ())
        now = [base]
        while now:
            later: list[int] = []
            for device in now:
                path = paths[device, base]
                length = len(path.links)
                passed = device != base and devices[device].kind == Kind.GPU
                for far, kind, bw, back, passes in steps[device]:
                    if passed:
                        if not passes or length != 1:
                            continue
                        if path.type == kind:
                            kind = PathType.NVB
                    farthest = kind if kind > path.type else path.type
                    narrowest = bw if bw < path.bw else path.bw
                    if self._better(farthest, narrowest, length, paths.get((far, base), NO_PATH)):
                        paths[far, base] = Path(farthest, narrowest, (back, *path.links))
                        if far not in later:
                            later.append(far)
            now = later

    def _step(self, number: int) -> _Step:
        """Return what a link adds to a path to where it begins."""
        system = self.system
        link = system.links[number]
        kinds = system.devices[link.source].kind, system.devices[link.to].kind
        kind = PathType.LOC if link.kind == LinkClass.NET else PathType(link.kind)
        if kinds == (Kind.PCI, Kind.PCI):
            kind = PathType.PXB
        if link.kind == LinkClass.PCI and Kind.CPU in kinds:
            kind = PathType.PHB
        passes = self.policy.nvb and kinds == (Kind.GPU, Kind.GPU) and link.kind == LinkClass.NVL
        return _Step(link.to, kind, link.bw, system.reverse[number], passes)

    def _better(self, kind: PathType, bw: float, length: int, known: Path) -> bool:
        """Tell whether a device takes a path of such a kind and width over the one that it knows.

        `length` is the links of the path that it makes longer.
        """
        if self._by_type:
            return (kind, -bw, length + 1) < (known.type, -known.bw, len(known.links))
        # earlier releases look for width alone, and do not lengthen a path
        return known.bw < bw and (known.bw == 0 or len(known.links) > length)

    def nearest_cpu(self, gpu: int) -> int:
        """The processor that a GPU is at."""
        near = self.nearest(gpu, self.cpus)
        return min(near, key=lambda cpu: (len(self(gpu, cpu).links), near.index(cpu)))

    def nearest(self, device: int, among: tuple[int, ...]) -> tuple[int, ...]:
        """Those that a device has the widest, then shortest paths to."""
        known = self._nearest.setdefault(device, {})
        if among not in known:
            paths = [self._paths.get((device, far), NO_PATH) for far in among]
            rank = [(-path.bw, path.type) for path in paths]
            best = min(rank, default=None)
            known[among] = tuple(far for far, one in zip(among, rank, strict=True) if one == best)
        return known[among]

    def preferred_nets(self, gpu: int) -> list[int]:
        """All adapters that a GPU uses, in order of channels, spread over GPUs that share adapters."""
        nets = self.nearest(gpu, self.nets)
        if not nets:
            return []
        sharing = len(self.nearest(nets[0], self.gpus))
        start = self.system.devices[gpu].index
        if self.rules.since(29):
            start %= sharing
        if len(nets) & (len(nets) - 1) == 0:
            start = _mirrored(start, len(nets))
        return [nets[(start + turn) % len(nets)] for turn in range(-(-len(nets) // sharing))]

    def nearest_gpu(self, net: int) -> int:
        """The GPU that uses an adapter first; NONE where none does."""
        if net not in self._nearest_gpu:
            self._nearest_gpu[net] = self._find_nearest_gpu(net)
        return self._nearest_gpu[net]

    def _find_nearest_gpu(self, net: int) -> int:
        near = self.nearest(net, self.gpus)
        order = {gpu: self.preferred_nets(gpu) for gpu in near}
        rounds = [(order[gpu].index(net), i, gpu) for i, gpu in enumerate(near) if net in order[gpu]]
        return min(rounds)[2] if rounds else NONE

    def direct(self, a: int, b: int) -> bool:
        """Return true if two GPUs reach each other's memory."""
        path = self(a, b)
        level = self.policy.p2p_level
        if level is None:
            level = PathType.PXB
            if self.cpus and self.system.devices[self.cpus[0]].cpu.amd and len(self.gpus) <= 2:
                level = PathType.SYS
        return path.type <= level

    def gpudirect(self, gpu: int, net: int, *, read: bool) -> bool:
        """Return true if an adapter reaches a GPU's memory; `read` is for sends."""
        devices = self.system.devices
        if not (devices[gpu].gdr and devices[net].gdr):
            return False
        if read:
            if self.policy.gdr_read is False:
                return False
            if self.policy.gdr_read is None and devices[gpu].capability < 80 and len(self.gpus) > 1:
                others = (other for other in self.gpus if other != gpu)
                if not any(self(gpu, other).type == PathType.NVL for other in others):
                    return False
        level = self.policy.gdr_level
        if level is None:
            level = PathType.P2C if self.policy.gdr_c2c and self.rules.since(27) else PathType.PXB
        path = self(gpu, net)
        if path.type == PathType.PXN:
            path = self(self.relay(gpu, net), net)
        return path.type <= level

    def relay(self, gpu: int, net: int) -> int:
        """The GPU that passes a GPU's traffic to an adapter: itself, unless the path goes through another."""
        if self(gpu, net).type != PathType.PXN:
            return gpu
        links = self.system.links
        passed = (links[number].to for number in self(gpu, net).links)
        return next(device for device in passed if self.system.devices[device].kind == Kind.GPU)

    def _through(self, a: int, middle: int, b: int) -> None:
        """Replace the path from `a` to `b` by one through another device."""
        first, second = self(a, middle), self(middle, b)
        if self.system.devices[middle].kind == Kind.GPU:
            kind = PathType.PXN
        else:
            kind = _merged(first.type, second.type)
        self._change(a, b, Path(kind, min(first.bw, second.bw), first.links + second.links))

    def _change(self, a: int, b: int, path: Path) -> None:
        self._paths[a, b] = path
        self._nearest_gpu.clear()
        self._nearest.pop(a, None)

    def _avoid_direct_gpus(self) -> None:
        for g in self.gpus:
            for p in self.gpus:
                if not self.direct(p, g):
                    self._through(p, self.nearest_cpu(g), g)

    def _prefer_c2c(self) -> None:
        """An adapter nearest to a GPU whose processor it hangs on counts as near, over the GPU's own link."""
        if not self.rules.since(27):
            return
        for g in self.gpus:
            cpu = self.nearest_cpu(g)
            for n in self.nearest(g, self.nets):
                if _merged(self(g, cpu).type, self(n, cpu).type) == PathType.P2C:
                    for ends in ((g, n), (n, g)):
                        path = self(*ends)
                        self._change(*ends, path._replace(type=min(PathType.P2C, path.type)))

    def _detour_adapters(self) -> None:
        devices = self.system.devices
        near = PathType.P2C if self.rules.since(27) and self.policy.pxn_c2c else PathType.PXB
        for n in self.nets:
            for g in self.gpus:
                if self.policy.pxn:
                    p = self.nearest_gpu(n)
                    if p not in (g, NONE) and (
                        self(p, n).type <= near
                        and (self.gpudirect(p, n, read=True) or not self.rules.since(28))
                        and self(p, g).type <= PathType.NVL
                        and devices[p].part == devices[g].part
                        and (
                            self(p, n).bw > self(g, n).bw
                            or self(g, n).type > (PathType.PXN if self.rules.since(27) else PathType.PXB)
                        )
                    ):
                        self._through(g, p, n)
                if self(g, n).type < PathType.PHB and not self.gpudirect(g, n, read=False):
                    cpu = self.nearest_cpu(g)
                    self._through(n, cpu, g)
                    self._through(g, cpu, n)


def _merged(a: PathType, b: PathType) -> PathType:
    far, near = max(a, b), min(a, b)
    return PathType.P2C if far == PathType.PHB and near == PathType.C2C else far


def _mirrored(value: int, power: int) -> int:
    """The bits of a number below a power of two in reverse."""
    bits = power.bit_length() - 1
    return sum(1 << (bits - 1 - b) for b in range(bits) if value >> b & 1)
