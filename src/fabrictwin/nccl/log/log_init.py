"""NCCL's log of a communicator's initialisation, line by line, in the words of its release.

Formats are those of the public sources of 2.18.3 to 2.30.7 (src/init.cc, src/bootstrap.cc, src/graph/search.cc,
src/graph/tuning.cc, src/transport/net_ib). Ranks that would write at the same time are written in their order.
Left out: the print of the detected system below its headline (device and bus numbers would be made up), plugins
other than NCCL's own networks, profiling and registration.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE, Fabric, LinkKind
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.log.log import Line, Processes
from fabrictwin.nccl.lowering.transport import Transports
from fabrictwin.nccl.settings.algorithm_selection import ALGORITHMS, COLLECTIVES, PROTOCOLS
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.settings.version import version
from fabrictwin.nccl.topology.failures import Failure
from fabrictwin.nccl.topology.graph_types import Algorithm, Graph, PathType, Protocol
from fabrictwin.nccl.topology.ip_interfaces import Interface, chosen, interfaces
from fabrictwin.nccl.topology.net_devices import IB, SOCKET, has
from fabrictwin.nccl.tuning.tuner import Tuner

CUDA = "12.4"  # what the version line says NCCL was built with
DRIVER = 12040
# the source file that a warning names, by how it begins
PLACES = (
    ("Bootstrap", "bootstrap.cc"),
    ("Call to ibv", "misc/ibvwrap.cc"),
    ("NET/IB", "transport/net_ib.cc"),
    ("Network", "init.cc"),
)
INIT_GRAPHS = (
    Algorithm.RING,
    Algorithm.TREE,
    Algorithm.COLLNET_CHAIN,
    Algorithm.COLLNET_DIRECT,
    Algorithm.NVLS,
)


@record
class Scene:
    """A communicator and what its log needs to know."""

    communicator: Communicator
    settings: Settings
    transports: Transports
    processes: Processes
    tuner: Tuner

    @cached_property
    def minor(self) -> int:
        return version(self.communicator.version).minor

    @property
    def fabric(self) -> Fabric:
        fabric: Fabric = self.communicator.twin.fabric
        return fabric

    @property
    def network(self) -> str:
        return self.communicator.network.name

    def host(self, rank: int) -> int:
        return int(self.fabric.node_host[self.communicator.placement.rank_node[rank]])

    def taken(self, rank: int) -> tuple[Interface, ...]:
        """Interfaces that NCCL takes on a rank's host."""
        return chosen(self.settings, interfaces(self.fabric, self.host(rank)))

    def device(self, rank: int, adapter: int) -> int:
        """NCCL's number of an adapter on a rank's host."""
        return self.usable(rank).index(adapter)

    def usable(self, rank: int) -> list[int]:
        """The adapters of a rank's host that NCCL takes, in its order."""
        view = self.communicator.view(rank)
        first = int(self.communicator.hosts.first_adapter[self.communicator.placement.node_of_rank[rank]])
        return [first + view.system.devices[net].index for net in view.table.nets]

    def has(self, cause: str, rank: int) -> bool:
        """Return true if that is wrong with a rank's host."""
        return has(self.communicator.network.causes.get(self.host(rank), ()), cause) is not None

    def pointer(self, rank: int) -> str:
        return f"0x{0x55D0C0000000 + 0x10000 * rank:x}"

    def bus(self, rank: int) -> str:
        """A made-up bus number: `1b000` is 0000:1b:00.0."""
        return f"{(0x1B + 0x10 * self.processes.device(rank)) % 256:x}000"

    def name(self, rank: int) -> str:
        """The release's name of a communicator in its first and last line."""
        c = self.communicator
        number = self.processes.device(rank)
        who = "" if self.minor < 21 else "ncclCommInitRank "
        return (
            f"{who}comm {self.pointer(rank)} rank {rank} nranks {c.ranks} cudaDev {number} nvmlDev {number} "
            f"busId {self.bus(rank)} commId 0x{0x5EED0000 + c.ranks:x}"
        )


def initialisation(scene: Scene) -> Iterator[Line]:
    """Everything up to `Init COMPLETE`, or to the warning that ends it."""
    failed = scene.communicator.network.failure
    ranks = range(scene.communicator.ranks)
    for rank in ranks:
        if scene.processes.first_of_process(rank):
            yield from _opening(scene, rank)
            if failed is not None and failed.warning.startswith("Bootstrap") and failed.host == scene.host(rank):
                yield _warning(failed, rank)
                return
    for rank in ranks:
        if scene.processes.first_of_process(rank):
            yield from _network(scene, rank)
        yield Line(rank, f"Using network {scene.network}", ("INIT",))
        start = f"[Rank {rank}] " if scene.minor >= 30 else ""
        yield Line(rank, f"{start}{scene.name(rank)} - Init START", ("INIT",))
    for rank in ranks:
        yield from _topology(scene, rank)
    for rank in ranks:
        yield from _own_channels(scene, rank)
    yield from _rings_whole(scene)
    if failed is not None and not failed.connected:
        yield from warnings(scene)
        return
    for rank in ranks:
        yield from _tuning(scene, rank)
        yield Line(rank, _counts(scene), ("INIT",))
        yield Line(rank, f"{scene.name(rank)} - Init COMPLETE", ("INIT",))


def warnings(scene: Scene) -> Iterator[Line]:
    """Lines of the ranks on whose host it fails."""
    failed = scene.communicator.network.failure
    if failed is not None:
        ranks = [rank for rank in range(scene.communicator.ranks) if failed.host == scene.host(rank)]
        # of connections the first that fails; memory is registered by all
        yield from (_warning(failed, rank) for rank in (ranks if "ibv_reg_mr" in failed.warning else ranks[:1]))


def _warning(failed: Failure, rank: int) -> Line:
    place = next((place for start, place in PLACES if failed.warning.startswith(start)), "init.cc")
    return Line(rank, failed.warning, level="WARN", place=place)


def _opening(scene: Scene, rank: int) -> Iterator[Line]:
    for name, value in scene.settings.given:
        if name != "NCCL_IB_HCA":
            yield Line(rank, f"{name} set by environment to {value}", ("ENV",))
    taken = scene.taken(rank)
    if scene.settings.socket_ifname is not None:
        yield Line(rank, f"NCCL_SOCKET_IFNAME set to {scene.settings.socket_ifname.text}", ("NET",))
    if taken:
        mark = "Bootstrap :" if scene.minor < 24 else "Bootstrap:"
        yield Line(rank, f"{mark} Using {taken[0]}", ("INIT",) if scene.minor < 23 else ("BOOTSTRAP",))
    yield Line(rank, f"cudaDriverVersion {DRIVER}", ("INIT",))
    if rank == 0:
        yield Line(rank, f"NCCL version {scene.communicator.version}+cuda{CUDA}", level="VERSION")


def _network(scene: Scene, rank: int) -> Iterator[Line]:
    """One process's networks, as it looks at them."""
    both = ("INIT", "NET")
    settings = scene.settings
    if scene.minor == 21:
        yield Line(rank, "NET/Plugin: Using internal network plugin.", both)
    elif scene.minor < 21:
        yield Line(rank, "NET/Plugin : No plugin found, using internal implementation", both)
    elif scene.minor < 26:
        yield Line(rank, "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.", both)
    wanted_ib = not settings.ib_disable and (settings.net or "").lower() != "socket"
    if settings.ib_hca is not None and wanted_ib:
        yield Line(rank, f"NCCL_IB_HCA set to {settings.ib_hca.text}", ("NET", "ENV"))
    taken = scene.taken(rank)
    if wanted_ib:
        seen = visible(scene, rank)
        if not seen:
            yield Line(rank, "NET/IB : No device found.", both)
        else:
            relaxed = "[RO]" if settings.ib_pci_relaxed_ordering else ""
            names = "".join(f" [{i}]{_adapter(scene, adapter)}" for i, adapter in enumerate(seen))
            yield Line(rank, f"NET/IB : Using{names} {relaxed}; OOB {taken[0]}", both)
    if scene.network == SOCKET:
        names = "".join(f" [{i}]{each}" for i, each in enumerate(taken))
        yield Line(rank, f"NET/Socket : Using{names}", both)
    if scene.minor >= 26:
        yield Line(rank, f"Initialized NET plugin {scene.network}", both)
    if scene.network == IB:
        works = "Disabled" if scene.has("no-gpudirect-module", rank) else "Enabled"
        for i, adapter in enumerate(scene.usable(rank)):
            name = _adapter(scene, adapter).split(":")[0]
            yield Line(rank, f"NET/IB : GPU Direct RDMA {works} for HCA {i} '{name}'", ("NET",))


def visible(scene: Scene, rank: int) -> list[int]:
    """The adapters that NCCL's verbs see on a host: cabled, in the container, let through by NCCL_IB_HCA."""
    fabric, wanted = scene.fabric, scene.settings.ib_hca
    if scene.has("no-rdma-devices", rank):
        return []
    mine = np.flatnonzero(
        (fabric.node_host[fabric.nic_node] == scene.host(rank)) & (fabric.nic_port != NONE)
    ).tolist()
    names = {adapter: fabric.node_name(int(fabric.nic_node[adapter])).split("/")[-1] for adapter in mine}
    return [adapter for adapter in mine if wanted is None or wanted.allows(names[adapter], 1)]


def _adapter(scene: Scene, adapter: int) -> str:
    """`mlx5_0:1/IB`, or RoCE."""
    fabric = scene.fabric
    name = fabric.node_name(int(fabric.nic_node[adapter])).split("/")[-1]
    infiniband = fabric.port_kind[fabric.nic_port[adapter]] == LinkKind.INFINIBAND
    return f"{name}:1/{'IB' if infiniband else 'RoCE'}"


def _topology(scene: Scene, rank: int) -> Iterator[Line]:
    c = scene.communicator
    view = c.view(rank)
    yield Line(
        rank, f"=== System : maxBw {view.search.max_bw:2.1f} totalBw {view.search.total_bw:2.1f} ===", ("GRAPH",)
    )
    yield Line(rank, "==========================================", ("GRAPH",))
    local = int((c.placement.node_of_rank == c.placement.node_of_rank[rank]).sum())
    if scene.minor >= 20:
        yield Line(
            rank,
            f"comm {scene.pointer(rank)} rank {rank} nRanks {c.ranks} nNodes {c.nodes} localRanks {local} "
            f"localRank {int(c.placement.local_rank[rank])} MNNVL {int(view.system.parts > 1)}",
            ("INIT",),
        )
    for algorithm in INIT_GRAPHS:
        if algorithm in c.graphs:
            yield from _pattern(scene, rank, c.graphs[algorithm])
    there = "" if c.channels.nvls else "not "
    yield Line(
        rank, f"NVLS multicast support is {there}available on dev {scene.processes.device(rank)}", ("INIT",)
    )


def _pattern(scene: Scene, rank: int, graph: Graph) -> Iterator[Line]:
    yield Line(
        rank,
        f"Pattern {int(graph.pattern)}, crossNic {graph.cross_nic}, nChannels {graph.channels}, "
        f"bw {graph.bw_intra:f}/{graph.bw_inter:f}, type {graph.type_intra.name}/{_far(graph)}, "
        f"sameChannels {int(graph.same_channels)}",
        ("GRAPH",),
    )
    node = int(scene.communicator.placement.node_of_rank[rank])
    long = scene.minor >= 23
    for channel in range(graph.channels):
        nets = [
            "" if adapter == NONE else f" NET/{'0-' if long else ''}{scene.device(rank, adapter):x}"
            for adapter in _known(scene, rank, graph.inter[node, channel])
        ]
        members = [int(member) for member in graph.intra[node, channel] if member != NONE]
        if graph.algorithm == Algorithm.NVLS and scene.minor >= 27:
            members = members[:1]
        gpus = "".join(f" GPU/{f'0-{scene.bus(m)}' if long and scene.minor >= 27 else m}" for m in members)
        yield Line(rank, f"{channel:2d} :{nets[0]}{gpus}{nets[1]}", ("GRAPH",))


def _known(scene: Scene, rank: int, ends: np.ndarray) -> list[int]:
    usable = scene.usable(rank)
    return [int(adapter) if int(adapter) in usable else NONE for adapter in ends]


def _far(graph: Graph) -> str:
    # a single host's graph starts from PIX and finds nothing to lengthen it
    return PathType(max(graph.type_inter, PathType.PIX)).name


def _own_channels(scene: Scene, rank: int) -> Iterator[Line]:
    """A rank's place in rings and trees."""
    c = scene.communicator
    n = c.ranks
    trees = []
    for channel in range(c.channels.collective):
        order = c.channels.rings.order[channel]
        at = int(np.flatnonzero(order == rank)[0])
        before, after = int(order[at - 1]), int(order[(at + 1) % n])
        yield Line(rank, f"Ring {channel:02d} : {before} -> {rank} -> {after}", ("GRAPH",))
        down = "/".join(str(int(child)) for child in c.channels.trees.down[channel, rank])
        trees.append(f" [{channel}] {down}->{rank}->{int(c.channels.trees.up[channel, rank])}")
    yield Line(rank, f"Trees{''.join(trees)}"[:1023], ("INIT",))
    chunk = scene.settings.p2p_net_chunksize if c.nodes > 1 else scene.settings.p2p_nvl_chunksize
    if c.nodes == 1 and c.graphs[Algorithm.RING].type_intra > PathType.NVB:
        chunk = scene.settings.p2p_pci_chunksize
    yield Line(rank, f"P2P Chunksize set to {chunk}", ("INIT",))


def _rings_whole(scene: Scene) -> Iterator[Line]:
    c = scene.communicator
    width = len(str(c.ranks - 1)) if scene.minor >= 23 else 3
    for channel in range(c.channels.collective):
        shown = c.channels.rings.order[channel] if scene.minor >= 23 else c.channels.rings.order[channel, :20]
        order = "".join(f" {int(rank):{width}d}" for rank in shown)
        yield Line(0, f"Channel {channel:02d}/{c.channels.collective:02d} :{order}"[:1020], ("INIT",))


def _tuning(scene: Scene, rank: int) -> Iterator[Line]:
    tables = scene.tuner.tables
    if rank == 0:
        algorithms = list(Algorithm)[: 7 if scene.minor >= 23 else 6]
        for start in range(0, len(algorithms), 3):
            block = algorithms[start : start + 3]
            blank = ""
            yield Line(
                rank,
                "  Algorithm   |" + "".join(f" {blank:14}   {ALGORITHMS[a]:>14}   {blank:14} |" for a in block),
                ("TUNING",),
            )
            yield Line(
                rank,
                "  Protocol    |" + "".join(f" {name:>14} |" for _ in block for name in PROTOCOLS),
                ("TUNING",),
            )
            counts = "".join(f" {tables.max_threads[a, p]:14d} |" for a in block for p in Protocol)
            yield Line(rank, " Max NThreads |" + counts, ("TUNING",))
            for collective in COLLECTIVES:
                cells = "".join(
                    f"{tables.latency[collective, a, p]:8.1f}/{tables.bandwidth[collective, a, p]:6.1f} |"
                    for a in block
                    for p in Protocol
                )
                yield Line(rank, f"{collective:>13} |{cells}", ("TUNING",))
    of = tables.thread_threshold
    plugin = scene.tuner.plugin
    if plugin is not None:
        name = "tuner plugin nccl_ofi_tuner" if scene.minor < 28 else "nccl_ofi_tuner (v3)"
        if scene.minor >= 30:
            name = "nccl_ofi_tuner (v6)"
        yield Line(rank, f"TUNER/Plugin: Using {name}", ("ENV" if scene.minor < 28 else "INIT", "TUNING"))
        for text in (
            f"Region base Tuner is chosen for platform: {plugin.platform}",
            f"Tuner init: comm with {plugin.ranks} ranks and {plugin.nodes} nodes.",
        ):
            yield Line(rank, f"NET/OFI {text}", ("INIT", "TUNING"))
    three = ["/".join(str(of[a, p]) for p in Protocol) for a in (Algorithm.TREE, Algorithm.RING)]
    collnet = [of[a, Protocol.SIMPLE] for a in (Algorithm.COLLNET_DIRECT, Algorithm.COLLNET_CHAIN)]
    yield Line(rank, f"threadThresholds {three[0]} | {three[1]} | {collnet[0]} | {collnet[1]}", ("INIT",))


def _counts(scene: Scene) -> str:
    channels = scene.communicator.channels
    collnet = f"{channels.collective} collnet channels, " if scene.minor >= 20 else ""
    if scene.minor == 20 and Algorithm.COLLNET_CHAIN not in scene.communicator.graphs:
        collnet = "0 collnet channels, "
    return (
        f"{channels.collective} coll channels, {collnet}{channels.nvls} nvls channels, "
        f"{channels.p2p} p2p channels, {channels.p2p_per_peer} p2p channels per peer"
    )
