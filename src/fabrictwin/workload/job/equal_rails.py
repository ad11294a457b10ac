"""Groups that stand for others on rails like theirs: of data-parallel groups with one GPU a host, one of eight.

GPUs of a host with the adapters that NCCL takes for them are a rail, or some rails where a group has more GPUs a
host. Groups on other rails of the same hosts take the same time at the same time if the rails have nothing in
common and are equal: what NCCL finds of a host with these GPUs (paths, channels, adapters), ways inside the host,
adapters, cables, and which hosts meet at a leaf. All of that is looked up and compared; where something differs or
is shared, every group stands for itself.

Not looked at, so that all groups stand for themselves: hosts of several kinds or machines, hosts with something
wrong, adapters that do not reach GPU memory, reductions in switches, groups that take other GPUs on another host.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import permutations, product

import numpy as np

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.nccl.communicator.rank_placement import networks_of, place_ranks, views_of
from fabrictwin.nccl.search.graph_search import Channels
from fabrictwin.nccl.settings.release_rules import Rules
from fabrictwin.nccl.topology.graph_types import Pattern
from fabrictwin.nccl.topology.net_devices import IB
from fabrictwin.workload.job.nccl_communications import Library

_Slots = tuple[int, ...]  # GPUs of a host, by their number there


@record
class _View:
    """What NCCL finds of a host with some of its GPUs, these and adapters by their place."""

    adapters: _Slots  # that it takes, by their number in the host
    figures: tuple[object, ...]
    direct: tuple[tuple[int, int], ...]  # GPUs and adapters between which bytes go, as places


@record
class _Rail:
    """GPUs of groups on each of their hosts, one row a group, and the adapters that they take."""

    slots: tuple[_Slots, ...]
    adapters: _Slots

    @property
    def gpus(self) -> _Slots:
        return tuple(dict.fromkeys(slot for row in self.slots for slot in row))


class EqualRails:
    """Rails of one cluster's hosts, compared once each."""

    def __init__(self, library: Library, leaf: I32, uplink_bps: np.ndarray) -> None:
        """`leaf` [adapters] is the switch of each, `uplink_bps` [nodes] what leads on from there."""
        self.library, self.fabric = library, library.hosts.fabric
        self._leaf, self._uplink_bps = leaf, uplink_bps
        self._views: dict[_Slots, _View | None] = {}
        self._equal: dict[tuple[_Rail, ...], bool] = {}
        # rows of groups on each rail, and the rails, by the groups' GPUs: the same of many groups on other hosts
        self._divided: dict[tuple[object, ...], tuple[list[I64], tuple[_Rail, ...]]] = {}

    def representatives(self, groups: I64) -> I64:
        """Rows of `groups` that stand for all of them, which are between hosts and act together."""
        every = np.arange(len(groups))
        rows = self._slots_of(groups) if self._comparable else None
        if rows is None:
            return every
        host = self.fabric.node_host[self.library.rank_node[groups]]
        members, rails = self._rails(rows)
        first = members[0]
        for mine in members[1:]:
            if len(mine) != len(first) or (host[mine] != host[first]).any():
                return every
        if len(members) == 1:
            return every
        return first if self._are_equal(rails) else every

    def _rails(self, rows: I64) -> tuple[list[I64], tuple[_Rail, ...]]:
        """([rails] places of the rows of each, the rails) of groups with these GPUs on every host."""
        key = rows.shape, rows.tobytes()
        if key not in self._divided:
            distinct, which = _numbered(rows)
            parts = self._apart(distinct)
            members = [np.flatnonzero(np.isin(which, part)) for part in parts]
            self._divided[key] = members, tuple(self._rail(distinct[part]) for part in parts)
        return self._divided[key]

    @cached_property
    def _comparable(self) -> bool:
        """Tell whether hosts are of one kind, in which rails can be told apart."""
        library, fabric = self.library, self.fabric
        settings, template = library.settings, fabric.templates[0]
        plain = not (library.hosts.host_causes or settings.collnet_enable or settings.topo_file)
        if not plain or len(fabric.templates) > 1 or library.host_kind.any() or not len(template.nics):
            return False
        apart = place_ranks(fabric, fabric.gpu_node[: len(template.gpus)], apart=True)
        cabled = (fabric.nic_port != NONE).all() and (fabric.port_peer[fabric.nic_port] != NONE).all()
        return bool(len(apart.host_of_node) == 1 and cabled)

    def _slots_of(self, groups: I64) -> I64 | None:
        """[groups, GPUs a host] those of each group on every one of its hosts; None where hosts differ."""
        fabric, node = self.fabric, self.library.rank_node[groups]
        host, slot = fabric.node_host[node], fabric.gpu_local[fabric.node_gpu[node]]
        each = int((host[0] == host[0, 0]).sum())
        if host.shape[1] % each:
            return None
        host, slot = (column.reshape(len(groups), -1, each) for column in (host, slot))
        if (host != host[:, :, :1]).any() or (slot != slot[:, :1]).any() or len(slot) == 1:
            return None
        return slot[:, 0].astype(np.int64)

    def _apart(self, rows: I64) -> list[list[int]]:
        """Numbers of rows of GPUs, those together that share a GPU or an adapter."""
        parts: list[tuple[set[object], list[int]]] = []
        for number, row in enumerate(rows.tolist()):
            view = self._view(tuple(row))
            taken: set[object] = {("adapter", adapter) for adapter in (view.adapters if view else ())} | {*row}
            mine = [number]
            for part in [part for part in parts if part[0] & taken]:
                parts.remove(part)
                taken, mine = taken | part[0], part[1] + mine
            parts.append((taken, sorted(mine)))
        return sorted(mine for _, mine in parts)

    def _rail(self, rows: I64) -> _Rail:
        slots = tuple(dict.fromkeys(map(tuple, rows.tolist())))
        views = [self._view(row) for row in slots]
        return _Rail(
            slots, tuple(dict.fromkeys(nic for view in views if view is not None for nic in view.adapters))
        )

    def _are_equal(self, rails: tuple[_Rail, ...]) -> bool:
        """Return true if rails are equal and have nothing in common."""
        if rails not in self._equal:
            self._equal[rails] = all(self._seen_alike(rails[0], rail) for rail in rails[1:]) and all(
                all(figures == found[0][0] for figures, _ in found)
                and len(set().union(*(taken for _, taken in found))) == sum(len(taken) for _, taken in found)
                for found in ([look(rail) for rail in rails] for look in (self._ways, self._cables))
            )
        return self._equal[rails]

    def _seen_alike(self, one: _Rail, other: _Rail) -> bool:
        """Return true if NCCL finds the same of both, each GPU and each adapter in the place of one."""
        if len(one.slots) != len(other.slots):
            return False
        pairs: tuple[set[tuple[int, int]], set[tuple[int, int]]] = set(), set()  # of GPUs, of adapters
        for slots in zip(one.slots, other.slots, strict=True):
            mine, theirs = (self._view(each) for each in slots)
            if mine is None or theirs is None:
                return False
            if (mine.figures, mine.direct) != (theirs.figures, theirs.direct):
                return False
            pairs[0].update(zip(*slots, strict=True))
            pairs[1].update(zip(mine.adapters, theirs.adapters, strict=True))
        ends = (one.gpus, other.gpus), (one.adapters, other.adapters)
        return all(len(each) == len(a) == len(b) for each, (a, b) in zip(pairs, ends, strict=True))

    def _view(self, slots: _Slots) -> _View | None:
        """NCCL's view of a host with these GPUs in a group over hosts; None where bytes would be staged."""
        if slots not in self._views:
            self._views[slots] = self._look_at(slots)
        return self._views[slots]

    def _look_at(self, slots: _Slots) -> _View | None:
        fabric, settings = self.fabric, self.library.settings
        rules = Rules((settings.release.major, settings.release.minor))
        per_host = len(fabric.templates[0].gpus)
        nodes = fabric.gpu_node[[host * per_host + slot for host in range(2) for slot in slots]]
        placement = place_ranks(fabric, nodes.astype(np.int32), apart=True)
        networks = networks_of(fabric, placement.host_of_node, {}, settings)
        if any(network.name != IB for network in networks.values()):
            return None
        hosts = views_of(self.library.hosts, placement, networks, rules=rules, settings=settings)
        view, table = hosts.kinds[0], hosts.kinds[0].table
        gpus = hosts.device_of_rank[: len(slots)].tolist()
        preferred = [net for gpu in gpus for net in table.preferred_nets(gpu)]
        searched = [net for found in view.channels.values() for ends in found.inter for net in ends]
        nets = [net for net in dict.fromkeys((*preferred, *searched)) if net != NONE]
        place = {device: i for i, device in enumerate((*gpus, *nets))} | {NONE: NONE}
        pairs = [*product(gpus, nets)]
        if not all(table.gpudirect(*pair, read=read) for pair in pairs for read in (False, True)):
            return None
        relayed = [(table.relay(*pair), pair[1]) for pair in pairs]
        direct = {*relayed, *((gpu, net) for gpu in gpus for net in table.preferred_nets(gpu))}
        for found in view.channels.values():
            direct |= _received(found, pairs)
        figures = (
            tuple(
                (
                    *(algorithm, replace(each, intra=(), inter=())),
                    *(tuple(place[device] for device in ends) for ends in (*each.intra, *each.inter)),
                )
                for algorithm, each in view.channels.items()
            ),
            tuple(tuple(place[net] for net in table.preferred_nets(gpu)) for gpu in gpus),
            tuple((*table(*pair)[:2], place.get(by)) for pair, (by, _) in zip(pairs, relayed, strict=True)),
            tuple((*table(*pair)[:2], table.direct(*pair)) for pair in product(gpus, gpus)),
            tuple(table(gpu, table.nearest_cpu(gpu)).bw for gpu in gpus),
            tuple((view.system.devices[gpu].capability, view.system.devices[gpu].gdr) for gpu in gpus),
            tuple((view.system.devices[net].net.bw, view.system.devices[net].net.latency) for net in nets),
        )
        ways = sorted((place[gpu], place[net] - len(gpus)) for gpu, net in direct)
        return _View(tuple(view.system.devices[net].index for net in nets), figures, tuple(ways))

    def _ways(self, rail: _Rail) -> tuple[list[object], set[int]]:
        """(shares and links of every way, all ports on them)."""
        template = self.fabric.templates[0]
        paths, n = template.paths, len(template.node_kind)
        ends: list[tuple[int, int]] = []
        for slots in rail.slots:
            view = self._view(slots)
            assert view is not None
            gpus, adapters = template.gpus[[*slots]].tolist(), template.nics[[*view.adapters]].tolist()
            ends += product(gpus, gpus)
            ends += [pair for gpu, nic in view.direct for pair in permutations((gpus[gpu], adapters[nic]))]
        figures: list[object] = []
        used: set[int] = set()
        for a, b in ends:
            for way in range(*paths.pair_start[a * n + b : a * n + b + 2].tolist()):
                ports = paths.ports[paths.hop_start[way] : paths.hop_start[way + 1]]
                owner = template.port_node[ports]
                rates = template.port_rate_bps[ports].tobytes(), template.port_payload_bps[ports].tobytes()
                links = *rates, template.port_kind[ports].tobytes(), template.port_latency_ps[ports].tobytes()
                passing = template.node_kind[owner].tobytes(), template.node_latency_ps[owner].tobytes()
                figures.append((float(paths.share[way]), links, passing))
                used.update(ports.tolist())
        return figures, used

    def _cables(self, rail: _Rail) -> tuple[list[object], set[int]]:
        """(adapters and cables of all hosts, and which of them meet at a leaf or in a pod; all leaves)."""
        fabric = self.fabric
        adapters = np.arange(len(fabric.nic_node)).reshape(fabric.hosts, -1)[:, [*rail.adapters]].reshape(-1)
        leaf, node, port = self._leaf[adapters], fabric.nic_node[adapters], fabric.nic_port[adapters]
        pod, plane = fabric.node_pod[leaf], fabric.node_plane[node]
        of_adapter = fabric.nic_message_ps, fabric.nic_post_ps, fabric.nic_deliver_ps, fabric.nic_qp_message_ps
        of_port = fabric.port_kind, fabric.port_rate_bps, fabric.port_payload_bps, fabric.port_latency_ps
        columns = [
            *(column[adapters] for column in of_adapter),
            *(column[ends] for ends in (port, fabric.port_peer[port]) for column in of_port),
            *(fabric.node_latency_ps[nodes] for nodes in (node, leaf)),
            self._uplink_bps[leaf],
            pod == NONE,
            *(_in_order(numbers) for numbers in (leaf, pod, plane)),
        ]
        return [column.tobytes() for column in columns], set(leaf.tolist())


def _numbered(rows: I64) -> tuple[I64, I64]:
    """(distinct rows as they first come, which of them each row is)."""
    known: dict[_Slots, int] = {}
    which = np.array([known.setdefault(tuple(row), len(known)) for row in rows.tolist()])
    return np.array([*known], np.int64), which


def _received(found: Channels, pairs: list[tuple[int, int]]) -> set[tuple[int, int]]:
    """GPUs and adapters by which they receive on channels. Only what is sent goes by way of other GPUs."""
    if found.pattern == Pattern.RING and found.cross_nic == 2:
        return {*pairs}  # a host may take another channel's adapters
    ends = [*zip(found.intra, found.inter, strict=True)]
    heads = {(gpus[0], nets[0]) for gpus, nets in ends}
    if found.pattern in (Pattern.RING, Pattern.TREE, Pattern.NVLS):
        return heads
    return heads | {(gpus[1], nets[1]) for gpus, nets in ends if len(gpus) > 1}


def _in_order(numbers: np.ndarray) -> I64:
    """Numbers by the order in which they first come: the same for those that are equal in the same places."""
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    order: I64 = np.argsort(np.argsort(first))[which]
    return order
