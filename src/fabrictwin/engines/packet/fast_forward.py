"""Stretches of long transfers that are skipped because they repeat themselves.

Between two events of the kernel it is looked whether everything stands as it stood some packets earlier
(`steady_state`). Where it does, as many of these periods are skipped as nothing else comes in: no message ends, no
timer is due, nothing computes to its end. What is skipped is what would have been played, to the last counter.

A look costs about as much as some ten thousand events; where nothing comes of it the next one waits longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.engines.base.engine import Stop
from fabrictwin.engines.packet.steady_state import may_repeat, moment, period, skip

if TYPE_CHECKING:
    from fabrictwin.engines.packet.network.packet_network import PacketNetwork
    from fabrictwin.kernel.packet.machine import Machine

FIRST_WAIT = 1 << 15  # events between two looks; twice as many after each that was in vain
LONGEST_WAIT = 1 << 21
WORTH = 1 << 15  # events that are worth a skip
LEAST_LEFT = 48  # packets of each message that is under way
LONGEST_PERIOD = 32  # packets of the port that is watched
LOOKS = 3
LULL = 256  # events between two tries to find the port busy
TRIES = 8


class FastForward:
    """Skips on one network."""

    def __init__(self, network: PacketNetwork) -> None:
        self.network = network
        self.hops = 0  # packet-hops that were skipped
        self.skips = 0
        self._wait = FIRST_WAIT

    @property
    def machine(self) -> Machine:
        return self.network.machine

    def run(self) -> Stop:
        """Run until everything is done; see `PacketNetwork.run`."""
        while True:
            stop = self.network.run(budget=self._wait)
            if stop != Stop.BUDGET:
                return stop
            port = self._watched()
            if port is not None:
                found = self._look(port)
                self._wait = FIRST_WAIT if found else min(2 * self._wait, LONGEST_WAIT)

    def _watched(self) -> int | None:
        """The slowest port of the queue pair that has most left to send; None where some message is nearly over."""
        state = self.machine.state
        qp = state.qp[: self.machine.queue_pairs]
        busy = np.flatnonzero(qp.next_psn < qp.posted_psn)
        if not len(busy):
            return None
        left = state.task.psn_end[qp.sending[busy]] - qp.next_psn[busy]
        if left.min() < LEAST_LEFT:
            return None
        most = qp[busy[left.argmax()]]
        ports = np.append(state.hop[int(most.hop_start) : int(most.hop_middle)], most.port)
        return int(ports[state.port.ps_q[ports].argmax()])

    def _look(self, port: int) -> bool:
        """Skip periods where there are any worth it; returns whether some were."""
        machine = self.machine
        for _ in range(LOOKS):
            if not self._step(port):
                return False
            before = moment(machine.state, machine.queue_pairs)
            for _ in range(LONGEST_PERIOD):
                if not self._step(port):
                    return False
                if not may_repeat(before, machine.state):
                    continue
                one = period(before, moment(machine.state, machine.queue_pairs), machine.state)
                if one is not None:
                    if one.most * one.events < WORTH:
                        return False
                    skip(machine.state, one, one.most)
                    self.hops += one.most * one.hops
                    self.skips += 1
                    return True
        return False

    def _step(self, port: int) -> bool:
        """Run until a port has sent one packet more; returns whether it did before all was done."""
        for _ in range(TRIES):
            due = self._sent_ps(port)
            if due is not None:
                return self.network.run(due) == Stop.REACHED
            if self.network.run(budget=LULL) != Stop.BUDGET:
                return False
        return False

    def _sent_ps(self, port: int) -> int | None:
        """When the packet on a port's wire will have left, None where there is none."""
        from fabrictwin.kernel.packet.events import KIND_SHIFT, PORT_SHIFT, QueueEvent

        state = self.machine.state
        what = (int(QueueEvent.TX_DONE) << KIND_SHIFT) | (port << PORT_SHIFT)
        lanes = state.lane[: int(state.clock[0].lanes)]
        for lane in (int(state.port.lane_tx_full[port]), int(state.port.lane_tx_ack[port])):
            if lane < 0:
                continue
            ring = lanes[lane]
            at = int(ring["first"]) + (np.arange(int(ring["head"]), int(ring["tail"])) & int(ring["mask"]))
            found = at[state.event.what[at] == what]
            if len(found):
                return int(state.event.time[found[0]])
        heap = state.heap[: int(state.clock[0].heap)]
        found = np.flatnonzero(heap.what == what)
        return int(heap.time[found[0]]) if len(found) else None
