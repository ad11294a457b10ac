"""Operations of programs on the packet kernel: a communication becomes messages on queue pairs.

Every send of a pattern (`program.sends`) is a message that starts when those before it are in memory; a channel
has queue pairs of its own between each two ranks, and so has each communicator (the ranks that take part with each
other), as in NCCL. Inside a host a message is split over the parallel NVLink paths in proportion to their links.
Flags that travel with data (LL, LL128) are bytes on the wire. Routes of messages are `message_routes`'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakMethod

import numpy as np

from fabrictwin.base.arrays import I32, I64
from fabrictwin.engines.base.changes import FOREVER
from fabrictwin.engines.base.engine import NO_COMPLETIONS, Completions
from fabrictwin.engines.packet.communication_tasks import PlacedTasks, Routes, expand
from fabrictwin.engines.packet.message_routes import Guide, Key, MessageRoutes, guides
from fabrictwin.engines.packet.network.packet_network import PacketNetwork
from fabrictwin.engines.packet.repetition.repeated_phases import RepeatedPhases, Start
from fabrictwin.engines.packet.run_estimate import PacketSize, check_size
from fabrictwin.fabric.fabric import NONE
from fabrictwin.program.program import Communication, Operations
from fabrictwin.program.sends import Sends, sends_of

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.task_columns import Tasks

# by (channel, source, target): how its connection is made, and what a step costs
Guided = dict[tuple[int, int, int], tuple[Guide, int]]


@dataclass
class _Posted:
    """A communication of a program, and what it takes to play it."""

    at: int  # among those posted with it
    given: Communication
    sends: list[Sends]  # by channel; none once they are expanded
    guided: Guided
    rank_node: I32
    uses: int  # operations that are yet to start it
    tasks: Tasks | None = None  # once it has started

    def used(self) -> None:
        """One operation less will start it."""
        self.uses -= 1
        if not self.uses:
            self.tasks = None


class PacketOperations:
    """Operations posted on one network."""

    def __init__(self, network: PacketNetwork) -> None:
        self.network, self.fabric, self.options = network, network.fabric, network.options
        self.routes = MessageRoutes(network)
        self.hops = 0  # that all that was posted will take, about
        self._service_levels = dict(self.options.lanes.service_levels)
        self._communicators: dict[bytes, int] = {}
        self._begin = np.zeros(0, np.int64)  # tasks at the start and the end of each operation
        self._end = np.zeros(0, np.int64)
        self._end_operation: dict[int, int] = {}
        self._logged: list[int] = []
        self._called: dict[int, _Posted] = {}  # by the task at the start of an operation
        self.placed = PlacedTasks(network.machine)
        self.repeated = RepeatedPhases(network.machine)
        self._followed = 0  # first operation of the program whose communications may be repeated

    def __len__(self) -> int:
        return len(self._begin)

    def post(self, operations: Operations, communications: Sequence[Communication], rank_node: I32) -> int:
        """Add operations; those without predecessors start now. Returns the id of the first.

        Raises ConfigError where it would take more packet-hops or memory than the options allow.
        """
        from fabrictwin.kernel.packet.state import constants as s
        from fabrictwin.kernel.packet.task_columns import make_tasks

        self.network.keep_whole("programs")
        machine = self.network.machine
        n, base_op, base_task = len(operations), len(self), machine.tasks
        expanded: dict[int, list[Sends]] = {}
        size = self.size_of(operations, communications, rank_node, expanded)
        check_size(size, self.options, "this program")
        self.hops += size.hops
        uses = np.bincount(operations.communication[operations.communication != NONE]).tolist()
        posted: dict[int, _Posted] = {}
        for at in dict.fromkeys(operations.communication[operations.communication != NONE].tolist()):
            given, sends = communications[at], expanded.pop(at)
            posted[at] = _Posted(at, given, sends, guides(given), rank_node, uses[at])
        self.routes.open(key for each in posted.values() for key in self._keys(each))
        self._find_repeats(operations, posted)
        # each operation has a task at its start and one at its end, the same where it computes
        communicates = operations.communication != NONE
        begin = np.arange(n) + np.concatenate([[0], np.cumsum(communicates)[:-1]]) if n else np.zeros(0, np.int64)
        end = begin + communicates
        kind = np.full(n + int(communicates.sum()), s.DELAY)
        kind[begin[communicates]] = s.CALL
        delay = np.zeros(len(kind), np.int64)
        delay[begin] = operations.duration_ps
        bases = [posted[at].given.costs.base_ps for at in operations.communication[communicates].tolist()]
        delay[begin[communicates]] = bases
        waiting = np.repeat(np.arange(n), np.diff(operations.after_start))
        none = np.zeros(len(kind), np.int64)
        tasks = make_tasks(kind, none, none, delay, after=(begin[waiting], end[operations.after]))
        tasks.task.waits[end[communicates]] += 1  # for the call
        machine.place(tasks, machine.reserve(len(kind), len(tasks.successor)))
        self._begin = np.concatenate([self._begin, begin + base_task])
        self._end = np.concatenate([self._end, end + base_task])
        self._end_operation |= {int(t) + base_task: base_op + i for i, t in enumerate(end)}
        for i in np.flatnonzero(communicates).tolist():
            self._called[base_task + int(begin[i])] = posted[int(operations.communication[i])]
        machine.on_call = self._answering()
        return base_op

    def _answering(self) -> Callable[[int], None]:
        """Return what answers calls without keeping their answerer: the machine, which it owns, would keep it."""
        weak = WeakMethod(self._answer)

        def answer(begun: int) -> None:
            found = weak()
            assert found is not None, "an engine owns its operations and its machine"
            found(begun)

        return answer

    def _answer(self, begun: int) -> None:
        """A communication starts: place its messages, which its last task waits for."""
        machine, end, posted = self.network.machine, begun + 1, self._called.pop(begun)
        self._read_log()  # a task whose place another takes is logged anew
        if posted.tasks is None:
            posted.tasks = self._expand(posted)
        operation = self._end_operation[end] - self._followed
        carried = int(posted.tasks.task.size_bytes.sum())
        if self.repeated.repeat(Start(operation, posted.at, end, carried)):
            posted.used()
            return
        lasts = int((posted.tasks.successor == len(posted.tasks.task)).sum())
        machine.state.task[end].waits += lasts - 1
        if lasts:
            self.placed.place(posted.tasks, end)
        else:
            machine.begin(end)
        posted.used()

    def _find_repeats(self, operations: Operations, posted: dict[int, _Posted]) -> None:
        """Find which communications are played once: none where another program is still under way."""
        self.repeated.forget()
        if (
            not self.options.hosts.repeats
            or self._called
            or max((each.uses for each in posted.values()), default=0) < 2
        ):
            return
        self._read_log()
        self._followed = len(self)
        queue_pairs: dict[int, I64] = {}
        bases_ps, first_byte_ps = operations.duration_ps.copy(), FOREVER
        for at, each in posted.items():
            legs = [leg for key in self._keys(each) for leg in self.routes[key].legs]
            if legs:
                queue_pairs[at] = np.array([q for leg in legs for _, q in leg.parts], np.int64)
            costs = [cost for _, cost in each.guided.values()] or [each.given.costs.step_ps]
            first_byte_ps = min(first_byte_ps, each.given.costs.base_ps + min(costs))
            bases_ps[operations.communication == at] = each.given.costs.base_ps
        self.repeated.find(operations, bases_ps, queue_pairs, first_byte_ps)

    def size_of(
        self,
        operations: Operations,
        communications: Sequence[Communication],
        rank_node: I32,
        expanded: dict[int, list[Sends]] | None = None,
    ) -> PacketSize:
        """Return what posting would take; communications that are used are put into `expanded`."""
        from fabrictwin.kernel.packet.state.network_records import packet_dtype
        from fabrictwin.kernel.packet.state.state import heap_dtype, nbytes
        from fabrictwin.kernel.packet.state.transport_records import qp_dtype, task_dtype

        fabric, options = self.fabric, self.options
        expanded = {} if expanded is None else expanded
        uses = np.bincount(
            operations.communication[operations.communication != NONE], minlength=len(communications)
        )
        links = 2 * int(fabric.node_tier.max(initial=1)) + 4
        links += 0 if options.hosts.gpudirect else 4  # to host memory and from it
        # a message's packets at most, by who sends to whom on which channel: each such has a queue pair
        largest: dict[tuple[int, int, int, int], int] = {}
        parts = 0  # into how many a message inside a host is split
        hops, messages = 0, 0
        for at in np.flatnonzero(uses).tolist():
            communication = communications[at]
            channels, guided = communication.channels, guides(communication)
            through = max((guide.pieces for guide, _ in guided.values()), default=1)
            expanded[at] = [sends_of(channels, c) for c in range(len(channels))]
            for c, sends in enumerate(expanded[at]):
                source, target = rank_node[sends.source], rank_node[sends.target]
                packets = np.maximum(-(-sends.length_bytes // fabric.mtu_bytes), 1)
                own = self._communicator(communication, c)
                far = fabric.node_host[source] != fabric.node_host[target]
                near = np.flatnonzero(~far & (source != target))
                if not parts and len(near):
                    parts = len(self.network.connections.local(int(source[near[0]]), int(target[near[0]])))
                pieces = int(far.sum())
                if through > 1 or not (options.hosts.gpudirect or guided):
                    pieces = max(through, 3) * int(
                        (-(-sends.length_bytes[far] // options.hosts.staging_chunk_bytes)).sum()
                    )
                messages += pieces + max(parts, 1) * int((~far).sum())
                inside = int((2 * packets[~far]).sum())
                hops += int(uses[at]) * (inside + int((links * packets[far]).sum()))
                for key in zip(source.tolist(), target.tolist(), packets.tolist(), strict=True):
                    pair = (own, key[0], key[1], c)
                    largest[pair] = max(largest.get(pair, 0), key[2])
        reach = 2 * options.transport.window_packets if options.selective else 0
        pairs = len(largest) * max(parts, 1)
        network = self.network.machine.state
        room = int(network.port.peer.size) * 2 * (options.switching.credit_bytes or 1 << 20) // fabric.mtu_bytes
        packets_at_once = min(sum(largest.values()), room)
        tasks = 2 * (messages + len(operations))  # a communication's as they are expanded, and as they are placed
        memory = (
            nbytes(network)
            + tasks * (task_dtype.itemsize + heap_dtype.itemsize + 12)  # a successor or two, the log
            + pairs * (qp_dtype.itemsize + reach + 4 * links)
            + packets_at_once * packet_dtype.itemsize
        )
        return PacketSize(hops, messages, int(memory))

    def _level(self, communication: Communication) -> int | None:
        level = communication.transport.service_level
        return self._service_levels.get(communication.name) if level is None else level

    def _communicator(self, communication: Communication, channel: int) -> int:
        """The number of the ranks that a channel joins: collectives of the same ranks share their queue pairs."""
        start = communication.channels.rank_start
        members = np.unique(communication.channels.ranks[start[channel] : start[channel + 1]])
        return self._communicators.setdefault(members.tobytes(), len(self._communicators))

    def _keys(self, posted: _Posted) -> Iterator[Key]:
        """Keys of the routes that a communication's sends take, in the order in which they ask for them."""
        for c, sends in enumerate(posted.sends):
            ends = np.stack([sends.source, sends.target], axis=1)
            once = np.sort(np.unique(ends, axis=0, return_index=True)[1])
            own = self._communicator(posted.given, c)
            for a, b in ends[once].tolist():
                yield self._key(posted, own, c, a, b)

    def _key(self, posted: _Posted, communicator: int, channel: int, source: int, target: int) -> Key:
        """Key of the route of a channel's sends between two ranks."""
        guide = posted.guided[channel, source, target][0] if posted.guided else None
        nodes = posted.rank_node
        return communicator, int(nodes[source]), int(nodes[target]), channel, self._level(posted.given), guide

    def _expand(self, posted: _Posted) -> Tasks:
        """Tasks of all messages of one communication."""
        channels: list[tuple[Sends, Routes]] = []
        given = posted.given
        for c, sends in enumerate(posted.sends):
            own, routes = self._communicator(given, c), {}
            for a, b in dict.fromkeys(zip(sends.source.tolist(), sends.target.tolist(), strict=True)):
                cost = posted.guided[c, a, b][1] if posted.guided else given.costs.step_ps
                routes[a, b] = self.routes[self._key(posted, own, c, a, b)], cost
            channels.append((sends, routes))
        posted.sends = []
        return expand(channels, given.transport.wire_bytes, given.transport.data_bytes)

    def completions(self) -> Completions:
        """Operations that ended since the last call."""
        self._read_log()
        if not self._logged:
            return NO_COMPLETIONS
        operation = np.array([self._end_operation[t] for t in self._logged], np.int64)
        self._logged = []
        time = self.network.machine.state.task.done_ps[self._end[operation]].astype(np.int64)
        order = np.lexsort((operation, time))
        return Completions(operation[order], time[order])

    def _read_log(self) -> None:
        """Take over which tasks the kernel says have ended."""
        state = self.network.machine.state
        clock = state.clock[0]
        ended = [t for t in state.log[: int(clock.logged)].tolist() if t in self._end_operation]
        clock.logged = 0
        self._logged += ended
        done_ps = state.task.done_ps
        self.repeated.ended([(self._end_operation[t] - self._followed, int(done_ps[t])) for t in ended])

    @property
    def progress(self) -> float:
        """The share of the packet-hops that was counted on, of the operations where that came out too low."""
        hops = int(self.network.machine.state.clock[0].hops)
        return min(hops / max(self.hops, 1), 0.99) if (self.ended_ps() < 0).any() else 1.0

    def started_ps(self) -> I64:
        """[operations posted so far] when each started; -1 where it has not."""
        started: I64 = self.network.machine.state.task.start_ps[self._begin].astype(np.int64)
        return started

    def ended_ps(self) -> I64:
        """[operations posted so far] when each ended; -1 where it has not."""
        ended: I64 = self.network.machine.state.task.done_ps[self._end].astype(np.int64)
        return ended
