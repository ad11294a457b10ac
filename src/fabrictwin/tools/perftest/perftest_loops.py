"""The tools' loops, on single messages: post, complete, answer.

Bandwidth: each queue pair keeps `tx_depth` work requests outstanding until all iterations are posted; time counts
from the first post to the last completion. Latency of WRITE and SEND: both hosts take turns, an iteration is half
a round; of READ and atomics: from the post to the answer. A processor takes its time to find a completion and to
post; in bandwidth tests it does so while the adapter works, and is not counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fabrictwin.base.errors import SimulatedError
from fabrictwin.base.progress import Stage, part, silent
from fabrictwin.base.records import record
from fabrictwin.base.units import format_size
from fabrictwin.engines.base.engine import Engine
from fabrictwin.engines.base.messages import (
    Contents,
    Event,
    EventKind,
    FlowOptions,
    GidType,
    GlobalAddress,
    Message,
    Numbers,
    Opcode,
    Posting,
)
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.fabric.driver_times import driver_times
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.tools.perftest.perftest_addresses import Address, addresses
from fabrictwin.tools.perftest.perftest_hosts import End, find_end
from fabrictwin.tools.perftest.perftest_options import ATOMICS, CONNECTIONS, RX_DEPTH, PerftestOptions, Verb
from fabrictwin.twin.twin import Twin

_OPCODES = {Verb.WRITE: Opcode.WRITE, Verb.SEND: Opcode.SEND, Verb.READ: Opcode.READ_REQUEST}
_PERCENTILES = (0.99, 0.999)
_STARTS = 4096  # runs of messages that a peak is looked for in, at most


@record
class Bandwidth:
    """A row of a bandwidth test; of both directions together with -b."""

    size: int
    iterations: int
    peak_bps: float
    average_bps: float
    messages_per_s: float


@record
class Latency:
    """A row of a latency test, in picoseconds."""

    size: int
    iterations: int
    least: float
    most: float
    typical: float
    average: float
    deviation: float
    p99: float
    p999: float


@record
class Run:
    """A finished test."""

    options: PerftestOptions
    ends: tuple[End, End]
    mtu: int
    technology: str
    addresses: list[tuple[Address, Address]]  # of each queue pair, the client's first
    rows: list[Bandwidth] | list[Latency]


class _Pair:
    """Queue pairs of two hosts that are connected with each other."""

    def __init__(
        self, engine: Engine, ends: tuple[End, End], addresses: tuple[Address, Address], base: FlowOptions
    ) -> None:
        self.there, self.back = (
            engine.open(
                a.adapter,
                b.adapter,
                (a.memory, b.memory),
                replace(
                    base,
                    numbers=Numbers(mine.qpn, theirs.qpn, mine.psn),
                    address=replace(base.address, source_gid=a.gid, target_gid=b.gid),
                ),
            )
            for (a, b), (mine, theirs) in ((ends, addresses), (ends[::-1], addresses[::-1]))
        )
        self.remote = {self.there: addresses[1], self.back: addresses[0]}


def play(
    twin: Twin, options: PerftestOptions, packet: PacketOptions | None = None, *, stage: Stage = silent
) -> Run:
    """Run a test; `stage` is told how far it is. Raises ConfigError, SimulatedError."""
    ends = (find_end(twin, options.source, options, "--from"), find_end(twin, options.target, options, "--to"))
    mtu = options.mtu or twin.fabric.mtu_bytes
    make: type[_Loop] = _PingPong if options.latency else _Stream
    if options.latency and options.verb in (Verb.READ, Verb.ATOMIC):
        make = _Ask
    engine = PacketEngine(twin.as_it_runs, twin.routes, packet)
    recorder = None
    if options.capture is not None:
        recorder = options.capture.start(engine)
    try:
        sizes = options.sizes(mtu)
        exchanged = addresses(ends, options.queue_pairs, size=max(sizes), seed=twin.seed)
        pairs = [_Pair(engine, ends, one, _flow_options(options, mtu, twin.fabric)) for one in exchanged]
        shares = _shares(options, sizes, mtu)
        rows = []
        for i, size in enumerate(sizes):
            loop = make(engine, pairs, options, size=size, ends=ends)
            part(stage, shares[i], shares[i + 1])(f"simulating {format_size(size)}", loop.share_done)
            rows.append(loop.row())
    finally:
        if recorder is not None:
            recorder.close()
    return Run(options, ends, mtu, twin.fabric.technology, exchanged, rows)  # type: ignore[arg-type]


def _shares(options: PerftestOptions, sizes: list[int], mtu: int) -> list[float]:
    """Return how far the whole is before each size and after the last, by messages and their packets."""
    works = [options.rounds(size) * (4 + -(-size // mtu)) for size in sizes]
    return [sum(works[:i]) / sum(works) for i in range(len(works) + 1)]


def _flow_options(options: PerftestOptions, mtu: int, fabric: Fabric) -> FlowOptions:
    kind = None
    if fabric.technology == "ethernet" and options.gid_index is not None:
        kind = GidType.ROCE_V1 if options.gid_index % 2 == 0 else GidType.ROCE_V2
    return FlowOptions(
        service=CONNECTIONS[options.connection],
        mtu_bytes=mtu,
        address=GlobalAddress(
            gid_type=kind,
            global_route=fabric.technology == "infiniband" and options.gid_index is not None,
        ),
    )


class _Loop(ABC):
    """Base class of all loops: posting, and answering for the other host."""

    def __init__(
        self,
        engine: Engine,
        pairs: list[_Pair],
        options: PerftestOptions,
        *,
        size: int,
        ends: tuple[End, End],
    ) -> None:
        self.ends = ends
        self.engine, self.pairs, self.options, self.size = engine, pairs, options, size
        self.rounds = options.rounds(size)
        self.sent_on: dict[int, int] = {}  # flow of each message that has not arrived
        self.done, self.wanted = 0, max(self.rounds, 1)
        self.opcode = ATOMICS[options.atomic] if options.verb == Verb.ATOMIC else _OPCODES[options.verb]
        self.answer = {Verb.READ: Opcode.READ_RESPONSE, Verb.ATOMIC: Opcode.ATOMIC_RESPONSE}.get(options.verb)
        self.inline = size <= options.inline_bytes and self.answer is None
        self.takes = options.verb == Verb.SEND
        self.requests = {
            flow: Message(
                size,
                self.opcode,
                takes_receive=self.takes,
                posting=Posting(inline=self.inline),
                contents=Contents(remote.vaddr, remote.rkey, operands=(1, 0)),
            )
            for pair in pairs
            for flow, remote in pair.remote.items()
        }
        if self.takes:
            for pair in pairs:
                for flow in (pair.there, pair.back):
                    engine.receives(flow, flow)

    @abstractmethod
    def row(self) -> Bandwidth | Latency:
        """Play it."""

    def share_done(self) -> float:
        """Return the share of the rounds that are over, 0 to 1."""
        return self.done / self.wanted

    def post(self, flow: int) -> int:
        number = self.engine.send(flow, self.requests[flow])
        self.sent_on[number] = flow
        return number

    def respond(self, flow: int, request: int) -> int:
        """Post the answer of a request on the flow back."""
        assert self.answer is not None
        return self.engine.send(flow, Message(self.size, self.answer, answers=request))

    def events(self, stalled: str) -> Sequence[Event]:
        """Return the next events. Raises SimulatedError where there are none any more, or a message failed."""
        events = self.engine.advance().events
        if not events:
            raise SimulatedError("stalled", self.options.test, stalled)
        for _, _, kind in events:
            if kind in (EventKind.FAILED, EventKind.NOT_READY_FAILED):
                raise self.fail(kind)
        return events

    def settle(self) -> None:
        """Let arrive what is still on its way to memory."""
        while self.engine.advance().events:
            pass

    def think(self, time_ps: int) -> None:
        """A processor is busy for so long."""
        until = self.engine.now_ps + time_ps
        while self.engine.advance(until).events:
            pass

    def fail(self, kind: EventKind) -> SimulatedError:
        status = "IBV_WC_RETRY_EXC_ERR" if kind == EventKind.FAILED else "IBV_WC_RNR_RETRY_EXC_ERR"
        return SimulatedError(status, self.options.test, f"a message of {self.size} bytes was never taken")


class _Stream(_Loop):
    """Bandwidth."""

    def row(self) -> Bandwidth:
        engine, options = self.engine, self.options
        flows = [pair.there for pair in self.pairs]
        back = {pair.there: pair.back for pair in self.pairs}
        if options.bidirectional:
            flows += [pair.back for pair in self.pairs]
            back |= {pair.back: pair.there for pair in self.pairs}
        if self.takes:
            for flow in flows:
                engine.add_receives(flow, RX_DEPTH)
        began = engine.now_ps
        posted: dict[int, list[int]] = {flow: [] for flow in flows}
        completed: dict[int, list[int]] = {flow: [] for flow in flows}
        of_answer: dict[int, int] = {}
        flow_of: dict[int, int] = {}
        for _ in range(options.depth):
            for flow in flows:  # queue pairs take turns, as the tool posts
                if len(posted[flow]) < self.rounds:
                    flow_of[self.post(flow)] = flow
                    posted[flow].append(engine.now_ps)
        self.wanted = self.rounds * len(flows)
        while self.done < self.wanted:
            for time, message, kind in self.events(f"{self.wanted - self.done} of {self.wanted} never completed"):
                if kind == EventKind.ARRIVED and self.answer is not None and message in flow_of:
                    of_answer[self.respond(back[flow_of[message]], message)] = message
                    continue
                if self.answer is not None:
                    if kind != EventKind.ARRIVED or message not in of_answer:
                        continue
                    message = of_answer.pop(message)
                elif kind == EventKind.ARRIVED:
                    if self.takes:
                        engine.add_receives(self.sent_on.pop(message), 1)
                    continue
                elif kind != EventKind.ENDED:
                    continue
                flow = flow_of.pop(message)
                completed[flow].append(time)
                self.done += 1
                if len(posted[flow]) < self.rounds:
                    flow_of[self.post(flow)] = flow
                    posted[flow].append(time)
        self.settle()
        if self.takes:
            for flow in flows:
                engine.add_receives(flow, -RX_DEPTH)
        last = max(times[-1] for times in completed.values())
        bits = 8 * self.size
        average = self.wanted * bits / (last - began) * PS_PER_S
        posts, ends = (np.sort(np.concatenate(list(times.values()))) for times in (posted, completed))
        peak = _peak(posts, ends) * bits
        return Bandwidth(
            self.size, self.rounds, max(peak, average), average, self.wanted / (last - began) * PS_PER_S
        )


def _peak(posted: npt.NDArray[np.int64], completed: npt.NDArray[np.int64]) -> float:
    """Messages a second: the most of any run of consecutive ones, from the first's post to the last's end."""
    best = 0.0
    count = np.arange(1, len(posted) + 1)
    for first in range(0, len(posted), -(-len(posted) // _STARTS)):
        took = completed[first:] - posted[first]
        best = max(best, float((count[: len(took)] / took).max()))
    return best * 1e12


class _PingPong(_Loop):
    """Latency of WRITE and SEND: half of the time between two posts of the same host."""

    def row(self) -> Latency:
        engine, pair = self.engine, self.pairs[0]
        if self.takes:
            for flow in (pair.there, pair.back):
                engine.add_receives(flow, self.rounds + 1)
        posts = []
        works = [driver_times(engine.fabric, end.adapter) for end in self.ends]
        for turn in range(2 * self.rounds + 1):
            self.done = turn // 2
            if turn % 2 == 0:
                posts.append(engine.now_ps)
            if turn == 2 * self.rounds:
                break
            self.think(works[turn % 2].post_ps)
            message = self.post(pair.back if turn % 2 else pair.there)
            arrived = False
            while not arrived:
                for _, number, kind in self.events("a message never arrived"):
                    arrived |= number == message and kind == EventKind.ARRIVED
            self.think(works[1 - turn % 2].poll_ps)
        self.settle()
        if self.takes:
            for flow in (pair.there, pair.back):
                engine.add_receives(flow, -1)
        return _latency(self.size, np.diff(posts) / 2)


class _Ask(_Loop):
    """Latency of READ and atomics: from the post to the answer in memory."""

    def row(self) -> Latency:
        engine, pair = self.engine, self.pairs[0]
        assert self.answer is not None
        times = []
        work = driver_times(engine.fabric, self.ends[0].adapter)
        for _ in range(self.rounds):
            began = engine.now_ps
            self.think(work.post_ps)
            message = self.post(pair.there)
            response = NONE
            while message != NONE or response != NONE:
                for _, number, kind in self.events("a request was never answered"):
                    if kind != EventKind.ARRIVED:
                        continue
                    if number == message:
                        response = self.respond(pair.back, message)
                        message = NONE
                    elif number == response:
                        response = NONE
            self.think(work.poll_ps)
            times.append(engine.now_ps - began)
            self.done += 1
        self.settle()
        return _latency(self.size, np.array(times, np.float64))


def _latency(size: int, times: npt.NDArray[np.float64]) -> Latency:
    ordered = np.sort(times)
    n = len(ordered)
    at = [ordered[min(int(np.ceil(n * share)) - 1, n - 1)] for share in _PERCENTILES]
    return Latency(
        size=size,
        iterations=n,
        least=float(ordered[0]),
        most=float(ordered[-1]),
        typical=float(ordered[n // 2]),
        average=float(ordered.mean()),
        deviation=float(ordered.std()),
        p99=float(at[0]),
        p999=float(at[1]),
    )
