"""A twin's fabric served in the test's own process, and the real InfiniBand tools as its clients.

OpenSM, infiniband-diags and ibsim come with the Debian packages opensm, infiniband-diags, ibsim-utils and
libumad2sim0; they are judges that nobody here wrote.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.importers.bindings import import_ibnetdiscover
from fabrictwin.cluster.spec.spec import load_cluster
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.serve.endpoint import Endpoint
from fabrictwin.subnet.serve.served_fabric import ManagerOptions, ServedFabric

PRELOAD = next(iter(Path("/usr/lib").glob("*/umad2sim/libumad2sim.so")), None)
TOOLS = ("opensm", "ibstat", "ibnetdiscover", "saquery", "ibsim")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None] + ([] if PRELOAD else ["libumad2sim.so"])

JUDGED_BY_REAL_TOOLS = [
    pytest.mark.second,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"not installed: {', '.join(MISSING)} (apt-get install opensm infiniband-diags ibsim-utils)",
    ),
]


class Up:
    """A fabric that is served from this process, so that a test can look into its switches."""

    def __init__(
        self,
        cluster: Path,
        folder: Path,
        *,
        manage: bool,
        settings: Settings | None = None,
        guid2lid: Path | None = None,
    ) -> None:
        read = load_cluster(cluster)
        self.blueprint = build(read.cluster, spec=read)
        self.fabric: Fabric = compile_fabric(self.blueprint)
        self.state = SubnetState(self.fabric)
        self.endpoint = Endpoint(Network(self.state))
        self.folder = folder
        self.name = f"fabrictwin-real-{os.getpid()}-{os.urandom(3).hex()}"
        self._serving = threading.Event()
        manager = ManagerOptions(settings=settings, guid2lid=guid2lid) if manage else None
        self.served = ServedFabric(self.endpoint, name=self.name, manager=manager, say=self._said)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self.served.serve, args=(self._ended.is_set,))
        self._programs: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Up:
        self._thread.start()
        assert self._serving.wait(900)
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
        """Return what a tool prints. It has to end with `code` and must not complain."""
        done = subprocess.run(
            command, env=self.environment(host), cwd=self.folder, capture_output=True, text=True, timeout=timeout
        )
        complaints = [line for line in done.stderr.splitlines() if "sim_connect: attached" not in line]
        assert (done.returncode, complaints) == (code, []), f"{command}: {complaints[:5]} {done.stdout[-500:]}"
        return done.stdout

    def opensm(
        self, host: str, *options: str, wait_for: str = "SUBNET UP", seconds: float = 120, config: str = ""
    ) -> Path:
        """Start an OpenSM that stays, with lines of opensm.conf, and wait for a line of its log, or one of several
        that `|` parts.
        """
        log = self.folder / f"osm-{len(self._programs)}.log"
        settings = self.folder / "opensm.conf"
        settings.write_text(f"force_log_flush TRUE\nsminfo_polling_timeout 1000\npolling_retry_number 2\n{config}")
        command = ["opensm", "--config", str(settings), "--console", "off", "-f", str(log), *options]
        self._programs.append(
            subprocess.Popen(
                command, env=self.environment(host), cwd=self.folder, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, text=True,
            )
        )  # fmt: skip
        return self.wait_for(log, wait_for, seconds)

    def sweep_again(self, log: Path, seconds: float = 120) -> None:
        """Have the OpenSM that was started last sweep once more (SIGHUP), and wait until it is done."""
        done = log.read_text(errors="replace").count("SUBNET UP")
        self._programs[-1].send_signal(signal.SIGHUP)
        until = time.monotonic() + seconds
        while log.read_text(errors="replace").count("SUBNET UP") == done:
            assert time.monotonic() < until, f"no second sweep in {seconds} s"
            time.sleep(0.2)

    @staticmethod
    def wait_for(log: Path, lines: str, seconds: float = 120) -> Path:
        """Wait until a log has one of the lines that `|` parts. Returns the log."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if log.exists() and any(line in log.read_text(errors="replace") for line in lines.split("|")):
                return log
            time.sleep(0.2)
        raise AssertionError(f"no {lines!r} in {seconds} s: {log.read_text(errors='replace')[-2000:]}")

    def under_opensm(self, host: str, *options: str, seconds: float = 120) -> Up:
        """Start an OpenSM as the master and return the twin once it is up, without an error in the log."""
        log = self.opensm(host, *options, seconds=seconds)
        assert "ERR" not in log.read_text()
        return self

    def lid(self, name: str) -> str:
        return str(self.state.lid(self.state.end_slot(self.state.find(name))))


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


def dumped_tables(up: Up, host: str = "host-5 mlx5_0") -> dict[int, dict[int, int]]:
    """{switch GUID: {LID: port}} of what dump_lfts prints."""
    tables: dict[int, dict[int, int]] = {}
    current: dict[int, int] = {}
    for line in up.tool("dump_lfts", host=host, timeout=300).splitlines():
        if match := re.match(r"Unicast lids .* guid 0x([0-9a-f]{16})", line):
            current = tables.setdefault(int(match[1], 16), {})
        elif match := re.match(r"0x([0-9a-f]+)\s+(\d+)\s+:", line):
            current[int(match[1], 16)] = int(match[2])
    return tables
