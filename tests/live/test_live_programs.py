"""Unmodified programs of Debian's packages on two hosts of the twin, with their own checks of the data."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
from support.clusters import boxes
from support.live_pair import NEEDS_PROGRAMS, LiveTwin, free_port

from fabrictwin.tools.rdma.rdma_tools import ibv_devinfo

pytestmark = NEEDS_PROGRAMS


@pytest.fixture
def live() -> Iterator[LiveTwin]:
    with LiveTwin(boxes(2)) as twin:
        yield twin


def test_devices_are_the_hosts_own(live: LiveTwin) -> None:
    listed = live.run("host-1", ["ibv_devices"])
    adapter = live.server.world.host("host-1")[0]
    assert listed.code == 0
    assert re.search(rf"{adapter.name}\s+{adapter.guid:016x}", listed.output)
    assert f"{live.server.world.host('host-0')[0].guid:016x}" not in listed.output


@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
def test_devinfo_says_what_the_twins_own_says(technology: str) -> None:
    """Each line of `fabrictwin ibv_devinfo -v` is in the real program's output, in the same order."""
    with LiveTwin(boxes(2, technology=technology)) as live:
        adapter = live.server.world.host("host-0")[0]
        real = live.run("host-0", ["ibv_devinfo", "-v", "-d", adapter.name])
        lines = iter(real.output.splitlines())
        for line in ibv_devinfo([adapter], verbose=True).splitlines():
            if "_mcast_" not in line:  # groups are of live programs alone
                assert line in lines, line  # consumes up to it


@pytest.mark.parametrize("events", [[], ["-e"]], ids=["polled", "events"])
@pytest.mark.parametrize("transport", ["rc", "uc", "ud", "srq"])
def test_pingpong_with_data_check(live: LiveTwin, transport: str, events: list[str]) -> None:
    port = free_port()
    size = ["-s", "1024"] if transport == "ud" else []
    command = [f"ibv_{transport}_pingpong", "-c", "-n", "200", "-p", str(port), *size, *events]
    for ended in live.pair(command, [*command, "localhost"], port=port):
        assert ended.code == 0, ended.output
        assert re.search(r"^200 iters in", ended.output, re.M)
        assert "invalid data" not in ended.output


PERFTEST = [
    ("ib_write_bw", "RC"), ("ib_write_bw", "UC"), ("ib_write_lat", "RC"), ("ib_write_lat", "UC"),
    ("ib_send_bw", "RC"), ("ib_send_bw", "UC"), ("ib_send_bw", "UD"),
    ("ib_send_lat", "RC"), ("ib_send_lat", "UC"), ("ib_send_lat", "UD"),
    ("ib_read_bw", "RC"), ("ib_read_lat", "RC"), ("ib_atomic_bw", "RC"), ("ib_atomic_lat", "RC"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "transport"), PERFTEST)
def test_perftest(live: LiveTwin, program: str, transport: str) -> None:
    port = free_port()
    size = [] if "atomic" in program else ["-s", "1024"]
    command = [program, "-F", "-p", str(port), "-c", transport, "-n", "100", *size]
    server, client = live.pair(command, [*command, "localhost"], port=port)
    assert (server.code, client.code) == (0, 0), client.output
    figures = re.findall(r"^ (?:1024|8) +100 +(\S+)", client.output, re.M)
    assert figures
    assert all(float(figure) > 0 for figure in figures)
    assert sum(row.messages for row in live.rows().values()) >= 100
    assert not any(row.failed for row in live.rows().values())


@pytest.mark.parametrize(
    ("server", "client"),
    [
        (["rping", "-s", "-C", "10", "-V"], ["rping", "-c", "-C", "10", "-V", "-a", "10.0.0.1"]),
        (["ucmatose"], ["ucmatose", "-s", "10.0.0.1"]),
        (["udaddy"], ["udaddy", "-s", "10.0.0.1"]),
        (["rstream", "-S", "1024", "-C", "20"], ["rstream", "-S", "1024", "-C", "20", "-s", "10.0.0.1"]),
        (["ib_send_bw", "-F", "-R", "-n", "100"], ["ib_send_bw", "-F", "-R", "-n", "100", "10.0.0.1"]),
    ],
    ids=lambda command: command[0] if "10.0.0.1" not in command else "",
)
def test_connection_manager(live: LiveTwin, server: list[str], client: list[str]) -> None:
    _, ended = live.pair(server, client)
    assert ended.code == 0, ended.output
    assert "rror" not in ended.output
    assert sum(row.messages for row in live.rows().values()) > 0
    assert not any(row.failed for row in live.rows().values())


def test_a_port_that_nobody_listens_on_is_refused(live: LiveTwin) -> None:
    ended = live.run("host-1", ["rping", "-c", "-a", "10.0.0.1", "-C", "1"])
    assert ended.code != 0
    assert "RDMA_CM_EVENT_REJECTED" in ended.output


def test_everything_is_freed_when_programs_end(live: LiveTwin) -> None:
    port = free_port()
    command = ["ibv_srq_pingpong", "-n", "50", "-e", "-p", str(port)]
    live.pair(command, [*command, "localhost"], port=port)
    live.pair(["rping", "-s", "-C", "2"], ["rping", "-c", "-C", "2", "-a", "10.0.0.1"])
    live.wait_for_clients_to_go()
    for adapter in live.server.world.adapters:
        assert not adapter.queue_pairs
        assert not adapter.shared_receives
        assert not adapter.memory.local
        assert not adapter.memory.remote
    assert not live.server.clients
    assert not live.server.connections.channels
    assert not live.server.world.records
    assert not live.server.world.plain


@pytest.mark.skipif(shutil.which("rdma") is None, reason="needs rdma (apt-get install iproute2)")
@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
def test_iproute2_shows_devices_links_and_what_programs_hold(technology: str) -> None:
    with LiveTwin(boxes(2, technology=technology)) as live:
        adapter = live.server.world.host("host-0")[0]
        device = live.run("host-0", ["rdma", "dev"]).output
        assert device.startswith(f"0: {adapter.name}: node_type ca ")
        link = live.run("host-0", ["rdma", "link"]).output
        where = "netdev eth1" if technology == "ethernet" else f"lid {adapter.lid} "
        assert link.startswith(f"link {adapter.name}/1 ")
        assert where in link
        assert "state ACTIVE physical_state LINK_UP" in link
        asks = "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.2; rdma resource show qp; done"
        held = live.run("host-0", ["sh", "-c", f"ibv_rc_pingpong -p {free_port()} & {asks}; kill $!"]).output
        assert re.search(r"lqpn \d+ rqpn 0 type RC state INIT .* comm ibv_rc_pingpong", held)
        renamed = live.run("host-0", ["rdma", "dev", "set", adapter.name, "name", "x"])
        assert "Operation not permitted" in renamed.output
