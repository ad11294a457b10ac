"""Real RDMA programs on two hosts of a small twin: a server on one, its client on the other.

The programs come with Debian's ibverbs-utils, perftest, rdmacm-utils and ibverbs-providers: judges that nobody
here wrote.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fabrictwin.base.capabilities import Fidelity
from fabrictwin.live.exec import launch
from fabrictwin.live.message_statistics import Row
from fabrictwin.live.native_libraries import COMPILERS
from fabrictwin.live.server import Server
from fabrictwin.twin import Twin

PROGRAMS = ("ibv_devinfo", "ibv_rc_pingpong", "ib_write_bw", "rping")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
if not any(shutil.which(name) for name in COMPILERS):
    MISSING.append("a C compiler")
NEEDS_PROGRAMS = [
    pytest.mark.second,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"not installed: {', '.join(MISSING)}"
        " (apt-get install gcc libc6-dev ibverbs-utils perftest rdmacm-utils ibverbs-providers)",
    ),
]
LISTENS_WITHIN_S = 20.0


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    code: int
    output: str


class LiveTwin:
    """A twin that is served from a thread of the test's process; `submit` runs something in that thread."""

    def __init__(self, twin: Twin, *, engine: Fidelity = "analytic", **options: Any) -> None:
        self.server = Server(twin, engine=engine, **options)
        self.server.warm_up()
        self._work: list[tuple[object, threading.Event]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self.programs: list[subprocess.Popen[str]] = []

    def _serve(self) -> None:
        while not self._ended.is_set():
            self.server.turn()
            while self._work:
                action, done = self._work.pop(0)
                action()  # type: ignore[operator]
                done.set()

    def __enter__(self) -> LiveTwin:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.programs:
            if program.poll() is None:
                program.kill()
            program.wait()
            if program.stdout is not None:
                program.stdout.close()
        self._ended.set()
        self._thread.join()
        self.server.close()

    def submit(self, action: object) -> None:
        """Run something in the server's thread, and wait until it is done."""
        done = threading.Event()
        self._work.append((action, done))
        assert done.wait(10)

    def wait_for_clients_to_go(self) -> None:
        """Return once the server has taken note that every program ended, and freed what it had; 10 s at most."""
        deadline = time.monotonic() + 10
        while self.server.clients and time.monotonic() < deadline:
            time.sleep(0.05)
        self.submit(lambda: None)  # behind what its thread is at: a client is gone before its objects are

    def environment(self, host: str) -> dict[str, str]:
        """Return the environment that makes a program run on a host."""
        tree: list[Path] = []
        self.submit(lambda: tree.append(self.server.tree(host)))
        return launch.environment(host, self.server.socket, tree[0], os.environ, clock=self.server.clock.name)

    def start(self, host: str, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start a program on a host."""
        program = subprocess.Popen(
            command,
            env=self.environment(host),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.programs.append(program)
        return program

    def run(self, host: str, command: Sequence[str], timeout_s: float = 60) -> Ended:
        """Run a program on a host to its end."""
        program = self.start(host, command)
        output, _ = program.communicate(timeout=timeout_s)
        return Ended(program.returncode, output)

    def pair(
        self,
        server: Sequence[str],
        client: Sequence[str],
        *,
        port: int | None = None,
        hosts: tuple[str, str] = ("host-0", "host-1"),
        timeout_s: float = 90,
    ) -> tuple[Ended, Ended]:
        """Run a server and, once it listens (on a TCP port, or to rdma_cm), its client; returns how both ended."""
        first = self.start(hosts[0], server)
        self._await_listener(first, port)
        second = self.start(hosts[1], client)
        output, _ = second.communicate(timeout=timeout_s)
        try:
            other, _ = first.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{server[0]} waits on after its client ended with {second.returncode}: {output}")
        return Ended(first.returncode, other), Ended(second.returncode, output)

    def _await_listener(self, program: subprocess.Popen[str], port: int | None) -> None:
        deadline = time.monotonic() + LISTENS_WITHIN_S
        while time.monotonic() < deadline and program.poll() is None:
            if port is not None and listens(port):
                return
            if port is None and any(self._cm_listeners()):
                return
            time.sleep(0.02)
        raise AssertionError(f"{program.args}: does not listen")

    def _cm_listeners(self) -> list[str]:
        found: list[str] = []
        self.submit(lambda: found.extend(self.server.connections.listening()))
        return found

    def rows(self) -> dict[tuple[str, int, int, int], Row]:
        """Return the traffic that crossed the twin, by adapter, transport, operation and size."""
        return self.server.statistics.rows


def listens(port: int) -> bool:
    """Return True where something listens on a TCP port of this machine."""
    pattern = re.compile(rf"^\s*\d+: [0-9A-F]+:{port:04X} [0-9A-F:]+ 0A ", re.M)
    return any(pattern.search(Path(f"/proc/net/{name}").read_text()) for name in ("tcp", "tcp6"))


def free_port() -> int:
    """A TCP port that nothing listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
