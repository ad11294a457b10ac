"""One host of a communicator: its system, its paths, and the graphs that the search finds in it.

Hosts of one kind, with the same GPUs in use and the same state, have the same graphs: they are searched once.
"""

from __future__ import annotations

from functools import cached_property

from fabrictwin.base.arrays import I32
from fabrictwin.base.records import record
from fabrictwin.nccl.search.graph_search import Channels, Search
from fabrictwin.nccl.search.search_cache import cached_channels
from fabrictwin.nccl.search.search_order import Relaxation
from fabrictwin.nccl.settings.release_rules import Rules
from fabrictwin.nccl.topology.graph_types import Algorithm, Pattern
from fabrictwin.nccl.topology.system import System
from fabrictwin.nccl.topology.topology_paths import PathTable, Policy


@record
class Wanted:
    """The graphs that the search is to look for."""

    inter: bool  # ranks are on more hosts than this
    cross_nic: int
    nvls: bool
    collnet: bool
    machines_apart: bool = False  # the machines of an NVLink domain are hosts by themselves


class HostView:
    """A host as NCCL's search sees it."""

    def __init__(
        self, system: System, rules: Rules, policy: Policy, wanted: Wanted, *, link_gbps: float = 0.0
    ) -> None:
        self.link_gbps = link_gbps  # of one NVLink; 0 where GPUs have none
        self.system, self.rules, self.wanted, self.policy = system, rules, wanted, policy
        self.table = PathTable(system, rules, policy)
        self.search = Search(self.table, inter=wanted.inter)

    def _compute(self, pattern: Pattern, least: int, most: int, *, collnet: bool = False) -> Channels:
        cross_nic = self.wanted.cross_nic
        question = f"{self._question} {int(pattern)} {least} {most} {cross_nic} {collnet}"

        def search() -> Channels:
            asked = Relaxation(self.search, pattern, least=least, most=most, cross_nic=cross_nic, collnet=collnet)
            return asked.run()

        return cached_channels(question, search)

    @cached_property
    def _question(self) -> str:
        """A key of what a search depends on beside its own arguments."""
        return f"{self.system!r} {self.rules.release} {self.policy!r} {self.wanted.inter}"

    @cached_property
    def channels(self) -> dict[Algorithm, Channels]:
        """Ring, tree and, where they are wanted, NVLink SHARP and switch reductions."""
        most = self.rules.max_channels
        ring = self._compute(Pattern.RING, 1, most // 2)
        found = {
            Algorithm.RING: ring,
            Algorithm.TREE: self._compute(Pattern.BALANCED_TREE, ring.count, ring.count),
        }
        if self.wanted.collnet:
            found[Algorithm.COLLNET_CHAIN] = self._compute(Pattern.TREE, ring.count, ring.count, collnet=True)
            if self.rules.since(22):
                direct = self._compute(Pattern.COLLNET_DIRECT, 1, most, collnet=True)
            else:
                direct = found[Algorithm.COLLNET_CHAIN]
            found[Algorithm.COLLNET_DIRECT] = direct
        if self.wanted.nvls:
            found[Algorithm.NVLS] = self._compute(Pattern.NVLS, 1, most)
        return {algorithm: channels for algorithm, channels in found.items() if channels.count}


@record
class HostViews:
    """The hosts of a communicator by kind."""

    kinds: tuple[HostView, ...]
    kind_of_node: I32  # [nodes] into kinds
    first_adapter: I32  # [nodes] the adapter (index into fabric.nic_node) that a node's systems count from
    device_of_rank: I32  # [ranks] the GPU's device number in its host's system

    @cached_property
    def used(self) -> list[HostView]:
        """Kinds that a node is of, in their order."""
        return [self.kinds[kind] for kind in sorted(set(self.kind_of_node.tolist()))]
