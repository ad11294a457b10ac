"""Interface of what only an engine with packets has: losses, hardware counters, the size of a run, observers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record
from fabrictwin.engines.base.messages import Event, FlowOptions, Message
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.program.program import Communication, Operations
from fabrictwin.routing.congestion_tables import CongestionCounts, CongestionLog
from fabrictwin.routing.partition_keys import KeyViolations

if TYPE_CHECKING:
    from fabrictwin.engines.packet.run_estimate import PacketSize


@record
class PacketTotals:
    """Packets of a whole run."""

    created: int
    hops: int  # acknowledgements included
    retransmitted: int
    dropped: int
    trimmed: int
    ecn_marked: int
    out_of_sequence: int
    cnps: int
    timeouts: int
    pause_frames: int
    pause_ps: int  # summed over ports and priorities


class Observer(Protocol):
    """Listens to what is on the wires and who sends it; a capture is one."""

    def connected(self, queue_pair: int, connection: Any) -> None:
        """A queue pair of the kernel was made."""
        ...

    def opened(self, queue_pair: int, connection: Any, flow: FlowRecord) -> None:
        """A queue pair of the kernel carries messages of a flow."""
        ...

    def posted(
        self, flow: FlowRecord, number: int, message: Message, answers: int | None, *, acknowledged: bool
    ) -> None:
        """A message was posted; it `answers` a request, and an ENDED will come of it where it is acknowledged."""
        ...

    def happened(self, events: list[Event]) -> None:
        """Messages had events."""
        ...


@dataclass(slots=True)
class FlowRecord:
    """A flow as observers see it."""

    number: int
    options: FlowOptions
    mtu: int


class PacketLevel(Protocol):
    """An engine's packets."""

    @property
    def fabric(self) -> Fabric: ...

    @property
    def marks_congestion(self) -> bool:
        """Senders understand ECN."""
        ...

    @property
    def gpudirect(self) -> bool:
        """Adapters reach the memory of GPUs."""
        ...

    @property
    def staging(self) -> tuple[int, int]:
        """(bytes of a chunk that software stages in host memory, its time in ps a chunk)."""
        ...

    def lid(self, node: int) -> int:
        """The first LID of a fabric node."""
        ...

    def losses(self) -> tuple[int, int]:
        """Data packets so far that were (lost on the way, sent again)."""
        ...

    def totals(self) -> PacketTotals:
        """Packets so far."""
        ...

    def repeated(self) -> float:
        """Return the share of the packet-hops so far that repeats communications that were played before."""
        ...

    def fast_forwarded(self) -> float:
        """Return the share of the packet-hops so far that was skipped, as periods of long transfers."""
        ...

    @property
    def skip_error(self) -> float:
        """Share of the time that skipping steady steps may move it by; 0: none are skipped."""
        ...

    def forecast(self) -> tuple[float, float]:
        """Return (share of the packet-hops that was skipped as steady steps, the error of the time so far)."""
        ...

    def port_counters(self) -> dict[str, I64]:
        """Counters of ports by the name that operators know, each of shape [ports]."""
        ...

    def congestion_log(self) -> CongestionLog:
        """Return what congestion control noted, as far as the log reaches back."""
        ...

    def key_violations(self) -> KeyViolations:
        """Queue pairs whose packets partition keys kept out so far."""
        ...

    def congestion_counts(self) -> CongestionCounts | None:
        """Return what congestion control counted by level and lane; None where nothing has tables of it."""
        ...

    def adapter_counters(self) -> dict[str, I64]:
        """Counters of adapters by name, each of shape [adapters]."""
        ...

    def size_of(
        self, operations: Operations, communications: Sequence[Communication], rank_node: npt.NDArray[np.int32]
    ) -> PacketSize:
        """Estimate the work of operations in packets. Raises TooLargeError where they are refused."""
        ...

    def excess(
        self, operations: Operations, communications: Sequence[Communication], rank_node: npt.NDArray[np.int32]
    ) -> float:
        """Share of the nearest limit of time or memory that operations would take; above 1 they are refused."""
        ...

    def next_event_ps(self) -> int:
        """Return when the next event of a packet, a timer or a change is due; FOREVER: there is none."""
        ...

    def observe(self, observer: Observer, ports: Sequence[int], drain: Callable[[Any], None]) -> None:
        """Tell an observer of everything from now on, and hand what these ports see to `drain`.

        Rows are the kernel's (`kernel.packet.tap`).
        """
        ...

    def read_tap(self) -> None:
        """Hand over what ports saw since the last time."""
        ...
