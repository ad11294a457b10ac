"""Namespaces of hosts, each with `ib0` over the twin, and what crossed them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.units import format_rate
from fabrictwin.live.clock.real_clock import RealClock
from fabrictwin.live.ipoib import namespace
from fabrictwin.live.ipoib.interface import Interface, Mode, Subnet, largest_packet
from fabrictwin.live.ipoib.namespace import Namespace, Settings

if TYPE_CHECKING:
    from fabrictwin.live.server import Server

NAME = "ib0"
PREFIX = 8  # adapters' addresses are in 10.0.0.0/8
_AT_A_TIME = 64  # packets taken from a kernel before others have their turn
_HOST_BOUND = 0.05  # of the modelled time, that packets were late
_US = 1_000_000


class Hosts:
    """Namespaces by host."""

    def __init__(self, server: Server, names: Iterable[str], mode: Mode) -> None:
        """Raise ConfigError where namespaces are not permitted, or a host has no port on InfiniBand."""
        assert isinstance(server.clock, RealClock)  # what kernels do takes the machine's time
        self._server = server
        self._clock = server.clock
        self.subnet = Subnet(server.world, self._clock.behind_ps)
        self.namespaces: dict[str, Namespace] = {}
        self._interfaces: dict[str, Interface] = {}
        try:
            for name in dict.fromkeys(names):
                self._add(name, mode)
        except ConfigError:
            self.close()
            raise

    def _add(self, host: str, mode: Mode) -> None:
        adapter = next((one for one in self._server.world.host(host) if one.cabled and not one.ethernet), None)
        if adapter is None:
            raise ConfigError(f"{host} has no port on InfiniBand, expected one for ib0", key="--netns")
        settings = Settings(NAME, adapter.ipv4, PREFIX, largest_packet(adapter, mode))
        space = self.namespaces[host] = namespace.create(settings)
        interface = Interface(self.subnet, adapter, mode, PREFIX, partial(_write, space.tun))
        self._interfaces[host] = interface
        self.subnet.add(interface)
        self._listen(space.tun, interface)

    def _listen(self, tun: int, interface: Interface) -> None:
        interface.freed = None
        self._server.watch_descriptor(tun, lambda mask: self._read(tun, interface))

    def _read(self, tun: int, interface: Interface) -> None:
        """Take what the kernel has to send, as much as the adapter takes."""
        self._clock.catch_up()
        for _ in range(_AT_A_TIME):
            if interface.full:
                self._server.unwatch_descriptor(tun)
                interface.freed = lambda: self._listen(tun, interface)
                return
            try:
                packet = os.read(tun, 1 << 16)
            except BlockingIOError:  # no more for now
                return
            except OSError:  # the interface is gone with its namespace: nothing comes any more
                self._server.unwatch_descriptor(tun)
                return
            interface.send_packet(packet)

    def summary(self) -> str:
        """Return a line for each host, of what it sent and got in which modelled time, and what bound them."""
        lines = []
        taken_ps = late_ps = 0
        for host, interface in self._interfaces.items():
            counts, rate = interface.counts, interface.adapter.rate_bps
            line = (
                f"{host}/{NAME} ({interface.mode}, MTU {interface.mtu:,}, link {format_rate(rate)}):"
                f" {counts.sent:,} packets, {counts.sent_bytes:,} bytes sent;"
                f" {counts.received:,} packets, {counts.received_bytes:,} bytes received"
            )
            if counts.dropped:
                line += f"; {counts.dropped:,} dropped"
            if counts.received:
                mean, late = counts.taken_ps / counts.received / _US, counts.late_ps / counts.received / _US
                line += f"; modelled {mean:,.1f} µs a packet, {late:,.1f} µs late"
            lines.append(line)
            taken_ps, late_ps = taken_ps + counts.taken_ps, late_ps + counts.late_ps
        if late_ps > _HOST_BOUND * taken_ps:
            lines.append(
                "host-bound: packets were late, so rates and times that programs print are this machine's"
            )
        return "\n".join(lines)

    def close(self) -> None:
        for space in self.namespaces.values():
            self._server.unwatch_descriptor(space.tun)
            with contextlib.suppress(OSError):
                space.close()
        self.namespaces.clear()


def _write(tun: int, packet: bytes) -> bool:
    try:
        os.write(tun, packet)
    except OSError:
        return False
    return True
