"""`fabrictwin sm` and `fabrictwin up` as a person uses them; the manager as a client of a simulator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.sm_fabrics import two_tiers
from support.specs import boxes_cluster

from fabrictwin.base.errors import ConfigError
from fabrictwin.cli import OK, WRONG, main
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.manager.manager import SubnetManager
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.serve.console import obey
from fabrictwin.subnet.serve.endpoint import Endpoint
from fabrictwin.subnet.serve.sockets import Server
from fabrictwin.subnet.serve.umad_client import UmadTransport
from fabrictwin.subnet.wire.smp import SmState

CLUSTER = boxes_cluster(8, tiers=2, radix=8)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


def test_sm_brings_up_breaks_and_mends(cluster, capsys):
    assert main(["sm", str(cluster), "--do", "cut leaf-0/5", "--do", "mend leaf-0/5", "--do", "off spine-0"]) == OK
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "master: 11 nodes, 3 switches, 8 adapters, 11 LIDs" or out[0].startswith("master: ")
    assert "cut leaf-0/5:" in out
    assert any("paths (switch to LID) broken, for" in line for line in out)
    assert any(line.startswith("  gone: MF0;spine-0") for line in out)


def test_sm_prints_json(cluster, capsys):
    assert main(["sm", str(cluster), "--json", "--lmc", "2", "--engine", "minhop", "--do", "cut leaf-0/5"]) == OK
    said = json.loads(capsys.readouterr().out)
    assert said["subnets"][0]["sweep"]["state"] == "master"
    assert said["subnets"][0]["sweep"]["engine"] == "minhop"
    assert said["subnets"][0]["datagrams"]["unanswered"] == 0
    assert said["events"][0]["broken_paths"] > 0
    assert said["events"][0]["outage_ps"] > 0


def test_each_subnet_of_a_fabric_has_its_manager(tmp_path, capsys):
    """Two planes: the two adapters of each host in switches of their own."""
    cables = [f"  - 's{plane}/{i + 1} - h{i}/mlx5_{plane} ; 200 Gb/s ; 3 m'" for plane in (0, 1) for i in range(3)]
    path = tmp_path / "planes.yaml"
    hosts = [f"  - {{name: h{i}, nics: [mlx5_0, mlx5_1]}}" for i in range(3)]
    switches = [f"  - {{name: s{plane}, type: qm8700, ports: 40}}" for plane in (0, 1)]
    path.write_text(
        "\n".join(["technology: infiniband", "hosts:", *hosts, "switches:", *switches, "cables:", *cables]) + "\n"
    )
    kept = tmp_path / "guid2lid"
    assert main(["sm", str(path), "--host", "h1/mlx5_1", "--guid2lid", str(kept), "--do", "cut s0/2"]) == OK
    out = capsys.readouterr().out
    assert out.count("master: 4 nodes, 1 switches, 3 adapters, 4 LIDs") == 2
    assert "gone: h1 mlx5_0/1" in out
    assert len(kept.read_text().splitlines()) == 8


def test_sm_keeps_lids_in_a_file(cluster, tmp_path, capsys):
    kept = tmp_path / "guid2lid"
    assert main(["sm", str(cluster), "--guid2lid", str(kept)]) == OK
    first = kept.read_text()
    assert main(["sm", str(cluster), "--guid2lid", str(kept), "--host", "host-5/mlx5_0"]) == OK
    assert kept.read_text() == first


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "minhopp"], "did you mean 'minhop'"),
        (["--host", "host-9/mlx5_0"], "got 'host-9/mlx5_0', expected a node of the fabric"),
        (["--do", "cut leaf-0"], "expected a node and a port"),
        (["--do", "cut leaf-0/99"], "got port '99' of leaf-0, expected 1 to"),
        (["--do", "cutt leaf-0/5"], "did you mean 'cut'"),
        (["--mad-time", "20"], "without a unit"),
        (["--connect", "nobody"], "expected it alone"),
    ],
)
def test_what_is_wrong_is_one_clear_line(cluster, capsys, arguments, said):
    assert main(["sm", str(cluster), *arguments]) == WRONG
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_ethernet_cluster_is_refused(cluster, capsys):
    cluster.write_text(CLUSTER.replace("infiniband", "ethernet").replace("qm8700", "spectrum-4"))
    assert main(["sm", str(cluster)]) == WRONG
    assert "got ethernet, expected infiniband" in capsys.readouterr().err


def test_a_simulator_that_is_not_there_is_one_clear_line(capsys):
    assert main(["sm", "--connect", "nobody-is-there"]) == WRONG
    assert "no simulator answers at @nobody-is-there:ctl" in capsys.readouterr().err


def test_congestion_control_of_another_simulators_fabric_is_one_clear_line(tmp_path, capsys):
    """It is refused before a simulator is looked for; switched off in the file it is not missed."""
    options = tmp_path / "opensm.conf"
    asked = ["sm", "--connect", "nobody-is-there", "--qos-options", str(options)]
    options.write_text("congestion_control TRUE\ncc_sw_cong_setting_threshold 15\n")
    assert main(asked) == WRONG
    error = capsys.readouterr().err
    assert "--qos-options: got congestion_control TRUE with --connect" in error
    assert error.count("\n") == 1
    options.write_text("congestion_control FALSE\ncc_sw_cong_setting_threshold 15\n")
    assert main(asked) == WRONG
    assert "no simulator answers" in capsys.readouterr().err


@pytest.mark.parametrize("sm", ["auto", "none"])
@pytest.mark.second
def test_up_serves_until_it_is_ended(cluster, sm):
    name = f"fabrictwin-up-{os.getpid()}-{sm}"
    command = [sys.executable, "-m", "fabrictwin", "up", str(cluster), "--socket", name, "--sm", sm, "--console"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lines = []
    while not lines or "IBSIM_SOCKNAME" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], "it ended"
    assert any("master:" in line for line in lines) == (sm == "auto")
    transport = UmadTransport(name, host="host-1/mlx5_0")
    manager = SubnetManager(transport, Settings())
    report = manager.sweep()
    # the twin's own manager has the highest rank
    assert report.state == (SmState.STANDBY if sm == "auto" else SmState.MASTER)
    transport.close()
    process.stdin.write("cut leaf-0/5\nnonsense\n")
    process.stdin.flush()
    assert process.stdout.readline() == "leaf-0/5: down\n"
    assert "expected one of cut, mend" in process.stdout.readline()
    if sm == "auto":
        assert "rerouted" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 0


def test_up_takes_commands_from_a_file_and_ends_with_it(cluster, tmp_path):
    (tmp_path / "commands").write_text("cut leaf-0/5\n")
    command = [sys.executable, "-m", "fabrictwin", "up", str(cluster), "--sm", "none", "--console"]
    with (tmp_path / "commands").open() as commands:
        done = subprocess.run(command, stdin=commands, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "leaf-0/5: down"
    assert done.stderr == ""


def test_a_manager_as_a_client_brings_a_served_fabric_up():
    name = f"fabrictwin-client-{os.getpid()}"
    state = SubnetState(two_tiers())
    server = Server(Endpoint(Network(state)), name=name)
    ended = threading.Event()
    thread = threading.Thread(target=server.run, args=(ended.is_set,))
    thread.start()
    try:
        with pytest.raises(ConfigError, match="has no node 'host-77'"):
            UmadTransport(name, host="host-77")
        transport = UmadTransport(name, host="host-2/mlx5_0")
        transport.become_manager()
        manager = SubnetManager(transport)
        transport.on_frame = manager.receive
        report = manager.sweep()
        assert report.state == SmState.MASTER
        assert report.findings == ()
        hosts = [state.end_slot(m) for m, switch in enumerate(state.is_switch) if not switch]
        network = Network(state)
        assert all(network.route(a, state.lid(b))[0] == b for a in hosts for b in hosts)
        state.cut_cable(state.base[state.find("leaf-0")] + 5, 0)
        for _ in range(20):
            transport.listen(0.2)
            if manager.wants_sweep:
                break
        assert manager.light_sweep().rerouting.broken_paths > 0
        assert all(network.route(a, state.lid(b))[0] == b for a in hosts for b in hosts)
        transport.close()
    finally:
        ended.set()
        thread.join()
        server.close()


def test_the_console_tells_what_it_can_do_and_who_is_where():
    state = SubnetState(two_tiers())
    assert "cut NODE/PORT: pull the cable" in obey(state, "help", 0)
    assert obey(state, "", 0) == ""
    assert "   5  init    spine-0/1" in obey(state, "links leaf-0", 0)
    assert obey(state, "mend leaf-0/5", 0).startswith("leaf-0/5 stays down")
    obey(state, "off spine-0", 0)
    assert "   5  down    spine-0/1" in obey(state, "links leaf-0", 0)
    obey(state, "on spine-0", 0)
    obey(state, "silence spine-0", 0)
    assert state.silent == {state.find("spine-0")}


def test_what_is_cut_off_is_told_from_what_the_manager_still_reaches(cluster, capsys):
    """One spine: once it is off, the manager reaches its own leaf, where no path broke; all others did."""
    cluster.write_text(
        "hosts: {type: pcie-box, count: 40}\n"
        "network: {technology: infiniband, switch: qm8700, topology: {kind: fat-tree}}\n"
    )
    assert main(["sm", str(cluster), "--do", "off spine-0"]) == 0
    shown = capsys.readouterr().out
    assert "no path between what the manager still reaches was broken; what follows was cut off" in shown
    assert "800 were broken; 800 lead nowhere now" in shown
    cluster.write_text(CLUSTER)
    assert main(["sm", str(cluster), "--do", "cut leaf-0/5", "--do", "mend leaf-0/5"]) == 0
    assert "no path was broken" in capsys.readouterr().out.partition("mend leaf-0/5:")[2]
