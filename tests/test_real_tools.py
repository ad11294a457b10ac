"""OpenSM, infiniband-diags and ibsim against the twin: judges that nobody here wrote.

They come with the Debian packages opensm, infiniband-diags, ibsim-utils and libumad2sim0.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fabrictwin.cluster.build import build
from fabrictwin.cluster.export import to_ibnetdiscover
from fabrictwin.cluster.importing import import_ibnetdiscover
from fabrictwin.cluster.spec import load_cluster
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.subnet.agents.network import Network
from fabrictwin.subnet.agents.pma import SessionCounters
from fabrictwin.subnet.agents.state import SubnetState
from fabrictwin.subnet.endpoint import Endpoint
from fabrictwin.subnet.manager.manager import SubnetManager
from fabrictwin.subnet.readback import routes_of
from fabrictwin.subnet.serve import wall_ps
from fabrictwin.subnet.standing import Standing
from fabrictwin.subnet.umad import UmadTransport
from fabrictwin.subnet.wire.smp import SmState
from fabrictwin.trace.trace import Counters

PRELOAD = next(iter(Path("/usr/lib").glob("*/umad2sim/libumad2sim.so")), None)
TOOLS = ("opensm", "ibstat", "ibnetdiscover", "saquery", "ibsim")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None] + ([] if PRELOAD else ["libumad2sim.so"])
SELENE = Path(__file__).parents[2] / "shared" / "data" / "ibnetdiscover" / "selene.compute.txt"

pytestmark = [
    pytest.mark.second,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"not installed: {', '.join(MISSING)} (apt-get install opensm infiniband-diags ibsim-utils)",
    ),
]

CLUSTER = """\
hosts: {type: pcie-box, count: 128}
network:
  technology: infiniband
  switch: qm8700
  topology: {kind: fat-tree, tiers: 3, radix: 16}
"""


class Up:
    """A fabric that is served from this process, so that a test can look into its switches."""

    def __init__(self, cluster: Path, folder: Path, *, manage: bool) -> None:
        read = load_cluster(cluster)
        self.blueprint = build(read.cluster, spec=read)
        self.fabric: Fabric = compile_fabric(self.blueprint)
        self.state = SubnetState(self.fabric)
        self.endpoint = Endpoint(Network(self.state))
        self.folder = folder
        self.name = f"fabrictwin-real-{os.getpid()}-{os.urandom(3).hex()}"
        self._serving = threading.Event()
        self.standing = Standing(self.endpoint, name=self.name, manage=manage, say=self._said)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self.standing.serve, args=(self._ended.is_set,))
        self._programs: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Up:
        self._thread.start()
        assert self._serving.wait(120)
        return self

    def _said(self, line: str) -> None:
        if line.startswith("up:"):
            self._serving.set()

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.kill()
            program.wait()
        self._ended.set()
        self._thread.join()

    def environment(self, host: str) -> dict[str, str]:
        mine = {"IBSIM_SOCKNAME": self.name, "SIM_HOST": host, "LD_PRELOAD": str(PRELOAD)}
        return os.environ | mine | {"OSM_CACHE_DIR": str(self.folder), "OSM_TMP_DIR": str(self.folder)}

    def tool(self, *command: str, host: str = "host-5 mlx5_0", code: int = 0, timeout: float = 120) -> str:
        """What a tool prints. It has to end with `code` and must not complain."""
        done = subprocess.run(
            command, env=self.environment(host), cwd=self.folder, capture_output=True, text=True, timeout=timeout
        )
        complaints = [line for line in done.stderr.splitlines() if "sim_connect: attached" not in line]
        assert (done.returncode, complaints) == (code, []), f"{command}: {done.stdout[-500:]}"
        return done.stdout

    def opensm(self, host: str, *options: str, wait_for: str = "SUBNET UP", seconds: float = 120) -> Path:
        """Start an OpenSM that stays, and wait for a line of its log."""
        log = self.folder / f"osm-{len(self._programs)}.log"
        settings = self.folder / "opensm.conf"
        settings.write_text("force_log_flush TRUE\nsminfo_polling_timeout 1000\npolling_retry_number 2\n")
        command = ["opensm", "--config", str(settings), "--console", "off", "-f", str(log), *options]
        self._programs.append(
            subprocess.Popen(
                command, env=self.environment(host), cwd=self.folder, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, text=True,
            )
        )  # fmt: skip
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if log.exists() and wait_for in log.read_text(errors="replace"):
                return log
            time.sleep(0.2)
        raise AssertionError(f"no {wait_for!r} in {seconds} s: {log.read_text(errors='replace')[-2000:]}")

    def lid(self, name: str) -> str:
        return str(self.state.lid(self.state.end_slot(self.state.find(name))))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "three-tiers.yaml"
    path.write_text(CLUSTER)
    return path


@pytest.fixture(scope="module")
def selene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not SELENE.exists():
        pytest.skip(f"no {SELENE}: the discovered fabric is not ours to ship")
    path = tmp_path_factory.mktemp("selene") / "selene.yaml"
    path.write_text(f"ibnetdiscover: {SELENE}\n")
    return path


@pytest.fixture(scope="module")
def under_opensm(cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The three-tier twin with the real OpenSM, quality of service included, as its master."""
    with Up(cluster, tmp_path_factory.mktemp("opensm"), manage=False) as up:
        log = up.opensm("host-0 mlx5_0", "-Q")
        assert "ERR" not in log.read_text()
        yield up


@pytest.fixture(scope="module")
def under_twin(cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The same with the twin's own manager."""
    with Up(cluster, tmp_path_factory.mktemp("twin"), manage=True) as up:
        yield up


def cables(text_or_fabric: Path | Fabric) -> set[tuple[int, int, int, int, int]]:
    """(GUID, port, GUID, port, rate) of every cable, from a fabric or from what ibnetdiscover printed."""
    fabric = text_or_fabric
    if isinstance(fabric, Path):
        fabric = compile_fabric(import_ibnetdiscover(fabric))
    network = (fabric.port_peer != NONE) & (fabric.node_guid[fabric.port_node] != 0)
    network &= fabric.node_plane[fabric.port_node] != NONE
    network &= fabric.port_kind >= 3
    number = np.where(fabric.node_nic[fabric.port_node] == NONE, fabric.port_number, 1)
    found = set()
    for a in np.flatnonzero(network):
        b = fabric.port_peer[a]
        ends = sorted((int(fabric.node_guid[fabric.port_node[p]]), int(number[p])) for p in (a, b))
        found.add((*ends[0], *ends[1], int(fabric.port_rate_bps[a])))
    return found


COMMANDS = [
    ("ibstat",),
    ("ibnetdiscover",),
    ("ibnetdiscover", "-p"),
    ("iblinkinfo",),
    ("sminfo",),
    ("ibhosts",),
    ("ibswitches",),
    ("ibaddr", "{host}"),
    ("smpquery", "nodeinfo", "{host}"),
    ("smpquery", "nodedesc", "{host}"),
    ("smpquery", "portinfo", "{host}"),
    ("smpquery", "portinfo", "{leaf}", "3"),
    ("smpquery", "switchinfo", "{leaf}"),
    ("smpquery", "pkeys", "{host}"),
    ("smpquery", "sl2vl", "{leaf}"),
    ("smpquery", "vlarb", "{leaf}", "1"),
    ("smpquery", "guidinfo", "{host}"),
    ("smpquery", "mepi", "{host}", "1"),
    ("smpquery", "-D", "nodeinfo", "0,1,1"),
    ("ibroute", "{leaf}"),
    ("ibroute", "-M", "{leaf}"),
    ("ibtracert", "{host}", "{far}"),
    ("perfquery", "-x", "{host}", "1"),
    ("perfquery", "-a", "{leaf}"),
    ("perfquery", "{leaf}", "1"),
    ("perfquery", "--rcverr", "{host}", "1"),
    ("perfquery", "--xmtdisc", "{host}", "1"),
    ("perfquery", "--vloppackets", "{host}", "1"),
    ("saquery",),
    ("saquery", "-s"),
    ("saquery", "-g"),
    ("saquery", "-c"),
    ("saquery", "-p", "--src-to-dst", "{host}:{far}"),
    ("dump_lfts",),
    ("dump_mfts",),
    ("ibportstate", "{leaf}", "1", "query"),
    ("ibportstate", "{host}", "1", "query"),
    ("smpdump", "{host}", "0x15"),
    ("ibqueryerrors",),
]


def filled(up: Up, command: tuple[str, ...]) -> list[str]:
    lids = {"host": up.lid("host-5/mlx5_0"), "far": up.lid("host-127/mlx5_0"), "leaf": up.lid("leaf-3")}
    return [word.format(**lids) for word in command]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_tool_runs_clean_under_the_real_opensm(under_opensm, command):
    assert under_opensm.tool(*filled(under_opensm, command)).strip() or command[0] == "ibqueryerrors"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_tool_runs_clean_under_the_twins_manager(under_twin, command):
    assert under_twin.tool(*filled(under_twin, command)).strip() or command[0] == "ibqueryerrors"


def test_what_ibnetdiscover_prints_imports_as_the_same_cluster(under_opensm):
    printed = under_opensm.folder / "net.txt"
    printed.write_text(under_opensm.tool("ibnetdiscover"))
    again = import_ibnetdiscover(printed)
    assert cables(printed) == cables(under_opensm.fabric)
    assert {host.name for host in again.hosts} == {host.name for host in under_opensm.blueprint.hosts}
    assert {(s.name, s.type, s.tier) for s in again.switches} == {
        (s.name, s.type, s.tier) for s in under_opensm.blueprint.switches
    }


def dumped_tables(up: Up) -> dict[int, dict[int, int]]:
    """{switch GUID: {LID: port}} of what dump_lfts prints."""
    tables: dict[int, dict[int, int]] = {}
    current: dict[int, int] = {}
    for line in up.tool("dump_lfts").splitlines():
        if match := re.match(r"Unicast lids .* guid 0x([0-9a-f]{16})", line):
            current = tables.setdefault(int(match[1], 16), {})
        elif match := re.match(r"0x([0-9a-f]+)\s+(\d+)\s+:", line):
            current[int(match[1], 16)] = int(match[2])
    return tables


@pytest.mark.parametrize("who", ["under_opensm", "under_twin"])
def test_dumped_tables_are_what_the_switches_hold(who, request):
    up: Up = request.getfixturevalue(who)
    tables = dumped_tables(up)
    assert len(tables) == 40
    for m, row in up.state.row.items():
        held = up.state.lft[row]
        assert tables[up.state.guid[m]] == {int(lid): int(held[lid]) for lid in np.flatnonzero(held != 255)}


@pytest.mark.parametrize("who", ["under_opensm", "under_twin"])
def test_a_flow_takes_the_hops_that_ibtracert_prints(who, request):
    up: Up = request.getfixturevalue(who)
    routes = routes_of(up.state)
    for a, b in ((5, 127), (0, 64), (77, 3)):
        ports, _ = routes.walk(np.array([a], np.int32), np.array([b], np.int32))
        text = up.tool("ibtracert", up.lid(f"host-{a}/mlx5_0"), up.lid(f"host-{b}/mlx5_0"))
        traced = [int(out) for out in re.findall(r"^\[(\d+)\] ->", text, re.MULTILINE)]
        number = up.fabric.port_number[ports]
        number[0] = 1  # the adapter's only port that management knows
        assert traced == number.tolist()


def test_perfquery_shows_what_a_simulated_run_sent(under_opensm):
    up = under_opensm
    routes = routes_of(up.state)
    ports, _ = routes.walk(np.array([5], np.int32), np.array([127], np.int32))
    carried = np.zeros(up.fabric.ports, np.int64)
    carried[ports] = 1 << 30
    before = _counter(up, "PortXmitData")
    SessionCounters(up.state).load(Counters(tx_bytes=carried))
    grown = _counter(up, "PortXmitData") - before
    packets = (1 << 30) // 4096
    assert 0 <= grown - ((1 << 30) + packets * 24) // 4 < 100_000  # and what management itself sends


def _counter(up: Up, name: str) -> int:
    text = up.tool("perfquery", "-x", up.lid("host-5/mlx5_0"), "1")
    return int(re.search(rf"{name}:\.+(\d+)", text)[1])


def test_a_cut_cable_makes_the_real_opensm_route_around_it(cluster, tmp_path):
    with Up(cluster, tmp_path, manage=False) as up:
        log = up.opensm("host-0 mlx5_0")
        up.state.cut_cable(up.state.base[up.state.find("leaf-2")] + 9, wall_ps())
        ends = [up.state.end_slot(m) for m, switch in enumerate(up.state.is_switch) if not switch]
        route = up.endpoint.network.route

        def reached() -> bool:
            return all(route(a, up.state.lid(b))[0] == b for a in ends[:32] for b in ends)

        # OpenSM may say SUBNET UP for a sweep that began before the cut: the tables decide
        until = time.monotonic() + 60
        while time.monotonic() < until and not (log.read_text().count("SUBNET UP") >= 2 and reached()):
            time.sleep(0.5)
        assert log.read_text().count("SUBNET UP") >= 2
        assert reached()


def test_a_standby_opensm_stays_standby_and_takes_over_when_the_twins_manager_is_gone(cluster, tmp_path):
    with Up(cluster, tmp_path, manage=True) as up:
        before = up.standing.managers[0].manager.lid.copy()
        log = up.opensm("host-9 mlx5_0", wait_for="Entering STANDBY state")
        time.sleep(12)  # many polls of the master, and a sweep of the twin's
        assert "MASTER" not in log.read_text()
        assert up.standing.managers[0].manager.state == SmState.MASTER
        assert "SMINFO_MASTER" in up.tool("sminfo")
        assert up.standing.managers[0].manager.lid == before
        up.state.power_off(up.state.find("host-0/mlx5_0"), wall_ps())
        until = time.monotonic() + 60
        while time.monotonic() < until and "SUBNET UP" not in log.read_text():
            time.sleep(0.2)
        assert "Entering MASTER state" in log.read_text()
        kept = {
            up.state.port_guid[m]: up.state.lid(up.state.end_slot(m))
            for m in range(len(up.state.guid))
            if up.state.alive[m]
        }
        assert kept == {guid: lid for guid, lid in before.items() if guid in kept}


def test_the_twins_manager_yields_to_an_opensm_that_is_master(cluster, tmp_path):
    with Up(cluster, tmp_path, manage=False) as up:
        up.opensm("host-0 mlx5_0", "-p", "5")
        transport = UmadTransport(up.name, host="host-9 mlx5_0")
        transport.become_manager()
        manager = SubnetManager(transport)
        assert manager.sweep().state == SmState.STANDBY
        transport.close()


def test_ten_tools_at_once_and_killed_ones_leave_room(cluster, tmp_path):
    with Up(cluster, tmp_path, manage=True) as up:
        for _ in range(3):
            running = [
                subprocess.Popen(
                    ["ibnetdiscover"], env=up.environment(f"host-{i} mlx5_0"), cwd=tmp_path,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
                for i in range(10)
            ]  # fmt: skip
            time.sleep(0.1)
            for program in running[:5]:
                program.kill()
            assert [program.wait(60) for program in running[5:]] == [0] * 5
            for program in running[:5]:
                program.wait()
        assert "CA 'ibsim0'" in up.tool("ibstat")


def test_udp_clients_work_too(cluster, tmp_path):
    with Up(cluster, tmp_path, manage=True) as up:
        port = 20000 + os.getpid() % 20000
        other = Standing(up.endpoint, udp_port=port, manage=False, say=lambda line: None)
        ended = threading.Event()
        thread = threading.Thread(target=other.serve, args=(ended.is_set,))
        thread.start()
        environment = {"IBSIM_SERVER_NAME": "127.0.0.1", "IBSIM_SERVER_PORT": str(port)}
        done = subprocess.run(
            ["ibstat"], env=up.environment("host-1 mlx5_0") | environment, cwd=tmp_path, capture_output=True,
            text=True, timeout=60,
        )  # fmt: skip
        ended.set()
        thread.join()
        assert done.returncode == 0
        assert "State: Active" in done.stdout


def test_the_twins_manager_brings_up_a_fabric_of_ibsim(cluster, tmp_path):
    read = load_cluster(cluster)
    net = tmp_path / "net"
    net.write_text(to_ibnetdiscover(build(read.cluster, spec=read)))
    name = f"fabrictwin-ibsim-{os.getpid()}"
    ibsim = subprocess.Popen(
        ["ibsim", "-s", "-n", str(net)], env=os.environ | {"IBSIM_SOCKNAME": name}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        time.sleep(1)
        transport = UmadTransport(name)
        transport.become_manager()
        manager = SubnetManager(transport)
        report = manager.sweep()
        assert (report.state, report.nodes, report.findings) == (SmState.MASTER, 168, ())
        a, b = (str(manager.lid[g]) for g in list(manager.lid)[1:60:50])
        environment = os.environ | {"IBSIM_SOCKNAME": name, "LD_PRELOAD": str(PRELOAD)}
        traced = subprocess.run(
            ["ibtracert", a, b], env=environment, cwd=tmp_path, capture_output=True, timeout=30
        )
        assert traced.returncode == 0
        transport.close()
    finally:
        ibsim.kill()
        ibsim.wait()


# -- Selene ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def selene_under_opensm(selene: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(selene, tmp_path_factory.mktemp("selene-opensm"), manage=False) as up:
        host = next(h for h in up.blueprint.hosts if h.name == "luna-0190")
        log = up.opensm(f"{host.name} {host.nics[0]}", seconds=300)
        assert "ERR" not in log.read_text()
        yield up


def test_the_tools_run_clean_on_selene(selene_under_opensm):
    up = selene_under_opensm
    host = next(h for h in up.blueprint.hosts if h.name == "luna-0191")
    name = f"{host.name} {host.nics[0]}"
    at = up.state.find(name)
    lid = str(up.state.lid(up.state.end_slot(at)))
    leaf = str(up.state.lid(up.state.base[up.state.node_of[up.state.link[up.state.end_slot(at)]]]))
    far = str(up.state.lid(up.state.end_slot(up.state.find("luna-0001 mlx5_0"))))
    for command in (
        *(("ibstat",), ("iblinkinfo",), ("sminfo",), ("smpquery", "nodeinfo", lid), ("smpquery", "portinfo", lid)),
        *(("smpquery", "switchinfo", leaf), ("smpquery", "pkeys", lid), ("smpquery", "sl2vl", leaf)),
        *(
            ("smpquery", "vlarb", leaf, "1"),
            ("ibroute", leaf),
            ("ibtracert", lid, far),
            ("perfquery", "-x", lid, "1"),
        ),
        *(("saquery",), ("saquery", "-s"), ("dump_lfts",)),
    ):
        assert up.tool(*command, host=name, timeout=300).strip()


def test_selene_as_ibnetdiscover_prints_it_imports_again(selene_under_opensm):
    up = selene_under_opensm
    host = next(h for h in up.blueprint.hosts if h.name == "luna-0191")
    printed = up.folder / "net.txt"
    printed.write_text(up.tool("ibnetdiscover", host=f"{host.name} {host.nics[0]}", timeout=300))
    assert cables(printed) == cables(up.fabric)
    again = import_ibnetdiscover(printed)
    assert {h.name for h in again.hosts} == {h.name for h in up.blueprint.hosts}
    assert {(s.name, s.type) for s in again.switches} == {(s.name, s.type) for s in up.blueprint.switches}
