"""A twin that stays up for programs: its server in a thread of its own, told from others of links that change."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fabrictwin.base.capabilities import Fidelity
from fabrictwin.base.process.interrupt import serving
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import load_cluster
from fabrictwin.engines.packet.packet_options import PacketOptions, options_of
from fabrictwin.fabric.fabric import NONE
from fabrictwin.live.server import Server
from fabrictwin.twin.spec_twin import faulty_twin
from fabrictwin.twin.twin import Twin

if TYPE_CHECKING:
    from fabrictwin.subnet.agents.agent_state import SubnetState

_DOWN = 1  # PortInfo's port state


class ServedTwin:
    """Serves from `start` to `close`."""

    def __init__(self, twin: Twin, *, engine: Fidelity = "packet", packet: PacketOptions | None = None) -> None:
        self.server = Server(twin, engine=engine, packet=packet)
        self.socket = self.server.socket
        self._changes: queue.SimpleQueue[Mapping[int, int | None]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="live", daemon=True)
        self.server.watch_descriptor(self._wake, self._woken)

    def start(self) -> None:
        self._thread.start()

    def change_links(self, changes: Mapping[int, int | None]) -> None:
        """Links change as soon as the server's thread comes to it."""
        self._changes.put(changes)
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """End the thread, and free what clients had."""
        self._ended = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self.server.unwatch_descriptor(self._wake)
        os.close(self._wake)
        self.server.close()

    def _serve(self) -> None:
        self.server.warm_up()
        self.server.run(lambda: self._ended)

    def _woken(self, mask: int) -> None:
        os.eventfd_read(self._wake)
        while not self._changes.empty():
            self.server.change_links(self._changes.get())


@contextmanager
def serve_data(cluster: Path, state: SubnetState, say: Callable[[str], None]) -> Iterator[ServedTwin]:
    """Serve the adapters of a fabric whose management is up: links go down and come up as the management's do.

    Forwarding tables are those that the twin computes; they stay when the manager reroutes. Raises ConfigError.
    """
    spec = load_cluster(cluster)
    twin = faulty_twin(build(spec.cluster, spec=spec), spec)
    packet = options_of(spec.run.packet, twin.fabric.technology, spec.run.seed, spec.qos)
    served = ServedTwin(twin, packet=packet)
    peers = served.server.world.fabric.port_peer  # ports count alike without dead cables

    def changed(slot: int, now_ps: int) -> None:
        port = int(state.fabric_port[slot])
        if port != NONE and peers[port] != NONE:
            down = state.logical(slot) == _DOWN
            served.change_links({port: 0 if down else None})

    state.on_state.append(changed)
    served.start()
    host = served.server.world.fabric.host_names[0]
    say(f"data: fabrictwin exec --twin {served.socket} --host {host} -- ibv_devinfo")
    try:
        yield served
    except BaseException:
        served.close()
        raise
    with serving():  # it was up and has ended: closing waits for a kernel that is being compiled
        state.on_state.remove(changed)
        served.close()
