"""Communications of a job as NCCL runs them: its own choice, channels, connections and costs.

Every group is a communicator. Groups that lie alike on their hosts (the same GPUs of hosts, as often) are
initialised once; the others are the same with other ranks, adapters and processors. Gradients are reduced as the
spec says where it does say how; a pipeline's messages and experts' exchanges are sends.

Left out: that collectives of different groups share a GPU's thread blocks, and copies of NCCL's buffers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I32, I64, starts_of
from fabrictwin.base.capabilities import capabilities_of
from fabrictwin.base.records import record
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.faults import HostCause, host_causes
from fabrictwin.cluster.spec.calibration_file import CollectiveCorrections
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.nccl.communicator.communicator import Communicator, initialise
from fabrictwin.nccl.lowering.lower import IN_SWITCH, NAMES, Lowering
from fabrictwin.nccl.lowering.tasks import COLLECTIVE, Kind, Task
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.settings.spec_section import job_settings
from fabrictwin.nccl.topology.graph_types import Algorithm
from fabrictwin.nccl.tuning.step_costs import calibration
from fabrictwin.nccl.tuning.tuner import Call, Choice, Tuner, shape_of
from fabrictwin.program import patterns
from fabrictwin.program.program import Channels, Communication, Connections, Seat

_EDGES_KEPT = 1 << 18  # of what was lowered for one communicator
LibraryOf = Callable[[Spec, Blueprint, Fabric, I32], "Library | None"]


@record
class Hosts:
    """The hosts of a cluster as NCCL sees them."""

    fabric: Fabric
    host_causes: dict[int, tuple[HostCause, ...]]


def library_of(spec: Spec, blueprint: Blueprint, fabric: Fabric, rank_node: I32) -> Library | None:
    """NCCL as the spec's `nccl:` says, on its hosts; None where its collectives are the simple ones.

    Algorithms that the spec's engine cannot play are left to none. Raises ConfigError with file and line.
    """
    settings = job_settings(spec)
    if settings is None:
        return None
    corrections = None if spec.calibration is None else spec.calibration.collectives
    without = () if capabilities_of(spec.run.fidelity).reduces_in_switches else IN_SWITCH
    return Library(Hosts(fabric, host_causes(blueprint, spec)), rank_node, settings, corrections, without)


class KeptLibraries:
    """Libraries by what they depend on, for who asks about many jobs: a job's sizes and constants change none.

    Communicators are initialised, and communications lowered, once for all jobs on the same ranks of one cluster.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: dict[tuple[str, bytes], Library | None] = {}  # the one that was used last is the last

    def __call__(self, spec: Spec, blueprint: Blueprint, fabric: Fabric, rank_node: I32) -> Library | None:
        """Return what `library_of` does, with what is known of communicators already."""
        beside = spec.model_copy(update={"name": "", "workload": {}})
        key = beside.model_dump_json(by_alias=True), rank_node.tobytes()
        library = self._kept.pop(key) if key in self._kept else library_of(spec, blueprint, fabric, rank_node)
        self._kept[key] = library
        if len(self._kept) > self.most:
            del self._kept[next(iter(self._kept))]
        return None if library is None else replace(library, replaced=set())


@record
class _Known:
    """A communicator that stands for all that lie like it."""

    rank_node: I32  # [n] its own GPUs
    lowering: Lowering
    tuner: Tuner
    lowered: dict[Task, _Lowered] = field(default_factory=dict)


@record
class _Lowered:
    """A communication of one group."""

    communication: Communication
    replaced: tuple[str, str, str] | None = None  # see `Library.replaced`

    @property
    def connections(self) -> Connections:
        """Its connections, which NCCL's lowering gives every communication."""
        found = self.communication.transport.connections
        assert found is not None
        return found

    @cached_property
    def edges(self) -> patterns.Edges:
        return patterns.edges(self.communication.channels)

    @property
    def layout(self) -> tuple[object, ...]:
        """A key of who is where in it, over which connections: the same for other sizes."""
        channels = self.communication.channels
        columns = channels.rank_start, channels.ranks, channels.parent, channels.shift, channels.seats
        return (id(self.connections), *(column.tobytes() for column in columns))


@record
class _Placed:
    """Where the channels of all groups are that act together: what is the same for other sizes."""

    rank_start: I32
    ranks: I32
    parent: I32
    shift: I32
    seat: npt.NDArray[np.int8] | None
    connections: Connections
    of: tuple[_Lowered, ...]  # what it was made from


@record
class _Kept:
    """Findings about groups that were asked about."""

    lie: dict[bytes, list[tuple[bytes, I64]]] = field(default_factory=dict)  # how, and which of them, by digest
    placed: dict[tuple[object, ...], _Placed] = field(default_factory=dict)
    tuners: dict[tuple[object, ...], Tuner] = field(default_factory=dict)  # by what the cost model reads


@dataclass
class Library:
    """NCCL on the ranks of one job."""

    hosts: Hosts
    rank_node: I32
    settings: Settings
    corrections: CollectiveCorrections | None = None  # of the spec's calibration
    without: tuple[Algorithm, ...] = ()  # that the engine cannot play
    # (collective, algorithm of NCCL's choice, the one instead)
    replaced: set[tuple[str, str, str]] = field(default_factory=set)
    _known: dict[bytes, _Known] = field(default_factory=dict)
    _kept: _Kept = field(default_factory=_Kept)

    def collective(
        self, kind: Kind, groups: I64, size_bytes: int, *, element_bytes: int, name: str, root: int = 0
    ) -> Communication:
        """One collective on groups that act together. Raises ConfigError, and SimulatedError where NCCL does."""
        return self._together(groups, Task(kind, size_bytes, element_bytes, root), name)

    def send(self, pairs: I64, size_bytes: int, *, name: str) -> Communication:
        """One message from the first to the second of every pair."""
        sent = self._together(pairs, Task("scatter", 2 * size_bytes, 1), name)
        return replace(sent, kind="send", size_bytes=size_bytes)

    def _together(self, groups: I64, task: Task, name: str) -> Communication:
        groups = np.asarray(groups, np.int64)
        digest, alike = self._alike(groups)
        known = [self._communicator(lie, groups[members[0]]) for lie, members in alike]
        parts = [self._lowered(one, task) for one in known]
        members = [groups[rows] for _, rows in alike]
        key = (digest, *(part.layout for part in parts))
        if key not in self._kept.placed:
            placed = self._place(parts, members, known)
            if sum(len(each.connections) for each in self._kept.placed.values()) > _EDGES_KEPT:
                self._kept.placed.clear()
            self._kept.placed[key] = placed
        placed, whole = self._kept.placed[key], parts[0].communication
        channels = [part.communication.channels for part in parts]
        columns = {name: _tiled(channels, members, name) for name in _BY_CHANNEL}
        joined = Channels(
            rank_start=placed.rank_start,
            ranks=placed.ranks,
            parent=placed.parent,
            shift=placed.shift,
            seat=placed.seat,
            element_bytes=whole.channels.element_bytes,
            **columns,
        )
        # what is charged once for all is the slowest's
        each = [part.communication for part in parts]
        costs = replace(whole.costs, base_ps=max(one.costs.base_ps for one in each))
        rate_share = min(one.transport.rate_share for one in each)
        transport = replace(whole.transport, rate_share=rate_share, connections=placed.connections)
        return replace(whole, name=name, groups=len(groups), channels=joined, costs=costs, transport=transport)

    def _lowered(self, known: _Known, task: Task) -> _Lowered:
        """Lower a task once for all groups that lie alike. Raises ConfigError."""
        if task not in known.lowered:
            choice, replaced = self._choice(known.tuner, task) if task.kind in COLLECTIVE else (None, None)
            one = known.lowering(task, choice)
            if sum(len(each.connections) for each in known.lowered.values()) > _EDGES_KEPT:
                known.lowered.clear()
            known.lowered[task] = _Lowered(one, replaced)
        found = known.lowered[task]
        if found.replaced is not None:
            self.replaced.add(found.replaced)
        return found

    def _choice(self, tuner: Tuner, task: Task) -> tuple[Choice, tuple[str, str, str] | None]:
        """(NCCL's choice or the one instead, both algorithms where they differ)."""
        call = Call(COLLECTIVE[task.kind], task.size_bytes)
        own = tuner.choose(call)
        if own.algorithm not in self.without:
            return own, None
        other = tuner.choose(call, without=self.without)
        return other, (NAMES[task.kind], own.algorithm.name, other.algorithm.name)

    # ------------------------------------------------------------------ groups that lie alike

    def _alike(self, groups: I64) -> tuple[bytes, list[tuple[bytes, I64]]]:
        """(a digest of the groups, (how they lie, rows of `groups`) of all that are alike).

        They lie alike with the same GPUs of hosts, kinds of hosts, and ranks that share one.
        """
        name = hashlib.blake2b(groups.tobytes() + bytes(str(groups.shape), "ascii"), digest_size=16).digest()
        if name not in self._kept.lie:
            fabric = self.hosts.fabric
            node = self.rank_node[groups]
            host = fabric.node_host[node].astype(np.int64)
            columns = (node - fabric.host_node_start[host], self.host_kind[host], _first_on_host(host))
            rows = np.ascontiguousarray(np.concatenate(columns, axis=1).astype(np.int32))
            keys = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).reshape(-1)
            _, first, which = np.unique(keys, return_index=True, return_inverse=True)
            by_kind = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
            self._kept.lie[name] = [(keys[first[k]].tobytes(), by_kind[k]) for k in np.argsort(first).tolist()]
        return name, self._kept.lie[name]

    @property
    def notes(self) -> list[str]:
        """Notes for who reads the figures: the release, settings, algorithms that are others."""
        others = [
            f"{call}: NCCL chooses {own}, which reduces in switches; this engine cannot, so it is {other} here"
            for call, own, other in sorted(self.replaced)
        ]
        return [f"NCCL {self.settings.release}", *map(str, self.settings.notes), *others]

    @cached_property
    def _first_nic(self) -> I64:
        """[hosts] the first adapter of each."""
        first: I64 = np.searchsorted(self.hosts.fabric.nic_node, self.hosts.fabric.host_node_start)
        return first

    @cached_property
    def host_kind(self) -> I64:
        """[hosts] number of what a host is to NCCL: its template, its adapters' ports, what is wrong with it."""
        fabric = self.hosts.fabric
        cabled = fabric.nic_port != NONE
        rate = np.where(cabled, fabric.port_rate_bps[np.where(cabled, fabric.nic_port, 0)], 0)
        plane = fabric.node_plane[fabric.nic_node]
        first = [*self._first_nic.tolist(), len(fabric.nic_node)]
        number: dict[tuple[object, ...], int] = {}
        kinds = []
        for host, template in enumerate(fabric.host_template.tolist()):
            mine = slice(first[host], first[host + 1])
            wrong = repr(self.hosts.host_causes.get(host, ()))
            kinds.append(
                number.setdefault((template, wrong, rate[mine].tobytes(), plane[mine].tobytes()), len(number))
            )
        return np.array(kinds, np.int64)

    def _communicator(self, lie: bytes, ranks: I64) -> _Known:
        """The communicator of all groups that lie so. Switches that reduce are those of the first group."""
        nodes = self.rank_node[ranks].astype(np.int32)
        key = lie + nodes.tobytes() if self.settings.collnet_enable else lie
        if key not in self._known:
            comm = initialise(self.hosts, nodes, settings=self.settings, version=str(self.settings.release))
            costs = calibration().of(comm).corrected(self.corrections)
            self._known[key] = _Known(nodes, Lowering(comm, costs=costs), self._tuner(comm))
        return self._known[key]

    def _tuner(self, comm: Communicator) -> Tuner:
        """The tuner of a communicator, one for all that its cost model does not tell apart."""
        shape, settings = shape_of(comm), comm.settings
        key = (id(settings), *shape.figures)
        if key not in self._kept.tuners:
            self._kept.tuners[key] = Tuner(shape, settings)
        return self._kept.tuners[key]

    def _place(self, parts: list[_Lowered], members: list[I64], known: list[_Known]) -> _Placed:
        """Communications of one group each, for all of the groups that lie alike. Switches are the known one's."""
        channels = [part.communication.channels for part in parts]
        ranks = []
        for each, groups in zip(channels, members, strict=True):
            switches = each.seats == Seat.SWITCH
            ranks.append(np.where(switches, each.ranks, groups[:, np.where(switches, 0, each.ranks)]).reshape(-1))
        sizes = [
            np.tile(np.diff(each.rank_start), len(groups)) for each, groups in zip(channels, members, strict=True)
        ]
        seats = any(each.seat is not None for each in channels)
        moved = [
            self._moved(part.connections, part.edges, groups, one)
            for part, groups, one in zip(parts, members, known, strict=True)
        ]
        return _Placed(
            rank_start=starts_of(np.concatenate(sizes)).astype(np.int32),
            ranks=np.concatenate(ranks).astype(np.int32),
            parent=_tiled(channels, members, "parent"),
            shift=_tiled(channels, members, "shift"),
            seat=_tiled(channels, members, "seats") if seats else None,
            connections=_joined(moved),
            of=tuple(parts),
        )

    def _moved(self, how: Connections, edges: patterns.Edges, groups: I64, known: _Known) -> Connections:
        """Connections of the known one as each has them, one after the other: alike adapters and processors."""
        fabric = self.hosts.fabric

        def shifted(value: I32, rank: I32, seat: npt.NDArray[np.int8], start: npt.NDArray[np.integer]) -> I32:
            own = np.where(seat == Seat.SWITCH, 0, rank)
            here = start[fabric.node_host[known.rank_node[own]]]
            begins = start[fabric.node_host[self.rank_node[groups[:, own]]]]
            moved = np.where(value == NONE, NONE, value - here + begins)
            return moved.reshape(-1).astype(np.int32)

        nodes, first_nic, count = fabric.host_node_start, self._first_nic, len(groups)
        every = {f.name: np.tile(getattr(how, f.name), count) for f in fields(Connections)}
        ends = {
            "out": shifted(how.out, edges.source, edges.source_seat, nodes),
            "nic_out": shifted(how.nic_out, edges.source, edges.source_seat, first_nic),
            "nic_in": shifted(how.nic_in, edges.target, edges.target_seat, first_nic),
            "into": shifted(how.into, edges.target, edges.target_seat, nodes),
        }
        return Connections(**{**every, **ends})


def _first_on_host(host: I64) -> I64:
    """[groups, n] the place in each row of the first rank on the same host."""
    order = np.argsort(host, axis=1, kind="stable")
    by_host = np.take_along_axis(host, order, axis=1)
    begins = np.ones(host.shape, bool)
    begins[:, 1:] = by_host[:, 1:] != by_host[:, :-1]
    run = np.maximum.accumulate(np.where(begins, np.arange(host.shape[1]), 0), axis=1)
    first = np.empty_like(order)
    np.put_along_axis(first, order, np.take_along_axis(order, run, axis=1), axis=1)
    return first


_BY_CHANNEL = ("pattern", "payload_bytes", "offset_bytes", "chunk_bytes")


def _tiled(channels: list[Channels], members: list[I64], name: str) -> np.ndarray:
    """A column of channels of one group each, for all groups that lie like it, one after the other."""
    return np.concatenate(
        [np.tile(getattr(each, name), len(groups)) for each, groups in zip(channels, members, strict=True)]
    )


def _joined(parts: list[Connections]) -> Connections:
    if len(parts) == 1:
        return parts[0]
    names = [f.name for f in fields(Connections)]
    return Connections(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
