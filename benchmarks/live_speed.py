"""How fast live programs are on this machine: control verbs, small messages, bytes.

    python benchmarks/live_speed.py

Two hosts of one adapter under one leaf, the packet engine. The control verb is ALLOC_PD and DEALLOC_PD over the
server's socket, without rdma-core; the others are ibv_rc_pingpong and ib_write_bw. The load of the machine is
printed with the figures, since server and programs share its processors.
"""

from __future__ import annotations

import array
import multiprocessing
import os
import re
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.clusters import boxes
from support.live_pair import free_port, listens

from fabrictwin.live import wire
from fabrictwin.live.exec import launch
from fabrictwin.live.served_twin import ServedTwin
from fabrictwin.live.wire import Command, Kind

CALLS = 5000


def control_verbs(path: str, told: multiprocessing.Queue[float]) -> None:
    """Mean time of a control verb, in microseconds."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    rights = array.array("i")

    def ask(kind: Kind, body: bytes, argument: int = 0) -> bytes:
        connection.send(wire.REQUEST.pack(kind, len(body), argument) + body)
        data, ancillary, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(4))
        for _, _, content in ancillary:
            rights.frombytes(content[:4])
        return data[wire.REPLY.size :]

    ask(Kind.OPEN, b"host-0/uverbs0", wire.PROTOCOL)
    ask(Kind.COMMAND, wire.HEADER.pack(Command.GET_CONTEXT, 4, 2) + bytes(8))
    before = time.perf_counter()
    for _ in range(CALLS):
        (handle,) = struct.unpack("=I", ask(Kind.COMMAND, wire.HEADER.pack(Command.ALLOC_PD, 4, 1) + bytes(8)))
        ask(Kind.COMMAND, wire.HEADER.pack(Command.DEALLOC_PD, 3, 0) + struct.pack("=I", handle))
    told.put((time.perf_counter() - before) / (2 * CALLS) * 1e6)


def pair(served: ServedTwin, command: list[str]) -> str:
    """Return the output of the client of two programs."""
    port = free_port()
    command = [*command, "-p", str(port)]
    environments = [
        launch.environment(host, served.socket, served.server.tree(host), os.environ)
        for host in ("host-0", "host-1")
    ]
    with subprocess.Popen(command, env=environments[0], stdout=subprocess.DEVNULL) as server:
        while not listens(port) and server.poll() is None:
            time.sleep(0.02)
        done = subprocess.run(
            [*command, "localhost"], env=environments[1], capture_output=True, text=True, check=True
        )
    return done.stdout


def main() -> None:
    served = ServedTwin(boxes(2))
    served.start()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    try:
        told: multiprocessing.Queue[float] = multiprocessing.Queue()
        process = multiprocessing.Process(target=control_verbs, args=(str(served.socket), told))
        process.start()
        print(f"control verb                     {told.get():10.1f} us")
        process.join()
        output = pair(served, ["ibv_rc_pingpong", "-s", "64", "-n", "5000"])
        (half,) = re.findall(r"([\d.]+) usec/iter", output)
        print(f"64 B ping-pong, there and back   {float(half):10.1f} us")
        for size in (64, 1 << 16, 1 << 20):
            output = pair(served, ["ib_write_bw", "-F", "-s", str(size), "-n", "5000"])
            _, rate, messages = re.findall(rf"^ {size} +\d+ +([\d.]+) +([\d.]+)\s+([\d.]+)", output, re.M)[0]
            figures = f"{float(rate) * 1.048576:10.1f} MB/s {float(messages) * 1e6:10,.0f} messages/s"
            print(f"writes of {size:9,} B            {figures}")
    finally:
        served.close()


if __name__ == "__main__":
    main()
