"""How fast the verbs are from Python: small operations a CPU-second, and a gibibyte moved.

    python benchmarks/verbs_speed.py [--ops 20000] [--engine packet]

Two hosts of one adapter under one leaf, 200 Gb/s InfiniBand; CPU time of this process, one thread, compiling left
out. The first rows are the engine alone, so that what the verbs add shows. Programs wait for a completion
after the other; `polled` ones look at up to 16 at a time, and let time pass from event to event; `ping-pong` waits
for every message at both ends.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.clusters import boxes
from support.verbs_ends import End, connect

from fabrictwin.base.capabilities import Fidelity
from fabrictwin.engines.base.messages import Message, Opcode
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.pyverbs.enums import IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND

GIB = 1 << 30


def timed(name: str, ops: int, work: Callable[[], object]) -> None:
    """One row."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"{name:44} {ops:9} {cpu:8.2f} {ops / cpu:12,.0f} {wall:8.2f}")


def session_row(ops: int) -> None:
    """Messages of the engine, one after the other, both events each."""
    twin = boxes(8)
    engine = PacketEngine(twin.fabric, twin.routes)
    flow = engine.open(0, 1)

    def work() -> None:
        for _ in range(ops):
            engine.send(flow, Message(8, Opcode.WRITE))
            while engine.advance().events:
                pass

    engine.send(flow, Message(8, Opcode.WRITE))
    engine.advance()
    timed("engine: WRITE 8 B, alone", ops, work)

    def batch() -> None:
        for _ in range(ops // 64):
            for _ in range(64):
                engine.send(flow, Message(8, Opcode.WRITE))
            while engine.advance().events:
                pass

    timed("engine: WRITE 8 B, 64 at a time", ops, batch)


def pair(engine: Fidelity, size: int = 1 << 16) -> tuple[End, End]:
    """Two connected ends."""
    twin = boxes(8)
    place.use(twin, engine=PacketEngine(twin.fabric, twin.routes) if engine == "packet" else engine)
    a, b = End("host-0", size=size, depth=256), End("host-1", size=size, depth=256)
    connect(a, b)
    return a, b


def stream(engine: str, opcode: int, ops: int, size: int, *, signal: int) -> None:
    """64 outstanding at a time."""
    a, b = pair(engine)
    name = {IBV_WR_RDMA_WRITE: "WRITE", IBV_WR_RDMA_READ: "READ"}[opcode]
    request = a.send(opcode, length=size, remote=b, flags=2)
    a.done(1)
    silent = a.send(opcode, length=size, remote=b, flags=0)
    a.send(opcode, length=size, remote=b, flags=2)
    a.done(1)

    def work() -> None:
        post, done = a.qp.post_send, a.done
        for _ in range(ops // 64):
            for i in range(64):
                post(request if (i + 1) % signal == 0 else silent)
            for _ in range(64 // signal):
                done(1)

    timed(f"verbs: {name} {size} B, {'signalled' if signal == 1 else 'one in 64 signalled'}", ops // 64 * 64, work)


def polled(engine: str, ops: int) -> None:
    """64 outstanding at a time, by a program that polls."""
    a, b = pair(engine)
    request = a.send(IBV_WR_RDMA_WRITE, length=64, remote=b)
    a.done(1)

    def work() -> None:
        post, poll = a.qp.post_send, a.cq.poll
        for _ in range(ops // 64):
            for _ in range(64):
                post(request)
            left = 64
            while left:
                left -= poll(16)[0]

    timed("verbs: WRITE 64 B, signalled, polled", ops // 64 * 64, work)


def ping_pong(engine: str, ops: int) -> None:
    """SEND and receive, one after the other."""
    a, b = pair(engine)

    def work() -> None:
        for _ in range(ops):
            b.receive(length=64)
            a.send(IBV_WR_SEND, length=8)
            a.done(1)
            b.done(1)

    b.receive(length=64)
    a.send(IBV_WR_SEND, length=8)
    a.done(1)
    b.done(1)
    timed("verbs: SEND 8 B, ping-pong, objects made anew", ops, work)


def gibibyte(engine: str) -> None:
    """1 GiB in messages of 64 MiB."""
    size = 64 << 20
    a, b = pair(engine, size)

    def work() -> None:
        for _ in range(GIB // size):
            a.send(IBV_WR_RDMA_WRITE, length=size, remote=b)
            a.done(1)

    timed("verbs: 1 GiB by WRITEs of 64 MiB", GIB // size, work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ops", type=int, default=20_000)
    parser.add_argument("--engine", choices=("packet", "flow", "analytic"), default="packet")
    arguments = parser.parse_args()
    print(f"{'':44} {'ops':>9} {'CPU s':>8} {'ops/CPU s':>12} {'wall s':>8}")
    if arguments.engine == "packet":
        session_row(arguments.ops)
    for opcode, size in ((IBV_WR_RDMA_WRITE, 8), (IBV_WR_RDMA_WRITE, 64), (IBV_WR_RDMA_READ, 64)):
        for signal in (1, 64):
            stream(arguments.engine, opcode, arguments.ops, size, signal=signal)
    polled(arguments.engine, arguments.ops)
    ping_pong(arguments.engine, arguments.ops // 4)
    gibibyte(arguments.engine)


if __name__ == "__main__":
    main()
