"""Stretches of long transfers that are skipped because they repeat themselves.

Between two events of the kernel it is looked whether everything stands as it stood some packets earlier
(`steady_state`). Where it does, as many of these periods are skipped as nothing else comes in: no message ends, no
timer is due, nothing computes to its end. What is skipped is what would have been played, to the last counter.

A look costs as much as some ten thousand events; where nothing comes of it the next one waits longer. So what is
skipped belongs to the program, and not to how fast the machine is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.engines.base.engine import Stop
from fabrictwin.engines.packet.repetition.steady_state import look, may_repeat, period, skip
from fabrictwin.engines.packet.repetition.step_skips import StepSkips

if TYPE_CHECKING:
    from fabrictwin.engines.packet.communication_tasks import PlacedTasks
    from fabrictwin.engines.packet.network.packet_network import PacketNetwork
    from fabrictwin.kernel.packet.machine import Machine

LONGEST_WAIT = 128  # times the first wait
LONGEST_PERIOD = 32  # packets of the port that is watched
BEGINNINGS = 2  # moments that periods are sought from in one look
LULL = 256  # events between two tries to find the port busy
TRIES = 8


class FastForward:
    """Skips on one network: exact ones, and of steps where an error is allowed."""

    least_events = 1 << 15  # between two looks, and in what is worth a skip
    bytes_an_event = 256  # of the state, which a look copies in the time of an event
    least_packets = 48  # that each message under way has left

    def __init__(self, network: PacketNetwork, placed: PlacedTasks) -> None:
        self.network = network
        self.hops = 0  # packet-hops that were skipped exactly
        share = network.options.hosts.skip_error
        self.steps = StepSkips(network.machine, placed, share) if share else None
        self._waits = 1  # before the next look: twice as many after each that was in vain
        self._waited = 0

    @property
    def machine(self) -> Machine:
        return self.network.machine

    @property
    def possible(self) -> bool:
        """Packets of a connection all take one way, nothing is drawn for each, and there is one part."""
        machine, options = self.machine, self.network.options
        return options.balance == "routed" and machine.parts == 1 and not machine.has_congestion_tables

    def run(self) -> Stop:
        """Run until everything is done; see `PacketNetwork.run`."""
        from fabrictwin.kernel.packet.state.state import nbytes

        wait = max(self.least_events, nbytes(self.machine.state) // self.bytes_an_event)
        while True:
            waits = self._waits if self.steps is None else 1
            stop = self.network.run(budget=waits * wait)
            if stop != Stop.BUDGET:
                if self.steps is not None:
                    self.steps.close()
                return stop
            self._waited += waits
            if self.steps is not None:
                self.steps.look()
                if self.steps.on_trial:
                    continue
            if self._waited >= self._waits:
                self._seek(wait)

    def _seek(self, worth: int) -> None:
        """Look for a period worth so many events, and say how long to wait for the next look."""
        port = self._watched()
        if port is not None:
            self._waits = 1 if self._look(port, worth) else min(2 * self._waits, LONGEST_WAIT)
        self._waited = 0

    def _watched(self) -> int | None:
        """The slowest port of the queue pair that has most left; None where a message is nearly over."""
        state = self.machine.state
        qp = state.qp[: self.machine.queue_pairs]
        busy = np.flatnonzero(qp.next_psn < qp.posted_psn)
        if not len(busy):
            return None
        left = state.task.psn_end[qp.sending[busy]] - qp.next_psn[busy]
        if left.min() < self.least_packets:
            return None
        most = qp[busy[left.argmax()]]
        ports = np.append(state.hop[int(most.hop_start) : int(most.hop_middle)], most.port)
        return int(ports[state.port.ps_q[ports].argmax()])

    def _look(self, port: int, worth: int) -> bool:
        """Skip periods where there are any of so many events; returns whether some were."""
        machine = self.machine
        for _ in range(BEGINNINGS):
            if not self._step(port):
                return False
            before = look(machine.state, machine.queue_pairs)
            for _ in range(LONGEST_PERIOD):
                if not self._step(port):
                    return False
                if not may_repeat(before, machine.state):
                    continue
                after = look(machine.state, machine.queue_pairs, kept=False)
                one = period(before, after, machine.state)
                if one is not None and one.most * one.events >= worth:
                    skip(machine.state, one, one.most)
                    self.hops += one.most * one.hops
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
        """Return when the packet on a port's wire will have left, None where there is none."""
        from fabrictwin.kernel.packet.events import KIND_SHIFT, PORT_SHIFT, QueueEvent

        state = self.machine.state
        what = (int(QueueEvent.TX_DONE) << KIND_SHIFT) | (port << PORT_SHIFT)
        rings, waiting = state.lane.view(np.ndarray), state.event.view(np.ndarray)
        for lane in (int(state.port.lane_tx_full[port]), int(state.port.lane_tx_ack[port])):
            if lane < 0:
                continue
            ring = rings[lane]
            at = int(ring["first"]) + (np.arange(int(ring["head"]), int(ring["tail"])) & int(ring["mask"]))
            found = at[waiting["what"][at] == what]
            if len(found):
                return int(waiting["time"][found[0]])
        heap = state.heap[: int(state.clock[0].heap)].view(np.ndarray)
        found = np.flatnonzero(heap["what"] == what)
        return int(heap["time"][found[0]]) if len(found) else None
