"""Programs on a twin that is up already."""

from __future__ import annotations

import socket
import stat
import subprocess
from pathlib import Path

from fabrictwin.base.errors import ConfigError
from fabrictwin.live import wire
from fabrictwin.live.exec import launch
from fabrictwin.live.exec.own_twin import Wanted
from fabrictwin.live.wire import Kind

SIGNAL_S = 0.2


def run(path: Path, wanted: Wanted) -> int:
    """Run programs on the twin behind a socket; returns their exit code. Raises ConfigError."""
    names = ask(path, Kind.HOSTS, b"").decode().split("\n")
    programs = wanted.programs(names)
    roots = {host: Path(ask(path, Kind.TREE, host.encode()).decode()) for host in {p.host for p in programs}}
    running: list[subprocess.Popen[bytes]] = []
    interruption = launch.Interruption()
    with interruption.noted():
        try:
            for program in programs:
                running.append(launch.start(program, path.absolute(), roots[program.host]))
            for started in running:
                while not _has_ended(started):
                    interruption.act(running)
        finally:
            launch.end(running)
    return interruption.exit_code([started.returncode for started in running])


def _has_ended(program: subprocess.Popen[bytes]) -> bool:
    """Wait for a program for as long as a signal may wait to be seen."""
    try:
        program.wait(SIGNAL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def ask(path: Path, kind: Kind, body: bytes) -> bytes:
    """Return what the server behind a socket answers. Raises ConfigError."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError("expected the socket of a twin that is up", file=path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(str(path))
            connection.sendall(wire.REQUEST.pack(kind, len(body), 0) + body)
            answer = connection.recv(1 << 20)
    except OSError as error:
        raise ConfigError(f"no twin answers there: {error.strerror}", file=path) from None
    if len(answer) < wire.REPLY.size or wire.REPLY.unpack_from(answer)[0]:
        raise ConfigError("the twin there refuses to answer; is it another version's?", file=path)
    return answer[wire.REPLY.size :]
