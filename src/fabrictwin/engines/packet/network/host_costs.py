"""Parts of a host that are no wires, on the packet engine: memory, cores, the threads that serve sockets.

Many messages share them. Each is a link of its own that leads back to where it begins, at the rate of the
memory, of all cores, of one thread; a byte takes as much of it as it takes of the processor. They stand behind the
fabric's ports and nodes, and only where a program needs them (`PacketOptions.host_work`).

Left out: a thread is shared packet by packet, not system call by system call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.channels.connection_paths import memory_and_cores
from fabrictwin.fabric.fabric import NONE, Fabric, NodeKind
from fabrictwin.program.program import Communication

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.state.build import Wiring

WORK_PS = 80  # of a processor's time count as one byte on the link that stands for it
MEMORY, CORES, THREAD = range(3)


@record
class HostWork:
    """Links that stand for what is no wire, behind the fabric's ports and nodes."""

    kind: I32  # [links] MEMORY, CORES, THREAD
    node: I32  # [links] the processor, or the GPU whose rank has the thread
    bps: I64  # [links]

    def port(self, first: int) -> dict[tuple[int, int], int]:
        """Return ports by what they stand for; `first` is the first one's number."""
        rows = zip(self.kind.tolist(), self.node.tolist(), strict=True)
        return {key: first + 2 * i for i, key in enumerate(rows)}


def host_work(fabric: Fabric) -> HostWork:
    """List of every processor its memory and cores, of every GPU one thread."""
    memory, cores, _ = memory_and_cores(fabric)
    cpu = np.flatnonzero(fabric.node_kind == NodeKind.CPU)
    gpus = fabric.gpu_node
    core_bps = 8 * PS_PER_S / WORK_PS
    found = [
        (np.full(len(nodes), kind), nodes, rates)
        for kind, nodes, rates in (
            (MEMORY, cpu, memory[cpu] * 8 * PS_PER_S),
            (CORES, cpu, cores[cpu] * core_bps),
            (THREAD, gpus, np.full(len(gpus), core_bps)),
        )
    ]
    kinds, nodes, rates = (np.concatenate([part[i] for part in found]) for i in range(3))
    known = np.isfinite(rates)
    return HostWork(kinds[known].astype(np.int32), nodes[known].astype(np.int32), rates[known].astype(np.int64))


def works_in_hosts(communications: Iterable[Communication], fabric: Fabric) -> bool:
    """Tell whether bytes of one of them pass host memory or cost a processor's time."""
    for communication in communications:
        how = communication.transport.connections
        if how is None:
            continue
        through = np.concatenate([how.out, how.into])
        if (fabric.node_kind[through[through != NONE]] == NodeKind.CPU).any() or (how.send_ps_per_byte > 0).any():
            return True
    return False


def with_host_work(wiring: Wiring, work: HostWork, room_bytes: int) -> Wiring:
    """The wiring with a node and a link for each; `room_bytes` may be on it at once."""
    from fabrictwin.kernel.packet.state import constants as s

    links, ports, nodes = len(work.kind), len(wiring.port_node), len(wiring.node_flags)
    own = np.repeat(np.arange(nodes, nodes + links), 2)
    none = np.zeros(2 * links, np.int64)

    def longer(column: np.ndarray, more: np.ndarray) -> np.ndarray:
        return np.concatenate([column, more]).astype(column.dtype)

    return replace(
        wiring,
        port_node=longer(wiring.port_node, own),
        port_peer=longer(wiring.port_peer, ports + (np.arange(2 * links) ^ 1)),
        port_bps=longer(wiring.port_bps, np.repeat(work.bps, 2)),
        port_latency_ps=longer(wiring.port_latency_ps, none),
        port_flags=longer(wiring.port_flags, none + (s.CREDIT | s.INTERNAL)),
        node_flags=longer(wiring.node_flags, np.full(links, s.ENDPOINT)),
        node_latency_ps=longer(wiring.node_latency_ps, none[:links]),
        node_buffer_bytes=longer(wiring.node_buffer_bytes, none[:links]),
        node_row=longer(wiring.node_row, np.full(links, s.NONE)),
        node_port_start=longer(wiring.node_port_start, wiring.node_port_start[-1] + 2 * np.arange(1, links + 1)),
        arrive_ps=longer(wiring.arrive_ps, none),
        credit_bytes=longer(wiring.credit_bytes, none + room_bytes),
    )
