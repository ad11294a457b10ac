"""Operations of programs on the packet kernel: a communication becomes messages on queue pairs.

Every send of a pattern (`program.sends`) is a message that starts when those before it are in memory; a channel
has queue pairs of its own between each two ranks, and so has each communicator (the ranks that take part with each
other), as in NCCL. Inside a host a message is split over the parallel NVLink paths in proportion to their links.
Flags that travel with data (LL, LL128) are bytes on the wire. Routes of messages are `message_routes`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fabrictwin.base.arrays import I32, I64
from fabrictwin.engines.base.engine import NO_COMPLETIONS, Completions
from fabrictwin.engines.packet.message_routes import Guide, Key, MessageRoute, MessageRoutes, guides
from fabrictwin.engines.packet.network.packet_network import PacketNetwork
from fabrictwin.engines.packet.run_estimate import PacketSize, check_size
from fabrictwin.fabric.fabric import NONE
from fabrictwin.program.program import Communication, Operations, OpKind
from fabrictwin.program.sends import Sends, sends_of

# by (channel, source, target): how its connection is made, and what a step costs
Guided = dict[tuple[int, int, int], tuple[Guide, int]]


class _Tasks:
    """Tasks to be added, as growing columns. `after` are (task, predecessor): until its bytes are in memory."""

    def __init__(self) -> None:
        self.kind: list[int] = []
        self.queue_pair: list[int] = []
        self.size: list[int] = []
        self.delay: list[int] = []
        self.after: list[tuple[int, int]] = []

    def add(self, kind: int, queue_pair: int, size: int, delay: int) -> int:
        self.kind.append(kind)
        self.queue_pair.append(queue_pair)
        self.size.append(size)
        self.delay.append(delay)
        return len(self.kind) - 1


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
        self._logged = 0

    def __len__(self) -> int:
        return len(self._begin)

    def post(self, operations: Operations, communications: Sequence[Communication], rank_node: I32) -> int:
        """Add operations; those without predecessors start now. Returns the id of the first.

        Raises ConfigError where it would take more packet-hops or memory than the options allow.
        """
        from fabrictwin.kernel.packet.state import constants as s

        machine = self.network.machine
        base_op, base_task = len(self), machine.tasks
        expanded: dict[int, list[Sends]] = {}
        size = self.size_of(operations, communications, rank_node, expanded)
        check_size(size, self.options, "this program")
        self.hops += size.hops
        used = dict.fromkeys(operations.communication[operations.communication != NONE].tolist())
        guided = {at: guides(communications[at]) for at in used}
        self.routes.open(
            key for at in used for key in self._keys(communications[at], expanded[at], rank_node, guided[at])
        )
        tasks = _Tasks()
        n = len(operations)
        begin, end = np.zeros(n, np.int64), np.zeros(n, np.int64)
        for i in range(n):
            if operations.kind[i] == OpKind.COMPUTE:
                begin[i] = end[i] = tasks.add(s.DELAY, 0, 0, int(operations.duration_ps[i]))
            else:
                at = int(operations.communication[i])
                begin[i] = tasks.add(s.DELAY, 0, 0, communications[at].costs.base_ps)
                lasts = self._expand(tasks, communications[at], expanded[at], guided[at], rank_node, int(begin[i]))
                end[i] = tasks.add(s.DELAY, 0, 0, 0)
                tasks.after += [(int(end[i]), last) for last in (lasts or [int(begin[i])])]
        waiting = np.repeat(np.arange(n), np.diff(operations.after_start))
        order = zip(begin[waiting].tolist(), end[operations.after].tolist(), strict=True)
        tasks.after += order
        pairs = np.array(tasks.after, np.int64).reshape(-1, 2)
        machine.add_tasks(tasks.kind, tasks.queue_pair, tasks.size, tasks.delay, after=(pairs[:, 0], pairs[:, 1]))
        self._begin = np.concatenate([self._begin, begin + base_task])
        self._end = np.concatenate([self._end, end + base_task])
        self._end_operation |= {int(t) + base_task: base_op + i for i, t in enumerate(end)}
        return base_op

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
                messages += int(uses[at]) * (pieces + max(parts, 1) * int((~far).sum()))
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
        tasks = messages + 2 * len(operations)
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

    def _keys(
        self, communication: Communication, channels: list[Sends], rank_node: I32, guided: Guided
    ) -> Iterator[Key]:
        """Keys of the routes that a communication's sends take, in the order in which they ask for them."""
        level = self._level(communication)
        for c, sends in enumerate(channels):
            ends = np.stack([sends.source, sends.target], axis=1)
            once = np.sort(np.unique(ends, axis=0, return_index=True)[1])
            for a, b in ends[once].tolist():
                guide = guided[c, a, b][0] if guided else None
                yield self._communicator(communication, c), int(rank_node[a]), int(rank_node[b]), c, level, guide

    def _expand(
        self,
        tasks: _Tasks,
        communication: Communication,
        channels: list[Sends],
        guided: Guided,
        rank_node: I32,
        begin: int,
    ) -> list[int]:
        """Add messages of one communication; returns the tasks that end it."""
        lasts: list[int] = []
        level = self._level(communication)
        wire, data = communication.transport.wire_bytes, communication.transport.data_bytes
        for c, sends in enumerate(channels):
            done: list[list[int]] = []  # tasks at the end of each send
            awaited = np.zeros(len(sends), bool)
            awaited[sends.after] = True
            routes: dict[tuple[int, int], tuple[MessageRoute, int]] = {}
            sent: dict[tuple[int, int], int] = {}
            own = self._communicator(communication, c)
            for k in range(len(sends)):
                ends = int(sends.source[k]), int(sends.target[k])
                if ends not in routes:
                    guide, cost = guided[c, *ends] if guided else (None, communication.costs.step_ps)
                    key = (own, int(rank_node[ends[0]]), int(rank_node[ends[1]]), c, level, guide)
                    routes[ends] = self.routes[key], cost
                route, cost = routes[ends]
                first, last = int(sends.after_start[k]), int(sends.after_start[k + 1])
                before = [t for j in sends.after[first:last] for t in done[j]] or [begin]
                size = -(-int(sends.length_bytes[k]) * wire // data)
                number = sent[ends] = sent.get(ends, -1) + 1
                done.append(self._message(tasks, route, size, cost, before, number))
                if not awaited[k]:
                    lasts += done[k]
        return lasts

    def _message(
        self, tasks: _Tasks, route: MessageRoute, size: int, cost_ps: int, before: list[int], number: int
    ) -> list[int]:
        """Add a route's message with that number as tasks; returns those that end with it in memory."""
        from fabrictwin.kernel.packet.state import constants as s

        if not route.legs:  # memory to itself
            same = tasks.add(s.DELAY, 0, 0, cost_ps)
            tasks.after += [(same, t) for t in before]
            return [same]
        chunk = route.chunk_bytes or max(size, 1)
        ends: list[int] = []
        for start in range(0, max(size, 1), chunk):
            here = min(chunk, size - start)
            waits = before
            for at, leg in enumerate(route.legs):
                delay = leg.delay_ps + (route.pause_ps if at else cost_ps)
                parts: list[int] = []
                amount = max(round(here * leg.amount), 1) if leg.amount != 1 else here
                carriers = leg.carriers(number)
                shares = _split(amount, [share for share, _ in carriers])
                for (_, q), part in zip(carriers, shares, strict=True):
                    if part or len(carriers) == 1:
                        parts.append(tasks.add(s.MESSAGE, q, part, delay))
                        tasks.after += [(parts[-1], t) for t in waits]
                waits = parts
            ends += waits
        return ends

    def completions(self) -> Completions:
        """Operations that ended since the last call."""
        state = self.network.machine.state
        logged = int(state.clock[0].logged)
        if logged == self._logged:
            return NO_COMPLETIONS
        ended = [self._end_operation.get(int(t)) for t in state.log[self._logged : logged]]
        self._logged = logged
        operation = np.array([o for o in ended if o is not None], np.int64)
        time = state.task.done_ps[self._end[operation]].astype(np.int64)
        order = np.lexsort((operation, time))
        return Completions(operation[order], time[order])

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


def _split(size: int, shares: list[float]) -> list[int]:
    """`size` in parts proportional to `shares`, without a remainder."""
    if len(shares) == 1:
        return [size]
    whole, reached, parts, before = sum(shares), 0.0, [], 0
    for share in shares:
        reached += share
        cut = round(reached / whole * size)
        parts.append(cut - before)
        before = cut
    return parts
