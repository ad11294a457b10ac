"""Nodes that join by the console at the real OpenSM: its trees, read back by dump_mfts, reach every member."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from support.real_tools import JUDGED_BY_REAL_TOOLS, PRELOAD
from support.specs import boxes_cluster

from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import load_cluster
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.subnet.agents.agent_state import SubnetState

pytestmark = JUDGED_BY_REAL_TOOLS
MEMBERS = ("host-1/mlx5_0", "host-9/mlx5_0", "host-30/mlx5_0")
MGID = "ff12:401b:ffff::77"


def trees(dump: str) -> dict[int, set[int]]:
    """{switch GUID: ports} of the one group that members joined, from what dump_mfts prints."""
    found: dict[int, set[int]] = {}
    guid = 0
    for line in dump.splitlines():
        if match := re.search(r"guid (0x[0-9a-f]{16})", line):
            guid = int(match[1], 16)
        elif line.startswith("0xc001"):
            # a mark for port p stands in column 2 p + 12, behind the MLID and its blanks
            found[guid] = {(at - 12) // 2 for at, mark in enumerate(line) if mark == "x" and at > 10}
    return found


def reached(state: SubnetState, tree: dict[int, set[int]], start: int) -> set[int]:
    """End slots that a packet of a member's slot comes to, each switch once."""
    guids = {state.guid[m]: m for m, is_switch in enumerate(state.is_switch) if is_switch}
    ports = {guids[guid]: numbers for guid, numbers in tree.items()}
    ends: set[int] = set()
    todo, seen = [state.cable[start]], set()
    while todo:
        slot = todo.pop()
        m = state.node_of[slot]
        if not state.is_switch[m]:
            assert slot not in ends, "a copy came twice"
            ends.add(slot)
            continue
        assert m not in seen, "a copy came back to a switch"
        seen.add(m)
        assert state.number[slot] in ports[m], "the tree does not know the port that it comes in by"
        todo += [state.cable[state.base[m] + p] for p in ports[m] if p not in (0, state.number[slot])]
    return ends


def test_trees_of_the_real_opensm_reach_every_member(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(boxes_cluster(32, tiers=2, radix=16))
    name = f"fabrictwin-multicast-{os.getpid()}"
    command = [sys.executable, "-m", "fabrictwin", "up", str(cluster), "--socket", name, "--sm", "none"]
    mine = {"IBSIM_SOCKNAME": name, "SIM_HOST": "host-0/mlx5_0", "LD_PRELOAD": str(PRELOAD)}
    environment = os.environ | mine | {"OSM_CACHE_DIR": str(tmp_path), "OSM_TMP_DIR": str(tmp_path)}
    twin = subprocess.Popen([*command, "--console"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert twin.stdin is not None
    assert twin.stdout is not None
    while "IBSIM_SOCKNAME" not in (line := twin.stdout.readline()):
        assert line, "it ended"
    log, settings = tmp_path / "osm.log", tmp_path / "opensm.conf"
    settings.write_text("force_log_flush TRUE\n")
    manager = subprocess.Popen(
        ["opensm", "--config", str(settings), "--console", "off", "-f", str(log)],
        env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait(lambda: log.exists() and "SUBNET UP" in log.read_text())
        for member in MEMBERS:
            twin.stdin.write(f"join {member} {MGID}\n")
            twin.stdin.flush()
            assert twin.stdout.readline() == f"join {member} {MGID}: a member of MLID 0xc001\n"
        spec = load_cluster(cluster)
        state = SubnetState(compile_fabric(build(spec.cluster, spec=spec)))
        ends = {state.end_slot(state.find(member)) for member in MEMBERS}

        def complete() -> bool:
            dump = ["dump_mfts"]
            done = subprocess.run(dump, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
            tree = trees(done.stdout)
            return len(tree) >= 2 and all(reached(state, tree, end) == ends - {end} for end in ends)

        _wait(complete)
    finally:
        manager.kill()
        manager.wait()
        twin.kill()
        twin.communicate()


def _wait(until, seconds: float = 60) -> None:
    """Ask again and again whether something is so."""
    ends = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < ends, f"not within {seconds} s"
        time.sleep(0.5)
