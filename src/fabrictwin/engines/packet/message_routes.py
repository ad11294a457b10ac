"""Routes of messages on the packet engine: legs one after the other, each over queue pairs.

Where nothing else is said a message takes the shortest path; without GPUDirect it goes chunk by chunk through host
memory at either end. A communication's connections (`program.Connections`) may say more: host memory or the GPU
whose adapter is used, adapters, several queue pairs, a rate that its ends manage, processor work on every byte.

Left out: what share of a wire's rate a protocol gets (`Transport.rate_share`) holds a connection back, not the sum
of those that share a wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.channels.channel_resources import message_bytes
from fabrictwin.engines.packet.network.host_costs import CORES, MEMORY, THREAD, WORK_PS
from fabrictwin.fabric.fabric import NONE
from fabrictwin.fabric.memory_paths import nearest_processor
from fabrictwin.program import patterns
from fabrictwin.program.program import HUBS, Communication, Pattern

if TYPE_CHECKING:
    from fabrictwin.engines.packet.network.packet_network import PacketNetwork


@record
class Leg:
    """Queue pairs that carry a message at the same time, in parts."""

    parts: tuple[tuple[float, int], ...]  # (share, queue pair)
    amount: float = 1.0  # bytes of theirs for a byte of the message
    delay_ps: int = 0  # before the first byte leaves
    round_robin: bool = False  # a message goes whole over one of them, the next over the next

    def carriers(self, number: int) -> tuple[tuple[float, int], ...]:
        """Return what carries the message with that number, as (share, queue pair)."""
        return ((1.0, self.parts[number % len(self.parts)][1]),) if self.round_robin else self.parts


@record
class MessageRoute:
    """Legs by which one pair of memories exchanges data on one channel; no legs: memory to itself."""

    legs: tuple[Leg, ...]
    chunk_bytes: int = 0  # 0: a message goes in one piece
    pause_ps: int = 0  # before each leg but the first


@record
class Pace:
    """Limits on the rate of one edge."""

    limit: float  # bytes a picosecond, on the wire
    message_bytes: int  # of one of several that follow each other, on the wire; 0 where there is but one
    share: float  # of its slowest wire's rate
    message_ps: int = 0  # between messages that follow each other, at least


@record
class HostWork:
    """Time of cores and threads for a byte of one edge, in ps."""

    send_ps: float
    receive_ps: float
    read_ps: float  # ... of which the thread that reads the socket takes this
    threads: int


@record
class Guide:
    """A row of `Connections`, for one edge; nodes and adapters may be NONE."""

    out: int
    nic_out: int
    nic_in: int
    into: int
    paths: int
    round_robin: bool  # messages that follow each other go whole, each over the next path
    pace: Pace
    work: HostWork

    @property
    def pieces(self) -> int:
        """Legs at most."""
        work = (self.work.send_ps > 0) + (self.work.receive_ps > 0)
        return 1 + (self.out != NONE) * 2 + (self.into != NONE) * 2 + 2 * work


def guides(communication: Communication) -> dict[tuple[int, int, int], tuple[Guide, int]]:
    """Return by (channel, source, target), where connections are given, how each is made, and a step's cost in ps.

    Raises ConfigError for what switches reduce.
    """
    if np.isin(communication.channels.seats, HUBS).any():
        message = (
            f"got {communication.algorithm or communication.name}, which reduces in switches: the packet engine "
            "does not play that yet; expected rings, trees or sends (NCCL_ALGO=Ring,Tree), or fidelity flow"
        )
        raise ConfigError(message, key="--fidelity packet")
    transport = communication.transport
    how = transport.connections
    if how is None:
        return {}
    edges = patterns.edges(communication.channels)
    keys = zip(edges.channel.tolist(), edges.source.tolist(), edges.target.tolist(), strict=True)
    wired = message_bytes(communication.channels) * transport.wire_bytes // transport.data_bytes
    single = np.isin(communication.channels.pattern, (Pattern.MESSAGE, Pattern.SHIFT))
    following = np.where(single, 0, wired)[edges.channel]
    columns = (
        how.out.tolist(),
        how.nic_out.tolist(),
        how.nic_in.tolist(),
        how.into.tolist(),
        how.paths.tolist(),
        (how.round_robin & ~single[edges.channel]).tolist(),
        map(
            Pace,
            how.limit.tolist(),
            following.tolist(),
            np.where(how.inside_domain, transport.rate_share, 1.0).tolist(),
            how.message_ps.tolist(),
        ),
        map(
            HostWork,
            how.send_ps_per_byte.tolist(),
            how.receive_ps_per_byte.tolist(),
            how.read_ps_per_byte.tolist(),
            how.threads.tolist(),
        ),
    )
    found = (Guide(*row) for row in zip(*columns, strict=True))
    return dict(zip(keys, zip(found, how.cost_ps.tolist(), strict=True), strict=True))


# (communicator, source, target, channel, service level, how)
Key = tuple[int, int, int, int, int | None, Guide | None]


@record
class _Plan:
    """A leg before it is numbered: connections inside a host, or what surrounds one between adapters."""

    inside: tuple[tuple[float, Any], ...] = ()  # (share, Connection)
    adapters: tuple[int, int] = (NONE, NONE)
    ports: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # to the first adapter and from the second
    count: int = 0  # queue pairs between them
    amount: float = 1.0
    delay_ps: int = 0
    held: Guide | None = None  # whose rate holds it back
    round_robin: bool = False


class MessageRoutes:
    """Routes over one network; those of a program are opened together."""

    def __init__(self, network: PacketNetwork) -> None:
        self.network, self.fabric, self.options = network, network.fabric, network.options
        self._known: dict[Key, MessageRoute] = {}

    def __getitem__(self, key: Key) -> MessageRoute:
        return self._known[key]

    def open(self, asked: Iterable[Key]) -> None:
        """Open queue pairs of all routes that are not open yet, in the order in which they are asked for.

        Raises ConfigError where there is no path.
        """
        new = [key for key in dict.fromkeys(asked) if key not in self._known]
        if not new:
            return
        fabric = self.fabric
        source, target = (np.array([key[end] for key in new], np.int32) for end in (1, 2))
        far = fabric.node_host[source] != fabric.node_host[target]
        open_ = far & np.array([key[5] is None or key[5].nic_out == NONE for key in new])
        departing, arriving = np.full(len(new), NONE, np.int32), np.full(len(new), NONE, np.int32)
        if open_.any():
            departing[open_], arriving[open_] = self.network.connections.adapters(source[open_], target[open_])
        ends = zip(departing.tolist(), arriving.tolist(), strict=True)
        plans = [self._plan(key, *adapters) for key, adapters in zip(new, ends, strict=True)]
        remote = iter(self._remotes(new, plans))
        opened: list[Any] = []
        holds: list[tuple[int, float, Guide]] = []
        number = self.network.machine.queue_pairs
        for key, (legs, chunk, pause) in zip(new, plans, strict=True):
            numbered = []
            for leg in legs:
                connections = leg.inside or tuple((1.0 / leg.count, next(remote)) for _ in range(leg.count))
                if leg.held is not None:
                    whole = 1.0 if leg.round_robin else None
                    holds += [(number + i, whole or share, leg.held) for i, (share, _) in enumerate(connections)]
                parts = tuple((share, number + i) for i, (share, _) in enumerate(connections))
                numbered.append(Leg(parts, leg.amount, leg.delay_ps, leg.round_robin))
                opened += [connection for _, connection in connections]
                number += len(connections)
            self._known[key] = MessageRoute(tuple(numbered), chunk, pause)
        if opened:
            first = self.network.connections.connect(opened)
            for q, share, guide in holds:
                self._hold(q, opened[q - first], share, guide)

    def _remotes(self, keys: list[Key], plans: list[tuple[list[_Plan], int, int]]) -> list[Any]:
        """Connections between adapters of all plans, in order."""
        between = [
            (leg, key[4])
            for key, (legs, _, _) in zip(keys, plans, strict=True)
            for leg in legs
            for _ in range(leg.count)
        ]
        if not between:
            return []
        return self.network.connections.remotes(
            np.array([leg.adapters[0] for leg, _ in between], np.int32),
            np.array([leg.adapters[1] for leg, _ in between], np.int32),
            inside=[leg.ports for leg, _ in between],
            levels=[level for _, level in between],
        )

    def _plan(self, key: Key, departing: int, arriving: int) -> tuple[list[_Plan], int, int]:
        """(legs, bytes of a chunk, pause between legs)."""
        _, source, target, _, _, guide = key
        if source == target:
            return [], 0, 0
        if guide is not None and (guide.nic_out != NONE or departing == NONE):
            return self._guided(source, target, guide)
        if departing == NONE:
            return [self._local(source, target)], 0, 0
        if self.options.hosts.gpudirect or guide is not None:
            return [self._remote(source, target, departing, arriving)], 0, 0
        near, far = self.memory(source), self.memory(target)
        # the doorbell rings once, before the first leg
        remote = self._remote(near, far, departing, arriving)
        legs = [remote]
        if near != source:
            legs = [replace(self._local(source, near), delay_ps=remote.delay_ps), replace(remote, delay_ps=0)]
        if far != target:
            legs.append(self._local(far, target))
        return legs, self.options.hosts.staging_chunk_bytes, self.options.hosts.staging_ps

    def memory(self, node: int) -> int:
        """Return the host memory nearest to a GPU; the GPU's own where its host has no processor."""
        near = nearest_processor(self.fabric, node)
        return node if near is None else near

    # ------------------------------------------------------------------ as connections say

    def _guided(self, source: int, target: int, guide: Guide) -> tuple[list[_Plan], int, int]:
        legs: list[_Plan] = []
        first = source if guide.out == NONE else guide.out
        last = target if guide.into == NONE else guide.into
        if first != source:
            legs += [self._local(source, first, guide), *self._memory_work(first)]
        if guide.work.send_ps:
            legs += self._work(first, source, guide.work.send_ps, guide.work.send_ps, guide.work.threads)
        if guide.nic_out != NONE:
            legs.append(self._remote(first, last, guide.nic_out, guide.nic_in, guide))
        elif first != last:
            legs.append(self._local(first, last, guide))
        if guide.work.receive_ps:
            legs += self._work(last, target, guide.work.receive_ps, guide.work.read_ps, guide.work.threads)
        if last != target:
            legs += [*self._memory_work(last), self._local(last, target, guide)]
        return legs, self.options.hosts.staging_chunk_bytes if len(legs) > 1 else 0, 0

    def _memory_work(self, node: int) -> list[_Plan]:
        """Written and read."""
        return self._through(MEMORY, node, 2.0)

    def _work(self, node: int, rank: int, core_ps: float, thread_ps: float, threads: int) -> list[_Plan]:
        """Cores of a processor, and the one thread of a rank where it has no more."""
        legs = self._through(CORES, node, core_ps / WORK_PS)
        return legs if threads else [*legs, *self._through(THREAD, rank, thread_ps / WORK_PS)]

    def _through(self, kind: int, node: int, amount: float) -> list[_Plan]:
        from fabrictwin.kernel.packet.connection import local

        port = self.network.work_port.get((kind, node))
        if port is None:
            return []  # the catalog knows no rate, or it is a GPU's memory
        return [_Plan(inside=((1.0, local(port)),), amount=amount)]

    # ------------------------------------------------------------------ legs

    def _local(self, source: int, target: int, guide: Guide | None = None) -> _Plan:
        return _Plan(inside=tuple(self.network.connections.local(source, target)), held=guide)

    def _remote(
        self, source: int, target: int, departing: int, arriving: int, guide: Guide | None = None
    ) -> _Plan:
        """From memory to memory by two adapters, over as many queue pairs as the connection has."""
        fabric, network = self.fabric, self.network.connections
        prefix = network.inside(source, int(fabric.nic_node[departing]))[0][1]
        suffix = network.inside(int(fabric.nic_node[arriving]), target)[0][1]
        # the doorbell, and the adapter's request to memory before the data comes back
        asks = int(
            fabric.port_latency_ps[list(prefix)].sum()
            + fabric.node_latency_ps[fabric.port_node[list(prefix[1:])]].sum()
        )
        delay = int(fabric.nic_post_ps[departing]) + asks
        if departing == arriving:
            loop = network.loopback(departing, prefix=prefix, suffix=suffix)
            return _Plan(inside=((1.0, loop),), delay_ps=delay, held=guide)
        # SRD spreads packets by itself
        count = 1 if guide is None or network.sprays(departing) else guide.paths
        return _Plan(
            adapters=(departing, arriving),
            ports=(prefix, suffix),
            count=count,
            delay_ps=delay,
            held=guide,
            round_robin=count > 1 and guide is not None and guide.round_robin,
        )

    def _hold(self, q: int, connection: Any, share: float, guide: Guide) -> None:
        """Apply a connection's rate to one of its queue pairs.

        Where messages follow each other its ends manage only so many: each passes at the wire's rate, since they
        work on it while it comes in.
        """
        from fabrictwin.kernel.packet.state.build import rate_to_q

        record = self.network.machine.state.qp[q]
        bps = np.inf
        if guide.pace.message_bytes and (guide.pace.message_ps or np.isfinite(guide.pace.limit)):
            staged = guide.out != NONE or guide.into != NONE
            piece = min(
                guide.pace.message_bytes,
                self.options.hosts.staging_chunk_bytes if staged else guide.pace.message_bytes,
            )
            # messages of one of several queue pairs are as many times as far apart
            handed_ps = (
                round(guide.pace.message_ps * share * guide.paths) if guide.round_robin else guide.pace.message_ps
            )
            record.message_ps = max(round(piece / guide.pace.limit), int(connection.pacing.message_ps), handed_ps)
        else:
            bps = guide.pace.limit * 8 * PS_PER_S * share
        if guide.pace.share < 1:
            ports = [connection.port, *connection.paths.before, *connection.paths.after]
            bps = min(bps, guide.pace.share * float(self.fabric.port_payload_bps[ports].min()))
        if np.isfinite(bps):
            record.gap_q = int(rate_to_q(int(bps)))
