"""Programs on a twin that is started for them, and ends with them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fabrictwin.base.capabilities import Fidelity
from fabrictwin.base.records import record
from fabrictwin.base.textfile import writing
from fabrictwin.live import native_libraries
from fabrictwin.live.clock.pace import ClockName
from fabrictwin.live.exec import launch, program_list
from fabrictwin.live.exec.launch import Program

if TYPE_CHECKING:
    from fabrictwin.capture.recorder import CaptureRequest
    from fabrictwin.live.ipoib.hosts import Hosts
    from fabrictwin.live.server import Server


@record
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


def run(
    cluster: Path,
    wanted: Wanted,
    *,
    engine: Fidelity,
    clock: ClockName,
    messages: Path | None,
    summary: bool,
    netns: bool = False,
    capture: CaptureRequest | None = None,
) -> int:
    """Start a twin, run programs on it, and say what they did; returns their exit code. Raises ConfigError."""
    from fabrictwin.cluster.build_blueprint import build as build_cluster
    from fabrictwin.cluster.spec.cluster_section import GeneratedCluster
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.engines.packet.packet_options import options_of
    from fabrictwin.live.ipoib.hosts import Hosts
    from fabrictwin.live.server import Server
    from fabrictwin.twin.spec_twin import faulty_twin
    from fabrictwin.verbs.packet_capture import capture as record

    for name in native_libraries.LIBRARIES:
        native_libraries.library(name)  # says what is missing before anything else is done
    spec = load_cluster(cluster)
    twin = faulty_twin(build_cluster(spec.cluster, spec=spec), spec)
    packet = None
    if engine == "packet":
        packet = options_of(spec.run.packet, twin.fabric.technology, spec.run.seed, spec.qos)
    elif spec.run.packet is not None:
        launch.say(f"run.packet is not used: {engine} has no packets")
    programs = wanted.programs(twin.fabric.host_names)
    with contextlib.ExitStack() as stack:
        log = None
        if messages is not None:
            with writing(messages):
                log = stack.enter_context(messages.open("w"))
        server = Server(twin, engine=engine, packet=packet, log=log, clock=clock)
        stack.callback(server.close)
        if capture is not None:
            at, snaplen = capture.at, capture.snaplen
            stack.enter_context(record(capture.path, at=at, snaplen=snaplen, world=server.world))
        hosts = None
        if netns:
            network = spec.cluster.network if isinstance(spec.cluster, GeneratedCluster) else spec.cluster
            hosts = Hosts(server, [program.host for program in programs], network.ipoib or "datagram")
            stack.callback(hosts.close)
        server.warm_up()
        before = time.monotonic()
        interruption = launch.Interruption()
        codes = serve_programs(server, programs, interruption, hosts)
        if summary:
            launch.say(server.statistics.summary(time.monotonic() - before))
            if hosts is not None:
                launch.say(hosts.summary())
    return interruption.exit_code(codes)


def serve_programs(
    server: Server, programs: Sequence[Program], interruption: launch.Interruption, hosts: Hosts | None = None
) -> list[int]:
    """Serve until all programs have ended, each in its host's namespace if it has one; returns their codes."""
    running: list[subprocess.Popen[bytes]] = []
    descriptors: list[int] = []
    with interruption.noted():
        try:
            trees = {program.host: server.tree(program.host) for program in programs}
            for program in programs:
                enter = None if hosts is None else hosts.namespaces[program.host].enter
                root = trees[program.host]
                started = launch.start(program, server.socket, root, clock=server.clock.name, enter=enter)
                running.append(started)
                descriptors.append(os.pidfd_open(started.pid))
                server.watch_descriptor(descriptors[-1], partial(_ended, server, descriptors[-1]))
                if server.virtual is not None:
                    server.virtual.follow(started.pid)
                    server.virtual.settle()  # one after another, all at instant 0
            while any(program.poll() is None for program in running):
                server.turn()
                interruption.act(running)
        finally:
            launch.kill(running)
            for descriptor in descriptors:
                server.unwatch_descriptor(descriptor)
                os.close(descriptor)
    return [program.returncode for program in running]


def _ended(server: Server, descriptor: int, mask: int) -> None:
    server.unwatch_descriptor(descriptor)  # the loop looks for who has ended
