"""Transfers between adapters on the packet kernel: a connection each, and tasks that wait for each other."""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base.transfers import Transfers, TransferTimes
from fabrictwin.engines.packet.network.packet_network import PacketNetwork
from fabrictwin.engines.packet.run_estimate import PacketSize, check_size
from fabrictwin.fabric.fabric import NONE


class PacketTransfers:
    """Transfers posted on one network."""

    def __init__(self, network: PacketNetwork) -> None:
        self.network = network
        self.hops = 0  # that they will take, about
        self._first = self._count = 0

    def __len__(self) -> int:
        return self._count

    def post(self, transfers: Transfers) -> None:
        """Connect and post. Raises ConfigError where it would take more than the options allow."""
        from fabrictwin.kernel.packet.state import constants as s

        network, n = self.network, len(transfers)
        adapters = len(network.fabric.nic_node)
        if n and not min(transfers.source.min(), transfers.target.min()) >= 0:
            raise ConfigError("got an adapter below 0", key="transfers")
        if n and max(transfers.source.max(), transfers.target.max()) >= adapters:
            raise ConfigError(f"got an adapter beyond the fabric's {adapters}", key="transfers")
        self.hops = _hops(network, transfers)
        check_size(PacketSize(self.hops, n, _memory_bytes(network, transfers)), network.options, "this traffic")
        connections = network.connections
        levels = (
            [None] * n if transfers.level is None else [k if k != NONE else None for k in transfers.level.tolist()]
        )
        ends = zip(transfers.source.tolist(), transfers.target.tolist(), levels, strict=True)
        first = connections.connect([connections.remote(a, b, sl=level) for a, b, level in ends])
        starts = start_times(transfers)
        if starts is None:
            network.keep_whole("transfers that start others")
        else:
            network.divide()
        # a message's clock starts when it is posted
        post_ps = network.fabric.nic_post_ps[transfers.source]
        machine = network.machine
        if starts is not None and machine.parts > 1:
            self._first = machine.add_tasks(
                np.full(n, s.MESSAGE), first + np.arange(n), transfers.size_bytes, post_ps, start=False
            )
            machine.begin_at(self._first, machine.now + starts)
        else:
            self._first = self._add_gated(transfers, first)
        self._count = n

    def _add_gated(self, transfers: Transfers, first: int) -> int:
        """Add a task for each transfer and one for each gate, which it waits for; returns the first."""
        from fabrictwin.kernel.packet.state import constants as s

        gates, n = transfers.gates, len(transfers)
        kind = [s.MESSAGE] * n + [s.TURNSTILE if gate.one_each else s.DELAY for gate in gates]
        size = transfers.size_bytes.tolist() + [0] * len(gates)
        delay = self.network.fabric.nic_post_ps[transfers.source].tolist() + [gate.delay_ps for gate in gates]
        received: list[tuple[int, int]] = []
        acknowledged: list[tuple[int, int]] = []
        for task, gate in enumerate(gates, n):
            received += [(task, cause) for cause in gate.received] + [(waiting, task) for waiting in gate.waiting]
            acknowledged += [(task, cause) for cause in gate.acknowledged]
        queue_pair = [*range(first, first + n), *([0] * len(gates))]
        return self.network.machine.add_tasks(
            kind, queue_pair, size, delay, after=_columns(received), after_done=_columns(acknowledged)
        )

    def times(self) -> TransferTimes:
        """Times in ps at which each started, was received and was done; NONE where it was not."""
        from fabrictwin.kernel.packet.state import constants as s

        task = self.network.machine.state.task[self._first : self._first + self._count]
        done = np.where(task.status == s.DONE, task.done_ps, NONE)
        return TransferTimes(
            task.start_ps.astype(np.int64), task.received_ps.astype(np.int64), done.astype(np.int64)
        )


def start_times(transfers: Transfers) -> I64 | None:
    """Return [T] when each starts in ps after the post, None where some wait for others."""
    starts = np.zeros(len(transfers), np.int64)
    for gate in transfers.gates:
        if gate.one_each or gate.received or gate.acknowledged:
            return None
        waiting = np.array(gate.waiting, np.int64)
        starts[waiting] = np.maximum(starts[waiting], gate.delay_ps)
    return starts


def _columns(pairs: list[tuple[int, int]]) -> tuple[I64, I64]:
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _hops(network: PacketNetwork, transfers: Transfers) -> int:
    """Packet-hops that they will take, acknowledgements included."""
    fabric, groups, switches = network.fabric, network.routes.groups, network.routes.switches
    rows = np.full(len(fabric.nic_node), NONE, np.int64)
    rows[fabric.node_nic[switches.endpoint_node]] = switches.endpoint_row
    source, target = rows[transfers.source], rows[transfers.target]
    known = (source >= 0) & (target >= 0)
    column = switches.edge_column[np.maximum(target, 0)]
    links = np.where(known, groups.distance[np.maximum(column, 0), np.maximum(source, 0)], 0) + 2
    packets = np.maximum(-(-transfers.size_bytes // fabric.mtu_bytes), 1)
    acks = network.options.packets_an_ack
    return int((links * (packets + -(-packets // acks))).sum())


def _memory_bytes(network: PacketNetwork, transfers: Transfers) -> int:
    """Bytes of the kernel's arrays: a queue pair and a task a transfer, and packets, of which there are at most as
    many as fit into the buffers or as all transfers have.
    """
    from fabrictwin.kernel.packet.state.network_records import packet_dtype
    from fabrictwin.kernel.packet.state.state import heap_dtype, nbytes
    from fabrictwin.kernel.packet.state.transport_records import qp_dtype, task_dtype

    options, state, n = network.options, network.machine.state, len(transfers)
    reach = 2 * options.transport.window_packets if options.selective else 0
    control = sum(int(getattr(state, name).itemsize) for name in options.congestion.used if name != "none")
    packets = int(np.maximum(-(-transfers.size_bytes // network.fabric.mtu_bytes), 1).sum())
    room = int(state.port.peer.size) * 2 * (options.switching.credit_bytes or 1 << 20) // network.fabric.mtu_bytes
    links = 2 * int(network.fabric.node_tier.max(initial=1)) + 2
    task = task_dtype.itemsize + heap_dtype.itemsize + 12
    queue_pair = qp_dtype.itemsize + reach + control + 8 * links
    return nbytes(state) + n * (task + queue_pair) + min(packets, room) * packet_dtype.itemsize
