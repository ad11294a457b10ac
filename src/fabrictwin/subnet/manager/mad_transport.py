"""Transport of the manager's datagrams, and the time that they take.

The manager hands over batches of directed-route requests and gets their answers; whoever carries them keeps a
window of them in flight, repeats what got no answer, and says when each was answered. `TwinTransport` carries them
over a fabric in this process, on the twin's own clock; another transport may carry them to another simulator.

What a datagram takes on the twin is a parameter: so much in an agent, so much for each hop there and back. The
defaults are estimates, not measurements: agents are firmware on a slow core, hops are cut-through switches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fabrictwin.subnet.agents.mad_routing import Fate, Frame, Network
from fabrictwin.subnet.wire.header import DIRECTED, PERMISSIVE_LID, MadClass, Method

_DIRECTED = int(MadClass.SUBN_DIRECTED)
_ZERO = bytes(64)


@dataclass(frozen=True, slots=True)
class Path:
    """A directed route: `hops` ports, padded to the 64 bytes that a datagram carries, byte 0 unused."""

    hops: int
    ports: bytes

    def beyond(self, port: int) -> Path:
        """One hop further, out of `port`."""
        at = self.hops + 1
        return Path(at, self.ports[:at] + bytes([port]) + self.ports[at + 1 :])

    def __str__(self) -> str:
        return ",".join(str(port) for port in self.ports[: self.hops + 1])


HERE = Path(0, _ZERO)

# (path, method, attribute, modifier, data): a tuple, because a sweep makes a million of them
Request = tuple[Path, int, int, int, bytes]
Answer = tuple[int, bytes]  # status, 64 bytes


def get(path: Path, attribute: int, modifier: int = 0) -> Request:
    return path, int(Method.GET), attribute, modifier, _ZERO


def put(path: Path, attribute: int, data: bytes, modifier: int = 0) -> Request:
    return path, int(Method.SET), attribute, modifier, data.ljust(64, b"\0")


class Transport(Protocol):
    """The carrier of a manager's datagrams."""

    m_key: int

    @property
    def now_ps(self) -> int: ...

    def exchange(self, requests: Sequence[Request]) -> list[Answer | None]:
        """Answers in the order of the requests; None where none came, however often it was asked."""
        ...

    def answered_ps(self) -> Sequence[int]:
        """Return when each request of the last batch was answered."""
        ...

    def ask(self, dlid: int, mad: bytes) -> bytes | None:
        """Send a datagram to the general services of a LID and return the answer; None where none came."""
        ...

    def send(self, frame: Frame) -> None:
        """A datagram by LID that expects no answer here."""
        ...


@dataclass
class MadTiming:
    """Times of a datagram on the twin."""

    agent_ps: int = 20_000_000
    hop_ps: int = 300_000
    window: int = 4  # requests in flight
    timeout_ps: int = 200_000_000_000
    retries: int = 3


@dataclass
class Statistics:
    """Counts of what was sent."""

    requests: int = 0
    repeated: int = 0
    unanswered: int = 0
    by_attribute: dict[tuple[int, int], int] = field(default_factory=dict)  # (method, attribute)


class TwinTransport:
    """Carries datagrams over a fabric in this process. `loss` drops that share of them, by a seeded generator."""

    def __init__(
        self,
        network: Network,
        slot: int,
        *,
        timing: MadTiming | None = None,
        now_ps: int = 0,
        loss: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.network = network
        self.slot = slot
        self.timing = timing or MadTiming()
        self.m_key = 0
        self.clock_ps = now_ps
        self.statistics = Statistics()
        self.loss = loss
        self._random = random.Random(seed)
        self._tid = 0
        self._answered: list[int] = []
        self.outbox: list[Frame] = []  # frames for software elsewhere on the fabric, for whoever runs it
        self.passing: Callable[[int], None] | None = (
            None  # told that so much time has passed, before each datagram
        )

    @property
    def now_ps(self) -> int:
        return self.clock_ps

    def answered_ps(self) -> Sequence[int]:
        return self._answered

    def send(self, frame: Frame) -> None:
        self.outbox.append(frame)

    def exchange(self, requests: Sequence[Request]) -> list[Answer | None]:
        answers: list[Answer | None] = [None] * len(requests)
        self._answered = [0] * len(requests)
        left: Sequence[int] = range(len(requests))
        for attempt in range(1 + self.timing.retries):
            left = self._round(requests, left, answers)
            if not left:
                break
            self.clock_ps += self.timing.timeout_ps
            if attempt < self.timing.retries:
                self.statistics.repeated += len(left)
        self.statistics.unanswered += len(left)
        return answers

    def _round(self, requests: Sequence[Request], todo: Sequence[int], answers: list[Answer | None]) -> list[int]:
        """Send each once; returns those without an answer."""
        send, slot, pack, key = self.network.send, self.slot, DIRECTED.pack, self.m_key
        counted, timing, answered = self.statistics.by_attribute, self.timing, self._answered
        missing: list[int] = []
        # a window of w in flight: one round trip ends every 1/w of its time, the last takes all of its own
        start, shared, longest = self.clock_ps, 0, 0
        for i in todo:
            path, method, attribute, modifier, data = requests[i]
            hops = path.hops
            self._tid = tid = self._tid + 1
            mad = pack(
                *(1, _DIRECTED, 1, method, 0, 0, hops, tid, attribute, modifier, key),
                *(PERMISSIVE_LID, PERMISSIVE_LID, data, path.ports, _ZERO),
            )
            took = timing.agent_ps + 2 * hops * timing.hop_ps
            shared += took
            longest = max(longest, took)
            back_ps = start + shared // timing.window + took - took // timing.window
            now = back_ps - hops * timing.hop_ps  # at the agent
            if self.passing is not None:
                self.passing(now)
            kind = (method, attribute)
            counted[kind] = counted.get(kind, 0) + 1
            if self.loss and self._random.random() < self.loss:
                missing.append(i)
                continue
            outcome = send(slot, Frame(PERMISSIVE_LID, PERMISSIVE_LID, 0, 0, mad), now)
            reply = outcome.frame
            if outcome.fate == Fate.FORWARDED and reply is not None:
                reply = self.ask_software(outcome.slot, reply)
            if outcome.fate == Fate.UNROUTABLE or reply is None:
                missing.append(i)
                continue
            back = reply.mad
            answers[i] = ((back[4] << 8 | back[5]) & 0x7FFF, back[64:128])
            answered[i] = back_ps
        self.statistics.requests += len(todo)
        self.clock_ps = start + shared // timing.window + (longest - longest // timing.window)
        return missing

    def ask(self, dlid: int, mad: bytes) -> bytes | None:
        own = self.network.state.lid(self.slot)
        for attempt in range(1 + self.timing.retries):
            self._tid += 1
            asked = mad[:8] + self._tid.to_bytes(8, "big") + mad[16:]
            self.statistics.requests += 1
            self.statistics.repeated += attempt > 0
            outcome = self.network.send(self.slot, Frame(dlid, own, 1, 1, asked), self.clock_ps)
            self.clock_ps += self.timing.agent_ps + outcome.hops * self.timing.hop_ps
            if self.passing is not None:
                self.passing(self.clock_ps)
            if outcome.frame is not None and outcome.fate == Fate.ANSWERED:
                return outcome.frame.mad
            self.clock_ps += self.timing.timeout_ps
        self.statistics.unanswered += 1
        return None

    def ask_software(self, slot: int, frame: Frame) -> Frame | None:
        """A request for software on another port. Alone in the process, there is none."""
        return None
