"""Communications of a job as NCCL runs them: its own choice, channels, connections and costs.

Every group is a communicator. Groups that lie alike on their hosts (the same GPUs of hosts, as often) are
initialised once; the others are the same with other ranks, adapters and processors. Gradients are reduced as the
spec says where it does say how; a pipeline's messages and experts' exchanges are sends.

Left out: that collectives of different groups share a GPU's thread blocks, and copies of NCCL's buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I32, I64, starts_of
from fabrictwin.base.grouped import grouped
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.faults import HostCause, host_causes
from fabrictwin.cluster.spec.calibration_file import CollectiveCorrections
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.nccl.communicator.communicator import Communicator, initialise
from fabrictwin.nccl.lowering.lower import Lowering
from fabrictwin.nccl.lowering.tasks import COLLECTIVE, Kind, Task
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.settings.spec_section import section_settings
from fabrictwin.nccl.tuning.step_costs import calibration
from fabrictwin.nccl.tuning.tuner import Call, Tuner, tuner
from fabrictwin.program import patterns
from fabrictwin.program.program import Channels, Communication, Connections, Seat


@dataclass(frozen=True)
class Hosts:
    """The hosts of a cluster as NCCL sees them."""

    fabric: Fabric
    host_causes: dict[int, tuple[HostCause, ...]]


def library_of(spec: Spec, blueprint: Blueprint, fabric: Fabric, rank_node: I32) -> Library | None:
    """NCCL as the spec's `nccl:` says; None where it says nothing. Raises ConfigError with file and line."""
    settings = section_settings(spec)
    if settings is None:
        return None
    return library_with(settings, spec, blueprint, fabric, rank_node)


def library_with(settings: Settings, spec: Spec, blueprint: Blueprint, fabric: Fabric, rank_node: I32) -> Library:
    """NCCL with these settings on the hosts of the spec."""
    corrections = None if spec.calibration is None else spec.calibration.collectives
    return Library(Hosts(fabric, host_causes(blueprint, spec)), rank_node, settings, corrections)


@dataclass(frozen=True)
class _Known:
    """A communicator that stands for all that lie like it."""

    communicator: Communicator
    lowering: Lowering
    tuner: Tuner


@dataclass
class Library:
    """NCCL on the ranks of one job."""

    hosts: Hosts
    rank_node: I32
    settings: Settings
    corrections: CollectiveCorrections | None = None  # of the spec's calibration
    _known: dict[bytes, _Known] = field(default_factory=dict)

    def collective(
        self, kind: Kind, groups: I64, size_bytes: int, *, element_bytes: int, name: str, root: int = 0
    ) -> Communication:
        """One collective on groups that act together. Raises ConfigError, and SimulatedError where NCCL does."""
        task = Task(kind, size_bytes, element_bytes, root)

        def lowered(known: _Known) -> Communication:
            choice = known.tuner.choose(Call(COLLECTIVE[kind], size_bytes)) if kind in COLLECTIVE else None
            return known.lowering(task, choice)

        return self._together(groups, lowered, name)

    def send(self, pairs: I64, size_bytes: int, *, name: str) -> Communication:
        """One message from the first to the second of every pair."""
        task = Task("scatter", 2 * size_bytes, 1)
        sent = self._together(pairs, lambda known: known.lowering(task), name)
        return replace(sent, kind="send", size_bytes=size_bytes)

    def _together(self, groups: I64, lower: Callable[[_Known], Communication], name: str) -> Communication:
        groups = np.asarray(groups, np.int64)
        parts: list[Communication] = []
        for members in self._alike(groups):
            known = self._communicator(groups[members[0]])
            parts.append(self._copied(lower(known), groups[members]))
        whole = parts[0]
        if len(parts) > 1:
            used = [part.transport.connections for part in parts]
            whole = grouped(
                replace(whole, channels=_joined_channels([part.channels for part in parts])),
                {
                    "connections": _joined([each for each in used if each is not None]),
                    # what is charged once for all is the slowest's
                    "base_ps": max(part.costs.base_ps for part in parts),
                    "rate_share": min(part.transport.rate_share for part in parts),
                },
            )
        return replace(whole, name=name, groups=len(groups))

    # ------------------------------------------------------------------ groups that lie alike

    def _alike(self, groups: I64) -> list[I64]:
        """Rows of `groups` by how they lie: GPUs of hosts, and which ranks share one."""
        fabric = self.hosts.fabric
        node = self.rank_node[groups]
        host = fabric.node_host[node].astype(np.int64)
        local = node - fabric.host_node_start[host]
        found: dict[bytes, list[int]] = {}
        for row in range(len(groups)):
            _, first, inverse = np.unique(host[row], return_index=True, return_inverse=True)
            order = np.argsort(np.argsort(first, kind="stable"), kind="stable")[inverse]
            hosts = host[row][np.sort(first)]
            wrong = [self.hosts.host_causes.get(each) for each in hosts.tolist()]
            key = order.tobytes() + local[row].tobytes() + fabric.host_template[hosts].tobytes()
            found.setdefault(key + repr(wrong).encode() if any(wrong) else key, []).append(row)
        return [np.array(rows) for rows in found.values()]

    def _communicator(self, ranks: I64) -> _Known:
        nodes = self.rank_node[ranks].astype(np.int32)
        key = nodes.tobytes()
        if key not in self._known:
            comm = initialise(self.hosts, nodes, settings=self.settings, version=str(self.settings.release))
            costs = calibration().of(comm).corrected(self.corrections)
            self._known[key] = _Known(comm, Lowering(comm, costs=costs), tuner(comm))
        return self._known[key]

    def _copied(self, one: Communication, groups: I64) -> Communication:
        """A communication of the first group, for all of them. Switches of the network are the first's."""
        channels, count = one.channels, len(groups)
        switches = channels.seats == Seat.SWITCH
        ranks = np.where(switches, channels.ranks, groups[:, np.where(switches, 0, channels.ranks)])
        transport = one.transport
        if transport.connections is not None:
            moved = self._moved(transport.connections, channels, groups)
            transport = replace(transport, connections=moved)
        copies = replace(_joined_channels([channels] * count), ranks=ranks.reshape(-1).astype(np.int32))
        return replace(one, channels=copies, transport=transport)

    def _moved(self, how: Connections, channels: Channels, groups: I64) -> Connections:
        """Connections of the first group as each has them, one after the other: alike adapters and processors."""
        fabric = self.hosts.fabric
        edges = patterns.edges(channels)
        first_nic = np.searchsorted(fabric.nic_node, fabric.host_node_start)

        def shifted(value: I32, rank: I32, seat: npt.NDArray[np.int8], start: npt.NDArray[np.integer]) -> I32:
            own = np.where(seat == Seat.SWITCH, 0, rank)
            begins = start[fabric.node_host[self.rank_node[groups[:, own]]]]
            moved = np.where(value == NONE, NONE, value - begins[0] + begins)
            return moved.reshape(-1).astype(np.int32)

        nodes, count = fabric.host_node_start, len(groups)
        every = {f.name: np.tile(getattr(how, f.name), count) for f in fields(Connections)}
        ends = {
            "out": shifted(how.out, edges.source, edges.source_seat, nodes),
            "nic_out": shifted(how.nic_out, edges.source, edges.source_seat, first_nic),
            "nic_in": shifted(how.nic_in, edges.target, edges.target_seat, first_nic),
            "into": shifted(how.into, edges.target, edges.target_seat, nodes),
        }
        return Connections(**{**every, **ends})


def _joined(parts: list[Connections]) -> Connections:
    names = [f.name for f in fields(Connections)]
    return Connections(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _joined_channels(parts: list[Channels]) -> Channels:
    columns = ("pattern", "ranks", "parent", "shift", "payload_bytes", "offset_bytes", "chunk_bytes")
    sizes = np.concatenate([np.diff(part.rank_start) for part in parts])
    seats = any(part.seat is not None for part in parts)
    return Channels(
        rank_start=starts_of(sizes).astype(np.int32),
        element_bytes=parts[0].element_bytes,
        seat=np.concatenate([part.seats for part in parts]) if seats else None,
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in columns},
    )
