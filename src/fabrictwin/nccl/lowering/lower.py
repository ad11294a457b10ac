"""Tasks lowered to communications: which channels, over which connections, at which cost.

    task + choice + communicator  ->  patterns on channels (program.patterns)
                                      connections of every edge (nccl.transport)
                                      costs of steps (nccl.costs)

Rings and trees are the communicator's. A broadcast follows a ring from its root, a reduce ends there. Sends are
point-to-point: an all-to-all posts all of them at once. What reduces in switches is in `nccl.lowering.in_switch`.

Left out: groups of several tasks in one launch, user buffer registration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I64
from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.channels.channel_resources import message_bytes
from fabrictwin.fabric.fabric import NONE
from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.constants import WIRE_BYTES
from fabrictwin.nccl.lowering import in_switch
from fabrictwin.nccl.lowering.chunks import Filled, chunk_bytes, filling, send_parts
from fabrictwin.nccl.lowering.connector import Connector
from fabrictwin.nccl.lowering.queue_pair_options import service_level
from fabrictwin.nccl.lowering.tasks import POINT_TO_POINT, Kind, Task
from fabrictwin.nccl.lowering.transport import Transports
from fabrictwin.nccl.topology.graph_types import Algorithm, Protocol
from fabrictwin.nccl.tuning.nvls_ceiling import beside_chunks_gbps, ceiling_gbps
from fabrictwin.nccl.tuning.step_costs import StepCosts, calibration, picoseconds
from fabrictwin.nccl.tuning.tuner import Choice
from fabrictwin.program import patterns
from fabrictwin.program.builder import ProgramBuilder
from fabrictwin.program.program import (
    Channels,
    Communication,
    Connections,
    Pattern,
    Program,
    SoftwareCosts,
    Transport,
)

GB = 1e9

NAMES = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "send_recv": "send and receive",
}
_RINGS = {
    "all_reduce": Pattern.RING_ALL_REDUCE,
    "all_gather": Pattern.RING_ALL_GATHER,
    "reduce_scatter": Pattern.RING_REDUCE_SCATTER,
}
# how often a rank sends what others hold, for each part of its own
_PASSES: Mapping[Kind, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
_PATS = {"all_gather": Pattern.PAT_ALL_GATHER, "reduce_scatter": Pattern.PAT_REDUCE_SCATTER}
IN_SWITCH = (Algorithm.NVLS, Algorithm.NVLS_TREE, Algorithm.COLLNET_DIRECT, Algorithm.COLLNET_CHAIN)


class Lowering:
    """Lowers tasks of one communicator; connections are remembered from one to the next."""

    def __init__(
        self, communicator: Communicator, *, transports: Transports | None = None, costs: StepCosts | None = None
    ) -> None:
        self.communicator = communicator
        self.transports = transports or Transports(communicator)
        self.connector = Connector(self.transports)
        self.costs = costs or calibration().of(communicator)
        self.level = None
        if not self.transports.sockets:
            self.level = service_level(communicator.settings, communicator.twin.fabric.technology)

    def __call__(self, task: Task, choice: Choice | None = None) -> Communication:
        """One communication. `choice` is not asked for sends. Raises ConfigError."""
        task.check(self.communicator.ranks)
        if task.kind in POINT_TO_POINT:
            return self._sends(task)
        if choice is None:
            raise ConfigError(
                f"got no algorithm for {NAMES.get(task.kind, task.kind)}, expected the tuner's choice"
            )
        return self._collective(task, choice.algorithm, choice.protocol, choice.channels)

    # ------------------------------------------------------------------ collectives

    def _collective(self, task: Task, algorithm: Algorithm, protocol: Protocol, count: int) -> Communication:
        communicator = self.communicator
        graph = communicator.graphs.get(algorithm)
        heads = 1
        if algorithm in IN_SWITCH:
            if protocol != Protocol.SIMPLE:
                raise ConfigError(f"got {algorithm.name} with {protocol.name}, expected Simple", key="NCCL_PROTO")
            made = in_switch.channels(communicator, self.transports, task, algorithm, count)
            heads = made.heads
        elif algorithm == Algorithm.TREE:
            made = self._tree(task, count)
        elif algorithm == Algorithm.PAT:
            made = self._pat(task, count)
        else:
            made = self._ring(task, count)
        if graph is None and algorithm != Algorithm.RING:
            raise ConfigError(f"got {algorithm.name}, which this communicator has no graph for", key="NCCL_ALGO")
        chunk = chunk_bytes(communicator, task, algorithm, protocol, count, heads)
        filled = filling(communicator, task, algorithm, protocol, channels=count, heads=heads, chunk=chunk)
        if algorithm in IN_SWITCH:
            made = replace(made, lanes=np.full_like(made.lanes, in_switch.lanes(algorithm, filled.channels)))
        unit = task.element_bytes
        channels = replace(made.channels, chunk_bytes=np.maximum(chunk * made.lanes // unit, 1) * unit)
        edges = patterns.edges(channels)
        costs = self.costs
        wire, data = WIRE_BYTES[protocol]
        rate, copies = self._channel_gbps(task, made, algorithm, protocol, count)
        if algorithm in IN_SWITCH:  # blocks without bytes move none
            rate, copies = (each * filled.channels / count for each in (rate, copies))
        return self._communication(
            task,
            channels,
            algorithm=f"{algorithm.name.lower()} {protocol.name.lower()}",
            costs=SoftwareCosts(
                base_ps=picoseconds(costs.base_us(algorithm, protocol, nodes=communicator.nodes)),
                # every head's chunk is posted, awaited and reduced by itself
                chunk_ps=picoseconds(costs.inside.nvls_chunk * filled.heads) if algorithm in IN_SWITCH[:2] else 0,
                # a block copies the shards of all heads before it posts the first
                copy_ps_per_byte=PS_PER_S / (copies * GB),
            ),
            protocol=protocol,
            rate_share=costs.share(
                algorithm,
                protocol,
                own_part(task, communicator, algorithm),
                reduced=task.kind == "all_reduce",
            ),
            connections=self.connector.connect(
                edges,
                {way: us * filled.own for way, us in costs.hops_us(algorithm, protocol).items()},
                graph=graph,
                graph_channel=made.graph_channel,
                channel_rate=rate * GB / PS_PER_S * wire / data,
                message_us=costs.between.message,
                messages=message_bytes(channels),
            ),
        )

    def _channel_gbps(
        self, task: Task, made: in_switch.Made, algorithm: Algorithm, protocol: Protocol, count: int
    ) -> tuple[float, float]:
        """GB/s of data that a connection of one channel carries at most, and those of copies into its buffers."""
        inside = self.costs.inside
        if algorithm not in IN_SWITCH:
            return inside.channel_gbps[protocol] * int(made.lanes.max(initial=1)), math.inf
        if algorithm not in IN_SWITCH[:2] or task.kind != "all_reduce":
            return math.inf, math.inf
        ceiling = ceiling_gbps(self.communicator, algorithm)
        shards = max(len(made.lanes), 1)  # of which all move at once
        return beside_chunks_gbps(ceiling, chunk_us=inside.nvls_chunk, channels=count) / shards, ceiling / shards

    def chunk(self, task: Task, choice: Choice, whole: Communication) -> int:
        """The chunk of another size of `whole`'s way."""
        chunk, filled = self._chunk(task, choice)
        lanes = in_switch.lanes(choice.algorithm, filled.channels) if choice.algorithm in IN_SWITCH else 1
        unit = whole.channels.element_bytes
        return max(chunk * lanes // unit, 1) * unit

    def filled(self, task: Task, choice: Choice) -> Filled:
        """Return how far a task of this way fills its channels; sizes alike in it differ in bytes and chunks."""
        return self._chunk(task, choice)[1]

    def _chunk(self, task: Task, choice: Choice) -> tuple[int, Filled]:
        algorithm, protocol, count = choice.algorithm, choice.protocol, choice.channels
        heads = in_switch.heads_of(self.communicator, algorithm).shape[1] if algorithm in IN_SWITCH else 1
        chunk = chunk_bytes(self.communicator, task, algorithm, protocol, count, heads)
        return chunk, filling(
            self.communicator, task, algorithm, protocol, channels=count, heads=heads, chunk=chunk
        )

    def _communication(
        self,
        task: Task,
        channels: Channels,
        *,
        algorithm: str,
        costs: SoftwareCosts,
        protocol: Protocol,
        rate_share: float,
        connections: Connections,
    ) -> Communication:
        return Communication(
            name=NAMES.get(task.kind, task.kind),
            kind=task.kind,
            algorithm=algorithm,
            size_bytes=task.size_bytes,
            groups=1,
            channels=channels,
            costs=costs,
            transport=Transport(*WIRE_BYTES[protocol], rate_share, connections, self.level),
        )

    def _ring(self, task: Task, count: int) -> in_switch.Made:
        orders = self.communicator.channels.rings.order
        index = np.arange(count) % len(orders)
        ranks = orders[index]
        n = ranks.shape[1]
        parent = np.full_like(ranks, NONE)
        if task.kind in _RINGS:
            pattern = _RINGS[task.kind]
        else:
            # from the root around, or around to the root
            at = np.argmax(ranks == task.root, axis=1)
            reduces = task.kind == "reduce"
            turn = (np.arange(n)[None, :] + at[:, None] + reduces) % n
            ranks = np.take_along_axis(ranks, turn, axis=1)
            pattern = Pattern.TREE_REDUCE if reduces else Pattern.CHAIN_BROADCAST
            if reduces:
                parent[:, :-1] = np.arange(1, n)
        return in_switch.made(task, pattern, ranks, parent, graph_channel=index)

    def _tree(self, task: Task, count: int) -> in_switch.Made:
        if task.kind != "all_reduce":
            raise ConfigError(
                f"got Tree for {NAMES.get(task.kind, task.kind)}, expected an all-reduce", key="NCCL_ALGO"
            )
        up = self.communicator.channels.trees.up
        index = np.arange(count) % len(up)
        parent = up[index]
        ranks = np.broadcast_to(np.arange(parent.shape[1], dtype=np.int32), parent.shape)
        return in_switch.made(task, Pattern.TREE_ALL_REDUCE, ranks, parent, graph_channel=index)

    def _pat(self, task: Task, count: int) -> in_switch.Made:
        if self.communicator.ranks_per_node > 1 or task.kind not in _PATS:
            raise ConfigError(
                f"got PAT for {NAMES.get(task.kind, task.kind)} with {self.communicator.ranks_per_node} ranks on "
                "a host, expected an all-gather or reduce-scatter with one",
                key="NCCL_ALGO",
            )
        n = self.communicator.ranks
        ranks = np.tile(np.arange(n, dtype=np.int32), (count, 1))
        return in_switch.made(
            task, _PATS[task.kind], ranks, np.full_like(ranks, NONE), graph_channel=np.arange(count)
        )

    # ------------------------------------------------------------------ sends

    def _sends(self, task: Task) -> Communication:
        n = self.communicator.ranks
        if task.kind == "send_recv":
            block = task.size_bytes
            pairs = (
                np.stack([np.arange(n), (np.arange(n) + 1) % n], axis=1) if n > 1 else np.zeros((0, 2), np.int64)
            )
        else:
            block = task.size_bytes // n
            others = np.delete(np.arange(n), task.root)
            root = np.full(n - 1, task.root)
            pairs = np.stack([root, others] if task.kind == "scatter" else [others, root], axis=1)
        parts, protocol, chunk = send_parts(self.communicator, block)
        if task.kind == "all_to_all":
            shifts = max(n - 1, 1)
            channels = Channels(
                pattern=np.full(shifts, Pattern.SHIFT, np.int8),
                rank_start=(np.arange(shifts + 1) * n).astype(np.int32),
                ranks=np.tile(np.arange(n, dtype=np.int32), shifts),
                parent=np.full(shifts * n, NONE, np.int32),
                shift=np.arange(1, shifts + 1, dtype=np.int32),
                payload_bytes=np.full(shifts, block, np.int64),
                offset_bytes=np.zeros(shifts, np.int64),
                chunk_bytes=np.full(shifts, chunk, np.int64),
                element_bytes=task.element_bytes,
            )
        else:
            count = len(pairs)
            at = pairs.min(axis=1) * 0 if task.kind == "send_recv" else _other(pairs, task.root) * block
            channels = Channels(
                pattern=np.full(count, Pattern.MESSAGE, np.int8),
                rank_start=(np.arange(count + 1) * 2).astype(np.int32),
                ranks=pairs.reshape(-1).astype(np.int32),
                parent=np.full(2 * count, NONE, np.int32),
                shift=np.zeros(count, np.int32),
                payload_bytes=np.full(count, block, np.int64),
                offset_bytes=at.astype(np.int64),
                chunk_bytes=np.full(count, chunk, np.int64),
                element_bytes=task.element_bytes,
            )
        costs = self.costs
        wire, data = WIRE_BYTES[protocol]
        # blocks of one rank share its channels
        peers = 1 if task.kind == "send_recv" else n - 1
        lanes = min(parts, max(1, self.communicator.channels.p2p // max(peers, 1)))
        exchange = task.kind == "all_to_all"
        base_us, share, block_gbps = costs.sends(
            protocol,
            exchange=exchange,
            nodes=self.communicator.nodes,
            ranks=n,
            own_part=own_part(task, self.communicator),
        )
        rate = block_gbps * GB / PS_PER_S * lanes
        edges = patterns.edges(channels)
        return self._communication(
            task,
            channels,
            algorithm=f"sends {protocol.name.lower()}",
            costs=SoftwareCosts(base_ps=picoseconds(base_us)),
            protocol=protocol,
            rate_share=share,
            connections=self.connector.connect(
                edges,
                costs.send_hops_us(protocol),
                channel_rate=rate * wire / data,
                message_us=costs.between.message,
                messages=message_bytes(channels),
            ),
        )


def _other(pairs: npt.NDArray[np.int64], root: int) -> I64:
    found: I64 = np.where(pairs[:, 0] == root, pairs[:, 1], pairs[:, 0])
    return found


def own_part(task: Task, communicator: Communicator, algorithm: Algorithm = Algorithm.RING) -> float:
    """Return a rank's own part, which it copies, over what it sends by NVLinks; 0 where other things bound it."""
    passes = _PASSES.get(task.kind, 0)
    if not passes or algorithm != Algorithm.RING or communicator.nodes > 1 or communicator.ranks < 2:
        return 0.0
    return 1.0 / (passes * (int(communicator.ranks) - 1))


def lower(
    communicator: Communicator, task: Task, choice: Choice | None = None, *, costs: StepCosts | None = None
) -> Communication:
    """One task as a communication. Raises ConfigError."""
    return Lowering(communicator, costs=costs)(task, choice)


def program(communications: list[Communication], ranks: int, *, name: str = "nccl") -> Program:
    """Communications one after the other, each once all ranks are done with the one before."""
    builder = ProgramBuilder(name, ranks)
    actor = builder.actor("ranks", np.arange(ranks))
    last: list[int] = []
    for communication in communications:
        number = builder.communication(communication, [actor])
        last = [builder.communicate(number, builder.label(communication.name, "other"), after=last)]
    return builder.build()
