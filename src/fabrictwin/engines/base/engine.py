"""The one interface of the engines: packet, flow and analytic stand behind it, and everything that takes time
stands on it: programs, verbs, traffic files, faults, the subnet manager, and whatever comes next.

An engine is at work over one fabric (`Twin.start_engine` makes one), and its time only advances.

*In* go frozen records:

- `post` takes the operations of a program with the communications that they mean, any number of times. Those
  without predecessors start at once. `started_ps` and `ended_ps` say when each did.
- `open` makes a flow, one direction of a connection between adapters; `send` posts a `Message` on it. Receives are
  counted in pools (`add_receives`), which flows draw on (`receives`). `refuse` is the receiver's NAK. Keys, bytes
  and completions are the caller's own.
- `transfer` posts columns of messages between adapters that start each other, as files of traffic have them.
- `change` takes a `TimedChange`: a link that goes down, comes back or runs at another rate, bit errors, entries of
  forwarding tables. It happens at its time, while the engine advances; a change whose time is now happens now.

*Out* comes what `advance` returns: completions of operations, events of messages, and why it stopped. A message's
event stops the engine at its instant, since software may answer there; the completion of an operation does not.
Who wants to react to operations asks for them in steps: `advance(until_ps=...)`. `counters` are the ports' own.

*Kernels return in slices.* `advance(budget=...)` comes back after so many events of its kernel at most, with
`Stop.BUDGET`; call it again to go on. So Ctrl-C works, `progress` can be shown, and several engines share a
thread:

    while engine.advance(budget=SLICE).stop == Stop.BUDGET:
        show(engine.progress)

The same calls in slices of any size give the same times.

*Capabilities.* Not every engine models everything: `capabilities` says what this one does, and callers ask it,
never the engine's type. What only an engine with packets has stands in `packets`, which is None elsewhere. To ask
for what an engine cannot do raises ConfigError.

*To add an engine*, implement `Engine`, give it a line in `base.capabilities`, and let `Twin.start_engine` make
it. What plays its operations as a graph without packets can be built on `engines.flow.graph_engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fabrictwin.base.capabilities import Capabilities, Fidelity
from fabrictwin.base.records import record
from fabrictwin.engines.base.changes import FOREVER, TimedChange
from fabrictwin.engines.base.messages import NAK_REMOTE_ACCESS, NEAR, PLAIN, Event, FlowOptions, Memories, Message
from fabrictwin.engines.base.packet_level import PacketLevel
from fabrictwin.engines.base.transfers import Transfers, TransferTimes
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.program.program import Communication, Operations
from fabrictwin.trace.trace import Counters

SLICE = 4_000_000  # events that take a compiled kernel some tenths of a second


@record
class Completions:
    """Operations that ended, in order of time; ties in order of id. Both of shape [completed]."""

    operation: npt.NDArray[np.int64]  # ids as `post` gave them
    time_ps: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.operation)


NO_COMPLETIONS = Completions(np.zeros(0, np.int64), np.zeros(0, np.int64))


class Stop(IntEnum):
    """Reasons why `advance` came back."""

    FINISHED = 0  # nothing is left to do, but to ask for ever for receives that nobody has posted
    REACHED = 1  # the time that was asked for
    EVENTS = 2  # something happened to messages
    BUDGET = 3  # as much work was done as was allowed; there is more


class Advanced(NamedTuple):
    """Events and completions while an engine advanced."""

    stop: Stop
    # of messages, all of one instant unless `patient`; of a reliable one ARRIVED comes before ENDED
    events: list[Event]
    completions: Completions  # of operations, since the last call


class Engine(Protocol):
    """One engine at work over one fabric. Time only advances."""

    @property
    def fabric(self) -> Fabric: ...

    @property
    def fidelity(self) -> Fidelity: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def packets(self) -> PacketLevel | None:
        """The engine's packets; None where it moves none."""
        ...

    @property
    def now_ps(self) -> int: ...

    @property
    def idle(self) -> bool:
        """Nothing is under way: without a new post, nothing will ever happen."""
        ...

    @property
    def progress(self) -> float:
        """The share of what was posted that is done, from 0 to 1."""
        ...

    # ------------------------------------------------------------------ operations of programs

    def post(
        self, operations: Operations, communications: Sequence[Communication], rank_node: npt.NDArray[np.int32]
    ) -> int:
        """Add operations; those without predecessors start now. Returns the id of the first.

        `rank_node[r]` is the fabric node (a GPU or a CPU) that holds rank r's memory. Raises ConfigError.
        """
        ...

    def started_ps(self) -> npt.NDArray[np.int64]:
        """[operations posted so far] when each started; -1 where it has not."""
        ...

    def ended_ps(self) -> npt.NDArray[np.int64]:
        """[operations posted so far] when each ended; -1 where it has not."""
        ...

    # ------------------------------------------------------------------ single messages

    def open(self, source: int, target: int, memories: Memories = NEAR, options: FlowOptions = PLAIN) -> int:
        """Open a flow between two adapters of the fabric (indices into `fabric.nic_node`, equal for loopback).

        Memories, of the source and the target, are fabric nodes: a CPU or a GPU of the adapter's host.
        Raises ConfigError where there is no path.
        """
        ...

    def close(self, flow: int) -> None:
        """Forget a flow: messages under way on it are lost, without an event."""
        ...

    def receives(self, flow: int, pool: int) -> None:
        """Let messages on the flow that take a receive take it from this pool (several flows may share one)."""
        ...

    def add_receives(self, pool: int, count: int) -> None:
        """Post so many more receives (or, negative, withdraw them) in a pool; pools start empty."""
        ...

    def send(self, flow: int, message: Message) -> int:
        """Post a message now; returns its number."""
        ...

    def refuse(self, message: int, syndrome: int = NAK_REMOTE_ACCESS) -> None:
        """Answer a begun or arrived message with a NAK, as its receiver: the sender sees ENDED at the time of that
        NAK, and later messages of the flow that are under way never arrive.

        Of an arrived message the acknowledgement is under way already: the NAK takes its place, and where the
        sender has it, ENDED came before.
        """
        ...

    # ------------------------------------------------------------------ transfers between adapters

    def transfer(self, transfers: Transfers) -> None:
        """Post messages between adapters that start each other, once an engine. Raises ConfigError."""
        ...

    def transfer_times(self) -> TransferTimes:
        """Times in ps at which each transfer started, was received and was done; -1 where it was not."""
        ...

    # ------------------------------------------------------------------ time

    def change(self, change: TimedChange) -> None:
        """Let a link or tables change at a time that is not over. Raises ConfigError."""
        ...

    def await_changes(self, awaited: bool) -> None:
        """Say whether somebody outside will yet change links or tables at a time that is not known.

        What waits for that is not stuck, and a packet without a path is dropped rather than an error.
        """
        ...

    def advance(self, until_ps: int = FOREVER, budget: int | None = None, *, patient: bool = False) -> Advanced:
        """Run to `until_ps`, to the next instant at which a message has an event, or to the end of all work.

        Events that nobody awaits (`Posting.awaited`) may come to a `patient` caller with the next one that
        somebody does, in order.
        Comes back after some `budget` of the kernel's events where one is given. Changes that are due after
        everything has ended do not happen until there is more to do. Raises SimulatedError for what never ends.
        """
        ...

    def counters(self) -> Counters:
        """Counts of the ports so far."""
        ...
