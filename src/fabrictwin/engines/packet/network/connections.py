"""Connections of the packet kernel: paths inside hosts, queue pairs between adapters, what each is made of.

A queue pair lives at the adapter. Its packets start in memory: the adapter reads ahead over PCIe as far as its
buffer reaches, and what arrives goes on over PCIe to memory. Where ECMP fixes a connection's path for good, the
path is looked up once, with the switches' own hash, and source-routed too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import I32, I64, U32
from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base.queue_pairs import QueuePairNumbers, hash_key
from fabrictwin.engines.packet.network.model import NetworkModel
from fabrictwin.engines.packet.network.partitions import set_partition_keys
from fabrictwin.fabric.fabric import NONE
from fabrictwin.fabric.memory_paths import PathFinder

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.connection import Connection, Framing, Reliability
    from fabrictwin.kernel.packet.machine import Machine

_BACK = 0x2A5A5A5  # tells acknowledgements from data where switches hash


def too_large(error: Exception) -> ConfigError:
    """Return the refusal of what does not fit into memory."""
    return ConfigError(f"the packet engine {error}; a smaller cut of the job fits", key="packet")


def _beyond_first(ports: I32, start: I64) -> list[tuple[int, ...]]:
    """List each path's ports but its first, the adapter's own."""
    flat, cuts = ports.tolist(), start.tolist()
    return [tuple(flat[a + 1 : b]) for a, b in pairwise(cuts)]


class Connections:
    """Makes connections of one network and adds them to the kernel."""

    def __init__(self, model: NetworkModel, machine: Machine) -> None:
        self.model, self.machine = model, machine
        self.finder = PathFinder(model.fabric, model.routes)
        self.numbers = QueuePairNumbers(len(model.fabric.nic_node))
        self.keys: I64 | None = None  # partition keys of adapters, once they are others than all alike
        self.on_connect: Callable[[int, Connection], None] | None = None  # an observer's
        self._inside: dict[tuple[int, int], list[tuple[float, tuple[int, ...]]]] = {}
        self._known: dict[str, tuple[Framing, Reliability, int]] = {}  # by congestion control

    def inside(self, source: int, destination: int) -> list[tuple[float, tuple[int, ...]]]:
        """Return the paths inside a host, as (share of the traffic, ports)."""
        key = (source, destination)
        if key not in self._inside:
            if source == destination:
                self._inside[key] = [(1.0, ())]
            else:
                _, port, share, before, _ = self.finder.inside(
                    np.array([source], np.int32), np.array([destination], np.int32)
                )
                cuts = np.flatnonzero(np.diff(before) != 0) + 1
                self._inside[key] = [
                    (float(part[0]), tuple(int(p) for p in ports))
                    for part, ports in zip(np.split(share, cuts), np.split(port, cuts), strict=True)
                ]
        return self._inside[key]

    def local(self, source: int, destination: int) -> list[tuple[float, Connection]]:
        """Return a connection for each path inside a host, with its share."""
        from fabrictwin.kernel.packet.connection import local

        return [(part, local(ports[0], ports[1:])) for part, ports in self.inside(source, destination)]

    def adapters(self, source: I32, destination: I32) -> tuple[I32, I32]:
        """Return the adapters between memory nodes of different hosts."""
        return self.finder.adapters_between(source, destination)

    @cached_property
    def _spraying(self) -> list[bool]:
        fabric = self.model.fabric
        kind = fabric.node_type[fabric.nic_node].tolist()
        names = {each: fabric.type_names[each] for each in set(kind)}
        srd = {each: bool(name) and catalog.nic(name).transport == "srd" for each, name in names.items()}
        return [srd[each] for each in kind]

    def sprays(self, adapter: int) -> bool:
        """Tell whether an adapter sends packets of one connection over many paths (SRD)."""
        return self._spraying[adapter]

    def remote(
        self,
        source: int,
        destination: int,
        *,
        prefix: tuple[int, ...] = (),
        suffix: tuple[int, ...] = (),
        sl: int | None = None,
        udp_port: int | None = None,
    ) -> Connection:
        """Return a reliable connection between adapters; `prefix` and `suffix` are ports inside the hosts.

        The service level is the route's unless it is given; the UDP source port (Ethernet) follows from queue pair
        numbers counted by adapter.
        """
        return self.remotes(
            np.array([source], np.int32),
            np.array([destination], np.int32),
            inside=[(prefix, suffix)],
            levels=[sl],
            udp_ports=None if udp_port is None else np.array([udp_port], np.uint32),
        )[0]

    def remotes(
        self,
        source: I32,
        destination: I32,
        *,
        inside: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        levels: Sequence[int | None],
        udp_ports: U32 | None = None,
    ) -> list[Connection]:
        """Return `remote` for many connections at once, in order; `inside` are prefix and suffix of each."""
        from fabrictwin.kernel.packet.congestion import Control
        from fabrictwin.kernel.packet.connection import Connection, Pacing, Paths
        from fabrictwin.kernel.packet.state import constants as s

        fabric, options = self.model.fabric, self.model.options
        port, back_port = fabric.nic_port[source], fabric.nic_port[destination]
        for adapters, cables in ((source, port), (destination, back_port)):
            loose = np.flatnonzero(cables == NONE)
            if len(loose):
                name = fabric.node_name(int(fabric.nic_node[adapters[loose[0]]]))
                raise ConfigError(f"{name} has no cable", key="cluster")
        udp = self.numbers.ports_by_connection(source, destination) if udp_ports is None else udp_ports
        nothing: list[tuple[int, ...]] = [()] * len(source)
        out, back = nothing, nothing
        if fabric.technology == "ethernet" and options.balance == "routed":
            out = _beyond_first(*self.model.routes.walk(source, destination, udp))
            back = _beyond_first(*self.model.routes.walk(destination, source, udp))
        routed = self.model.routes.service_level(source, destination).tolist()
        ack_sl = self.machine.config.lanes - 1 if options.congestion.algorithm.trims else None
        found = []
        columns = (source, destination, port, udp, fabric.nic_qp_message_ps[source])
        for i, (a, b, cable, key, period) in enumerate(zip(*(x.tolist() for x in columns), strict=True)):
            prefix, suffix = inside[i]
            sl = levels[i]
            if sl is None:
                sl = options.lanes.service_level
            if sl is None:
                sl = routed[i]
            entropy = hash_key(key, a, b)
            sprays = self.sprays(a)
            framing, reliability, control = self._under(options.congestion.at(sl))
            if self.machine.has_congestion_tables:
                control = Control.IBCC
            if sprays:
                # SRD's packets take a path each and come in any order
                reliability = replace(reliability, mode=s.SELECTIVE, reorder=s.NEVER)
            ports = [*prefix, cable, *(() if sprays else out[i])]
            found.append(
                Connection(
                    port=ports[0],
                    src=a,
                    dst=b,
                    framing=replace(framing, sl=sl, ack_sl=ack_sl if ack_sl is not None else sl),
                    reliability=reliability,
                    paths=Paths(
                        before=tuple(ports[1:]),
                        after=suffix,
                        back=() if sprays else back[i],
                        entropy=entropy & s.M31,
                        ack_entropy=(entropy ^ _BACK) & s.M31,
                        spray=sprays or options.balance == "spray",
                    ),
                    pacing=Pacing(control, self.model.round_trip_ps, period),
                )
            )
        return found

    def _under(self, control: str) -> tuple[Framing, Reliability, int]:
        """Framing, reliability and congestion control that connections under a control have in common."""
        if control not in self._known:
            self._known[control] = self._made(control)
        return self._known[control]

    def _made(self, control: str) -> tuple[Framing, Reliability, int]:
        from fabrictwin.kernel.packet.congestion import Control
        from fabrictwin.kernel.packet.connection import Framing, Reliability
        from fabrictwin.kernel.packet.state import constants as s

        options, headers = self.model.options, self.model.headers
        transport, algorithm = options.transport, options.congestion.named(control)
        reliability = Reliability(
            mode=s.SELECTIVE if options.reorders(control) else s.GO_BACK_N,
            window_bytes=algorithm.window_bytes(self.model.scale, transport.window_bytes or s.NEVER),
            ack_every=options.packets_an_ack,
            reorder=0 if options.balance == "routed" else s.NEVER,
            rto_ps=algorithm.timeout_ps(transport.timeout_ps),
            retry_limit=transport.retry_count,
            rnr_limit=transport.rnr_retry,
            rnr_ps=transport.rnr_timer_ps,
        )
        framing = Framing(headers.data, headers.first, headers.acknowledgement)
        return framing, reliability, Control[control.upper()]

    def loopback(self, adapter: int, *, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> Connection:
        """Return a connection of an adapter with itself: over PCIe to it and back, never on a wire."""
        from fabrictwin.kernel.packet.connection import Connection, Framing, Pacing, Paths, Reliability

        headers = self.model.headers
        return Connection(
            port=prefix[0],
            src=adapter,
            dst=adapter,
            framing=Framing(header_bytes=headers.data, ack_bytes=headers.acknowledgement),
            reliability=Reliability(ack_every=self.model.options.transport.ack_every),
            paths=Paths(before=prefix[1:], after=suffix),
            pacing=Pacing(message_ps=int(self.model.fabric.nic_qp_message_ps[adapter])),
        )

    def connect(self, connections: list[Connection]) -> int:
        """Add queue pairs; returns the number of the first. Raises ConfigError where memory does not reach."""
        from fabrictwin.kernel.packet.machine import OutOfMemoryError

        try:
            first = self.machine.add_queue_pairs(connections)
        except OutOfMemoryError as error:
            raise too_large(error) from None
        if self.keys is not None:
            set_partition_keys(self.machine, self.keys)
        if self.on_connect is not None:
            for i, connection in enumerate(connections):
                self.on_connect(first + i, connection)
        return first
