"""Programs that see the twin's clock: what they sleep, what they measure, and that it is so again."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clusters import boxes
from support.live_pair import NEEDS_PROGRAMS, Ended, LiveTwin, free_port

from fabrictwin.live.native_libraries import COMPILERS
from fabrictwin.tools.perftest.perftest_loops import Bandwidth, Latency, play
from fabrictwin.tools.perftest.perftest_options import PerftestOptions

pytestmark = [
    *NEEDS_PROGRAMS,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the time stamp counter traps on x86-64 alone"),
]
SLEPT_US = {
    "usleep": 1_500, "sleep": 3_600_000_000, "clock_nanosleep": 7_000, "poll": 250_000, "ppoll": 250_000,
    "select": 250_000, "epoll_wait": 250_000, "poll-found": 100_000, "found-at-once": 0, "cond_timedwait": 40_000,
    "sem_timedwait": 40_000, "cond-signalled": 30_000, "alarm": 2_000_000, "setitimer": 50_000,
    "interrupted": 1_000_000,
}  # fmt: skip


@pytest.fixture
def live() -> Iterator[LiveTwin]:
    with LiveTwin(boxes(2), engine="packet", clock="virtual") as twin:
        yield twin


def test_every_way_to_sleep_takes_its_time_on_the_twins_clock(live: LiveTwin, tmp_path: Path) -> None:
    """An hour passes in no time, clocks and counter agree, and nothing takes longer than was asked for."""
    compiler = next(found for found in map(shutil.which, COMPILERS) if found)
    program = tmp_path / "clock"
    source = Path(__file__).parents[1] / "support/clock_program.c"
    subprocess.run([compiler, "-O1", "-o", str(program), str(source), "-lpthread"], check=True)
    ended = live.run("host-0", [str(program)], timeout_s=120)
    assert ended.code == 0, ended.output
    said = {
        name: (float(clock), float(counter))
        for name, clock, counter in re.findall(r"^([a-z_-]+) ([\d.]+) ([\d.]+)$", ended.output, re.M)
    }
    assert said.keys() >= SLEPT_US.keys()
    for name, us in SLEPT_US.items():
        for measured in said[name]:
            assert measured == pytest.approx(us, abs=0.01), name
    (wall,) = re.findall(r"^wall (\d+) (\d+) (\d+)$", ended.output, re.M)
    assert len(set(wall)) == 1
    assert abs(int(wall[0]) - time.time()) < 3600 + 120


TALKERS = """
import socket, struct, sys, threading, time
listener = socket.create_server(("127.0.0.1", 0))
def serve():
    other, _ = listener.accept()
    for _ in range(200):
        got = b""
        while len(got) < 8:
            got += other.recv(8 - len(got))
        other.sendall(got)
thread = threading.Thread(target=serve)
thread.start()
client = socket.create_connection(listener.getsockname())
before = time.monotonic()
for _ in range(200):
    client.sendall(b"abcd")
    client.sendall(b"efgh")  # the machine's TCP would keep it back for 40 ms
    assert client.recv(8) == b"abcdefgh"
print("took", time.monotonic() - before)
thread.join()
"""


def test_messages_by_tcp_take_no_time(live: LiveTwin) -> None:
    """Time does not move on to what another program sleeps for while a message is under way."""
    sleeper = live.start("host-1", [sys.executable, "-c", "import time\nfor _ in range(500): time.sleep(0.001)"])
    ended = live.run("host-0", [sys.executable, "-c", TALKERS], timeout_s=120)
    sleeper.wait(60)
    (took,) = re.findall(r"^took (\S+)$", ended.output, re.M)
    assert float(took) < 1e-4  # Python's own looks at the clock


LOOKERS = """
import os, socket, time
ours, theirs = socket.socketpair()
if os.fork() == 0:
    ours.close()
    while theirs.recv(64):
        theirs.send(b"%d" % time.monotonic_ns())
    os._exit(0)
def look(ns):
    until = time.monotonic_ns() + ns
    while time.monotonic_ns() < until:
        pass
late = []
for _ in range(40):
    look(20_000)
    before = time.monotonic_ns()
    ours.send(b"x")
    look(100_000)
    late.append(int(ours.recv(64)) - before)
print("late", sum(late))
"""


def test_who_is_woken_between_two_looks_at_the_clock_acts_before_time_moves(live: LiveTwin) -> None:
    """A program that looks at the clock in a loop may have woken another one between two looks."""
    for _ in range(3):
        ended = live.run("host-0", [sys.executable, "-c", LOOKERS], timeout_s=60)
        assert re.findall(r"^late (.*)$", ended.output, re.M) == ["0"]


POSTERS = """
import time
from pyverbs.addr import AHAttr
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import *
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

context = Context(name="mlx5_0")
domain, queue = PD(context), CQ(context, 256)
memory = MR(domain, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
there = QPAttr(port_num=1, path_mtu=IBV_MTU_1024)
there.qp_access_flags = IBV_ACCESS_REMOTE_WRITE
there.ah_attr = AHAttr(dlid=context.query_port(1).lid, port_num=1)
pair, peer = (
    QP(domain, QPInitAttr(IBV_QPT_RC, rcq=queue, scq=queue, cap=QPCap(128, 1, 1, 1)), there) for _ in range(2)
)
for ours, other in ((pair, peer), (peer, pair)):
    there.dest_qp_num = other.qp_num
    ours.to_rts(there)
moved = set()
for _ in range(5):
    before = time.monotonic_ns()
    for number in range(100):
        sum(range(2000))
        work = SendWR(number, num_sge=1, sg=[SGE(memory.buf, 8, memory.lkey)], opcode=IBV_WR_RDMA_WRITE)
        work.set_wr_rdma(memory.rkey, memory.buf)
        pair.post_send(work)
    moved.add(time.monotonic_ns() - before)
    found = 0
    while found < 100:
        count, completions = queue.poll(100)
        found += count
        assert all(each.status == IBV_WC_SUCCESS for each in completions)
print("moved", *moved)
"""


@pytest.mark.skipif(
    subprocess.run(["/usr/bin/python3", "-c", "import pyverbs"], capture_output=True, check=False).returncode != 0,
    reason="needs pyverbs (apt-get install python3-pyverbs)",
)
def test_time_stands_while_a_program_posts_in_a_row(live: LiveTwin) -> None:
    """Only the first of many doorbells is told; a program that goes on with its work looks at no memory."""
    assert live.run("host-0", ["/usr/bin/python3", "-c", POSTERS], timeout_s=60) == Ended(0, "moved 0\n")


def _figures(live: LiveTwin, program: str, size: int, iterations: int) -> list[float]:
    port = free_port()
    command = [program, "-F", "-p", str(port), "-n", str(iterations)]
    command += [] if "atomic" in program else ["-s", str(size)]
    server, client = live.pair(command, [*command, "localhost"], port=port, timeout_s=240)
    assert (server.code, client.code) == (0, 0), client.output
    (row,) = re.findall(rf"^ {size} +{iterations} +(.*)$", client.output, re.M)
    return [float(figure) for figure in row.split()]


@pytest.mark.parametrize(
    ("program", "size"),
    [
        ("ib_write_bw", 2), ("ib_write_bw", 65536), ("ib_read_bw", 1 << 20),
        ("ib_send_bw", 4096), ("ib_atomic_bw", 8), ("ib_send_lat", 2), ("ib_read_lat", 4096), ("ib_atomic_lat", 8),
        ("ib_write_lat", 2),
    ],
)  # fmt: skip
def test_perftest_prints_the_modelled_figure(live: LiveTwin, program: str, size: int) -> None:
    """Within 1 %, or one unit of the last digit, of what the twin's own perftest says."""
    iterations = 40 if program == "ib_write_lat" else 400
    asked = None if "atomic" in program else size
    options = PerftestOptions(test=program, source="host-1", target="host-0", size=asked, iterations=iterations)
    (row,) = play(boxes(2), options).rows
    figures = _figures(live, program, size, iterations)
    if isinstance(row, Bandwidth):
        expected, printed = row.average_bps / 8 / (1 << 20), figures[1]
    else:
        assert isinstance(row, Latency)
        expected, printed = row.typical / 1e6, figures[2]
    assert printed == pytest.approx(expected, rel=0.01, abs=0.011)


def test_results_are_the_same_again() -> None:
    """Whatever the machine is at meanwhile: the last digit does not change."""
    runs = []
    for _ in range(2):
        with LiveTwin(boxes(2), engine="packet", clock="virtual") as live:
            runs.append(_figures(live, "ib_send_bw", 4096, 500))
    assert runs[0] == runs[1]
