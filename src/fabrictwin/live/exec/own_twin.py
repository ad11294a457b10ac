"""Programs on a twin that is started for them, and ends with them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fabrictwin.base.capabilities import Fidelity
from fabrictwin.base.errors import ConfigError
from fabrictwin.live import native_libraries
from fabrictwin.live.exec import launch, program_list
from fabrictwin.live.exec.launch import Program

if TYPE_CHECKING:
    from fabrictwin.live.server import Server

_PATIENCE_S = 2.0  # between asking programs to end and ending them


@dataclass(frozen=True)
class Wanted:
    """What is to be run: a command on one host, one on all, or those of a file."""

    command: tuple[str, ...]
    host: str | None
    every: str | None
    file: Path | None

    def programs(self, names: Sequence[str]) -> list[Program]:
        """Return what runs where, seen to be possible. Raises ConfigError."""
        if self.file is not None:
            programs = program_list.from_file(self.file, names)
        elif self.every is not None:
            programs = program_list.on_every_host(self.every, names)
        else:
            host = names[0] if self.host is None else program_list.known_host(self.host, names, key="--host")
            programs = [Program(host, self.command)]
        for command in dict.fromkeys(program.command for program in programs):
            launch.check(command)
        return programs


def run(cluster: Path, wanted: Wanted, *, engine: Fidelity, messages: Path | None, summary: bool) -> int:
    """Start a twin, run programs on it, and say what they did; returns their exit code. Raises ConfigError."""
    from fabrictwin.cluster.build_blueprint import build as build_cluster
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.live.server import Server
    from fabrictwin.twin import Twin

    for name in native_libraries.LIBRARIES:
        native_libraries.library(name)  # says what is missing before anything else is done
    spec = load_cluster(cluster)
    twin = Twin(build_cluster(spec.cluster, spec=spec))
    programs = wanted.programs(twin.fabric.host_names)
    with contextlib.ExitStack() as stack:
        try:
            log = None if messages is None else stack.enter_context(messages.open("w"))
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", file=messages) from None
        server = Server(twin, engine=engine, log=log)
        stack.callback(server.close)
        server.warm_up()
        before = time.monotonic()
        codes = serve_programs(server, programs)
        if summary:
            launch.say(server.statistics.summary(time.monotonic() - before))
    return launch.exit_code(codes)


def serve_programs(server: Server, programs: Sequence[Program]) -> list[int]:
    """Serve until all programs have ended; returns their return codes. Interrupted, they are asked to end."""
    stopped: list[float] = []

    def stop(number: int, frame: object) -> None:
        stopped.append(time.monotonic())

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    wakeup = signal.set_wakeup_fd(-1)  # programs end first, and may take longer than a command may
    running: list[subprocess.Popen[bytes]] = []
    descriptors: list[int] = []
    try:
        trees = {program.host: server.tree(program.host) for program in programs}
        for program in programs:
            started = launch.start(program, server.socket, trees[program.host])
            running.append(started)
            descriptors.append(os.pidfd_open(started.pid))
            server.watch_descriptor(descriptors[-1], partial(_ended, server, descriptors[-1]))
        asked = False
        while any(program.poll() is None for program in running):
            server.turn()
            if stopped and not asked:
                asked = True
                launch.end(running)
            if stopped and time.monotonic() > stopped[0] + _PATIENCE_S:
                _kill(running)
    finally:
        _kill(running)
        for descriptor in descriptors:
            server.unwatch_descriptor(descriptor)
            os.close(descriptor)
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
    return [program.returncode for program in running]


def _ended(server: Server, descriptor: int, mask: int) -> None:
    server.unwatch_descriptor(descriptor)  # the loop looks for who has ended


def _kill(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for program in running:
        if program.poll() is None:
            program.kill()
            program.wait()
