"""Programs that are killed, and links that go: peers end with the error that hardware gives, nothing stays."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.clusters import boxes
from support.live_laps import lap
from support.live_pair import NEEDS_PROGRAMS, Ended, LiveTwin, free_port, listens

from fabrictwin.live.clock.pace import ClockName

pytestmark = NEEDS_PROGRAMS
RETRY_EXCEEDED = "status 12"  # IBV_WC_RETRY_EXC_ERR, as perftest prints it
KILLS = 12


@pytest.fixture
def live() -> Iterator[LiveTwin]:
    with LiveTwin(boxes(2)) as twin:
        yield twin


def traffic(live: LiveTwin, program: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """A bandwidth test under way, until somebody ends it."""
    port = free_port()
    command = [program, "-F", "-p", str(port), "-D", "30", "-s", "4096"]
    server = live.start("host-0", command)
    while not listens(port):
        assert server.poll() is None
        time.sleep(0.02)
    before = live.server.statistics.messages
    client = live.start("host-1", [*command, "localhost"])
    deadline = time.monotonic() + 60
    while live.server.statistics.messages < before + 200:
        assert client.poll() is None, client.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return server, client


def assert_nothing_is_left(live: LiveTwin) -> None:
    """No object of any adapter, no client, no message under way."""
    live.wait_for_clients_to_go()
    assert not live.server.clients
    for adapter in live.server.world.adapters:
        assert not adapter.queue_pairs
        assert not adapter.memory.local


@pytest.mark.parametrize("program", ["ib_write_bw", "ib_read_bw"])
def test_the_peer_of_a_killed_server_runs_out_of_retries(live: LiveTwin, program: str) -> None:
    server, client = traffic(live, program)
    server.kill()
    output, _ = client.communicate(timeout=60)
    assert client.returncode != 0
    assert RETRY_EXCEEDED in output
    server.wait()
    assert_nothing_is_left(live)


def test_the_twin_outlives_random_kills(live: LiveTwin) -> None:
    """Either side of traffic is killed at a random time; a sound pair runs well afterwards."""
    draw = random.Random(3)
    for _ in range(KILLS):
        both = traffic(live, draw.choice(["ib_write_bw", "ib_send_bw", "ib_read_bw"]))
        time.sleep(draw.random() * 0.2)
        for program in both if draw.random() < 0.3 else both[:1]:
            program.kill()
        for program in both:
            program.kill() if program is both[1] and program.poll() is None else None
            program.wait(30)
        assert_nothing_is_left(live)
    port = free_port()
    command = ["ibv_rc_pingpong", "-c", "-n", "100", "-p", str(port)]
    for ended in live.pair(command, [*command, "localhost"], port=port):
        assert ended.code == 0, ended.output


def test_a_cut_link_ends_traffic_and_is_told_of() -> None:
    with LiveTwin(boxes(2), engine="packet") as live:
        watch = live.start("host-1", ["stdbuf", "-oL", "ibv_asyncwatch"])
        _, client = traffic(live, "ib_write_bw")
        port = live.server.world.host("host-1")[0].port
        live.submit(lambda: live.server.change_links({port: 0}))
        output, _ = client.communicate(timeout=60)
        assert client.returncode != 0
        assert RETRY_EXCEEDED in output
        assert "PORT_DOWN" in live.run("host-1", ["ibv_devinfo"]).output
        live.submit(lambda: live.server.change_links({port: None}))
        assert "PORT_ACTIVE" in live.run("host-1", ["ibv_devinfo"]).output
        watch.terminate()
        told = watch.communicate(timeout=10)[0]
        assert told.index("IBV_EVENT_PORT_ERR") < told.index("IBV_EVENT_PORT_ACTIVE")


def test_a_slow_link_of_the_spec_is_slow_for_programs(tmp_path: Path) -> None:
    cluster = {
        "hosts": {"type": "dgx-h100", "count": 2},
        "network": {"technology": "infiniband", "switch": "qm9700", "topology": {"kind": "rail-optimised"}},
    }
    spec, pair = tmp_path / "spec.yaml", tmp_path / "pair"
    faults = [{"link": "host-1/mlx5_0", "rate": "200 Gb/s"}]
    spec.write_text(yaml.safe_dump({"schema": 1, "cluster": cluster, "faults": faults}))
    port = free_port()
    command = f"ib_write_bw -d mlx5_0 -n 500 -F --report_gbits -p {port}"
    pair.write_text(f"host-0: {command}\nhost-1: sh -c 'sleep 2; exec {command} localhost'\n")
    asked = [sys.executable, "-m", "fabrictwin", "exec", "--cluster", str(spec), "--hosts", str(pair)]
    done = subprocess.run([*asked, "--clock", "virtual"], capture_output=True, text=True, timeout=100, check=True)
    (rate, *_) = [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith(" 65536")]
    assert 190 < rate < 200


def test_laps_of_programs_leave_nothing(live: LiveTwin) -> None:
    """The short form of benchmarks/live_soak.py: sixteen programs at once, twice."""
    laps = [lap(live, 8, seconds=5, count=50) for _ in range(2)]
    for done in laps:
        assert done.failed == ()
        assert done.held == ()
    assert laps[0].most_clients >= 8
    assert laps[1].descriptors == laps[0].descriptors


LATE_RECEIVE = """
from pyverbs.addr import AHAttr
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.enums import IBV_ACCESS_LOCAL_WRITE, IBV_QPT_RC, IBV_QPS_ERR, IBV_QP_STATE
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR

context = Context(name="mlx5_0")
domain, channel = PD(context), CompChannel(context)
queue = CQ(context, 16, None, channel)
memory = MR(domain, 64, IBV_ACCESS_LOCAL_WRITE)
pair = QP(domain, QPInitAttr(IBV_QPT_RC, rcq=queue, scq=queue, cap=QPCap(8, 8, 1, 1)), QPAttr())
queue.req_notify()
failed = QPAttr(qp_state=IBV_QPS_ERR)
pair.modify(failed, IBV_QP_STATE)
pair.post_recv(RecvWR(7, 1, [SGE(memory.buf, 64, memory.lkey)]))
channel.get_cq_event(queue)
count, completions = queue.poll()
print(count, completions[0].wr_id, completions[0].status)
"""


@pytest.mark.skipif(
    subprocess.run(["/usr/bin/python3", "-c", "import pyverbs"], capture_output=True, check=False).returncode != 0,
    reason="needs pyverbs (apt-get install python3-pyverbs)",
)
@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_a_receive_that_is_posted_after_the_error_is_flushed(clock: ClockName) -> None:
    """Volume 1, 10.3.1.6: no doorbell tells of it; rping's server waits for it where its client is killed."""
    with LiveTwin(boxes(2), clock=clock) as live:
        assert live.run("host-0", ["/usr/bin/python3", "-c", LATE_RECEIVE], timeout_s=60) == Ended(0, "1 7 5\n")
