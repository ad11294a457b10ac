"""The twin's side of live programs: one loop over their sockets and the twin's engine.

How modelled time passes is the clock's (clock/).
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO

from fabrictwin.base.capabilities import Fidelity
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.process import interrupt
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.play import compile_messages
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.live import sysfs, wire
from fabrictwin.live.client import Client
from fabrictwin.live.clock.clock_page import write_processors
from fabrictwin.live.clock.pace import Clock, ClockName
from fabrictwin.live.clock.real_clock import RealClock
from fabrictwin.live.clock.virtual_clock import VirtualClock
from fabrictwin.live.context import Context, Refused, refuse
from fabrictwin.live.datapath import ClientMemory
from fabrictwin.live.event_pipe import EventPipe
from fabrictwin.live.message_statistics import Statistics
from fabrictwin.live.multicast import Groups
from fabrictwin.live.netlink.nldev import Devices
from fabrictwin.live.rdma_cm import cm_commands
from fabrictwin.live.rdma_cm.identifier import CmChannel
from fabrictwin.live.rdma_cm.manager import ConnectionManager
from fabrictwin.live.ring_queues import RingQueuePair, RingReceives, RingSharedReceives
from fabrictwin.live.uverbs import dispatch, ioctl_methods
from fabrictwin.live.uverbs.reply import Reply
from fabrictwin.live.wire import Kind
from fabrictwin.twin.twin import Twin
from fabrictwin.verbs.abi.device_codes import ibv_event_type
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.qp_transitions import ERR
from fabrictwin.verbs.adapter.world import World

_PORT_ACTIVE = int(ibv_event_type.IBV_EVENT_PORT_ACTIVE)
_PORT_ERROR = int(ibv_event_type.IBV_EVENT_PORT_ERR)
_CREDENTIALS = struct.Struct("=iII")
_DEBUG = "FABRICTWIN_LIVE_DEBUG"


class Server:
    """Adapters of a twin, for programs on its hosts. Runs in one thread."""

    def __init__(
        self,
        twin: Twin,
        *,
        engine: Fidelity = "packet",
        packet: PacketOptions | None = None,
        log: IO[str] | None = None,
        clock: ClockName = "real",
    ) -> None:
        self.engine = engine
        self.memory = ClientMemory()
        running = twin.start_engine(engine, packet)
        running.await_changes(True)  # a cut link is no error of the model
        self.world = World(twin, engine=running, process_memory=self.memory)
        self.statistics = Statistics(log)
        self.groups = Groups()
        self.folder = Path(tempfile.mkdtemp(prefix="fabrictwin-live-"))  # mode 0700
        interrupt.begin(self.folder)
        self.socket = self.folder / "socket"
        self._trees: dict[str, Path] = {}
        self.poll = select.epoll()
        self._actions: dict[int, Callable[[int], None]] = {}
        self.watched: set[RingReceives | RingSharedReceives] = set()
        self.failed: set[RingQueuePair] = set()  # in the error state
        self.clients: dict[int, Client] = {}
        self.virtual = VirtualClock(self) if clock == "virtual" else None
        self.clock: Clock = self.virtual or RealClock(self)
        self.memory.written = None if self.virtual is None else self.virtual.note_written
        self.connections = ConnectionManager(self.world, self.clock.seconds)
        self._debug = bool(os.environ.get(_DEBUG))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(str(self.socket))
        self.socket.chmod(0o600)
        self._listener.listen(128)
        self.watch_descriptor(self._listener.fileno(), self._accept)

    def warm_up(self) -> None:
        """Have the engine's kernels compiled, on an engine of its own: programs would wait for them otherwise."""
        twin = self.world.twin
        compile_messages(Twin(twin.blueprint).start_engine(self.engine))
        self.clock.begin()

    # ------------------------------------------------------------------ the loop

    def run(self, until: Callable[[], bool]) -> None:
        """Serve until `until` says so."""
        while not until():
            self.turn()

    def turn(self, wait_s: float | None = None) -> None:
        """Wait for something (for `wait_s` at most, where that is given), and do it."""
        self.clock.turn(wait_s)

    def handle(self, happened: list[tuple[int, int]]) -> None:
        """Do what descriptors ask for."""
        wanted = [(descriptor, mask, self._actions.get(descriptor)) for descriptor, mask in happened]
        for descriptor, mask, action in wanted:
            # what happened to a descriptor that an action before has closed is not the next one's of its number
            if action is not None and self._actions.get(descriptor) is action:
                action(mask)

    def note_news(self, pid: int) -> None:
        """A process can find something that it may look for."""
        if self.virtual is not None:
            self.virtual.note_news(pid)

    # ------------------------------------------------------------------ what is watched

    def watch_descriptor(self, descriptor: int, action: Callable[[int], None], mask: int = select.EPOLLIN) -> None:
        """Call `action` with what has happened to a descriptor."""
        self._actions[descriptor] = action
        self.poll.register(descriptor, mask)

    def unwatch_descriptor(self, descriptor: int) -> None:
        if self._actions.pop(descriptor, None) is not None:
            with contextlib.suppress(OSError):
                self.poll.unregister(descriptor)

    def watch(self, queue: RingReceives | RingSharedReceives) -> None:
        """Look into a receive queue's ring while messages may come for it."""
        self.watched.add(queue)

    def flush_late(self) -> bool:
        """Flush what was posted to queue pairs since they failed: no doorbell tells. Returns whether any was."""
        self.failed = {pair for pair in self.failed if pair.state == ERR}
        return sum(pair.flush_late() for pair in self.failed) > 0

    def watch_pipe(self, pipe: EventPipe, gone: Callable[[], None]) -> None:
        """Call `gone` once a client has closed its end."""
        self.watch_descriptor(pipe.fileno(), lambda _: gone(), 0)

    def unwatch_pipe(self, pipe: EventPipe) -> None:
        self.unwatch_descriptor(pipe.fileno())

    # ------------------------------------------------------------------ clients

    def _accept(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listener.accept()
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, user, _ = _CREDENTIALS.unpack(raw)
            if user not in (os.geteuid(), 0):
                connection.close()
                return
            connection.setblocking(False)
            client = self.clients[connection.fileno()] = Client(connection, pid)
            self.watch_descriptor(connection.fileno(), partial(self._read, client))
            with contextlib.suppress(OSError):  # gone already: its socket says so too
                client.watching = os.pidfd_open(pid)
                self.watch_descriptor(client.watching, partial(self.drop, client))

    def _read(self, client: Client, mask: int = 0) -> None:
        try:
            data = client.connection.recv(wire.PAYLOAD_BYTES + wire.REQUEST.size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if client.netlink is not None and data:
            self._answer_netlink(client, client.netlink, data)
            return
        if len(data) < wire.REQUEST.size:
            self.drop(client)
            return
        kind, length, argument = wire.REQUEST.unpack_from(data)
        try:
            if kind == Kind.DOORBELL and client.context is not None:
                self.clock.ring(client.context, argument & 0xFFFFFFFF)
                return
            if length != len(data) - wire.REQUEST.size:
                raise refuse(errno.EPROTO)
            reply = self._serve(client, kind, argument, data[wire.REQUEST.size :])
        except Refused as error:
            self._say(client, wire.REPLY.pack(error.errno or errno.EINVAL, 0, -1, 0))
            return
        except Exception:  # whatever a client has made happen, the others go on
            if self._debug:
                traceback.print_exc()
            else:
                print(f"fabrictwin: dropped process {client.pid}: {sys.exc_info()[1]!r}", file=sys.stderr)
            self.drop(client)
            return
        if reply is not None:
            head = wire.REPLY.pack(0, len(reply.data), reply.descriptor_at, 0)
            self._say(client, head + reply.data, reply.descriptor)
            if reply.after is not None:
                reply.after()

    def _serve(self, client: Client, kind: int, argument: int, body: bytes) -> Reply | None:
        if kind == Kind.COMMAND and client.context is not None:
            return dispatch.answer(client.context, body)
        if kind == Kind.IOCTL and client.context is not None:
            return ioctl_methods.answer(client.context, body)
        if kind == Kind.CM_COMMAND and client.connections is not None:
            return Reply(cm_commands.answer(client.connections, body))
        opened = client.context or client.connections
        if kind == Kind.DESCRIPTOR:
            if opened is not None:
                opened.name_descriptor(argument)
            return None
        if kind == Kind.OPEN and argument == wire.PROTOCOL and opened is None:
            return self._open(client, body)
        if kind == Kind.ADDRESS and len(body) == 16:
            found = self.world.by_gid(body)
            return Reply(bytes(6) if found is None else found.mac)
        if kind == Kind.TREE:
            return Reply(os.fsencode(self.tree(body.decode(errors="replace"))))
        if kind == Kind.HOSTS:
            return Reply("\n".join(self.world.fabric.host_names).encode())
        if self.virtual is not None:
            return self.virtual.serve(client, kind, argument, body)
        raise refuse(errno.EPROTO)

    def _answer_netlink(self, client: Client, devices: Devices, data: bytes) -> None:
        try:
            replies = devices.answer(data)
        except ValueError:  # the kernel drops what it cannot take apart
            return
        for reply in replies:
            self._say(client, reply)

    def _contexts(self, adapter: Adapter) -> list[Context]:
        """Contexts that programs have opened on an adapter."""
        contexts = (client.context for client in self.clients.values())
        return [context for context in contexts if context is not None and context.adapter is adapter]

    def _say(self, client: Client, data: bytes, descriptor: int = -1) -> None:
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))] if descriptor >= 0 else []
        )
        try:
            client.connection.sendmsg([data], rights)
        except OSError:  # gone, or does not read what it asked for
            self.drop(client)

    def _open(self, client: Client, body: bytes) -> Reply:
        host, _, device = body.decode(errors="replace").rpartition("/")
        adapters = self._adapters(host)
        if device == "rdma_cm":
            channel = client.connections = CmChannel(self.connections, host, client.pid)
            self.connections.channels.add(channel)
            self.watch_pipe(channel.pipe, lambda: self.drop(client))
            return Reply(descriptor=channel.pipe.reader, after=channel.pipe.hand_over)
        if device == "netlink":
            client.netlink = Devices(adapters, self._contexts, client.pid)
            return Reply()
        if not device.startswith("uverbs") or not device[6:].isdigit() or int(device[6:]) >= len(adapters):
            raise refuse(errno.ENODEV)
        context = client.context = Context(self, adapters[int(device[6:])], client.pid)
        if self.virtual is not None:
            self.virtual.admit(context)
        return Reply(descriptor=context.file.descriptor)

    def drop(self, client: Client, mask: int = 0) -> None:
        """Free all that a client had."""
        descriptor = client.connection.fileno()
        if descriptor < 0:
            return
        self.unwatch_descriptor(descriptor)
        self.clients.pop(descriptor, None)
        if self.virtual is not None:
            self.virtual.drop(client)
        if client.watching >= 0:
            self.unwatch_descriptor(client.watching)
            os.close(client.watching)
            client.watching = -1
        client.connection.close()
        if client.connections is not None:
            self.unwatch_pipe(client.connections.pipe)
            client.connections.close()
            self.connections.channels.discard(client.connections)
        if client.context is not None:
            client.context.close()
            self.watched = {queue for queue in self.watched if queue.ring.address}

    # ------------------------------------------------------------------ hosts

    def _adapters(self, host: str) -> list[Adapter]:
        try:
            return self.world.host(host)
        except ConfigError:
            raise refuse(errno.ENODEV) from None

    def tree(self, host: str) -> Path:
        """The folder with the files that programs of a host see; written when first asked for."""
        found = self._trees.get(host)
        if found is None:
            adapters = self._adapters(host)
            found = self._trees[host] = self.folder / f"host-{len(self._trees)}"
            found.mkdir()
            every = self.world.adapters
            sysfs.write_tree(found, adapters, every[0].ipv4 + every[-1].ipv4)
            if self.virtual is not None:
                write_processors(found)
        return found

    # ------------------------------------------------------------------ links

    def change_links(self, changes: Mapping[int, int | None]) -> None:
        """Let links run at other rates from now on, by port: 0 is down, None as built. Tell programs of theirs.

        Raises ConfigError.
        """
        self.clock.catch_up()
        world = self.world
        before = {adapter.index: adapter.active for adapter in world.adapters}
        rates = world.twin.link_rate_bps
        for port, rate_bps in changes.items():
            world.engine.change(TimedChange(world.engine.now_ps, port, rate_bps))
            if rate_bps is None:
                rates.pop(port, None)
            else:
                rates[port] = rate_bps
        changed = [adapter for adapter in world.adapters if adapter.active != before[adapter.index]]
        for adapter in changed:
            kind = _PORT_ACTIVE if adapter.active else _PORT_ERROR
            for context in self._contexts(adapter):
                context.raise_port_event(kind)
        for host in {adapter.host_name for adapter in changed} & self._trees.keys():
            sysfs.update_ports(self._trees[host], world.host(host))

    def close(self) -> None:
        for client in list(self.clients.values()):
            self.drop(client)
        self._listener.close()
        self.poll.close()
        self.clock.close()
        sysfs.remove_tree(self.folder)
        interrupt.finish(self.folder)
